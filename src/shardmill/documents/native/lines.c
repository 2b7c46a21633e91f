/* Lines of JSON → the text in one field of each.
 *
 * Each line is parsed in full, and no line that Python's json would refuse is accepted. Some that it would accept are
 * declined: a field that is missing, repeated or not a string, a lone surrogate in the text, an escape in a key, a blank
 * line, NaN, deep nesting. The caller parses those lines itself, and says what is wrong with them, if anything is.
 *
 * A line that is not UTF-8 is declined too. */
#include "lines.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { VERSION = 12, DEEPEST = 64, STEP = 16 };

/* The path to the field: its names, concatenated, and where each ends. */
typedef struct {
    const u8 *names;
    const int64_t *ends;
    int64_t count;
} Path;

typedef struct {
    const u8 *at, *end;
    u8 *out;
    Path path;
} Scan;

/* How many of the next STEP bytes of a string need no unescaping; all of them are copied. */
static inline int plain(const u8 *from, u8 *to)
{
#if defined(__SSE2__)
    __m128i some = _mm_loadu_si128((const __m128i *)from);
    __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(some, _mm_set1_epi8('"')), _mm_cmpeq_epi8(some, _mm_set1_epi8('\\')));
    odd = _mm_or_si128(odd, _mm_cmpeq_epi8(_mm_min_epu8(some, _mm_set1_epi8(0x1F)), some));
    if (to)
        _mm_storeu_si128((__m128i *)to, some);
    int found = _mm_movemask_epi8(odd);
    return found ? __builtin_ctz((unsigned)found) : STEP;
#elif defined(__aarch64__)
    uint8x16_t some = vld1q_u8(from);
    uint8x16_t odd = vorrq_u8(vceqq_u8(some, vdupq_n_u8('"')), vceqq_u8(some, vdupq_n_u8('\\')));
    odd = vorrq_u8(odd, vcltq_u8(some, vdupq_n_u8(0x20)));
    if (to)
        vst1q_u8(to, some);
    /* Four bits of each byte. */
    uint64_t found = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(odd), 4)), 0);
    return found ? __builtin_ctzll(found) / 4 : STEP;
#else
    int count = 0;
    while (count < STEP && from[count] != '"' && from[count] != '\\' && from[count] >= 0x20)
        count++;
    if (to)
        memcpy(to, from, STEP);
    return count;
#endif
}

static int hex(u8 c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX; -1 if there are not four. */
static int32_t code_unit(const Scan *s, const u8 *at)
{
    int32_t unit = 0;
    if (s->end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex(at[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static void put(Scan *s, uint32_t point)
{
    if (point < 0x80) {
        *s->out++ = (u8)point;
    } else if (point < 0x800) {
        *s->out++ = (u8)(0xC0 | point >> 6);
        *s->out++ = (u8)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *s->out++ = (u8)(0xE0 | point >> 12);
        *s->out++ = (u8)(0x80 | (point >> 6 & 0x3F));
        *s->out++ = (u8)(0x80 | (point & 0x3F));
    } else {
        *s->out++ = (u8)(0xF0 | point >> 18);
        *s->out++ = (u8)(0x80 | (point >> 12 & 0x3F));
        *s->out++ = (u8)(0x80 | (point >> 6 & 0x3F));
        *s->out++ = (u8)(0x80 | (point & 0x3F));
    }
}

/* \uXXXX, after its u; wanted: it is part of the text, where a surrogate must have its other half. */
static int unicode_escape(Scan *s, int wanted)
{
    int32_t unit = code_unit(s, s->at);
    if (unit < 0)
        return 0;
    s->at += 4;
    if (!wanted)
        return 1;
    if (unit >= 0xD800 && unit < 0xE000) {
        if (unit >= 0xDC00 || s->end - s->at < 6 || s->at[0] != '\\' || s->at[1] != 'u')
            return 0;
        int32_t low = code_unit(s, s->at + 2);
        if (low < 0xDC00 || low >= 0xE000)
            return 0;
        s->at += 6;
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    put(s, (uint32_t)unit);
    return 1;
}

/* A string, after its opening quote; wanted: it is the text, and is written to out. */
static int string(Scan *s, int wanted)
{
    static const char meant[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    for (;;) {
        while (s->end - s->at >= STEP) {
            int count = plain(s->at, wanted ? s->out : 0);
            s->at += count;
            s->out += wanted ? count : 0;
            if (count < STEP)
                break;
        }
        if (s->at == s->end || *s->at < 0x20)
            return 0;
        u8 c = *s->at++;
        if (c == '"')
            return 1;
        if (c == '\\') {
            if (s->at == s->end)
                return 0;
            c = *s->at++;
            if (c == 'u') {
                if (!unicode_escape(s, wanted))
                    return 0;
                continue;
            }
            const char *pair = meant;
            while (*pair && (u8)*pair != c)
                pair += 2;
            if (!*pair)
                return 0;
            c = (u8)pair[1];
        }
        if (wanted)
            *s->out++ = c;
    }
}

static void space(Scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

/* Consumes this byte and the white space before it, if it comes next. */
static int next_is(Scan *s, u8 c)
{
    space(s);
    if (s->at == s->end || *s->at != c)
        return 0;
    s->at++;
    return 1;
}

static int digits(Scan *s)
{
    const u8 *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > from;
}

static int number(Scan *s)
{
    if (*s->at == '-')
        s->at++;
    if (s->at < s->end && *s->at == '0')
        s->at++;
    else if (!digits(s))
        return 0;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits(s))
            return 0;
    }
    if (s->at < s->end && (*s->at | 0x20) == 'e') {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        return digits(s);
    }
    return 1;
}

static int literal(Scan *s, const char *word)
{
    int64_t size = (int64_t)strlen(word);
    if (s->end - s->at < size || memcmp(s->at, word, (size_t)size))
        return 0;
    s->at += size;
    return 1;
}

static int object(Scan *s, int depth, int level);

static int list(Scan *s, int depth);

/* Any value that is not the text. */
static int value(Scan *s, int depth)
{
    space(s);
    if (s->at == s->end || depth == DEEPEST)
        return 0;
    switch (*s->at) {
    case '"':
        s->at++;
        return string(s, 0);
    case '{':
        s->at++;
        return object(s, depth + 1, -1);
    case '[':
        s->at++;
        return list(s, depth + 1);
    case 't':
        return literal(s, "true");
    case 'f':
        return literal(s, "false");
    case 'n':
        return literal(s, "null");
    default:
        return number(s);
    }
}

static int list(Scan *s, int depth)
{
    if (next_is(s, ']'))
        return 1;
    do {
        if (!value(s, depth))
            return 0;
    } while (next_is(s, ','));
    return next_is(s, ']');
}

/* Whether the key that just ended is the one at this level of the path; -1: it has an escape, so it may be. */
static int is_named(const Scan *s, const u8 *from, int level)
{
    int64_t size = s->at - 1 - from;
    int64_t begin = level ? s->path.ends[level - 1] : 0;
    if (memchr(from, '\\', (size_t)size))
        return -1;
    return size == s->path.ends[level] - begin && !memcmp(from, s->path.names + begin, (size_t)size);
}

/* An object, after its brace. At a level of the path it must have the key of that level exactly once. */
static int object(Scan *s, int depth, int level)
{
    int found = 0;
    if (next_is(s, '}'))
        return level < 0;
    do {
        if (!next_is(s, '"'))
            return 0;
        const u8 *from = s->at;
        if (!string(s, 0))
            return 0;
        int named = level < 0 ? 0 : is_named(s, from, level);
        if (named < 0 || !next_is(s, ':'))
            return 0;
        if (!named) {
            if (!value(s, depth))
                return 0;
        } else if (found++) {
            return 0;
        } else if (level + 1 < s->path.count) {
            if (depth == DEEPEST || !next_is(s, '{') || !object(s, depth + 1, level + 1))
                return 0;
        } else if (!next_is(s, '"') || !string(s, 1)) {
            return 0;
        }
    } while (next_is(s, ','));
    return next_is(s, '}') && (level < 0 || found);
}

int64_t lines_version(void)
{
    return VERSION;
}

/* A whole line that is an object with the text. */
static int line(Scan *s)
{
    if (!next_is(s, '{') || !object(s, 1, 0))
        return 0;
    space(s);
    if (s->at == s->end)
        return 1;
    return *s->at++ == '\n';
}

/* Writes the texts of `count` lines to out, concatenated; it has room for size + STEP bytes. texts and sizes get where each
 * stands, starts where its line does, declined whether its line was: then it has no text. unusual: how many have none. If
 * none has none, hashes, unless null, get those of the first `most` bytes of each. Returns how many bytes these lines are. */
int64_t lines_texts(Lines *g)
{
    Scan s = {g->data, g->data + g->size, g->out, {g->names, g->name_ends, g->name_count}};
    g->unusual = 0;
    for (int64_t i = 0; i < g->count; i++) {
        const u8 *begin = s.at;
        u8 *text = s.out;
        g->starts[i] = begin - g->data;
        g->declined[i] = !line(&s) || !is_utf8(begin, s.at);
        if (g->declined[i]) {
            const u8 *newline = memchr(begin, '\n', (size_t)(s.end - begin));
            s.at = newline ? newline + 1 : s.end;
            s.out = text;
        }
        g->texts[i] = text;
        g->sizes[i] = s.out - text;
        g->unusual += s.out == text;
    }
    if (g->hashes && !g->unusual)
        texts_hashes(g->texts, g->sizes, g->count, g->most, g->seed, g->hashes);
    return s.at - g->data;
}
