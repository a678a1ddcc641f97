/* Reads of one reply: they are gathered up to its end, which is found without decoding them. */
#include "parser.h"

#include <stdlib.h>
#include <string.h>

#define STEP 8192 /* room for about 40 tokens; a long reply grows by a half */
#define LONGEST_HEAD 65536

static void drop_surplus(struct reply *r, size_t surplus) {
    r->used -= surplus;
    while (r->count > 1 && r->reads[r->count - 2].end >= (int64_t)r->used) r->count--;
    if (r->count) r->reads[r->count - 1].end = (int64_t)r->used;
}

/* Process new bytes of the body. */
static int advance(struct reply *r, const struct marks *marks, size_t from) {
    size_t n = r->used - from, surplus = 0;
    enum walked result = WALK_MORE;
    int news = 0;
    if (r->framing == FRAMING_CHUNKED) {
        result = walk(&r->chunks, &r->search, marks, r->data + from, n, &surplus);
    } else {
        look_for_marks(&r->search, marks, r->data + from, n);
        if (r->framing == FRAMING_LENGTH) {
            r->left -= (int64_t)n;
            if (r->left < 0) surplus = (size_t)-r->left;
            if (r->left <= 0) result = WALK_DONE;
        }
    }
    if (result == WALK_DONE) news = COMPLETE;
    else if (result == WALK_BROKEN) news = BROKEN;
    else if (r->search.found) news = MARKED, r->search.found = 0;
    if (surplus) news |= SURPLUS, drop_surplus(r, surplus);
    return news;
}

static int begin_body(struct reply *r, const struct marks *marks, enum framing framing, size_t head) {
    r->framing = framing;
    r->head = head;
    return advance(r, marks, head);
}

static int look_for_head(struct reply *r, const struct marks *marks) {
    size_t from = r->looked > 3 ? r->looked - 3 : 0;
    const char *end = find(r->data + from, r->used - from, "\r\n\r\n", 4);
    size_t head = end ? (size_t)(end - r->data) + 4 : 0;
    r->looked = r->used;
    enum framing framing = head && head <= LONGEST_HEAD ? framing_of(r->data, head, &r->left) : FRAMING_UNKNOWN;
    if (framing != FRAMING_UNKNOWN) return begin_body(r, marks, framing, head);
    r->asked = head || r->interim || r->used > LONGEST_HEAD || (r->used >= 5 && memcmp(r->data, "HTTP/", 5));
    return r->asked ? ASKS_FOR_HEAD : 0;
}

static int make_room(struct reply *r, size_t n) {
    if (!r->data || r->room - r->used < n) {
        size_t room = r->used + n + (r->room > 4 * STEP ? r->room / 2 : STEP);
        char *grown = realloc(r->data, room);
        if (!grown) return -1;
        r->data = grown, r->room = room;
    }
    if (r->count == r->size) {
        size_t size = r->size ? 2 * r->size : 128;
        struct read_entry *grown = realloc(r->reads, size * sizeof *grown);
        if (!grown) return -1;
        r->reads = grown, r->size = size;
    }
    return 0;
}

int reply_push(struct reply *r, const struct marks *marks, const char *bytes, size_t n, int64_t mono_ns, int64_t age_ns) {
    size_t from = r->used;
    if (make_room(r, n)) return NO_MEMORY;
    memcpy(r->data + from, bytes, n);
    r->used += n;
    r->reads[r->count++] = (struct read_entry){(int64_t)r->used, mono_ns, age_ns};
    r->last_ns = mono_ns;
    if (r->framing != FRAMING_UNKNOWN) return advance(r, marks, from);
    return r->asked ? 0 : look_for_head(r, marks);
}

int reply_frame(struct reply *r, const struct marks *marks, size_t head, enum framing framing, int64_t length) {
    r->asked = 0;
    r->left = length;
    if (framing != FRAMING_UNKNOWN) return begin_body(r, marks, framing, head);
    r->interim = 1;
    return r->used > r->looked ? look_for_head(r, marks) : 0;
}

/* The buffers are freed as well: most connections wait for their next reply, or for its rest. */
void reply_taken(struct reply *r) {
    free(r->data);
    free(r->reads);
    r->data = NULL, r->reads = NULL;
    r->used = r->count = r->looked = r->head = r->room = r->size = 0;
}

void reply_clear(struct reply *r) {
    reply_taken(r);
    *r = (struct reply){0};
}

/* ---- functions for Python */

int reply_frame_is_valid(const struct reply *r, Py_ssize_t head, int framing, long long length) {
    if (head >= 0 && (size_t)head <= r->used && length >= 0 && framing >= FRAMING_UNKNOWN && framing <= FRAMING_CLOSE) return 1;
    PyErr_SetString(PyExc_ValueError, "frame: no such head");
    return 0;
}

PyObject *reply_peek(const struct reply *r) { return PyBytes_FromStringAndSize(r->data, (Py_ssize_t)r->used); }

PyObject *reply_waiting(const struct reply *r) {
    return Py_BuildValue("(nnLi)", (Py_ssize_t)r->count, (Py_ssize_t)r->used, (long long)r->last_ns, r->framing);
}

/* Compute the times of the reads: the kernel's timestamp on the monotonic clock; the time of the read if there is none, or if it lies
 * before the request or in the future (the wall clock was stepped). Times never decrease. `first`: number of reads of the head alone. */
static Py_ssize_t date(struct reply *r, size_t first, int64_t floor_ns, int64_t *ends, int64_t *at_ns, int64_t *delays) {
    Py_ssize_t believed = 0;
    if (r->newest_ns < floor_ns) r->newest_ns = floor_ns;
    for (size_t i = 0; i < r->count; i++) {
        const struct read_entry *entry = &r->reads[i];
        int64_t stamp_ns = entry->mono_ns - entry->age_ns;
        int believe = entry->age_ns >= 0 && stamp_ns >= floor_ns;
        int64_t at = believe ? stamp_ns : entry->mono_ns;
        if (r->newest_ns < at) r->newest_ns = at;
        if (i < first) continue;
        if (believe) delays[believed++] = entry->age_ns;
        ends[i - first] = entry->end - (int64_t)r->head;
        at_ns[i - first] = r->newest_ns;
    }
    return believed;
}

/* Return the index of the first read of the body: the one in which the head ends, even if it has no byte of the body. */
static size_t first_of_body(const struct reply *r) {
    size_t first = 0;
    while (first < r->count && r->reads[first].end < (int64_t)r->head) first++;
    return first;
}

PyObject *reply_take(struct reply *r, int64_t floor_ns) {
    size_t first = first_of_body(r);
    Py_ssize_t reads = (Py_ssize_t)(r->count - first), bytes = reads * (Py_ssize_t)sizeof(int64_t);
    PyObject *head = PyBytes_FromStringAndSize(r->data, (Py_ssize_t)r->head), *result = NULL;
    PyObject *data = PyBytes_FromStringAndSize(r->data + r->head, (Py_ssize_t)(r->used - r->head));
    PyObject *ends = PyBytes_FromStringAndSize(NULL, bytes), *at_ns = PyBytes_FromStringAndSize(NULL, bytes);
    PyObject *delays = PyBytes_FromStringAndSize(NULL, bytes);
    if (head && data && ends && at_ns && delays) {
        char *all = PyBytes_AsString(delays);
        Py_ssize_t believed = date(r, first, floor_ns, (int64_t *)PyBytes_AsString(ends), (int64_t *)PyBytes_AsString(at_ns), (int64_t *)all);
        reply_taken(r);
        PyObject *kept = believed == reads ? Py_NewRef(delays) : PyBytes_FromStringAndSize(all, believed * (Py_ssize_t)sizeof(int64_t));
        if (kept) result = Py_BuildValue("(OOOOOn)", head, data, ends, at_ns, kept, reads - believed);
        Py_XDECREF(kept);
    }
    Py_XDECREF(head);
    Py_XDECREF(data);
    Py_XDECREF(ends);
    Py_XDECREF(at_ns);
    Py_XDECREF(delays);
    return result;
}
