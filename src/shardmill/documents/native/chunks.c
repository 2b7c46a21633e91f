/* A column chunk of Parquet → rows, many pages at a time: those that are as usual. At a page that is not, or is damaged,
 * this stops, and the caller reads it by itself. */
#include "pages.h"

#include <string.h>
#include <unistd.h>

/* Besides those of pages.h: what comes next. ODD: a page that is to be read by itself; SMALL: there is no room to decompress
 * the next page. */
enum { ODD = NO_WORD + 1, SMALL };

/* A page that was found: its header; where that begins in the data, and where it ends; and what the page decompresses to,
 * apart from levels that stand before it. */
typedef struct {
    Header is;
    int64_t start, at;
    const u8 *body;
} Found;

typedef size_t (*Decompress)(void *to, size_t room, const void *from, size_t size);

/* A chunk as far as it was read. */
typedef struct {
    int64_t file;       /* its descriptor; -1: the caller reads */
    int64_t next, end;  /* in the file: where the page begins that was not read yet, and where the chunk ends */
    u8 *data;           /* bytes that were read: so many, from there on; and how many there is room for */
    int64_t size, data_at, data_room;
    int64_t top; /* a value is null unless its level is this; 0: there are no nulls */
    Decompress decompress;
    const u8 *words; /* the text of its dictionary */
    u32 *ends;       /* where each word ends; room for so many */
    int64_t count, words_room;
    int64_t rows;           /* in pages that were not found yet */
    int64_t largest;        /* how many bytes a page may need */
    u8 *out;                /* where pages are decompressed, and how many bytes there is room for */
    int64_t out_room, used; /* and how many are used */
    Found *pages;           /* that were found */
    int64_t pages_room;
    int64_t found, now; /* how many, and at which of them the rows are */
    int64_t begun;      /* some rows of that page were taken */
    Page page;
} Chunk;

static int64_t length_at(const u8 *data)
{
    return (int64_t)(data[0] | (u32)data[1] << 8 | (u32)data[2] << 16 | (u32)data[3] << 24);
}

static int is_usual(const Chunk *c, const Found *page, int64_t rows, int has_words)
{
    int by_dictionary = page->is.encoding == BY_DICTIONARY || page->is.encoding == BY_DICTIONARY_TOO;
    if (page->is.kind == DICTIONARY)
        return !has_words && page->is.values <= c->words_room && (page->is.encoding == PLAIN || page->is.encoding == BY_DICTIONARY);
    return (page->is.kind == DATA || page->is.kind == DATA_V2) && page->is.values <= rows &&
           (page->is.encoding == PLAIN || (by_dictionary && has_words));
}

static int64_t find_in_data(Chunk *c)
{
    int64_t at = c->next - c->data_at, rows = c->rows;
    int has_words = c->count >= 0;
    c->found = c->now = c->begun = c->used = 0;
    if (at < 0 || at > c->size)
        return ODD;
    while (c->found < c->pages_room && rows > 0) {
        Found *page = c->pages + c->found;
        int64_t length = pages_header(c->data + at, c->size - at, &page->is);
        if (length <= 0)
            break;
        page->start = at;
        page->at = at + length;
        page->body = NULL;
        int64_t needs = page->is.size > page->is.compressed ? page->is.size : page->is.compressed;
        needs += page->is.kind == DICTIONARY ? page->is.values * (int64_t)sizeof(u32) : 0;
        if (page->is.compressed > c->size - page->at || needs > c->largest || !is_usual(c, page, rows, has_words))
            break;
        if (c->used + page->is.size > c->out_room) {
            if (!c->found)
                return SMALL;
            break;
        }
        c->used += page->is.size;
        at = page->at + page->is.compressed;
        has_words |= page->is.kind == DICTIONARY;
        rows -= page->is.kind == DICTIONARY ? 0 : page->is.values;
        c->found++;
    }
    if (c->found > 1 && c->pages->is.kind == DICTIONARY && rows > 0) { /* it is needed longer than the pages with it */
        c->found = 1;
        c->used = c->pages->is.size;
    }
    return c->found ? DONE : ODD;
}

static int read_more(Chunk *c)
{
    int64_t size = c->end - c->next < c->data_room ? c->end - c->next : c->data_room;
    if (c->file < 0 || c->data_at == c->next)
        return 0;
    c->data_at = c->next;
    for (c->size = 0; c->size < size;) {
        ssize_t done = pread((int)c->file, c->data + c->size, (size_t)(size - c->size), (off_t)(c->next + c->size));
        if (done <= 0) /* told when the caller reads it */
            return 0;
        c->size += done;
    }
    return 1;
}

/* Finds the next pages that are usual, whole in the data and fit in `out`. SMALL: there is one, but it does not fit. */
int64_t chunks_find(Chunk *c)
{
    int64_t why = find_in_data(c);
    return why == ODD && read_more(c) ? find_in_data(c) : why;
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
 * of the page at which it is. */
int64_t chunks_rows(Chunk *c, Window *w)
{
    for (; c->now < c->found; c->now++, c->begun = 0) {
        const Found *page = c->pages + c->now;
        c->next = c->data_at + page->start;
        if (!c->begun && (!page->body || (page->is.kind == DICTIONARY ? read_words(c, page) : begin_page(c, page)))) {
            c->found = c->now;
            return ODD;
        }
        if (page->is.kind != DICTIONARY) {
            c->begun = 1;
            pages_rows(&c->page, w);
            if (c->page.why)
                return c->page.why;
            c->rows -= page->is.values;
        }
        c->next = c->data_at + page->at + page->is.compressed;
    }
    return DONE;
}

/* The same; if there are no more pages, the next ones are found and decompressed first. */
int64_t chunks_take(Chunk *c, Window *w)
{
    if (c->now == c->found) {
        int64_t why = chunks_find(c);
        if (why)
            return why;
        u8 *out = c->out;
        for (int64_t i = 0; i < c->found; out += c->pages[i++].is.size)
            c->pages[i].body = body_of(c, c->pages + i, out);
    }
    return chunks_rows(c, w);
}
