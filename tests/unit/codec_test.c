/*
 * The codec against well-formed, unusual and hostile bytes. Every message of the protos is written
 * generically from its descriptor, so a new one is covered by adding its name to the list.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/rpc/codec.h"
#include "grpc/health/v1/health.pb-c.h"
#include "pigpen/v1/admin.pb-c.h"
#include "pigpen/v1/attention.pb-c.h"

#define ARENA_BYTES 65536u

static const ProtobufCMessageDescriptor *const descriptors[] = {
    &pigpen__v1__get_server_info_request__descriptor,
    &pigpen__v1__get_server_info_response__descriptor,
    &pigpen__v1__get_stats_request__descriptor,
    &pigpen__v1__counter__descriptor,
    &pigpen__v1__get_stats_response__descriptor,
    &pigpen__v1__list_parts_request__descriptor,
    &pigpen__v1__list_parts_response__descriptor,
    &pigpen__v1__evict_parts_request__descriptor,
    &pigpen__v1__evict_parts_response__descriptor,
    &pigpen__v1__drain_request__descriptor,
    &pigpen__v1__drain_response__descriptor,
    &pigpen__v1__resume_request__descriptor,
    &pigpen__v1__resume_response__descriptor,
    &pigpen__v1__self_test_request__descriptor,
    &pigpen__v1__self_test_check__descriptor,
    &pigpen__v1__self_test_response__descriptor,
    &pigpen__v1__part_ref__descriptor,
    &pigpen__v1__open_part_request__descriptor,
    &pigpen__v1__limits__descriptor,
    &pigpen__v1__open_part_response__descriptor,
    &pigpen__v1__worker_segment__descriptor,
    &pigpen__v1__append_kv_request__descriptor,
    &pigpen__v1__append_kv_response__descriptor,
    &pigpen__v1__attend_item__descriptor,
    &pigpen__v1__attend_request__descriptor,
    &pigpen__v1__attend_result__descriptor,
    &pigpen__v1__attend_response__descriptor,
    &pigpen__v1__seal_part_request__descriptor,
    &pigpen__v1__seal_part_response__descriptor,
    &pigpen__v1__fork_part_request__descriptor,
    &pigpen__v1__fork_part_response__descriptor,
    &pigpen__v1__truncate_part_request__descriptor,
    &pigpen__v1__truncate_part_response__descriptor,
    &pigpen__v1__read_kv_request__descriptor,
    &pigpen__v1__read_kv_response__descriptor,
    &pigpen__v1__renew_parts_request__descriptor,
    &pigpen__v1__renew_parts_response__descriptor,
    &pigpen__v1__close_part_request__descriptor,
    &pigpen__v1__close_part_response__descriptor,
    &pigpen__v1__get_part_request__descriptor,
    &pigpen__v1__layer_info__descriptor,
    &pigpen__v1__part_info__descriptor,
    &pigpen__v1__get_part_response__descriptor,
    &pigpen__v1__estimator__descriptor,
    &pigpen__v1__model__descriptor,
    &pigpen__v1__status__descriptor,
    &pigpen__v1__section__descriptor,
    &grpc__health__v1__health_check_request__descriptor,
    &grpc__health__v1__health_check_response__descriptor,
};
#define DESCRIPTOR_COUNT (sizeof(descriptors) / sizeof(descriptors[0]))

/* Bytes under construction. */
struct bytes {
    uint8_t data[8192];
    size_t count;
};

static void put(struct bytes *out, const void *data, size_t count)
{
    assert_true(out->count + count <= sizeof(out->data));
    memcpy(out->data + out->count, data, count);
    out->count += count;
}

static void put_varint(struct bytes *out, uint64_t value)
{
    uint8_t byte;
    do {
        byte = (uint8_t)((value & 127u) | (value > 127u ? 128u : 0u));
        put(out, &byte, 1);
        value >>= 7;
    } while (byte > 127u);
}

static void put_tag(struct bytes *out, unsigned field, unsigned wire)
{
    put_varint(out, ((uint64_t)field << 3) | wire);
}

static void put_block(struct bytes *out, unsigned field, const struct bytes *inner)
{
    put_tag(out, field, 2);
    put_varint(out, inner->count);
    put(out, inner->data, inner->count);
}

static unsigned wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 1;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return 5;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 2;
    default:
        return 0;
    }
}

static void put_scalar(struct bytes *out, ProtobufCType type)
{
    static const uint8_t fixed[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    unsigned wire = wire_of(type);
    if (wire == 0) {
        put_varint(out, 1);
    } else {
        put(out, fixed, wire == 1 ? 8 : 4);
    }
}

static void put_field(struct bytes *out, const ProtobufCFieldDescriptor *field,
                      const struct bytes *inner)
{
    unsigned wire = wire_of(field->type);
    struct bytes block = {.count = 0};
    if (wire == 2) {
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            block = *inner;
        } else {
            put(&block, "four", 4);
        }
        put_block(out, field->id, &block);
    } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        put_scalar(&block, field->type);
        put_scalar(&block, field->type);
        put_block(out, field->id, &block);
    } else {
        put_tag(out, field->id, wire);
        put_scalar(out, field->type);
    }
}

/* Every field set; messages inside are set too, those inside them empty. */
static void put_message(struct bytes *out, const ProtobufCMessageDescriptor *descriptor)
{
    static const struct bytes nothing;
    for (unsigned i = 0; i < descriptor->n_fields; ++i) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        struct bytes inner = {.count = 0};
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessageDescriptor *type = field->descriptor;
            for (unsigned j = 0; j < type->n_fields; ++j) {
                put_field(&inner, &type->fields[j], &nothing);
            }
        }
        put_field(out, field, &inner);
    }
}

static void no_release(struct pp_message *message)
{
    (void)message;
}

/* Unpacks bytes given as pieces of piece_bytes, each in memory of exactly its size. */
struct unpacked {
    struct pp_codec_arena arena;
    struct pp_message message;
    struct pp_piece *pieces;
    uint8_t **blocks;
    enum pp_status status;
    ProtobufCMessage *header;
    struct pp_payload_view payload;
};

static enum pp_status unpack(struct unpacked *self, const ProtobufCMessageDescriptor *descriptor,
                             const uint8_t *data, size_t bytes, size_t piece_bytes,
                             size_t arena_bytes)
{
    memset(self, 0, sizeof(*self));
    assert_int_equal(pp_codec_arena_init(&self->arena, arena_bytes), PP_OK);
    size_t count = (bytes + piece_bytes - 1) / piece_bytes;
    self->pieces = calloc(count + 1, sizeof(*self->pieces));
    self->blocks = calloc(count + 1, sizeof(*self->blocks));
    for (size_t i = 0; i < count; ++i) {
        size_t begin = i * piece_bytes;
        size_t part = bytes - begin < piece_bytes ? bytes - begin : piece_bytes;
        self->blocks[i] = malloc(part);
        memcpy(self->blocks[i], data + begin, part);
        self->pieces[i] = (struct pp_piece){.data = self->blocks[i], .bytes = part};
    }
    self->message = (struct pp_message){
        .pieces = self->pieces, .piece_count = count, .bytes = bytes, .release = no_release};
    self->status =
        pp_codec_unpack(&self->message, descriptor, &self->arena, &self->header, &self->payload);
    return self->status;
}

static void done(struct unpacked *self)
{
    for (size_t i = 0; i < self->message.piece_count; ++i) {
        free(self->blocks[i]);
    }
    free(self->blocks);
    free(self->pieces);
    pp_codec_arena_deinit(&self->arena);
}

/* The bytes it would be sent as again. */
static size_t repack(const struct unpacked *self, uint8_t *out, size_t capacity)
{
    size_t bytes = 0;
    assert_int_equal(pp_codec_pack(self->header, self->payload.bytes, out, capacity, &bytes),
                     PP_OK);
    assert_true(bytes + self->payload.bytes <= capacity);
    if (self->payload.bytes != 0) {
        memcpy(out + bytes, self->payload.data, self->payload.bytes);
    }
    return bytes + self->payload.bytes;
}

static void packed_header_and_payload_are_the_plain_message(void **state)
{
    (void)state;
    uint8_t payload[300];
    memset(payload, 7, sizeof(payload));
    Pigpen__V1__AppendKvRequest request = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    request.request_id = UINT64_MAX;
    request.layer = 3;
    for (size_t bytes = 0; bytes <= sizeof(payload); bytes += 50) {
        uint8_t mine[512];
        uint8_t plain[512];
        size_t header_bytes = 0;
        assert_int_equal(pp_codec_pack(&request.base, bytes, mine, sizeof(mine), &header_bytes),
                         PP_OK);
        memcpy(mine + header_bytes, payload, bytes);
        Pigpen__V1__AppendKvRequest whole = request;
        whole.payload = (ProtobufCBinaryData){.len = bytes, .data = payload};
        size_t plain_bytes = protobuf_c_message_pack(&whole.base, plain);
        assert_int_equal(header_bytes + bytes, plain_bytes);
        assert_memory_equal(mine, plain, plain_bytes);
    }
}

static void pack_into_too_little_room_is_refused_at_every_size(void **state)
{
    (void)state;
    Pigpen__V1__AppendKvRequest request = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    request.request_id = 1000;
    size_t needed = 0;
    uint8_t room[64];
    assert_int_equal(pp_codec_pack(&request.base, 1u << 20, room, sizeof(room), &needed), PP_OK);
    for (size_t capacity = 0; capacity <= needed; ++capacity) {
        uint8_t *exact = malloc(capacity + 1);
        size_t bytes = 0;
        enum pp_status status = pp_codec_pack(&request.base, 1u << 20, exact, capacity, &bytes);
        assert_int_equal(status, capacity == needed ? PP_OK : PP_MESSAGE_TOO_LARGE);
        free(exact);
    }
}

static void every_message_survives_a_round_trip_in_pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < DESCRIPTOR_COUNT; ++i) {
        struct bytes wire = {.count = 0};
        put_message(&wire, descriptors[i]);
        for (size_t piece = 1; piece <= wire.count + 1; piece += 1 + piece / 8) {
            struct unpacked result;
            assert_int_equal(
                unpack(&result, descriptors[i], wire.data, wire.count, piece, ARENA_BYTES), PP_OK);
            uint8_t again[8192];
            assert_int_equal(repack(&result, again, sizeof(again)), wire.count);
            assert_memory_equal(again, wire.data, wire.count);
            done(&result);
        }
    }
}

static void every_message_cut_at_each_byte_fails_or_is_the_shorter_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < DESCRIPTOR_COUNT; ++i) {
        struct bytes wire = {.count = 0};
        put_message(&wire, descriptors[i]);
        size_t refused = 0;
        for (size_t cut = 0; cut < wire.count; ++cut) {
            struct unpacked result;
            enum pp_status status = unpack(&result, descriptors[i], wire.data, cut, 7, ARENA_BYTES);
            if (status == PP_OK) {
                uint8_t again[8192];
                assert_int_equal(repack(&result, again, sizeof(again)), cut);
                assert_memory_equal(again, wire.data, cut);
            } else {
                assert_int_equal(status, PP_INVALID_ARGUMENT);
                ++refused;
            }
            done(&result);
        }
        assert_true(refused > 0 || wire.count == 0);
    }
}

static void every_message_with_an_arena_too_small_by_any_number_is_too_large(void **state)
{
    (void)state;
    for (size_t i = 0; i < DESCRIPTOR_COUNT; ++i) {
        struct bytes wire = {.count = 0};
        put_message(&wire, descriptors[i]);
        struct unpacked result;
        assert_int_equal(unpack(&result, descriptors[i], wire.data, wire.count, 100, ARENA_BYTES),
                         PP_OK);
        size_t needed = result.arena.used;
        done(&result);
        for (size_t room = 0; room < needed; ++room) {
            assert_int_equal(unpack(&result, descriptors[i], wire.data, wire.count, 100, room),
                             PP_MESSAGE_TOO_LARGE);
            done(&result);
        }
        assert_int_equal(unpack(&result, descriptors[i], wire.data, wire.count, 100, needed),
                         PP_OK);
        done(&result);
    }
}

static void payload_in_one_piece_is_read_in_place(void **state)
{
    (void)state;
    struct bytes wire = {.count = 0};
    put_tag(&wire, 2, 0);
    put_varint(&wire, 77);
    struct bytes payload = {.count = 1000};
    put_block(&wire, PP_PAYLOAD_FIELD, &payload);
    struct unpacked result;
    assert_int_equal(unpack(&result, &pigpen__v1__append_kv_request__descriptor, wire.data,
                            wire.count, wire.count, ARENA_BYTES),
                     PP_OK);
    assert_ptr_equal(result.payload.data, result.blocks[0] + wire.count - 1000);
    assert_int_equal(result.payload.bytes, 1000);
    assert_true(result.arena.used < 1000);
    assert_int_equal(((Pigpen__V1__AppendKvRequest *)result.header)->request_id, 77);
    done(&result);
}

/* Payloads "aa", "bbb" around field 2, in every order. */
static void payload_that_is_not_last_or_twice_is_met_and_the_last_counts(void **state)
{
    (void)state;
    static const char *const orders[] = {"a2", "a2b", "ab", "2ab", "ab2", "aa2bb2"};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); ++i) {
        struct bytes wire = {.count = 0};
        char last = 0;
        for (const char *at = orders[i]; *at != '\0'; ++at) {
            if (*at == '2') {
                put_tag(&wire, 2, 0);
                put_varint(&wire, 9);
                continue;
            }
            struct bytes payload = {.count = 0};
            put(&payload, *at == 'a' ? "aa" : "bbb", *at == 'a' ? 2 : 3);
            put_block(&wire, PP_PAYLOAD_FIELD, &payload);
            last = *at;
        }
        for (size_t piece = 1; piece < 30; piece += 3) {
            struct unpacked result;
            assert_int_equal(unpack(&result, &pigpen__v1__append_kv_request__descriptor, wire.data,
                                    wire.count, piece, ARENA_BYTES),
                             PP_OK);
            assert_int_equal(result.payload.bytes, last == 'a' ? 2 : 3);
            assert_memory_equal(result.payload.data, last == 'a' ? "aa" : "bbb",
                                result.payload.bytes);
            done(&result);
        }
    }
}

static void expect(const ProtobufCMessageDescriptor *descriptor, const void *data, size_t bytes,
                   enum pp_status expected)
{
    for (size_t piece = 1; piece <= bytes + 1; piece += piece) {
        struct unpacked result;
        assert_int_equal(unpack(&result, descriptor, data, bytes, piece, ARENA_BYTES), expected);
        done(&result);
    }
}

#define EXPECT(name, expected, ...)                                                                \
    do {                                                                                           \
        static const uint8_t data_[] = {__VA_ARGS__};                                              \
        expect(&pigpen__v1__##name##__descriptor, data_, sizeof(data_), expected);                 \
    } while (0)

static void long_varints_are_read_up_to_ten_bytes_and_refused_beyond(void **state)
{
    (void)state;
    /* request_id = 2^64 - 1 in ten bytes; a bit above the 64th; eleven bytes. */
    EXPECT(append_kv_request, PP_OK, 16, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1);
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 16, 255, 255, 255, 255, 255, 255, 255, 255, 255,
           2);
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 16, 255, 255, 255, 255, 255, 255, 255, 255, 255,
           255, 1);
    /* The payload's length 1 in ten bytes, and a length of 2^63. */
    EXPECT(append_kv_request, PP_OK, 122, 129, 128, 128, 128, 128, 128, 128, 128, 128, 0, 5);
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 122, 128, 128, 128, 128, 128, 128, 128, 128, 128,
           1, 5);
    /* A submessage's length of 2^63; a tag in six bytes; a tag above 32 bits. */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 10, 128, 128, 128, 128, 128, 128, 128, 128, 128,
           1, 5);
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 144, 128, 128, 128, 128, 0, 1);
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 144, 128, 128, 128, 127, 1);
}

static void empty_messages_and_lengths_of_zero_are_empty(void **state)
{
    (void)state;
    for (size_t i = 0; i < DESCRIPTOR_COUNT; ++i) {
        expect(descriptors[i], "", 0, PP_OK);
    }
    struct unpacked result;
    static const uint8_t data[] = {122, 0};
    assert_int_equal(
        unpack(&result, &pigpen__v1__append_kv_request__descriptor, data, 2, 2, ARENA_BYTES),
        PP_OK);
    assert_int_equal(result.payload.bytes, 0);
    done(&result);
    EXPECT(append_kv_request, PP_OK, 10, 0);   /* part {} */
    EXPECT(renew_parts_request, PP_OK, 18, 0); /* handles [] */
}

static void packed_fields_with_an_odd_tail_are_refused(void **state)
{
    (void)state;
    EXPECT(renew_parts_request, PP_OK, 18, 8, 1, 2, 3, 4, 5, 6, 7, 8);
    EXPECT(renew_parts_request, PP_INVALID_ARGUMENT, 18, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    EXPECT(renew_parts_request, PP_INVALID_ARGUMENT, 18, 7, 1, 2, 3, 4, 5, 6, 7);
    EXPECT(seal_part_request, PP_INVALID_ARGUMENT, 18, 2, 1, 128);
}

static void wrong_wire_types_groups_and_field_zero_are_refused(void **state)
{
    (void)state;
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 120, 1);   /* payload as varint */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 18, 1, 1); /* request_id as bytes */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 8, 1);     /* part as varint */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 19);       /* a group */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 22);       /* wire type 6 */
    EXPECT(append_kv_request, PP_INVALID_ARGUMENT, 0, 0);     /* field 0 */
    EXPECT(append_kv_request, PP_OK, 0x98, 6, 1);             /* field 99: ignored */
}

static void field_in_a_thousand_pieces_is_merged(void **state)
{
    (void)state;
    struct bytes wire = {.count = 0};
    for (uint64_t i = 0; i < 1000; ++i) {
        struct bytes part = {.count = 0};
        put_tag(&part, 3, 0);
        put_varint(&part, i + 1);
        put_block(&wire, 1, &part);
    }
    struct unpacked result;
    assert_int_equal(unpack(&result, &pigpen__v1__append_kv_request__descriptor, wire.data,
                            wire.count, 5, 1u << 20),
                     PP_OK);
    assert_int_equal(((Pigpen__V1__AppendKvRequest *)result.header)->part->generation, 1000);
    done(&result);
}

static void more_fields_than_any_message_has_are_too_large(void **state)
{
    (void)state;
    size_t bytes = 2u * (PP_CODEC_FIELDS_MAX + 1);
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 2) {
        data[i] = 16;
        data[i + 1] = 1;
    }
    struct unpacked result;
    assert_int_equal(unpack(&result, &pigpen__v1__append_kv_request__descriptor, data, bytes - 2,
                            4096, 64u << 20),
                     PP_OK);
    done(&result);
    assert_int_equal(
        unpack(&result, &pigpen__v1__append_kv_request__descriptor, data, bytes, 4096, 64u << 20),
        PP_MESSAGE_TOO_LARGE);
    done(&result);
    free(data);
}

static void damaged_messages_never_do_harm(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 51};
    for (int round = 0; round < 20000; ++round) {
        const ProtobufCMessageDescriptor *descriptor =
            descriptors[pp_rng_u64(&rng) % DESCRIPTOR_COUNT];
        struct bytes wire = {.count = 0};
        put_message(&wire, descriptor);
        size_t flips = wire.count != 0 ? 1 + pp_rng_u64(&rng) % 6 : 0;
        for (size_t i = 0; i < flips; ++i) {
            wire.data[pp_rng_u64(&rng) % wire.count] = (uint8_t)pp_rng_u64(&rng);
        }
        struct unpacked result;
        enum pp_status status =
            unpack(&result, descriptor, wire.data, wire.count, 1 + pp_rng_u64(&rng) % 50, 4096);
        assert_true(status == PP_OK || status == PP_INVALID_ARGUMENT ||
                    status == PP_MESSAGE_TOO_LARGE);
        if (status == PP_OK) {
            /* What was accepted can be sent on and read again. */
            uint8_t again[16384];
            size_t bytes = repack(&result, again, sizeof(again));
            struct unpacked second;
            assert_int_equal(unpack(&second, descriptor, again, bytes, 64, ARENA_BYTES), PP_OK);
            done(&second);
        }
        done(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_header_and_payload_are_the_plain_message),
        cmocka_unit_test(pack_into_too_little_room_is_refused_at_every_size),
        cmocka_unit_test(every_message_survives_a_round_trip_in_pieces_of_any_size),
        cmocka_unit_test(every_message_cut_at_each_byte_fails_or_is_the_shorter_message),
        cmocka_unit_test(every_message_with_an_arena_too_small_by_any_number_is_too_large),
        cmocka_unit_test(payload_in_one_piece_is_read_in_place),
        cmocka_unit_test(payload_that_is_not_last_or_twice_is_met_and_the_last_counts),
        cmocka_unit_test(long_varints_are_read_up_to_ten_bytes_and_refused_beyond),
        cmocka_unit_test(empty_messages_and_lengths_of_zero_are_empty),
        cmocka_unit_test(packed_fields_with_an_odd_tail_are_refused),
        cmocka_unit_test(wrong_wire_types_groups_and_field_zero_are_refused),
        cmocka_unit_test(field_in_a_thousand_pieces_is_merged),
        cmocka_unit_test(more_fields_than_any_message_has_are_too_large),
        cmocka_unit_test(damaged_messages_never_do_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
