/*
 * The outbox: its memory is bounded and wraps, every part gets exactly its rows, and what is not
 * acknowledged is sent again or ends the sequence.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "gpu-worker/remote/outbox.h"
#include "tests/unit/remote_fake.h"

#define ROW_FLOATS (4 * FAKE_DIM) /* one token, all kv heads */

static struct fake_world world_new(uint32_t nodes, enum gw_shard shard, uint64_t tokens_expected,
                                   uint64_t outbox_bytes)
{
    struct fake_net *net = fake_net_new();
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(tokens_expected);
    fake_remote_config(net, nodes, shard, &config);
    config.outbox_bytes_max = outbox_bytes;
    return fake_world_open(net, &config, &sequence);
}

/* Value of a token, head and dimension: K even, V odd. */
static float value_of(uint64_t token, uint32_t head, uint32_t d, bool v)
{
    return (float)(token * 64 + head * 16 + d * 2 + (v ? 1 : 0));
}

static enum pp_status append(struct fake_world *world, uint32_t layer, uint64_t start,
                             uint32_t count)
{
    float *k = malloc((size_t)count * ROW_FLOATS * sizeof(float));
    float *v = malloc((size_t)count * ROW_FLOATS * sizeof(float));
    for (uint32_t i = 0; i < count * ROW_FLOATS; ++i) {
        uint32_t d = i % FAKE_DIM, head = i / FAKE_DIM % 4;
        k[i] = value_of(start + i / ROW_FLOATS, head, d, false);
        v[i] = value_of(start + i / ROW_FLOATS, head, d, true);
    }
    enum pp_status status = gw_remote_append(world->sequence, layer, start, count, k, v, true);
    free(k); /* the rows were copied: the remote must not read them later */
    free(v);
    return status;
}

/* One message of count tokens: K rows of the part's heads, then V rows. */
static void check_rows(const struct fake_part *part, uint32_t layer, uint64_t first_token,
                       uint32_t count)
{
    const float *rows = (const float *)(const void *)part->rows[layer];
    assert_int_equal(part->row_bytes[layer],
                     2ull * count * part->kv_head_count * FAKE_DIM * sizeof(float));
    for (uint32_t i = 0; i < 2 * count * part->kv_head_count * FAKE_DIM; ++i) {
        uint32_t d = i % FAKE_DIM, head = i / FAKE_DIM % part->kv_head_count;
        uint32_t token = i / (FAKE_DIM * part->kv_head_count);
        float right =
            value_of(first_token + token % count, part->kv_head_begin + head, d, token >= count);
        assert_true(rows[i] == right);
    }
}

static void full_memory_refuses_and_freed_memory_wraps(void **state)
{
    (void)state;
    struct gw_outbox_memory *memory;
    struct gw_chunk *taken[64];
    struct pp_rng rng = {.seed = 3};
    assert_int_equal(gw_outbox_memory_new(1 << 16, &memory), PP_OK);
    assert_null(gw_outbox_take(memory, 1 << 17));
    uint32_t count = 0, refused = 0;
    for (uint32_t round = 0; round < 5000; ++round) {
        uint64_t bytes = pp_rng_u64(&rng) % 6000;
        struct gw_chunk *chunk = count < 64 ? gw_outbox_take(memory, bytes) : NULL;
        assert_true(gw_outbox_used(memory) <= 1 << 16);
        if (chunk != NULL) {
            memset(chunk->payload, (int)(chunk->layer = round % 251), bytes);
            taken[count++] = chunk;
            continue;
        }
        refused++;
        /* Free one anywhere: what was written to it must be whole until then. */
        uint32_t at = (uint32_t)(pp_rng_u64(&rng) % count);
        for (uint64_t i = 0; i < taken[at]->payload_bytes; ++i) {
            assert_int_equal(taken[at]->payload[i], taken[at]->layer);
        }
        gw_chunk_release(taken[at]);
        taken[at] = taken[--count];
    }
    assert_true(refused > 100);
    while (count > 0) {
        gw_chunk_release(taken[--count]);
    }
    assert_int_equal(gw_outbox_used(memory), 0);
    gw_outbox_memory_release(memory);
}

static void token_spans_reach_their_nodes_whole(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    assert_int_equal(append(&world, 1, 0, 7), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 1), 7);
    check_rows(&world.net->nodes[0].parts[0], 1, 0, 7);
    /* This one crosses the border of the spans at token 10. */
    world.net->nodes[0].parts[0].row_bytes[1] = 0;
    assert_int_equal(append(&world, 1, 7, 9), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 1), 16);
    assert_int_equal(gw_remote_held(world.sequence, 0), 0);
    check_rows(&world.net->nodes[0].parts[0], 1, 7, 3);
    check_rows(&world.net->nodes[1].parts[0], 1, 10, 6);
    uint64_t held[2];
    gw_remote_tokens_held(world.sequence, held);
    assert_int_equal(held[0], 10);
    assert_int_equal(held[1], 6);
    fake_world_free(&world);
}

static void kv_head_shards_get_their_heads_of_every_token(void **state)
{
    (void)state;
    struct fake_world world = world_new(3, GW_SHARD_KV_HEADS, 0, 1 << 20);
    assert_int_equal(append(&world, 0, 0, 11), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 0), 11);
    for (uint32_t i = 0; i < 3; ++i) {
        check_rows(&world.net->nodes[i].parts[0], 0, 0, 11);
    }
    fake_world_free(&world);
}

/* A signed append of 11 tokens in part i of head shards: code = token * 100 + head * 10 + table. */
static void check_signed(const struct fake_part *part)
{
    const uint64_t heads = part->kv_head_count;
    const Pigpen__V1__SectionKind kinds[] = {PIGPEN__V1__SECTION_KIND__SECTION_KIND_K,
                                             PIGPEN__V1__SECTION_KIND__SECTION_KIND_V,
                                             PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES,
                                             PIGPEN__V1__SECTION_KIND__SECTION_KIND_CENTRE};
    const uint64_t row = heads * FAKE_DIM * sizeof(float);
    const uint64_t bytes[] = {11 * row, 11 * row, 11 * heads * 3 * sizeof(uint16_t), row};
    assert_int_equal(part->segment_begin, 0);
    assert_int_equal(part->segment_count, 11);
    assert_int_equal(part->section_count, 4);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        assert_int_equal(part->section_kinds[i], kinds[i]);
        assert_int_equal(part->section_offsets[i], offset);
        assert_int_equal(part->section_bytes[i], bytes[i]);
        offset += bytes[i];
    }
    assert_int_equal(part->row_bytes[0], offset);
    for (uint32_t i = 0; i < 11 * heads * 3; ++i) {
        uint16_t code;
        memcpy(&code, part->rows[0] + part->section_offsets[2] + i * sizeof(code), sizeof(code));
        uint64_t head = part->kv_head_begin + i / 3 % heads;
        assert_int_equal(code, i / 3 / heads * 100 + head * 10 + i % 3);
    }
    for (uint32_t i = 0; i < heads * FAKE_DIM; ++i) {
        float centre;
        memcpy(&centre, part->rows[0] + part->section_offsets[3] + i * sizeof(centre),
               sizeof(centre));
        assert_true(centre == (float)(part->kv_head_begin * FAKE_DIM + i));
    }
}

static void signed_rows_name_their_segment_and_carry_signatures_and_centre(void **state)
{
    (void)state;
    struct fake_net *net = fake_net_new();
    struct fake_world world = {.net = net};
    struct gw_remote_config config;
    struct gw_remote_sequence_config lsh = fake_sequence_config(0);
    const uint32_t dense = 2;
    lsh.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 12, .l = 3, .t = 1};
    lsh.dense_layers = &dense;
    lsh.dense_layer_count = 1;
    fake_remote_config(net, 3, GW_SHARD_KV_HEADS, &config);
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world.remote, &lsh, &world.sequence), PP_OK);
    static float rows[11 * ROW_FLOATS], centre[4 * FAKE_DIM];
    static uint16_t codes[11 * 4 * 3];
    for (uint32_t i = 0; i < 11 * 4 * 3; ++i) {
        codes[i] = (uint16_t)(i / 12 * 100 + i / 3 % 4 * 10 + i % 3);
    }
    for (uint32_t i = 0; i < 4 * FAKE_DIM; ++i) {
        centre[i] = (float)i;
    }
    struct gw_remote_segment segment = {.count = 11, .centre = centre, .codes = codes};
    assert_non_null(gw_remote_hash(world.sequence, 0));
    assert_null(gw_remote_hash(world.sequence, dense));
    assert_int_equal(gw_remote_append_signed(world.sequence, dense, 0, 11, rows, rows, &segment),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_remote_append_signed(world.sequence, 0, 0, 12, rows, rows, &segment),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_remote_append_signed(world.sequence, 0, 0, 11, rows, rows, &segment),
                     PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    for (uint32_t i = 0; i < 3; ++i) {
        check_signed(&net->nodes[i].parts[0]);
    }
    fake_world_free(&world);
}

/* Whether the part's last message brought the balance of its heads: 1 + its index. Its payload
 * begins at message_begin of those logged. */
static bool brought_balance(const struct fake_part *part, uint64_t message_begin)
{
    if (part->section_count == 2) {
        return false;
    }
    assert_int_equal(part->section_count, 3);
    assert_int_equal(part->section_kinds[2], PIGPEN__V1__SECTION_KIND__SECTION_KIND_BALANCE);
    assert_int_equal(part->section_bytes[2], part->kv_head_count * FAKE_DIM * sizeof(float));
    for (uint32_t i = 0; i < part->kv_head_count * FAKE_DIM; ++i) {
        float value;
        memcpy(&value, part->rows[1] + message_begin + part->section_offsets[2] + i * sizeof(value),
               sizeof(value));
        assert_true(value == (float)(1 + part->kv_head_begin * FAKE_DIM + i));
    }
    return true;
}

static void a_balance_comes_with_the_first_rows_of_each_part(void **state)
{
    (void)state;
    float balance[4 * FAKE_DIM];
    for (uint32_t i = 0; i < 4 * FAKE_DIM; ++i) {
        balance[i] = (float)(1 + i);
    }
    for (uint32_t shard = 0; shard < 2; ++shard) {
        struct fake_world world = {.net = fake_net_new()};
        struct gw_remote_config config;
        struct gw_remote_sequence_config sequence = fake_sequence_config(20);
        sequence.estimator = (struct pp_estimator){.kind = PP_SKETCH};
        enum gw_shard how = shard == 0 ? GW_SHARD_TOKENS : GW_SHARD_KV_HEADS;
        fake_remote_config(world.net, 2, how, &config);
        assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
        assert_int_equal(gw_remote_sequence_open(world.remote, &sequence, &world.sequence), PP_OK);
        assert_int_equal(gw_remote_balance(world.sequence, FAKE_LAYERS, balance),
                         PP_INVALID_ARGUMENT);
        assert_int_equal(gw_remote_balance(world.sequence, 1, balance), PP_OK);
        const struct fake_part *first = &world.net->nodes[0].parts[0];
        const struct fake_part *second = &world.net->nodes[1].parts[0];
        assert_int_equal(append(&world, 1, 0, 6), PP_OK);
        assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
        assert_true(brought_balance(first, 0));
        uint64_t first_bytes = first->row_bytes[1];
        assert_int_equal(append(&world, 1, 6, 9), PP_OK);
        assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
        assert_false(brought_balance(first, first_bytes));
        assert_int_equal(brought_balance(second, 0), shard == 0); /* whose first rows are these */
        assert_int_equal(gw_remote_balance(world.sequence, 1, balance), PP_INVALID_ARGUMENT);
        fake_world_free(&world);
    }
    struct fake_world exact = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    assert_int_equal(gw_remote_balance(exact.sequence, 1, balance), PP_INVALID_ARGUMENT);
    fake_world_free(&exact);
}

static void segments_end_at_the_borders_of_parts_and_of_65472_rows(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 200000, 1 << 20);
    static const uint64_t begins[] = {0, 65472, 100000, 165472};
    static const uint64_t ends[] = {65472, 100000, 165472, 230944};
    for (uint32_t i = 0; i < 4; ++i) {
        assert_int_equal(gw_remote_segment_end(world.sequence, begins[i], 1000000), ends[i]);
        assert_int_equal(gw_remote_segment_end(world.sequence, begins[i], begins[i] + 9),
                         begins[i] + 9);
    }
    fake_world_free(&world);
    world = world_new(3, GW_SHARD_KV_HEADS, 0, 1 << 20);
    assert_int_equal(gw_remote_segment_end(world.sequence, 65472, 1000000), 130944);
    fake_world_free(&world);
}

static void appends_larger_than_the_outbox_wait_and_arrive(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 4000, 1 << 16);
    for (uint64_t start = 0; start < 4000; start += 1000) {
        assert_int_equal(append(&world, 2, start, 1000), PP_OK);
    }
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 2), 4000);
    assert_true(world.net->nodes[0].appends > 4);
    fake_world_free(&world);
}

static void rows_out_of_order_are_refused(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    float row[ROW_FLOATS] = {0};
    assert_int_equal(gw_remote_append(world.sequence, 0, 1, 1, row, row, false),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_remote_append(world.sequence, FAKE_LAYERS, 0, 1, row, row, false),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_remote_append(world.sequence, 0, 0, 0, row, row, false),
                     PP_INVALID_ARGUMENT);
    assert_string_equal(gw_remote_error(world.sequence), "");
    fake_world_free(&world);
}

static void lost_acknowledgements_are_met_as_duplicates(void **state)
{
    (void)state;
    struct fake_world world = world_new(1, GW_SHARD_TOKENS, 100, 1 << 20);
    world.net->nodes[0].append_mode = FAKE_LOSE_ACKS;
    assert_int_equal(append(&world, 0, 0, 30), PP_OK);
    assert_int_equal(append(&world, 1, 0, 30), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 0), 30);
    assert_int_equal(gw_remote_held(world.sequence, 1), 30);
    assert_int_equal(world.net->nodes[0].parts[0].held[0], 30);
    check_rows(&world.net->nodes[0].parts[0], 0, 0, 30);
    check_rows(&world.net->nodes[0].parts[0], 1, 0, 30);
    assert_true(world.net->nodes[0].appends >= 3);
    fake_world_free(&world);
}

static void rows_that_arrived_broken_are_sent_again(void **state)
{
    (void)state;
    struct fake_world world = world_new(1, GW_SHARD_TOKENS, 100, 1 << 20);
    world.net->nodes[0].append_mode = FAKE_CHECKSUM;
    assert_int_equal(append(&world, 0, 0, 10), PP_OK);
    assert_int_equal(append(&world, 0, 10, 10), PP_OK); /* meets a gap first */
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 0), 20);
    assert_int_equal(world.net->nodes[0].parts[0].held[0], 20);
    fake_world_free(&world);
}

static void the_window_bounds_messages_in_flight(void **state)
{
    (void)state;
    struct fake_world world = world_new(1, GW_SHARD_TOKENS, 1000, 1 << 20);
    world.net->nodes[0].hold_acks = true;
    for (uint32_t i = 0; i < 100; ++i) {
        assert_int_equal(append(&world, 0, i, 1), PP_OK);
    }
    assert_int_equal(world.net->nodes[0].appends, 16);
    assert_int_equal(gw_remote_held(world.sequence, 0), 0);
    fake_world_free(&world);
}

static void expect_failure(enum fake_mode mode, enum pp_status status, const char *cause)
{
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    struct gw_remote_sequence *other = NULL;
    struct gw_remote_sequence_config config = fake_sequence_config(20);
    assert_int_equal(gw_remote_sequence_open(world.remote, &config, &other), PP_OK);
    world.net->nodes[1].append_mode = mode;
    uint64_t begun_us = world.net->now_us;
    enum pp_status ended = append(&world, 0, 0, 20);
    ended = ended == PP_OK ? gw_remote_flush(world.sequence) : ended;
    assert_int_equal(ended, status);
    assert_true(world.net->now_us - begun_us < 2000000);
    assert_non_null(strstr(gw_remote_error(world.sequence), "node b"));
    assert_non_null(strstr(gw_remote_error(world.sequence), cause));
    assert_int_equal(append(&world, 1, 0, 1), status);
    /* The other sequence of the same nodes goes on. */
    world.net->nodes[1].append_mode = FAKE_RIGHT;
    float row[20 * ROW_FLOATS] = {0};
    assert_int_equal(gw_remote_append(other, 0, 0, 20, row, row, false), PP_OK);
    assert_int_equal(gw_remote_flush(other), PP_OK);
    assert_int_equal(gw_remote_held(other, 0), 20);
    gw_remote_sequence_close(other);
    fake_world_free(&world);
}

static void a_refused_append_ends_the_sequence_with_its_cause(void **state)
{
    (void)state;
    expect_failure(FAKE_MEMORY, PP_MEMORY, "[MEMORY]");
}

static void a_node_that_never_acknowledges_ends_it_within_2_s(void **state)
{
    (void)state;
    expect_failure(FAKE_SILENT, PP_DEADLINE_EXCEEDED, "no append acknowledged");
}

static void acknowledging_more_than_was_sent_ends_it(void **state)
{
    (void)state;
    expect_failure(FAKE_ACK_TOO_FAR, PP_INTERNAL, "acknowledged layer 0 up to 11");
}

static void a_node_that_is_gone_ends_it_within_2_s(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    world.net->nodes[1].append_mode = FAKE_LOSE_ACKS;
    world.net->nodes[1].down = false;
    assert_int_equal(append(&world, 0, 0, 20), PP_OK);
    world.net->nodes[1].down = true;
    uint64_t begun_us = world.net->now_us;
    assert_int_equal(gw_remote_flush(world.sequence), PP_UNAVAILABLE);
    assert_true(world.net->now_us - begun_us < 2000000);
    assert_non_null(strstr(gw_remote_error(world.sequence), "node b"));
    assert_non_null(strstr(gw_remote_error(world.sequence), "connection refused"));
    fake_world_free(&world);
}

static void truncate_cuts_every_part_and_appends_go_on(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    assert_int_equal(append(&world, 0, 0, 16), PP_OK);
    assert_int_equal(append(&world, 1, 0, 8), PP_OK);
    assert_int_equal(gw_remote_truncate(world.sequence, 12), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 0), 12);
    assert_int_equal(gw_remote_held(world.sequence, 1), 8);
    assert_int_equal(world.net->nodes[1].parts[0].held[0], 2);
    assert_int_equal(append(&world, 0, 12, 5), PP_OK);
    assert_int_equal(append(&world, 1, 8, 4), PP_OK);
    assert_int_equal(gw_remote_truncate(world.sequence, 3), PP_OK);
    assert_int_equal(world.net->nodes[0].parts[0].held[0], 3);
    assert_int_equal(world.net->nodes[1].parts[0].held[0], 0);
    assert_int_equal(append(&world, 0, 3, 17), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_int_equal(gw_remote_held(world.sequence, 0), 20);
    fake_world_free(&world);
}

static void leases_are_renewed_while_nothing_happens(void **state)
{
    (void)state;
    struct fake_world world = world_new(2, GW_SHARD_TOKENS, 20, 1 << 20);
    uint64_t end_us = world.net->now_us + 3600ull * 1000000;
    while (world.net->now_us < end_us) {
        (void)gw_remote_poll(world.remote, end_us);
    }
    /* A lease of a minute, though the node would give ten, at every third of it. */
    assert_in_range(world.net->nodes[0].renewals, 170, 190);
    assert_in_range(world.net->nodes[1].renewals, 170, 190);
    assert_string_equal(gw_remote_error(world.sequence), "");
    /* A node that no longer knows the part ends the sequence. */
    world.net->nodes[0].parts[0].open = false;
    end_us += 300ull * 1000000;
    while (world.net->now_us < end_us) {
        (void)gw_remote_poll(world.remote, end_us);
    }
    assert_non_null(strstr(gw_remote_error(world.sequence), "PART_EXPIRED"));
    fake_world_free(&world);
}

static void a_clock_that_went_back_does_not_keep_a_stream_closed(void **state)
{
    (void)state;
    struct fake_world world = world_new(1, GW_SHARD_TOKENS, 0, 1 << 20);
    fake_end(world.remote->nodes[0].append_call, PP_UNAVAILABLE, "connection reset");
    world.net->now_us += 60000000;
    while (world.remote->nodes[0].append_call != NULL) {
        (void)gw_remote_poll(world.remote, fake_now(world.net));
    }
    world.net->now_us -= 60000000;
    assert_int_equal(append(&world, 0, 0, 10), PP_OK);
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    fake_world_free(&world);
}

static void closing_closes_every_part(void **state)
{
    (void)state;
    struct fake_world world = world_new(3, GW_SHARD_KV_HEADS, 0, 1 << 20);
    struct fake_net *net = world.net;
    gw_remote_sequence_close(world.sequence);
    world.sequence = NULL;
    for (uint32_t i = 0; i < 3; ++i) {
        assert_int_equal(net->nodes[i].closes, 1);
    }
    fake_world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_memory_refuses_and_freed_memory_wraps),
        cmocka_unit_test(token_spans_reach_their_nodes_whole),
        cmocka_unit_test(kv_head_shards_get_their_heads_of_every_token),
        cmocka_unit_test(signed_rows_name_their_segment_and_carry_signatures_and_centre),
        cmocka_unit_test(a_balance_comes_with_the_first_rows_of_each_part),
        cmocka_unit_test(segments_end_at_the_borders_of_parts_and_of_65472_rows),
        cmocka_unit_test(appends_larger_than_the_outbox_wait_and_arrive),
        cmocka_unit_test(rows_out_of_order_are_refused),
        cmocka_unit_test(lost_acknowledgements_are_met_as_duplicates),
        cmocka_unit_test(rows_that_arrived_broken_are_sent_again),
        cmocka_unit_test(the_window_bounds_messages_in_flight),
        cmocka_unit_test(a_refused_append_ends_the_sequence_with_its_cause),
        cmocka_unit_test(a_node_that_never_acknowledges_ends_it_within_2_s),
        cmocka_unit_test(acknowledging_more_than_was_sent_ends_it),
        cmocka_unit_test(a_node_that_is_gone_ends_it_within_2_s),
        cmocka_unit_test(truncate_cuts_every_part_and_appends_go_on),
        cmocka_unit_test(leases_are_renewed_while_nothing_happens),
        cmocka_unit_test(a_clock_that_went_back_does_not_keep_a_stream_closed),
        cmocka_unit_test(closing_closes_every_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
