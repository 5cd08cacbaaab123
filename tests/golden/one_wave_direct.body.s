conv_fwd_d_f2ade11c_main:
    s_load_dwordx2         s[2:3], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[12:13], s[0:1], 0                    // argument src
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_ashrrev_i32          v3, 2, v1
    v_lshlrev_b32          v4, 3, v2
    v_lshlrev_b32          v3, 3, v3
    v_lshlrev_b32          v5, 9, v1
    v_xor_b32              v3, v4, v3
    s_mov_b32              s6, 16384
    s_mov_b32              s7, 0x20000                            // surface of wei
    v_lshl_add_u32         v32, v3, 1, v5                         // wei_tile_offset
    s_mov_b32              m0, 0
    v_add_u32              v33, 8192, v32                         // wei_tile_offset
    v_ashrrev_i32          v3, 3, v0
    v_and_b32              v3, 3, v3
    v_lshlrev_b32          v3, 3, v3
    v_xor_b32              v3, v3, v4
    s_mov_b32              s10, 8192
    s_mov_b32              s11, 0x20000                           // surface of src
    v_lshl_add_u32         v34, v3, 1, v5                         // src_tile_offset
    v_and_b32              v3, 1, v1
    v_lshlrev_b32          v3, 1, v3
    v_and_b32              v1, 3, v1
    v_and_b32              v4, 15, v0
    v_ashrrev_i32          v35, 4, v0
    v_lshl_add_u32         v0, v1, 3, v2
    v_add_u32              v1, 1, v3
    v_ashrrev_i32          v2, 1, v4
    v_lshlrev_b32          v0, 6, v0
    v_xor_b32              v1, v35, v1
    v_and_b32              v2, 3, v2
    v_xor_b32              v3, v35, v3
    v_lshl_add_u32         v1, v1, 4, v0
    v_lshlrev_b32          v36, 6, v4
    v_xor_b32              v2, v2, v35
    v_lshl_add_u32         v37, v3, 4, v0                         // wei_tile_read_address
    v_add_u32              v38, 256, v1                           // wei_tile_read_address
    v_lshl_add_u32         v39, v2, 4, v36                        // src_tile_read_address
    s_load_dwordx2         s[14:15], s[0:1], 16                   // argument dst
    s_mov_b32              s0, 0                                  // kb = 0
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s4, s2
    s_and_b32              s5, s3, 65535
    buffer_load_dwordx4    v32, s[4:7], 0 offen lds               // wei copy
    s_mov_b32              m0, 1024
    s_mov_b32              s8, s12
    s_and_b32              s9, s13, 65535
    buffer_load_dwordx4    v33, s[4:7], 0 offen lds               // wei copy
    s_mov_b32              m0, 4096
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[0:3], v37                            // wei fragment
    ds_read_b128           v[4:7], v38                            // wei fragment
    buffer_load_dwordx4    v34, s[8:11], 0 offen lds              // src copy
    s_mov_b32              m0, 2048
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[8:11], v39 offset:4096               // src fragment
    buffer_load_dwordx4    v32, s[4:7], 64 offen lds              // wei copy
    s_mov_b32              m0, 3072
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[12:15], v[0:3], v[8:11], 0          // 1 steps of 2 x 1 tiles
    v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], 0
    buffer_load_dwordx4    v33, s[4:7], 64 offen lds              // wei copy
    s_mov_b32              m0, 5120
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[4:7], v37 offset:2048                // wei fragment
    ds_read_b128           v[8:11], v38 offset:2048               // wei fragment
    buffer_load_dwordx4    v34, s[8:11], 64 offen lds             // src copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[16:19], v39 offset:5120              // src fragment
.Lconv_fwd_d_f2ade11c_main.k_loop:  // for kb in [0, 3)
    s_mul_i32              s1, s0, 128
    s_add_i32              s2, s1, 128                            // wei_tile_step
    s_mov_b32              m0, 0
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[12:15], v[4:7], v[16:19], v[12:15]  // 1 steps of 2 x 1 tiles
    buffer_load_dwordx4    v32, s[4:7], s2 offen lds              // wei copy
    s_mov_b32              m0, 1024
    s_nop                  0
    buffer_load_dwordx4    v33, s[4:7], s2 offen lds              // wei copy
    s_mov_b32              m0, 4096
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[20:23], v37                          // wei fragment
    v_mfma_f32_16x16x32_f16 v[0:3], v[8:11], v[16:19], v[0:3]
    buffer_load_dwordx4    v34, s[8:11], s2 offen lds             // src copy
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[24:27], v39 offset:4096              // src fragment
    s_add_i32              s1, s1, 192                            // wei_tile_step
    s_mov_b32              m0, 2048
    s_nop                  0
    buffer_load_dwordx4    v32, s[4:7], s1 offen lds              // wei copy
    s_mov_b32              m0, 3072
    ds_read_b128           v[28:31], v38                          // wei fragment
    buffer_load_dwordx4    v33, s[4:7], s1 offen lds              // wei copy
    s_mov_b32              m0, 5120
    s_nop                  0
    buffer_load_dwordx4    v34, s[8:11], s1 offen lds             // src copy
    s_waitcnt              vmcnt(1)
    ds_read_b128           v[4:7], v37 offset:2048                // wei fragment
    s_waitcnt              vmcnt(0)
    ds_read_b128           v[16:19], v39 offset:5120              // src fragment
    s_waitcnt              lgkmcnt(3)
    v_mfma_f32_16x16x32_f16 v[12:15], v[20:23], v[24:27], v[12:15]  // 1 steps of 2 x 1 tiles
    ds_read_b128           v[8:11], v38 offset:2048               // wei fragment
    s_waitcnt              lgkmcnt(3)
    v_mfma_f32_16x16x32_f16 v[0:3], v[28:31], v[24:27], v[0:3]
    s_add_u32              s0, s0, 1
    s_cmp_lt_i32           s0, 3
    s_cbranch_scc1         .Lconv_fwd_d_f2ade11c_main.k_loop      // next kb
.Lconv_fwd_d_f2ade11c_main.k_loop_end:
    s_waitcnt              lgkmcnt(1)
    v_mfma_f32_16x16x32_f16 v[12:15], v[4:7], v[16:19], v[12:15]  // 1 steps of 2 x 1 tiles
    s_mov_b32              s0, s14
    s_and_b32              s1, s15, 65535
    s_mov_b32              s2, 1024
    s_waitcnt              lgkmcnt(0)
    v_mfma_f32_16x16x32_f16 v[0:3], v[8:11], v[16:19], v[0:3]
    s_mov_b32              s3, 0x20000                            // surface of dst
    v_lshl_add_u32         v8, v35, 4, v36
    s_nop                  0
    v_cvt_pk_f16_f32       v4, v12, v13
    v_cvt_pk_f16_f32       v5, v14, v15
    s_nop                  2
    v_cvt_pk_f16_f32       v6, v0, v1
    v_cvt_pk_f16_f32       v7, v2, v3
    buffer_store_dwordx4   v[4:7], v8, s[0:3], 0 offen            // dst store
    s_endpgm
