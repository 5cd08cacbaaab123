conv_fwd_d_5c0456ea_main:
    s_load_dwordx2         s[2:3], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[4:5], s[0:1], 0                      // argument src
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_mul_u32_u24          v3, 576, v1
    s_mov_b32              s10, 9216
    s_mov_b32              s11, 0x20000                           // surface of wei
    v_lshl_add_u32         v3, v2, 4, v3                          // wei_offset
    v_and_b32              v4, 3, v1
    v_ashrrev_i32          v5, 4, v0
    v_sub_u32              v6, 1, v4
    v_sub_u32              v7, 1, v5
    v_max_i32              v6, 0, v6
    v_sub_u32              v8, 5, v4
    v_max_i32              v7, 0, v7
    v_sub_u32              v9, 5, v5
    v_lshrrev_b32          v6, v6, -1
    v_min_i32              v8, 3, v8
    v_lshrrev_b32          v7, v7, -1
    v_min_i32              v9, 3, v9
    v_not_b32              v6, v6
    v_lshrrev_b32          v8, v8, -1
    v_not_b32              v7, v7
    v_lshrrev_b32          v9, v9, -1
    v_or_b32               v6, v6, v8
    v_or_b32               v7, v7, v9
    s_mov_b32              s6, 0x80000000
    v_lshlrev_b32          v8, 4, v0
    v_or_b32               v9, v6, v7
    s_mov_b32              s14, 1344
    s_mov_b32              s15, 0x20000                           // surface of src
    v_and_or_b32           v9, v9, s6, v8
    v_and_b32              v0, 15, v0
    v_xor_b32              v4, v4, v2
    v_lshlrev_b32          v1, 6, v1
    v_lshlrev_b32          v0, 6, v0
    v_xor_b32              v2, v2, v5
    s_load_dwordx2         s[0:1], s[0:1], 16                     // argument dst
    v_lshl_add_u32         v1, v4, 4, v1
    v_lshl_add_u32         v2, v2, 4, v0
    v_accvgpr_write_b32    a0, 0
    v_accvgpr_write_b32    a1, 0
    v_accvgpr_write_b32    a2, 0
    v_accvgpr_write_b32    a3, 0
    s_mov_b32              s7, 0
    s_mov_b32              s16, 1
    s_mov_b32              s17, 0                                 // kb = 0
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s8, s2
    s_and_b32              s9, s3, 65535
    buffer_load_dwordx4    v[10:13], v3, s[8:11], 0 offen         // wei load
    s_add_u32              s12, s4, 0xfffffec0
    s_addc_u32             s13, s5, -1
    s_and_b32              s13, s13, 65535
    buffer_load_dwordx4    v[14:17], v9, s[12:15], 0 offen        // src load
.Lconv_fwd_d_5c0456ea_main.k_loop:  // for kb in [0, 8)
    s_waitcnt              vmcnt(1)
    ds_write_b128          v1, v[10:13]                           // wei store
    s_add_i32              s2, s17, 1
    s_mul_i32              s2, s2, 64
    buffer_load_dwordx4    v[10:13], v3, s[8:11], s2 offen        // wei load
    ds_read_b128           v[18:21], v2                           // wei fragment
    s_mul_i32              s2, s16, 64
    s_mul_i32              s3, s7, 256
    s_add_i32              s2, s2, s3
    v_lshlrev_b32          v4, s16, v6
    v_lshl_or_b32          v4, v7, s7, v4
    v_and_or_b32           v4, v4, s6, v8
    s_waitcnt              vmcnt(1)
    ds_write_b128          v1, v[14:17] offset:1024               // src store
    ds_read_b128           v[22:25], v2 offset:1024               // src fragment
    buffer_load_dwordx4    v[14:17], v4, s[12:15], s2 offen       // src load
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[18:19], v[22:23], a[0:3]   // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[20:21], v[24:25], a[0:3]
    s_add_i32              s2, s16, 1
    s_cmp_le_i32           3, s2
    s_addc_u32             s7, s7, 0
    s_cmp_le_i32           3, s2
    s_cselect_b32          s16, 0, s2
    s_add_u32              s17, s17, 1
    s_cmp_lt_i32           s17, 8
    s_cbranch_scc1         .Lconv_fwd_d_5c0456ea_main.k_loop      // next kb
.Lconv_fwd_d_5c0456ea_main.k_loop_end:
    s_waitcnt              vmcnt(1)
    ds_write_b128          v1, v[10:13]                           // wei store
    s_mov_b32              s4, s0
    s_and_b32              s5, s1, 65535
    s_mov_b32              s6, 1024
    s_mov_b32              s7, 0x20000                            // surface of dst
    v_lshl_add_u32         v0, v5, 4, v0
    s_waitcnt              vmcnt(0)
    ds_write_b128          v1, v[14:17] offset:1024               // src store
    ds_read_b128           v[4:7], v2                             // wei fragment
    ds_read_b128           v[8:11], v2 offset:1024                // src fragment
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x16_bf16 a[0:3], v[4:5], v[8:9], a[0:3]       // 2 steps of 1 x 1 tiles
    v_mfma_f32_16x16x16_bf16 a[0:3], v[6:7], v[10:11], a[0:3]
    s_nop                  6
    buffer_store_dwordx4   a[0:3], v0, s[4:7], 0 offen            // dst store
    s_endpgm
