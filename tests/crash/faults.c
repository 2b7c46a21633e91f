/* Makes calls of libc fail, for files below one folder: LD_PRELOAD it into the command.
 *
 *   FAULT_CALL   write, fsync, rename, read or mmap; each stands for its whole family
 *   FAULT_NTH    the first such call that is touched, counted from 1
 *   FAULT_UNDER  only files whose path begins with this
 *   FAULT_ERRNO  the number it fails with, once; or
 *   FAULT_SHORT  from then on, reads and writes do half of what they were asked for
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum fault { NONE, FAIL, SHORT };

static int seen;

static enum fault due(const char *call, const char *path)
{
	const char *wanted = getenv("FAULT_CALL"), *under = getenv("FAULT_UNDER"), *value;
	if (!wanted || strcmp(wanted, call) || (under && strncmp(path, under, strlen(under))))
		return NONE;
	int now = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST), nth = atoi(getenv("FAULT_NTH"));
	if ((value = getenv("FAULT_ERRNO"))) {
		if (now != nth)
			return NONE;
		errno = atoi(value);
		return FAIL;
	}
	return now >= nth && getenv("FAULT_SHORT") ? SHORT : NONE;
}

static enum fault due_fd(const char *call, int fd)
{
	char link[64], path[4096];
	int before = errno;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path - 1);
	errno = before;
	if (length < 0)
		return NONE;
	path[length] = 0;
	return due(call, path);
}

static enum fault due_name(const char *call, const char *name)
{
	char folder[2048], path[4200];
	if (name[0] == '/' || !getcwd(folder, sizeof folder))
		return due(call, name);
	snprintf(path, sizeof path, "%s/%.2048s", folder, name);
	return due(call, path);
}

static size_t half(size_t n)
{
	return n > 1 ? n / 2 : n;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define TRANSFER(name, call, buffer, ...)                                     \
	switch (due_fd(call, fd)) {                                           \
	case FAIL:                                                            \
		return -1;                                                    \
	case SHORT:                                                           \
		n = half(n);                                                  \
	default:                                                              \
		return REAL(name)(fd, buffer, n, ##__VA_ARGS__);              \
	}

ssize_t write(int fd, const void *b, size_t n) { TRANSFER(write, "write", b) }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { TRANSFER(pwrite, "write", b, at) }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { TRANSFER(pwrite64, "write", b, at) }
ssize_t read(int fd, void *b, size_t n) { TRANSFER(read, "read", b) }
ssize_t pread(int fd, void *b, size_t n, off_t at) { TRANSFER(pread, "read", b, at) }
ssize_t pread64(int fd, void *b, size_t n, off64_t at) { TRANSFER(pread64, "read", b, at) }

int fsync(int fd) { return due_fd("fsync", fd) == FAIL ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return due_fd("fsync", fd) == FAIL ? -1 : REAL(fdatasync)(fd); }

int rename(const char *old, const char *new) { return due_name("rename", new) == FAIL ? -1 : REAL(rename)(old, new); }

int renameat(int a, const char *old, int b, const char *new)
{
	return due_name("rename", new) == FAIL ? -1 : REAL(renameat)(a, old, b, new);
}

/* Large anonymous maps only: the heap grows by them, and a process that cannot even start tells nothing. */
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
	if (fd < 0 && n >= 4 << 20 && due("mmap", "") == FAIL)
		return MAP_FAILED;
	return REAL(mmap)(at, n, protection, flags, fd, offset);
}
