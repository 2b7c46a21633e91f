/* Pieces of text → ids for any processor, eight bytes of text in a number: see kernel.h. */
#include "block.h"

#define PATH(name) name##_plain

static inline u32 ones(u64 x)
{
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    return (u32)(((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full) * 0x0101010101010101ull >> 56);
}

static inline void store_eight(const u16 places[8], u32 base, u16 *to)
{
    u64 four[2];
    memcpy(four, places, sizeof four);
    four[0] += base * 0x0001000100010001ull;
    four[1] += base * 0x0001000100010001ull;
    memcpy(to, four, sizeof four);
}

#include "shared.h"

/* The highest bit of a byte says whether it is at least, exactly, or from one to another; of bytes below 0x80 only. */
#define FROM(x, first) ((x) + (0x80 - (first)) * BYTES)
#define IS(x, byte) (0x80 * BYTES - ((x) ^ (byte) * BYTES))
#define AMONG(x, first, last) (FROM(x, first) & ~FROM(x, (last) + 1))
/* The highest bits of eight bytes, side by side. */
#define HIGHEST(x) (u8)(((x) & 0x80 * BYTES) * 0x0002040810204081ull >> 56)

static inline __attribute__((always_inline)) void classify(const Engine *e, const u8 *p, Block *b, int kind)
{
    /* Byte k of each is made of eight bytes of the text. */
    union {
        u8 byte[8];
        u64 all;
    } letter, number, space, blank, quote, newline, many, inner, lower, slash, control;
    const int newlines = e->shape.newlines;
    for (int k = 0; k < 8; k++) {
        u64 raw = load8(p + 8 * k), x = raw & 0x7F * BYTES;
        letter.byte[k] = HIGHEST(AMONG(x | 0x20 * BYTES, 'a', 'z'));
        number.byte[k] = HIGHEST(AMONG(x, '0', '9'));
        space.byte[k] = HIGHEST(AMONG(x, '\t', '\r'));
        blank.byte[k] = HIGHEST(IS(x, ' '));
        quote.byte[k] = HIGHEST(IS(x, '\''));
        if (newlines)
            newline.byte[k] = HIGHEST(IS(x, '\n') | IS(x, '\r'));
        many.byte[k] = HIGHEST(raw);
        if (kind == CASED) {
            lower.byte[k] = HIGHEST(x << 2);
            slash.byte[k] = HIGHEST(IS(x, '/'));
        } else if (kind == DEEPSEEK) {
            control.byte[k] = HIGHEST(~FROM(x, ' ') | FROM(x, 0x7F));
        }
    }
    u64 one = ~many.all;
    if (UNLIKELY(many.all))
        for (int k = 0; k < 8; k++)
            inner.byte[k] = HIGHEST(~load8(p + 8 * k) << 1);
    b->blank = blank.all & one;
    letter.all &= one;
    space.all = (space.all | blank.all) & one;
    b->lo = letter.all | space.all;
    b->hi = (number.all & one) | space.all;
    b->quote = quote.all & one;
    b->newline = newlines ? newline.all & one : 0;
    b->many = many.all;
    b->inner = many.all ? inner.all & many.all : 0;
    if (kind == CASED) {
        b->a = letter.all & ~lower.all;
        b->b = letter.all & lower.all;
        b->slash = e->shape.slashes ? slash.all & one : 0;
    } else if (kind == DEEPSEEK) { /* control characters are odd */
        b->a = control.all & one & ~space.all;
        b->b = 0;
    }
}
#undef FROM
#undef IS
#undef AMONG
#undef HIGHEST

static inline u32 least_rank(const u32 *ranks, int wide)
{
    u32 a = ranks[0], b = ranks[1];
    for (u32 i = 2; i < (wide ? MIDDLE_BYTES : SHORT_BYTES); i += 2) {
        a = ranks[i] < a ? ranks[i] : a;
        b = ranks[i + 1] < b ? ranks[i + 1] : b;
    }
    return a < b ? a : b;
}

#include "kernel.h"
