// Kernels of the foreign tests: nvcc -arch=sm_90 -ptx kernels.cu -o nvcc.ptx
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>
#define KERNEL extern "C" __global__ void

KERNEL vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

KERNEL saxpy4(const float4 *__restrict__ a, float4 *__restrict__ c, float s, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 x = a[i], y = c[i];
        c[i] = make_float4(s * x.x + y.x, s * x.y + y.y, s * x.z + y.z, s * x.w + y.w);
    }
}

KERNEL block_sum(const float *a, float *out, int n) {
    __shared__ float part[256];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += a[blockIdx.x * n + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int k = blockDim.x / 2; k > 0; k /= 2) {
        if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

KERNEL warp_sum(const int *a, int *out) {
    int v = a[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) out[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = v;
}

KERNEL scan_warp(const int *a, int *out) {
    int v = a[threadIdx.x], lane = threadIdx.x % 32;
    for (int d = 1; d < 32; d *= 2) {
        int up = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += up;
    }
    out[threadIdx.x] = v;
}

KERNEL redux(const unsigned *a, unsigned *out) {
    unsigned v = a[threadIdx.x];
    unsigned s = __reduce_add_sync(~0u, v), m = __reduce_max_sync(~0u, v), x = __reduce_xor_sync(~0u, v);
    if (threadIdx.x % 32 == 0) {
        out[threadIdx.x / 32 * 3] = s;
        out[threadIdx.x / 32 * 3 + 1] = m;
        out[threadIdx.x / 32 * 3 + 2] = x;
    }
}

KERNEL histogram(const unsigned char *a, unsigned *bins, int n) {
    __shared__ unsigned local[64];
    if (threadIdx.x < 64) local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[a[i] % 64], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

KERNEL transpose(const float *a, float *out, int rows, int columns) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = a[(y + j) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < columns) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

KERNEL mandelbrot(int *out, int width, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float cx = -2.f + 3.f * (i % width) / width, cy = -1.f + 2.f * (i / width) / width, x = 0, y = 0;
    int k = 0;
    while (k < limit && x * x + y * y < 4.f) {
        float t = x * x - y * y + cx;
        y = 2 * x * y + cy;
        x = t;
        k++;
    }
    out[i] = k;
}

KERNEL collatz(const unsigned *a, unsigned *out) {
    unsigned v = a[threadIdx.x], steps = 0;
    while (v != 1) {
        if (v & 1) v = 3 * v + 1;
        else v >>= 1;
        steps++;
    }
    out[threadIdx.x] = steps;
}

KERNEL half_axpy(const __half2 *a, const __half2 *b, __half2 *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = __hfma2(a[i], b[i], __float2half2_rn(0.5f));
}

KERNEL bf16_add(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = __hadd(a[i], b[i]);
}

KERNEL convert_all(const float *a, int *i32, unsigned char *u8, __half *h, __nv_bfloat16 *b, double *d, long long *i64) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = a[i];
    i32[i] = __float2int_rn(x);
    u8[i] = (unsigned char)fminf(fmaxf(x, 0.f), 255.f);
    h[i] = __float2half_rz(x);
    b[i] = __float2bfloat16(x);
    d[i] = x;
    i64[i] = __float2ll_rd(x);
}

KERNEL fp8_round(const float *a, unsigned char *e4, unsigned char *e5, float *back) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    e4[i] = __nv_cvt_float_to_fp8(a[i], __NV_SATFINITE, __NV_E4M3);
    e5[i] = __nv_cvt_float_to_fp8(a[i], __NV_SATFINITE, __NV_E5M2);
    __half_raw r = __nv_cvt_fp8_to_halfraw(e4[i], __NV_E4M3);
    back[i] = __half2float(*(__half *)&r);
}

KERNEL bits(const unsigned *a, const unsigned *b, unsigned *out) {
    int i = threadIdx.x;
    unsigned x = a[i], y = b[i];
    out[i * 8] = __popc(x);
    out[i * 8 + 1] = __clz(x);
    out[i * 8 + 2] = __brev(x);
    out[i * 8 + 3] = __ffs(x);
    out[i * 8 + 4] = __byte_perm(x, y, 0x3715);
    out[i * 8 + 5] = __funnelshift_l(x, y, y & 31);
    out[i * 8 + 6] = __umulhi(x, y);
    out[i * 8 + 7] = (x & y) ^ (x | ~y);
}

KERNEL dot4(const int *a, const int *b, int *out) { out[threadIdx.x] = __dp4a(a[threadIdx.x], b[threadIdx.x], 7); }

KERNEL divide(const int *a, const int *b, int *q, int *r, long long *wide) {
    int i = threadIdx.x;
    q[i] = a[i] / b[i];
    r[i] = a[i] % b[i];
    wide[i] = (long long)a[i] * b[i] / (b[i] + 1000003LL);
}

KERNEL local_sort(const int *a, int *out, int n) {
    int v[16];
    for (int i = 0; i < n; i++) v[i] = a[threadIdx.x * n + i];
    for (int i = 1; i < n; i++) {
        int x = v[i], j = i - 1;
        while (j >= 0 && v[j] > x) { v[j + 1] = v[j]; j--; }
        v[j + 1] = x;
    }
    for (int i = 0; i < n; i++) out[threadIdx.x * n + i] = v[i];
}

KERNEL compact(const int *a, int *out, int *count) {
    int v = a[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned mask = __ballot_sync(~0u, v > 0);
    int base = 0;
    if (threadIdx.x % 32 == 0) base = atomicAdd(count, __popc(mask));
    base = __shfl_sync(~0u, base, 0);
    if (v > 0) out[base + __popc(mask & ((1u << threadIdx.x % 32) - 1))] = v;
}

__constant__ float taps[5] = {1, 4, 6, 4, 1};
KERNEL blur(const float *a, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < 5; k++) {
        int at = i + k - 2;
        if (at >= 0 && at < n) sum += taps[k] * a[at];
    }
    if (i < n) out[i] = sum;
}

KERNEL gemm_tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float ta[16][16], tb[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += ta[threadIdx.y][j] * tb[j][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

KERNEL pipeline_copy(const int4 *a, int4 *out, int steps) {
    __shared__ int4 stage[2][64];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&stage[0][t], &a[t], 16);
    __pipeline_commit();
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps) __pipeline_memcpy_async(&stage[(s + 1) % 2][t], &a[(s + 1) * 64 + t], 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        out[s * 64 + t] = stage[s % 2][63 - t];
        __syncthreads();
    }
}

__device__ __forceinline__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// C = A B^T of 16 x 16 and 8 x 16, by ldmatrix and mma
KERNEL mma_f16(const __half *a, const __half *b, float *c) {
    __shared__ __align__(16) __half ta[16 * 16], tb[8 * 16];
    int t = threadIdx.x;
    for (int i = t; i < 256; i += 32) ta[i] = a[i];
    for (int i = t; i < 128; i += 32) tb[i] = b[i];
    __syncwarp();
    unsigned ra[4], rb[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(place(&ta[(t % 16) * 16 + t / 16 * 8])));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(rb[0]), "=r"(rb[1]) : "r"(place(&tb[(t % 8) * 16 + t / 8 % 2 * 8])));
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; i++) c[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}

// the other factor as rows of k, so that ldmatrix transposes it
KERNEL mma_trans(const __half *a, const __half *b, float *c) {
    __shared__ __align__(16) __half ta[16 * 16], tb[16 * 8];
    int t = threadIdx.x;
    for (int i = t; i < 256; i += 32) ta[i] = a[i];
    for (int i = t; i < 128; i += 32) tb[i] = b[i];
    __syncwarp();
    unsigned ra[4], rb[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(place(&ta[(t % 16) * 16 + t / 16 * 8])));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(rb[0]), "=r"(rb[1]) : "r"(place(&tb[(t % 16) * 8])));
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; i++) c[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}

KERNEL mma_s8(const int *a, const int *b, int *c) {  // 16 x 32 and 8 x 32 bytes
    int t = threadIdx.x, g = t / 4, q = t % 4;
    int ra[4] = {a[g * 8 + q], a[(g + 8) * 8 + q], a[g * 8 + q + 4], a[(g + 8) * 8 + q + 4]}, rb[2] = {b[g * 8 + q], b[g * 8 + q + 4]};
    int d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + q * 2 + i % 2] = d[i];
}

KERNEL wmma_tile(const __half *a, const __half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
    fragment<accumulator, 16, 16, 16, float> fc;
    fill_fragment(fc, 0.f);
    load_matrix_sync(fa, a, 16);
    load_matrix_sync(fb, b, 16);
    mma_sync(fc, fa, fb, fc);
    store_matrix_sync(c, fc, 16, mem_row_major);
}

__device__ unsigned done = 0;
KERNEL last_block_sums(const float *a, volatile float *part, float *out, int n) {
    __shared__ float s[128];
    __shared__ bool last;
    s[threadIdx.x] = a[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    for (int k = 64; k; k /= 2) {
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        part[blockIdx.x] = s[0];
        __threadfence();
        unsigned ticket = atomicInc(&done, gridDim.x - 1);
        __threadfence();
        last = ticket == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += part[i];
        *out = sum;
    }
}

KERNEL math(const float *a, float *out) {
    int i = threadIdx.x;
    float x = a[i];
    out[i * 8] = __expf(x);
    out[i * 8 + 1] = __logf(fabsf(x));
    out[i * 8 + 2] = rsqrtf(fabsf(x));
    out[i * 8 + 3] = __fdividef(1.f, x);
    out[i * 8 + 4] = __sinf(x);
    out[i * 8 + 5] = sqrtf(fabsf(x));
    out[i * 8 + 6] = tanhf(x);
    out[i * 8 + 7] = x / 3.7f;
}

KERNEL spin_lock(int *lock, int *value) {
    bool mine = false;
    while (!mine) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            *(volatile int *)value = *(volatile int *)value + 1;
            __threadfence();
            atomicExch(lock, 0);
            mine = true;
        }
    }
}

KERNEL double_dot(const double *a, const double *b, double *out, int n) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum = fma(a[i], b[i], sum);
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x == 0) *out = sum;
}

KERNEL jump_table(const int *a, int *out) {
    int v = a[threadIdx.x], r;
    switch (v) {
        case 0: r = v * 3 + 7; break;
        case 1: r = v ^ out[threadIdx.x]; break;
        case 2: r = __popc(v + 5); break;
        case 3: r = v / 2 - 9; break;
        case 4: r = a[threadIdx.x + 1]; break;
        case 5: r = -v; break;
        default: r = 100;
    }
    out[threadIdx.x] = r;
}

struct Point { float x, y, z; int k; };
__device__ __noinline__ float poly(float a, float b, int n) {
    float s = b;
    for (int i = 0; i < n; i++) {
        s = s * a + 1;
        if (s > 1e6f) return -s;
    }
    return s;
}
__device__ __noinline__ Point mix(Point a, float t) { return {a.x * t, poly(a.y, t, a.k), a.z + t, a.k + 1}; }
KERNEL calls(const Point *a, Point *out, float t) {
    int i = threadIdx.x;
    Point p = a[i];
    if (i & 1) p = mix(p, t);
    p.x = poly(p.x, 1.5f, i);
    out[i] = p;
}
