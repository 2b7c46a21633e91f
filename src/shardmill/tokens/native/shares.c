/* The pieces of a Block, encoded by several threads at once; and whose turn it is, where more threads have Blocks than may
 * encode. */
#include "shares.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_BYTES = 256 << 10, /* less is not worth a thread */
    STACK_BYTES = 1 << 20,   /* some systems give only 128 KiB */
};

/* So many threads may encode at once. Waiting here, not in Python, the next one begins as soon as this one ends, whoever
 * has the GIL. */
typedef struct Turn {
    pthread_mutex_t lock;
    pthread_cond_t free;
    int64_t left;
} Turn;

Turn *turn_new(int64_t count)
{
    Turn *t = malloc(sizeof *t);
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->free, NULL);
        t->left = count;
    }
    return t;
}

void turn_free(Turn *t)
{
    pthread_cond_destroy(&t->free);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void turn_take(Turn *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->left)
        pthread_cond_wait(&t->free, &t->lock);
    t->left--;
    pthread_mutex_unlock(&t->lock);
}

void turn_give(Turn *t)
{
    pthread_mutex_lock(&t->lock);
    t->left++;
    pthread_cond_signal(&t->free);
    pthread_mutex_unlock(&t->lock);
}

typedef struct {
    const Shares *all;
    int64_t first, count, total, nanoseconds;
    uint8_t *out;
    pthread_t thread;
    int started;
} Share;

static void *encode_share(void *given)
{
    Share *s = given;
    int64_t began = cpu_nanoseconds();
    s->total = s->all->encode(s->all->call, s->first, s->count, s->out);
    s->nanoseconds = cpu_nanoseconds() - began;
    return NULL;
}

/* Consecutive pieces of about the same number of bytes for each. How many shares that makes. */
static int64_t divide(const Shares *all, int64_t threads, Share *shares)
{
    int64_t bytes = 0, done = 0, made = 0, at = 0;
    for (int64_t i = 0; i < all->pieces; i++)
        bytes += all->sizes[i];
    threads = threads < MOST_SHARES ? threads : MOST_SHARES;
    threads = threads < bytes / LEAST_BYTES ? threads : bytes / LEAST_BYTES;
    for (int64_t first = 0; first < all->pieces || !made; first = at) {
        int64_t room = all->ids_per_byte * done + all->ids_per_piece * first + made * SLACK_IDS;
        made++;
        while (at < all->pieces && (made >= threads || done * threads < bytes * made))
            done += all->sizes[at++];
        shares[made - 1] = (Share){all, first, at - first, 0, 0, all->out + room * all->id_bytes, 0, 0};
    }
    return made;
}

/* Signals are for Python's own threads. */
static void start(Share *shares, int64_t count)
{
    sigset_t none, before;
    pthread_attr_t attributes;
    if (count < 2 || pthread_attr_init(&attributes))
        return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&none);
    pthread_sigmask(SIG_SETMASK, &none, &before);
    for (int64_t i = 1; i < count; i++)
        shares[i].started = !pthread_create(&shares[i].thread, &attributes, encode_share, shares + i);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* Those that could not be started are encoded here. */
static void encode_all(Share *shares, int64_t count)
{
    start(shares, count);
    for (int64_t i = 0; i < count; i++)
        if (!shares[i].started)
            encode_share(shares + i);
    for (int64_t i = 0; i < count; i++)
        if (shares[i].started)
            pthread_join(shares[i].thread, NULL);
}

int64_t lay_out_shares(const Shares *all, Layout *g)
{
    Share shares[MOST_SHARES];
    int64_t count = divide(all, g->threads, shares), total = 0, began;
    if (g->turn)
        turn_take(g->turn);
    encode_all(shares, count);
    if (g->turn)
        turn_give(g->turn);
    g->nanoseconds = 0;
    for (int64_t i = 0; i < count; i++) {
        const Share *s = shares + i;
        if (s->total < 0)
            return -1;
        g->nanoseconds += s->nanoseconds;
        memmove(all->out + total * all->id_bytes, s->out, (size_t)(s->total * all->id_bytes));
        total += s->total;
    }
    began = cpu_nanoseconds();
    layout_block(g);
    g->nanoseconds += cpu_nanoseconds() - began;
    return total;
}
