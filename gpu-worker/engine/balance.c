/*
 * What a layer's sketches are balanced with, measured over a prompt: a = (E x^2 / E q^2)^(1/4) a
 * dimension and kv head, x the keys around their mean, q the queries of the group's heads, both
 * moments with a hundredth of their mean over the dimensions added. Scaled to a geometric mean of
 * 1, for only ratios count. On the walk of a token's K/V: engine/prefill > here > remote/append. It
 * refuses to know what nodes do with it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "gpu-worker/engine/balance_file.h"
#include "gpu-worker/engine/engine_state.h"

#define ADDED_SHARE 0.01

enum pp_status gw_balance_init(const struct gw_heads *heads, struct gw_balance *balance_out)
{
    uint64_t values = (uint64_t)heads->kv_heads * heads->head_dim;
    double *memory = calloc(values, 2 * sizeof(double) + 2 * sizeof(float));
    if (memory == NULL) {
        return PP_MEMORY;
    }
    balance_out->q_squares = memory;
    balance_out->k_squares = memory + values;
    balance_out->centre = (float *)(memory + 2 * values);
    balance_out->values = balance_out->centre + values;
    return PP_OK;
}

void gw_balance_deinit(struct gw_balance *balance)
{
    free(balance->q_squares);
}

void gw_balance_clear(struct gw_balance *balance, const struct gw_heads *heads)
{
    uint64_t values = (uint64_t)heads->kv_heads * heads->head_dim;
    memset(balance->q_squares, 0, 2 * values * sizeof(double));
}

static double mean_of(const double *values, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / count;
}

/* The moments differ from their sums by a factor only. A head without keys apart or queries gets
 * ones. */
static void balance_head(const double *k_squares, const double *q_squares, uint32_t dim,
                         float *values_out)
{
    double k_added = ADDED_SHARE * mean_of(k_squares, dim);
    double q_added = ADDED_SHARE * mean_of(q_squares, dim);
    bool measured = k_added > 0.0 && q_added > 0.0;
    double logs[PP_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < dim; d++) {
        double ratio = (k_squares[d] + k_added) / (q_squares[d] + q_added);
        logs[d] = measured && ratio > 0.0 && isfinite(ratio) ? 0.25 * log(ratio) : 0.0;
    }
    double mean = mean_of(logs, dim);
    for (uint32_t d = 0; d < dim; d++) {
        values_out[d] = (float)exp(logs[d] - mean);
    }
}

enum pp_status gw_balance_measure(struct gw_engine *engine, struct gw_balance *balance,
                                  const void *k, uint64_t count)
{
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_heads *heads = &engine->heads;
    PP_TRY(ops->centre_keys(engine->device, engine->stream, heads, k, count, balance->centre));
    PP_TRY(ops->key_squares(engine->device, engine->stream, heads, k, count, balance->centre,
                            balance->k_squares));
    for (uint32_t head = 0; head < heads->kv_heads; head++) {
        uint64_t at = (uint64_t)head * heads->head_dim;
        balance_head(balance->k_squares + at, balance->q_squares + at, heads->head_dim,
                     balance->values + at);
    }
    return PP_OK;
}

static struct gw_balance_key balances_key(const struct gw_engine *engine)
{
    return (struct gw_balance_key){.fingerprint = engine->info.fingerprint,
                                   .fingerprint_bytes = engine->info.fingerprint_bytes,
                                   .layers = engine->info.shape.layers,
                                   .kv_heads = engine->heads.kv_heads,
                                   .head_dim = engine->heads.head_dim};
}

enum pp_status gw_engine_keep_balances(struct gw_engine *engine, const char *folder)
{
    struct gw_balance_key key = balances_key(engine);
    uint64_t values = (uint64_t)key.layers * key.kv_heads * key.head_dim;
    engine->balances = calloc(values, sizeof(float));
    engine->balances_folder = strdup(folder);
    if (engine->balances == NULL || engine->balances_folder == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = gw_balance_file_load(folder, &key, engine->balances);
    return status == PP_MEMORY ? status : PP_OK;
}

static float *balance_at(const struct gw_engine *engine, uint32_t layer)
{
    return engine->balances + (uint64_t)layer * engine->heads.kv_heads * engine->heads.head_dim;
}

float *gw_engine_balance(const struct gw_engine *engine, uint32_t layer)
{
    bool kept = engine->balances != NULL && balance_at(engine, layer)[0] != 0.0f;
    return kept ? balance_at(engine, layer) : NULL;
}

enum pp_status gw_balances_give(struct gw_sequence *sequence)
{
    const struct gw_engine *engine = sequence->engine;
    for (uint32_t layer = 0; layer < engine->info.shape.layers; layer++) {
        const float *kept = gw_engine_balance(engine, layer);
        if (kept != NULL && gw_sequence_balances(sequence, layer)) {
            PP_TRY(gw_remote_balance(sequence->remote, layer, kept));
        }
    }
    return PP_OK;
}

void gw_balances_take(struct gw_engine *engine, uint32_t layer, const float *values)
{
    if (engine->balances != NULL) {
        memcpy(balance_at(engine, layer), values,
               sizeof(float) * engine->heads.kv_heads * engine->heads.head_dim);
    }
}

void gw_balances_save(const struct gw_engine *engine)
{
    struct gw_balance_key key = balances_key(engine);
    if (engine->balances != NULL) {
        (void)gw_balance_file_save(engine->balances_folder, &key, engine->balances);
    }
}
