/* A thread that reads every registered socket, without the GIL.
 *
 * A connection has a slot. Slots are freed only with the reader. A connection id is a slot number and a generation, so that late events
 * of the kernel for a closed connection are ignored. The fields of a slot are used under its lock only. The thread holds the lock while
 * it reads, so that the descriptor may be closed after `forget`. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <structmember.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

#define RESET_ON_FORK 1ULL /* SCHED_FLAG_RESET_ON_FORK */
#define SEC 1000000000LL
#define READ_SIZE 65536
#define KEPT_ROOM (1 << 18)       /* a larger buffer is freed when its bytes have been taken */
#define LONGEST_HEAD 65536
#define MUCH_DATA (1 << 15)       /* bytes of one reply after which Python is notified: many replies would take too much memory */
#define FULL_DATA (1 << 22)       /* bytes of one reply after which reading stops until they have been taken */
#define FULL_READS (1 << 16)
#define READS_PER_EVENT 4         /* consecutive reads of one connection, for fairness */
#define SLOTS_PER_BLOCK 256
#define BLOCKS 4096
#define EVENTS 256
#define BEAT_MS 20                /* wake-up interval of the idle thread, to detect pauses */
#define MARKED_NS (20 * SEC / 1000) /* time from a mark to MARKED: nearly every body ends within it, so that Python is woken once */
#define PAUSE_NS (50 * SEC / 1000)  /* lateness of a wake-up that counts as a pause */
#define PAUSES 64
#define SHORT_TURN_NS (SEC / 5000)
#define CONTROL UINT64_MAX
#define AHEAD 10                 /* nice levels of the thread above the event loop's thread: nine times its weight */
#define MANY 100                 /* reads between two wake-ups from which on the thread batches reads: 5,000 per second */
#define REST_NS (3 * SEC / 10000)
#define BEHIND 3                 /* nice levels by which the event loop's thread is lowered instead; more would favour other programs */

enum ending { ASKS_FOR_HEAD, COMPLETE, BROKEN_FRAMING, PEER_CLOSED, READ_FAILED, STRAY, MUCH, MARKED };

struct read_entry {
    int64_t end, mono_ns, age_ns; /* age: time since the kernel's timestamp; negative if it is missing or in the future */
};

struct slot {
    pthread_mutex_t lock;
    uint32_t number, generation;
    uint32_t reply; /* number of the current reply of this connection; 0: none so far */
    int fd; /* -1: free */
    enum { IDLE, READING, ENDED } state;
    int lost;  /* the connection has ended */
    int much_sent;  /* MUCH was sent to Python */
    int head_requested; /* ASKS_FOR_HEAD was sent to Python */
    int paused; /* reading stops until Python has taken the data */
    int marked; /* the body contains a mark, and MARKED is due */
    enum framing framing;
    struct chunks chunks;
    struct search search;
    int64_t left, last_ns, newest_ns, lost_ns; /* lost_ns: time at which the end of the connection was read */
    char *data;
    size_t used, room, looked, head; /* looked: bytes searched for the end of the head; head: its bytes in `data`, 0 while unknown */
    struct read_entry *reads;
    size_t count, size;
};

struct ended {
    uint64_t id;
    int ending, error;
    uint32_t reply; /* Python may have started the next reply before it handles this */
};

/* A reply with a mark, whose body may stay open. */
struct marked {
    uint64_t id;
    uint32_t reply;
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
    char input[READ_SIZE];
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SEC + t.tv_nsec;
}

static uint64_t id_of(const struct slot *s) { return (uint64_t)s->generation << 32 | s->number; }

static struct slot *slot_at(struct reader *r, uint32_t number) {
    return &r->blocks[number / SLOTS_PER_BLOCK][number % SLOTS_PER_BLOCK];
}

/* ---- the thread */

/* Queue a notification for Python. If memory is exhausted it is lost, and the turn ends by its timeout. */
static void notify(struct reader *r, const struct slot *s, enum ending ending, int error) {
    pthread_mutex_lock(&r->queue_lock);
    struct queue *q = &r->queue;
    int first = !q->used;
    if (q->used == q->room) {
        size_t room = q->room ? 2 * q->room : 1024;
        struct ended *grown = realloc(q->at, room * sizeof *grown);
        if (grown) q->at = grown, q->room = room;
    }
    if (q->used < q->room) q->at[q->used++] = (struct ended){id_of(s), ending, error, s->reply};
    pthread_mutex_unlock(&r->queue_lock);
    if (first) eventfd_write(r->wake_fd, 1);
}

static int watch(struct reader *r, const struct slot *s, int how) {
    struct epoll_event interest = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = id_of(s)};
    return epoll_ctl(r->poll_fd, how, s->fd, &interest);
}

/* Stop watching a connection that has ended. */
static void unwatch(struct reader *r, struct slot *s) {
    s->lost = 1;
    s->lost_ns = clock_ns(CLOCK_MONOTONIC);
    epoll_ctl(r->poll_fd, EPOLL_CTL_DEL, s->fd, NULL);
}

/* Stop watching a connection, and end its reply. */
static void end_connection(struct reader *r, struct slot *s, enum ending ending, int error) {
    unwatch(r, s);
    notify(r, s, s->state == READING ? ending : STRAY, error);
    if (s->state == READING) s->state = ENDED;
}

/* Remove bytes after the end of a reply. They answer no request, so the connection cannot be reused. */
static void drop_surplus(struct reader *r, struct slot *s, size_t surplus) {
    s->used -= surplus;
    while (s->count > 1 && s->reads[s->count - 2].end >= (int64_t)s->used) s->count--;
    if (s->count) s->reads[s->count - 1].end = (int64_t)s->used;
    if (!s->lost) unwatch(r, s);
}

/* Queue a reply whose body contained a mark at an instant. If memory is exhausted the turn ends with its body, or by its timeout. */
static void add_marked(struct reader *r, struct slot *s, int64_t at_ns) {
    s->search.found = 0;
    if (s->marked) return;
    pthread_mutex_lock(&r->queue_lock);
    struct marked_queue *q = &r->marked;
    if (q->used == q->room) {
        size_t kept = q->used - q->first, room = 2 * kept + 256;
        struct marked *grown = malloc(room * sizeof *grown);
        if (grown && kept) memcpy(grown, q->at + q->first, kept * sizeof *grown);
        if (grown) free(q->at), q->at = grown, q->first = 0, q->used = kept, q->room = room;
    }
    if (q->used < q->room) {
        s->marked = 1;
        q->at[q->used++] = (struct marked){id_of(s), s->reply, at_ns + MARKED_NS};
        atomic_store(&r->due_ns, q->at[q->first].due_ns);
    }
    pthread_mutex_unlock(&r->queue_lock);
}

/* Take the oldest entry that is due; return 0 if there is none. */
static int take_marked(struct reader *r, int64_t at_ns, struct marked *entry) {
    pthread_mutex_lock(&r->queue_lock);
    struct marked_queue *q = &r->marked;
    int is_due = q->first < q->used && q->at[q->first].due_ns <= at_ns;
    if (is_due) *entry = q->at[q->first++];
    if (q->first == q->used) q->first = q->used = 0;
    atomic_store(&r->due_ns, q->used ? q->at[q->first].due_ns : INT64_MAX);
    pthread_mutex_unlock(&r->queue_lock);
    return is_due;
}

/* Notify Python of the replies that have not ended within MARKED_NS after a mark. */
static void notify_marked(struct reader *r, int64_t at_ns) {
    struct marked entry;
    while (take_marked(r, at_ns, &entry)) {
        struct slot *s = slot_at(r, (uint32_t)entry.id);
        pthread_mutex_lock(&s->lock);
        if (s->generation == entry.id >> 32 && s->reply == entry.reply && s->marked) {
            s->marked = 0;
            if (s->state == READING) notify(r, s, MARKED, 0);
        }
        pthread_mutex_unlock(&s->lock);
    }
}

/* Return the time to sleep until the next beat or the next due notification. */
static int sleep_ms(struct reader *r, int64_t at_ns) {
    int64_t due_ns = atomic_load(&r->due_ns);
    if (due_ns >= at_ns + BEAT_MS * SEC / 1000) return BEAT_MS;
    return due_ns <= at_ns ? 0 : (int)((due_ns - at_ns + SEC / 1000 - 1) / (SEC / 1000));
}

/* Process new bytes of the body. */
static enum walked advance(struct reader *r, struct slot *s, size_t from) {
    size_t n = s->used - from, surplus = 0;
    enum walked result = WALK_MORE;
    if (s->framing == FRAMING_CHUNKED) {
        result = walk(&s->chunks, &s->search, &r->marks, s->data + from, n, &surplus);
    } else {
        look_for_marks(&s->search, &r->marks, s->data + from, n);
        if (s->framing == FRAMING_LENGTH) {
            s->left -= (int64_t)n;
            if (s->left < 0) surplus = (size_t)-s->left;
            if (s->left <= 0) result = WALK_DONE;
        }
    }
    if (s->search.found && result == WALK_MORE) add_marked(r, s, s->last_ns);
    if (surplus) drop_surplus(r, s, surplus);
    return result;
}

static void go_on(struct reader *r, struct slot *s, size_t from) {
    enum walked result = advance(r, s, from);
    if (result == WALK_BROKEN) end_connection(r, s, BROKEN_FRAMING, 0);
    if (result != WALK_DONE) return;
    s->state = ENDED;
    notify(r, s, COMPLETE, 0);
}

/* Notify Python of much data, once. Data cannot be taken before the head is complete. */
static void notify_if_much(struct reader *r, struct slot *s) {
    if (s->much_sent || s->used <= MUCH_DATA || s->framing == FRAMING_UNKNOWN || s->state != READING) return;
    s->much_sent = 1;
    notify(r, s, MUCH, 0);
}

static void request_framing(struct reader *r, struct slot *s) {
    s->head_requested = 1;
    notify(r, s, ASKS_FOR_HEAD, 0);
}

static void look_for_head(struct reader *r, struct slot *s) {
    size_t from = s->looked > 3 ? s->looked - 3 : 0;
    const char *end = memmem(s->data + from, s->used - from, "\r\n\r\n", 4);
    s->looked = s->used;
    if (end) {
        size_t head = (size_t)(end - s->data) + 4;
        s->framing = head > LONGEST_HEAD ? FRAMING_UNKNOWN : framing_of(s->data, head, &s->left);
        if (s->framing == FRAMING_UNKNOWN) {
            request_framing(r, s);
        } else {
            s->head = head;
            go_on(r, s, head);
        }
    } else if (s->used > LONGEST_HEAD || (s->used >= 5 && memcmp(s->data, "HTTP/", 5))) {
        request_framing(r, s);
    }
}

static int make_room(struct slot *s, size_t n) {
    if (s->room - s->used < n) {
        size_t room = s->room * 2 > s->used + n ? s->room * 2 : s->used + n + 8192;
        char *grown = realloc(s->data, room);
        if (!grown) return -1;
        s->data = grown, s->room = room;
    }
    if (s->count == s->size) {
        size_t size = s->size ? 2 * s->size : 128;
        struct read_entry *grown = realloc(s->reads, size * sizeof *grown);
        if (!grown) return -1;
        s->reads = grown, s->size = size;
    }
    return 0;
}

static void gather(struct reader *r, struct slot *s, size_t n, int64_t mono_ns, int64_t age_ns) {
    size_t from = s->used;
    if (make_room(s, n)) {
        end_connection(r, s, READ_FAILED, ENOMEM);
        return;
    }
    memcpy(s->data + from, r->input, n);
    s->used += n;
    s->reads[s->count++] = (struct read_entry){(int64_t)s->used, mono_ns, age_ns};
    s->last_ns = mono_ns;
    if (s->framing != FRAMING_UNKNOWN) go_on(r, s, from);
    else if (!s->head_requested) look_for_head(r, s);
    notify_if_much(r, s);
}

static int64_t age_of(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec t;
        memcpy(&t, CMSG_DATA(c), sizeof t);
        return clock_ns(CLOCK_REALTIME) - (t.tv_sec * SEC + t.tv_nsec);
    }
    return -1;
}

/* Result of a read: no data, all data, or some with possibly more to read. */
enum got { NOTHING, ALL, SOME };

static enum got read_slot(struct reader *r, struct slot *s) {
    char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec part = {r->input, READ_SIZE};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = syscall(SYS_recvmsg, s->fd, &message, MSG_DONTWAIT);
    int error = errno;
    int64_t mono_ns = clock_ns(CLOCK_MONOTONIC);
    if (n < 0 && (error == EAGAIN || error == EINTR)) return error == EINTR ? SOME : NOTHING;
    if (n < 0) end_connection(r, s, READ_FAILED, error);
    else if (!n || s->state != READING) end_connection(r, s, PEER_CLOSED, 0);
    else gather(r, s, (size_t)n, mono_ns, age_of(&message));
    return n == READ_SIZE ? SOME : ALL;
}

/* Handle an edge-triggered event: read all data, and the end behind it if the event reports one. After READS_PER_EVENT reads, and after
 * a pause, EPOLL_CTL_MOD makes the kernel report the rest again. */
static void on_event(struct reader *r, const struct epoll_event *event) {
    uint64_t id = event->data.u64;
    struct slot *s = slot_at(r, (uint32_t)id);
    int at_end = (event->events & ~(uint32_t)EPOLLIN) != 0;
    pthread_mutex_lock(&s->lock);
    for (int reads = 0; s->generation == id >> 32 && s->fd >= 0 && !s->lost && !s->paused; reads++) {
        if (reads == READS_PER_EVENT) {
            watch(r, s, EPOLL_CTL_MOD);
            break;
        }
        enum got got = read_slot(r, s);
        s->paused = s->state == READING && (s->used > FULL_DATA || s->count > FULL_READS);
        if (got == NOTHING || (got == ALL && !at_end)) break;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Record a pause if the thread was delayed since the last wake-up. */
static int64_t beat(struct reader *r, int64_t last_ns) {
    int64_t at_ns = clock_ns(CLOCK_MONOTONIC);
    if (at_ns - last_ns > BEAT_MS * SEC / 1000 + PAUSE_NS) {
        pthread_mutex_lock(&r->queue_lock);
        int64_t *pause = r->pauses[r->pause_count++ % PAUSES];
        pause[0] = last_ns, pause[1] = at_ns;
        pthread_mutex_unlock(&r->queue_lock);
    }
    return at_ns;
}

/* Call sched_setattr, which not all C libraries wrap. */
static int ask_scheduler(uint32_t policy, uint32_t priority, uint64_t flags, uint64_t runtime) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = 48, .policy = policy, .flags = flags, .nice = getpriority(PRIO_PROCESS, 0), .priority = priority, .runtime = runtime};
    return (int)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/* Give the reader the highest priority of this process: late sending is measured as lag, but late reading would be attributed to the
 * server. A higher priority needs a privilege; without it the priority of the event loop's thread is lowered. On Linux each thread has
 * its own nice level. Return 1 if the thread has a real-time priority, and so wakes up on time. */
static int raise_priority(const struct reader *r) {
    static atomic_int lowered; /* process whose event loop's thread has a lower priority already */
    if (!ask_scheduler(SCHED_RR, 1, RESET_ON_FORK, 0)) return 1;
    errno = 0;
    int level = getpriority(PRIO_PROCESS, 0);
    if (errno || !setpriority(PRIO_PROCESS, 0, level - AHEAD)) return 0;
    if (atomic_exchange(&lowered, r->pid) != r->pid) setpriority(PRIO_PROCESS, (id_t)r->starter, level + BEHIND);
    return 0;
}

struct pace {
    int64_t since_ns;
    int reads, many; /* reads since then; 1 if there were many in the interval before */
};

/* At high rates, sleep after each round of reads so that the next one reads several chunks: a wake-up costs as much as a read, and takes
 * the core from the event loop. Kernel timestamps do not change; only chunks of the same stream within one sleep are merged. */
static void rest_if_busy(struct pace *pace, int64_t at_ns, int events) {
    static const struct timespec rest = {0, REST_NS};
    pace->reads += events;
    if (at_ns - pace->since_ns >= BEAT_MS * SEC / 1000) *pace = (struct pace){at_ns, 0, pace->reads >= MANY};
    if (pace->many && events && events < EVENTS) clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL);
}

static void *run(void *argument) {
    struct reader *r = argument;
    int punctual = raise_priority(r); /* else no sleeps: a late wake-up would merge chunks of a stream */
    if (!punctual) ask_scheduler(SCHED_OTHER, 0, 0, SHORT_TURN_NS); /* a short slice gets the core sooner (Linux 6.12; else an error) */
    struct epoll_event events[EVENTS];
    int64_t last_ns = clock_ns(CLOCK_MONOTONIC);
    struct pace pace = {last_ns, 0, 0};
    while (!atomic_load(&r->stop)) {
        int n = epoll_wait(r->poll_fd, events, EVENTS, sleep_ms(r, last_ns));
        last_ns = beat(r, last_ns);
        for (int i = 0; i < n; i++)
            if (events[i].data.u64 != CONTROL) on_event(r, &events[i]);
        if (atomic_load(&r->due_ns) <= last_ns) notify_marked(r, last_ns);
        if (punctual) rest_if_busy(&pace, last_ns, n > 0 ? n : 0);
    }
    return NULL;
}

/* ---- functions for Python; the caller holds the GIL, so that only the reader thread runs concurrently */

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

static PyObject *add(struct reader *r, PyObject *argument) {
    int fd = PyObject_AsFileDescriptor(argument);
    if (fd < 0) return NULL;
    if (r->poll_fd < 0 || r->pid != getpid()) return PyErr_SetString(PyExc_RuntimeError, "the reader is closed, or belongs to another process"), NULL;
    if (!r->started && start(r)) return NULL;
    if (!r->unused_count && more_slots(r)) return PyErr_SetFromErrno(PyExc_OSError);
    struct slot *s = slot_at(r, r->unused[r->unused_count - 1]);
    pthread_mutex_lock(&s->lock);
    s->generation++;
    s->fd = fd;
    s->state = IDLE;
    s->reply = 0;
    s->lost = s->paused = 0;
    s->lost_ns = 0;
    uint64_t id = id_of(s);
    int failed = watch(r, s, EPOLL_CTL_ADD);
    if (failed) s->fd = -1;
    else r->unused_count--;
    pthread_mutex_unlock(&s->lock);
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromUnsignedLongLong(id);
}

/* Empty the buffer after its data have been taken, and resume reading. */
static void reset_buffer(struct reader *r, struct slot *s) {
    if (s->room > KEPT_ROOM) {
        free(s->data);
        free(s->reads);
        s->data = NULL, s->room = 0;
        s->reads = NULL, s->size = 0;
    }
    s->used = s->count = s->looked = s->head = 0;
    s->much_sent = 0;
    if (s->paused && !s->lost) watch(r, s, EPOLL_CTL_MOD);
    s->paused = 0;
}

static PyObject *expect(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    reset_buffer(r, s);
    s->framing = FRAMING_UNKNOWN;
    s->chunks = (struct chunks){0};
    s->search = (struct search){0};
    s->marked = 0;
    s->left = s->last_ns = s->newest_ns = 0;
    s->head_requested = 0;
    s->state = READING;
    s->reply++;
    if (s->lost) {
        s->state = ENDED;
        notify(r, s, PEER_CLOSED, 0);
    }
    return unlocked(s, PyLong_FromUnsignedLong(s->reply));
}

static PyObject *frame(struct reader *r, PyObject *arguments) {
    PyObject *id;
    Py_ssize_t head;
    int framing;
    long long length;
    if (!PyArg_ParseTuple(arguments, "OniL", &id, &head, &framing, &length)) return NULL;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (head < 0 || (size_t)head > s->used || length < 0 || framing < FRAMING_UNKNOWN || framing > FRAMING_CLOSE) {
        PyErr_SetString(PyExc_ValueError, "frame: no such head");
        return unlocked(s, NULL);
    }
    enum walked result = WALK_MORE;
    s->head_requested = 0;
    if (framing != FRAMING_UNKNOWN) { /* also if the peer has closed meanwhile: the reply may be complete */
        s->framing = framing;
        s->head = (size_t)head;
        s->left = length;
        result = advance(r, s, (size_t)head);
        if (result != WALK_MORE) s->state = ENDED;
        notify_if_much(r, s);
    } else if (s->state == READING && s->used > s->looked) {
        look_for_head(r, s);
    }
    return unlocked(s, PyLong_FromLong(result));
}

static PyObject *peek(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyBytes_FromStringAndSize(s->data, (Py_ssize_t)s->used)) : NULL;
}

static PyObject *waiting(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, Py_BuildValue("(nnLO)", (Py_ssize_t)s->count, (Py_ssize_t)s->used, (long long)s->last_ns, s->framing ? Py_True : Py_False)) : NULL;
}

static PyObject *is_lost(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyBool_FromLong(s->lost)) : NULL;
}

static PyObject *lost_at(struct reader *r, PyObject *id) {
    struct slot *s = slot_of(r, id);
    return s ? unlocked(s, PyLong_FromLongLong((long long)s->lost_ns)) : NULL;
}

/* Compute the times of the reads: the kernel's timestamp on the monotonic clock; the time of the read if there is none, or if it lies
 * before the request or in the future (the wall clock was stepped). Times never decrease. `first`: number of reads of the head alone. */
static Py_ssize_t date(struct slot *s, size_t first, int64_t floor_ns, int64_t *ends, int64_t *at_ns, int64_t *delays) {
    Py_ssize_t believed = 0;
    if (s->newest_ns < floor_ns) s->newest_ns = floor_ns;
    for (size_t i = 0; i < s->count; i++) {
        const struct read_entry *entry = &s->reads[i];
        int64_t stamp_ns = entry->mono_ns - entry->age_ns;
        int believe = entry->age_ns >= 0 && stamp_ns >= floor_ns;
        int64_t at = believe ? stamp_ns : entry->mono_ns;
        if (s->newest_ns < at) s->newest_ns = at;
        if (i < first) continue;
        if (believe) delays[believed++] = entry->age_ns;
        ends[i - first] = entry->end - (int64_t)s->head;
        at_ns[i - first] = s->newest_ns;
    }
    return believed;
}

/* Return the index of the first read of the body: the one in which the head ends, even if it has no byte of the body. */
static size_t first_of_body(const struct slot *s) {
    size_t first = 0;
    while (first < s->count && s->reads[first].end < (int64_t)s->head) first++;
    return first;
}

static PyObject *take(struct reader *r, PyObject *arguments) {
    PyObject *id;
    long long floor_ns;
    if (!PyArg_ParseTuple(arguments, "OL", &id, &floor_ns)) return NULL;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    size_t first = first_of_body(s);
    Py_ssize_t reads = (Py_ssize_t)(s->count - first), bytes = reads * (Py_ssize_t)sizeof(int64_t);
    PyObject *head = PyBytes_FromStringAndSize(s->data, (Py_ssize_t)s->head), *result = NULL;
    PyObject *data = PyBytes_FromStringAndSize(s->data + s->head, (Py_ssize_t)(s->used - s->head));
    PyObject *ends = PyBytes_FromStringAndSize(NULL, bytes), *at_ns = PyBytes_FromStringAndSize(NULL, bytes);
    PyObject *delays = PyBytes_FromStringAndSize(NULL, bytes);
    if (head && data && ends && at_ns && delays) {
        Py_ssize_t believed = date(s, first, floor_ns, (int64_t *)PyBytes_AS_STRING(ends), (int64_t *)PyBytes_AS_STRING(at_ns),
                                   (int64_t *)PyBytes_AS_STRING(delays));
        reset_buffer(r, s);
        if (!_PyBytes_Resize(&delays, believed * (Py_ssize_t)sizeof(int64_t)))
            result = Py_BuildValue("(OOOOOn)", head, data, ends, at_ns, delays, reads - believed);
    }
    Py_XDECREF(head);
    Py_XDECREF(data);
    Py_XDECREF(ends);
    Py_XDECREF(at_ns);
    Py_XDECREF(delays);
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
    s->search.found = 1; /* as if the next bytes completed a mark */
    if (s->state == READING && s->count) add_marked(r, s, s->last_ns); /* they have arrived already */
    Py_INCREF(Py_None);
    return unlocked(s, Py_None);
}

/* Unregister a connection. The descriptor may be closed afterwards. */
static PyObject *forget(struct reader *r, PyObject *id) {
    if (r->poll_fd < 0 || r->pid != getpid()) Py_RETURN_NONE;
    struct slot *s = slot_of(r, id);
    if (!s) return NULL;
    if (!s->lost) epoll_ctl(r->poll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    s->fd = -1;
    free(s->data);
    free(s->reads);
    s->data = NULL, s->reads = NULL;
    s->used = s->room = s->count = s->size = s->head = 0;
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
        PyObject *item = Py_BuildValue("(KiiI)", (unsigned long long)entry->id, entry->ending, entry->error, (unsigned)entry->reply);
        if (!item) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);
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
        free(slot_at(r, i)->data);
        free(slot_at(r, i)->reads);
        if (own) pthread_mutex_destroy(&slot_at(r, i)->lock);
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
    PyTypeObject *type = Py_TYPE(r);
    shut(r);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(r);
    Py_DECREF(type);
}

#define METHOD(name, function, how, text) {name, (PyCFunction)(void (*)(void))function, how, text}

static PyMethodDef methods[] = {
    METHOD("add", add, METH_O, "Register a connected socket; return the id of its connection. Raise OSError if that fails."),
    METHOD("expect", expect, METH_O, "Start the next reply of a connection before its request is sent; return its number, from 1."),
    METHOD("frame", frame, METH_VARARGS, "frame(id, head_bytes, framing, length): answer ASKS_FOR_HEAD; framing 0: the head is incomplete.\n\n"
           "Return the state of the body: 0 incomplete, 1 complete, 2 broken framing."),
    METHOD("peek", peek, METH_O, "Return the bytes that have not been taken."),
    METHOD("waiting", waiting, METH_O, "Return (number of reads and bytes not taken, monotonic time of the latest read or 0, whether the head is complete)."),
    METHOD("lost_at", lost_at, METH_O, "Return the monotonic time at which the end of the connection was read; 0 before."),
    METHOD("lost", is_lost, METH_O, "Return True if the connection has ended."),
    METHOD("take", take, METH_VARARGS, "take(id, floor_ns) -> (head, data, ends, at_ns, delays_ns, reads without a timestamp), numbers as native int64.\n\n"
           "The head is complete in the first result with one, else b\"\". `ends` are positions in `data`, which follows the head."),
    METHOD("watch_end", watch_end, METH_O, "Report the current reply in 20 ms unless it ends before."),
    METHOD("watch_next", watch_next, METH_O, "Report the current reply 20 ms after its next bytes unless it ends before."),
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

PyType_Spec reader_spec = {"inferload.client.connection._native.Reader", sizeof(struct reader), 0, Py_TPFLAGS_DEFAULT, type_slots};
