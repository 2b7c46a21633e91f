/* Column chunks of Parquet: what the files here know of them. */
#pragma once
#include "pages.h"

/* Besides those of pages.h: what comes next. ODD: a page that is not usual; MORE: a page for which there is no room behind
 * those that were decompressed. */
enum { ODD = NO_WORD + 1, MORE };

/* Where a chunk, or some pages of one, are in the file, how many values they have, and where the dictionary is that they
 * need and do not begin with; 0: there is none. */
typedef struct {
    int64_t start, end, values, words;
} Place;

/* A page that was found: its header; where that begins in the data, and where it ends; and what the page decompresses to,
 * apart from levels that stand before it. */
typedef struct {
    Header is;
    int64_t start, at;
    const u8 *body;
} Found;

typedef size_t (*Decompress)(void *to, size_t room, const void *from, size_t size);

/* Consecutive chunks of a column, as far as they were read. */
typedef struct {
    int64_t file; /* its descriptor */
    const Place *chunks;
    int64_t chunk_count, chunk; /* how many, and at which of them this is; -1: before the first */
    int64_t next, end;          /* in the file: where the page begins that was not read yet, and where its chunk ends */
    int64_t rows;               /* of the chunk, that were not read yet */
    u8 *data;                   /* bytes that were read: so many, from there on; and how many there is room for */
    int64_t size, data_at, data_room, data_usual; /* so many are read at once, more only for a larger page */
    int64_t top; /* a value is null unless its level is this; 0: there are no nulls */
    Decompress decompress;
    const u8 *words; /* the text of the dictionary */
    u32 *ends;       /* where each word ends; room for so many */
    int64_t count, words_room;
    int64_t largest; /* how many bytes a page may need */
    u8 *out;         /* where pages are decompressed; how many bytes there is room for, and how many are used */
    int64_t out_room, used;
    Found found; /* the page whose rows are taken */
    int64_t has_page, begun;
    Page page;
} Chunks;

int64_t chunks_pages(int64_t file, const Place *place, Found *out, int64_t most);
int64_t chunks_rows(Chunks *c, Window *w);
int64_t chunks_take(Chunks *c, Window *w);
size_t snappy_decompress(void *to, size_t room, const void *from, size_t size);
