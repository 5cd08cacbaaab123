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
//   wei_next     r[8:15]
//   src_next     r[18:25]
//   acc          r[28:35]
//   src_address  r[16:17]
//   wei_address  r[26:27]
//   wei_frag     r[39:46]
//   src_frag     r[47:54]
// shared memory:
//   0x00000..0x00100  wei_tile: 1 x 8 x 16 bf16, elements along col:2 row:8 col:8
//   0x00100..0x00200  src_tile: 1 x 8 x 16 bf16, elements along col:16 row:8
(W)     or (1|M0)                cr0.0<1>:ud       cr0.0<0;1,0>:ud   1216:uw                          // keep denormals
(W)     mov (1|M0)               f0.0<1>:ud        0:ud                        {A@1}
(W)     mov (1|M0)               f1.0<1>:ud        0:ud
(W)     mov (1|M0)               r1.0<1>:ud        r0.1<0;1,0>:ud                                     // group_x
(W)     and (1|M0)               r3.0<1>:ud        r0.0<0;1,0>:ud    0xffffffc0:ud
(W)     load.ugm.d32x8t.a32.ca.ca (1|M0)              r3:1  bti[255][r3:1]     {A@1,$4}               // arguments
(W)     mov (1|M0)               r1.2<1>:ud        r3.0<0;1,0>:ud              {$4.dst}               // argument src
(W)     mov (1|M0)               r1.3<1>:ud        r3.1<0;1,0>:ud
(W)     mov (1|M0)               r1.4<1>:ud        r3.2<0;1,0>:ud                                     // argument wei
(W)     mov (1|M0)               r1.5<1>:ud        r3.3<0;1,0>:ud
(W)     mov (1|M0)               r1.6<1>:ud        r3.4<0;1,0>:ud                                     // argument dst
(W)     mov (1|M0)               r1.7<1>:ud        r3.5<0;1,0>:ud
        mov (8|M0)               r3.0<1>:uw        0x76543210:uv
        mov (8|M0)               r3.0<1>:ud        r3.0<1;1,0>:uw              {I@1}                  // lane
(W)     asr (1|M0)               r1.1<1>:d         r1.0<0;1,0>:d     1:d
(W)     mul (1|M0)               r1.1<1>:d         r1.1<0;1,0>:d     8:uw      {I@1}                  // m0
(W)     and (1|M0)               r1.0<1>:d         r1.0<0;1,0>:d     1:d
(W)     mul (1|M0)               r1.0<1>:d         r1.0<0;1,0>:d     8:uw      {I@1}                  // n0
        shl (8|M0)               r4.0<1>:d         r3.0<1;1,0>:d     7:d
        mad (8|M0)               r5.0<1>:d         r4.0<1;0>:d       r1.0<0;0>:d       128:uw {I@1}
        add (8|M0) (ov)f0.0      r6.0<2>:ud        r1.4<0;1,0>:ud    r5.0<1;1,0>:ud {I@1}
(W)     add (1|M0)               r2.0<1>:d         r1.5<0;1,0>:d     1:d
(f0.0)  sel (8|M0)               r6.1<2>:ud        r2.0<0;1,0>:d     r1.5<0;1,0>:d {I@1}
        load.ugm.d32x8.a64.ca.ca (8|M0)               r8:8  [r6:2]             {A@1,$5}               // wei load
        mad (8|M0)               r4.0<1>:d         r4.0<1;0>:d       r1.1<0;0>:d       128:uw
        add (8|M0) (ov)f0.0      r16.0<2>:ud       r1.2<0;1,0>:ud    r4.0<1;1,0>:ud {I@1}
(W)     add (1|M0)               r2.1<1>:d         r1.3<0;1,0>:d     1:d
(f0.0)  sel (8|M0)               r16.1<2>:ud       r2.1<0;1,0>:d     r1.3<0;1,0>:d {I@1}
        load.ugm.d32x8.a64.ca.ca (8|M0)               r18:8  [r16:2]           {A@1,$6}               // src load
        shl (8|M0)               r4.0<1>:d         r3.0<1;1,0>:d     5:d
(W)     mov (16|M0)              r28.0<1>:ud       0:ud
(W)     mov (16|M0)              r30.0<1>:ud       0:ud
(W)     mov (16|M0)              r32.0<1>:ud       0:ud
(W)     mov (16|M0)              r34.0<1>:ud       0:ud
(W)     add (1|M0) (ov)f0.0      r2.2<1>:ud        r1.2<0;1,0>:ud    32:ud
(W&f0.0)sel (1|M0)               r2.3<1>:ud        r2.1<0;1,0>:d     r1.3<0;1,0>:d
        add (8|M0)               r5.0<1>:d         r3.0<1;1,0>:d     r1.1<0;1,0>:d {$5.src}
        shl (8|M0)               r5.0<1>:ud        r5.0<1;1,0>:ud    7:ud      {I@1}
        add (8|M0) (ov)f0.0      r6.0<2>:ud        r2.2<0;1,0>:ud    r5.0<1;1,0>:ud {I@1}
(W)     add (1|M0)               r1.2<1>:d         r2.3<0;1,0>:d     1:d       {$6.src}
(f0.0)  sel (8|M0)               r6.1<2>:ud        r1.2<0;1,0>:d     r2.3<0;1,0>:d {I@1}
        mov (8|M0)               r16.0<1>:ud       r6.0<1;1,0>:ud              {I@1}
        mov (8|M0)               r17.0<1>:ud       r7.0<1;1,0>:ud
(W)     add (1|M0) (ov)f0.0      r1.2<1>:ud        r1.4<0;1,0>:ud    32:ud
(W&f0.0)sel (1|M0)               r1.3<1>:ud        r2.0<0;1,0>:d     r1.5<0;1,0>:d
        add (8|M0)               r5.0<1>:d         r3.0<1;1,0>:d     r1.0<0;1,0>:d
        shl (8|M0)               r5.0<1>:ud        r5.0<1;1,0>:ud    7:ud      {I@1}
        add (8|M0) (ov)f0.0      r6.0<2>:ud        r1.2<0;1,0>:ud    r5.0<1;1,0>:ud {I@1}
(W)     add (1|M0)               r1.4<1>:d         r1.3<0;1,0>:d     1:d
(f0.0)  sel (8|M0)               r6.1<2>:ud        r1.4<0;1,0>:d     r1.3<0;1,0>:d {I@1}
        mov (8|M0)               r26.0<1>:ud       r6.0<1;1,0>:ud              {I@1}
        mov (8|M0)               r27.0<1>:ud       r7.0<1;1,0>:ud
(W)     mov (1|M0)               r1.2<1>:ud        3:ud                                               // iterations of kb
(W)     mov (1|M0)               r6.0<1>:ud        0:ud
(W)     mov (1|M0)               r7.0<1>:ud        0:ud
        add (8|M0)               r36.0<1>:ud       r4.0<1;1,0>:ud    256:ud
(W)     mov (1|M0)               r38.0<1>:ud       256:ud
k_loop:  // for kb in [0, 3)
(W)     sync.allwr               0xf0
(W)     store.slm.d32x64t.a32 (1|M0)                  [r6:1]  r8:8             {A@4,$8}               // wei store
        store.slm.d32x8.a32 (8|M0)                    [r36:1]  r18:8           {A@2,$9}               // src store
(W)     sync.allrd               0x301
        load.ugm.d32x8.a64.ca.ca (8|M0)               r8:8  [r26:2]            {$7}                   // wei load
        load.ugm.d32x8.a64.ca.ca (8|M0)               r18:8  [r16:2]           {$4}                   // src load
(W)     load.slm.d32x64t.a32 (1|M0)                   r39:8  [r7:1]            {$10}                  // wei fragment
(W)     load.slm.d32x64t.a32 (1|M0)                   r47:8  [r38:1]           {A@1,$11}              // src fragment
(W)     sync.allwr               0xc00
        dpas.8x8 (8|M0)          r28:f             r28:f             r39:bf            r47.0:bf {$0}  // 1 steps of 1 x 1 tiles
        add (8|M0) (ov)f0.0      r16.0<2>:ud       r16.0<2;1,0>:ud   32:ud     {$4.src}
        add (8|M0)               r37.0<1>:d        r16.1<2;1,0>:ud   1:d
(f0.0)  sel (8|M0)               r16.1<2>:ud       r37.0<1;1,0>:d    r16.1<2;1,0>:ud {I@1}
        add (8|M0) (ov)f0.0      r26.0<2>:ud       r26.0<2;1,0>:ud   32:ud     {$7.src}
        add (8|M0)               r5.0<1>:d         r26.1<2;1,0>:ud   1:d
(f0.0)  sel (8|M0)               r26.1<2>:ud       r5.0<1;1,0>:d     r26.1<2;1,0>:ud {I@1}
(W)     add (1|M0) (gt)f0.0      r1.2<1>:d         r1.2<0;1,0>:d     -1:d
(W&f0.0)jmpi                     k_loop                                                               // next kb
