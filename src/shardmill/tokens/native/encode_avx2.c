/* Pieces of text → ids with AVX2: see kernel.h. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "block.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define PATH(name) name##_avx2
#define LOOKUP
#define ones (u32)__builtin_popcountll

static inline __m256i load32(const u8 *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline __m256i twice(const u8 *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

/* A bit of each of 64 bytes. */
#define BIT(k, x) ((u64)(u32)_mm256_movemask_epi8(_mm256_slli_epi16((x)[1], 7 - (k))) << 32 | \
                   (u32)_mm256_movemask_epi8(_mm256_slli_epi16((x)[0], 7 - (k))))

/* ASCII is what it is. The upper and the lower half of a byte each say what it may be, and both what it is: bit 0 and 1 a
 * letter, 2 a number, 3 space but a blank, 4 a blank, 5 a quote, 6 a newline, 7 a slash. */
static const u8 upper_half[16] = {0x48, 0, 0xB0, 0x04, 0x01, 0x02, 0x01, 0x02};
static const u8 lower_half[16] = {0x16, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x27,
                                  0x07, 0x0F, 0x4B, 0x09, 0x09, 0x49, 0x01, 0x81};

static inline __attribute__((always_inline)) void classify(const Engine *e, const u8 *p, Block *b, int kind)
{
    __m256i v[2] = {load32(p), load32(p + 32)}, is[2], letters[2];
    for (int i = 0; i < 2; i++) {
        __m256i upper = _mm256_and_si256(_mm256_srli_epi16(v[i], 4), _mm256_set1_epi8(15));
        is[i] = _mm256_and_si256(_mm256_shuffle_epi8(twice(upper_half), upper), _mm256_shuffle_epi8(twice(lower_half), v[i]));
        letters[i] = _mm256_or_si256(is[i], _mm256_slli_epi16(is[i], 1));
    }
    u64 letter = BIT(1, letters), space = BIT(3, is), blank = BIT(4, is);
    space |= blank;
    b->lo = letter | space;
    b->hi = BIT(2, is) | space;
    b->blank = blank;
    b->quote = BIT(5, is);
    b->newline = e->shape.newlines ? BIT(6, is) : 0;
    b->many = BIT(7, v);
    b->inner = UNLIKELY(b->many) ? b->many & ~BIT(6, v) : 0;
    if (kind == CASED) {
        u64 lower = BIT(5, v) & letter;
        b->a = letter & ~lower;
        b->b = lower;
        b->slash = e->shape.slashes ? BIT(7, is) : 0;
    } else if (kind == DEEPSEEK) { /* control characters are odd */
        __m256i last = _mm256_set1_epi8(31), control[2];
        for (int i = 0; i < 2; i++)
            control[i] = _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_min_epu8(v[i], last), v[i]),
                                         _mm256_cmpeq_epi8(v[i], _mm256_set1_epi8(0x7F)));
        b->a = BIT(7, control) & ~space;
        b->b = 0;
    }
}

static inline u64 equal(const u8 *p, u8 byte)
{
    __m256i all = _mm256_set1_epi8((char)byte);
    __m256i same[2] = {_mm256_cmpeq_epi8(load32(p), all), _mm256_cmpeq_epi8(load32(p + 32), all)};
    return BIT(7, same);
}

/* By the last six bits of a byte: a quarter of the table each, and what is of another quarter left out. */
static inline __attribute__((always_inline)) Planes lookup(const u8 table[64], const u8 *p, int kind)
{
    __m256i plane[2];
    for (int i = 0; i < 2; i++) {
        __m256i v = load32(p + 32 * i), quarter = _mm256_and_si256(v, _mm256_set1_epi8(0x30));
        __m256i place = _mm256_and_si256(v, _mm256_set1_epi8(15));
        plane[i] = _mm256_setzero_si256();
        for (int q = 0; q < 4; q++) {
            __m256i here = _mm256_cmpeq_epi8(quarter, _mm256_set1_epi8((char)(16 * q)));
            plane[i] = _mm256_or_si256(plane[i], _mm256_and_si256(_mm256_shuffle_epi8(twice(table + 16 * q), place), here));
        }
    }
    Planes found = {.lo = BIT(0, plane), .hi = BIT(1, plane)};
    if (kind != PLAIN) {
        found.a = BIT(2, plane);
        found.b = BIT(3, plane);
    }
    return found;
}
#undef BIT

static inline void store_eight(const u16 places[8], u32 base, u16 *to)
{
    __m128i eight = _mm_load_si128((const __m128i *)places);
    _mm_storeu_si128((__m128i *)to, _mm_add_epi16(eight, _mm_set1_epi16((short)base)));
}

#include "shared.h"

static inline u32 least_rank(const u32 *ranks, int wide)
{
    const __m256i *lanes = (const __m256i *)ranks;
    __m256i least = _mm256_min_epu32(lanes[0], lanes[1]);
    if (wide)
        least = _mm256_min_epu32(least, _mm256_min_epu32(lanes[2], lanes[3]));
    __m128i four = _mm_min_epu32(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return (u32)_mm_cvtsi128_si32(four);
}

#include "kernel.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
