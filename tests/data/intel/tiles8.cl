#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(int8 a, int8 b, float8 acc);
/* A: tiles of 8x16 f16, B: tiles of 16x8 VNNI, C: tiles of 8x8; one subgroup 32 x 16, four subgroups share B through SLM */
__attribute__((intel_reqd_sub_group_size(8)))
kernel void tiled(global uint *a, global uint *b, global float *c, int K, int N) {
    local uint lb[2 * 2 * 64];
    int sg = get_sub_group_id(), lid = get_sub_group_local_id();
    int mt = (get_group_id(0) * 4 + sg) * 4, nt = get_group_id(1) * 2, kt = K / 16, nts = N / 8;
    float8 acc[4][2];
    for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++) acc[i][j] = 0;
    for (int k = 0; k < kt; k++) {
        int at = (k & 1) * 128;
        uint4 part = intel_sub_group_block_read4(b + (k * nts + nt) * 64 + sg * 32);
        for (int i = 0; i < 4; i++) lb[at + sg * 32 + 8 * i + lid] = part[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        int8 av[4]; int8 bv[2];
        for (int i = 0; i < 4; i++) av[i] = as_int8(intel_sub_group_block_read8(a + ((mt + i) * kt + k) * 64));
        for (int j = 0; j < 2; j++) for (int i = 0; i < 8; i++) bv[j][i] = lb[at + j * 64 + 8 * i + lid];
        for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++) acc[i][j] = intel_sub_group_f16_f16_matrix_mad_k16(av[i], bv[j], acc[i][j]);
    }
    for (int i = 0; i < 4; i++) for (int j = 0; j < 2; j++)
        intel_sub_group_block_write8((global uint *)(c + ((mt + i) * nts + nt + j) * 64), as_uint8(acc[i][j]));
}
