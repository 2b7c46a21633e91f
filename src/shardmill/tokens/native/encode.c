/* Pieces of text → ids: the same steps compiled for every kind of processor that makes a difference. */
#include "engine.h"

#if defined(__x86_64__) && !defined(PLAIN_C)
#include <immintrin.h>
#endif

/* What turns 16 bytes of text into the key of a word of so many bytes. FF is in no UTF-8 text. */
static const u64 padding[SHORT_BYTES + 1][2] = {
#define LOW(n) {~0ull << 8 * (n), ~0ull}
#define HIGH(n) {0, ~0ull << 8 * (n)}
    LOW(0),  LOW(1),  LOW(2),  LOW(3),  LOW(4),  LOW(5),  LOW(6),  LOW(7), HIGH(0),
    HIGH(1), HIGH(2), HIGH(3), HIGH(4), HIGH(5), HIGH(6), HIGH(7), {0, 0},
#undef LOW
#undef HIGH
};

/* The size of 's, 'd, 'm, 't, 'll, 've or 're at p, or 0. */
static inline u32 contraction(const u8 *p)
{
    switch (p[1]) {
    case 's':
    case 'd':
    case 'm':
    case 't':
        return 2;
    case 'l':
        return p[2] == 'l' ? 3 : 0;
    case 'v':
    case 'r':
        return p[2] == 'e' ? 3 : 0;
    default:
        return 0;
    }
}

/* The class of the character at p, and its size; no byte at `end` or behind is read. */
static u32 plane_at(const Engine *e, const u8 *p, const u8 *end, u32 *size)
{
    u32 lead = *p, n = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    u32 point = n == 1 ? lead : lead & (0x7F >> n);
    if (n > (size_t)(end - p))
        n = (u32)(end - p);
    for (u32 i = 1; i < n; i++)
        point = point << 6 | (p[i] & 63);
    *size = n;
    return point < CODE_POINTS ? e->plane[point] : 0;
}

/* The length of the one word that text begins with: for words longer than a window. */
static size_t word_size(const Engine *e, const u8 *text, size_t size)
{
    const u8 *p = text, *end = text + size, *last;
    u32 n, plane = plane_at(e, p, end, &n);
    if (*p == ' ' && size > 1) {
        u32 next = plane_at(e, p + 1, end, &n);
        if (next != 3) {
            p++;
            plane = next;
        }
    }
    for (last = p; p < end; p += n) {
        if (plane_at(e, p, end, &n) != plane)
            break;
        last = p;
    }
    return (size_t)((plane == 3 && p < end && last > text ? last : p) - text);
}

#define KERNEL encode_portable
#define FN(name) name##_portable
#include "kernel.h"
#undef KERNEL
#undef FN

#if defined(__x86_64__) && !defined(PLAIN_C)
static const u8 counting[64] __attribute__((aligned(64))) = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define USE_AVX512
#define KERNEL encode_avx512
#define FN(name) name##_avx512
#include "kernel.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
