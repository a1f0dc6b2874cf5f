/* UTF-8 and Java's string hash. */
#include "inline.h"

/* One step through UTF-8 as Python and Java decode it: the character at `at`, or U+FFFD for the longest valid beginning of a broken
 * one. `*size` is how many bytes it took. */
static uint32_t next_character(const uint8_t *at, size_t left, size_t *size, bool *broken)
{
    uint8_t first = at[0];
    uint8_t low = 0x80, high = 0xBF; /* range of the second byte */
    size_t want;
    uint32_t value;
    if (first < 0x80) {
        *size = 1;
        return first;
    }
    if (first >= 0xC2 && first <= 0xDF) {
        want = 2;
        value = first & 0x1F;
    } else if (first >= 0xE0 && first <= 0xEF) {
        want = 3;
        value = first & 0x0F;
        if (first == 0xE0)
            low = 0xA0; /* shorter forms exist */
        else if (first == 0xED)
            high = 0x9F; /* surrogates */
    } else if (first >= 0xF0 && first <= 0xF4) {
        want = 4;
        value = first & 0x07;
        if (first == 0xF0)
            low = 0x90;
        else if (first == 0xF4)
            high = 0x8F; /* beyond U+10FFFF */
    } else {
        *size = 1;
        *broken = true;
        return 0xFFFD;
    }
    for (size_t n = 1; n < want; n++) {
        if (n >= left || at[n] < low || at[n] > high) {
            *size = n;
            *broken = true;
            return 0xFFFD;
        }
        value = value << 6 | (at[n] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *size = want;
    return value;
}

bool utf8_valid(const uint8_t *data, size_t size)
{
    if (is_ascii(data, size))
        return true;
    bool broken = false;
    for (size_t at = 0, step; at < size && !broken; at += step)
        next_character(data + at, size - at, &step, &broken);
    return !broken;
}

size_t utf8_repair(const uint8_t *data, size_t size, uint8_t *to)
{
    uint8_t *start = to;
    for (size_t at = 0, step; at < size; at += step) {
        bool broken = false;
        next_character(data + at, size - at, &step, &broken);
        to = broken ? put_text(to, "\xEF\xBF\xBD") : put_bytes(to, data + at, step);
    }
    return (size_t)(to - start);
}

uint32_t hash_on(uint32_t value, const uint8_t *data, size_t size)
{
    size_t at = 0;
    for (; size - at >= 8; at += 8) {
        uint64_t word = raw64(data + at);
        if (word & 0x8080808080808080u)
            break;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        /* Eight characters at once: neighbours are joined, 31 * earlier + later, then pairs, then fours. */
        word = (word & 0x00FF00FF00FF00FFu) * 31 + (word >> 8 & 0x00FF00FF00FF00FFu);
        word = (word & 0x0000FFFF0000FFFFu) * 961 + (word >> 16 & 0x0000FFFF0000FFFFu);
        value = value * 0x94446F01u + (uint32_t)word * 923521u + (uint32_t)(word >> 32); /* 31^8, 31^4 */
    }
    while (at < size) {
        if (likely(data[at] < 0x80)) {
            value = value * 31 + data[at++];
            continue;
        }
        size_t step;
        bool broken = false;
        uint32_t character = next_character(data + at, size - at, &step, &broken);
        if (character >= 0x10000) {
            character -= 0x10000;
            value = value * 31 + (0xD800 + (character >> 10));
            character = 0xDC00 + (character & 0x3FF);
        }
        value = value * 31 + character;
        at += step;
    }
    return value;
}
