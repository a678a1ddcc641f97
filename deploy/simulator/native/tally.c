#include "native.h"

/* How many numbers a list has, which must all fit; -1 with an exception set where it is none. */
static Py_ssize_t numbers(PyObject *list) {
    if (PyList_Check(list)) return PyList_GET_SIZE(list);
    PyErr_SetString(PyExc_TypeError, "a list of numbers");
    return -1;
}

/* (values, step, counts) -> (sum, max). `counts` is a writable buffer of 64-bit numbers. */
PyObject *count_steps(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *list;
    Py_buffer counts;
    long long step, sum = 0, most = 0;
    if (!PyArg_ParseTuple(args, "OLw*", &list, &step, &counts)) return NULL;
    Py_ssize_t size = numbers(list), last = counts.len / (Py_ssize_t)sizeof(int64_t) - 1;
    for (Py_ssize_t place = 0; place < size; place++) {
        long long value = PyLong_AsLongLong(PyList_GET_ITEM(list, place));
        long long bucket = value / step;
        ((int64_t *)counts.buf)[bucket < 0 ? 0 : bucket > last ? last : bucket]++;
        sum += value;
        if (value > most) most = value;
    }
    PyBuffer_Release(&counts);
    if (size < 0 || PyErr_Occurred()) return NULL;
    return Py_BuildValue("LL", sum, most);
}

/* (values, bounds, counts) -> sum. `bounds` is a buffer of doubles; `counts` has one more, and is writable. */
PyObject *count_below(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *list;
    Py_buffer bounds, counts;
    long long sum = 0;
    if (!PyArg_ParseTuple(args, "Oy*w*", &list, &bounds, &counts)) return NULL;
    Py_ssize_t size = numbers(list), buckets = bounds.len / (Py_ssize_t)sizeof(double);
    if (counts.len < (buckets + 1) * (Py_ssize_t)sizeof(int64_t)) PyErr_SetString(PyExc_ValueError, "counts: one more than bounds"), size = -1;
    for (Py_ssize_t place = 0; place < size; place++) {
        long long value = PyLong_AsLongLong(PyList_GET_ITEM(list, place));
        Py_ssize_t bucket = 0;
        while (bucket < buckets && (double)value > ((double *)bounds.buf)[bucket]) bucket++;
        ((int64_t *)counts.buf)[bucket]++;
        sum += value;
    }
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&counts);
    if (size < 0 || PyErr_Occurred()) return NULL;
    return PyLong_FromLongLong(sum);
}
