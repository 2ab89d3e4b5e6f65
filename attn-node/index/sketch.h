/*
 * The memory of a `sketch` index, private to this folder: one block: header, centre [dim] f32,
 * balance [dim] f32, then the stream of codes and factors (attn-node/kernels/sketch.h), one linear
 * run: P b / 8 + 2 bytes a token, 34 at d=128 and 2 bits.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_SKETCH_H
#define PIGPEN_ATTN_NODE_INDEX_SKETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"
#include "attn-node/kernels/sketch.h"

/* Rows that codes do not describe (equal to the centre, or with a factor far above the others') are
 * read for certain. Beyond so many, further ones look like the centre: factor 0. */
#define AN_SKETCH_CERTAIN_MAX 64u

struct an_sketch {
    uint32_t tokens;
    struct an_sketch_shape shape;
    uint32_t certain_count;
    uint16_t certain[AN_SKETCH_CERTAIN_MAX]; /* ascending */
    float factor_max;                        /* what 2^15 of a stored factor stands for */
    const float *centre;
    const float *balance; /* NULL: ones */
    const uint8_t *stream;
};

/* What index.h says of them, for the kind sketch. */
uint64_t an_sketch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens);
uint64_t an_sketch_scratch_bytes(uint32_t tokens);
void an_sketch_build(const struct an_index_params *params, const struct an_rows *rows,
                     uint32_t tokens, const float *centre, uint32_t threads, void *memory,
                     void *scratch);
uint32_t an_sketch_heads_at_once(uint32_t group);
uint64_t an_sketch_query_scratch_bytes(uint32_t tokens);
uint32_t an_sketch_view_rows(uint32_t begin, uint32_t end);
uint64_t an_sketch_rows_at_once(uint32_t heads, uint32_t tokens);
void an_sketch_attend(const struct an_index_params *params, struct an_index_view *views,
                      const struct an_index_query *query, void *scratch);
bool an_sketch_pays(const struct an_sketch *sketch, const struct an_rows *rows, uint32_t begin,
                    uint32_t end, uint32_t group, uint32_t lanes, float rows_share,
                    uint64_t sample_rows, struct an_index_costs *costs_out);
uint32_t an_sketch_sample(const struct an_sketch *sketch, const struct an_index_params *params,
                          uint32_t begin, uint32_t end, const struct an_index_query *query,
                          void *scratch, uint16_t *ids_out, float *log_u_out);

/* For tuning, in two passes over the views, since the logs of all may be too many for a scratch:
 * the masses of a view's heads, then, with the sums of all views' masses and rows, log g of its
 * rows, in 1/128 octave: u = min(1, 2^((log g + shift) / 128)) for the shift that makes the budget;
 * AN_SKETCH_NONE where a row is read for certain. In scratch (an_sketch_query_scratch_bytes). */
void an_sketch_masses(const struct an_index_params *params, struct an_index_view *view,
                      const struct an_index_query *query, void *scratch);
void an_sketch_add_mass(struct an_index_mass *sum, const struct an_index_mass *mass);
const int16_t *an_sketch_logs(const struct an_index_params *params, struct an_index_view *view,
                              const struct an_index_query *query,
                              const struct an_index_mass *masses, uint64_t rows, void *scratch);

#endif
