// The kernel of clang_*_swaps_*.hsaco; README.md says how they are made.
#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL(name) __attribute__((amdgpu_kernel, amdgpu_flat_work_group_size(256, 256))) void name
#define T ((int)__builtin_amdgcn_workitem_id_x())
#define I ((int)__builtin_amdgcn_workgroup_id_x() * 256 + T)

// Operations that no instruction has, each a loop of compare-and-swap behind a load.
KERNEL(swaps)(GLOBAL int *S, GLOBAL const int *X) {
  static LOCAL float sums[2] __attribute__((loader_uninitialized));
  if (T < 2) sums[T] = 0;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  int x = X[I];
  __atomic_fetch_sub(&sums[0], (float)(x & 15), __ATOMIC_RELAXED);
  __atomic_fetch_add((GLOBAL unsigned char *)S + (I & 3), (unsigned char)x, __ATOMIC_RELAXED);
  __atomic_fetch_sub((GLOBAL float *)(S + 1), (float)(x & 15), __ATOMIC_RELAXED);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  if (T == 0) __atomic_fetch_add((GLOBAL float *)(S + 2), sums[0], __ATOMIC_RELAXED);
}
