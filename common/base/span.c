/*
 * Walking over pieces. See span.h. Every size was compared with the span's by the caller: what is
 * asked for beyond it is a programmer's error. It refuses to know what the bytes mean.
 */
#include "common/base/span.h"

#include <string.h>

#include "common/base/assert.h"

/* Goes to the next piece that holds something, while anything is left. */
static void settle(struct pp_span *span)
{
    while (span->run == 0 && span->bytes > 0) {
        span->data = span->next->data;
        span->run = span->next->bytes < span->bytes ? span->next->bytes : span->bytes;
        span->next++;
    }
}

static void step(struct pp_span *span, uint64_t bytes)
{
    span->data += bytes;
    span->run -= bytes;
    span->bytes -= bytes;
    settle(span);
}

struct pp_span pp_span_of_pieces(const struct pp_piece *pieces, uint64_t bytes)
{
    struct pp_span span = {.data = bytes > 0 ? pieces->data : NULL, .next = pieces, .bytes = bytes};
    settle(&span);
    return span;
}

struct pp_span pp_span_part(struct pp_span span, uint64_t offset, uint64_t bytes)
{
    pp_span_skip(&span, offset);
    PP_ASSERT(bytes <= span.bytes);
    span.bytes = bytes;
    span.run = span.run < bytes ? span.run : bytes;
    return span;
}

void pp_span_skip(struct pp_span *span, uint64_t bytes)
{
    PP_ASSERT(bytes <= span->bytes);
    while (bytes > 0) {
        uint64_t here = bytes < span->run ? bytes : span->run;
        step(span, here);
        bytes -= here;
    }
}

void pp_span_read(struct pp_span *span, void *out, uint64_t bytes)
{
    PP_ASSERT(bytes <= span->bytes);
    uint8_t *to = out;
    while (bytes > 0) {
        uint64_t here = bytes < span->run ? bytes : span->run;
        memcpy(to, span->data, here);
        to += here;
        step(span, here);
        bytes -= here;
    }
}

bool pp_span_equals(struct pp_span *span, const void *other, uint64_t bytes)
{
    PP_ASSERT(bytes <= span->bytes);
    const uint8_t *at = other;
    bool equal = true;
    while (bytes > 0) {
        uint64_t here = bytes < span->run ? bytes : span->run;
        equal = equal && memcmp(at, span->data, here) == 0;
        at += here;
        step(span, here);
        bytes -= here;
    }
    return equal;
}
