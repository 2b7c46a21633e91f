/* Where pieces begin in a window of text: part of sp_kernel.h. */

/* What pieces are found in: where they begin, and with which character unless that is ASCII. */
typedef struct {
    u16 *at;
    u32 *first, count, before; /* before: the character before those that are next */
} FN(Pieces);

/* 32 bytes of ASCII behind another one: without a branch. */
static inline void FN(cut_ascii)(const Sp *e, const u8 *p, u32 from, FN(Pieces) *f)
{
    u32 count = f->count;
    for (u32 i = from; i < from + 32; i++) {
        f->at[count] = (u16)i;
        count += e->apart[p[i - 1]][p[i]];
    }
    f->count = count;
    f->before = e->pages[p[from + 31]];
}

static inline int FN(is_ascii)(const u8 *p)
{
    return !((load8(p) | load8(p + 8) | load8(p + 16) | load8(p + 24)) & 0x8080808080808080ull);
}

#if defined(USE_AVX512)
enum { BEYOND = 0xFFFF }; /* stands for characters of four bytes */

/* The code points that begin in 32 bytes, of which some count, and where they do; how many there are. */
static inline u32 FN(read_points)(const u8 *p, u32 from, u32 counts, u16 *point, u16 *place)
{
    static const u8 counting[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    __m256i bytes = _mm256_loadu_si256((const __m256i *)(p + from)), places = _mm256_loadu_si256((const __m256i *)counting);
    u32 leads = (_mm256_cmpge_epi8_mask(bytes, _mm256_set1_epi8((char)0xC0)) | !from) & counts;
    __m512i low = _mm512_set1_epi16(63), a = _mm512_cvtepu8_epi16(bytes);
    __m512i b = _mm512_and_si512(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(p + from + 1))), low);
    __m512i c = _mm512_and_si512(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(p + from + 2))), low);
    __m512i two = _mm512_or_si512(_mm512_and_si512(_mm512_slli_epi16(a, 6), _mm512_set1_epi16(0x7C0)), b);
    __m512i three = _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi16(a, 12), _mm512_slli_epi16(b, 6)), c);
    a = _mm512_mask_mov_epi16(a, _mm256_cmpge_epu8_mask(bytes, _mm256_set1_epi8((char)0xC0)), two);
    a = _mm512_mask_mov_epi16(a, _mm256_cmpge_epu8_mask(bytes, _mm256_set1_epi8((char)0xE0)), three);
    a = _mm512_mask_set1_epi16(a, _mm256_cmpge_epu8_mask(bytes, _mm256_set1_epi8((char)0xF0)), (short)BEYOND);
    __m512i at = _mm512_add_epi16(_mm512_cvtepu8_epi16(places), _mm512_set1_epi16((short)from));
    _mm512_storeu_si512(point, _mm512_maskz_compress_epi16(leads, a));
    _mm512_storeu_si512(place, _mm512_maskz_compress_epi16(leads, at));
    return (u32)__builtin_popcount(leads);
}

/* The characters of 16 code points. */
static inline __m512i FN(characters)(const Sp *e, const u8 *p, const u16 *point, const u16 *place, u32 counts)
{
    __m512i points = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)point));
    __m512i found = _mm512_i32gather_epi32(points, (const int *)e->pages, 4);
    u32 beyond = _mm512_cmpeq_epi32_mask(points, _mm512_set1_epi32(BEYOND)) & counts;
    for (u32 size; UNLIKELY(beyond); beyond &= beyond - 1) {
        u32 character = character_at(e, p + place[__builtin_ctz(beyond)], &size);
        found = _mm512_mask_set1_epi32(found, (__mmask16)(beyond & -beyond), (int)character);
    }
    return found;
}

/* A bit for each of 16 characters: whether it may be joined to the one before, as may_join has it. */
static inline u32 FN(joined)(const Sp *e, __m512i left, __m512i right)
{
    __m512i symbol = _mm512_set1_epi32(NO_SYMBOL), one = _mm512_set1_epi32(1);
    __m512i bit = _mm512_mullo_epi32(_mm512_and_si512(left, symbol), _mm512_set1_epi32((int)JOINED_HASH));
    bit = _mm512_srl_epi32(bit, _mm_cvtsi32_si128((int)e->joined_shift));
    bit = _mm512_add_epi32(bit, _mm512_and_si512(right, symbol));
    bit = _mm512_and_si512(bit, _mm512_set1_epi32((int)e->joined_mask));
    __m512i bits = _mm512_i32gather_epi32(_mm512_srli_epi32(bit, 5), (const int *)e->joined, 4);
    bits = _mm512_srlv_epi32(bits, _mm512_and_si512(bit, _mm512_set1_epi32(31)));
    bits = _mm512_and_si512(bits, _mm512_and_si512(_mm512_srli_epi32(left, 30), _mm512_srli_epi32(right, 31)));
    __mmask16 run = _mm512_mask_cmpeq_epi32_mask(_mm512_test_epi32_mask(right, _mm512_set1_epi32(CLOSED)), left, right);
    return _mm512_test_epi32_mask(bits, one) | run;
}

/* Text from the i-th byte on up to the next 32 bytes of ASCII; returns where those begin. */
static inline u32 FN(cut_others)(const Sp *e, const u8 *p, u32 i, u32 size, FN(Pieces) *f)
{
    u16 point[SP_WINDOW + 64], place[SP_WINDOW + 64];
    u32 n = 0, width;
    do {
        n += FN(read_points)(p, i, size - i < 32 ? (1u << (size - i)) - 1 : ~0u, point + n, place + n);
        i += 32;
    } while (i < size && !FN(is_ascii)(p + i));
    __m512i before = _mm512_set1_epi32((int)f->before);
    for (u32 k = 0; k < n; k += 16) {
        u32 counts = n - k < 16 ? (1u << (n - k)) - 1 : 0xFFFF;
        __m512i here = FN(characters)(e, p, point + k, place + k, counts);
        u32 cut = ~FN(joined)(e, _mm512_alignr_epi32(here, before, 15), here) & counts;
        __m256i places = _mm256_loadu_si256((const __m256i *)(place + k));
        _mm256_storeu_si256((__m256i *)(f->at + f->count), _mm256_maskz_compress_epi16((__mmask16)cut, places));
        _mm512_storeu_si512(f->first + f->count, _mm512_maskz_compress_epi32((__mmask16)cut, here));
        f->count += (u32)__builtin_popcount(cut);
        before = here;
    }
    if (n) /* none: not UTF-8 */
        f->before = character_at(e, p + place[n - 1], &width);
    return i;
}
#else
static inline u32 FN(cut_others)(const Sp *e, const u8 *p, u32 i, u32 size, FN(Pieces) *f)
{
    u32 width;
    for (u32 stop = i + 32 < size ? i + 32 : size; i < stop; i += width) {
        u32 here = character_at(e, p + i, &width);
        f->at[f->count] = (u16)i;
        f->first[f->count] = here;
        f->count += !may_join(e, f->before, here);
        f->before = here;
    }
    return i;
}
#endif

/* Where pieces begin in a window, the first at 0, and with which characters. Four bytes behind it may be read. */
static u32 FN(find_pieces)(const Sp *e, const u8 *p, u32 size, u16 *at, u32 *first, u32 *others)
{
    FN(Pieces) f = {at, first, 0, NO_SYMBOL};
    *others = 0;
    for (u32 i = 0; i < size;) {
        if (i && p[i - 1] < 0x80 && i + 32 <= size && FN(is_ascii)(p + i)) {
            FN(cut_ascii)(e, p, i, &f);
            i += 32;
        } else {
            u32 count = f.count;
            i = FN(cut_others)(e, p, i, size, &f);
            *others += f.count - count;
        }
    }
    return f.count;
}
