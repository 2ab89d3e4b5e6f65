/*
 * Requests as a hostile or broken client sends them: each is packed as bytes, met as the service
 * meets it, and must be refused with the right reason before memory is taken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "tests/unit/service_wire.h"

/* --- open --- */

struct open_message {
    Pigpen__V1__OpenPartRequest request;
    Pigpen__V1__Model model;
    Pigpen__V1__Estimator estimator;
    uint8_t id[17];
    uint8_t fingerprint[65];
};

static void make_open(struct open_message *open)
{
    memset(open, 0, sizeof(*open));
    pigpen__v1__open_part_request__init(&open->request);
    pigpen__v1__model__init(&open->model);
    pigpen__v1__estimator__init(&open->estimator);
    memset(open->fingerprint, 7, sizeof(open->fingerprint));
    open->request.sequence_id = (ProtobufCBinaryData){.len = 16, .data = open->id};
    open->request.part_id = (ProtobufCBinaryData){.len = 16, .data = open->id};
    open->request.model = &open->model;
    open->request.estimator = &open->estimator;
    open->request.kv_head_count = 8;
    open->model.fingerprint = (ProtobufCBinaryData){.len = 32, .data = open->fingerprint};
    open->model.layers = 30;
    open->model.q_heads = 32;
    open->model.kv_heads = 8;
    open->model.head_dim = 128;
    open->model.kv_dtype = PIGPEN__V1__DTYPE__DTYPE_BF16;
    open->estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
}

static enum pp_status decode_open(const struct open_message *open, struct an_job *job)
{
    struct pp_payload_view view;
    memset(job, 0, sizeof(*job));
    return an_decode_open(over_wire(&open->request.base, NULL, 0, &view), INCARNATION, &arena, job);
}

static void open_fills_defaults(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    assert_int_equal(PP_OK, decode_open(&open, &job));
    assert_int_equal(AN_JOB_OPEN, job.kind);
    assert_true(fabsf(job.open.shape.scale - 1.0f / sqrtf(128.0f)) < 1e-7f);
    assert_int_equal(10, job.open.estimator.k);
    assert_int_equal(150, job.open.estimator.l);
    assert_int_equal(2, job.open.estimator.t);
    assert_non_null(job.open.held_tokens);
}

static void open_without_estimator_is_exact(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.request.estimator = NULL;
    assert_int_equal(PP_OK, decode_open(&open, &job));
    assert_int_equal(PP_EXACT, job.open.estimator.kind);
}

static void open_with_bad_head_counts_is_bad_shape(void **state)
{
    (void)state;
    static const uint32_t bad[][2] = {{33, 2}, {3, 2}, {4, 0}, {2, 4}, {0, 0}, {65536, 65536}};
    for (size_t index = 0; index < sizeof(bad) / sizeof(bad[0]); ++index) {
        struct open_message open;
        struct an_job job;
        make_open(&open);
        open.model.q_heads = bad[index][0];
        open.model.kv_heads = bad[index][1];
        open.request.kv_head_count = bad[index][1];
        assert_int_equal(PP_BAD_SHAPE, decode_open(&open, &job));
        assert_true(job.detail[0] != '\0');
    }
}

static void open_with_good_head_counts_passes(void **state)
{
    (void)state;
    static const uint32_t good[][2] = {{28, 4}, {24, 8}, {40, 8}, {15, 5}, {71, 1}, {12, 12}};
    for (size_t index = 0; index < sizeof(good) / sizeof(good[0]); ++index) {
        struct open_message open;
        struct an_job job;
        make_open(&open);
        open.model.q_heads = good[index][0];
        open.model.kv_heads = good[index][1];
        open.request.kv_head_count = good[index][1];
        assert_int_equal(PP_OK, decode_open(&open, &job));
    }
}

static void open_with_huge_sizes_is_bad_shape(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.model.kv_heads = 65536;
    open.model.q_heads = 65536;
    open.model.head_dim = 65536;
    assert_int_equal(PP_BAD_SHAPE, decode_open(&open, &job));
    make_open(&open);
    open.model.layers = UINT32_MAX;
    assert_int_equal(PP_BAD_SHAPE, decode_open(&open, &job));
    make_open(&open);
    open.model.head_dim = 257;
    assert_int_equal(PP_BAD_SHAPE, decode_open(&open, &job));
}

static void open_with_kv_heads_past_the_end_is_bad_shape(void **state)
{
    (void)state;
    static const uint32_t bad[][2] = {{0, 0}, {0, 9}, {8, 1}, {UINT32_MAX, 2}, {1, UINT32_MAX}};
    for (size_t index = 0; index < sizeof(bad) / sizeof(bad[0]); ++index) {
        struct open_message open;
        struct an_job job;
        make_open(&open);
        open.request.kv_head_begin = bad[index][0];
        open.request.kv_head_count = bad[index][1];
        assert_int_equal(PP_BAD_SHAPE, decode_open(&open, &job));
    }
}

static void open_with_unknown_dtype_is_bad_dtype(void **state)
{
    (void)state;
    static const int bad[] = {0, -1, 5, 7, 0x7fffffff};
    for (size_t index = 0; index < sizeof(bad) / sizeof(bad[0]); ++index) {
        struct open_message open;
        struct an_job job;
        make_open(&open);
        open.model.kv_dtype = (Pigpen__V1__Dtype)bad[index];
        assert_int_equal(PP_BAD_DTYPE, decode_open(&open, &job));
    }
}

static void open_with_ids_of_other_lengths_is_refused(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 15, 17};
    for (size_t index = 0; index < 4; ++index) {
        struct open_message open;
        struct an_job job;
        make_open(&open);
        open.request.sequence_id.len = lengths[index];
        assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
        make_open(&open);
        open.request.part_id.len = lengths[index];
        assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    }
}

static void open_without_model_or_fingerprint_is_refused(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.request.model = NULL;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    make_open(&open);
    open.model.fingerprint.len = 0;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    make_open(&open);
    open.model.fingerprint.len = 65;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
}

static void open_with_estimator_out_of_range_is_refused(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.estimator.k = 17;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    make_open(&open);
    open.estimator.l = 513;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    make_open(&open);
    open.estimator.kind = (Pigpen__V1__EstimatorKind)99;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
}

static void open_for_more_tokens_than_a_part_may_hold_is_refused(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.request.reserve_tokens = PP_TOKENS_PER_PART_MAX + 1;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    open.request.reserve_tokens = PP_TOKENS_PER_PART_MAX;
    assert_int_equal(PP_OK, decode_open(&open, &job));
    assert_true(job.open.reserve_tokens == PP_TOKENS_PER_PART_MAX);
}

static void open_with_dense_layer_past_the_end_is_refused(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    uint32_t layers[] = {0, 29, 30};
    make_open(&open);
    open.request.dense_layers = layers;
    open.request.n_dense_layers = 3;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    open.request.n_dense_layers = 2;
    assert_int_equal(PP_OK, decode_open(&open, &job));
    assert_int_equal(2, job.open.dense_layer_count);
}

static void open_takes_estimators_of_single_layers_and_refuses_bad_ones(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    Pigpen__V1__LayerEstimator one = PIGPEN__V1__LAYER_ESTIMATOR__INIT, *list[1] = {&one};
    make_open(&open);
    open.request.layer_estimators = list;
    open.request.n_layer_estimators = 1;
    estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
    estimator.k = 8;
    estimator.l = 98;
    estimator.t = 3;
    one.layer = 28;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job)); /* names no estimator */
    one.estimator = &estimator;
    assert_int_equal(PP_OK, decode_open(&open, &job));
    assert_int_equal(1, job.open.layer_estimator_count);
    assert_int_equal(28, job.open.layer_estimators[0].layer);
    assert_int_equal(PP_LSH, job.open.layer_estimators[0].estimator.kind);
    assert_int_equal(98, job.open.layer_estimators[0].estimator.l);
    assert_int_equal(3, job.open.layer_estimators[0].estimator.t);
    estimator.t = 99; /* of 98 tables */
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
    estimator.t = 3;
    one.layer = 30;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_open(&open, &job));
}

static void open_for_another_incarnation_is_refused(void **state)
{
    (void)state;
    struct open_message open;
    struct an_job job;
    make_open(&open);
    open.request.incarnation = INCARNATION + 1;
    assert_int_equal(PP_INCARNATION_CHANGED, decode_open(&open, &job));
    open.request.incarnation = INCARNATION;
    assert_int_equal(PP_OK, decode_open(&open, &job));
}

/* --- the rest --- */

static void read_of_an_impossible_range_is_refused(void **state)
{
    (void)state;
    static const uint64_t bad[][2] = {{0, 0}, {UINT64_MAX, 2}, {2, UINT64_MAX}};
    for (size_t index = 0; index < 3; ++index) {
        Pigpen__V1__ReadKvRequest request;
        Pigpen__V1__PartRef part;
        struct an_job job = {.detail = ""};
        uint64_t end;
        pigpen__v1__read_kv_request__init(&request);
        pigpen__v1__part_ref__init(&part);
        part.incarnation = INCARNATION;
        request.part = &part;
        request.start = bad[index][0];
        request.count = bad[index][1];
        assert_int_equal(PP_INVALID_ARGUMENT, an_decode_read(&request, INCARNATION, &job, &end));
    }
}

static void handles_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    static uint64_t handles[AN_HANDLES_MAX + 1];
    Pigpen__V1__RenewPartsRequest request;
    struct an_job job = {.detail = ""};
    pigpen__v1__renew_parts_request__init(&request);
    request.incarnation = INCARNATION;
    request.handles = handles;
    request.n_handles = AN_HANDLES_MAX + 1;
    pp_codec_arena_reset(&arena);
    assert_int_equal(PP_INVALID_ARGUMENT, an_decode_renew(&request, INCARNATION, &arena, &job));
    request.n_handles = AN_HANDLES_MAX;
    assert_int_equal(PP_OK, an_decode_renew(&request, INCARNATION, &arena, &job));
    assert_non_null(job.renew.unknown);
}

static void memory_beyond_the_arena_is_message_too_large(void **state)
{
    (void)state;
    void *memory = NULL;
    pp_codec_arena_reset(&arena);
    assert_int_equal(PP_MESSAGE_TOO_LARGE, an_decode_take(&arena, UINT64_MAX, 16, &memory));
    assert_int_equal(PP_MESSAGE_TOO_LARGE, an_decode_take(&arena, ARENA_BYTES, 2, &memory));
    assert_null(memory);
    assert_int_equal(PP_OK, an_decode_take(&arena, 16, 16, &memory));
    assert_non_null(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_fills_defaults),
        cmocka_unit_test(open_without_estimator_is_exact),
        cmocka_unit_test(open_with_bad_head_counts_is_bad_shape),
        cmocka_unit_test(open_with_good_head_counts_passes),
        cmocka_unit_test(open_with_huge_sizes_is_bad_shape),
        cmocka_unit_test(open_with_kv_heads_past_the_end_is_bad_shape),
        cmocka_unit_test(open_with_unknown_dtype_is_bad_dtype),
        cmocka_unit_test(open_with_ids_of_other_lengths_is_refused),
        cmocka_unit_test(open_without_model_or_fingerprint_is_refused),
        cmocka_unit_test(open_with_estimator_out_of_range_is_refused),
        cmocka_unit_test(open_takes_estimators_of_single_layers_and_refuses_bad_ones),
        cmocka_unit_test(open_for_more_tokens_than_a_part_may_hold_is_refused),
        cmocka_unit_test(open_with_dense_layer_past_the_end_is_refused),
        cmocka_unit_test(open_for_another_incarnation_is_refused),
        cmocka_unit_test(read_of_an_impossible_range_is_refused),
        cmocka_unit_test(handles_beyond_the_limit_are_refused),
        cmocka_unit_test(memory_beyond_the_arena_is_message_too_large),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
