#pragma OPENCL EXTENSION cl_khr_fp16 : enable
kernel void half_of_float(global half* o, global float* i) { int n = get_global_id(0); o[n] = convert_half(i[3 * n + 1]) + convert_half(i[n]); }
kernel void half_of_int(global half* o, global int* i) { int n = get_global_id(0); o[n] = convert_half(i[3 * n + 1]) + convert_half(i[n]); }
kernel void half_of_short(global half* o, global short* i) { int n = get_global_id(0); o[n] = convert_half(i[3 * n + 1]) + convert_half(i[n]); }
kernel void float_of_half(global float* o, global half* i) { int n = get_global_id(0); o[n] = convert_float(i[3 * n + 1]) + convert_float(i[n]); }
kernel void short_of_half(global short* o, global half* i) { int n = get_global_id(0); o[n] = convert_short(i[3 * n + 1]) + convert_short(i[n]); }
kernel void int_of_half(global int* o, global half* i) { int n = get_global_id(0); o[n] = convert_int(i[3 * n + 1]) + convert_int(i[n]); }
kernel void uchar_of_float(global uchar* o, global float* i) { int n = get_global_id(0); o[n] = convert_uchar(i[3 * n + 1]) + convert_uchar(i[n]); }
kernel void char_of_short(global char* o, global short* i) { int n = get_global_id(0); o[n] = convert_char(i[3 * n + 1]) + convert_char(i[n]); }
kernel void short_of_uchar(global short* o, global uchar* i) { int n = get_global_id(0); o[n] = convert_short(i[3 * n + 1]) + convert_short(i[n]); }
kernel void float_of_uchar(global float* o, global uchar* i) { int n = get_global_id(0); o[n] = convert_float(i[3 * n + 1]) + convert_float(i[n]); }
kernel void half4_of_float4(global half4* o, global float4* i) { int n = get_global_id(0); float4 t = i[n]; o[n] = convert_half4(t) + convert_half4(t.wzyx); }
kernel void float4_of_half4(global float4* o, global half4* i) { int n = get_global_id(0); half4 t = i[n]; o[n] = convert_float4(t) + convert_float4(t.wzyx); }
kernel void uchar4_of_int4(global uchar4* o, global int4* i) { int n = get_global_id(0); int4 t = i[n]; o[n] = convert_uchar4(t) + convert_uchar4(t.wzyx); }
kernel void short4_of_char4(global short4* o, global char4* i) { int n = get_global_id(0); char4 t = i[n]; o[n] = convert_short4(t) + convert_short4(t.wzyx); }
kernel void halves(global half* o, global half* i, half k) { int n = get_global_id(0); half x = i[n]; o[n] = sqrt(x) * k + fma(x, k, x) + min(x, k) + rsqrt(x) + floor(x); }
