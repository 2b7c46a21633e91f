/* Added tokens: which of them a text holds, as the tokenizers library finds them. */
#ifndef SHARDMILL_ADDED_H
#define SHARDMILL_ADDED_H

#include "engine.h"

/* What a token asks for. A special one is ordinary text, but hides the tokens inside it. */
enum { ADDED_SPECIAL = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_SINGLE_WORD = 8 };

typedef struct Added Added;

/* Where a search stands: `next` is where the next match may begin, `done` is where the last found token ended, `space` is
 * where the last white space ended that a token has taken. */
typedef struct {
    size_t next, done, space;
} Search;

/* A token in the text, with the white space that it takes on either side. */
typedef struct {
    size_t start, end;
    u32 id;
} Found;

/* The next token, or 0. Ordinary text before it is from search->done, as it was before the call, to found->start. */
int added_next(const Added *a, const u8 *text, size_t size, Search *search, Found *found);

/* The size of the longest token that begins at s, or 0, whatever it asks for. */
size_t added_longest(const Added *a, const u8 *s, const u8 *end, u32 *id);

/* Tokens that begin with this byte are no longer looked for. */
void added_pass_over(Added *a, u8 byte);

#endif
