/*
 * An attend over all parts of a sequence: which parts it touches and with how many held tokens, and
 * the merge of their partials. On the walk: engine/step > here > attn_client, and back with the
 * merged partial. It refuses to know streams and messages.
 */
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/budget.h"

static enum pp_status check_attend(const struct gw_remote_sequence *sequence,
                                   struct gw_remote_attend *attend)
{
    if (sequence->attending) {
        return PP_FAILED_PRECONDITION;
    }
    if (attend->layer >= sequence->config.shape.layers || attend->q_rows == 0 ||
        attend->q_rows > PP_ATTEND_ROWS_MAX || attend->q == NULL) {
        return PP_INVALID_ARGUMENT;
    }
    if (attend->held_tokens > gw_remote_held(sequence, attend->layer)) {
        return PP_SHORT_PART;
    }
    if (attend->estimator.kind != PP_ESTIMATOR_NONE) {
        PP_TRY(pp_estimator_resolve(&attend->estimator));
    }
    uint64_t values =
        (uint64_t)attend->q_rows * sequence->config.shape.q_heads * sequence->config.shape.head_dim;
    return pp_dtype_check_finite(PP_F32, attend->q, values);
}

/* Whoever holds a part that is touched may be asked. */
static enum pp_status prepare_asks(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        part->ask.ready = false;
        if (atomic_load(&part->lost) || sequence->sets[part->index].dispatch.held_tokens == 0) {
            continue;
        }
        if (sequence->attend.q_rows > part->node->limits.q_rows_max) {
            return PP_INVALID_ARGUMENT;
        }
        PP_TRY(gw_ask_prepare(part));
    }
    return PP_OK;
}

/* Everything but the handing over. */
static enum pp_status prepare(struct gw_remote_sequence *sequence,
                              const struct gw_remote_attend *attend)
{
    struct gw_remote_attend asked = *attend;
    PP_TRY(gw_sequence_failed(sequence));
    PP_TRY(check_attend(sequence, &asked));
    sequence->attend = asked;
    uint32_t touched = 0;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        uint64_t tokens = gw_route_part_tokens(&sequence->route, i, asked.held_tokens);
        dispatch->held_tokens = 0;
        if (tokens > 0) {
            PP_TRY(gw_dispatch_reserve(dispatch, asked.q_rows));
            PP_TRY(gw_dispatch_prepare(dispatch, &asked, tokens));
            touched++;
        }
    }
    gw_budget_divide(sequence, &asked);
    PP_TRY(prepare_asks(sequence));
    sequence->attending = true;
    sequence->attend_begun_us = gw_remote_now(sequence->remote);
    atomic_store(&sequence->dispatches_waiting, touched);
    return PP_OK;
}

/* Puts the dispatches of an attend that is prepared behind *last, and moves that. */
static void chain(struct gw_remote_sequence *sequence, struct gw_dispatch **first,
                  struct gw_dispatch **last)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        if (dispatch->held_tokens == 0) {
            continue;
        }
        dispatch->next = NULL;
        if (*last != NULL) {
            (*last)->next = dispatch;
        } else {
            *first = dispatch;
        }
        *last = dispatch;
    }
}

void gw_remote_attends_begin(struct gw_remote_begin *begins, uint32_t count)
{
    struct gw_dispatch *first = NULL, *last = NULL;
    for (uint32_t i = 0; i < count; ++i) {
        begins[i].status = prepare(begins[i].sequence, &begins[i].attend);
        if (begins[i].status == PP_OK) {
            chain(begins[i].sequence, &first, &last);
        }
    }
    if (first != NULL) {
        gw_remote_post(begins[0].sequence->remote, &first->command);
    }
}

enum pp_status gw_remote_attend_begin(struct gw_remote_sequence *sequence,
                                      const struct gw_remote_attend *attend)
{
    struct gw_remote_begin begin = {.sequence = sequence, .attend = *attend};
    gw_remote_attends_begin(&begin, 1);
    return begin.status;
}

/* One row and q head: the merge law over the parts that hold its kv head. */
static void merge_head(struct gw_remote_sequence *sequence, uint32_t row, uint32_t q_head,
                       struct gw_remote_answer *answer)
{
    struct pp_partial partials[GW_NODES_MAX];
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t dim = shape->head_dim, group = pp_shape_group(shape), count = 0;
    uint64_t to = (uint64_t)row * shape->q_heads + q_head;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        uint32_t begin = sequence->route.parts[i].kv_head_begin * group;
        if (dispatch->held_tokens == 0 || q_head < begin || q_head - begin >= dispatch->q_heads) {
            continue;
        }
        uint64_t from = (uint64_t)row * dispatch->q_heads + q_head - begin;
        partials[count++] = (struct pp_partial){
            .o = dispatch->o + from * dim,
            .lse = dispatch->lse[from],
            .var = dispatch->var[from],
            .lse_var = dispatch->lse_var[from],
            .keys_read = dispatch->keys_read_head[from],
        };
    }
    struct pp_partial merged = {.o = answer->o + to * dim};
    if (count == 0) {
        pp_partial_clear(&merged, dim);
    } else {
        pp_partial_merge(partials, count, dim, &merged);
    }
    answer->lse[to] = merged.lse;
    if (answer->var != NULL) {
        answer->var[to] = merged.var;
    }
    if (answer->lse_var != NULL) {
        answer->lse_var[to] = merged.lse_var;
    }
}

static void take_statistics(struct gw_remote_sequence *sequence, struct gw_remote_answer *answer)
{
    uint64_t last_us = sequence->attend_begun_us;
    answer->keys_read = answer->keys_held = answer->node_us = 0;
    answer->keys_read_q = answer->keys_held_q = 0;
    answer->estimator_used = false;
    answer->flags = 0;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        if (dispatch->held_tokens == 0) {
            continue;
        }
        answer->keys_read += dispatch->keys_read;
        answer->keys_held += dispatch->held_tokens * dispatch->kv_heads * dispatch->q_rows;
        uint64_t heads = (uint64_t)dispatch->q_rows * dispatch->q_heads;
        for (uint64_t head = 0; head < heads; ++head) {
            answer->keys_read_q += dispatch->keys_read_head[head];
        }
        answer->keys_held_q += dispatch->held_tokens * heads;
        answer->node_us = dispatch->node_us > answer->node_us ? dispatch->node_us : answer->node_us;
        last_us = dispatch->answered_us > last_us ? dispatch->answered_us : last_us;
        answer->flags |= dispatch->flags;
        answer->estimator_used = answer->estimator_used || dispatch->used == dispatch->asked;
    }
    uint64_t took_us = last_us - sequence->attend_begun_us;
    answer->network_us = took_us > answer->node_us ? took_us - answer->node_us : 0;
}

enum pp_status gw_remote_attend_wait(struct gw_remote_sequence *sequence,
                                     struct gw_remote_answer *answer)
{
    struct gw_remote *remote = sequence->remote;
    const struct pp_shape *shape = &sequence->config.shape;
    if (!sequence->attending) {
        enum pp_status failed = gw_sequence_failed(sequence);
        return failed != PP_OK ? failed : PP_FAILED_PRECONDITION;
    }
    /* It ends: the rpc thread drops every dispatch at its deadline. */
    while (atomic_load_explicit(&sequence->dispatches_waiting, memory_order_acquire) > 0) {
        gw_remote_pause(remote, gw_remote_now(remote) + GW_WAIT_PAUSE_US);
    }
    sequence->attending = false;
    PP_TRY(gw_sequence_failed(sequence));
    for (uint32_t row = 0; row < sequence->attend.q_rows; ++row) {
        for (uint32_t head = 0; head < shape->q_heads; ++head) {
            merge_head(sequence, row, head, answer);
        }
    }
    gw_budget_note(sequence, answer->lse);
    take_statistics(sequence, answer);
    return PP_OK;
}

uint64_t gw_remote_attend_timeout_us(const struct gw_remote_sequence *sequence)
{
    return sequence->remote->config.attend_timeout_us;
}
