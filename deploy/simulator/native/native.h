/* What the simulator's compiled part is made of: a line is where one stream's next event comes from, a ring is a queue of lines by due time. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum trouble { NONE, BLOCKED, LOST }; /* after a write: all of it was taken; a rest is left; the connection is no more */

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    int fd, trouble;
    long long index, pending, left, more, due_ns, last_ns, events;
    unsigned word, stride;
    char *text; /* one event; the word is put in at `at` */
    size_t size, room, at, rest;
} Line;

typedef struct {
    PyObject_HEAD
    int64_t *values;
    Py_ssize_t count, room;
} Samples;

extern PyTypeObject *line_type, *samples_type;
extern PyType_Spec line_spec, ring_spec, samples_spec;

int64_t now_ns(void);
int set_words(PyObject *words);
void write_next(Line *line); /* the event of token `index`; sets `trouble` */
Samples *samples_of(PyObject *given); /* NULL with an exception set where it is none */
int add_sample(Samples *samples, int64_t value);
int read_ns(PyObject *const *values, Py_ssize_t count, int64_t *into);
PyObject *count_steps(PyObject *module, PyObject *args);
PyObject *count_below(PyObject *module, PyObject *args);
PyObject *write_batch(PyObject *module, PyObject *const *values, Py_ssize_t count);
