/* CUDA's driver API without a GPU, over the memory, streams and listener of the stand-in for HIP.
 *
 * Functions have the types and exported names of cuda.h. All that needs a context refuses to work without a current one.
 */

#define FOLDER "CONVGEN_STANDIN_CUDA"
#include "standin_hip.c"

enum { NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201, INVALID_PTX = 218, OUT_OF_RESOURCES = 701 };
enum { MOST_CONTEXTS = 16, DEFAULT_SHARED = 48 << 10, MOST_PARAMETERS = 256, MOST_BLOCK = 32764, MAP_BYTES = 128 };

typedef unsigned long long Address;
typedef struct { size_t offset, size; } Parameter;
typedef struct { Function base; int most_dynamic, has_map; size_t count; Parameter parameters[MOST_PARAMETERS]; } CudaFunction;

static int started, dead;
static int contexts[8]; /* those of the devices: their addresses are the handles */
static _Thread_local void *stack[MOST_CONTEXTS];
static _Thread_local int depth;

static const struct { int status; const char *name, *text; } ERRORS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {9, "CUDA_ERROR_INVALID_CONFIGURATION", "invalid configuration argument"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
};

static int told(int status, const char **text, int of_name) {
    for (size_t n = 0; n < sizeof ERRORS / sizeof *ERRORS; n++)
        if (ERRORS[n].status == status) return *text = of_name ? ERRORS[n].name : ERRORS[n].text, 0;
    return *text = NULL, INVALID_VALUE;
}

int cuGetErrorName(int status, const char **text) { return told(status, text, 1); }
int cuGetErrorString(int status, const char **text) { return told(status, text, 0); }

/* What a call that needs a context answers before it does anything. */
static int ready(void) { return dead ? dead : !started ? NOT_INITIALIZED : depth ? FINE : INVALID_CONTEXT; }

/* A fault of a kernel stays the answer of all further calls. */
static int kept(int status) { return dead = status == ILLEGAL_ADDRESS || status == LAUNCH_FAILURE ? status : dead, status; }
#define READY() do { int unready = ready(); if (unready) return unready; } while (0)

int cuInit(unsigned flags) {
    const char *given = getenv("CONVGEN_STANDIN_INIT");
    if (given) return atoi(given);
    return started = 1, flags ? INVALID_VALUE : FINE;
}

int cuDeviceGetCount(int *count) { return *count = devices(), started ? FINE : NOT_INITIALIZED; }

int cuDeviceGet(int *device, int number) {
    if (number < 0 || number >= devices()) return INVALID_DEVICE;
    return *device = number, FINE;
}

int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    return snprintf(name, (size_t)size, "Stand-in"), FINE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *arch = getenv("CONVGEN_STANDIN_ARCH_CUDA");
    int number = arch ? atoi(arch + 3) : 90;
    (void)device;
    if (attribute != 75 && attribute != 76) return INVALID_VALUE;
    return *value = attribute == 75 ? number / 10 : number % 10, FINE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device < 0 || device >= 8) return INVALID_DEVICE;
    return *context = &contexts[device], FINE;
}

int cuCtxPushCurrent_v2(void *context) {
    if (!context || depth == MOST_CONTEXTS) return INVALID_CONTEXT;
    stack[depth++] = context;
    current = (int)((int *)context - contexts);
    return FINE;
}

int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return FINE;
}

int cuCtxGetCurrent(void **context) { return *context = depth ? stack[depth - 1] : NULL, FINE; }

int cuStandinDepth(void) { return depth; }

int cuMemAlloc_v2(Address *address, size_t size) {
    void *pointer;
    READY();
    int status = size ? hipMalloc(&pointer, size) : INVALID_VALUE;
    return status ? status : (*address = (Address)(uintptr_t)pointer, FINE);
}

int cuMemFree_v2(Address address) { READY(); return hipFree((void *)(uintptr_t)address); }

int cuMemGetAddressRange_v2(Address *base, size_t *size, Address address) {
    void *pointer;
    READY();
    int status = hipMemGetAddressRange(&pointer, size, (void *)(uintptr_t)address);
    return status ? status : (*base = (Address)(uintptr_t)pointer, FINE);
}

int cuPointerGetAttribute(void *value, int attribute, Address address) {
    return hipPointerGetAttribute(value, attribute, (void *)(uintptr_t)address);
}

int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, void *stream) {
    READY();
    return hipMemcpyAsync((void *)(uintptr_t)to, from, size, 1, stream);
}

int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, void *stream) {
    READY();
    return hipMemcpyAsync(to, (const void *)(uintptr_t)from, size, 2, stream);
}

int cuMemsetD8Async(Address to, unsigned char byte, size_t size, void *stream) {
    READY();
    return hipMemsetAsync((void *)(uintptr_t)to, byte, size, stream);
}

static int loaded(void **module, const char *image, char *log, size_t log_size) {
    READY();
    if (!image || !memcmp(image, "\177ELF", 4)) return INVALID_IMAGE; /* SASS is not executed here */
    Module *made = calloc(1, sizeof *made);
    snprintf(made->path, sizeof made->path, "%s/%d-%d.ptx", folder(), (int)getpid(), modules++);
    FILE *file = fopen(made->path, "wb");
    fwrite(image, 1, strlen(image), file);
    fclose(file);
    char line[512], answer[4096];
    snprintf(line, sizeof line, "load %s\n", made->path);
    int status = ask(line, answer, sizeof answer);
    if (!status) return *module = made, FINE;
    if (log && log_size && strchr(answer, ' ')) snprintf(log, log_size, "%s", strchr(answer, ' ') + 1);
    return free(made), status;
}

int cuModuleLoadData(void **module, const void *image) { return loaded(module, image, NULL, 0); }

int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    char *log = NULL;
    size_t size = 0;
    for (unsigned n = 0; n < count; n++) {
        if (options[n] == 5) log = values[n];
        if (options[n] == 6) size = (size_t)values[n];
    }
    return loaded(module, image, log, size);
}

int cuModuleUnload(void *module) { READY(); return hipModuleUnload(module); }

int cuModuleGetFunction(void **function, void *module, const char *name) {
    char line[2048], answer[8192], *at;
    READY();
    CudaFunction *made = calloc(1, sizeof *made);
    made->base.module = module;
    made->most_dynamic = DEFAULT_SHARED;
    snprintf(made->base.name, sizeof made->base.name, "%s", name);
    snprintf(line, sizeof line, "function %s %s\n", made->base.module->path, name);
    int status = ask(line, answer, sizeof answer);
    if (status) return free(made), status;
    made->base.shared_bytes = (int)strtol(strchr(answer, ' '), &at, 10);
    while (*at && made->count < MOST_PARAMETERS) {
        Parameter *next = &made->parameters[made->count++];
        next->offset = strtoul(at, &at, 10);
        next->size = strtoul(at, &at, 10);
        made->has_map |= next->size == MAP_BYTES;
    }
    return *function = made, FINE;
}

#ifndef OLD_DRIVER
int cuFuncGetParamInfo(void *function, size_t number, size_t *offset, size_t *size) {
    READY();
    const CudaFunction *asked = function;
    if (number >= asked->count) return INVALID_VALUE;
    return *offset = asked->parameters[number].offset, *size = asked->parameters[number].size, FINE;
}
#endif

int cuFuncSetAttribute(void *function, int attribute, int value) {
    READY();
    if (attribute != 8 || value < 0 || value > 227 << 10) return INVALID_VALUE;
    ((CudaFunction *)function)->most_dynamic = value; /* also where it is less than unasked (an H200) */
    return FINE;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra) {
    const CudaFunction *called = function;
    unsigned char block[MOST_BLOCK] = {0};
    size_t size = 0;
    READY();
    if (getenv("CONVGEN_STANDIN_DIES")) abort();
    if (parameters ? !!extra : !extra && called->count) return INVALID_VALUE;
    /* A block by the offsets of PTX is too long: the driver aligns a map by its address in constant memory (an H200). */
    if (extra && called->has_map) return OUT_OF_RESOURCES;
    if (extra && extra[4]) return INVALID_VALUE;
    if (shared_bytes > (unsigned)called->most_dynamic) return INVALID_VALUE;
    for (size_t n = 0; !extra && n < called->count; n++) {
        const Parameter *next = &called->parameters[n];
        if (!parameters[n] || next->offset + next->size > MOST_BLOCK) return INVALID_VALUE;
        memcpy(block + next->offset, parameters[n], next->size);
        size = next->offset + next->size;
    }
    void *of_hip[] = {(void *)1, extra ? extra[1] : block, (void *)2, extra ? extra[3] : &size, (void *)3};
    return hipModuleLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                 NULL, of_hip);
}

#ifndef OLD_DRIVER
static int encodings;

int cuStandinEncodings(void) { return encodings; }

/* The bytes of a map here: its arguments, each at a place of its own, which `standin_cuda.py` reads. */
static int encoded(unsigned char *map, int kind, int type, unsigned rank, void *address, const uint64_t *dims,
                   const uint64_t *strides, const unsigned *steps, const short extents[8], const int modes[4]) {
    READY();
    encodings++;
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || !rank || rank > 5) return INVALID_VALUE;
    memset(map, 0, 128);
    map[0] = (unsigned char)kind, map[1] = (unsigned char)type, map[2] = (unsigned char)rank;
    for (int n = 0; n < 4; n++) map[3 + n] = (unsigned char)modes[n];
    memcpy(map + 8, &address, 8);
    memcpy(map + 16, dims, 8 * rank);
    memcpy(map + 56, strides, 8 * (rank - 1));
    for (unsigned n = 0; n < rank; n++) map[88 + n] = (unsigned char)steps[n];
    memcpy(map + 96, extents, 16);
    return FINE;
}

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    const int modes[] = {interleave, swizzle, promotion, fill};
    short extents[8] = {0};
    for (unsigned n = 0; n < rank && n < 5; n++) extents[n] = (short)box[n];
    return encoded(map, 1, type, rank, address, dims, strides, steps, extents, modes);
}

int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                            unsigned pixels, const unsigned *steps, int interleave, int swizzle, int promotion,
                            int fill) {
    const int modes[] = {interleave, swizzle, promotion, fill};
    short extents[8] = {0};
    for (unsigned n = 0; n + 2 < rank && n < 3; n++) extents[n] = (short)lower[n], extents[3 + n] = (short)upper[n];
    extents[6] = (short)channels, extents[7] = (short)pixels;
    return encoded(map, 2, type, rank, address, dims, strides, steps, extents, modes);
}
#endif

int cuStreamCreate(void **stream, unsigned flags) { READY(); return flags > 1 ? INVALID_VALUE : hipStreamCreate(stream); }
int cuStreamDestroy_v2(void *stream) { READY(); return hipStreamDestroy(stream); }
int cuStreamSynchronize(void *stream) { READY(); return kept(hipStreamSynchronize(stream)); }
int cuCtxSynchronize(void) { READY(); return kept(hipDeviceSynchronize()); }
int cuEventCreate(void **event, unsigned flags) { READY(); return flags ? INVALID_VALUE : hipEventCreate(event); }
int cuEventDestroy_v2(void *event) { READY(); return hipEventDestroy(event); }
int cuEventRecord(void *event, void *stream) { READY(); return hipEventRecord(event, stream); }
int cuEventSynchronize(void *event) { READY(); return kept(hipEventSynchronize(event)); }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    READY();
    return hipEventElapsedTime(milliseconds, from, to);
}
