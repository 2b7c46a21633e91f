/* What was learned: a word → its ids. Both tables are of a fixed size, shared by all threads, and only ever added to. */
#include "engine.h"

Word *find_word(Engine *e, const u64 key[2], u64 hash)
{
    for (u64 i = 0; i < PROBES; i++) {
        Word *w = e->words + word_place(hash, i, e->word_mask);
        u64 rest = atomic_load_explicit(&w->rest, memory_order_acquire);
        if (rest == EMPTY)
            return NULL;
        if (is_filled(rest) && GET(w->key[0]) == key[0] && GET(w->key[1]) == key[1])
            return w;
    }
    return NULL;
}

/* The ids of a word as its entry holds them; too many for an entry: where else to ask. */
void pack_ids(const Engine *e, const u32 *ids, u32 count, u64 value[2])
{
    u8 bytes[16] = {0};
    if (count << e->id_shift > ID_BYTES) {
        value[0] = 0;
        value[1] = ASK_LONG;
        return;
    }
    for (u32 i = 0; i < count; i++)
        put_id(e, bytes, i, ids[i]);
    bytes[15] = (u8)count;
    memcpy(value, bytes, 16);
}

/* Whether it was added: there may be no room. Two threads may add the same word at once: it then stands there twice. */
int learn_word(Engine *e, const u64 key[2], u64 hash, const u64 value[2], u8 last_byte)
{
    if (last_byte == 0xFF) /* not UTF-8: it must not pass for the word without this byte */
        return 0;
    for (u64 i = 0; i < PROBES; i++) {
        Word *w = e->words + word_place(hash, i, e->word_mask);
        u64 empty = EMPTY, rest = atomic_load_explicit(&w->rest, memory_order_acquire);
        if (is_filled(rest) && GET(w->key[0]) == key[0] && GET(w->key[1]) == key[1])
            return 0; /* learned a moment ago */
        if (rest != EMPTY || !atomic_compare_exchange_strong_explicit(&w->rest, &empty, CLAIMED, memory_order_relaxed,
                                                                        memory_order_relaxed))
            continue;
        SET(w->key[0], key[0]);
        SET(w->key[1], key[1]);
        SET(w->ids, value[0]);
        atomic_store_explicit(&w->rest, value[1], memory_order_release);
        return 1;
    }
    return 0;
}

static u64 hash_long(const u8 *s, size_t n)
{
    u64 h = n;
    for (; n > 8; s += 8, n -= 8)
        h = mix(h ^ load8(s), 0x9E3779B97F4A7C15ull);
    u64 tail = 0;
    memcpy(&tail, s, n);
    return mix(h ^ tail, 0xD6E8FEB86659FD93ull);
}

static u8 *cached_or_merged(Engine *e, const u8 *s, size_t n, u8 *out, Learned *learned)
{
    u64 hash = hash_long(s, n);
    Long *free_one = NULL;
    for (u64 i = 0; i < PROBES / 2 && !free_one; i++) {
        Long *w = e->longs + ((hash + i) & e->long_mask);
        u32 state = atomic_load_explicit(&w->state, memory_order_acquire);
        if (state == 0)
            free_one = w;
        else if (state == 2 && w->size == n && !memcmp(w->key, s, n)) {
            size_t bytes = (size_t)w->count << e->id_shift;
            memcpy(out, w->ids, bytes);
            return out + bytes;
        }
    }
    u8 *end = merge(e, s, n, out);
    u32 empty = 0;
    if (end && end - out <= LONG_IDS && free_one &&
        atomic_compare_exchange_strong_explicit(&free_one->state, &empty, 1, memory_order_relaxed,
                                                memory_order_relaxed)) {
        free_one->size = (u16)n;
        free_one->count = (u16)((end - out) >> e->id_shift);
        memcpy(free_one->key, s, n);
        memcpy(free_one->ids, out, (size_t)(end - out));
        atomic_store_explicit(&free_one->state, 2, memory_order_release);
        learned->longs++;
    }
    return end;
}

/* A word that the table of words cannot hold. No merge crosses two bytes that no token holds side by side: a word too
 * long to be learned as a whole is taken apart there. */
u8 *long_word(Engine *e, const u8 *s, size_t n, u8 *out, Learned *learned)
{
    while (n > LONG_BYTES && out) {
        size_t part = 1;
        while (part < n && side_by_side(e, s[part - 1], s[part]))
            part++;
        out = part > LONG_BYTES ? merge(e, s, part, out) : cached_or_merged(e, s, part, out, learned);
        s += part;
        n -= part;
    }
    return out && n ? cached_or_merged(e, s, n, out, learned) : out;
}
