/*
 * A whole attend call takes nothing from the heap: the message is decoded, attended and answered in
 * memory taken at start, on an open stream. The transport is the tests' own and not counted.
 */
#include "tests/unit/allocations.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>

#include "tests/unit/service_fake.h"

#define DIM     16u
#define Q_HEADS 4u
#define HELD    3000u

static enum pp_status uncounted_send(struct pp_call *call, const void *header, size_t header_bytes,
                                     const struct pp_payload *payload, bool last)
{
    bool counted = atomic_load(&allocations_counted);
    allocations_count(false);
    enum pp_status status = fake_send(call, header, header_bytes, payload, last);
    allocations_count(counted);
    return status;
}

static const struct pp_call_events *service_events;

static void counted_message(void *context, struct pp_call *call, struct pp_message *message)
{
    allocations_count(true);
    service_events->message(context, call, message);
    allocations_count(false);
}

static void answer_of(const char *path, const ProtobufCMessage *request, const void *payload,
                      size_t payload_bytes, struct pp_call **call_out)
{
    struct pp_call *call = fake_open(path);
    fake_push(call, request, payload, payload_bytes, 0);
    fake_run();
    assert_true(call->finished);
    assert_int_equal(PP_OK, call->status);
    *call_out = call;
}

static uint64_t open_lsh_part(void)
{
    Pigpen__V1__OpenPartRequest request;
    Pigpen__V1__Model model;
    Pigpen__V1__Estimator estimator;
    uint8_t id[16] = {1};
    struct pp_call *call;
    pigpen__v1__open_part_request__init(&request);
    pigpen__v1__model__init(&model);
    pigpen__v1__estimator__init(&estimator);
    estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
    estimator.k = 5;
    estimator.l = 24;
    request.sequence_id = (ProtobufCBinaryData){.len = 16, .data = id};
    request.part_id = request.sequence_id;
    request.model = &model;
    request.estimator = &estimator;
    request.kv_head_count = 1;
    model.fingerprint = (ProtobufCBinaryData){.len = 16, .data = id};
    model.layers = 1;
    model.q_heads = Q_HEADS;
    model.kv_heads = 1;
    model.head_dim = DIM;
    model.kv_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    answer_of("OpenPart", &request.base, NULL, 0, &call);
    Pigpen__V1__OpenPartResponse *answer =
        fake_answer(call, 0, &pigpen__v1__open_part_response__descriptor);
    uint64_t handle = answer->handle;
    protobuf_c_message_free_unpacked(&answer->base, NULL);
    fake_end(call);
    return handle;
}

static void append_rows(uint64_t handle)
{
    Pigpen__V1__AppendKvRequest request;
    Pigpen__V1__PartRef part;
    Pigpen__V1__Section sections[2], *pointers[2] = {&sections[0], &sections[1]};
    static float rows[2 * HELD * DIM];
    struct pp_call *call;
    for (uint32_t i = 0; i < 2 * HELD * DIM; i++) {
        rows[i] = (float)((i * 2654435761u) >> 16) / 65536.0f - 0.5f;
    }
    pigpen__v1__append_kv_request__init(&request);
    pigpen__v1__part_ref__init(&part);
    part.handle = handle;
    part.incarnation = FAKE_INCARNATION;
    request.part = &part;
    request.count = HELD;
    request.n_sections = 2;
    request.sections = pointers;
    for (uint32_t i = 0; i < 2; i++) {
        pigpen__v1__section__init(&sections[i]);
        sections[i].kind = i == 0 ? PIGPEN__V1__SECTION_KIND__SECTION_KIND_K
                                  : PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
        sections[i].offset = i * sizeof(rows) / 2;
        sections[i].bytes = sizeof(rows) / 2;
    }
    answer_of("AppendKv", &request.base, rows, sizeof(rows), &call);
    fake_end(call);
}

static void push_attend(struct pp_call *call, uint64_t handle, bool named, uint32_t id)
{
    Pigpen__V1__AttendRequest request;
    Pigpen__V1__AttendItem item, *items[] = {&item};
    Pigpen__V1__Section section, *sections[] = {&section};
    Pigpen__V1__Estimator estimator;
    float q[Q_HEADS * DIM];
    for (uint32_t i = 0; i < Q_HEADS * DIM; i++) {
        q[i] = (float)(i * 37 % 11) / 11.0f - 0.5f;
    }
    pigpen__v1__attend_request__init(&request);
    pigpen__v1__attend_item__init(&item);
    pigpen__v1__section__init(&section);
    pigpen__v1__estimator__init(&estimator);
    estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
    estimator.k = 5;
    estimator.l = 24;
    request.request_id = id;
    request.incarnation = FAKE_INCARNATION;
    request.items = items;
    request.n_items = 1;
    request.sections = sections;
    request.n_sections = 1;
    request.want_errors = true;
    item.handle = handle;
    item.held_tokens = HELD;
    item.q_rows = 1;
    item.estimator = named ? &estimator : NULL;
    section.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    section.bytes = sizeof(q);
    fake_push(call, &request.base, q, sizeof(q), 0);
}

static void a_call_is_decoded_attended_and_answered_without_the_heap(void **state)
{
    (void)state;
    assert_true(allocations_are_seen());
    fake_start(1ull << 30);
    fake_run(); /* the first self test */
    struct pp_transport_ops ops = *fake.transport.ops;
    ops.call_send = uncounted_send;
    fake.transport.ops = &ops;
    uint64_t handle = open_lsh_part();
    append_rows(handle);
    struct pp_call *call = fake_open("AttendStream");
    service_events = call->events;
    struct pp_call_events events = *service_events;
    events.message = counted_message;
    for (uint32_t id = 0; id < 6; id++) {
        bool counted = id >= 2; /* the first of each kind may start the team */
        call->events = counted ? &events : service_events;
        uint64_t before = atomic_load(&allocations);
        push_attend(call, handle, id % 2 == 0, id);
        allocations_count(counted);
        fake_run();
        allocations_count(false);
        assert_int_equal(atomic_load(&allocations), before);
        Pigpen__V1__AttendResponse *answer =
            fake_answer(call, id, &pigpen__v1__attend_response__descriptor);
        assert_int_equal(answer->n_results, 1);
        assert_string_equal(answer->results[0]->status->reason, "OK");
        bool sampled =
            answer->results[0]->estimator == PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH;
        assert_true(sampled || id % 2 == 1);
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    }
    call->events = service_events;
    fake_half_close(call);
    fake_run();
    fake_end(call);
    fake_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_decoded_attended_and_answered_without_the_heap),
    };
    (void)fake_writable;
    allocations_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
