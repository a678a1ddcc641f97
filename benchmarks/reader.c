/* Minimal client without language runtime, parser and records, as the lower bound of cost and error: N streams in closed loop.
 *
 * Each read gets a timestamp before its bytes are examined. Prints JSON. */
#define _GNU_SOURCE
#include "common.h"
#include "tls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define READ_SIZE (1 << 16)
#define CARRY 8192 /* much larger than an event */

struct stream {
    int fd, turns, begun, ended, over; /* begun: events of the turn; ended: [DONE] received */
    int64_t start_ns, sent_ns, last_ns;
    char carry[CARRY];
    size_t carried, unsent;
    struct tls *tls;
    int shaken; /* the handshake has ended */
};

struct samples {
    float *ms;
    size_t count, size;
};

static struct {
    int port, streams, turns, tokens, use_tls, kernel_stamps;
    double spread_ms, rest_us;
    size_t body_bytes;
} options = {.port = 8000, .streams = 100, .turns = 6, .tokens = 100};

static struct samples ttft, gaps;
static uint64_t events_read, reads, failed, turns_done, usage_tokens;
static int poll_fd, open_streams, connected;
static int64_t first_sent_ns, last_read_ns;
static char *request, input[READ_SIZE], plain[READ_SIZE], cipher[1 << 15];
static size_t request_length;
static SSL_CTX *tls_context;

static void add(struct samples *s, int64_t ns) {
    if (s->count == s->size) s->ms = grow(s->ms, sizeof *s->ms * (s->size = s->size ? 2 * s->size : 1 << 16));
    s->ms[s->count++] = (float)((double)ns / MS);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Quantile of sorted samples with linear interpolation. */
static double quantile(const struct samples *s, double share) {
    double at = share * (double)(s->count - 1);
    size_t below = (size_t)at, above = below + 1 < s->count ? below + 1 : below;
    return s->ms[below] + (at - (double)below) * (s->ms[above] - s->ms[below]);
}

static void print_samples(const char *name, struct samples *s) {
    double sum = 0;
    if (!s->count) {
        printf("\"%s\": {\"count\": 0, \"mean\": null, \"p50\": null, \"p99\": null, \"max\": null}, ", name);
        return;
    }
    qsort(s->ms, s->count, sizeof *s->ms, ascending);
    for (size_t i = 0; i < s->count; i++) sum += s->ms[i];
    printf("\"%s\": {\"count\": %zu, \"mean\": %.4f, \"p50\": %.4f, \"p99\": %.4f, \"max\": %.4f}, ", name, s->count,
           sum / (double)s->count, quantile(s, 0.5), quantile(s, 0.99), s->ms[s->count - 1]);
}

static void finish(struct stream *s) {
    if (s->over) return;
    s->over = 1;
    close(s->fd);
    tls_free(s->tls);
    s->tls = NULL;
    open_streams--;
}

static void fail(struct stream *s) {
    failed++;
    finish(s);
}

/* Send raw bytes, waiting for the socket. */
static int send_all(struct stream *s, const char *bytes, size_t n) {
    while (n) {
        ssize_t taken = send(s->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && errno != EAGAIN && errno != EINTR) return 0;
        if (taken < 0) continue;
        bytes += taken, n -= (size_t)taken;
    }
    return 1;
}

static int flush_tls(struct stream *s) {
    size_t n;
    while ((n = tls_take(s->tls, cipher, sizeof cipher)))
        if (!send_all(s, cipher, n)) return 0;
    return 1;
}

static void send_turn(struct stream *s) {
    s->begun = s->ended = 0;
    s->carried = 0;
    s->sent_ns = now_ns();
    if (!first_sent_ns) first_sent_ns = s->sent_ns;
    if (!s->tls) {
        /* A large body is sent in parts, so that events of other streams are not delayed. */
        ssize_t taken = send(s->fd, request, request_length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && errno != EAGAIN) return fail(s);
        s->unsent = request_length - (taken > 0 ? (size_t)taken : 0);
        return;
    }
    if (!tls_write(s->tls, request, request_length) || !flush_tls(s)) fail(s);
}

static void send_rest(struct stream *s) {
    while (s->unsent) {
        ssize_t taken = send(s->fd, request + request_length - s->unsent, s->unsent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (taken < 0) return fail(s);
        s->unsent -= (size_t)taken;
    }
}

static void end_turn(struct stream *s, int64_t at_ns) {
    turns_done++;
    last_read_ns = at_ns;
    s->turns++;
    if (s->turns >= options.turns) return finish(s);
    send_turn(s);
}

static void take_event(struct stream *s, const char *event, size_t n, int64_t at_ns) {
    const char *usage = memmem(event, n, "\"completion_tokens\":", 20);
    if (usage) usage_tokens += strtoull(usage + 20, NULL, 10);
    if (memmem(event, n, "data: [DONE]", 12)) s->ended = 1;
    if (!memmem(event, n, "\"content\":\"", 11)) return;
    if (s->begun++) add(&gaps, at_ns - s->last_ns);
    else add(&ttft, at_ns - s->sent_ns);
    s->last_ns = at_ns;
    events_read++;
}

/* Process bytes of a reply: events end at an empty line, the body at its last chunk. */
static void take(struct stream *s, const char *bytes, size_t n, int64_t at_ns) {
    if (s->carried + n > CARRY * 4) return fail(s);
    static char joined[CARRY * 4 + 1];
    memcpy(joined, s->carry, s->carried);
    memcpy(joined + s->carried, bytes, n);
    char *at = joined, *end = joined + s->carried + n, *stop;
    *end = 0;
    while ((stop = memmem(at, (size_t)(end - at), "\n\n", 2))) {
        take_event(s, at, (size_t)(stop - at), at_ns);
        at = stop + 2;
    }
    if (s->ended && memmem(at, (size_t)(end - at), "\r\n0\r\n\r\n", 7)) return end_turn(s, at_ns);
    s->carried = (size_t)(end - at);
    if (s->carried > CARRY) return fail(s);
    memcpy(s->carry, at, s->carried);
    if (!s->begun && s->carried >= 12 && !memcmp(s->carry, "HTTP/1.1 ", 9) && memcmp(s->carry + 9, "200", 3)) fail(s);
}

static void take_tls(struct stream *s, const char *raw, size_t n, int64_t at_ns) {
    tls_feed(s->tls, raw, n);
    if (!s->shaken) {
        if ((s->shaken = tls_handshake(s->tls))) send_turn(s);
        if (!s->over && !flush_tls(s)) fail(s);
    }
    while (!s->over && tls_pending(s->tls)) { /* one call per record */
        int m = tls_read(s->tls, plain, sizeof plain);
        if (m < 0) return fail(s);
        if (m) take(s, plain, (size_t)m, at_ns);
    }
}

static void read_stream(struct stream *s) {
    int64_t at_ns;
    int stamped;
    ssize_t n;
    if (options.kernel_stamps) {
        n = recv_stamped(s->fd, input, CARRY * 2, &at_ns, &stamped);
    } else {
        n = recv(s->fd, input, CARRY * 2, 0);
        at_ns = now_ns();
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return fail(s);
    reads++;
    if (s->tls) take_tls(s, input, (size_t)n, at_ns);
    else take(s, input, (size_t)n, at_ns);
}

static void begin(struct stream *s, const struct sockaddr_in *server) {
    int one = 1;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, (const struct sockaddr *)server, sizeof *server))
        die("connect to port %d: %s", options.port, strerror(errno));
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (options.kernel_stamps) setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    /* Level-triggered for reading: one read per event. Writing is needed for bodies larger than the socket buffer. */
    struct epoll_event interest = {.events = EPOLLIN | (options.body_bytes > 65536 ? EPOLLOUT | EPOLLET : 0), .data.ptr = s};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, s->fd, &interest)) die("epoll: %s", strerror(errno));
    if (options.use_tls) {
        s->tls = tls_new(tls_context, 0);
        tls_handshake(s->tls);
        if (!flush_tls(s)) fail(s);
        return;
    }
    send_turn(s);
}

static void build_request(void) {
    char head[512], front[512];
    int n = snprintf(front, sizeof front,
                     "{\"model\":\"paced\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,\"max_tokens\":%d,"
                     "\"messages\":[{\"role\":\"user\",\"content\":\"",
                     options.tokens);
    static const char BACK[] = "\"}]}";
    size_t least = (size_t)n + sizeof BACK - 1;
    size_t text = options.body_bytes > least ? options.body_bytes - least : 40;
    int m = snprintf(head, sizeof head,
                     "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                     options.port, least + text);
    request = grow(NULL, (size_t)m + least + text);
    memcpy(request, head, (size_t)m);
    memcpy(request + m, front, (size_t)n);
    for (size_t i = 0; i < text; i++) request[(size_t)(m + n) + i] = i % 6 == 5 ? ' ' : (char)('a' + i % 26);
    memcpy(request + m + n + text, BACK, sizeof BACK - 1);
    request_length = (size_t)m + least + text;
}

static void loop(struct stream *streams, const struct sockaddr_in *server) {
    struct epoll_event events[256];
    int read_all = 0;
    while (connected < options.streams || open_streams) {
        /* Streams start at their own times; a burst of starts is processed in slices. */
        for (int n = 0; n < 16 && connected < options.streams && streams[connected].start_ns <= now_ns(); n++) {
            open_streams++;
            begin(&streams[connected++], server);
        }
        int wait_ms = connected < options.streams ? (streams[connected].start_ns <= now_ns() ? 0 : 1) : 5000;
        if (options.rest_us > 0 && connected == options.streams && read_all) {
            struct timespec rest = {0, (long)(options.rest_us * 1000)};
            nanosleep(&rest, NULL);
        }
        int n = epoll_wait(poll_fd, events, 256, wait_ms);
        read_all = n < 256;
        if (!n && wait_ms == 5000) die("no event for five seconds: %d streams are stalled", open_streams);
        for (int i = 0; i < n; i++) {
            struct stream *s = events[i].data.ptr;
            if (!s->over && s->unsent && events[i].events & EPOLLOUT) send_rest(s);
            if (!s->over && events[i].events & ~(uint32_t)EPOLLOUT) read_stream(s);
        }
    }
}

static int by_start(const void *a, const void *b) {
    int64_t x = ((const struct stream *)a)->start_ns, y = ((const struct stream *)b)->start_ns;
    return (x > y) - (x < y);
}

static const char USAGE[] =
    "reader: minimal client with N streams in closed loop; prints JSON.\n\n"
    "  --port N               port of the server at 127.0.0.1 (8000)\n"
    "  --streams N            streams (100)\n"
    "  --turns K              turns per stream (6)\n"
    "  --tokens N             max_tokens (100)\n"
    "  --body-bytes N         size of the request body (small)\n"
    "  --spread-ms X          start the streams at random times within X (0: at once)\n"
    "  --stamps user|kernel   arrival time of a read: in this process, or of its bytes in the kernel (user)\n"
    "  --rest-us X            once all streams are open, sleep for X before each poll, so that the server wakes no process (0)\n"
    "  --tls 1                use TLS, with any certificate (if built with OpenSSL)\n\n"
    "Exit code 1 if a turn failed, 2 without a measurement.\n";

static void parse_options(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *flag = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-h")) {
            fputs(USAGE, stdout);
            exit(0);
        }
        if (!value) die("%s: needs a value; see --help", flag);
        i++;
        if (!strcmp(flag, "--port")) options.port = (int)number(flag, value, 1);
        else if (!strcmp(flag, "--streams")) options.streams = (int)number(flag, value, 1);
        else if (!strcmp(flag, "--turns")) options.turns = (int)number(flag, value, 1);
        else if (!strcmp(flag, "--tokens")) options.tokens = (int)number(flag, value, 1);
        else if (!strcmp(flag, "--body-bytes")) options.body_bytes = (size_t)number(flag, value, 0);
        else if (!strcmp(flag, "--spread-ms")) options.spread_ms = number(flag, value, 0);
        else if (!strcmp(flag, "--stamps")) options.kernel_stamps = !strcmp(value, "kernel");
        else if (!strcmp(flag, "--rest-us")) options.rest_us = number(flag, value, 0);
        else if (!strcmp(flag, "--tls")) options.use_tls = (int)number(flag, value, 0);
        else die("%s: unknown option; see --help", flag);
    }
    if (options.use_tls && !tls_available) die("--tls: built without OpenSSL");
}

int main(int count, char **arguments) {
    parse_options(count, arguments);
    raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (options.use_tls) tls_context = tls_client_context();
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    build_request();
    struct stream *streams = calloc((size_t)options.streams, sizeof *streams);
    if (!streams) die("out of memory for %d streams", options.streams);
    uint64_t random = 88172645463325252ULL;
    int64_t begin_ns = now_ns();
    for (int i = 0; i < options.streams; i++)
        streams[i].start_ns = begin_ns + (int64_t)(random_unit(&random) * options.spread_ms * MS);
    qsort(streams, (size_t)options.streams, sizeof *streams, by_start);
    loop(streams, &server);
    double spent_s = cpu_s();
    printf("{\"streams\": %d, \"turns\": %llu, \"failed\": %llu, \"events\": %llu, \"tokens\": %llu, \"reads\": %llu, ", options.streams,
           (unsigned long long)turns_done, (unsigned long long)failed, (unsigned long long)events_read,
           (unsigned long long)usage_tokens, (unsigned long long)reads);
    print_samples("ttft_ms", &ttft);
    print_samples("itl_ms", &gaps);
    printf("\"stamps\": \"%s\", \"measured_s\": %.3f, \"cpu_s\": %.4f, \"cpu_us_per_token\": %.3f}\n",
           options.kernel_stamps ? "kernel" : "user", (double)(last_read_ns - first_sent_ns) / SEC, spent_s,
           usage_tokens ? spent_s * 1e6 / (double)usage_tokens : 0.0);
    return failed ? 1 : 0;
}
