/* Text → its ids by the byte-level engine: what other C calls, where nobody is there to do what is unusual. */
#include "added.h"
#include "engine.h"

typedef struct Nfc Nfc;
int64_t nfc_suspects(const Nfc *nfc, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *suspect);
int64_t added_count(const Added *a, const u8 *const *pieces, const int64_t *sizes, int64_t count);
int64_t engine_encode(Engine *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *out, int64_t *counts);

typedef int64_t (*Encode)(void *, const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *ids, int64_t *counts);

/* A byte-level engine, and what is looked for before: added tokens, what might not be in normal form C, and added tokens in
 * what is. Each may be null. Texts with any of it are for `otherwise`, which is given null. As in native.py. */
typedef struct {
    Engine *engine;
    const Added *raw, *normalized;
    const Nfc *nfc;
    Encode otherwise;
} Guarded;

static int is_plain(const Guarded *g, const u8 *const *text, const int64_t *size)
{
    u8 suspect;
    return !(g->raw && added_count(g->raw, text, size, 1)) && !(g->nfc && nfc_suspects(g->nfc, text, size, 1, &suspect)) &&
           !(g->normalized && added_count(g->normalized, text, size, 1));
}

/* As engine_encode. */
int64_t guarded_encode(Guarded *g, const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *ids, int64_t *counts)
{
    for (int64_t i = 0; i < count; i++)
        if (!is_plain(g, texts + i, sizes + i))
            return g->otherwise(NULL, texts, sizes, count, ids, counts);
    return engine_encode(g->engine, texts, sizes, count, ids, counts);
}
