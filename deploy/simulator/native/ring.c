#include "native.h"

#include <structmember.h>

#define SPINS 4 /* so many long it may take before it lets others have a look instead of waiting */

typedef struct {
    int64_t due_ns;
    Line *line;
} Entry;

typedef struct {
    PyObject_HEAD
    Entry *entries; /* a circle; `size` is a power of 2 */
    size_t size, head, count;
    int64_t gap_ns, block, spin_ns;
    long long spun_ns;
    Samples *late, *gaps; /* in ns, one for each event */
    PyObject *full;        /* a list of lines that went on behind the end of a block */
} Ring;

/* (gap_ns, block, spin_ns, (late, gaps, full)) */
static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *late, *gaps, *full;
    long long gap_ns, block, spin_ns;
    if (!PyArg_ParseTuple(args, "LLL(OOO!)", &gap_ns, &block, &spin_ns, &late, &gaps, &PyList_Type, &full)) return NULL;
    if (!samples_of(late) || !samples_of(gaps)) return NULL;
    Ring *ring = (Ring *)type->tp_alloc(type, 0);
    if (!ring) return NULL;
    ring->gap_ns = gap_ns;
    ring->block = block;
    ring->spin_ns = spin_ns;
    ring->late = (Samples *)Py_NewRef(late);
    ring->gaps = (Samples *)Py_NewRef(gaps);
    ring->full = Py_NewRef(full);
    return (PyObject *)ring;
}

static int ring_traverse(Ring *ring, visitproc visit, void *arg) {
    for (size_t place = 0; place < ring->count; place++) Py_VISIT(ring->entries[(ring->head + place) & (ring->size - 1)].line);
    Py_VISIT(ring->late);
    Py_VISIT(ring->gaps);
    Py_VISIT(ring->full);
    Py_VISIT(Py_TYPE(ring));
    return 0;
}

static Line *pop(Ring *ring) {
    Line *line = ring->entries[ring->head].line;
    ring->head = (ring->head + 1) & (ring->size - 1);
    ring->count--;
    return line;
}

static int ring_clear(Ring *ring) {
    while (ring->count) Py_DECREF(pop(ring));
    Py_CLEAR(ring->late);
    Py_CLEAR(ring->gaps);
    Py_CLEAR(ring->full);
    return 0;
}

static void ring_free(Ring *ring) {
    PyTypeObject *type = Py_TYPE(ring);
    PyObject_GC_UnTrack(ring);
    ring_clear(ring);
    PyMem_Free(ring->entries);
    type->tp_free((PyObject *)ring);
    Py_DECREF(type);
}

static int grow(Ring *ring) {
    size_t size = ring->size ? 2 * ring->size : 64;
    Entry *entries = PyMem_Malloc(size * sizeof *entries);
    if (!entries) return PyErr_NoMemory(), -1;
    for (size_t place = 0; place < ring->count; place++) entries[place] = ring->entries[(ring->head + place) & (ring->size - 1)];
    PyMem_Free(ring->entries);
    ring->entries = entries;
    ring->size = size;
    ring->head = 0;
    return 0;
}

/* Takes over one reference to the line. */
static int push(Ring *ring, int64_t due_ns, Line *line) {
    if (ring->count == ring->size && grow(ring) < 0) return -1;
    ring->entries[(ring->head + ring->count++) & (ring->size - 1)] = (Entry){due_ns, line};
    return 0;
}

static PyObject *ring_append(Ring *ring, PyObject *line) {
    if (Py_TYPE(line) != line_type) return PyErr_SetString(PyExc_TypeError, "a Line"), NULL;
    if (push(ring, ((Line *)line)->due_ns, (Line *)Py_NewRef(line)) < 0) return Py_DECREF(line), NULL;
    Py_RETURN_NONE;
}

/* At the end of a block, where it may go on: its next block is looked after later. */
static int go_on(Ring *ring, Line *line, int64_t spare) {
    if (line->left || line->trouble || line->more <= 0 || PyList_GET_SIZE(ring->full) >= spare) return 0;
    line->left = line->more < ring->block ? line->more : ring->block;
    line->more -= line->left;
    return PyList_Append(ring->full, (PyObject *)line);
}

/* Waits without sleeping; how long. */
static int64_t spin_until(int64_t due_ns, int64_t *now) {
    int64_t since_ns = *now;
    while (*now < due_ns) *now = now_ns();
    return *now - since_ns;
}

/* (now, until, other, spare) -> (now, line or None, events, whether its event was written) */
static PyObject *ring_write(Ring *ring, PyObject *const *values, Py_ssize_t count) {
    int64_t at[4];
    long long events = 0;
    if (count != 4) return PyErr_SetString(PyExc_TypeError, "now_ns, until_ns, other_ns, spare"), NULL;
    if (read_ns(values, 4, at) < 0) return NULL;
    int64_t now = at[0];
    while (ring->count && now < at[1]) {
        Entry next = ring->entries[ring->head];
        if (next.due_ns > at[2] || next.due_ns >= at[1]) break;
        if (next.due_ns > now && (next.due_ns > now + ring->spin_ns || now > at[0] + SPINS * ring->spin_ns)) break;
        ring->spun_ns += spin_until(next.due_ns, &now);
        Line *line = pop(ring);
        if (line->due_ns != next.due_ns) { /* given up, or put off */
            Py_DECREF(line);
            continue;
        }
        if (line->left <= 0) return Py_BuildValue("LNLi", (long long)now, (PyObject *)line, events, 0);
        int failed = add_sample(ring->gaps, now - line->last_ns);
        line->last_ns = now;
        write_next(line);
        events++;
        now = now_ns();
        line->due_ns += ring->gap_ns;
        if (!failed && !line->trouble) failed = add_sample(ring->late, now - next.due_ns);
        if (!failed) failed = go_on(ring, line, at[3]);
        if (!failed && (line->trouble || !line->left)) return Py_BuildValue("LNLi", (long long)now, (PyObject *)line, events, 1);
        if (failed || push(ring, line->due_ns, line) < 0) return Py_DECREF(line), NULL;
    }
    return Py_BuildValue("LOLi", (long long)now, Py_None, events, 0);
}

enum { PLAIN, ASKS, TROUBLE }; /* as in outbox.py */

/* (lines, place, due, event, horizon, until, late) -> (now, place, due, why it stopped) */
PyObject *write_batch(PyObject *Py_UNUSED(module), PyObject *const *values, Py_ssize_t count) {
    int64_t at[5];
    if (count != 7 || !PyList_Check(values[0])) return PyErr_SetString(PyExc_TypeError, "lines, five numbers, late"), NULL;
    Samples *late = samples_of(values[6]);
    if (!late) return NULL;
    if (read_ns(values + 1, 5, at) < 0) return NULL;
    Py_ssize_t place = (Py_ssize_t)at[0], end = PyList_GET_SIZE(values[0]);
    int64_t due = at[1], now = at[3];
    int why = PLAIN;
    while (place < end && due + at[2] <= at[3] && now < at[4]) {
        Line *line = (Line *)PyList_GET_ITEM(values[0], place);
        if (Py_TYPE(line) != line_type) return PyErr_SetString(PyExc_TypeError, "a Line"), NULL;
        if (line->pending != 1 || line->left <= 0) {
            why = ASKS;
            break;
        }
        due += at[2];
        place++;
        line->pending = 0;
        write_next(line);
        now = now_ns();
        if (line->trouble) {
            why = TROUBLE;
            break;
        }
        if (add_sample(late, now - due) < 0) return NULL;
    }
    return Py_BuildValue("LnLi", (long long)now, place, (long long)due, why);
}

static PyObject *ring_head(Ring *ring, PyObject *Py_UNUSED(nothing)) {
    if (!ring->count) Py_RETURN_NONE;
    return PyLong_FromLongLong(ring->entries[ring->head].due_ns);
}

static PyObject *ring_last(Ring *ring, PyObject *Py_UNUSED(nothing)) {
    if (!ring->count) Py_RETURN_NONE;
    return PyLong_FromLongLong(ring->entries[(ring->head + ring->count - 1) & (ring->size - 1)].due_ns);
}

static PyMethodDef ring_methods[] = {
    {"append", (PyCFunction)ring_append, METH_O, "append(line): behind all others; its due_ns is not before theirs."},
    {"head_ns", (PyCFunction)ring_head, METH_NOARGS, "When the first is due; None where there is none."},
    {"last_ns", (PyCFunction)ring_last, METH_NOARGS, "When the last is due; None where there is none."},
    {"write", (PyCFunction)(void (*)(void))ring_write, METH_FASTCALL,
     "write(now_ns, until_ns, other_ns, spare) -> (now_ns, line, events, written)\n\n"
     "Writes what is due and not behind `other_ns`. A line that needs more is handed back, before or behind its event."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ring_members[] = {
    {"spun_ns", T_LONGLONG, offsetof(Ring, spun_ns), READONLY, "How long it waited without sleeping."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_new, ring_new},     {Py_tp_dealloc, ring_free},    {Py_tp_traverse, ring_traverse},
    {Py_tp_clear, ring_clear}, {Py_tp_methods, ring_methods}, {Py_tp_members, ring_members},
    {0, NULL},
};

PyType_Spec ring_spec = {
    .name = "inferload.deploy.simulator._native.Ring",
    .basicsize = sizeof(Ring),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = ring_slots,
};
