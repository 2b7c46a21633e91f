/* Where a text might not be in Unicode's normal form C: a quick check, with what the reference does as its table.
 *
 * kinds[c] of a code point below KINDS:
 *     0        a starter that NFC leaves alone, whatever precedes it
 *     1..199   a mark that composes with nothing. NFC only sorts marks: by this number, within a run of them
 *     JOINS    composes with some of the characters before it; pairs lists which
 *     CHANGES  NFC always changes it, or may compose it with too many to list
 * A run of characters of any other kind than 0, with the one before it, normalizes by itself.
 */
#include <stdint.h>
#include <string.h>

enum { KINDS = 0x30000, JOINS = 254, CHANGES = 255 };

typedef struct {
    const uint8_t *kinds;
    const uint64_t *pairs; /* before << 32 | joining, sorted */
    int64_t pair_count;
} Table;

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

static int kind_of(const Table *table, uint32_t point)
{
    return point < KINDS ? table->kinds[point] : 0;
}

static int composes(const Table *table, uint32_t before, uint32_t joining)
{
    uint64_t wanted = (uint64_t)before << 32 | joining;
    int64_t low = 0, high = table->pair_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (table->pairs[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->pair_count && table->pairs[low] == wanted;
}

static int64_t skip_ascii(const uint8_t *text, int64_t at, int64_t size)
{
    uint64_t word;
    for (; at + 8 <= size; at += 8) {
        memcpy(&word, text + at, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    while (at < size && text[at] < 0x80)
        at++;
    return at;
}

/* The spans [begin, end) of valid UTF-8 that NFC might change, from *from on, as many as there is room for. Sets *from to
 * where to go on; size when all of the text is done. */
int64_t nfc_spans(const uint8_t *text, int64_t size, int64_t *from, const uint8_t *kinds, const uint64_t *pairs,
                  int64_t pair_count, int64_t *spans, int64_t room)
{
    Table table = {kinds, pairs, pair_count};
    int64_t count = 0, at = *from, starter = at;
    uint32_t before = UINT32_MAX; /* the starter; before the first one, nothing composes */
    int last = 0, length;         /* the mark before; JOINS: nothing more may follow */
    while (at < size) {
        if (text[at] < 0x80) {
            at = skip_ascii(text, at, size);
            starter = at - 1;
            before = text[starter];
            last = 0;
            continue;
        }
        uint32_t point = decode(text + at, &length);
        int kind = kind_of(&table, point);
        if (!kind) {
            starter = at;
            before = point;
            last = 0;
        } else if (kind < JOINS ? kind >= last : kind == JOINS && !last && !composes(&table, before, point)) {
            last = kind;
        } else {
            if (count == room)
                break; /* the run is looked at again */
            for (at += length; at < size && kind_of(&table, decode(text + at, &length)); at += length)
                ;
            if (count && spans[2 * count - 1] == starter)
                count--; /* one span with the one before it */
            else
                spans[2 * count] = starter;
            spans[2 * count++ + 1] = at;
            continue;
        }
        at += length;
    }
    *from = at < size ? starter : size;
    return count;
}

/* Whether NFC might change a piece, for each of them; how many there are. */
int64_t nfc_suspects(const uint8_t *const *pieces, const int64_t *sizes, int64_t count, const uint8_t *kinds,
                     const uint64_t *pairs, int64_t pair_count, uint8_t *suspect)
{
    int64_t suspects = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t from = 0, span[2];
        suspect[i] = nfc_spans(pieces[i], sizes[i], &from, kinds, pairs, pair_count, span, 1) > 0;
        suspects += suspect[i];
    }
    return suspects;
}
