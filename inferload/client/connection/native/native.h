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

#define MARKS 4 /* end markers of one endpoint, at most */

/* Texts of which one occurs in the last event of each whole answer. The first byte of each occurs in it once. */
struct marks {
    int count;
    struct {
        char text[32];
        size_t length;
    } at[MARKS];
};

/* Search for the marks in a body that arrives in parts. All zeros: its start. */
struct search {
    unsigned char matched[MARKS]; /* bytes of each mark at the end of the part before */
    int found;
};

/* Search the next bytes of the body, without its chunk framing, for the marks. */
void look_for_marks(struct search *search, const struct marks *marks, const char *bytes, size_t n);

/* Set the marks to a tuple of bytes. Return -1 with a Python error if that fails. */
int set_marks(struct marks *marks, PyObject *texts);

/* Process the next bytes of a chunked body, by the rules of ChunkedDecoder in http1.py. `surplus`: bytes after its end. */
enum walked walk(struct chunks *chunks, struct search *search, const struct marks *marks, const char *bytes, size_t n, size_t *surplus);

/* Return the framing of the body by a head with its empty line; FRAMING_UNKNOWN if the head needs the Python parser. */
enum framing framing_of(const char *head, size_t n, int64_t *length);

/* Return 1 if these bytes are valid between the quotes of a JSON string, and so is their concatenation with others. */
int is_string_body(const unsigned char *bytes, size_t n);

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *walk_chunks(PyObject *module, PyObject *pieces);
PyObject *has_mark(PyObject *module, PyObject *arguments);
PyObject *framing_of_head(PyObject *module, PyObject *head);

extern PyType_Spec reader_spec;

#endif
