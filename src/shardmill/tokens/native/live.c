/* A vocabulary and its merges → the merges that can ever happen, one for each token.
 *
 * A part of a word that is one token was made by its own bytes alone, since nothing was merged across its ends before.
 * So a token can only ever come about as its bytes do when they stand alone, by one and the same last merge; all other
 * merges that would give it never happen. */
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
    const Given *given;
    u64 *tokens; /* open addressing */
    u32 token_mask;
    u64 *pairs;              /* two tokens and the rank, open addressing; NULL without a list of merges */
    u32 pair_mask, ranks;
    u32 *results;            /* by rank, what is merged */
    u32 *byte_ranks;         /* by two bytes */
    u32 byte_token[256];
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

static u32 token_size(const Given *given, u32 token)
{
    return given->offsets[token + 1] - given->offsets[token];
}

/* Where a token of these bytes stands, or would: its hash above 1 + its number. */
static u64 *token_place(const Finder *f, const u8 *s, u32 n, u64 hash)
{
    const Given *given = f->given;
    for (u64 i = hash;; i++) {
        u64 *place = f->tokens + (i & f->token_mask);
        u32 token = (u32)*place - 1;
        if (!*place || (*place >> 32 == hash >> 32 && token_size(given, token) == n &&
                        !memcmp(given->vocabulary + given->offsets[token], s, n)))
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

/* The rank of two parts that stand side by side, which together are s; ~0 if they do not merge. */
static u32 rank_of(const Finder *f, u32 left, u32 right, const u8 *s, u32 n)
{
    if (!f->pairs)
        return token_of(f, s, n);
    u64 found = *pair_place(f, (u64)left << SYMBOL_BITS | right);
    return found == ~0ull ? ~0u : (u32)found & ((1 << RANK_BITS) - 1);
}

/* Merges the bytes of a token until two parts are left, as the reference would. Those may well have higher ranks than the
 * token: vocabularies have been put together from two. The rank of the last two, or ~0 if that merge does not happen. */
static u32 last_merge(const Finder *f, u32 token, const u8 *s, u32 n, Parts *p)
{
    for (u32 i = 0; i < n; i++) {
        p->begin[i] = i;
        p->token[i] = f->byte_token[s[i]];
        p->rank[i] = i + 1 < n ? f->byte_ranks[s[i] << 8 | s[i + 1]] : ~0u;
        if (p->token[i] == ~0u)
            return ~0u;
    }
    p->begin[n] = n;
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
        p->rank[at] = ~0u;
        for (u32 i = at ? at - 1 : 0; i <= at && i + 1 < n; i++)
            p->rank[i] = rank_of(f, p->token[i], p->token[i + 1], s + p->begin[i], p->begin[i + 2] - p->begin[i]);
    }
    return p->rank[0] != ~0u && f->results[p->rank[0]] == token ? p->rank[0] : ~0u;
}

/* False where the result of a merge is no token. */
static int note_merges(Finder *f)
{
    const Given *given = f->given;
    u8 both[2 * LONGEST];
    for (u32 rank = 0; rank < given->merge_count; rank++) {
        u32 left = given->merges[2 * rank], right = given->merges[2 * rank + 1];
        if (left >= given->count || right >= given->count || token_size(given, left) > LONGEST || token_size(given, right) > LONGEST)
            return 0;
        memcpy(both, given->vocabulary + given->offsets[left], token_size(given, left));
        memcpy(both + token_size(given, left), given->vocabulary + given->offsets[right], token_size(given, right));
        u32 whole = token_of(f, both, token_size(given, left) + token_size(given, right));
        if (whole == ~0u)
            return 0;
        u64 pair = (u64)left << SYMBOL_BITS | right;
        *pair_place(f, pair) = pair << RANK_BITS | rank; /* of two equal ones the later counts */
        f->results[rank] = whole;
    }
    return 1;
}

static int start(Finder *f, const Given *given)
{
    size_t memory = 0; /* only for a moment */
    f->given = given;
    f->ranks = given->merges ? given->merge_count : given->count;
    f->token_mask = f->pair_mask = 255;
    while (f->token_mask / 2 < given->count)
        f->token_mask = 2 * f->token_mask + 1;
    while (f->pair_mask / 2 < given->merge_count)
        f->pair_mask = 2 * f->pair_mask + 1;
    f->tokens = new_table(((size_t)f->token_mask + 1) * sizeof(u64), &memory);
    f->pairs = given->merges ? new_table(((size_t)f->pair_mask + 1) * sizeof(u64), &memory) : NULL;
    f->results = malloc(((size_t)f->ranks + 1) * sizeof(u32));
    f->byte_ranks = malloc(sizeof(u32) << 16);
    if (!f->tokens || (given->merges && !f->pairs) || !f->results || !f->byte_ranks)
        return 0;
    memset(f->byte_token, 0xFF, sizeof f->byte_token);
    for (u32 token = 0; token < given->count; token++) {
        const u8 *s = given->vocabulary + given->offsets[token];
        u32 n = token_size(given, token);
        u64 hash = hash_bytes(s, n);
        *token_place(f, s, n, hash) = hash >> 32 << 32 | (token + 1);
        if (n == 1)
            f->byte_token[*s] = token;
        if (!given->merges)
            f->results[token] = token;
    }
    if (given->merges) {
        memset(f->pairs, 0xFF, ((size_t)f->pair_mask + 1) * sizeof(u64));
        if (!note_merges(f))
            return 0;
    }
    for (u32 i = 0; i < 1 << 16; i++) {
        u8 two[2] = {(u8)(i >> 8), (u8)i};
        u32 left = f->byte_token[two[0]], right = f->byte_token[two[1]];
        f->byte_ranks[i] = left == ~0u || right == ~0u ? ~0u : rank_of(f, left, right, two, 2);
    }
    return 1;
}

/* For each token of several bytes the rank of its merge and the two tokens that it merges; ~0 for the rank where no merge
 * gives it. False where tokens are too long. */
static int find_live(const Finder *f, Parts *parts, Live *live)
{
    const Given *given = f->given;
    u64 work = 0;
    for (u32 token = 0; token < given->count; token++) {
        u32 n = token_size(given, token);
        live[token] = (Live){~0u, 0, 0};
        if (n < 2)
            continue;
        work += (u64)n * n;
        if (n > LONGEST || work > MOST_WORK)
            return 0;
        u32 rank = last_merge(f, token, given->vocabulary + given->offsets[token], n, parts);
        if (rank != ~0u)
            live[token] = (Live){rank, parts->token[0], parts->token[1]};
    }
    return 1;
}

/* False without memory, or when the vocabulary is not for this engine. */
int engine_live(const Given *given, Live *live)
{
    Finder f = {0};
    Parts *parts = malloc(sizeof *parts);
    int good = parts && given->count < NONE && given->merge_count < 1 << RANK_BITS && start(&f, given) &&
               find_live(&f, parts, live);
    free(parts);
    free(f.tokens);
    free(f.pairs);
    free(f.results);
    free(f.byte_ranks);
    return good;
}
