/* Text → ids for one piece. Included once for each kind of processor, with KERNEL naming the function it makes.
 *
 * Four steps, each over many words at once, so that the processor need not wait for memory: find where words begin,
 * hash them and ask for their entries, read the entries, write the ids. Only the first differs between processors. */

/* One bit for each of 64 bytes. The class of a byte is that of its character: lo and hi are 00 other, 01 letter,
 * 10 number, 11 space. */
typedef struct {
    u64 lo, hi, blank, quote;
    u64 many;           /* part of a character of several bytes */
    u64 space2, space3; /* the first byte of a space character of two or three */
    u64 apart;          /* no merge can cross the border before this byte */
} FN(Block);

/* What the characters that begin in one block say of the next. */
typedef struct {
    u64 lo, hi;
} FN(Carry);

#if defined(USE_AVX512)

static inline void FN(classify)(const Engine *e, const u8 *p, FN(Block) *b)
{
    __m512i v = _mm512_loadu_si512(p);
    __m512i plane = _mm512_permutex2var_epi8(_mm512_load_si512(e->ascii), v, _mm512_load_si512(e->ascii + 64));
    b->many = _mm512_movepi8_mask(v);
    b->lo = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(1)) & ~b->many;
    b->hi = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(2)) & ~b->many;
    b->blank = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
    b->quote = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
}

static inline u32 FN(positions)(u64 bits, u32 base, u16 *to)
{
    __m512i places = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(counting));
    __m512i first = _mm512_set1_epi16((short)base);
    u32 count = (u32)__builtin_popcountll(bits);
    _mm512_storeu_si512(to, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(places)), first));
    if (UNLIKELY(count > 32))
        _mm512_storeu_si512(to + 32,
                            _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(places, 1)), first));
    return count;
}

#else

#if defined(__SSE2__) && !defined(PLAIN_C)

/* ASCII is what it is: the classes of these bytes never change. */
static inline void FN(classify)(const Engine *e, const u8 *p, FN(Block) *b)
{
    (void)e;
    u64 letter = 0, number = 0, space = 0, blank = 0, quote = 0, high = 0;
    for (int i = 0; i < 64; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(p + i));
#define AMONG(x, first, count) \
    _mm_cmpeq_epi8(_mm_min_epu8(_mm_sub_epi8(x, _mm_set1_epi8(first)), _mm_set1_epi8((count) - 1)), \
                   _mm_sub_epi8(x, _mm_set1_epi8(first)))
#define BITS(x) ((u64)(u32)_mm_movemask_epi8(x) << i)
        __m128i is_blank = _mm_cmpeq_epi8(v, _mm_set1_epi8(' '));
        letter |= BITS(AMONG(_mm_or_si128(v, _mm_set1_epi8(0x20)), 'a', 26));
        number |= BITS(AMONG(v, '0', 10));
        space |= BITS(_mm_or_si128(AMONG(v, '\t', 5), is_blank));
        blank |= BITS(is_blank);
        quote |= BITS(_mm_cmpeq_epi8(v, _mm_set1_epi8('\'')));
        high |= BITS(v);
#undef AMONG
#undef BITS
    }
    b->lo = letter | space;
    b->hi = number | space;
    b->blank = blank;
    b->quote = quote;
    b->many = high;
}

#else

static inline void FN(classify)(const Engine *e, const u8 *p, FN(Block) *b)
{
    u64 bits[5] = {0};
    for (int i = 0; i < 64; i += 8) {
        u64 flags = 0;
        for (int j = 0; j < 8; j++) {
            u8 c = p[i + j];
            u8 flag = c >= 0x80 ? 16 : e->ascii[c] | (c == ' ') << 2 | (c == '\'') << 3;
            flags |= (u64)flag << 8 * j;
        }
        for (int k = 0; k < 5; k++) /* the k-th bit of each byte, side by side */
            bits[k] |= ((flags >> k & 0x0101010101010101ull) * 0x0102040810204080ull >> 56) << i;
    }
    b->lo = bits[0];
    b->hi = bits[1];
    b->blank = bits[2];
    b->quote = bits[3];
    b->many = bits[4];
}

#endif

static inline u32 FN(positions)(u64 bits, u32 base, u16 *to)
{
    u32 count = 0;
    for (; bits; bits &= bits - 1)
        to[count++] = (u16)(base + (u32)__builtin_ctzll(bits));
    return count;
}

#endif

/* The characters of several bytes that begin in a block. `p` is the block, and p[-1] may be read unless it is `first`. */
static __attribute__((noinline)) FN(Carry) FN(foreign)(const Engine *e, const u8 *p, int first, FN(Carry) in, FN(Block) *b)
{
    FN(Carry) out = {0, 0};
    b->lo |= in.lo;
    b->hi |= in.hi;
    for (u64 left = b->many; left; left &= left - 1) {
        u32 i = (u32)__builtin_ctzll(left), size, point, c, next;
        memcpy(&next, p + i, 4);
        u8 lead = (u8)next;
        if (lead < 0xC0)
            continue;
        if (lead < 0xE0) {
            point = (lead & 31u) << 6 | (next >> 8 & 63);
            size = 2;
        } else if (lead < 0xF0) {
            point = (lead & 15u) << 12 | (next >> 8 & 63) << 6 | (next >> 16 & 63);
            size = 3;
        } else {
            point = (lead & 7u) << 18 | (next >> 8 & 63) << 12 | (next >> 16 & 63) << 6 | (next >> 24 & 63);
            size = 4;
        }
        c = point < CODE_POINTS ? e->plane[point] : 0;
        u64 bytes = (1ull << size) - 1, here = bytes << i, later = i ? bytes >> (64 - i) : 0;
        b->lo |= here & -(u64)(c & 1);
        b->hi |= here & -(u64)(c >> 1);
        out.lo |= later & -(u64)(c & 1);
        out.hi |= later & -(u64)(c >> 1);
        if (UNLIKELY(c == 3))
            *(size == 2 ? &b->space2 : &b->space3) |= 1ull << i;
        if (!(first && i == 0) && !side_by_side(e, p[(ptrdiff_t)i - 1], lead))
            b->apart |= 1ull << i;
    }
    return out;
}

/* Where words begin in `blocks` blocks of 64 bytes; one more is read. The pattern of GPT-2:
 *
 *     '(?:[sdmt]|ll|ve|re) | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+$ | \s+(?!\S) | \s
 *
 * So a word begins where the class changes, but not behind a blank, which belongs to it; and at the last space of
 * several when something follows. An apostrophe that begins a word may make a word of the next letters. Where no merge
 * can cross, words are parted too: *whole is the index of the last position that is not such a place. */
static u32 FN(find_words)(const Engine *e, const u8 *p, u32 blocks, u16 *positions, u32 *whole)
{
    FN(Block) now = {0}, next = {0};
    FN(Carry) carry = {0, 0};
    u64 lo = 0, hi = 0, blank = 0; /* the last bit of the block before */
    u64 also = 1, not_here = 0;    /* what a contraction says of the block behind it */
    u32 count = 0;
    FN(classify)(e, p, &now);
    if (now.many)
        carry = FN(foreign)(e, p, 1, carry, &now);
    *whole = 0;
    for (u32 k = 0; k < blocks; k++, now = next) {
        const u8 *block = p + 64 * k;
        next.space2 = next.space3 = next.apart = 0;
        FN(classify)(e, block + 64, &next);
        if (UNLIKELY(next.many))
            carry = FN(foreign)(e, block + 64, 0, carry, &next);
        u64 space = now.lo & now.hi, later = next.lo & next.hi;
        u64 change = (now.lo ^ (now.lo << 1 | lo)) | (now.hi ^ (now.hi << 1 | hi));
        u64 last = space & ~now.many & ~(space >> 1 | later << 63);
        if (UNLIKELY(now.space2 | now.space3))
            last |= (now.space2 & ~(space >> 2 | later << 62)) | (now.space3 & ~(space >> 3 | later << 61));
        u64 begins = (change & ~(now.blank << 1 | blank)) | last;
        lo = now.lo >> 63;
        hi = now.hi >> 63;
        blank = now.blank >> 63;
        u64 quotes = now.quote & (begins | (k == 0));
        begins = (begins & ~not_here) | also;
        also = not_here = 0;
        for (; UNLIKELY(quotes); quotes &= quotes - 1) {
            u32 i = (u32)__builtin_ctzll(quotes), size = contraction(block + i);
            if (!size)
                continue;
            begins &= ~(2ull << i);
            not_here |= i == 63;
            if (i + size < 64)
                begins |= 1ull << (i + size);
            else
                also |= 1ull << (i + size - 64);
        }
        if (begins) /* the places before the last of them */
            *whole = count + (u32)__builtin_popcountll((begins | now.apart) << __builtin_clzll(begins)) - 1;
        count += FN(positions)(begins | now.apart, 64 * k, positions + count);
    }
    return count;
}

/* New words are merged a few side by side: each step of one waits for memory, and the others fill the time. */
enum { FN(TOGETHER) = 4 };

typedef struct {
    const u8 *text;
    u32 size, index;
} FN(New);

#if defined(USE_AVX512)
typedef __m512i FN(Ranks);

static inline FN(Ranks) FN(first_ranks)(const Engine *e, const u8 *s, u32 n)
{
    __m512i a = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)s));
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(s + 1)));
    __m512i pair = _mm512_or_si512(_mm512_slli_epi32(a, 8), b);
    __m512i rank = _mm512_mask_i32gather_epi32(_mm512_set1_epi32(NONE), (__mmask16)((1u << (n - 1)) - 1), pair,
                                               e->byte_pairs, 4);
    return _mm512_or_si512(_mm512_slli_epi32(rank, 4), _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)counting)));
}

static inline u32 FN(least)(const FN(Ranks) *r)
{
    return _mm512_reduce_min_epu32(*r);
}

static inline void FN(set)(FN(Ranks) *r, u32 lanes, u32 rank)
{
    *r = _mm512_mask_set1_epi32(*r, (__mmask16)lanes, (int)rank);
}
#else
typedef struct {
    u32 lane[SHORT_BYTES];
} FN(Ranks);

static inline FN(Ranks) FN(first_ranks)(const Engine *e, const u8 *s, u32 n)
{
    FN(Ranks) r;
    for (u32 i = 0; i < SHORT_BYTES; i++)
        r.lane[i] = (i + 1 < n ? e->byte_pairs[s[i] << 8 | s[i + 1]] : (u32)NONE) << 4 | i;
    return r;
}

static inline u32 FN(least)(const FN(Ranks) *r)
{
    u32 a = r->lane[0], b = r->lane[1];
    for (u32 i = 2; i < SHORT_BYTES; i += 2) {
        a = r->lane[i] < a ? r->lane[i] : a;
        b = r->lane[i + 1] < b ? r->lane[i + 1] : b;
    }
    return a < b ? a : b;
}

static inline void FN(set)(FN(Ranks) *r, u32 lanes, u32 rank)
{
    if (lanes)
        r->lane[__builtin_ctz(lanes) & 15] = rank;
}
#endif

/* Byte pair encoding of `count` words, one merge of each in turn. Bit i + 1 of alive is part i; both ends have one that
 * merges with nothing. A rank is kept as rank << 4 | place, so that the least is the leftmost of the lowest. */
static __attribute__((noinline)) void FN(merge)(const Engine *e, const FN(New) *words, u32 count, u64 (*values)[2])
{
    FN(Ranks) ranks[FN(TOGETHER)];
    u32 id[FN(TOGETHER)][SHORT_BYTES + 2], alive[FN(TOGETHER)], busy = (1u << count) - 1;
    for (u32 k = 0; k < count; k++) {
        u32 n = words[k].size;
        ranks[k] = FN(first_ranks)(e, words[k].text, n);
        alive[k] = (1u << (n + 2)) - 1;
        id[k][0] = id[k][n + 1] = NONE;
        for (u32 i = 0; i < n; i++)
            id[k][i + 1] = e->byte_id[words[k].text[i]];
    }
    while (busy)
        for (u32 k = 0; k < FN(TOGETHER); k++) {
            if (!(busy >> k & 1))
                continue;
            u32 least = FN(least)(&ranks[k]), i = (least & 15) + 1, rank = least >> 4;
            if (rank == NONE) {
                busy ^= 1u << k;
                continue;
            }
            u32 after = alive[k] & ~((2u << i) - 1), gone = after & -after, before = alive[k] & ((1u << i) - 1);
            after ^= gone;
            alive[k] ^= gone;
            u32 next = (u32)__builtin_ctz(after), last = 31 - (u32)__builtin_clz(before);
            u32 with_next = merged(e, rank, id[k][next]), with_last = merged(e, id[k][last], rank);
            id[k][i] = rank;
            FN(set)(&ranks[k], gone >> 1, (u32)NONE << 4);
            FN(set)(&ranks[k], 1u << (i - 1), with_next << 4 | (i - 1));
            FN(set)(&ranks[k], (1u << last) >> 1, with_last << 4 | (last - 1));
        }
    for (u32 k = 0; k < count; k++) {
        u32 ids[SHORT_BYTES], n = 0;
        for (u32 left = alive[k] & ((1u << (words[k].size + 1)) - 2); left; left &= left - 1)
            ids[n++] = id[k][__builtin_ctz(left)];
        pack_ids(e, ids, n, values[words[k].index]);
    }
}

/* The keys and hashes of four words; one too long for the table gets a key that no word has. */
#if defined(USE_AVX512)
static inline void FN(make_keys)(const u8 *p, const u16 *positions, u64 (*keys)[2], u32 *hashes)
{
    const __m512i lane = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)counting));
    const __m512i factors = _mm512_broadcast_i32x4(_mm_set_epi64x((long long)HASH1, (long long)HASH0));
    __m128i from = _mm_loadl_epi64((const __m128i *)positions), to = _mm_loadl_epi64((const __m128i *)(positions + 1));
    __m128i size = _mm_sub_epi16(to, from);
    size = _mm_maskz_mov_epi16(_mm_cmple_epu16_mask(size, _mm_set1_epi16(SHORT_BYTES)), size);
    __m512i text = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + positions[0])));
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[1])), 1);
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[2])), 2);
    text = _mm512_inserti32x4(text, _mm_loadu_si128((const __m128i *)(p + positions[3])), 3);
    __m512i sizes = _mm512_permutexvar_epi8(_mm512_load_si512(size_of_lane), _mm512_castsi128_si512(size));
    text = _mm512_mask_set1_epi8(text, _mm512_cmpge_epu8_mask(lane, sizes), -1);
    _mm512_store_si512(keys, text);
    __m512i product = _mm512_mullo_epi64(text, factors);
    __m512i hash = _mm512_add_epi64(product, _mm512_shuffle_epi32(product, _MM_PERM_BADC));
    hash = _mm512_maskz_compress_epi64(0x55, _mm512_srli_epi64(hash, 32));
    _mm_storeu_si128((__m128i *)hashes, _mm256_castsi256_si128(_mm512_cvtepi64_epi32(hash)));
}
#else
static inline void FN(make_keys)(const u8 *p, const u16 *positions, u64 (*keys)[2], u32 *hashes)
{
    for (u32 i = 0; i < 4; i++) {
        u32 size = (u32)positions[i + 1] - positions[i];
        size = size <= SHORT_BYTES ? size : 0;
        keys[i][0] = load8(p + positions[i]) | padding[size][0];
        keys[i][1] = load8(p + positions[i] + 8) | padding[size][1];
        hashes[i] = hash_word(keys[i][0], keys[i][1]);
    }
}
#endif

/* Words between the positions → ids: from what was learned, or merged now. Entries are asked for long before they are
 * read, since most are far from the processor. */
static u8 *FN(encode_words)(Engine *e, const u8 *p, const u16 *positions, u32 count, u8 *out, Learned *learned)
{
    enum { BATCH = 256 };
    const u32 shift = e->id_shift;
    u64 keys[BATCH][2] __attribute__((aligned(64))), values[BATCH][2];
    u32 hashes[BATCH];
    u16 missed[BATCH];
    for (; count; positions += BATCH) {
        FN(New) fresh[FN(TOGETHER)];
        u32 batch = count < BATCH ? count : BATCH, misses = 0, news = 0;
        count -= batch;
        for (u32 i = 0; i < batch; i += 4) {
            FN(make_keys)(p, positions + i, keys + i, hashes + i);
            for (u32 k = i; k < i + 4; k++)
                __builtin_prefetch(e->words + word_place(hashes[k], 0, e->word_mask));
        }
        for (u32 i = 0; i < batch; i++) {
            Word *w = e->words + word_place(hashes[i], 0, e->word_mask);
            u64 rest = atomic_load_explicit(&w->rest, memory_order_acquire);
            values[i][0] = GET(w->ids);
            values[i][1] = rest;
            missed[misses] = (u16)i;
            misses += ((GET(w->key[0]) ^ keys[i][0]) | (GET(w->key[1]) ^ keys[i][1])) != 0;
        }
        for (u32 j = 0; j < misses; j++)
            __builtin_prefetch(e->words + word_place(hashes[missed[j]], 2, e->word_mask));
        for (u32 j = 0; j < misses; j++) {
            u32 i = missed[j], size = (u32)positions[i + 1] - positions[i];
            Word *w = size <= SHORT_BYTES ? find_word(e, keys[i], hashes[i]) : NULL;
            values[i][1] = ASK_LONG;
            if (w) {
                values[i][0] = GET(w->ids);
                values[i][1] = GET(w->rest);
            } else if (size <= SHORT_BYTES)
                fresh[news++] = (FN(New)){p + positions[i], size, i};
            if (news == FN(TOGETHER) || (news && j + 1 == misses)) {
                FN(merge)(e, fresh, news, values);
                for (u32 k = 0; k < news; k++)
                    learned->words += (u64)learn_word(e, keys[fresh[k].index], hashes[fresh[k].index],
                                                      values[fresh[k].index], fresh[k].text[fresh[k].size - 1]);
                news = 0;
            }
        }
        for (u32 i = 0; i < batch; i++) {
            u64 n = values[i][1] >> 56;
            if (UNLIKELY(n - 1 >= ID_BYTES / 2)) { /* in the other table, or being written at this moment */
                out = long_word(e, p + positions[i], (size_t)positions[i + 1] - positions[i], out, learned);
                if (!out)
                    return NULL;
                continue;
            }
            memcpy(out, values[i], 16);
            out += n << shift;
        }
    }
    return out;
}

u8 *KERNEL(Engine *e, const u8 *text, size_t size, u8 *out, Learned *learned)
{
    u8 copy[WINDOW + 2 * PADDING];
    u16 positions[WINDOW + 128];
    while (size && out) {
        const u8 *p = text;
        size_t used = size;
        u32 whole, span = size < WINDOW ? (u32)size : WINDOW;
        if (size < WINDOW + PADDING) { /* nothing behind the text is read; behind it is only white space, as at its end */
            memcpy(copy, text, size);
            memset(copy + size, '\n', PADDING);
            p = copy;
        }
        u32 count = FN(find_words)(e, p, (span + 63) / 64, positions, &whole);
        if (size <= WINDOW) {
            while (positions[count - 1] >= size)
                count--;
            positions[count] = (u16)size;
        } else if (whole) {
            count = whole;
            used = positions[whole];
        } else {
            used = word_size(e, text, size);
            out = long_word(e, text, used, out, learned);
            count = 0;
        }
        for (u32 i = 1; i < 4; i++) /* words are hashed four at a time */
            positions[count + i] = positions[count];
        if (count)
            out = FN(encode_words)(e, p, positions, count, out, learned);
        text += used;
        size -= used;
    }
    return out;
}
