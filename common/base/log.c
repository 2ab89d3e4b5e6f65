/*
 * Log lines: formatted on the caller's stack, made safe (control bytes never reach the terminal or
 * break a line), written by one write(2). Any layer may log; nothing here knows who does.
 */
#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Under PIPE_BUF with room, so that lines of several processes on one pipe do not mix. */
#define LINE_BYTES_MAX   4000u
#define FIELDS_BYTES_MAX 2000u

struct line {
    char text[LINE_BYTES_MAX + 8];
    size_t bytes;
    bool cut; /* something did not fit */
};

static _Atomic int log_level = PP_LOG_INFO;
static _Atomic int log_format = PP_LOG_TEXT;

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

void pp_log_configure(enum pp_log_level level, enum pp_log_format format)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
    atomic_store_explicit(&log_format, (int)format, memory_order_relaxed);
}

bool pp_log_enabled(enum pp_log_level level)
{
    return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed) &&
           level < PP_LOG_OFF;
}

const char *pp_log_level_name(enum pp_log_level level)
{
    return level_names[level];
}

enum pp_status pp_log_level_parse(const char *text, enum pp_log_level *level_out)
{
    for (int level = PP_LOG_DEBUG; level <= PP_LOG_OFF; ++level) {
        if (strcmp(text, level_names[level]) == 0) {
            *level_out = (enum pp_log_level)level;
            return PP_OK;
        }
    }
    return PP_INVALID_ARGUMENT;
}

/* Appends whole pieces only, so that a cut line never ends inside an escape. */
static void line_add(struct line *line, const char *piece, size_t bytes)
{
    if (line->bytes + bytes <= LINE_BYTES_MAX) {
        memcpy(line->text + line->bytes, piece, bytes);
        line->bytes += bytes;
    } else {
        line->cut = true;
    }
}

static void line_add_text(struct line *line, const char *text)
{
    line_add(line, text, strlen(text));
}

/* Bytes of the UTF-8 character at text (of `left` bytes), or 0 when it is not well formed. */
static size_t utf8_bytes(const unsigned char *text, size_t left)
{
    unsigned char lead = text[0];
    size_t bytes = lead < 0x80                    ? 1
                   : lead >= 0xc2 && lead <= 0xdf ? 2
                   : (lead & 0xf0) == 0xe0        ? 3
                   : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                  : 0;
    if (bytes == 0 || bytes > left) {
        return 0;
    }
    for (size_t index = 1; index < bytes; ++index) {
        if ((text[index] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xf0 && text[1] < 0x90);
    bool beyond = (lead == 0xed && text[1] > 0x9f) || (lead == 0xf4 && text[1] > 0x8f);
    return overlong || beyond ? 0 : bytes;
}

/* Text form: printable characters as they are, the rest as \xNN. */
static void line_add_safe(struct line *line, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const unsigned char *here = (const unsigned char *)text + at;
        size_t step = utf8_bytes(here, bytes - at);
        if (step == 0 || *here < 0x20 || *here == 0x7f) {
            char escape[8];
            snprintf(escape, sizeof(escape), "\\x%02x", *here);
            line_add(line, escape, 4);
            step = 1;
        } else {
            line_add(line, text + at, step);
        }
        at += step;
    }
}

static void line_add_json_string(struct line *line, const char *text, size_t bytes)
{
    line_add(line, "\"", 1);
    for (size_t at = 0; at < bytes;) {
        const unsigned char *here = (const unsigned char *)text + at;
        size_t step = utf8_bytes(here, bytes - at);
        char escape[8];
        if (step == 0) {
            line_add(line, "\\ufffd", 6);
            step = 1;
        } else if (*here == '"' || *here == '\\') {
            snprintf(escape, sizeof(escape), "\\%c", *here);
            line_add(line, escape, 2);
        } else if (*here < 0x20 || *here == 0x7f) {
            snprintf(escape, sizeof(escape), "\\u%04x", *here);
            line_add(line, escape, 6);
        } else {
            line_add(line, text + at, step);
        }
        at += step;
    }
    line_add(line, "\"", 1);
}

/* A number as JSON writes it (no leading zeros, no hex): such values go out unquoted. */
static bool is_json_number(const char *text, size_t bytes)
{
    size_t at = bytes > 0 && text[0] == '-' ? 1 : 0;
    size_t whole = at;
    while (at < bytes && text[at] >= '0' && text[at] <= '9') {
        ++at;
    }
    if (at == whole || (text[whole] == '0' && at - whole > 1)) {
        return false;
    }
    if (at < bytes && text[at] == '.') {
        size_t fraction = ++at;
        while (at < bytes && text[at] >= '0' && text[at] <= '9') {
            ++at;
        }
        if (at == fraction) {
            return false;
        }
    }
    return at == bytes;
}

/* The end of a value that starts at `at`: a space, or for a quoted one the quote that a space or
 * the end follows. */
static size_t value_end(const char *fields, size_t bytes, size_t at)
{
    bool quoted = at < bytes && fields[at] == '"';
    for (size_t end = at + (quoted ? 1 : 0); end < bytes; ++end) {
        if (!quoted && fields[end] == ' ') {
            return end;
        }
        if (quoted && fields[end] == '"' && (end + 1 == bytes || fields[end + 1] == ' ')) {
            return end + 1;
        }
    }
    return bytes;
}

static void line_add_json_fields(struct line *line, const char *fields, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        size_t name = at;
        while (at < bytes && fields[at] != '=' && fields[at] != ' ') {
            ++at;
        }
        size_t name_bytes = at - name;
        size_t value = at;
        size_t end = at;
        if (at < bytes && fields[at] == '=') {
            value = at + 1;
            end = value_end(fields, bytes, value);
        }
        if (name_bytes > 0) {
            size_t value_bytes = end - value;
            bool quoted = value_bytes >= 2 && fields[value] == '"' && fields[end - 1] == '"';
            line_add(line, ",", 1);
            line_add_json_string(line, fields + name, name_bytes);
            line_add(line, ":", 1);
            if (quoted) {
                line_add_json_string(line, fields + value + 1, value_bytes - 2);
            } else if (is_json_number(fields + value, value_bytes)) {
                line_add(line, fields + value, value_bytes);
            } else {
                line_add_json_string(line, fields + value, value_bytes);
            }
        }
        at = end < bytes ? end + 1 : bytes;
    }
}

static void line_add_time(struct line *line)
{
    struct timespec now;
    struct tm utc;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t bytes = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    int more = snprintf(text + bytes, sizeof(text) - bytes, ".%06ldZ", now.tv_nsec / 1000);
    line_add(line, text, bytes + (size_t)more);
}

static void write_whole(const struct line *line)
{
    size_t done = 0;
    while (done < line->bytes) {
        ssize_t wrote = write(STDERR_FILENO, line->text + done, line->bytes - done);
        if (wrote <= 0) {
            return; /* Nobody reads: there is no one to tell. */
        }
        done += (size_t)wrote;
    }
}

void pp_log_write(enum pp_log_level level, const char *component, const char *message,
                  const char *fields, ...)
{
    char values[FIELDS_BYTES_MAX];
    va_list arguments;
    va_start(arguments, fields);
    int wanted = vsnprintf(values, sizeof(values), fields, arguments);
    va_end(arguments);
    size_t bytes = wanted < 0 ? 0 : strlen(values);

    struct line line;
    line.bytes = 0;
    line.cut = false;
    if (atomic_load_explicit(&log_format, memory_order_relaxed) == PP_LOG_JSON) {
        line_add_text(&line, "{\"ts\":\"");
        line_add_time(&line);
        line_add_text(&line, "\",\"level\":\"");
        line_add_text(&line, level_names[level]);
        line_add_text(&line, "\",\"component\":");
        line_add_json_string(&line, component, strlen(component));
        line_add_text(&line, ",\"msg\":");
        line_add_json_string(&line, message, strnlen(message, 256));
        size_t before = line.bytes;
        line_add_json_fields(&line, values, bytes);
        if (line.cut || line.bytes == LINE_BYTES_MAX) {
            line.bytes = before; /* A cut line is not JSON: better without its fields. */
            line_add_text(&line, ",\"cut\":true");
        }
        line_add_text(&line, "}");
    } else {
        line_add_time(&line);
        line_add_text(&line, " ");
        line_add_text(&line, level_names[level]);
        line_add_text(&line, " ");
        line_add_text(&line, component);
        line_add_text(&line, ": ");
        line_add_safe(&line, message, strlen(message));
        if (bytes > 0) {
            line_add_text(&line, " ");
            line_add_safe(&line, values, bytes);
        }
    }
    line.text[line.bytes++] = '\n';
    write_whole(&line);
}

bool pp_log_gate_open(struct pp_log_gate *gate, uint64_t now_us, uint64_t period_us,
                      uint64_t *skipped_out)
{
    if (now_us < gate->next_us) {
        ++gate->skipped;
        return false;
    }
    *skipped_out = gate->skipped;
    gate->skipped = 0;
    gate->next_us = now_us + period_us;
    return true;
}
