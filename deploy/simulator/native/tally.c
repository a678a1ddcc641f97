#include "native.h"

PyTypeObject *samples_type;

Samples *samples_of(PyObject *given) {
    if (Py_TYPE(given) == samples_type) return (Samples *)given;
    PyErr_SetString(PyExc_TypeError, "Samples");
    return NULL;
}

int add_sample(Samples *samples, int64_t value) {
    if (samples->count == samples->room) {
        Py_ssize_t room = samples->room ? 2 * samples->room : 1024;
        int64_t *values = PyMem_Realloc(samples->values, (size_t)room * sizeof *values);
        if (!values) return PyErr_NoMemory(), -1;
        samples->values = values;
        samples->room = room;
    }
    samples->values[samples->count++] = value;
    return 0;
}

static PyObject *samples_append(Samples *samples, PyObject *number) {
    long long value = PyLong_AsLongLong(number);
    if ((value == -1 && PyErr_Occurred()) || add_sample(samples, value) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *samples_clear(Samples *samples, PyObject *Py_UNUSED(nothing)) {
    samples->count = 0;
    Py_RETURN_NONE;
}

static Py_ssize_t samples_count(Samples *samples) { return samples->count; }

static PyObject *samples_item(Samples *samples, Py_ssize_t place) {
    if (place < 0 || place >= samples->count) return PyErr_SetString(PyExc_IndexError, "no such sample"), NULL;
    return PyLong_FromLongLong(samples->values[place]);
}

static void samples_free(Samples *samples) {
    PyTypeObject *type = Py_TYPE(samples);
    PyMem_Free(samples->values);
    type->tp_free((PyObject *)samples);
    Py_DECREF(type);
}

static PyMethodDef samples_methods[] = {
    {"append", (PyCFunction)samples_append, METH_O, "append(number): behind all others."},
    {"clear", (PyCFunction)samples_clear, METH_NOARGS, "None is left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot samples_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_dealloc, samples_free}, {Py_tp_methods, samples_methods},
    {Py_sq_length, samples_count},  {Py_sq_item, samples_item},    {0, NULL},
};

PyType_Spec samples_spec = {
    .name = "inferload.deploy.simulator._native.Samples",
    .basicsize = sizeof(Samples),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = samples_slots,
};

/* (samples, step, counts) -> (sum, max). `counts` is a writable buffer of 64-bit numbers. */
PyObject *count_steps(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given;
    Py_buffer counts;
    long long step, sum = 0, most = 0;
    if (!PyArg_ParseTuple(args, "OLw*", &given, &step, &counts)) return NULL;
    Samples *samples = samples_of(given);
    Py_ssize_t last = counts.len / (Py_ssize_t)sizeof(int64_t) - 1;
    for (Py_ssize_t place = 0; samples && place < samples->count; place++) {
        int64_t value = samples->values[place], bucket = value / step;
        ((int64_t *)counts.buf)[bucket < 0 ? 0 : bucket > last ? last : bucket]++;
        sum += value;
        if (value > most) most = value;
    }
    PyBuffer_Release(&counts);
    return samples ? Py_BuildValue("LL", sum, most) : NULL;
}

/* (samples, bounds, counts) -> sum. `bounds` is a buffer of doubles; `counts` has one more, and is writable. */
PyObject *count_below(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given;
    Py_buffer bounds, counts;
    long long sum = 0;
    if (!PyArg_ParseTuple(args, "Oy*w*", &given, &bounds, &counts)) return NULL;
    Samples *samples = samples_of(given);
    Py_ssize_t buckets = bounds.len / (Py_ssize_t)sizeof(double);
    if (samples && counts.len < (buckets + 1) * (Py_ssize_t)sizeof(int64_t)) PyErr_SetString(PyExc_ValueError, "counts: one more than bounds"), samples = NULL;
    for (Py_ssize_t place = 0; samples && place < samples->count; place++) {
        int64_t value = samples->values[place];
        Py_ssize_t bucket = 0;
        while (bucket < buckets && (double)value > ((double *)bounds.buf)[bucket]) bucket++;
        ((int64_t *)counts.buf)[bucket]++;
        sum += value;
    }
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&counts);
    return samples ? PyLong_FromLongLong(sum) : NULL;
}
