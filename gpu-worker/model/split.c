/*
 * Pre-tokenizers by PCRE2, and Unicode's NFC by utf8proc. The expressions are those of the
 * models' own tokenizers with two changes that do not alter what matches: repetitions that need
 * no backtracking are possessive, and \s is written out, since PCRE2 counts U+180E as a space and
 * the reference does not. Letters and numbers are those of the installed PCRE2 (10.42: Unicode
 * 14); the reference knows some thousand rare ones added since.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "gpu-worker/model/split.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define SPACE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

/* GPT-2: words with the space before them, numbers, other signs, and spaces but the last one. */
#define GPT2                                                                                       \
    CONTRACTIONS "| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++"                             \
                 "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

/* SmolLM: first every digit on its own, then GPT-2 on what lies between. In one expression: a
 * digit ends the text as the look-ahead sees it, and no space goes before one. */
#define SMOLLM                                                                                     \
    "\\p{N}|" CONTRACTIONS "| ?\\p{L}++| ?[^" SPACE "\\p{L}\\p{N}]++"                              \
    "|[" SPACE "]+(?![^" SPACE "\\p{N}])|[" SPACE "]+"

#define LLAMA3_WITH(numbers)                                                                       \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|" numbers "| ?[^" SPACE                  \
    "\\p{L}\\p{N}]++[\\r\\n]*+|[" SPACE "]*[\\r\\n]+"                                              \
    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

struct pre_facts {
    const char *name;
    const char *pattern;
    bool nfc;
    bool whole_first;
    bool bos_default;
};

static const struct pre_facts PRES[] = {
    {"smollm", SMOLLM, false, false, false},
    {"gpt-2", GPT2, false, false, false},
    {"default", GPT2, false, false, false},
    {"llama-bpe", LLAMA3_WITH("\\p{N}{1,3}"), false, true, true},
    {"llama3", LLAMA3_WITH("\\p{N}{1,3}"), false, true, true},
    {"llama-v3", LLAMA3_WITH("\\p{N}{1,3}"), false, true, true},
    {"qwen2", LLAMA3_WITH("\\p{N}"), true, false, false},
};

enum {
    JIT_STACK_BYTES_FIRST = 32 << 10,
    JIT_STACK_BYTES_MAX = 1 << 20,
    HEAP_KIB_MAX = 64 << 10,
    MARKS_MAX = 256,
};

enum pp_status gw_splitter_init(struct gw_splitter *splitter, const char *pre, size_t pre_bytes,
                                char *error_out, size_t error_bytes)
{
    const struct pre_facts *facts = NULL;
    for (size_t index = 0; index < sizeof(PRES) / sizeof(PRES[0]); index++) {
        if (strlen(PRES[index].name) == pre_bytes &&
            memcmp(PRES[index].name, pre, pre_bytes) == 0) {
            facts = &PRES[index];
        }
    }
    if (facts == NULL) {
        (void)snprintf(error_out, error_bytes,
                       "tokenizer.ggml.pre '%.*s' is not supported (smollm, gpt-2, default, "
                       "llama-bpe and qwen2 are)",
                       (int)(pre_bytes < 32 ? pre_bytes : 32), pre);
        return PP_UNIMPLEMENTED;
    }
    int error = 0;
    size_t offset = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)facts->pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
    if (code == NULL) {
        (void)snprintf(error_out, error_bytes, "tokenizer: PCRE2 error %d at %zu of pattern %s",
                       error, offset, facts->name);
        return PP_INTERNAL;
    }
    /* Without JIT (a system that forbids it) the interpreter does the same, more slowly. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    *splitter = (struct gw_splitter){code, facts->nfc, facts->whole_first, facts->bos_default};
    return PP_OK;
}

void gw_splitter_deinit(struct gw_splitter *splitter)
{
    pcre2_code_free(splitter->code);
    memset(splitter, 0, sizeof(*splitter));
}

enum pp_status gw_split_begin(struct gw_split_cursor *cursor, const struct gw_splitter *splitter,
                              size_t text_bytes)
{
    pcre2_match_data *match = pcre2_match_data_create(4, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (match == NULL || context == NULL) {
        pcre2_match_data_free(match);
        pcre2_match_context_free(context);
        return PP_MEMORY;
    }
    /* A run of spaces is given back step by step, once: a few steps for each byte suffice. */
    const uint64_t steps = 1000000 + 16 * (uint64_t)text_bytes;
    (void)pcre2_set_match_limit(context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    (void)pcre2_set_heap_limit(context, HEAP_KIB_MAX);
    pcre2_jit_stack *stack =
        pcre2_jit_stack_create(JIT_STACK_BYTES_FIRST, JIT_STACK_BYTES_MAX, NULL);
    if (stack != NULL) {
        pcre2_jit_stack_assign(context, NULL, stack);
    }
    *cursor = (struct gw_split_cursor){splitter, match, context, stack};
    return PP_OK;
}

void gw_split_end(struct gw_split_cursor *cursor)
{
    pcre2_match_data_free(cursor->match);
    pcre2_match_context_free(cursor->context);
    pcre2_jit_stack_free(cursor->stack);
    memset(cursor, 0, sizeof(*cursor));
}

enum pp_status gw_split_next(struct gw_split_cursor *cursor, const char *text, size_t count,
                             size_t start, size_t *end_out)
{
    const int found = pcre2_match(cursor->splitter->code, (PCRE2_SPTR)text, count, start,
                                  PCRE2_NO_UTF_CHECK, cursor->match, cursor->context);
    if (found < 1) {
        return found == PCRE2_ERROR_NOMEMORY ? PP_MEMORY : PP_INTERNAL;
    }
    const size_t end = pcre2_get_ovector_pointer(cursor->match)[1];
    if (end <= start || end > count) {
        return PP_INTERNAL;
    }
    *end_out = end;
    return PP_OK;
}

/* The end of the stretch from `start` that is normalised at once: after MARKS_MAX combining marks
 * in a row, since ordering a run of n of them takes n^2 steps. */
static size_t stretch_end(const char *text, size_t count, size_t start)
{
    size_t marks = 0;
    for (size_t at = start; at < count;) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                        (utf8proc_ssize_t)(count - at), &code);
        if (bytes <= 0) {
            return count;
        }
        at += (size_t)bytes;
        marks = utf8proc_get_property(code)->combining_class != 0 ? marks + 1 : 0;
        if (marks == MARKS_MAX) {
            return at;
        }
    }
    return count;
}

static enum pp_status append(char **text, size_t *count, size_t *capacity, const char *more,
                             size_t more_bytes)
{
    if (*count + more_bytes + 1 > *capacity) {
        const size_t wanted = (*count + more_bytes + 1) * 2;
        char *grown = realloc(*text, wanted);
        if (grown == NULL) {
            return PP_MEMORY;
        }
        *text = grown;
        *capacity = wanted;
    }
    memcpy(*text + *count, more, more_bytes);
    *count += more_bytes;
    return PP_OK;
}

enum pp_status gw_split_nfc(const char *text, size_t count, char **text_out, size_t *count_out)
{
    char *made = NULL;
    size_t made_bytes = 0;
    size_t capacity = 0;
    enum pp_status status = append(&made, &made_bytes, &capacity, "", 0);
    for (size_t start = 0; start < count && status == PP_OK;) {
        const size_t end = stretch_end(text, count, start);
        utf8proc_uint8_t *part = NULL;
        const utf8proc_ssize_t bytes =
            utf8proc_map((const utf8proc_uint8_t *)text + start, (utf8proc_ssize_t)(end - start),
                         &part, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (bytes < 0) {
            status = bytes == UTF8PROC_ERROR_NOMEM ? PP_MEMORY : PP_INVALID_ARGUMENT;
        } else {
            status = append(&made, &made_bytes, &capacity, (const char *)part, (size_t)bytes);
        }
        free(part);
        start = end;
    }
    if (status != PP_OK) {
        free(made);
        return status;
    }
    *text_out = made;
    *count_out = made_bytes;
    return PP_OK;
}
