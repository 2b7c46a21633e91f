/* Compiled by tools/neon.py for another processor, together with the engine: reads cases from a file, encodes their texts
 * on every code path that this processor has, and compares ids and words with those in the file.
 *
 * The file is a list of arrays, each a number of bytes and so many bytes, padded to eight. JSON lines come first, with the
 * texts in them, where each stands and its hash; then cases of ARRAYS. */
#include <stdio.h>
#include <stdlib.h>

#include "cpu.h"
#include "engine.h"
#include "lines.h"

Engine *engine_new(const Given *given);
void engine_free(Engine *e);
int64_t engine_encode(Engine *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *out, int64_t *counts);
int64_t engine_words(const Engine *e, const u8 *text, int64_t size, int scalar, int64_t *sizes);

enum { LINES, LINE_TEXTS, BEGINS, ENDS, DECLINED, HASHES, LINE_ARRAYS };
enum { MOST_HASHED = 4096, SEED = 5 }; /* as in neon.py */
enum { SHAPE, VOCABULARY, OFFSETS, IDS, LIVE, TYPES, TEXT, SIZES, EXPECTED, COUNTS, WORDS, ARRAYS };

typedef struct {
    const void *data;
    size_t size;
} Array;

static u8 *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    *size = (size_t)ftell(file);
    rewind(file);
    u8 *data = malloc(*size);
    if (!data || fread(data, 1, *size, file) != *size)
        exit(2);
    fclose(file);
    return data;
}

static int differ(const char *what, const char *path, int number, int64_t found, int64_t expected)
{
    printf("case %d, %s: other %s, %lld instead of %lld\n", number, path, what, (long long)found, (long long)expected);
    return 1;
}

static int check_ids(Engine *e, const Array *a, const char *path, int number)
{
    const u32 *expected = a[EXPECTED].data;
    const int64_t *sizes = a[SIZES].data, *expected_counts = a[COUNTS].data;
    int64_t pieces = (int64_t)(a[SIZES].size / 8), ids = (int64_t)(a[EXPECTED].size / 4);
    const u8 **texts = malloc((size_t)pieces * sizeof *texts);
    int64_t *counts = malloc((size_t)pieces * 8);
    u8 *out = malloc(4 * (a[TEXT].size + 16));
    const u8 *at = a[TEXT].data;
    for (int64_t i = 0; i < pieces; at += sizes[i++])
        texts[i] = at;
    int64_t total = engine_encode(e, texts, sizes, pieces, out, counts);
    if (total != ids)
        return differ("number of ids", path, number, total, ids);
    for (int64_t i = 0; i < pieces; i++)
        if (counts[i] != expected_counts[i])
            return differ("number of ids in a piece", path, number, counts[i], expected_counts[i]);
    for (int64_t i = 0; i < ids; i++) {
        u32 id = 0;
        memcpy(&id, out + (i << e->id_shift), (size_t)1 << e->id_shift);
        if (id != expected[i])
            return differ("id", path, number, id, expected[i]);
    }
    free(texts);
    free(counts);
    free(out);
    return 0;
}

static int check_words(Engine *e, const Array *a, const char *path, int number)
{
    const int64_t *expected = a[WORDS].data;
    int64_t count = (int64_t)(a[WORDS].size / 8), *sizes = malloc(8 * (a[TEXT].size + 1));
    for (int scalar = 0; scalar < 2; scalar++) {
        int64_t found = engine_words(e, a[TEXT].data, (int64_t)a[TEXT].size, scalar, sizes);
        if (found != count)
            return differ("number of words", path, number, found, count);
        for (int64_t i = 0; i < count; i++)
            if (sizes[i] != expected[i])
                return differ("word", path, number, sizes[i], expected[i]);
    }
    free(sizes);
    return 0;
}

static int check(const Array *a, int path, int number)
{
    Vocabulary vocabulary = {.text = a[VOCABULARY].data, .offsets = a[OFFSETS].data, .ids = a[IDS].data,
                             .live = a[LIVE].data, .count = (u32)(a[IDS].size / 4)};
    Given given = {.vocabulary = vocabulary, .classes = a[TYPES].data, .path = (u8)path};
    memcpy(&given.shape, a[SHAPE].data, sizeof given.shape);
    Engine *e = engine_new(&given);
    if (!e)
        return differ("engine", cpu_name(path), number, 0, 1);
    int wrong = check_ids(e, a, cpu_name(path), number) + check_ids(e, a, cpu_name(path), number) + /* learned by now */
                check_words(e, a, cpu_name(path), number);
    engine_free(e);
    return wrong;
}

static int check_lines(const Array *a)
{
    const int64_t name_end = 4, *begins = a[BEGINS].data, *ends = a[ENDS].data;
    const u8 *texts = a[LINE_TEXTS].data, *declined = a[DECLINED].data;
    const u64 *hashes = a[HASHES].data;
    size_t count = a[DECLINED].size;
    const u8 **found = malloc(8 * count);
    int64_t *sizes = malloc(8 * count), *starts = malloc(8 * count), size = (int64_t)a[LINES].size;
    u8 *out = malloc(a[LINES].size + 16), *declined_found = malloc(count);
    Lines given = {.data = a[LINES].data, .size = size, .count = (int64_t)count, .names = (const u8 *)"text",
                   .name_ends = &name_end, .name_count = 1, .out = out, .texts = found, .sizes = sizes,
                   .starts = starts, .declined = declined_found};
    int64_t used = lines_texts(&given);
    if (used != size)
        return differ("size of all lines", "JSON", 0, used, size);
    if (memcmp(out, texts, a[LINE_TEXTS].size))
        return differ("text", "JSON", 0, 0, 0);
    for (size_t i = 0; i < count; i++) {
        const u8 *text = texts + begins[i];
        int64_t bytes = ends[i] - begins[i];
        u64 hash;
        texts_hashes(&text, &bytes, 1, MOST_HASHED, SEED, &hash);
        if (found[i] - out != begins[i] || sizes[i] != bytes || declined_found[i] != declined[i])
            return differ("place of a text", "JSON", (int)i, found[i] - out, begins[i]);
        if (hash != hashes[i])
            return differ("hash", "xxh3", (int)i, (int64_t)hash, (int64_t)hashes[i]);
    }
    return 0;
}

static size_t read_arrays(const u8 *data, Array *arrays, int count)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        arrays[i] = (Array){data + at + 8, load8(data + at)};
        at += 8 + (arrays[i].size + 7) / 8 * 8;
    }
    return at;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    size_t size;
    u8 *data = read_all(argv[1], &size);
    Array lines[LINE_ARRAYS], arrays[ARRAYS];
    size_t at = read_arrays(data, lines, LINE_ARRAYS);
    int number = 0, wrong = check_lines(lines);
    for (; at < size; number++) {
        at += read_arrays(data + at, arrays, ARRAYS);
        for (int path = 0; path < CPU_PATHS; path++)
            if (cpu_name(path))
                wrong += check(arrays, path, number);
    }
    for (int path = 0; path < CPU_PATHS; path++)
        if (cpu_name(path))
            printf("%s ", cpu_name(path));
    printf("%d cases, %d wrong\n", number, wrong);
    return wrong != 0;
}
