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
    AHEAD = 16,        /* what is asked for before it is read */
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

/* The two parts of a merge in one row: their size. */
static u32 join(const Vocabulary *v, u32 rank, u8 *both)
{
    u32 left = v->merges[2 * rank], right = v->merges[2 * rank + 1], first_size, second_size;
    const u8 *first = spelling(v, left, &first_size), *second = spelling(v, right, &second_size);
    memcpy(both, first, first_size);
    memcpy(both + first_size, second, second_size);
    return first_size + second_size;
}

/* Whether all merges are of tokens of a reasonable length. */
static int check_merges(const Vocabulary *v)
{
    for (u32 i = 0, n; i < 2 * v->merge_count; i++) {
        if (v->merges[i] >= v->count)
            return UNKNOWN_RESULT;
        spelling(v, v->merges[i], &n);
        if (n > LONGEST)
            return TOO_LONG;
    }
    return GOOD;
}

static int note_merges(Finder *f)
{
    const Vocabulary *v = f->v;
    u8 both[2 * LONGEST];
    u64 hashes[AHEAD];
    int why = check_merges(v);
    memset(f->pairs, 0xFF, ((size_t)f->pair_mask + 1) * sizeof(u64));
    for (u32 i = 0; i < v->merge_count + AHEAD && why == GOOD; i++) {
        if (i >= AHEAD) {
            u32 rank = i - AHEAD, size = join(v, rank, both);
            u32 whole = (u32)*token_place(f, both, size, hashes[i % AHEAD]) - 1;
            u64 pair = (u64)v->merges[2 * rank] << SYMBOL_BITS | v->merges[2 * rank + 1];
            *pair_place(f, pair) = pair << RANK_BITS | rank; /* of two equal ones the later counts */
            f->results[rank] = whole;
            why = whole == ~0u ? UNKNOWN_RESULT : GOOD;
        }
        if (i < v->merge_count) {
            u64 pair = (u64)v->merges[2 * i] << SYMBOL_BITS | v->merges[2 * i + 1];
            u32 size = join(v, i, both);
            hashes[i % AHEAD] = hash_bytes(both, size);
            __builtin_prefetch(f->tokens + (hashes[i % AHEAD] & f->token_mask));
            __builtin_prefetch(f->pairs + (hash_pair(pair) & f->pair_mask));
        }
    }
    return why;
}

static u32 mask_for(u32 entries)
{
    u32 mask = 255;
    while (mask / 2 < entries)
        mask = 2 * mask + 1;
    return mask;
}

/* Tokens by their bytes. A few are hashed before they are entered, since most places are far from the processor. */
static int note_tokens(Finder *f)
{
    const Vocabulary *v = f->v;
    size_t memory = 0; /* only for a moment */
    u64 hashes[AHEAD];
    f->token_mask = mask_for(v->count);
    f->tokens = new_table(((size_t)f->token_mask + 1) * sizeof(u64), &memory);
    if (!f->tokens)
        return NO_MEMORY;
    memset(f->single, 0xFF, sizeof f->single);
    for (u32 i = 0, n; i < v->count + AHEAD; i++) {
        if (i >= AHEAD) {
            const u8 *s = spelling(v, i - AHEAD, &n);
            u64 hash = hashes[i % AHEAD];
            *token_place(f, s, n, hash) = hash >> 32 << 32 | (i - AHEAD + 1);
            if (n == 1)
                f->single[*s] = i - AHEAD;
        }
        if (i < v->count) {
            const u8 *s = spelling(v, i, &n);
            hashes[i % AHEAD] = hash_bytes(s, n);
            __builtin_prefetch(f->tokens + (hashes[i % AHEAD] & f->token_mask));
        }
    }
    return GOOD;
}

static int start(Finder *f)
{
    const Vocabulary *v = f->v;
    size_t memory = 0;
    f->pair_mask = mask_for(v->merge_count);
    f->pairs = v->merges ? new_table(((size_t)f->pair_mask + 1) * sizeof(u64), &memory) : NULL;
    f->results = malloc(((size_t)(v->merges ? v->merge_count : v->count) + 1) * sizeof(u32));
    if ((v->merges && !f->pairs) || !f->results || note_tokens(f) != GOOD)
        return NO_MEMORY;
    for (u32 token = 0; !v->merges && token < v->count; token++)
        f->results[token] = token;
    return v->merges ? note_merges(f) : GOOD;
}

/* The tokens that many texts are, each of which ends with FF. GOOD, or UNKNOWN_RESULT if one is no token. */
int engine_numbers(const Vocabulary *v, const u8 *text, u32 *numbers, u32 count)
{
    Finder f = {.v = v};
    int why = note_tokens(&f);
    const u8 *begins[AHEAD + 1] = {text};
    u64 hashes[AHEAD];
    for (u32 i = 0, some; i < count && why == GOOD; i += some) {
        some = count - i < AHEAD ? count - i : AHEAD;
        for (u32 k = 0; k < some; k++) {
            const u8 *end = begins[k];
            while (*end != 0xFF)
                end++;
            hashes[k] = hash_bytes(begins[k], (u32)(end - begins[k]));
            __builtin_prefetch(f.tokens + (hashes[k] & f.token_mask));
            begins[k + 1] = end + 1;
        }
        for (u32 k = 0; k < some; k++) {
            numbers[i + k] = (u32)*token_place(&f, begins[k], (u32)(begins[k + 1] - begins[k] - 1), hashes[k]) - 1;
            why = numbers[i + k] == ~0u ? UNKNOWN_RESULT : why;
        }
        begins[0] = begins[some];
    }
    free(f.tokens);
    return why;
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
