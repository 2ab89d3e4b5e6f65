/*
 * Fair shares: an open table of holders with linear probing, so that nothing is allocated after
 * init. A place that empties is filled from behind, so that no probe ends too early.
 */
#include "common/base/share.h"

#include <stdlib.h>

#include "common/base/assert.h"

#define MAX_MAX (1u << 24)

enum pp_status pp_share_init(struct pp_share *share, uint32_t max)
{
    PP_ASSERT(max != 0 && max <= MAX_MAX);
    uint32_t place_count = 4;
    while (place_count < 2 * max) {
        place_count *= 2;
    }
    *share = (struct pp_share){.place_count = place_count, .max = max};
    share->places = calloc(place_count, sizeof(*share->places));
    return share->places != NULL ? PP_OK : PP_MEMORY;
}

void pp_share_deinit(struct pp_share *share)
{
    free(share->places);
    *share = (struct pp_share){.places = NULL};
}

/* Where this key's probe begins. FNV's low bits are its good ones. */
static uint32_t home_of(const struct pp_share *share, uint64_t key)
{
    return (uint32_t)(key ^ key >> 32) & (share->place_count - 1);
}

/* The holder's place, or the empty one that it would get. */
static uint32_t find(const struct pp_share *share, uint64_t key)
{
    uint32_t at = home_of(share, key);
    while (share->places[at].held != 0 && share->places[at].key != key) {
        at = (at + 1) & (share->place_count - 1);
    }
    return at;
}

enum pp_share_outcome pp_share_take(struct pp_share *share, uint64_t key)
{
    if (share->held == share->max) {
        return PP_SHARE_FULL;
    }
    struct pp_share_holder *holder = &share->places[find(share, key)];
    if (holder->held >= share->max - share->held) {
        return PP_SHARE_USED_UP;
    }
    share->holders += holder->held == 0 ? 1 : 0;
    holder->key = key;
    ++holder->held;
    ++share->held;
    return PP_SHARE_TAKEN;
}

/* Moves up what a probe would no longer find behind the empty place. */
static void close_gap(struct pp_share *share, uint32_t gap)
{
    const uint32_t mask = share->place_count - 1;
    for (uint32_t at = (gap + 1) & mask; share->places[at].held != 0; at = (at + 1) & mask) {
        uint32_t from_home = (at - home_of(share, share->places[at].key)) & mask;
        if (from_home >= ((at - gap) & mask)) {
            share->places[gap] = share->places[at];
            share->places[at].held = 0;
            gap = at;
        }
    }
}

void pp_share_give(struct pp_share *share, uint64_t key)
{
    uint32_t at = find(share, key);
    PP_ASSERT(share->places[at].held != 0);
    --share->held;
    if (--share->places[at].held == 0) {
        --share->holders;
        close_gap(share, at);
    }
}

uint64_t pp_share_key(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    for (size_t index = 0; index < count; ++index) {
        key = (key ^ at[index]) * UINT64_C(0x100000001b3);
    }
    return key;
}
