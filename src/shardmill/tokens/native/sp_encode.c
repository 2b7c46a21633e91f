/* Text without added tokens → ids: the same steps compiled for every kind of processor that makes a difference. */
#include "sp.h"

#if defined(__x86_64__) && !defined(PLAIN_C)
#include <immintrin.h>
#endif

enum { SP_WINDOW = 4096, SP_PADDING = 32 };

#define IS_NEW (0x10ull << 56) /* merged a moment ago */

/* A new piece, and its ids when it is merged. */
typedef struct {
    u32 ids[PIECE_BYTES];
    const u8 *text;
    u32 size, index, count;
} New;

/* What turns 16 bytes of text into the key of a piece of so many bytes. FF is in no UTF-8 text. */
static const u64 padding[PIECE_BYTES + 1][2] = {
#define LOW(n) {~0ull << 8 * (n), ~0ull}
#define HIGH(n) {0, ~0ull << 8 * (n)}
    LOW(0),  LOW(1),  LOW(2),  LOW(3),  LOW(4),  LOW(5),  LOW(6),  LOW(7), HIGH(0),
    HIGH(1), HIGH(2), HIGH(3), HIGH(4), HIGH(5), HIGH(6), HIGH(7), {0, 0},
#undef LOW
#undef HIGH
};

/* Where a piece ends that goes on from a character, its last byte and symbol, to p. */
static const u8 *piece_end(const Sp *e, u8 byte, u32 symbol, const u8 *p, const u8 *end)
{
    for (u32 width; p < end; p += width) {
        u32 here = symbol_before(e, p, end, &width);
        if ((byte | *p) < 0x80 ? e->apart[byte][*p] : !may_join(e, symbol, here))
            return p;
        byte = *p;
        symbol = here;
    }
    return end;
}

/* The size of the one piece that text begins with: for pieces longer than a window. */
static size_t piece_size(const Sp *e, const u8 *text, size_t size)
{
    u32 width, symbol = symbol_before(e, text, text + size, &width);
    return width < size ? (size_t)(piece_end(e, *text, symbol, text + width, text + size) - text) : size;
}

/* How much of a text is one piece with a blank before it. */
size_t sp_size_behind_blank(const Sp *e, const u8 *text, size_t size)
{
    return (size_t)(piece_end(e, ' ', e->ascii[' '], text, text + size) - text);
}

/* The ids of pieces `from` to `to`, of which the new ones are in `fresh`. Whole entries are copied. */
static inline u32 *write_ids(Sp *e, const u8 *p, const u16 *at, const u64 (*values)[2], u32 from, u32 to,
                             const New *fresh, u32 *out, NewPieces *learned)
{
    for (u32 i = from; i < to; i++) {
        u64 n = values[i][1] >> 56;
        if (LIKELY(n - 1 < PIECE_IDS)) {
            memcpy(out, values[i], 16);
            out += n;
        } else if (n == IS_NEW >> 56) {
            memcpy(out, fresh->ids, sizeof fresh->ids);
            out += fresh++->count;
        } else if (n == IS_BYTES >> 56) {
            for (u32 k = at[i]; k < at[i + 1]; k++)
                *out++ = e->byte_id[p[k]];
        } else { /* in the other table, or being written at this moment */
            out = sp_long_piece(e, p + at[i], (size_t)at[i + 1] - at[i], out, learned);
            if (!out)
                return NULL;
        }
    }
    return out;
}

static void learn(Sp *e, const u64 key[2], u32 hash, const New *piece, NewPieces *learned)
{
    u64 value[2] = {0, ASK_LONG};
    if (piece->text[piece->size - 1] == 0xFF) /* not UTF-8: it must not pass for the piece without this byte */
        return;
    if (piece->count <= PIECE_IDS) {
        value[0] = piece->ids[0] | (u64)(piece->count > 1 ? piece->ids[1] : 0) << 32;
        value[1] = (piece->count > 2 ? piece->ids[2] : 0) | (u64)piece->count << 56;
    } else if (piece->size == 4 && *piece->text >= 0xF0)
        value[1] = IS_BYTES;
    else
        learned->longs += (u64)sp_learn_long(e, piece->text, piece->size, piece->ids, piece->count);
    learned->pieces += (u64)sp_learn(e, key, hash, value);
}

#define KERNEL sp_encode_portable
#define FN(name) name##_portable
#include "sp_kernel.h"
#undef KERNEL
#undef FN

#if defined(__x86_64__) && !defined(PLAIN_C)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define USE_AVX512
#define KERNEL sp_encode_avx512
#define FN(name) name##_avx512
#include "sp_kernel.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
