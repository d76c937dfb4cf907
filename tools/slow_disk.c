/* A slow disk: each call that forces data to it takes 50 ms longer. For LD_PRELOAD, in benchmarks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static int later(const char *name, int file) {
    usleep(50000);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return later("fsync", file); }
int fdatasync(int file) { return later("fdatasync", file); }
