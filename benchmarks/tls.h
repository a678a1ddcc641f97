/* TLS over memory buffers, so that the socket is read with timestamps. Without WITH_TLS, `tls_available` is 0. */
#ifndef BENCH_TLS_H
#define BENCH_TLS_H

#include "common.h"

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

static const int tls_available = 1;

struct tls {
    SSL *ssl;
    BIO *in, *out;
};

static inline SSL_CTX *tls_server_context(const char *certificate, const char *key) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1) die("--tls-cert %s: no certificate there", certificate);
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) die("--tls-key %s: no private key there", key);
    return context;
}

/* No verification: both ends are on one machine. */
static inline SSL_CTX *tls_client_context(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
    return context;
}

static inline struct tls *tls_new(SSL_CTX *context, int server) {
    struct tls *t = grow(NULL, sizeof *t);
    t->ssl = SSL_new(context);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    SSL_set_bio(t->ssl, t->in, t->out);
    if (server) SSL_set_accept_state(t->ssl);
    else SSL_set_connect_state(t->ssl);
    return t;
}

static inline void tls_free(struct tls *t) {
    if (!t) return;
    SSL_free(t->ssl);
    free(t);
}

/* Input of bytes from the socket. */
static inline void tls_feed(struct tls *t, const char *raw, size_t n) { BIO_write(t->in, raw, (int)n); }

/* Read plain bytes. Return their number, 0 for none yet, < 0 for a lost peer or a TLS error. */
static inline int tls_read(struct tls *t, char *plain, size_t size) {
    ERR_clear_error();
    int n = SSL_read(t->ssl, plain, (int)size);
    if (n > 0) return n;
    return SSL_get_error(t->ssl, n) == SSL_ERROR_WANT_READ ? 0 : -1;
}

/* True if a read may return bytes: input is left, or the rest of a record. A read without either would look for a record in vain. */
static inline int tls_pending(struct tls *t) { return BIO_pending(t->in) || SSL_pending(t->ssl); }

static inline int tls_write(struct tls *t, const char *plain, size_t n) {
    ERR_clear_error();
    return SSL_write(t->ssl, plain, (int)n) == (int)n;
}

/* Bytes to send to the socket; 0 if none. */
static inline size_t tls_take(struct tls *t, char *raw, size_t size) {
    int n = BIO_read(t->out, raw, (int)size);
    return n > 0 ? (size_t)n : 0;
}

/* Continue the handshake of the client until it returns true. */
static inline int tls_handshake(struct tls *t) {
    ERR_clear_error();
    return SSL_do_handshake(t->ssl) == 1;
}

#else

static const int tls_available = 0;
typedef void SSL_CTX;
struct tls;
static inline SSL_CTX *tls_server_context(const char *c, const char *k) { (void)c, (void)k; die("built without OpenSSL"); }
static inline SSL_CTX *tls_client_context(void) { die("built without OpenSSL"); }
static inline struct tls *tls_new(SSL_CTX *c, int s) { (void)c, (void)s; return NULL; }
static inline void tls_free(struct tls *t) { (void)t; }
static inline void tls_feed(struct tls *t, const char *r, size_t n) { (void)t, (void)r, (void)n; }
static inline int tls_read(struct tls *t, char *p, size_t n) { (void)t, (void)p, (void)n; return -1; }
static inline int tls_pending(struct tls *t) { (void)t; return 0; }
static inline int tls_write(struct tls *t, const char *p, size_t n) { (void)t, (void)p, (void)n; return 0; }
static inline size_t tls_take(struct tls *t, char *r, size_t n) { (void)t, (void)r, (void)n; return 0; }
static inline int tls_handshake(struct tls *t) { (void)t; return 0; }

#endif
#endif
