// Reads one token file of the llm.c layout and prints its tokens, one in each line.
// Written from the layout's rules: 256 int32 (magic, version, count, zeros), then uint16 tokens, nothing after.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage: llmc_reader FILE LEAST_TOKENS");
    FILE *file = fopen(argv[1], "rb");
    if (!file) fail("cannot open");
    int32_t header[256];
    if (fread(header, sizeof(int32_t), 256, file) != 256) fail("no header");
    if (header[0] != 20240520) fail("bad magic");
    if (header[1] != 1) fail("bad version");
    for (int i = 3; i < 256; i++)
        if (header[i]) fail("header not zero");
    int32_t count = header[2];
    fseek(file, 0, SEEK_END);
    if (ftell(file) != 1024 + 2L * count) fail("size is not what the header says");
    if (count < atol(argv[2])) fail("shard shorter than a batch");
    fseek(file, (int)1024, SEEK_SET);
    uint16_t token;
    for (int32_t i = 0; i < count; i++) {
        if (fread(&token, sizeof token, 1, file) != 1) fail("short read");
        printf("%d\n", token);
    }
    return 0;
}
