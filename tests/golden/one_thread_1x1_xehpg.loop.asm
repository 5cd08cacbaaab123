//.target xehpg
//.kernel conv_fwd_d_7b0b0888_main
//.simd_size 8
//.grf_count 128
//.slm_bytes 512
//.barrier_count 0
//.workgroup 8 1 1
//.has_dpas yes
//.argument buffer src at 0 size 8
//.argument buffer wei at 8 size 8
//.argument buffer dst at 16 size 8
// conv_fwd_d_7b0b0888_main: convgen for xehpg
// problem: --dir=FWD_D --dt=bf16:bf16:f32 mb1_ic64oc16_ih4oh4kh1ph0
// config:  tile=8x8x16 waves=1x1 mma=8x8x16 slots=1 taps=split acc=v
// registers:
//   wei_next  r[7:14]
//   src_next  r[17:24]
//   acc       r[28:35]
//   wei_frag  r[39:46]
//   src_frag  r[47:54]
// shared memory:
//   0x00000..0x00100  wei_tile: 1 x 8 x 16 bf16, elements along col:2 row:8 col:8
//   0x00100..0x00200  src_tile: 1 x 8 x 16 bf16, elements along col:2 col:8 row:8
(W)     or (1|M0)                cr0.0<1>:ud       cr0.0<0;1,0>:ud   1216:uw                          // keep denormals
(W)     mov (1|M0)               f0.0<1>:ud        0:ud                        {A@1}
(W)     mov (1|M0)               f1.0<1>:ud        0:ud
(W)     mov (1|M0)               r1.0<1>:ud        r0.1<0;1,0>:ud                                     // group_x
(W)     and (1|M0)               r2.0<1>:ud        r0.0<0;1,0>:ud    0xffffffc0:ud
(W)     load.ugm.d32x8t.a32.ca.ca (1|M0)              r2:1  bti[255][r2:1]     {A@1,$4}               // arguments
(W)     mov (1|M0)               r1.2<1>:ud        r2.0<0;1,0>:ud              {$4.dst}               // argument src
(W)     mov (1|M0)               r1.3<1>:ud        r2.1<0;1,0>:ud
(W)     mov (1|M0)               r1.4<1>:ud        r2.2<0;1,0>:ud                                     // argument wei
(W)     mov (1|M0)               r1.5<1>:ud        r2.3<0;1,0>:ud
(W)     mov (1|M0)               r1.6<1>:ud        r2.4<0;1,0>:ud                                     // argument dst
(W)     mov (1|M0)               r1.7<1>:ud        r2.5<0;1,0>:ud
        mov (8|M0)               r2.0<1>:uw        0x76543210:uv
        mov (8|M0)               r2.0<1>:ud        r2.0<1;1,0>:uw              {I@1}                  // lane
(W)     asr (1|M0)               r1.1<1>:d         r1.0<0;1,0>:d     1:d
(W)     mul (1|M0)               r1.1<1>:d         r1.1<0;1,0>:d     8:uw      {I@1}                  // m0
(W)     and (1|M0)               r1.0<1>:d         r1.0<0;1,0>:d     1:d
(W)     mul (1|M0)               r1.0<1>:d         r1.0<0;1,0>:d     8:uw      {I@1}                  // n0
        shl (8|M0)               r3.0<1>:d         r2.0<1;1,0>:d     7:d
        mad (8|M0)               r4.0<1>:d         r3.0<1;0>:d       r1.0<0;0>:d       128:uw {I@1}
        add (8|M0)               r5.0<2>:ud        r1.4<0;1,0>:ud    r4.0<1;1,0>:ud {I@1}
        cmp (8|M0) (lt)f0.0      r7.0<1>:d         r5.0<2;1,0>:ud    r4.0<1;1,0>:ud {I@1}
        add (8|M0)               r5.1<2>:ud        -r7.0<1;1,0>:d    r1.5<0;1,0>:d {I@1}              // wei_address
        load.ugm.d32x8.a64.ca.ca (8|M0)               r7:8  [r5:2]             {A@1,$5}               // wei load
        mad (8|M0)               r3.0<1>:d         r3.0<1;0>:d       r1.1<0;0>:d       128:uw
        add (8|M0)               r15.0<2>:ud       r1.2<0;1,0>:ud    r3.0<1;1,0>:ud {I@1}
        cmp (8|M0) (lt)f0.0      r4.0<1>:d         r15.0<2;1,0>:ud   r3.0<1;1,0>:ud {I@1}
        add (8|M0)               r15.1<2>:ud       -r4.0<1;1,0>:d    r1.3<0;1,0>:d {I@1}              // src_address
        load.ugm.d32x8.a64.ca.ca (8|M0)               r17:8  [r15:2]           {A@1,$6}               // src load
        shl (8|M0)               r3.0<1>:d         r2.0<1;1,0>:d     5:d
(W)     mov (16|M0)              r28.0<1>:ud       0:ud
(W)     mov (16|M0)              r30.0<1>:ud       0:ud
(W)     mov (16|M0)              r32.0<1>:ud       0:ud
(W)     mov (16|M0)              r34.0<1>:ud       0:ud
(W)     mov (1|M0)               r1.2<1>:ud        0:ud                                               // kb = 0
(W)     mov (1|M0)               r4.0<1>:ud        0:ud
(W)     mov (1|M0)               r25.0<1>:ud       0:ud
        add (8|M0)               r55.0<1>:ud       r3.0<1;1,0>:ud    256:ud    {I@7}
(W)     mov (1|M0)               r56.0<1>:ud       256:ud
k_loop:  // for kb in [0, 3)
(W)     sync.allwr               0xf0
(W)     store.slm.d32x64t.a32 (1|M0)                  [r4:1]  r7:8             {A@4,$8}               // wei store
        store.slm.d32x8.a32 (8|M0)                    [r55:1]  r17:8           {A@2,$9}               // src store
(W)     mad (1|M0)               r1.3<1>:d         32:w              r1.2<0;0>:d       32:uw {$8.src}
        add (8|M0)               r26.0<2>:ud       r5.0<2;1,0>:ud    r1.3<0;1,0>:ud {I@1}
        cmp (8|M0) (lt)f0.0      r36.0<1>:d        r26.0<2;1,0>:ud   r1.3<0;1,0>:ud {I@1}
        add (8|M0)               r26.1<2>:ud       -r36.0<1;1,0>:d   r5.1<2;1,0>:ud {I@1}
        load.ugm.d32x8.a64.ca.ca (8|M0)               r7:8  [r26:2]            {A@1,$7}               // wei load
        add (8|M0)               r36.0<2>:ud       r15.0<2;1,0>:ud   r1.3<0;1,0>:ud {$9.src}
        cmp (8|M0) (lt)f0.0      r38.0<1>:d        r36.0<2;1,0>:ud   r1.3<0;1,0>:ud {I@1}
        add (8|M0)               r36.1<2>:ud       -r38.0<1;1,0>:d   r15.1<2;1,0>:ud {I@1}
        load.ugm.d32x8.a64.ca.ca (8|M0)               r17:8  [r36:2]           {A@1,$4}               // src load
(W)     sync.nop                 null                                          {$0.src}
(W)     load.slm.d32x64t.a32 (1|M0)                   r39:8  [r25:1]           {$10}                  // wei fragment
(W)     load.slm.d32x64t.a32 (1|M0)                   r47:8  [r56:1]           {$11}                  // src fragment
(W)     sync.allwr               0xc00
        dpas.8x8 (8|M0)          r28:f             r28:f             r39:bf            r47.0:bf {$0}  // 1 steps of 1 x 1 tiles
(W)     add (1|M0)               r1.2<1>:d         r1.2<0;1,0>:d     1:d
(W)     cmp (1|M0) (lt)f0.0      null<1>:d         r1.2<0;1,0>:d     3:d       {I@1}
(W&f0.0)jmpi                     k_loop                                                               // next kb
