#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#pragma OPENCL EXTENSION cl_intel_subgroups_short : enable
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(short8 a, int8 b, float8 acc);
float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(short8 a, int8 b, float8 acc);
int8 __attribute__((overloadable)) intel_sub_group_i8_u8_matrix_mad_k32(short8 a, uint8 b, int8 acc);
/* A: tiles of 8x16 f16, B: tiles of 16x16 VNNI, C: tiles of 8x16; one subgroup 32 x 32, four subgroups share B through SLM */
__attribute__((intel_reqd_sub_group_size(16)))
kernel void tiled(global ushort *a, global uint *b, global float *c, int K, int N) {
    local uint lb[2 * 2 * 128];
    int sg = get_sub_group_id(), lid = get_sub_group_local_id();
    int mt = (get_group_id(0) * 4 + sg) * 4, nt = get_group_id(1) * 2, kt = K / 16, nts = N / 16;
    float8 acc[4][2];
    for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++) acc[i][j] = 0;
    for (int k = 0; k < kt; k++) {
        int at = (k & 1) * 256;
        uint4 part = intel_sub_group_block_read4(b + (k * nts + nt) * 128 + sg * 64);
        for (int i = 0; i < 4; i++) lb[at + sg * 64 + 16 * i + lid] = part[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        short8 av[4]; int8 bv[2];
        for (int i = 0; i < 4; i++) av[i] = as_short8(intel_sub_group_block_read_us8(a + ((mt + i) * kt + k) * 128));
        for (int j = 0; j < 2; j++) for (int i = 0; i < 8; i++) bv[j][i] = lb[at + j * 128 + 16 * i + lid];
        for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++) acc[i][j] = intel_sub_group_f16_f16_matrix_mad_k16(av[i], bv[j], acc[i][j]);
    }
    for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++)
        intel_sub_group_block_write8((global uint *)(c + ((mt + i) * nts + nt + j) * 128), as_uint8(acc[i][j]));
}
__attribute__((intel_reqd_sub_group_size(16)))
kernel void bytes(global ushort *a, global uint *b, global int *c, int K) {
    int8 acc = 0, acd = 5;
    int m = get_group_id(0);
    for (int k = 0; k < K / 32; k++) {
        short8 av = as_short8(intel_sub_group_block_read_us8(a + (m * (K / 32) + k) * 128));
        acc = intel_sub_group_i8_u8_matrix_mad_k32(av, intel_sub_group_block_read8(b + k * 128), acc);
        acd = intel_sub_group_i8_u8_matrix_mad_k32(av, intel_sub_group_block_read8(b + k * 128), acd);
    }
    intel_sub_group_block_write8((global uint *)(c + m * 128), as_uint8(acc + acd));
}
