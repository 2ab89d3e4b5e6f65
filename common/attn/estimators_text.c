/*
 * Estimators as people write them. See estimators.h.
 */
#include <stdio.h>
#include <string.h>

#include "common/attn/estimators.h"

/* Three digits, never with an exponent: nobody reads one. */
static const char *format_of(float value)
{
    return value >= 1e-4f ? ",%s=%.3g" : ",%s=%.12f";
}

void pp_estimator_text(const struct pp_estimator *estimator, char text[PP_ESTIMATOR_TEXT_BYTES])
{
    char budget[32] = "";
    char target[32] = "";
    if (estimator->rows > 0) {
        (void)snprintf(budget, sizeof(budget), ",rows=%u", estimator->rows);
    } else if (estimator->rows_share > 0.0f) {
        (void)snprintf(budget, sizeof(budget), format_of(estimator->rows_share), "share",
                       (double)estimator->rows_share);
    }
    if (estimator->target_error > 0.0f) {
        (void)snprintf(target, sizeof(target), format_of(estimator->target_error), "error",
                       (double)estimator->target_error);
    }
    if (estimator->kind == PP_LSH) {
        (void)snprintf(text, PP_ESTIMATOR_TEXT_BYTES, "lsh:k=%u,l=%u,t=%u%s", estimator->k,
                       estimator->l, estimator->t, target);
    } else if (estimator->kind == PP_SKETCH) {
        (void)snprintf(text, PP_ESTIMATOR_TEXT_BYTES, "sketch:bits=%u%s%s", estimator->bits, budget,
                       target);
    } else {
        (void)snprintf(text, PP_ESTIMATOR_TEXT_BYTES, "%s",
                       estimator->kind == PP_EXACT ? "exact" : "");
    }
}

/* The text that most layers have; ties: the first. NULL when none has any. */
static const char *most_common(char (*texts)[PP_ESTIMATOR_TEXT_BYTES], size_t count)
{
    const char *best = NULL;
    size_t best_count = 0;
    for (size_t i = 0; i < count; ++i) {
        size_t same = 0;
        for (size_t j = 0; j < count && texts[i][0] != '\0'; ++j) {
            same += strcmp(texts[i], texts[j]) == 0;
        }
        best = same > best_count ? texts[i] : best;
        best_count = same > best_count ? same : best_count;
    }
    return best;
}

bool pp_estimators_text(char (*texts)[PP_ESTIMATOR_TEXT_BYTES], size_t count,
                        char out[PP_ESTIMATORS_TEXT_BYTES])
{
    const char *common = most_common(texts, count);
    size_t used =
        (size_t)snprintf(out, PP_ESTIMATORS_TEXT_BYTES, "%s", common != NULL ? common : "");
    uint32_t ranges = 0;
    for (size_t first = 0; first < count && common != NULL;) {
        size_t last = first;
        bool other = texts[first][0] != '\0' && strcmp(texts[first], common) != 0;
        while (last + 1 < count && strcmp(texts[last + 1], texts[first]) == 0) {
            ++last;
        }
        if (other && ++ranges <= PP_ESTIMATOR_RANGES_MAX) {
            char layers[24] = "";
            if (last > first) {
                (void)snprintf(layers, sizeof(layers), "-%zu", last);
            }
            used += (size_t)snprintf(out + used, PP_ESTIMATORS_TEXT_BYTES - used, "/%zu%s:%s",
                                     first, layers, texts[first]);
        }
        first = last + 1;
    }
    return common != NULL && ranges <= PP_ESTIMATOR_RANGES_MAX;
}
