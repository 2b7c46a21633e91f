/* The word that a text begins with: the patterns, read from left to right one character at a time. For words longer than
 * a window, and for the few places where the bits of a block do not tell (scan.h). */
#include "engine.h"

static u32 contraction_before(const Shape *shape, const u8 *p, const u8 *end)
{
    u8 few[4] = {0};
    memcpy(few, p, end - p < 4 ? (size_t)(end - p) : 4);
    return *few == '\'' ? contraction(shape, few) : 0;
}

/* The plane of the character at p, and its size; at the end neither. */
static u32 plane_at(const Engine *e, const u8 *p, const u8 *end, u32 *size)
{
    *size = 0;
    if (p >= end)
        return SPACES;
    u32 n = size_of(*p), left = (u32)(end - p < 4 ? end - p : 4);
    *size = n < left ? n : left;
    u32 point = point_at(p, *size);
    return point < CODE_POINTS ? e->plane[point] : OTHERS;
}

/* Behind the characters at p whose plane is among `planes`, one bit for each. */
static const u8 *run_of(const Engine *e, const u8 *p, const u8 *end, u32 planes, u32 most)
{
    u32 n;
    for (; p < end && most && planes >> plane_at(e, p, end, &n) & 1; p += n)
        most--;
    return p;
}

enum { ANY = ~0u };
/* Sets of planes. */
enum {
    ALL_OTHERS = 0x1111,
    ALL_LETTERS = 0x2222,
    ALL_NUMBERS = 0x4444,
    ALL_SPACES = 0x8888,
    UPPERS = 1 << (LETTERS | IS_UPPER),
    LOWERS = 1 << (LETTERS | IS_LOWER),
    MARKS = 1 << (LETTERS | IS_MARK),
    SYMBOLS = 0x0101,
    ODDS = 0x1010,
    HANS = 0xFF00,
};

static int is_newline(const Engine *e, const u8 *p, const u8 *end)
{
    return e->shape.newlines && p < end && (*p == '\n' || *p == '\r');
}

static size_t spaces(const Engine *e, const u8 *text, const u8 *end)
{
    const Shape *shape = &e->shape;
    const u8 *p = text, *last = p, *behind_newline = NULL;
    u32 n, next;
    for (; p < end && (plane_at(e, p, end, &n) & PLANE) == SPACES; p += n) {
        last = p;
        if (is_newline(e, p, end))
            behind_newline = p + 1;
    }
    next = plane_at(e, p, end, &n);
    int ends = p == end || (shape->numbers_first && 1 << next & (ALL_NUMBERS | (shape->kind == DEEPSEEK ? HANS : 0)));
    if (behind_newline && !(shape->whole_end && p == end))
        return (size_t)(behind_newline - text);
    return (size_t)((!ends && last > text ? last : p) - text);
}

/* [UB]*[lB]+ or [UB]+[lB]*, U upper, l lower, B neither; and a contraction. */
static const u8 *cased(const Engine *e, const u8 *p, const u8 *end)
{
    const u8 *behind_caseless = NULL;
    u32 n, plane;
    for (; p < end && 1 << (plane = plane_at(e, p, end, &n)) & ALL_LETTERS & ~LOWERS; p += n)
        if (!(1 << plane & UPPERS))
            behind_caseless = p + n;
    if (p < end && 1 << plane_at(e, p, end, &n) & LOWERS)
        p = run_of(e, p, end, ALL_LETTERS & ~UPPERS, ANY);
    else if (behind_caseless)
        p = behind_caseless;
    return p + (e->shape.contractions == SUFFIX ? contraction_before(&e->shape, p, end) : 0);
}

static const u8 *tail(const Engine *e, const u8 *p, const u8 *end)
{
    if (is_newline(e, p, end))
        while (is_newline(e, p, end) || (e->shape.slashes && p < end && *p == '/'))
            p++;
    return p;
}

static int is_ascii_letter(const u8 *p, const u8 *end)
{
    return p < end && (*p | 0x20) >= 'a' && (*p | 0x20) <= 'z';
}

/* Numbers, and runs of Han and kana, have been taken out: the third pattern is for what stands between them, and for
 * each of them. What it does not match is a word too. */
static size_t deepseek_size(const Engine *e, const u8 *text, const u8 *end)
{
    u32 n, next_size, plane = 1u << plane_at(e, text, end, &n), next = 1u << plane_at(e, text + n, end, &next_size);
    u32 side = plane & HANS ? HANS : ~(u32)HANS;
    const u8 *p = text;
    next = next_size ? next & side : 0;
    if (plane & ALL_NUMBERS)
        return (size_t)(run_of(e, p, end, ALL_NUMBERS, e->shape.digits) - text);
    if (plane & SYMBOLS && *p < 0x80 && is_ascii_letter(p + 1, end)) {
        for (p++; is_ascii_letter(p, end);)
            p++;
        return (size_t)(p - text);
    }
    if (plane & ALL_LETTERS || (next & ALL_LETTERS && plane & (ALL_SPACES | ODDS) && !is_newline(e, p, end)))
        return (size_t)(run_of(e, p + n, end, ALL_LETTERS & side, ANY) - text);
    if (plane & SYMBOLS || (*p == ' ' && next & SYMBOLS)) {
        p = run_of(e, p + n, end, SYMBOLS & side, ANY);
        return (size_t)((plane & HANS ? p : tail(e, p, end)) - text);
    }
    if (plane & ALL_SPACES)
        return spaces(e, text, end);
    for (p += n; p < end && 1u << plane_at(e, p, end, &n) & ODDS & side; p += n) /* the last may belong to letters */
        if (1u << plane_at(e, p + n, end, &next_size) & ALL_LETTERS & side)
            break;
    return (size_t)(p - text);
}

size_t word_size(const Engine *e, const u8 *text, size_t size)
{
    const Shape *shape = &e->shape;
    const u8 *p = text, *end = text + size;
    u32 n, next_size, plane = 1u << plane_at(e, p, end, &n), next = 1u << plane_at(e, p + n, end, &next_size);
    int blank = *p == ' ' && next_size;
    if (shape->kind == DEEPSEEK)
        return deepseek_size(e, text, end);
    if (shape->contractions != SUFFIX && contraction_before(shape, p, end))
        return contraction_before(shape, p, end);
    int prefix = shape->any_prefix ? !(plane & (ALL_LETTERS | ALL_NUMBERS)) && !is_newline(e, p, end) : blank;
    if (plane & ALL_LETTERS || (next & ALL_LETTERS && prefix)) {
        p += plane & ALL_LETTERS ? 0 : n;
        return (size_t)((shape->kind == CASED ? cased(e, p, end) : run_of(e, p, end, ALL_LETTERS, ANY)) - text);
    }
    if (plane & ALL_NUMBERS)
        return (size_t)(run_of(e, p, end, ALL_NUMBERS, shape->digits ? shape->digits : ANY) - text);
    if (!shape->digits && blank && next & ALL_NUMBERS)
        return (size_t)(run_of(e, p + n, end, ALL_NUMBERS, ANY) - text);
    if (plane & ALL_OTHERS || (blank && next & ALL_OTHERS)) {
        p = run_of(e, p + n, end, ALL_OTHERS | (shape->kind == CASED ? MARKS : 0), ANY);
        return (size_t)(tail(e, p, end) - text);
    }
    return spaces(e, text, end);
}
