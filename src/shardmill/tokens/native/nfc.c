/* Where a text might not be in Unicode's normal form C: a quick check, with what the reference does as its table.
 *
 * kinds[c] of a code point below KINDS:
 *     0        a starter that NFC leaves alone, whatever precedes it
 *     1..199   a mark that composes with nothing. NFC only sorts marks: by this number, within a run of them
 *     JOINS    composes with some of the characters before it; pairs lists which
 *     CHANGES  NFC always changes it, or may compose it with too many to list
 * A run of characters of any other kind than 0, with the one before it, normalizes by itself.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { KINDS = 0x30000, JOINS = 254, CHANGES = 255, KNOWN = 4096, PLACES = 8, MOST_SPAN = 24, MOST_MADE = 34 };

/* What the reference made of a span: most are a letter and its mark, and come again and again. Entries are only added;
 * state: 0 empty, 1 claimed, 2 filled. */
typedef struct {
    _Atomic uint32_t state;
    uint8_t size, made_size, text[MOST_SPAN], made[MOST_MADE];
} Known;

typedef struct {
    const uint8_t *kinds;
    const uint64_t *pairs; /* before << 32 | joining, sorted */
    int64_t pair_count;
    _Atomic uint32_t learned;
    Known known[KNOWN];
} Nfc;

/* For any number of threads; both tables must outlive it. NULL without memory. */
Nfc *nfc_new(const uint8_t *kinds, const uint64_t *pairs, int64_t pair_count)
{
    Nfc *nfc = calloc(1, sizeof *nfc);
    if (nfc) {
        nfc->kinds = kinds;
        nfc->pairs = pairs;
        nfc->pair_count = pair_count;
    }
    return nfc;
}

/* The entry of a span; NULL if there is none. *empty: where there would be room for one. */
static const Known *find(Nfc *nfc, const uint8_t *text, int64_t size, Known **empty)
{
    uint64_t hash = (uint64_t)size;
    if (size > MOST_SPAN)
        return NULL;
    for (int64_t i = 0; i < size; i++)
        hash = (hash ^ text[i]) * 0x9E3779B97F4A7C15u;
    for (uint64_t i = 0; i < PLACES; i++) {
        Known *known = nfc->known + (((hash >> 40) + i) & (KNOWN - 1));
        uint32_t state = atomic_load_explicit(&known->state, memory_order_acquire);
        if (state == 2 && known->size == size && !memcmp(known->text, text, (size_t)size))
            return known;
        if (state == 0 && empty) {
            *empty = known;
            return NULL;
        }
    }
    return NULL;
}

/* Keeps what the reference makes of a span, if there is room for it. */
static void learn(Nfc *nfc, const uint8_t *text, int64_t size, const uint8_t *made, int64_t made_size)
{
    Known *known = NULL;
    uint32_t empty = 0;
    if (made_size > MOST_MADE || find(nfc, text, size, &known) || !known ||
        !atomic_compare_exchange_strong_explicit(&known->state, &empty, 1, memory_order_relaxed, memory_order_relaxed))
        return;
    known->size = (uint8_t)size;
    known->made_size = (uint8_t)made_size;
    memcpy(known->text, text, (size_t)size);
    memcpy(known->made, made, (size_t)made_size);
    atomic_store_explicit(&known->state, 2, memory_order_release);
    atomic_fetch_add_explicit(&nfc->learned, 1, memory_order_relaxed);
}

/* Whether it has learned so much that it is time for a new one. */
int nfc_full(Nfc *nfc)
{
    return atomic_load_explicit(&nfc->learned, memory_order_relaxed) > KNOWN / 4 * 3;
}

void nfc_free(Nfc *nfc)
{
    free(nfc);
}

static uint32_t decode(const uint8_t *text, int *size)
{
    uint32_t lead = text[0];
    if (lead < 0x80) {
        *size = 1;
        return lead;
    }
    if (lead < 0xE0) {
        *size = 2;
        return (lead & 0x1F) << 6 | (text[1] & 0x3F);
    }
    if (lead < 0xF0) {
        *size = 3;
        return (lead & 0x0F) << 12 | (text[1] & 0x3F) << 6 | (text[2] & 0x3F);
    }
    *size = 4;
    return (lead & 0x07) << 18 | (text[1] & 0x3F) << 12 | (text[2] & 0x3F) << 6 | (text[3] & 0x3F);
}

static int kind_of(const Nfc *nfc, uint32_t point)
{
    return point < KINDS ? nfc->kinds[point] : 0;
}

static int composes(const Nfc *nfc, uint32_t before, uint32_t joining)
{
    uint64_t wanted = (uint64_t)before << 32 | joining;
    int64_t low = 0, high = nfc->pair_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (nfc->pairs[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < nfc->pair_count && nfc->pairs[low] == wanted;
}

/* A bit for each of the next 64 bytes, or of those that are left, that begins a character of several. */
static uint64_t long_leads(const uint8_t *text, int64_t left)
{
    uint64_t found = 0;
#if defined(__SSE2__)
    for (int i = 0; left >= 64 && i < 64; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(text + i));
        __m128i leads = _mm_cmpeq_epi8(_mm_max_epu8(bytes, _mm_set1_epi8((char)0xC0)), bytes);
        found |= (uint64_t)(uint32_t)_mm_movemask_epi8(leads) << i;
    }
    if (left >= 64)
        return found;
#endif
    for (int i = 0; i < 64 && i < left; i++)
        found |= (uint64_t)(text[i] >= 0xC0) << i;
    return found;
}

static int64_t character_before(const uint8_t *text, int64_t at)
{
    for (at -= at > 0; at > 0 && (text[at] & 0xC0) == 0x80;)
        at--;
    return at;
}

/* The next span [*start, *end) of valid UTF-8 that NFC might change, from *end on; 0 if there is none. */
static int next_span(const Nfc *nfc, const uint8_t *text, int64_t size, int64_t *start, int64_t *end)
{
    int64_t starter = 0, marks_end = -1;
    int last = 0, length; /* the mark before; JOINS: nothing more may follow */
    for (int64_t at = *end; at < size; at += 64)
        for (uint64_t left = long_leads(text + at, size - at); left; left &= left - 1) {
            int64_t here = at + __builtin_ctzll(left);
            uint32_t point = decode(text + here, &length);
            int kind = kind_of(nfc, point);
            if (!kind)
                continue;
            if (here != marks_end) {
                starter = character_before(text, here);
                last = 0;
            }
            marks_end = here + length;
            if (kind == JOINS && !last) /* at the beginning of the text, with nothing */
                kind = starter < here && composes(nfc, decode(text + starter, &length), point) ? CHANGES : JOINS;
            else if (kind == JOINS)
                kind = CHANGES;
            if (kind >= last && kind != CHANGES) {
                last = kind;
                continue;
            }
            while (marks_end < size && kind_of(nfc, decode(text + marks_end, &length)))
                marks_end += length;
            *start = starter + (text[starter] == '\n'); /* which changes nothing, and parts spans that are asked about */
            *end = marks_end;
            return 1;
        }
    return 0;
}

/* Whether NFC might change a piece, for each of them; how many there are. */
int64_t nfc_suspects(const Nfc *nfc, const uint8_t *const *pieces, const int64_t *sizes, int64_t count, uint8_t *suspect)
{
    int64_t suspects = 0, start, end;
    for (int64_t i = 0; i < count; i++) {
        end = 0;
        suspect[i] = (uint8_t)next_span(nfc, pieces[i], sizes[i], &start, &end);
        suspects += suspect[i];
    }
    return suspects;
}

/* Text from *from on, with known spans replaced, to `out`, which has room for `room` bytes, at least those of the text. Of
 * each unknown span a row: how much was written before it. These go to `asked`, one to a line; after `most` of them it
 * stops. Returns how many; behind them, two rows with what was written in all, and to `asked`. Sets *from to where to go
 * on. */
int64_t nfc_normalize(Nfc *nfc, const uint8_t *text, int64_t size, int64_t *from, uint8_t *out, int64_t room,
                      int64_t *rows, int64_t most, uint8_t *asked)
{
    int64_t count = 0, written = 0, copied = *from, start = 0, end = copied, lines = 0;
    while (count < most) {
        int found = next_span(nfc, text, size, &start, &end);
        int64_t until = found ? start : size;
        memcpy(out + written, text + copied, (size_t)(until - copied));
        written += until - copied;
        copied = found ? end : size;
        if (!found)
            break;
        const Known *known = find(nfc, text + start, end - start, NULL);
        if (known && written + known->made_size + size - end <= room) {
            memcpy(out + written, known->made, known->made_size);
            written += known->made_size;
        } else {
            rows[count++] = written;
            memcpy(asked + lines, text + start, (size_t)(end - start));
            lines += end - start;
            asked[lines++] = '\n';
        }
    }
    *from = copied;
    rows[count] = written;
    rows[count + 1] = lines;
    return count;
}

static int64_t line_size(const uint8_t *s, const uint8_t *end)
{
    const uint8_t *found = s < end ? memchr(s, '\n', (size_t)(end - s)) : NULL;
    return found ? found - s : end - s;
}

/* What nfc_normalize wrote, with the answers put in, one to a line as the questions; these are learned. Returns its size. */
int64_t nfc_join(Nfc *nfc, const uint8_t *written, const int64_t *rows, int64_t count, const uint8_t *asked,
                 const uint8_t *made, int64_t made_size, uint8_t *out)
{
    const uint8_t *asked_end = asked + rows[count + 1], *made_end = made + made_size, *begin = out;
    int64_t done = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t question = line_size(asked, asked_end), answer = line_size(made, made_end);
        memcpy(out, written + done, (size_t)(rows[i] - done));
        out += rows[i] - done;
        done = rows[i];
        memcpy(out, made, (size_t)answer);
        out += answer;
        learn(nfc, asked, question, made, answer);
        asked += question + 1;
        made += made + answer < made_end ? answer + 1 : answer;
    }
    memcpy(out, written + done, (size_t)(rows[count] - done));
    return out + (rows[count] - done) - begin;
}
