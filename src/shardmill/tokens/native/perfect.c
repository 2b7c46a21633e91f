/* What is merged with what, in a table that answers with one look: a perfect hash. */
#include <stdlib.h>

#include "engine.h"

enum { FULL_BUCKET = 64, TRIED_STEPS = 1 << 16 };

/* Large tables in huge pages, small ones in what they need. */
void *any_table(size_t size, size_t *memory)
{
    if (size >= 1 << 20)
        return new_table(size, memory);
    *memory += size;
    return calloc(1, size);
}

/* The first step that brings all pairs of a bucket to free slots. */
static int place_bucket(Pairs *p, u32 bucket, const u64 *pairs, u32 n)
{
    u32 slots[FULL_BUCKET];
    for (u32 step = 0; step < TRIED_STEPS; step++) {
        u32 placed = 0;
        for (; placed < n; placed++) {
            slots[placed] = pair_slot(hash_pair(pairs[placed] >> SYMBOL_BITS), step, p->mask);
            if (p->slots[slots[placed]] != ~0ull)
                break;
            p->slots[slots[placed]] = pairs[placed];
        }
        if (placed == n) {
            p->steps[bucket] = (u16)step;
            return 1;
        }
        while (placed)
            p->slots[slots[--placed]] = ~0ull;
    }
    return 0;
}

/* A perfect hash: the fullest buckets find their places first. */
static int place_pairs(Pairs *p, const u64 *list, u32 count, u32 buckets)
{
    u64 *sorted = malloc(((size_t)count + 1) * sizeof(u64));
    u32 *begin = calloc((size_t)buckets + 2, sizeof(u32));
    int good = sorted && begin;
    if (good) {
        for (u32 i = 0; i < count; i++)
            begin[(hash_pair(list[i] >> SYMBOL_BITS) >> p->bucket_shift) + 2]++;
        for (u32 i = 2; i < buckets + 2; i++) {
            good &= begin[i] <= FULL_BUCKET;
            begin[i] += begin[i - 1];
        }
        for (u32 i = 0; i < count; i++)
            sorted[begin[(hash_pair(list[i] >> SYMBOL_BITS) >> p->bucket_shift) + 1]++] = list[i];
    }
    for (u32 size = FULL_BUCKET; size && good; size--)
        for (u32 i = 0; i < buckets && good; i++)
            if (begin[i + 1] - begin[i] == size)
                good = place_bucket(p, i, sorted + begin[i], size);
    free(sorted);
    free(begin);
    return good;
}

static int hash_into(Pairs *p, u32 slots, const u64 *list, u32 count, size_t *memory)
{
    size_t used = 0;
    u32 buckets = slots / 8;
    p->mask = slots - 1;
    p->bucket_shift = 64 - (u32)__builtin_ctz(buckets);
    p->slots = any_table((size_t)slots * sizeof(u64), &used);
    p->steps = any_table((size_t)buckets * sizeof(u16), &used);
    if (p->slots)
        memset(p->slots, 0xFF, (size_t)slots * sizeof(u64));
    if (p->slots && p->steps && place_pairs(p, list, count, buckets)) {
        *memory += used;
        return 1;
    }
    free(p->slots);
    free(p->steps);
    p->slots = NULL;
    p->steps = NULL;
    return 0;
}

/* The table of these pairs, each with the symbol that it gives. False without memory. */
int hash_pairs(Pairs *p, const u64 *list, u32 count, size_t *memory)
{
    u32 slots = 512;
    while (slots < count + count / 4)
        slots *= 2;
    for (u32 i = 0; i < 3; i++) /* in a larger table, should some pairs find no place */
        if (hash_into(p, slots << i, list, count, memory))
            return 1;
    return 0;
}
