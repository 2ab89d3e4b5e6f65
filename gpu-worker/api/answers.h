/*
 * All answers of a run of `generate`: the prompts of a list or the only one, some of them side by
 * side, their texts on stdout in order and as they grow. On the walk: above engine. It refuses to
 * know what an answer is made of.
 */
#ifndef PIGPEN_GPU_WORKER_API_ANSWERS_H
#define PIGPEN_GPU_WORKER_API_ANSWERS_H

#include "gpu-worker/api/answer.h"

struct gw_answers {
    const struct gw_generate_options *options; /* borrowed, as the worker is */
    struct gw_worker *worker;
    struct gw_progress progress;
    char *text; /* that stands before every prompt */
    size_t text_bytes;
    char *list;                /* the text of --prompts, lines NUL-ended; NULL: one prompt */
    const char **lines;        /* [count] prompts */
    struct gw_answer *answers; /* [count] */
    uint32_t count;
    uint32_t begun, front; /* how many were begun, and printed to their end */
    size_t printed;        /* bytes of the one in front */
    bool headed;           /* it has its heading */
    struct gw_answer *active[GW_BATCH_MAX];
    uint32_t active_count;
    bool full;                  /* there is no room for another before one of them has ended */
    struct gw_step_stats steps; /* of all together */
    uint64_t rows;              /* that they ran: tokens */
    uint32_t answered, whole;   /* those that did not fail; of these, the ones not interrupted */
    enum pp_status status;      /* why the first that failed did */
};

/* Reads the prompts. Before the worker is open: a missing file is told at once. */
PP_MUST_USE enum pp_status gw_answers_read(struct gw_answers *answers,
                                           const struct gw_generate_options *options);
/* Encodes all of them and looks at what can be wrong, before anything is computed. */
PP_MUST_USE enum pp_status gw_answers_prepare(struct gw_answers *answers, struct gw_worker *worker);
/* Answers them. A prompt that fails is told on stderr and the others go on; then the status is of
 * the first that did. Interrupted: the running ones end with what they have, no other begins, and
 * one whose prompt was being read is PP_CANCELLED. PP_IO: nobody reads stdout. */
PP_MUST_USE enum pp_status gw_answers_run(struct gw_answers *answers);
void gw_answers_deinit(struct gw_answers *answers);

#endif
