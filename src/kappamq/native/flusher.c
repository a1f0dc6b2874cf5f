/* One fdatasync at a time; requests that arrive meanwhile share the next one. flusher.py defines the behaviour. */
#include "flusher.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct files {
    int *fds;
    size_t count, room;
};

struct flusher {
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t thread;
    int event;
    /* under the lock */
    struct files asked; /* files to sync, in the order of the requests, each once */
    int64_t offset, durable;
    int error;
    bool closing, busy;
    /* only for the thread itself */
    struct files syncing;
};

static int sync_files(const struct files *files)
{
    for (size_t n = 0; n < files->count; n++)
        while (fdatasync(files->fds[n]) != 0)
            if (errno != EINTR)
                return errno ? errno : EIO;
    return 0;
}

static void *run(void *argument)
{
    struct flusher *flusher = argument;
    const uint64_t one = 1;
    pthread_mutex_lock(&flusher->lock);
    for (;;) {
        while (!flusher->asked.count && !flusher->closing)
            pthread_cond_wait(&flusher->wake, &flusher->lock);
        if (!flusher->asked.count)
            break;
        struct files taken = flusher->asked;
        flusher->asked = flusher->syncing;
        flusher->asked.count = 0;
        flusher->syncing = taken;
        int64_t offset = flusher->offset;
        flusher->busy = true;
        pthread_mutex_unlock(&flusher->lock);
        int error = sync_files(&flusher->syncing);
        pthread_mutex_lock(&flusher->lock);
        flusher->busy = false;
        if (error) {
            flusher->error = error; /* for ever: the contents of the disk are now unknown */
            flusher->asked.count = 0;
        } else {
            flusher->durable = offset;
        }
        ssize_t written = write(flusher->event, &one, sizeof one);
        (void)written; /* the counter cannot overflow: each take() resets it */
        pthread_cond_broadcast(&flusher->idle);
    }
    pthread_mutex_unlock(&flusher->lock);
    return NULL;
}

struct flusher *flusher_new(void)
{
    struct flusher *flusher = calloc(1, sizeof *flusher);
    if (!flusher)
        return NULL;
    flusher->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (flusher->event < 0) {
        free(flusher);
        return NULL;
    }
    pthread_mutex_init(&flusher->lock, NULL);
    pthread_cond_init(&flusher->wake, NULL);
    pthread_cond_init(&flusher->idle, NULL);
    /* Signals must be delivered to the thread that runs Python. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&flusher->thread, NULL, run, flusher);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        close(flusher->event);
        free(flusher);
        errno = error;
        return NULL;
    }
    return flusher;
}

int flusher_descriptor(const struct flusher *flusher) { return flusher->event; }

int flusher_request(struct flusher *flusher, int fd, int64_t offset)
{
    int result = 0;
    pthread_mutex_lock(&flusher->lock);
    struct files *asked = &flusher->asked;
    size_t n = 0;
    while (n < asked->count && asked->fds[n] != fd)
        n++;
    if (!flusher->error && n == asked->count) {
        if (asked->count == asked->room) {
            size_t room = asked->room ? asked->room * 2 : 8;
            int *fds = realloc(asked->fds, room * sizeof *fds);
            if (fds) {
                asked->fds = fds;
                asked->room = room;
            } else {
                result = ENOMEM;
            }
        }
        if (!result)
            asked->fds[asked->count++] = fd;
    }
    if (!flusher->error && !result) {
        if (flusher->offset < offset)
            flusher->offset = offset;
        pthread_cond_signal(&flusher->wake);
    }
    pthread_mutex_unlock(&flusher->lock);
    return result;
}

void flusher_take(struct flusher *flusher, int64_t *durable, int *error)
{
    uint64_t count;
    pthread_mutex_lock(&flusher->lock);
    ssize_t got = read(flusher->event, &count, sizeof count);
    (void)got; /* nothing to read: nothing new */
    *durable = flusher->durable;
    *error = flusher->error;
    pthread_mutex_unlock(&flusher->lock);
}

void flusher_cut(struct flusher *flusher, int64_t offset)
{
    pthread_mutex_lock(&flusher->lock);
    while (flusher->busy || flusher->asked.count)
        pthread_cond_wait(&flusher->idle, &flusher->lock);
    if (flusher->offset > offset)
        flusher->offset = offset;
    if (flusher->durable > offset)
        flusher->durable = offset;
    pthread_mutex_unlock(&flusher->lock);
}

void flusher_stop(struct flusher *flusher)
{
    pthread_mutex_lock(&flusher->lock);
    flusher->closing = true;
    pthread_cond_signal(&flusher->wake);
    pthread_mutex_unlock(&flusher->lock);
    pthread_join(flusher->thread, NULL);
}

void flusher_free(struct flusher *flusher)
{
    pthread_mutex_destroy(&flusher->lock);
    pthread_cond_destroy(&flusher->wake);
    pthread_cond_destroy(&flusher->idle);
    close(flusher->event);
    free(flusher->asked.fds);
    free(flusher->syncing.fds);
    free(flusher);
}
