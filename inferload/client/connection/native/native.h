/* Common declarations of the extension. Times are in nanoseconds. Functions that the reader thread calls do not use the Python API. */
#ifndef INFERLOAD_NATIVE_H
#define INFERLOAD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum framing { FRAMING_UNKNOWN, FRAMING_CHUNKED, FRAMING_LENGTH, FRAMING_CLOSE };

/* State of a chunked body (RFC 9112, 7.1). All zeros: its start. */
struct chunks {
    enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_AFTER, CHUNK_TRAILERS } at;
    int64_t left;   /* remaining bytes of the chunk's data */
    uint64_t size;  /* size of the chunk, so far */
    int line, digits, phase, bad, cr, trailers; /* trailers: bytes of their lines so far */
};

enum walked { WALK_MORE, WALK_DONE, WALK_BROKEN };

/* Process the next bytes of a chunked body, by the rules of ChunkedDecoder in http1.py. `surplus`: bytes after its end. */
enum walked walk(struct chunks *chunks, const char *bytes, size_t n, size_t *surplus);

/* Return the framing of the body by a head with its empty line; FRAMING_UNKNOWN if the head needs the Python parser. */
enum framing framing_of(const char *head, size_t n, int64_t *length);

/* Return 1 if these bytes are valid between the quotes of a JSON string, and so is their concatenation with others. */
int is_string_body(const unsigned char *bytes, size_t n);

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *walk_chunks(PyObject *module, PyObject *pieces);
PyObject *framing_of_head(PyObject *module, PyObject *head);

extern PyType_Spec reader_spec;

#endif
