/* Loaded into a process (LD_PRELOAD), it shifts the wall clock by as many milliseconds as the file $SHIFTED_CLOCK holds, at any time.
   Monotonic clocks stay as they are, as when somebody sets the clock of the machine. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift_ms(void)
{
    static volatile int64_t *shared;
    if (shared == NULL) {
        const char *path = getenv("SHIFTED_CLOCK");
        int fd = path != NULL ? open(path, O_RDONLY) : -1;
        if (fd < 0)
            return 0;
        void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (mapped == MAP_FAILED)
            return 0;
        shared = mapped;
    }
    return *shared;
}

static void shift(struct timespec *at)
{
    int64_t ms = shift_ms();
    at->tv_sec += ms / 1000;
    at->tv_nsec += ms % 1000 * 1000000;
    if (at->tv_nsec >= 1000000000) {
        at->tv_nsec -= 1000000000;
        at->tv_sec += 1;
    } else if (at->tv_nsec < 0) {
        at->tv_nsec += 1000000000;
        at->tv_sec -= 1;
    }
}

int clock_gettime(clockid_t which, struct timespec *at)
{
    long failed = syscall(SYS_clock_gettime, which, at);
    if (failed == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        shift(at);
    return (int)failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
