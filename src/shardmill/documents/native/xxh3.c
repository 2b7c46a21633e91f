/* XXH3, 64 bits, with a seed: the hash that decides the split, as the xxhash package has it. For little-endian machines. */
#include "texts.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87u
#define P64_2 0xC2B2AE3D27D4EB4Fu
#define P64_3 0x165667B19E3779F9u
#define P64_4 0x85EBCA77C2B2AE63u
#define P64_5 0x27D4EB2F165667C5u
#define MX_1 0x165667919E3779F9u
#define MX_2 0x9FB21C651E98DF25u

enum { SECRET = 192, STRIPE = 64, STRIPES = (SECRET - STRIPE) / 8, BLOCK = STRIPE * STRIPES };

static const u8 secret_0[SECRET] = {
    0xB8, 0xFE, 0x6C, 0x39, 0x23, 0xA4, 0x4B, 0xBE, 0x7C, 0x01, 0x81, 0x2C, 0xF7, 0x21, 0xAD, 0x1C,
    0xDE, 0xD4, 0x6D, 0xE9, 0x83, 0x90, 0x97, 0xDB, 0x72, 0x40, 0xA4, 0xA4, 0xB7, 0xB3, 0x67, 0x1F,
    0xCB, 0x79, 0xE6, 0x4E, 0xCC, 0xC0, 0xE5, 0x78, 0x82, 0x5A, 0xD0, 0x7D, 0xCC, 0xFF, 0x72, 0x21,
    0xB8, 0x08, 0x46, 0x74, 0xF7, 0x43, 0x24, 0x8E, 0xE0, 0x35, 0x90, 0xE6, 0x81, 0x3A, 0x26, 0x4C,
    0x3C, 0x28, 0x52, 0xBB, 0x91, 0xC3, 0x00, 0xCB, 0x88, 0xD0, 0x65, 0x8B, 0x1B, 0x53, 0x2E, 0xA3,
    0x71, 0x64, 0x48, 0x97, 0xA2, 0x0D, 0xF9, 0x4E, 0x38, 0x19, 0xEF, 0x46, 0xA9, 0xDE, 0xAC, 0xD8,
    0xA8, 0xFA, 0x76, 0x3F, 0xE3, 0x9C, 0x34, 0x3F, 0xF9, 0xDC, 0xBB, 0xC7, 0xC7, 0x0B, 0x4F, 0x1D,
    0x8A, 0x51, 0xE0, 0x4B, 0xCD, 0xB4, 0x59, 0x31, 0xC8, 0x9F, 0x7E, 0xC9, 0xD9, 0x78, 0x73, 0x64,
    0xEA, 0xC5, 0xAC, 0x83, 0x34, 0xD3, 0xEB, 0xC3, 0xC5, 0x81, 0xA0, 0xFF, 0xFA, 0x13, 0x63, 0xEB,
    0x17, 0x0D, 0xDD, 0x51, 0xB7, 0xF0, 0xDA, 0x49, 0xD3, 0x16, 0x55, 0x26, 0x29, 0xD4, 0x68, 0x9E,
    0x2B, 0x16, 0xBE, 0x58, 0x7D, 0x47, 0xA1, 0xFC, 0x8F, 0xF8, 0xB8, 0xD1, 0x7A, 0xD0, 0x31, 0xCE,
    0x45, 0xCB, 0x3A, 0x8F, 0x95, 0x16, 0x04, 0x28, 0xAF, 0xD7, 0xFB, 0xCA, 0xBB, 0x4B, 0x40, 0x7E,
};

static inline u64 get(const u8 *p)
{
    u64 value;
    memcpy(&value, p, 8);
    return value;
}

static inline u32 get_32(const u8 *p)
{
    u32 value;
    memcpy(&value, p, 4);
    return value;
}

static inline u64 rotated(u64 h, int by)
{
    return h << by | h >> (64 - by);
}

static inline u64 folded(u64 a, u64 b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (u64)product ^ (u64)(product >> 64);
}

static inline u64 avalanche(u64 h)
{
    h = (h ^ h >> 37) * MX_1;
    return h ^ h >> 32;
}

static inline u64 avalanche_short(u64 h)
{
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static u64 up_to_16(const u8 *p, size_t size, u64 seed)
{
    const u8 *s = secret_0;
    if (size > 8) {
        u64 low = get(p) ^ ((get(s + 24) ^ get(s + 32)) + seed);
        u64 high = get(p + size - 8) ^ ((get(s + 40) ^ get(s + 48)) - seed);
        return avalanche(size + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (size > 3) {
        u64 both = get_32(p + size - 4) + ((u64)get_32(p) << 32);
        seed ^= (u64)__builtin_bswap32((u32)seed) << 32;
        u64 h = both ^ ((get(s + 8) ^ get(s + 16)) - seed);
        h = (h ^ rotated(h, 49) ^ rotated(h, 24)) * MX_2;
        h = (h ^ ((h >> 35) + size)) * MX_2;
        return h ^ h >> 28;
    }
    if (size) {
        u32 all = (u32)p[0] << 16 | (u32)p[size >> 1] << 24 | p[size - 1] | (u32)size << 8;
        return avalanche_short(all ^ ((get_32(s) ^ get_32(s + 4)) + seed));
    }
    return avalanche_short(seed ^ get(s + 56) ^ get(s + 64));
}

static inline u64 mixed(const u8 *p, const u8 *s, u64 seed)
{
    return folded(get(p) ^ (get(s) + seed), get(p + 8) ^ (get(s + 8) - seed));
}

static u64 up_to_240(const u8 *p, size_t size, u64 seed)
{
    const u8 *s = secret_0, *end = p + size;
    u64 h = size * P64_1;
    if (size <= 128) {
        for (size_t i = (size - 1) / 32; i < 4; i--) /* from the middle to both ends */
            h += mixed(p + 16 * i, s + 32 * i, seed) + mixed(end - 16 * (i + 1), s + 32 * i + 16, seed);
        return avalanche(h);
    }
    for (size_t i = 0; i < 8; i++)
        h += mixed(p + 16 * i, s + 16 * i, seed);
    h = avalanche(h) + mixed(end - 16, s + 136 - 17, seed);
    for (size_t i = 8; i < size / 16; i++)
        h += mixed(p + 16 * i, s + 16 * (i - 8) + 3, seed);
    return avalanche(h);
}

static inline void add_stripe(u64 sums[8], const u8 *p, const u8 *s)
{
#if defined(__SSE2__)
    for (int i = 0; i < 4; i++) {
        __m128i value = _mm_loadu_si128((const __m128i *)p + i);
        __m128i key = _mm_xor_si128(value, _mm_loadu_si128((const __m128i *)s + i));
        __m128i product = _mm_mul_epu32(key, _mm_srli_epi64(key, 32));
        __m128i sum = _mm_add_epi64(product, _mm_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2)));
        _mm_storeu_si128((__m128i *)sums + i, _mm_add_epi64(_mm_loadu_si128((const __m128i *)sums + i), sum));
    }
#else
    for (int i = 0; i < 8; i++) {
        u64 value = get(p + 8 * i), key = value ^ get(s + 8 * i);
        sums[i ^ 1] += value;
        sums[i] += (u64)(u32)key * (key >> 32);
    }
#endif
}

static u64 beyond_240(const u8 *p, size_t size, u64 seed)
{
    u64 sums[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1}, h = size * P64_1;
    const u8 *end = p + size;
    u8 s[SECRET];
    for (int i = 0; i < SECRET; i += 16) {
        u64 both[2] = {get(secret_0 + i) + seed, get(secret_0 + i + 8) - seed};
        memcpy(s + i, both, 16);
    }
    for (; end - p > BLOCK; p += BLOCK) {
        for (int i = 0; i < STRIPES; i++)
            add_stripe(sums, p + STRIPE * i, s + 8 * i);
        for (int i = 0; i < 8; i++)
            sums[i] = (sums[i] ^ sums[i] >> 47 ^ get(s + SECRET - STRIPE + 8 * i)) * P32_1;
    }
    for (int i = 0; end - p > STRIPE; i++, p += STRIPE)
        add_stripe(sums, p, s + 8 * i);
    add_stripe(sums, end - STRIPE, s + SECRET - STRIPE - 7);
    for (int i = 0; i < 4; i++)
        h += folded(sums[2 * i] ^ get(s + 11 + 16 * i), sums[2 * i + 1] ^ get(s + 11 + 16 * i + 8));
    return avalanche(h);
}

u64 xxh3_64(const u8 *data, size_t size, u64 seed)
{
    return size <= 16 ? up_to_16(data, size, seed) : size <= 240 ? up_to_240(data, size, seed) : beyond_240(data, size, seed);
}
