/*
 * Sizes that bound everything from outside, as sums with their reasons.
 */
#ifndef PIGPEN_COMMON_BASE_LIMITS_H
#define PIGPEN_COMMON_BASE_LIMITS_H

/* 16-bit ids inside a segment; offsets up to and including the count must not wrap: 64 short of
 * 2^16, which keeps the count a multiple of every block size up to 64. */
#define PP_SEGMENT_TOKENS_MAX 65472u

#define PP_LAYERS_MAX          1024u
#define PP_Q_HEADS_MAX         1024u
#define PP_KV_HEADS_MAX        1024u
#define PP_HEAD_DIM_MAX        256u
#define PP_TOKENS_PER_PART_MAX (1ull << 32)
#define PP_FINGERPRINT_BYTES   64u
#define PP_ID_BYTES            16u

/* One message. Larger appends are cut by the sender. */
#define PP_MESSAGE_BYTES_MAX (16u << 20)
#define PP_APPEND_TOKENS_MAX PP_SEGMENT_TOKENS_MAX
#define PP_ATTEND_ITEMS_MAX  256u
#define PP_ATTEND_ROWS_MAX   64u

/* Values above this magnitude are refused: their products with a query could overflow f32. */
#define PP_MAGNITUDE_MAX 0x1p40f

/* lsh parameters. */
#define PP_LSH_K_MAX 16u
#define PP_LSH_L_MAX 512u

/* Kept on the worker and always attended exactly. */
#define PP_SINK_TOKENS   4u
#define PP_RECENT_TOKENS 64u

#endif
