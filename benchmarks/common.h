/* Common code of the paced server and the reader: clocks, kernel receive timestamps, random numbers, errors. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#define MS 1000000LL
#define SEC 1000000000LL

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SEC + t.tv_nsec;
}

static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static inline void *grow(void *memory, size_t bytes) {
    void *grown = realloc(memory, bytes);
    if (!grown) die("out of memory: %zu bytes", bytes);
    return grown;
}

/* xorshift64*: the state must not be 0. */
static inline uint64_t random_u64(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ULL;
}

static inline double random_unit(uint64_t *state) { return (double)(random_u64(state) >> 11) / 9007199254740992.0; }

/* recv() that also returns when the last of these bytes reached the kernel, in monotonic ns.
 * The kernel timestamp is wall-clock time and is converted immediately. Without a plausible timestamp (none, in the future,
 * or older than a second) *at_ns is the time of the read and *stamped stays 0. */
static inline ssize_t recv_stamped(int fd, char *buffer, size_t size, int64_t *at_ns, int *stamped) {
    char control[64];
    struct iovec part = {buffer, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, 0);
    int64_t mono = now_ns();
    *at_ns = mono;
    *stamped = 0;
    if (n <= 0) return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec t;
        memcpy(&t, CMSG_DATA(c), sizeof t);
        int64_t age = clock_ns(CLOCK_REALTIME) - (t.tv_sec * SEC + t.tv_nsec);
        if (age < 0 || age > SEC) continue;
        *at_ns = mono - age;
        *stamped = 1;
    }
    return n;
}

static inline double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static inline void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Parse a number of the command line. Exit with a one-line error if it is invalid or below `least`. */
static inline double number(const char *flag, const char *text, double least) {
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value >= least) || value > 1e12) die("%s %s: a number of at least %g", flag, text, least);
    return value;
}

#endif
