/*
 * What runs beside what on the CUDA device: layers that leave while the next ones compute are
 * whole; and each of the waits that see to that is missed when the driver leaves it out. In the
 * emulated driver's streams, which run as late and in as odd an order as events allow; on a GPU
 * with a kernel that delays the stream of the computing, that of the copies, or both.
 */
#define LAYERS 4u
#include "tests/cuda_emu/both.h"

#include "common/attn/hash.h"
#include "gpu-worker/engine/engine_state.h"
#include "tests/cuda_emu/late.h"
#include "tests/unit/engine_fixture.h"

#define PROMPT         110u
#define CHUNK          40u
#define ORDERS         6u
#define SEGMENT_TOKENS 17u
#define TABLES         5u

/* What a program without some of its waits would do. */
enum fault { NO_FAULT, DEAF_COMPUTING, DEAF_COPYING, HASTY_HOST };

/* Of three orders one after another both streams are slow, and each alone. */
static void late_begin(const struct tiny *tiny, uint64_t order, enum fault fault)
{
    const struct gw_stream *computing = tiny->engine->stream, *copying = tiny->engine->copy_stream;
    late.slow[0] = order % 3 != 1 ? computing : NULL;
    late.slow[1] = order % 3 != 2 ? copying : NULL;
    late.deaf = fault == DEAF_COMPUTING ? computing : fault == DEAF_COPYING ? copying : NULL;
    late.hasty_host = fault == HASTY_HOST;
}

static void late_end(void)
{
    late.slow[0] = late.slow[1] = late.deaf = NULL;
    late.hasty_host = false;
}

static struct gw_sequence *open_over(struct tiny *tiny, struct gw_remote *remote)
{
    struct gw_sequence *sequence;
    const struct gw_sequence_options options = {.remote = remote,
                                                .estimator = {.kind = PP_LSH, .k = 4, .l = TABLES},
                                                .worker_signatures = fake.hash != NULL,
                                                .step_seed = 1,
                                                .tokens_expected = TOKENS};
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    return sequence;
}

/* K and V behind the sink that a local sequence has: [layer][PROMPT][WIDTH] each. */
struct rows {
    float *k[LAYERS], *v[LAYERS];
};

static struct rows rows_of_local(struct tiny *tiny)
{
    struct rows rows;
    struct gw_sequence *local = open_kept(tiny, NULL, 0);
    assert_int_equal(gw_sequence_prefill(local, tiny->ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        rows.k[layer] = malloc(PROMPT * WIDTH * sizeof(float));
        rows.v[layer] = malloc(PROMPT * WIDTH * sizeof(float));
        assert_true(rows.k[layer] != NULL && rows.v[layer] != NULL);
        uint32_t count = PROMPT - PP_SINK_TOKENS;
        assert_int_equal(
            gw_sequence_read(local, layer, PP_SINK_TOKENS, count, rows.k[layer], rows.v[layer]),
            PP_OK);
    }
    gw_sequence_close(local);
    return rows;
}

static void rows_free(struct rows *rows)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        free(rows->k[layer]);
        free(rows->v[layer]);
    }
}

/* Layers of which something else left than a local sequence has. */
static uint32_t layers_that_differ(struct tiny *tiny, const struct rows *expected, uint64_t order,
                                   enum fault fault)
{
    uint32_t differ = 0;
    uint64_t delays = late.delays;
    cuda_test_seed(order);
    late_begin(tiny, order, fault);
    struct gw_sequence *over = open_over(tiny, &fake);
    assert_int_equal(gw_sequence_prefill(over, tiny->ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    uint64_t bytes = gw_sequence_left(over) * WIDTH * sizeof(float);
    assert_true(bytes > 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        bool same = memcmp(over->remote->k[layer], expected->k[layer], bytes) == 0 &&
                    memcmp(over->remote->v[layer], expected->v[layer], bytes) == 0;
        differ += same ? 0 : 1;
    }
    gw_sequence_close(over);
    late_end();
    assert_true(fault != NO_FAULT || late.delays > delays);
    return differ;
}

/* Of ORDERS those in which some layer is not what it should be. */
static uint32_t orders_that_differ(enum fault fault)
{
    uint32_t differ = 0;
    fake = (struct gw_remote){.ack_every = 1};
    tiny_device_new = late_device_new;
    struct tiny tiny = tiny_new(CHUNK, PP_F32);
    struct rows expected = rows_of_local(&tiny);
    for (uint64_t order = 0; order < ORDERS; order++) {
        differ += layers_that_differ(&tiny, &expected, order, fault) > 0 ? 1 : 0;
    }
    printf("%u of %u orders, %llu of %llu pieces beside, %llu delays\n", differ, ORDERS,
           (unsigned long long)tiny.engine->overlap.pieces_beside,
           (unsigned long long)tiny.engine->overlap.pieces, (unsigned long long)late.delays);
    assert_true(tiny.engine->overlap.pieces_beside * 2 > tiny.engine->overlap.pieces);
    rows_free(&expected);
    tiny_free(&tiny);
    tiny_device_new = NULL;
    assert_int_equal(cuda_test_bytes_taken(), 0);
    return differ;
}

static void layers_that_leave_beside_computing_are_whole(void **state)
{
    (void)state;
    assert_int_equal(orders_that_differ(NO_FAULT), 0);
}

static void copies_that_do_not_wait_for_computing_show(void **state)
{
    (void)state;
    assert_true(orders_that_differ(DEAF_COPYING) > 0);
}

static void computing_that_does_not_wait_for_copies_shows(void **state)
{
    (void)state;
    assert_true(orders_that_differ(DEAF_COMPUTING) > 0);
}

static void a_host_that_does_not_wait_for_copies_shows(void **state)
{
    (void)state;
    assert_true(orders_that_differ(HASTY_HOST) > 0);
}

static void check_signatures(const struct tiny *tiny, const struct pp_hash *hash, uint64_t tokens)
{
    struct gw_device *host;
    const struct gw_heads *heads = &tiny->engine->heads;
    uint64_t codes = heads->kv_heads * TABLES;
    uint16_t *expected = malloc(SEGMENT_TOKENS * codes * sizeof(*expected));
    float centre[WIDTH];
    assert_non_null(expected);
    assert_int_equal(gw_host_device_new(1, &host), PP_OK);
    const struct gw_device_limits limits = {
        .columns_max = WIDTH, .rows_max = 1, .heads = *heads, .kv_tokens_max = TOKENS};
    assert_int_equal(host->ops->prepare(host, &limits), PP_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t at = 0; at < tokens; at += SEGMENT_TOKENS) {
            uint64_t count = tokens - at < SEGMENT_TOKENS ? tokens - at : SEGMENT_TOKENS;
            const float *k = fake.centres[layer] + (TOKENS + at) * WIDTH;
            assert_int_equal(host->ops->centre_keys(host, NULL, heads, k, count, centre), PP_OK);
            assert_memory_equal(centre, fake.centres[layer] + at * WIDTH, sizeof(centre));
            assert_int_equal(
                host->ops->sign_keys(host, NULL, heads, hash, TABLES, k, count, centre, expected),
                PP_OK);
            assert_memory_equal(expected, fake.codes[layer] + at * codes,
                                count * codes * sizeof(*expected));
        }
    }
    host->ops->destroy(host);
    free(expected);
}

/* Centres and codes come from the copies' stream, and are those of the rows that left. */
static void layers_that_are_signed_beside_computing_are_whole(void **state)
{
    (void)state;
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(7, WIDTH / 2, 4, TABLES, &hash), PP_OK);
    fake = (struct gw_remote){.ack_every = 1, .hash = hash, .segment_tokens = SEGMENT_TOKENS};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fake.codes[layer] = malloc(TOKENS * 2 * TABLES * sizeof(uint16_t));
        fake.centres[layer] = malloc(2 * TOKENS * WIDTH * sizeof(float)); /* and the rows */
        assert_true(fake.codes[layer] != NULL && fake.centres[layer] != NULL);
    }
    tiny_device_new = late_device_new;
    struct tiny tiny = tiny_new(CHUNK, PP_F32);
    struct rows expected = rows_of_local(&tiny);
    for (uint64_t order = 0; order < 2; order++) {
        assert_int_equal(layers_that_differ(&tiny, &expected, order, NO_FAULT), 0);
        uint64_t tokens = PROMPT - PP_SINK_TOKENS - PP_RECENT_TOKENS;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            memcpy(fake.centres[layer] + TOKENS * WIDTH, expected.k[layer],
                   tokens * WIDTH * sizeof(float));
        }
        check_signatures(&tiny, hash, tokens);
    }
    rows_free(&expected);
    tiny_free(&tiny);
    tiny_device_new = NULL;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        free(fake.codes[layer]);
        free(fake.centres[layer]);
    }
    pp_hash_destroy(hash);
    fake = (struct gw_remote){0};
}

static bool stop_at_the_third_layer(void *context, enum gw_phase phase, uint64_t done,
                                    uint64_t total)
{
    (void)context;
    return phase != GW_PHASE_PREFILL || done * 2 < total;
}

/* What is still on its way when a prefill ends early touches nothing that comes after it. */
static void a_prefill_that_ends_early_leaves_nothing_behind(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    tiny_device_new = late_device_new;
    struct tiny tiny = tiny_new(CHUNK, PP_F32);
    struct rows expected = rows_of_local(&tiny);
    for (uint64_t order = 0; order < 3; order++) {
        struct gw_sequence *over = open_over(&tiny, &fake);
        assert_int_equal(
            gw_sequence_prefill(over, tiny.ids, PROMPT, 0, NULL, stop_at_the_third_layer, NULL),
            PP_CANCELLED);
        gw_sequence_close(over);
        assert_int_equal(layers_that_differ(&tiny, &expected, order, NO_FAULT), 0);
    }
    /* A node that is lost half way: everything again, on the others. */
    fake.lose_at = LAYERS;
    assert_int_equal(layers_that_differ(&tiny, &expected, 3, NO_FAULT), 0);
    assert_int_equal(fake.reopened, 1);
    rows_free(&expected);
    tiny_free(&tiny);
    tiny_device_new = NULL;
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(layers_that_leave_beside_computing_are_whole, both_setup),
        cmocka_unit_test_setup(copies_that_do_not_wait_for_computing_show, both_setup),
        cmocka_unit_test_setup(computing_that_does_not_wait_for_copies_shows, both_setup),
        cmocka_unit_test_setup(a_host_that_does_not_wait_for_copies_shows, both_setup),
        cmocka_unit_test_setup(layers_that_are_signed_beside_computing_are_whole, both_setup),
        cmocka_unit_test_setup(a_prefill_that_ends_early_leaves_nothing_behind, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
