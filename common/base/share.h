/*
 * A bounded number of things, shared out fairly over who asks: one holder gets another while it
 * holds fewer than are free. So one alone gets half, two a third each, and whoever holds nothing
 * gets one until all are taken: no rate, no clock, no list of who may (dynamic thresholds:
 * Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998, with factor 1).
 *
 * Holders are named by 64 bits, pp_share_key of whatever tells them apart; two of one key are one.
 * Memory is taken at init. Threads: the caller's one.
 */
#ifndef PIGPEN_COMMON_BASE_SHARE_H
#define PIGPEN_COMMON_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct pp_share_holder {
    uint64_t key;
    uint32_t held; /* 0: an empty place */
};

struct pp_share {
    struct pp_share_holder *places; /* an open table, at most half full */
    uint32_t place_count;           /* a power of two */
    uint32_t max, held;
    uint32_t holders; /* that hold something */
};

enum pp_share_outcome { PP_SHARE_TAKEN, PP_SHARE_FULL, PP_SHARE_USED_UP };

/* max: 1 to 2^24. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_share_init(struct pp_share *share, uint32_t max);
void pp_share_deinit(struct pp_share *share);

/* FULL: nobody can have one. USED_UP: this holder has its share. Nothing is taken then. */
PP_MUST_USE enum pp_share_outcome pp_share_take(struct pp_share *share, uint64_t key);
/* The holder has one. */
void pp_share_give(struct pp_share *share, uint64_t key);

/* FNV-1a. */
uint64_t pp_share_key(const void *bytes, size_t count);

#endif
