/*
 * One layer's attend, exact, sampled or as planned, beside the plain read loop and the exact attend
 * of the same run: the three are interleaved, since memory's speed changes by itself and only
 * ratios mean anything. gbps counts the bytes of the rows read, each once; stream_gbps is the read
 * loop's.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/index/split.h"
#include "bench/bench_common.h"
#include "bench/bench_layer.h"
#include "bench/bench_options.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "common/run/team.h"

#define ROUNDS_MAX  4096u
#define ROUNDS_MIN  5u
#define WARM_ROUNDS 2u

static struct settings {
    const char *estimator, *json, *dtype;
    uint64_t tokens, q_heads, kv_heads, dim, k, l, t, bits, threads, cold_mib;
    double rows_share, seconds;
} settings;

static const struct pp_option options[] = {
    BENCH_NUMBER("tokens", &settings.tokens, "98304", "Held tokens."),
    BENCH_NUMBER("q-heads", &settings.q_heads, "32", "Query heads."),
    BENCH_NUMBER("kv-heads", &settings.kv_heads, "8", "K/V heads."),
    BENCH_NUMBER("dim", &settings.dim, "128", "Head dimension."),
    BENCH_TEXT("dtype", &settings.dtype, "bf16", "NAME", "bf16, f16, f32 or int8."),
    BENCH_TEXT(
        "estimator", &settings.estimator, "lsh", "NAME",
        "exact, lsh, sketch, or auto-lsh, auto-sketch: what the planner takes, beside both."),
    BENCH_NUMBER("k", &settings.k, "10", "lsh: bits a table."),
    BENCH_NUMBER("l", &settings.l, "150", "lsh: tables."),
    BENCH_NUMBER("t", &settings.t, "2", "lsh: tables that must collide."),
    BENCH_NUMBER("bits", &settings.bits, "2", "sketch: bits a dimension, 1, 2 or 4."),
    BENCH_REAL("rows-share", &settings.rows_share, "0.04", "X", 1e9,
               "sketch: share of distinct keys a kv head."),
    BENCH_THREADS(&settings.threads),
    BENCH_NUMBER("cold-mib", &settings.cold_mib, "0",
                 "MiB of other memory read before each measurement."),
    BENCH_REAL("seconds", &settings.seconds, "5", "X", 1e9, "How long to measure."),
    BENCH_JSON(&settings.json),
};

/* A piece of a sampled or planned attend: some q heads of a group by the index, or a block of rows
 * for the group. */
struct piece {
    struct an_index_view view; /* next: the next segment of the same sample */
    uint32_t head, lanes;
    bool sampled;
};

/* What one thread does at a time, or for a sample all of them together: a block, or the pieces of a
 * sample, linked. */
struct lot {
    struct piece *first, *last;
    uint64_t rows; /* of a sample */
    bool together;
};

static struct run {
    bool plan;       /* choose a kv head and segment; else all is sampled */
    uint16_t *codes; /* [q head][l] */
    struct piece *pieces;
    struct an_accumulator *partials, *results; /* results [q head] */
    float *sums;
    struct lot **samples; /* [q head]: the last of the heads that begin there */
    struct lot *lots;
    struct an_split_sample *split; /* [threads] */
    uint32_t piece_count, partial_count, lot_count;
    uint32_t sampled_segments;
    uint64_t step;               /* of the random numbers */
    double sampled_ns, exact_ns; /* predicted, of one thread */
} run;

static uint64_t held_first(const struct bench_layer *layer, uint32_t segment)
{
    return (uint64_t)(segment % layer->segments_a_head) * PP_SEGMENT_TOKENS_MAX;
}

static struct an_index_query query_of(const struct bench_layer *layer, uint64_t head,
                                      uint32_t lanes, uint32_t segment)
{
    uint32_t dim = layer->shape.head_dim;
    return (struct an_index_query){
        .heads = lanes,
        .q = layer->q + head * dim,
        .q_scaled = layer->q_scaled + head * dim,
        .codes = run.codes + head * layer->params.estimator.l,
        .draw = {.seed = pp_rng_at(run.step, head), .first = held_first(layer, segment)},
        .rows_share = layer->params.estimator.rows_share,
    };
}

static void run_lot(void *context, uint64_t index, uint32_t thread)
{
    struct bench_layer *layer = context;
    struct piece *piece = run.lots[index].first;
    for (const struct an_index_view *view = &piece->view; view != NULL; view = view->next) {
        for (uint32_t i = 0; i < piece->lanes; ++i) {
            an_accumulator_clear(&view->accumulators[i], layer->shape.head_dim);
        }
    }
    if (run.lots[index].together) {
        return;
    }
    if (piece->sampled) {
        struct an_index_query query = query_of(layer, piece->head, piece->lanes, 0);
        an_index_attend_views(&layer->params, &piece->view, &query,
                              layer->scratch + thread * layer->scratch_bytes);
    } else {
        const float *q = layer->q_scaled + (uint64_t)piece->head * layer->shape.head_dim;
        an_kernels_get()->attend_exact(&piece->view.rows, piece->view.begin, piece->view.end, q,
                                       piece->lanes, piece->view.accumulators);
    }
}

static struct piece *add_piece(const struct bench_layer *layer, uint32_t segment, uint32_t head,
                               uint32_t lanes, uint32_t begin, uint32_t end)
{
    struct piece *piece = &run.pieces[run.piece_count++];
    *piece = (struct piece){.view = {.index = layer->segments[segment].index,
                                     .rows = layer->segments[segment].rows,
                                     .begin = begin,
                                     .end = end,
                                     .first = held_first(layer, segment),
                                     .accumulators = run.partials + run.partial_count},
                            .head = head,
                            .lanes = lanes};
    run.partial_count += lanes;
    return piece;
}

static struct lot *add_lot(struct piece *piece)
{
    struct lot *lot = &run.lots[run.lot_count++];
    *lot = (struct lot){.first = piece, .last = piece};
    return lot;
}

/* A piece that is sampled: of the sample of the same heads' last segment while that has room. */
static void add_sampled(const struct bench_layer *layer, uint32_t segment, uint32_t head,
                        uint32_t lanes)
{
    uint32_t tokens = layer->segments[segment].tokens;
    struct piece *piece = add_piece(layer, segment, head, lanes, 0, tokens);
    uint64_t most = an_index_rows_at_once(&layer->params, lanes, layer->segments[0].tokens);
    uint64_t rows = an_index_view_rows(0, tokens);
    struct lot *lot = run.samples[head];
    piece->sampled = true;
    if (lot != NULL && lot->rows + rows <= most) {
        lot->last->view.next = &piece->view;
    } else {
        lot = run.samples[head] = add_lot(piece);
    }
    lot->last = piece;
    lot->rows += rows;
}

/* The pieces of one kv head and segment. */
static void plan_segment(const struct bench_layer *layer, uint32_t index)
{
    const struct bench_segment *segment = &layer->segments[index];
    uint32_t group = pp_shape_group(&layer->shape);
    uint32_t head = index / layer->segments_a_head * group;
    struct an_index_costs costs;
    struct an_index_lanes lanes = {
        .group = group,
        .count = group,
        .codes = run.codes + (uint64_t)head * layer->params.estimator.l,
        .rows_share = layer->params.estimator.rows_share,
        .sample_rows = layer->tokens,
    };
    bool pays = an_index_pays(segment->index, &layer->params, &segment->rows, 0, segment->tokens,
                              &lanes, &costs);
    bool sampled = pays || !run.plan;
    run.sampled_ns += costs.sampled_ns;
    run.exact_ns += costs.exact_ns;
    run.sampled_segments += sampled;
    uint32_t step = an_index_heads_at_once(&layer->params, group);
    for (uint32_t g = 0; g < group && sampled; g += step) {
        add_sampled(layer, index, head + g, group - g < step ? group - g : step);
    }
    for (uint32_t at = 0; at < segment->tokens && !sampled; at += layer->piece_tokens) {
        uint32_t end = at + layer->piece_tokens;
        end = end < segment->tokens ? end : segment->tokens;
        (void)add_lot(add_piece(layer, index, head, group, at, end));
    }
}

/* Long samples that are too few for the threads are made by all of them together. */
static void run_lots(struct bench_layer *layer)
{
    struct an_split_load load = {.threads = layer->threads};
    for (uint32_t i = 0; i < run.lot_count; ++i) {
        bool sampled = run.lots[i].rows > 0 && layer->params.estimator.kind == PP_SKETCH;
        load.count += sampled;
        load.rows += sampled ? run.lots[i].rows : 0;
        load.longest = load.longest < run.lots[i].rows ? run.lots[i].rows : load.longest;
    }
    uint64_t rows = an_split_rows(&load);
    for (uint32_t i = 0; i < run.lot_count; ++i) {
        run.lots[i].together = run.lots[i].rows >= rows;
    }
    pp_team_for(layer->threads, run.lot_count, run_lot, layer);
    uint32_t count = 0;
    for (uint32_t i = 0; i < run.lot_count; ++i) {
        struct piece *piece = run.lots[i].first;
        if (run.lots[i].together) {
            run.split[count++] = (struct an_split_sample){
                .params = &layer->params,
                .views = &piece->view,
                .query = query_of(layer, piece->head, piece->lanes, 0),
            };
        }
        if (count == layer->threads || (count > 0 && i + 1 == run.lot_count)) {
            an_split_attend(layer->threads, run.split, count, layer->scratch, layer->scratch_bytes);
            count = 0;
        }
    }
}

/* The attend as a node does it: signatures, plan, pieces, sums merged in order. */
static void planned_attend(struct bench_layer *layer)
{
    if (layer->params.hash != NULL) {
        pp_hash_queries(layer->params.hash, layer->q, layer->shape.q_heads, run.codes);
    }
    ++run.step;
    run.piece_count = run.partial_count = run.lot_count = run.sampled_segments = 0;
    run.sampled_ns = run.exact_ns = 0.0;
    memset(run.samples, 0, layer->shape.q_heads * sizeof(*run.samples));
    for (uint32_t i = 0; i < layer->shape.kv_heads * layer->segments_a_head; ++i) {
        plan_segment(layer, i);
    }
    run_lots(layer);
    for (uint32_t h = 0; h < layer->shape.q_heads; ++h) {
        an_accumulator_clear(&run.results[h], layer->shape.head_dim);
    }
    for (uint32_t i = 0; i < run.piece_count; ++i) {
        const struct piece *piece = &run.pieces[i];
        for (uint32_t j = 0; j < piece->lanes; ++j) {
            an_accumulator_merge(&run.results[piece->head + j], &piece->view.accumulators[j],
                                 layer->shape.head_dim);
        }
    }
}

static void sampled_attend(struct bench_layer *layer)
{
    run.plan = false;
    planned_attend(layer);
}

static void auto_attend(struct bench_layer *layer)
{
    run.plan = true;
    planned_attend(layer);
}

static enum pp_status run_make(struct bench_layer *layer)
{
    uint32_t dim = layer->shape.head_dim;
    uint32_t blocks = PP_SEGMENT_TOKENS_MAX / layer->piece_tokens + 1;
    uint32_t partials = layer->shape.q_heads * layer->segments_a_head * blocks;
    uint32_t count = partials + layer->shape.q_heads;
    run.codes = calloc(layer->shape.q_heads * (uint64_t)layer->params.estimator.l + 1, 2);
    run.pieces = calloc(partials, sizeof(*run.pieces));
    run.lots = calloc(partials, sizeof(*run.lots));
    run.samples = calloc(layer->shape.q_heads, sizeof(*run.samples));
    run.split = calloc(layer->threads, sizeof(*run.split));
    run.partials = calloc(count, sizeof(*run.partials));
    run.sums = calloc(count * 2ull * dim, sizeof(*run.sums));
    if (run.codes == NULL || run.pieces == NULL || run.lots == NULL || run.samples == NULL ||
        run.split == NULL || run.partials == NULL || run.sums == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < count; ++i) {
        run.partials[i].o = run.sums + i * 2ull * dim;
        run.partials[i].b1 = run.partials[i].o + dim;
    }
    run.results = run.partials + partials;
    return bench_layer_build(layer);
}

static void run_free(void)
{
    free(run.codes);
    free(run.pieces);
    free(run.lots);
    free(run.samples);
    free(run.split);
    free(run.partials);
    free(run.sums);
}

/* Other memory read between measurements, as a decode step's other layers are: rows and indexes are
 * cold then. */
static uint64_t *other;
static volatile uint64_t other_sum;

static void make_cold(void)
{
    uint64_t words = (settings.cold_mib << 20) / sizeof(*other);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < words; i += 8) {
        sum += other[i];
    }
    other_sum = sum;
}

static double timed(void (*call)(struct bench_layer *layer), struct bench_layer *layer)
{
    make_cold();
    return bench_time_ms(call, layer);
}

/* Rows the sample reads: share of all a q head, and distinct ones a kv head. */
static enum pp_status count_rows(struct bench_layer *layer, double *share_q, double *share_kv)
{
    uint64_t reads = 0;
    uint64_t distinct = 0;
    uint32_t group = pp_shape_group(&layer->shape);
    uint32_t step = an_index_heads_at_once(&layer->params, group);
    uint16_t *ids = malloc(PP_SEGMENT_TOKENS_MAX * sizeof(*ids));
    float *log_u = malloc(PP_SEGMENT_TOKENS_MAX * sizeof(*log_u));
    uint8_t *seen = malloc(PP_SEGMENT_TOKENS_MAX);
    bool ready = ids != NULL && log_u != NULL && seen != NULL;
    for (uint32_t i = 0; ready && i < layer->shape.kv_heads * layer->segments_a_head; ++i) {
        const struct bench_segment *segment = &layer->segments[i];
        memset(seen, 0, PP_SEGMENT_TOKENS_MAX);
        for (uint32_t g = 0; g < group; g += step) {
            uint32_t lanes = group - g < step ? group - g : step;
            uint64_t head = (uint64_t)(i / layer->segments_a_head) * group + g;
            struct an_index_query query = query_of(layer, head, lanes, i);
            uint32_t count = an_index_sample(segment->index, &layer->params, &segment->rows, 0,
                                             segment->tokens, &query, layer->scratch, ids, log_u);
            reads += (uint64_t)count * lanes;
            for (uint32_t r = 0; r < count; ++r) {
                distinct += seen[ids[r]] == 0;
                seen[ids[r]] = 1;
            }
        }
    }
    free(ids);
    free(log_u);
    free(seen);
    *share_q = (double)reads / (double)(layer->tokens * layer->shape.q_heads);
    *share_kv = (double)distinct / (double)(layer->tokens * layer->shape.kv_heads);
    return ready ? PP_OK : PP_MEMORY;
}

enum series { STREAM, EXACT, SAMPLED, AUTO, SERIES };
static double times[SERIES][ROUNDS_MAX];

/* Rounds of the read loop, exact and what else is wanted; returns how many. */
static uint32_t measure_rounds(struct bench_layer *layer, bool sampled, bool plan)
{
    double spent_ms = 0.0;
    uint32_t rounds = 0;
    for (uint32_t i = 0; i < ROUNDS_MAX + WARM_ROUNDS; ++i) {
        double round[SERIES] = {timed(bench_layer_stream, layer), timed(bench_layer_exact, layer)};
        round[SAMPLED] = sampled ? timed(sampled_attend, layer) : 0.0;
        round[AUTO] = plan ? timed(auto_attend, layer) : 0.0;
        for (uint32_t series = 0; series < SERIES && i >= WARM_ROUNDS; ++series) {
            times[series][rounds] = round[series];
            spent_ms += round[series];
        }
        rounds += i >= WARM_ROUNDS;
        if (spent_ms > settings.seconds * 1e3 && rounds >= ROUNDS_MIN) {
            break;
        }
    }
    return rounds;
}

static void report_plan(json_t *report, const struct bench_layer *layer, uint32_t rounds)
{
    uint32_t segments = layer->shape.kv_heads * layer->segments_a_head;
    json_object_set_new(report, "sampled_share",
                        json_real((double)run.sampled_segments / segments));
    json_object_set_new(report, "sampled_ms_median",
                        json_real(bench_median(times[SAMPLED], rounds)));
    json_object_set_new(report, "exact_ms_min", json_real(bench_min(times[EXACT], rounds)));
    json_object_set_new(report, "sampled_ms_min", json_real(bench_min(times[SAMPLED], rounds)));
    json_object_set_new(report, "sampled_ms_predicted",
                        json_real(run.sampled_ns * 1e-6 / layer->threads));
    json_object_set_new(report, "exact_ms_predicted",
                        json_real(run.exact_ns * 1e-6 / layer->threads));
}

static enum pp_status measure(struct bench_layer *layer, bool sampled, bool plan)
{
    double share_q = 1.0;
    double share_kv = 1.0;
    if (sampled) {
        PP_TRY(run_make(layer));
        sampled_attend(layer);
        PP_TRY(count_rows(layer, &share_q, &share_kv));
    }
    uint32_t rounds = measure_rounds(layer, sampled, plan);
    double *series = times[plan ? AUTO : sampled ? SAMPLED : EXACT];
    double read_gb = (sampled ? share_kv : 1.0) * (double)layer->rows_bytes * 1e-9;
    double least = bench_min(series, rounds);
    double median = bench_median(series, rounds);
    json_t *report = json_object();
    json_object_set_new(report, "bench", json_string("attend"));
    json_object_set_new(report, "estimator", json_string(settings.estimator));
    json_object_set_new(report, "tokens", json_integer((json_int_t)layer->tokens));
    json_object_set_new(report, "ms_median", json_real(median));
    json_object_set_new(report, "ms_min", json_real(least));
    json_object_set_new(report, "rows_share", json_real(share_kv));
    json_object_set_new(report, "rows_share_q_head", json_real(share_q));
    json_object_set_new(report, "gbps", json_real(read_gb / (median * 1e-3)));
    json_object_set_new(
        report, "stream_gbps",
        json_real((double)layer->rows_bytes * 1e-6 / bench_median(times[STREAM], rounds)));
    json_object_set_new(report, "exact_ms_median", json_real(bench_median(times[EXACT], rounds)));
    if (plan) {
        report_plan(report, layer, rounds);
    }
    return bench_report(report, layer->threads, PP_COMMIT, settings.json);
}

static enum pp_status parse_dtype(enum pp_dtype *dtype_out)
{
    for (enum pp_dtype dtype = PP_BF16; dtype <= PP_I8; ++dtype) {
        if (strcmp(settings.dtype, pp_dtype_name(dtype)) == 0) {
            *dtype_out = dtype;
            return PP_OK;
        }
    }
    return PP_INVALID_ARGUMENT;
}

/* "auto-" before a name asks for the plan; exact has no index. */
static enum pp_status parse_estimator(struct pp_estimator *estimator, bool *sampled, bool *plan)
{
    *plan = strncmp(settings.estimator, "auto-", 5) == 0;
    const char *name = settings.estimator + (*plan ? 5 : 0);
    *sampled = strcmp(name, "exact") != 0;
    if (strcmp(name, "sketch") == 0) {
        *estimator = (struct pp_estimator){.kind = PP_SKETCH,
                                           .bits = (uint32_t)settings.bits,
                                           .rows_share = (float)settings.rows_share};
    } else if (strcmp(name, "lsh") == 0 || (!*sampled && !*plan)) {
        *estimator = (struct pp_estimator){.kind = PP_LSH,
                                           .k = (uint32_t)settings.k,
                                           .l = (uint32_t)settings.l,
                                           .t = (uint32_t)settings.t};
    } else {
        return PP_INVALID_ARGUMENT;
    }
    return pp_estimator_resolve(estimator);
}

static enum pp_status run_bench(void)
{
    static struct bench_layer layer;
    struct pp_estimator estimator;
    bool sampled;
    bool plan;
    struct pp_shape shape = {.layers = 1,
                             .q_heads = (uint32_t)settings.q_heads,
                             .kv_heads = (uint32_t)settings.kv_heads,
                             .head_dim = (uint32_t)settings.dim,
                             .scale = 1.0f / sqrtf((float)settings.dim)};
    PP_TRY(parse_dtype(&shape.kv_dtype));
    PP_TRY(parse_estimator(&estimator, &sampled, &plan));
    uint32_t threads =
        settings.threads == 0 ? pp_team_threads_default() : (uint32_t)settings.threads;
    PP_TRY(bench_layer_make(&shape, &estimator, settings.tokens, threads, &layer));
    other = calloc(1, (settings.cold_mib << 20) + 1);
    if (other == NULL) {
        return PP_MEMORY;
    }
    memset(other, 1, settings.cold_mib << 20);
    enum pp_status status = measure(&layer, sampled, plan);
    run_free();
    free(other);
    bench_layer_free(&layer);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "attend_bench",
        .summary = "Measures one layer's attend against memory and the exact attend.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
