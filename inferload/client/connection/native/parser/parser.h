/* The parser: reads of a reply with their instants in; head, end, marks, and columns of reads and events out. It needs C11 and Python,
 * no system: no I/O and no clock. Times are in nanoseconds. */
#ifndef INFERLOAD_PARSER_H
#define INFERLOAD_PARSER_H

/* One compiled file serves CPython 3.11 and all later versions (abi3). */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- functions without the Python API, which the reader thread calls as well */

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

/* Process the next bytes of a chunked body, by the rules of ChunkedDecoder in http1.py. `surplus`: bytes after its end. */
enum walked walk(struct chunks *chunks, struct search *search, const struct marks *marks, const char *bytes, size_t n, size_t *surplus);

/* Return the framing of the body by a head with its empty line; FRAMING_UNKNOWN if the head needs the Python parser. */
enum framing framing_of(const char *head, size_t n, int64_t *length);

/* Return the first place of a short text, which needs no NUL; NULL if there is none. */
const char *find(const char *bytes, size_t n, const char *text, size_t length);

struct read_entry {
    int64_t end, mono_ns, age_ns; /* age: time since the kernel's timestamp; negative if it is missing or in the future */
};

/* Reads of one reply that have not been taken. All zeros: none so far. */
struct reply {
    enum framing framing;
    struct chunks chunks;
    struct search search;
    int64_t left, last_ns, newest_ns; /* time of the latest read, and of the latest one that has been taken */
    char *data;
    size_t used, room, looked, head; /* looked: bytes searched for the end of the head; head: its bytes in `data`, 0 while unknown */
    struct read_entry *reads;
    size_t count, size;
    int asked, interim; /* ASKS_FOR_HEAD is not answered yet; the answer was that the head goes on */
};

/* What bytes of a reply have led to; 0: nothing to do yet. */
enum news {
    COMPLETE = 1, /* the body has ended */
    BROKEN = 2,   /* its chunk framing is invalid */
    ASKS_FOR_HEAD = 4, /* parse_head decides; then `reply_frame` */
    MARKED = 8,   /* the body contains a mark, and goes on */
    SURPLUS = 16, /* bytes behind the end were dropped: they answer no request, so the connection cannot be reused */
    FULL = 32,    /* no more is to be read until the data have been taken */
    NO_MEMORY = 64,
};

/* Add a read; none may follow COMPLETE or BROKEN. */
int reply_push(struct reply *reply, const struct marks *marks, const char *bytes, size_t n, int64_t mono_ns, int64_t age_ns);

/* Answer ASKS_FOR_HEAD by the length of the head and the framing that it gives; FRAMING_UNKNOWN: the head is incomplete. */
int reply_frame(struct reply *reply, const struct marks *marks, size_t head, enum framing framing, int64_t length);

#define FULL_DATA (1 << 22) /* bytes and reads of one reply after which reading stops until they have been taken */
#define FULL_READS (1 << 16)
static inline int reply_is_full(const struct reply *reply) { return reply->used > FULL_DATA || reply->count > FULL_READS; }

void reply_taken(struct reply *reply); /* free the buffers; the reply goes on */
void reply_clear(struct reply *reply); /* the same, and forget the reply: the next one may begin */

/* ---- functions for Python, which both modules offer: Reply.NAME, and Reader.NAME with the id of a connection */

/* Set the marks to a tuple of bytes. Return -1 with a Python error if that fails. */
int set_marks(struct marks *marks, PyObject *texts);

int reply_frame_is_valid(const struct reply *reply, Py_ssize_t head, int framing, long long length); /* else with a Python error */
PyObject *reply_peek(const struct reply *reply);
PyObject *reply_waiting(const struct reply *reply);
PyObject *reply_take(struct reply *reply, int64_t floor_ns);

#define METHOD(name, function, how, text) {name, (PyCFunction)(void (*)(void))function, how, text}
#define FRAME_DOC "head_bytes, framing, length): answer ASKS_FOR_HEAD; framing 0: the head is incomplete. Return the news of the body."
#define PEEK_DOC "Return the bytes that have not been taken."
#define WAITING_DOC "Return (number of reads and bytes not taken, monotonic time of the latest read or 0, framing or 0 before the end of the head)."
#define TAKE_DOC \
    "floor_ns) -> (head, data, ends, at_ns, delays_ns, reads without a timestamp), numbers as native int64.\n\n" \
    "The head is complete in the first result with one, else b\"\". `ends` are positions in `data`, which follows the head."

/* ---- events of a body (scan.c) */

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
