/* CRC-32 with zlib's polynomial: by carry-less multiplication if the processor has it, else eight bytes at a time. */
#include "inline.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(KAPPAMQ_PORTABLE)
#include <immintrin.h>
#define KAPPAMQ_CLMUL 1
#endif

#define POLYNOMIAL 0xEDB88320u

static uint32_t run_tables(const struct crc *crc, const uint8_t *data, size_t size)
{
    uint32_t value = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low = value ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        value = crc->table[7][low & 0xFF] ^ crc->table[6][low >> 8 & 0xFF] ^ crc->table[5][low >> 16 & 0xFF] ^ crc->table[4][low >> 24] ^
                crc->table[3][data[4]] ^ crc->table[2][data[5]] ^ crc->table[1][data[6]] ^ crc->table[0][data[7]];
    }
    for (; size; size--, data++)
        value = value >> 8 ^ crc->table[0][(value ^ *data) & 0xFF];
    return ~value;
}

#ifdef KAPPAMQ_CLMUL
/* The message is a polynomial; a block of 128 bits is carried over the next n bits by multiplying its halves with
 * x^(n+32) and x^(n-32) modulo the CRC's polynomial (bit-reversed, shifted by one: the product of two reversed numbers
 * comes out one place short). These are facts of the polynomial; tests compare with zlib. */
#define OVER_512 _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
#define OVER_128 _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)
#define OVER_64 _mm_set_epi64x(0, 0x163cd6124)
#define BARRETT _mm_set_epi64x(0x1f7011641, 0x1db710641)

#define CLMUL_CODE __attribute__((target("pclmul,sse4.1")))

CLMUL_CODE static inline __m128i carry(__m128i block, __m128i over, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(block, over, 0x00), high = _mm_clmulepi64_si128(block, over, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL_CODE static inline __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

CLMUL_CODE static uint32_t run_clmul(const struct crc *crc, const uint8_t *data, size_t size)
{
    if (size < 16)
        return run_tables(crc, data, size);
    /* Leading zeros change nothing while the register is empty, so an odd length is padded at the front: the first block contains
     * zeros and the first `odd` bytes. The CRC's initial ones are added to the first four bytes, wherever these are then. */
    static const uint8_t slide[32] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                      0x80, 0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,
                                      6,    7,    8,    9,    10,   11,   12,   13,   14,   15};
    size_t odd = size % 16;
    __m128i block = _mm_xor_si128(load(data), _mm_cvtsi32_si128(-1));
    if (odd) {
        __m128i rest = odd < 4 ? _mm_cvtsi32_si128((int)(0xFFFFFFFFu >> (8 * odd))) : _mm_setzero_si128();
        block = _mm_shuffle_epi8(block, load(slide + odd));
        block = carry(block, OVER_128, _mm_xor_si128(load(data + odd), rest));
    }
    data += odd + 16;
    size -= odd + 16;
    if (size >= 112) {
        __m128i second = load(data), third = load(data + 16), fourth = load(data + 32);
        data += 48;
        size -= 48;
        for (; size >= 64; size -= 64, data += 64) {
            block = carry(block, OVER_512, load(data));
            second = carry(second, OVER_512, load(data + 16));
            third = carry(third, OVER_512, load(data + 32));
            fourth = carry(fourth, OVER_512, load(data + 48));
        }
        block = carry(block, OVER_128, second);
        block = carry(block, OVER_128, third);
        block = carry(block, OVER_128, fourth);
    }
    for (; size; size -= 16, data += 16)
        block = carry(block, OVER_128, load(data));

    const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
    block = _mm_xor_si128(_mm_srli_si128(block, 8), _mm_clmulepi64_si128(block, OVER_128, 0x10));
    block = _mm_xor_si128(_mm_srli_si128(block, 4), _mm_clmulepi64_si128(_mm_and_si128(block, low_32), OVER_64, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(block, low_32), BARRETT, 0x10);
    block = _mm_xor_si128(block, _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), BARRETT, 0x00));
    return ~(uint32_t)_mm_extract_epi32(block, 1);
}
#endif

/* The product of two polynomials modulo the CRC's; the highest bit is the power 0. */
static uint32_t multiply(uint32_t one, uint32_t other)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (one & bit)
            product ^= other;
        other = other >> 1 ^ (other & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

uint32_t crc32_joined(const struct crc *crc, uint32_t first, uint32_t second, size_t size)
{
    /* Each byte behind them multiplies the first ones by x^8; what initial and final ones add cancels out. */
    for (unsigned n = 3; size; n++, size >>= 1)
        if (size & 1)
            first = multiply(crc->power[n % 32], first);
    return first ^ second;
}

void crc_init(struct crc *crc, bool portable)
{
    crc->power[0] = 1u << 30;
    for (int n = 1; n < 32; n++)
        crc->power[n] = multiply(crc->power[n - 1], crc->power[n - 1]);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
        crc->table[0][byte] = value;
    }
    for (int step = 1; step < 8; step++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = crc->table[step - 1][byte];
            crc->table[step][byte] = value >> 8 ^ crc->table[0][value & 0xFF];
        }
    crc->run = run_tables;
#ifdef KAPPAMQ_CLMUL
    if (!portable && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        crc->run = run_clmul;
#else
    (void)portable;
#endif
}
