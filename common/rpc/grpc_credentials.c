/*
 * gRPC's credentials out of a struct pp_tls, or plain text without one. The one file that hands the
 * texts of certificates to gRPC. A server asks for them at every handshake, so that it meets a
 * reload.
 */
#include <stdlib.h>

#include "common/rpc/grpc_internal.h"
#include "common/rpc/security.h"

grpc_channel_credentials *pp_grpc_channel_credentials(const struct pp_tls *tls)
{
    if (tls == NULL) {
        return grpc_insecure_credentials_create();
    }
    struct pp_tls_texts texts;
    pp_tls_texts_acquire(tls, &texts);
    grpc_ssl_pem_key_cert_pair pair = {texts.key_pem, texts.cert_pem};
    grpc_channel_credentials *credentials = grpc_ssl_credentials_create_ex(
        texts.ca_pem, pair.cert_chain != NULL ? &pair : NULL, NULL, NULL);
    pp_tls_texts_release(tls);
    return credentials;
}

/* gRPC's callback at a handshake, under a lock of its own, on any thread. */
static grpc_ssl_certificate_config_reload_status
fetch(void *context, grpc_ssl_server_certificate_config **config_out)
{
    struct pp_grpc_server_tls *served = context;
    struct pp_tls_texts texts;
    grpc_ssl_certificate_config_reload_status outcome =
        GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pp_tls_texts_acquire(served->tls, &texts);
    if (texts.version != served->version) {
        const grpc_ssl_pem_key_cert_pair pair = {texts.key_pem, texts.cert_pem};
        *config_out = grpc_ssl_server_certificate_config_create(texts.ca_pem, &pair, 1);
        outcome = *config_out != NULL ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                                      : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
        served->version = *config_out != NULL ? texts.version : served->version;
    }
    pp_tls_texts_release(served->tls);
    return outcome;
}

static bool has_certificate(const struct pp_tls *tls)
{
    struct pp_tls_texts texts;
    pp_tls_texts_acquire(tls, &texts);
    bool has = texts.cert_pem != NULL;
    pp_tls_texts_release(tls);
    return has;
}

grpc_server_credentials *pp_grpc_server_credentials(struct pp_grpc_server_tls *served)
{
    const struct pp_tls *tls = served->tls;
    if (tls == NULL) {
        return grpc_insecure_server_credentials_create();
    }
    if (!has_certificate(tls)) {
        PP_LOG_ERRORF("rpc", "a TLS server needs a certificate", "hint=%s", "--tls-cert-file");
        return NULL;
    }
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            pp_tls_client_auth(tls) ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            fetch, served);
    return options != NULL ? grpc_ssl_server_credentials_create_with_options(options) : NULL;
}
