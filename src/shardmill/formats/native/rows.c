/* Numbers and names of documents → lines of CSV, as fast as they can be copied. */
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;

enum { VERSION = 1, LONGEST = 20 };

static u8 *decimal(uint64_t number, u8 *out)
{
    u8 digits[LONGEST];
    int at = LONGEST;
    do {
        digits[--at] = (u8)('0' + number % 10);
        number /= 10;
    } while (number);
    memcpy(out, digits + at, (size_t)(LONGEST - at));
    return out + (LONGEST - at);
}

int64_t rows_version(void)
{
    return VERSION;
}

/* begin,end,number,name,place of each of `count` documents, each line ended by CR LF. `columns` has five numbers for each
 * document, the fourth says which of the names, which stand one behind the other. Returns the bytes written to out, which
 * has room for 4 * LONGEST + 6 bytes and the name of each. */
int64_t rows_write(const uint64_t *columns, int64_t count, const u8 *names, const int64_t *name_ends, u8 *out)
{
    const u8 *start = out;
    for (const uint64_t *row = columns; row < columns + 5 * count; row += 5) {
        for (int i = 0; i < 3; i++) {
            out = decimal(row[i], out);
            *out++ = ',';
        }
        int64_t from = row[3] ? name_ends[row[3] - 1] : 0;
        memcpy(out, names + from, (size_t)(name_ends[row[3]] - from));
        out += name_ends[row[3]] - from;
        *out++ = ',';
        out = decimal(row[4], out);
        *out++ = '\r';
        *out++ = '\n';
    }
    return out - start;
}
