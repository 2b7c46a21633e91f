#include "layout.h"

enum { MOST_SHARES = 16, SLACK_IDS = 16 }; /* each share writes up to so many ids more than it has, as in native.py */

/* The pieces of a Block. encode: the ids of some of them in a row to `out`, and how many there are, or -1 without memory.
 * There is room for ids_per_byte ids for each byte of text, ids_per_piece for each piece, and SLACK_IDS for each share. */
typedef struct {
    int64_t (*encode)(void *call, int64_t first, int64_t count, uint8_t *out);
    void *call;
    const int64_t *sizes;
    int64_t pieces, ids_per_byte, ids_per_piece, id_bytes;
    uint8_t *out;
} Shares;

/* The ids of all pieces in a row, and the tokens as they are written. How many ids there are, or -1 without memory. */
int64_t lay_out_shares(const Shares *all, Layout *g);
