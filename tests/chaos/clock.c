/* A wall clock that is wrong by as many seconds as a file says: LD_PRELOAD=clock.so
   CLOCK=file. The file holds 8 bytes, and may change at any time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t right = 0;
static volatile const int64_t *wrong = &right;

__attribute__((constructor)) static void look(void) {
    const char *name = getenv("CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) wrong = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *wrong;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed = (int)syscall(SYS_gettimeofday, at, zone);
    if (!failed) at->tv_sec += *wrong;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
