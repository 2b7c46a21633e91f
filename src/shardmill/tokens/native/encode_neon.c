/* Pieces of text → ids with NEON: see kernel.h. */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "block.h"

#define PATH(name) name##_neon
#define LOOKUP
#define ones (u32)__builtin_popcountll

/* 64 bytes, of each of which one bit is asked for; and those bits side by side. */
static inline u64 bits_of(uint8x16x4_t x, u8 bit)
{
    static const u8 weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t weight = vld1q_u8(weights), asked = vdupq_n_u8(bit);
    uint8x16_t a = vandq_u8(vtstq_u8(x.val[0], asked), weight), b = vandq_u8(vtstq_u8(x.val[1], asked), weight);
    uint8x16_t c = vandq_u8(vtstq_u8(x.val[2], asked), weight), d = vandq_u8(vtstq_u8(x.val[3], asked), weight);
    uint8x16_t sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

static inline uint8x16x4_t load64(const u8 *p)
{
    return (uint8x16x4_t){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

static inline __attribute__((always_inline)) void classify(const Engine *e, const u8 *p, Block *b, int kind)
{
    uint8x16x4_t v = load64(p), low = load64(e->ascii), high = load64(e->ascii + 64), plane;
    for (int i = 0; i < 4; i++) /* beyond a table there is nothing */
        plane.val[i] = vqtbx4q_u8(vqtbl4q_u8(low, v.val[i]), high, vsubq_u8(v.val[i], vdupq_n_u8(64)));
    uint8x16x4_t blank, quote;
    for (int i = 0; i < 4; i++) {
        blank.val[i] = vceqq_u8(v.val[i], vdupq_n_u8(' '));
        quote.val[i] = vceqq_u8(v.val[i], vdupq_n_u8('\''));
    }
    b->many = bits_of(v, 0x80);
    b->lo = bits_of(plane, 1);
    b->hi = bits_of(plane, 2);
    b->blank = bits_of(blank, 1);
    b->quote = bits_of(quote, 1);
    b->newline = bits_of(plane, NEWLINES);
    b->inner = UNLIKELY(b->many) ? b->many & ~bits_of(v, 0x40) : 0;
    if (kind != PLAIN) {
        b->a = bits_of(plane, SUB_A);
        b->b = bits_of(plane, SUB_B);
        b->slash = bits_of(plane, SLASHES);
    }
}

static inline u64 equal(const u8 *p, u8 byte)
{
    uint8x16x4_t v = load64(p);
    for (int i = 0; i < 4; i++)
        v.val[i] = vceqq_u8(v.val[i], vdupq_n_u8(byte));
    return bits_of(v, 1);
}

/* By the last six bits of a byte. */
static inline __attribute__((always_inline)) Planes lookup(const u8 table[64], const u8 *p, int kind)
{
    uint8x16x4_t v = load64(p), all = load64(table);
    for (int i = 0; i < 4; i++)
        v.val[i] = vqtbl4q_u8(all, vandq_u8(v.val[i], vdupq_n_u8(63)));
    Planes found = {.lo = bits_of(v, 1), .hi = bits_of(v, 2)};
    if (kind != PLAIN) {
        found.a = bits_of(v, SUB_A);
        found.b = bits_of(v, SUB_B);
    }
    return found;
}

static inline void store_eight(const u16 places[8], u32 base, u16 *to)
{
    vst1q_u16(to, vaddq_u16(vld1q_u16(places), vdupq_n_u16((u16)base)));
}

#include "shared.h"

static inline u32 least_rank(const u32 *ranks, int wide)
{
    uint32x4_t least = vld1q_u32(ranks);
    for (u32 i = 4; i < (wide ? MIDDLE_BYTES : SHORT_BYTES); i += 4)
        least = vminq_u32(least, vld1q_u32(ranks + i));
    return vminvq_u32(least);
}

#include "kernel.h"
#endif
