// Kernels of the foreign tests: clang-22 -target nvptx64-nvidia-cuda -march=sm_90 -O2 -S kernels.c -o clang.ptx
#define KERNEL __attribute__((device_kernel)) void
#define SHARED __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))
#define TID __nvvm_read_ptx_sreg_tid_x()
#define BID __nvvm_read_ptx_sreg_ctaid_x()
#define SIZE __nvvm_read_ptx_sreg_ntid_x()
typedef _Float16 half;
typedef half half2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));

KERNEL generic_add(const float *a, const float *b, float *c, int n) {
    int i = BID * SIZE + TID;
    if (i < n) c[i] = a[i] + b[i];
}

SHARED float tile[128];
static float pick(const float *p, int i) { return p[i]; }
KERNEL generic_shared(GLOBAL const float *a, GLOBAL float *out) {  // a generic pointer into shared memory
    int t = TID;
    tile[t] = a[t];
    __nvvm_bar_sync(0);
    const float *p = (const float *)tile;
    out[t] = pick(p, 127 - t) + p[t ^ 1];
}

KERNEL half_dot(GLOBAL const half2 *a, GLOBAL const half2 *b, GLOBAL float *out, int n) {
    float sum = 0;
    for (int i = TID; i < n; i += SIZE) sum += (float)(a[i].x * b[i].x) + (float)(a[i].y * b[i].y);
    out[TID] = sum;
}

KERNEL chained(GLOBAL const int *a, GLOBAL int *out) {
    int i = TID, v = a[i];
    if (v > 10) {
        if (v > 20) v = v * 3;
        else if (v & 1) v = v / 5;
        else v = v % 7;
    } else {
        while (v < 10) v += (v & 3) + 1;
    }
    out[i] = v;
}

KERNEL matrix_vector(GLOBAL const float4 *a, GLOBAL const float4 *x, GLOBAL float *y, int n4) {
    int row = BID * SIZE + TID;
    float4 sum = 0;
    for (int k = 0; k < n4; k++) sum += a[row * n4 + k] * x[k];
    y[row] = sum.x + sum.y + sum.z + sum.w;
}

KERNEL byte_work(GLOBAL const unsigned char *a, GLOBAL unsigned char *out, int n) {
    int i = BID * SIZE + TID;
    if (i >= n) return;
    unsigned sum = 0;
    for (int k = -1; k <= 1; k++) sum += a[i + k < 0 ? 0 : i + k >= n ? n - 1 : i + k];
    out[i] = sum / 3;
}

KERNEL compare_swap(GLOBAL int *counter, int limit) {  // add one as long as the value is below a limit
    int old = __atomic_load_n(counter, __ATOMIC_RELAXED);
    while (old < limit && !__atomic_compare_exchange_n(counter, &old, old + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

KERNEL wide_integers(GLOBAL const unsigned long *a, GLOBAL const unsigned long *b, GLOBAL unsigned long *out) {
    int i = TID;
    unsigned __int128 p = (unsigned __int128)a[i] * b[i] + a[i];
    out[2 * i] = (unsigned long)p;
    out[2 * i + 1] = (unsigned long)(p >> 64);
}

KERNEL private_table(GLOBAL const int *a, GLOBAL int *out) {
    int table[32];
    for (int i = 0; i < 32; i++) table[i] = i * a[i];
    int v = a[TID] & 31;
    for (int i = 0; i < 8; i++) v = (table[v] + i) & 31;
    out[TID] = v;
}

KERNEL float_edges(GLOBAL const float *a, GLOBAL int *i, GLOBAL unsigned *u, GLOBAL float *r) {
    int t = TID;
    i[t] = (int)a[t];
    u[t] = (unsigned)a[t];
    r[t] = __builtin_floorf(a[t]) + __builtin_fmaf(a[t], a[t], 1.f) + (a[t] < 0 ? -1.f : 1.f) * __builtin_sqrtf(__builtin_fabsf(a[t]));
}
