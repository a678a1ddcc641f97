/* The thread: it waits for bytes, reads them with their timestamps, and notifies Python. */
#define _GNU_SOURCE
#include "transport.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

#define RESET_ON_FORK 1ULL /* SCHED_FLAG_RESET_ON_FORK */
#define MUCH_DATA (1 << 15)       /* bytes of one reply after which Python is notified: many replies would take too much memory */
#define READS_PER_EVENT 4         /* consecutive reads of one connection, for fairness */
#define EVENTS 256
#define BEAT_MS 20                /* wake-up interval of the idle thread, to detect pauses */
#define MARKED_NS (20 * SEC / 1000) /* time from a mark to MARKED: nearly every body ends within it, so that Python is woken once */
#define PAUSE_NS (50 * SEC / 1000)  /* lateness of a wake-up that counts as a pause */
#define SHORT_TURN_NS (SEC / 5000)
#define AHEAD 10                 /* nice levels of the thread above the event loop's thread: nine times its weight */
#define MANY 100                 /* reads between two wake-ups from which on the thread batches reads: 5,000 per second */
#define REST_NS (3 * SEC / 10000)
#define BEHIND 3                 /* nice levels by which the event loop's thread is lowered instead; more would favour other programs */

/* Queue a notification for Python. If memory is exhausted it is lost, and the turn ends by its timeout. */
void notify(struct reader *r, const struct slot *s, int ending, int error) {
    pthread_mutex_lock(&r->queue_lock);
    struct queue *q = &r->queue;
    int first = !q->used;
    if (q->used == q->room) {
        size_t room = q->room ? 2 * q->room : 1024;
        struct ended *grown = realloc(q->at, room * sizeof *grown);
        if (grown) q->at = grown, q->room = room;
    }
    if (q->used < q->room) q->at[q->used++] = (struct ended){id_of(s), ending, error, s->serial};
    pthread_mutex_unlock(&r->queue_lock);
    if (first) eventfd_write(r->wake_fd, 1);
}

int watch(struct reader *r, const struct slot *s, int how) {
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
static void end_connection(struct reader *r, struct slot *s, int ending, int error) {
    unwatch(r, s);
    notify(r, s, s->state == READING ? ending : STRAY, error);
    if (s->state == READING) s->state = ENDED;
}

/* Queue a reply whose body contained a mark at an instant. If memory is exhausted the turn ends with its body, or by its timeout. */
void add_marked(struct reader *r, struct slot *s, int64_t at_ns) {
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
        q->at[q->used++] = (struct marked){id_of(s), s->serial, at_ns + MARKED_NS};
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
        if (s->generation == entry.id >> 32 && s->serial == entry.serial && s->marked) {
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

/* React to what the bytes of a reply have led to. Much data is reported once; they cannot be taken before the head is complete. */
void heed_news(struct reader *r, struct slot *s, int news) {
    const struct reply *reply = &s->reply;
    if (news & MARKED) add_marked(r, s, reply->last_ns);
    if (news & SURPLUS && !s->lost) unwatch(r, s);
    if (s->much_sent || reply->used <= MUCH_DATA || reply->framing == FRAMING_UNKNOWN || s->state != READING) return;
    s->much_sent = 1;
    notify(r, s, MUCH, 0);
}

static void gather(struct reader *r, struct slot *s, const char *bytes, size_t n, int64_t mono_ns, int64_t age_ns) {
    int news = reply_push(&s->reply, &r->marks, bytes, n, mono_ns, age_ns);
    if (!news && s->reply.used <= MUCH_DATA) return; /* nearly always */
    if (news & NO_MEMORY) end_connection(r, s, READ_FAILED, ENOMEM);
    if (news & BROKEN) end_connection(r, s, BROKEN, 0);
    if (news & COMPLETE) s->state = ENDED;
    if (news & (COMPLETE | ASKS_FOR_HEAD)) notify(r, s, news & (COMPLETE | ASKS_FOR_HEAD), 0);
    heed_news(r, s, news);
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

/* Decrypt a read: all records that it completes have its instants. */
static void gather_records(struct reader *r, struct slot *s, size_t n, int64_t mono_ns, int64_t age_ns) {
    size_t plain;
    enum tls_state state = tls_decrypt(s->tls, r->input, n, r->plain, &plain);
    if (plain && s->state == READING) gather(r, s, r->plain, plain, mono_ns, age_ns);
    else if (plain) end_connection(r, s, STRAY, 0);
    if (state != TLS_OPEN && !s->lost) end_connection(r, s, state == TLS_CLOSED ? PEER_CLOSED : TLS_FAILED, 0);
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
    else if (!n) end_connection(r, s, s->tls ? TLS_CUT : PEER_CLOSED, 0);
    else if (s->tls) gather_records(r, s, (size_t)n, mono_ns, age_of(&message));
    else if (s->state != READING) end_connection(r, s, PEER_CLOSED, 0);
    else gather(r, s, r->input, (size_t)n, mono_ns, age_of(&message));
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
        s->paused = s->state == READING && reply_is_full(&s->reply);
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

void *run(void *argument) {
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
