/* The gate of an engine: any number of threads encode at once, but none while a table is emptied. */
#include "engine.h"

static int is_full(const Gate *g)
{
    const Learned *most = &g->most, *learned = &g->learned;
    return learned->words > most->words || learned->middles > most->middles || learned->longs > most->longs;
}

void gate_make(Gate *g, u32 words, u32 middles, u32 longs)
{
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->most = (Learned){words / 4 * 3, middles / 4 * 3, longs / 4 * 3};
}

void gate_end(Gate *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

/* Waits while tables are emptied; the first to find one full empties it when everybody else has left. */
void gate_enter(Gate *g, void (*empty)(void *engine), void *engine)
{
    pthread_mutex_lock(&g->lock);
    while (g->emptying)
        pthread_cond_wait(&g->changed, &g->lock);
    if (is_full(g)) {
        g->emptying = 1;
        while (g->inside)
            pthread_cond_wait(&g->changed, &g->lock);
        empty(engine);
        g->emptying = 0;
        pthread_cond_broadcast(&g->changed);
    }
    g->inside++;
    pthread_mutex_unlock(&g->lock);
}

void gate_leave(Gate *g, const Learned *learned)
{
    pthread_mutex_lock(&g->lock);
    g->learned.words += learned->words;
    g->learned.middles += learned->middles;
    g->learned.longs += learned->longs;
    if (--g->inside == 0 && g->emptying)
        pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}
