/* Files in memory that survive a failed read.
 *
 * A page of a mapped file that cannot be read (the file was truncated, the disk reports an error) raises SIGBUS in the thread that
 * touches it, which by default kills the process. The handler below maps a page of zeros there instead, marks it as lost and lets the
 * reader go on: a record with zeros in it has no valid header or checksum, so its reader notices. A fault anywhere else goes
 * to the handler that was installed before.
 *
 * A lost page is marked before it shows zeros, and shows the file again before the mark is removed: unmarked zeros would be believed.
 *
 * The handler may interrupt anything in any thread. It takes no lock and allocates nothing: it walks a list whose nodes are never
 * freed, sets a bit, and makes one system call. Opening and closing happen one at a time (under Python's lock). */
#include "mapping.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORD_BITS = 64 };

struct mapping {
    _Atomic(uint8_t *) data; /* NULL: the node is free */
    size_t size;
    _Atomic(uint64_t) *lost; /* a bit for each page */
    _Atomic(size_t) lost_count;
    _Atomic(size_t) failed_reads; /* only grows */
    struct mapping *next;
};

static _Atomic(struct mapping *) mappings;
static struct sigaction previous;
static size_t page_bytes;

/* Returns whether the page was not marked before. */
static bool mark(struct mapping *mapping, size_t page)
{
    uint64_t bit = (uint64_t)1 << page % WORD_BITS;
    if (atomic_fetch_or(&mapping->lost[page / WORD_BITS], bit) & bit)
        return false;
    atomic_fetch_add(&mapping->lost_count, 1);
    return true;
}

static void unmark(struct mapping *mapping, size_t page)
{
    uint64_t bit = (uint64_t)1 << page % WORD_BITS;
    if (atomic_fetch_and(&mapping->lost[page / WORD_BITS], ~bit) & bit)
        atomic_fetch_sub(&mapping->lost_count, 1);
}

static void fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    if (info->si_code > 0) { /* a real fault, not sent by kill() */
        for (struct mapping *mapping = atomic_load(&mappings); mapping; mapping = mapping->next) {
            uint8_t *data = atomic_load(&mapping->data);
            if (!data || at < (uintptr_t)data || at - (uintptr_t)data >= mapping->size)
                continue;
            size_t page = (at - (uintptr_t)data) / page_bytes;
            atomic_fetch_add(&mapping->failed_reads, 1);
            bool marked = mark(mapping, page);
            void *zeros = mmap(data + page * page_bytes, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (zeros == MAP_FAILED) {
                if (marked)
                    unmark(mapping, page);
                break;
            }
            errno = saved;
            return;
        }
    }
    /* Not ours: the same fault occurs again, with the previous handler; only once, because that one may restore ours. */
    static atomic_flag passed_on = ATOMIC_FLAG_INIT;
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, atomic_flag_test_and_set(&passed_on) ? &fatal : &previous, NULL);
    if (info->si_code <= 0)
        raise(number);
    errno = saved;
}

/* Another handler (Python's faulthandler) may have been installed since, so check at every mapping. */
static int install(void)
{
    struct sigaction now, ours = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    if (sigaction(SIGBUS, NULL, &now))
        return -1;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == fault)
        return 0;
    previous = now;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL);
}

struct mapping *mapping_open(int fd, size_t size)
{
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (install())
        return NULL;
    struct mapping *mapping = atomic_load(&mappings);
    while (mapping && atomic_load(&mapping->data))
        mapping = mapping->next;
    bool fresh = !mapping;
    if (fresh && !(mapping = calloc(1, sizeof *mapping)))
        return NULL;
    size_t pages = (size + page_bytes - 1) / page_bytes;
    _Atomic(uint64_t) *lost = calloc(pages / WORD_BITS + 1, sizeof *lost);
    void *data = lost ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (data == MAP_FAILED) {
        int saved = lost ? errno : ENOMEM;
        free((void *)lost);
        if (fresh)
            free(mapping);
        errno = saved;
        return NULL;
    }
    mapping->size = size;
    mapping->lost = lost;
    atomic_store(&mapping->lost_count, 0);
    if (fresh) {
        mapping->next = atomic_load(&mappings);
        atomic_store(&mappings, mapping);
    }
    atomic_store(&mapping->data, data); /* last: from now on the handler uses the other fields */
    return mapping;
}

const uint8_t *mapping_data(const struct mapping *mapping)
{
    return atomic_load(&((struct mapping *)mapping)->data);
}

void mapping_close(struct mapping *mapping)
{
    uint8_t *data = atomic_exchange(&mapping->data, NULL);
    munmap(data, mapping->size);
    free((void *)mapping->lost);
    mapping->lost = NULL;
}

void mapping_enter(const uint8_t *data, size_t at, size_t size)
{
#ifdef MADV_POPULATE_READ
    /* It fails if a page cannot be read, and raises no signal: then, and on older systems, each page is mapped when it is used. */
    size_t first = at / page_bytes * page_bytes;
    (void)madvise((void *)(uintptr_t)(data + first), at + size - first, MADV_POPULATE_READ);
#else
    (void)data, (void)at, (void)size;
#endif
}

size_t mapping_lost_count(const struct mapping *mapping)
{
    return atomic_load(&((struct mapping *)mapping)->lost_count);
}

static bool page_is_lost(const struct mapping *mapping, size_t page)
{
    return atomic_load(&mapping->lost[page / WORD_BITS]) >> page % WORD_BITS & 1;
}

bool mapping_is_lost(const struct mapping *mapping, size_t at, size_t size)
{
    const volatile uint8_t *data = mapping_data(mapping);
    for (size_t page = at / page_bytes; page * page_bytes < at + size; page++)
        (void)data[page * page_bytes];
    if (!mapping_lost_count(mapping))
        return false;
    for (size_t page = at / page_bytes; page * page_bytes < at + size; page++)
        if (page_is_lost(mapping, page))
            return true;
    return false;
}

bool mapping_next_lost(const struct mapping *mapping, size_t from, size_t *start, size_t *stop)
{
    size_t pages = (mapping->size + page_bytes - 1) / page_bytes, page = from / page_bytes;
    while (page < pages && !page_is_lost(mapping, page))
        page = page % WORD_BITS || atomic_load(&mapping->lost[page / WORD_BITS]) ? page + 1 : page + WORD_BITS;
    if (page >= pages)
        return false;
    *start = page * page_bytes;
    while (page < pages && page_is_lost(mapping, page))
        page++;
    *stop = page * page_bytes < mapping->size ? page * page_bytes : mapping->size;
    return true;
}

int mapping_restore(struct mapping *mapping, size_t start, size_t stop, int fd)
{
    uint8_t *data = atomic_load(&mapping->data);
    size_t first = start / page_bytes, failed = atomic_load(&mapping->failed_reads);
    if (mmap(data + start, stop - start, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)start) == MAP_FAILED)
        return -1;
    for (size_t page = first; page * page_bytes < stop; page++)
        (void)((const volatile uint8_t *)data)[page * page_bytes];
    if (atomic_load(&mapping->failed_reads) == failed) {
        for (size_t page = first; page * page_bytes < stop; page++)
            unmark(mapping, page);
        if (atomic_load(&mapping->failed_reads) == failed)
            return 0;
        /* A reader met a page that failed again while it was still marked, and we have removed its mark: restore the marks. */
        for (size_t page = first; page * page_bytes < stop; page++)
            mark(mapping, page);
    }
    errno = EIO;
    return -1;
}
