/*
 * libmicrohttpd behind four paths. Beside the walk: it must answer while the program is busy, so it
 * has its own thread and touches no data of others but through the callbacks.
 */
#include "common/obs/admin_http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/obs/listen.h"
#include "common/obs/metrics.h"

#define REQUEST_BYTES_MAX (16u << 10)
#define SILENCE_S_MAX     5u

struct pp_admin_http {
    struct pp_admin_http_calls calls;
    struct MHD_Daemon *daemon;
};

/* An answer in the making. */
struct answer {
    unsigned code;
    const char *content_type;
    char *body; /* malloc */
    size_t body_bytes;
};

static bool is_local_client(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info != NULL && info->client_addr != NULL &&
           pp_listen_is_loopback_peer(info->client_addr);
}

/* A check's result, with its lines when they are asked for or explain a refusal. */
static void put_health(FILE *output, struct answer *answer,
                       bool (*check)(void *context, FILE *details), void *context, bool verbose)
{
    char *details = NULL;
    size_t details_bytes = 0;
    FILE *stream = open_memstream(&details, &details_bytes);
    if (stream == NULL) {
        answer->code = MHD_HTTP_SERVICE_UNAVAILABLE;
        return;
    }
    bool ok = check == NULL || check(context, stream);
    fclose(stream);
    answer->code = ok ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    if (verbose || !ok) {
        fwrite(details, 1, details_bytes, output);
    }
    fputs(ok ? "ok\n" : "not ok\n", output);
    free(details);
}

static void put_refusal(FILE *output, struct answer *answer, unsigned code, const char *text)
{
    answer->code = code;
    fprintf(output, "%s\n", text);
}

static void put_path(FILE *output, struct answer *answer, const struct pp_admin_http *server,
                     struct MHD_Connection *connection, const char *path)
{
    const struct pp_admin_http_calls *calls = &server->calls;
    const char *value;
    size_t value_bytes;
    bool verbose = MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, "verbose", 7,
                                                 &value, &value_bytes) == MHD_YES;
    if (strcmp(path, "/livez") == 0) {
        put_health(output, answer, calls->live, calls->context, verbose);
    } else if (strcmp(path, "/readyz") == 0) {
        put_health(output, answer, calls->ready, calls->context, verbose);
    } else if (strcmp(path, "/metrics") == 0 && calls->metrics != NULL) {
        answer->content_type = PP_METRICS_CONTENT_TYPE;
        calls->metrics(calls->context, output);
    } else if (strcmp(path, "/config") == 0 && calls->config != NULL) {
        if (is_local_client(connection)) {
            calls->config(calls->context, output);
        } else {
            put_refusal(output, answer, MHD_HTTP_FORBIDDEN, "only from this machine");
        }
    } else {
        put_refusal(output, answer, MHD_HTTP_NOT_FOUND,
                    "not found: there are /livez, /readyz, /metrics and /config");
    }
}

static enum MHD_Result send_answer(struct MHD_Connection *connection, struct answer *answer)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(answer->body_bytes, answer->body, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(answer->body);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->content_type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (answer->code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    enum MHD_Result sent = MHD_queue_response(connection, answer->code, response);
    MHD_destroy_response(response);
    return sent;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
                                  const char *path, const char *method, const char *version,
                                  const char *body, size_t *body_bytes, void **request)
{
    (void)version;
    (void)body;
    (void)body_bytes;
    (void)request;
    const struct pp_admin_http *server = context;
    struct answer answer = {.code = MHD_HTTP_OK, .content_type = "text/plain; charset=utf-8"};
    FILE *output = open_memstream(&answer.body, &answer.body_bytes);
    if (output == NULL) {
        return MHD_NO;
    }
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) {
        put_path(output, &answer, server, connection, path);
    } else {
        put_refusal(output, &answer, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    }
    fclose(output);
    return send_answer(connection, &answer);
}

/* The library's own words go nowhere but the debug log: peers cause them at will. */
static void on_message(void *context, const char *text, va_list arguments)
{
    (void)context;
    char line[256];
    vsnprintf(line, sizeof(line), text, arguments);
    line[strcspn(line, "\n")] = '\0';
    PP_LOG_DEBUGF("admin", "http", "text=\"%s\"", line);
}

static struct MHD_Daemon *start_daemon(struct pp_admin_http *server, int socket_fd)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | MHD_USE_ITC, 0, NULL, NULL, on_request,
        server, MHD_OPTION_EXTERNAL_LOGGER, on_message, NULL, MHD_OPTION_LISTEN_SOCKET, socket_fd,
        MHD_OPTION_CONNECTION_LIMIT, PP_ADMIN_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        SILENCE_S_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES_MAX,
        MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

enum pp_status pp_admin_http_start(const char *bind, const struct pp_admin_http_calls *calls,
                                   uint16_t *port_out, struct pp_admin_http **server_out)
{
    struct pp_listener listener;
    PP_TRY(pp_listen_tcp(bind, &listener));
    struct pp_admin_http *server = calloc(1, sizeof(*server));
    if (server == NULL) {
        close(listener.socket);
        return PP_MEMORY;
    }
    server->calls = *calls;
    server->daemon = start_daemon(server, listener.socket);
    if (server->daemon == NULL) {
        PP_LOG_ERRORF("admin", "the HTTP server does not start", "bind=%s", bind);
        close(listener.socket);
        free(server);
        return PP_RESOURCE_EXHAUSTED;
    }
    *port_out = listener.port;
    *server_out = server;
    return PP_OK;
}

void pp_admin_http_stop(struct pp_admin_http *server)
{
    if (server == NULL) {
        return;
    }
    MHD_stop_daemon(server->daemon);
    free(server);
}

bool pp_admin_http_put_check(FILE *details, const char *name, bool ok, const char *detail)
{
    bool more = detail != NULL && detail[0] != '\0';
    fprintf(details, "[%c] %s%s%s\n", ok ? '+' : '-', name, more ? ": " : "", more ? detail : "");
    return ok;
}
