/*
 * Certificates from files: read, checked with OpenSSL so that a bad one is an error at start that
 * names its file, and kept as PEM text. Lies beside the transports; refuses to know gRPC.
 */
#include "common/rpc/security.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

struct pp_tls {
    char *cert_pem;
    char *key_pem;
    char *ca_pem;
    char *server_name;
    bool client_auth;
};

/* A bundle of every public authority is about 220 KiB. */
#define PEM_BYTES_MAX (4u << 20)

static enum pp_status read_file(const char *path, char **text_out)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        PP_LOG_ERRORF("rpc", "cannot open a PEM file", "file=%s error=\"%s\"", path,
                      strerror(errno));
        return PP_IO;
    }
    enum pp_status status = PP_IO;
    char *text = malloc(PEM_BYTES_MAX);
    size_t bytes = text != NULL ? fread(text, 1, PEM_BYTES_MAX, file) : 0;
    if (text == NULL) {
        status = PP_MEMORY;
    } else if (ferror(file) != 0 || bytes == PEM_BYTES_MAX) {
        PP_LOG_ERRORF("rpc", "cannot read a PEM file", "file=%s bytes=%zu", path, bytes);
    } else {
        text[bytes] = '\0';
        status = PP_OK;
    }
    fclose(file);
    if (status != PP_OK) {
        free(text);
        return status;
    }
    char *fitted = realloc(text, bytes + 1);
    *text_out = fitted != NULL ? fitted : text;
    return PP_OK;
}

static X509 *parse_certificate(const char *pem)
{
    BIO *source = BIO_new_mem_buf(pem, -1);
    X509 *certificate = source != NULL ? PEM_read_bio_X509(source, NULL, NULL, NULL) : NULL;
    BIO_free(source);
    return certificate;
}

/* No prompt for the passphrase of an encrypted key: that is refused. */
static int no_passphrase(char *out, int out_bytes, int writing, void *context)
{
    (void)out;
    (void)out_bytes;
    (void)writing;
    (void)context;
    return -1;
}

static enum pp_status check_pair(const struct pp_tls *tls, const struct pp_tls_config *config)
{
    X509 *certificate = parse_certificate(tls->cert_pem);
    BIO *source = BIO_new_mem_buf(tls->key_pem, -1);
    EVP_PKEY *key =
        source != NULL ? PEM_read_bio_PrivateKey(source, NULL, no_passphrase, NULL) : NULL;
    enum pp_status status = PP_INVALID_ARGUMENT;
    if (certificate == NULL) {
        PP_LOG_ERRORF("rpc", "no PEM certificate in the file", "file=%s", config->cert_file);
    } else if (key == NULL) {
        PP_LOG_ERRORF("rpc", "no readable PEM private key in the file", "file=%s",
                      config->key_file);
    } else if (X509_check_private_key(certificate, key) != 1) {
        PP_LOG_ERRORF("rpc", "the key does not belong to the certificate", "cert=%s key=%s",
                      config->cert_file, config->key_file);
    } else {
        status = PP_OK;
    }
    EVP_PKEY_free(key);
    BIO_free(source);
    X509_free(certificate);
    return status;
}

static enum pp_status check_authority(const struct pp_tls *tls, const struct pp_tls_config *config)
{
    X509 *certificate = parse_certificate(tls->ca_pem);
    if (certificate == NULL) {
        PP_LOG_ERRORF("rpc", "no PEM certificate in the file", "file=%s", config->ca_file);
        return PP_INVALID_ARGUMENT;
    }
    X509_free(certificate);
    return PP_OK;
}

static enum pp_status load(struct pp_tls *tls, const struct pp_tls_config *config)
{
    if ((config->cert_file == NULL) != (config->key_file == NULL)) {
        PP_LOG_ERRORF("rpc", "certificate and key go together", "cert=%s key=%s",
                      config->cert_file != NULL ? config->cert_file : "missing",
                      config->key_file != NULL ? config->key_file : "missing");
        return PP_INVALID_ARGUMENT;
    }
    if (config->ca_file == NULL && (config->cert_file == NULL || config->client_auth)) {
        PP_LOG_ERRORF("rpc", "an authority is needed to check the other side", "ca=%s", "missing");
        return PP_INVALID_ARGUMENT;
    }
    if (config->cert_file != NULL) {
        PP_TRY(read_file(config->cert_file, &tls->cert_pem));
        PP_TRY(read_file(config->key_file, &tls->key_pem));
        PP_TRY(check_pair(tls, config));
    }
    if (config->ca_file != NULL) {
        PP_TRY(read_file(config->ca_file, &tls->ca_pem));
        PP_TRY(check_authority(tls, config));
    }
    if (config->server_name != NULL) {
        tls->server_name = strdup(config->server_name);
        if (tls->server_name == NULL) {
            return PP_MEMORY;
        }
    }
    tls->client_auth = config->client_auth;
    return PP_OK;
}

enum pp_status pp_tls_new(const struct pp_tls_config *config, struct pp_tls **tls_out)
{
    struct pp_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = load(tls, config);
    if (status != PP_OK) {
        pp_tls_destroy(tls);
        return status;
    }
    *tls_out = tls;
    return PP_OK;
}

void pp_tls_destroy(struct pp_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    if (tls->key_pem != NULL) {
        OPENSSL_cleanse(tls->key_pem, strlen(tls->key_pem));
    }
    free(tls->cert_pem);
    free(tls->key_pem);
    free(tls->ca_pem);
    free(tls->server_name);
    free(tls);
}

const char *pp_tls_cert_pem(const struct pp_tls *tls)
{
    return tls->cert_pem;
}

const char *pp_tls_key_pem(const struct pp_tls *tls)
{
    return tls->key_pem;
}

const char *pp_tls_ca_pem(const struct pp_tls *tls)
{
    return tls->ca_pem;
}

const char *pp_tls_server_name(const struct pp_tls *tls)
{
    return tls->server_name;
}

bool pp_tls_client_auth(const struct pp_tls *tls)
{
    return tls->client_auth;
}
