conv_fwd_d_5c0456ea_main:
    s_load_dwordx2         s[2:3], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[12:13], s[0:1], 0                    // argument src
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_mul_u32_u24          v3, 576, v1
    s_mov_b32              s6, 9216
    s_mov_b32              s7, 0x20000                            // surface of wei
    v_lshl_add_u32         v16, v2, 4, v3                         // wei_offset
    s_mov_b32              s8, 0x87ffffff
    v_and_b32              v3, 3, v1
    v_ashrrev_i32          v17, 4, v0
    v_lshlrev_b32          v18, v3, s8
    v_lshlrev_b32          v19, v17, s8
    s_mov_b32              s16, 0x80000000
    v_lshlrev_b32          v20, 4, v0
    v_or_b32               v4, v18, v19
    s_mov_b32              s10, 1344
    s_mov_b32              s11, 0x20000                           // surface of src
    v_and_or_b32           v4, v4, s16, v20
    v_and_b32              v0, 15, v0
    v_xor_b32              v3, v3, v2
    v_lshlrev_b32          v1, 6, v1
    v_lshlrev_b32          v21, 6, v0
    v_xor_b32              v0, v2, v17
    s_load_dwordx2         s[14:15], s[0:1], 16                   // argument dst
    v_lshl_add_u32         v22, v3, 4, v1
    v_lshl_add_u32         v23, v0, 4, v21
    v_accvgpr_write_b32    a0, 0
    v_accvgpr_write_b32    a1, 0
    v_accvgpr_write_b32    a2, 0
    v_accvgpr_write_b32    a3, 0
    s_mov_b32              s0, 0
    s_mov_b32              s1, 1
    s_mov_b32              s17, 0                                 // kb = 0
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s4, s2
    s_and_b32              s5, s3, 65535
    buffer_load_dwordx4    v[0:3], v16, s[4:7], 0 offen           // wei load
    s_add_u32              s8, s12, 0xfffffec0
    s_addc_u32             s9, s13, -1
    s_and_b32              s9, s9, 65535
    buffer_load_dwordx4    v[4:7], v4, s[8:11], 0 offen           // src load
.Lconv_fwd_d_5c0456ea_main.k_loop:  // for kb in [0, 8)
    s_waitcnt              vmcnt(1)
    ds_write_b128          v22, v[0:3]                            // wei store
    s_add_i32              s2, s17, 1
    s_mul_i32              s2, s2, 64
    ds_read_b128           v[8:11], v23                           // wei fragment
    s_waitcnt              vmcnt(0)
    ds_write_b128          v22, v[4:7] offset:1024                // src store
    ds_read_b128           v[12:15], v23 offset:1024              // src fragment
    buffer_load_dwordx4    v[0:3], v16, s[4:7], s2 offen          // wei load
    v_lshlrev_b32          v4, s0, v19
    s_mul_i32              s2, s1, 64
    s_mul_i32              s3, s0, 256
    v_lshl_or_b32          v4, v18, s1, v4
    s_add_i32              s2, s2, s3
    v_and_or_b32           v4, v4, s16, v20
    buffer_load_dwordx4    v[4:7], v4, s[8:11], s2 offen          // src load
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[8:9], v[12:13], a[0:3]     // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[10:11], v[14:15], a[0:3]
    s_add_i32              s1, s1, 1
    s_cmp_le_i32           3, s1
    s_addc_u32             s0, s0, 0
    s_cmp_le_i32           3, s1
    s_cselect_b32          s1, 0, s1
    s_add_u32              s17, s17, 1
    s_cmp_lt_i32           s17, 8
    s_cbranch_scc1         .Lconv_fwd_d_5c0456ea_main.k_loop      // next kb
.Lconv_fwd_d_5c0456ea_main.k_loop_end:
    s_waitcnt              vmcnt(1)
    ds_write_b128          v22, v[0:3]                            // wei store
    s_mov_b32              s0, s14
    s_and_b32              s1, s15, 65535
    s_mov_b32              s2, 1024
    s_mov_b32              s3, 0x20000                            // surface of dst
    v_lshl_add_u32         v8, v17, 4, v21
    s_waitcnt              vmcnt(0)
    ds_write_b128          v22, v[4:7] offset:1024                // src store
    ds_read_b128           v[0:3], v23                            // wei fragment
    ds_read_b128           v[4:7], v23 offset:1024                // src fragment
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[4:5], a[0:3]       // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[6:7], a[0:3]
    s_nop                  6
    buffer_store_dwordx4   a[0:3], v8, s[0:3], 0 offen            // dst store
    s_endpgm
