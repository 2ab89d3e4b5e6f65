/*
 * The inner loops of the sketch estimator: codes of keys, the scan of codes for all heads of a
 * group, and the draw of rows by what the scan said. Everything behind the codes is integers, so
 * that every instruction set gives the same bits; the codes are a proposal only and may differ.
 *
 * Key: x = (k - c) / a, zero-padded to P = 64, 128 or 256; y = P^(-3/2) H(s2 * H(s1 * H(s0 * x)))
 * with H the Walsh-Hadamard transform and s_i vectors of +-1 as in common/attn/hash.h. sigma =
 * rms(y). Code = clamp(floor(y / (step sigma))) in b bits, level = code + 1/2; step .996 (2 bits),
 * .335 (4 bits); 1 bit: the sign. Factor f = |y|^2 / sum(level y).
 * Query: r = P^(-3/2) H(...)(q a). Residual of the score: scale beta f sum(level r).
 *
 * Stream: blocks of 64 keys, each P b / 8 planes of 64 bytes, then 64 factors u16 in Q15 of the
 * segment's largest. Plane j holds byte j of every key: dims 8/b j .. 8/b j + 8/b - 1, the lowest
 * in the lowest bits. Byte lane 2i of a plane is key i, lane 2i + 1 is key 32 + i (i < 32).
 *
 * Scan, 1 and 2 bits: three planes are four fields of six bits: the low six of each, and the top
 * two of the three together. A field is looked up in a table of 64 entries of at most 63, four of
 * which fill a byte lane. 4 bits: a nibble is a field, entries of at most 127. S = sum of entries,
 * D = S - offset, a = (D << shift) gain / 2^15, t = a factor / 2^15, both rounded half up: the
 * score in 1/128 octave, int16, relative to the score of the centre. Where that could leave the
 * range, t is doubled `doublings` times with saturation and clamped to +-AN_SKETCH_SCORE_MAX.
 * 2^(t/128) is read off the bits of a bf16: 2^n (1 + frac / 128), at most 6 % above.
 * Threads: pure over their arguments.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_SKETCH_H
#define PIGPEN_ATTN_NODE_KERNELS_SKETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "common/base/limits.h"

#define AN_SKETCH_BLOCK     64u
#define AN_SKETCH_SCORE_MAX 14000    /* 65,536 times 2^(14000/128) is finite */
#define AN_SKETCH_NONE      (-32768) /* the score of what must not be drawn */
/* A head's tables: 4-bit codes of 256 dims have 256 of 16 entries, 2-bit ones 88 of 64. */
#define AN_SKETCH_TABLE_BYTES_MAX 5632u

struct an_sketch_shape {
    uint32_t bits;        /* 1, 2 or 4 */
    uint32_t dim, padded; /* P */
    uint32_t planes;      /* P bits / 8 */
    uint32_t block_bytes;
};

/* bits is 1, 2 or 4; 1 <= dim <= 256. */
struct an_sketch_shape an_sketch_shape_of(uint32_t dim, uint32_t bits);

/* The signs of the rotation: +-1 as 0 or 0x80000000, [3][PP_HEAD_DIM_MAX]. */
struct an_sketch_signs {
    uint32_t flips[3][PP_HEAD_DIM_MAX];
};
void an_sketch_signs_init(struct an_sketch_signs *signs, uint64_t seed);

/* What turns rows into codes. */
struct an_sketch_encoder {
    struct an_sketch_shape shape;
    const struct an_sketch_signs *signs;
    const float *centre;          /* [dim] */
    const float *balance_inverse; /* [dim] 1/a, or NULL: ones */
};

/* A query of the scan: one head. By an_sketch_tables_make. */
struct an_sketch_query {
    uint8_t tables[AN_SKETCH_TABLE_BYTES_MAX] __attribute__((aligned(64)));
    float step;      /* what one unit of S is worth of sum(level r) */
    float level_max; /* of |sum(level r)| by Cauchy and Schwarz */
    int32_t offset;
    uint32_t sum_max;
};

/* What a query's sums are multiplied by over one segment. By an_sketch_scale_of. */
struct an_sketch_scale {
    int16_t gain;
    uint8_t shift;
    uint8_t doublings;
    bool clamped;
};

/* Fills it from r [padded], finite. */
void an_sketch_tables_make(const struct an_sketch_shape *shape, const float *r,
                           struct an_sketch_query *query);
/* unit = scale beta f_max, what sum(level r) of the largest factor is multiplied by to be a score
 * in nats. */
struct an_sketch_scale an_sketch_scale_of(const struct an_sketch_query *query, float unit);

/* One head's scores by its scale, which is there before: int16 [blocks * 64]; sum of 2^(t/128) over
 * the valid rows. */
struct an_sketch_scores {
    struct an_sketch_scale scale;
    int16_t *scores;
    float sum;
};

struct an_sketch_drawn {
    uint16_t id;
    uint16_t threshold; /* u = threshold / 65536; 0: u = 1 */
};

/* What a thread takes, ns; for choosing between exact and sketch (costs.c). */
struct an_sketch_costs {
    float query;       /* a head: rotation, tables, the search for C */
    float plane;       /* scan: a plane of one key, once for a call's heads */
    float plane_head;  /* scan: a plane of one key for one head */
    float nibbles;     /* scan: a plane of 4-bit codes is as dear as so many others */
    float select;      /* a key: log g, sum u, the draw */
    float select_head; /* a key and head of it */
    float row_byte;    /* a byte of a drawn row, once for a call's heads */
    float row_value;   /* one dimension of a drawn row for one head, K and V */
};

struct an_sketch_kernels {
    const char *isa;
    const struct an_sketch_costs *costs;
    /* Rotates 16 vectors in lanes, in place: x [padded][16] f32, 64-byte aligned. */
    void (*rotate)(const struct an_sketch_signs *signs, uint32_t padded, float *x);
    /* Codes of rows [begin, begin + count), count <= 64, into a block (its factors are not
     * written); factors_out [64]: f, or 0 beyond count, NaN where there is none. */
    void (*encode)(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                   uint32_t begin, uint32_t count, uint8_t *block, float *factors_out);
    /* Scores of the rows [begin, end) of a stream whose block 0 holds row 0, for `heads` queries.
     * Writes whole blocks from row begin / 64 * 64 on at scores[0]; rows outside [begin, end) get
     * AN_SKETCH_NONE. Each block is read once for up to 4 heads. */
    void (*scan)(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,
                 uint32_t end, const struct an_sketch_query *queries, uint32_t heads,
                 struct an_sketch_scores *scores);
    /* into[i] = max over heads of saturated(scores[h][i] + shifts[h]), at least `floor`;
     * AN_SKETCH_NONE stays. count is a multiple of 64. into may be scores[0] or begin in front of
     * it by a multiple of 64, in the same memory. */
    void (*combine)(const int16_t *const *scores, const int16_t *shifts, uint32_t heads,
                    int16_t floor, uint32_t count, int16_t *into);
    /* sums_out[j] += sum over i of min(1, 2^((logs[i] + shifts[j]) / 128)), j < 3. */
    void (*sum_u)(const int16_t *logs, uint32_t count, const int16_t *shifts, float *sums_out);
    /* Draws: row i of `count` (a multiple of 64) has u = max(1, floor(65536 2^((logs[i] + shift) /
     * 128))) / 65536, or 1; it is drawn when an_sketch_draw(key, held + i) < 65536 u. ids are
     * id + i. Writes up to `count` + 32 entries, returns their number. */
    uint32_t (*draw)(const int16_t *logs, uint32_t count, int16_t shift, uint64_t key,
                     uint32_t held, uint32_t id, uint16_t *ids_out, uint16_t *thresholds_out);
    /* Attends the rows ids[0..count) for `heads` queries q [heads][dim], already multiplied by the
     * scale: each row is read once, all heads use it with its threshold's u. */
    void (*attend)(const struct an_rows *rows, const uint16_t *ids, const uint16_t *thresholds,
                   uint32_t count, const float *q, uint32_t heads,
                   struct an_accumulator *accumulators);
};

/* 16 random bits of held index `held` under `key`: two multiplies (after Wellons, "Prospecting for
 * hash functions", 2018), the key's halves before each. */
static inline uint32_t an_sketch_draw(uint64_t key, uint32_t held)
{
    uint32_t x = held + (uint32_t)key;
    x ^= x >> 16;
    x = x * 0x7feb352du + (uint32_t)(key >> 32);
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x >> 16;
}

/* The table in use, and one by name (NULL when this machine or build lacks it). */
const struct an_sketch_kernels *an_sketch_kernels_get(void);
const struct an_sketch_kernels *an_sketch_kernels_named(const char *isa);

#endif
