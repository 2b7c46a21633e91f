#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

/* texts.c */
int is_utf8(const u8 *text, const u8 *end);
int64_t filled(int fd, int64_t offset, u8 *out, int64_t size);
int64_t texts_lines(const u8 *data, int64_t size, u8 newline, int64_t most, int64_t longest, int64_t all, int64_t *count);
int64_t texts_separators(const u8 *data, int64_t size, const u8 *separator, int64_t length, int64_t *found, int64_t most);
void texts_hashes(const u8 *const *texts, const int64_t *sizes, int64_t count, int64_t most, u64 seed, u64 *hashes);

/* passages.c */
int64_t passages_borders(const u8 *data, int64_t size, int64_t offset, int64_t reach, int64_t begins, int64_t ends, int64_t from,
                         int64_t until, int64_t *out, u8 *visible, int64_t most);

/* xxh3.c */
u64 xxh3_64(const u8 *data, size_t size, u64 seed);
