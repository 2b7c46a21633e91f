/* Whose turn it is to encode, where more threads have text than may encode at once. Waiting here, not in Python, the next
 * one begins as soon as this one ends, whoever has the GIL. */
#include "layout.h"

#include <pthread.h>
#include <stdlib.h>

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

/* Ids in the turn of this thread, and the tokens as they are written. */
int64_t in_turn(int64_t (*encode)(void *call), void *call, Layout *g)
{
    int64_t began, total;
    if (g->turn)
        turn_take(g->turn);
    began = cpu_nanoseconds();
    total = encode(call);
    if (g->turn)
        turn_give(g->turn);
    if (total >= 0)
        layout_block(g);
    g->nanoseconds = cpu_nanoseconds() - began;
    return total;
}
