#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(int8 a, int8 b, float8 acc);

// Products behind loads of some lanes only, and behind branches of channels.
__attribute__((intel_reqd_sub_group_size(8)))
kernel void mma(global int8 *a, global int8 *b, global float8 *c, global int *flags, int steps) {
    float8 acc = 0;
    int i = get_global_id(0);
    for (int k = 0; k < steps; k++) {
        int8 av = 0;
        if (flags[i + k * 8] > 3) av = a[i + k * 8];
        int8 bv = b[i + k * 8];
        acc = intel_sub_group_f16_f16_matrix_mad_k16(av, bv, acc);
        if (flags[i] > 5) acc += 1;
        acc = intel_sub_group_f16_f16_matrix_mad_k16(bv, bv, acc);
    }
    c[i] = acc;
}
