/* Text without added tokens → ids. Included once for each kind of processor, with KERNEL naming the function it makes.
 *
 * Four steps, each over many pieces at once, so that the processor need not wait for memory: find where pieces begin,
 * hash them and ask for their entries, read the entries and merge what is new, write the ids. */

#include "sp_find.h"

#if defined(USE_AVX512)
typedef struct {
    __m512i lane[2];
} FN(Ranks);

static inline u32 FN(least)(const FN(Ranks) *r, int wide)
{
    return _mm512_reduce_min_epu32(wide ? _mm512_min_epu32(r->lane[0], r->lane[1]) : r->lane[0]);
}

static inline void FN(set)(FN(Ranks) *r, u32 lanes, u32 rank, int wide)
{
    r->lane[0] = _mm512_mask_set1_epi32(r->lane[0], (__mmask16)lanes, (int)rank);
    if (wide)
        r->lane[1] = _mm512_mask_set1_epi32(r->lane[1], (__mmask16)(lanes >> 16), (int)rank);
}

/* The symbols of a piece of up to 64 bytes; how many there are. */
static inline u32 FN(read_symbols)(const Sp *e, const u8 *s, u32 n, u32 *symbol)
{
    u16 point[128], place[128];
    u32 count = FN(read_points)(s, 0, n < 32 ? (1u << n) - 1 : ~0u, point, place);
    if (UNLIKELY(n > 32))
        count += FN(read_points)(s, 32, n < 64 ? (1u << (n - 32)) - 1 : ~0u, point + count, place + count);
    count = count < MOST_SYMBOLS ? count : (u32)MOST_SYMBOLS; /* more are not UTF-8 */
    for (u32 k = 0; k < count; k += 16) {
        __m512i none = _mm512_set1_epi32(NO_SYMBOL);
        __m512i found = FN(characters)(e, s, point + k, place + k, _bzhi_u32(0xFFFF, count - k));
        found = _mm512_and_si512(found, none);
        _mm512_storeu_si512(symbol + k, _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(found, none), found));
    }
    return count;
}

/* All five ids of an entry, though it may have fewer. */
static inline void FN(unpack)(const u64 value[2], u32 *out)
{
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)value));
    v = _mm256_srlv_epi64(_mm256_permute4x64_epi64(v, 0x40), _mm256_set_epi64x(0, 2 * ID_WIDTH, ID_WIDTH, 0));
    v = _mm256_and_si256(v, _mm256_set1_epi64x((1 << ID_WIDTH) - 1));
    _mm_storeu_si128((__m128i *)out, _mm256_cvtepi64_epi32(v));
    out[4] = (u32)(value[1] >> ID_WIDTH) & ((1 << ID_WIDTH) - 1);
}
#else
typedef struct {
    u32 lane[MOST_SYMBOLS];
} FN(Ranks);

static inline u32 FN(least)(const FN(Ranks) *r, int wide)
{
    u32 a = r->lane[0], b = r->lane[1];
    for (u32 i = 2; i < (wide ? MOST_SYMBOLS : MOST_SYMBOLS / 2); i += 2) {
        a = r->lane[i] < a ? r->lane[i] : a;
        b = r->lane[i + 1] < b ? r->lane[i + 1] : b;
    }
    return a < b ? a : b;
}

static inline void FN(set)(FN(Ranks) *r, u32 lanes, u32 rank, int wide)
{
    (void)wide;
    if (lanes)
        r->lane[__builtin_ctz(lanes)] = rank;
}

static inline u32 FN(read_symbols)(const Sp *e, const u8 *s, u32 n, u32 *symbol)
{
    u32 count = 0;
    for (u32 i = 0, size; i < n && count < MOST_SYMBOLS; i += size) {
        u32 found = SYMBOL_OF(character_at(e, s + i, &size));
        symbol[count++] = found == NO_SYMBOL ? 0 : found; /* not UTF-8 */
    }
    return count;
}

static inline void FN(unpack)(const u64 value[2], u32 *out)
{
    const u32 all = (1 << ID_WIDTH) - 1;
    out[0] = (u32)value[0] & all;
    out[1] = (u32)(value[0] >> ID_WIDTH) & all;
    out[2] = (u32)(value[0] >> 2 * ID_WIDTH) & all;
    out[3] = (u32)value[1] & all;
    out[4] = (u32)(value[1] >> ID_WIDTH) & all;
}
#endif

/* A piece while it is merged. Bit i + 1 of alive is part i; both ends have one that merges with nothing. A rank is kept as
 * rank << 5 | place, so that the least is the leftmost of the lowest. */
typedef struct {
    FN(Ranks) ranks;
    u64 alive;
    u32 at, ahead, symbol[16 + MOST_SYMBOLS + 2];
    u64 next_pair, last_pair, next_hash, last_hash; /* what the last merge made, with its neighbours */
    const u64 *with_next, *with_last;
    New *piece;
} FN(Lane);

/* Begins a piece in a lane; 0 when it was so simple that it is done. */
static inline int FN(begin)(const Sp *e, FN(Lane) *lane, New *piece)
{
    const u8 *s = piece->text;
    u32 n = piece->size, count = n, size, *symbol = lane->symbol + 1;
    u32 rank[MOST_SYMBOLS] __attribute__((aligned(64)));
    if (SYMBOL_OF(character_at(e, s, &size)) == NO_SYMBOL) {
        piece->count = sp_unmerged(e, s, n < MOST_SYMBOLS ? n : MOST_SYMBOLS, piece->ids); /* more are not UTF-8 */
        piece->symbols = 0;
        return 0;
    }
    u8 all = 0;
    for (u32 i = 0; i < n; i++)
        all |= s[i];
    for (u32 i = 0; i < MOST_SYMBOLS; i++)
        rank[i] = (u32)NO_SYMBOL << 5 | i;
    if (all < 0x80) {
        for (u32 i = 0; i < n; i++)
            symbol[i] = SYMBOL_OF(e->pages[s[i]]);
        for (u32 i = 0; i + 1 < n; i++)
            rank[i] = e->ascii_pairs[s[i] << 7 | s[i + 1]] << 5 | i;
    } else {
        count = FN(read_symbols)(e, s, n, symbol);
        for (u32 i = 0; i + 1 < count; i++)
            rank[i] = merged(&e->pairs, symbol[i], symbol[i + 1]) << 5 | i;
    }
    symbol[-1] = symbol[count] = NO_SYMBOL;
    memcpy(&lane->ranks, rank, sizeof rank);
    lane->alive = (1ull << (count + 2)) - 1;
    lane->piece = piece;
    return 1;
}

/* The symbols of a piece that is merged, whose ids are asked for. */
static inline void FN(end)(const Sp *e, const FN(Lane) *lane)
{
    New *piece = lane->piece;
    u32 count = 0, last = 63 - (u32)__builtin_clzll(lane->alive);
    for (u64 left = lane->alive & ~(1ull << last) & ~1ull; left; left &= left - 1) {
        piece->ids[count] = lane->symbol[__builtin_ctzll(left)];
        __builtin_prefetch(e->ids + piece->ids[count++]);
    }
    piece->count = piece->symbols = count;
}

/* One merge of a piece; 0 when there is none left. What the new symbol merges with is asked for in two steps. */
static inline int FN(merge_one)(const Sp *e, FN(Lane) *l, int wide)
{
    u32 least = FN(least)(&l->ranks, wide), i = (least & 31) + 1, made = least >> 5;
    if (made == NO_SYMBOL)
        return 0;
    u64 after = l->alive & ~((2ull << i) - 1), gone = after & -after, before = l->alive & ((1ull << i) - 1);
    after ^= gone;
    l->alive ^= gone;
    l->at = i;
    l->ahead = 63 - (u32)__builtin_clzll(before);
    l->next_pair = (u64)made << SYMBOL_BITS | l->symbol[__builtin_ctzll(after)];
    l->last_pair = (u64)l->symbol[l->ahead] << SYMBOL_BITS | made;
    l->next_hash = hash_pair(l->next_pair);
    l->last_hash = hash_pair(l->last_pair);
    __builtin_prefetch(e->pairs.steps + (l->next_hash >> e->pairs.bucket_shift));
    __builtin_prefetch(e->pairs.steps + (l->last_hash >> e->pairs.bucket_shift));
    l->symbol[i] = made;
    FN(set)(&l->ranks, (u32)(gone >> 1), (u32)NO_SYMBOL << 5 | 31, wide);
    return 1;
}

/* Merges those of 16 symbols or less, or (wide) the others. A few side by side, one merge of each in turn: each step of one
 * waits for memory, and the others fill the time. */
static inline __attribute__((always_inline)) void FN(merge_some)(const Sp *e, New *pieces, u32 count, int wide)
{
    FN(Lane) lanes[TOGETHER];
    u32 next = 0, busy = 0;
    for (;;) {
        for (; next < count && busy < TOGETHER; next++)
            busy += pieces[next].wide == wide && FN(begin)(e, lanes + busy, &pieces[next]);
        if (!busy)
            return;
        for (u32 k = 0; k < busy;) {
            if (FN(merge_one)(e, lanes + k, wide)) {
                k++;
                continue;
            }
            FN(end)(e, lanes + k);
            lanes[k] = lanes[--busy];
        }
        for (u32 k = 0; k < busy; k++) {
            FN(Lane) *l = lanes + k;
            l->with_next = sp_pair_entry(&e->pairs, l->next_hash);
            l->with_last = sp_pair_entry(&e->pairs, l->last_hash);
            __builtin_prefetch(l->with_next);
            __builtin_prefetch(l->with_last);
        }
        for (u32 k = 0; k < busy; k++) {
            FN(Lane) *l = lanes + k;
            u32 at = l->at - 1, ahead = l->ahead - 1;
            FN(set)(&l->ranks, 1u << at, merged_at(l->with_next, l->next_pair) << 5 | at, wide);
            FN(set)(&l->ranks, (u32)((1ull << l->ahead) >> 1), merged_at(l->with_last, l->last_pair) << 5 | (ahead & 31), wide);
        }
    }
}

static __attribute__((noinline)) void FN(merge)(const Sp *e, New *pieces, u32 count)
{
    u32 wide = 0;
    for (u32 i = 0; i < count; i++)
        wide += pieces[i].wide;
    FN(merge_some)(e, pieces, count, 0);
    if (wide)
        FN(merge_some)(e, pieces, count, 1);
    for (u32 i = 0; i < count; i++)
        for (u32 k = 0; k < pieces[i].symbols; k++)
            pieces[i].ids[k] = e->ids[pieces[i].ids[k]];
}

/* The ids of pieces `from` to `to`, of which the new ones are in `fresh`. */
static inline u32 *FN(write_ids)(Sp *e, const Batch *b, u32 from, u32 to, const New *fresh, u32 *out, Learned *learned)
{
    for (u32 i = from; i < to; i++) {
        u64 n = b->values[i][1] >> 56;
        if (LIKELY(n - 1 < PIECE_IDS)) {
            FN(unpack)(b->values[i], out);
            out += n;
        } else if (n == IS_NEW >> 56) {
            memcpy(out, fresh->ids, 16 * sizeof *out);
            if (UNLIKELY(fresh->count > 16))
                memcpy(out + 16, fresh->ids + 16, 16 * sizeof *out);
            out += fresh++->count;
        } else if (n == IS_LONG >> 56) {
            const LongPiece *p = (const LongPiece *)(uintptr_t)b->values[i][0];
            memcpy(out, p->ids, sizeof p->ids);
            out += p->count;
        } else { /* in the other table, or being written at this moment */
            out = sp_long_piece(e, b->text + b->at[i], (size_t)b->at[i + 1] - b->at[i], out, learned);
            if (!out)
                return NULL;
        }
    }
    return out;
}

static const u8 FN(size_by_lead)[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};

/* Which pieces are to be looked up, and how many: where most are characters, those have their ids at once. */
static inline u32 FN(take_characters)(const Sp *e, Batch *b, u32 count)
{
    u32 asked = 0;
    for (u32 i = 0; i < count; i++) {
        const u8 *s = b->text + b->at[i];
        u32 symbol = SYMBOL_OF(*s < 0x80 ? e->pages[*s] : b->first[i]);
        b->values[i][0] = e->ids[symbol < e->symbols ? symbol : 0];
        b->values[i][1] = 1ull << 56;
        b->asked[asked] = (u16)i;
        asked += ((u32)b->at[i + 1] - b->at[i] != FN(size_by_lead)[*s >> 4]) | (symbol == NO_SYMBOL);
    }
    return asked;
}

/* The keys and hashes of pieces. */
static inline void FN(hash_pieces)(const Sp *e, Batch *b, u32 asked)
{
    for (u32 k = 0; k < asked; k++) {
        u32 i = b->asked[k];
        const u8 *s = b->text + b->at[i];
        u32 size = (u32)b->at[i + 1] - b->at[i], held = size <= PIECE_BYTES ? size : 0;
        b->keys[i][0] = load8(s) | padding[held][0];
        b->keys[i][1] = load8(s + 8) | padding[held][1];
        b->hashes[i] = hash_word(b->keys[i][0], b->keys[i][1]);
        if (UNLIKELY(size > PIECE_BYTES) && size <= LONG_PIECE_BYTES) {
            b->long_hashes[i] = hash_long_piece(s, size);
            const u8 *entry = (const u8 *)(e->longs + (b->long_hashes[i] & e->long_mask));
            __builtin_prefetch(entry);
            __builtin_prefetch(entry + 64);
        } else
            __builtin_prefetch(e->pieces + word_place(b->hashes[i], 0, e->piece_mask));
    }
}

/* Reads the entries of pieces that are asked for, from the `from`-th on, until MOST_NEW are not where they should be
 * first; returns where it stopped. */
static inline u32 FN(look_up)(const Sp *e, Batch *b, u32 from, u32 asked, New *missed, u32 *misses)
{
    u32 k = from, m = 0;
    for (; k < asked && m < MOST_NEW; k++) {
        u32 i = b->asked[k];
        Word *x = e->pieces + word_place(b->hashes[i], 0, e->piece_mask);
        Word *y = e->pieces + word_place(b->hashes[i], 1, e->piece_mask);
        u64 rest_x = atomic_load_explicit(&x->rest, memory_order_acquire);
        u64 rest_y = atomic_load_explicit(&y->rest, memory_order_acquire);
        u64 not_x = (GET(x->key[0]) ^ b->keys[i][0]) | (GET(x->key[1]) ^ b->keys[i][1]);
        u64 not_y = (GET(y->key[0]) ^ b->keys[i][0]) | (GET(y->key[1]) ^ b->keys[i][1]);
        b->values[i][0] = not_x ? GET(y->ids) : GET(x->ids);
        b->values[i][1] = not_x ? rest_y : rest_x;
        if (UNLIKELY(not_x && not_y)) {
            __builtin_prefetch(e->pieces + word_place(b->hashes[i], 2, e->piece_mask));
            missed[m++].index = i;
        }
    }
    *misses = m;
    return k;
}

/* Pieces between the places → ids: from what was learned, or merged now. Entries are asked for long before they are
 * read, since most are far from the processor. */
static u32 *FN(encode_pieces)(Sp *e, const u8 *text, const u16 *at, const u32 *first, u32 count, u32 *out, Learned *learned)
{
    Batch b = {.text = text, .at = at, .first = first};
    New fresh[MOST_NEW];
    for (u32 size; count && out; b.at += size, b.first = first ? b.first + size : NULL, count -= size) {
        size = count < BATCH ? count : BATCH;
        u32 asked = size, k = 0;
        if (first)
            asked = FN(take_characters)(e, &b, size);
        else
            for (u32 i = 0; i < size; i++)
                b.asked[i] = (u16)i;
        FN(hash_pieces)(e, &b, asked);
        for (u32 from = 0, to, missed; from < size && out; from = to) {
            k = FN(look_up)(e, &b, k, asked, fresh, &missed);
            to = k < asked ? b.asked[k] : size;
            u32 news = find_elsewhere(e, &b, fresh, missed);
            FN(merge)(e, fresh, news);
            out = FN(write_ids)(e, &b, from, to, fresh, out, learned);
            for (u32 m = 0; m < news; m++)
                learn(e, b.keys[fresh[m].index], b.hashes[fresh[m].index], &fresh[m], learned);
        }
    }
    return out;
}

u32 *KERNEL(Sp *e, const u8 *text, size_t size, size_t readable, u32 *out, Learned *learned)
{
    u8 copy[SP_WINDOW + SP_PADDING];
    u16 at[SP_WINDOW + 64];
    u32 first[SP_WINDOW + 64];
    while (size && out) {
        const u8 *p = text;
        u32 span = size < SP_WINDOW ? (u32)size : SP_WINDOW;
        if (readable < span + SP_PADDING) { /* nothing behind the text is read */
            memcpy(copy, text, readable);
            memset(copy + readable, 0, span + SP_PADDING - readable);
            p = copy;
        }
        u32 others, count = FN(find_pieces)(e, p, span, at, first, &others);
        size_t used = span;
        if (size > span) { /* the last piece may go on */
            used = at[--count];
            if (!count) {
                used = piece_size(e, text, size);
                out = sp_long_piece(e, text, used, out, learned);
            }
        } else
            at[count] = (u16)span;
        int characters = others > count / 2 && span < 6 * count; /* most pieces, where they are short and beyond ASCII */
        out = count ? FN(encode_pieces)(e, p, at, characters ? first : NULL, count, out, learned) : out;
        text += used;
        size -= used;
        readable -= used;
    }
    return out;
}
