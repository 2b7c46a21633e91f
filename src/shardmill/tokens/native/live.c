/* A vocabulary and its merges → the merges that can ever happen, one for each token.
 *
 * A part of a text that is one token was made by its own text alone, since nothing was merged across its ends before. So a
 * token can only ever come about as its text does when it stands alone, by one and the same last merge; all other merges
 * that would give it never happen. */
#include <stdlib.h>

#include "engine.h"

enum {
    RANK_BITS = 24,
    LONGEST = 1 << 12, /* of a token */
};
/* Merging a token takes the square of its length: what all may take together. Real ones take less than 2^25. */
#define MOST_WORK (1ull << 28)

/* While live merges are found: tokens by their bytes, and merges by their two parts. */
typedef struct {
    const Vocabulary *v;
    int characters; /* what is merged: characters, or bytes */
    u64 *tokens;    /* open addressing */
    u32 token_mask;
    u64 *pairs; /* two tokens and the rank, open addressing; NULL without a list of merges */
    u32 pair_mask;
    u32 *results;    /* by rank, what is merged */
    u32 single[256]; /* the token of each byte */
} Finder;

/* The parts of a token while it is merged; rank[i] is that of part i with the next. */
typedef struct {
    u32 begin[LONGEST + 1], token[LONGEST], rank[LONGEST];
} Parts;

static u64 hash_bytes(const u8 *s, u32 n)
{
    u64 h = n, tail = 0;
    for (; n >= 8; s += 8, n -= 8)
        h = mix(h ^ load8(s), HASH0);
    memcpy(&tail, s, n);
    return mix(h ^ tail, HASH1);
}

/* Where a token of these bytes stands, or would: its hash above 1 + its number. */
static u64 *token_place(const Finder *f, const u8 *s, u32 n, u64 hash)
{
    for (u64 i = hash;; i++) {
        u64 *place = f->tokens + (i & f->token_mask);
        u32 token = (u32)*place - 1, size;
        if (!*place)
            return place;
        const u8 *other = spelling(f->v, token, &size);
        if (*place >> 32 == hash >> 32 && size == n && !memcmp(other, s, n))
            return place;
    }
}

/* The token of these bytes, or ~0. */
static u32 token_of(const Finder *f, const u8 *s, u32 n)
{
    return (u32)*token_place(f, s, n, hash_bytes(s, n)) - 1;
}

static u64 *pair_place(const Finder *f, u64 pair)
{
    for (u64 i = hash_pair(pair);; i++) {
        u64 *place = f->pairs + (i & f->pair_mask);
        if (*place == ~0ull || *place >> RANK_BITS == pair)
            return place;
    }
}

/* The rank of part i of a token merged with the next one; ~0 if they do not merge. */
static u32 rank_of(const Finder *f, const u8 *s, const Parts *p, u32 i)
{
    if (!f->pairs)
        return token_of(f, s + p->begin[i], p->begin[i + 2] - p->begin[i]);
    u64 found = *pair_place(f, (u64)p->token[i] << SYMBOL_BITS | p->token[i + 1]);
    return found == ~0ull ? ~0u : (u32)found & ((1 << RANK_BITS) - 1);
}

/* What a token is merged from: how many parts; 0 if one of them has no token. No text of characters has a blank. */
static u32 split(const Finder *f, const u8 *s, u32 n, Parts *p)
{
    u32 count = 0;
    for (u32 i = 0, size; i < n; i += size) {
        size = f->characters ? size_of(s[i]) : 1;
        u32 token = i + size > n ? ~0u : size == 1 ? f->single[s[i]] : token_of(f, s + i, size);
        if (token == ~0u || (f->characters && s[i] == ' '))
            return 0;
        p->begin[count] = i;
        p->token[count++] = token;
    }
    p->begin[count] = n;
    for (u32 i = 0; i + 1 < count; i++)
        p->rank[i] = rank_of(f, s, p, i);
    return count;
}

/* Merges the text of a token until two parts are left, as the reference would. Those may well have higher ranks than the
 * token: vocabularies have been put together from two. The rank of the last two, or ~0 if that merge does not happen. */
static u32 last_merge(const Finder *f, u32 token, Parts *p)
{
    u32 n;
    const u8 *s = spelling(f->v, token, &n);
    n = split(f, s, n, p);
    while (n > 2) {
        u32 at = 0;
        for (u32 i = 1; i + 1 < n; i++)
            at = p->rank[i] < p->rank[at] ? i : at;
        if (p->rank[at] == ~0u)
            return ~0u;
        p->token[at] = f->results[p->rank[at]];
        for (u32 i = at + 1; i + 1 < n; i++) {
            p->begin[i] = p->begin[i + 1];
            p->token[i] = p->token[i + 1];
            p->rank[i] = p->rank[i + 1];
        }
        n--;
        p->begin[n] = p->begin[n + 1];
        for (u32 i = at ? at - 1 : 0; i <= at && i + 1 < n; i++)
            p->rank[i] = rank_of(f, s, p, i);
    }
    return n == 2 && p->rank[0] != ~0u && f->results[p->rank[0]] == token ? p->rank[0] : ~0u;
}

static int note_merges(Finder *f)
{
    const Vocabulary *v = f->v;
    u8 both[2 * LONGEST];
    memset(f->pairs, 0xFF, ((size_t)f->pair_mask + 1) * sizeof(u64));
    for (u32 rank = 0; rank < v->merge_count; rank++) {
        u32 left = v->merges[2 * rank], right = v->merges[2 * rank + 1], first_size, second_size;
        if (left >= v->count || right >= v->count)
            return UNKNOWN_RESULT;
        const u8 *first = spelling(v, left, &first_size), *second = spelling(v, right, &second_size);
        if (first_size > LONGEST || second_size > LONGEST)
            return TOO_LONG;
        memcpy(both, first, first_size);
        memcpy(both + first_size, second, second_size);
        u32 whole = token_of(f, both, first_size + second_size);
        if (whole == ~0u)
            return UNKNOWN_RESULT;
        u64 pair = (u64)left << SYMBOL_BITS | right;
        *pair_place(f, pair) = pair << RANK_BITS | rank; /* of two equal ones the later counts */
        f->results[rank] = whole;
    }
    return GOOD;
}

static u32 mask_for(u32 entries)
{
    u32 mask = 255;
    while (mask / 2 < entries)
        mask = 2 * mask + 1;
    return mask;
}

static int start(Finder *f)
{
    const Vocabulary *v = f->v;
    size_t memory = 0; /* only for a moment */
    f->token_mask = mask_for(v->count);
    f->pair_mask = mask_for(v->merge_count);
    f->tokens = new_table(((size_t)f->token_mask + 1) * sizeof(u64), &memory);
    f->pairs = v->merges ? new_table(((size_t)f->pair_mask + 1) * sizeof(u64), &memory) : NULL;
    f->results = malloc(((size_t)(v->merges ? v->merge_count : v->count) + 1) * sizeof(u32));
    if (!f->tokens || (v->merges && !f->pairs) || !f->results)
        return NO_MEMORY;
    memset(f->single, 0xFF, sizeof f->single);
    for (u32 token = 0, n; token < v->count; token++) {
        const u8 *s = spelling(v, token, &n);
        u64 hash = hash_bytes(s, n);
        *token_place(f, s, n, hash) = hash >> 32 << 32 | (token + 1);
        if (n == 1)
            f->single[*s] = token;
        if (!v->merges)
            f->results[token] = token;
    }
    return v->merges ? note_merges(f) : GOOD;
}

/* For each token the rank of its merge and the two tokens that it merges; ~0 for the rank where no merge gives it. */
static int find_live(const Finder *f, Parts *parts, Live *live)
{
    u64 work = 0;
    for (u32 token = 0, n; token < f->v->count; token++) {
        live[token] = (Live){~0u, 0, 0};
        spelling(f->v, token, &n);
        if (n < 2)
            continue;
        work += (u64)n * n;
        if (n > LONGEST || work > MOST_WORK)
            return TOO_LONG;
        u32 rank = last_merge(f, token, parts);
        if (rank != ~0u)
            live[token] = (Live){rank, parts->token[0], parts->token[1]};
    }
    return GOOD;
}

/* Why there is no engine for a vocabulary, or GOOD. */
int engine_live(const Vocabulary *v, int characters, Live *live)
{
    if (v->count >= NONE || v->merge_count >= 1 << RANK_BITS)
        return TOO_MANY;
    Finder f = {.v = v, .characters = characters};
    Parts *parts = malloc(sizeof *parts);
    int why = parts ? start(&f) : NO_MEMORY;
    if (why == GOOD)
        why = find_live(&f, parts, live);
    free(parts);
    free(f.tokens);
    free(f.pairs);
    free(f.results);
    return why;
}
