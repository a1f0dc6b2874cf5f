/* Files in memory that survive a failed read. See mapping.c. */
#ifndef KAPPAMQ_MAPPING_H
#define KAPPAMQ_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mapping;

/* The first `size` bytes of a file, for reading. NULL with errno set. */
struct mapping *mapping_open(int fd, size_t size);
const uint8_t *mapping_data(const struct mapping *mapping);
void mapping_close(struct mapping *mapping);
/* Maps the pages of [at, at + size) that are in memory, or can be read, into the address space, so that later reads do not wait.
 * For any thread, even while another one closes the mapping; pages that cannot be mapped are skipped. */
void mapping_enter(const uint8_t *data, size_t at, size_t size);

/* Pages that could not be read so far; they read as zeros. */
size_t mapping_lost_count(const struct mapping *mapping);
/* Reads a byte of every page of [at, at + size) and returns whether one of them is lost. */
bool mapping_is_lost(const struct mapping *mapping, size_t at, size_t size);
/* The first range of lost pages that ends behind `from`: false if there is none. */
bool mapping_next_lost(const struct mapping *mapping, size_t from, size_t *start, size_t *stop);
/* Maps the file again in [start, stop), which begins and ends with a page: 0, or -1 with errno set. */
int mapping_restore(struct mapping *mapping, size_t start, size_t stop, int fd);

#endif
