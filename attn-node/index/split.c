/*
 * The steps of several samples over one team: a loop over the units of all samples' steps, then one
 * over those of their next steps, until all are done. Samples need not be at the same step. A
 * sample lies in the scratch of the thread of its number, beside that thread's working memory.
 */
#include "attn-node/index/split.h"

#include "attn-node/index/sketch_sample.h"
#include "common/base/assert.h"
#include "common/run/team.h"

/* Fewer rows are too few runs to hand over. */
#define ROWS_MIN (2 * AN_SKETCH_RUN_ROWS)
/* Threads that would be idle for more than this share of the time are given something to do. */
#define UNEVEN 1.1
/* Samples below this part of a thread's share even out by themselves. */
#define PARTS 4u

uint64_t an_split_rows(const struct an_split_load *load)
{
    if (load->threads <= 1 || load->count == 0) {
        return UINT64_MAX;
    }
    double even = (double)load->rows / load->threads;
    uint32_t turns = (load->count + load->threads - 1) / load->threads;
    double alone = turns * (double)load->rows / load->count;
    alone = alone > (double)load->longest ? alone : (double)load->longest;
    if (alone <= UNEVEN * even) {
        return UINT64_MAX;
    }
    uint64_t rows = load->rows / (PARTS * load->threads);
    return rows > ROWS_MIN ? rows : ROWS_MIN;
}

struct team {
    struct an_split_sample *samples;
    uint32_t count;
    uint8_t *scratch;
    uint64_t scratch_bytes;
};

static void begin_sample(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct team *team = context;
    struct an_split_sample *sample = &team->samples[index];
    sample->begun = an_sketch_begin(sample->params, sample->views, &sample->query,
                                    team->scratch + index * team->scratch_bytes);
}

static void do_unit(void *context, uint64_t index, uint32_t thread)
{
    const struct team *team = context;
    struct an_split_sample *sample = team->samples;
    for (; index >= sample->units; ++sample) {
        index -= sample->units;
    }
    an_sketch_do(sample->begun, (uint32_t)index, team->scratch + thread * team->scratch_bytes);
}

/* How many units the samples' steps have; of each in its units, for they go on to their next steps
 * while others are at these. */
static uint64_t count_units(struct team *team)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < team->count; ++i) {
        struct an_split_sample *sample = &team->samples[i];
        sample->units = sample->begun->step < AN_SKETCH_DONE ? sample->begun->units : 0;
        units += sample->units;
    }
    return units;
}

void an_split_attend(uint32_t threads, struct an_split_sample *samples, uint32_t count,
                     void *scratch, uint64_t scratch_bytes)
{
    PP_ASSERT(count <= threads && scratch_bytes % 64 == 0);
    struct team team = {
        .samples = samples, .count = count, .scratch = scratch, .scratch_bytes = scratch_bytes};
    pp_team_for(threads, count, begin_sample, &team);
    for (uint64_t units = count_units(&team); units > 0; units = count_units(&team)) {
        pp_team_for(threads, units, do_unit, &team);
    }
}
