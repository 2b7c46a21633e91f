#pragma once
#include "texts.h"

/* As in native.py. */
typedef struct {
    const u8 *data;
    int64_t size, count;
    const u8 *names;
    const int64_t *name_ends;
    int64_t name_count;
    u8 *out;
    const u8 **texts;
    int64_t *sizes, *starts;
    u8 *declined;
    int64_t most;
    u64 seed, *hashes;
    int64_t unusual;
} Lines;

int64_t lines_texts(Lines *);
