/* A piece of any length → its ids. Pieces of up to 16 characters are merged in sp_kernel.h, which is faster for many. */
#include "sp.h"

/* A piece that nothing is merged in: a run of one byte, all of it added tokens; or a character without a token. */
u32 sp_unmerged(const Sp *e, const u8 *s, size_t n, u32 *out)
{
    const u8 *end = s + n;
    u32 count = 0;
    for (; s < end && *s < 0x80 && e->closed[*s]; count++)
        s += added_longest(e->added, s, end, &out[count]);
    while (s < end) /* behind a closed byte only what is not UTF-8 */
        out[count++] = e->byte_id[*s++];
    return count;
}

static u32 read_characters(const void *engine, const u8 **s, const u8 *end, u32 *symbols, u32 most)
{
    const Sp *e = engine;
    u32 count = 0;
    for (u32 size; *s < end && count < most; *s += size) {
        u32 symbol = SYMBOL_OF(character_before_end(e, *s, end, &size));
        if (size > (size_t)(end - *s)) /* not UTF-8 */
            size = (u32)(end - *s);
        symbols[count++] = symbol == NO_SYMBOL ? 0 : symbol;
    }
    return count;
}

/* Returns the end of its ids, or NULL without memory. */
u32 *sp_merge(const Sp *e, const u8 *s, size_t n, u32 *out)
{
    Merging m = {e, &e->pairs, e->ids, 2, read_characters};
    u32 size;
    if (SYMBOL_OF(character_before_end(e, s, s + n, &size)) == NO_SYMBOL)
        return out + sp_unmerged(e, s, n, out);
    return (u32 *)(void *)merge(&m, s, n, (u8 *)out);
}
