/* A piece of any length → its ids, the lowest rank first and of equal ones the leftmost. Pieces of up to 16 bytes are
 * merged in sp_kernel.h, which is faster for many of them. */
#include <stdlib.h>

#include "sp.h"

enum { GROUP = 64, ON_STACK = 256, FEW = 40 };

/* The parts of a piece, each known by where it begins; see merge.c, which does the same for bytes. */
typedef struct {
    u32 *rank, *symbol, *next, *previous, *least, leaves;
} Parts;

static void refresh(Parts *p, u32 group)
{
    const u32 *rank = p->rank + (size_t)GROUP * group;
    u32 least = NO_SYMBOL, node = p->leaves + group;
    for (u32 i = 0; i < GROUP; i++)
        least = rank[i] < least ? rank[i] : least;
    while (p->least[node] != least) {
        p->least[node] = least;
        if (node == 1)
            break;
        u32 sibling = p->least[node ^ 1];
        least = sibling < least ? sibling : least;
        node >>= 1;
    }
}

/* The leftmost part with the least rank of all. */
static u32 leftmost(const Parts *p)
{
    u32 node = 1, rank = p->least[1];
    while (node < p->leaves)
        node = 2 * node + (p->least[2 * node] != rank);
    u32 i = (node - p->leaves) * GROUP;
    while (p->rank[i] != rank)
        i++;
    return i;
}

static u32 *merge_many(const Sp *e, u32 n, u32 groups, Parts *p, u32 *out)
{
    for (u32 i = 0; i < n; i++) {
        p->next[i] = i + 1;
        p->previous[i] = i - 1;
    }
    for (u32 i = 0; i < groups * GROUP; i++)
        p->rank[i] = i + 1 < n ? merged_symbol(e, p->symbol[i], p->symbol[i + 1]) : (u32)NO_SYMBOL;
    for (u32 i = 0; i < 2 * p->leaves; i++)
        p->least[i] = NO_SYMBOL;
    for (u32 i = 0; i < groups; i++)
        refresh(p, i);
    while (p->least[1] != NO_SYMBOL) {
        u32 i = leftmost(p), gone = p->next[i], after = p->next[gone], before = p->previous[i], made = p->rank[i];
        p->symbol[i] = made;
        p->next[i] = after;
        p->rank[gone] = p->rank[i] = NO_SYMBOL;
        if (after < n) {
            p->previous[after] = i;
            p->rank[i] = merged_symbol(e, made, p->symbol[after]);
        }
        if (i)
            p->rank[before] = merged_symbol(e, p->symbol[before], made);
        refresh(p, i / GROUP);
        if (gone / GROUP != i / GROUP)
            refresh(p, gone / GROUP);
        if (i && before / GROUP != i / GROUP)
            refresh(p, before / GROUP);
    }
    for (u32 i = 0; i < n; i = p->next[i])
        *out++ = e->ids[p->symbol[i]];
    return out;
}

static u32 *merge_few(const Sp *e, u32 *symbol, u32 n, u32 *out)
{
    u32 rank[FEW];
    for (u32 i = 0; i + 1 < n; i++)
        rank[i] = merged_symbol(e, symbol[i], symbol[i + 1]);
    while (n > 1) {
        u32 least = rank[0], at = 0;
        for (u32 i = 1; i + 1 < n; i++)
            if (rank[i] < least) {
                least = rank[i];
                at = i;
            }
        if (least == NO_SYMBOL)
            break;
        symbol[at] = least;
        n--;
        memmove(symbol + at + 1, symbol + at + 2, (n - at - 1) * sizeof *symbol);
        if (at + 1 < n) {
            memmove(rank + at + 1, rank + at + 2, (n - at - 2) * sizeof *rank);
            rank[at] = merged_symbol(e, least, symbol[at + 1]);
        }
        if (at)
            rank[at - 1] = merged_symbol(e, symbol[at - 1], least);
    }
    for (u32 i = 0; i < n; i++)
        *out++ = e->ids[symbol[i]];
    return out;
}

/* A piece that nothing is merged in: a run of one byte, all of it added tokens; or a character without a token. */
u32 sp_unmerged(const Sp *e, const u8 *s, size_t n, u32 *out)
{
    u32 count = 0;
    if (*s < 0x80 && e->closed[*s])
        for (const u8 *end = s + n; s < end; count++)
            s += added_longest(e->added, s, end, &out[count]);
    else
        for (; count < n; count++)
            out[count] = e->byte_id[s[count]];
    return count;
}

/* Needs 17 bytes of memory for each character of a long piece. Returns the end of its ids, or NULL without memory. */
u32 *sp_merge(const Sp *e, const u8 *s, size_t n, u32 *out)
{
    u32 few[4 * ON_STACK + 2 * ON_STACK / GROUP], size;
    if (n > UINT32_MAX / 8)
        return NULL;
    if (SYMBOL_OF(character_before_end(e, s, s + n, &size)) == NO_SYMBOL)
        return out + sp_unmerged(e, s, n, out);
    size_t room = (n + GROUP - 1) / GROUP * GROUP;
    Parts p = {.leaves = 1};
    while (p.leaves < room / GROUP)
        p.leaves *= 2;
    u32 *memory = n <= ON_STACK ? few : malloc((4 * room + 2 * (size_t)p.leaves) * sizeof(u32));
    if (!memory)
        return NULL;
    p.symbol = memory;
    u32 count = 0;
    for (size_t i = 0; i < n; i += size) {
        u32 symbol = SYMBOL_OF(character_before_end(e, s + i, s + n, &size));
        p.symbol[count++] = symbol == NO_SYMBOL ? 0 : symbol; /* not UTF-8 */
    }
    p.rank = p.symbol + room;
    p.next = p.rank + room;
    p.previous = p.next + room;
    p.least = p.previous + room;
    if (count <= FEW)
        out = merge_few(e, p.symbol, count, out);
    else
        out = merge_many(e, count, (count + GROUP - 1) / GROUP, &p, out);
    if (memory != few)
        free(memory);
    return out;
}
