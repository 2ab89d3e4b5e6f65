/*
 * The outbox's ring of bytes: chunks taken in order by the engine thread, given back in any order.
 * On the walk under remote/outbox. It refuses to know what a chunk is for.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/crc32c.h"
#include "gpu-worker/remote/outbox.h"

#define CHUNK_ALIGN 64u

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
}

enum pp_status gw_outbox_memory_new(uint64_t capacity, struct gw_outbox_memory **memory_out)
{
    capacity = align_up(capacity);
    struct gw_outbox_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        return PP_MEMORY;
    }
    void *base = NULL;
    if (posix_memalign(&base, CHUNK_ALIGN, capacity) != 0) {
        free(memory);
        return PP_MEMORY;
    }
    memory->base = base;
    memory->capacity = capacity;
    atomic_store(&memory->refs, 1);
    *memory_out = memory;
    return PP_OK;
}

void gw_outbox_memory_release(struct gw_outbox_memory *memory)
{
    if (memory != NULL && atomic_fetch_sub_explicit(&memory->refs, 1, memory_order_acq_rel) == 1) {
        free(memory->base);
        free(memory);
    }
}

void gw_chunk_release(struct gw_chunk *chunk)
{
    atomic_fetch_sub_explicit(&chunk->refs, 1, memory_order_release);
}

static void reclaim(struct gw_outbox_memory *memory)
{
    while (memory->tail < memory->head) {
        struct gw_chunk *oldest = (void *)(memory->base + memory->tail % memory->capacity);
        if (atomic_load_explicit(&oldest->refs, memory_order_acquire) != 0) {
            return;
        }
        memory->tail += oldest->ring_bytes;
    }
}

uint64_t gw_outbox_used(struct gw_outbox_memory *memory)
{
    reclaim(memory);
    return memory->head - memory->tail;
}

/* Room for a chunk struct is what the rest of the ring must have to be skipped as a chunk of its
 * own; sizes are multiples of the alignment, so that a shorter rest is added to the skipped one. */
struct gw_chunk *gw_outbox_take(struct gw_outbox_memory *memory, uint64_t payload_bytes)
{
    uint64_t struct_bytes = align_up(sizeof(struct gw_chunk));
    uint64_t bytes = struct_bytes + align_up(payload_bytes);
    reclaim(memory);
    uint64_t at = memory->head % memory->capacity;
    uint64_t rest = memory->capacity - at;
    uint64_t skipped = rest < bytes ? rest : 0;
    if (bytes > memory->capacity ||
        memory->head - memory->tail + skipped + bytes > memory->capacity) {
        return NULL;
    }
    if (skipped > 0) {
        struct gw_chunk *filler = (void *)(memory->base + at);
        atomic_store(&filler->refs, 0);
        filler->ring_bytes = skipped;
        memory->head += skipped;
        at = 0;
    }
    struct gw_chunk *chunk = (void *)(memory->base + at);
    memset(chunk, 0, sizeof(*chunk));
    chunk->memory = memory;
    /* A rest that could not even hold a filler goes with this chunk. */
    uint64_t behind = memory->capacity - at - bytes;
    chunk->ring_bytes = bytes + (behind < struct_bytes ? behind : 0);
    if (memory->head - memory->tail + chunk->ring_bytes > memory->capacity) {
        return NULL;
    }
    chunk->payload = (uint8_t *)chunk + struct_bytes;
    chunk->payload_bytes = payload_bytes;
    atomic_store(&chunk->refs, 1);
    memory->head += chunk->ring_bytes;
    return chunk;
}

/* The part's heads out of `count` times [kv head] of head_bytes each. */
static uint8_t *pack_heads(const struct gw_rows *rows, const void *values, uint64_t head_bytes,
                           uint32_t count, uint8_t *to)
{
    uint64_t token_bytes = rows->token_bytes / rows->head_bytes * head_bytes;
    uint64_t bytes = head_bytes * rows->kv_head_count;
    const uint8_t *from = (const uint8_t *)values + head_bytes * rows->kv_head_begin;
    if (bytes == token_bytes) {
        memcpy(to, from, bytes * count);
        return to + bytes * count;
    }
    for (uint32_t i = 0; i < count; ++i) {
        memcpy(to, from, bytes);
        to += bytes;
        from += token_bytes;
    }
    return to;
}

uint64_t gw_rows_bytes(const struct gw_rows *rows)
{
    uint64_t each = 2 * rows->head_bytes + rows->code_bytes;
    uint64_t once = (uint64_t)rows->centre_bytes + rows->balance_bytes;
    return (each * rows->count + once) * rows->kv_head_count;
}

uint32_t gw_rows_pack(const struct gw_rows *rows, uint8_t *payload)
{
    uint8_t *end = pack_heads(rows, rows->k, rows->head_bytes, rows->count, payload);
    end = pack_heads(rows, rows->v, rows->head_bytes, rows->count, end);
    if (rows->codes != NULL) {
        end = pack_heads(rows, rows->codes, rows->code_bytes, rows->count, end);
        end = pack_heads(rows, rows->centre, rows->centre_bytes, 1, end);
    }
    if (rows->balance != NULL) {
        end = pack_heads(rows, rows->balance, rows->balance_bytes, 1, end);
    }
    return pp_crc32c(0, payload, (size_t)(end - payload));
}
