/* A HIP runtime without a GPU: memory is kept here, launches are executed by whoever listens (tests/gen/device/standin.py).
 *
 * The folder CONVGEN_STANDIN holds a socket, and a file for each allocation, PROCESS-NUMBER.memory. What is put into streams
 * waits until somebody synchronises, so that who forgets to does not see a result. Addresses are none of this process.
 */

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef FOLDER
#define FOLDER "CONVGEN_STANDIN" /* variable of the environment */
#endif

enum {
    FINE = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONFIGURATION = 9, INVALID_DEVICE_POINTER = 17,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_HANDLE = 400, NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700, LAUNCH_FAILURE = 719
};

static const struct { int status; const char *name; } NAMES[] = {
    {FINE, "hipSuccess"}, {INVALID_VALUE, "hipErrorInvalidValue"}, {OUT_OF_MEMORY, "hipErrorOutOfMemory"},
    {INVALID_CONFIGURATION, "hipErrorInvalidConfiguration"}, {INVALID_DEVICE_POINTER, "hipErrorInvalidDevicePointer"},
    {INVALID_DEVICE, "hipErrorInvalidDevice"}, {INVALID_IMAGE, "hipErrorInvalidImage"},
    {NO_BINARY_FOR_GPU, "hipErrorNoBinaryForGpu"}, {INVALID_HANDLE, "hipErrorInvalidHandle"},
    {NOT_FOUND, "hipErrorNotFound"}, {ILLEGAL_ADDRESS, "hipErrorIllegalAddress"},
    {LAUNCH_FAILURE, "hipErrorLaunchFailure"},
};

const char *hipGetErrorName(int status) {
    for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
        if (NAMES[n].status == status) return NAMES[n].name;
    return "hipErrorUnknown";
}

/* ---------------------------------------------------------------- who executes */

static const char *folder(void) { return getenv(FOLDER); }

/* The status that the listener answers a line with, and what follows it. */
static int ask(const char *line, char *answer, size_t size) {
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    snprintf(there.sun_path, sizeof there.sun_path, "%s/socket", folder());
    int at = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(at, (struct sockaddr *)&there, sizeof there)) return close(at), LAUNCH_FAILURE;
    for (size_t length = strlen(line), done = 0; done < length;) {
        ssize_t sent = write(at, line + done, length - done);
        if (sent <= 0) return close(at), LAUNCH_FAILURE;
        done += (size_t)sent;
    }
    size_t got = 0;
    for (ssize_t more; got + 1 < size && (more = read(at, answer + got, size - 1 - got)) > 0;) got += (size_t)more;
    answer[got] = 0;
    close(at);
    return got ? atoi(answer) : LAUNCH_FAILURE;
}

/* ---------------------------------------------------------------- memory */

#define FIRST 0x700000000000ull
#define SPACING (1ull << 36)
#define MOST 200

static struct { char *here; size_t size; int device; } allocations[MOST];
static int current;

static int devices(void) {
    const char *given = getenv("CONVGEN_STANDIN_DEVICES");
    return given ? atoi(given) : 2;
}

/* The number of the allocation that holds some bytes; -1 if none does. */
static int holder(const void *pointer, size_t size) {
    uint64_t address = (uint64_t)pointer, number = (address - FIRST) / SPACING, offset = (address - FIRST) % SPACING;
    int known = address >= FIRST && number < MOST && allocations[number].here;
    return known && offset + size <= allocations[number].size ? (int)number : -1;
}

static char *here(const void *pointer, size_t size) {
    int number = holder(pointer, size);
    return number < 0 ? NULL : allocations[number].here + ((uint64_t)pointer - FIRST) % SPACING;
}

static void path_of(char *path, size_t size, int number) {
    snprintf(path, size, "%s/%d-%d.memory", folder(), (int)getpid(), number);
}

int hipMalloc(void **pointer, size_t size) {
    if (!size) return *pointer = NULL, FINE;
    for (int number = 0; number < MOST; number++) {
        if (allocations[number].here) continue;
        char path[4096];
        path_of(path, sizeof path, number);
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || ftruncate(file, (off_t)size)) return OUT_OF_MEMORY;
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (mapped == MAP_FAILED) return unlink(path), OUT_OF_MEMORY;
        memset(mapped, 0xC5, size < 1 << 24 ? size : 1 << 24); /* nothing that anybody would want to read */
        allocations[number].here = mapped;
        allocations[number].size = size;
        allocations[number].device = current;
        *pointer = (void *)(FIRST + SPACING * (uint64_t)number);
        return FINE;
    }
    return OUT_OF_MEMORY;
}

int hipMemGetAddressRange(void **base, size_t *size, void *pointer) {
    int number = holder(pointer, 1);
    if (number < 0) return NOT_FOUND;
    *base = (void *)(FIRST + SPACING * (uint64_t)number);
    *size = allocations[number].size;
    return FINE;
}

int hipPointerGetAttribute(void *value, int attribute, void *pointer) {
    int number = holder(pointer, 1);
    if (number < 0 || attribute != 9) return INVALID_VALUE;
    *(int *)value = allocations[number].device;
    return FINE;
}

/* ---------------------------------------------------------------- streams: what waits in them */

typedef struct Work {
    enum { COPY_IN, COPY_OUT, FILL, LAUNCH, STAMP } kind;
    void *to;
    const void *from;
    size_t size;
    int byte;
    char *line;
    struct Work *next;
} Work;

typedef struct { double seconds; } Stamp;

static Work *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int streams[64];

static int put(Work work, void *stream) {
    uintptr_t number = (uintptr_t)stream;
    if (number > 64 || (number && !streams[number - 1])) return INVALID_HANDLE;
    Work *added = malloc(sizeof *added);
    *added = work;
    added->next = NULL;
    pthread_mutex_lock(&lock);
    *last = added;
    last = &added->next;
    pthread_mutex_unlock(&lock);
    return FINE;
}

static int done(Work *work) {
    char answer[4096], *place;
    struct timespec now;
    switch (work->kind) {
    case COPY_IN:
        if (!(place = here(work->to, work->size))) return ILLEGAL_ADDRESS;
        memcpy(place, work->from, work->size);
        return FINE;
    case COPY_OUT:
        if (!(place = here(work->from, work->size))) return ILLEGAL_ADDRESS;
        memcpy(work->to, place, work->size);
        return FINE;
    case FILL:
        if (!(place = here(work->to, work->size))) return ILLEGAL_ADDRESS;
        memset(place, work->byte, work->size);
        return FINE;
    case LAUNCH:
        return ask(work->line, answer, sizeof answer);
    case STAMP:
        clock_gettime(CLOCK_MONOTONIC, &now);
        ((Stamp *)work->to)->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        return FINE;
    }
    return INVALID_VALUE;
}

/* All that waits is done, in the order in which it came; the first failure is told. */
static int drain(void) {
    pthread_mutex_lock(&lock);
    Work *work = first;
    first = NULL;
    last = &first;
    pthread_mutex_unlock(&lock);
    int status = FINE;
    while (work) {
        int found = status ? FINE : done(work);
        status = status ? status : found;
        Work *next = work->next;
        free(work->line);
        free(work);
        work = next;
    }
    return status;
}

int hipFree(void *pointer) {
    int status = drain();
    if (!pointer) return status;
    int number = holder(pointer, 1);
    if (number < 0 || (uint64_t)pointer % SPACING != FIRST % SPACING) return INVALID_VALUE;
    char path[4096];
    path_of(path, sizeof path, number);
    munmap(allocations[number].here, allocations[number].size);
    unlink(path);
    allocations[number].here = NULL;
    return status;
}

int hipMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    const void *of_device = kind == 1 ? to : from;
    if (kind != 1 && kind != 2) return INVALID_VALUE;
    if (size && !here(of_device, size)) return INVALID_VALUE;
    return put((Work){.kind = kind == 1 ? COPY_IN : COPY_OUT, .to = to, .from = from, .size = size}, stream);
}

int hipMemsetAsync(void *to, int byte, size_t size, void *stream) {
    if (size && !here(to, size)) return INVALID_VALUE;
    return put((Work){.kind = FILL, .to = to, .size = size, .byte = byte}, stream);
}

int hipMemcpy(void *to, const void *from, size_t size, int kind) {
    int status = hipMemcpyAsync(to, from, size, kind, NULL);
    return status ? status : drain();
}

int hipStreamCreate(void **stream) {
    for (uintptr_t number = 0; number < 64; number++)
        if (!streams[number]) return streams[number] = 1, *stream = (void *)(number + 1), FINE;
    return OUT_OF_MEMORY;
}

int hipStreamDestroy(void *stream) {
    uintptr_t number = (uintptr_t)stream;
    if (!number || number > 64 || !streams[number - 1]) return INVALID_HANDLE;
    streams[number - 1] = 0;
    return drain();
}

int hipStreamSynchronize(void *stream) {
    uintptr_t number = (uintptr_t)stream;
    return number && (number > 64 || !streams[number - 1]) ? INVALID_HANDLE : drain();
}

int hipDeviceSynchronize(void) { return drain(); }

int hipEventCreate(void **event) {
    *event = calloc(1, sizeof(Stamp));
    return FINE;
}

int hipEventDestroy(void *event) {
    int status = drain();
    free(event);
    return status;
}

int hipEventRecord(void *event, void *stream) { return put((Work){.kind = STAMP, .to = event}, stream); }

int hipEventSynchronize(void *event) { return event ? drain() : INVALID_HANDLE; }

int hipEventElapsedTime(float *milliseconds, void *from, void *to) {
    *milliseconds = (float)(1e3 * (((Stamp *)to)->seconds - ((Stamp *)from)->seconds));
    return FINE;
}

/* ---------------------------------------------------------------- devices */

int hipInit(unsigned flags) { return flags ? INVALID_VALUE : FINE; }

int hipGetDeviceCount(int *count) {
    *count = devices();
    return *count ? FINE : 100; /* hipErrorNoDevice */
}

int hipGetDevice(int *device) {
    *device = current;
    return FINE;
}

int hipSetDevice(int device) {
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    current = device;
    return FINE;
}

int hipGetDevicePropertiesR0600(char *properties, int device) {
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    const char *arch = getenv("CONVGEN_STANDIN_ARCH");
    memset(properties, 0, 1472);
    strcpy(properties, "Stand-in");
    snprintf(properties + 1160, 256, "%s:sramecc+:xnack-", arch ? arch : "gfx942");
    return FINE;
}

/* ---------------------------------------------------------------- code */

typedef struct { char path[256]; } Module;
typedef struct { const Module *module; char name[1024]; int shared_bytes; } Function;

static int modules;

int hipModuleLoadData(void **module, const unsigned char *image) {
    uint64_t sections;
    uint16_t entry_size, entries;
    if (memcmp(image, "\177ELF\2\1", 6)) return INVALID_IMAGE;
    memcpy(&sections, image + 40, 8);
    memcpy(&entry_size, image + 58, 2);
    memcpy(&entries, image + 60, 2);
    Module *made = calloc(1, sizeof *made);
    snprintf(made->path, sizeof made->path, "%s/%d-%d.hsaco", folder(), (int)getpid(), modules++);
    FILE *file = fopen(made->path, "wb");
    fwrite(image, 1, sections + (uint64_t)entry_size * entries, file); /* sections' headers come last */
    fclose(file);
    char line[512], answer[64];
    snprintf(line, sizeof line, "load %s\n", made->path);
    int status = ask(line, answer, sizeof answer);
    if (status) return free(made), status;
    *module = made;
    return FINE;
}

int hipModuleUnload(void *module) {
    int status = drain();
    unlink(((Module *)module)->path);
    free(module);
    return status;
}

int hipModuleGetFunction(void **function, void *module, const char *name) {
    Function *made = calloc(1, sizeof *made);
    char line[2048], answer[64];
    made->module = module;
    snprintf(made->name, sizeof made->name, "%s", name);
    snprintf(line, sizeof line, "function %s %s\n", made->module->path, name);
    int status = ask(line, answer, sizeof answer);
    if (status) return free(made), status;
    made->shared_bytes = atoi(strchr(answer, ' '));
    *function = made;
    return FINE;
}

int hipFuncGetAttribute(int *value, int attribute, void *function) {
    if (attribute != 1) return INVALID_VALUE;
    *value = ((Function *)function)->shared_bytes;
    return FINE;
}

int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra) {
    const Function *called = function;
    if (parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)
        return INVALID_VALUE;
    const unsigned char *block = extra[1];
    size_t size = *(size_t *)extra[3];
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || block_x * block_y * block_z > 1024)
        return INVALID_CONFIGURATION;
    char *line = malloc(4096 + 2 * size), *at = line;
    at += sprintf(at, "launch %s %s %u %u %u %u %u %u %u %lu ", called->module->path, called->name, grid_x, grid_y,
                  grid_z, block_x, block_y, block_z, shared_bytes, (unsigned long)stream);
    for (size_t n = 0; n < size; n++) at += sprintf(at, "%02x", block[n]);
    strcpy(at, "\n");
    return put((Work){.kind = LAUNCH, .line = line}, stream);
}
