/* Pages of Parquet: what the files here know of them. */
#pragma once
#include "texts.h"

enum { DATA = 0, DICTIONARY = 2, DATA_V2 = 3 };
enum { PLAIN = 0, BY_DICTIONARY = 2, BY_DICTIONARY_TOO = 8 };

/* Of a page: its kind; its bytes when decompressed, and as they are; its values, and their encoding; bytes of levels, and
 * whether the values are compressed, in version 2. */
typedef struct {
    int64_t kind, size, compressed, values, encoding, levels, packed;
} Header;

/* Numbers in Parquet's RLE: one number over and over, or groups of eight, each number of so many bits. */
typedef struct {
    const u8 *data;
    int64_t at, size, width;
    int64_t left; /* of the run */
    int64_t bit;  /* packed: where the next number begins; else -1 */
    u64 number;
} Runs;

/* What is left of the rows of a page. Its values are PLAIN, each behind its length of four bytes, or words of a
 * dictionary, given by their numbers. */
typedef struct {
    Runs levels, numbers;
    int64_t top; /* a value is null unless its level is this; 0: there are no nulls */
    int64_t rows;
    const u8 *data; /* the values, or the dictionary; NULL: it is not in memory, and texts are offsets in it */
    int64_t at, size;
    const u32 *ends; /* where the words end */
    int64_t words;
    int64_t level;         /* whether the next row has a value; -1: not known */
    int64_t start, length; /* of the next value, if it is known; -1 */
    int64_t why;
} Page;

/* Rows that were found: texts of so many bytes in all. */
typedef struct {
    const u8 **texts;
    int64_t *sizes;
    u8 *null;
    int64_t count, most, size, room, longest;
} Window;

enum { DONE, FULL, LONG, NO_VALUE, NO_LEVEL, NO_WORD };

int64_t pages_header(const u8 *data, int64_t size, Header *header);
void pages_rows(Page *p, Window *w);
