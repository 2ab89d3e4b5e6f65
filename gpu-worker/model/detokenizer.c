/*
 * Ids to text as a stream: whole UTF-8 characters only, whatever the borders of tokens. On the way
 * from the sampler to the user. Invalid bytes become U+FFFD, one for each longest beginning of a
 * character (Unicode, section 3.9, "substitution of maximal subparts").
 */
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/model/tokenizer.h"
#include "gpu-worker/model/tokenizer_internal.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd";

void gw_detokenizer_init(struct gw_detokenizer *detokenizer, const struct gw_tokenizer *tokenizer)
{
    *detokenizer = (struct gw_detokenizer){.tokenizer = tokenizer};
}

void gw_detokenizer_deinit(struct gw_detokenizer *detokenizer)
{
    free(detokenizer->text);
    memset(detokenizer, 0, sizeof(*detokenizer));
}

void gw_detokenizer_finish(struct gw_detokenizer *detokenizer)
{
    detokenizer->pending_bytes = 0;
}

/* Bytes of the character that this byte begins, and the range of its second byte (Unicode, table
 * 3-7). 0: it begins none. */
static uint32_t character_bytes(uint8_t first, uint8_t *low_out, uint8_t *high_out)
{
    *low_out = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *high_out = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xc2 || first > 0xf4) {
        return 0;
    }
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* May `byte` follow the `count` pending ones? */
static bool continues(const char *pending, uint32_t count, uint8_t byte)
{
    uint8_t low = 0;
    uint8_t high = 0;
    (void)character_bytes((uint8_t)pending[0], &low, &high);
    return count == 1 ? byte >= low && byte <= high : byte >= 0x80 && byte <= 0xbf;
}

/* Takes one byte in; returns how many bytes of text it completed at text_out (at most 6: a
 * replacement for what was pending, and what the byte itself makes). */
static size_t add_byte(struct gw_detokenizer *detokenizer, uint8_t byte, char *text_out)
{
    size_t made = 0;
    uint8_t low = 0;
    uint8_t high = 0;
    if (detokenizer->pending_bytes > 0 &&
        !continues(detokenizer->pending, detokenizer->pending_bytes, byte)) {
        memcpy(text_out, REPLACEMENT, 3);
        made = 3;
        detokenizer->pending_bytes = 0;
    }
    if (detokenizer->pending_bytes == 0 && character_bytes(byte, &low, &high) == 0) {
        memcpy(text_out + made, REPLACEMENT, 3);
        return made + 3;
    }
    detokenizer->pending[detokenizer->pending_bytes++] = (char)byte;
    if (detokenizer->pending_bytes ==
        character_bytes((uint8_t)detokenizer->pending[0], &low, &high)) {
        memcpy(text_out + made, detokenizer->pending, detokenizer->pending_bytes);
        made += detokenizer->pending_bytes;
        detokenizer->pending_bytes = 0;
    }
    return made;
}

enum pp_status gw_detokenizer_add(struct gw_detokenizer *detokenizer, uint32_t id,
                                  const char **text_out, size_t *bytes_out)
{
    if (detokenizer->text == NULL) {
        /* Once, for the longest token: each byte makes at most a replacement, and one more may
         * stand for what was pending. */
        const size_t capacity = 3 * (gw_tokenizer_token_bytes_max(detokenizer->tokenizer) + 2);
        detokenizer->text = malloc(capacity);
        if (detokenizer->text == NULL) {
            return PP_MEMORY;
        }
        detokenizer->text_capacity = capacity;
    }
    const char *bytes = NULL;
    size_t count = 0;
    gw_tokenizer_bytes(detokenizer->tokenizer, id, false, &bytes, &count);
    size_t made = 0;
    for (size_t index = 0; index < count; index++) {
        made += add_byte(detokenizer, (uint8_t)bytes[index], detokenizer->text + made);
    }
    *text_out = detokenizer->text;
    *bytes_out = made;
    return PP_OK;
}
