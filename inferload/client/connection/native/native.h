/* What the parts of the compiled reader share. Times are nanoseconds; every function that is called from the thread keeps off Python. */
#ifndef INFERLOAD_NATIVE_H
#define INFERLOAD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum framing { FRAMING_UNKNOWN, FRAMING_CHUNKED, FRAMING_LENGTH, FRAMING_CLOSE };

/* Where in a chunked body (RFC 9112, 7.1) one stands. Zeroed it is at the beginning. */
struct chunks {
    enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_AFTER, CHUNK_TRAILERS } at;
    int64_t left;   /* bytes of data that are still to come */
    uint64_t size;  /* of the chunk whose line is being read */
    int line, digits, phase, bad, cr, trailers; /* trailers: bytes of their lines so far */
};

enum walked { WALK_MORE, WALK_DONE, WALK_BROKEN };

/* Goes over the next bytes of a chunked body; its rules are those of ChunkedDecoder in http1.py. `surplus`: bytes behind its end. */
enum walked walk(struct chunks *chunks, const char *bytes, size_t n, size_t *surplus);

/* The framing that a head (up to and with its empty line) gives its body, where that is plain to see; else FRAMING_UNKNOWN. */
enum framing framing_of(const char *head, size_t n, int64_t *length);

/* Whether these bytes can stand between the quotes of a JSON string and mean the same wherever they are cut out. */
int is_string_body(const unsigned char *bytes, size_t n);

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *walk_chunks(PyObject *module, PyObject *pieces);
PyObject *look_at_head(PyObject *module, PyObject *head);

extern PyType_Spec reader_spec;

#endif
