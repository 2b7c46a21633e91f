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
    PIECE_BYTES = 16, /* the longest key of the table of pieces */
    PIECE_IDS = 5,
    ID_WIDTH = 20, /* bits of an id in the table of pieces */
    LONG_PIECE_BYTES = 64,
    LONG_PIECE_IDS = 14,
    PIECE_PROBES = 8,
    POINTS = 0x200000, /* what four bytes can spell, valid or not */
    UNDERLINE = 0x2581, /* what a blank becomes */
    LONGEST_TOKEN = 1024,
};

/* What is merged with what: a perfect hash of left, right and merged symbol. */
typedef struct {
    u64 *slots;
    u16 *steps;
    u32 mask, bucket_shift;
} Pairs;

/* A piece of at most 16 bytes, padded with FF, and its ids of 20 bits: three in `ids`, two in `rest`, whose last byte says
 * how many, or ASK_LONG. As with words (engine.h), entries are only added, and `rest` is stored last. */
typedef struct {
    _Atomic u64 key[2], ids, rest;
} Piece;

/* A piece of up to 64 bytes, or a short one with many ids: two cache lines. `state`: 0 empty, 1 claimed, 2 filled. */
typedef struct {
    _Atomic u32 state;
    u16 size, count;
    u8 key[LONG_PIECE_BYTES];
    u32 ids[LONG_PIECE_IDS];
} LongPiece;

typedef struct Sp Sp;

typedef struct {
    u64 pieces, longs;
} NewPieces;

/* Encodes text that no added token interrupts, of which `readable` bytes may be read. NULL without memory. */
typedef u32 *EncodeText(Sp *e, const u8 *text, size_t size, size_t readable, u32 *out, NewPieces *learned);

struct Sp {
    /* Fixed once made. */
    EncodeText *encode;
    Pairs pairs;
    u32 symbols, merged_symbols; /* those of merges come first, by rank; then characters */
    u32 *ids;                    /* of symbols */
    u16 page[POINTS >> 8];
    u32 *pages; /* code points → characters: their symbols, or NO_SYMBOL without a token, and the flags below */
    u32 byte_id[256];
    u32 ascii[128]; /* the characters of ASCII; that of a blank is that of U+2581 */
    u32 ascii_pairs[128 * 128];
    u8 apart[128][128]; /* whether text is cut between two bytes */
    u64 *joined;        /* a bit for the hash of two symbols side by side in a live token */
    u32 joined_shift;
    u8 closed[128]; /* bytes that stand only in added tokens made of that byte alone: a run of one is a piece */
    const Added *added, *normalized; /* tokens that are found in the text; and those found where blanks are U+2581 */
    int prepend;                     /* one of the below */
    int metaspace;                   /* the search for added tokens finds blanks as they are */
    /* Shared by all threads, and emptied when full. */
    Piece *pieces;
    LongPiece *longs;
    u32 piece_mask, long_mask;
    /* The gate: nobody encodes while the tables are emptied. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    u32 inside;
    int emptying;
    NewPieces learned;
    size_t memory;
};

/* When U+2581 comes before a text: never; before each stretch between added tokens; only at the beginning of a document,
 * unless a blank or U+2581 is there already. */
enum { PREPEND_NEVER, PREPEND_EACH, PREPEND_FIRST };

/* Whether a live token has this character behind another, or before one. */
#define JOINS_LEFT (1u << 31)
#define JOINS_RIGHT (1u << 30)
#define SYMBOL_OF(character) ((character) & NO_SYMBOL)

static inline u64 hash_symbols(u64 pair)
{
    return mix(pair ^ 0x2545F4914F6CDD1Dull, HASH0);
}

static inline u32 symbols_slot(u64 hash, u32 step, u32 mask)
{
    return ((u32)hash + step * (u32)(hash >> 24 | 1)) & mask;
}

/* Two symbols merged, or NO_SYMBOL: one look, and no branch. */
static inline u32 merged_symbol(const Sp *e, u32 left, u32 right)
{
    u64 pair = (u64)left << SYMBOL_BITS | right, hash = hash_symbols(pair);
    u64 found = e->pairs.slots[symbols_slot(hash, e->pairs.steps[hash >> e->pairs.bucket_shift], e->pairs.mask)];
    return found >> SYMBOL_BITS == pair ? (u32)found & NO_SYMBOL : (u32)NO_SYMBOL;
}

static inline u32 character_of(const Sp *e, u32 point)
{
    return e->pages[(u32)e->page[point >> 8] << 8 | (point & 255)];
}

/* The character at s, of which four bytes may be read, and its size. */
static inline u32 character_at(const Sp *e, const u8 *s, u32 *size)
{
    u32 next;
    if (*s < 0x80) {
        *size = 1;
        return e->ascii[*s];
    }
    memcpy(&next, s, 4);
    if (*s < 0xE0) {
        *size = 2;
        return character_of(e, (next & 31) << 6 | (next >> 8 & 63));
    }
    if (*s < 0xF0) {
        *size = 3;
        return character_of(e, (next & 15) << 12 | (next >> 8 & 63) << 6 | (next >> 16 & 63));
    }
    *size = 4;
    return character_of(e, (next & 7) << 18 | (next >> 8 & 63) << 12 | (next >> 16 & 63) << 6 | (next >> 24 & 63));
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

static inline u64 joined_bit(const Sp *e, u32 left, u32 right)
{
    return ((u64)SYMBOL_OF(left) << 32 | SYMBOL_OF(right)) * HASH0 >> e->joined_shift;
}

/* Whether a live token may hold two characters side by side: a few more than do. */
static inline int may_join(const Sp *e, u32 left, u32 right)
{
    if (!(left & JOINS_RIGHT) || !(right & JOINS_LEFT))
        return 0;
    u64 bit = joined_bit(e, left, right);
    return e->joined[bit >> 6] >> (bit & 63) & 1;
}

static inline u32 hash_piece(u64 k0, u64 k1)
{
    return (u32)((k0 * HASH0 + k1 * HASH1) >> 32);
}

static inline u32 hash_long_piece(const u8 *s, size_t n)
{
    u64 h = n, tail = 0;
    for (; n > 8; s += 8, n -= 8)
        h = mix(h ^ load8(s), HASH0);
    memcpy(&tail, s, n);
    return (u32)(mix(h ^ tail, HASH1) >> 20);
}

/* Where a piece may stand, in order; two entries share a cache line. */
static inline u32 piece_place(u32 hash, u32 probe, u32 mask)
{
    return ((hash + (probe & ~1u)) ^ (probe & 1)) & mask;
}

/* Tokens are known by their numbers, not their ids. */
typedef struct {
    const u8 *text;
    const u32 *offsets, *ids;
    const u32 (*merges)[2]; /* in order of rank, two tokens each */
    const u32 (*live)[3];   /* what sp_live finds */
    u32 count, merge_count;
} Vocabulary;
#define SP_NOT_LIVE 0xFFFFFFFFu
enum { SP_GOOD, SP_NO_MEMORY, SP_UNKNOWN_RESULT, SP_BYTES_MERGED, SP_TOO_MANY, SP_TOO_LONG, SP_TWICE };

static inline const u8 *spelling(const Vocabulary *v, u32 token, u32 *n)
{
    *n = v->offsets[token + 1] - v->offsets[token];
    return v->text + v->offsets[token];
}

static inline int is_byte_token(const u8 *s, u32 n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>';
}

/* sp_live.c: a vocabulary and its merges → those that can happen; sp_build.c: these → the tables. One of the above. */
int sp_live(const Vocabulary *v, u32 (*live)[3]);
int sp_build(Sp *e, const Vocabulary *v);

/* sp_pairs.c */
void *sp_table(size_t size, size_t *memory);
int sp_hash_pairs(Pairs *p, u32 slots, const u64 *list, u32 count, size_t *memory);

/* sp_merge.c: a piece of any length → its ids, or NULL without memory */
u32 *sp_merge(const Sp *e, const u8 *s, size_t n, u32 *out);
u32 sp_unmerged(const Sp *e, const u8 *s, size_t n, u32 *out);

/* sp_learned.c: what was learned */
Piece *sp_find(Sp *e, const u64 key[2], u32 hash);
int sp_learn(Sp *e, const u64 key[2], u32 hash, const u64 value[2]);
const LongPiece *sp_find_long(Sp *e, const u8 *s, size_t n, u32 hash);
int sp_learn_long(Sp *e, const u8 *s, size_t n, const u32 *ids, size_t count);
u32 *sp_long_piece(Sp *e, const u8 *s, size_t n, u32 *out, NewPieces *learned);

/* sp_encode.c */
size_t sp_size_behind_blank(const Sp *e, const u8 *text, size_t size);

/* sp_kernel.h, once for each kind of processor */
EncodeText sp_encode_portable;
EncodeText sp_encode_avx512;

#endif
