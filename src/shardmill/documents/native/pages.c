/* Pages of Parquet: their headers, and the rows in them. Whatever they claim, nothing beyond their bytes is read. */
#include "pages.h"

#include <string.h>

enum { DEEPEST = 8, FIELDS = 9 };
enum { ENDS = 1, DAMAGED = 2 };

typedef struct {
    const u8 *at, *end;
    int wrong;
} Cursor;

static void skip(Cursor *c, u64 size)
{
    int ends = size > (u64)(c->end - c->at);
    c->wrong |= ends ? ENDS : 0;
    c->at = ends ? c->end : c->at + size;
}

static u8 byte(Cursor *c)
{
    u8 found = c->at < c->end ? *c->at : 0;
    skip(c, 1);
    return found;
}

/* Seven bits in each byte. */
static u64 varint(Cursor *c)
{
    u64 number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        u8 some = byte(c);
        number |= (u64)(some & 127) << shift;
        if (some < 128)
            return number;
    }
    c->wrong |= DAMAGED;
    return 0;
}

static int64_t zigzag(Cursor *c)
{
    u64 number = varint(c);
    return (int64_t)(number >> 1 ^ -(number & 1));
}

/* A value in Thrift's compact protocol: a number, or -1 for what is none. Of a struct, the numbers in its first fields
 * are noted in the first row of `numbers`; of the outermost, those in the structs inside it in the rows below.
 *
 * Every value takes a byte at least, so the work is bounded by the bytes. */
static int64_t value(Cursor *c, int kind, int depth, int64_t (*numbers)[FIELDS])
{
    if (depth > DEEPEST + 1)
        c->wrong |= DAMAGED;
    if (c->wrong)
        return -1;
    switch (kind) {
    case 1:
    case 2:
        return kind == 1;
    case 3:
        return byte(c);
    case 4:
    case 5:
    case 6:
        return zigzag(c);
    case 7:
        skip(c, 8);
        return -1;
    case 8:
        skip(c, varint(c));
        return -1;
    case 9:
    case 10: {
        u8 head = byte(c), inner = head & 15;
        u64 count = head >> 4 == 15 ? varint(c) : head >> 4;
        while (count-- && !c->wrong) /* in a list, a boolean is a byte */
            value(c, inner == 1 || inner == 2 ? 3 : inner, depth + 1, NULL);
        return -1;
    }
    case 12: {
        u64 field = 0;
        for (u8 head; (head = byte(c)) && !c->wrong;) {
            field = head >> 4 ? field + (head >> 4) : (u64)zigzag(c);
            int noted = numbers && field && field < FIELDS, is_struct = (head & 15) == 12;
            int64_t found = value(c, head & 15, depth + 1, noted && !depth ? numbers + field : NULL);
            if (noted && (depth || !is_struct))
                numbers[0][field] = found;
        }
        return -1;
    }
    default:
        c->wrong |= DAMAGED;
        return -1;
    }
}

static const int64_t MOST = INT32_MAX, NONE = INT64_MIN;

static int64_t given(int64_t number, int64_t otherwise)
{
    return number == NONE ? otherwise : number;
}

/* How long the header of a page is; 0: longer than this; -1: damaged. */
int64_t pages_header(const u8 *data, int64_t size, Header *header)
{
    int64_t numbers[FIELDS][FIELDS];
    Cursor c = {data, data + size, 0};
    for (int i = 0; i < FIELDS; i++)
        for (int j = 0; j < FIELDS; j++)
            numbers[i][j] = NONE;
    value(&c, 12, 0, numbers);
    if (c.wrong)
        return c.wrong & DAMAGED ? -1 : 0;
    int v2 = numbers[0][1] == DATA_V2, inner = v2 ? 8 : numbers[0][1] == DICTIONARY ? 7 : 5;
    const int64_t *of = numbers[inner], repeated = v2 ? given(of[6], 0) : 0;
    *header = (Header){
        .kind = numbers[0][1],
        .size = numbers[0][2],
        .compressed = numbers[0][3],
        .values = given(of[1], 0),
        .encoding = given(of[v2 ? 4 : 2], 0),
        .levels = v2 ? given(of[5], 0) : 0,
        .packed = !v2 || of[7],
    };
    const int64_t all[] = {header->kind,   header->size,     header->compressed, header->values,
                           header->levels, header->encoding, repeated};
    int wrong = numbers[0][inner] != NONE;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        wrong |= all[i] < 0 || all[i] > MOST;
    header->levels += wrong ? 0 : repeated;
    return wrong || header->levels > header->size || header->levels > header->compressed ? -1 : c.at - data;
}

/* Goes to the next run if this one is over; 0: there is none. */
static int has_number(Runs *r)
{
    while (!r->left && r->at < r->size) {
        Cursor c = {r->data + r->at, r->data + r->size, 0};
        u64 head = varint(&c), count = head >> 1, bits = (u64)r->width, room = (u64)(c.end - c.at);
        r->bit = head & 1 ? (c.at - r->data) * 8 : -1;
        if (!(head & 1)) {
            r->number = 0;
            for (u64 i = 0; i < (bits + 7) / 8; i++)
                r->number |= (u64)byte(&c) << 8 * i;
        } else if (bits && count > room / bits) { /* fewer where the data ends */
            count = room * 8 / bits;
            skip(&c, room);
        } else {
            skip(&c, count * bits);
            count = count < (u64)MOST ? count * 8 : (u64)MOST;
        }
        r->left = c.wrong ? 0 : (int64_t)count;
        r->at = c.wrong ? r->size : c.at - r->data;
    }
    return r->left > 0;
}

static u64 next_number(Runs *r)
{
    r->left--;
    if (r->bit < 0)
        return r->number;
    u64 some = 0;
    for (int64_t at = r->bit / 8, i = 0; i < 5 && at + i < r->size; i++)
        some |= (u64)r->data[at + i] << 8 * i;
    some >>= r->bit % 8;
    r->bit += r->width;
    return some & (((u64)1 << r->width) - 1);
}

static int find_value(Page *p)
{
    if (p->ends) {
        if (!has_number(&p->numbers))
            return NO_VALUE;
        u64 number = next_number(&p->numbers);
        if (number >= (u64)p->words)
            return NO_WORD;
        p->start = (number ? p->ends[number - 1] : 0) + (int64_t)4;
        p->length = p->ends[number] - p->start;
        return DONE;
    }
    if (p->size - p->at < 4)
        return NO_VALUE;
    const u8 *size = p->data + p->at;
    int64_t length = (int64_t)(size[0] | (u32)size[1] << 8 | (u32)size[2] << 16 | (u32)size[3] << 24);
    if (length > p->size - p->at - 4)
        return NO_VALUE;
    p->start = p->at + 4;
    p->length = length;
    p->at = p->start + length;
    return DONE;
}

static int next_row(Page *p, Window *w)
{
    if (p->level < 0) {
        if (p->top && !has_number(&p->levels))
            return NO_LEVEL;
        p->level = !p->top || next_number(&p->levels) == (u64)p->top;
    }
    int why = p->level && p->length < 0 ? find_value(p) : DONE;
    if (why)
        return why;
    int is_long = p->level && p->length > w->longest;
    if (w->count && (is_long || (p->level && w->size + p->length > w->room)))
        return FULL;
    p->rows--;
    if (is_long) {
        p->level = -1;
        return LONG;
    }
    w->texts[w->count] = p->level ? (const u8 *)((uintptr_t)p->data + (uintptr_t)p->start) : (const u8 *)"";
    w->sizes[w->count] = p->level ? p->length : 0;
    w->null[w->count] = !p->level;
    w->size += w->sizes[w->count++];
    p->level = p->length = -1;
    return DONE;
}

/* Adds rows of a page to a window, and tells in `why` what comes next: the page is done, the window is full, a value that
 * is longer than `longest` is next and only its place is told, or what is missing. */
void pages_rows(Page *p, Window *w)
{
    if (p->level < 0) /* a long value was told */
        p->length = -1;
    p->why = DONE;
    while (p->rows && !p->why)
        p->why = w->count < w->most ? next_row(p, w) : FULL;
}

/* Copies texts, one behind the other, and refers to the copies. */
void pages_copy(const u8 **texts, const int64_t *sizes, int64_t count, u8 *out)
{
    for (int64_t i = 0; i < count; out += sizes[i++])
        texts[i] = memcpy(out, texts[i], (size_t)sizes[i]);
}
