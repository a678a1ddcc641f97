/* TLS: decryption in the reading thread, encryption for Python, by the libssl that Python's ssl module has loaded.
 *
 * Python makes the handshake, so its settings decide which certificates and versions are accepted. Then the connection's SSL object
 * gets other ends: it reads from the bytes of the latest `recvmsg`, without a copy, and writes to memory. Nothing of OpenSSL is linked or
 * bundled: its functions are looked up at run time, and those of its headers that are used here are declared below. */
#define _GNU_SOURCE
#include "transport.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>

typedef struct ssl_st SSL;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;

/* Numbers of OpenSSL's headers, equal in all versions from 1.1.1 on. */
#define SSL_ERROR_WANT_READ 2
#define SSL_ERROR_ZERO_RETURN 6
#define BIO_CTRL_PENDING 10
#define BIO_CTRL_FLUSH 11
#define BIO_TYPE_SOURCE_SINK 0x0400
#define BIO_FLAGS_READ_RETRY (0x01 | 0x08)
#define BIO_FLAGS_RETRY_ALL 0x0F

#define FUNCTIONS(F) \
    F(int, SSL_read, (SSL *, void *, int)) \
    F(int, SSL_write, (SSL *, const void *, int)) \
    F(int, SSL_get_error, (const SSL *, int)) \
    F(int, SSL_up_ref, (SSL *)) \
    F(void, SSL_free, (SSL *)) \
    F(void *, SSL_get_ex_data, (const SSL *, int)) \
    F(void, SSL_set0_rbio, (SSL *, BIO *)) \
    F(void, SSL_set0_wbio, (SSL *, BIO *)) \
    F(BIO *, BIO_new, (const BIO_METHOD *)) \
    F(int, BIO_free, (BIO *)) \
    F(int, BIO_read, (BIO *, void *, int)) \
    F(long, BIO_ctrl, (BIO *, int, long, void *)) \
    F(void, BIO_set_data, (BIO *, void *)) \
    F(void *, BIO_get_data, (BIO *)) \
    F(void, BIO_set_init, (BIO *, int)) \
    F(void, BIO_set_flags, (BIO *, int)) \
    F(void, BIO_clear_flags, (BIO *, int)) \
    F(const BIO_METHOD *, BIO_s_mem, (void)) \
    F(int, BIO_get_new_index, (void)) \
    F(BIO_METHOD *, BIO_meth_new, (int, const char *)) \
    F(int, BIO_meth_set_read, (BIO_METHOD *, int (*)(BIO *, char *, int))) \
    F(int, BIO_meth_set_ctrl, (BIO_METHOD *, long (*)(BIO *, int, long, void *))) \
    F(void, ERR_clear_error, (void)) \
    F(unsigned long, ERR_peek_last_error, (void)) \
    F(const char *, ERR_reason_error_string, (unsigned long))

#define DECLARE(result, name, arguments) result(*name) arguments;
static struct {
    FUNCTIONS(DECLARE)
} lib;
static BIO_METHOD *received; /* NULL: the functions are not loaded */

struct tls {
    SSL *ssl;
    BIO *outgoing;
    const char *records; /* bytes of the current `tls_decrypt` that OpenSSL has not read */
    size_t left;
    char why[64];
};

static int read_received(BIO *bio, char *into, int room) {
    struct tls *tls = lib.BIO_get_data(bio);
    lib.BIO_clear_flags(bio, BIO_FLAGS_RETRY_ALL);
    if (!tls->left) return lib.BIO_set_flags(bio, BIO_FLAGS_READ_RETRY), -1;
    int n = tls->left < (size_t)room ? (int)tls->left : room;
    memcpy(into, tls->records, (size_t)n);
    tls->records += n, tls->left -= (size_t)n;
    return n;
}

static long control_received(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

/* Return the SSL object of an `_ssl._SSLSocket`. Its struct has it before the pointer to its context, in all versions of CPython; where
 * that pointer is not found, or the object is not that of this Python object, nothing is used: NULL. */
static SSL *ssl_of(PyObject *object, PyObject *context) {
    void **words = (void **)object;
    PyObject *size = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__basicsize__");
    size_t count = size ? PyLong_AsSize_t(size) / sizeof *words : 0;
    Py_XDECREF(size);
    if (PyErr_Occurred()) return PyErr_Clear(), NULL;
    for (size_t i = sizeof(PyObject) / sizeof *words + 1; i < count; i++)
        if (words[i] == context) {
            SSL *ssl = words[i - 1];
            return ssl && lib.SSL_get_ex_data(ssl, 0) == object ? ssl : NULL;
        }
    return NULL;
}

/* Look up the functions in the module `_ssl` and the libraries that it needs. `path`: its file; NULL: it is in the interpreter. */
static int load(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle) return PyErr_SetString(PyExc_OSError, "the ssl module is not loaded"), -1;
#define LOOK_UP(result, name, arguments) \
    *(void **)&lib.name = dlsym(handle, #name); \
    if (!lib.name) return PyErr_SetString(PyExc_OSError, "no " #name " in the libssl of the ssl module"), -1;
    FUNCTIONS(LOOK_UP)
    BIO_METHOD *method = lib.BIO_meth_new(lib.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "received");
    if (!method) return PyErr_NoMemory(), -1;
    lib.BIO_meth_set_read(method, read_received);
    lib.BIO_meth_set_ctrl(method, control_received);
    received = method;
    return 0;
}

PyObject *tls_load(PyObject *module, PyObject *arguments) {
    const char *path;
    PyObject *object, *context;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "zOO", &path, &object, &context)) return NULL;
    if (!received && load(path)) return NULL;
    if (!ssl_of(object, context)) return PyErr_SetString(PyExc_OSError, "the ssl module's objects are not those of CPython"), NULL;
    Py_RETURN_NONE;
}

struct tls *tls_open(PyObject *object, PyObject *context) {
    SSL *ssl = received ? ssl_of(object, context) : NULL;
    if (!ssl) return PyErr_SetString(PyExc_OSError, "no connection of the ssl module"), NULL;
    struct tls *tls = calloc(1, sizeof *tls);
    BIO *incoming = lib.BIO_new(received), *outgoing = lib.BIO_new(lib.BIO_s_mem());
    if (!tls || !incoming || !outgoing) {
        lib.BIO_free(incoming), lib.BIO_free(outgoing), free(tls);
        return (struct tls *)PyErr_NoMemory();
    }
    lib.BIO_set_data(incoming, tls);
    lib.BIO_set_init(incoming, 1);
    lib.SSL_set0_rbio(ssl, incoming);
    lib.SSL_set0_wbio(ssl, outgoing);
    lib.SSL_up_ref(ssl);
    tls->ssl = ssl, tls->outgoing = outgoing;
    return tls;
}

/* Keep the reason of the first error, in the form of Python's `SSLError.reason`: later ones only follow from it. */
static void keep_reason(struct tls *tls) {
    if (*tls->why) return;
    const char *reason = lib.ERR_reason_error_string(lib.ERR_peek_last_error());
    if (!reason) reason = "unknown error";
    size_t n = 0;
    for (; reason[n] && n < sizeof tls->why - 1; n++) tls->why[n] = reason[n] == ' ' ? '_' : (char)toupper((unsigned char)reason[n]);
    tls->why[n] = 0;
}

enum tls_state tls_decrypt(struct tls *tls, const char *records, size_t n, char *plain, size_t *used) {
    tls->records = records, tls->left = n, *used = 0;
    lib.ERR_clear_error(); /* SSL_get_error looks at the errors of this thread */
    for (;;) {
        int got = lib.SSL_read(tls->ssl, plain + *used, (int)(PLAIN_SIZE - *used));
        if (got > 0) {
            *used += (size_t)got;
            continue;
        }
        int error = lib.SSL_get_error(tls->ssl, got);
        if (error == SSL_ERROR_WANT_READ) return TLS_OPEN;
        if (error == SSL_ERROR_ZERO_RETURN) return TLS_CLOSED;
        keep_reason(tls);
        lib.ERR_clear_error();
        return TLS_BROKEN;
    }
}

PyObject *tls_encrypt(struct tls *tls, const char *plain, Py_ssize_t n) {
    lib.ERR_clear_error();
    while (n) {
        int done = lib.SSL_write(tls->ssl, plain, n > INT_MAX ? INT_MAX : (int)n);
        if (done <= 0) {
            keep_reason(tls);
            return PyErr_Format(PyExc_ConnectionError, "TLS: %s", tls->why);
        }
        plain += done, n -= done;
    }
    long size = lib.BIO_ctrl(tls->outgoing, BIO_CTRL_PENDING, 0, NULL); /* with an answer to a key update */
    PyObject *records = PyBytes_FromStringAndSize(NULL, size);
    if (records && size) lib.BIO_read(tls->outgoing, PyBytes_AsString(records), (int)size);
    return records;
}

const char *tls_why(const struct tls *tls) { return tls->why; }

void tls_close(struct tls *tls) {
    if (!tls) return;
    lib.SSL_free(tls->ssl);
    free(tls);
}
