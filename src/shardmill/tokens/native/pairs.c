/* A vocabulary → what is merged with what, in a table that answers with one look. */
#include <stdlib.h>

#include "engine.h"

enum { FULL_BUCKET = 64, TRIED_STEPS = 1 << 16 };

/* Pairs while they are found: open addressing. */
typedef struct {
    u64 *slots;
    u32 mask;
} Found;

static u64 *place_of(const Found *f, u64 pair)
{
    for (u32 i = (u32)hash_pair(pair) & f->mask;; i = (i + 1) & f->mask)
        if (f->slots[i] == ~0ull || f->slots[i] >> ID_BITS == pair)
            return f->slots + i;
}

/* Merge bytes until two parts are left, with what was found so far. Whether two are left. */
static int two_parts(const Engine *e, const Found *f, const u8 *s, u32 n, u32 *parts)
{
    for (u32 i = 0; i < n; i++)
        parts[i] = e->byte_id[s[i]];
    while (n > 2) {
        u32 least = NONE, at = 0;
        for (u32 i = 0; i + 1 < n; i++) {
            u64 found = *place_of(f, (u64)parts[i] << ID_BITS | parts[i + 1]);
            u32 id = found == ~0ull ? (u32)NONE : (u32)found & NONE;
            if (id < least) {
                least = id;
                at = i;
            }
        }
        if (least == NONE)
            return 0;
        parts[at] = least;
        memmove(parts + at + 1, parts + at + 2, (n - at - 2) * sizeof *parts);
        n--;
    }
    return 1;
}

/* For each bucket, the largest first, the first step that brings all its pairs to free slots. */
static int place_bucket(Engine *e, u32 bucket, const u64 *pairs, u32 n)
{
    u32 slots[FULL_BUCKET];
    for (u32 step = 0; step < TRIED_STEPS; step++) {
        u32 placed = 0;
        for (; placed < n; placed++) {
            slots[placed] = pair_slot(hash_pair(pairs[placed] >> ID_BITS), step, e->pair_mask);
            if (e->pairs[slots[placed]] != ~0ull)
                break;
            e->pairs[slots[placed]] = pairs[placed];
        }
        if (placed == n) {
            e->steps[bucket] = (u16)step;
            return 1;
        }
        while (placed)
            e->pairs[slots[--placed]] = ~0ull;
    }
    return 0;
}

static int make_perfect(Engine *e, const Found *f)
{
    u32 slots = 1 << 9, buckets;
    while (slots < e->count + e->count / 4)
        slots *= 2;
    buckets = slots / 8;
    e->pair_mask = slots - 1;
    e->bucket_shift = 64 - (u32)__builtin_ctz(buckets);
    e->pairs = malloc(slots * sizeof(u64));
    e->steps = calloc(buckets, sizeof(u16));
    u64(*members)[FULL_BUCKET] = malloc(buckets * sizeof *members);
    u8 *sizes = calloc(buckets, 1);
    int good = e->pairs && e->steps && members && sizes;
    if (good)
        memset(e->pairs, 0xFF, slots * sizeof(u64));
    for (u32 i = 0; good && i <= f->mask; i++)
        if (f->slots[i] != ~0ull) {
            u32 bucket = (u32)(hash_pair(f->slots[i] >> ID_BITS) >> e->bucket_shift);
            good = sizes[bucket] < FULL_BUCKET;
            if (good)
                members[bucket][sizes[bucket]++] = f->slots[i];
        }
    for (u32 size = FULL_BUCKET; good && size; size--)
        for (u32 i = 0; good && i < buckets; i++)
            if (sizes[i] == size)
                good = place_bucket(e, i, members[i], size);
    free(members);
    free(sizes);
    e->memory += slots * sizeof(u64) + buckets * sizeof(u16);
    return good;
}

/* Of which two tokens each token is merged: those that its bytes give with all tokens of lower rank. False without
 * memory, or when a token is reached by no merge: such a vocabulary is not for this engine. */
int find_pairs(Engine *e)
{
    Found f = {.mask = 255};
    while (f.mask / 2 < e->count)
        f.mask = 2 * f.mask + 1;
    f.slots = malloc(((size_t)f.mask + 1) * sizeof(u64));
    u32 *parts = malloc(sizeof(u32) << 12);
    int good = f.slots && parts;
    if (good)
        memset(f.slots, 0xFF, ((size_t)f.mask + 1) * sizeof(u64));
    for (u32 i = 0; i < 1 << 16; i++)
        e->byte_pairs[i] = NONE;
    for (u32 id = 0; id < e->count; id++)
        if (e->offsets[id + 1] - e->offsets[id] == 1)
            e->byte_id[e->vocabulary[e->offsets[id]]] = id;
    for (u32 id = 0; id < e->count && good; id++) {
        const u8 *s = e->vocabulary + e->offsets[id];
        u32 n = e->offsets[id + 1] - e->offsets[id];
        for (u32 i = 1; i < n; i++)
            e->joined[s[i - 1]][s[i] >> 6] |= 1ull << (s[i] & 63);
        if (n < 2)
            continue;
        good = n <= 1 << 12 && two_parts(e, &f, s, n, parts);
        if (!good)
            break;
        u64 pair = (u64)parts[0] << ID_BITS | parts[1];
        *place_of(&f, pair) = pair << ID_BITS | id;
        if (n == 2)
            e->byte_pairs[s[0] << 8 | s[1]] = id;
    }
    good = good && make_perfect(e, &f);
    free(parts);
    free(f.slots);
    return good;
}
