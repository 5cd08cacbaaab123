#pragma OPENCL EXTENSION cl_khr_fp16 : enable
kernel void saxpy(global float *y, const global float *x, float a, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i] + y[i];
}
kernel void reduce(global int *out, const global int *in, int n) {
    local int tmp[64];
    int l = get_local_id(0), g = get_group_id(0);
    int s = 0;
    for (int i = g * 64 + l; i < n; i += 64 * get_num_groups(0)) s += in[i];
    tmp[l] = s;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 32; k > 0; k >>= 1) { if (l < k) tmp[l] += tmp[l + k]; barrier(CLK_LOCAL_MEM_FENCE); }
    if (l == 0) atomic_add(&out[0], tmp[0]), out[1+g] = tmp[0];
}
kernel void mixed(global char *c, global short *s, global int *i, global long *q, global half *h, global float *f, int n) {
    int g = get_global_id(0);
    c[g] = (char)(c[g] * 3 + s[g]);
    s[g] = s[g] / (short)7 + (short)(i[g] % 13);
    q[g] = q[g] * (long)i[g] + (q[g] >> 3) - (long)g;
    i[g] = popcount(i[g]) + clz(i[g]) * mul_hi(i[g], 12345) + rotate(i[g], 5) + bitselect(i[g], n, 0x0ff0);
    h[g] = h[g] * (half)2.5f + (half)f[g];
    f[g] = sqrt(f[g]) + f[g] / 3.0f + floor(f[g]) + fabs(f[g]) + convert_float(i[g]) + exp2(f[g]*0.001f) + min(f[g], 1.0f);
}
