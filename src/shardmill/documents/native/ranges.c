/* A range of an input, with some megabytes of whole documents → their tokens, in one call: read, parsed, split, encoded and
 * laid out, a slice at a time, so that each step finds in the caches what the one before has left there.
 *
 * What is unusual in any way ends it: the caller mills that record by record, and calls again for what comes after. */
#include "ranges.h"

#include <string.h>
#include <time.h>

enum { SLACK = 64, TRAIN = 0, VAL = 1, POINT_BITS = 21, UNDERLINE = 0x2581 };

static int64_t aligned(int64_t size)
{
    return (size + 63) & ~(int64_t)63;
}

static void *carve(uintptr_t *work, int64_t size)
{
    uintptr_t here = *work;
    *work += (uintptr_t)aligned(size);
    return (void *)here;
}

/* The last window of a range takes what is left, so that there is no small one, for which the turn is waited for again. */
static int64_t longest_window(const Range *r)
{
    return r->window_bytes + r->window_bytes / 2;
}

static int64_t most_borders(const Range *r)
{
    return (longest_window(r) + 2 * r->context) / r->reach + 4;
}

/* Gives both slices their places from there on. Returns where they end. */
static uintptr_t place_slices(Range *r, uintptr_t work)
{
    int64_t text = r->slice_room + SLACK, column = r->rows * (int64_t)sizeof(int64_t);
    int64_t ids = (r->slice_room * r->ids_per_byte + r->rows * r->ids_per_text + SLACK) * r->id_bytes;
    for (int i = 0; i < 2; i++) {
        Slice *s = r->slices + i;
        s->data = carve(&work, text);
        s->out = r->kind == LINES ? carve(&work, text) : s->data;
        s->texts = carve(&work, column);
        s->sizes = carve(&work, column);
        s->starts = carve(&work, column);
        s->counts = carve(&work, column);
        s->keys = carve(&work, column);
        s->odd = carve(&work, r->rows);
        s->ids = carve(&work, ids);
        s->count = 0;
    }
    if (r->kind == CHUNKS) {
        r->chunks->data = carve(&work, r->chunks->data_room);
        r->chunks->out = carve(&work, r->chunks->out_room);
        r->dictionary = carve(&work, r->dictionary_room);
    }
    if (r->kind == PASSAGES) {
        int64_t most = most_borders(r);
        r->window = carve(&work, longest_window(r) + 2 * r->context + SLACK);
        r->borders = carve(&work, most * (int64_t)sizeof(int64_t));
        r->visible = carve(&work, most);
    }
    return work;
}

int64_t ranges_work(Range *r)
{
    return (int64_t)place_slices(r, 0);
}

/* Whole lines, and the text in a field of each. */
static int64_t next_lines(Range *r, Slice *s, int64_t size)
{
    int64_t count;
    s->used = texts_lines(s->data, size, '\n', r->rows, r->longest, size == r->end - r->at, &count);
    Lines g = {s->data, s->used, count, r->names, r->name_ends, r->name_count, s->out, s->texts, s->sizes, s->starts, s->odd, 0, 0, NULL, 0};
    lines_texts(&g);
    const u8 *odd = g.unusual ? memchr(s->odd, 1, (size_t)count) : NULL;
    s->records = odd ? odd - s->odd : count;
    s->used = odd ? s->starts[s->records] : s->used;
    return odd || !s->used ? UNUSUAL : ALL_DONE;
}

/* Documents between separators. What stands behind the last one is a document only where the range ends. */
static int64_t next_separated(Range *r, Slice *s, int64_t size)
{
    int64_t at = 0, found = texts_separators(s->data, size, r->separator, r->separator_size, s->starts, r->rows - 1);
    int64_t all = size == r->end - r->at && found < r->rows - 1;
    for (int64_t i = 0; i < found + all; i++) {
        int64_t end = i < found ? s->starts[i] : size;
        s->starts[i] = at;
        s->texts[i] = s->data + at;
        s->sizes[i] = end - at;
        if (end - at > r->longest || !is_utf8(s->data + at, s->data + end)) {
            s->records = i;
            s->used = at;
            return UNUSUAL;
        }
        at = end + r->separator_size;
    }
    s->used = all ? size : at;
    s->records = found + (all && s->sizes[found]); /* nothing behind the last separator is no document */
    return s->used ? ALL_DONE : UNUSUAL;
}

static int64_t next_of_file(Range *r, Slice *s, int64_t size)
{
    int64_t left = r->end - r->at;
    s->used = s->records = 0;
    size = size < left ? size : left;
    if (r->memory)
        s->data = r->memory + (r->at - r->memory_at);
    else if (filled((int)r->file, r->at, s->data, size) != size)
        return UNUSUAL;
    return r->kind == LINES ? next_lines(r, s, size) : next_separated(r, s, size);
}

/* The dictionary of a chunk is used as long as its pages are read; what else was decompressed is used no more. */
static int keep_dictionary(Range *r)
{
    Chunks *c = r->chunks;
    int64_t size = c->count > 0 ? c->ends[c->count - 1] : 0;
    if (!c->rows || c->count < 0 || c->words < c->out || c->words >= c->out + c->out_room)
        return 1;
    if (size > r->dictionary_room)
        return 0;
    memcpy(r->dictionary, c->words, (size_t)size);
    c->words = r->dictionary;
    return 1;
}

/* The rows of pages, which are decompressed when those before are used up. */
static int64_t next_rows(Range *r, Slice *s)
{
    Chunks *c = r->chunks;
    Window w = {s->texts, s->sizes, s->odd, 0, r->rows, 0, r->slice_bytes, r->longest};
    int64_t why = c->has_page ? chunks_rows(c, &w) : DONE, usual = 0;
    s->used = s->records = 0;
    if (!w.count && why == DONE) {
        if (!keep_dictionary(r))
            return UNUSUAL;
        c->used = 0;
        why = chunks_take(c, &w);
    }
    if (!w.count || w.count > r->end - r->at)
        return UNUSUAL;
    for (; usual < w.count && !s->odd[usual] && is_utf8(s->texts[usual], s->texts[usual] + s->sizes[usual]); usual++)
        s->starts[usual] = usual;
    s->records = s->used = usual;
    /* A page whose values cannot be told has lost its place. */
    return usual < w.count || (why != DONE && why != FULL && why != MORE) ? UNUSUAL : ALL_DONE;
}

/* The pages of these rows may be gone when the caller looks at them. */
static void copy_texts(Slice *s)
{
    u8 *to = s->data;
    for (int64_t i = 0; i < s->count; to += s->sizes[i++])
        s->texts[i] = memcpy(to, s->texts[i], (size_t)s->sizes[i]);
}

/* Finds the next records; UNUSUAL: with what comes after them, or there are none. */
static int64_t next_slice(Range *r, Slice *s)
{
    int64_t why;
    s->at = r->at;
    if (r->kind == CHUNKS)
        return next_rows(r, s);
    why = next_of_file(r, s, r->slice_bytes);
    return why == UNUSUAL && !s->used && r->slice_room > r->slice_bytes ? next_of_file(r, s, r->slice_room) : why;
}

/* Empty documents are counted, and that is all. Returns how many bytes the others are. */
static int64_t leave_out_empty(Slice *s)
{
    int64_t bytes = 0;
    s->count = 0;
    for (int64_t i = 0; i < s->records; i++) {
        int64_t size = s->sizes[i];
        s->texts[s->count] = s->texts[i];
        s->sizes[s->count] = size;
        s->starts[s->count] = s->starts[i];
        s->count += size > 0;
        bytes += size;
    }
    return bytes;
}

static void find_keys(const Range *r, Slice *s)
{
    if (r->most)
        texts_hashes(s->texts, s->sizes, s->count, r->most, r->seed, s->keys);
    for (int64_t i = 0; !r->most && i < s->count; i++)
        s->keys[i] = (u64)(r->base + s->at + s->starts[i]);
}

static u8 *put(const Range *r, u8 *to, const u8 *ids, int64_t id_bytes, int64_t count)
{
    if (id_bytes == r->token_bytes)
        memcpy(to, ids, (size_t)(count * id_bytes));
    else if (id_bytes == 2)
        for (int64_t i = 0; i < count; i++)
            ((u32 *)(void *)to)[i] = ((const uint16_t *)(const void *)ids)[i];
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)(void *)to)[i] = (uint16_t)((const u32 *)(const void *)ids)[i];
    return to + count * r->token_bytes;
}

/* Whether a number is one of those in order. */
static int is_among(const u64 *numbers, int64_t count, u64 number)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (numbers[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && numbers[low] == number;
}

static int is_val(const Range *r, u64 key)
{
    if (r->val_key_count)
        return is_among(r->val_keys, r->val_key_count, key);
    return (r->no_limit || key < r->limit) != (r->above != 0);
}

static void lay_out(Range *r, const Slice *s)
{
    const u8 *ids = s->ids;
    u32 eot = (u32)r->eot;
    for (int64_t i = 0; i < s->count; i++) {
        int val = is_val(r, s->keys[i]);
        Side *side = r->sides + (val ? VAL : TRAIN);
        u8 *to = side->tokens + side->count * r->token_bytes;
        if (r->eot >= 0 && r->before)
            to = put(r, to, (const u8 *)&eot, 4, 1);
        to = put(r, to, ids, r->id_bytes, s->counts[i]);
        if (r->eot >= 0 && !r->before)
            put(r, to, (const u8 *)&eot, 4, 1);
        side->count += s->counts[i] + (r->eot >= 0);
        side->ends[side->documents++] = side->count;
        side->text += s->sizes[i];
        ids += s->counts[i] * r->id_bytes;
        r->in_val += val;
    }
}

static int has_room(const Range *r, const Slice *s, int64_t bytes)
{
    int64_t most = bytes * r->ids_per_byte + s->count * (r->ids_per_text + 1);
    for (int i = 0; i < 2; i++)
        if (r->sides[i].count + most > r->sides[i].room || r->sides[i].documents + s->count > r->ends_room)
            return 0;
    return 1;
}

static int64_t cpu_nanoseconds(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A character of UTF-8 as SentencePiece has it. */
static u64 character(const u8 *p)
{
    if (p[0] < 0x80)
        return p[0] == ' ' ? UNDERLINE : p[0];
    if (p[0] < 0xE0)
        return (u64)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    if (p[0] < 0xF0)
        return (u64)(p[0] & 0x0F) << 12 | (u64)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    return (u64)(p[0] & 0x07) << 18 | (u64)(p[1] & 0x3F) << 12 | (u64)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

/* Whether text may be cut at a border between visible characters; as Cuts._apart in cuts.py. */
static int is_cut(const Range *r, const u8 *p)
{
    if (!r->adjacent)
        return 1;
    const u8 *before = p - 1;
    while ((*before & 0xC0) == 0x80)
        before--;
    u64 first = character(before) << POINT_BITS, second = character(p), any = ((u64)1 << POINT_BITS) - 1;
    return !is_among(r->adjacent, r->adjacent_count, first | second) && !is_among(r->adjacent, r->adjacent_count, first | any) &&
           !is_among(r->adjacent, r->adjacent_count, any << POINT_BITS | second);
}

/* The borders of passages in a part of the window, which begins at byte `low` of the file. Where one must be moved to the
 * next place where text may be cut, Python is asked for all. Less than 0: it cannot tell. */
static int64_t find_borders(Range *r, int64_t low, int64_t size, int64_t here, int64_t until)
{
    int64_t from = here + 1 - r->reach / 2, *out = r->borders + 1, most = most_borders(r) - 2, ends = low + size == r->file_size;
    int64_t found = passages_borders(r->window, size, low, r->reach, low == 0, ends, from > 0 ? from : 0, until, out, r->visible, most);
    for (int64_t i = 0; i < found; i++)
        if (!r->visible[i] || !is_cut(r, r->window + out[i]))
            return r->find_borders(r->window, low, size, here + 1, until, out, most);
    return found;
}

/* Reads the next window of running text. Returns where its passages begin in it, and where the last one ends, one behind
 * the other; how many they are. 0: what comes next is unusual. */
static int64_t next_passages(Range *r, int64_t *here)
{
    int64_t left = r->end - r->at, size = left < longest_window(r) ? left : r->window_bytes, count = 1;
    int64_t low = r->at > r->context ? r->at - r->context : 0, stop = r->at + size + r->context;
    stop = stop < r->file_size ? stop : r->file_size;
    *here = r->at - low;
    if (filled((int)r->file, low, r->window, stop - low) != stop - low)
        return 0;
    int64_t found = find_borders(r, low, stop - low, *here, *here + size + 1);
    r->borders[0] = *here;
    for (int64_t i = 1; i <= found; i++) {
        int64_t border = r->borders[i];
        if (border <= *here)
            continue;
        if (border - r->borders[count - 1] > r->longest)
            return 0;
        r->borders[count++] = border;
    }
    if (count < 2 || (size == left && r->borders[count - 1] != *here + left) ||
        !is_utf8(r->window + *here, r->window + r->borders[count - 1]))
        return 0;
    return count - 1;
}

/* The caller may look at this piece later. */
static void keep_piece(Range *r, const u8 *text, int64_t size, const u8 *ids, int64_t count)
{
    Slice *s = r->slices + 1;
    s->at = r->at;
    s->texts[0] = memcpy(s->data, text, (size_t)size);
    s->sizes[0] = size;
    s->starts[0] = 0;
    s->counts[0] = count;
    s->count = 1;
    memcpy(s->ids, ids, (size_t)(count * r->id_bytes));
}

/* Passages of the same split, one after the other, so many in all: a piece of text. */
static int64_t mill_piece(Range *r, const u8 *text, int64_t size, int val, int64_t passages)
{
    Side *side = r->sides + (val ? VAL : TRAIN);
    int same = r->id_bytes == r->token_bytes;
    int64_t count, began = cpu_nanoseconds();
    u8 *to = side->tokens + side->count * r->token_bytes, *ids = same ? to : r->slices[0].ids;
    if (side->count + size * r->ids_per_byte + r->ids_per_text + SLACK > side->room)
        return NO_ROOM;
    if (r->encode(r->engine, &text, &size, 1, ids, &count) < 0)
        return UNUSUAL;
    r->nanoseconds += cpu_nanoseconds() - began;
    if (!same)
        put(r, to, ids, r->id_bytes, count);
    if (r->done++ == r->keep)
        keep_piece(r, text, size, ids, count);
    side->count += count;
    side->text += size;
    r->in_val += val ? passages : 0;
    r->last_in_val = val;
    r->records += passages;
    r->at += size;
    return ALL_DONE;
}

/* Pieces are cut where the split changes, and before they get longer than a slice. */
static int64_t mill_passages(Range *r)
{
    int64_t here, count = next_passages(r, &here), why = ALL_DONE, origin = r->base + r->at - here;
    if (!count)
        return UNUSUAL;
    if (r->take_turn)
        r->take_turn(r->turn);
    for (int64_t first = 0, next; first < count && !why; first = next) {
        int val = -1;
        for (next = first; next < count; next++) {
            int64_t begin = r->borders[next], size = r->borders[next + 1] - begin;
            u64 key = r->most ? xxh3_64(r->window + begin, (size_t)(size < r->most ? size : r->most), r->seed) : (u64)(origin + begin);
            int other = is_val(r, key);
            if (val >= 0 && (val != other || begin + size - r->borders[first] > r->slice_bytes))
                break;
            val = other;
        }
        why = mill_piece(r, r->window + r->borders[first], r->borders[next] - r->borders[first], val, next - first);
    }
    if (r->give_turn)
        r->give_turn(r->turn);
    return why;
}

static int64_t mill_slice(Range *r)
{
    Slice *s = r->slices + (r->done == r->keep);
    int64_t why = next_slice(r, s), bytes, began;
    if (!s->used)
        return UNUSUAL;
    bytes = leave_out_empty(s);
    if (r->kind == CHUNKS && s == r->slices + 1)
        copy_texts(s);
    if (!has_room(r, s, bytes))
        return NO_ROOM;
    began = cpu_nanoseconds();
    if (r->encode(r->engine, s->texts, s->sizes, s->count, s->ids, s->counts) < 0)
        return UNUSUAL;
    r->nanoseconds += cpu_nanoseconds() - began;
    find_keys(r, s);
    lay_out(r, s);
    r->at += s->used;
    r->records += s->records;
    r->empty += s->records - s->count;
    r->done++;
    return why;
}

/* Mills the documents in [at, end), as far as they are usual; `at` tells how far that is, and the result why it ended. */
int64_t ranges_mill(Range *r)
{
    int64_t why = ALL_DONE;
    place_slices(r, (uintptr_t)r->work);
    while (r->at < r->end && !why)
        why = r->kind == PASSAGES ? mill_passages(r) : mill_slice(r);
    return why;
}
