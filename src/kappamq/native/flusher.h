/* The group-commit thread: the one exception to "no I/O". flusher.py defines its behaviour. */
#ifndef KAPPAMQ_FLUSHER_H
#define KAPPAMQ_FLUSHER_H

#include <stdint.h>

struct flusher;

/* NULL and errno if no thread or descriptor is available. */
struct flusher *flusher_new(void);
int flusher_descriptor(const struct flusher *flusher);
/* 0 or ENOMEM. */
int flusher_request(struct flusher *flusher, int fd, int64_t offset);
void flusher_take(struct flusher *flusher, int64_t *durable, int *error);
/* Finishes all requests and ends the thread; take() returns the result. */
/* See flusher.py. */
void flusher_cut(struct flusher *flusher, int64_t offset);
void flusher_stop(struct flusher *flusher);
/* After stop. */
void flusher_free(struct flusher *flusher);

#endif
