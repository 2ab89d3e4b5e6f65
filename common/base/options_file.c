/*
 * The YAML file as a source of option texts: one mapping from keys to scalars; a list of scalars is
 * the same as its items with commas between. Anything deeper is refused, so that a misplaced indent
 * is an error and not a setting that silently does nothing.
 */
#include "common/base/options_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define EVENTS_MAX     100000u
#define LIST_BYTES_MAX 65536u

struct reader {
    struct pp_options *options;
    yaml_parser_t parser;
    bool *seen; /* by option */
    size_t events;
    char list[LIST_BYTES_MAX];
};

static void complain_at(struct reader *reader, size_t line, const char *text, const char *detail)
{
    pp_options_complain(reader->options, "%s:%zu: %s%s", reader->options->config_path, line + 1,
                        text, detail);
}

/* The caller deletes the event after success. */
static enum pp_status next_event(struct reader *reader, yaml_event_t *event_out)
{
    if (++reader->events > EVENTS_MAX) {
        complain_at(reader, 0, "the file is too long", "");
        return PP_INVALID_ARGUMENT;
    }
    if (!yaml_parser_parse(&reader->parser, event_out)) {
        const char *problem = reader->parser.problem;
        complain_at(reader, reader->parser.problem_mark.line,
                    "not YAML: ", problem != NULL ? problem : "cannot be read");
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

/* Reads the rest of a list into reader->list, commas between. */
static enum pp_status read_list(struct reader *reader)
{
    size_t bytes = 0;
    reader->list[0] = '\0';
    while (true) {
        yaml_event_t event;
        PP_TRY(next_event(reader, &event));
        yaml_event_type_t type = event.type;
        size_t line = event.start_mark.line;
        bool fits = false;
        if (type == YAML_SCALAR_EVENT) {
            size_t more = event.data.scalar.length;
            fits = bytes + more + 2 <= LIST_BYTES_MAX;
            if (fits) {
                int wrote = snprintf(reader->list + bytes, LIST_BYTES_MAX - bytes, "%s%s",
                                     bytes > 0 ? "," : "", (const char *)event.data.scalar.value);
                bytes += (size_t)wrote;
            }
        }
        yaml_event_delete(&event);
        if (type == YAML_SEQUENCE_END_EVENT) {
            return PP_OK;
        }
        if (!fits) {
            complain_at(reader, line, "a list may hold plain values only", "");
            return PP_INVALID_ARGUMENT;
        }
    }
}

static enum pp_status keep_pair(struct reader *reader, size_t index, size_t line, const char *text)
{
    if (reader->seen[index]) {
        complain_at(reader, line, "given twice: ", reader->options->spec.options[index].name);
        return PP_INVALID_ARGUMENT;
    }
    reader->seen[index] = true;
    return pp_options_keep(reader->options, index, text, PP_FROM_FILE);
}

static bool is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    return event->data.scalar.plain_implicit &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static enum pp_status read_value(struct reader *reader, size_t index)
{
    yaml_event_t event;
    PP_TRY(next_event(reader, &event));
    size_t line = event.start_mark.line;
    enum pp_status status = PP_INVALID_ARGUMENT;
    bool list = event.type == YAML_SEQUENCE_START_EVENT;
    if (event.type == YAML_SCALAR_EVENT && !is_null(&event)) {
        status = keep_pair(reader, index, line, (const char *)event.data.scalar.value);
    } else if (!list) {
        complain_at(reader, line,
                    "needs one plain value: ", reader->options->spec.options[index].name);
    }
    yaml_event_delete(&event);
    if (!list) {
        return status;
    }
    PP_TRY(read_list(reader));
    return keep_pair(reader, index, line, reader->list);
}

/* The option that a key names. */
static enum pp_status find_key(struct reader *reader, const yaml_event_t *event, size_t *index_out)
{
    const struct pp_options_spec *spec = &reader->options->spec;
    size_t line = event->start_mark.line;
    if (event->type != YAML_SCALAR_EVENT) {
        complain_at(reader, line, "a key must be plain text", "");
        return PP_INVALID_ARGUMENT;
    }
    const char *key = (const char *)event->data.scalar.value;
    size_t index = pp_options_find(spec, key, strlen(key));
    if (index < spec->option_count) {
        *index_out = index;
        return PP_OK;
    }
    char meant[128];
    char text[256];
    const char *nearest = pp_options_nearest(spec, key, strlen(key));
    if (nearest != NULL) {
        pp_options_key_name(nearest, meant, sizeof(meant));
        snprintf(text, sizeof(text), "%.100s: did you mean %s?", key, meant);
    } else {
        snprintf(text, sizeof(text), "%.100s", key);
    }
    complain_at(reader, line, "unknown key ", text);
    return PP_INVALID_ARGUMENT;
}

static enum pp_status read_mapping(struct reader *reader)
{
    while (true) {
        yaml_event_t event;
        PP_TRY(next_event(reader, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return PP_OK;
        }
        size_t index = 0;
        enum pp_status status = find_key(reader, &event, &index);
        yaml_event_delete(&event);
        PP_TRY(status);
        PP_TRY(read_value(reader, index));
    }
}

/* Stream and document marks around one mapping; an empty file or document is fine. */
static enum pp_status read_stream(struct reader *reader)
{
    size_t mappings = 0;
    while (true) {
        yaml_event_t event;
        PP_TRY(next_event(reader, &event));
        yaml_event_type_t type = event.type;
        size_t line = event.start_mark.line;
        bool nothing = type == YAML_SCALAR_EVENT && is_null(&event);
        yaml_event_delete(&event);
        if (type == YAML_STREAM_END_EVENT) {
            return PP_OK;
        }
        if (type == YAML_MAPPING_START_EVENT && mappings++ == 0) {
            PP_TRY(read_mapping(reader));
        } else if (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT ||
                   type == YAML_ALIAS_EVENT || (type == YAML_SCALAR_EVENT && !nothing)) {
            complain_at(reader, line, "the file must be one mapping: key: value", "");
            return PP_INVALID_ARGUMENT;
        }
    }
}

enum pp_status pp_options_read_file(struct pp_options *options)
{
    FILE *stream = fopen(options->config_path, "re");
    if (stream == NULL) {
        pp_options_complain(options, "cannot open %s: %s", options->config_path, strerror(errno));
        return PP_IO;
    }
    enum pp_status status = PP_MEMORY;
    struct reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL) {
        goto err_stream;
    }
    reader->options = options;
    reader->seen = calloc(options->spec.option_count + 1, sizeof(bool));
    if (reader->seen == NULL || !yaml_parser_initialize(&reader->parser)) {
        goto err_reader;
    }
    yaml_parser_set_input_file(&reader->parser, stream);
    status = read_stream(reader);
    if (status != PP_OK && ferror(stream)) {
        status = PP_IO;
    }
    yaml_parser_delete(&reader->parser);
err_reader:
    free(reader->seen);
    free(reader);
err_stream:
    fclose(stream);
    return status;
}
