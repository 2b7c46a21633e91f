/* A vocabulary and its merges → an engine for SentencePiece-style byte pair encoding, for any number of threads at once,
 * in memory of a fixed size. Text is valid UTF-8; other bytes give some ids, and are safe. */
#include <stdlib.h>

#include "cpu.h"
#include "layout.h"
#include "sp.h"

enum {
    PIECES = 1 << 20, /* 32 MiB: English has 14,000 kinds of pieces in a megabyte, and ever fewer new ones */
    LONGS = 1 << 17,  /* 16 MiB: in Russian one kind in two has more than 16 bytes */
};

static void empty(void *engine)
{
    Sp *e = engine;
    Learned *learned = &e->gate.learned, *most = &e->gate.most;
    if (is_emptied(learned->words, most->words, (void *)e->pieces, sizeof(Word) * ((size_t)e->piece_mask + 1)))
        learned->words = 0;
    if (is_emptied(learned->longs, most->longs, (void *)e->longs, sizeof(LongPiece) * ((size_t)e->long_mask + 1)))
        learned->longs = 0;
}

void sp_free(Sp *e)
{
    if (!e)
        return;
    gate_end(&e->gate);
    free(e->pairs.slots);
    free(e->pairs.steps);
    free(e->ids);
    free(e->pages);
    free(e->joined);
    free(e->pieces);
    free(e->longs);
    free(e);
}

/* A Sp as it is asked for. added: the tokens that are found first, or NULL; normalized: those found in the normalized text;
 * both must outlive the engine. closed has a flag for each ASCII byte that only stands in added tokens made of that byte
 * alone. small: tables that are soon full, for tests. */
typedef struct {
    Added *added;
    const Added *normalized;
    const u8 *closed;
    int prepend, metaspace, path, small; /* path: as in cpu.h, one that this processor can take */
} Asked;

/* NULL with a reason in *why. */
Sp *sp_new(const Vocabulary *v, const Asked *asked, int *why)
{
    Sp *e = calloc(1, sizeof *e);
    *why = NO_MEMORY;
    if (!e)
        return NULL;
    e->memory = sizeof *e;
    e->encode = sp_encode_portable;
#if defined(__x86_64__)
    if (asked->path == CPU_AVX512)
        e->encode = sp_encode_avx512;
#endif
    e->added = asked->added;
    e->normalized = asked->normalized;
    e->prepend = asked->prepend;
    e->metaspace = asked->metaspace;
    memcpy(e->closed, asked->closed, sizeof e->closed);
    for (u32 c = 0; c < 128; c++)
        if (e->closed[c])
            added_pass_over(asked->added, (u8)c);
    e->piece_mask = (asked->small ? 64 : PIECES) - 1;
    e->long_mask = (asked->small ? 16 : LONGS) - 1;
    gate_make(&e->gate, e->piece_mask + 1, 0, e->long_mask + 1);
    e->pieces = new_table(sizeof(Word) * ((size_t)e->piece_mask + 1), &e->memory);
    e->longs = new_table(sizeof(LongPiece) * ((size_t)e->long_mask + 1), &e->memory);
    if (e->pieces && e->longs)
        *why = sp_build(e, v);
    if (*why == GOOD)
        return e;
    sp_free(e);
    return NULL;
}

/* The first piece of a text as if a blank came before it; returns its end. */
static const u8 *first_piece(Sp *e, const u8 *s, const u8 *end, u32 **out, Learned *learned)
{
    u8 few[512], *copy = few;
    size_t n = sp_size_behind_blank(e, s, (size_t)(end - s));
    if (n + 1 > sizeof few)
        copy = malloc(n + 1);
    if (!copy) {
        *out = NULL;
        return end;
    }
    copy[0] = ' ';
    memcpy(copy + 1, s, n);
    *out = sp_long_piece(e, copy, n + 1, *out, learned);
    if (copy != few)
        free(copy);
    return s + n;
}

static int begins_with_blank(const u8 *s, size_t n)
{
    return *s == ' ' || (n >= 3 && !memcmp(s, "\xE2\x96\x81", 3));
}

/* Text that holds no added token; `prepend`: with a blank before it. */
static u32 *plain(Sp *e, const u8 *s, size_t n, size_t readable, int prepend, u32 *out, Learned *learned)
{
    const u8 *end = s + n, *begin = s;
    if (prepend)
        s = first_piece(e, s, end, &out, learned);
    return out ? e->encode(e, s, (size_t)(end - s), readable - (size_t)(s - begin), out, learned) : NULL;
}

/* Text in which tokens are looked for by one search; `prepend` is about its beginning. */
static u32 *search_normalized(Sp *e, const u8 *s, size_t n, size_t readable, int prepend, u32 *out, Learned *learned)
{
    Search search = {0};
    Found found;
    size_t done = 0;
    while (out && added_next(e->normalized, s, n, &search, &found)) {
        if (done < found.start)
            out = plain(e, s + done, found.start - done, readable - done, prepend && !done, out, learned);
        if (out)
            *out++ = found.id;
        done = search.done;
    }
    return out && done < n ? plain(e, s + done, n - done, readable - done, prepend && !done, out, learned) : out;
}

/* Text between added tokens. Some tokens are only found where it is normalized: with U+2581 for blanks, and before it. */
static u32 *stretch(Sp *e, const u8 *s, size_t n, size_t readable, int prepend, u32 *out, Learned *learned)
{
    if (!e->normalized)
        return plain(e, s, n, readable, prepend, out, learned);
    if (e->metaspace)
        return search_normalized(e, s, n, readable, prepend, out, learned);
    size_t size = 0;
    u8 *copy = malloc(3 * n + 3);
    if (!copy)
        return NULL;
    for (size_t i = 0; i < n + (size_t)prepend; i++) {
        u8 byte = prepend ? (i ? s[i - 1] : ' ') : s[i];
        if (byte == ' ') {
            memcpy(copy + size, "\xE2\x96\x81", 3);
            size += 3;
        } else
            copy[size++] = byte;
    }
    out = search_normalized(e, copy, size, size, 0, out, learned);
    free(copy);
    return out;
}

static u32 *encode_piece(Sp *e, const u8 *text, size_t size, int starts, u32 *out, Learned *learned)
{
    Search search = {0};
    Found found;
    size_t done = 0;
    int each = e->prepend == PREPEND_EACH;
    int prepend = starts && size && (each || (e->prepend == PREPEND_FIRST && !begins_with_blank(text, size)));
    while (e->added && out && added_next(e->added, text, size, &search, &found)) {
        if (done < found.start)
            out = stretch(e, text + done, found.start - done, size - done, prepend, out, learned);
        if (out)
            *out++ = found.id;
        done = search.done;
        prepend = each;
    }
    return out && done < size ? stretch(e, text + done, size - done, size - done, prepend, out, learned) : out;
}

/* starts may be null: then all pieces begin their documents, or none does. */
static int64_t encode_pieces(Sp *e, const u8 *const *pieces, const int64_t *sizes, const u8 *starts, int all, int64_t count,
                             u32 *out, int64_t *counts)
{
    Learned learned = {0};
    u32 *at = out;
    gate_enter(&e->gate, empty, e);
    for (int64_t i = 0; i < count && at; i++) {
        u32 *end = encode_piece(e, pieces[i], (size_t)sizes[i], starts ? starts[i] : all, at, &learned);
        counts[i] = end ? end - at : 0;
        at = end;
    }
    gate_leave(&e->gate, &learned);
    return at ? at - out : -1;
}

/* The ids of all pieces in a row, and how many each has. starts: whether each piece begins its document. `out` has room
 * for an id for each byte and each U+2581 that is prepended, and for 16 more. Returns how many ids there are in all, or -1
 * without memory. */
int64_t sp_encode(Sp *e, const u8 *const *pieces, const int64_t *sizes, const u8 *starts, int64_t count, u32 *out,
                  int64_t *counts)
{
    return encode_pieces(e, pieces, sizes, starts, 0, count, out, counts);
}

/* The same where all pieces are documents, or none begins one: for other C. */
int64_t sp_encode_whole(Sp *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u32 *out, int64_t *counts)
{
    return encode_pieces(e, pieces, sizes, NULL, 1, count, out, counts);
}

int64_t sp_encode_inside(Sp *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u32 *out, int64_t *counts)
{
    return encode_pieces(e, pieces, sizes, NULL, 0, count, out, counts);
}

typedef struct {
    Sp *e;
    const u8 *const *pieces;
    const int64_t *sizes;
    const u8 *starts;
    int64_t count;
    u32 *out;
    int64_t *counts;
} Call;

static int64_t encode_all(void *call)
{
    const Call *c = call;
    return sp_encode(c->e, c->pieces, c->sizes, c->starts, c->count, c->out, c->counts);
}

/* As sp_encode, and the tokens as they are written. */
int64_t sp_block(Sp *e, const u8 *const *pieces, const int64_t *sizes, const u8 *starts, int64_t count, u32 *out, int64_t *counts,
                 Layout *g)
{
    return in_turn(encode_all, &(Call){e, pieces, sizes, starts, count, out, counts}, g);
}

/* Bytes that the engine holds, whatever it has encoded. */
uint64_t sp_memory(const Sp *e)
{
    return e->memory;
}
