/* SentencePiece-style byte pair encoding, which has no words: what its parts share.
 *
 * Symbols that are merged are characters, and characters without a token become bytes. Three facts make it fast:
 *
 * - Symbols only grow. So one that covers some text was made of that text alone: a token occurs only if its own text
 *   encodes to it (it is *live*), and always by the same last merge. Other merges never happen. Symbols are numbered by
 *   the rank of their one merge: the table of pairs answers with a symbol, which is the rank of the merge too.
 * - No merge crosses the border of two characters that stand side by side in no live token. Text is cut there into
 *   *pieces*, of about a word, each encoded alone, and learned.
 * - A character without a token is a piece of its own: no merge takes bytes. */
#ifndef SHARDMILL_SP_H
#define SHARDMILL_SP_H

#include "added.h"

enum {
    NO_SYMBOL = NONE,
    PIECE_BYTES = SHORT_BYTES, /* the longest key of the table of pieces */
    PIECE_IDS = 5,
    ID_WIDTH = 20, /* bits of an id in the table of pieces */
    LONG_PIECE_BYTES = 64,
    LONG_PIECE_IDS = 14,
    POINTS = 0x200000, /* what four bytes can spell, valid or not */
    UNDERLINE = 0x2581, /* what a blank becomes */
    LONGEST_TOKEN = 1024,
};

/* A piece of at most 16 bytes is a Word, whose ids have 20 bits: three in `ids`, two in `rest`. */

/* A piece of up to 64 bytes, or a short one with many ids: two cache lines. `state`: 0 empty, 1 claimed, 2 filled. */
typedef struct {
    _Atomic u32 state;
    u16 size, count;
    u8 key[LONG_PIECE_BYTES];
    u32 ids[LONG_PIECE_IDS];
} LongPiece;

typedef struct Sp Sp;

/* Encodes text that no added token interrupts, of which `readable` bytes may be read. NULL without memory. */
typedef u32 *EncodeText(Sp *e, const u8 *text, size_t size, size_t readable, u32 *out, Learned *learned);

struct Sp {
    /* Fixed once made. */
    EncodeText *encode;
    Pairs pairs;
    u32 symbols, merged_symbols; /* those of merges come first, by rank; then characters */
    u32 *ids;                    /* of symbols */
    u16 page[POINTS >> 8];
    u32 *pages; /* code points → characters: their symbols, or NO_SYMBOL without a token, and the flags below. The first
                 * 65,536 stand at their own place, and a blank is what U+2581 is */
    u32 byte_id[256];
    u32 ascii_pairs[128 * 128];
    u8 apart[128][128]; /* whether text is cut between two bytes */
    u32 *joined;        /* a bit for the hash of two symbols side by side in a live token */
    u32 joined_shift, joined_mask;
    u8 closed[128]; /* bytes that stand only in added tokens made of that byte alone: a run of one is a piece */
    const Added *added, *normalized; /* tokens that are found in the text; and those found where blanks are U+2581 */
    int prepend;                     /* one of the below */
    int metaspace;                   /* the search for added tokens finds blanks as they are */
    /* Shared by all threads, and emptied when full. */
    Word *pieces;
    LongPiece *longs;
    u32 piece_mask, long_mask;
    Gate gate;
    size_t memory;
};

/* When U+2581 comes before a text: never; before each stretch between added tokens; only at the beginning of a document,
 * unless a blank or U+2581 is there already. */
enum { PREPEND_NEVER, PREPEND_EACH, PREPEND_FIRST };

/* Whether a live token has this character behind another, or before one. */
#define JOINS_LEFT (1u << 31)
#define JOINS_RIGHT (1u << 30)
#define CLOSED (1u << 29) /* and which byte it is stands above the symbol */
#define JOINED_HASH 0x9E3779B1u
#define SYMBOL_OF(character) ((character) & NO_SYMBOL)

/* The character at s, of which four bytes may be read, and its size. */
static inline u32 character_at(const Sp *e, const u8 *s, u32 *size)
{
    u32 next;
    if (*s < 0x80) {
        *size = 1;
        return e->pages[*s];
    }
    memcpy(&next, s, 4);
    if (*s < 0xE0) {
        *size = 2;
        return e->pages[(next & 31) << 6 | (next >> 8 & 63)];
    }
    if (*s < 0xF0) {
        *size = 3;
        return e->pages[(next & 15) << 12 | (next >> 8 & 63) << 6 | (next >> 16 & 63)];
    }
    u32 point = (next & 7) << 18 | (next >> 8 & 63) << 12 | (next >> 16 & 63) << 6 | (next >> 24 & 63);
    *size = 4;
    return e->pages[(u32)e->page[point >> 8] << 8 | (point & 255)];
}

/* The same where no byte at `end` or behind may be read. */
static inline u32 character_before_end(const Sp *e, const u8 *s, const u8 *end, u32 *size)
{
    u8 last[4] = {0};
    if (end - s >= 4)
        return character_at(e, s, size);
    memcpy(last, s, (size_t)(end - s));
    return character_at(e, last, size);
}

/* Neighbours in the alphabet have their bits side by side, so that a text needs few cache lines of them. */
static inline u32 joined_bit(const Sp *e, u32 left, u32 right)
{
    return ((SYMBOL_OF(left) * JOINED_HASH >> e->joined_shift) + SYMBOL_OF(right)) & e->joined_mask;
}

/* Whether a live token may hold two characters side by side, a few more than do; or they are a run of a closed byte. */
static inline int may_join(const Sp *e, u32 left, u32 right)
{
    u32 bit = joined_bit(e, left, right);
    if (!(left & JOINS_RIGHT) || !(right & JOINS_LEFT))
        return left == right && (right & CLOSED);
    return e->joined[bit >> 5] >> (bit & 31) & 1;
}

/* Where what a pair gives may stand, as in pair_entry. */
static inline const u64 *sp_pair_entry(const Pairs *p, u64 hash)
{
    return p->slots + pair_slot(hash, p->steps[hash >> p->bucket_shift], p->mask);
}

static inline u32 hash_long_piece(const u8 *s, size_t n)
{
    u64 h = n, tail = 0;
    for (; n > 8; s += 8, n -= 8)
        h = mix(h ^ load8(s), HASH0);
    memcpy(&tail, s, n);
    return (u32)(mix(h ^ tail, HASH1) >> 20);
}

static inline int is_digit(u8 c) /* as the library writes them: lower case is another token */
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F');
}

static inline int is_byte_token(const u8 *s, u32 n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && is_digit(s[3]) && is_digit(s[4]) && s[5] == '>';
}

/* sp_build.c: a vocabulary and its live merges → the tables; GOOD, or why not */
int sp_build(Sp *e, const Vocabulary *v);

/* sp_merge.c: a piece of any length → its ids, or NULL without memory */
u32 *sp_merge(const Sp *e, const u8 *s, size_t n, u32 *out);
u32 sp_unmerged(const Sp *e, const u8 *s, size_t n, u32 *out);

/* sp_learned.c: what was learned */
const LongPiece *sp_find_long(Sp *e, const u8 *s, size_t n, u32 hash);
int sp_learn_long(Sp *e, const u8 *s, size_t n, const u32 *ids, size_t count);
u32 *sp_long_piece(Sp *e, const u8 *s, size_t n, u32 *out, Learned *learned);

/* sp_encode.c */
size_t sp_size_behind_blank(const Sp *e, const u8 *text, size_t size);

/* sp_kernel.h, once for each kind of processor */
EncodeText sp_encode_portable;
EncodeText sp_encode_avx512;

#endif
