/* A column chunk of Parquet → rows, many pages at a time: those that are as usual. At a page that is not, or is damaged,
 * this stops, and the caller reads it by itself. */
#include "pages.h"

#include <string.h>

enum { ODD = NO_WORD + 1 };

/* A page that was found: its header; where that begins, and where it ends; and what the page decompresses to, apart from
 * levels that stand before it. */
typedef struct {
    Header is;
    int64_t start, at;
    const u8 *body;
} Found;

typedef size_t (*Decompress)(void *to, size_t room, const void *from, size_t size);

/* A chunk as far as it was read. */
typedef struct {
    const u8 *data; /* some of its bytes */
    int64_t size;
    int64_t top; /* a value is null unless its level is this; 0: there are no nulls */
    Decompress decompress;
    const u8 *words; /* the text of its dictionary */
    u32 *ends;       /* where each word ends; room for so many */
    int64_t count, room;
    int64_t rows;       /* in pages that were not found yet */
    Found *pages;       /* that were found */
    int64_t found, now; /* how many, and at which of them the rows are */
    int64_t begun;      /* some rows of that page were taken */
    Page page;
} Chunk;

static int64_t length_at(const u8 *data)
{
    return (int64_t)(data[0] | (u32)data[1] << 8 | (u32)data[2] << 16 | (u32)data[3] << 24);
}

static int is_usual(const Chunk *c, const Found *page, int has_words)
{
    int by_dictionary = page->is.encoding == BY_DICTIONARY || page->is.encoding == BY_DICTIONARY_TOO;
    if (page->is.kind == DICTIONARY)
        return !has_words && page->is.values <= c->room && (page->is.encoding == PLAIN || page->is.encoding == BY_DICTIONARY);
    return (page->is.kind == DATA || page->is.kind == DATA_V2) && page->is.values <= c->rows &&
           (page->is.encoding == PLAIN || (by_dictionary && has_words));
}

/* Finds the next pages that are whole in the data: at most so many, none of which needs more than `largest` bytes, and
 * which decompress to no more than `most` bytes in all, unless it is a single one. Returns these bytes. */
int64_t chunks_find(Chunk *c, int64_t room, int64_t largest, int64_t most)
{
    int64_t at = 0, bytes = 0;
    int has_words = c->count >= 0;
    for (c->found = c->now = c->begun = 0; c->found < room && c->rows > 0; c->found++) {
        Found *page = c->pages + c->found;
        int64_t length = pages_header(c->data + at, c->size - at, &page->is);
        if (length <= 0)
            break;
        page->start = at;
        page->at = at + length;
        page->body = NULL;
        int64_t needs = page->is.size > page->is.compressed ? page->is.size : page->is.compressed;
        needs += page->is.kind == DICTIONARY ? page->is.values * (int64_t)sizeof(u32) : 0;
        if (page->is.compressed > c->size - page->at || needs > largest || !is_usual(c, page, has_words))
            break;
        if (c->found && bytes + page->is.size > most)
            break;
        at = page->at + page->is.compressed;
        bytes += page->is.size;
        has_words |= page->is.kind == DICTIONARY;
        c->rows -= page->is.kind == DICTIONARY ? 0 : page->is.values;
    }
    return bytes;
}

static const u8 *body_of(const Chunk *c, const Found *page, u8 *out)
{
    int64_t size = page->is.size - page->is.levels, from = page->at + page->is.levels, length = page->is.compressed - page->is.levels;
    if (!size)
        return out;
    if (!c->decompress || !page->is.packed)
        return length == size ? memcpy(out, c->data + from, (size_t)size) : NULL;
    size_t done = c->decompress(out, (size_t)size, c->data + from, (size_t)length);
    return done == (size_t)size ? out : NULL;
}

/* Decompresses the pages that were found, one behind the other. */
void chunks_decompress(Chunk *c, u8 *out)
{
    for (int64_t i = 0; i < c->found; out += c->pages[i++].is.size)
        c->pages[i].body = body_of(c, c->pages + i, out);
}

static int read_words(Chunk *c, const Found *page)
{
    int64_t at = 0;
    for (int64_t i = 0; i < page->is.values; i++) {
        if (page->is.size - at < 4)
            return ODD;
        at += 4 + length_at(page->body + at);
        if (at > page->is.size)
            return ODD;
        c->ends[i] = (u32)at;
    }
    c->words = page->body;
    c->count = page->is.values;
    return DONE;
}

static int begin_page(Chunk *c, const Found *page)
{
    Page *p = &c->page;
    int64_t at = 0, size = page->is.size - page->is.levels;
    *p = (Page){.top = c->top, .rows = page->is.values, .level = -1, .length = -1};
    p->levels.width = c->top ? 64 - __builtin_clzll((u64)c->top) : 0;
    if (c->top && page->is.kind == DATA_V2) {
        p->levels.data = c->data + page->at;
        p->levels.size = page->is.levels;
    } else if (c->top) {
        if (size < 4 || (at = 4 + length_at(page->body)) > size)
            return ODD;
        p->levels.data = page->body;
        p->levels.at = 4;
        p->levels.size = at;
    }
    if (page->is.encoding == PLAIN) {
        p->data = page->body;
        p->at = at;
        p->size = size;
        return DONE;
    }
    p->data = c->words;
    p->ends = c->ends;
    p->words = c->count;
    p->numbers.data = page->body;
    p->numbers.at = at + 1;
    p->numbers.size = size;
    p->numbers.width = at < size ? page->body[at] : 0;
    return p->numbers.width > 32 ? ODD : DONE;
}

/* Adds rows of the pages that were found to a window, and tells what comes next: no more of them, or what pages_rows tells
 * of the page at which it is. ODD: that page is to be read by itself. */
int64_t chunks_rows(Chunk *c, Window *w)
{
    for (; c->now < c->found; c->now++, c->begun = 0) {
        const Found *page = c->pages + c->now;
        if (!c->begun && (!page->body || (page->is.kind == DICTIONARY ? read_words(c, page) : begin_page(c, page))))
            return ODD;
        if (page->is.kind == DICTIONARY)
            continue;
        c->begun = 1;
        pages_rows(&c->page, w);
        if (c->page.why)
            return c->page.why;
    }
    return DONE;
}
