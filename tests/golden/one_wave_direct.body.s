conv_fwd_d_f2ade11c_main:
    s_load_dwordx2         s[2:3], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[4:5], s[0:1], 0                      // argument src
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_ashrrev_i32          v3, 2, v1
    v_lshlrev_b32          v4, 3, v2
    v_lshlrev_b32          v3, 3, v3
    v_lshlrev_b32          v5, 9, v1
    v_xor_b32              v3, v3, v4
    s_mov_b32              s10, 16384
    s_mov_b32              s11, 0x20000                           // surface of wei
    v_lshl_add_u32         v3, v3, 1, v5                          // wei_tile_offset
    s_mov_b32              m0, 0
    v_add_u32              v6, 8192, v3                           // wei_tile_offset
    v_ashrrev_i32          v7, 1, v1
    v_and_b32              v7, 3, v7
    v_lshlrev_b32          v7, 3, v7
    v_xor_b32              v4, v7, v4
    s_mov_b32              s14, 8192
    s_mov_b32              s15, 0x20000                           // surface of src
    v_lshl_add_u32         v4, v4, 1, v5                          // src_tile_offset
    v_and_b32              v1, 3, v1
    v_lshl_add_u32         v1, v1, 3, v2
    v_add_u32              v2, 4, v1
    v_and_b32              v5, 15, v0
    v_ashrrev_i32          v7, 2, v1
    v_ashrrev_i32          v8, 2, v2
    v_ashrrev_i32          v9, 1, v5
    v_ashrrev_i32          v0, 4, v0
    v_and_b32              v7, 3, v7
    v_and_b32              v8, 3, v8
    v_and_b32              v9, 3, v9
    v_xor_b32              v7, v7, v0
    v_lshlrev_b32          v1, 6, v1
    v_xor_b32              v8, v8, v0
    v_lshlrev_b32          v2, 6, v2
    v_lshlrev_b32          v5, 6, v5
    v_xor_b32              v9, v9, v0
    v_lshl_add_u32         v1, v7, 4, v1                          // wei_tile_read_address
    v_lshl_add_u32         v2, v8, 4, v2                          // wei_tile_read_address
    v_lshl_add_u32         v7, v9, 4, v5                          // src_tile_read_address
    s_load_dwordx2         s[0:1], s[0:1], 16                     // argument dst
    s_mov_b32              s6, 0                                  // kb = 0
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s8, s2
    s_and_b32              s9, s3, 65535
    buffer_load_dwordx4    v3, s[8:11], 0 offen lds               // wei copy
    s_mov_b32              m0, 1024
    s_mov_b32              s12, s4
    s_and_b32              s13, s5, 65535
    buffer_load_dwordx4    v6, s[8:11], 0 offen lds               // wei copy
    s_mov_b32              m0, 4096
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[8:11], v1                            // wei fragment
    ds_read_b128           v[12:15], v2                           // wei fragment
    buffer_load_dwordx4    v4, s[12:15], 0 offen lds              // src copy
    s_mov_b32              m0, 2048
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[16:19], v7 offset:4096               // src fragment
    buffer_load_dwordx4    v3, s[8:11], 64 offen lds              // wei copy
    s_mov_b32              m0, 3072
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[20:23], v[8:11], v[16:19], 0        // 1 steps of 2 x 1 tiles
    v_mfma_f32_16x16x32_f16 v[8:11], v[12:15], v[16:19], 0
    buffer_load_dwordx4    v6, s[8:11], 64 offen lds              // wei copy
    s_mov_b32              m0, 5120
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[12:15], v1 offset:2048               // wei fragment
    ds_read_b128           v[16:19], v2 offset:2048               // wei fragment
    buffer_load_dwordx4    v4, s[12:15], 64 offen lds             // src copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[24:27], v7 offset:5120               // src fragment
.Lconv_fwd_d_f2ade11c_main.k_loop:  // for kb in [0, 3)
    s_mul_i32              s2, s6, 128
    s_add_i32              s3, s2, 128                            // wei_tile_step
    s_mov_b32              m0, 0
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[20:23], v[12:15], v[24:27], v[20:23]  // 1 steps of 2 x 1 tiles
    buffer_load_dwordx4    v3, s[8:11], s3 offen lds              // wei copy
    s_mov_b32              m0, 1024
    s_nop                  0
    buffer_load_dwordx4    v6, s[8:11], s3 offen lds              // wei copy
    v_mfma_f32_16x16x32_f16 v[8:11], v[16:19], v[24:27], v[8:11]
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[12:15], v1                           // wei fragment
    s_mov_b32              m0, 4096
    s_nop                  0
    buffer_load_dwordx4    v4, s[12:15], s3 offen lds             // src copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[16:19], v7 offset:4096               // src fragment
    s_add_i32              s2, s2, 192                            // wei_tile_step
    s_mov_b32              m0, 2048
    s_nop                  0
    buffer_load_dwordx4    v3, s[8:11], s2 offen lds              // wei copy
    ds_read_b128           v[24:27], v2                           // wei fragment
    s_waitcnt              lgkmcnt(1)
    v_mfma_f32_16x16x32_f16 v[20:23], v[12:15], v[16:19], v[20:23]  // 1 steps of 2 x 1 tiles
    s_mov_b32              m0, 3072
    s_nop                  0
    buffer_load_dwordx4    v6, s[8:11], s2 offen lds              // wei copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[12:15], v1 offset:2048               // wei fragment
    s_mov_b32              m0, 5120
    s_waitcnt              lgkmcnt(1)
    v_mfma_f32_16x16x32_f16 v[8:11], v[24:27], v[16:19], v[8:11]
    buffer_load_dwordx4    v4, s[12:15], s2 offen lds             // src copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[24:27], v7 offset:5120               // src fragment
    ds_read_b128           v[16:19], v2 offset:2048               // wei fragment
    s_add_u32              s6, s6, 1
    s_cmp_lt_i32           s6, 3
    s_cbranch_scc1         .Lconv_fwd_d_f2ade11c_main.k_loop      // next kb
.Lconv_fwd_d_f2ade11c_main.k_loop_end:
    s_waitcnt              lgkmcnt(1)
    v_mfma_f32_16x16x32_f16 v[20:23], v[12:15], v[24:27], v[20:23]  // 1 steps of 2 x 1 tiles
    s_mov_b32              s4, s0
    s_and_b32              s5, s1, 65535
    s_mov_b32              s6, 1024
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[8:11], v[16:19], v[24:27], v[8:11]
    s_mov_b32              s7, 0x20000                            // surface of dst
    v_lshl_add_u32         v0, v0, 4, v5
    s_nop                  0
    v_cvt_pk_f16_f32       v2, v20, v21
    v_cvt_pk_f16_f32       v3, v22, v23
    s_nop                  2
    v_cvt_pk_f16_f32       v4, v8, v9
    v_cvt_pk_f16_f32       v5, v10, v11
    buffer_store_dwordx4   v[2:5], v0, s[4:7], 0 offen            // dst store
    s_endpgm
