/* Text → the added tokens in it: the leftmost, and of those that begin there the longest, as the tokenizers library
 * finds them when special tokens are to be ordinary text.
 *
 * A trie of bytes is tried only where two bytes begin a token: text without any costs next to nothing. */
#include <stdlib.h>

#include "added.h"

#if defined(__SSE2__) && !defined(PLAIN_C)
#include <emmintrin.h>
#endif

enum { FEW = 8, NO_TOKEN = 0xFFFFFFFF };

typedef struct {
    u32 child, sibling, token;
    u8 byte;
} Node;

struct Added {
    u32 count, few; /* few: how many bytes begin a token, if FEW or less */
    u8 first[FEW];
    u8 begins[256];
    u64 pairs[256][4]; /* the first two bytes of a token; of a token of one byte, any second */
    u32 root[256];
    Node *nodes;
    u32 *ids;
    u8 *flags, *words; /* words: one bit for each code point, whether it is a letter, mark, digit or connector */
    size_t memory;
};

void added_free(Added *a)
{
    if (!a)
        return;
    free(a->nodes);
    free(a->ids);
    free(a->flags);
    free(a->words);
    free(a);
}

static void note_beginnings(Added *a)
{
    a->few = 0;
    for (u32 c = 0; c < 256; c++)
        if (a->begins[c]) {
            if (a->few < FEW)
                a->first[a->few] = (u8)c;
            a->few++;
        }
}

static void put(Added *a, u32 *nodes, const u8 *s, u32 n, u32 token)
{
    u32 *link = &a->root[s[0]], at = 0;
    for (u32 i = 0; i < n; i++) {
        for (at = *link; at && a->nodes[at].byte != s[i]; at = a->nodes[at].sibling)
            ;
        if (!at) {
            at = ++*nodes;
            a->nodes[at] = (Node){.sibling = *link, .token = NO_TOKEN, .byte = s[i]};
            *link = at;
        }
        link = &a->nodes[at].child;
    }
    if (a->nodes[at].token == NO_TOKEN)
        a->nodes[at].token = token;
    a->begins[s[0]] = 1;
    if (n > 1)
        a->pairs[s[0]][s[1] >> 6] |= 1ull << (s[1] & 63);
    else
        memset(a->pairs[s[0]], 0xFF, sizeof a->pairs[s[0]]);
}

/* count tokens; offsets[i] is where the bytes of each begin, none is empty. words has a bit for each code point, and is
 * read only for tokens that must be single words. NULL without memory. */
Added *added_new(const u8 *text, const u32 *offsets, const u32 *ids, const u8 *flags, u32 count, const u8 *words)
{
    Added *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->count = count;
    a->nodes = calloc((size_t)offsets[count] + 1, sizeof(Node));
    a->ids = malloc((size_t)count * sizeof(u32) + 1);
    a->flags = malloc((size_t)count + 1);
    a->words = words ? malloc(CODE_POINTS / 8) : NULL;
    if (!a->nodes || !a->ids || !a->flags || (words && !a->words)) {
        added_free(a);
        return NULL;
    }
    a->memory = sizeof *a + ((size_t)offsets[count] + 1) * sizeof(Node) + (size_t)count * 5 + (words ? CODE_POINTS / 8 : 0);
    memcpy(a->ids, ids, (size_t)count * sizeof(u32));
    memcpy(a->flags, flags, count);
    if (words)
        memcpy(a->words, words, CODE_POINTS / 8);
    u32 nodes = 0;
    for (u32 i = 0; i < count; i++)
        put(a, &nodes, text + offsets[i], offsets[i + 1] - offsets[i], i);
    note_beginnings(a);
    return a;
}

void added_pass_over(Added *a, u8 byte)
{
    a->begins[byte] = 0;
    note_beginnings(a);
}

static const u8 *longest(const Added *a, const u8 *s, const u8 *end, u32 *token)
{
    const u8 *stop = s;
    for (u32 at = a->root[*s]; at;) {
        s++;
        if (a->nodes[at].token != NO_TOKEN) {
            *token = a->nodes[at].token;
            stop = s;
        }
        if (s == end)
            break;
        for (at = a->nodes[at].child; at && a->nodes[at].byte != *s; at = a->nodes[at].sibling)
            ;
    }
    return stop;
}

size_t added_longest(const Added *a, const u8 *s, const u8 *end, u32 *id)
{
    u32 token = 0;
    size_t size = (size_t)(longest(a, s, end, &token) - s);
    *id = a->ids[token];
    return size;
}

/* The next place, from `at` on, where a byte begins a token. */
static size_t next_beginning(const Added *a, const u8 *s, size_t at, size_t size)
{
#if defined(__SSE2__) && !defined(PLAIN_C)
    for (; a->few <= FEW && at + 16 <= size; at += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(s + at)), any = _mm_setzero_si128();
        for (u32 i = 0; i < a->few; i++)
            any = _mm_or_si128(any, _mm_cmpeq_epi8(v, _mm_set1_epi8((char)a->first[i])));
        u32 here = (u32)_mm_movemask_epi8(any);
        if (here)
            return at + (size_t)__builtin_ctz(here);
    }
#endif
    while (at < size && !a->begins[s[at]])
        at++;
    return at;
}

/* The code point that begins at s, and its size; no byte at `end` or behind is read. */
static u32 character_at(const u8 *s, const u8 *end, size_t *size)
{
    u32 lead = *s, n = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    u32 point = n == 1 ? lead : lead & (0x7Fu >> n);
    if (n > (size_t)(end - s))
        n = (u32)(end - s);
    for (u32 i = 1; i < n; i++)
        point = point << 6 | (s[i] & 63);
    *size = n;
    return point;
}

static const u8 *character_before(const u8 *text, const u8 *s)
{
    const u8 *p = s - 1;
    while (p > text && s - p < 4 && (*p & 0xC0) == 0x80)
        p--;
    return p;
}

/* White_Space, as Unicode has had it for long. */
static int is_space(u32 point)
{
    return (point >= 9 && point <= 13) || point == 0x20 || point == 0x85 || point == 0xA0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 || point == 0x202F ||
           point == 0x205F || point == 0x3000;
}

static int is_word(const Added *a, u32 point)
{
    return a->words && point < CODE_POINTS && (a->words[point >> 3] >> (point & 7) & 1);
}

static int stands_alone(const Added *a, const u8 *text, size_t size, size_t start, size_t end)
{
    size_t n;
    if (start && is_word(a, character_at(character_before(text, text + start), text + start, &n)))
        return 0;
    return end == size || !is_word(a, character_at(text + end, text + size, &n));
}

/* Where the white space before `start` begins, but not before `from`. */
static size_t space_before(const u8 *text, size_t start, size_t from)
{
    size_t n;
    while (start > from) {
        const u8 *p = character_before(text, text + start);
        if (!is_space(character_at(p, text + start, &n)))
            break;
        start = (size_t)(p - text);
    }
    return start;
}

static size_t space_behind(const u8 *text, size_t size, size_t end)
{
    size_t n;
    while (end < size && is_space(character_at(text + end, text + size, &n)))
        end += n;
    return end;
}

int added_next(const Added *a, const u8 *text, size_t size, Search *search, Found *found)
{
    size_t at = search->next;
    while ((at = next_beginning(a, text, at, size)) < size) {
        const u64 *second = a->pairs[text[at]];
        u8 next = at + 1 < size ? text[at + 1] : 0;
        u32 token = 0;
        size_t end = at;
        if (at + 1 == size || (second[next >> 6] >> (next & 63) & 1))
            end = (size_t)(longest(a, text + at, text + size, &token) - text);
        if (end == at) {
            at++;
            continue;
        }
        size_t start = at;
        u8 flags = a->flags[token];
        at = search->next = end;
        if ((flags & ADDED_SPECIAL) || ((flags & ADDED_SINGLE_WORD) && !stands_alone(a, text, size, start, end)))
            continue;
        if (flags & ADDED_LSTRIP) { /* but not what the token before has taken */
            start = space_before(text, start, search->done);
            start = start > search->done ? start : search->done;
        }
        if (flags & ADDED_RSTRIP)
            end = search->space = end < search->space ? search->space : space_behind(text, size, end);
        search->done = end;
        if (start >= end) /* the token before has taken all of it */
            continue;
        *found = (Found){start, end, a->ids[token]};
        return 1;
    }
    search->next = size;
    return 0;
}

/* How many tokens all pieces hold; special ones are none. */
int64_t added_count(const Added *a, const u8 *const *pieces, const int64_t *sizes, int64_t count)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        Search search = {0};
        Found found;
        while (added_next(a, pieces[i], (size_t)sizes[i], &search, &found))
            tokens++;
    }
    return tokens;
}

static int64_t (*stretch(int64_t (*out)[4], int64_t piece, size_t start, size_t end, int64_t id))[4]
{
    if (start < end || id >= 0)
        memcpy(*out++, (int64_t[4]){piece, (int64_t)start, (int64_t)end, id}, sizeof *out);
    return out;
}

/* The pieces taken apart: for each stretch of text and each token its piece, start, end and id (-1: text). `out` has room
 * for two rows for each token and one for each piece. Returns the number of rows. */
int64_t added_split(const Added *a, const u8 *const *pieces, const int64_t *sizes, int64_t count, int64_t (*out)[4])
{
    int64_t(*row)[4] = out;
    for (int64_t i = 0; i < count; i++) {
        Search search = {0};
        Found found;
        size_t size = (size_t)sizes[i], done = 0;
        for (; added_next(a, pieces[i], size, &search, &found); done = search.done) {
            row = stretch(row, i, done, found.start, -1);
            row = stretch(row, i, found.start, found.end, (int64_t)found.id);
        }
        row = stretch(row, i, done, size, -1);
    }
    return row - out;
}

uint64_t added_memory(const Added *a)
{
    return a->memory;
}
