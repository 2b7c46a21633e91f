/* A vocabulary and its merges → the tables of the engine: which merges can ever happen, and where text can be cut. */
#include <stdlib.h>

#include "sp.h"

enum {
    MOST_MERGES = 1 << 24,
    LONGEST_TOKEN = 1024,
    NO_RANK = 0xFFFFFF,
    NO_TOKEN = 0xFFFFFFFF,
};

/* What is needed only to build. Tokens are known by their place in the vocabulary. */
typedef struct {
    const Vocabulary *v;
    u32 *names, name_mask; /* spelling → token */
    u64 *ranks;            /* left, right and rank of each merge: 20, 20 and 24 bits */
    u32 rank_mask;
    u32 *results;   /* what each merge makes */
    u32 *last;      /* for each token its last merge, if it is live */
    u64 *last_pair; /* and of what */
    u32 *symbol;    /* of each token */
} Building;

static const u8 *spelling(const Vocabulary *v, u32 token, u32 *n)
{
    *n = v->offsets[token + 1] - v->offsets[token];
    return v->text + v->offsets[token];
}

static u32 hash_name(const u8 *s, u32 n)
{
    u64 h = n;
    for (u32 i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001B3ull;
    return (u32)(mix(h, HASH0) >> 32);
}

/* Where a spelling stands among the names, or would. */
static u32 *name_place(const Building *b, const u8 *s, u32 n)
{
    for (u32 i = hash_name(s, n) & b->name_mask;; i = (i + 1) & b->name_mask) {
        u32 size;
        if (b->names[i] == NO_TOKEN)
            return b->names + i;
        const u8 *other = spelling(b->v, b->names[i], &size);
        if (size == n && !memcmp(other, s, n))
            return b->names + i;
    }
}

static u64 *rank_place(const Building *b, u32 left, u32 right)
{
    u64 pair = (u64)left << SYMBOL_BITS | right;
    for (u32 i = (u32)(hash_symbols(pair) >> 32) & b->rank_mask;; i = (i + 1) & b->rank_mask)
        if (b->ranks[i] == ~0ull || b->ranks[i] >> 24 == pair)
            return b->ranks + i;
}

static u32 rank_of(const Building *b, u32 left, u32 right)
{
    u64 found = *rank_place(b, left, right);
    return found == ~0ull ? (u32)NO_RANK : (u32)found & NO_RANK;
}

static u32 table_size(u32 entries)
{
    u32 size = 1024;
    while (size / 2 < entries)
        size *= 2;
    return size;
}

/* The code points of a token; 0 for one with a blank, which no text has, or with something that is not UTF-8. */
static u32 points_of(const u8 *s, u32 n, u32 *points)
{
    u32 count = 0;
    for (u32 i = 0, size; i < n; i += size) {
        u32 lead = s[i];
        size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        u32 point = size == 1 ? lead : lead & (0x7Fu >> size);
        if (i + size > n || lead == ' ')
            return 0;
        for (u32 k = 1; k < size; k++)
            point = point << 6 | (s[i + k] & 63);
        points[count++] = point;
    }
    return count;
}

static int name_tokens(Sp *e, Building *b)
{
    const Vocabulary *v = b->v;
    static const char digits[] = "0123456789ABCDEF";
    for (u32 t = 0; t < v->count; t++) {
        u32 n;
        const u8 *s = spelling(v, t, &n);
        u32 *place = name_place(b, s, n);
        if (n > LONGEST_TOKEN)
            return SP_TOO_LONG;
        if (*place != NO_TOKEN)
            return SP_TWICE;
        *place = t;
    }
    for (u32 i = 0; i < 256; i++) {
        u8 name[] = {'<', '0', 'x', (u8)digits[i >> 4], (u8)digits[i & 15], '>'};
        u32 t = *name_place(b, name, sizeof name);
        e->byte_id[i] = t == NO_TOKEN ? 0 : v->ids[t];
    }
    return SP_GOOD;
}

static int is_byte_token(const u8 *s, u32 n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>';
}

/* Ranks are places in the list; of two equal merges the later one counts. */
static int rank_merges(Building *b)
{
    const Vocabulary *v = b->v;
    u8 text[2 * LONGEST_TOKEN];
    for (u32 i = 0; i < v->merge_count; i++) {
        u32 left = v->merges[i][0], right = v->merges[i][1], left_size, right_size;
        if (left >= v->count || right >= v->count)
            return SP_UNKNOWN_RESULT;
        const u8 *first = spelling(v, left, &left_size), *second = spelling(v, right, &right_size);
        memcpy(text, first, left_size);
        memcpy(text + left_size, second, right_size);
        u32 made = *name_place(b, text, left_size + right_size);
        if (made == NO_TOKEN)
            return SP_UNKNOWN_RESULT;
        if (is_byte_token(first, left_size) || is_byte_token(second, right_size) ||
            is_byte_token(text, left_size + right_size))
            return SP_BYTES_MERGED;
        b->results[i] = made;
        *rank_place(b, left, right) = ((u64)left << SYMBOL_BITS | right) << 24 | i;
    }
    return SP_GOOD;
}

static u32 *character_place(Sp *e, u32 point)
{
    return &e->pages[(u32)e->page[point >> 8] << 8 | (point & 255)];
}

/* Characters that have a token: for now `pages` holds their tokens. */
static int map_characters(Sp *e, Building *b, u32 *used)
{
    u32 points[4], n, pages = 1;
    for (u32 t = 0; t < b->v->count; t++) {
        const u8 *s = spelling(b->v, t, &n);
        if (n && n <= 4 && points_of(s, n, points) == 1 && !e->page[points[0] >> 8])
            e->page[points[0] >> 8] = (u16)pages++;
    }
    e->pages = sp_table((size_t)pages * 256 * sizeof(u32), &e->memory);
    if (!e->pages)
        return SP_NO_MEMORY;
    memset(e->pages, 0xFF, (size_t)pages * 256 * sizeof(u32));
    for (u32 t = 0; t < b->v->count; t++) {
        const u8 *s = spelling(b->v, t, &n);
        if (n && n <= 4 && points_of(s, n, points) == 1)
            *character_place(e, points[0]) = t;
    }
    *used = pages;
    return SP_GOOD;
}

/* The text of a token, encoded with all merges: whether the token comes of it, and by which last merge. */
static int is_live(const Sp *e, Building *b, u32 token, u32 *parts)
{
    u32 n, ranks[LONGEST_TOKEN];
    const u8 *s = spelling(b->v, token, &n);
    n = points_of(s, n, parts);
    for (u32 i = 0; i < n; i++)
        if ((parts[i] = character_of(e, parts[i])) == NO_TOKEN)
            return 0;
    for (u32 i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(b, parts[i], parts[i + 1]);
    u32 last = NO_RANK;
    while (n > 1) {
        u32 at = 0;
        for (u32 i = 1; i + 1 < n; i++)
            at = ranks[i] < ranks[at] ? i : at;
        if (ranks[at] == NO_RANK)
            return 0;
        last = ranks[at];
        b->last_pair[token] = (u64)parts[at] << SYMBOL_BITS | parts[at + 1];
        parts[at] = b->results[last];
        n--;
        memmove(parts + at + 1, parts + at + 2, (n - at - 1) * sizeof *parts);
        if (at + 1 < n) {
            memmove(ranks + at + 1, ranks + at + 2, (n - at - 2) * sizeof *ranks);
            ranks[at] = rank_of(b, parts[at], parts[at + 1]);
        }
        if (at)
            ranks[at - 1] = rank_of(b, parts[at - 1], parts[at]);
    }
    b->last[token] = last;
    return n == 1 && last != NO_RANK && parts[0] == token;
}

/* Symbols: what merges make, by rank, then characters. */
static int number_symbols(Sp *e, Building *b, u32 pages)
{
    u32 parts[LONGEST_TOKEN], count = 0, *of_rank = malloc(((size_t)b->v->merge_count + 1) * sizeof(u32));
    if (!of_rank)
        return SP_NO_MEMORY;
    memset(of_rank, 0xFF, (size_t)b->v->merge_count * sizeof(u32));
    memset(b->symbol, 0xFF, (size_t)b->v->count * sizeof(u32));
    for (u32 t = 0; t < b->v->count; t++)
        if (is_live(e, b, t, parts))
            of_rank[b->last[t]] = t;
        else
            b->last[t] = NO_RANK;
    for (u32 i = 0; i < b->v->merge_count; i++)
        if (of_rank[i] != NO_TOKEN)
            b->symbol[of_rank[i]] = count++;
    free(of_rank);
    e->merged_symbols = count;
    for (u32 i = 0; i < pages * 256; i++)
        if (e->pages[i] == NO_TOKEN)
            e->pages[i] = NO_SYMBOL;
        else {
            b->symbol[e->pages[i]] = count;
            e->pages[i] = count++;
        }
    e->symbols = count;
    e->ids = sp_table((size_t)count * sizeof(u32), &e->memory);
    if (!e->ids)
        return SP_NO_MEMORY;
    for (u32 t = 0; t < b->v->count; t++)
        if (b->symbol[t] != NO_TOKEN)
            e->ids[b->symbol[t]] = b->v->ids[t];
    return count && count < NO_SYMBOL ? SP_GOOD : SP_TOO_MANY;
}

static int hash_pairs(Sp *e, const Building *b)
{
    u32 slots = 512, count = 0;
    u64 *list = malloc(((size_t)e->merged_symbols + 1) * sizeof(u64));
    if (!list)
        return SP_NO_MEMORY;
    for (u32 t = 0; t < b->v->count; t++)
        if (b->last[t] != NO_RANK) {
            u32 left = b->symbol[b->last_pair[t] >> SYMBOL_BITS], right = b->symbol[b->last_pair[t] & NO_SYMBOL];
            list[count++] = ((u64)left << SYMBOL_BITS | right) << SYMBOL_BITS | b->symbol[t];
        }
    while (slots < count + count / 10) /* as full as can be: it is read in no order */
        slots *= 2;
    int good = 0;
    for (u32 i = 0; i < 3 && !good; i++)
        good = sp_hash_pairs(&e->pairs, slots << i, list, count, &e->memory);
    free(list);
    return good ? SP_GOOD : SP_NO_MEMORY;
}

/* Which characters stand side by side in a live token. */
static int note_neighbours(Sp *e, const Building *b)
{
    u32 points[LONGEST_TOKEN], n;
    e->joined_shift = 64 - 18; /* of the bits at most an eighth is set */
    while (1ull << (64 - e->joined_shift) < 8ull * e->merged_symbols)
        e->joined_shift--;
    e->joined = sp_table(1ull << (64 - e->joined_shift - 3), &e->memory);
    if (!e->joined)
        return SP_NO_MEMORY;
    memset(e->apart, 1, sizeof e->apart);
    for (u32 t = 0; t < b->v->count; t++) {
        if (b->last[t] == NO_RANK)
            continue;
        const u8 *s = spelling(b->v, t, &n);
        n = points_of(s, n, points);
        for (u32 i = 1; i < n; i++) {
            u32 *before = character_place(e, points[i - 1]), *here = character_place(e, points[i]);
            u64 bit = joined_bit(e, *before, *here);
            e->joined[bit >> 6] |= 1ull << (bit & 63);
            *before |= JOINS_RIGHT;
            *here |= JOINS_LEFT;
            u32 left = points[i - 1] == UNDERLINE ? ' ' : points[i - 1], right = points[i] == UNDERLINE ? ' ' : points[i];
            if (left < 128 && right < 128)
                e->apart[left][right] = 0;
        }
    }
    return SP_GOOD;
}

static void tabulate_ascii(Sp *e)
{
    for (u32 i = 0; i < 128; i++)
        e->ascii[i] = character_of(e, i == ' ' ? (u32)UNDERLINE : i);
    for (u32 i = 0; i < 128 * 128; i++)
        e->ascii_pairs[i] = merged_symbol(e, SYMBOL_OF(e->ascii[i >> 7]), SYMBOL_OF(e->ascii[i & 127]));
    for (u32 c = 0; c < 128; c++)
        if (e->closed[c]) {
            e->ascii[c] = NO_SYMBOL;
            for (u32 x = 0; x < 128; x++)
                e->apart[x][c] = e->apart[c][x] = x != c;
        }
}

/* A live token is a piece that need not be learned, as it is spelled in text: with blanks, and without closed bytes. */
static void learn_tokens(Sp *e, const Building *b)
{
    for (u32 t = 0; t < b->v->count; t++) {
        u32 n, size = 0;
        u8 text[PIECE_BYTES];
        const u8 *s = spelling(b->v, t, &n);
        if (b->symbol[t] == NO_TOKEN)
            continue;
        for (u32 i = 0; i < n && size <= PIECE_BYTES; i++) {
            int blank = n - i >= 3 && !memcmp(s + i, "\xE2\x96\x81", 3);
            if ((s[i] < 0x80 && e->closed[s[i]]) || size == PIECE_BYTES)
                size = PIECE_BYTES + 1;
            else
                text[size++] = blank ? ' ' : s[i];
            i += blank ? 2 : 0;
        }
        if (size > PIECE_BYTES)
            continue;
        u64 key[2], value[2] = {b->v->ids[t], 1ull << 56};
        memset(key, 0xFF, sizeof key);
        memcpy(key, text, size);
        e->learned.pieces += (u64)sp_learn(e, key, hash_piece(key[0], key[1]), value);
    }
}

int sp_build(Sp *e, const Vocabulary *v)
{
    if (v->count > NO_SYMBOL || v->merge_count >= MOST_MERGES)
        return SP_TOO_MANY;
    Building b = {.v = v, .name_mask = table_size(v->count) - 1, .rank_mask = table_size(v->merge_count) - 1};
    b.names = malloc(((size_t)b.name_mask + 1) * sizeof(u32));
    b.ranks = malloc(((size_t)b.rank_mask + 1) * sizeof(u64));
    b.results = malloc(((size_t)v->merge_count + 1) * sizeof(u32));
    b.last = malloc(((size_t)v->count + 1) * sizeof(u32));
    b.last_pair = malloc(((size_t)v->count + 1) * sizeof(u64));
    b.symbol = malloc(((size_t)v->count + 1) * sizeof(u32));
    int why = b.names && b.ranks && b.results && b.last && b.last_pair && b.symbol ? SP_GOOD : SP_NO_MEMORY;
    u32 pages = 0;
    if (why == SP_GOOD) {
        memset(b.names, 0xFF, ((size_t)b.name_mask + 1) * sizeof(u32));
        memset(b.ranks, 0xFF, ((size_t)b.rank_mask + 1) * sizeof(u64));
        why = name_tokens(e, &b);
    }
    if (why == SP_GOOD)
        why = rank_merges(&b);
    if (why == SP_GOOD)
        why = map_characters(e, &b, &pages);
    if (why == SP_GOOD)
        why = number_symbols(e, &b, pages);
    if (why == SP_GOOD)
        why = hash_pairs(e, &b);
    if (why == SP_GOOD)
        why = note_neighbours(e, &b);
    if (why == SP_GOOD) {
        tabulate_ascii(e);
        learn_tokens(e, &b);
    }
    free(b.names);
    free(b.ranks);
    free(b.results);
    free(b.last);
    free(b.last_pair);
    free(b.symbol);
    return why;
}
