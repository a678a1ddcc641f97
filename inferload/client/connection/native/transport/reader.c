/* The module `_transport`. The callers of its functions hold the GIL, so that only the reader thread runs concurrently. */
#define _GNU_SOURCE
#include "transport.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A thread inherits the nice level of the thread that starts it, and that of the event loop may have been lowered. So a thread that is
 * started before that starts the readers. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t news;
    pid_t pid; /* its process; a forked child has no such thread */
    struct reader *pending;
    int failed;
} launcher = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};

static void *launch(void *nothing) {
    pthread_mutex_lock(&launcher.lock);
    for (;;) {
        while (!launcher.pending) pthread_cond_wait(&launcher.news, &launcher.lock);
        launcher.failed = pthread_create(&launcher.pending->thread, NULL, run, launcher.pending);
        launcher.pending = NULL;
        pthread_cond_broadcast(&launcher.news);
    }
    return nothing;
}

/* Start the launcher thread if this process has none. Return 0 or an error number. */
static int start_launcher(void) {
    if (launcher.pid == getpid()) return 0;
    pthread_t thread;
    sigset_t all, before;
    pthread_mutex_init(&launcher.lock, NULL); /* after a fork the copied state may be locked */
    pthread_cond_init(&launcher.news, NULL);
    sigfillset(&all); /* signals go to Python's main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, launch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return failed;
    pthread_setname_np(thread, "inferload-start");
    pthread_detach(thread);
    launcher.pid = getpid();
    return 0;
}

static int start(struct reader *r) {
    r->starter = (pid_t)syscall(SYS_gettid);
    int failed = start_launcher();
    if (!failed) {
        pthread_mutex_lock(&launcher.lock);
        launcher.pending = r;
        pthread_cond_broadcast(&launcher.news);
        while (launcher.pending) pthread_cond_wait(&launcher.news, &launcher.lock);
        failed = launcher.failed;
        pthread_mutex_unlock(&launcher.lock);
    }
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    pthread_setname_np(r->thread, "inferload-read");
    r->started = 1;
    return 0;
}

static struct slot *slot_of(struct reader *r, PyObject *id) {
    unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred()) return NULL;
    if (r->poll_fd < 0 || r->pid != getpid()) return PyErr_SetString(PyExc_RuntimeError, "the reader is closed, or belongs to another process"), NULL;
    struct slot *s = (uint32_t)number < r->slots ? slot_at(r, (uint32_t)number) : NULL;
    if (s) pthread_mutex_lock(&s->lock);
    if (s && s->fd >= 0 && s->generation == number >> 32) return s;
    if (s) pthread_mutex_unlock(&s->lock);
    return PyErr_SetObject(PyExc_KeyError, id), NULL;
}

static PyObject *unlocked(struct slot *s, PyObject *result) {
    pthread_mutex_unlock(&s->lock);
    return result;
}

static int more_slots(struct reader *r) {
    uint32_t block = r->slots / SLOTS_PER_BLOCK;
    size_t all = (size_t)r->slots + SLOTS_PER_BLOCK;
    if (block == BLOCKS) return errno = EMFILE, -1;
    struct slot *block_slots = calloc(SLOTS_PER_BLOCK, sizeof *block_slots);
    uint32_t *unused = realloc(r->unused, all * sizeof *unused);
    if (unused) r->unused = unused;
    if (!block_slots || !unused) return free(block_slots), errno = ENOMEM, -1;
    for (uint32_t i = SLOTS_PER_BLOCK; i-- > 0;) {
        pthread_mutex_init(&block_slots[i].lock, NULL);
        block_slots[i].number = r->slots + i;
        block_slots[i].fd = -1;
        r->unused[r->unused_count++] = block_slots[i].number;
    }
    r->blocks[block] = block_slots;
    r->slots += SLOTS_PER_BLOCK;
    return 0;
}

static void free_slot(struct slot *s) {
    tls_close(s->tls);
    s->tls = NULL;
    s->fd = -1;
}

static PyObject *add(struct reader *r, PyObject *arguments) {
    PyObject *file, *ssl_socket = NULL, *context = NULL;
    if (!PyArg_ParseTuple(arguments, "O|OO", &file, &ssl_socket, &context)) return NULL;
    int fd = PyObject_AsFileDescriptor(file);
    if (fd < 0) return NULL;
    if (r->poll_fd < 0 || r->pid != getpid()) return PyErr_SetString(PyExc_RuntimeError, "the reader is closed, or belongs to another process"), NULL;
    if (!r->started && start(r)) return NULL;
    if (!r->unused_count && more_slots(r)) return PyErr_SetFromErrno(PyExc_OSError);
    struct tls *tls = ssl_socket ? tls_open(ssl_socket, context) : NULL;
    if (ssl_socket && !tls) return NULL;
    struct slot *s = slot_at(r, r->unused[r->unused_count - 1]);
    pthread_mutex_lock(&s->lock);
    s->generation++;
    s->fd = fd;
    s->tls = tls;
    s->state = IDLE;
    s->serial = 0;
    s->lost = s->paused = 0;
    s->lost_ns = 0;
    uint64_t id = id_of(s);
    int failed = watch(r, s, EPOLL_CTL_ADD);
    if (failed) free_slot(s);
    else r->unused_count--;
    pthread_mutex_unlock(&s->lock);
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromUnsignedLongLong(id);
}

/* Resume reading after the data have been taken. */
static void resume(struct reader *r, struct slot *s) {
    s->much_sent = 0;
    if (s->paused && !s->lost) watch(r, s, EPOLL_CTL_MOD);
    s->paused = 0;
}

static PyObject *expect(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    reply_clear(&s->reply);
    resume(r, s);
    s->marked = 0;
    s->state = READING;
    s->serial++;
    if (s->lost) {
        s->state = ENDED;
        notify(r, s, s->tls && *tls_why(s->tls) ? TLS_FAILED : PEER_CLOSED, 0);
    }
    return unlocked(s, PyLong_FromUnsignedLong(s->serial));
}

static PyObject *frame(struct reader *r, PyObject *arguments) {
    PyObject *id;
    Py_ssize_t head;
    int framing;
    long long length;
    if (!PyArg_ParseTuple(arguments, "OniL", &id, &head, &framing, &length)) return NULL;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (!reply_frame_is_valid(&s->reply, head, framing, length)) return unlocked(s, NULL);
    int news = reply_frame(&s->reply, &r->marks, (size_t)head, (enum framing)framing, length); /* of a lost connection as well: it may be complete */
    if (news & (COMPLETE | BROKEN)) s->state = ENDED;
    if (news & ASKS_FOR_HEAD && s->state == READING) notify(r, s, ASKS_FOR_HEAD, 0);
    heed_news(r, s, news);
    return unlocked(s, PyLong_FromLong(news & (COMPLETE | BROKEN)));
}

static PyObject *peek(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, reply_peek(&s->reply)) : NULL;
}

static PyObject *waiting(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, reply_waiting(&s->reply)) : NULL;
}

static PyObject *is_over(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyBool_FromLong(s->state != READING)) : NULL;
}

static PyObject *is_lost(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyBool_FromLong(s->lost)) : NULL;
}

static PyObject *lost_at(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyLong_FromLongLong((long long)s->lost_ns)) : NULL;
}

static PyObject *take(struct reader *r, PyObject *arguments) {
    PyObject *id;
    long long floor_ns;
    if (!PyArg_ParseTuple(arguments, "OL", &id, &floor_ns)) return NULL;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    PyObject *result = reply_take(&s->reply, floor_ns);
    resume(r, s);
    return unlocked(s, result);
}

static PyObject *watch_end(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (s->state == READING) add_marked(r, s, clock_ns(CLOCK_MONOTONIC));
    Py_INCREF(Py_None);
    return unlocked(s, Py_None);
}

static PyObject *watch_next(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (s->state == READING && s->reply.count) add_marked(r, s, s->reply.last_ns); /* they have arrived already */
    else s->reply.search.found = 1; /* as if the next bytes completed a mark */
    Py_INCREF(Py_None);
    return unlocked(s, Py_None);
}

static PyObject *encrypt(struct reader *r, PyObject *arguments) {
    PyObject *id;
    Py_buffer plain;
    if (!PyArg_ParseTuple(arguments, "Oy*", &id, &plain)) return NULL;
    struct slot *s = slot_of(r, id);
    PyObject *records = NULL;
    if (s && s->tls) records = tls_encrypt(s->tls, plain.buf, plain.len);
    else if (s) PyErr_SetString(PyExc_ValueError, "a connection without TLS");
    if (s) pthread_mutex_unlock(&s->lock);
    PyBuffer_Release(&plain);
    return records;
}

static PyObject *tls_error(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyUnicode_FromString(s->tls ? tls_why(s->tls) : "")) : NULL;
}

/* Unregister a connection. The descriptor may be closed afterwards. */
static PyObject *forget(struct reader *r, PyObject *id) {
    if (r->poll_fd < 0 || r->pid != getpid()) Py_RETURN_NONE;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (!s->lost) epoll_ctl(r->poll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    free_slot(s);
    reply_clear(&s->reply);
    r->unused[r->unused_count++] = s->number;
    Py_INCREF(Py_None);
    return unlocked(s, Py_None);
}

static PyObject *ended(struct reader *r, PyObject *nothing) {
    (void)nothing;
    eventfd_t woken;
    eventfd_read(r->wake_fd, &woken);
    pthread_mutex_lock(&r->queue_lock);
    struct queue full = r->queue;
    r->queue = r->taken;
    r->queue.used = 0;
    r->taken = full;
    pthread_mutex_unlock(&r->queue_lock);
    PyObject *list = PyList_New((Py_ssize_t)full.used);
    for (size_t i = 0; list && i < full.used; i++) {
        const struct ended *entry = &full.at[i];
        PyObject *item = Py_BuildValue("(KiiI)", (unsigned long long)entry->id, entry->ending, entry->error, (unsigned)entry->serial);
        if (!item) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyObject *pauses(struct reader *r, PyObject *nothing) {
    (void)nothing;
    int64_t latest[PAUSES][2];
    pthread_mutex_lock(&r->queue_lock);
    size_t total = r->pause_count, n = total < PAUSES ? total : PAUSES;
    for (size_t i = 0; i < n; i++) memcpy(latest[i], r->pauses[(total - n + i) % PAUSES], sizeof latest[i]);
    pthread_mutex_unlock(&r->queue_lock);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *item = Py_BuildValue("(LL)", (long long)latest[i][0], (long long)latest[i][1]);
        if (!item || PyList_Append(list, item)) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *get_fileno(struct reader *r, PyObject *nothing) {
    (void)nothing;
    return PyLong_FromLong(r->wake_fd);
}

/* End the thread and free all resources. A forked child has no thread, and its locks may be held: free descriptors and memory only. */
static void shut(struct reader *r) {
    int own = r->pid == getpid();
    if (r->poll_fd < 0) return;
    if (r->started && own) {
        atomic_store(&r->stop, 1);
        eventfd_write(r->control_fd, 1);
        Py_BEGIN_ALLOW_THREADS
        pthread_join(r->thread, NULL);
        Py_END_ALLOW_THREADS
    }
    close(r->poll_fd);
    close(r->wake_fd);
    close(r->control_fd);
    r->poll_fd = r->wake_fd = r->control_fd = -1;
    for (uint32_t i = 0; i < r->slots; i++) {
        reply_clear(&slot_at(r, i)->reply);
        if (!own) continue; /* OpenSSL has locks of its own */
        free_slot(slot_at(r, i));
        pthread_mutex_destroy(&slot_at(r, i)->lock);
    }
    for (uint32_t i = 0; i < r->slots / SLOTS_PER_BLOCK; i++) free(r->blocks[i]);
    free(r->unused);
    free(r->queue.at);
    free(r->taken.at);
    free(r->marked.at);
    r->unused = NULL;
    r->marked = (struct marked_queue){0};
    r->queue = r->taken = (struct queue){0};
    r->slots = 0;
    r->unused_count = 0;
}

static PyObject *close_reader(struct reader *r, PyObject *nothing) {
    (void)nothing;
    shut(r);
    Py_RETURN_NONE;
}

static PyObject *new_reader(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"marks", NULL};
    PyObject *texts = NULL;
    struct marks marks = {0};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O", names, &texts) || (texts && set_marks(&marks, texts))) return NULL;
    struct reader *r = (struct reader *)PyType_GenericAlloc(type, 0);
    if (!r) return NULL;
    r->marks = marks;
    atomic_store(&r->due_ns, INT64_MAX);
    r->pid = getpid();
    pthread_mutex_init(&r->queue_lock, NULL);
    r->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->control_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event interest = {.events = EPOLLIN, .data.u64 = CONTROL};
    if (r->poll_fd < 0 || r->wake_fd < 0 || r->control_fd < 0 || epoll_ctl(r->poll_fd, EPOLL_CTL_ADD, r->control_fd, &interest)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(r);
        return NULL;
    }
    return (PyObject *)r;
}

static void free_reader(struct reader *r) {
    PyTypeObject *type = Py_TYPE((PyObject *)r);
    shut(r);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(r);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    METHOD("add", add, METH_VARARGS, "add(fd[, ssl_socket, context]) -> id of the connection of a connected socket. Raise OSError if that fails.\n\n"
           "`ssl_socket`: `_ssl._SSLSocket` after its handshake, which is used by the reader only from now on."),
    METHOD("expect", expect, METH_O, "Start the next reply of a connection before its request is sent; return its number, from 1."),
    METHOD("frame", frame, METH_VARARGS, "frame(id, " FRAME_DOC),
    METHOD("peek", peek, METH_O, PEEK_DOC),
    METHOD("waiting", waiting, METH_O, WAITING_DOC),
    METHOD("over", is_over, METH_O, "Return True if the end of the current reply was read: `ended` reports it, or has."),
    METHOD("lost_at", lost_at, METH_O, "Return the monotonic time at which the end of the connection was read; 0 before."),
    METHOD("lost", is_lost, METH_O, "Return True if the connection has ended."),
    METHOD("take", take, METH_VARARGS, "take(id, " TAKE_DOC),
    METHOD("watch_end", watch_end, METH_O, "Report the current reply in 20 ms unless it ends before."),
    METHOD("watch_next", watch_next, METH_O, "Report the current reply 20 ms after its next bytes unless it ends before."),
    METHOD("encrypt", encrypt, METH_VARARGS, "encrypt(id, data) -> TLS records to send. Raise ConnectionError if the connection does not encrypt any more."),
    METHOD("tls_error", tls_error, METH_O, "Return why decryption failed; \"\" if it did not."),
    METHOD("forget", forget, METH_O, "Unregister a connection; its descriptor may be closed afterwards."),
    METHOD("ended", ended, METH_NOARGS, "Return the notifications since the last call: [(id, ending, errno, number of the reply), ...]."),
    METHOD("pauses", pauses, METH_NOARGS, "Return the latest pauses of the thread: [(from_ns, until_ns), ...], monotonic."),
    METHOD("fileno", get_fileno, METH_NOARGS, "Return a descriptor that is readable when `ended` has notifications."),
    METHOD("close", close_reader, METH_NOARGS, "End the thread; all ids become invalid."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, new_reader},
    {Py_tp_dealloc, free_reader},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Reader(marks=()): reader of sockets in its own thread, which starts with the first of them.\n\n"
     "`marks`: texts of which one is in the last event of each whole answer; `ended` reports a body that goes on for 20 ms after one."},
    {0, NULL},
};

static PyType_Spec reader_spec = {"inferload.client.connection._transport.Reader", sizeof(struct reader), 0, Py_TPFLAGS_DEFAULT, type_slots};

static int add_types(PyObject *module) {
    PyObject *type = PyType_FromSpec(&reader_spec);
    int failed = !type || PyModule_AddObjectRef(module, "Reader", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static PyMethodDef functions[] = {
    METHOD("load_tls", tls_load, METH_VARARGS, TLS_LOAD_DOC),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "inferload.client.connection._transport",
    .m_doc = "A thread that reads sockets with timestamps. See docs/background/adr/0006.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__transport(void) { return PyModuleDef_Init(&definition); }
