/*
 * Structured log lines on stderr: UTC time, level, component, message, fields. Text or JSON.
 * Call sites give fields in printf form: PP_LOG_WARN("rpc", "append refused", "node=%s bytes=%llu",
 * name, bytes). Values with spaces are quoted by the caller with \"%s\". Never prompts, tokens or
 * K/V. Threads: any; a line is written by one write(2). The level and format are set once at start
 * (the level again on SIGHUP).
 */
#ifndef PIGPEN_COMMON_BASE_LOG_H
#define PIGPEN_COMMON_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum pp_log_level { PP_LOG_DEBUG, PP_LOG_INFO, PP_LOG_WARN, PP_LOG_ERROR, PP_LOG_OFF };
enum pp_log_format { PP_LOG_TEXT, PP_LOG_JSON };

void pp_log_configure(enum pp_log_level level, enum pp_log_format format);
bool pp_log_enabled(enum pp_log_level level);

const char *pp_log_level_name(enum pp_log_level level);
/* "debug", "info", "warn", "error", "off". PP_INVALID_ARGUMENT for another name. */
PP_MUST_USE enum pp_status pp_log_level_parse(const char *text, enum pp_log_level *level_out);

__attribute__((format(printf, 4, 5))) void pp_log_write(enum pp_log_level level,
                                                        const char *component, const char *message,
                                                        const char *fields, ...);

#define PP_LOG(level, component, message, ...)                                                     \
    (pp_log_enabled(level) ? pp_log_write(level, component, message, __VA_ARGS__) : (void)0)
#define PP_LOG_DEBUGF(component, message, ...) PP_LOG(PP_LOG_DEBUG, component, message, __VA_ARGS__)
#define PP_LOG_INFOF(component, message, ...)  PP_LOG(PP_LOG_INFO, component, message, __VA_ARGS__)
#define PP_LOG_WARNF(component, message, ...)  PP_LOG(PP_LOG_WARN, component, message, __VA_ARGS__)
#define PP_LOG_ERRORF(component, message, ...) PP_LOG(PP_LOG_ERROR, component, message, __VA_ARGS__)

/* Lets at most one line through a period for one call site: returns true when this line may be
 * written and how many were skipped since the last one. gate is zeroed at first, one thread. */
struct pp_log_gate {
    uint64_t next_us;
    uint64_t skipped;
};
bool pp_log_gate_open(struct pp_log_gate *gate, uint64_t now_us, uint64_t period_us,
                      uint64_t *skipped_out);

#endif
