/*
 * Appending rows to one layer of a part. All or nothing: a message that cannot be stored whole
 * changes nothing. Checks come before memory.
 *   start == length: appended. Inside what is held and equal: duplicate. Overlapping the end: the
 *   overlap must be equal, the rest is appended. Different: PP_APPEND_CONFLICT. start > length:
 *   PP_APPEND_GAP.
 * A tail closes at the store's seal_tokens, so that the layout follows from the held length alone,
 * however the rows were cut into messages; a tail with bulk rows closes at the end of its extent or
 * on request; a tail under a segment that the worker declared closes at its border.
 * A balance that is another than the one that the layer has is a PP_APPEND_CONFLICT too.
 * Threads: the exec thread; checks of the values may be spread by the caller.
 */
#ifndef PIGPEN_ATTN_NODE_KV_APPEND_H
#define PIGPEN_ATTN_NODE_KV_APPEND_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/layer.h"
#include "common/base/span.h"

struct an_append {
    uint64_t start; /* held index */
    uint32_t count;
    bool bulk;
    bool checksum_given;
    uint32_t crc32c; /* of payload */
    /* Where they came, of any alignment and in any number of pieces; data NULL: not given. */
    struct pp_span payload;
    enum pp_dtype dtype; /* of K and V as sent; NONE: not said */
    struct pp_span k, v; /* [token][kv head][dim] */
    bool segment_given;  /* the worker's border */
    uint64_t segment_begin, segment_count;
    struct pp_span signatures; /* [token][kv head][l] u16 */
    struct pp_span centre;     /* [kv head][dim] f32 */
    struct pp_span balance;    /* [kv head][dim] f32 of the layer: the first that comes stays */
};

/* Everything that can be refused without looking at what is held: sizes, dtype, checksum, values,
 * the declared segment. PP_INVALID_ARGUMENT, PP_BAD_DTYPE, PP_MODEL_MISMATCH (a known dtype, not
 * the part's), PP_CHECKSUM, PP_NON_FINITE. detail_out (may be NULL) gets static text. */
PP_MUST_USE enum pp_status an_append_check(const struct an_params *params,
                                           const struct an_append *append, const char **detail_out);

/* Stores a checked append. *duplicate_out: nothing was new. New segments are scheduled for their
 * indexes. PP_APPEND_GAP, PP_APPEND_CONFLICT, PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_append_apply(struct an_layer *layer, const struct an_append *append,
                                           bool *duplicate_out);

#endif
