/* The module `_parser`: replies to which reads are pushed, and the scanner of events. */
#include "parser.h"

struct reply_object {
    PyObject_HEAD
    struct marks marks;
    struct reply reply;
    int ended;
};

static PyObject *told(struct reply_object *o, int news) {
    if (news & NO_MEMORY) return PyErr_NoMemory();
    o->ended |= news & (COMPLETE | BROKEN);
    return PyLong_FromLong(news | (reply_is_full(&o->reply) ? FULL : 0));
}

static PyObject *push(struct reply_object *o, PyObject *const *arguments, Py_ssize_t count) {
    char *bytes;
    Py_ssize_t n;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "push takes 3 arguments, not %zd", count);
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &n)) return NULL;
    long long mono_ns = PyLong_AsLongLong(arguments[1]), age_ns = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    if (o->ended) return PyLong_FromLong(SURPLUS);
    return told(o, reply_push(&o->reply, &o->marks, bytes, (size_t)n, mono_ns, age_ns));
}

static PyObject *frame(struct reply_object *o, PyObject *arguments) {
    Py_ssize_t head;
    int framing;
    long long length;
    if (!PyArg_ParseTuple(arguments, "niL", &head, &framing, &length)) return NULL;
    if (!reply_frame_is_valid(&o->reply, head, framing, length)) return NULL;
    return told(o, reply_frame(&o->reply, &o->marks, (size_t)head, (enum framing)framing, length));
}

static PyObject *peek(struct reply_object *o, PyObject *nothing) {
    (void)nothing;
    return reply_peek(&o->reply);
}

static PyObject *waiting(struct reply_object *o, PyObject *nothing) {
    (void)nothing;
    return reply_waiting(&o->reply);
}

static PyObject *take(struct reply_object *o, PyObject *floor_ns) {
    long long ns = PyLong_AsLongLong(floor_ns);
    return PyErr_Occurred() ? NULL : reply_take(&o->reply, ns);
}

static PyObject *watch_next(struct reply_object *o, PyObject *nothing) {
    (void)nothing;
    o->reply.search.found = 1; /* as if the next bytes completed a mark */
    Py_RETURN_NONE;
}

static PyObject *new_reply(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"marks", NULL};
    PyObject *texts = NULL;
    struct marks marks = {0};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O", names, &texts) || (texts && set_marks(&marks, texts))) return NULL;
    struct reply_object *o = (struct reply_object *)PyType_GenericAlloc(type, 0);
    if (o) o->marks = marks;
    return (PyObject *)o;
}

static void free_reply(struct reply_object *o) {
    PyTypeObject *type = Py_TYPE((PyObject *)o);
    reply_clear(&o->reply);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(o);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    METHOD("push", push, METH_FASTCALL, "push(data, mono_ns, age_ns): add a read, `age_ns` after the kernel received it, -1 if that is unknown.\n\n"
           "Return `enum news` of parser.h as bits; 0: nothing to do."),
    METHOD("frame", frame, METH_VARARGS, "frame(" FRAME_DOC),
    METHOD("peek", peek, METH_NOARGS, PEEK_DOC),
    METHOD("waiting", waiting, METH_NOARGS, WAITING_DOC),
    METHOD("take", take, METH_O, "take(" TAKE_DOC),
    METHOD("watch_next", watch_next, METH_NOARGS, "Have the next read marked."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, new_reply},
    {Py_tp_dealloc, free_reply},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Reply(marks=()): reads of one reply. `marks`: texts of which one is in the last event of each whole answer."},
    {0, NULL},
};

static PyType_Spec reply_spec = {"inferload.client.connection._parser.Reply", sizeof(struct reply_object), 0, Py_TPFLAGS_DEFAULT, type_slots};

static PyMethodDef functions[] = {
    METHOD("scan", scan, METH_FASTCALL,
     "scan(data, ends, at_ns, at, read, chunked, frames, most_mismatches, first) -> (items, at, read)\n\n"
     "Parse events from position `at` in read number `read` up to the first bytes that need the Python path. A frame is (pieces before\n"
     "a text, pieces after it, ...), with a value between two pieces: behind one that ends with a quote a word, else a whole number. Items, in order: (data, time) of an event, or (texts, times, number of the frame)\n"
     "of consecutive events with a frame. `first`: no event of the stream had an id so far; until one has, events have no frame, and the\n"
     "call ends behind each."),
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
    PyObject *type = PyType_FromSpec(&reply_spec);
    int failed = !type || PyModule_AddObjectRef(module, "Reply", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "inferload.client.connection._parser",
    .m_doc = "Replies to which timestamped reads are pushed, and a scanner for the events in the reads. See docs/background/adr/0006.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__parser(void) { return PyModuleDef_Init(&definition); }
