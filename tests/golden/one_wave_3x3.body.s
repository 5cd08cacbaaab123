conv_fwd_d_5c0456ea_main:
    s_mov_b32              s2, 0x80000000
    s_load_dwordx2         s[4:5], s[0:1], 0                      // argument src
    s_load_dwordx2         s[6:7], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[0:1], s[0:1], 16                     // argument dst
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s8, s6
    s_and_b32              s9, s7, 65535
    s_mov_b32              s10, 9216
    s_mov_b32              s11, 0x20000                           // surface of wei
    v_and_b32              v1, 3, v0
    v_ashrrev_i32          v2, 2, v0
    v_mul_u32_u24          v3, 576, v2
    v_lshl_add_u32         v3, v1, 4, v3                          // wei_offset
    buffer_load_dwordx4    v[4:7], v3, s[8:11], 0 offen           // wei load
    s_add_u32              s12, s4, 0xfffffec0
    s_addc_u32             s13, s5, -1
    s_and_b32              s13, s13, 65535
    s_mov_b32              s14, 1344
    s_mov_b32              s15, 0x20000                           // surface of src
    v_and_b32              v8, 3, v2
    v_sub_u32              v9, 1, v8
    v_max_i32              v9, 0, v9
    v_lshrrev_b32          v9, v9, -1
    v_not_b32              v9, v9
    v_sub_u32              v10, 5, v8
    v_min_i32              v10, 3, v10
    v_lshrrev_b32          v10, v10, -1
    v_or_b32               v9, v9, v10
    v_ashrrev_i32          v10, 4, v0
    v_sub_u32              v11, 1, v10
    v_max_i32              v11, 0, v11
    v_lshrrev_b32          v11, v11, -1
    v_not_b32              v11, v11
    v_sub_u32              v12, 5, v10
    v_min_i32              v12, 3, v12
    v_lshrrev_b32          v12, v12, -1
    v_or_b32               v11, v11, v12
    v_lshlrev_b32          v12, 4, v0
    v_or_b32               v13, v9, v11
    v_and_or_b32           v13, v13, s2, v12
    buffer_load_dwordx4    v[14:17], v13, s[12:15], 0 offen       // src load
    v_xor_b32              v8, v8, v1
    v_lshlrev_b32          v2, 6, v2
    v_lshl_add_u32         v2, v8, 4, v2
    v_and_b32              v0, 15, v0
    v_lshlrev_b32          v0, 6, v0
    v_xor_b32              v1, v1, v10
    v_lshl_add_u32         v1, v1, 4, v0
    v_accvgpr_write_b32    a0, 0
    v_accvgpr_write_b32    a1, 0
    v_accvgpr_write_b32    a2, 0
    v_accvgpr_write_b32    a3, 0
    s_mov_b32              s3, 0
    s_mov_b32              s4, 1
    s_mov_b32              s5, 0                                  // kb = 0
.Lconv_fwd_d_5c0456ea_main.k_loop:  // for kb in [0, 8)
    s_waitcnt              vmcnt(1)
    ds_write_b128          v2, v[4:7]                             // wei store
    s_add_i32              s6, s5, 1
    s_mul_i32              s6, s6, 64
    buffer_load_dwordx4    v[4:7], v3, s[8:11], s6 offen          // wei load
    ds_read_b128           v[18:21], v1                           // wei fragment
    s_mul_i32              s6, s4, 64
    s_mul_i32              s7, s3, 256
    s_add_i32              s6, s6, s7
    v_lshlrev_b32          v8, s4, v9
    v_lshl_or_b32          v8, v11, s3, v8
    v_and_or_b32           v8, v8, s2, v12
    s_waitcnt              vmcnt(1)
    ds_write_b128          v2, v[14:17] offset:1024               // src store
    ds_read_b128           v[22:25], v1 offset:1024               // src fragment
    buffer_load_dwordx4    v[14:17], v8, s[12:15], s6 offen       // src load
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[18:19], v[22:23], a[0:3]   // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[20:21], v[24:25], a[0:3]
    s_add_i32              s4, s4, 1
    s_cmp_le_i32           3, s4
    s_addc_u32             s3, s3, 0
    s_cmp_le_i32           3, s4
    s_cselect_b32          s4, 0, s4
    s_add_u32              s5, s5, 1
    s_cmp_lt_i32           s5, 8
    s_cbranch_scc1         .Lconv_fwd_d_5c0456ea_main.k_loop      // next kb
.Lconv_fwd_d_5c0456ea_main.k_loop_end:
    s_waitcnt              vmcnt(1)
    ds_write_b128          v2, v[4:7]                             // wei store
    s_mov_b32              s4, s0
    s_and_b32              s5, s1, 65535
    s_mov_b32              s6, 1024
    s_mov_b32              s7, 0x20000                            // surface of dst
    v_lshl_add_u32         v0, v10, 4, v0
    s_waitcnt              vmcnt(0)
    ds_write_b128          v2, v[14:17] offset:1024               // src store
    ds_read_b128           v[2:5], v1                             // wei fragment
    ds_read_b128           v[6:9], v1 offset:1024                 // src fragment
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[2:3], v[6:7], a[0:3]       // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[4:5], v[8:9], a[0:3]
    s_nop                  6
    buffer_store_dwordx4   a[0:3], v0, s[4:7], 0 offen            // dst store
    s_endpgm
