/* Words → ids: byte pair encoding, the lowest rank first and of equal ones the leftmost, as the reference does it. */
#include <stdlib.h>

#include "engine.h"

/* At most 16 bytes: the ranks of all pairs are looked at for each merge. `alive` has a bit for each part. */
u32 merge_short(const Engine *e, const u8 *s, u32 n, u32 ids[SHORT_BYTES])
{
    u32 id[SHORT_BYTES], best[SHORT_BYTES]; /* rank << 4 | place: the least is the leftmost of the lowest rank */
    u32 alive = (1u << n) - 1, count = 0;
    for (u32 i = 0; i < n; i++)
        id[i] = e->byte_id[s[i]];
    for (u32 i = 0; i + 1 < n; i++)
        best[i] = e->byte_pairs[s[i] << 8 | s[i + 1]] << 4 | i;
    best[n - 1] = (u32)NONE << 4;
    for (;;) {
        u32 least = best[0];
        for (u32 i = 1; i < n; i++)
            least = best[i] < least ? best[i] : least;
        if (least >= (u32)NONE << 4)
            break;
        u32 i = least & 15, rank = least >> 4;
        u32 after = alive & ~((2u << i) - 1), before = alive & ((1u << i) - 1);
        u32 gone = after & -after;
        alive ^= gone;
        after ^= gone;
        id[i] = rank;
        best[__builtin_ctz(gone)] = (u32)NONE << 4;
        best[i] = (after ? merged(e, rank, id[__builtin_ctz(after)]) : (u32)NONE) << 4 | i;
        if (before) {
            u32 p = 31 - __builtin_clz(before);
            best[p] = merged(e, id[p], rank) << 4 | p;
        }
    }
    for (; alive; alive &= alive - 1)
        ids[count++] = id[__builtin_ctz(alive)];
    return count;
}

/* A tree over the parts whose nodes hold the least rank below them: each merge costs a few steps for each level, so
 * that half a megabyte of one letter takes no longer for each byte than a short word. */
typedef struct {
    u32 leaves, *least, *id, *next, *previous;
} Parts;

static void set_rank(Parts *p, u32 place, u32 rank)
{
    u32 node = p->leaves + place;
    p->least[node] = rank;
    while (node >>= 1) {
        u32 left = p->least[2 * node], right = p->least[2 * node + 1], least = left < right ? left : right;
        if (p->least[node] == least)
            break;
        p->least[node] = least;
    }
}

static u8 *merge_parts(const Engine *e, const u8 *s, u32 n, Parts *p, u8 *out)
{
    for (u32 i = 0; i < n; i++) {
        p->id[i] = e->byte_id[s[i]];
        p->next[i] = i + 1;
        p->previous[i] = i - 1;
    }
    for (u32 i = 0; i < p->leaves; i++)
        p->least[p->leaves + i] = i + 1 < n ? e->byte_pairs[s[i] << 8 | s[i + 1]] : (u32)NONE;
    for (u32 i = p->leaves - 1; i; i--)
        p->least[i] = p->least[2 * i] < p->least[2 * i + 1] ? p->least[2 * i] : p->least[2 * i + 1];
    while (p->least[1] != NONE) {
        u32 rank = p->least[1], node = 1;
        while (node < p->leaves)
            node = 2 * node + (p->least[2 * node] != rank);
        u32 i = node - p->leaves, gone = p->next[i], after = p->next[gone], before = p->previous[i];
        p->id[i] = rank;
        p->next[i] = after;
        set_rank(p, gone, NONE);
        set_rank(p, i, after < n ? merged(e, rank, p->id[after]) : (u32)NONE);
        if (after < n)
            p->previous[after] = i;
        if (i)
            set_rank(p, before, merged(e, p->id[before], rank));
    }
    for (u32 i = 0; i < n; i = p->next[i], out += (size_t)1 << e->id_shift)
        put_id(e, out, 0, p->id[i]);
    return out;
}

/* A word of any length: 20 bytes of memory for each of its bytes, up to 28 where the tree is not full. */
u8 *merge_any(const Engine *e, const u8 *s, size_t n, u8 *out)
{
    enum { ON_STACK = 128 };
    u32 few[5 * ON_STACK], ids[SHORT_BYTES];
    if (n <= SHORT_BYTES) {
        u32 count = merge_short(e, s, (u32)n, ids);
        for (u32 i = 0; i < count; i++)
            put_id(e, out, i, ids[i]);
        return out + ((size_t)count << e->id_shift);
    }
    if (n > UINT32_MAX / 8)
        return NULL;
    Parts p = {.leaves = 32};
    while (p.leaves < n)
        p.leaves *= 2;
    u32 *memory = n <= ON_STACK ? few : malloc((2 * (size_t)p.leaves + 3 * n) * sizeof(u32));
    if (!memory)
        return NULL;
    p.least = memory;
    p.id = memory + 2 * (size_t)p.leaves;
    p.next = p.id + n;
    p.previous = p.next + n;
    out = merge_parts(e, s, (u32)n, &p, out);
    if (memory != few)
        free(memory);
    return out;
}
