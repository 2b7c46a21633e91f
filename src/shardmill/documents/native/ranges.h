/* A range of an input → its tokens: what ranges.c needs to know of it. As in ranges.py. */
#pragma once
#include "chunks.h"
#include "lines.h"

/* What is in a range, and why milling it ended: it is all done; what comes next is not as usual, and left to the caller; or
 * there is no room for its tokens. */
enum { LINES, SEPARATED, CHUNKS, PASSAGES };
enum { ALL_DONE, UNUSUAL, NO_ROOM };

/* The ids of texts in a row, and how many each has; how many there are in all, or less than 0: the caller must do it. */
typedef int64_t (*Encode)(void *engine, const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *ids, int64_t *counts);

/* Where passages begin, from one place to another of `size` bytes, which begin at byte `low` of the file; how many, `most`
 * at most; or less than 0. */
typedef int64_t (*FindBorders)(const u8 *data, int64_t low, int64_t size, int64_t from, int64_t until, int64_t *out, int64_t most);

/* Train or val: its tokens, room for so many, where documents end among them, and how much text they are. */
typedef struct {
    u8 *tokens;
    int64_t *ends;
    int64_t room, count, documents, text;
} Side;

/* Some documents, all of whose steps are done while they are in the caches. */
typedef struct {
    u8 *data, *out, *ids, *odd;
    const u8 **texts;
    int64_t *sizes, *starts, *counts;
    u64 *keys;
    int64_t count;         /* how many documents that are not empty */
    int64_t records, used; /* how many in all, and how many bytes of the file, or rows, they are */
    int64_t at;            /* where the first begins */
} Slice;

typedef struct {
    /* Where the documents are: bytes of a file, or rows of chunks. */
    int64_t kind, file, at, end;
    u8 *memory; /* if they were read already: what is at byte memory_at of the file */
    int64_t memory_at;
    int64_t slice_bytes, slice_room, rows; /* of a slice: usual and most bytes, most records */
    int64_t longest;                       /* a longer record is unusual */
    const u8 *names;
    const int64_t *name_ends;
    int64_t name_count;
    const u8 *separator;
    int64_t separator_size;
    Chunks *chunks;
    u8 *dictionary;
    int64_t dictionary_room;
    int64_t reach, context, file_size, window_bytes; /* of passages; so much around them tells where they begin */
    FindBorders find_borders;
    const u64 *adjacent; /* pairs of characters between which text must not be cut, in order; null: it may at every border */
    int64_t adjacent_count;
    /* Which are val: those whose key is one of these, in order, if there are any; else is below a limit, or (above) is not.
     * The key is a hash of the first `most` bytes; if that is 0, where the document begins behind `base`. no_limit: all keys
     * are below. */
    const u64 *val_keys;
    int64_t val_key_count;
    int64_t most, base, above, no_limit;
    u64 seed, limit;
    Encode encode;
    void *engine;
    void (*take_turn)(void *), (*give_turn)(void *); /* null: anyone may encode at any time */
    void *turn;
    int64_t id_bytes, ids_per_byte, ids_per_text;
    int64_t token_bytes, eot, before; /* eot: -1 if there are no end-of-text tokens */
    int64_t ends_room;                /* of each side */
    Side sides[2];
    u8 *work; /* as many bytes as ranges_work says */
    int64_t keep; /* the slice of this number stays in slices[1] */
    /* What was done: slices; records, or passages, those that are empty or in val, and whether the last is. */
    int64_t done, records, empty, in_val, last_in_val, nanoseconds;
    u8 *window; /* of passages: what was read; and where they begin in it */
    int64_t *borders;
    u8 *visible;
    Slice slices[2];
} Range;
