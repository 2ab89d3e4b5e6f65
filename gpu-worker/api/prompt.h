/*
 * From what a person asked to the ids of a prompt: the model's chat template around it, or raw
 * text. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_PROMPT_H
#define PIGPEN_GPU_WORKER_API_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpu-worker/api/worker.h"

struct gw_prompt_options {
    const char *prompt; /* "": none */
    const char *file;   /* "": none; "-" is stdin */
    const char *system; /* "": the template's own */
    bool raw;           /* text as it is, without the template */
};

/* The text of options->file, nothing where there is none. *text_out is malloc'ed. On an error a
 * clear line has gone to `errors`. */
PP_MUST_USE enum pp_status gw_prompt_read(const struct gw_prompt_options *options, FILE *errors,
                                          char **text_out, size_t *bytes_out);
/* The user's message: text [bytes], a blank line and the prompt, where there are both. Alike. */
PP_MUST_USE enum pp_status gw_prompt_join(const char *text, size_t bytes, const char *prompt,
                                          FILE *errors, char **joined_out, size_t *bytes_out);
/* Its ids, *ids_out malloc'ed. Errors alike. */
PP_MUST_USE enum pp_status gw_prompt_encode(const struct gw_worker *worker,
                                            const struct gw_prompt_options *options,
                                            const char *text, size_t bytes, FILE *errors,
                                            uint32_t **ids_out, size_t *count_out);

#endif
