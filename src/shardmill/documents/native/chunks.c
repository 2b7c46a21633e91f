/* Column chunks of Parquet → rows, many pages at a time: those that are as usual. At a page that is not, or is damaged,
 * this stops, and the caller reads its chunk page by page. */
#include "chunks.h"

#include <string.h>

enum { HEADER = 1 << 10, LONG_HEADER = 64 << 10 };

/* The pages of a chunk, up to `most`, by their headers: how many; less than 0: one of them is damaged or cannot be read.
 * Their bodies are not read. */
int64_t chunks_pages(int64_t file, const Place *place, Found *out, int64_t most)
{
    u8 head[LONG_HEADER];
    int64_t at = place->start, values = 0, count = 0;
    for (; count < most && at < place->end && values < place->values; count++) {
        Found *page = out + count;
        int64_t length = 0;
        for (int64_t room = HEADER; !length && room <= LONG_HEADER; room *= LONG_HEADER / HEADER) {
            int64_t size = place->end - at < room ? place->end - at : room;
            if (filled((int)file, at, head, size) != size)
                return -1;
            length = pages_header(head, size, &page->is);
        }
        if (length <= 0)
            return -1;
        page->start = at;
        page->at = at + length;
        at = page->at + page->is.compressed;
        values += page->is.kind == DICTIONARY ? 0 : page->is.values;
    }
    return count;
}

static int64_t length_at(const u8 *data)
{
    return (int64_t)(data[0] | (u32)data[1] << 8 | (u32)data[2] << 16 | (u32)data[3] << 24);
}

static int is_usual(const Chunks *c, const Header *page, int has_words)
{
    int by_dictionary = page->encoding == BY_DICTIONARY || page->encoding == BY_DICTIONARY_TOO;
    if (page->kind == DICTIONARY)
        return !has_words && page->values <= c->words_room && (page->encoding == PLAIN || page->encoding == BY_DICTIONARY);
    return (page->kind == DATA || page->kind == DATA_V2) && page->values <= c->rows && (has_words || !c->chunks[c->chunk].words) &&
           (page->encoding == PLAIN || (by_dictionary && has_words));
}

/* The next page, if all of it is in the data. needs: how many bytes it has, its header among them, if that is known. */
static int64_t find_in_data(Chunks *c, int64_t *needs)
{
    int64_t at = c->next - c->data_at;
    Found *page = &c->found;
    if (at < 0 || at > c->size)
        return ODD;
    int64_t length = pages_header(c->data + at, c->size - at, &page->is);
    if (length <= 0)
        return ODD;
    page->start = at;
    page->at = at + length;
    *needs = length + page->is.compressed;
    int64_t held = page->is.size > page->is.compressed ? page->is.size : page->is.compressed;
    held += page->is.kind == DICTIONARY ? page->is.values * (int64_t)sizeof(u32) : 0;
    if (page->is.compressed > c->size - page->at || held > c->largest || page->is.size > c->out_room || !is_usual(c, &page->is, c->count >= 0))
        return ODD;
    c->has_page = page->is.size <= c->out_room - c->used;
    return c->has_page ? DONE : MORE;
}

/* From the next page on, so many bytes; 0: there are no more. What is here already is not read again. */
static int read_more(Chunks *c, int64_t size)
{
    int64_t here = c->data_at + c->size - c->next;
    size = c->end - c->next < size ? c->end - c->next : size;
    size = c->data_room < size ? c->data_room : size;
    here = c->data_at < 0 || c->next < c->data_at || here < 0 ? 0 : here;
    if (here >= size)
        return 0;
    memmove(c->data, c->data + (here ? c->next - c->data_at : 0), (size_t)here);
    c->data_at = c->next;
    c->size = here + filled((int)c->file, c->next + here, c->data + here, size - here);
    return c->size == size; /* else it is told when the caller reads it */
}

static int next_chunk(Chunks *c)
{
    if (c->chunk + 1 >= c->chunk_count)
        return 0;
    const Place *place = c->chunks + ++c->chunk;
    c->next = place->words ? place->words : place->start;
    c->end = place->end;
    c->rows = place->values;
    c->data_at = c->count = -1;
    c->size = 0;
    return 1;
}

/* Finds the next page, of this chunk or the next; none, if all chunks are read. */
static int64_t find_page(Chunks *c)
{
    while (!c->rows)
        if (!next_chunk(c))
            return DONE;
    int64_t needs = 0, why = find_in_data(c, &needs);
    for (int64_t size = c->data_usual; why == ODD && read_more(c, size); size = needs > size ? needs : c->data_room)
        why = find_in_data(c, &needs);
    c->next += c->has_page ? needs : 0;
    if (c->has_page && c->found.is.kind == DICTIONARY && c->chunks[c->chunk].words)
        c->next = c->chunks[c->chunk].start;
    return why;
}

static const u8 *body_of(const Chunks *c, const Found *page, u8 *out)
{
    int64_t size = page->is.size - page->is.levels, from = page->at + page->is.levels, length = page->is.compressed - page->is.levels;
    if (!size)
        return out;
    if (!c->decompress || !page->is.packed)
        return length == size ? memcpy(out, c->data + from, (size_t)size) : NULL;
    size_t done = c->decompress(out, (size_t)size, c->data + from, (size_t)length);
    return done == (size_t)size ? out : NULL;
}

static int read_words(Chunks *c, const Found *page)
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

static int begin_page(Chunks *c, const Found *page)
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

/* Adds rows of the page at hand to a window, and tells what comes next: other pages, or what pages_rows tells of this one. */
int64_t chunks_rows(Chunks *c, Window *w)
{
    const Found *page = &c->found;
    int is_words = page->is.kind == DICTIONARY;
    if (!c->begun && (!page->body || (is_words ? read_words(c, page) : begin_page(c, page)))) {
        c->has_page = 0;
        return ODD;
    }
    if (!is_words) {
        c->begun = 1;
        pages_rows(&c->page, w);
        if (c->page.why)
            return c->page.why;
        c->rows -= page->is.values;
    }
    c->has_page = c->begun = 0;
    return DONE;
}

/* The same; and then of the next pages, one after the other, of this chunk and those behind it. */
int64_t chunks_take(Chunks *c, Window *w)
{
    for (int64_t why;;) {
        if (c->has_page && (why = chunks_rows(c, w)))
            return why;
        if ((why = find_page(c)) || !c->has_page)
            return why;
        c->found.body = body_of(c, &c->found, c->out + c->used);
        c->used += c->found.is.size;
    }
}
