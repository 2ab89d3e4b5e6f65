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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

/* Owned. */
struct texts {
    char *cert_pem, *key_pem, *ca_pem;
};

/* What a reload changes; apart, since transports borrow a const struct pp_tls. */
struct live {
    pthread_mutex_t lock;
    struct texts texts;
    uint64_t version;
};

struct pp_tls {
    struct live *live;
    /* Copies of the config's. */
    char *cert_file, *key_file, *ca_file;
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

static enum pp_status check_pair(const struct texts *texts, const struct pp_tls *tls)
{
    X509 *certificate = parse_certificate(texts->cert_pem);
    BIO *source = BIO_new_mem_buf(texts->key_pem, -1);
    EVP_PKEY *key =
        source != NULL ? PEM_read_bio_PrivateKey(source, NULL, no_passphrase, NULL) : NULL;
    enum pp_status status = PP_INVALID_ARGUMENT;
    if (certificate == NULL) {
        PP_LOG_ERRORF("rpc", "no PEM certificate in the file", "file=%s", tls->cert_file);
    } else if (key == NULL) {
        PP_LOG_ERRORF("rpc", "no readable PEM private key in the file", "file=%s", tls->key_file);
    } else if (X509_check_private_key(certificate, key) != 1) {
        PP_LOG_ERRORF("rpc", "the key does not belong to the certificate", "cert=%s key=%s",
                      tls->cert_file, tls->key_file);
    } else {
        status = PP_OK;
    }
    EVP_PKEY_free(key);
    BIO_free(source);
    X509_free(certificate);
    return status;
}

static enum pp_status check_authority(const struct texts *texts, const struct pp_tls *tls)
{
    X509 *certificate = parse_certificate(texts->ca_pem);
    if (certificate == NULL) {
        PP_LOG_ERRORF("rpc", "no PEM certificate in the file", "file=%s", tls->ca_file);
        return PP_INVALID_ARGUMENT;
    }
    X509_free(certificate);
    return PP_OK;
}

static void texts_free(struct texts *texts)
{
    if (texts->key_pem != NULL) {
        OPENSSL_cleanse(texts->key_pem, strlen(texts->key_pem));
    }
    free(texts->cert_pem);
    free(texts->key_pem);
    free(texts->ca_pem);
    *texts = (struct texts){.cert_pem = NULL};
}

/* What was read before an error is the caller's to free, too. */
static enum pp_status texts_read(const struct pp_tls *tls, struct texts *texts)
{
    if (tls->cert_file != NULL) {
        PP_TRY(read_file(tls->cert_file, &texts->cert_pem));
        PP_TRY(read_file(tls->key_file, &texts->key_pem));
        PP_TRY(check_pair(texts, tls));
    }
    if (tls->ca_file != NULL) {
        PP_TRY(read_file(tls->ca_file, &texts->ca_pem));
        PP_TRY(check_authority(texts, tls));
    }
    return PP_OK;
}

static enum pp_status check_config(const struct pp_tls_config *config)
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
    return PP_OK;
}

static enum pp_status copy_text(const char *text, char **copy_out)
{
    char *copy = text != NULL ? strdup(text) : NULL;
    if (text != NULL && copy == NULL) {
        return PP_MEMORY;
    }
    *copy_out = copy;
    return PP_OK;
}

static enum pp_status load(struct pp_tls *tls, const struct pp_tls_config *config)
{
    PP_TRY(check_config(config));
    PP_TRY(copy_text(config->cert_file, &tls->cert_file));
    PP_TRY(copy_text(config->key_file, &tls->key_file));
    PP_TRY(copy_text(config->ca_file, &tls->ca_file));
    PP_TRY(copy_text(config->server_name, &tls->server_name));
    tls->client_auth = config->client_auth;
    tls->live->version = 1;
    return texts_read(tls, &tls->live->texts);
}

enum pp_status pp_tls_new(const struct pp_tls_config *config, struct pp_tls **tls_out)
{
    struct pp_tls *tls = calloc(1, sizeof(*tls));
    struct live *live = calloc(1, sizeof(*live));
    if (tls == NULL || live == NULL) {
        free(tls);
        free(live);
        return PP_MEMORY;
    }
    tls->live = live;
    (void)pthread_mutex_init(&live->lock, NULL);
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
    texts_free(&tls->live->texts);
    (void)pthread_mutex_destroy(&tls->live->lock);
    free(tls->live);
    free(tls->cert_file);
    free(tls->key_file);
    free(tls->ca_file);
    free(tls->server_name);
    free(tls);
}

enum pp_status pp_tls_reload(struct pp_tls *tls)
{
    struct texts texts = {.cert_pem = NULL};
    enum pp_status status = texts_read(tls, &texts);
    if (status == PP_OK) {
        (void)pthread_mutex_lock(&tls->live->lock);
        struct texts old = tls->live->texts;
        tls->live->texts = texts;
        tls->live->version++;
        (void)pthread_mutex_unlock(&tls->live->lock);
        texts = old;
    }
    texts_free(&texts);
    return status;
}

void pp_tls_texts_acquire(const struct pp_tls *tls, struct pp_tls_texts *texts_out)
{
    struct live *live = tls->live;
    (void)pthread_mutex_lock(&live->lock);
    *texts_out = (struct pp_tls_texts){.cert_pem = live->texts.cert_pem,
                                       .key_pem = live->texts.key_pem,
                                       .ca_pem = live->texts.ca_pem,
                                       .version = live->version};
}

void pp_tls_texts_release(const struct pp_tls *tls)
{
    (void)pthread_mutex_unlock(&tls->live->lock);
}

const char *pp_tls_server_name(const struct pp_tls *tls)
{
    return tls->server_name;
}

bool pp_tls_client_auth(const struct pp_tls *tls)
{
    return tls->client_auth;
}
