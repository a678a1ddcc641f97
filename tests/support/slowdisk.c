/* A slow or failing disk: preloaded, it delays or fails writes to files below one folder, in processes with these variables.
 *
 * INFERLOAD_SLOWDISK names a file of two int64 that may change during the run: the delay of each call in ns, and its error number,
 * 0 for none. INFERLOAD_SLOWDISK_FOLDER is the folder. They are read at each call until they are found: a fork of a fork server
 * sets them after its start. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { DELAY, ERROR };

static const volatile int64_t *control;
static const char *folder;

static void begin(void) {
    const char *path = getenv("INFERLOAD_SLOWDISK");
    folder = getenv("INFERLOAD_SLOWDISK_FOLDER");
    int fd = path && folder ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) control = page;
    close(fd);
}

/* Wait for the disk; return an error number. */
static int wait_for_disk(const char *path) {
    if (!control) begin();
    size_t length = control ? strlen(folder) : 0;
    if (!length || strncmp(path, folder, length) || (path[length] && path[length] != '/')) return 0;
    int64_t ns = control[DELAY];
    struct timespec left = {.tv_sec = ns / INT64_C(1000000000), .tv_nsec = ns % INT64_C(1000000000)};
    while (ns && nanosleep(&left, &left) && errno == EINTR) {}
    return (int)control[ERROR];
}

static int failed(int fd) {
    struct stat about;
    char link[64], path[PATH_MAX];
    if (!control) begin();
    if (!control || fstat(fd, &about) || !S_ISREG(about.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    int error = wait_for_disk(path);
    if (error) errno = error;
    return error;
}

#define REAL(type, name, ...)                                           \
    static type (*real)(__VA_ARGS__);                                   \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t)
    return failed(fd) ? -1 : real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
    return failed(fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t)
    return failed(fd) ? -1 : real(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int)
    return failed(fd) ? -1 : real(fd, data, count);
}

int fsync(int fd) {
    REAL(int, fsync, int)
    return failed(fd) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *)
    int error = wait_for_disk(to);
    if (error) errno = error;
    return error ? -1 : real(from, to);
}
