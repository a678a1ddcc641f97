/* Scanner from timestamped reads to the data of events. `scan` stops before input that needs the Python path (a chunk that ends within
 * an event, a CR within one, an invalid size), which supports all of HTTP/1.1 and of server-sent events. */
#include "parser.h"

#include <string.h>

#define BOM ((char)0xEF) /* its first byte */

/* Growing buffer. */
struct bytes {
    char *at;
    size_t used, room;
};

#define FRAMES 4 /* of one call, at most */
#define PIECES 4 /* of the bytes before or after the text */

/* Bytes in pieces, with a value between two of them: a word in quotes, or a whole number. */
struct pattern {
    struct piece {
        const char *at;
        size_t length;
        int quoted; /* the value behind it is in quotes */
    } pieces[PIECES];
    Py_ssize_t count;
};

/* A frame: the common part of events around a text that differs. An event sets the values, which stay the same in most streams. */
struct frame {
    struct pattern before, after;
};

/* State of one call. */
struct scan {
    const char *data;
    size_t length;
    const int64_t *ends, *at_ns;
    Py_ssize_t reads, read;
    struct frame frames[FRAMES];
    Py_ssize_t frame_count, current; /* number of the frame of the latest event with one */
    const char *before, *after; /* all bytes before and after its text */
    size_t before_length, after_length;
    PyObject *items;
    struct bytes texts, instants, lengths; /* of consecutive events that match the frame */
    int32_t characters; /* of the latest of these texts */
    int one_line; /* no frame contains a line end */
    Py_ssize_t mismatches, most_mismatches;
    int first; /* no event with an id was seen: events are handed over whole, whatever their frames, one in each call */
};

static int append(struct bytes *b, const void *bytes, size_t n) {
    if (b->room - b->used < n) {
        size_t room = 2 * (b->used + n) + 512;
        char *grown = PyMem_Realloc(b->at, room);
        if (!grown) return PyErr_NoMemory(), -1;
        b->at = grown, b->room = room;
    }
    if (n) memcpy(b->at + b->used, bytes, n);
    b->used += n;
    return 0;
}

static int continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/* Return the length of a multi-byte UTF-8 character (Unicode 3.9, table 3-7); 0 if it is invalid. */
static size_t character(const unsigned char *p, size_t n) {
    unsigned char first = p[0];
    if (first < 0xC2 || first > 0xF4) return 0;
    if (first < 0xE0) return n >= 2 && continues(p[1]) ? 2 : 0;
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (n < 3 || p[1] < low || p[1] > high || !continues(p[2])) return 0;
    if (first < 0xF0) return 3;
    return n >= 4 && continues(p[3]) ? 4 : 0;
}

static int is_hex(unsigned char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

/* Return the length of a JSON escape; 0 if it is invalid, or a surrogate, which is valid only as a pair. */
static size_t escape(const unsigned char *p, size_t n) {
    if (n < 2) return 0;
    if (p[1] != 'u') return strchr("\"\\/bfnrt", p[1]) && p[1] ? 2 : 0;
    if (n < 6 || !is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5])) return 0;
    int half = (p[2] | 0x20) == 'd' && p[3] >= '8';
    return half ? 0 : 6;
}

/* Return the number of bytes up to the quote that ends a JSON string, or to the end; -1 if they are invalid in one. Those of several
 * strings, joined, are valid too. `characters`: set to their number. */
static Py_ssize_t string_body(const unsigned char *p, size_t n, int32_t *characters) {
    size_t at = 0;
    int32_t count = 0;
    while (at < n && p[at] != '"') {
        size_t step = 1;
        if (p[at] < 0x20) return -1;
        if (p[at] == '\\') step = escape(p + at, n - at);
        else if (p[at] >= 0x80) step = character(p + at, n - at);
        if (!step) return -1;
        at += step;
        count++;
    }
    *characters = count;
    return (Py_ssize_t)at;
}

static int add_item(struct scan *s, PyObject *item) {
    if (!item) return -1;
    int failed = PyList_Append(s->items, item);
    Py_DECREF(item);
    return failed;
}

static int end_run(struct scan *s) {
    if (!s->instants.used) return 0;
    PyObject *run = Py_BuildValue("(y#y#y#n)", s->texts.at, (Py_ssize_t)s->texts.used, s->instants.at, (Py_ssize_t)s->instants.used,
                                  s->lengths.at, (Py_ssize_t)s->lengths.used, s->current);
    s->texts.used = s->instants.used = s->lengths.used = 0;
    return add_item(s, run);
}

/* Return the time of an event: that of the read with its last byte. */
static int64_t instant(struct scan *s, size_t end) {
    while (s->read < s->reads - 1 && (size_t)s->ends[s->read] < end) s->read++;
    return s->at_ns[s->read];
}

static int is_word(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("-_.:", c)); }

/* Return the length of the value at this position; 0 if there is none. A number has no zeros in front. */
static size_t value_at(const char *p, size_t n, int quoted) {
    size_t length = 0;
    if (quoted)
        while (length < n && is_word(p[length])) length++;
    else
        while (length < n && p[length] >= '0' && p[length] <= '9') length++;
    return quoted || length == 1 || (length && *p != '0') ? length : 0;
}

/* Return the number of bytes of the pattern at this position; 0 if it is not there. */
static size_t pattern_at(const struct pattern *pattern, const char *data, size_t n) {
    size_t at = 0;
    for (Py_ssize_t i = 0; i < pattern->count; i++) {
        const struct piece *piece = &pattern->pieces[i];
        if (n - at < piece->length || memcmp(data + at, piece->at, piece->length)) return 0;
        at += piece->length;
        if (i == pattern->count - 1) break;
        size_t value = value_at(data + at, n - at, piece->quoted);
        if (!value) return 0;
        at += value;
    }
    return at;
}

/* Return 1 if the event has the bytes of the latest one around its text. */
static int fits_latest(struct scan *s, const char *data, size_t n) {
    size_t around = s->before_length + s->after_length;
    return s->before_length && n > around && !memcmp(data, s->before, s->before_length) &&
           !memcmp(data + n - s->after_length, s->after, s->after_length) &&
           string_body((const unsigned char *)data + s->before_length, n - around, &s->characters) == (Py_ssize_t)(n - around);
}

/* Return 1 if the event has a frame, which then is the current one; -1 with a Python error. */
static int fits(struct scan *s, const char *data, size_t n) {
    if (s->first) return 0;
    if (fits_latest(s, data, n)) return 1;
    for (Py_ssize_t i = 0; i < s->frame_count; i++) {
        size_t before = pattern_at(&s->frames[i].before, data, n);
        Py_ssize_t text = before ? string_body((const unsigned char *)data + before, n - before, &s->characters) : 0;
        if (text <= 0) continue;
        size_t end = before + (size_t)text, after = pattern_at(&s->frames[i].after, data + end, n - end);
        if (!after || end + after != n) continue;
        if (i != s->current && end_run(s)) return -1;
        s->current = i, s->before = data, s->before_length = before, s->after = data + end, s->after_length = after;
        return 1;
    }
    return 0;
}

static int take_fitting(struct scan *s, const char *data, size_t n, int64_t at_ns) {
    s->mismatches = 0;
    return append(&s->texts, data + s->before_length, n - s->before_length - s->after_length) ||
           append(&s->instants, &at_ns, sizeof at_ns) || append(&s->lengths, &s->characters, sizeof s->characters);
}

/* Return 1 if an event begins with its id, as nearly all do: Python knows it once the event is handed over. */
static int has_id(const char *data, size_t n) { return n > 8 && (!memcmp(data, "{\"id\":\"", 7) || !memcmp(data, "{\"id\": \"", 8)); }

static int take_data(struct scan *s, const char *data, size_t n, size_t end) {
    int64_t at_ns = instant(s, end);
    int fit = fits(s, data, n);
    if (fit) return fit < 0 ? -1 : take_fitting(s, data, n, at_ns);
    if (s->first && has_id(data, n)) s->first = 0;
    else s->mismatches = s->first ? s->most_mismatches : s->mismatches + 1;
    return end_run(s) || add_item(s, Py_BuildValue("(y#L)", data, (Py_ssize_t)n, (long long)at_ns));
}

/* Process one event without its empty line: join its `data` lines by LF, as the standard requires. */
static int take_event(struct scan *s, const char *block, const char *stop, size_t end) {
    struct bytes joined = {0};
    const char *only = NULL;
    size_t length = 0;
    int lines = 0, failed = 0;
    for (const char *line = block; line <= stop && !failed;) {
        const char *eol = memchr(line, '\n', (size_t)(stop - line));
        if (!eol) eol = stop;
        if (eol - line >= 4 && !memcmp(line, "data", 4) && (eol - line == 4 || line[4] == ':')) {
            const char *value = eol - line == 4 ? eol : line + 5;
            if (value < eol && *value == ' ') value++;
            if (lines == 1) failed = append(&joined, only, length);
            if (lines && !failed) failed = append(&joined, "\n", 1) || append(&joined, value, (size_t)(eol - value));
            only = value, length = (size_t)(eol - value);
            lines++;
        }
        line = eol + 1;
    }
    if (!failed && lines == 1 && length) failed = take_data(s, only, length, end);
    if (!failed && lines > 1) {
        failed = take_data(s, joined.at, joined.used, end);
        s->before_length = 0; /* it may be in `joined` */
    }
    PyMem_Free(joined.at);
    return failed;
}

/* Return 1 if these bytes are whole events without a CR. */
static int whole_events(const char *from, size_t n) {
    const char *at = from, *end = from + n, *stop;
    if (n < 2 || end[-1] != '\n' || memchr(from, '\r', n)) return 0;
    while (at < end && (stop = find(at, (size_t)(end - at), "\n\n", 2))) at = stop + 2;
    return at == end;
}

/* Return 1 if a line of these bytes may name an error: `event: error`, or a field `error`. The Python path decides. */
static int names_error(const char *from, size_t n) {
    const char *at = from, *end = from + n;
    while ((at = find(at, (size_t)(end - at), "rror", 4))) {
        const char *line = at;
        while (line > from && line[-1] != '\n') line--;
        if (memcmp(line, "data", 4)) return 1;
        if (!(at = memchr(at, '\n', (size_t)(end - at)))) return 0;
    }
    return 0;
}

/* Return the length of the event at this position; 0 if it is incomplete or contains a CR. */
static size_t event_at(const char *from, size_t n) {
    const char *stop = find(from, n, "\n\n", 2);
    size_t length = stop ? (size_t)(stop - from) + 2 : 0;
    return length && !memchr(from, '\r', length) ? length : 0;
}

/* Return the size of the chunk at this position, and the length of its line; 0 if it is incomplete, invalid or the last one. */
static size_t chunk_at(const struct scan *s, size_t at, size_t *line) {
    size_t size = 0, n = 0;
    const char *p = s->data + at, *end = s->data + s->length;
    while (p + n < end && n < 8 && is_hex((unsigned char)p[n])) {
        char c = p[n++];
        size = size << 4 | (size_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (!n || !size || (size_t)(end - p) < n + size + 4) return 0;
    if (memcmp(p + n, "\r\n", 2) || memcmp(p + n + 2 + size, "\r\n", 2)) return 0;
    *line = n + 2;
    return size;
}

/* Process a range of whole events. */
static int take_stretch(struct scan *s, size_t at, size_t n) {
    size_t end = at + n;
    while (at < end) {
        const char *stop = find(s->data + at, end - at, "\n\n", 2);
        size_t next = (size_t)(stop - s->data) + 2;
        if (take_event(s, s->data + at, stop, next)) return -1;
        at = next;
    }
    return 0;
}

/* Process events up to input that needs the Python path, or up to `most_mismatches` consecutive events that do not match the frame. */
static Py_ssize_t go(struct scan *s, size_t at, int chunked) {
    while (at < s->length && s->mismatches < s->most_mismatches) {
        size_t line = 0, n = chunked ? chunk_at(s, at, &line) : event_at(s->data + at, s->length - at);
        const char *event = s->data + at + line;
        if (!n || *event == BOM) break; /* at the start of the stream the Python path removes it */
        /* Nearly every chunk: one event of one line. Frame and text contain no line end. */
        int quick = s->one_line && n > 8 && !memcmp(event, "data: ", 6) && !memcmp(event + n - 2, "\n\n", 2) ? fits(s, event + 6, n - 8) : 0;
        if (quick) {
            if (quick < 0 || take_fitting(s, event + 6, n - 8, instant(s, at + line + n))) return -1;
        } else if ((chunked && !whole_events(event, n)) || names_error(event, n) || take_stretch(s, at + line, n)) {
            if (PyErr_Occurred()) return -1;
            break;
        }
        at += line + n + (chunked ? 2 : 0);
    }
    return (Py_ssize_t)at;
}

static int has_line_end(const char *bytes, size_t n) { return memchr(bytes, '\n', n) || memchr(bytes, '\r', n); }

/* Set a pattern to a tuple of pieces, which the caller keeps. Return -1 with a Python error if it is none. */
static int set_pattern(struct scan *s, struct pattern *pattern, PyObject *pieces) {
    if (!PyTuple_Check(pieces) || PyTuple_Size(pieces) < 1 || PyTuple_Size(pieces) > PIECES)
        return PyErr_SetString(PyExc_ValueError, "scan: a frame has 1 to 4 pieces before and after the text"), -1;
    for (pattern->count = 0; pattern->count < PyTuple_Size(pieces); pattern->count++) {
        char *bytes;
        Py_ssize_t n;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(pieces, pattern->count), &bytes, &n)) return -1;
        if (!n) return PyErr_SetString(PyExc_ValueError, "scan: an empty piece"), -1;
        pattern->pieces[pattern->count] = (struct piece){bytes, (size_t)n, bytes[n - 1] == '"'};
        s->one_line &= !has_line_end(bytes, (size_t)n);
    }
    return 0;
}

static int add_frame(struct scan *s, PyObject *frame) {
    if (s->frame_count == FRAMES || !PyTuple_Check(frame) || PyTuple_Size(frame) < 2)
        return PyErr_SetString(PyExc_ValueError, "scan: up to 4 frames of (pieces before, pieces after, ...)"), -1;
    struct frame *f = &s->frames[s->frame_count++];
    return set_pattern(s, &f->before, PyTuple_GetItem(frame, 0)) || set_pattern(s, &f->after, PyTuple_GetItem(frame, 1)) ? -1 : 0;
}

static PyObject *scanned(struct scan *s, size_t at, int chunked) {
    Py_ssize_t to = go(s, at, chunked);
    if (to < 0 || end_run(s)) return NULL;
    if ((size_t)to < s->length) instant(s, (size_t)to + 1);
    return Py_BuildValue("(Onn)", s->items, to, s->read);
}

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 9) return PyErr_Format(PyExc_TypeError, "scan takes 9 arguments, not %zd", count);
    Py_ssize_t at = PyLong_AsSsize_t(arguments[3]), read = PyLong_AsSsize_t(arguments[4]), most = PyLong_AsSsize_t(arguments[7]);
    int chunked = PyObject_IsTrue(arguments[5]), first = PyObject_IsTrue(arguments[8]), held = 0;
    Py_buffer views[3]; /* data, ends, at_ns */
    PyObject *result = NULL;
    struct scan s = {.most_mismatches = most, .one_line = 1, .first = first};
    if (PyErr_Occurred()) return NULL;
    if (!PyTuple_Check(arguments[6])) return PyErr_SetString(PyExc_TypeError, "scan: frames are a tuple"), NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(arguments[6]); i++)
        if (add_frame(&s, PyTuple_GetItem(arguments[6], i))) return NULL;
    for (; held < 3; held++)
        if (PyObject_GetBuffer(arguments[held], &views[held], PyBUF_SIMPLE)) goto out;
    Py_ssize_t reads = views[1].len / (Py_ssize_t)sizeof(int64_t);
    if (at < 0 || at > views[0].len || read < 0 || read >= reads || views[2].len != views[1].len) {
        PyErr_SetString(PyExc_ValueError, "scan: positions outside of the data");
        goto out;
    }
    s.data = views[0].buf, s.length = (size_t)views[0].len, s.ends = views[1].buf, s.at_ns = views[2].buf, s.reads = reads, s.read = read;
    s.items = PyList_New(0);
    if (s.items) result = scanned(&s, (size_t)at, chunked);
    Py_XDECREF(s.items);
    PyMem_Free(s.texts.at);
    PyMem_Free(s.instants.at);
    PyMem_Free(s.lengths.at);
out:
    while (held) PyBuffer_Release(&views[--held]);
    return result;
}
