/*
 * gRPC's credentials out of a struct pp_tls, or plain text without one. The one file that hands the
 * texts of certificates to gRPC.
 */
#include "common/rpc/grpc_internal.h"
#include "common/rpc/security.h"

grpc_channel_credentials *pp_grpc_channel_credentials(const struct pp_tls *tls)
{
    if (tls == NULL) {
        return grpc_insecure_credentials_create();
    }
    grpc_ssl_pem_key_cert_pair pair = {pp_tls_key_pem(tls), pp_tls_cert_pem(tls)};
    return grpc_ssl_credentials_create_ex(pp_tls_ca_pem(tls),
                                          pair.cert_chain != NULL ? &pair : NULL, NULL, NULL);
}

grpc_server_credentials *pp_grpc_server_credentials(const struct pp_tls *tls)
{
    if (tls == NULL) {
        return grpc_insecure_server_credentials_create();
    }
    grpc_ssl_pem_key_cert_pair pair = {pp_tls_key_pem(tls), pp_tls_cert_pem(tls)};
    if (pair.cert_chain == NULL) {
        PP_LOG_ERRORF("rpc", "a TLS server needs a certificate", "hint=%s", "--tls-cert-file");
        return NULL;
    }
    return grpc_ssl_server_credentials_create_ex(
        pp_tls_ca_pem(tls), &pair, 1,
        pp_tls_client_auth(tls) ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
        NULL);
}
