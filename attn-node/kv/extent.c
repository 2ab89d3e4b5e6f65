/*
 * Extents: where K/V rows live. See extent.h. Sizes are 64-bit throughout: 64 kv heads of dim 256
 * reserve more than 4 GiB.
 */
#include "attn-node/kv/extent.h"

#include <stdlib.h>

#include "common/base/assert.h"

#define GRANULE_BYTES_MIN (16ull << 10)

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* The committed size for `used` bytes of a kv head: a granule is a power of two near used / 8, so
 * that at most an eighth is unused once the part is larger than a few granules; near `used` in
 * bulk, as the rest of it will be used soon. */
static uint64_t committed_target(uint64_t used_bytes, uint64_t head_bytes, bool bulk)
{
    uint64_t granule = GRANULE_BYTES_MIN;
    uint64_t share = bulk ? 2 : 16;
    while (granule < PP_HUGE_PAGE_BYTES && granule * share <= used_bytes) {
        granule *= 2;
    }
    uint64_t target = round_up(used_bytes, granule);
    return target < head_bytes ? target : head_bytes;
}

/* Address space of a kv head: each begins on a huge page when it is larger than one. */
static uint64_t head_bytes_of(const struct an_params *params)
{
    return round_up(AN_EXTENT_ROWS * params->row_bytes, PP_HUGE_PAGE_BYTES);
}

uint64_t an_extent_bytes(const struct an_params *params, uint32_t rows)
{
    uint64_t head = committed_target(rows * params->row_bytes, head_bytes_of(params), true);
    return sizeof(struct an_extent) + head * params->kv_heads;
}

enum pp_status an_extent_new(const struct an_params *params, bool bulk,
                             struct an_extent **extent_out)
{
    struct an_store *store = params->store;
    struct an_extent *spare = bulk ? an_spares_find(store, params) : NULL;
    if (spare != NULL) {
        *extent_out = spare;
        return PP_OK;
    }
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_KV, sizeof(struct an_extent)));
    struct an_extent *extent = calloc(1, sizeof(*extent));
    if (extent == NULL) {
        goto err_reserve;
    }
    extent->store = store;
    extent->row_bytes = params->row_bytes;
    extent->kv_heads = params->kv_heads;
    extent->dim = params->dim;
    extent->dtype = params->dtype;
    extent->references = 1;
    extent->head_bytes = head_bytes_of(params);
    void *base;
    if (pp_pages_reserve(extent->head_bytes * extent->kv_heads, &base) != PP_OK) {
        goto err_extent;
    }
    extent->base = base;
    for (uint32_t head = 0; head < extent->kv_heads && store->numa.node_count > 1; head++) {
        (void)pp_numa_bind(extent->base + head * extent->head_bytes, extent->head_bytes,
                           store->numa.nodes[pp_numa_place(&store->numa, head)]);
    }
    *extent_out = extent;
    return PP_OK;
err_extent:
    free(extent);
err_reserve:
    pp_limit_release(store->limit, PP_MEMORY_KV, sizeof(struct an_extent));
    return PP_MEMORY;
}

void an_extent_acquire(struct an_extent *extent)
{
    extent->references++;
}

void an_extent_release(struct an_extent *extent)
{
    if (extent == NULL) {
        return;
    }
    PP_ASSERT(extent->references > 0);
    extent->references--;
    if (extent->references > 0 || an_spares_keep(extent)) {
        return;
    }
    an_spares_cut(extent, extent->committed_bytes);
    struct pp_limit *limit = extent->store->limit;
    pp_pages_free(extent->base, extent->head_bytes * extent->kv_heads);
    pp_limit_release(limit, PP_MEMORY_KV,
                     extent->committed_bytes * extent->kv_heads + sizeof(*extent));
    free(extent);
}

static void extent_decommit(struct an_extent *extent, uint32_t heads, uint64_t begin, uint64_t end)
{
    for (uint32_t head = 0; head < heads; head++) {
        uint64_t offset = head * extent->head_bytes;
        pp_pages_decommit(extent->base, offset + begin, offset + end);
    }
}

/* Charges and opens new pages from the committed ones up to `end`, or, near the limit, what
 * used_bytes needs of them. */
static enum pp_status commit_new(struct an_extent *extent, uint64_t used_bytes, uint64_t end)
{
    struct an_store *store = extent->store;
    uint64_t begin = extent->committed_bytes;
    uint64_t charge = (end - begin) * extent->kv_heads;
    if (pp_limit_reserve(store->limit, PP_MEMORY_KV, charge) != PP_OK) {
        /* Near the limit take only what is needed. */
        end = round_up(used_bytes, PP_PAGE_BYTES);
        charge = (end - begin) * extent->kv_heads;
        PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_KV, charge));
    }
    /* A huge page that was filled piecemeal is committed once more as a whole: pages.h asks for
     * huge pages only on blocks that one commit fills. */
    uint64_t block_begin = begin / PP_HUGE_PAGE_BYTES * PP_HUGE_PAGE_BYTES;
    uint64_t from = end - block_begin >= PP_HUGE_PAGE_BYTES ? block_begin : begin;
    for (uint32_t head = 0; head < extent->kv_heads; head++) {
        uint64_t offset = head * extent->head_bytes;
        enum pp_status status =
            pp_pages_commit(extent->base, offset + from, offset + end, store->hugepages);
        if (status != PP_OK) {
            extent_decommit(extent, head, begin, end);
            pp_limit_release(store->limit, PP_MEMORY_KV, charge);
            return status;
        }
    }
    extent->committed_bytes = extent->resident_bytes = end;
    return PP_OK;
}

enum pp_status an_extent_commit(struct an_extent *extent, uint32_t rows, bool bulk)
{
    PP_ASSERT(rows <= AN_EXTENT_ROWS);
    uint64_t used_bytes = rows * extent->row_bytes;
    uint64_t before = extent->committed_bytes, resident = extent->resident_bytes;
    if (used_bytes <= before) {
        return PP_OK;
    }
    uint64_t end = committed_target(used_bytes, extent->head_bytes, bulk);
    if (resident > before) {
        an_spares_border(extent, end < resident ? end : resident);
    }
    if (used_bytes <= extent->committed_bytes) {
        return PP_OK;
    }
    enum pp_status status = commit_new(extent, used_bytes, end);
    if (status != PP_OK && resident > before) {
        an_spares_border(extent, before);
    }
    return status;
}

void an_extent_shrink(struct an_extent *extent, uint64_t bytes)
{
    if (bytes >= extent->resident_bytes) {
        return;
    }
    an_spares_cut(extent, bytes > extent->committed_bytes ? bytes : extent->committed_bytes);
    if (bytes >= extent->committed_bytes) {
        return;
    }
    extent_decommit(extent, extent->kv_heads, bytes, extent->committed_bytes);
    pp_limit_release(extent->store->limit, PP_MEMORY_KV,
                     (extent->committed_bytes - bytes) * extent->kv_heads);
    extent->committed_bytes = extent->resident_bytes = bytes;
}

void an_extent_settle(struct an_extent *extent)
{
    uint64_t target =
        committed_target(extent->filled * extent->row_bytes, extent->head_bytes, false);
    if (target >= extent->committed_bytes) {
        return;
    }
    if (extent->resident_bytes > extent->committed_bytes) {
        an_spares_border(extent, target); /* of memory that was spare before */
    } else {
        an_extent_shrink(extent, target);
    }
}

void an_extent_trim(struct an_extent *extent)
{
    an_extent_shrink(extent, round_up(extent->filled * extent->row_bytes, PP_PAGE_BYTES));
}
