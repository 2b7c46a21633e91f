/* What all code paths but AVX-512 do alike: see kernel.h. */

static const u64 BYTES = 0x0101010101010101ull;

/* Eight places at a time, as the eight bits tell, though fewer may count. */
static inline u32 store_places(const Engine *e, u64 bits, u32 base, u16 *to)
{
    u64 sums = bits - (bits >> 1 & 0x55 * BYTES);
    sums = (sums & 0x33 * BYTES) + (sums >> 2 & 0x33 * BYTES);
    sums = ((sums + (sums >> 4)) & 0x0F * BYTES) * BYTES; /* byte k: how many bits there are up to byte k of the mask */
    u64 before = sums << 8;
    for (u32 k = 0; k < 8; k++)
        store_eight(e->places[bits >> 8 * k & 0xFF], base + 8 * k, to + (before >> 8 * k & 0xFF));
    return (u32)(sums >> 56);
}

static inline void make_keys(const u8 *p, const u16 *positions, u64 (*keys)[2], u32 *places, u32 mask)
{
    for (u32 i = 0; i < 4; i++) {
        u32 size = (u32)positions[i + 1] - positions[i];
        size = size <= SHORT_BYTES ? size : 0;
        keys[i][0] = load8(p + positions[i]) | padding[size][0];
        keys[i][1] = load8(p + positions[i] + 8) | padding[size][1];
        places[i] = (hash_word(keys[i][0], keys[i][1]) & mask) * (u32)sizeof(Word);
    }
}
