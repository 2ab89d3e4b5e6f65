/*
 * Options of how tokens are drawn, and the sampler that they make. It refuses to know what is done
 * with the tokens.
 */
#include "gpu-worker/api/sampling.h"

#include <string.h>

static size_t draw_option_table(struct gw_sampling_options *options, struct pp_option *table_out)
{
    struct gw_sampling *sampling = &options->sampling;
    const struct pp_option table[] = {
        {.name = "temperature",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->temperature,
         .group = "Answer",
         .default_text = "0",
         .value_name = "T",
         .number_max = 100.0,
         .help = "0 takes the likeliest token each time (greedy)."},
        {.name = "top-k",
         .kind = PP_OPTION_U64,
         .target = &options->top_k,
         .group = "Answer",
         .default_text = "0",
         .value_name = "K",
         .max = 1u << 30,
         .help = "Draw among the K likeliest tokens only. 0: all."},
        {.name = "top-p",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->top_p,
         .group = "Answer",
         .default_text = "1",
         .value_name = "P",
         .number_min = 1e-6,
         .number_max = 1.0,
         .help = "Draw among the likeliest tokens that together have this probability."},
        {.name = "min-p",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->min_p,
         .group = "Answer",
         .default_text = "0",
         .value_name = "P",
         .number_max = 1.0,
         .help = "Draw among tokens with this share of the likeliest one's probability."},
        {.name = "seed",
         .kind = PP_OPTION_U64,
         .target = &sampling->seed,
         .group = "Answer",
         .default_text = "1",
         .value_name = "N",
         .help = "Same seed, same answer."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t penalty_option_table(struct gw_sampling *sampling, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "repeat-penalty",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->repetition,
         .group = "Answer",
         .default_text = "1",
         .value_name = "X",
         .number_min = 0.01,
         .number_max = 100.0,
         .help = "Divide the logits of tokens in the prompt and the answer by it, those below zero "
                 "times it. Above 1 they become less likely."},
        {.name = "presence-penalty",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->presence,
         .group = "Answer",
         .default_text = "0",
         .value_name = "X",
         .number_min = -2.0,
         .number_max = 2.0,
         .help = "Take it off the logits of tokens in the answer."},
        {.name = "frequency-penalty",
         .kind = PP_OPTION_DOUBLE,
         .target = &sampling->frequency,
         .group = "Answer",
         .default_text = "0",
         .value_name = "X",
         .number_min = -2.0,
         .number_max = 2.0,
         .help = "Take it off them once for each time that they stand there."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

size_t gw_sampling_option_table(struct gw_sampling_options *options, struct pp_option *table_out)
{
    size_t count = draw_option_table(options, table_out);
    return count + penalty_option_table(&options->sampling, table_out + count);
}

enum pp_status gw_sampling_open(const struct gw_sampling_options *options,
                                const struct gw_worker *worker, const uint32_t *ids, size_t count,
                                struct gw_sampler *sampler)
{
    struct gw_sampling sampling = options->sampling;
    uint32_t vocab = gw_engine_info(worker->engine)->vocab;
    uint32_t known = gw_tokenizer_vocab(worker->tokenizer);
    sampling.top_k = (uint32_t)options->top_k;
    PP_TRY(gw_sampler_init(sampler, worker->device, known < vocab ? known : vocab, &sampling));
    return gw_sampler_prompt(sampler, ids, count);
}
