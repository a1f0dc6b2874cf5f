/* Helpers that must be inlined: big-endian numbers, growing buffers, 16-byte SIMD steps where the machine has them. */
#ifndef KAPPAMQ_INLINE_H
#define KAPPAMQ_INLINE_H

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#if defined(__SSE2__) && !defined(KAPPAMQ_PORTABLE)
#include <emmintrin.h>
#define KAPPAMQ_SSE2 1
#endif

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* -- numbers --------------------------------------------------------------------------------------------------------- */

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define BIG16(x) (x)
#define BIG32(x) (x)
#define BIG64(x) (x)
#else
#define BIG16(x) __builtin_bswap16(x)
#define BIG32(x) __builtin_bswap32(x)
#define BIG64(x) __builtin_bswap64(x)
#endif

static inline uint64_t raw64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }
static inline uint32_t raw32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline uint16_t raw16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return v; }
static inline uint16_t get16(const uint8_t *at) { return BIG16(raw16(at)); }
static inline uint32_t getu32(const uint8_t *at) { return BIG32(raw32(at)); }
static inline int32_t get32(const uint8_t *at) { return (int32_t)getu32(at); }
static inline int64_t get64(const uint8_t *at) { return (int64_t)BIG64(raw64(at)); }
static inline uint8_t *put16(uint8_t *to, uint16_t v) { v = BIG16(v); memcpy(to, &v, 2); return to + 2; }
static inline uint8_t *put32(uint8_t *to, uint32_t v) { v = BIG32(v); memcpy(to, &v, 4); return to + 4; }
static inline uint8_t *put64(uint8_t *to, uint64_t v) { v = BIG64(v); memcpy(to, &v, 8); return to + 8; }
static inline uint8_t *put_bytes(uint8_t *to, const void *from, size_t size)
{
    if (size) /* an empty span may have no address */
        memcpy(to, from, size);
    return to + size;
}
static inline uint8_t *put_span(uint8_t *to, struct span span) { return put_bytes(to, span.at, span.size); }
#define put_text(to, text) put_bytes((to), (text), sizeof(text) - 1)

/* An address: 8 bytes or 20. */
static inline uint8_t *put_host(uint8_t *to, struct span host)
{
    memcpy(to, host.at, 8);
    if (host.size == 20)
        memcpy(to + 8, host.at + 8, 12);
    return to + host.size;
}

/* Sixteen upper-case hex digits. */
static inline uint8_t *put_hex64(uint8_t *to, uint64_t value)
{
    for (int half = 32; half >= 0; half -= 32) {
        /* Spread eight nibbles over eight bytes, the first one highest; above 9 add what lies between '9' and 'A'. */
        uint64_t digits = value >> half & 0xFFFFFFFFu;
        digits = (digits | digits << 16) & 0x0000FFFF0000FFFFu;
        digits = (digits | digits << 8) & 0x00FF00FF00FF00FFu;
        digits = (digits | digits << 4) & 0x0F0F0F0F0F0F0F0Fu;
        uint64_t letters = (digits + 0x0606060606060606u) >> 4 & 0x0101010101010101u;
        to = put64(to, digits + 0x3030303030303030u + letters * 7);
    }
    return to;
}

/* Decimal digits of `value`, at most 20 of them. */
static inline uint8_t *put_number(uint8_t *to, int64_t value)
{
    uint8_t digits[20];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left);
    if (value < 0)
        *to++ = '-';
    return put_bytes(to, digits + at, sizeof digits - at);
}

static inline bool span_is(struct span span, const char *text, size_t size)
{
    return span.size == size && memcmp(span.at, text, size) == 0;
}
#define SPAN_IS(span, text) span_is((span), (text), sizeof(text) - 1)

static inline bool same_span(struct span a, struct span b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.at, b.at, a.size) == 0);
}

/* -- growing --------------------------------------------------------------------------------------------------------- */

/* Reserves `more` bytes behind the present ones: 0 or NO_MEMORY. */
static inline int bytes_reserve(struct bytes *bytes, size_t more)
{
    if (likely(more <= bytes->room - bytes->size))
        return 0;
    size_t need, room;
    if (__builtin_add_overflow(bytes->size, more, &need) || need > SIZE_MAX / 4)
        return NO_MEMORY;
    room = bytes->room < 32 ? 64 : bytes->room * 2;
    if (room < need)
        room = need;
    uint8_t *data = realloc(bytes->data, room);
    if (!data)
        return NO_MEMORY;
    bytes->data = data;
    bytes->room = room;
    return 0;
}

static inline void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

/* Reserves one more element of an array that doubles: 0 or NO_MEMORY. */
static inline int array_reserve(void **array, size_t count, size_t *room, size_t element)
{
    if (likely(count < *room))
        return 0;
    size_t larger = *room ? *room * 2 : 8;
    if (larger > SIZE_MAX / 4 / element)
        return NO_MEMORY;
    void *grown = realloc(*array, larger * element);
    if (!grown)
        return NO_MEMORY;
    *array = grown;
    *room = larger;
    return 0;
}
#define ARRAY_RESERVE(array, count, room) array_reserve((void **)&(array), (count), &(room), sizeof *(array))

static inline void link_alone(struct link *link) { link->next = link->previous = link; }
static inline void link_remove(struct link *link)
{
    link->next->previous = link->previous;
    link->previous->next = link->next;
    link_alone(link);
}
static inline void link_append(struct link *list, struct link *link)
{
    link->previous = list->previous;
    link->next = list;
    list->previous->next = link;
    list->previous = link;
}
#define QUEUE_AT(link, member) ((struct queue *)((char *)(link)-offsetof(struct queue, member)))

/* -- searching ------------------------------------------------------------------------------------------------------- */

/* These examine [at, end) and may load, but not use, bytes up to `readable` >= end. */

static inline bool odd_in_string(uint8_t byte) { return byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\'; }

#ifdef KAPPAMQ_SSE2
static inline unsigned odd_mask(__m128i block)
{
    /* Compared as signed numbers, bytes from 0x80 on are below 0x20, too. */
    __m128i odd = _mm_cmplt_epi8(block, _mm_set1_epi8(0x20));
    odd = _mm_or_si128(odd, _mm_cmpeq_epi8(block, _mm_set1_epi8('"')));
    odd = _mm_or_si128(odd, _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));
    return (unsigned)_mm_movemask_epi8(odd);
}
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define KAPPAMQ_WORDS 1
#define EACH(byte) (0x0101010101010101u * (uint64_t)(byte))
/* The high bit of each byte that is zero; bits above the first may be wrong. */
static inline uint64_t zero_bytes(uint64_t word) { return (word - EACH(1)) & ~word & EACH(0x80); }
static inline uint64_t exact_zero_bytes(uint64_t word) { return ~(((word & EACH(0x7F)) + EACH(0x7F)) | word | EACH(0x7F)); }
static inline uint64_t odd_mask(uint64_t word)
{
    uint64_t control = (word - EACH(0x20)) & ~word & EACH(0x80);
    return control | (word & EACH(0x80)) | zero_bytes(word ^ EACH('"')) | zero_bytes(word ^ EACH('\\'));
}
#endif

/* The first byte of a JSON string that needs special handling: quote, backslash, control character, not ASCII. */
static inline const uint8_t *string_stop(const uint8_t *at, const uint8_t *end, const uint8_t *readable)
{
#ifdef KAPPAMQ_SSE2
    for (; at < end && readable - at >= 16; at += 16) {
        unsigned odd = odd_mask(_mm_loadu_si128((const __m128i *)at));
        if (odd) {
            at += __builtin_ctz(odd);
            return at < end ? at : end;
        }
    }
#elif defined(KAPPAMQ_WORDS)
    for (; at < end && readable - at >= 8; at += 8) {
        uint64_t odd = odd_mask(raw64(at));
        if (odd) {
            at += __builtin_ctzll(odd) / 8;
            return at < end ? at : end;
        }
    }
#endif
    while (at < end && !odd_in_string(*at))
        at++;
    return at < end ? at : end;
}

/* As string_stop, but copies the bytes before it to `*to` (which needs room for 16 bytes more than it gets). */
static inline const uint8_t *string_copy(const uint8_t *at, const uint8_t *end, uint8_t **to)
{
    uint8_t *out = *to;
#ifdef KAPPAMQ_SSE2
    while (end - at >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)at);
        unsigned odd = odd_mask(block);
        _mm_storeu_si128((__m128i *)out, block);
        if (odd) {
            *to = out + __builtin_ctz(odd);
            return at + __builtin_ctz(odd);
        }
        at += 16;
        out += 16;
    }
#elif defined(KAPPAMQ_WORDS)
    while (end - at >= 8) {
        uint64_t word = raw64(at), odd = odd_mask(word);
        memcpy(out, &word, 8);
        if (odd) {
            *to = out + __builtin_ctzll(odd) / 8;
            return at + __builtin_ctzll(odd) / 8;
        }
        at += 8;
        out += 8;
    }
#endif
    while (at < end && !odd_in_string(*at))
        *out++ = *at++;
    *to = out;
    return at;
}

/* Iterates over the bytes 0x01 and 0x02 of properties. */
struct marks {
    const uint8_t *block, *end, *readable;
    uint64_t mask; /* the remaining ones of the block */
};

static inline struct marks marks_of(const uint8_t *at, const uint8_t *end, const uint8_t *readable)
{
    return (struct marks){at, end, readable, 0};
}

/* The next one, or `end`. Loads the first block on the first call. */
static inline const uint8_t *next_mark(struct marks *marks)
{
#ifdef KAPPAMQ_SSE2
    enum { STEP = 16, SCALE = 1 };
#else
    enum { STEP = 8, SCALE = 8 };
#endif
    while (!marks->mask) {
        if (marks->block >= marks->end)
            return marks->end;
        const uint8_t *at = marks->block;
        if (likely(marks->readable - at >= STEP)) {
#ifdef KAPPAMQ_SSE2
            __m128i block = _mm_loadu_si128((const __m128i *)at);
            __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8(1)), _mm_cmpeq_epi8(block, _mm_set1_epi8(2)));
            marks->mask = (unsigned)_mm_movemask_epi8(hits);
#elif defined(KAPPAMQ_WORDS)
            marks->mask = exact_zero_bytes(raw64(at) ^ EACH(1)) | exact_zero_bytes(raw64(at) ^ EACH(2));
#else
            for (int n = 0; n < STEP; n++)
                marks->mask |= (uint64_t)(at[n] == 1 || at[n] == 2) << (n * SCALE);
#endif
        } else {
            for (int n = 0; n < marks->end - at && n < STEP; n++)
                marks->mask |= (uint64_t)(at[n] == 1 || at[n] == 2) << (n * SCALE);
        }
        marks->block += STEP;
    }
    const uint8_t *found = marks->block - STEP + __builtin_ctzll(marks->mask) / SCALE;
    marks->mask &= marks->mask - 1;
    return found < marks->end ? found : marks->end;
}

static inline bool is_ascii(const uint8_t *data, size_t size)
{
    uint64_t high = 0;
    if (size >= 8) {
        const uint8_t *last = data + size - 8;
        for (; data < last; data += 8)
            high |= raw64(data);
        high |= raw64(last);
    } else {
        for (; size; size--, data++)
            high |= *data;
    }
    return !(high & 0x8080808080808080u);
}

#endif
