#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__attribute__((intel_reqd_sub_group_size(16)))
kernel void subgroups(global int *out, const global int *in) {
    int i = get_global_id(0), x = in[i];
    out[i] = intel_sub_group_shuffle(x, (i * 7 + 3) & 15) + 10 * intel_sub_group_shuffle_xor(x, 5) + 100 * sub_group_reduce_add(x) + sub_group_broadcast(x, 3) + sub_group_scan_exclusive_add(x) + get_sub_group_local_id();
}
kernel void exchange(global float *out, const global float *in, local float *tile) {
    int l = get_local_id(0), i = get_global_id(0), n = get_local_size(0);
    float acc = 0;
    for (int r = 0; r < 4; r++) {
        tile[l] = in[i + r * get_global_size(0)];
        barrier(CLK_LOCAL_MEM_FENCE);
        acc += tile[(l + 17) % n] * (r + 1) - tile[n - 1 - l];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[i] = acc;
}
kernel void globalbar(global int *out, const global int *in) {
    int i = get_global_id(0), l = get_local_id(0), b = i - l;
    out[i] = in[i] * 3;
    barrier(CLK_GLOBAL_MEM_FENCE);
    int x = out[b + (l ^ 33)];
    barrier(CLK_GLOBAL_MEM_FENCE);
    out[i] = x + 1;
}
