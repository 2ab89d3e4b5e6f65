/*
 * The outbox: K/V copied into bounded memory, sent by one AppendKvStream a node on the bulk
 * channel, kept until acknowledged, sent again when a stream broke (the node meets it as a
 * duplicate). On the walk: engine/sequence > remote/outbox > rpc, acknowledgements back. It refuses
 * to know tokens' meaning: parts, layers and held indices only.
 *
 * Full: gw_outbox_take says so and the caller waits. A node that acknowledges nothing for the
 * attend timeout while something waits ends the sequences that wait for it.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_OUTBOX_H
#define PIGPEN_GPU_WORKER_REMOTE_OUTBOX_H

#include "gpu-worker/remote/internal.h"

/* One message carries this much K/V at most; less where the node or the outbox says so. */
#define GW_CHUNK_PAYLOAD_BYTES (1u << 20)

PP_MUST_USE enum pp_status gw_outbox_memory_new(uint64_t capacity,
                                                struct gw_outbox_memory **memory_out);
void gw_outbox_memory_release(struct gw_outbox_memory *memory);
/* Engine thread: a chunk with payload_bytes of payload and one reference; NULL: full. */
struct gw_chunk *gw_outbox_take(struct gw_outbox_memory *memory, uint64_t payload_bytes);
/* Any thread: drops a reference. */
void gw_chunk_release(struct gw_chunk *chunk);
/* Engine thread: bytes taken and not given back. */
uint64_t gw_outbox_used(struct gw_outbox_memory *memory);

/* Rows of a span for one part, as the engine has them. */
struct gw_rows {
    const uint8_t *k, *v; /* [token][kv head][dim] of all kv heads, first token of the span */
    uint64_t token_bytes; /* of K of all kv heads */
    uint64_t head_bytes;  /* of K of one */
    uint32_t kv_head_begin, kv_head_count;
    uint32_t count;
    /* Signed rows; codes NULL: they are not. */
    const uint16_t *codes;  /* [token][kv head][l] of all kv heads */
    const float *centre;    /* [kv head][dim] */
    uint32_t code_bytes;    /* of the signature of one head */
    uint32_t centre_bytes;  /* of the centre of one head */
    uint64_t segment_begin; /* held index of the part */
    uint32_t segment_count;
    /* What their layer's sketches are balanced with; NULL: it does not come with these. */
    const float *balance;   /* [kv head][dim] */
    uint32_t balance_bytes; /* of one head */
};
/* Bytes of the payload of rows. */
uint64_t gw_rows_bytes(const struct gw_rows *rows);
/* Writes K, V, of signed rows signatures and centre, and the balance of the part's heads to
 * payload. Returns their CRC-32C. */
uint32_t gw_rows_pack(const struct gw_rows *rows, uint8_t *payload);

/* Tokens of a part's rows that fit one message: at least 1. */
uint32_t gw_outbox_tokens_per_chunk(const struct gw_remote *remote, const struct gw_part *part,
                                    const struct gw_rows *rows);

/* Engine thread: cuts, copies and hands over; waits while the outbox is full. */
PP_MUST_USE enum pp_status gw_outbox_append(struct gw_part *part, uint32_t layer, uint64_t start,
                                            const struct gw_rows *rows, bool bulk);

/* rpc thread. */
PP_MUST_USE enum pp_status gw_outbox_open(struct gw_node *node);
void gw_outbox_pump(struct gw_node *node);
uint64_t gw_outbox_tick(struct gw_node *node, uint64_t now_us);
/* Takes out all that waits for a part of this node. */
void gw_outbox_drop(const struct gw_part *part);

#endif
