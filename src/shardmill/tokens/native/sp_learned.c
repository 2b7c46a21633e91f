/* What was learned: a piece → its ids. Both tables are of a fixed size, shared by all threads, and only ever added to. */
#include "sp.h"

Piece *sp_find(Sp *e, const u64 key[2], u32 hash)
{
    for (u32 i = 0; i < PIECE_PROBES; i++) {
        Piece *p = e->pieces + piece_place(hash, i, e->piece_mask);
        u64 rest = atomic_load_explicit(&p->rest, memory_order_acquire);
        if (rest == EMPTY)
            return NULL;
        if (is_filled(rest) && GET(p->key[0]) == key[0] && GET(p->key[1]) == key[1])
            return p;
    }
    return NULL;
}

/* Whether it was added: there may be no room. Two threads may add the same piece at once: it then stands there twice. */
int sp_learn(Sp *e, const u64 key[2], u32 hash, const u64 value[2])
{
    for (u32 i = 0; i < PIECE_PROBES; i++) {
        Piece *p = e->pieces + piece_place(hash, i, e->piece_mask);
        u64 empty = EMPTY, rest = atomic_load_explicit(&p->rest, memory_order_acquire);
        if (is_filled(rest) && GET(p->key[0]) == key[0] && GET(p->key[1]) == key[1])
            return 0; /* learned a moment ago */
        if (rest != EMPTY || !atomic_compare_exchange_strong_explicit(&p->rest, &empty, CLAIMED, memory_order_relaxed,
                                                                        memory_order_relaxed))
            continue;
        SET(p->key[0], key[0]);
        SET(p->key[1], key[1]);
        SET(p->ids, value[0]);
        atomic_store_explicit(&p->rest, value[1], memory_order_release);
        return 1;
    }
    return 0;
}

/* The entry of a piece, or the first free one in its place; NULL when there is no room. */
static LongPiece *long_place(Sp *e, const u8 *s, size_t n, u32 hash, int *known)
{
    for (u32 i = 0; i < PIECE_PROBES / 2; i++) {
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
u32 *sp_long_piece(Sp *e, const u8 *s, size_t n, u32 *out, NewPieces *learned)
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
