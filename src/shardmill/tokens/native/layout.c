/* The ids of pieces → tokens as they are written: in the type of the output, each piece at its place, end-of-text tokens
 * before or behind those that have one. */
#include <stdint.h>
#include <string.h>

static void put(const uint8_t *from, int64_t from_bytes, uint8_t *to, int64_t to_bytes, int64_t count)
{
    if (from_bytes == to_bytes)
        memcpy(to, from, (size_t)(count * to_bytes));
    else if (to_bytes == 4)
        for (int64_t i = 0; i < count; i++)
            ((uint32_t *)to)[i] = ((const uint16_t *)from)[i];
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = (uint16_t)((const uint32_t *)from)[i];
}

/* Piece i has counts[i] ids, and its tokens begin at out[places[i]]. Ids and tokens have 2 or 4 bytes. */
void layout_tokens(const uint8_t *ids, int64_t id_bytes, const int64_t *counts, const int64_t *places, const uint8_t *has_eot,
                   int64_t pieces, uint32_t eot, int64_t before, uint8_t *out, int64_t token_bytes)
{
    for (int64_t i = 0; i < pieces; i++) {
        uint8_t *to = out + places[i] * token_bytes;
        put(ids, id_bytes, to + (has_eot[i] && before ? token_bytes : 0), token_bytes, counts[i]);
        if (has_eot[i])
            put((const uint8_t *)&eot, 4, to + (before ? 0 : counts[i] * token_bytes), token_bytes, 1);
        ids += counts[i] * id_bytes;
    }
}
