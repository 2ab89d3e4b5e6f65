/*
 * The merging of one piece: a linked list of symbols and a heap of candidate merges. An entry of
 * the heap is stale when its node's pair has changed since, which shows in the node's rank; so
 * entries are never removed but by popping. Part of vocab.h. Knows nothing of text.
 */
#include "gpu-worker/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

void gw_bpe_scratch_deinit(struct gw_bpe_scratch *scratch)
{
    free(scratch->nodes);
    free(scratch->heap);
    memset(scratch, 0, sizeof(*scratch));
}

static enum pp_status reserve(struct gw_bpe_scratch *scratch, size_t count)
{
    if (count <= scratch->capacity) {
        return PP_OK;
    }
    size_t capacity = scratch->capacity < 64 ? 64 : scratch->capacity * 2;
    capacity = capacity < count ? count : capacity;
    free(scratch->nodes);
    free(scratch->heap);
    /* n - 1 pairs at first, and two more for each of at most n - 1 merges that pops one. */
    scratch->capacity = 0;
    scratch->nodes = malloc(capacity * sizeof(*scratch->nodes));
    scratch->heap = malloc((capacity * 2 + 1) * sizeof(*scratch->heap));
    if (scratch->nodes == NULL || scratch->heap == NULL) {
        gw_bpe_scratch_deinit(scratch);
        return PP_MEMORY;
    }
    scratch->capacity = capacity;
    return PP_OK;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    const uint64_t value = heap[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= value) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static void heap_push(struct gw_bpe_scratch *scratch, uint64_t value)
{
    PP_ASSERT(scratch->heap_count < scratch->capacity * 2 + 1);
    size_t at = scratch->heap_count++;
    while (at > 0 && scratch->heap[(at - 1) / 2] > value) {
        scratch->heap[at] = scratch->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    scratch->heap[at] = value;
}

static uint64_t heap_pop(struct gw_bpe_scratch *scratch)
{
    const uint64_t top = scratch->heap[0];
    scratch->heap_count--;
    if (scratch->heap_count > 0) {
        scratch->heap[0] = scratch->heap[scratch->heap_count];
        sift_down(scratch->heap, scratch->heap_count, 0);
    }
    return top;
}

static uint32_t pair_rank(const struct gw_vocab *vocab, uint32_t left, uint32_t right)
{
    return gw_vocab_pair(vocab, (uint64_t)left << 32 | right)->rank;
}

/* The pair that begins at `node` has changed: looks up its rank anew. */
static void refresh(const struct gw_vocab *vocab, struct gw_bpe_scratch *scratch, uint32_t node)
{
    struct gw_bpe_node *left = &scratch->nodes[node];
    left->rank = left->next == GW_TOKEN_NONE
                     ? GW_TOKEN_NONE
                     : pair_rank(vocab, left->id, scratch->nodes[left->next].id);
    if (left->rank != GW_TOKEN_NONE) {
        heap_push(scratch, (uint64_t)left->rank << 32 | node);
    }
}

/* A node for each byte that has a token; the first pairs are made a heap at once. */
static uint32_t place_bytes(const struct gw_vocab *vocab, struct gw_bpe_scratch *scratch,
                            const char *bytes, size_t count)
{
    struct gw_bpe_node *nodes = scratch->nodes;
    uint32_t placed = 0;
    for (size_t index = 0; index < count; index++) {
        const uint32_t id = vocab->byte_ids[(uint8_t)bytes[index]];
        if (id != GW_TOKEN_NONE) {
            nodes[placed] = (struct gw_bpe_node){id, placed == 0 ? GW_TOKEN_NONE : placed - 1,
                                                 placed + 1, GW_TOKEN_NONE};
            placed++;
        }
    }
    scratch->heap_count = 0;
    for (uint32_t node = 0; node + 1 < placed; node++) {
        nodes[node].rank = pair_rank(vocab, nodes[node].id, nodes[node + 1].id);
        if (nodes[node].rank != GW_TOKEN_NONE) {
            scratch->heap[scratch->heap_count++] = (uint64_t)nodes[node].rank << 32 | node;
        }
    }
    if (placed > 0) {
        nodes[placed - 1].next = GW_TOKEN_NONE;
    }
    for (size_t at = scratch->heap_count / 2; at > 0; at--) {
        sift_down(scratch->heap, scratch->heap_count, at - 1);
    }
    return placed;
}

/* Joins a node with its next one. */
static void join(const struct gw_vocab *vocab, struct gw_bpe_scratch *scratch, uint32_t node)
{
    struct gw_bpe_node *nodes = scratch->nodes;
    const uint32_t gone = nodes[node].next;
    nodes[node].id = vocab->results[nodes[node].rank];
    nodes[node].next = nodes[gone].next;
    nodes[gone].rank = GW_TOKEN_NONE;
    if (nodes[node].next != GW_TOKEN_NONE) {
        nodes[nodes[node].next].previous = node;
    }
    refresh(vocab, scratch, node);
    if (nodes[node].previous != GW_TOKEN_NONE) {
        refresh(vocab, scratch, nodes[node].previous);
    }
}

enum pp_status gw_vocab_merge(const struct gw_vocab *vocab, struct gw_bpe_scratch *scratch,
                              const char *bytes, size_t count, uint32_t *ids_out,
                              size_t *id_count_out)
{
    PP_ASSERT(count < (size_t)1 << 31);
    PP_TRY(reserve(scratch, count));
    const uint32_t placed = place_bytes(vocab, scratch, bytes, count);
    while (scratch->heap_count > 0) {
        const uint64_t best = heap_pop(scratch);
        const uint32_t node = (uint32_t)best;
        if (scratch->nodes[node].rank == (uint32_t)(best >> 32)) {
            join(vocab, scratch, node);
        }
    }
    size_t made = 0;
    for (uint32_t node = placed > 0 ? 0 : GW_TOKEN_NONE; node != GW_TOKEN_NONE;
         node = scratch->nodes[node].next) {
        ids_out[made++] = scratch->nodes[node].id;
    }
    *id_count_out = made;
    return PP_OK;
}
