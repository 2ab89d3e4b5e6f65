/*
 * Tensors as a hostile or broken client sends them: each is packed as bytes, met as the service
 * meets it, and must be refused with the right reason before memory is taken.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/service_wire.h"

/* --- append --- */

#define K_BYTES 640u /* 2 tokens of 5 heads of 32 bf16 */

struct append_message {
    Pigpen__V1__AppendKvRequest request;
    Pigpen__V1__PartRef part;
    Pigpen__V1__WorkerSegment segment;
    Pigpen__V1__Section sections[4];
    Pigpen__V1__Section *pointers[4];
    uint8_t payload[2 * K_BYTES];
};

static void make_append(struct append_message *append)
{
    memset(append, 0, sizeof(*append));
    pigpen__v1__append_kv_request__init(&append->request);
    pigpen__v1__part_ref__init(&append->part);
    pigpen__v1__worker_segment__init(&append->segment);
    for (uint32_t index = 0; index < 4; ++index) {
        pigpen__v1__section__init(&append->sections[index]);
        append->pointers[index] = &append->sections[index];
    }
    append->part.handle = 5;
    append->part.incarnation = INCARNATION;
    append->part.generation = 3;
    append->request.part = &append->part;
    append->request.start = 100;
    append->request.count = 2;
    append->request.sections = append->pointers;
    append->request.n_sections = 2;
    append->sections[0].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_K;
    append->sections[0].bytes = K_BYTES;
    append->sections[1].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
    append->sections[1].offset = K_BYTES;
    append->sections[1].bytes = K_BYTES;
}

static enum pp_status decode_append(const struct append_message *append, size_t payload_bytes,
                                    struct an_job *job)
{
    struct pp_payload_view view;
    memset(job, 0, sizeof(*job));
    const void *header = over_wire(&append->request.base, append->payload, payload_bytes, &view);
    struct pp_span span = pp_span_of(view.data, view.bytes);
    return an_decode_append(header, INCARNATION, &span, job);
}

static void append_finds_its_sections_in_place(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    assert_int_equal(PP_OK, decode_append(&append, sizeof(append.payload), &job));
    assert_int_equal(5, job.append.part.handle);
    assert_int_equal(3, job.append.part.generation);
    const uint8_t *payload = job.append.payload.data;
    assert_int_equal(K_BYTES, job.append.k.bytes);
    assert_ptr_equal(payload, job.append.k.data);
    assert_ptr_equal(payload + K_BYTES, job.append.v.data);
    assert_true(payload >= packed && payload < packed + sizeof(packed));
}

static void append_of_a_tebibyte_with_a_hundred_bytes_is_refused(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.sections[0].bytes = 1ull << 40;
    append.sections[1].bytes = 1ull << 40;
    append.request.count = 32768;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, 100, &job));
}

static void sections_outside_the_payload_are_bad_shape(void **state)
{
    (void)state;
    static const uint64_t bad[][2] = {{2 * K_BYTES, 1},     {UINT64_MAX, 1}, {UINT64_MAX - 10, 20},
                                      {0, UINT64_MAX},      {1, UINT64_MAX}, {K_BYTES + 1, K_BYTES},
                                      {1ull << 32, K_BYTES}};
    for (size_t index = 0; index < sizeof(bad) / sizeof(bad[0]); ++index) {
        struct append_message append;
        struct an_job job;
        make_append(&append);
        append.sections[1].offset = bad[index][0];
        append.sections[1].bytes = bad[index][1];
        assert_int_equal(PP_BAD_SHAPE, decode_append(&append, sizeof(append.payload), &job));
    }
}

static void append_with_start_near_the_end_of_numbers_is_refused(void **state)
{
    (void)state;
    static const uint64_t starts[] = {UINT64_MAX, UINT64_MAX - 1, PP_TOKENS_PER_PART_MAX,
                                      PP_TOKENS_PER_PART_MAX - 1};
    for (size_t index = 0; index < 4; ++index) {
        struct append_message append;
        struct an_job job;
        make_append(&append);
        append.request.start = starts[index];
        assert_int_equal(PP_INVALID_ARGUMENT, decode_append(&append, sizeof(append.payload), &job));
    }
}

static void append_with_wrong_counts_is_refused(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 3, 7, PP_APPEND_TOKENS_MAX + 1, UINT32_MAX};
    for (size_t index = 0; index < 5; ++index) {
        struct append_message append;
        struct an_job job;
        make_append(&append);
        append.request.count = counts[index];
        enum pp_status status = decode_append(&append, sizeof(append.payload), &job);
        assert_int_equal(3, pp_status_grpc_code(status)); /* INVALID_ARGUMENT */
    }
}

static void append_with_k_and_v_of_different_lengths_is_refused(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.sections[1].bytes = K_BYTES - 2;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, sizeof(append.payload), &job));
    make_append(&append);
    append.request.n_sections = 1;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, sizeof(append.payload), &job));
    make_append(&append);
    append.request.n_sections = 0;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, 0, &job));
}

static void append_with_a_section_twice_or_unknown_is_refused(void **state)
{
    (void)state;
    static const int kinds[] = {PIGPEN__V1__SECTION_KIND__SECTION_KIND_K,
                                PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q, -1, 0, 0x7fffffff};
    for (size_t index = 0; index < 5; ++index) {
        struct append_message append;
        struct an_job job;
        make_append(&append);
        append.sections[2].kind = (Pigpen__V1__SectionKind)kinds[index];
        append.sections[2].bytes = 4;
        append.request.n_sections = 3;
        assert_int_equal(PP_INVALID_ARGUMENT, decode_append(&append, sizeof(append.payload), &job));
    }
}

static void append_to_a_layer_past_every_model_is_bad_shape(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.request.layer = PP_LAYERS_MAX;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, sizeof(append.payload), &job));
}

static void append_with_a_bad_segment_is_refused(void **state)
{
    (void)state;
    static const uint64_t bad[][2] = {{0, 0}, {0, PP_SEGMENT_TOKENS_MAX + 1}, {UINT64_MAX, 2}};
    for (size_t index = 0; index < 3; ++index) {
        struct append_message append;
        struct an_job job;
        make_append(&append);
        append.request.segment = &append.segment;
        append.segment.begin = bad[index][0];
        append.segment.count = bad[index][1];
        assert_int_equal(PP_INVALID_ARGUMENT, decode_append(&append, sizeof(append.payload), &job));
    }
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.sections[2].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_CENTRE;
    append.sections[2].bytes = 8;
    append.request.n_sections = 3;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_append(&append, sizeof(append.payload), &job));
}

static void a_balance_comes_with_rows_of_any_segment_and_none(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.sections[2].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_BALANCE;
    append.sections[2].bytes = 8;
    append.request.n_sections = 3;
    assert_int_equal(PP_OK, decode_append(&append, sizeof(append.payload), &job));
    assert_int_equal(8, job.append.balance.bytes);
    assert_ptr_equal(NULL, job.append.centre.data);
    append.sections[2].offset = sizeof(append.payload) - 4;
    assert_int_equal(PP_BAD_SHAPE, decode_append(&append, sizeof(append.payload), &job));
}

static void a_request_for_another_incarnation_says_so_before_all_else(void **state)
{
    (void)state;
    struct append_message append;
    struct an_job job;
    make_append(&append);
    append.part.incarnation = 0;
    append.request.count = 0;
    assert_int_equal(PP_INCARNATION_CHANGED, decode_append(&append, sizeof(append.payload), &job));
    append.request.part = NULL;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_append(&append, sizeof(append.payload), &job));
}

/* --- attend --- */

#define ITEMS 3u
#define Q_ROW 1024u /* bytes of a row: 2 heads of 128 f32 */

struct attend_message {
    Pigpen__V1__AttendRequest request;
    Pigpen__V1__AttendItem items[ITEMS];
    Pigpen__V1__AttendItem *item_pointers[ITEMS];
    Pigpen__V1__Section sections[ITEMS + 1];
    Pigpen__V1__Section *section_pointers[ITEMS + 1];
    uint64_t seeds[4];
    uint8_t payload[ITEMS * Q_ROW];
};

static void make_attend(struct attend_message *attend)
{
    memset(attend, 0, sizeof(*attend));
    pigpen__v1__attend_request__init(&attend->request);
    for (uint32_t index = 0; index < ITEMS; ++index) {
        pigpen__v1__attend_item__init(&attend->items[index]);
        attend->items[index].handle = 10 + index;
        attend->items[index].held_tokens = 100;
        attend->items[index].q_rows = 1;
        attend->item_pointers[index] = &attend->items[index];
        pigpen__v1__section__init(&attend->sections[index]);
        attend->sections[index].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
        attend->sections[index].item = index;
        attend->sections[index].offset = index * Q_ROW;
        attend->sections[index].bytes = Q_ROW;
        attend->section_pointers[index] = &attend->sections[index];
    }
    pigpen__v1__section__init(&attend->sections[ITEMS]);
    attend->section_pointers[ITEMS] = &attend->sections[ITEMS];
    attend->request.incarnation = INCARNATION;
    attend->request.items = attend->item_pointers;
    attend->request.n_items = ITEMS;
    attend->request.sections = attend->section_pointers;
    attend->request.n_sections = ITEMS;
}

static enum pp_status decode_attend(const struct attend_message *attend, struct an_job *job,
                                    struct an_attend_plan *plan)
{
    struct pp_payload_view view;
    memset(job, 0, sizeof(*job));
    job->received_us = 1000;
    const void *header =
        over_wire(&attend->request.base, attend->payload, sizeof(attend->payload), &view);
    return an_decode_attend(header, INCARNATION, &view, &arena, job, plan);
}

static void one_bad_item_does_not_spoil_the_others(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    attend.sections[1].bytes = 1ull << 40;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(3, plan.item_count);
    assert_int_equal(PP_OK, plan.status[0]);
    assert_int_equal(PP_BAD_SHAPE, plan.status[1]);
    assert_int_equal(PP_OK, plan.status[2]);
    assert_int_equal(2, job.attend.item_count);
    assert_int_equal(10, job.attend.items[0].part.handle);
    assert_int_equal(12, job.attend.items[1].part.handle);
    assert_int_equal(1, plan.job_item[2]);
    assert_ptr_equal(job.attend.items[0].q + 2 * Q_ROW, job.attend.items[1].q);
}

static void attend_refuses_items_that_are_wrong_each_in_its_way(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    attend.items[0].q_rows = 0;
    attend.items[1].q_rows = PP_ATTEND_ROWS_MAX + 1;
    attend.items[2].q_rows = 3; /* does not divide the section */
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(0, job.attend.item_count);
    for (uint32_t index = 0; index < ITEMS; ++index) {
        assert_int_equal(PP_BAD_SHAPE, plan.status[index]);
    }
    make_attend(&attend);
    attend.items[0].seeds = attend.seeds;
    attend.items[0].n_seeds = 2;
    attend.sections[1].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_K;
    attend.sections[3].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    attend.sections[3].item = 2;
    attend.sections[3].bytes = Q_ROW;
    attend.request.n_sections = 4;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    for (uint32_t index = 0; index < ITEMS; ++index) {
        assert_int_equal(PP_INVALID_ARGUMENT, plan.status[index]);
    }
}

static void what_the_asker_attends_itself_is_found_beside_q(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    attend.sections[3].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL;
    attend.sections[3].item = 1;
    attend.sections[3].offset = Q_ROW + 4;
    attend.sections[3].bytes = Q_ROW - 4;
    attend.request.n_sections = 4;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(3, job.attend.item_count);
    const struct an_attend_item *item = &job.attend.items[1];
    assert_ptr_equal(item->q + 4, item->local);
    assert_int_equal(Q_ROW - 4, item->local_bytes);
    assert_null(item->signatures);
    assert_null(job.attend.items[0].local);
    attend.sections[0].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL;
    attend.sections[0].item = 1; /* a second one */
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(PP_INVALID_ARGUMENT, plan.status[1]);
    attend.sections[0].item = 0;
    attend.sections[0].bytes = 2 * sizeof(attend.payload);
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(PP_BAD_SHAPE, plan.status[0]);
}

static void a_budget_and_a_target_come_with_and_without_an_estimator(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    Pigpen__V1__Estimator said[ITEMS];
    make_attend(&attend);
    for (uint32_t index = 0; index < ITEMS; ++index) {
        pigpen__v1__estimator__init(&said[index]);
        attend.items[index].estimator = &said[index];
    }
    said[0].rows = 77;
    said[0].target_error = 0.25f;
    said[1].kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_SKETCH;
    said[1].target_error = 0.5f;
    said[2].target_error = 1.5f;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(2, job.attend.item_count);
    const struct pp_estimator *open = &job.attend.items[0].estimator;
    assert_true(open->kind == PP_ESTIMATOR_NONE && open->rows == 77 && open->target_error == 0.25f);
    const struct pp_estimator *named = &job.attend.items[1].estimator;
    assert_true(named->kind == PP_SKETCH && named->rows == 0 && named->target_error == 0.5f);
    assert_int_equal(PP_INVALID_ARGUMENT, plan.status[2]);
    said[0].rows_share = 0.5f; /* beside a number of rows */
    said[1].target_error = -0.5f;
    said[2].target_error = 0.0f;
    said[2].rows_share = 1.5f;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_int_equal(0, job.attend.item_count);
}

static void shares_of_kv_heads_are_taken_when_all_are_shares(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    float shares[] = {0.25f, 1.0f};
    const float bad[] = {0.0f, -0.1f, 1.01f, NAN, INFINITY};
    make_attend(&attend);
    attend.items[0].kv_head_shares = shares;
    attend.items[0].n_kv_head_shares = 2;
    attend.request.want_sampled = true;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_true(plan.want_sampled);
    assert_int_equal(2, job.attend.items[0].kv_share_count);
    assert_true(job.attend.items[0].kv_shares[0] == 0.25f);
    assert_int_equal(0, job.attend.items[1].kv_share_count);
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        shares[1] = bad[i];
        assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
        assert_int_equal(PP_INVALID_ARGUMENT, plan.status[0]);
        assert_int_equal(PP_OK, plan.status[1]);
    }
}

static void attend_without_items_or_with_too_many_is_refused(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    attend.request.n_items = 0;
    attend.request.n_sections = 0;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_attend(&attend, &job, &plan));
    static Pigpen__V1__AttendItem *many[PP_ATTEND_ITEMS_MAX + 1];
    make_attend(&attend);
    for (uint32_t index = 0; index <= PP_ATTEND_ITEMS_MAX; ++index) {
        many[index] = &attend.items[0];
    }
    attend.request.items = many;
    attend.request.n_items = PP_ATTEND_ITEMS_MAX + 1;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_attend(&attend, &job, &plan));
}

static void attend_section_of_no_item_is_refused(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    attend.sections[2].item = ITEMS;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_attend(&attend, &job, &plan));
    attend.sections[2].item = UINT32_MAX;
    assert_int_equal(PP_INVALID_ARGUMENT, decode_attend(&attend, &job, &plan));
}

static void attend_with_unknown_dtypes_is_bad_dtype(void **state)
{
    (void)state;
    static const int bad[] = {-1, 4, 0x7fffffff};
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    for (size_t index = 0; index < 3; ++index) {
        make_attend(&attend);
        attend.request.q_dtype = (Pigpen__V1__Dtype)bad[index];
        assert_int_equal(PP_BAD_DTYPE, decode_attend(&attend, &job, &plan));
        make_attend(&attend);
        attend.request.o_dtype = (Pigpen__V1__Dtype)bad[index];
        assert_int_equal(PP_BAD_DTYPE, decode_attend(&attend, &job, &plan));
    }
    make_attend(&attend);
    attend.request.o_dtype = PIGPEN__V1__DTYPE__DTYPE_F16;
    assert_int_equal(PP_BAD_DTYPE, decode_attend(&attend, &job, &plan));
}

static void attend_deadline_counts_from_receipt_and_does_not_wrap(void **state)
{
    (void)state;
    struct attend_message attend;
    struct an_job job;
    struct an_attend_plan plan;
    make_attend(&attend);
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_true(job.attend.deadline_us == 0);
    attend.request.timeout_us = 500;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_true(job.attend.deadline_us == 1500);
    attend.request.timeout_us = UINT64_MAX;
    assert_int_equal(PP_OK, decode_attend(&attend, &job, &plan));
    assert_true(job.attend.deadline_us == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_finds_its_sections_in_place),
        cmocka_unit_test(append_of_a_tebibyte_with_a_hundred_bytes_is_refused),
        cmocka_unit_test(sections_outside_the_payload_are_bad_shape),
        cmocka_unit_test(append_with_start_near_the_end_of_numbers_is_refused),
        cmocka_unit_test(append_with_wrong_counts_is_refused),
        cmocka_unit_test(append_with_k_and_v_of_different_lengths_is_refused),
        cmocka_unit_test(append_with_a_section_twice_or_unknown_is_refused),
        cmocka_unit_test(append_to_a_layer_past_every_model_is_bad_shape),
        cmocka_unit_test(append_with_a_bad_segment_is_refused),
        cmocka_unit_test(a_balance_comes_with_rows_of_any_segment_and_none),
        cmocka_unit_test(a_request_for_another_incarnation_says_so_before_all_else),
        cmocka_unit_test(one_bad_item_does_not_spoil_the_others),
        cmocka_unit_test(attend_refuses_items_that_are_wrong_each_in_its_way),
        cmocka_unit_test(what_the_asker_attends_itself_is_found_beside_q),
        cmocka_unit_test(a_budget_and_a_target_come_with_and_without_an_estimator),
        cmocka_unit_test(attend_without_items_or_with_too_many_is_refused),
        cmocka_unit_test(shares_of_kv_heads_are_taken_when_all_are_shares),
        cmocka_unit_test(attend_section_of_no_item_is_refused),
        cmocka_unit_test(attend_with_unknown_dtypes_is_bad_dtype),
        cmocka_unit_test(attend_deadline_counts_from_receipt_and_does_not_wrap),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
