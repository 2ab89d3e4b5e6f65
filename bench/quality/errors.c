/*
 * Errors of answers. See errors.h.
 */
#include "bench/quality/errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/quality/model.h"
#include "common/run/team.h"

/* Steps that a share is sought on, how near it must come, and how often it is tried. */
#define SEEK_STEPS 4u
#define SEEK_NEAR  0.015
#define SEEK_TRIES 8u
/* How the share grows with the knob, as a power. */
#define GROWTH_TABLES 1.7
#define GROWTH_SHARE  0.8
#define TABLES_MAX    512.0

/* Sums over the answers of one kv head. */
struct sums {
    double error[QUALITY_GROUP_MAX];
    double squares, published;
    uint64_t covered, answers;
    uint64_t rows, rows_q;
    double bytes;
    uint64_t attends;
    uint64_t sampled_rows, sampled_attends; /* of them, where no sample was empty */
};

struct measuring {
    const struct quality_estimator *estimator;
    struct sums *sums; /* [layer][kv head] */
    float *o;          /* [thread][group][dim] */
    uint32_t stride;   /* between the steps that are measured */
};

static void add_answer(struct sums *sums, const struct quality_head *head,
                       const struct quality_answer *answer, uint32_t h, const float *exact)
{
    const float *o = answer->o + (uint64_t)h * head->dim;
    double apart = 0.0, length = 0.0;
    for (uint32_t d = 0; d < head->dim; ++d) {
        double difference = (double)o[d] - (double)exact[d];
        apart += difference * difference;
        length += (double)exact[d] * (double)exact[d];
    }
    sums->answers += 1;
    sums->covered += apart <= 4.0 * answer->var[h] ? 1 : 0;
    if (length > 0.0) {
        sums->error[h] += sqrt(apart / length);
        sums->squares += apart / length;
        sums->published += answer->var[h] / length;
    }
}

static void measure_head(void *context, uint64_t index, uint32_t thread)
{
    const struct measuring *measuring = context;
    const struct quality_estimator *estimator = measuring->estimator;
    const struct quality_held *held = estimator->held;
    const struct quality_head *head = &held->heads[index];
    uint32_t layer = (uint32_t)index / held->shape.kv_heads;
    uint32_t kv_head = (uint32_t)index % held->shape.kv_heads;
    struct sums *sums = &measuring->sums[index];
    for (uint32_t step = 0; step < held->steps; step += measuring->stride) {
        uint64_t at = quality_recorded_at(held, step, layer) + (uint64_t)kv_head * head->group;
        struct quality_answer answer = {.o = measuring->o +
                                             (uint64_t)thread * head->group * head->dim};
        quality_attend(estimator, layer, kv_head, held->q + at * head->dim,
                       quality_draw_seed(held, step, layer, kv_head), thread, &answer);
        sums->rows += answer.rows;
        sums->rows_q += answer.rows_q;
        sums->bytes += answer.bytes;
        sums->attends += 1;
        sums->sampled_rows += answer.fell_back ? 0 : answer.rows;
        sums->sampled_attends += answer.fell_back ? 0 : 1;
        for (uint32_t h = 0; h < head->group; ++h) {
            add_answer(sums, head, &answer, h, held->o + (at + h) * head->dim);
        }
    }
}

static void add_up(const struct measuring *measuring, struct quality_errors *errors)
{
    const struct quality_held *held = measuring->estimator->held;
    uint32_t heads = held->shape.layers * held->shape.kv_heads, group = held->heads[0].group;
    struct sums all = {0};
    double error = 0.0;
    for (uint32_t i = 0; i < heads; ++i) {
        const struct sums *sums = &measuring->sums[i];
        for (uint32_t h = 0; h < group; ++h) {
            errors->means[i * group + h] = sums->error[h] / (double)sums->attends;
            error += errors->means[i * group + h];
        }
        all.squares += sums->squares;
        all.published += sums->published;
        all.covered += sums->covered;
        all.answers += sums->answers;
        all.rows += sums->rows;
        all.rows_q += sums->rows_q;
        all.bytes += sums->bytes;
        all.attends += sums->attends;
        all.sampled_rows += sums->sampled_rows;
        all.sampled_attends += sums->sampled_attends;
    }
    double tokens = (double)held->tokens * (double)all.attends;
    errors->mean = error / (heads * group);
    errors->covered = (double)all.covered / (double)all.answers;
    errors->published = all.published > 0.0 ? sqrt(all.squares / all.published) : 0.0;
    errors->rows_share = (double)all.rows / tokens;
    errors->sampled_share =
        (double)all.sampled_rows / ((double)held->tokens * (double)all.sampled_attends);
    errors->rows_share_q_head = (double)all.rows_q / (tokens * group);
    errors->bytes = all.bytes / tokens;
}

static enum pp_status measure(const struct quality_estimator *estimator, uint32_t stride,
                              struct quality_errors *errors_out)
{
    const struct quality_held *held = estimator->held;
    uint32_t heads = held->shape.layers * held->shape.kv_heads;
    uint64_t vector = (uint64_t)held->heads[0].group * held->shape.head_dim;
    struct measuring measuring = {.estimator = estimator,
                                  .sums = calloc(heads, sizeof(struct sums)),
                                  .o = malloc(estimator->threads * vector * sizeof(float)),
                                  .stride = stride};
    *errors_out = (struct quality_errors){
        .means = calloc((uint64_t)heads * held->heads[0].group, sizeof(double))};
    bool taken = measuring.sums != NULL && measuring.o != NULL && errors_out->means != NULL;
    if (taken) {
        pp_team_for(estimator->threads, heads, measure_head, &measuring);
        add_up(&measuring, errors_out);
    }
    free(measuring.sums);
    free(measuring.o);
    return taken ? PP_OK : PP_MEMORY;
}

enum pp_status quality_errors_measure(const struct quality_estimator *estimator,
                                      struct quality_errors *errors_out)
{
    return measure(estimator, 1, errors_out);
}

void quality_errors_free(struct quality_errors *errors)
{
    free(errors->means);
    *errors = (struct quality_errors){0};
}

static enum pp_status share_of(const struct quality_estimator *estimator, double *share_out)
{
    struct quality_errors errors;
    uint32_t stride = estimator->held->steps / SEEK_STEPS;
    enum pp_status status = measure(estimator, stride > 0 ? stride : 1, &errors);
    *share_out = errors.sampled_share;
    quality_errors_free(&errors);
    return status;
}

enum pp_status quality_open_for_share(const struct quality_spec *spec,
                                      const struct quality_held *held, double share,
                                      uint32_t threads, struct quality_estimator *estimator_out)
{
    bool tables = spec->kind == QUALITY_LSH;
    double knob = tables ? 700.0 * pow(share, 1.0 / GROWTH_TABLES) : share, read = 0.0;
    PP_TRY(quality_open(spec, held, tables ? floor(knob) : knob, threads, estimator_out));
    for (uint32_t i = 0; quality_spec_sought(spec) && i < SEEK_TRIES; ++i) {
        PP_TRY(share_of(estimator_out, &read));
        double factor = pow(share / read, 1.0 / (tables ? GROWTH_TABLES : GROWTH_SHARE));
        double next = tables ? rint(knob * factor) : knob * factor;
        next = tables ? fmin(fmax(next, spec->t), TABLES_MAX) : fmin(next, 1.0);
        if (fabs(read / share - 1.0) < SEEK_NEAR || next == knob) {
            break;
        }
        knob = next;
        estimator_out->knob = knob;
        if (tables) {
            quality_close(estimator_out);
            PP_TRY(quality_open(spec, held, knob, threads, estimator_out));
        }
    }
    return PP_OK;
}
