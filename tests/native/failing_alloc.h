/* Compiled into a test build of the kernel: the allocation that is counted down to fails. */
#ifndef FAILING_ALLOC_H
#define FAILING_ALLOC_H

#include <stdlib.h>

__attribute__((weak)) int kappamq_fail_in = 0; /* 0: none fails; n: the n-th from now on */

static inline int fails(void) { return kappamq_fail_in > 0 && --kappamq_fail_in == 0; }
static inline void *failing_malloc(size_t size) { return fails() ? NULL : malloc(size); }
static inline void *failing_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }
static inline void *failing_realloc(void *data, size_t size) { return fails() ? NULL : realloc(data, size); }

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc

#endif
