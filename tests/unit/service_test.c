/*
 * The service over a transport of plain variables and the real exec: calls, windows, full queues,
 * cut streams, states and the watchdog.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "tests/unit/service_fake.h"

#include "common/base/half.h"

#define DIM    4u
#define HEADS  2u
#define MEMORY (1ull << 30)
#define ROW    (HEADS * DIM) /* values of K of a token */

static int set_up(void **state)
{
    (void)state;
    fake_start(MEMORY);
    fake_run(); /* the first self test */
    return an_service_state(fake.service) == AN_SERVING ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    fake_stop();
    return 0;
}

/* --- requests --- */

static enum pp_status open_part(uint8_t id, uint64_t *handle_out)
{
    Pigpen__V1__OpenPartRequest request;
    Pigpen__V1__Model model;
    uint8_t bytes[16] = {id};
    pigpen__v1__open_part_request__init(&request);
    pigpen__v1__model__init(&model);
    request.sequence_id = (ProtobufCBinaryData){.len = 16, .data = bytes};
    request.part_id = request.sequence_id;
    request.model = &model;
    request.kv_head_count = HEADS;
    model.fingerprint = (ProtobufCBinaryData){.len = 16, .data = bytes};
    model.layers = 2;
    model.q_heads = HEADS;
    model.kv_heads = HEADS;
    model.head_dim = DIM;
    model.kv_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    struct pp_call *call = fake_open("OpenPart");
    fake_push(call, &request.base, NULL, 0, 0);
    fake_run();
    assert_true(call->finished);
    enum pp_status status = call->status;
    if (status == PP_OK) {
        Pigpen__V1__OpenPartResponse *answer =
            fake_answer(call, 0, &pigpen__v1__open_part_response__descriptor);
        assert_true(answer->incarnation == FAKE_INCARNATION);
        *handle_out = answer->handle;
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    }
    fake_end(call);
    return status;
}

struct append {
    Pigpen__V1__AppendKvRequest request;
    Pigpen__V1__PartRef part;
    Pigpen__V1__Section sections[2];
    Pigpen__V1__Section *pointers[2];
};

/* K and V of token i and value j are i + j / 100, so that every row is known. */
static float *make_append(struct append *append, uint64_t handle, uint64_t start, uint32_t count)
{
    pigpen__v1__append_kv_request__init(&append->request);
    pigpen__v1__part_ref__init(&append->part);
    append->part.handle = handle;
    append->part.incarnation = FAKE_INCARNATION;
    append->request.part = &append->part;
    append->request.request_id = start;
    append->request.start = start;
    append->request.count = count;
    append->request.n_sections = 2;
    append->request.sections = append->pointers;
    uint64_t values = (uint64_t)count * ROW;
    float *rows = malloc(2 * values * sizeof(float));
    for (uint32_t index = 0; index < 2; ++index) {
        pigpen__v1__section__init(&append->sections[index]);
        append->pointers[index] = &append->sections[index];
        append->sections[index].kind = index == 0 ? PIGPEN__V1__SECTION_KIND__SECTION_KIND_K
                                                  : PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
        append->sections[index].offset = index * values * sizeof(float);
        append->sections[index].bytes = values * sizeof(float);
        for (uint64_t value = 0; value < values; ++value) {
            rows[index * values + value] =
                (float)(start + value / ROW) + (float)(value % ROW) / 100.0f;
        }
    }
    return rows;
}

static void push_append(struct pp_call *call, uint64_t handle, uint64_t start, uint32_t count,
                        size_t piece_bytes)
{
    struct append append;
    float *rows = make_append(&append, handle, start, count);
    fake_push(call, &append.request.base, rows, 2ull * count * ROW * sizeof(float), piece_bytes);
    free(rows);
}

static void append_rows(uint64_t handle, uint64_t start, uint32_t count)
{
    struct pp_call *call = fake_open("AppendKv");
    push_append(call, handle, start, count, 0);
    fake_run();
    assert_true(call->finished);
    assert_int_equal(PP_OK, call->status);
    fake_end(call);
}

static void push_attend(struct pp_call *call, uint64_t handle, uint64_t held, uint64_t request_id,
                        bool bf16)
{
    Pigpen__V1__AttendRequest request;
    Pigpen__V1__AttendItem item;
    Pigpen__V1__AttendItem *items[] = {&item};
    Pigpen__V1__Section section;
    Pigpen__V1__Section *sections[] = {&section};
    float q[ROW] = {0.5f};
    pigpen__v1__attend_request__init(&request);
    pigpen__v1__attend_item__init(&item);
    pigpen__v1__section__init(&section);
    request.request_id = request_id;
    request.incarnation = FAKE_INCARNATION;
    request.items = items;
    request.n_items = 1;
    request.sections = sections;
    request.n_sections = 1;
    request.want_errors = true;
    request.o_dtype = bf16 ? PIGPEN__V1__DTYPE__DTYPE_BF16 : PIGPEN__V1__DTYPE__DTYPE_F32;
    item.handle = handle;
    item.held_tokens = held;
    item.q_rows = 1;
    section.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    section.bytes = sizeof(q);
    fake_push(call, &request.base, q, sizeof(q), 0);
}

/* One held token: o is its V row. */
static void check_attend(const struct pp_call *call, uint32_t index, uint64_t request_id, bool bf16)
{
    Pigpen__V1__AttendResponse *answer =
        fake_answer(call, index, &pigpen__v1__attend_response__descriptor);
    assert_true(answer->request_id == request_id);
    assert_int_equal(1, answer->n_results);
    assert_string_equal("OK", answer->results[0]->status->reason);
    assert_int_equal(5, answer->n_sections);
    const Pigpen__V1__Section *o = answer->sections[0];
    assert_int_equal(PIGPEN__V1__SECTION_KIND__SECTION_KIND_O, o->kind);
    assert_int_equal(ROW * (bf16 ? 2 : 4), o->bytes);
    for (uint32_t value = 0; value < ROW; ++value) {
        float wide = 0;
        if (bf16) {
            uint16_t half;
            memcpy(&half, answer->payload.data + o->offset + 2 * value, 2);
            wide = pp_bf16_to_f32(half);
        } else {
            memcpy(&wide, answer->payload.data + o->offset + 4 * value, 4);
        }
        assert_true(wide > (float)value / 100.0f - 0.001f);
        assert_true(wide < (float)value / 100.0f + 0.001f);
    }
    protobuf_c_message_free_unpacked(&answer->base, NULL);
}

/* --- tests --- */

static void attend_answers_over_one_held_token_with_its_value(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    append_rows(handle, 0, 10);
    for (int bf16 = 0; bf16 < 2; ++bf16) {
        struct pp_call *call = fake_open("Attend");
        push_attend(call, handle, 1, 77, bf16 != 0);
        fake_run();
        assert_int_equal(PP_OK, call->status);
        check_attend(call, 0, 77, bf16 != 0);
        fake_end(call);
    }
}

static void a_stream_is_pulled_only_below_its_window(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    struct pp_call *call = fake_open("AppendKvStream");
    uint32_t pushed = 0;
    while (call->armed) { /* exec does not run */
        push_append(call, handle, pushed, 1, 0);
        ++pushed;
        assert_true(pushed <= AN_STREAM_WINDOW);
    }
    assert_int_equal(AN_STREAM_WINDOW, pushed);
    fake_run();
    assert_true(call->armed);
    assert_int_equal(AN_STREAM_WINDOW, call->sent_count);
    fake_half_close(call);
    assert_true(call->finished);
    assert_int_equal(PP_OK, call->status);
    fake_end(call);
}

static void a_full_send_queue_keeps_answers_and_their_order(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    append_rows(handle, 0, 1);
    struct pp_call *call = fake_open("AttendStream");
    call->room = 1;
    for (uint64_t id = 0; id < 5; ++id) {
        push_attend(call, handle, 1, id, true);
    }
    fake_run();
    assert_int_equal(1, call->sent_count);
    push_attend(call, handle, 1, 5, true); /* this one was asked for before */
    assert_false(call->armed);             /* nothing is pulled while answers wait */
    fake_run();
    fake_writable(call, 2);
    assert_int_equal(3, call->sent_count);
    fake_half_close(call);
    assert_false(call->finished);
    fake_writable(call, 10);
    assert_int_equal(6, call->sent_count);
    assert_true(call->finished);
    for (uint32_t index = 0; index < 6; ++index) {
        check_attend(call, index, index, true); /* narrowed once, not twice */
    }
    fake_end(call);
}

static void a_call_that_ends_while_exec_works_gives_all_back(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    struct pp_call *call = fake_open("AppendKvStream");
    push_append(call, handle, 0, 10, 0);
    push_append(call, handle, 10, 10, 0);
    assert_int_equal(2, fake.messages_out); /* read in place: held until exec is done */
    fake_end(call);
    assert_int_equal(2, fake.messages_out);
    assert_false(an_service_idle(fake.service));
    fake_run();
    assert_int_equal(0, fake.messages_out);
    assert_true(an_service_idle(fake.service));
    append_rows(handle, 20, 5); /* whole messages were applied */
}

static void a_call_that_ends_with_unsent_answers_gives_all_back(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    append_rows(handle, 0, 1);
    struct pp_call *call = fake_open("AttendStream");
    call->room = 0;
    push_attend(call, handle, 1, 1, false);
    push_attend(call, handle, 1, 2, false);
    fake_run();
    assert_false(an_service_idle(fake.service));
    fake_end(call);
    assert_true(an_service_idle(fake.service));
}

static void an_append_in_pieces_is_held_until_its_rows_are_stored(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    struct pp_call *call = fake_open("AppendKvStream");
    push_append(call, handle, 0, 100, 7);
    assert_int_equal(1, fake.messages_out);
    fake_run();
    assert_int_equal(0, fake.messages_out);
    Pigpen__V1__AppendKvResponse *answer =
        fake_answer(call, 0, &pigpen__v1__append_kv_response__descriptor);
    assert_null(answer->status);
    assert_true(answer->held_tokens == 100);
    protobuf_c_message_free_unpacked(&answer->base, NULL);
    fake_end(call);
}

static void an_error_on_a_stream_is_of_its_message_only(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    struct pp_call *call = fake_open("AppendKvStream");
    push_append(call, handle, 5, 1, 0);
    push_append(call, handle, 0, 1, 0);
    fake_run();
    assert_false(call->finished);
    Pigpen__V1__AppendKvResponse *first =
        fake_answer(call, 0, &pigpen__v1__append_kv_response__descriptor);
    Pigpen__V1__AppendKvResponse *second =
        fake_answer(call, 1, &pigpen__v1__append_kv_response__descriptor);
    assert_string_equal("APPEND_GAP", first->status->reason);
    assert_true(first->status->expected_start == 0);
    assert_null(second->status);
    assert_true(second->held_tokens == 1);
    protobuf_c_message_free_unpacked(&first->base, NULL);
    protobuf_c_message_free_unpacked(&second->base, NULL);
    fake_end(call);
}

/* Every request buffer is taken: messages wait in their calls and are met in order later. */
static void messages_wait_in_their_calls_when_buffers_are_used_up(void **state)
{
    (void)state;
    enum { CALLS = 40, EACH = 4 };
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    append_rows(handle, 0, 1);
    struct pp_call *calls[CALLS];
    uint64_t pushed = 0;
    for (uint32_t index = 0; index < CALLS; ++index) {
        calls[index] = fake_open("AttendStream");
        for (uint32_t message = 0; message < EACH && calls[index]->armed; ++message) {
            push_attend(calls[index], handle, 1, message, false);
            ++pushed;
        }
    }
    assert_true(pushed < CALLS * EACH); /* the last calls were held back */
    fake_end(calls[CALLS - 1]);         /* one that waits goes away */
    fake_run();
    for (uint32_t index = 0; index < CALLS - 1; ++index) {
        assert_true(calls[index]->armed);
        assert_true(calls[index]->sent_count >= 1);
        fake_end(calls[index]);
    }
}

static void push_read(struct pp_call *call, uint64_t handle, uint64_t start, uint64_t count)
{
    Pigpen__V1__ReadKvRequest request;
    Pigpen__V1__PartRef part;
    pigpen__v1__read_kv_request__init(&request);
    pigpen__v1__part_ref__init(&part);
    part.handle = handle;
    part.incarnation = FAKE_INCARNATION;
    request.part = &part;
    request.start = start;
    request.count = count;
    fake_push(call, &request.base, NULL, 0, 0);
}

static void a_slow_reader_takes_two_pieces_at_a_time(void **state)
{
    (void)state;
    enum { TOKENS = 120000, STEP = 30000 }; /* 64 bytes each: 7.3 MiB, four pieces */
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    for (uint64_t start = 0; start < TOKENS; start += STEP) {
        append_rows(handle, start, STEP);
    }
    struct pp_call *call = fake_open("ReadKv");
    call->hold = true;
    push_read(call, handle, 3, TOKENS - 3);
    fake_run();
    assert_int_equal(AN_READ_PIECES, call->sent_count);
    uint64_t at = 3;
    for (uint32_t index = 0; index < call->sent_count; ++index) {
        Pigpen__V1__ReadKvResponse *piece =
            fake_answer(call, index, &pigpen__v1__read_kv_response__descriptor);
        assert_true(piece->start == at);
        float first;
        memcpy(&first, piece->payload.data, sizeof(first));
        assert_true(first == (float)at);
        at += piece->count;
        protobuf_c_message_free_unpacked(&piece->base, NULL);
        call->sent[index].kept.release(call->sent[index].kept.context);
        call->sent[index].kept.release = NULL;
        fake_run();
    }
    assert_true(at == TOKENS);
    assert_true(call->finished);
    assert_int_equal(PP_OK, call->status);
    fake_end(call);
}

static void a_reader_that_leaves_gives_all_back(void **state)
{
    (void)state;
    uint64_t handle;
    assert_int_equal(PP_OK, open_part(1, &handle));
    append_rows(handle, 0, 1000);
    struct pp_call *call = fake_open("ReadKv");
    call->room = 0;
    push_read(call, handle, 0, 1000);
    fake_run();
    assert_int_equal(0, call->sent_count);
    assert_false(an_service_idle(fake.service));
    fake_end(call);
    assert_true(an_service_idle(fake.service));
}

static void a_call_without_a_message_is_refused(void **state)
{
    (void)state;
    struct pp_call *call = fake_open("Attend");
    fake_half_close(call);
    assert_true(call->finished);
    assert_int_equal(PP_INVALID_ARGUMENT, call->status);
    fake_end(call);
}

static int watch_status(const struct pp_call *call, uint32_t index)
{
    Grpc__Health__V1__HealthCheckResponse *answer =
        fake_answer(call, index, &grpc__health__v1__health_check_response__descriptor);
    int status = (int)answer->status;
    protobuf_c_message_free_unpacked(&answer->base, NULL);
    return status;
}

static struct pp_call *watch(void)
{
    Grpc__Health__V1__HealthCheckRequest request;
    grpc__health__v1__health_check_request__init(&request);
    struct pp_call *call = fake_open("Watch");
    fake_push(call, &request.base, NULL, 0, 0);
    return call;
}

static void draining_refuses_new_parts_and_tells_watchers(void **state)
{
    (void)state;
    uint64_t handle;
    uint64_t other;
    assert_int_equal(PP_OK, open_part(1, &handle));
    struct pp_call *watcher = watch();
    assert_int_equal(1, watcher->sent_count);
    assert_int_equal(1, watch_status(watcher, 0));
    an_service_drain(fake.service);
    fake_run();
    assert_int_equal(AN_DRAINING, an_service_state(fake.service));
    assert_int_equal(2, watcher->sent_count);
    assert_int_equal(2, watch_status(watcher, 1));
    assert_int_equal(PP_DRAINING, open_part(2, &other));
    append_rows(handle, 0, 3); /* what is here is served */
    an_service_resume(fake.service);
    fake_run();
    assert_int_equal(3, watcher->sent_count);
    assert_int_equal(1, watch_status(watcher, 2));
    assert_int_equal(PP_OK, open_part(2, &other));
    fake_end(watcher);
}

static void a_late_self_test_makes_the_node_not_ready(void **state)
{
    (void)state;
    const char *why;
    assert_true(an_service_ready(fake.service, &why));
    struct pp_call *watcher = watch();
    fake.now_us += AN_SELF_TEST_PERIOD_US + 1;
    an_service_poll(fake.service); /* exec does not run: it is stuck */
    assert_true(an_service_ready(fake.service, &why));
    fake.now_us += AN_SELF_TEST_TIMEOUT_US + 1;
    an_service_poll(fake.service);
    assert_false(an_service_ready(fake.service, &why));
    assert_non_null(strstr(why, "late"));
    assert_int_equal(2, watch_status(watcher, watcher->sent_count - 1));
    fake_run();
    assert_true(an_service_ready(fake.service, &why));
    assert_int_equal(1, watch_status(watcher, watcher->sent_count - 1));
    fake_end(watcher);
}

static void a_starting_node_takes_no_parts(void **state)
{
    (void)state;
    uint64_t handle;
    fake_stop();
    fake_start(MEMORY);
    Grpc__Health__V1__HealthCheckRequest request;
    grpc__health__v1__health_check_request__init(&request);
    struct pp_call *call = fake_open("Check");
    fake_push(call, &request.base, NULL, 0, 0);
    assert_int_equal(2, watch_status(call, 0));
    fake_end(call);
    assert_int_equal(AN_STARTING, an_service_state(fake.service));
    fake_run();
    assert_int_equal(PP_OK, open_part(1, &handle));
}

static void every_method_of_the_protos_is_served(void **state)
{
    (void)state;
    const ProtobufCServiceDescriptor *services[] = {&pigpen__v1__attention_service__descriptor,
                                                    &pigpen__v1__admin_service__descriptor,
                                                    &grpc__health__v1__health__descriptor};
    size_t count = 0;
    for (size_t service = 0; service < 3; ++service) {
        for (size_t method = 0; method < services[service]->n_methods; ++method) {
            char path[256];
            snprintf(path, sizeof(path), "/%s/%s", services[service]->name,
                     services[service]->methods[method].name);
            bool found = false;
            for (size_t index = 0; index < fake.server.method_count; ++index) {
                bool same = strcmp(fake.server.methods[index].path, path) == 0;
                found = found || (same && an_methods[index].request ==
                                              services[service]->methods[method].input);
            }
            if (!found) {
                fail_msg("%s is not served", path);
            }
            ++count;
        }
    }
    assert_int_equal(AN_METHOD_COUNT, count);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(attend_answers_over_one_held_token_with_its_value),
        TEST(a_stream_is_pulled_only_below_its_window),
        TEST(a_full_send_queue_keeps_answers_and_their_order),
        TEST(a_call_that_ends_while_exec_works_gives_all_back),
        TEST(a_call_that_ends_with_unsent_answers_gives_all_back),
        TEST(an_append_in_pieces_is_held_until_its_rows_are_stored),
        TEST(an_error_on_a_stream_is_of_its_message_only),
        TEST(messages_wait_in_their_calls_when_buffers_are_used_up),
        TEST(a_slow_reader_takes_two_pieces_at_a_time),
        TEST(a_reader_that_leaves_gives_all_back),
        TEST(a_call_without_a_message_is_refused),
        TEST(draining_refuses_new_parts_and_tells_watchers),
        TEST(a_late_self_test_makes_the_node_not_ready),
        TEST(a_starting_node_takes_no_parts),
        TEST(every_method_of_the_protos_is_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
