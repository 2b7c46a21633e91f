/* New words → their ids, many side by side: each step of one waits for memory, and the others fill the time. Included by
 * kernel.h, once for each code path. */

enum { LANES = 32 };

/* A word while it is merged. Bit i + 1 of alive is part i; both ends have one that merges with nothing. A rank is kept as
 * rank << 5 | place, so that the least is the leftmost of the lowest. */
typedef struct {
    u32 ranks[MIDDLE_BYTES] __attribute__((aligned(64)));
    u32 symbol[MIDDLE_BYTES + 2], parts;
    u64 alive, last, place;
    Late *word;
    const u64 *first[MIDDLE_BYTES];   /* where the first pairs stand */
    const u64 *with_next, *with_last; /* where the pairs that a merge makes stand */
    u64 next_pair, last_pair;
} Lane;

/* Begins with bytes, but for those pairs that are merged before anything else can reach one of their bytes. */
static inline void start(const Engine *e, Lane *lane, Late *word, int wide)
{
    const u8 *s = word->text;
    u32 n = word->size, parts = 1, skip = 0;
    u64 pairs[MIDDLE_BYTES + 2];
    pairs[0] = pairs[n] = pairs[n + 1] = ~0ull;
    for (u32 i = 1; i < n; i++)
        pairs[i] = e->byte_pairs[s[i - 1] << 8 | s[i]];
    for (u32 i = 0; i < n; i++) {
        u32 first = (u32)merges_first(pairs[i], pairs[i + 1], pairs[i + 2]);
        lane->symbol[parts] = first ? PAIR_RANK(pairs[i + 1]) : e->byte_symbol[s[i]];
        parts += !skip;
        skip = first;
    }
    lane->word = word;
    lane->alive = (2ull << parts) - 1;
    lane->symbol[0] = lane->symbol[parts] = NONE;
    for (u32 i = 0; i < (wide ? MIDDLE_BYTES : SHORT_BYTES); i++)
        lane->ranks[i] = (u32)NONE << 5;
    lane->parts = parts;
    for (u32 i = 1; i + 1 < parts; i++) {
        lane->first[i] = pair_entry(&e->pairs, (u64)lane->symbol[i] << SYMBOL_BITS | lane->symbol[i + 1]);
        __builtin_prefetch(lane->first[i]);
        __builtin_prefetch(e->symbol_ids + lane->symbol[i]);
    }
}

static inline void first_ranks(Lane *lane)
{
    for (u32 i = 1; i + 1 < lane->parts; i++)
        lane->ranks[i - 1] =
            merged_at(lane->first[i], (u64)lane->symbol[i] << SYMBOL_BITS | lane->symbol[i + 1]) << 5 | (i - 1);
}

/* The merge of the lowest rank: makes one of two parts and asks for the pairs that it makes. False if there is none. */
static inline int merge_one(const Engine *e, Lane *lane, int wide)
{
    u32 least = least_rank(lane->ranks, wide), i = (least & 31) + 1, rank = least >> 5;
    if (rank == NONE)
        return 0;
    u64 after = lane->alive & ~((2ull << i) - 1), gone = after & -after, before = lane->alive & ((1ull << i) - 1);
    after ^= gone;
    lane->alive ^= gone;
    u32 next = (u32)__builtin_ctzll(after), last = 63 - (u32)__builtin_clzll(before);
    lane->next_pair = (u64)rank << SYMBOL_BITS | lane->symbol[next];
    lane->last_pair = (u64)lane->symbol[last] << SYMBOL_BITS | rank;
    lane->with_next = pair_entry(&e->pairs, lane->next_pair);
    lane->with_last = pair_entry(&e->pairs, lane->last_pair);
    __builtin_prefetch(lane->with_next);
    __builtin_prefetch(lane->with_last);
    __builtin_prefetch(e->symbol_ids + rank);
    lane->symbol[i] = rank;
    lane->place = i;
    lane->last = last;
    lane->ranks[__builtin_ctzll(gone) - 1] = (u32)NONE << 5;
    return 1;
}

static inline void look_up(Lane *lane)
{
    u32 with_next = merged_at(lane->with_next, lane->next_pair), with_last = merged_at(lane->with_last, lane->last_pair);
    u32 i = (u32)lane->place, last = (u32)lane->last;
    lane->ranks[i - 1] = with_next << 5 | (i - 1);
    lane->ranks[(last - 1) % MIDDLE_BYTES] = with_last << 5 | (last - 1); /* no pair has the last place: it is spare */
}

static inline void finish(Engine *e, const Lane *lane, Learned *learned, int wide)
{
    Late *word = lane->word;
    u32 ids[MIDDLE_BYTES], n = 0;
    for (u64 left = lane->alive & (lane->alive - 1); left & (left - 1); left &= left - 1)
        ids[n++] = e->symbol_ids[lane->symbol[__builtin_ctzll(left)]];
    if (word->text[word->size - 1] == 0xFF) { /* not UTF-8: it must not pass for the word without this byte */
        word->value[1] = ASK_LONG;
        return;
    }
    if (wide) {
        u64 key[4];
        middle_key(word->text, word->size, key);
        Middle *w = learn_middle(e, key, word->hash, ids, n);
        word->value[0] = (u64)(uintptr_t)w;
        word->value[1] = w ? ASK_MIDDLE : ASK_LONG;
        learned->middles += w != NULL;
        return;
    }
    pack_ids(e, ids, n, word->value);
    if (UNLIKELY(n > e->most)) {
        const u64 key[4] = {word->key[0], word->key[1], ~0ull, ~0ull};
        learned->middles += learn_middle(e, key, hash_middle(key), ids, n) != NULL;
    }
    learned->words += (u64)learn_word(e->words, e->word_mask, word->key, word->hash, word->value);
}

/* Byte pair encoding of `count` new words, one merge of each in turn. Those of more than 16 bytes are `wide`. */
static inline __attribute__((always_inline)) void merge_all(Engine *e, const u16 *words, u32 count, Batch *b,
                                                                Learned *learned, int wide)
{
    Lane lanes[LANES];
    Lane *at[LANES];
    for (u32 done = 0, busy; done < count;) {
        busy = count - done < LANES ? count - done : LANES;
        for (u32 k = 0; k < busy; k++) {
            at[k] = lanes + k;
            start(e, at[k], b->late + words[done + k], wide);
        }
        for (u32 k = 0; k < busy; k++)
            first_ranks(lanes + k);
        done += busy;
        while (busy) {
            for (u32 k = 0; k < busy;) {
                if (merge_one(e, at[k], wide)) {
                    k++;
                    continue;
                }
                finish(e, at[k], learned, wide);
                at[k] = at[--busy];
            }
            for (u32 k = 0; k < busy; k++)
                look_up(at[k]);
        }
    }
}

static __attribute__((noinline)) void learn_new(Engine *e, u32 count, Batch *b, Learned *learned)
{
    merge_all(e, b->fresh, count, b, learned, 0);
}

static __attribute__((noinline)) void learn_new_middle(Engine *e, u32 count, Batch *b, Learned *learned)
{
    merge_all(e, b->fresh_middle, count, b, learned, 1);
}

