/*
 * Shows what tuning made of layers. See tuning.h. What is printed as --estimator is what lsh layers
 * would need, and what the others have.
 */
#include "gpu-worker/api/tuning.h"

#include <string.h>

#include "common/attn/estimators.h"

static const char unchanged[] = "as opened";

/* What a layer is attended with now. */
static void used_text(const struct gw_tuning *tuning, char text[PP_ESTIMATOR_TEXT_BYTES])
{
    pp_estimator_text(&tuning->used, text);
    if (text[0] == '\0') {
        memcpy(text, unchanged, sizeof(unchanged));
    }
}

/* The --estimator of all layers; false: there is none. */
static bool whole_text(const struct gw_sequence *sequence, char line[PP_ESTIMATORS_TEXT_BYTES])
{
    static char texts[PP_LAYERS_MAX][PP_ESTIMATOR_TEXT_BYTES];
    uint32_t layers = 0;
    for (const struct gw_tuning *tuning; layers < gw_sequence_layers(sequence); layers++) {
        tuning = gw_sequence_tuning(sequence, layers);
        pp_estimator_text(&tuning->proposed, texts[layers]);
    }
    return pp_estimators_text(texts, layers, line);
}

static void print_layer(uint32_t layer, const struct gw_tuning *tuning, FILE *out)
{
    char used[PP_ESTIMATOR_TEXT_BYTES], proposed[PP_ESTIMATOR_TEXT_BYTES];
    if (tuning->proposed.kind == PP_ESTIMATOR_NONE) {
        fprintf(out, "%5u   nothing to tune: it samples nothing yet, or nodes did not say\n",
                layer);
        return;
    }
    used_text(tuning, used);
    pp_estimator_text(&tuning->proposed, proposed);
    bool other = tuning->proposed.kind == PP_LSH;
    fprintf(out, "%5u %9.4f %8.4f   %-28s %9.4f %8.4f %8.4f%s%s\n", layer,
            (double)tuning->rows_share_now, (double)tuning->error_now, used,
            (double)tuning->rows_share, (double)tuning->error, (double)tuning->error_worst,
            other ? "   by " : "", other ? proposed : "");
}

void gw_tuning_print(const struct gw_sequence *sequence, float error, FILE *out)
{
    char line[PP_ESTIMATORS_TEXT_BYTES];
    if (gw_sequence_tuning(sequence, 0) == NULL) {
        return;
    }
    fprintf(out, "tuned for an error of %.3g:\n%5s %9s %8s   %-28s %9s %8s %8s\n", (double)error,
            "layer", "read/kv", "error", "attended with", "read/kv", "error", "worst");
    for (uint32_t layer = 0; layer < gw_sequence_layers(sequence); layer++) {
        print_layer(layer, gw_sequence_tuning(sequence, layer), out);
    }
    if (whole_text(sequence, line)) {
        fprintf(out, "to open with it: --estimator %s\n", line);
    }
}

void gw_tuning_json(json_t *object, const struct gw_sequence *sequence, float error,
                    uint64_t took_us)
{
    char line[PP_ESTIMATORS_TEXT_BYTES];
    json_t *layers = json_array();
    if (gw_sequence_tuning(sequence, 0) == NULL) {
        json_decref(layers);
        return;
    }
    for (uint32_t layer = 0; layer < gw_sequence_layers(sequence); layer++) {
        const struct gw_tuning *tuning = gw_sequence_tuning(sequence, layer);
        char used[PP_ESTIMATOR_TEXT_BYTES], proposed[PP_ESTIMATOR_TEXT_BYTES];
        used_text(tuning, used);
        pp_estimator_text(&tuning->proposed, proposed);
        json_array_append_new(
            layers,
            json_pack("{s:i, s:i, s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "layer", (int)layer,
                      "queries", (int)tuning->queries, "estimator", used, "proposed", proposed,
                      "rows_share", (double)tuning->rows_share, "error", (double)tuning->error,
                      "error_worst", (double)tuning->error_worst, "rows_share_now",
                      (double)tuning->rows_share_now, "error_now", (double)tuning->error_now));
    }
    bool whole = whole_text(sequence, line);
    json_object_set_new(object, "tuning",
                        json_pack("{s:f, s:f, s:s, s:o}", "error", (double)error, "ms",
                                  (double)took_us * 1e-3, "estimator", whole ? line : "", "layers",
                                  layers));
}
