#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <structmember.h>
#include <sys/socket.h>
#include <time.h>

#define WORDS 4096 /* a power of 2 */
#define LONGEST 16

PyTypeObject *line_type;
static char words[WORDS][LONGEST];
static size_t word_size;

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int set_words(PyObject *given) {
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != WORDS) {
        PyErr_SetString(PyExc_ValueError, "a tuple of 4096 words");
        return -1;
    }
    for (Py_ssize_t place = 0; place < WORDS; place++) {
        char *word;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(given, place), &word, &size) < 0) return -1;
        if (size > LONGEST || (place && (size_t)size != word_size)) {
            PyErr_SetString(PyExc_ValueError, "words of one length");
            return -1;
        }
        word_size = (size_t)size;
        memcpy(words[place], word, word_size);
    }
    return 0;
}

void write_next(Line *line) {
    memcpy(line->text + line->at, words[(line->word + (unsigned long long)line->index * line->stride) % WORDS], word_size);
    ssize_t sent = send(line->fd, line->text, line->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    line->trouble = sent == (ssize_t)line->size ? NONE : BLOCKED;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) line->trouble = LOST;
    line->rest = sent < 0 ? line->size : line->size - (size_t)sent;
    line->index++;
    line->events++;
    line->left--;
}

int read_ns(PyObject *const *values, Py_ssize_t count, int64_t *into) {
    for (Py_ssize_t place = 0; place < count; place++) {
        into[place] = PyLong_AsLongLong(values[place]);
        if (into[place] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* (owner) */
static PyObject *line_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "O", &owner)) return NULL;
    Line *line = (Line *)type->tp_alloc(type, 0);
    if (!line) return NULL;
    line->owner = Py_NewRef(owner);
    line->fd = -1;
    return (PyObject *)line;
}

static int line_traverse(Line *line, visitproc visit, void *arg) {
    Py_VISIT(line->owner);
    Py_VISIT(Py_TYPE(line));
    return 0;
}

static int line_clear(Line *line) {
    Py_CLEAR(line->owner);
    return 0;
}

static void line_free(Line *line) {
    PyTypeObject *type = Py_TYPE(line);
    PyObject_GC_UnTrack(line);
    line_clear(line);
    PyMem_Free(line->text);
    type->tp_free((PyObject *)line);
    Py_DECREF(type);
}

/* (descriptor, before, after, word, stride, left) */
static PyObject *line_arm(Line *line, PyObject *args) {
    const char *before, *after;
    Py_ssize_t ahead, behind;
    if (!PyArg_ParseTuple(args, "iy#y#IIL", &line->fd, &before, &ahead, &after, &behind, &line->word, &line->stride, &line->left)) return NULL;
    size_t size = (size_t)ahead + word_size + (size_t)behind;
    if (size > line->room) {
        char *text = PyMem_Realloc(line->text, size);
        if (!text) return PyErr_NoMemory();
        line->text = text;
        line->room = size;
    }
    memcpy(line->text, before, (size_t)ahead);
    memcpy(line->text + ahead + word_size, after, (size_t)behind);
    line->at = (size_t)ahead;
    line->size = size;
    Py_RETURN_NONE;
}

static PyObject *line_rest(Line *line, PyObject *Py_UNUSED(nothing)) {
    return PyBytes_FromStringAndSize(line->text + line->size - line->rest, (Py_ssize_t)line->rest);
}

static PyObject *line_release(Line *line, PyObject *Py_UNUSED(nothing)) {
    line_clear(line);
    Py_RETURN_NONE;
}

static PyMethodDef line_methods[] = {
    {"release", (PyCFunction)line_release, METH_NOARGS, "Its stream is over: forget it."},
    {"arm", (PyCFunction)line_arm, METH_VARARGS, "arm(descriptor, before, after, word, stride, left): so many events may go out by themselves."},
    {"rest", (PyCFunction)line_rest, METH_NOARGS, "What the kernel did not take of the latest event."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef line_members[] = {
    {"owner", T_OBJECT_EX, offsetof(Line, owner), READONLY, NULL},
    {"trouble", T_INT, offsetof(Line, trouble), 0, NULL},
    {"index", T_LONGLONG, offsetof(Line, index), 0, NULL},
    {"pending", T_LONGLONG, offsetof(Line, pending), 0, NULL},
    {"left", T_LONGLONG, offsetof(Line, left), 0, NULL},
    {"more", T_LONGLONG, offsetof(Line, more), 0, NULL},
    {"due_ns", T_LONGLONG, offsetof(Line, due_ns), 0, NULL},
    {"last_ns", T_LONGLONG, offsetof(Line, last_ns), 0, NULL},
    {"events", T_LONGLONG, offsetof(Line, events), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot line_slots[] = {
    {Py_tp_new, line_new},         {Py_tp_dealloc, line_free},    {Py_tp_traverse, line_traverse}, {Py_tp_clear, line_clear},
    {Py_tp_methods, line_methods}, {Py_tp_members, line_members}, {0, NULL},
};

PyType_Spec line_spec = {
    .name = "inferload.deploy.simulator._native.Line",
    .basicsize = sizeof(Line),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = line_slots,
};
