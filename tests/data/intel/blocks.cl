#pragma OPENCL EXTENSION cl_intel_subgroups : enable
ushort8 __builtin_IB_subgroup_block_read_flat_u16_m8k16v1(long base, int w, int h, int p, int2 c);
uint8 __builtin_IB_subgroup_block_read_flat_transform_u16_k16(long base, int w, int h, int p, int2 c);
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(short8 a, int8 b, float8 acc);
__attribute__((intel_reqd_sub_group_size(16)))
kernel void blocks(global ushort *a, global ushort *b, global float *c, int M, int N, int K) {
    int m = get_group_id(0) * 8, n = get_group_id(1) * 16; float8 acc = 0;
    for (int k = 0; k < K; k += 16) {
        ushort8 av = __builtin_IB_subgroup_block_read_flat_u16_m8k16v1((long)a, K * 2 - 1, M - 1, K * 2 - 1, (int2)(k, m));
        uint8 bv = __builtin_IB_subgroup_block_read_flat_transform_u16_k16((long)b, N * 2 - 1, K - 1, N * 2 - 1, (int2)(n, k));
        acc = intel_sub_group_f16_f16_matrix_mad_k16(as_short8(av), as_int8(bv), acc);
    }
    int col = n + get_sub_group_local_id();
    for (int i = 0; i < 8; i++) if (m + i < M && col < N) c[(m + i) * N + col] = acc[i];
}
