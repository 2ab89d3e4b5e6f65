/*
 * Nodes that answer as a test wants, for the tests of gpu-worker/remote. A fake node keeps how many
 * tokens of a part and layer it holds and the bytes it was sent; an attend over n tokens answers
 * o = node constant, lse = log n, so that merges can be computed by hand. Requests are decoded by
 * the general protobuf code: what the remote sends is plain protobuf.
 */
#ifndef PIGPEN_TESTS_UNIT_REMOTE_FAKE_NODE_H
#define PIGPEN_TESTS_UNIT_REMOTE_FAKE_NODE_H

#include <math.h>

#include "common/base/crc32c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "pigpen/v1/admin.pb-c.h"
#include "tests/unit/remote_fake_net.h"

static inline struct pp_estimator fake_estimator(const Pigpen__V1__Estimator *said)
{
    struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE};
    if (said != NULL) {
        estimator = (struct pp_estimator){.kind = (enum pp_estimator_kind)said->kind,
                                          .k = said->k,
                                          .l = said->l,
                                          .t = said->t,
                                          .bits = said->bits,
                                          .rows_share = said->rows_share,
                                          .rows = said->rows,
                                          .target_error = said->target_error};
    }
    return estimator;
}

/* Rows of all layers that a node can still take, less than 0: took too many; what parts were
 * promised is taken. */
static inline int64_t fake_rows_left(const struct fake_node *node)
{
    int64_t left = (int64_t)node->rows_max;
    for (uint32_t i = 0; i < node->part_count; ++i) {
        const struct fake_part *part = &node->parts[i];
        uint64_t rows = 0, kept = part->reserve_tokens * FAKE_LAYERS;
        for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
            rows += part->held[layer];
        }
        left -= !part->open ? 0 : (int64_t)(rows > kept ? rows : kept);
    }
    return left;
}

/* A token of a layer takes four heads' rows of 64 bytes and a tenth. */
#define FAKE_ROWS_BYTES 281u
static inline uint64_t fake_free(const struct fake_node *node)
{
    bool counted = node->memory_bytes > 0 && node->rows_max > 0;
    int64_t left = fake_rows_left(node);
    return !counted ? node->free_bytes : left > 0 ? (uint64_t)left * FAKE_ROWS_BYTES : 1;
}

static inline void fake_open(struct pp_call *call, const Pigpen__V1__OpenPartRequest *request)
{
    struct fake_node *node = call->channel->node;
    bool room =
        node->reserve_tokens_max == 0 || request->reserve_tokens <= node->reserve_tokens_max;
    room = room && (node->rows_max == 0 ||
                    (int64_t)(request->reserve_tokens * FAKE_LAYERS) <= fake_rows_left(node));
    if (node->part_count == FAKE_PARTS || !room) {
        fake_end(call, PP_MEMORY, "no room");
        return;
    }
    struct fake_part *part = &node->parts[node->part_count++];
    part->handle = node->incarnation * 1000 + node->part_count;
    part->generation = request->generation;
    part->kv_head_begin = request->kv_head_begin;
    part->kv_head_count = request->kv_head_count;
    part->reserve_tokens = request->reserve_tokens;
    part->token_begin = request->token_begin;
    part->own_count = (uint32_t)request->n_layer_estimators;
    for (uint32_t i = 0; i < part->own_count && i < FAKE_LAYERS; ++i) {
        part->own[i].layer = request->layer_estimators[i]->layer;
        part->own[i].estimator = fake_estimator(request->layer_estimators[i]->estimator);
    }
    part->open = true;
    Pigpen__V1__OpenPartResponse answer = PIGPEN__V1__OPEN_PART_RESPONSE__INIT;
    answer.handle = part->handle;
    answer.incarnation = node->incarnation;
    answer.generation = part->generation;
    bool shorter = request->lease_ms > 0 && request->lease_ms < node->lease_ms;
    answer.lease_ms = shorter ? request->lease_ms : node->lease_ms;
    answer.memory_free_bytes = fake_free(node);
    fake_finish(call, &answer.base);
}

static inline void fake_append_refuse(struct pp_call *call,
                                      const Pigpen__V1__AppendKvRequest *request,
                                      enum pp_status status, uint64_t expected_start)
{
    char reason[32], message[] = "as the test wants";
    Pigpen__V1__AppendKvResponse answer = PIGPEN__V1__APPEND_KV_RESPONSE__INIT;
    Pigpen__V1__Status wire;
    pigpen__v1__status__init(&wire);
    strncpy(reason, pp_status_name(status), sizeof(reason) - 1);
    reason[sizeof(reason) - 1] = '\0';
    wire.code = (uint32_t)pp_status_grpc_code(status);
    wire.reason = reason;
    wire.message = message;
    wire.expected_start = expected_start;
    answer.status = &wire;
    answer.request_id = request->request_id;
    answer.incarnation = call->channel->node->incarnation;
    answer.layer = request->layer;
    fake_reply(call, &answer.base);
}

static inline void fake_append_store(struct fake_part *part,
                                     const Pigpen__V1__AppendKvRequest *request)
{
    uint32_t layer = request->layer;
    if (part->row_bytes[layer] + request->payload.len <= FAKE_LOG) {
        memcpy(part->rows[layer] + part->row_bytes[layer], request->payload.data,
               request->payload.len);
        part->row_bytes[layer] += request->payload.len;
    }
    part->held[layer] += request->count;
    part->segment_begin = request->segment != NULL ? request->segment->begin : 0;
    part->segment_count = request->segment != NULL ? request->segment->count : 0;
    part->section_count = (uint32_t)request->n_sections;
    for (size_t i = 0; i < request->n_sections && i < 4; ++i) {
        part->section_kinds[i] = request->sections[i]->kind;
        part->section_offsets[i] = request->sections[i]->offset;
        part->section_bytes[i] = request->sections[i]->bytes;
    }
}

static inline void fake_append(struct pp_call *call, const Pigpen__V1__AppendKvRequest *request)
{
    struct fake_node *node = call->channel->node;
    struct fake_part *part = fake_find(node, request->part->handle);
    enum fake_mode mode = node->append_mode;
    node->appends++;
    if (part == NULL || request->part->incarnation != node->incarnation ||
        request->part->generation != part->generation) {
        fake_append_refuse(call, request, PP_INCARNATION_CHANGED, 0);
        return;
    }
    if (pp_crc32c(0, request->payload.data, request->payload.len) != request->crc32c ||
        mode == FAKE_CHECKSUM) {
        node->append_mode = FAKE_RIGHT;
        fake_append_refuse(call, request, PP_CHECKSUM, 0);
        return;
    }
    if (mode == FAKE_MEMORY) {
        fake_append_refuse(call, request, PP_MEMORY, 0);
        return;
    }
    uint64_t *held = &part->held[request->layer];
    if (request->start > *held) {
        fake_append_refuse(call, request, PP_APPEND_GAP, *held);
        return;
    }
    bool duplicate = request->start < *held;
    if (!duplicate) {
        fake_append_store(part, request);
    }
    if (!duplicate && node->rows_max > 0 && fake_rows_left(node) < 0) {
        *held -= request->count;
        fake_append_refuse(call, request, PP_MEMORY, 0);
        return;
    }
    if (mode == FAKE_LOSE_ACKS) {
        node->append_mode = FAKE_RIGHT;
        fake_end(call, PP_UNAVAILABLE, "connection reset");
        return;
    }
    if (mode == FAKE_SILENT || node->hold_acks) {
        return;
    }
    Pigpen__V1__AppendKvResponse answer = PIGPEN__V1__APPEND_KV_RESPONSE__INIT;
    answer.request_id = request->request_id;
    answer.incarnation = node->incarnation;
    answer.layer = request->layer;
    answer.held_tokens = *held + (mode == FAKE_ACK_TOO_FAR ? 1 : 0);
    answer.duplicate = duplicate;
    answer.memory_free_bytes = fake_free(node);
    fake_reply(call, &answer.base);
}

/* Parts that one message may ask here. */
#define FAKE_ITEMS 8u
/* heads and dim of a part come from the q section: the tests use dim 8. */
#define FAKE_DIM 8u

/* An answer in the making. */
struct fake_answer {
    float *payload;
    uint64_t floats;
    Pigpen__V1__Section sections[6 * FAKE_ITEMS], *section_list[6 * FAKE_ITEMS];
    Pigpen__V1__AttendResult results[FAKE_ITEMS], *result_list[FAKE_ITEMS + 1];
    uint32_t section_count;
};

static inline uint64_t fake_heads(const Pigpen__V1__AttendRequest *request, uint32_t index)
{
    for (size_t i = 0; i < request->n_sections; ++i) {
        if (request->sections[i]->item == index &&
            request->sections[i]->kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q) {
            return request->sections[i]->bytes / sizeof(float) / FAKE_DIM;
        }
    }
    return 0;
}

/* o, lse, var, lse_var, keys_read, lse_sampled of heads rows of dim values, behind what is there.
 */
static inline void fake_values(const struct fake_node *node, const Pigpen__V1__AttendItem *item,
                               uint64_t heads, struct fake_answer *answer)
{
    enum fake_mode mode = node->attend_mode;
    uint64_t dim = FAKE_DIM;
    answer->payload =
        realloc(answer->payload, (answer->floats + heads * (dim + 5)) * sizeof(float));
    float *payload = answer->payload + answer->floats;
    memset(payload, 0, heads * (dim + 5) * sizeof(float));
    answer->floats += heads * (dim + 5);
    for (uint64_t i = 0; i < heads * dim; ++i) {
        payload[i] = mode == FAKE_INFINITE_O ? INFINITY : node->constant;
    }
    for (uint64_t i = 0; i < heads; ++i) {
        payload[heads * dim + i] = mode == FAKE_NAN_LSE     ? NAN
                                   : mode == FAKE_EMPTY_LSE ? -INFINITY
                                                            : logf((float)item->held_tokens);
        payload[heads * dim + heads + i] = mode == FAKE_NEGATIVE_VAR ? -1.0f : 0.0f;
        /* The first head reads constant keys, the second twice as many, and so on. */
        uint32_t keys = (uint32_t)(node->constant * (float)(i + 1));
        memcpy(&payload[heads * dim + 3 * heads + i], &keys, sizeof(keys));
        payload[heads * dim + 4 * heads + i] = logf((float)item->held_tokens) + node->sampled_log;
    }
}

static inline void fake_item(const struct fake_node *node, const Pigpen__V1__AttendRequest *request,
                             uint32_t index, Pigpen__V1__Status *broken, struct fake_answer *answer)
{
    enum fake_mode mode = node->attend_mode;
    const Pigpen__V1__AttendItem *item = request->items[index];
    uint64_t heads = fake_heads(request, index), offset = answer->floats * sizeof(float);
    uint32_t section_count = node->samples && request->want_sampled ? 6 : 5;
    fake_values(node, item, heads, answer);
    for (uint32_t i = 0; i < section_count; ++i) {
        Pigpen__V1__Section *section = &answer->sections[answer->section_count];
        pigpen__v1__section__init(section);
        section->kind = i < 5 ? (Pigpen__V1__SectionKind)(6 + i)
                              : PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_SAMPLED;
        section->kind = i == 1 && mode == FAKE_NO_LSE ? PIGPEN__V1__SECTION_KIND__SECTION_KIND_K
                                                      : section->kind;
        section->item = index;
        section->bytes = (i == 0 ? heads * FAKE_DIM : heads) * sizeof(float);
        section->bytes -= i == 0 && mode == FAKE_SHORT_VECTOR ? 4 : 0;
        section->offset = i == 0 && mode == FAKE_LONG_OFFSET ? UINT64_MAX - 8 : offset;
        offset += section->bytes;
        answer->section_list[answer->section_count++] = section;
    }
    Pigpen__V1__AttendResult *result = &answer->results[index];
    pigpen__v1__attend_result__init(result);
    answer->result_list[index] = result;
    result->q_rows = item->q_rows + (mode == FAKE_OTHER_ROWS ? 1 : 0);
    result->estimator = item->estimator != NULL ? item->estimator->kind : 1;
    result->keys_held = result->keys_read = item->held_tokens * (heads / 2); /* group of 2 */
    result->keys_held -= mode == FAKE_FEWER_TOKENS ? 1 : 0;
    result->keys_sampled = node->samples ? result->keys_held : 0;
    bool refused = mode == FAKE_ITEM_INTERNAL && index >= node->right_items;
    result->status = refused ? broken : NULL;
}

static inline void fake_attend_answer(struct pp_call *call,
                                      const Pigpen__V1__AttendRequest *request)
{
    struct fake_node *node = call->channel->node;
    enum fake_mode mode = node->attend_mode;
    char reason[] = "INTERNAL", text[] = "as the test wants";
    struct fake_answer made = {.payload = NULL};
    Pigpen__V1__Status broken;
    pigpen__v1__status__init(&broken);
    broken.code = 13;
    broken.reason = reason;
    broken.message = text;
    for (uint32_t i = 0; i < request->n_items; ++i) {
        fake_item(node, request, i, &broken, &made);
    }
    made.result_list[request->n_items] = &made.results[0];
    Pigpen__V1__AttendResponse answer = PIGPEN__V1__ATTEND_RESPONSE__INIT;
    answer.request_id = request->request_id + (mode == FAKE_OTHER_ID ? 1000000 : 0);
    answer.incarnation = node->incarnation + (mode == FAKE_OTHER_INCARNATION ? 1 : 0);
    answer.layer = request->layer + (mode == FAKE_OTHER_LAYER ? 1 : 0);
    answer.n_results = request->n_items + (mode == FAKE_TWO_RESULTS ? 1 : 0);
    answer.results = made.result_list;
    answer.n_sections = made.section_count;
    answer.sections = made.section_list;
    answer.node_us = 40;
    answer.status = mode == FAKE_WHOLE_INTERNAL ? &broken : NULL;
    answer.payload.data = (uint8_t *)made.payload;
    answer.payload.len = made.floats * sizeof(float);
    fake_reply(call, &answer.base);
    free(made.payload);
}

static inline void fake_attend(struct pp_call *call, const Pigpen__V1__AttendRequest *request)
{
    struct fake_node *node = call->channel->node;
    assert_true(request->n_items <= FAKE_ITEMS);
    node->attends++;
    for (uint32_t i = 0; i < request->n_items; ++i) {
        struct fake_part *part = fake_find(node, request->items[i]->handle);
        if (call->channel->net->saw_attend != NULL) {
            call->channel->net->saw_attend(call->channel->net->saw_context, part, request, i);
        }
        if (part == NULL || part->held[request->layer] < request->items[i]->held_tokens) {
            node->attend_mode = FAKE_WHOLE_INTERNAL;
        }
    }
    node->saw_signatures = node->saw_signatures || request->n_sections > request->n_items;
    node->signature_bytes = request->n_sections > 1 ? request->sections[1]->bytes : 0;
    node->asked = fake_estimator(request->items[0]->estimator);
    if (node->attend_mode == FAKE_SILENT) {
        return;
    }
    if (node->attend_mode == FAKE_BREAK || node->attend_mode == FAKE_BREAK_ONCE) {
        node->attend_mode = node->attend_mode == FAKE_BREAK ? FAKE_BREAK : FAKE_RIGHT;
        fake_end(call, PP_UNAVAILABLE, "connection reset");
        return;
    }
    if (node->attend_mode == FAKE_GARBAGE) {
        fake_reply_bytes(call, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12);
        return;
    }
    fake_attend_answer(call, request);
}

#define FAKE_READ_ROWS 3u

/* Rows of a layer that came in one message, a few at a time. */
static inline void fake_read_piece(struct pp_call *call, const struct fake_part *part,
                                   const Pigpen__V1__ReadKvRequest *request, uint64_t start,
                                   uint32_t count)
{
    const struct fake_node *node = call->channel->node;
    enum fake_mode mode = node->read_mode;
    uint32_t sent = count + (mode == FAKE_TOO_MANY ? 1000 : 0);
    uint64_t half = part->row_bytes[request->layer] / 2, row = half / part->held[request->layer];
    uint8_t *payload = calloc(2 * sent, row);
    memcpy(payload, part->rows[request->layer] + start * row, count * row);
    memcpy(payload + sent * row, part->rows[request->layer] + half + start * row, count * row);
    Pigpen__V1__Section sections[2], *list[2] = {&sections[0], &sections[1]};
    for (uint32_t i = 0; i < 2; ++i) {
        pigpen__v1__section__init(&sections[i]);
        sections[i].kind = i == 0 ? PIGPEN__V1__SECTION_KIND__SECTION_KIND_K
                                  : PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
        sections[i].offset = i * sent * row + (mode == FAKE_LONG_OFFSET ? 2 * sent * row : 0);
        sections[i].bytes = sent * row - (mode == FAKE_SHORT_VECTOR ? 4 : 0);
    }
    Pigpen__V1__ReadKvResponse answer = PIGPEN__V1__READ_KV_RESPONSE__INIT;
    answer.incarnation = node->incarnation + (mode == FAKE_OTHER_INCARNATION ? 1 : 0);
    answer.layer = request->layer + (mode == FAKE_OTHER_LAYER ? 1 : 0);
    answer.start = start + (mode == FAKE_OTHER_START ? 1 : 0);
    answer.count = sent;
    answer.crc32c = pp_crc32c(mode == FAKE_BAD_SUM ? 1 : 0, payload, 2 * sent * row);
    answer.n_sections = 2;
    answer.sections = list;
    answer.payload.data = payload;
    answer.payload.len = 2 * sent * row;
    fake_reply(call, &answer.base);
    free(payload);
}

static inline void fake_read(struct pp_call *call, const Pigpen__V1__ReadKvRequest *request)
{
    struct fake_node *node = call->channel->node;
    struct fake_part *part = fake_find(node, request->part->handle);
    uint64_t end = request->start + request->count - (node->read_mode == FAKE_EARLY_END ? 1 : 0);
    for (uint64_t start = request->start; start < end; start += FAKE_READ_ROWS) {
        uint64_t left = end - start;
        fake_read_piece(call, part, request, start,
                        left < FAKE_READ_ROWS ? (uint32_t)left : FAKE_READ_ROWS);
    }
    if (node->read_mode != FAKE_SILENT) {
        fake_end(call, PP_OK, "");
    }
}

static inline void fake_truncate(struct pp_call *call,
                                 const Pigpen__V1__TruncatePartRequest *request)
{
    struct fake_node *node = call->channel->node;
    struct fake_part *part = fake_find(node, request->part->handle);
    if (part == NULL || part->generation != request->part->generation) {
        fake_end(call, PP_STALE_GENERATION, "generation");
        return;
    }
    part->generation = request->new_generation;
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        uint64_t *held = &part->held[layer];
        *held = *held < request->held_tokens ? *held : request->held_tokens;
    }
    Pigpen__V1__TruncatePartResponse answer = PIGPEN__V1__TRUNCATE_PART_RESPONSE__INIT;
    answer.incarnation = node->incarnation;
    answer.generation = part->generation;
    fake_finish(call, &answer.base);
}

static inline void fake_get(struct pp_call *call, const Pigpen__V1__GetPartRequest *request)
{
    struct fake_part *part = fake_find(call->channel->node, request->part->handle);
    Pigpen__V1__GetPartResponse answer = PIGPEN__V1__GET_PART_RESPONSE__INIT;
    Pigpen__V1__PartInfo info = PIGPEN__V1__PART_INFO__INIT;
    Pigpen__V1__LayerInfo layers[FAKE_LAYERS], *list[FAKE_LAYERS];
    for (uint32_t i = 0; i < FAKE_LAYERS; ++i) {
        pigpen__v1__layer_info__init(&layers[i]);
        layers[i].sealed_tokens = layers[i].settled_tokens = part != NULL ? part->held[i] : 0;
        list[i] = &layers[i];
    }
    info.n_layers = FAKE_LAYERS;
    info.layers = list;
    answer.incarnation = call->channel->node->incarnation;
    answer.part = &info;
    fake_finish(call, &answer.base);
}

static inline void fake_close(struct pp_call *call, const Pigpen__V1__ClosePartRequest *request)
{
    struct fake_part *part = fake_find(call->channel->node, request->part->handle);
    if (part != NULL) {
        part->open = false;
    }
    call->channel->node->closes++;
    Pigpen__V1__ClosePartResponse answer = PIGPEN__V1__CLOSE_PART_RESPONSE__INIT;
    fake_finish(call, &answer.base);
}

static inline void fake_renew(struct pp_call *call, Pigpen__V1__RenewPartsRequest *request)
{
    struct fake_node *node = call->channel->node;
    Pigpen__V1__RenewPartsResponse answer = PIGPEN__V1__RENEW_PARTS_RESPONSE__INIT;
    answer.incarnation = node->incarnation;
    node->renewals++;
    if (fake_find(node, request->handles[0]) == NULL) {
        answer.n_unknown_handles = 1;
        answer.unknown_handles = request->handles;
    }
    fake_finish(call, &answer.base);
}

static inline void fake_seal(struct pp_call *call, const Pigpen__V1__SealPartRequest *request)
{
    (void)request;
    Pigpen__V1__SealPartResponse answer = PIGPEN__V1__SEAL_PART_RESPONSE__INIT;
    answer.incarnation = call->channel->node->incarnation;
    fake_finish(call, &answer.base);
}

static inline void fake_tune(struct pp_call *call, const Pigpen__V1__TunePartRequest *request)
{
    struct fake_node *node = call->channel->node;
    Pigpen__V1__TunePartResponse answer = PIGPEN__V1__TUNE_PART_RESPONSE__INIT;
    Pigpen__V1__LayerTuning layer = PIGPEN__V1__LAYER_TUNING__INIT, *list[1] = {&layer};
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    node->tunes++;
    node->tune_target = request->target_error;
    if (node->tune_busy > 0) {
        node->tune_busy--;
        fake_end(call, PP_QUEUE, "another part is being tuned");
        return;
    }
    if (node->tune_mode == FAKE_SILENT) {
        return;
    }
    estimator.kind = (Pigpen__V1__EstimatorKind)node->tune_estimator.kind;
    estimator.k = node->tune_estimator.k;
    estimator.l = node->tune_estimator.l;
    estimator.t = node->tune_estimator.t;
    estimator.bits = node->tune_estimator.bits;
    estimator.rows_share = node->tune_estimator.rows_share;
    layer.layer = request->layer_begin + (node->tune_mode == FAKE_OTHER_LAYER ? 1 : 0);
    layer.estimator = node->tune_estimator.kind != PP_ESTIMATOR_NONE ? &estimator : NULL;
    layer.queries = 8;
    layer.dense = node->tune_dense;
    layer.rows_share = node->tune_mode == FAKE_TOO_MANY ? 1.5f : node->tune_share;
    layer.error = node->tune_mode == FAKE_INFINITE_O ? INFINITY : node->tune_share / 2;
    answer.incarnation = node->incarnation + (node->tune_mode == FAKE_OTHER_INCARNATION ? 1 : 0);
    answer.n_layers = node->tune_mode == FAKE_OTHER_ROWS ? 0 : request->layer_count;
    answer.layers = list;
    fake_finish(call, &answer.base);
}

static inline void fake_check(struct pp_call *call, const ProtobufCMessage *request)
{
    (void)request;
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    answer.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    fake_finish(call, &answer.base);
}

static inline void fake_info(struct pp_call *call, const ProtobufCMessage *request)
{
    (void)request;
    char version[] = "0.1.0";
    Pigpen__V1__GetServerInfoResponse answer;
    pigpen__v1__get_server_info_response__init(&answer);
    answer.incarnation = call->channel->node->incarnation;
    answer.version = version;
    answer.memory_limit_bytes = call->channel->node->memory_bytes;
    answer.memory_free_bytes = fake_free(call->channel->node);
    fake_finish(call, &answer.base);
}

struct fake_method {
    const char *name;
    const ProtobufCMessageDescriptor *type;
    void (*serve)(struct pp_call *call, const ProtobufCMessage *request);
};

#define FAKE_METHOD(name, type, serve)                                                             \
    {                                                                                              \
        name, &pigpen__v1__##type##__descriptor,                                                   \
            (void (*)(struct pp_call *, const ProtobufCMessage *))(void *)serve                    \
    }

static inline void fake_serve(struct pp_call *call, const uint8_t *bytes, size_t count)
{
    const struct fake_method methods[] = {
        FAKE_METHOD("/OpenPart", open_part_request, fake_open),
        FAKE_METHOD("/AppendKvStream", append_kv_request, fake_append),
        FAKE_METHOD("/AttendStream", attend_request, fake_attend),
        FAKE_METHOD("/ReadKv", read_kv_request, fake_read),
        FAKE_METHOD("/TruncatePart", truncate_part_request, fake_truncate),
        FAKE_METHOD("/GetPart", get_part_request, fake_get),
        FAKE_METHOD("/ClosePart", close_part_request, fake_close),
        FAKE_METHOD("/RenewParts", renew_parts_request, fake_renew),
        FAKE_METHOD("/SealPart", seal_part_request, fake_seal),
        FAKE_METHOD("/TunePart", tune_part_request, fake_tune),
        FAKE_METHOD("/GetServerInfo", get_server_info_request, fake_info),
        {"/Check", &grpc__health__v1__health_check_request__descriptor, fake_check},
    };
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); ++i) {
        if (strcmp(strrchr(call->path, '/'), methods[i].name) == 0) {
            ProtobufCMessage *request =
                protobuf_c_message_unpack(methods[i].type, NULL, count, bytes);
            methods[i].serve(call, request);
            protobuf_c_message_free_unpacked(request, NULL);
            return;
        }
    }
    fake_end(call, PP_UNIMPLEMENTED, "no such method");
}

#endif
