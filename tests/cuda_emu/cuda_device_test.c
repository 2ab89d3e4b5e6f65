/*
 * What the CUDA device does beside computing: errors at opening that name what is missing, memory
 * that is used again, copies in the order of their stream, events between streams.
 */
#include "tests/cuda_emu/both.h"
#include "tests/cuda_emu/emu_driver.h"

static const struct gw_cuda_images one_image = {1, {"emulated"}};

static void open_fails_with(const char *expected)
{
    const struct gw_cuda_config config = {
        .driver = &emu_driver, .gemm = &emu_gemm, .images = &one_image};
    struct gw_device *device = NULL;
    char error[512] = "";
    assert_int_equal(gw_cuda_device_open(&config, error, sizeof(error), &device), PP_UNAVAILABLE);
    assert_null(device);
    if (strstr(error, expected) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", error, expected);
    }
    assert_int_equal(emu_bytes_taken(), 0);
}

static void what_is_missing_is_named_and_nothing_is_kept(void **state)
{
    (void)state;
    const struct emu_machine good = emu_machine;
    emu_machine.init_result = GW_CUDA_NO_DEVICE;
    open_fails_with("CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
    emu_machine = good;
    emu_machine.gpus = 0;
    open_fails_with("there is no GPU number 0: the CUDA driver sees 0");
    emu_machine = good;
    emu_machine.capability_major = 7;
    open_fails_with("has compute capability 7.");
    emu_machine = good;
    emu_machine.lacking = "gw_gpu_merge";
    open_fails_with("lack gw_gpu_merge");
    emu_machine = good;
}

/* Whatever this machine and build have: never a device that is not there, never silence. */
static void a_machine_without_a_gpu_says_so(void **state)
{
    (void)state;
    struct gw_device *device = NULL;
    char error[512] = "";
    enum pp_status status = gw_cuda_device_new(0, error, sizeof(error), &device);
    if (status == PP_OK) {
        assert_string_equal(device->ops->name, "cuda");
        device->ops->destroy(device);
        print_message("this machine has a GPU\n");
        return;
    }
    assert_int_equal(status, PP_UNAVAILABLE);
    assert_true(strstr(error, "libcuda.so.1") != NULL || strstr(error, "PIGPEN_CUDA") != NULL ||
                strstr(error, "CUDA driver") != NULL || strstr(error, "GPU") != NULL ||
                strstr(error, "cuBLASLt") != NULL);
    print_message("%s\n", error);
}

/* The images of builds with PIGPEN_CUDA are fat binaries, whole and in place. */
static void images_of_this_build_are_fat_binaries(void **state)
{
    (void)state;
    const struct gw_cuda_images *images = gw_cuda_images_get();
    print_message("%u images\n", images->count);
    for (uint32_t i = 0; i < images->count; i++) {
        const uint8_t magic[] = {0x50, 0xed, 0x55, 0xba};
        assert_memory_equal(images->images[i], magic, sizeof(magic));
        assert_int_equal((uintptr_t)images->images[i] % 8, 0);
    }
}

static void memory_that_was_freed_is_used_again(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    void *first, *second, *third;
    assert_int_equal(device->ops->alloc(device, 1000, &first), PP_OK);
    device->ops->free(device, first);
    assert_int_equal(device->ops->alloc(device, 900, &second), PP_OK);
    assert_ptr_equal(first, second);
    assert_int_equal(device->ops->alloc(device, 900, &third), PP_OK);
    assert_ptr_not_equal(second, third);
    device->ops->free(device, NULL);
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

static void free_blocks_make_room_before_memory_is_out(void **state)
{
    (void)state;
    const struct emu_machine good = emu_machine;
    struct gw_device *device = cuda_test_device_new();
    emu_machine.memory_bytes = emu_bytes_taken() + 3000;
    void *memory, *more;
    assert_int_equal(device->ops->alloc(device, 2000, &memory), PP_OK);
    assert_int_equal(device->ops->alloc(device, 2000, &more), PP_MEMORY);
    device->ops->free(device, memory);
    assert_int_equal(device->ops->alloc(device, 2800, &more), PP_OK); /* not of the kept block */
    device->ops->destroy(device);
    emu_machine = good;
    assert_int_equal(emu_bytes_taken(), 0);
}

/* More copies in a row than there are slots, of every size, from memory that changes at once; all
 * by pinned memory. */
static void copies_take_what_was_there_when_they_were_asked_for(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 64, 5000, 256u << 10, (256u << 10) + 4, (700u << 10)};
    struct gw_device *device = cuda_test_device_new();
    struct gw_stream *stream;
    assert_int_equal(device->ops->stream_new(device, &stream), PP_OK);
    emu_counts = (struct emu_counts){0};
    for (uint32_t i = 0; i < 6; i++) {
        void *memory;
        uint8_t *from = malloc(sizes[i]), *to = malloc(20ull * sizes[i]);
        assert_int_equal(device->ops->alloc(device, 20ull * sizes[i], &memory), PP_OK);
        for (uint32_t j = 0; j < 20; j++) {
            memset(from, (int)(j + 1), sizes[i]);
            assert_int_equal(device->ops->copy_in(device, stream,
                                                  (uint8_t *)memory + (uint64_t)j * sizes[i], from,
                                                  sizes[i]),
                             PP_OK);
        }
        for (uint32_t j = 0; j < 20; j++) {
            uint64_t at = (uint64_t)j * sizes[i];
            assert_int_equal(
                device->ops->copy_out(device, stream, to + at, (uint8_t *)memory + at, sizes[i]),
                PP_OK);
        }
        assert_int_equal(device->ops->synchronize(device, stream), PP_OK);
        for (uint64_t j = 0; j < 20ull * sizes[i]; j++) {
            assert_int_equal(to[j], j / sizes[i] + 1);
        }
        device->ops->free(device, memory);
        free(from);
        free(to);
    }
    assert_int_equal(emu_counts.pageable, 0);
    device->ops->stream_destroy(device, stream);
    device->ops->destroy(device);
}

/* Every order of the two queues: what NULL copied is there before a stream that came later runs. */
static void what_is_copied_without_a_stream_is_there_for_every_stream(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    struct gw_stream *stream;
    assert_int_equal(device->ops->stream_new(device, &stream), PP_OK);
    for (uint32_t i = 0; i < 50; i++) {
        float value = (float)i, found = -1.0f;
        float *at = both_put(device, &value, sizeof(value));
        assert_int_equal(device->ops->copy_out(device, stream, &found, at, sizeof(value)), PP_OK);
        assert_int_equal(device->ops->synchronize(device, stream), PP_OK);
        assert_true(found == value);
        device->ops->free(device, at);
    }
    device->ops->stream_destroy(device, stream);
    device->ops->destroy(device);
}

static void ranges_that_overlap_are_moved_whole(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    uint8_t bytes[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    }
    static const uint32_t moves[][3] = {{0, 130, 870}, {0, 1, 999},   {130, 0, 870},
                                        {5, 5, 900},   {0, 600, 400}, {999, 0, 1}};
    for (uint32_t i = 0; i < 6; i++) {
        uint8_t expected[1000], *memory = both_put(device, bytes, sizeof(bytes));
        memcpy(expected, bytes, sizeof(bytes));
        memmove(expected + moves[i][0], expected + moves[i][1], moves[i][2]);
        assert_int_equal(device->ops->copy_within(device, NULL, memory + moves[i][0],
                                                  memory + moves[i][1], moves[i][2]),
                         PP_OK);
        uint8_t *found = both_get(device, memory, sizeof(bytes));
        assert_memory_equal(found, expected, sizeof(expected));
        free(found);
    }
    device->ops->destroy(device);
}

/* Two streams in turns over one value: each waits for the other's event, so that 12 additions
 * happen one after the other in whatever order the queues would run. */
static void events_hold_streams_back(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    struct gw_stream *streams[2];
    struct gw_event *events[2];
    float value = 1.0f, one = 0.5f;
    float *at = both_put(device, &value, sizeof(value));
    float *added = both_put(device, &one, sizeof(one));
    assert_int_equal(device->ops->synchronize(device, NULL), PP_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(device->ops->stream_new(device, &streams[i]), PP_OK);
        assert_int_equal(device->ops->event_new(device, &events[i]), PP_OK);
    }
    assert_true(device->ops->event_done(device, events[0])); /* never recorded */
    for (uint32_t i = 0; i < 12; i++) {
        struct gw_stream *own = streams[i % 2];
        if (i > 0) {
            assert_int_equal(device->ops->event_wait(device, events[(i + 1) % 2], own), PP_OK);
        }
        assert_int_equal(device->ops->add_bias(device, own, added, 1, 1, at), PP_OK);
        assert_int_equal(device->ops->copy_within(device, own, added, at, sizeof(float)), PP_OK);
        assert_int_equal(device->ops->event_record(device, events[i % 2], own), PP_OK);
    }
    while (!device->ops->event_done(device, events[1])) {
    }
    float *found = both_get(device, at, sizeof(float));
    assert_true(found[0] == 1.5f * 2048.0f); /* doubled 11 times */
    free(found);
    for (uint32_t i = 0; i < 2; i++) {
        device->ops->event_destroy(device, events[i]);
        device->ops->stream_destroy(device, streams[i]);
    }
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

static void a_view_is_what_the_stream_wrote_before(void **state)
{
    (void)state;
    struct gw_device *device = cuda_test_device_new();
    static float values[100000];
    const void *seen, *other;
    for (uint32_t i = 0; i < 100000; i++) {
        values[i] = (float)i;
    }
    void *memory = both_put(device, values, sizeof(values));
    assert_int_equal(device->ops->view(device, NULL, 0, memory, 400, &seen), PP_OK);
    assert_int_equal(device->ops->view(device, NULL, 1, memory, sizeof(values), &other), PP_OK);
    assert_int_equal(device->ops->synchronize(device, NULL), PP_OK);
    assert_memory_equal(seen, values, 400);
    assert_memory_equal(other, values, sizeof(values));
    assert_int_equal(device->ops->view(device, NULL, 0, memory, sizeof(values), &seen), PP_OK);
    assert_int_equal(device->ops->synchronize(device, NULL), PP_OK);
    assert_memory_equal(seen, values, sizeof(values));
    device->ops->destroy(device);
    assert_int_equal(emu_bytes_taken(), 0);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_missing_is_named_and_nothing_is_kept, both_setup),
        cmocka_unit_test_setup(a_machine_without_a_gpu_says_so, both_setup),
        cmocka_unit_test_setup(images_of_this_build_are_fat_binaries, both_setup),
        cmocka_unit_test_setup(memory_that_was_freed_is_used_again, both_setup),
        cmocka_unit_test_setup(free_blocks_make_room_before_memory_is_out, both_setup),
        cmocka_unit_test_setup(copies_take_what_was_there_when_they_were_asked_for, both_setup),
        cmocka_unit_test_setup(what_is_copied_without_a_stream_is_there_for_every_stream,
                               both_setup),
        cmocka_unit_test_setup(ranges_that_overlap_are_moved_whole, both_setup),
        cmocka_unit_test_setup(events_hold_streams_back, both_setup),
        cmocka_unit_test_setup(a_view_is_what_the_stream_wrote_before, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
