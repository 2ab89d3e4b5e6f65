/*
 * Transport security from PEM files: the certificate and key of this side, and the authority that
 * the other side's certificate must come from. The same object serves a server (mutual TLS unless
 * client_auth is off) and a client. Files are read at pp_tls_new and pp_tls_reload; the texts never
 * leave this module but into gRPC. Threads: new and destroy on one; reload and the rest on any;
 * borrowed by transports, outlives them.
 */
#ifndef PIGPEN_COMMON_RPC_SECURITY_H
#define PIGPEN_COMMON_RPC_SECURITY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct pp_tls;

struct pp_tls_config {
    const char *cert_file; /* PEM, this side's chain; with key_file; both NULL: a client without */
    const char *key_file;  /* PEM */
    const char *ca_file;   /* PEM, trusted authorities; needed by clients and by client_auth */
    bool client_auth;      /* server: refuse clients without a certificate of ca_file */
    /* Client: the name that the server's certificate must carry, for targets that are addresses
     * not named in it. NULL: the target's own. */
    const char *server_name;
};

/* PP_IO: a file cannot be read. PP_INVALID_ARGUMENT: no PEM certificate or key in it, the key does
 * not belong to the certificate, or a file is missing. Both are logged with the file's name. */
PP_MUST_USE enum pp_status pp_tls_new(const struct pp_tls_config *config, struct pp_tls **tls_out);
void pp_tls_destroy(struct pp_tls *tls);

/* Reads the same files again. A server uses them from the next connection on; connections that
 * stand go on. The errors of pp_tls_new: then nothing changed. */
PP_MUST_USE enum pp_status pp_tls_reload(struct pp_tls *tls);

/* For common/rpc's own use. The texts stay as they are until they are given back, on the same
 * thread; absent ones are NULL. version: 1, and one more a reload. */
struct pp_tls_texts {
    const char *cert_pem, *key_pem, *ca_pem;
    uint64_t version;
};
void pp_tls_texts_acquire(const struct pp_tls *tls, struct pp_tls_texts *texts_out);
void pp_tls_texts_release(const struct pp_tls *tls);
const char *pp_tls_server_name(const struct pp_tls *tls);
bool pp_tls_client_auth(const struct pp_tls *tls);

#endif
