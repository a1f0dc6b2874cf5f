/* Helpers for all parts of the kernel. */
#ifndef KAPPAMQ_BASICS_H
#define KAPPAMQ_BASICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Out of memory: the call that returns this has changed nothing. */
enum { NO_MEMORY = -100 };

struct span {
    const uint8_t *at;
    size_t size;
};

struct bytes {
    uint8_t *data;
    size_t size, room;
};

/* Doubly linked ring; an element that is not in a list points to itself. */
struct link {
    struct link *next, *previous;
};

struct crc {
    uint32_t table[8][256];
    uint32_t power[32]; /* x to the power of 2 to the power of n */
    uint32_t (*run)(const struct crc *crc, const uint8_t *data, size_t size);
};
void crc_init(struct crc *crc, bool portable);
/* zlib's CRC-32 of `size` bytes. */
static inline uint32_t crc32_of(const struct crc *crc, const uint8_t *data, size_t size) { return crc->run(crc, data, size); }
/* The CRC of bytes with CRC `first` that `size` bytes with CRC `second` follow. Takes up to a microsecond, whatever the size. */
uint32_t crc32_joined(const struct crc *crc, uint32_t first, uint32_t second, size_t size);

bool utf8_valid(const uint8_t *data, size_t size);
/* Copies `data` to `to`, each broken sequence as U+FFFD; `to` has room for three times the bytes. Returns how many were written. */
size_t utf8_repair(const uint8_t *data, size_t size, uint8_t *to);
/* java.lang.String.hashCode of a text: `value` is the hash of its beginning, and `data` the rest. */
uint32_t hash_on(uint32_t value, const uint8_t *data, size_t size);

#endif
