; llvm-project #202333, reduced: a VALU instruction overwrites the data of a wide store one wait state too early: two are
; needed, s_or_b64 fills one. An s_nop 0 is missing behind it (CDNA3 ISA 4.5, Table 11).
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl missing_nop
.p2align 8
.type missing_nop,@function
missing_nop:
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_mov_b64 s[6:7], exec
  v_lshlrev_b32_e32 v1, 4, v0
  v_mov_b32_e32 v4, 1
  v_mov_b32_e32 v5, 2
  v_mov_b32_e32 v6, 3
  v_mov_b32_e32 v7, 4
  s_waitcnt lgkmcnt(0)
  global_store_dwordx4 v1, v[4:7], s[4:5]
  s_or_b64 exec, exec, s[6:7] ; an s_nop 0 belongs behind this line
  v_pk_mul_f32 v[6:7], v[4:5], v[4:5]
  global_store_dwordx2 v1, v[6:7], s[4:5] offset:2048
  s_endpgm

.rodata
.p2align 6
.amdhsa_kernel missing_nop
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
  .amdhsa_group_segment_fixed_size 0
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: missing_nop
    .symbol: missing_nop.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
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
