/*
 * A scan cut into spans of blocks that stay in the second-level cache and tiles of up to four
 * heads, as text for sketch_scan_avx2.c and sketch_lanes_avx512.h, which define an_scan_tile.
 * Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_SKETCH_TILES_VECTOR_H
#define PIGPEN_ATTN_NODE_KERNELS_SKETCH_TILES_VECTOR_H

#include <stdint.h>

#include "attn-node/kernels/sketch_tables.h"
#include "common/base/inline.h"

#define AN_TILE_HEADS  4u
#define AN_SPAN_BLOCKS 64u

/* Blocks [block, block_end) for H heads, of 4-bit codes or not. */
PP_INLINE void an_scan_tile(const uint32_t H, const bool nibbles,
                            const struct an_sketch_shape *shape, const uint8_t *stream,
                            uint32_t begin, uint32_t end, uint32_t block, uint32_t block_end,
                            const struct an_sketch_query *queries, const uint8_t *tables,
                            struct an_sketch_scores *scores);

#define AN_DEFINE_TILE(NAME, H, NIBBLES)                                                           \
    static void NAME(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,   \
                     uint32_t end, uint32_t block, uint32_t block_end,                             \
                     const struct an_sketch_query *queries, const uint8_t *tables,                 \
                     struct an_sketch_scores *scores)                                              \
    {                                                                                              \
        an_scan_tile(H, NIBBLES, shape, stream, begin, end, block, block_end, queries, tables,     \
                     scores);                                                                      \
    }
AN_DEFINE_TILE(tile_1, 1, false)
AN_DEFINE_TILE(tile_2, 2, false)
AN_DEFINE_TILE(tile_3, 3, false)
AN_DEFINE_TILE(tile_4, 4, false)
AN_DEFINE_TILE(nibbles_1, 1, true)
AN_DEFINE_TILE(nibbles_2, 2, true)
AN_DEFINE_TILE(nibbles_3, 3, true)
AN_DEFINE_TILE(nibbles_4, 4, true)

typedef void (*an_tile_function)(const struct an_sketch_shape *, const uint8_t *, uint32_t,
                                 uint32_t, uint32_t, uint32_t, const struct an_sketch_query *,
                                 const uint8_t *, struct an_sketch_scores *);
static const an_tile_function an_tile_functions[2][AN_TILE_HEADS] = {
    {tile_1, tile_2, tile_3, tile_4},
    {nibbles_1, nibbles_2, nibbles_3, nibbles_4},
};

/* scan of sketch.h; tables: of head 0, as the kernel looks them up, each further head's table_bytes
 * behind. */
static void an_scan_heads(const struct an_sketch_shape *shape, const uint8_t *stream,
                          uint32_t begin, uint32_t end, const struct an_sketch_query *queries,
                          const uint8_t *tables, uint64_t table_bytes, uint32_t heads,
                          struct an_sketch_scores *scores)
{
    uint32_t block_end = (end + 63) / 64;
    for (uint32_t h = 0; h < heads; ++h) {
        scores[h].sum = 0.0f;
    }
    for (uint32_t block = begin / 64; block < block_end; block += AN_SPAN_BLOCKS) {
        uint32_t last = block_end - block < AN_SPAN_BLOCKS ? block_end : block + AN_SPAN_BLOCKS;
        for (uint32_t h = 0; h < heads; h += AN_TILE_HEADS) {
            uint32_t tile = heads - h < AN_TILE_HEADS ? heads - h : AN_TILE_HEADS;
            an_tile_functions[shape->bits == 4][tile - 1](shape, stream, begin, end, block, last,
                                                          queries + h, tables + h * table_bytes,
                                                          scores + h);
        }
    }
}

/* scan of sketch.h for kernels that look up four bits: a few heads' tables at a time. */
static inline void an_scan_by_nibbles(const struct an_sketch_shape *shape, const uint8_t *stream,
                                      uint32_t begin, uint32_t end,
                                      const struct an_sketch_query *queries, uint32_t heads,
                                      struct an_sketch_scores *scores)
{
    _Alignas(64) uint8_t tables[AN_SKETCH_NIBBLE_HEADS * AN_SKETCH_NIBBLE_BYTES_MAX];
    for (uint32_t h = 0; h < heads; h += AN_SKETCH_NIBBLE_HEADS) {
        uint32_t some = heads - h < AN_SKETCH_NIBBLE_HEADS ? heads - h : AN_SKETCH_NIBBLE_HEADS;
        for (uint32_t i = 0; i < some; ++i) {
            an_sketch_nibbles_make(shape, &queries[h + i], tables + i * AN_SKETCH_NIBBLE_BYTES_MAX);
        }
        an_scan_heads(shape, stream, begin, end, queries + h, tables, AN_SKETCH_NIBBLE_BYTES_MAX,
                      some, scores + h);
    }
}

#endif
