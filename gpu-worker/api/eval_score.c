/*
 * Scores of logits. It refuses to know where they come from.
 */
#include "gpu-worker/api/eval_score.h"

#include <math.h>

#include "gpu-worker/ops/sample.h"

enum pp_status gw_eval_score_add(struct gw_eval_score *score, const float *reference,
                                 const float *logits, uint32_t vocab, uint32_t next)
{
    uint32_t best, reference_best;
    PP_TRY(gw_argmax(reference, vocab, &reference_best));
    PP_TRY(gw_argmax(logits, vocab, &best));
    double kl = gw_kl(reference, logits, vocab);
    score->rows += 1;
    score->log_p_sum += (double)logits[next] - gw_log_sum_exp(logits, vocab);
    score->kl_sum += kl;
    score->kl_max = kl > score->kl_max ? kl : score->kl_max;
    for (uint32_t i = 0; i < vocab; ++i) {
        double error = fabs((double)logits[i] - (double)reference[i]);
        score->logit_error_max = error > score->logit_error_max ? error : score->logit_error_max;
    }
    score->top1_same += best == reference_best ? 1 : 0;
    score->next_same += best == next ? 1 : 0;
    return PP_OK;
}

double gw_eval_score_perplexity(const struct gw_eval_score *score)
{
    return exp(-score->log_p_sum / (double)score->rows);
}
