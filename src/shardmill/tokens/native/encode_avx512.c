/* Pieces of text → ids with AVX-512, VBMI2 included: see kernel.h. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "block.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define PATH(name) name##_avx512
#define LOOKUP
#define ones (u32)__builtin_popcountll

static const u8 counting[64] __attribute__((aligned(64))) = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};
/* Spreads the low bytes of four 16-bit numbers over 16 bytes each. */
static const u8 size_of_lane[64] __attribute__((aligned(64))) = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
    4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6,
};

static inline __attribute__((always_inline)) void classify(const Engine *e, const u8 *p, Block *b, int kind)
{
    __m512i v = _mm512_loadu_si512(p);
    __m512i plane = _mm512_permutex2var_epi8(_mm512_load_si512(e->ascii), v, _mm512_load_si512(e->ascii + 64));
    b->many = _mm512_movepi8_mask(v);
    b->lo = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(1)) & ~b->many;
    b->hi = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(2)) & ~b->many;
    b->blank = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
    b->quote = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
    b->newline = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(NEWLINES)) & ~b->many;
    b->inner = _mm512_cmplt_epi8_mask(v, _mm512_set1_epi8((char)0xC0));
    if (kind != PLAIN) {
        b->a = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(SUB_A)) & ~b->many;
        b->b = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(SUB_B)) & ~b->many;
        b->slash = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(SLASHES)) & ~b->many;
    }
}

static inline u64 equal(const u8 *p, u8 byte)
{
    return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8((char)byte));
}

static inline __attribute__((always_inline)) Planes lookup(const u8 table[64], const u8 *p, int kind)
{
    __m512i plane = _mm512_permutexvar_epi8(_mm512_loadu_si512(p), _mm512_load_si512(table));
    Planes found = {.lo = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(1)),
                    .hi = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(2))};
    if (kind != PLAIN) {
        found.a = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(SUB_A));
        found.b = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(SUB_B));
    }
    return found;
}

static inline u32 store_places(const Engine *e, u64 bits, u32 base, u16 *to)
{
    __m512i places = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(counting));
    __m512i first = _mm512_set1_epi16((short)base);
    u32 count = ones(bits);
    (void)e;
    _mm512_storeu_si512(to, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(places)), first));
    if (UNLIKELY(count > 32))
        _mm512_storeu_si512(to + 32,
                            _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(places, 1)), first));
    return count;
}

static inline u32 least_rank(const u32 *ranks, int wide)
{
    __m512i least = _mm512_load_si512(ranks);
    return _mm512_reduce_min_epu32(wide ? _mm512_min_epu32(least, _mm512_load_si512(ranks + 16)) : least);
}

static inline void make_keys(const u8 *p, const u16 *positions, u64 (*keys)[2], u32 *places, u32 mask)
{
    const __m512i lane = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)counting));
    const __m512i factors = _mm512_broadcast_i32x4(_mm_set_epi64x((long long)HASH1, (long long)HASH0));
    __m128i from = _mm_loadl_epi64((const __m128i *)positions), to = _mm_loadl_epi64((const __m128i *)(positions + 1));
    __m128i size = _mm_sub_epi16(to, from);
    size = _mm_maskz_mov_epi16(_mm_cmple_epu16_mask(size, _mm_set1_epi16(SHORT_BYTES)), size);
    __m512i text = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + positions[0])));
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[1])), 1);
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[2])), 2);
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[3])), 3);
    __m512i sizes = _mm512_permutexvar_epi8(_mm512_load_si512(size_of_lane), _mm512_castsi128_si512(size));
    text = _mm512_mask_set1_epi8(text, _mm512_cmpge_epu8_mask(lane, sizes), -1);
    _mm512_store_si512(keys, text);
    __m512i product = _mm512_mullo_epi64(text, factors);
    __m512i hash = _mm512_add_epi64(product, _mm512_shuffle_epi32(product, _MM_PERM_BADC));
    hash = _mm512_maskz_compress_epi64(0x55, _mm512_srli_epi64(hash, 32));
    __m128i place = _mm_and_si128(_mm256_castsi256_si128(_mm512_cvtepi64_epi32(hash)), _mm_set1_epi32((int)mask));
    _mm_storeu_si128((__m128i *)places, _mm_slli_epi32(place, 5));
}

#include "kernel.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
