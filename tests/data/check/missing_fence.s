; Workgroup 0 stores a word and raises a flag; workgroup 1 waits for the flag and loads the word. A buffer_wbl2 sc1 is
; missing before the flag: on gfx942 it writes the store back from the L2 of one XCD, where the other XCDs do not look.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl missing_fence
.p2align 8
.type missing_fence,@function
missing_fence:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 7
  s_mov_b64 exec, 1
  s_waitcnt lgkmcnt(0)
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 .Lwait
  global_store_dword v1, v2, s[4:5]
  s_waitcnt vmcnt(0) ; a buffer_wbl2 sc1 belongs before this line
  global_atomic_add v1, v2, s[6:7] sc1
  s_endpgm
.Lwait:
  s_sleep 1
  global_load_dword v3, v1, s[6:7] sc1
  s_waitcnt vmcnt(0)
  v_cmp_gt_u32_e32 vcc, 7, v3
  s_cbranch_vccnz .Lwait
  buffer_inv sc1
  global_load_dword v4, v1, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dword v1, v4, s[4:5] offset:4
  s_endpgm

.rodata
.p2align 6
.amdhsa_kernel missing_fence
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
  - .name: missing_fence
    .symbol: missing_fence.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: flag, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
...
.end_amdgpu_metadata
