/*
 * The two kinds of index behind one set of calls: which one, the estimator says.
 */
#include "attn-node/index/index.h"

#include <stddef.h>

#include "attn-node/index/lsh.h"
#include "attn-node/index/sketch.h"

uint64_t an_index_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    switch ((int)params->estimator.kind) {
    case PP_LSH:
        return an_lsh_bytes(params, dim, tokens);
    case PP_SKETCH:
        return an_sketch_bytes(params, dim, tokens);
    default:
        return 0;
    }
}

uint64_t an_index_scratch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens,
                                uint32_t threads)
{
    (void)dim;
    switch ((int)params->estimator.kind) {
    case PP_LSH:
        return an_lsh_build_bytes(params, tokens, threads);
    case PP_SKETCH:
        return an_sketch_scratch_bytes(tokens);
    default:
        return 0;
    }
}

enum pp_status an_index_build(const struct an_index_params *params, const struct an_rows *rows,
                              uint32_t tokens, const float *centre, const uint16_t *codes,
                              uint64_t codes_stride, uint32_t threads, void *memory, void *scratch,
                              struct an_index **index_out)
{
    if (params->estimator.kind == PP_LSH) {
        PP_TRY(an_lsh_build(params, rows, tokens, centre, codes, codes_stride, threads, memory,
                            scratch));
    } else if (params->estimator.kind == PP_SKETCH) {
        an_sketch_build(params, rows, tokens, centre, threads, memory, scratch);
    } else {
        return PP_UNIMPLEMENTED;
    }
    *index_out = memory;
    return PP_OK;
}

uint32_t an_index_heads_at_once(const struct an_index_params *params, uint32_t group)
{
    return params->estimator.kind == PP_SKETCH ? an_sketch_heads_at_once(group) : 1;
}

uint64_t an_index_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens)
{
    return params->estimator.kind == PP_SKETCH ? an_sketch_query_scratch_bytes(tokens)
                                               : an_lsh_query_scratch_bytes(params, tokens);
}

uint32_t an_index_view_rows(uint32_t begin, uint32_t end)
{
    return an_sketch_view_rows(begin, end);
}

uint64_t an_index_rows_at_once(const struct an_index_params *params, uint32_t heads,
                               uint32_t tokens)
{
    return params->estimator.kind == PP_SKETCH ? an_sketch_rows_at_once(heads, tokens) : 0;
}

void an_index_attend_views(const struct an_index_params *params, struct an_index_view *views,
                           const struct an_index_query *query, void *scratch)
{
    if (params->estimator.kind == PP_SKETCH) {
        an_sketch_attend(params, views, query, scratch);
        return;
    }
    struct an_index_query own = *query;
    for (const struct an_index_view *view = views; view != NULL; view = view->next) {
        own.rows_read = view->rows_read;
        an_lsh_attend((const struct an_lsh *)view->index, params, &view->rows, view->begin,
                      view->end, &own, scratch, view->accumulators);
    }
}

void an_index_attend(const struct an_index *index, const struct an_index_params *params,
                     const struct an_rows *rows, uint32_t begin, uint32_t end,
                     const struct an_index_query *query, void *scratch,
                     struct an_accumulator *accumulators)
{
    struct an_index_view view = {.index = index,
                                 .rows = *rows,
                                 .begin = begin,
                                 .end = end,
                                 .first = query->draw.first,
                                 .rows_read = query->rows_read,
                                 .accumulators = accumulators};
    an_index_attend_views(params, &view, query, scratch);
}

bool an_index_pays(const struct an_index *index, const struct an_index_params *params,
                   const struct an_rows *rows, uint32_t begin, uint32_t end,
                   const struct an_index_lanes *lanes, struct an_index_costs *costs_out)
{
    if (params->estimator.kind == PP_SKETCH) {
        return an_sketch_pays((const struct an_sketch *)index, rows, begin, end, lanes->group,
                              lanes->count, lanes->rows_share, lanes->sample_rows, costs_out);
    }
    return an_lsh_pays((const struct an_lsh *)index, params, rows, begin, end, lanes->count,
                       lanes->codes, costs_out);
}

uint32_t an_index_sample(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch, uint16_t *ids_out,
                         float *log_u_out)
{
    if (params->estimator.kind == PP_SKETCH) {
        return an_sketch_sample((const struct an_sketch *)index, params, begin, end, query, scratch,
                                ids_out, log_u_out);
    }
    return an_lsh_sample((const struct an_lsh *)index, params, rows, begin, end, query, scratch,
                         ids_out, log_u_out);
}
