/*
 * Names of estimators, and what all kinds share. See estimator.h.
 */
#include "bench/quality/estimator.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"

static const char *const kind_names[QUALITY_KINDS] = {"exact", "topk", "weight", "uniform",
                                                      "quest", "loki", "lsh",    "sketch"};

static bool parse_number(const char *value, uint32_t *number_out)
{
    char *end;
    unsigned long number = strtoul(value, &end, 10);
    *number_out = (uint32_t)number;
    return *end == '\0' && end != value && number > 0 && number <= 512;
}

static bool parse_parameter(struct quality_spec *spec, const char *name, const char *value)
{
    bool no = strcmp(value, "no") == 0;
    bool choice = no || strcmp(value, "yes") == 0;
    bool lsh = spec->kind == QUALITY_LSH, sketch = spec->kind == QUALITY_SKETCH;
    if (strcmp(name, "sample") == 0 && !lsh && spec->kind != QUALITY_EXACT) {
        spec->head_by_head = strcmp(value, "head") == 0;
        return spec->head_by_head || strcmp(value, "group") == 0;
    }
    if (strcmp(name, "centre") == 0 && lsh) {
        spec->centred = !no;
        return choice;
    }
    if (strcmp(name, "balance") == 0 && sketch) {
        spec->balanced = !no;
        return choice;
    }
    if (strcmp(name, "bits") == 0 && sketch) {
        return parse_number(value, &spec->bits);
    }
    if (strcmp(name, "segments") == 0 && sketch) {
        return parse_number(value, &spec->segments);
    }
    uint32_t *number = strcmp(name, "k") == 0   ? &spec->k
                       : strcmp(name, "l") == 0 ? &spec->l
                       : strcmp(name, "t") == 0 ? &spec->t
                                                : NULL;
    return lsh && number != NULL && parse_number(value, number);
}

/* Whether the product takes its parameters. */
static bool spec_fits(const struct quality_spec *spec)
{
    struct pp_estimator estimator = {
        .kind = PP_LSH, .k = spec->k, .l = spec->l > 0 ? spec->l : 512, .t = spec->t};
    if (spec->kind == QUALITY_SKETCH) {
        estimator = (struct pp_estimator){.kind = PP_SKETCH, .bits = spec->bits};
    }
    return pp_estimator_resolve(&estimator) == PP_OK;
}

static enum pp_status spec_parse(struct quality_spec *spec)
{
    char text[sizeof(spec->text)];
    memcpy(text, spec->text, sizeof(text));
    char *at = text + strcspn(text, ":");
    bool more = *at == ':';
    *at = '\0';
    while (spec->kind < QUALITY_KINDS && strcmp(text, kind_names[spec->kind]) != 0) {
        spec->kind++;
    }
    while (more) {
        char *name = at + 1;
        char *value = name + strcspn(name, "=,");
        at = value + strcspn(value, ",");
        more = *at == ',';
        *at = '\0';
        if (*value != '=') {
            return PP_INVALID_ARGUMENT;
        }
        *value = '\0';
        if (!parse_parameter(spec, name, value + 1)) {
            return PP_INVALID_ARGUMENT;
        }
    }
    return spec->kind < QUALITY_KINDS && spec_fits(spec) ? PP_OK : PP_INVALID_ARGUMENT;
}

/* Bytes of the first of a list: up to a comma that no parameter follows. */
static size_t spec_bytes(const char *text)
{
    size_t bytes = strcspn(text, ",");
    while (text[bytes] == ',' && text[bytes + 1 + strcspn(text + bytes + 1, "=,:")] == '=') {
        bytes += 1 + strcspn(text + bytes + 1, ",");
    }
    return bytes;
}

enum pp_status quality_specs_parse(const char *text, struct quality_spec *specs_out,
                                   uint32_t specs_max, uint32_t *count_out)
{
    uint32_t count = 0;
    bool more = true;
    while (more) {
        size_t bytes = spec_bytes(text);
        if (count == specs_max || bytes >= sizeof(specs_out[count].text)) {
            return PP_INVALID_ARGUMENT;
        }
        struct quality_spec *spec = &specs_out[count++];
        *spec = (struct quality_spec){
            .k = 10, .t = 2, .bits = 2, .segments = 1, .centred = true, .balanced = true};
        memcpy(spec->text, text, bytes);
        PP_TRY(spec_parse(spec));
        more = text[bytes] == ',';
        text += bytes + (more ? 1 : 0);
    }
    *count_out = count;
    return PP_OK;
}

bool quality_spec_sought(const struct quality_spec *spec)
{
    return spec->head_by_head || (spec->kind == QUALITY_LSH && spec->l == 0);
}

static void *aligned_floats(uint64_t count)
{
    return aligned_alloc(64, (count * sizeof(float) + 63) & ~63ull);
}

static enum pp_status scratch_take(const struct quality_estimator *estimator,
                                   struct quality_scratch *scratch)
{
    const struct quality_head *head = &estimator->held->heads[0];
    uint64_t tokens = head->tokens, vectors = (uint64_t)head->group * head->dim;
    uint64_t index = an_index_query_scratch_bytes(&estimator->params, head->tokens);
    *scratch = (struct quality_scratch){.scores = aligned_floats(head->group * tokens),
                                        .proxies = aligned_floats(head->group * tokens),
                                        .ranks = aligned_floats(tokens),
                                        .sorted = aligned_floats(tokens),
                                        .u = aligned_floats(tokens),
                                        .ids = aligned_floats(tokens),
                                        .bits = calloc((tokens + 63) / 64, sizeof(uint64_t)),
                                        .q_scaled = aligned_floats(vectors),
                                        .o = aligned_floats(vectors),
                                        .b1 = aligned_floats(vectors),
                                        .codes = calloc(head->group, 512 * sizeof(uint16_t)),
                                        .index = aligned_floats(index / sizeof(float) + 16)};
    bool taken = scratch->scores != NULL && scratch->proxies != NULL && scratch->ranks != NULL &&
                 scratch->sorted != NULL && scratch->u != NULL && scratch->ids != NULL &&
                 scratch->bits != NULL && scratch->q_scaled != NULL && scratch->o != NULL &&
                 scratch->b1 != NULL && scratch->codes != NULL && scratch->index != NULL;
    return taken ? PP_OK : PP_MEMORY;
}

static void scratch_free(struct quality_scratch *scratch)
{
    void *const all[] = {scratch->scores, scratch->proxies, scratch->ranks, scratch->sorted,
                         scratch->u,      scratch->ids,     scratch->bits,  scratch->q_scaled,
                         scratch->o,      scratch->b1,      scratch->codes, scratch->index};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i) {
        free(all[i]);
    }
}

static uint32_t head_count(const struct quality_estimator *estimator)
{
    return estimator->held->shape.layers * estimator->held->shape.kv_heads;
}

static bool is_product(const struct quality_estimator *estimator)
{
    return estimator->spec.kind == QUALITY_LSH || estimator->spec.kind == QUALITY_SKETCH;
}

enum pp_status quality_open(const struct quality_spec *spec, const struct quality_held *held,
                            double knob, uint32_t threads, struct quality_estimator *estimator_out)
{
    struct quality_estimator *estimator = estimator_out;
    *estimator =
        (struct quality_estimator){.spec = *spec, .held = held, .knob = knob, .threads = threads};
    estimator->states = calloc(head_count(estimator), sizeof(void *));
    estimator->scratch = calloc(threads, sizeof(*estimator->scratch));
    if (estimator->states == NULL || estimator->scratch == NULL) {
        return PP_MEMORY;
    }
    if (is_product(estimator)) {
        PP_TRY(quality_product_open(estimator));
    }
    for (uint32_t i = 0; i < head_count(estimator) && !is_product(estimator); ++i) {
        PP_TRY(quality_peer_state(estimator, &held->heads[i], &estimator->states[i]));
    }
    for (uint32_t i = 0; i < threads; ++i) {
        PP_TRY(scratch_take(estimator, &estimator->scratch[i]));
    }
    return PP_OK;
}

void quality_close(struct quality_estimator *estimator)
{
    for (uint32_t i = 0; estimator->states != NULL && i < head_count(estimator); ++i) {
        free(estimator->states[i]);
    }
    for (uint32_t i = 0; estimator->scratch != NULL && i < estimator->threads; ++i) {
        scratch_free(&estimator->scratch[i]);
    }
    free(estimator->states);
    free(estimator->scratch);
    pp_hash_destroy(estimator->hash);
    *estimator = (struct quality_estimator){0};
}

void quality_attend(const struct quality_estimator *estimator, uint32_t layer, uint32_t kv_head,
                    const float *q, uint64_t seed, uint32_t thread,
                    struct quality_answer *answer_out)
{
    const struct quality_head *head = quality_head_at(estimator->held, layer, kv_head);
    struct quality_scratch *scratch = &estimator->scratch[thread];
    struct quality_call call = {
        .estimator = estimator,
        .head = head,
        .state = estimator->states[layer * estimator->held->shape.kv_heads + kv_head],
        .q = q,
        .seed = seed,
        .scratch = scratch,
        .answer = answer_out};
    answer_out->rows = answer_out->rows_q = 0;
    answer_out->bytes = 0.0;
    answer_out->fell_back = false;
    for (uint32_t i = 0; i < head->group * head->dim; ++i) {
        scratch->q_scaled[i] = q[i] * head->scale;
    }
    memset(scratch->bits, 0, (head->tokens + 63) / 64 * sizeof(uint64_t));
    if (estimator->spec.kind == QUALITY_EXACT) {
        quality_exact(head, q, answer_out->o, answer_out->lse);
        memset(answer_out->var, 0, sizeof(answer_out->var));
        answer_out->rows = head->tokens;
        answer_out->rows_q = (uint64_t)head->tokens * head->group;
        answer_out->bytes = (double)head->tokens * (double)head->rows.row_bytes;
    } else if (is_product(estimator)) {
        quality_product_attend(&call);
    } else {
        quality_peer_attend(&call);
    }
}
