/* Raw Snappy → what it decompresses to, for pages of Parquet. Whatever the input claims, nothing is read or written beyond
 * its bytes and the room that is given. */
#include "chunks.h"

#include <string.h>

enum { LITERAL, SHORT_COPY, COPY, FAR_COPY };
/* Copies are of at most 64 bytes; where there is room for a few more, they are made in steps of so many. */
enum { STEP = 16, LONGEST = 64 };

static const size_t WRONG = (size_t)-1;

static u64 number_at(const u8 *p, size_t bytes)
{
    u64 number = 0;
    for (size_t i = 0; i < bytes; i++)
        number |= (u64)p[i] << 8 * i;
    return number;
}

/* What was written `back` bytes before, once more; if that is less than the length, over and over. */
static void copy_back(u8 *out, size_t back, size_t length, size_t room)
{
    const u8 *from = out - back;
    if (back >= STEP && room >= LONGEST + STEP)
        for (size_t i = 0; i < length; i += STEP)
            memcpy(out + i, from + i, STEP);
    else
        for (size_t i = 0; i < length; i++)
            out[i] = from[i];
}

/* How many bytes it is; or, like an error of zstd, a number larger than any room. */
size_t snappy_decompress(void *to, size_t room, const void *from, size_t size)
{
    const u8 *in = from, *end = in + size;
    u8 *out = to;
    u64 length = 0, all = 0;
    for (int shift = 0, more = 1; more; shift += 7) {
        if (in == end || shift > 28)
            return WRONG;
        more = *in & 128;
        all |= (u64)(*in++ & 127) << shift;
    }
    if (all > room)
        return WRONG;
    for (size_t left = (size_t)all; in < end; out += length, left -= length) {
        u64 tag = *in++, kind = tag & 3, ahead = (u64)(end - in);
        length = tag >> 2;
        if (kind == LITERAL) {
            u64 more = length < 60 ? 0 : length - 59;
            if (more > ahead)
                return WRONG;
            length = 1 + (more ? number_at(in, more) : length);
            in += more;
            ahead -= more;
            if (length > ahead || length > left)
                return WRONG;
            if (length <= STEP && ahead >= STEP && left >= STEP)
                memcpy(out, in, STEP);
            else
                memcpy(out, in, length);
            in += length;
            continue;
        }
        size_t more = kind == FAR_COPY ? 4 : kind;
        if (more > ahead)
            return WRONG;
        u64 back = number_at(in, more);
        in += more;
        if (kind == SHORT_COPY) {
            back |= tag >> 5 << 8;
            length = (length & 7) + 3;
        }
        length++;
        if (!back || back > (u64)(out - (u8 *)to) || length > left)
            return WRONG;
        copy_back(out, back, length, left);
    }
    return out == (u8 *)to + all ? (size_t)all : WRONG;
}
