/*
 * The sketch kernels of every instruction set of this machine side by side, one thread and one kv
 * head: scan, selection (log g, sum u twice, draw), attend over what was drawn, codes of keys, and
 * that instruction set's exact attend. Rounds go over the instruction sets in turn; least times.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attn-node/kernels/sketch.h"
#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "common/mem/pages.h"

#define HEADS_MAX 16u
#define ISAS      4u
#define UNIFORM   0.03f

static struct settings {
    const char *json;
    uint64_t tokens, dim, heads, rounds;
    double rows_share;
} settings;

static const struct pp_option options[] = {
    BENCH_NUMBER("tokens", &settings.tokens, "65472", "Keys, one segment at most."),
    BENCH_NUMBER("dim", &settings.dim, "128", "Head dimension."),
    BENCH_NUMBER("heads", &settings.heads, "4", "Query heads that share the kv head, at most 16."),
    BENCH_NUMBER("rounds", &settings.rounds, "15", "Rounds over the instruction sets."),
    BENCH_REAL("rows-share", &settings.rows_share, "0.04", "X", 1.0,
               "Share of the keys drawn, about."),
    BENCH_JSON(&settings.json),
};

/* What all instruction sets work on. */
static struct bed {
    struct an_rows rows;
    uint8_t *memory, *stream;
    float *q, *sums;
    int16_t *scores;
    uint16_t *ids, *thresholds;
    float centre[PP_HEAD_DIM_MAX];
    struct an_sketch_signs signs;
    struct an_sketch_encoder encoder;
    struct an_sketch_query *queries;
    struct an_accumulator accumulators[HEADS_MAX];
    uint64_t memory_bytes;
    uint32_t tokens, heads, drawn;
    int16_t shift; /* of log g: C, for the share wanted */
} bed;

enum series { SCAN, SELECT, ATTEND, ENCODE, EXACT, SERIES };
static double least[ISAS][SERIES];

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static enum pp_status bed_make(void)
{
    struct pp_rng rng = {.seed = 3};
    uint32_t dim = (uint32_t)settings.dim;
    uint64_t blocks = (bed.tokens + 63) / 64;
    bed.rows = (struct an_rows){.row_bytes = pp_row_bytes(dim, PP_BF16),
                                .v_offset = (uint32_t)pp_vector_bytes(dim, PP_BF16),
                                .dim = dim,
                                .dtype = PP_BF16};
    bed.memory_bytes =
        (bed.tokens * bed.rows.row_bytes + PP_HUGE_PAGE_BYTES - 1) & ~(PP_HUGE_PAGE_BYTES - 1);
    void *memory;
    PP_TRY(pp_pages_reserve(bed.memory_bytes, &memory));
    bed.memory = memory;
    PP_TRY(pp_pages_commit(memory, 0, bed.memory_bytes, PP_HUGEPAGES_TRY));
    bed.stream = aligned_alloc(64, blocks * an_sketch_shape_of(dim, 4).block_bytes);
    bed.queries = aligned_alloc(64, bed.heads * sizeof(*bed.queries));
    bed.q = calloc(bed.heads * (uint64_t)dim, sizeof(float));
    bed.sums = calloc(2ull * bed.heads * dim, sizeof(float));
    bed.scores = aligned_alloc(64, bed.heads * blocks * 128);
    bed.ids = calloc(blocks * 64 + 32, sizeof(uint16_t));
    bed.thresholds = calloc(blocks * 64 + 32, sizeof(uint16_t));
    if (bed.stream == NULL || bed.queries == NULL || bed.q == NULL || bed.sums == NULL ||
        bed.scores == NULL || bed.ids == NULL || bed.thresholds == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < bed.tokens; ++i) {
        float values[2 * PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < 2 * dim; ++d) {
            values[d] = (float)pp_rng_normal(&rng);
        }
        pp_vectors_from_f32(PP_BF16, dim, values, 2, bed.memory + i * bed.rows.row_bytes);
    }
    bed.rows.base = bed.memory;
    for (uint32_t i = 0; i < bed.heads * dim; ++i) {
        bed.q[i] = (float)pp_rng_normal(&rng) / sqrtf((float)dim);
    }
    for (uint32_t h = 0; h < bed.heads; ++h) {
        bed.accumulators[h] = (struct an_accumulator){.o = bed.sums + 2ull * h * dim,
                                                      .b1 = bed.sums + (2ull * h + 1) * dim};
    }
    an_sketch_signs_init(&bed.signs, 42);
    return PP_OK;
}

static void bed_free(void)
{
    if (bed.memory != NULL) {
        pp_pages_free(bed.memory, bed.memory_bytes);
    }
    free(bed.stream);
    free(bed.queries);
    free(bed.q);
    free(bed.sums);
    free(bed.scores);
    free(bed.ids);
    free(bed.thresholds);
}

static void encode_all(const struct an_sketch_kernels *kernels)
{
    const struct an_sketch_shape *shape = &bed.encoder.shape;
    for (uint32_t row = 0; row < bed.tokens; row += 64) {
        float factors[64];
        uint32_t count = bed.tokens - row < 64 ? bed.tokens - row : 64;
        uint8_t *block = bed.stream + (uint64_t)(row / 64) * shape->block_bytes;
        kernels->encode(&bed.encoder, &bed.rows, row, count, block, factors);
        uint16_t *out = (uint16_t *)(void *)(block + 64ull * shape->planes);
        for (uint32_t i = 0; i < 64; ++i) {
            float bounded = factors[i] < 3.99f ? factors[i] : 3.99f;
            out[i] = (uint16_t)(bounded * 0x1p13f);
        }
    }
}

static void make_queries(const struct an_sketch_kernels *kernels)
{
    const struct an_sketch_shape *shape = &bed.encoder.shape;
    _Alignas(64) static float lanes[PP_HEAD_DIM_MAX * 16];
    memset(lanes, 0, sizeof(lanes));
    for (uint32_t i = 0; i < bed.heads * shape->dim; ++i) {
        lanes[i % shape->dim * 16 + i / shape->dim] = bed.q[i];
    }
    kernels->rotate(&bed.signs, shape->padded, lanes);
    for (uint32_t h = 0; h < bed.heads; ++h) {
        float r[PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < shape->padded; ++d) {
            r[d] = lanes[d * 16 + h];
        }
        an_sketch_tables_make(shape, r, &bed.queries[h]);
    }
}

static void scan_all(const struct an_sketch_kernels *kernels, struct an_sketch_scores *scores)
{
    uint64_t each = (uint64_t)(bed.tokens + 63) / 64 * 64;
    for (uint32_t h = 0; h < bed.heads; ++h) {
        scores[h].scores = bed.scores + h * each;
        scores[h].scale = an_sketch_scale_of(&bed.queries[h], 4.0f);
    }
    kernels->scan(&bed.encoder.shape, bed.stream, 0, bed.tokens, bed.queries, bed.heads, scores);
}

/* log g into the first head's scores; returns how many rows that is, in whole blocks. */
static uint32_t combine_heads(const struct an_sketch_kernels *kernels,
                              const struct an_sketch_scores *scores)
{
    const int16_t *pointers[HEADS_MAX];
    int16_t shifts[HEADS_MAX];
    uint32_t count = (bed.tokens + 63) / 64 * 64;
    for (uint32_t h = 0; h < bed.heads; ++h) {
        pointers[h] = scores[h].scores;
        shifts[h] = (int16_t)lrintf(-128.0f * log2f(scores[h].sum / (1.0f - UNIFORM)));
    }
    float uniform = UNIFORM / (float)bed.tokens;
    kernels->combine(pointers, shifts, bed.heads, (int16_t)lrintf(128.0f * log2f(uniform)), count,
                     scores[0].scores);
    return count;
}

/* The least shift at which the share wanted is drawn. */
static void find_shift(const struct an_sketch_kernels *kernels)
{
    struct an_sketch_scores scores[HEADS_MAX];
    make_queries(kernels);
    encode_all(kernels);
    scan_all(kernels, scores);
    uint32_t count = combine_heads(kernels, scores);
    int32_t low = 0;
    int32_t high = 1 << 12;
    while (high - low > 1) {
        int16_t middle = (int16_t)((low + high) / 2);
        int16_t tried[3] = {middle, middle, middle};
        float sums[3] = {0.0f};
        kernels->sum_u(scores[0].scores, count, tried, sums);
        low = (double)sums[0] < settings.rows_share * bed.tokens ? middle : low;
        high = low == middle ? high : middle;
    }
    bed.shift = (int16_t)high;
}

static void select_rows(const struct an_sketch_kernels *kernels,
                        const struct an_sketch_scores *scores, uint64_t key)
{
    uint32_t count = combine_heads(kernels, scores);
    for (uint32_t i = 0; i < 2; ++i) {
        float sums[3] = {0.0f};
        int16_t tried[3] = {(int16_t)(bed.shift - 32), bed.shift, (int16_t)(bed.shift + 32)};
        kernels->sum_u(scores[0].scores, count, tried, sums);
    }
    bed.drawn =
        kernels->draw(scores[0].scores, count, bed.shift, key, 0, 0, bed.ids, bed.thresholds);
}

static void note(double *values, enum series series, double *since)
{
    double now = now_us();
    values[series] =
        values[series] > 0.0 && values[series] < now - *since ? values[series] : now - *since;
    *since = now;
}

static void measure_one(const struct an_sketch_kernels *kernels, const struct an_kernels *exact,
                        uint64_t round, double *values)
{
    struct an_sketch_scores scores[HEADS_MAX];
    make_queries(kernels);
    double since = now_us();
    encode_all(kernels);
    note(values, ENCODE, &since);
    scan_all(kernels, scores);
    note(values, SCAN, &since);
    select_rows(kernels, scores, pp_rng_at(5, round));
    note(values, SELECT, &since);
    for (uint32_t h = 0; h < bed.heads; ++h) {
        an_accumulator_clear(&bed.accumulators[h], bed.rows.dim);
    }
    kernels->attend(&bed.rows, bed.ids, bed.thresholds, bed.drawn, bed.q, bed.heads,
                    bed.accumulators);
    note(values, ATTEND, &since);
    exact->attend_exact(&bed.rows, 0, bed.tokens, bed.q, bed.heads, bed.accumulators);
    note(values, EXACT, &since);
}

static enum pp_status report(const char *isa, uint32_t bits, const double *values)
{
    json_t *object = json_object();
    json_object_set_new(object, "bench", json_string("sketch"));
    json_object_set_new(object, "kernels", json_string(isa));
    json_object_set_new(object, "bits", json_integer(bits));
    json_object_set_new(object, "heads", json_integer(bed.heads));
    json_object_set_new(object, "tokens", json_integer(bed.tokens));
    json_object_set_new(object, "rows_share", json_real((double)bed.drawn / bed.tokens));
    json_object_set_new(object, "scan_us", json_real(values[SCAN]));
    json_object_set_new(object, "select_us", json_real(values[SELECT]));
    json_object_set_new(object, "attend_us", json_real(values[ATTEND]));
    json_object_set_new(object, "encode_ns_a_key", json_real(values[ENCODE] * 1e3 / bed.tokens));
    json_object_set_new(object, "exact_us", json_real(values[EXACT]));
    return bench_report(object, 1, PP_COMMIT, settings.json);
}

static enum pp_status run_bits(uint32_t bits)
{
    static const char *const isas[ISAS] = {"scalar", "avx2", "avx512", "avx512bf16"};
    memset(least, 0, sizeof(least));
    bed.encoder = (struct an_sketch_encoder){
        .shape = an_sketch_shape_of(bed.rows.dim, bits), .signs = &bed.signs, .centre = bed.centre};
    find_shift(an_sketch_kernels_get());
    for (uint64_t round = 0; round < settings.rounds; ++round) {
        for (uint32_t i = round < 2 ? 0 : 1; i < ISAS; ++i) {
            const struct an_sketch_kernels *kernels = an_sketch_kernels_named(isas[i]);
            const struct an_kernels *exact = an_kernels_named(i < 3 ? isas[i] : "avx512");
            if (kernels != NULL && exact != NULL) {
                measure_one(kernels, exact, round, least[i]);
            }
        }
    }
    for (uint32_t i = 0; i < ISAS; ++i) {
        if (least[i][EXACT] > 0.0) {
            PP_TRY(report(isas[i], bits, least[i]));
        }
    }
    return PP_OK;
}

static enum pp_status run_bench(void)
{
    bed.tokens = (uint32_t)settings.tokens;
    bed.heads = (uint32_t)settings.heads;
    if (settings.tokens == 0 || settings.tokens > PP_SEGMENT_TOKENS_MAX || settings.dim == 0 ||
        settings.dim > PP_HEAD_DIM_MAX || settings.heads == 0 || settings.heads > HEADS_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    enum pp_status status = bed_make();
    for (uint32_t bits = 1; status == PP_OK && bits <= 4; bits *= 2) {
        status = run_bits(bits);
    }
    bed_free();
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "sketch_bench",
        .summary = "Measures the sketch kernels of every instruction set side by side.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
