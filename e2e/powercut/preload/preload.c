// A library for LD_PRELOAD that keeps, beside the files of a server, what a power cut now would leave of them.
//
// POWERCUT_DIR is the directory whose files are watched. POWERCUT_SHADOW is where the disk is kept: data/KEY holds what was
// synced of one file, KEY being its inode and birth; names lists which path leads to which file, an operation a line. Package
// powercut makes both from the files before the server starts, and puts them back after it was killed.
//
// A write is kept in memory until the file is synced; SIGKILL loses the memory, as a power cut loses a cache. After fsync,
// fdatasync, or a write to a file that was opened with O_SYNC or O_DSYNC, what was written before it began goes to data/KEY,
// and only then the call returns.
//
// A new name, a rename and a removal are lost until the directory is synced, or, for the name of a file, until that file is
// synced. With POWERCUT_NAMES=journal any sync makes all earlier ones durable, as the journals of ext4 and XFS do.
//
// With POWERCUT_LIES the disk says that it has synced, and has not: what begins with the server is all lost.
//
// What a program does that is not seen here (a file mapped for writing, a sync of the whole file system, a directory renamed)
// is written to POWERCUT_SHADOW/unseen, so that the test fails instead of showing something untrue.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PATHS 1024

// One write, or one change of length, that is not synced.
struct change {
	struct change *next;
	enum { WRITE, TRUNCATE, EXTEND } kind;
	off_t offset;
	size_t length;
	char bytes[];
};

struct file {
	struct file *next; // of the same bucket
	dev_t dev;
	ino_t ino;
	char key[64];
	int whole; // written past this library (stdio, copy_file_range): all of it is read when it is synced
	struct change *first, **last;
	pthread_mutex_t syncing; // held through a sync, so that two apply in their order
};

// One change of names that is not durable.
struct name {
	struct name *next;
	long number;
	char kind; // L: key is at to; U: nothing is at to; R: key went from from to to
	char key[64];
	char from[PATHS], to[PATHS]; // relative to the directory
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static struct file *buckets[4096];
static struct name *names, **names_last = &names;
static long numbered;

static char dir[PATHS], shadow[PATHS];
static size_t dir_length;
static int on, journal, lies, names_fd = -1;

static void unseen(const char *what, const char *path) {
	char line[PATHS + 128], file[PATHS + 16];
	snprintf(file, sizeof file, "%s/unseen", shadow);
	int n = snprintf(line, sizeof line, "%d %s %s\n", (int)getpid(), what, path ? path : "");
	int fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0) {
		syscall(SYS_write, fd, line, (size_t)n);
		syscall(SYS_close, fd);
	}
}

static void before_fork(void) { pthread_mutex_lock(&mu); }
static void after_fork(void) { pthread_mutex_unlock(&mu); }

// The child has memory of its own: what its parent has not synced is its parent's.
static void in_child(void) {
	pthread_mutex_init(&mu, NULL);
	for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++)
		buckets[i] = NULL;
	names = NULL;
	names_last = &names;
}

__attribute__((constructor)) static void begin(void) {
	const char *d = getenv("POWERCUT_DIR"), *s = getenv("POWERCUT_SHADOW"), *n = getenv("POWERCUT_NAMES");
	if (!d || !s || strlen(d) >= PATHS || strlen(s) >= PATHS - 128)
		return;
	strcpy(dir, d);
	strcpy(shadow, s);
	dir_length = strlen(dir);
	journal = n && !strcmp(n, "journal");
	lies = getenv("POWERCUT_LIES") != NULL;
	char path[PATHS + 16];
	snprintf(path, sizeof path, "%s/names", shadow);
	names_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	// A server that closes what it has inherited must not close this one: it stays above the low numbers.
	int high = names_fd < 0 ? -1 : (int)syscall(SYS_fcntl, names_fd, F_DUPFD_CLOEXEC, 1000);
	if (high >= 0) {
		syscall(SYS_close, names_fd);
		names_fd = high;
	}
	on = names_fd >= 0;
	pthread_atfork(before_fork, after_fork, in_child);
}

// inside makes path relative to the directory; 0 if it does not lead there. The last part need not be there.
static int inside(int at, const char *path, char *out) {
	char full[PATH_MAX], parent[PATH_MAX], real[PATH_MAX];
	if (!on || !path || !*path)
		return 0;
	if (path[0] == '/') {
		if (snprintf(full, sizeof full, "%s", path) >= (int)sizeof full)
			return 0;
	} else {
		char base[PATH_MAX];
		if (at == AT_FDCWD) {
			if (!getcwd(base, sizeof base))
				return 0;
		} else {
			char link[64];
			snprintf(link, sizeof link, "/proc/self/fd/%d", at);
			ssize_t n = readlink(link, base, sizeof base - 1);
			if (n < 0)
				return 0;
			base[n] = 0;
		}
		if (snprintf(full, sizeof full, "%s/%s", base, path) >= (int)sizeof full)
			return 0;
	}
	char *slash = strrchr(full, '/');
	if (!slash || !slash[1])
		return 0;
	snprintf(parent, sizeof parent, "%.*s", slash == full ? 1 : (int)(slash - full), full);
	if (!realpath(parent, real))
		return 0;
	if (strncmp(real, dir, dir_length) || (real[dir_length] && real[dir_length] != '/'))
		return 0;
	const char *rest = real + dir_length;
	while (*rest == '/')
		rest++;
	int n = *rest ? snprintf(out, PATHS, "%s/%s", rest, slash + 1) : snprintf(out, PATHS, "%s", slash + 1);
	if (n >= PATHS) {
		unseen("a path that is too long", path);
		return 0;
	}
	return 1;
}

static int key_of(int fd, char *key) {
	struct statx x;
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &x) || !(x.stx_mask & STATX_BTIME))
		return -1;
	snprintf(key, 64, "%llu.%lld.%09u", (unsigned long long)x.stx_ino, (long long)x.stx_btime.tv_sec, x.stx_btime.tv_nsec);
	return 0;
}

static struct file **bucket(const struct stat *st) { return &buckets[(st->st_ino ^ st->st_ino >> 12) % 4096]; }

static void forget(struct change *c) {
	while (c) {
		struct change *next = c->next;
		free(c);
		c = next;
	}
}

// known is the file of an open fd, or NULL; made, if it is not known yet. fresh: fd was opened just now, and may be a new file
// with the number of a removed one. mu is held.
static struct file *known(int fd, const struct stat *st, int make, int fresh) {
	for (struct file *f = *bucket(st); f; f = f->next)
		if (f->ino == st->st_ino && f->dev == st->st_dev) {
			char key[64];
			if (fresh && !key_of(fd, key) && strcmp(key, f->key)) {
				forget(f->first);
				f->first = NULL;
				f->last = &f->first;
				f->whole = 0;
				strcpy(f->key, key);
			}
			return f;
		}
	if (!make)
		return NULL;
	struct file *f = calloc(1, sizeof *f);
	if (!f || key_of(fd, f->key)) {
		unseen("a file without a birth", "");
		free(f);
		return NULL;
	}
	f->dev = st->st_dev;
	f->ino = st->st_ino;
	f->last = &f->first;
	pthread_mutex_init(&f->syncing, NULL);
	f->next = *bucket(st);
	*bucket(st) = f;
	return f;
}

// watched is the file of an fd that is under the directory, or NULL. mu is held.
static struct file *watched(int fd, struct stat *st) {
	if (fstat(fd, st) || !S_ISREG(st->st_mode))
		return NULL;
	struct file *f = known(fd, st, 0, 0);
	if (f)
		return f;
	char link[64], path[PATH_MAX]; // opened before this library was there, by the parent, or not under the directory
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n < 0)
		return NULL;
	path[n] = 0;
	if (strncmp(path, dir, dir_length) || path[dir_length] != '/')
		return NULL;
	return known(fd, st, 1, 0);
}

static void add(struct file *f, int kind, off_t offset, const void *bytes, size_t length) {
	size_t n = kind == WRITE ? length : 0;
	struct change *c = malloc(sizeof *c + n);
	if (!c) {
		unseen("no memory", "");
		return;
	}
	c->next = NULL;
	c->kind = kind;
	c->offset = offset;
	c->length = length;
	if (n)
		memcpy(c->bytes, bytes, n);
	*f->last = c;
	f->last = &c->next;
}

static void add_name(char kind, const char *key, const char *from, const char *to) {
	struct name *n = calloc(1, sizeof *n);
	if (!n) {
		unseen("no memory", "");
		return;
	}
	n->number = ++numbered;
	n->kind = kind;
	snprintf(n->key, sizeof n->key, "%s", key);
	snprintf(n->from, sizeof n->from, "%s", from);
	snprintf(n->to, sizeof n->to, "%s", to);
	*names_last = n;
	names_last = &n->next;
}

static int in_directory(const char *path, const char *directory) {
	const char *slash = strrchr(path, '/');
	size_t n = slash ? (size_t)(slash - path) : 0;
	return strlen(directory) == n && !strncmp(path, directory, n);
}

// commit makes those changes of names durable that a sync did, up to a number. mu is held.
static void commit(long upto, const char *key, const char *directory) {
	for (struct name **p = &names; *p && (*p)->number <= upto;) {
		struct name *n = *p;
		if (!journal && !(key && !strcmp(n->key, key)) && !(directory && in_directory(n->to, directory))) {
			p = &n->next;
			continue;
		}
		char line[2 * PATHS + 128];
		int length = snprintf(line, sizeof line, "%c\t%s\t%s\t%s\n", n->kind, n->key, n->from, n->to);
		if (syscall(SYS_write, names_fd, line, (size_t)length) != length)
			unseen("the list of names cannot be written", n->to);
		*p = n->next;
		if (!*p)
			names_last = p;
		free(n);
	}
}

static void put(int fd, const char *bytes, size_t length, off_t offset) {
	while (length > 0) {
		ssize_t n = syscall(SYS_pwrite64, fd, bytes, length, offset);
		if (n <= 0) {
			unseen("what was synced cannot be written", "");
			return;
		}
		bytes += n;
		length -= n;
		offset += n;
	}
}

// apply writes what was synced. It runs after the sync, under f->syncing.
static void apply(const char *key, mode_t mode, struct change *c, const char *whole, size_t length) {
	if (!c && !whole)
		return;
	char path[PATHS + 96];
	snprintf(path, sizeof path, "%s/data/%s", shadow, key);
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, mode & 0777);
	if (fd < 0) {
		unseen("what was synced cannot be kept", path);
		return;
	}
	for (; c; c = c->next)
		switch (c->kind) {
		case WRITE:
			put(fd, c->bytes, c->length, c->offset);
			break;
		case TRUNCATE:
			if (syscall(SYS_ftruncate, fd, c->offset))
				unseen("what was synced cannot be cut", path);
			break;
		case EXTEND: {
			struct stat st;
			if (!fstat(fd, &st) && st.st_size < c->offset && syscall(SYS_ftruncate, fd, c->offset))
				unseen("what was synced cannot be extended", path);
		}
		}
	if (whole) {
		put(fd, whole, length, 0);
		if (syscall(SYS_ftruncate, fd, (off_t)length))
			unseen("what was synced cannot be cut", path);
	}
	syscall(SYS_close, fd);
}

static char *read_all(int fd, size_t *length) {
	struct stat st;
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	int in = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
	if (in < 0 || fstat(in, &st)) {
		unseen("a file cannot be read", link);
		return NULL;
	}
	char *bytes = malloc(st.st_size + 1);
	size_t n = 0;
	while (bytes && n < (size_t)st.st_size) {
		ssize_t got = syscall(SYS_pread64, in, bytes + n, st.st_size - n, n);
		if (got <= 0)
			break;
		n += got;
	}
	syscall(SYS_close, in);
	*length = n;
	return bytes;
}

// sync_with calls fsync or fdatasync, and keeps what it made durable.
static int sync_with(long call, int fd) {
	struct stat st;
	if (!on || lies || fstat(fd, &st))
		return syscall(call, fd);
	char directory[PATHS] = "";
	if (S_ISDIR(st.st_mode)) {
		char link[64], path[PATH_MAX];
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, path, sizeof path - 1);
		if (n < 0)
			return syscall(call, fd);
		path[n] = 0;
		if (strncmp(path, dir, dir_length) || (path[dir_length] && path[dir_length] != '/') || n >= PATHS)
			return syscall(call, fd);
		const char *rest = path + dir_length;
		while (*rest == '/')
			rest++;
		snprintf(directory, sizeof directory, "%s", rest);
		pthread_mutex_lock(&mu);
		long upto = numbered;
		pthread_mutex_unlock(&mu);
		int r = syscall(call, fd), e = errno;
		if (!r) {
			pthread_mutex_lock(&mu);
			commit(upto, NULL, directory);
			pthread_mutex_unlock(&mu);
		}
		errno = e;
		return r;
	}
	pthread_mutex_lock(&mu);
	struct file *f = watched(fd, &st);
	pthread_mutex_unlock(&mu);
	if (!f)
		return syscall(call, fd);
	pthread_mutex_lock(&f->syncing);
	pthread_mutex_lock(&mu);
	struct change *c = f->first;
	f->first = NULL;
	f->last = &f->first;
	size_t length = 0;
	char *whole = f->whole ? read_all(fd, &length) : NULL;
	long upto = numbered;
	char key[64];
	strcpy(key, f->key);
	pthread_mutex_unlock(&mu);
	int r = syscall(call, fd), e = errno;
	if (r)
		unseen("a sync failed", key);
	else
		apply(key, st.st_mode, c, whole, length);
	forget(c);
	free(whole);
	if (!r) {
		pthread_mutex_lock(&mu);
		commit(upto, key, NULL);
		pthread_mutex_unlock(&mu);
	}
	pthread_mutex_unlock(&f->syncing);
	errno = e;
	return r;
}

EXPORT int fsync(int fd) { return sync_with(SYS_fsync, fd); }
EXPORT int fdatasync(int fd) { return sync_with(SYS_fdatasync, fd); }
EXPORT void sync(void) {
	if (on)
		unseen("sync", "");
	syscall(SYS_sync);
}
EXPORT int syncfs(int fd) {
	if (on)
		unseen("syncfs", "");
	return syscall(SYS_syncfs, fd);
}

// wrote notes n bytes that went to fd, at offset, or where fd stands now when that is negative. mu is held; it is released.
static ssize_t wrote(struct file *f, int fd, const struct iovec *v, int count, ssize_t n, off_t offset, int durable) {
	int e = errno;
	if (f && n > 0) {
		int flags = syscall(SYS_fcntl, fd, F_GETFL);
		struct stat st;
		if (flags & O_APPEND && !fstat(fd, &st))
			offset = st.st_size - n;
		else if (offset < 0)
			offset = syscall(SYS_lseek, fd, (off_t)0, SEEK_CUR) - n;
		size_t left = n;
		for (int i = 0; i < count && left > 0; i++) {
			size_t part = v[i].iov_len < left ? v[i].iov_len : left;
			if (part)
				add(f, WRITE, offset, v[i].iov_base, part);
			offset += part;
			left -= part;
		}
		durable |= (flags & O_DSYNC) != 0; // O_SYNC has that bit as well
	}
	pthread_mutex_unlock(&mu);
	if (f && n > 0 && durable)
		sync_with(SYS_fdatasync, fd);
	errno = e;
	return n;
}

// plain is whether a write to fd is nobody's business here: it is no file under the directory. If not, mu is held.
static int plain(int fd, struct file **f) {
	struct stat st;
	if (!on || syscall(SYS_fstat, fd, &st) || !S_ISREG(st.st_mode))
		return 1;
	pthread_mutex_lock(&mu);
	if ((*f = watched(fd, &st)))
		return 0;
	pthread_mutex_unlock(&mu);
	return 1;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t length) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_write, fd, bytes, length);
	struct iovec v = {(void *)bytes, length};
	return wrote(f, fd, &v, 1, syscall(SYS_write, fd, bytes, length), -1, 0);
}

EXPORT ssize_t writev(int fd, const struct iovec *v, int count) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_writev, fd, v, count);
	return wrote(f, fd, v, count, syscall(SYS_writev, fd, v, count), -1, 0);
}

EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_pwrite64, fd, bytes, length, offset);
	struct iovec v = {(void *)bytes, length};
	return wrote(f, fd, &v, 1, syscall(SYS_pwrite64, fd, bytes, length, offset), offset, 0);
}
EXPORT ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return pwrite64(fd, bytes, length, offset); }

EXPORT ssize_t pwritev64(int fd, const struct iovec *v, int count, off64_t offset) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_pwritev, fd, v, count, (long)offset, 0L);
	return wrote(f, fd, v, count, syscall(SYS_pwritev, fd, v, count, (long)offset, 0L), offset, 0);
}
EXPORT ssize_t pwritev(int fd, const struct iovec *v, int count, off_t offset) { return pwritev64(fd, v, count, offset); }

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *v, int count, off64_t offset, int flags) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_pwritev2, fd, v, count, (long)offset, 0L, flags);
	return wrote(f, fd, v, count, syscall(SYS_pwritev2, fd, v, count, (long)offset, 0L, flags), offset, (flags & (RWF_DSYNC | RWF_SYNC)) != 0);
}
EXPORT ssize_t pwritev2(int fd, const struct iovec *v, int count, off_t offset, int flags) { return pwritev64v2(fd, v, count, offset, flags); }

EXPORT int ftruncate64(int fd, off64_t length) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_ftruncate, fd, length);
	int r = syscall(SYS_ftruncate, fd, length), e = errno;
	if (!r)
		add(f, TRUNCATE, length, NULL, 0);
	pthread_mutex_unlock(&mu);
	errno = e;
	return r;
}
EXPORT int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

EXPORT int truncate64(const char *path, off64_t length) {
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int r = ftruncate64(fd, length), e = errno;
	syscall(SYS_close, fd);
	errno = e;
	return r;
}
EXPORT int truncate(const char *path, off_t length) { return truncate64(path, length); }

EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
	struct file *f;
	if (plain(fd, &f))
		return syscall(SYS_fallocate, fd, mode, offset, length);
	int r = syscall(SYS_fallocate, fd, mode, offset, length), e = errno;
	if (!r && !mode)
		add(f, EXTEND, offset + length, NULL, 0);
	else if (!r && mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) {
		char *zeros = calloc(1, length);
		if (zeros)
			add(f, WRITE, offset, zeros, length);
		free(zeros);
	} else if (!r && !(mode & FALLOC_FL_KEEP_SIZE))
		unseen("fallocate of another kind", f->key);
	pthread_mutex_unlock(&mu);
	errno = e;
	return r;
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }
EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t length) {
	int e = errno, r = fallocate64(fd, 0, offset, length) ? errno : 0;
	errno = e;
	return r;
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

// by_others marks a file as written by what is not seen call by call.
static void by_others(int fd) {
	struct file *f;
	if (plain(fd, &f))
		return;
	f->whole = 1;
	pthread_mutex_unlock(&mu);
}

EXPORT ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
	by_others(out);
	return syscall(SYS_copy_file_range, in, from, out, to, length, flags);
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
	by_others(out);
	return syscall(SYS_sendfile, out, in, offset, length);
}
EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t length) { return sendfile64(out, in, offset, length); }

EXPORT void *mmap64(void *where, size_t length, int protection, int flags, int fd, off64_t offset) {
	void *at = (void *)syscall(SYS_mmap, where, length, protection, flags, fd, offset);
	if (on && at != MAP_FAILED && fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE) {
		struct file *f;
		if (!plain(fd, &f)) {
			char link[64], path[PATHS] = "";
			snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
			if (readlink(link, path, sizeof path - 1) < 0)
				path[0] = 0;
			unseen("a file is mapped for writing", path);
			pthread_mutex_unlock(&mu);
		}
	}
	return at;
}
EXPORT void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t offset) {
	return mmap64(where, length, protection, flags, fd, offset);
}

// opened notes a file that is new, or that was emptied.
static int opened(int at, const char *path, int flags, mode_t mode) {
	char name[PATHS];
	int here = flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR) && (flags & O_TMPFILE) != O_TMPFILE && inside(at, path, name);
	if (!here)
		return syscall(SYS_openat, at, path, flags, mode);
	pthread_mutex_lock(&mu);
	struct stat st;
	int there = !syscall(SYS_newfstatat, at, path, &st, 0);
	int fd = syscall(SYS_openat, at, path, flags, mode), e = errno;
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
		struct file *f = known(fd, &st, 1, 1);
		if (f && !there)
			add_name('L', f->key, "", name);
		else if (f && flags & O_TRUNC)
			add(f, TRUNCATE, 0, NULL, 0);
	}
	pthread_mutex_unlock(&mu);
	errno = e;
	return fd;
}

#define MODE(flags) \
	mode_t mode = 0; \
	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
		va_list rest; \
		va_start(rest, flags); \
		mode = va_arg(rest, mode_t); \
		va_end(rest); \
	}

EXPORT int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
EXPORT int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
EXPORT int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
EXPORT int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
EXPORT int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
EXPORT int __openat_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
EXPORT int __openat64_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
EXPORT int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

// stream_opened opens a stream. Its writes are not seen: they are made within the C library.
static FILE *stream_opened(const char *path, const char *how) {
	static FILE *(*real)(const char *, const char *);
	if (!real)
		real = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen64");
	char name[PATHS];
	if ((how[0] == 'r' && !strchr(how, '+')) || !inside(AT_FDCWD, path, name))
		return real(path, how);
	pthread_mutex_lock(&mu);
	struct stat st;
	int there = !syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0);
	FILE *s = real(path, how);
	int e = errno;
	if (s && !fstat(fileno(s), &st) && S_ISREG(st.st_mode)) {
		struct file *f = known(fileno(s), &st, 1, 1);
		if (f) {
			f->whole = 1;
			if (!there)
				add_name('L', f->key, "", name);
		}
	}
	pthread_mutex_unlock(&mu);
	errno = e;
	return s;
}
EXPORT FILE *fopen(const char *path, const char *how) { return stream_opened(path, how); }
EXPORT FILE *fopen64(const char *path, const char *how) { return stream_opened(path, how); }

// path_key is the key of the regular file at a path; 0 if there is none.
static int path_key(int at, const char *path, char *key, mode_t *mode) {
	struct stat st;
	if (syscall(SYS_newfstatat, at, path, &st, AT_SYMLINK_NOFOLLOW))
		return 0;
	*mode = st.st_mode;
	if (!S_ISREG(st.st_mode))
		return 0;
	int fd = syscall(SYS_openat, at, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0)
		return 0;
	int r = key_of(fd, key);
	syscall(SYS_close, fd);
	return !r;
}

static int renamed(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
	char a[PATHS], b[PATHS], key[64];
	mode_t mode = 0;
	int in_a = inside(from_at, from, a), in_b = inside(to_at, to, b);
	if (!in_a && !in_b)
		return syscall(SYS_renameat2, from_at, from, to_at, to, flags);
	pthread_mutex_lock(&mu);
	int file = path_key(from_at, from, key, &mode);
	int r = syscall(SYS_renameat2, from_at, from, to_at, to, flags), e = errno;
	if (!r) {
		if (file && in_a && in_b && !(flags & RENAME_EXCHANGE))
			add_name('R', key, a, b);
		else if (file || S_ISDIR(mode))
			unseen(file ? "a file was moved across, or exchanged" : "a directory was renamed", to);
	}
	pthread_mutex_unlock(&mu);
	errno = e;
	return r;
}
EXPORT int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
EXPORT int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renamed(a, from, b, to, flags); }

static int linked(int from_at, const char *from, int to_at, const char *to, int flags) {
	char b[PATHS], key[64];
	mode_t mode;
	if (!inside(to_at, to, b))
		return syscall(SYS_linkat, from_at, from, to_at, to, flags);
	pthread_mutex_lock(&mu);
	int file = path_key(from_at, from, key, &mode);
	int r = syscall(SYS_linkat, from_at, from, to_at, to, flags), e = errno;
	if (!r && file)
		add_name('L', key, "", b);
	pthread_mutex_unlock(&mu);
	errno = e;
	return r;
}
EXPORT int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }

static int unlinked(int at, const char *path, int flags) {
	char name[PATHS], key[64];
	mode_t mode;
	if (flags & AT_REMOVEDIR || !inside(at, path, name))
		return syscall(SYS_unlinkat, at, path, flags);
	pthread_mutex_lock(&mu);
	int file = path_key(at, path, key, &mode);
	int r = syscall(SYS_unlinkat, at, path, flags), e = errno;
	if (!r && file)
		add_name('U', key, "", name);
	pthread_mutex_unlock(&mu);
	errno = e;
	return r;
}
EXPORT int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int at, const char *path, int flags) { return unlinked(at, path, flags); }
EXPORT int remove(const char *path) {
	int r = unlinked(AT_FDCWD, path, 0);
	return r && errno == EISDIR ? syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : r;
}
