#include "native.h"

static PyMethodDef functions[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL,
     "scan(data, ends, at_ns, at, read, chunked, before, after, most_mismatches) -> (items, at, read)\n\n"
     "Parse events from position `at` in read number `read` up to the first bytes that need the Python path. Items, in order:\n"
     "(data, time) of an event, or (texts, times) of a run of events whose data are `before` + text + `after`."},
    {"walk_chunks", walk_chunks, METH_O, "Return the state of a chunked body after these pieces: 0 incomplete, 1 complete, 2 broken."},
    {"has_mark", has_mark, METH_VARARGS, "has_mark(pieces, marks): return True if a chunked body in these pieces contains one of the marks."},
    {"framing_of", framing_of_head, METH_O, "Return (framing, length) of a head; framing 0: it needs the Python parser."},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
    PyObject *type = PyType_FromSpec(&reader_spec);
    if (!type) return -1;
    int failed = PyModule_AddObjectRef(module, "Reader", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "inferload.client.connection._native",
    .m_doc = "A thread that reads sockets with timestamps, and a scanner for the events in the reads. See docs/background/adr/0006.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
