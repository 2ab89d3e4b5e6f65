/*
 * `pigpenctl tune`: asks a node what a part's layers need for a target error, and prints a table
 * and the `--estimator` of a worker that gives it to them.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/attn/estimators.h"
#include "common/base/limits.h"
#include "deploy/ctl/ctl.h"
#include "pigpen/v1/admin.pb-c.h"

#define ADMIN   "/pigpen.v1.AdminService/"
#define WAIT_US 600000000ull

/* The part asked for, or the only one of the node, and the node's incarnation. */
static enum ctl_exit find_part(struct ctl *ctl, Pigpen__V1__PartRef *part_out)
{
    Pigpen__V1__ListPartsRequest request;
    pigpen__v1__list_parts_request__init(&request);
    const ProtobufCMessage *message = NULL;
    enum ctl_exit outcome = ctl_call(ctl, ADMIN "ListParts", &request.base,
                                     &pigpen__v1__list_parts_response__descriptor, &message);
    if (outcome != CTL_OK) {
        return outcome;
    }
    const Pigpen__V1__ListPartsResponse *page = (const Pigpen__V1__ListPartsResponse *)message;
    part_out->incarnation = page->incarnation;
    if (ctl->part[0] != '\0') {
        char *end;
        errno = 0;
        part_out->handle = strtoull(ctl->part, &end, 16);
        if (errno != 0 || *end != '\0' || ctl->part[0] == '-') {
            fprintf(stderr, "pigpenctl: --part is a handle as `pigpenctl parts` shows it\n");
            return CTL_USAGE;
        }
        return CTL_OK;
    }
    if (page->n_parts != 1) {
        fprintf(stderr, "pigpenctl: %s holds %" PRIu64 " parts: name one with --part\n", ctl->node,
                page->parts_total);
        return CTL_USAGE;
    }
    part_out->handle = page->parts[0]->handle;
    return CTL_OK;
}

/* A share rounded up to a ladder of steps of 1/4, so that neighbours come out alike. */
static double rounded_share(double share)
{
    double step = ceil(log(share) / log(1.25) - 1e-6);
    double rounded = exp(step * log(1.25));
    return rounded < 1.0 ? rounded : 1.0;
}

/* What a worker would say for a layer; "" where the node says nothing. */
static void layer_text(const Pigpen__V1__LayerTuning *layer, char text[PP_ESTIMATOR_TEXT_BYTES])
{
    const Pigpen__V1__Estimator *said = layer->estimator;
    struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE};
    if (said != NULL && layer->dense) {
        estimator.kind = PP_EXACT;
    } else if (said != NULL && said->kind == PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_LSH) {
        uint32_t tables = (said->l + 7) / 8 * 8;
        estimator = (struct pp_estimator){
            .kind = PP_LSH, .k = said->k, .l = tables < 512 ? tables : 512, .t = said->t};
    } else if (said != NULL) {
        estimator =
            (struct pp_estimator){.kind = PP_SKETCH,
                                  .bits = said->bits,
                                  .rows_share = (float)rounded_share((double)said->rows_share)};
    }
    pp_estimator_text(&estimator, text);
}

static void put_layer(const Pigpen__V1__LayerTuning *layer, const char *text, json_t *list)
{
    if (list != NULL) {
        json_t *object = json_pack(
            "{s:i, s:I, s:i, s:s, s:b, s:f, s:f, s:f, s:f, s:f}", "layer", (int)layer->layer,
            "tokens", (json_int_t)layer->tokens, "queries", (int)layer->queries, "estimator", text,
            "dense", layer->dense ? 1 : 0, "rows_share", (double)layer->rows_share, "error",
            (double)layer->error, "error_worst", (double)layer->error_worst, "rows_share_now",
            (double)layer->rows_share_now, "error_now", (double)layer->error_now);
        (void)json_array_append_new(list, object);
    } else if (text[0] == '\0') {
        printf("%5u %9" PRIu64 " %7u   nothing to say: it samples nothing or was not asked yet\n",
               layer->layer, layer->tokens, layer->queries);
    } else {
        printf("%5u %9" PRIu64 " %7u %9.4f %8.3f   %-26s %9.4f %8.3f %8.3f\n", layer->layer,
               layer->tokens, layer->queries, (double)layer->rows_share_now,
               (double)layer->error_now, text, (double)layer->rows_share, (double)layer->error,
               (double)layer->error_worst);
    }
}

static enum ctl_exit put_answer(struct ctl *ctl, const Pigpen__V1__TunePartResponse *answer)
{
    static char texts[PP_LAYERS_MAX][PP_ESTIMATOR_TEXT_BYTES];
    static char line[PP_ESTIMATORS_TEXT_BYTES];
    size_t count = answer->n_layers < PP_LAYERS_MAX ? answer->n_layers : PP_LAYERS_MAX;
    json_t *list = ctl->json ? json_array() : NULL;
    if (list == NULL) {
        printf("%5s %9s %7s %9s %8s   %-26s %9s %8s %8s\n", "layer", "tokens", "queries",
               "rows now", "error", "proposed", "rows", "error", "worst");
    }
    for (size_t i = 0; i < count; ++i) {
        layer_text(answer->layers[i], texts[i]);
        put_layer(answer->layers[i], texts[i], list);
    }
    bool fits = pp_estimators_text(texts, count, line);
    if (list != NULL) {
        ctl_print_json(json_pack("{s:f, s:s, s:o}", "target_error", ctl->target_error, "estimator",
                                 fits ? line : "", "layers", list));
    } else if (fits) {
        printf("--estimator %s\n", line);
    } else {
        printf("no --estimator: %s\n", line[0] == '\0' ? "no layer has anything to say"
                                                       : "the layers differ too much for one");
    }
    return CTL_OK;
}

enum ctl_exit ctl_tune(struct ctl *ctl)
{
    Pigpen__V1__TunePartRequest request;
    Pigpen__V1__PartRef part;
    pigpen__v1__tune_part_request__init(&request);
    pigpen__v1__part_ref__init(&part);
    enum ctl_exit outcome = find_part(ctl, &part);
    if (outcome != CTL_OK) {
        return outcome;
    }
    request.part = &part;
    request.target_error = (float)ctl->target_error;
    ctl->timeout_us = ctl->timeout_us > WAIT_US ? ctl->timeout_us : WAIT_US;
    const ProtobufCMessage *message = NULL;
    outcome = ctl_call(ctl, ADMIN "TunePart", &request.base,
                       &pigpen__v1__tune_part_response__descriptor, &message);
    return outcome != CTL_OK ? outcome
                             : put_answer(ctl, (const Pigpen__V1__TunePartResponse *)message);
}
