/* What was learned of long pieces; short ones are Words. */
#include "sp.h"

/* The entry of a piece, or the first free one in its place; NULL when there is no room. */
static LongPiece *long_place(Sp *e, const u8 *s, size_t n, u32 hash, int *known)
{
    for (u32 i = 0; i < PROBES / 2; i++) {
        LongPiece *p = e->longs + ((hash + i) & e->long_mask);
        u32 state = atomic_load_explicit(&p->state, memory_order_acquire);
        *known = state == 2 && p->size == n && !memcmp(p->key, s, n);
        if (*known || state == 0)
            return p;
    }
    return NULL;
}

const LongPiece *sp_find_long(Sp *e, const u8 *s, size_t n, u32 hash)
{
    int known = 0;
    const LongPiece *p = long_place(e, s, n, hash, &known);
    return known ? p : NULL;
}

/* Whether it was added. */
int sp_learn_long(Sp *e, const u8 *s, size_t n, const u32 *ids, size_t count)
{
    int known = 0;
    u32 empty = 0;
    LongPiece *p = n <= LONG_PIECE_BYTES && count <= LONG_PIECE_IDS ? long_place(e, s, n, hash_long_piece(s, n), &known) : NULL;
    if (!p || known ||
        !atomic_compare_exchange_strong_explicit(&p->state, &empty, 1, memory_order_relaxed, memory_order_relaxed))
        return 0;
    p->size = (u16)n;
    p->count = (u16)count;
    memcpy(p->key, s, n);
    memcpy(p->ids, ids, count * sizeof *ids);
    atomic_store_explicit(&p->state, 2, memory_order_release);
    return 1;
}

/* A piece of any size, from the table of long ones if it is there. */
u32 *sp_long_piece(Sp *e, const u8 *s, size_t n, u32 *out, Learned *learned)
{
    const LongPiece *p = n <= LONG_PIECE_BYTES ? sp_find_long(e, s, n, hash_long_piece(s, n)) : NULL;
    if (p) {
        memcpy(out, p->ids, p->count * sizeof *out);
        return out + p->count;
    }
    u32 *end = sp_merge(e, s, n, out);
    if (end)
        learned->longs += (u64)sp_learn_long(e, s, n, out, (size_t)(end - out));
    return end;
}
