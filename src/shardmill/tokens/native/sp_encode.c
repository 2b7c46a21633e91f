/* Text without added tokens → ids: the same steps compiled for every kind of processor that makes a difference. */
#include "sp.h"

#if defined(__x86_64__) && !defined(PLAIN_C)
#include <immintrin.h>
#endif

enum { SP_WINDOW = 4096, SP_PADDING = 128, BATCH = 256, MOST_NEW = 64, MOST_SYMBOLS = 32, TOGETHER = 32 };

#define IS_NEW (0x10ull << 56)  /* merged a moment ago */
#define IS_LONG (0x08ull << 56) /* in the table of long pieces, at this address */

/* A new piece of up to 32 characters, and its ids when it is merged, of which the first are symbols for a while; wide: more
 * than 16 characters. */
typedef struct {
    u32 ids[MOST_SYMBOLS];
    const u8 *text;
    u32 size, index, count, symbols;
    int wide;
} New;

/* Pieces that are looked up together: piece i is from at[i] to at[i + 1]. */
typedef struct {
    const u8 *text;
    const u16 *at;
    const u32 *first; /* the characters that they begin with */
    u64 keys[BATCH][2], values[BATCH][2];
    u32 hashes[BATCH]; /* all long pieces have the same, and a key that is in no entry: that is read from nearby */
    u32 long_hashes[BATCH];
    u16 asked[BATCH]; /* those that are not a single character, which need not be looked up */
} Batch;

/* Where a piece ends that goes on from a character to p. */
static const u8 *piece_end(const Sp *e, u32 character, const u8 *p, const u8 *end)
{
    for (u32 width; p < end; p += width) {
        u32 here = character_before_end(e, p, end, &width);
        if (!may_join(e, character, here))
            return p;
        character = here;
    }
    return end;
}

/* The size of the one piece that text begins with: for pieces longer than a window. */
static size_t piece_size(const Sp *e, const u8 *text, size_t size)
{
    u32 width, first = character_before_end(e, text, text + size, &width);
    return width < size ? (size_t)(piece_end(e, first, text + width, text + size) - text) : size;
}

/* How much of a text is one piece with a blank before it. */
size_t sp_size_behind_blank(const Sp *e, const u8 *text, size_t size)
{
    return (size_t)(piece_end(e, e->pages[' '], text, text + size) - text);
}

static u32 characters(const u8 *s, u32 n)
{
    u32 count = 0;
    for (u32 i = 0; i < n; i++)
        count += (s[i] & 0xC0) != 0x80;
    return count;
}

/* Pieces that were not where they should be first: from their other places, or new. Returns how many are new. */
static u32 find_elsewhere(Sp *e, Batch *b, New *missed, u32 count)
{
    u32 news = 0;
    for (u32 m = 0; m < count; m++) {
        u32 i = missed[m].index, size = (u32)b->at[i + 1] - b->at[i];
        const u8 *s = b->text + b->at[i];
        const Word *known = size <= PIECE_BYTES ? find_word(e->pieces, e->piece_mask, b->keys[i], b->hashes[i]) : NULL;
        const LongPiece *other =
            size > PIECE_BYTES && size <= LONG_PIECE_BYTES ? sp_find_long(e, s, size, b->long_hashes[i]) : NULL;
        b->values[i][1] = ASK_LONG;
        if (known) {
            b->values[i][0] = GET(known->ids);
            b->values[i][1] = GET(known->rest);
        } else if (other) {
            b->values[i][0] = (u64)(uintptr_t)other;
            b->values[i][1] = IS_LONG;
        } else if (size <= LONG_PIECE_BYTES) {
            u32 symbols = size <= PIECE_BYTES ? size : characters(s, size);
            if (symbols > MOST_SYMBOLS)
                continue;
            b->values[i][1] = IS_NEW;
            missed[news].text = s;
            missed[news].size = size;
            missed[news].wide = symbols > MOST_SYMBOLS / 2;
            missed[news++].index = i;
        }
    }
    return news;
}

static inline void pack_value(const u32 *ids, u32 count, u64 value[2])
{
    u64 id[PIECE_IDS] = {0};
    for (u32 i = 0; i < count; i++)
        id[i] = ids[i];
    value[0] = id[0] | id[1] << ID_WIDTH | id[2] << 2 * ID_WIDTH;
    value[1] = id[3] | id[4] << ID_WIDTH | (u64)count << 56;
}

static void learn(Sp *e, const u64 key[2], u32 hash, const New *piece, Learned *learned)
{
    u64 value[2] = {0, ASK_LONG};
    if (piece->text[piece->size - 1] == 0xFF) /* not UTF-8: it must not pass for the piece without this byte */
        return;
    if (piece->count <= PIECE_IDS && piece->size <= PIECE_BYTES)
        pack_value(piece->ids, piece->count, value);
    else
        learned->longs += (u64)sp_learn_long(e, piece->text, piece->size, piece->ids, piece->count);
    if (piece->size <= PIECE_BYTES)
        learned->words += (u64)learn_word(e->pieces, e->piece_mask, key, hash, value);
}

#define KERNEL sp_encode_portable
#define FN(name) name##_portable
#include "sp_kernel.h"
#undef KERNEL
#undef FN

#if defined(__x86_64__) && !defined(PLAIN_C)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt")
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
