/*
 * A sampled attend over the views of one kv head by sketches, all heads of a group at once. Proxy
 * scores z of every row; g = the larger of max over heads of softmax(z) and e/n, over the rows of
 * all views; u = min(1, C g), C such that sum u is the budget; independent draws; every drawn row
 * is read once, and all heads use it with its u. The estimate is unbiased whatever the proxy says,
 * because the u divided by is the u drawn with. On the walk: exec > index > kernels.
 *
 * Steps: all views are scanned, which gives scores relative to each view's centre and, with the
 * centre's own score, the log of what a view weighs for each head; their sum normalises, and the
 * heads' scores become log g, one int16 a row, in the memory of the scores that they were made of;
 * C is searched on all log g; then rows are drawn and attended. sketch_sample.h has them.
 */
#include "attn-node/index/sketch.h"

#include <math.h>

#include "attn-node/index/sketch_sample.h"

uint32_t an_sketch_heads_at_once(uint32_t group)
{
    return group < AN_INDEX_HEADS_MAX ? group : AN_INDEX_HEADS_MAX;
}

void an_sketch_attend(const struct an_index_params *params, struct an_index_view *views,
                      const struct an_index_query *query, void *scratch)
{
    struct an_sketch_sample *sample = an_sketch_begin(params, views, query, scratch);
    an_sketch_do_until(sample, AN_SKETCH_DONE, scratch);
}

/* Scans a view for a query of its own, without what follows. */
static struct an_sketch_sample *scan_view(const struct an_index_params *params,
                                          struct an_index_view *view,
                                          const struct an_index_query *query, void *scratch)
{
    struct an_sketch_sample *sample = an_sketch_begin(params, view, query, scratch);
    an_sketch_do_until(sample, AN_SKETCH_SCAN, scratch);
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        an_sketch_scan_run(sample, &sample->runs[i], scratch);
    }
    an_sketch_weigh(sample);
    return sample;
}

void an_sketch_masses(const struct an_index_params *params, struct an_index_view *view,
                      const struct an_index_query *query, void *scratch)
{
    (void)scan_view(params, view, query, scratch);
}

const int16_t *an_sketch_logs(const struct an_index_params *params, struct an_index_view *view,
                              const struct an_index_query *query,
                              const struct an_index_mass *masses, uint64_t rows, void *scratch)
{
    struct an_sketch_sample *sample = scan_view(params, view, query, scratch);
    sample->rows = rows;
    for (uint32_t h = 0; h < query->heads; ++h) {
        sample->masses[h] = masses[h];
    }
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        const struct an_sketch_run *run = &sample->runs[i];
        an_sketch_combine_rows(sample, run, 0, an_sketch_run_rows(run),
                               sample->scores + run->before);
    }
    return sample->scores + (view->begin - an_sketch_first_row(view->begin));
}

/* Puts an id, with its log u beside, among `count` that are in order. */
static void put_in_order(uint16_t id, float log_u, uint32_t count, uint16_t *ids, float *log_us)
{
    uint32_t at = count;
    for (; at > 0 && ids[at - 1] > id; --at) {
        ids[at] = ids[at - 1];
        log_us[at] = log_us[at - 1];
    }
    ids[at] = id;
    log_us[at] = log_u;
}

uint32_t an_sketch_sample(const struct an_sketch *sketch, const struct an_index_params *params,
                          uint32_t begin, uint32_t end, const struct an_index_query *query,
                          void *scratch, uint16_t *ids_out, float *log_u_out)
{
    struct an_index_view view = {.index = (const struct an_index *)sketch,
                                 .begin = begin,
                                 .end = end,
                                 .first = query->draw.first};
    struct an_sketch_sample *sample = an_sketch_begin(params, &view, query, scratch);
    an_sketch_do_until(sample, AN_SKETCH_DRAW, scratch);
    uint32_t count = 0;
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        const uint16_t *ids;
        const uint16_t *thresholds;
        uint32_t drawn = an_sketch_draw_run(sample, &sample->runs[i], scratch, &ids, &thresholds);
        for (uint32_t j = 0; j < drawn; ++j, ++count) {
            float log_u = thresholds[j] == 0 ? 0.0f : (float)log((double)thresholds[j] / 65536.0);
            put_in_order(ids[j], log_u, count, ids_out, log_u_out);
        }
    }
    return count;
}
