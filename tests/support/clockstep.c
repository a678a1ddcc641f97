/* A wall clock that can be set, for one process and those it forks: preloaded, it adds an offset to what the system says.
 *
 * The file that INFERLOAD_CLOCKSTEP names holds two int64: the offset in ns, and the true instant from which on it holds. The kernel's
 * receive stamps are moved likewise, each by what held when its packet came, as a clock that was really set would have done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("INFERLOAD_CLOCKSTEP");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) step = page;
    close(fd);
}

static void move(struct timespec *at) {
    int64_t ns = at->tv_sec * INT64_C(1000000000) + at->tv_nsec;
    if (!step || ns < step[1]) return;
    ns += step[0];
    at->tv_sec = ns / INT64_C(1000000000), at->tv_nsec = ns % INT64_C(1000000000);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME) move(at);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static ssize_t (*real)(int, struct msghdr *, int);
    if (!real) real = (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    ssize_t got = real(fd, message, flags);
    if (got < 0) return got;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec stamp;
        memcpy(&stamp, CMSG_DATA(one), sizeof stamp);
        move(&stamp);
        memcpy(CMSG_DATA(one), &stamp, sizeof stamp);
    }
    return got;
}
