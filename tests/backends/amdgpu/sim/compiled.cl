// Kernels for test_compiled.py: arithmetic of many kinds under divergent control flow, and a reduction through LDS.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

kernel void misc(global float *out, global const float *a, global const int *b, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i >= n) return;
  float x = a[i];
  int y = b[i];
  float sum = 0;
  for (int k = 0; k < (y & 15); k++) {
    if (k & 1) sum += x * k;
    else sum -= a[(i + k) % n];
  }
  sum += x / (float)(y | 1);
  long square = (long)y * (long)y + i;
  sum += (float)(square % 1000);
  sum += (float)((unsigned)y / 7u) + (float)(y / (i + 1));
  half h = (half)x;
  h = h * h + (half)1.0f;
  sum += (float)h;
  double d = (double)x * 3.0;
  out[i] = sum + (float)d;
}

kernel void reduce(global float *out, global const float *a, global int *count) {
  local float part[256];
  int t = __builtin_amdgcn_workitem_id_x(), g = __builtin_amdgcn_workgroup_id_x();
  part[t] = a[g * 256 + t];
  for (int k = 128; k > 0; k >>= 1) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    if (t < k) part[t] += part[t + k];
  }
  if (t == 0) {
    out[g] = part[0];
    __opencl_atomic_fetch_add((global atomic_int *)count, 1, __ATOMIC_RELAXED, __OPENCL_MEMORY_SCOPE_DEVICE);
  }
}

// An array in scratch, by number and by a generic address that may lead to scratch or to LDS; additions that saturate.
kernel void own(global int *out, global const int *b, int n) {
  int t = __builtin_amdgcn_workitem_id_x(), i = __builtin_amdgcn_workgroup_id_x() * 256 + t;
  volatile int mine[17];
  local int ours[256];
  ours[t] = 3 * i;
  for (int k = 0; k < 17; k++) mine[k] = b[i] + k;
  int sum = 0;
  for (int k = 0; k < 17; k++) sum += mine[(5 * k + i) % 17] * k;
  volatile int *where = (i + n) & 1 ? &mine[i & 15] : (volatile int *)&ours[t];
  *where += 100;
  out[i] = sum + mine[i & 15] + ours[t] + __builtin_elementwise_add_sat(b[i], 0x7fffff00) % 1000;
}
