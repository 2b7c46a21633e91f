/* What is asked of many texts at once: whether they are UTF-8, their hashes, and where they stand between separators. */
#include "texts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { SLICE = 256 << 10 };

/* Past ASCII, 16 bytes at a time; not to the end of it where less than 16 bytes are left. */
static const u8 *skip_ascii(const u8 *p, const u8 *end)
{
#if defined(__SSE2__)
    const __m128i *q = (const __m128i *)p;
    while (end - (const u8 *)q >= 64) {
        __m128i some = _mm_or_si128(_mm_loadu_si128(q), _mm_loadu_si128(q + 1));
        __m128i more = _mm_or_si128(_mm_loadu_si128(q + 2), _mm_loadu_si128(q + 3));
        if (_mm_movemask_epi8(_mm_or_si128(some, more)))
            break;
        q += 4;
    }
    for (p = (const u8 *)q; end - p >= 16; p += 16) {
        int high = _mm_movemask_epi8(_mm_loadu_si128((const __m128i *)p));
        if (high)
            return p + __builtin_ctz((unsigned)high);
    }
#else
    for (u64 some[2]; end - p >= 16; p += 16) {
        memcpy(some, p, 16);
        if ((some[0] | some[1]) & 0x8080808080808080u)
            break;
    }
#endif
    return p;
}

static int is_next(u8 c)
{
    return (c & 0xC0) == 0x80;
}

int is_utf8(const u8 *p, const u8 *end)
{
    while ((p = skip_ascii(p, end)) < end) {
        do {
            u8 c = *p, second;
            ptrdiff_t left = end - p;
            if (c < 0x80) {
                p++;
                continue;
            }
            if (c < 0xC2 || c > 0xF4 || left < 2)
                return 0;
            second = p[1];
            if (c < 0xE0) {
                if (!is_next(second))
                    return 0;
                p += 2;
            } else if (c < 0xF0) { /* neither too short for its length nor a surrogate */
                if (left < 3 || second < (c == 0xE0 ? 0xA0 : 0x80) || second > (c == 0xED ? 0x9F : 0xBF) || !is_next(p[2]))
                    return 0;
                p += 3;
            } else {
                if (left < 4 || second < (c == 0xF0 ? 0x90 : 0x80) || second > (c == 0xF4 ? 0x8F : 0xBF) || !is_next(p[2]) ||
                    !is_next(p[3]))
                    return 0;
                p += 4;
            }
        } while (p < end && *p >= 0x80);
    }
    return 1;
}

int64_t texts_are_utf8(const u8 *data, int64_t size)
{
    return is_utf8(data, data + size);
}

/* Whether each text is not UTF-8, and how many are not. */
int64_t texts_invalid(const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *invalid)
{
    int64_t all = 0;
    for (int64_t i = 0; i < count; i++)
        all += invalid[i] = !is_utf8(texts[i], texts[i] + sizes[i]);
    return all;
}

/* The hash of the first `most` bytes of each text. */
void texts_hashes(const u8 *const *texts, const int64_t *sizes, int64_t count, int64_t most, u64 seed, u64 *hashes)
{
    for (int64_t i = 0; i < count; i++)
        hashes[i] = xxh3_64(texts[i], (size_t)(sizes[i] < most ? sizes[i] : most), seed);
}

/* Which keys are below a limit, or (above) are not. */
void texts_below(const u64 *keys, int64_t count, u64 limit, int64_t above, u8 *is_below)
{
    for (int64_t i = 0; i < count; i++)
        is_below[i] = (keys[i] < limit) != (above != 0);
}

/* Which texts are odd: not UTF-8, or odd already; and the hashes of all, if wanted. How many are odd or empty. */
int64_t texts_examine(const u8 *const *texts, const int64_t *sizes, int64_t count, u8 *odd, int64_t most, u64 seed, u64 *hashes)
{
    int64_t unusual = 0;
    for (int64_t i = 0; i < count; i++) {
        odd[i] |= !is_utf8(texts[i], texts[i] + sizes[i]);
        unusual += odd[i] || !sizes[i];
    }
    if (hashes && !unusual)
        texts_hashes(texts, sizes, count, most, seed, hashes);
    return unusual;
}

/* Where separators begin, from left to right, none inside another; at most so many. How many there are. */
int64_t texts_separators(const u8 *data, int64_t size, const u8 *separator, int64_t length, int64_t *found, int64_t most)
{
    const u8 *p = data, *end = data + size;
    int64_t count = 0;
    while (count < most && end - p >= length && (p = memchr(p, separator[0], (size_t)(end - p - length + 1)))) {
        if (memcmp(p, separator, (size_t)length)) {
            p++;
        } else {
            found[count++] = p - data;
            p += length;
        }
    }
    return count;
}

/* How many of `size` bytes of a file from this offset on could be read: fewer at its end, or after an error. */
int64_t filled(int fd, int64_t offset, u8 *out, int64_t size)
{
    int64_t done = 0;
    while (done < size) {
        ssize_t some = pread(fd, out + done, (size_t)(size - done), (off_t)(offset + done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            break;
        done += some;
    }
    return done;
}

/* Where the last character of [first, end) begins that is cut off there; `end` if none is. */
static int64_t cut_off(const u8 *data, int64_t first, int64_t end)
{
    for (int64_t back = 1; back <= 3 && back <= end - first; back++) {
        u8 c = data[end - back];
        if (!is_next(c))
            return c < 0xC2 || c > 0xF4 || back >= (c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4) ? end : end - back;
    }
    return end;
}

/* Reads so many bytes of a file, and tells whether they are UTF-8, apart from characters that are cut off at an end which
 * is not that of the file. They are looked at some at a time, while they are in the cache. */
int64_t texts_read(int fd, int64_t offset, int64_t size, int64_t ends, u8 *out, int64_t *valid)
{
    int64_t done = 0, looked = 0;
    for (int64_t wanted, some; done < size; done += some) {
        wanted = size - done < SLICE ? size - done : SLICE;
        some = filled(fd, offset + done, out + done, wanted);
        int64_t until = done + some;
        while (offset && !done && looked < until && looked < 3 && is_next(out[looked]))
            looked++;
        until = ends && until == size ? until : cut_off(out, looked, until);
        if (*valid) /* where that is asked for */
            *valid = is_utf8(out + looked, out + until);
        looked = until;
        if (some < wanted)
            return done + some;
    }
    return done;
}

/* Where the last line ends of those that end here, of at most so many, up to the first that is longer than `longest`; and
 * how many they are. Where `all`, what follows the last end of a line is a line, too. */
int64_t texts_lines(const u8 *data, int64_t size, u8 newline, int64_t most, int64_t longest, int64_t all, int64_t *count)
{
    const u8 *p = data, *end = data + size, *last = data;
    *count = 0;
    while (*count < most && (p = memchr(p, newline, (size_t)(end - p)))) {
        if (p - last > longest)
            return last - data;
        last = ++p;
        ++*count;
    }
    if (!all || *count == most || last == end || end - last > longest)
        return last - data;
    ++*count;
    return size;
}

/* Reads so many bytes of a file, and finds the lines in them, as texts_lines does. */
int64_t texts_read_lines(int fd, int64_t offset, int64_t size, u8 *out, u8 newline, int64_t most, int64_t longest, int64_t all,
                         int64_t *found)
{
    int64_t done = filled(fd, offset, out, size);
    found[0] = texts_lines(out, done, newline, most, longest, all, found + 1);
    return done;
}

/* Puts pieces together, and finds the lines in them, as texts_lines does. */
void texts_join_lines(const u8 *const *pieces, const int64_t *sizes, int64_t count, u8 *out, u8 newline, int64_t most,
                      int64_t longest, int64_t all, int64_t *found)
{
    int64_t done = 0;
    for (int64_t i = 0; i < count; done += sizes[i++])
        memcpy(out + done, pieces[i], (size_t)sizes[i]);
    found[0] = texts_lines(out, done, newline, most, longest, all, found + 1);
}

/* Values that stand each behind its length of four bytes, as in Parquet's PLAIN pages: where they end, as far as they
 * end before `size`; at most so many. How many there are. */
int64_t texts_plain(const u8 *data, int64_t size, int64_t *ends, int64_t most)
{
    int64_t count = 0, at = 0;
    while (count < most && size - at >= 4) {
        at += 4 + (int64_t)(data[at] | (u32)data[at + 1] << 8 | (u32)data[at + 2] << 16 | (u32)data[at + 3] << 24);
        if (at > size)
            break;
        ends[count++] = at;
    }
    return count;
}
