/* Text → its ids by the byte-level engine: what other C calls, where nobody is there to do what is unusual. */
#include "added.h"
#include "engine.h"

enum { UNUSUAL = -2 };

typedef struct Nfc Nfc;
int64_t nfc_suspects(const Nfc *nfc, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *suspect);
int64_t added_count(const Added *a, const u8 *const *pieces, const int64_t *sizes, int64_t count);
int64_t engine_encode(Engine *e, const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *out, int64_t *counts);

/* A byte-level engine, and what is looked for before: added tokens, what might not be in normal form C, and added tokens in
 * what is. Each may be null. As in native.py. */
typedef struct {
    Engine *engine;
    const Added *raw, *normalized;
    const Nfc *nfc;
} Guarded;

/* As engine_encode; UNUSUAL where something is found. */
int64_t guarded_encode(Guarded *g, const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *ids, int64_t *counts)
{
    if (g->raw && added_count(g->raw, texts, sizes, count))
        return UNUSUAL;
    if (g->nfc && nfc_suspects(g->nfc, texts, sizes, count, (u8 *)counts))
        return UNUSUAL;
    if (g->normalized && added_count(g->normalized, texts, sizes, count))
        return UNUSUAL;
    return engine_encode(g->engine, texts, sizes, count, ids, counts);
}
