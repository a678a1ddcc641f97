#include "native.h"

static PyObject *use_words(PyObject *Py_UNUSED(module), PyObject *words) {
    if (set_words(words) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"use_words", use_words, METH_O, "use_words(tuple): the vocabulary, 4,096 words of one length."},
    {"write_batch", (PyCFunction)(void (*)(void))write_batch, METH_FASTCALL,
     "write_batch(lines, place, due_ns, event_ns, horizon_ns, until_ns, late) -> (now_ns, place, due_ns, why)\n\n"
     "Writes lines from `place` on, one every event_ns. Why it stopped: 1 lines[place] has more to it than one plain token, 2 the one before was "
     "not taken whole."},
    {"count_steps", count_steps, METH_VARARGS, "count_steps(samples, step, counts) -> (sum, max): each into bucket value / step; the last takes all above."},
    {"count_below", count_below, METH_VARARGS, "count_below(samples, bounds, counts) -> sum: each into the first bucket whose bound is not below it."},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
    PyObject *line = PyType_FromSpec(&line_spec), *ring = PyType_FromSpec(&ring_spec), *samples = PyType_FromSpec(&samples_spec);
    line_type = (PyTypeObject *)line;
    samples_type = (PyTypeObject *)samples;
    int failed = !line || !ring || !samples || PyModule_AddObjectRef(module, "Line", line) < 0 || PyModule_AddObjectRef(module, "Ring", ring) < 0 ||
                 PyModule_AddObjectRef(module, "Samples", samples) < 0;
    Py_XDECREF(ring);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "inferload.deploy.simulator._native",
    .m_doc = "Writes the plain events of streams: those of one word, when they are due. All else is Python's.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
