#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

/* texts.c */
int is_utf8(const u8 *text, const u8 *end);
void texts_hashes(const u8 *const *texts, const int64_t *sizes, int64_t count, int64_t most, u64 seed, u64 *hashes);

/* xxh3.c */
u64 xxh3_64(const u8 *data, size_t size, u64 seed);
