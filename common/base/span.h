/*
 * Bytes that may lie in several pieces of memory, and a place in them: what a message came in, read
 * where it lies. A span is a value; reading moves it forward. It owns nothing: the pieces and their
 * bytes outlive it. Pure, any thread.
 */
#ifndef PIGPEN_COMMON_BASE_SPAN_H
#define PIGPEN_COMMON_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pp_piece {
    const uint8_t *data;
    size_t bytes;
};

struct pp_span {
    const uint8_t *data;         /* the next bytes; NULL: nothing was given */
    uint64_t run;                /* how many of them lie here: not 0 unless bytes is */
    const struct pp_piece *next; /* where the rest goes on; looked at only when run < bytes */
    uint64_t bytes;              /* in all */
};

/* Of one piece. */
static inline struct pp_span pp_span_of(const void *data, uint64_t bytes)
{
    return (struct pp_span){.data = (const uint8_t *)data, .run = bytes, .bytes = bytes};
}

/* The first `bytes` of pieces, which hold as many. */
struct pp_span pp_span_of_pieces(const struct pp_piece *pieces, uint64_t bytes);

/* [offset, offset + bytes) of a span, inside it. */
struct pp_span pp_span_part(struct pp_span span, uint64_t offset, uint64_t bytes);

/* Moves on, copies out, compares: bytes of what is left, at most all. */
void pp_span_skip(struct pp_span *span, uint64_t bytes);
void pp_span_read(struct pp_span *span, void *out, uint64_t bytes);
bool pp_span_equals(struct pp_span *span, const void *other, uint64_t bytes);

#endif
