/* The ids of pieces → tokens as they are written: in the type of the output, end-of-text tokens before or behind those
 * that have one, and where documents and runs of one split end among them. */
#include "layout.h"

#include <string.h>

/* A run is consecutive tokens of one split: which, and where its tokens and its document ends stop; how much text it is. */
enum { SPLIT, TOKENS, ENDS, TEXT, COLUMNS };
enum { ALL = 2 };

static void put(const uint8_t *from, int64_t from_bytes, uint8_t *to, int64_t to_bytes, int64_t count)
{
    if (from == to)
        return; /* they are the tokens already */
    if (from_bytes == to_bytes)
        memcpy(to, from, (size_t)(count * to_bytes));
    else if (to_bytes == 4)
        for (int64_t i = 0; i < count; i++)
            ((uint32_t *)to)[i] = ((const uint16_t *)from)[i];
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = (uint16_t)((const uint32_t *)from)[i];
}

/* All pieces, or those of one split, are put behind the runs that are there. */
static int64_t lay(const Layout *g, int split, int64_t runs)
{
    const uint8_t *ids = g->ids, *eot = (const uint8_t *)&g->eot;
    int64_t *run = runs ? g->runs + (runs - 1) * COLUMNS : NULL, at = run ? run[TOKENS] : 0, ends = run ? run[ENDS] : 0, start = 0;
    for (int64_t i = 0; i < g->pieces; ids += g->counts[i++] * g->id_bytes) {
        if (split != ALL && g->val[i] != split)
            continue;
        if (!run || run[SPLIT] != g->val[i]) {
            run = g->runs + runs++ * COLUMNS;
            run[SPLIT] = g->val[i];
            run[TEXT] = 0;
            start = at;
        }
        int marked = g->eot >= 0 && (!g->has_eot || g->has_eot[i]);
        if (marked && g->before)
            put(eot, 4, g->tokens + at++ * g->token_bytes, g->token_bytes, 1);
        put(ids, g->id_bytes, g->tokens + at * g->token_bytes, g->token_bytes, g->counts[i]);
        at += g->counts[i];
        if (marked && !g->before)
            put(eot, 4, g->tokens + at++ * g->token_bytes, g->token_bytes, 1);
        g->token_ends[i] = at;
        if (!g->closes || g->closes[i]) {
            g->ends[ends] = at - start;
            g->ended[ends++] = i;
        }
        run[TOKENS] = at;
        run[ENDS] = ends;
        run[TEXT] += g->text_bytes[i];
    }
    return runs;
}

/* In the order of the text, or all of train before all of val. */
void layout_block(Layout *g)
{
    g->runs_made = g->apart ? lay(g, 1, lay(g, 0, 0)) : lay(g, ALL, 0);
}

/* Over the first pieces: how many begin a document, how many of these are whole documents in val, how many passages
 * there are, and how many of these are in val. passages may be null. */
void layout_sums(const uint8_t *begins, const int8_t *val, const int64_t *passages, int64_t pieces, int64_t *sums)
{
    memset(sums, 0, 4 * sizeof *sums);
    for (int64_t i = 0; i < pieces; i++) {
        int64_t many = passages ? passages[i] : 0, in_val = val[i] == 1;
        sums[0] += begins[i];
        sums[1] += begins[i] && in_val && !many;
        sums[2] += many;
        sums[3] += in_val ? many : 0;
    }
}

/* How many documents are empty that end there; the first begins at `since`. */
int64_t layout_empty(const int64_t *ends, int64_t count, int64_t since)
{
    int64_t empty = 0;
    for (int64_t i = 0; i < count; i++)
        empty += ends[i] == (i ? ends[i - 1] : since);
    return empty;
}

/* Ends of documents, counted from another token, and their sizes; the first begins at `since`. Returns how many are empty. */
int64_t layout_ends(const int64_t *ends, int64_t count, int64_t begin, int64_t since, int64_t *moved, int64_t *sizes)
{
    for (int64_t i = 0; i < count; i++) {
        moved[i] = ends[i] + begin;
        sizes[i] = moved[i] - (i ? moved[i - 1] : since);
    }
    return layout_empty(ends, count, since - begin);
}
