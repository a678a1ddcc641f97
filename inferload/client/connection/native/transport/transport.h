/* The transport: a thread that reads every registered socket, without the GIL (Linux).
 *
 * A connection has a slot. Slots are freed only with the reader. A connection id is a slot number and a generation, so that late events
 * of the kernel for a closed connection are ignored. The fields of a slot are used under its lock only. The thread holds the lock while
 * it reads, so that the descriptor may be closed after `forget`. */
#ifndef INFERLOAD_TRANSPORT_H
#define INFERLOAD_TRANSPORT_H

#include "../parser/parser.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#define SEC 1000000000LL
#define READ_SIZE 65536
#define PLAIN_SIZE (READ_SIZE + (1 << 15)) /* of the records that a read completes; one of them began before it */
#define SLOTS_PER_BLOCK 256
#define BLOCKS 4096
#define PAUSES 64
#define CONTROL UINT64_MAX /* in the place of a connection id: the descriptor that wakes the thread up */

/* Notifications for Python beside COMPLETE, BROKEN, ASKS_FOR_HEAD and MARKED, which comes 20 ms after the mark. */
enum ending { PEER_CLOSED = 128, READ_FAILED = 256, STRAY = 512, MUCH = 1024, TLS_CUT = 2048, TLS_FAILED = 4096 };

struct tls; /* tls.c */

struct slot {
    pthread_mutex_t lock;
    uint32_t number, generation;
    uint32_t serial; /* number of the current reply of this connection; 0: none so far */
    int fd; /* -1: free */
    struct tls *tls; /* NULL: plain */
    enum { IDLE, READING, ENDED } state;
    int lost;  /* the connection has ended */
    int much_sent;  /* MUCH was sent to Python */
    int paused; /* reading stops until Python has taken the data */
    int marked; /* the body contains a mark, and a notification is due */
    int64_t lost_ns; /* time at which the end of the connection was read */
    struct reply reply;
};

struct ended {
    uint64_t id;
    int ending, error;
    uint32_t serial; /* Python may have started the next reply before it handles this */
};

/* A reply with a mark, whose body may stay open. */
struct marked {
    uint64_t id;
    uint32_t serial;
    int64_t due_ns;
};

struct marked_queue {
    struct marked *at; /* in the order of their times */
    size_t first, used, room;
};

struct queue {
    struct ended *at;
    size_t used, room;
};

struct reader {
    PyObject_HEAD
    pthread_t thread;
    pid_t pid, starter; /* process id, and id of the thread of the event loop */
    int started, poll_fd, wake_fd, control_fd;
    atomic_int stop;
    struct slot *blocks[BLOCKS];
    uint32_t slots, *unused;
    size_t unused_count;
    pthread_mutex_t queue_lock;
    struct queue queue, taken; /* filled by the thread; taken by Python in the last call */
    int64_t pauses[PAUSES][2];
    size_t pause_count;
    struct marks marks;
    struct marked_queue marked; /* under the lock of the queue */
    atomic_llong due_ns; /* time of its first entry */
    char input[READ_SIZE], plain[PLAIN_SIZE];
};

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SEC + t.tv_nsec;
}

static inline uint64_t id_of(const struct slot *s) { return (uint64_t)s->generation << 32 | s->number; }

static inline struct slot *slot_at(struct reader *r, uint32_t number) {
    return &r->blocks[number / SLOTS_PER_BLOCK][number % SLOTS_PER_BLOCK];
}

/* The loop of the thread. `argument`: the reader. */
void *run(void *argument);

/* The caller holds the lock of the slot. */
int watch(struct reader *r, const struct slot *s, int how);
void notify(struct reader *r, const struct slot *s, int ending, int error);
void add_marked(struct reader *r, struct slot *s, int64_t at_ns);
void heed_news(struct reader *r, struct slot *s, int news);

/* ---- TLS of a connection (tls.c). The caller holds the lock of the slot; errors of functions with Python objects are Python errors. */

enum tls_state { TLS_OPEN, TLS_CLOSED, TLS_BROKEN }; /* closed: by close_notify */

#define TLS_LOAD_DOC \
    "load_tls(path, ssl_socket, context): make TLS available, by the libssl of the ssl module in the file `path` (None: no file).\n\n" \
    "`ssl_socket`: any `_ssl._SSLSocket` of the context. Raise OSError if that fails."
PyObject *tls_load(PyObject *module, PyObject *arguments);

/* Take over a connection after its handshake, which is then used here only. */
struct tls *tls_open(PyObject *ssl_socket, PyObject *context);

/* Decrypt the records that the next bytes complete into PLAIN_SIZE bytes. */
enum tls_state tls_decrypt(struct tls *tls, const char *records, size_t n, char *plain, size_t *used);

PyObject *tls_encrypt(struct tls *tls, const char *plain, Py_ssize_t n);
const char *tls_why(const struct tls *tls); /* of TLS_BROKEN */
void tls_close(struct tls *tls);

#endif
