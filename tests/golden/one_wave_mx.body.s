gemm_3f4065e5_main:
    s_load_dwordx2         s[2:3], s[0:1], 8                      // argument wei
    s_load_dwordx2         s[20:21], s[0:1], 0                    // argument src
    s_load_dwordx2         s[22:23], s[0:1], 16                   // argument wei_scales
    s_load_dwordx2         s[24:25], s[0:1], 24                   // argument src_scales
    v_ashrrev_i32          v1, 2, v0
    v_and_b32              v2, 3, v0
    v_mul_u32_u24          v3, 192, v1
    s_mov_b32              s6, 3072
    s_mov_b32              s7, 0x20000                            // surface of wei
    v_lshl_add_u32         v16, v2, 3, v3                         // wei_offset
    v_ashrrev_i32          v3, 3, v0
    v_and_b32              v4, 7, v0
    v_lshlrev_b32          v5, 8, v3
    s_mov_b32              s10, 4096
    s_mov_b32              s11, 0x20000                           // surface of src
    v_lshl_add_u32         v20, v4, 4, v5                         // src_offset
    s_mov_b32              s14, 128
    s_mov_b32              s15, 0x20000                           // surface of wei_scales
    s_mov_b32              s18, 128
    s_mov_b32              s19, 0x20000                           // surface of src_scales
    v_lshl_add_u32         v30, v1, 3, v2                         // src_scales_offset
    s_mov_b32              s28, 96
    s_mov_b32              s29, 128
    s_load_dwordx2         s[26:27], s[0:1], 32                   // argument dst
    v_ashrrev_i32          v5, 4, v0
    v_ashrrev_i32          v2, 1, v2
    v_ashrrev_i32          v6, 5, v0
    v_and_b32              v7, 1, v0
    v_mul_u32_u24          v8, 3, v5
    v_xor_b32              v2, v2, v6
    v_lshlrev_b32          v6, 3, v7
    v_and_b32              v7, 15, v0
    v_ashrrev_i32          v9, 1, v8
    v_add_u32              v10, 1, v8
    v_lshl_add_u32         v2, v2, 4, v6
    v_xor_b32              v6, v4, v3
    v_lshlrev_b32          v3, 7, v3
    v_ashrrev_i32          v11, 3, v7
    v_and_b32              v8, 1, v8
    v_ashrrev_i32          v12, 1, v10
    v_and_b32              v10, 1, v10
    v_add_u32              v13, 1, v9
    v_mad_u32_u24          v1, v1, s28, v2                        // wei_tile_write_address
    v_lshl_add_u32         v31, v6, 4, v3                         // src_tile_write_address
    v_lshlrev_b32          v2, 3, v8
    v_xor_b32              v3, v11, v9
    v_xor_b32              v6, v11, v12
    v_lshlrev_b32          v8, 3, v10
    v_xor_b32              v9, v11, v13
    v_add_u32              v14, 4, v5
    s_waitcnt              lgkmcnt(0)
    s_mov_b32              s4, s2
    s_and_b32              s5, s3, 65535
    buffer_load_dwordx2    v[10:11], v16, s[4:7], 0 offen         // wei load
    s_mov_b32              s8, s20
    s_and_b32              s9, s21, 65535
    s_mov_b32              s12, s22
    s_and_b32              s13, s23, 65535
    s_mov_b32              s16, s24
    s_and_b32              s17, s25, 65535
    v_mul_u32_u24          v17, 96, v7
    buffer_load_dwordx2    v[12:13], v16, s[4:7], 0 offen offset:32  // wei load
    v_lshl_add_u32         v3, v3, 4, v2
    v_lshl_add_u32         v6, v6, 4, v8
    v_lshl_add_u32         v2, v9, 4, v2
    v_lshlrev_b32          v8, 7, v7
    v_xor_b32              v9, v4, v5
    v_xor_b32              v4, v4, v14
    v_add_u32              v32, v17, v3                           // wei_tile_read_address
    buffer_load_dwordx2    v[14:15], v16, s[4:7], 0 offen offset:64  // wei load
    v_add_u32              v33, v17, v6                           // wei_tile_read_address
    v_add_u32              v34, v17, v2                           // wei_tile_read_address
    v_lshl_add_u32         v35, v9, 4, v8                         // src_tile_read_address
    v_lshl_add_u32         v36, v4, 4, v8                         // src_tile_read_address
    v_lshl_add_u32         v37, v7, 2, v5                         // src_scales_tile_read_address
    v_lshlrev_b32          v6, 4, v5
    s_mov_b32              s0, s26
    buffer_load_dwordx4    v[2:5], v20, s[8:11], 0 offen          // src load
    s_and_b32              s1, s27, 65535
    s_mov_b32              s2, 1024
    s_mov_b32              s3, 0x20000                            // surface of dst
    v_lshl_add_u32         v38, v7, 6, v6
    buffer_load_dwordx4    v[6:9], v20, s[8:11], 0 offen offset:2048  // src load
    buffer_load_ubyte      v39, v0, s[12:15], 0 offen             // wei_scales load
    buffer_load_ubyte      v40, v30, s[16:19], 0 offen            // src_scales load
    buffer_load_dwordx2    v[24:25], v16, s[4:7], s28 offen       // wei load
    buffer_load_dwordx2    v[26:27], v16, s[4:7], s28 offen offset:32  // wei load
    buffer_load_dwordx2    v[28:29], v16, s[4:7], s28 offen offset:64  // wei load
    buffer_load_dwordx4    v[16:19], v20, s[8:11], s29 offen      // src load
    buffer_load_dwordx4    v[20:23], v20, s[8:11], s29 offen offset:2048  // src load
    buffer_load_ubyte      v41, v0, s[12:15], 64 offen            // wei_scales load
    buffer_load_ubyte      v30, v30, s[16:19], 4 offen            // src_scales load
    s_waitcnt              vmcnt(12)
    ds_write2_b64          v1, v[10:11], v[12:13] offset1:4       // wei store
    s_waitcnt              vmcnt(11)
    ds_write_b64           v1, v[14:15] offset:64                 // wei store
    ds_read_b64            v[10:11], v32                          // wei fragment
    s_waitcnt              vmcnt(10)
    ds_write_b128          v31, v[2:5] offset:1536                // src store
    ds_read_b64            v[12:13], v33                          // wei fragment
    ds_read_b64            v[14:15], v34                          // wei fragment
    s_waitcnt              vmcnt(9)
    ds_write_b128          v31, v[6:9] offset:2560                // src store
    ds_read_b128           v[2:5], v35 offset:1536                // src fragment
    s_waitcnt              vmcnt(8)
    ds_write_b8            v0, v39 offset:3584                    // wei_scales store
    s_waitcnt              vmcnt(7)
    ds_write_b8            v0, v40 offset:3648                    // src_scales store
    ds_read_b128           v[6:9], v36 offset:1536                // src fragment
    ds_read_u8             v39, v0 offset:3584                    // wei_scales fragment
    ds_read_u8             v40, v37 offset:3648                   // src_scales fragment
    s_waitcnt              vmcnt(6)
    ds_write_b64           v1, v[24:25]                           // wei store
    s_waitcnt              vmcnt(4)
    ds_write2_b64          v1, v[26:27], v[28:29] offset0:4 offset1:8  // wei store
    s_waitcnt              vmcnt(3)
    ds_write_b128          v31, v[16:19] offset:1536              // src store
    s_waitcnt              lgkmcnt(3)
    v_mfma_scale_f32_16x16x128_f8f6f4 v[16:19], v[10:15], v[2:9], 0, v39, v40 op_sel:[0,0,0] op_sel_hi:[0,0,0] cbsz:2 blgp:1  // 1 steps of 1 x 1 tiles
    ds_read_b64            v[10:11], v32                          // wei fragment
    ds_read_b64            v[12:13], v33                          // wei fragment
    s_waitcnt              vmcnt(2)
    ds_write_b128          v31, v[20:23] offset:2560              // src store
    ds_read_b64            v[14:15], v34                          // wei fragment
    ds_read_b128           v[2:5], v35 offset:1536                // src fragment
    s_waitcnt              vmcnt(1)
    ds_write_b8            v0, v41 offset:3584                    // wei_scales store
    s_waitcnt              vmcnt(0)
    ds_write_b8            v0, v30 offset:3648                    // src_scales store
    ds_read_b128           v[6:9], v36 offset:1536                // src fragment
    ds_read_u8             v0, v0 offset:3584                     // wei_scales fragment
    ds_read_u8             v1, v37 offset:3648                    // src_scales fragment
    s_waitcnt              lgkmcnt(0)
    v_mfma_scale_f32_16x16x128_f8f6f4 v[16:19], v[10:15], v[2:9], v[16:19], v0, v1 op_sel:[0,0,0] op_sel_hi:[0,0,0] cbsz:2 blgp:1  // 1 steps of 1 x 1 tiles
    s_nop                  11
    buffer_store_dwordx4   v[16:19], v38, s[0:3], 0 offen         // dst store
    s_endpgm
