#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(short8 a, int8 b, float8 acc);
int8 __attribute__((overloadable)) intel_sub_group_i8_i8_matrix_mad_k32(short8 a, int8 b, int8 acc);
__attribute__((intel_reqd_sub_group_size(16)))
kernel void mma(global ushort *a, global uint *b, global float *c, int K) {
    float8 acc = 0;
    int m = get_group_id(0) * 8;
    for (int k = 0; k < K; k += 16) {
        short8 av = as_short8(intel_sub_group_block_read_us8(a + (m * K + k * 8)));
        int8 bv = as_int8(intel_sub_group_block_read8(b + k / 2 * 16));
        acc = intel_sub_group_f16_f16_matrix_mad_k16(av, bv, acc);
    }
    intel_sub_group_block_write8((global uint *)(c + m * 16), as_uint8(acc));
}
