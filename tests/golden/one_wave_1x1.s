    .amdgcn_target "amdgcn-amd-amdhsa--gfx942"
    .amdhsa_code_object_version 5

// conv_fwd_d_e52289d3_main: convgen for gfx942
// problem: --dir=FWD_D --dt=f16 mb1_ic32oc16_ih4oh4kh1ph0
// config:  tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v
// registers:
//   kernarg      s[0:1]
//   wei_surface  s[4:7]
//   src_surface  s[8:11]
//   dst_surface  s[0:3]
//   wei_next     v[0:3]
//   src_next     v[4:7]
//   wei_frag     v[0:3]
//   src_frag     v[4:7]
//   acc          v[8:11]
//   wei          s[12:13]
//   src          s[14:15]
//   dst          s[16:17]
// shared memory:
//   0x00000..0x00400  wei_tile: 1 x 16 x 32 f16, row pitch 64, chunk ^ (row >> 0 & 3)
//   0x00400..0x00800  src_tile: 1 x 16 x 32 f16, row pitch 64, chunk ^ (row >> 0 & 3)
    .text
    .globl  conv_fwd_d_e52289d3_main
    .p2align 8
    .type   conv_fwd_d_e52289d3_main,@function
conv_fwd_d_e52289d3_main:
    s_load_dwordx2         s[12:13], s[0:1], 8                    // argument wei
    s_load_dwordx2         s[14:15], s[0:1], 0                    // argument src
    v_lshlrev_b32          v4, 4, v0                              // wei_offset
    s_mov_b32              s6, 1024
    s_mov_b32              s7, 0x20000                            // surface of wei
    s_mov_b32              s10, 1024
    s_mov_b32              s11, 0x20000                           // surface of src
    s_load_dwordx2         s[16:17], s[0:1], 16                   // argument dst
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_and_b32              v3, 3, v1
    v_xor_b32              v3, v3, v2
    v_lshlrev_b32          v1, 6, v1
    v_ashrrev_i32          v5, 4, v0
    v_and_b32              v0, 15, v0
    v_lshl_add_u32         v8, v3, 4, v1                          // wei_tile_write_address
    v_xor_b32              v1, v2, v5
    v_lshlrev_b32          v2, 6, v0
    v_lshl_add_u32         v9, v1, 4, v2                          // wei_tile_read_address
    v_lshlrev_b32          v1, 3, v5
    s_mov_b32              s2, 512
    s_mov_b32              s3, 0x20000                            // surface of dst
    v_lshl_add_u32         v12, v0, 5, v1
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s4, s12
    s_and_b32              s5, s13, 65535
    buffer_load_dwordx4    v[0:3], v4, s[4:7], 0 offen            // wei load
    s_mov_b32              s8, s14
    s_and_b32              s9, s15, 65535
    s_mov_b32              s0, s16
    s_and_b32              s1, s17, 65535
    buffer_load_dwordx4    v[4:7], v4, s[8:11], 0 offen           // src load
    s_waitcnt              vmcnt(1)
    ds_write_b128          v8, v[0:3]                             // wei store
    ds_read_b128           v[0:3], v9                             // wei fragment
    s_waitcnt              vmcnt(0)
    ds_write_b128          v8, v[4:7] offset:1024                 // src store
    ds_read_b128           v[4:7], v9 offset:1024                 // src fragment
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_f16 v[8:11], v[0:1], v[4:5], 0            // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[6:7], v[8:11]
    s_nop                  6
    v_cvt_f16_f32_e64      v0, v8
    v_cvt_f16_f32_e64      v1, v10
    v_cvt_f16_f32_sdwa     v0, v9 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD
    v_cvt_f16_f32_sdwa     v1, v11 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD
    buffer_store_dwordx2   v[0:1], v12, s[0:3], 0 offen           // dst store
    s_endpgm
.Lconv_fwd_d_e52289d3_main.end:
    .size   conv_fwd_d_e52289d3_main, .Lconv_fwd_d_e52289d3_main.end - conv_fwd_d_e52289d3_main

    .section .rodata,"a",@progbits
    .p2align 6
    .amdhsa_kernel conv_fwd_d_e52289d3_main
        .amdhsa_group_segment_fixed_size 2048
        .amdhsa_private_segment_fixed_size 0
        .amdhsa_kernarg_size 24
        .amdhsa_user_sgpr_count 2
        .amdhsa_user_sgpr_kernarg_segment_ptr 1
        .amdhsa_system_sgpr_workgroup_id_x 1
        .amdhsa_system_sgpr_workgroup_id_y 0
        .amdhsa_system_sgpr_workgroup_id_z 0
        .amdhsa_system_vgpr_workitem_id 0
        .amdhsa_next_free_vgpr 13
        .amdhsa_accum_offset 16
        .amdhsa_next_free_sgpr 18
        .amdhsa_reserve_vcc 0
        .amdhsa_float_denorm_mode_32 3
        .amdhsa_float_denorm_mode_16_64 3
    .end_amdhsa_kernel
// workgroup of 64 threads

    .amdgpu_metadata
---
amdhsa.version: [ 1, 2 ]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: conv_fwd_d_e52289d3_main
    .symbol: conv_fwd_d_e52289d3_main.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 2048
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 24
    .vgpr_count: 16
    .agpr_count: 0
    .max_flat_workgroup_size: 64
    .args:
      - { .name: src, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global }
      - { .name: wei, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global }
      - { .name: dst, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global }
...
    .end_amdgpu_metadata
