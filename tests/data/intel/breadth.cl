#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
kernel void control(global int *out, const global int *in, int n) {
    int i = get_global_id(0), x = in[i], steps = 0;
    while (x > 1) {
        if (x % 3 == 0) { x /= 3; if (x == 7) break; }
        else if (x & 1) { x = 3 * x + 1; steps += 2; continue; }
        else x >>= 1;
        steps++;
        if (steps > n) break;
    }
    switch (steps & 3) { case 0: steps += 100; break; case 1: steps *= 3; break; case 2: steps ^= 0x55; default: steps -= 7; }
    out[i] = steps * 1000 + (x & 255);
}
kernel void atomics(global int *a, global uint *u, global float *f, const global int *in) {
    int i = get_global_id(0), v = in[i];
    local int s[16];
    if (get_local_id(0) < 16) s[get_local_id(0)] = -5000;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&s[v & 7], v);
    atomic_max(&s[8 + ((v >> 3) & 7)], v);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) < 8) { atomic_add(&a[get_local_id(0)], s[get_local_id(0)]); atomic_max(&a[14], s[8 + get_local_id(0)]); }
    atomic_min(&a[8], v); atomic_max(&a[9], v); atomic_inc(&a[10]); atomic_or(&a[11], v); atomic_xor(&a[12], v);
    atomic_max(&u[0], (uint)v); atomic_min(&u[1], (uint)v); atomic_and(&u[2], (uint)v);
    atomic_cmpxchg(&u[3 + (i & 3)], 0u, (uint)(i & 3) + 7u);
    int old = atomic_sub(&a[13], v);
    a[16 + i] = old == 123456789 ? 1 : 2;
}
kernel void numbers(global int *out, const global int *in, const global float *fin) {
    int i = get_global_id(0), x = in[i], y = in[i + 1] | 1; float f = fin[i], g = fin[i + 1];
    int o = i * 24;
    out[o] = add_sat(x, y); out[o+1] = (int)sub_sat((uint)x, (uint)y); out[o+2] = mul_hi((uint)x, (uint)y); out[o+3] = hadd(x, y);
    out[o+4] = rhadd(x, y); out[o+5] = abs_diff(x, y); out[o+6] = x / y; out[o+7] = (uint)(x ^ 85) % (uint)y;
    out[o+8] = ctz(x | 256); out[o+9] = convert_int_sat(f * 1e9f); out[o+10] = convert_uchar_sat(f); out[o+11] = convert_short_sat_rte(g * 1000);
    out[o+12] = as_int(fma(f, g, 1.5f)); out[o+13] = as_int(trunc(f)); out[o+14] = as_int(rint(f)); out[o+15] = as_int(ceil(g));
    out[o+16] = as_int(fmin(f, g)); out[o+17] = as_int(clamp(f, -1.0f, 1.0f)); out[o+18] = isless(f, g) ? 3 : isnan(f) ? 4 : 5; out[o+19] = as_int(copysign(f, g));
    out[o+20] = (int)((half)f * (half)g); out[o+21] = popcount((long)x << 7); out[o+22] = as_int(native_recip(f)); out[o+23] = upsample((short)x, (ushort)y);
}
kernel void longs(global long *out, const global long *in) {
    int i = get_global_id(0); long x = in[i], y = in[i + 1]; int o = i * 10;
    out[o] = x + y; out[o+1] = x - y; out[o+2] = x * y; out[o+3] = x << (y & 63); out[o+4] = x >> (y & 63); out[o+5] = (ulong)x >> (y & 63);
    out[o+6] = x < y ? x : y; out[o+7] = max((ulong)x, (ulong)y); out[o+8] = (x & y) ^ ~x; out[o+9] = rotate(x, 13L) + (long)(int)y;
}
kernel void chars(global char4 *c, global uchar4 *u, global short2 *s) {
    int i = get_global_id(0); char4 a = c[i]; uchar4 b = u[i]; short2 t = s[i];
    c[i] = add_sat(a, convert_char4_sat(b)); u[i] = b * (uchar)3 + convert_uchar4(a) ; s[i] = max(t, (short2)(b.x, b.y)) - (short2)(a.z);
}
kernel void memory(global float4 *out, const global float4 *in, global uchar *bytes, global ushort *shorts) {
    int i = get_global_id(0);
    float4 v = in[i]; float8 w = vload8(i, (global float *)in);
    out[i] = v * 2.0f + (float4)(w.s7, w.s3, w.s1, w.s0);
    bytes[i] = bytes[i] + 1; shorts[2 * i + 1] = shorts[2 * i] * 5;
}
