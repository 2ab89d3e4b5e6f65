/*
 * Graphs of the CUDA device: the bits of operations that are started one by one, whatever changes
 * from one time to the next; one launch once they are known; and what the emulated driver would
 * show of a node that is not set anew, of memory that is gone, and of a capture that fails.
 */
#include "tests/cuda_emu/both.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu-worker/device/cuda/internal.h"
#include "tests/cuda_emu/emu_driver.h"

#define HEADS   3u
#define DIM     16u
#define WIDTH   (HEADS * DIM)
#define TIMES   7u
#define ANGLES  (TIMES * DIM / 2)
#define KV_ROWS 600u

static const struct gw_heads heads = {HEADS, 1, DIM, 0.25f, PP_F32};

/* A small piece of a step: position, row and length differ every time. */
struct piece {
    struct gw_device *device;
    struct gw_stream *stream;
    struct gw_rope_table rope;
    struct gw_matrix matrix;
    float *weight, *x, *q, *o, *lse;
    uint8_t *k, *v; /* [KV_ROWS][DIM] */
    float *out;     /* pinned [WIDTH] */
};

static struct piece piece_new(struct gw_device *device)
{
    const struct gw_device_limits limits = {
        .columns_max = WIDTH, .rows_max = 8, .heads = heads, .kv_tokens_max = KV_ROWS};
    struct pp_rng rng = {.seed = BOTH_SEED};
    struct piece piece = {.device = device};
    float values[KV_ROWS * DIM];
    void *memory;
    assert_int_equal(device->ops->prepare(device, &limits), PP_OK);
    assert_int_equal(device->ops->stream_new(device, &piece.stream), PP_OK);
    for (uint32_t i = 0; i < KV_ROWS * DIM; i++) {
        values[i] = (float)pp_rng_normal(&rng);
    }
    piece.rope =
        (struct gw_rope_table){both_put(device, values, ANGLES * sizeof(float)),
                               both_put(device, values + 64, ANGLES * sizeof(float)), TIMES, false};
    piece.matrix = (struct gw_matrix){GW_WEIGHT_F32, WIDTH, WIDTH,
                                      both_put(device, values, WIDTH * WIDTH * sizeof(float))};
    piece.weight = both_put(device, values + 7, WIDTH * sizeof(float));
    piece.x = both_put(device, values + 99, WIDTH * sizeof(float));
    piece.q = both_put(device, values, WIDTH * sizeof(float));
    piece.o = both_put(device, values, WIDTH * sizeof(float));
    piece.lse = both_put(device, values, HEADS * sizeof(float));
    piece.k = both_put(device, values, sizeof(values));
    piece.v = both_put(device, values, sizeof(values));
    assert_int_equal(device->ops->pinned_alloc(device, WIDTH * sizeof(float), &memory), PP_OK);
    piece.out = memory;
    return piece;
}

static void piece_free(struct piece *piece)
{
    struct gw_device *device = piece->device;
    void *memory[] = {piece->weight,
                      piece->x,
                      piece->q,
                      piece->o,
                      piece->lse,
                      piece->k,
                      piece->v,
                      (void *)(uintptr_t)piece->rope.cosine,
                      (void *)(uintptr_t)piece->rope.sine,
                      (void *)(uintptr_t)piece->matrix.data};
    device->ops->stream_destroy(device, piece->stream);
    for (uint32_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        device->ops->free(device, memory[i]);
    }
    device->ops->pinned_free(device, piece->out);
}

/* rows: of K/V that are attended, which decides about the kernels. */
static enum pp_status piece_run(struct piece *piece, uint64_t position, uint64_t rows)
{
    struct gw_device *device = piece->device;
    const struct gw_device_ops *ops = device->ops;
    uint64_t at = (rows - 1) * DIM * sizeof(float);
    const struct gw_kv_rows kv = {piece->k, piece->v, rows};
    PP_TRY(
        ops->rms_norm(device, piece->stream, piece->x, piece->weight, 1e-5f, 1, WIDTH, piece->q));
    PP_TRY(ops->linear(device, piece->stream, &piece->matrix, piece->q, 1, false, piece->o));
    PP_TRY(ops->rope(device, piece->stream, &piece->rope, position, 1, HEADS, DIM, piece->o));
    PP_TRY(ops->to_dtype(device, piece->stream, PP_F32, DIM, piece->o, 1, piece->k + at));
    PP_TRY(ops->copy_within(device, piece->stream, piece->q, piece->o, WIDTH * sizeof(float)));
    PP_TRY(ops->attend_partial(device, piece->stream, &heads, &kv, 1, piece->q, 1, piece->o,
                               piece->lse));
    PP_TRY(ops->linear(device, piece->stream, &piece->matrix, piece->o, 1, true, piece->x));
    return ops->pinned_out(device, piece->stream, piece->out, piece->x, WIDTH * sizeof(float));
}

/* The piece over and over; rows[i] are attended the i-th time. out [TIMES][WIDTH]. */
static void run_all(struct gw_device *device, bool graphs, const uint64_t *rows, float *out)
{
    const struct gw_device_ops *ops = device->ops;
    struct piece piece = piece_new(device);
    struct gw_graph *graph = NULL;
    struct gw_event *event;
    assert_int_equal(ops->event_new(device, &event), PP_OK);
    if (graphs) {
        assert_int_equal(ops->graph_new(device, &graph), PP_OK);
    }
    for (uint32_t i = 0; i < TIMES; i++) {
        if (graphs) {
            assert_int_equal(ops->graph_begin(device, graph, piece.stream), PP_OK);
        }
        enum pp_status status = piece_run(&piece, i, rows[i]);
        status = graphs ? ops->graph_end(device, graph, status) : status;
        assert_int_equal(status, PP_OK);
        assert_int_equal(ops->event_record(device, event, piece.stream), PP_OK);
        assert_int_equal(ops->event_synchronize(device, event), PP_OK);
        memcpy(out + i * WIDTH, piece.out, WIDTH * sizeof(float));
    }
    ops->graph_destroy(device, graph);
    ops->event_destroy(device, event);
    piece_free(&piece);
}

static const uint64_t steady[TIMES] = {3, 4, 5, 6, 7, 8, 9};
/* From 257 rows on a second kernel merges: another row of operations. */
static const uint64_t grown[TIMES] = {255, 256, 257, 520, 100, 600, 101};

static void a_graph_gives_the_bits_of_what_it_holds(void **state)
{
    (void)state;
    const uint64_t *const rows[2] = {steady, grown};
    for (uint32_t i = 0; i < 2; i++) {
        float plain[TIMES * WIDTH], graphs[TIMES * WIDTH];
        struct gw_device *device = cuda_test_device_new();
        const struct gw_cuda_graph_counts *counts = &gw_cuda_device(device)->graph_counts;
        run_all(device, false, rows[i], plain);
        assert_int_equal(counts->started, 0);
        run_all(device, true, rows[i], graphs);
        assert_memory_equal(plain, graphs, sizeof(plain));
        assert_int_equal(counts->captured, i + 1);
        assert_int_equal(counts->launched, TIMES - (i + 1));
        assert_true(counts->updated >= 3 * (counts->launched - counts->captured));
        device->ops->destroy(device);
        assert_int_equal(emu_bytes_taken(), 0);
    }
}

static void a_known_graph_is_one_launch_and_no_kernels(void **state)
{
    (void)state;
    float out[TIMES * WIDTH];
    struct gw_device *device = cuda_test_device_new();
    emu_counts = (struct emu_counts){0};
    run_all(device, true, steady, out);
    assert_int_equal(emu_counts.captures, 1);
    assert_int_equal(emu_counts.graph_launches, TIMES - 1);
    assert_int_equal(emu_counts.launches, 2 * 6); /* the first time, and in the capture */
    device->ops->destroy(device);
}

/* What would come of a graph that keeps what it was captured with. */
static void nodes_that_are_not_set_anew_show(void **state)
{
    (void)state;
    float plain[TIMES * WIDTH], lost[TIMES * WIDTH];
    struct gw_device *device = cuda_test_device_new();
    run_all(device, false, steady, plain);
    emu_machine.sets_lost = true;
    run_all(device, true, steady, lost);
    emu_machine.sets_lost = false;
    assert_memory_equal(plain, lost, 2 * WIDTH * sizeof(float)); /* until it is launched again */
    for (uint32_t i = 2; i < TIMES; i++) {
        assert_memory_not_equal(plain + i * WIDTH, lost + i * WIDTH, WIDTH * sizeof(float));
    }
    device->ops->destroy(device);
}

static void more_rows_of_operations_than_a_graph_keeps_are_met_again(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    const struct gw_device_ops *ops = device->ops;
    struct piece piece = piece_new(device);
    struct gw_graph *graph;
    float sum = 0.0f, expected = 0.0f, one = 1.0f;
    float *x = both_put(device, &sum, sizeof(sum)), *added = both_put(device, &one, sizeof(one));
    assert_int_equal(ops->graph_new(device, &graph), PP_OK);
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t count = i % 11 + 1;
        assert_int_equal(ops->graph_begin(device, graph, piece.stream), PP_OK);
        enum pp_status status = PP_OK;
        for (uint32_t j = 0; j < count && status == PP_OK; j++) {
            status = ops->add_bias(device, piece.stream, added, 1, 1, x);
        }
        assert_int_equal(ops->graph_end(device, graph, status), PP_OK);
        expected += (float)count;
    }
    assert_int_equal(ops->graph_begin(device, graph, piece.stream), PP_OK); /* nothing in it */
    assert_int_equal(ops->graph_end(device, graph, PP_OK), PP_OK);
    assert_int_equal(ops->synchronize(device, piece.stream), PP_OK);
    float *found = both_get(device, x, sizeof(float));
    assert_true(*found == expected);
    free(found);
    ops->free(device, added);
    ops->graph_destroy(device, graph);
    piece_free(&piece);
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

static void what_needs_the_host_is_refused_and_drops_the_rest(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    const struct gw_device_ops *ops = device->ops;
    struct piece piece = piece_new(device);
    struct gw_graph *graph;
    float found = 0.0f, one = 1.0f;
    const void *seen;
    float *x = both_put(device, &one, sizeof(one));
    assert_int_equal(ops->graph_new(device, &graph), PP_OK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(ops->graph_begin(device, graph, piece.stream), PP_OK);
        assert_int_equal(ops->add_bias(device, piece.stream, piece.weight, 1, 1, x), PP_OK);
        enum pp_status status =
            i == 0   ? ops->copy_in(device, piece.stream, x, &found, sizeof(found))
            : i == 1 ? ops->copy_out(device, piece.stream, &found, x, sizeof(found))
            : i == 2 ? ops->synchronize(device, piece.stream)
            : i == 3 ? ops->view(device, piece.stream, 0, x, sizeof(found), &seen)
                     : PP_CANCELLED; /* the caller's own failure */
        assert_int_equal(status, i == 4 ? PP_CANCELLED : PP_FAILED_PRECONDITION);
        assert_int_equal(ops->graph_end(device, graph, status), status);
    }
    assert_int_equal(ops->copy_out(device, piece.stream, &found, x, sizeof(found)), PP_OK);
    assert_int_equal(ops->synchronize(device, piece.stream), PP_OK);
    assert_true(found == one);
    ops->free(device, x);
    ops->graph_destroy(device, graph);
    piece_free(&piece);
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

/* An error, every time until it is mended; then the same graph works. */
static void a_capture_that_fails_is_an_error(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    const struct gw_device_ops *ops = device->ops;
    struct piece piece = piece_new(device);
    struct gw_graph *graph;
    assert_int_equal(ops->graph_new(device, &graph), PP_OK);
    emu_machine.capture_refused = true;
    for (uint32_t i = 0; i < 6; i++) {
        emu_machine.capture_refused = i < 4;
        assert_int_equal(ops->graph_begin(device, graph, piece.stream), PP_OK);
        enum pp_status status = ops->graph_end(device, graph, piece_run(&piece, 1, 5));
        assert_int_equal(status, i == 1 || i == 3 ? PP_INTERNAL : PP_OK);
    }
    assert_int_equal(gw_cuda_device(device)->graph_counts.captured, 1);
    ops->graph_destroy(device, graph);
    piece_free(&piece);
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

/* The emulated driver's graph of one copy, launched after its memory was freed and taken again. */
static void launch_of_freed_memory(void)
{
    struct CUstream_st *stream;
    struct CUgraph_st *graph;
    struct CUgraphExec_st *exec;
    gw_cuda_pointer from, to;
    unsigned failed = emu_driver.stream_new(&stream, 0) | emu_driver.alloc(&from, 64) |
                      emu_driver.alloc(&to, 64) | emu_driver.capture_begin(stream, 1) |
                      emu_driver.copy_within(to, from, 64, stream) |
                      emu_driver.capture_end(stream, &graph) |
                      emu_driver.exec_new(&exec, graph, 0) | emu_driver.exec_launch(exec, stream) |
                      emu_driver.free(from) | emu_driver.alloc(&from, 64);
    if (failed == 0) {
        (void)emu_driver.exec_launch(exec, stream);
    }
}

static void a_pointer_that_is_out_of_date_aborts(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        (void)dup2(nowhere, STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        launch_of_freed_memory();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_graph_gives_the_bits_of_what_it_holds, both_setup),
        cmocka_unit_test_setup(a_known_graph_is_one_launch_and_no_kernels, both_setup),
        cmocka_unit_test_setup(nodes_that_are_not_set_anew_show, both_setup),
        cmocka_unit_test_setup(more_rows_of_operations_than_a_graph_keeps_are_met_again,
                               both_setup),
        cmocka_unit_test_setup(what_needs_the_host_is_refused_and_drops_the_rest, both_setup),
        cmocka_unit_test_setup(a_capture_that_fails_is_an_error, both_setup),
        cmocka_unit_test_setup(a_pointer_that_is_out_of_date_aborts, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
