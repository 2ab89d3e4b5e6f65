/*
 * The estimators of quality_bench behind one set of calls: the product's own index and kernels
 * (product.c), and the peers as plain reference code (peers.c, select.c). All choose rows of a kv
 * head for the group of query heads that shares it, or, with sample=head, for each head by itself.
 *
 *   exact     every row
 *   topk      the rows of the largest exact scores
 *   weight    importance sampling by the exact weights: what no proposal can beat
 *   uniform   every row with the same probability
 *   quest     pages of 16 rows by the bound that their least and largest keys give
 *             (Quest, arXiv 2406.10774)
 *   loki      the rows of the largest scores in the keys' first principal components, a quarter of
 *             the dimensions (Loki, arXiv 2406.02542)
 *   lsh       the node's, k bits a table, t of l tables; l such that the asked share is read
 *   sketch    the node's, bits a dimension; in so many segments, which are one sample
 *
 * Where a group shares a choice, a row's rank (its probability) is the largest over the heads of
 * its share in the head's softmax. Threads: open on one; attend on a team, with the thread's own
 * scratch.
 */
#ifndef PIGPEN_BENCH_QUALITY_ESTIMATOR_H
#define PIGPEN_BENCH_QUALITY_ESTIMATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"
#include "bench/quality/held.h"

enum quality_kind {
    QUALITY_EXACT,
    QUALITY_TOPK,
    QUALITY_WEIGHT,
    QUALITY_UNIFORM,
    QUALITY_QUEST,
    QUALITY_LOKI,
    QUALITY_LSH,
    QUALITY_SKETCH,
    QUALITY_KINDS
};

#define QUALITY_SEGMENTS_MAX 64u

struct quality_spec {
    char text[64];
    enum quality_kind kind;
    uint32_t k, l, t;  /* lsh; l 0: found for the share */
    uint32_t bits;     /* sketch */
    uint32_t segments; /* sketch, up to QUALITY_SEGMENTS_MAX */
    bool centred;      /* lsh */
    bool balanced;     /* sketch */
    bool head_by_head; /* sample=head */
};

/* What an estimator may be, for messages. */
#define QUALITY_SPEC_SYNTAX                                                                        \
    "exact, topk, weight, uniform, quest, loki, lsh:k=K,l=L,t=T,centre=no, "                       \
    "sketch:bits=B,segments=N,balance=no, each but exact and lsh also with sample=head"

/* A list with commas; a comma before NAME= belongs to the estimator. PP_INVALID_ARGUMENT. */
PP_MUST_USE enum pp_status quality_specs_parse(const char *text, struct quality_spec *specs_out,
                                               uint32_t specs_max, uint32_t *count_out);

/* Whether the share that is read has to be sought: quality_estimator's knob is not it. */
bool quality_spec_sought(const struct quality_spec *spec);

/* The answer to one q row of a kv head's group. */
struct quality_answer {
    float *o; /* [group][dim] */
    float lse[QUALITY_GROUP_MAX];
    double var[QUALITY_GROUP_MAX]; /* squared error, as published; 0 where none is */
    uint64_t rows, rows_q;         /* read: distinct ones; summed over heads */
    bool fell_back;                /* a sample was empty, and all rows were read */
    double bytes;                  /* read: of index and rows */
};

struct quality_scratch {
    float *scores, *proxies; /* [group][tokens] */
    float *ranks, *sorted;   /* [tokens] */
    float *u;                /* [tokens] */
    uint32_t *ids;           /* [tokens] */
    uint64_t *bits;          /* [(tokens + 63) / 64] of the rows read */
    float *q_scaled;         /* [group][dim] */
    float *o, *b1;           /* [group][dim] */
    uint16_t *codes;         /* [group][l] */
    void *index;             /* of an index's query */
};

struct quality_estimator {
    struct quality_spec spec;
    const struct quality_held *held;
    double knob; /* the rows that a choice reads, as a share; of lsh: l */
    uint32_t threads;
    struct quality_scratch *scratch; /* [threads] */
    void **states;                   /* [layer][kv head]: what was made of the keys beforehand */
    uint64_t segment_bytes;          /* of one segment's index */
    double state_bytes;              /* a token and kv head, as it would be kept */
    struct an_index_params params;
    struct pp_hash *hash;
    struct pp_log_u_table table;
    struct an_sketch_signs signs;
};

/* Makes what the estimator wants of the keys. Close it whatever comes back. PP_MEMORY,
 * PP_INVALID_ARGUMENT. */
PP_MUST_USE enum pp_status quality_open(const struct quality_spec *spec,
                                        const struct quality_held *held, double knob,
                                        uint32_t threads, struct quality_estimator *estimator_out);
void quality_close(struct quality_estimator *estimator);

/* q [group][dim], not scaled. Draws depend on seed only. */
void quality_attend(const struct quality_estimator *estimator, uint32_t layer, uint32_t kv_head,
                    const float *q, uint64_t seed, uint32_t thread,
                    struct quality_answer *answer_out);

/* One attend as the kinds see it. */
struct quality_call {
    const struct quality_estimator *estimator;
    const struct quality_head *head;
    const void *state;
    const float *q;
    uint64_t seed;
    struct quality_scratch *scratch;
    struct quality_answer *answer;
};

/* The kinds' own parts. */
PP_MUST_USE enum pp_status quality_product_open(struct quality_estimator *estimator);
void quality_product_attend(const struct quality_call *call);
PP_MUST_USE enum pp_status quality_peer_state(struct quality_estimator *estimator,
                                              const struct quality_head *head, void **state_out);
void quality_peer_attend(const struct quality_call *call);

/* Dimensions that loki scores with. */
static inline uint32_t quality_loki_rank(uint32_t dim)
{
    return (dim + 3) / 4;
}
#define QUALITY_QUEST_PAGE 16u

#endif
