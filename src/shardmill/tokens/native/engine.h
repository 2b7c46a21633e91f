/* What the parts of the engine share: its tables, and the shape of their entries. */
#ifndef SHARDMILL_ENGINE_H
#define SHARDMILL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the entries of the tables are laid out for little-endian machines"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    NONE = 0x3FFFF, /* no id: an id has at most 18 bits */
    ID_BITS = 18,
    CODE_POINTS = 0x110000,
    SHORT_BYTES = 16, /* the longest key of the table of words */
    ID_BYTES = 14,    /* what an entry of it has for ids */
    LONG_BYTES = 48,  /* the longest key of the table of long words */
    LONG_IDS = 72,    /* bytes for the ids of a long word */
    WINDOW = 16384,   /* text is taken apart in windows of this size; positions fit 16 bits */
    PADDING = 192,    /* what may be read behind a window: a block, a key, a character */
    PROBES = 8,       /* entries, four cache lines, in which a word may stand */
};

/* Classes of characters, as tools/make_classes.py writes them. */
enum { OTHER, CASELESS, LOWER, UPPER, NUMBER, SPACE, MARK };

/* A word of at most 16 bytes, padded with FF, and its ids: 7 of two bytes or 3 of four. The last byte of `rest` says
 * how many, or one of the states below. Entries are only ever added, and `rest` is stored last and read first: whoever
 * sees it filled sees the whole entry, whichever thread wrote it. What was read of any other is thrown away. */
typedef struct {
    _Atomic u64 key[2], ids, rest;
} Word;

#define GET(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define SET(place, value) atomic_store_explicit(&(place), value, memory_order_relaxed)

#define EMPTY 0ull
#define CLAIMED (0x80ull << 56)  /* another thread is writing it */
#define ASK_LONG (0x40ull << 56) /* its ids are in the table of long words */

/* A word of up to 48 bytes, or a short one with many ids. `state`: 0 empty, 1 claimed, 2 filled. */
typedef struct {
    _Atomic u32 state;
    u16 size, count;
    u8 key[LONG_BYTES];
    u8 ids[LONG_IDS];
} Long;

typedef struct Engine Engine;

/* How many entries a call has added. */
typedef struct {
    u64 words, longs;
} Learned;

/* Encodes one piece and returns the end of its ids, or NULL without memory. */
typedef u8 *EncodePiece(Engine *, const u8 *text, size_t size, u8 *out, Learned *learned);

struct Engine {
    /* Fixed once made. */
    u32 count, id_shift; /* an id takes 1 << id_shift bytes */
    EncodePiece *encode;
    u64 *pairs;      /* a perfect hash: left, right and merged id, 18 bits each */
    u16 *steps;      /* for each bucket of pairs, how far to go from where their hashes point */
    u32 pair_mask, bucket_shift;
    u32 byte_id[256];
    u32 byte_pairs[1 << 16];
    u64 joined[256][4]; /* whether some token holds two bytes side by side */
    u8 plane[CODE_POINTS];
    u8 ascii[128] __attribute__((aligned(64))); /* the planes of bytes */
    u8 flags[256]; /* the same, and 4 for a blank, 8 for an apostrophe, 16 for a part of a longer character */
    u8 *vocabulary; /* the bytes of all tokens */
    u32 *offsets;
    /* Shared by all threads, and emptied when full. */
    Word *words;
    Long *longs;
    u32 word_mask, long_mask;
    /* The gate: nobody encodes while the tables are emptied. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    u32 inside;
    int emptying;
    Learned learned;
    size_t memory;
};

static inline u64 load8(const void *p)
{
    u64 x;
    memcpy(&x, p, 8);
    return x;
}

static inline u64 mix(u64 a, u64 b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (u64)product ^ (u64)(product >> 64);
}

/* Only the upper bits of a product depend on all of its factors. */
#define HASH0 0x9E3779B97F4A7C15ull
#define HASH1 0xD6E8FEB86659FD93ull

static inline u32 hash_word(u64 k0, u64 k1)
{
    return (k0 * HASH0 + k1 * HASH1) >> 32;
}

/* Where a word may stand, in order. Two entries share a cache line: the other one of the line comes second. */
static inline u32 word_place(u32 hash, u32 probe, u32 mask)
{
    return ((hash + (probe & ~1u)) ^ (probe & 1)) & mask;
}

static inline int is_filled(u64 rest)
{
    return rest - 1 < CLAIMED - 1;
}

static inline u64 hash_pair(u64 pair)
{
    return mix(pair ^ 0x2545F4914F6CDD1Dull, 0x9E3779B97F4A7C15ull);
}

static inline u32 pair_slot(u64 hash, u32 step, u32 mask)
{
    return ((u32)hash + step * (u32)(hash >> 24 | 1)) & mask;
}

/* The id of two tokens merged, or NONE. One look, and no branch: half of all pairs have none. */
static inline u32 merged(const Engine *e, u32 left, u32 right)
{
    u64 pair = (u64)left << ID_BITS | right, hash = hash_pair(pair);
    u64 found = e->pairs[pair_slot(hash, e->steps[hash >> e->bucket_shift], e->pair_mask)];
    return found >> ID_BITS == pair ? (u32)found & NONE : (u32)NONE;
}

static inline int side_by_side(const Engine *e, u8 a, u8 b)
{
    return e->joined[a][b >> 6] >> (b & 63) & 1;
}

static inline void put_id(const Engine *e, u8 *out, size_t i, u32 id)
{
    if (e->id_shift == 1)
        memcpy(out + 2 * i, &id, 2);
    else
        memcpy(out + 4 * i, &id, 4);
}

/* pairs.c: a vocabulary → what is merged with what */
int find_pairs(Engine *e);

/* merge.c: a word → its ids */
u8 *merge(const Engine *e, const u8 *s, size_t n, u8 *out);

/* words.c: what was learned */
Word *find_word(Engine *e, const u64 key[2], u32 hash);
void pack_ids(const Engine *e, const u32 *ids, u32 count, u64 value[2]);
int learn_word(Engine *e, const u64 key[2], u32 hash, const u64 value[2], u8 last_byte);
u8 *long_word(Engine *e, const u8 *s, size_t n, u8 *out, Learned *learned);

/* kernel.h, once for each kind of processor */
EncodePiece encode_portable;
EncodePiece encode_avx512;

#endif
