/* A vocabulary → an engine that encodes for any number of threads at once, in memory of a fixed size.
 *
 * The five functions at the end are all that the library offers. Text is valid UTF-8; other bytes give some ids, and
 * are safe. */
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "engine.h"

enum {
    WORDS = 1 << 20, /* 32 MiB. 272 MB of English have 700,000 words; half of this would be emptied too often */
    LONGS = 1 << 15, /* 4 MiB */
    HUGE_PAGE = 2 << 20,
};

static void *table(Engine *e, size_t size)
{
    size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, size);
    if (memory) {
#if defined(MADV_HUGEPAGE)
        madvise(memory, size, MADV_HUGEPAGE); /* random access to 32 MiB: without, each is a TLB miss too */
#endif
        memset(memory, 0, size);
        e->memory += size;
    }
    return memory;
}

static void word_key(const u8 *s, u32 n, u64 key[2])
{
    memset(key, 0xFF, SHORT_BYTES);
    memcpy(key, s, n);
}

/* Every token is a word that need not be learned. */
static void learn_vocabulary(Engine *e)
{
    for (u32 id = 0; id < e->count; id++) {
        u32 n = e->offsets[id + 1] - e->offsets[id];
        u64 key[2], value[2];
        if (n > SHORT_BYTES)
            continue;
        pack_ids(e, &id, 1, value);
        word_key(e->vocabulary + e->offsets[id], n, key);
        e->learned.words +=
            (u64)learn_word(e, key, hash_word(key[0], key[1]), value, e->vocabulary[e->offsets[id + 1] - 1]);
    }
}

/* Waits while the tables are emptied; the first to find one full empties it when everybody else has left. */
static void enter(Engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->emptying)
        pthread_cond_wait(&e->changed, &e->lock);
    int words_full = e->learned.words > WORDS / 4 * 3, longs_full = e->learned.longs > LONGS / 4 * 3;
    if (words_full || longs_full) {
        e->emptying = 1;
        while (e->inside)
            pthread_cond_wait(&e->changed, &e->lock);
        if (longs_full) {
            memset((void *)e->longs, 0, sizeof(Long) * LONGS);
            e->learned.longs = 0;
        }
        if (words_full) {
            memset((void *)e->words, 0, sizeof(Word) * WORDS);
            e->learned.words = 0;
            learn_vocabulary(e);
        }
        e->emptying = 0;
        pthread_cond_broadcast(&e->changed);
    }
    e->inside++;
    pthread_mutex_unlock(&e->lock);
}

static void leave(Engine *e, const Learned *learned)
{
    pthread_mutex_lock(&e->lock);
    e->learned.words += learned->words;
    e->learned.longs += learned->longs;
    if (--e->inside == 0 && e->emptying)
        pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static EncodePiece *best_for_this_machine(void)
{
#if defined(__x86_64__) && !defined(PLAIN_C)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2"))
        return encode_avx512;
#endif
    return encode_portable;
}

void engine_free(Engine *e)
{
    if (!e)
        return;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e->pairs);
    free(e->steps);
    free(e->vocabulary);
    free(e->offsets);
    free(e->words);
    free(e->longs);
    free(e);
}

/* count tokens in order of their ids, which are their ranks; offsets[id] is where the bytes of each begin. classes has
 * one for each code point. NULL without memory, or when the vocabulary is not for this engine. */
Engine *engine_new(const u8 *vocabulary, const u32 *offsets, u32 count, const u8 *classes, int portable)
{
    if (count >= NONE)
        return NULL;
    Engine *e = aligned_alloc(64, (sizeof(Engine) + 63) / 64 * 64);
    if (!e)
        return NULL;
    memset((void *)e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->count = count;
    e->id_shift = count > 1 << 16 ? 2 : 1;
    e->encode = portable ? encode_portable : best_for_this_machine();
    e->word_mask = WORDS - 1;
    e->long_mask = LONGS - 1;
    e->vocabulary = malloc(offsets[count] + 1);
    e->offsets = malloc((count + 1) * sizeof(u32));
    e->words = table(e, sizeof(Word) * WORDS);
    e->longs = table(e, sizeof(Long) * LONGS);
    if (!e->vocabulary || !e->offsets || !e->words || !e->longs) {
        engine_free(e);
        return NULL;
    }
    e->memory += sizeof(Engine) + offsets[count] + (count + 1) * sizeof(u32);
    memcpy(e->vocabulary, vocabulary, offsets[count]);
    memcpy(e->offsets, offsets, (count + 1) * sizeof(u32));
    static const u8 planes[] = {[OTHER] = 0, [CASELESS] = 1, [LOWER] = 1, [UPPER] = 1, [NUMBER] = 2, [SPACE] = 3, [MARK] = 0};
    for (u32 i = 0; i < CODE_POINTS; i++)
        e->plane[i] = planes[classes[i] % sizeof planes];
    memcpy(e->ascii, e->plane, sizeof e->ascii);
    memset(e->flags, 16, sizeof e->flags);
    memcpy(e->flags, e->plane, sizeof e->ascii);
    e->flags[' '] |= 4;
    e->flags['\''] |= 8;
    if (!find_pairs(e)) {
        engine_free(e);
        return NULL;
    }
    learn_vocabulary(e);
    return e;
}

/* The ids of all pieces in a row, and how many each has. `out` has room for one id for each byte, and 16 bytes more.
 * Returns how many ids there are in all, or -1 without memory. */
int64_t engine_encode(Engine *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *out, int64_t *counts)
{
    Learned learned = {0, 0};
    u8 *at = out;
    enter(e);
    for (int64_t i = 0; i < count && at; i++) {
        u8 *end = e->encode(e, pieces[i], (size_t)sizes[i], at, &learned);
        counts[i] = end ? (end - at) >> e->id_shift : 0;
        at = end;
    }
    leave(e, &learned);
    return at ? (at - out) >> e->id_shift : -1;
}

/* Goes up with every change that could change a token, and with VERSION in native.py. */
int engine_version(void)
{
    return 1;
}

/* Bytes that the engine holds, whatever it has encoded. */
uint64_t engine_memory(const Engine *e)
{
    return e->memory;
}
