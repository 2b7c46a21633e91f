/* Running text → where its passages begin, found from what stands nearby: whoever reads any part of a text, with enough
 * before and behind it, finds the same borders there.
 *
 * Candidates are of three classes: the beginning of a line between two characters that are visible; where there are no
 * lines, the blank between two visible characters; where there are neither, the character at each multiple of a grid.
 * A candidate counts if none of a better class that counts is within reach. It is a border if its key is the lowest of
 * all of its class that count within reach. The key is a hash of the 16 bytes before it and the 8 behind it; where a text
 * repeats itself, so that hashes are equal, a hash of the offset decides. So borders are more than `reach` apart, and
 * twice that on average.
 *
 * How far apart they may be at most: each multiple of 2 reach that is more than 4 reach from all borders is one, too.
 * The beginning and the end of the text count as borders. */
#include "texts.h"

#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { HASHED = 16, LINES = 0, BLANKS = 1, GRID = 2, GRID_OF_REACH = 16, FAR = 4, EVERY = 2, SPAN = 4096 };

/* Odd, and with no pattern: 2^64 over the golden ratio, and the constant of another hash. */
static const u64 FIRST = 0x9E3779B97F4A7C15u, SECOND = 0xBF58476D1CE4E5B9u;

typedef struct {
    u64 hash;
    int64_t at;
} Candidate;

/* The lowest within reach: of those before `since`, the candidates that no later one was lower than, the earliest and
 * lowest last; of those from `since` on, just the lowest. So most candidates are compared once, and are not lower. */
typedef struct {
    Candidate *ring, *before;
    u64 mask, since, after, count;
    Candidate lowest, pending;
    int has_lowest, has_pending;
} Lowest;

typedef struct {
    const u8 *data;
    int64_t size, offset, reach;
    int64_t from, until, last, count, most;
    int64_t *out;
    u8 *visible;
    int64_t looked; /* up to here newlines were looked for; those found in the last span, and which is next */
    u32 found, passed;
    u32 newlines[SPAN + 2];
    Lowest lowest[GRID + 1];
} Search;

static inline u64 mixed(u64 a, u64 b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (u64)product ^ (u64)(product >> 64);
}

static inline u64 word(const u8 *p)
{
    u64 x;
    memcpy(&x, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

/* Whether the n bytes at p are one character of UTF-8 that is no white space. */
static int is_visible(const u8 *p, int n)
{
    uint32_t c = p[0];
    if (n == 1)
        return c > 0x20 && c < 0x80;
    if (n != (c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0))
        return 0;
    c &= 0x7Fu >> n;
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3F);
    }
    if ((n == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (n == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 0;
    return !(c == 0x85 || c == 0xA0 || c == 0x1680 || c == 0x180E || (c >= 0x2000 && c <= 0x200B) || c == 0x2028 ||
             c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000 || c == 0xFEFF);
}

static int visible_at(const Search *s, int64_t at)
{
    u8 c = at < s->size ? s->data[at] : 0;
    int n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return at + n <= s->size && is_visible(s->data + at, n);
}

static int visible_before(const Search *s, int64_t at)
{
    int n = 1;
    while (n < 4 && n < at && (s->data[at - n] & 0xC0) == 0x80)
        n++;
    return is_visible(s->data + at - n, n);
}

static u64 chance(const Search *s, int64_t at)
{
    return mixed(mixed((u64)(s->offset + at) ^ FIRST, SECOND) ^ FIRST, SECOND);
}

static inline int is_lower(const Search *s, const Candidate *a, const Candidate *b)
{
    return a->hash != b->hash ? a->hash < b->hash : chance(s, a->at) < chance(s, b->at);
}

static void put(Search *s, int64_t at, u8 visible)
{
    if (at >= s->from && at < s->until && s->count < s->most) {
        s->visible[s->count] = visible;
        s->out[s->count++] = at;
    }
}

/* A border that is found, and those before it that keep passages from becoming too long. */
static void emit(Search *s, int64_t at, u8 visible)
{
    int64_t far = FAR * s->reach, every = EVERY * s->reach;
    int64_t point = (s->last + far + s->offset) / every * every - s->offset;
    for (; point < at - far; point += every) {
        if (point <= s->last + far)
            continue;
        int64_t whole = point;
        while (whole && point - whole < 3 && (s->data[whole] & 0xC0) == 0x80)
            whole--;
        put(s, whole, 0);
    }
    put(s, at, visible);
    s->last = at;
}

static void confirm(Search *s, Lowest *l)
{
    if (l->has_pending)
        emit(s, l->pending.at, l != &s->lowest[GRID]);
    l->has_pending = 0;
}

/* The lowest from `since` on is out of reach: the others are all that is left. */
static void look_back(const Search *s, Lowest *l, int64_t at)
{
    l->count = 0;
    for (u64 i = l->after; i != l->since; i--) {
        const Candidate *c = &l->ring[(i - 1) & l->mask];
        if (at - c->at > s->reach)
            break;
        if (!l->count || is_lower(s, c, &l->before[l->count - 1]))
            l->before[l->count++] = *c;
    }
    l->since = l->after;
    l->has_lowest = 0;
}

static inline void push(Search *s, Lowest *l, Candidate new)
{
    if (l->has_lowest && new.at - l->lowest.at > s->reach)
        look_back(s, l, new.at);
    while (l->count && new.at - l->before[l->count - 1].at > s->reach)
        l->count--;
    l->ring[l->after++ & l->mask] = new;
    if (l->has_lowest && !is_lower(s, &new, &l->lowest))
        return;
    l->lowest = new;
    l->has_lowest = 1;
    if (!l->count || is_lower(s, &new, &l->before[l->count - 1])) {
        l->since = l->after = l->count = 0; /* none before it can be a border */
        l->pending = new;
        l->has_pending = 1;
    }
}

static inline Candidate candidate(const Search *s, int class, int64_t at)
{
    const u8 *p = s->data + at;
    if (class == GRID)
        return (Candidate){0, at};
    u64 before = mixed(word(p - 16) ^ FIRST, word(p - 8) ^ SECOND);
    return (Candidate){mixed(before ^ FIRST, word(p) ^ SECOND), at};
}

/* Which of 64 bytes are newlines. */
static inline u64 newlines_of(const u8 *p)
{
    u64 found = 0;
#if defined(__SSE2__)
    for (int i = 0; i < 4; i++) {
        __m128i some = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        found |= (u64)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(some, _mm_set1_epi8('\n'))) << 16 * i;
    }
#else
    const u64 low = 0x7F7F7F7F7F7F7F7Fu;
    for (int i = 0; i < 8; i++) {
        u64 other = word(p + 8 * i) ^ 0x0A0A0A0A0A0A0A0Au; /* its zero bytes are newlines */
        u64 zeros = ~(((other & low) + low) | other | low);
        found |= ((zeros >> 7) * 0x0102040810204080u >> 56) << 8 * i;
    }
#endif
    return found;
}

/* The newlines of the next span. Most blocks have none or one, nobody can tell which: so two are noted without a
 * branch, and what is not there is written over. */
static void look_on(Search *s)
{
    int64_t left = s->size - s->looked, span = left < SPAN ? left : SPAN;
    const u8 *data = s->data + s->looked;
    u8 rest[64] = {0};
    u32 *out = s->newlines;
    for (u32 block = 0; block < span; block += 64) {
        const u8 *p = data + block;
        if (span - block < 64)
            p = memcpy(rest, p, (size_t)(span - block));
        u64 found = newlines_of(p);
        for (int i = 0; i < 2; i++, found &= found - 1) {
            *out = block + (u32)__builtin_ctzll(found | 1ull << 63);
            out += found != 0;
        }
        for (; found; found &= found - 1)
            *out++ = block + (u32)__builtin_ctzll(found);
    }
    s->found = (u32)(out - s->newlines);
    s->passed = 0;
    s->looked += span;
}

static inline int is_plain(u8 c)
{
    return c > 0x20 && c < 0x80;
}

/* The next line, blank or point of the grid in [at, until); -1 if there is none. Lines are asked for from left to right. */
static inline int64_t next_line(Search *s, int64_t at, int64_t until)
{
    at = at > HASHED ? at : HASHED;
    for (;; look_on(s)) {
        int64_t span = (s->looked - 1) / SPAN * SPAN;
        for (; s->passed < s->found; s->passed++) {
            int64_t line = span + s->newlines[s->passed] + 1;
            if (line >= until)
                return -1;
            if (line < at || s->data[line] == '/')
                continue;
            if ((is_plain(s->data[line]) || visible_at(s, line)) && (is_plain(s->data[line - 2]) || visible_before(s, line - 1)))
                return line;
        }
        if (s->looked >= until)
            return -1;
    }
}

/* One in 16 of the blanks, picked by the bytes beside it: hashing them all would take most of the time. */
static int64_t next_blank(const Search *s, int64_t at, int64_t until)
{
    at = at > HASHED ? at : HASHED;
    until = until < s->size - 1 ? until : s->size - 1;
    while (at < until) {
        int64_t step = 1;
        unsigned found = s->data[at] == ' ' && ((s->data[at - 1] ^ s->data[at + 1]) & 15) == 0;
#if defined(__SSE2__)
        if (at + 16 <= until) {
            const u8 *p = s->data + at;
            __m128i here = _mm_loadu_si128((const __m128i *)p);
            __m128i beside = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(p - 1)), _mm_loadu_si128((const __m128i *)(p + 1)));
            __m128i picked = _mm_cmpeq_epi8(_mm_and_si128(beside, _mm_set1_epi8(15)), _mm_setzero_si128());
            found = (unsigned)_mm_movemask_epi8(_mm_and_si128(picked, _mm_cmpeq_epi8(here, _mm_set1_epi8(' '))));
            step = 16;
        }
#endif
        for (; found; found &= found - 1) {
            int64_t blank = at + __builtin_ctz(found);
            if (visible_at(s, blank + 1) && visible_before(s, blank))
                return blank;
        }
        at += step;
    }
    return -1;
}

static int64_t next_on_grid(const Search *s, int64_t at, int64_t until)
{
    int64_t step = s->reach / GRID_OF_REACH > 1 ? s->reach / GRID_OF_REACH : 1;
    for (int64_t point = (s->offset + at + step - 1) / step * step - s->offset; point < until; point += step)
        if ((s->data[point] & 0xC0) != 0x80)
            return point;
    return -1;
}

static inline int64_t next(Search *s, int class, int64_t at, int64_t until)
{
    return class == LINES ? next_line(s, at, until) : class == BLANKS ? next_blank(s, at, until) : next_on_grid(s, at, until);
}

/* All borders of a class, and of those behind it where it has no candidates, in [low, high). */
static void search(Search *s, int class, int64_t low, int64_t high)
{
    Lowest *l = &s->lowest[class];
    l->since = l->after = l->count = 0;
    l->has_lowest = l->has_pending = 0;
    int64_t free_from = low; /* what is not within reach of a candidate begins here */
    for (int64_t at = low; at < high; at++) {
        int64_t found = next(s, class, at, high), free_until = found < 0 ? high : found - s->reach;
        at = found < 0 ? high : found;
        if (l->has_pending && at - l->pending.at > s->reach)
            confirm(s, l);
        if (class < GRID && free_from < free_until)
            search(s, class + 1, free_from, free_until);
        if (found < 0)
            break;
        push(s, l, candidate(s, class, found));
        free_from = found + s->reach + 1;
    }
    confirm(s, l);
}

/* Borders in [from, until) of a buffer that is at this offset of the text. begins, ends: the text does so with the buffer;
 * otherwise there are 8 reach more of it on that side of [from, until): a border is told by what is within 3 reach, a
 * missing one by the borders within 4. reach is at least 32. visible: which are lines or blanks between visible characters.
 * Returns how many, at most `most`; -1 without memory. */
int64_t passages_borders(const u8 *data, int64_t size, int64_t offset, int64_t reach, int64_t begins, int64_t ends,
                         int64_t from, int64_t until, int64_t *out, u8 *visible, int64_t most)
{
    Search s = {.data = data, .size = size, .offset = offset, .reach = reach, .from = from, .until = until};
    s.out = out;
    s.visible = visible;
    s.most = most;
    size_t room = 64;
    while (room < (size_t)reach / 2 + 2) /* candidates are at least two bytes apart */
        room *= 2;
    Candidate *rings = malloc(sizeof(Candidate) * room * 2 * (GRID + 1));
    if (!rings)
        return -1;
    for (size_t class = 0; class <= GRID; class++)
        s.lowest[class] = (Lowest){.ring = rings + 2 * class * room, .before = rings + (2 * class + 1) * room, .mask = room - 1};
    int64_t low = begins ? reach : HASHED, high = size - (ends ? reach : HASHED);
    if (low < high)
        search(&s, LINES, low, high);
    emit(&s, size, 0);
    free(rings);
    return s.count;
}
