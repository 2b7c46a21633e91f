/* Frames of zstd in a local file → their text: as many blocks of the file as a buffer of text takes, in one call.
 *
 * zstd is the one that Python's own module uses, called through pointers. Text comes in steps, as Python's
 * ZstdDecompressor gives it: a step ends with a block of input, or after so many bytes. If zstd finds damage, what that
 * step gave is lost; since steps do not depend on how much is asked for, the text always ends at the same byte. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* Before a frame begins, so many bytes are taken, unless the file ends: more than its header has. */
enum { HEAD = 32 };
/* Why no more is decompressed. MORE: enough was. UNREAD: the file could not be read. */
enum { MORE, ENDED, TRUNCATED, UNREAD, DAMAGED };

/* ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct {
    const void *data;
    size_t size, at;
} Input;
typedef struct {
    void *data;
    size_t size, at;
} Output;

/* How much text there was when so many bytes of the file had been taken. */
typedef struct {
    int64_t text, taken;
} Mark;

typedef struct {
    size_t (*decompress)(void *context, Output *to, Input *from);
    unsigned (*is_error)(size_t code);
    void *context;
    int64_t file, file_size; /* its descriptor */
    int64_t block, step;     /* how many bytes of the file are taken at a time, and of text at most */
    uint8_t *data;           /* what was taken; room for a block and HEAD */
    int64_t at, size;        /* where it was not used yet, and where it ends */
    int64_t taken;           /* bytes of the file */
    int64_t full;            /* the last step may have left some text in zstd */
    uint64_t error;          /* that zstd found */
    Mark *marks;
    int64_t marks_room, marks_made;
    int64_t start, text; /* how much text there was before the last call, and how much it gave */
} Frames;

int64_t unzstd_version(void)
{
    return 2;
}

/* Where the last block of a frame ends, whose first block begins at `at`, by their headers; -1: not in the first bytes of
 * the file, so many, or there is none. */
int64_t unzstd_last(int file, int64_t size, int64_t at)
{
    enum { RLE = 1, RESERVED = 3, LARGEST = 128 << 10 };
    uint8_t head[3];
    for (uint32_t header = 0; !(header & 1);) {
        if (at + 3 > size || pread(file, head, 3, at) != 3)
            return -1;
        header = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16;
        uint32_t kind = header >> 1 & 3, length = header >> 3;
        if (kind == RESERVED || (kind != RLE && length > LARGEST))
            return -1;
        at += 3 + (kind == RLE ? 1 : length);
    }
    return at;
}

/* Takes the next block of the file, behind what is left of the one before. How many bytes it has; -1: it cannot be read. */
static int64_t take_block(Frames *f)
{
    int64_t left = f->size - f->at, size = f->file_size - f->taken, done = 0;
    size = size < f->block ? size : f->block;
    memmove(f->data, f->data + f->at, (size_t)left);
    f->at = 0;
    f->size = left;
    while (done < size) {
        ssize_t some = pread((int)f->file, f->data + left + done, (size_t)(size - done), (off_t)(f->taken + done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return -1;
        done += some;
    }
    f->size += size;
    f->taken += size;
    return size;
}

/* Between frames: takes blocks until there is a HEAD, or the file ends. How many bytes there are; -1: it cannot be read. */
int64_t unzstd_head(Frames *f)
{
    for (int64_t more = 1; more && f->size - f->at < HEAD;)
        if ((more = take_block(f)) < 0)
            return -1;
    return f->size - f->at;
}

static int64_t next_step(Frames *f, uint8_t *out)
{
    if (f->error)
        return DAMAGED;
    if (f->at == f->size && !f->full) {
        int64_t more = take_block(f);
        if (more <= 0)
            return more ? UNREAD : TRUNCATED;
    }
    Input from = {f->data, (size_t)f->size, (size_t)f->at};
    Output to = {out, (size_t)f->step, 0};
    size_t left;
    do {
        left = f->decompress(f->context, &to, &from);
        if (f->is_error(left)) {
            f->error = left;
            return DAMAGED;
        }
    } while (left && to.at < to.size && from.at < from.size);
    f->full = left && to.at == to.size;
    f->at = (int64_t)from.at;
    f->text += (int64_t)to.at;
    return left ? MORE : ENDED;
}

/* Decompresses `wanted` bytes of a frame, and up to a step more: `out` has room for that; less if the frame or the marks
 * end before. Tells why it stopped, after what there was before. */
int64_t unzstd_take(Frames *f, uint8_t *out, int64_t wanted)
{
    int64_t why = MORE;
    f->text = f->marks_made = 0;
    while (why == MORE && f->text < wanted && f->marks_made < f->marks_room) {
        why = next_step(f, out + f->text);
        if (!f->marks_made || f->marks[f->marks_made - 1].taken != f->taken)
            f->marks_made++;
        f->marks[f->marks_made - 1] = (Mark){f->start + f->text, f->taken};
    }
    return why;
}
