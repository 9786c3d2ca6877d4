/* Preloaded: refuse one call on a file below REFUSE_BELOW, and write a dot to the
   file REFUSED then. REFUSE is "3 flush": the third fsync or fdatasync fails with EIO;
   "3 full": the third write fails with ENOSPC; or "3 filled": so do the 11 after it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int below(int fd)
{
    char link[64], path[4096];
    const char *folder = getenv("REFUSE_BELOW");
    ssize_t n;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0 || !folder)
        return 0;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0 && !strstr(path, "-shm");
}

static int refuses(const char *what, int fd)
{
    static int calls;
    const char *wanted = getenv("REFUSE");
    char kind[16];
    FILE *said;
    int nth, last;
    if (!wanted || sscanf(wanted, "%d %15s", &nth, kind) != 2)
        return 0;
    last = nth + (strcmp(kind, "filled") ? 0 : 11);
    if (strcmp(last > nth ? "full" : kind, what) || !below(fd))
        return 0;
    if (++calls < nth || calls > last)
        return 0;
    said = fopen(getenv("REFUSED"), "a");
    fputc('.', said);
    fclose(said);
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd)
{
    if (refuses("flush", fd)) { errno = EIO; return -1; }
    return REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    if (refuses("flush", fd)) { errno = EIO; return -1; }
    return REAL(fdatasync)(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    if (refuses("full", fd)) { errno = ENOSPC; return -1; }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    if (refuses("full", fd)) { errno = ENOSPC; return -1; }
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    if (refuses("full", fd)) { errno = ENOSPC; return -1; }
    return REAL(pwrite64)(fd, data, size, at);
}
