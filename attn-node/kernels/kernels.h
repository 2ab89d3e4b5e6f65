/*
 * The inner loops of a node over plain row views: exact attend, gather + attend, index build. One
 * table of functions, chosen once at start from cpuid (PIGPEN_ISA=scalar|avx2|avx512|avx512bf16
 * forces a lower one); one file per operation and instruction set. No kernel allocates, locks or
 * reads beyond the rows it is given. Threads: pure over their arguments; scratch is the caller's.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_KERNELS_H
#define PIGPEN_ATTN_NODE_KERNELS_KERNELS_H

#include <stdint.h>

#include "common/attn/math.h"
#include "common/attn/shape.h"

/* Rows of one kv head: row i at base + i * row_bytes, K first, V at v_offset bytes;
 * vectors as in shape.h. */
struct an_rows {
    const uint8_t *base;
    uint64_t row_bytes;
    uint32_t v_offset;
    uint32_t dim;
    enum pp_dtype dtype;
};

/* A running softmax of one q row and head: m = max of (score - log u), sum = sum e^(.-m),
 * o = sum e^(.-m) v, not normalised. Error sums as in ARCHITECTURE.md: a_i = e^(s_i-m)/u_i,
 * b_i = (1-u_i) a_i^2, b0 = sum b, b1 = sum b v, b2 = sum b |v|^2. Exact rows have u = 1. */
struct an_accumulator {
    float *o;  /* [dim] f32 */
    float *b1; /* [dim] f32; NULL: errors are not wanted */
    float m;   /* -inf at first */
    float sum;
    float b0, b2;
    uint32_t keys_read;
};

/* What the work of an attend takes a thread, in ns, memory cold: measured once an instruction set
 * and written down (costs.c), never timed by a running node, because what is planned by them must
 * come out the same every time (law 8). Only their ratios decide. */
struct an_costs {
    float row_byte;    /* exact: a byte of a row, once for all lanes */
    float row_value;   /* exact: one dimension of one row for one lane, K and V */
    float query;       /* lsh: a lane, whatever it finds */
    float table;       /* lsh: finding the query's bucket in one table */
    float hit;         /* lsh: one id of a bucket */
    float word;        /* lsh: clearing and scanning 64 rows of the bitmaps */
    float chosen;      /* lsh: a row that a lane attends, its log u */
    float chosen_byte; /* lsh: a byte of it, K and V */
    float missed_byte; /* lsh: a byte of a row that some lane attends, fetched once */
};

struct an_kernels {
    const char *isa;
    const struct an_costs *costs;
    /* Every row of [begin, end) for `heads` queries (all heads of a group and all q rows alike):
     * q [heads][dim] f32, already multiplied by the scale. Reads each row once. */
    void (*attend_exact)(const struct an_rows *rows, uint32_t begin, uint32_t end, const float *q,
                         uint32_t heads, struct an_accumulator *accumulators);
    /* scores_out[i] = q . k of row ids[i], i < count; q [dim] f32, already multiplied by the scale.
     * Asks for whole rows ahead, V too, since attend_gather follows; ids[count .. count + ahead)
     * are scored by later calls, so that their rows may be asked for now. */
    void (*score_gather)(const struct an_rows *rows, const uint16_t *ids, uint32_t count,
                         uint32_t ahead, const float *q, float *scores_out);
    /* Attends the rows ids[0..count) whose scores are known, each with its log u (NULL: u = 1). */
    void (*attend_gather)(const struct an_rows *rows, const uint16_t *ids, const float *scores,
                          const float *log_u, uint32_t count, struct an_accumulator *accumulator);

    /* Of an index build; these three give the same bits on every instruction set. */

    /* sums[d] += K of rows [begin, end) in that order; sums [dim] f64. */
    void (*sum_keys)(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums);
    /* |k - centre|^2 of rows [begin, end): differences in f32, squares in f64, summed over
     * dimensions of the same i mod 16 in order, then over those sums 8, 4, 2 and 1 apart. */
    void (*square_distances)(const struct an_rows *rows, uint32_t begin, uint32_t end,
                             const float *centre, double *squares_out);
    /* Counting sort of one lsh table: ids_out [count] in order of code, and of id within a code;
     * offsets_out [2^k] is where a code's ids start. codes [count] below 2^k, count at most 65,535.
     * scratch: an_sort_scratch_bytes, 64-byte aligned. */
    void (*sort_codes)(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                       uint16_t *offsets_out, uint16_t *ids_out);
};

/* Predicted ns of one thread for attend_exact over `count` such rows. */
double an_exact_cost(const struct an_costs *costs, const struct an_rows *rows, uint32_t count,
                     uint32_t lanes);

/* Room for the ids in a sort's scratch; its cursors lie behind. */
static inline uint32_t an_sort_buffer_ids(uint32_t count)
{
    return (count + 31u) & ~31u;
}

static inline uint64_t an_sort_scratch_bytes(uint32_t count, uint32_t k)
{
    return 2ull * an_sort_buffer_ids(count) + (((2ull << k) + 63) & ~63ull);
}

/* The table in use. Chosen at the first call (call it on main before threads start). */
const struct an_kernels *an_kernels_get(void);

/* A table by name for tests and benches; NULL when this machine or build lacks it. */
const struct an_kernels *an_kernels_named(const char *isa);

void an_accumulator_clear(struct an_accumulator *accumulator, uint32_t dim);

/* Merges `from` into `into` (same dim); rescales the error sums too. */
void an_accumulator_merge(struct an_accumulator *into, const struct an_accumulator *from,
                          uint32_t dim);

#endif
