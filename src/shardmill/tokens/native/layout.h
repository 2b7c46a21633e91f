#include <stdint.h>
#include <time.h>

/* As in layout.py. The arrays have a row for each piece, those of results as many rows, too; has_eot and closes are null
 * where it is so of all. eot: -1 if there are no end-of-text tokens.
 * nanoseconds: CPU time that encoding took. turn: waited for before encoding; may be null. */
typedef struct {
    const uint8_t *ids;
    const int64_t *counts, *text_bytes;
    const uint8_t *has_eot, *closes;
    const int8_t *val;
    uint8_t *tokens;
    int64_t *token_ends, *ends, *ended, *runs;
    int64_t pieces, id_bytes, token_bytes, eot, before, apart, runs_made, nanoseconds;
    struct Turn *turn;
} Layout;

void layout_block(Layout *);

/* turn.c */
int64_t in_turn(int64_t (*encode)(void *call), void *call, Layout *);

/* CPU time of this thread. */
static inline int64_t cpu_nanoseconds(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
