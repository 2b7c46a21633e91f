/* A vocabulary and its live merges → the tables of the engine: what is merged with what, and where text can be cut. */
#include <stdlib.h>

#include "sp.h"

enum { NO_TOKEN = 0xFFFFFFFF, EMPTY_PAGE = 0x100 };

/* What is needed only to build. Tokens are known by their number, their place in the vocabulary. */
typedef struct {
    const Vocabulary *v;
    u32 *symbol; /* of each token */
} Building;

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

static u32 *character_place(Sp *e, u32 point)
{
    return &e->pages[(u32)e->page[point >> 8] << 8 | (point & 255)];
}

/* Characters that have a token: for now `pages` holds their tokens. */
static int map_characters(Sp *e, Building *b, u32 *used)
{
    u32 points[4], n, pages = EMPTY_PAGE + 1;
    for (u32 i = 0; i < POINTS >> 8; i++)
        e->page[i] = (u16)(i < EMPTY_PAGE ? i : EMPTY_PAGE);
    for (u32 t = 0; t < b->v->count; t++) {
        const u8 *s = spelling(b->v, t, &n);
        if (n && n <= 4 && points_of(s, n, points) == 1 && e->page[points[0] >> 8] == EMPTY_PAGE)
            e->page[points[0] >> 8] = (u16)pages++;
    }
    e->pages = any_table((size_t)pages * 256 * sizeof(u32), &e->memory);
    if (!e->pages)
        return NO_MEMORY;
    memset(e->pages, 0xFF, (size_t)pages * 256 * sizeof(u32));
    for (u32 t = 0; t < b->v->count; t++) {
        const u8 *s = spelling(b->v, t, &n);
        if (n && n <= 4 && points_of(s, n, points) == 1)
            *character_place(e, points[0]) = t;
    }
    *used = pages;
    return GOOD;
}

static int is_live(const Vocabulary *v, u32 token)
{
    return v->live[token].rank != ~0u;
}

static void note_bytes(Sp *e, const Vocabulary *v)
{
    for (u32 t = 0; t < v->count; t++) {
        u32 n;
        const u8 *s = spelling(v, t, &n);
        char digits[3] = {0};
        if (is_byte_token(s, n)) {
            memcpy(digits, s + 3, 2);
            e->byte_id[strtoul(digits, NULL, 16) & 255] = v->ids[t];
        }
    }
}

/* Symbols: what merges make, by rank, then characters. */
static int number_symbols(Sp *e, Building *b, u32 pages)
{
    const Vocabulary *v = b->v;
    u32 count = 0, *of_rank = malloc(((size_t)v->merge_count + 1) * sizeof(u32));
    if (!of_rank)
        return NO_MEMORY;
    memset(of_rank, 0xFF, (size_t)v->merge_count * sizeof(u32));
    memset(b->symbol, 0xFF, (size_t)v->count * sizeof(u32));
    for (u32 t = 0; t < v->count; t++)
        if (is_live(v, t))
            of_rank[v->live[t].rank] = t;
    for (u32 i = 0; i < v->merge_count; i++)
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
    e->ids = any_table((size_t)count * sizeof(u32), &e->memory);
    if (!e->ids)
        return NO_MEMORY;
    for (u32 t = 0; t < v->count; t++)
        if (b->symbol[t] != NO_TOKEN)
            e->ids[b->symbol[t]] = v->ids[t];
    return count && count < NO_SYMBOL ? GOOD : TOO_MANY;
}

static int list_pairs(Sp *e, const Building *b)
{
    u32 count = 0;
    u64 *list = malloc(((size_t)e->merged_symbols + 1) * sizeof(u64));
    if (!list)
        return NO_MEMORY;
    for (u32 t = 0; t < b->v->count; t++)
        if (is_live(b->v, t)) {
            u32 left = b->symbol[b->v->live[t].left], right = b->symbol[b->v->live[t].right];
            list[count++] = ((u64)left << SYMBOL_BITS | right) << SYMBOL_BITS | b->symbol[t];
        }
    int good = hash_pairs(&e->pairs, list, count, &e->memory);
    free(list);
    return good ? GOOD : NO_MEMORY;
}

/* Which characters stand side by side in a live token. */
static int note_neighbours(Sp *e, const Building *b)
{
    u32 points[LONGEST_TOKEN], n;
    u32 bits = 18; /* of the bits at most one in 32 is set */
    while (1ull << bits < 32ull * e->merged_symbols)
        bits++;
    e->joined_shift = 32 - bits;
    e->joined_mask = (1u << bits) - 1;
    e->joined = any_table(1ull << (bits - 3), &e->memory);
    if (!e->joined)
        return NO_MEMORY;
    memset(e->apart, 1, sizeof e->apart);
    for (u32 t = 0; t < b->v->count; t++) {
        if (!is_live(b->v, t))
            continue;
        const u8 *s = spelling(b->v, t, &n);
        n = points_of(s, n, points);
        for (u32 i = 1; i < n; i++) {
            u32 *before = character_place(e, points[i - 1]), *here = character_place(e, points[i]);
            u32 bit = joined_bit(e, *before, *here);
            e->joined[bit >> 5] |= 1u << (bit & 31);
            *before |= JOINS_RIGHT;
            *here |= JOINS_LEFT;
            u32 left = points[i - 1] == UNDERLINE ? ' ' : points[i - 1], right = points[i] == UNDERLINE ? ' ' : points[i];
            if (left < 128 && right < 128)
                e->apart[left][right] = 0;
        }
    }
    return GOOD;
}

static void tabulate_ascii(Sp *e)
{
    e->pages[' '] = e->pages[UNDERLINE];
    for (u32 i = 0; i < 128 * 128; i++)
        e->ascii_pairs[i] = merged(&e->pairs, SYMBOL_OF(e->pages[i >> 7]), SYMBOL_OF(e->pages[i & 127]));
    for (u32 c = 0; c < 128; c++)
        if (e->closed[c]) {
            e->pages[c] = CLOSED | c << SYMBOL_BITS | NO_SYMBOL;
            for (u32 x = 0; x < 128; x++)
                e->apart[x][c] = e->apart[c][x] = x != c;
        }
}

/* A token as it is spelled in text, with blanks; 0 if it is too long, or has a closed byte. */
static u32 spelled_in_text(const Sp *e, const u8 *s, u32 n, u8 *text)
{
    u32 size = 0;
    for (u32 i = 0; i < n; i++) {
        int blank = n - i >= 3 && !memcmp(s + i, "\xE2\x96\x81", 3);
        if (size == LONG_PIECE_BYTES || (s[i] < 0x80 && e->closed[s[i]]))
            return 0;
        text[size++] = blank ? ' ' : s[i];
        i += blank ? 2 : 0;
    }
    return size;
}

/* A live token is a piece that need not be learned. */
static void learn_tokens(Sp *e, const Building *b)
{
    for (u32 t = 0; t < b->v->count; t++) {
        u8 text[LONG_PIECE_BYTES];
        u32 n, id = b->v->ids[t];
        const u8 *s = spelling(b->v, t, &n);
        u32 size = b->symbol[t] == NO_TOKEN ? 0 : spelled_in_text(e, s, n, text);
        if (size > PIECE_BYTES)
            e->gate.learned.longs += (u64)sp_learn_long(e, text, size, &id, 1);
        if (!size || size > PIECE_BYTES)
            continue;
        u64 key[2], value[2] = {id, 1ull << 56};
        memset(key, 0xFF, sizeof key);
        memcpy(key, text, size);
        e->gate.learned.words += (u64)learn_word(e->pieces, e->piece_mask, key, hash_word(key[0], key[1]), value);
    }
}

int sp_build(Sp *e, const Vocabulary *v)
{
    for (u32 t = 0, n; t < v->count; t++) {
        spelling(v, t, &n);
        if (n > LONGEST_TOKEN)
            return TOO_LONG;
        if (is_live(v, t) && (v->live[t].rank >= v->merge_count || v->live[t].left >= v->count || v->live[t].right >= v->count))
            return UNKNOWN_RESULT; /* not what engine_live found */
    }
    Building b = {.v = v, .symbol = malloc(((size_t)v->count + 1) * sizeof(u32))};
    u32 pages = 0;
    int why = b.symbol ? map_characters(e, &b, &pages) : NO_MEMORY;
    if (why == GOOD)
        why = number_symbols(e, &b, pages);
    if (why == GOOD)
        why = list_pairs(e, &b);
    if (why == GOOD)
        why = note_neighbours(e, &b);
    if (why == GOOD) {
        note_bytes(e, v);
        tabulate_ascii(e);
        learn_tokens(e, &b);
    }
    free(b.symbol);
    return why;
}
