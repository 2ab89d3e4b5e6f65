/*
 * One prompt and the answer to it: a sequence that is opened, reads the prompt, and gives a token a
 * step, whoever steps it. On the walk: above engine. It refuses to know other answers and where the
 * text goes.
 *
 * Threads: main. What fails has been told on stderr when the status returns, unless said otherwise.
 */
#ifndef PIGPEN_GPU_WORKER_API_ANSWER_H
#define PIGPEN_GPU_WORKER_API_ANSWER_H

#include <jansson.h>

#include "gpu-worker/api/document.h"
#include "gpu-worker/api/generate_options.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/ops/sample.h"

struct gw_answer {
    /* Set by the owner; borrowed. */
    const struct gw_generate_options *options;
    struct gw_worker *worker;
    struct gw_progress *progress;
    uint32_t number, of; /* 1 of 1, or its place in a list */
    uint32_t *ids;       /* owned */
    size_t id_count;

    uint64_t tokens_max;
    struct gw_sequence *sequence;      /* NULL: not begun, or ended */
    struct gw_document *document;      /* NULL: prefill */
    struct gw_document_writer *writer; /* NULL: nothing is saved */
    uint64_t shared;                   /* tokens that the document gives */
    struct gw_sampler sampler;
    struct gw_detokenizer detokenizer;
    uint32_t next; /* the token that was drawn last */
    char *text;    /* what was answered so far */
    size_t bytes, capacity;
    uint64_t prefill_us, save_us, tune_us;
    uint64_t generated;
    struct gw_step_stats steps;
    const char *finish; /* "stop", "length", "interrupted", "error"; NULL: it goes on */
    enum pp_status status;
    bool ended;
    char *figures;  /* a line or some for people, once it has ended; owned */
    json_t *object; /* the same as JSON, until somebody takes it */
};

/* What can be told to be wrong at once: a prompt that leaves no room, documents. */
PP_MUST_USE enum pp_status gw_answer_check(struct gw_answer *answer);
/* Opens its sequence on the nodes. Not told: PP_MEMORY, also where nodes have no room; else told.
 */
PP_MUST_USE enum pp_status gw_answer_open(struct gw_answer *answer);
/* Reads the prompt, draws the first token, saves and tunes where that was asked for. PP_CANCELLED:
 * interrupted. */
PP_MUST_USE enum pp_status gw_answer_read(struct gw_answer *answer);
/* Adds the text of `next`. Afterwards `finish` is set, or it wants a step, whose sampler is its own
 * and whose token becomes `next`. */
PP_MUST_USE enum pp_status gw_answer_add(struct gw_answer *answer);
/* It is over: `finish` stays where the status is PP_OK, is "interrupted" where that is PP_CANCELLED
 * and else "error". Its sequence is closed, figures and object are there. */
void gw_answer_end(struct gw_answer *answer, enum pp_status status);
/* Whether one that is over came to its end: it has neither failed nor been interrupted. */
bool gw_answer_whole(const struct gw_answer *answer);
/* Says on stderr what failed, and of which prompt. */
void gw_answer_explain(const struct gw_answer *answer, const char *what, enum pp_status status);
void gw_answer_deinit(struct gw_answer *answer);

#endif
