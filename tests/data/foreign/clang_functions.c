// The kernel of clang_*_functions_*.hsaco; README.md says how they are made.
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL(name) __attribute__((amdgpu_kernel, amdgpu_flat_work_group_size(256, 256))) void name
#define CALLED static __attribute__((noinline))
#define T ((int)__builtin_amdgcn_workitem_id_x())
#define I ((int)__builtin_amdgcn_workgroup_id_x() * 256 + T)

typedef int (*Function)(int);
CALLED int next(int x) { return x + 1; }
CALLED int square(int x) { return x * x; }
CALLED int negative(int x) { return -x; }
CALLED int mixed(int x) { return x ^ 0x5a5a; }
CALLED int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

static GLOBAL volatile int kept[1024], steps[4] = {1, 20, 300, 4000};

// A stack as deep as data say, functions from a table that the loader fills in, a loop with several exits, variables.
KERNEL(functions)(GLOBAL int *Y, GLOBAL const int *X, int n) {
  if (I >= n) return;
  Function table[4] = {next, square, negative, mixed};
  int x = X[I], r = fibonacci(x & 7);
  for (int k = 0; k < 3; k++) r = table[(r + k) & 3](r + x);
  for (int k = 0, y = x & 255; k < 40; k++) {
    if (y < 2) break;
    if (k > (x >> 8 & 31)) {
      r -= y;
      break;
    }
    y = y & 1 ? 3 * y + 1 : y >> 1;
    r += y;
  }
  kept[I] += r;
  Y[I] = r + steps[x & 3];
}
