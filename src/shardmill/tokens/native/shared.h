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

typedef struct {
    u32 lane[MIDDLE_BYTES] __attribute__((aligned(64)));
} Ranks;

static inline void first_ranks(const Engine *e, const u8 *s, u32 n, Ranks *r, int wide)
{
    u32 i = 0;
    for (; i + 1 < n; i++)
        r->lane[i] = e->byte_pairs[s[i] << 8 | s[i + 1]] << 5 | i;
    for (; i < (wide ? MIDDLE_BYTES : SHORT_BYTES); i++)
        r->lane[i] = (u32)NONE << 5 | i;
}

static inline void set_rank(Ranks *r, u32 lanes, u32 rank, int wide)
{
    (void)wide;
    if (lanes)
        r->lane[__builtin_ctz(lanes) & 31] = rank;
}

static inline void make_keys(const u8 *p, const u16 *positions, u64 (*keys)[2], u32 *hashes)
{
    for (u32 i = 0; i < 4; i++) {
        u32 size = (u32)positions[i + 1] - positions[i];
        size = size <= SHORT_BYTES ? size : 0;
        keys[i][0] = load8(p + positions[i]) | padding[size][0];
        keys[i][1] = load8(p + positions[i] + 8) | padding[size][1];
        hashes[i] = hash_word(keys[i][0], keys[i][1]);
    }
}

typedef struct {
    u32 bits, mask, shift;
} Layout;

static inline Layout layout_of(const Engine *e)
{
    return (Layout){e->id_bits, (1u << e->id_bits) - 1, e->id_shift};
}

/* Three ids of 18 bits as numbers of two bytes, or of up to 20 bits as numbers of four. */
static inline void put_three(const Layout *l, u64 ids, u8 *out)
{
    if (l->shift == 1) {
        u64 all = (ids & 0xFFFF) | (ids >> 2 & 0xFFFFull << 16) | (ids >> 4 & 0xFFFFull << 32);
        memcpy(out, &all, 8);
    } else {
        u64 two = (ids & l->mask) | (ids >> l->bits & l->mask) << 32;
        u32 third = (u32)(ids >> 2 * l->bits) & l->mask;
        memcpy(out, &two, 8);
        memcpy(out + 8, &third, 4);
    }
}

static inline void put(const Layout *l, u64 a, u64 b, u64 count, u8 *out)
{
    put_three(l, a, out);
    if (UNLIKELY(count > 3))
        put_three(l, b, out + (3ul << l->shift));
}
