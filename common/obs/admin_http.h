/*
 * The operator's HTTP port of a program: GET or HEAD on
 *   /livez            200 or 503
 *   /readyz[?verbose] 200 or 503; with the checks when asked or when not ready
 *   /metrics          Prometheus text
 *   /config           options and where they came from; to clients on this machine only
 * Answers come from callbacks, called on the server's own thread: they must not wait for the
 * threads that serve requests, so that a busy program still answers. Bounded:
 * PP_ADMIN_CONNECTIONS_MAX connections (more wait in the system's queue), 16 KiB of request, 5 s of
 * silence.
 */
#ifndef PIGPEN_COMMON_OBS_ADMIN_HTTP_H
#define PIGPEN_COMMON_OBS_ADMIN_HTTP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

#define PP_ADMIN_CONNECTIONS_MAX 64u

struct pp_admin_http;

struct pp_admin_http_calls {
    void *context;
    /* Whether the program is alive, ready. A line a check goes to details: see
     * pp_admin_http_put_check. NULL: always. */
    bool (*live)(void *context, FILE *details);
    bool (*ready)(void *context, FILE *details);
    /* The body. NULL: 404. */
    void (*metrics)(void *context, FILE *output);
    void (*config)(void *context, FILE *output);
};

/* bind: as in obs/listen.h. The thread has all signals blocked. calls is copied.
 * PP_INVALID_ARGUMENT and PP_IO as pp_listen_tcp; PP_RESOURCE_EXHAUSTED when the server cannot
 * start; PP_MEMORY. */
PP_MUST_USE enum pp_status pp_admin_http_start(const char *bind,
                                               const struct pp_admin_http_calls *calls,
                                               uint16_t *port_out,
                                               struct pp_admin_http **server_out);
/* Ends connections and joins. NULL is fine. */
void pp_admin_http_stop(struct pp_admin_http *server);

/* "[+] memory" or "[-] memory: detail"; returns ok. */
bool pp_admin_http_put_check(FILE *details, const char *name, bool ok, const char *detail);

#endif
