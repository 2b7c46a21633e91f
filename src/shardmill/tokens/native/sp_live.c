/* A vocabulary and its merges → the merges that can ever happen: of each live token the one that makes it (see sp.h). */
#include <stdlib.h>

#include "sp.h"

enum { MOST_MERGES = 1 << 24, NO_RANK = 0xFFFFFF, NO_TOKEN = 0xFFFFFFFF };

/* Tokens are known by their number, their place in the vocabulary. */
typedef struct {
    const Vocabulary *v;
    u32 *names, name_mask; /* spelling → token */
    u64 *ranks;            /* left, right and rank of each merge: 20, 20 and 24 bits */
    u32 rank_mask;
    u32 *results; /* what each merge makes */
} Finder;

static u32 hash_name(const u8 *s, u32 n)
{
    u64 h = n;
    for (u32 i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001B3ull;
    return (u32)(mix(h, HASH0) >> 32);
}

/* Where a spelling stands among the names, or would. */
static u32 *name_place(const Finder *f, const u8 *s, u32 n)
{
    for (u32 i = hash_name(s, n) & f->name_mask;; i = (i + 1) & f->name_mask) {
        u32 size;
        if (f->names[i] == NO_TOKEN)
            return f->names + i;
        const u8 *other = spelling(f->v, f->names[i], &size);
        if (size == n && !memcmp(other, s, n))
            return f->names + i;
    }
}

static u64 *rank_place(const Finder *f, u32 left, u32 right)
{
    u64 pair = (u64)left << SYMBOL_BITS | right;
    for (u32 i = (u32)(hash_symbols(pair) >> 32) & f->rank_mask;; i = (i + 1) & f->rank_mask)
        if (f->ranks[i] == ~0ull || f->ranks[i] >> 24 == pair)
            return f->ranks + i;
}

static u32 rank_of(const Finder *f, u32 left, u32 right)
{
    u64 found = *rank_place(f, left, right);
    return found == ~0ull ? (u32)NO_RANK : (u32)found & NO_RANK;
}

static u32 table_size(u32 entries)
{
    u32 size = 1024;
    while (size / 2 < entries)
        size *= 2;
    return size;
}

static int name_tokens(Finder *f)
{
    for (u32 t = 0; t < f->v->count; t++) {
        u32 n;
        const u8 *s = spelling(f->v, t, &n);
        if (n > LONGEST_TOKEN)
            return SP_TOO_LONG;
        u32 *place = name_place(f, s, n);
        if (*place != NO_TOKEN)
            return SP_TWICE;
        *place = t;
    }
    return SP_GOOD;
}

/* Ranks are places in the list; of two equal merges the later one counts. */
static int rank_merges(Finder *f)
{
    const Vocabulary *v = f->v;
    u8 text[2 * LONGEST_TOKEN];
    for (u32 i = 0; i < v->merge_count; i++) {
        u32 left = v->merges[i][0], right = v->merges[i][1], left_size, right_size;
        if (left >= v->count || right >= v->count)
            return SP_UNKNOWN_RESULT;
        const u8 *first = spelling(v, left, &left_size), *second = spelling(v, right, &right_size);
        memcpy(text, first, left_size);
        memcpy(text + left_size, second, right_size);
        u32 made = *name_place(f, text, left_size + right_size);
        if (made == NO_TOKEN)
            return SP_UNKNOWN_RESULT;
        if (is_byte_token(first, left_size) || is_byte_token(second, right_size) ||
            is_byte_token(text, left_size + right_size))
            return SP_BYTES_MERGED;
        f->results[i] = made;
        *rank_place(f, left, right) = ((u64)left << SYMBOL_BITS | right) << 24 | i;
    }
    return SP_GOOD;
}

/* The characters of a token, as tokens; 0 for one with a blank, which no text has, or with one that has no token. */
static u32 characters_of(const Finder *f, const u8 *s, u32 n, u32 *parts)
{
    u32 count = 0;
    for (u32 i = 0, size; i < n; i += size) {
        size = size_of(s[i]);
        if (i + size > n || s[i] == ' ' || (parts[count++] = *name_place(f, s + i, size)) == NO_TOKEN)
            return 0;
    }
    return count;
}

/* The text of a token, encoded with all merges: the last of them, and its parts, if the token comes of it. */
static void find_last(const Finder *f, u32 token, u32 last[3])
{
    u32 n, made = NO_TOKEN, parts[LONGEST_TOKEN], ranks[LONGEST_TOKEN];
    const u8 *s = spelling(f->v, token, &n);
    n = characters_of(f, s, n, parts);
    for (u32 i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(f, parts[i], parts[i + 1]);
    while (n > 1) {
        u32 at = 0;
        for (u32 i = 1; i + 1 < n; i++)
            at = ranks[i] < ranks[at] ? i : at;
        if (ranks[at] == NO_RANK)
            break;
        last[0] = ranks[at];
        last[1] = parts[at];
        last[2] = parts[at + 1];
        parts[at] = made = f->results[ranks[at]];
        n--;
        memmove(parts + at + 1, parts + at + 2, (n - at - 1) * sizeof *parts);
        if (at + 1 < n) {
            memmove(ranks + at + 1, ranks + at + 2, (n - at - 2) * sizeof *ranks);
            ranks[at] = rank_of(f, made, parts[at + 1]);
        }
        if (at)
            ranks[at - 1] = rank_of(f, parts[at - 1], made);
    }
    if (n != 1 || made != token)
        last[0] = SP_NOT_LIVE;
}

/* For each token the rank of the one merge that makes it, or SP_NOT_LIVE, and the two tokens that are merged. */
int sp_live(const Vocabulary *v, u32 (*live)[3])
{
    if (v->count > NO_SYMBOL || v->merge_count >= MOST_MERGES)
        return SP_TOO_MANY;
    Finder f = {.v = v, .name_mask = table_size(v->count) - 1, .rank_mask = table_size(v->merge_count) - 1};
    f.names = malloc(((size_t)f.name_mask + 1) * sizeof(u32));
    f.ranks = malloc(((size_t)f.rank_mask + 1) * sizeof(u64));
    f.results = malloc(((size_t)v->merge_count + 1) * sizeof(u32));
    int why = f.names && f.ranks && f.results ? SP_GOOD : SP_NO_MEMORY;
    if (why == SP_GOOD) {
        memset(f.names, 0xFF, ((size_t)f.name_mask + 1) * sizeof(u32));
        memset(f.ranks, 0xFF, ((size_t)f.rank_mask + 1) * sizeof(u64));
        why = name_tokens(&f);
    }
    if (why == SP_GOOD)
        why = rank_merges(&f);
    for (u32 t = 0; t < v->count && why == SP_GOOD; t++) {
        memset(live[t], 0, sizeof *live);
        find_last(&f, t, live[t]);
    }
    free(f.names);
    free(f.ranks);
    free(f.results);
    return why;
}
