/* OpenAI-compatible streaming server with absolute due times, which reports its own lateness.
 *
 * A turn starts when the last byte of its request reaches the kernel (receive timestamp), not when this process reads it.
 * Event i of a turn is due at arrival + ttft + i * gap, independent of earlier lateness. */
#define _GNU_SOURCE
#include "common.h"
#include "tls.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define HEAD_MAX 16384                 /* request line and headers */
#define BODY_HEAD 8192                 /* stored start and end of a long body, for max_tokens */
#define BODY_TAIL 4096
#define BODY_WHOLE (1 << 20)           /* maximum size of a body stored completely, for /tokenize */
#define READ_SIZE (1 << 18)
#define WORD 5                         /* bytes of a word with its space: one token */
#define WORDS 1024
#define EVENTS_A_TURN_OF_THE_LOOP 64
#define REQUESTS_A_TURN_OF_THE_LOOP 16
#define SPIN_NS 30000 /* the loop polls without sleeping if the next event is due within this time */

/* ---- lateness: time after the write minus due time, counted in buckets of 10 us ---- */

#define LATE_STEP_NS 10000
#define LATE_BUCKETS 20000 /* the last one is unbounded, from 200 ms on */

struct lateness {
    uint64_t counts[LATE_BUCKETS], count;
    int64_t sum_ns, max_ns;
};

static inline void late_add(struct lateness *l, int64_t late_ns) {
    int64_t at = late_ns / LATE_STEP_NS;
    l->counts[at < LATE_BUCKETS ? at : LATE_BUCKETS - 1]++;
    l->count++;
    l->sum_ns += late_ns;
    if (late_ns > l->max_ns) l->max_ns = late_ns;
}

/* Lateness quantile in ms: the upper bound of its bucket. */
static inline double late_quantile_ms(const struct lateness *l, double share) {
    uint64_t cumulative = 0;
    for (int64_t at = 0; at < LATE_BUCKETS - 1; at++) {
        cumulative += l->counts[at];
        int64_t bound_ns = (at + 1) * LATE_STEP_NS;
        if ((double)cumulative >= share * (double)l->count) return (double)(bound_ns < l->max_ns ? bound_ns : l->max_ns) / MS;
    }
    return (double)l->max_ns / MS;
}

/* `"name": {"count": ..., "mean": ..., ...}`; null values without events. */
static inline size_t late_json(const struct lateness *l, const char *name, char *text, size_t size) {
    if (!l->count)
        return (size_t)snprintf(
            text, size, "\"%s\": {\"count\": 0, \"mean\": null, \"p50\": null, \"p99\": null, \"max\": null}", name);
    return (size_t)snprintf(text, size, "\"%s\": {\"count\": %llu, \"mean\": %.4f, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
                            name, (unsigned long long)l->count, (double)l->sum_ns / (double)l->count / MS,
                            late_quantile_ms(l, 0.5), late_quantile_ms(l, 0.99), (double)l->max_ns / MS);
}

enum stage { READING, STREAMING, ENDING };
enum { NOT_DUE = -1 };

struct connection {
    int fd, heap_index; /* in the heap of due times, or NOT_DUE */
    enum stage stage;
    int64_t due_ns, turn_arrived_ns;
    int in_body, keep_whole, close_after, dead;
    long tokens, sent, turns;
    uint64_t random;
    char id[33];
    char *head;
    size_t head_length;
    char path[128], method[8];
    char *body;
    size_t body_length, body_kept, body_seen;
    char *pending;
    size_t pending_length, pending_size, pending_at;
    struct tls *tls;
    struct connection *next_dead;
};

static struct {
    const char *certificate, *key;
    int port;
    double ttft_ms, gap_ms, spread_ms;
    long tokens, tokens_per_event;
    uint64_t seed;
} options = {.port = 8000, .ttft_ms = 50, .gap_ms = 10, .tokens = 100, .tokens_per_event = 1};

static struct {
    uint64_t turns, events, tokens, aborted, blocked, unstamped, body_bytes, connections;
    struct lateness first, gap;
    double cpu_start_s;
    int64_t since_ns;
} stats;

static struct due {
    int64_t at_ns; /* beside the pointer, so that sifting does not access connections */
    struct connection *of;
} *heap;
static int heap_length, heap_size, running_turns;
static struct connection *dead;
static int poll_fd, listen_fd, timer_fd;
static int64_t timer_set_for_ns;
static volatile sig_atomic_t stopping;
static SSL_CTX *tls_context;
static uint64_t seed_state;
static char words[WORDS][WORD], scratch[READ_SIZE], cipher[READ_SIZE + 4096];
static char event_text[4096], *event_id, *event_words;
static size_t event_length;
static long long created;

/* ---- due times: a binary heap ---- */

static void heap_put(int at, struct due d) {
    heap[at] = d;
    d.of->heap_index = at;
}

static void heap_rise(int at, struct due d) {
    for (int parent; at && heap[parent = (at - 1) / 2].at_ns > d.at_ns; at = parent) heap_put(at, heap[parent]);
    heap_put(at, d);
}

static void heap_sink(int at, struct due d) {
    for (int child; (child = 2 * at + 1) < heap_length; at = child) {
        if (child + 1 < heap_length && heap[child + 1].at_ns < heap[child].at_ns) child++;
        if (heap[child].at_ns >= d.at_ns) break;
        heap_put(at, heap[child]);
    }
    heap_put(at, d);
}

static void set_due(struct connection *c, int64_t due_ns) {
    struct due d = {due_ns, c};
    int64_t before_ns = c->due_ns;
    c->due_ns = due_ns;
    if (c->heap_index != NOT_DUE) {
        if (due_ns < before_ns) heap_rise(c->heap_index, d);
        else heap_sink(c->heap_index, d);
        return;
    }
    if (heap_length == heap_size) heap = grow(heap, sizeof *heap * (size_t)(heap_size = heap_size ? 2 * heap_size : 1024));
    heap_rise(heap_length++, d);
}

static void unset_due(struct connection *c) {
    if (c->heap_index == NOT_DUE) return;
    int at = c->heap_index;
    c->heap_index = NOT_DUE;
    struct due last = heap[--heap_length];
    if (last.of == c) return;
    if (at && heap[(at - 1) / 2].at_ns > last.at_ns) heap_rise(at, last);
    else heap_sink(at, last);
}

/* ---- sockets ---- */

/* Not freed immediately: an event of the same round may still refer to the connection. */
static void drop(struct connection *c) {
    if (c->dead) return;
    if (c->stage != READING) {
        running_turns--;
        stats.aborted++;
    }
    unset_due(c);
    close(c->fd);
    c->dead = 1;
    c->next_dead = dead;
    dead = c;
}

static void bury(void) {
    while (dead) {
        struct connection *c = dead;
        dead = c->next_dead;
        tls_free(c->tls);
        free(c->head);
        free(c->body);
        free(c->pending);
        free(c);
    }
}

static void keep_pending(struct connection *c, const char *text, size_t n) {
    if (c->pending_length + n > c->pending_size) c->pending = grow(c->pending, c->pending_size = 2 * (c->pending_length + n));
    memcpy(c->pending + c->pending_length, text, n);
    c->pending_length += n;
}

/* Send raw bytes; the rest waits for EPOLLOUT. Return false if some bytes have to wait. */
static int send_raw(struct connection *c, const char *text, size_t n) {
    if (c->dead) return 0;
    if (!c->pending_length) {
        ssize_t taken = send(c->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken == (ssize_t)n) return 1;
        if (taken < 0 && errno != EAGAIN && errno != EINTR) return drop(c), 0;
        if (taken > 0) text += taken, n -= (size_t)taken;
    }
    keep_pending(c, text, n);
    return 0;
}

static int put(struct connection *c, const char *text, size_t n) {
    if (!c->tls) return send_raw(c, text, n);
    if (!tls_write(c->tls, text, n)) return drop(c), 0;
    int whole = 1;
    for (size_t raw; !c->dead && (raw = tls_take(c->tls, cipher, sizeof cipher));) whole &= send_raw(c, cipher, raw);
    return whole && !c->dead;
}

static void flush_pending(struct connection *c) {
    while (c->pending_at < c->pending_length) {
        ssize_t taken = send(c->fd, c->pending + c->pending_at, c->pending_length - c->pending_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (taken < 0) return drop(c);
        c->pending_at += (size_t)taken;
    }
    c->pending_at = c->pending_length = 0;
    if (c->close_after && c->stage == READING) drop(c);
}

/* ---- events ---- */

static const char EVENT_HEAD[] = "data: {\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":\"paced\",";

static void add_words(struct connection *c, char *at, long count) {
    for (long i = 0; i < count; i++) memcpy(at + i * WORD, words[random_u64(&c->random) % WORDS], WORD);
}

/* Write an event as an HTTP chunk to `text`. Return its length. */
static size_t chunk(char *text, size_t size, const char *event, size_t n) {
    return (size_t)snprintf(text, size, "%zx\r\n%.*s\r\n", n, (int)n, event);
}

static size_t content_event(struct connection *c, char *text, size_t size, long count, const char *role, const char *finish) {
    char spoken[WORD * 512 + 1];
    add_words(c, spoken, count);
    spoken[count * WORD] = 0;
    size_t n = (size_t)snprintf(text, size, EVENT_HEAD, c->id, created);
    return n + (size_t)snprintf(text + n, size - n,
                                "\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"%s\"},\"finish_reason\":%s}],"
                                "\"usage\":null}\n\n",
                                role, spoken, finish);
}

static long prompt_tokens(const struct connection *c) { return (long)(c->body_seen / 6 + 1); }

/* Write the usage event, [DONE] and the end of the body. */
static size_t closing(const struct connection *c, char *text, size_t size) {
    char event[1024];
    size_t n = (size_t)snprintf(event, sizeof event, EVENT_HEAD, c->id, created);
    n += (size_t)snprintf(event + n, sizeof event - n,
                          "\"choices\":[],\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":%ld}}\n\n",
                          prompt_tokens(c), prompt_tokens(c) + c->tokens, c->tokens);
    size_t length = chunk(text, size, event, n);
    return length + (size_t)snprintf(text + length, size - length, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

/* The plain event is rendered once; each use overwrites id and words. */
static void prepare_event(void) {
    struct connection any = {.id = "00000000000000000000000000000000", .random = 1};
    char event[4000];
    size_t n = content_event(&any, event, sizeof event, options.tokens_per_event, "", "null");
    event_length = chunk(event_text, sizeof event_text, event, n);
    event_id = strstr(event_text, any.id);
    event_words = strstr(event_text, "\"content\":\"") + strlen("\"content\":\"");
}

static void end_turn(struct connection *c) {
    unset_due(c);
    c->stage = READING;
    c->head_length = 0;
    running_turns--;
    stats.turns++;
    if (c->close_after && !c->pending_length) drop(c);
}

static void count(struct connection *c, struct lateness *l, int whole, long tokens) {
    stats.events++;
    stats.tokens += (uint64_t)tokens;
    if (whole) late_add(l, now_ns() - c->due_ns);
    else stats.blocked++;
}

static void send_event(struct connection *c) {
    char event[4096], text[8192];
    long left = c->tokens - c->sent, here = left < options.tokens_per_event ? left : options.tokens_per_event;
    int first = !c->sent, last = here == left, whole;
    double spread_ms = c->turns ? 0 : options.spread_ms;
    if (!first && !last) {
        memcpy(event_id, c->id, 32);
        add_words(c, event_words, here);
        whole = put(c, event_text, event_length);
    } else {
        size_t n = content_event(c, event, sizeof event, here, first ? "\"role\":\"assistant\"," : "", last ? "\"length\"" : "null");
        size_t length = chunk(text, sizeof text, event, n);
        if (last && spread_ms <= 0) length += closing(c, text + length, sizeof text - length);
        whole = put(c, text, length);
    }
    if (c->dead) return;
    c->sent += here;
    count(c, first ? &stats.first : &stats.gap, whole, here);
    if (!last) return set_due(c, c->due_ns + (int64_t)(options.gap_ms * MS));
    c->turns++;
    if (spread_ms <= 0) return end_turn(c);
    c->stage = ENDING;
    set_due(c, c->due_ns + (int64_t)(random_unit(&c->random) * spread_ms * MS));
}

static void send_closing(struct connection *c) {
    char text[2048];
    put(c, text, closing(c, text, sizeof text));
    if (!c->dead) end_turn(c);
}

static void reply(struct connection *c, const char *status, const char *kind, const char *body, size_t n) {
    char head[512];
    int length = snprintf(head, sizeof head, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n%s\r\n", status, kind, n,
                          c->close_after ? "connection: close\r\n" : "");
    char *text = grow(NULL, (size_t)length + n);
    memcpy(text, head, (size_t)length);
    memcpy(text + length, body, n);
    put(c, text, (size_t)length + n);
    free(text);
}

static void reply_json(struct connection *c, const char *status, const char *body) {
    reply(c, status, "application/json", body, strlen(body));
}

static void fire(struct connection *c) {
    if (c->stage == STREAMING) send_event(c);
    else send_closing(c);
}

/* ---- requests ---- */

/* Number after a key of the request, or -1. */
static long value_of(const char *body, size_t n, const char *key) {
    const char *at = memmem(body, n, key, strlen(key)), *end = body + n;
    if (!at) return -1;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++) {}
    long value = -1;
    for (; at < end && *at >= '0' && *at <= '9' && value < 100000000; at++) value = (value < 0 ? 0 : value * 10) + *at - '0';
    return value;
}

static int is_true(const char *body, size_t n, const char *key) {
    const char *at = memmem(body, n, key, strlen(key)), *end = body + n;
    if (!at) return 0;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++) {}
    return end - at >= 4 && !memcmp(at, "true", 4);
}

static void begin_turn(struct connection *c) {
    static const char HEAD[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%stransfer-encoding: chunked\r\n\r\n";
    if (!is_true(c->body, c->body_kept, "\"stream\""))
        return reply_json(c, "400 Bad Request", "{\"error\":{\"message\":\"stream: only true\"}}");
    char head[256];
    long requested = value_of(c->body, c->body_kept, "\"max_tokens\"");
    if (requested < 0) requested = value_of(c->body, c->body_kept, "\"max_completion_tokens\"");
    c->tokens = requested > 0 && requested < options.tokens ? requested : options.tokens;
    c->sent = 0;
    stats.body_bytes += c->body_seen;
    snprintf(c->id, sizeof c->id, "%016llx%016llx", (unsigned long long)random_u64(&c->random),
             (unsigned long long)random_u64(&c->random));
    running_turns++;
    c->stage = STREAMING;
    set_due(c, c->turn_arrived_ns + (int64_t)(options.ttft_ms * MS));
    int n = snprintf(head, sizeof head, HEAD, c->close_after ? "connection: close\r\n" : "");
    put(c, head, (size_t)n);
}

/* Token ids of the words of the JSON text "prompt": hashes of their letters. */
static void tokenize(struct connection *c) {
    const char *at = memmem(c->body, c->body_kept, "\"prompt\"", 8), *end = c->body + c->body_kept;
    if (at) at = memchr(at + 8, '"', (size_t)(end - at - 8));
    if (!at) return reply_json(c, "400 Bad Request", "{\"error\":{\"message\":\"no prompt\"}}");
    char *ids = grow(NULL, c->body_kept * 6 + 64);
    size_t n = 0;
    long count = 0;
    const uint32_t EMPTY = 2166136261u;
    uint32_t hash = EMPTY;
    int inside = 0;
    for (at++; at < end; at++) {
        int over = *at == '"', escaped = *at == '\\' && at + 1 < end;
        int blank = over || *at == ' ' || (escaped && strchr("ntr", at[1]));
        if (inside && blank) n += (size_t)sprintf(ids + n, "%s%u", count++ ? "," : "", hash % 50000);
        if (over) break;
        hash = blank ? EMPTY : (hash ^ (unsigned char)*at) * 16777619u;
        inside = !blank;
        at += escaped;
    }
    ids[n] = 0;
    char *body = grow(NULL, n + 128);
    sprintf(body, "{\"count\":%ld,\"max_model_len\":1000000,\"tokens\":[%s]}", count, ids);
    reply_json(c, "200 OK", body);
    free(ids);
    free(body);
}

static void stats_text(char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "{\"ttft_ms\": %g, \"gap_ms\": %g, \"tokens\": %ld, \"tokens_per_event\": %ld, \"spread_ms\": %g, ",
                                options.ttft_ms, options.gap_ms, options.tokens, options.tokens_per_event, options.spread_ms);
    n += (size_t)snprintf(text + n, size - n,
                          "\"running\": %d, \"connections\": %llu, \"turns\": %llu, \"aborted\": %llu, \"events_sent\": %llu, \"tokens_sent\": %llu, "
                          "\"blocked\": %llu, \"unstamped_requests\": %llu, \"body_bytes\": %llu, \"cpu_s\": %.3f, \"since_s\": %.3f, \"lateness_ms\": {",
                          running_turns, (unsigned long long)stats.connections, (unsigned long long)stats.turns,
                          (unsigned long long)stats.aborted, (unsigned long long)stats.events, (unsigned long long)stats.tokens,
                          (unsigned long long)stats.blocked, (unsigned long long)stats.unstamped,
                          (unsigned long long)stats.body_bytes, cpu_s() - stats.cpu_start_s, (double)(now_ns() - stats.since_ns) / SEC);
    static struct lateness all;
    all = stats.first;
    for (int at = 0; at < LATE_BUCKETS; at++) all.counts[at] += stats.gap.counts[at];
    all.count += stats.gap.count;
    all.sum_ns += stats.gap.sum_ns;
    if (stats.gap.max_ns > all.max_ns) all.max_ns = stats.gap.max_ns;
    n += late_json(&all, "all", text + n, size - n);
    n += (size_t)snprintf(text + n, size - n, ", ");
    n += late_json(&stats.first, "first", text + n, size - n);
    n += (size_t)snprintf(text + n, size - n, ", ");
    n += late_json(&stats.gap, "gap", text + n, size - n);
    snprintf(text + n, size - n, "}}");
}

static void reset_stats(void) {
    memset(&stats, 0, sizeof stats);
    stats.cpu_start_s = cpu_s();
    stats.since_ns = now_ns();
}

static void metrics(struct connection *c) {
    char body[2048];
    int n = snprintf(body, sizeof body,
                     "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"paced\"} %d\n"
                     "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"paced\"} 0\n"
                     "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"paced\"} 0\n"
                     "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{model_name=\"paced\"} %llu\n",
                     running_turns, (unsigned long long)stats.tokens);
    reply(c, "200 OK", "text/plain; version=0.0.4", body, (size_t)n);
}

static void answer_page(struct connection *c) {
    char text[4096];
    if (!strcmp(c->path, "/health") || !strcmp(c->path, "/ping")) return reply(c, "200 OK", "text/plain", "", 0);
    if (!strcmp(c->path, "/version")) return reply_json(c, "200 OK", "{\"version\":\"paced\"}");
    if (!strcmp(c->path, "/metrics")) return metrics(c);
    if (!strcmp(c->path, "/stats")) return stats_text(text, sizeof text), reply_json(c, "200 OK", text);
    if (strcmp(c->path, "/v1/models")) return reply_json(c, "404 Not Found", "{\"error\":{\"message\":\"not found\"}}");
    snprintf(text, sizeof text,
             "{\"object\":\"list\",\"data\":[{\"id\":\"paced\",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"paced\","
             "\"root\":\"paced\",\"max_model_len\":1000000}]}",
             created);
    reply_json(c, "200 OK", text);
}

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static void answer(struct connection *c) {
    c->in_body = 0;
    c->head_length = 0;
    if (!strcmp(c->method, "GET")) return answer_page(c);
    if (strcmp(c->method, "POST")) return reply_json(c, "405 Method Not Allowed", "{\"error\":{\"message\":\"GET or POST\"}}");
    if (ends_with(c->path, "/chat/completions")) return begin_turn(c);
    if (!strcmp(c->path, "/tokenize")) return tokenize(c);
    if (!strcmp(c->path, "/stats/reset")) return reset_stats(), reply_json(c, "200 OK", "{}");
    reply_json(c, "404 Not Found", "{\"error\":{\"message\":\"not found\"}}");
}

/* Store start and end of a long body, or all of a short body and for /tokenize. */
static void keep_body(struct connection *c, const char *text, size_t n) {
    size_t limit = c->keep_whole ? BODY_WHOLE : BODY_HEAD + BODY_TAIL;
    c->body_seen += n;
    size_t room = limit - c->body_kept, here = n < room ? n : room;
    memcpy(c->body + c->body_kept, text, here);
    c->body_kept += here;
    text += here, n -= here;
    if (!n || c->keep_whole) return;
    char *tail = c->body + BODY_HEAD;
    if (n >= BODY_TAIL) memcpy(tail, text + n - BODY_TAIL, BODY_TAIL);
    else memmove(tail, tail + n, BODY_TAIL - n), memcpy(tail + BODY_TAIL - n, text, n);
}

/* Parse the request line and the relevant headers. Return false for an unsupported request. */
static int parse_head(struct connection *c) {
    char path[128], *query;
    int whole = 0;
    c->head[c->head_length] = 0;
    sscanf(c->head, "%7s %127s HTTP/1.1%n", c->method, path, &whole);
    if (!whole) return 0;
    if ((query = strchr(path, '?'))) *query = 0;
    char *root = path;
    if (!strncmp(path, "http://", 7) || !strncmp(path, "https://", 8)) root = strchr(strstr(path, "//") + 2, '/');
    snprintf(c->path, sizeof c->path, "%s", root ? root : "/");
    c->body_length = c->body_kept = c->body_seen = 0;
    for (char *line = strstr(c->head, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n")) {
        const char *header = line + 2;
        if (!strncasecmp(header, "content-length:", 15)) c->body_length = strtoul(header + 15, NULL, 10);
        if (!strncasecmp(header, "transfer-encoding:", 18)) return 0;
        if (!strncasecmp(header, "connection: close", 17)) c->close_after = 1;
        if (!strncasecmp(header, "expect: 100-continue", 20)) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    c->keep_whole = !ends_with(c->path, "/chat/completions");
    size_t stored = c->keep_whole ? (c->body_length < BODY_WHOLE ? c->body_length : BODY_WHOLE) : BODY_HEAD + BODY_TAIL;
    c->body = grow(c->body, stored + 1);
    c->in_body = 1;
    return 1;
}

static void refuse(struct connection *c) {
    c->close_after = 1;
    reply_json(c, "400 Bad Request", "{\"error\":{\"message\":\"HTTP/1.1 with content-length, one request at a time\"}}");
    drop(c);
}

/* Process plain bytes of a connection that is not streaming. Pipelined requests are refused. */
static void feed(struct connection *c, const char *text, size_t n, int64_t at_ns) {
    while (n && !c->dead) {
        if (c->stage != READING) return refuse(c);
        if (!c->in_body) {
            if (!c->head) c->head = grow(NULL, HEAD_MAX + 1);
            size_t room = HEAD_MAX - c->head_length, here = n < room ? n : room, before = c->head_length;
            memcpy(c->head + before, text, here);
            c->head_length += here;
            size_t from = before > 3 ? before - 3 : 0;
            char *end = memmem(c->head + from, c->head_length - from, "\r\n\r\n", 4);
            if (!end && c->head_length == HEAD_MAX) return refuse(c);
            if (!end) return;
            size_t head = (size_t)(end - c->head) + 4, used = head - before;
            c->head_length = head;
            if (!parse_head(c)) return refuse(c);
            text += used, n -= used;
        }
        size_t missing = c->body_length - c->body_seen, here = n < missing ? n : missing;
        keep_body(c, text, here);
        text += here, n -= here;
        if (c->body_seen < c->body_length) return;
        c->turn_arrived_ns = at_ns;
        answer(c);
        if (c->close_after && c->stage == READING && !c->pending_length) drop(c);
    }
}

static void feed_tls(struct connection *c, const char *raw, size_t n, int64_t at_ns) {
    static char plain[READ_SIZE];
    int m;
    tls_feed(c->tls, raw, n);
    while (!c->dead && (m = tls_read(c->tls, plain, sizeof plain)) != 0) {
        if (m < 0) return drop(c);
        feed(c, plain, (size_t)m, at_ns);
    }
    if (c->dead) return;
    size_t out = tls_take(c->tls, cipher, sizeof cipher);
    if (out) send_raw(c, cipher, out);
}

static void read_connection(struct connection *c) {
    while (!c->dead) {
        int64_t at_ns;
        int stamped;
        ssize_t n = recv_stamped(c->fd, scratch, sizeof scratch, &at_ns, &stamped);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) return drop(c);
        if (!stamped) stats.unstamped++;
        if (c->tls) feed_tls(c, scratch, (size_t)n, at_ns);
        else feed(c, scratch, (size_t)n, at_ns);
        if (n < (ssize_t)sizeof scratch) return; /* edge-triggered: new bytes cause a new event */
    }
}

static void accept_all(void) {
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct connection *c = grow(NULL, sizeof *c);
        memset(c, 0, sizeof *c);
        c->fd = fd;
        c->heap_index = NOT_DUE;
        c->random = random_u64(&seed_state);
        if (tls_context) c->tls = tls_new(tls_context, 1);
        stats.connections++;
        struct epoll_event interest = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &interest)) die("epoll: %s", strerror(errno));
    }
}

/* ---- event loop ---- */

static void fire_due(void) {
    for (int n = 0; n < EVENTS_A_TURN_OF_THE_LOOP && heap_length; n++) {
        if (heap[0].at_ns > now_ns()) return;
        fire(heap[0].of);
    }
}

/* The timer is absolute and edge-triggered: it is only set, never read. Shortly before an event is due the loop polls without
 * sleeping, since a wake-up takes longer. */
static int wait_ms(void) {
    if (!heap_length) return 1000;
    int64_t due_ns = heap[0].at_ns;
    if (due_ns <= now_ns() + SPIN_NS) return 0;
    if (due_ns != timer_set_for_ns) {
        struct itimerspec when = {.it_value = {due_ns / SEC, due_ns % SEC}};
        timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
        timer_set_for_ns = due_ns;
    }
    return 1000;
}

static void loop(void) {
    struct epoll_event events[REQUESTS_A_TURN_OF_THE_LOOP];
    while (!stopping) {
        fire_due();
        int n = epoll_wait(poll_fd, events, REQUESTS_A_TURN_OF_THE_LOOP, wait_ms());
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) accept_all();
            if (!c || (void *)c == (void *)&timer_fd || c->dead) continue;
            if (events[i].events & EPOLLOUT && c->pending_length) flush_pending(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_connection(c);
        }
        bury();
    }
}

static void listen_there(void) {
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listen_fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one); /* inherited by connections before their first byte */
    if (bind(listen_fd, (struct sockaddr *)&address, size) || listen(listen_fd, 4096))
        die("--port %d: %s", options.port, strerror(errno));
    getsockname(listen_fd, (struct sockaddr *)&address, &size);
    options.port = ntohs(address.sin_port);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event arrivals = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    struct epoll_event timer = {.events = EPOLLIN | EPOLLET, .data.ptr = &timer_fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listen_fd, &arrivals);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, &timer);
}

static const char USAGE[] =
    "paced_server: OpenAI-compatible streaming server with known times.\n\n"
    "  --port N               port; 0: any free port (8000); the first line on stdout ends with the URL\n"
    "  --ttft-ms X            time from last byte of the request in the kernel to first event (50)\n"
    "  --gap-ms X             time between events of an answer (10)\n"
    "  --tokens N             tokens per answer, limited by max_tokens of the request (100)\n"
    "  --tokens-per-event N   tokens per event, at most 500 (1)\n"
    "  --spread-ms X          delay the usage event of the first turn of each connection by a random time up to X, to\n"
    "                         spread streams that start together; TTFT and gaps are unchanged (0)\n"
    "  --seed N               seed of texts, ids and the spread (0)\n"
    "  --tls-cert PEM, --tls-key PEM   serve TLS (if built with OpenSSL)\n\n"
    "POST .../chat/completions with \"stream\": true. In a body over 12 kB only the first 8 and the last 4 kB are searched for\n"
    "max_tokens. usage.prompt_tokens is an estimate.\n"
    "GET /v1/models, /health, /version, /metrics; POST /tokenize (each word is a token).\n"
    "GET /stats: counts, and lateness in ms of all, first and later events; POST /stats/reset. The same is printed at the\n"
    "end (SIGTERM, SIGINT). Lateness is the time after the write minus the due time; events delayed by the full socket of\n"
    "the client are counted as blocked instead.\n";

static void parse_options(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *flag = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-h")) {
            fputs(USAGE, stdout);
            exit(0);
        }
        if (!value) die("%s: needs a value; see --help", flag);
        i++;
        if (!strcmp(flag, "--port")) options.port = (int)number(flag, value, 0);
        else if (!strcmp(flag, "--ttft-ms")) options.ttft_ms = number(flag, value, 0);
        else if (!strcmp(flag, "--gap-ms")) options.gap_ms = number(flag, value, 0);
        else if (!strcmp(flag, "--tokens")) options.tokens = (long)number(flag, value, 1);
        else if (!strcmp(flag, "--tokens-per-event")) options.tokens_per_event = (long)number(flag, value, 1);
        else if (!strcmp(flag, "--spread-ms")) options.spread_ms = number(flag, value, 0);
        else if (!strcmp(flag, "--seed")) options.seed = (uint64_t)number(flag, value, 0);
        else if (!strcmp(flag, "--tls-cert")) options.certificate = value;
        else if (!strcmp(flag, "--tls-key")) options.key = value;
        else die("%s: unknown option; see --help", flag);
    }
    if (options.tokens_per_event > 500) die("--tokens-per-event %ld: at most 500", options.tokens_per_event);
    if (options.certificate && !tls_available) die("--tls-cert %s: built without OpenSSL", options.certificate);
}

static void stop(int number_of_signal) {
    (void)number_of_signal;
    stopping = 1;
}

int main(int count, char **arguments) {
    char text[4096];
    parse_options(count, arguments);
    raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_handler = stop}; /* no SA_RESTART: the signal must end the wait */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    seed_state = options.seed * 2654435761u + 88172645463325252ULL;
    for (int i = 0; i < WORDS; i++) {
        words[i][0] = ' ';
        for (int j = 1; j < WORD; j++) words[i][j] = (char)('a' + random_u64(&seed_state) % 26);
    }
    created = clock_ns(CLOCK_REALTIME) / SEC;
    if (options.certificate) tls_context = tls_server_context(options.certificate, options.key ? options.key : options.certificate);
    prepare_event();
    reset_stats();
    listen_there();
    printf("paced_server on %s://127.0.0.1:%d\n", tls_context ? "https" : "http", options.port);
    fflush(stdout);
    loop();
    stats_text(text, sizeof text);
    puts(text);
    return 0;
}
