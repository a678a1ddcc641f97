#include "native.h"

static PyMethodDef functions[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL,
     "scan(data, ends, at_ns, at, read, chunked, before, after, most_strangers) -> (found, at, read)\n\n"
     "Takes events from position `at` on, in read number `read`, as long as all is plain. Found, in order: (data, instant) of an event,\n"
     "or (texts, instants) of a run of events whose data are `before` + text + `after`."},
    {"walk_chunks", walk_chunks, METH_O, "What becomes of a chunked body in these pieces: 0 more is to come, 1 it is whole, 2 it is broken."},
    {"framing_of", look_at_head, METH_O, "(framing, length) as a head says it; framing 0 where that is for Python to say."},
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
    .m_doc = "A thread that reads sockets and stamps what it reads, and what finds the events in it. See docs/adr/0006.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
