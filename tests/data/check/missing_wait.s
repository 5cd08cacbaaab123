; Each work-item leaves a word in LDS and reads that of its namesake in the next wave. An s_waitcnt lgkmcnt(0) is missing
; before the barrier: the barrier does not wait for LDS writes, so that a wave can read before another has written.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl missing_wait
.p2align 8
.type missing_wait,@function
missing_wait:
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_xor_b32_e32 v2, 0x100, v1
  ds_write_b32 v1, v0
  s_barrier ; an s_waitcnt lgkmcnt(0) belongs before this line
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v3, s[4:5]
  s_endpgm

.rodata
.p2align 6
.amdhsa_kernel missing_wait
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
  .amdhsa_group_segment_fixed_size 512
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: missing_wait
    .symbol: missing_wait.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 512
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 8
    .max_flat_workgroup_size: 128
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: flag, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
...
.end_amdgpu_metadata
