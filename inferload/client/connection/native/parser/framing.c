/* Framing of replies: heads, chunks and marks. */
#include "parser.h"

#include <string.h>

#define LONGEST_LINE 8192
#define MOST_DIGITS 15
#define LONGEST_TRAILERS 65536

static int hex(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

const char *find(const char *bytes, size_t n, const char *text, size_t length) {
    const char *end = bytes + n;
    while ((size_t)(end - bytes) >= length && (bytes = memchr(bytes, text[0], (size_t)(end - bytes) - length + 1))) {
        if (!memcmp(bytes, text, length)) return bytes;
        bytes++;
    }
    return NULL;
}

/* Process one byte of a size line: blanks, digits, blanks, then nothing or an extension. */
static void size_byte(struct chunks *c, unsigned char byte) {
    enum { BEFORE, DIGITS, BEHIND, EXTENSION };
    int value = hex(byte), blank = byte == ' ' || byte == '\t';
    if (c->phase == EXTENSION) return;
    if (byte == ';') {
        c->phase = EXTENSION;
    } else if (blank) {
        if (c->phase == DIGITS) c->phase = BEHIND;
    } else if (value < 0 || c->phase == BEHIND || c->digits == MOST_DIGITS) {
        c->bad = 1;
    } else {
        c->phase = DIGITS;
        c->digits++;
        c->size = c->size << 4 | (uint64_t)value;
    }
}

static enum walked end_of_line(struct chunks *c) {
    int line = c->line;
    c->line = c->cr = 0;
    if (c->at == CHUNK_AFTER) {
        if (line) return WALK_BROKEN;
        c->at = CHUNK_SIZE;
        c->size = 0;
        c->digits = c->phase = c->bad = 0;
    } else if (c->at == CHUNK_SIZE) {
        if (c->bad || !c->digits) return WALK_BROKEN;
        c->left = (int64_t)c->size;
        c->at = c->left ? CHUNK_DATA : CHUNK_TRAILERS;
    } else if (!line) {
        return WALK_DONE;
    } else if ((c->trailers += line + 2) > LONGEST_TRAILERS) {
        return WALK_BROKEN;
    }
    return WALK_MORE;
}

static enum walked line_byte(struct chunks *c, unsigned char byte) {
    if (c->cr && byte == '\n') return end_of_line(c);
    if (c->cr) { /* a CR without LF belongs to the line */
        c->line++;
        if (c->at == CHUNK_SIZE) size_byte(c, '\r');
    }
    c->cr = byte == '\r';
    if (!c->cr) {
        c->line++;
        if (c->at == CHUNK_SIZE) size_byte(c, byte);
    }
    return c->line > LONGEST_LINE ? WALK_BROKEN : WALK_MORE;
}

void look_for_marks(struct search *search, const struct marks *marks, const char *bytes, size_t n) {
    for (int m = 0; m < marks->count; m++) {
        const char *text = marks->at[m].text;
        size_t length = marks->at[m].length, matched = search->matched[m];
        for (size_t i = 0; i < n;) {
            if (!matched) { /* nearly always: one search for a rare byte */
                const char *first = memchr(bytes + i, text[0], n - i);
                if (!first) break;
                i = (size_t)(first - bytes) + 1;
                matched = 1;
            } else if (bytes[i] != text[matched]) {
                matched = 0; /* this byte may be the first of the mark */
            } else {
                i++;
                matched++;
            }
            if (matched == length) search->found = 1, matched = 0;
        }
        search->matched[m] = (unsigned char)matched;
    }
}

int set_marks(struct marks *marks, PyObject *texts) {
    Py_ssize_t count = PyTuple_Check(texts) ? PyTuple_Size(texts) : -1;
    if (count < 0 || count > MARKS) return PyErr_Format(PyExc_ValueError, "marks: a tuple of at most %d", MARKS), -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(texts, i), &text, &length)) return -1;
        if (!length || (size_t)length > sizeof marks->at[i].text || memchr(text + 1, text[0], (size_t)length - 1))
            return PyErr_SetString(PyExc_ValueError, "marks: 1 to 32 bytes, of which the first occurs once"), -1;
        memcpy(marks->at[i].text, text, (size_t)length);
        marks->at[i].length = (size_t)length;
    }
    marks->count = (int)count;
    return 0;
}

enum walked walk(struct chunks *c, struct search *search, const struct marks *marks, const char *bytes, size_t n, size_t *surplus) {
    const char *end = bytes + n;
    *surplus = 0;
    while (bytes < end) {
        if (c->at == CHUNK_DATA) {
            int64_t step = end - bytes < c->left ? end - bytes : c->left;
            look_for_marks(search, marks, bytes, (size_t)step);
            bytes += step;
            c->left -= step;
            if (!c->left) c->at = CHUNK_AFTER;
            continue;
        }
        enum walked result = line_byte(c, (unsigned char)*bytes++);
        if (result == WALK_DONE) *surplus = (size_t)(end - bytes);
        if (result != WALK_MORE) return result;
    }
    return WALK_MORE;
}

/* Return 1 if a header line begins with a name that parse_head accepts: visible ASCII, then a colon. */
static int is_named(const char *line, size_t n) {
    size_t i = 0;
    while (i < n && line[i] > ' ' && line[i] < 0x7f && line[i] != ':') i++;
    return i && i < n && line[i] == ':';
}

/* Return 1 if bytes are a text in lower case, whatever their case. */
static int is_text(const char *bytes, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != text[i] && !(bytes[i] >= 'A' && bytes[i] <= 'Z' && (bytes[i] | 0x20) == text[i])) return 0;
    return 1;
}

/* Return the stripped value of a header line with this name; NULL for another name. */
static const char *value_of(const char *line, size_t n, const char *name, size_t *length) {
    size_t m = strlen(name);
    if (n <= m || line[m] != ':' || !is_text(line, name, m)) return NULL;
    const char *from = line + m + 1, *to = line + n;
    while (from < to && (*from == ' ' || *from == '\t')) from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\t')) to--;
    *length = (size_t)(to - from);
    return from;
}

static int64_t decimal(const char *digits, size_t n) {
    int64_t value = 0;
    if (!n || n > MOST_DIGITS) return -1;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9') return -1;
        value = value * 10 + (digits[i] - '0');
    }
    return value;
}

enum framing framing_of(const char *head, size_t n, int64_t *length) {
    static const char START[] = "HTTP/1.1 200";
    const char *end = head + n - 2; /* the empty line */
    int coded = 0, sized = 0;
    if (n < sizeof START + 3 || memcmp(head, START, sizeof START - 1)) return FRAMING_UNKNOWN;
    if (head[sizeof START - 1] != ' ' && head[sizeof START - 1] != '\r') return FRAMING_UNKNOWN;
    const char *line = find(head, n, "\r\n", 2);
    for (line += 2; line < end;) {
        const char *stop = find(line, (size_t)(end + 2 - line), "\r\n", 2), *value;
        size_t m = (size_t)(stop - line), length_of_value;
        if (!is_named(line, m)) return FRAMING_UNKNOWN;
        if ((value = value_of(line, m, "transfer-encoding", &length_of_value))) {
            if (coded++ || length_of_value != 7 || !is_text(value, "chunked", 7)) return FRAMING_UNKNOWN;
        } else if ((value = value_of(line, m, "content-length", &length_of_value))) {
            *length = decimal(value, length_of_value);
            if (sized++ || *length < 0) return FRAMING_UNKNOWN;
        } else if (value_of(line, m, "content-encoding", &length_of_value)) {
            return FRAMING_UNKNOWN; /* the marks cannot be seen in a compressed body: Python looks for its end */
        }
        line = stop + 2;
    }
    if (coded) return sized ? FRAMING_UNKNOWN : FRAMING_CHUNKED;
    return sized ? FRAMING_LENGTH : FRAMING_UNKNOWN;
}
