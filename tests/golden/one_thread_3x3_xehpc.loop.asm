//.target xehpc
//.kernel conv_fwd_d_f720ba91_main
//.simd_size 16
//.grf_count 128
//.slm_bytes 1024
//.barrier_count 0
//.workgroup 16 1 1
//.has_dpas yes
//.argument buffer src at 0 size 8
//.argument buffer wei at 8 size 8
//.argument buffer dst at 16 size 8
// conv_fwd_d_f720ba91_main: convgen for xehpc
// problem: --dir=FWD_D --dt=f16:f16:f32 mb1_ic32oc16_iw16ow16kw3pw1
// config:  tile=16x16x16 waves=1x1 mma=16x8x16 slots=1 taps=split acc=v padding=zeros
// registers:
//   wei_next  r[7:14]
//   src_next  r[15:22]
//   acc       r[24:39]
//   wei_frag  r[43:50]
//   src_frag  r[51:58]
// shared memory:
//   0x00000..0x00200  wei_tile: 1 x 16 x 16 f16, elements along col:2 row:16 col:8
//   0x00200..0x00400  src_tile: 1 x 16 x 16 f16, elements along col:16 row:16
(W)     or (1|M0)                cr0.0<1>:ud       cr0.0<0;1,0>:ud   1216:uw                          // keep denormals
(W)     and (1|M0)               r2.0<1>:ud        r0.0<0;1,0>:ud    0xffffffc0:ud {A@1}
(W)     load.ugm.d32x8t.a32.ca.ca (1|M0)              r3:1  bti[255][r2:1]     {I@1,$4}               // arguments
(W)     mov (1|M0)               r1.0<1>:ud        r3.0<0;1,0>:ud              {$4.dst}               // argument src
(W)     mov (1|M0)               r1.1<1>:ud        r3.1<0;1,0>:ud
(W)     mov (1|M0)               r1.2<1>:ud        r3.2<0;1,0>:ud                                     // argument wei
(W)     mov (1|M0)               r1.3<1>:ud        r3.3<0;1,0>:ud
(W)     mov (1|M0)               r1.4<1>:ud        r3.4<0;1,0>:ud                                     // argument dst
(W)     mov (1|M0)               r1.5<1>:ud        r3.5<0;1,0>:ud
(W)     mov (8|M0)               r2.0<1>:uw        0x76543210:uv
(W)     add (8|M0)               r2.8<1>:uw        r2.0<1;1,0>:uw    8:uw      {I@1}
        mov (16|M0)              r2.0<1>:ud        r2.0<1;1,0>:uw              {I@1}                  // lane
        mov (16|M0)              r2.0<1>:ud        0:ud
(W)     mov (1|M0)               r2.0<1>:q         r1.1<0;1,0>:q
(W)     mov (1|M0)               r2.2<1>:ud        191:ud
(W)     mov (1|M0)               r2.3<1>:ud        15:ud
(W)     mov (1|M0)               r2.4<1>:ud        191:ud
(W)     mov (1|M0)               r2.7<1>:ud        3847:ud
        mov (16|M0)              r3.0<1>:ud        0:ud
(W)     mov (1|M0)               r3.0<1>:q         r1.0<0;1,0>:q
(W)     mov (1|M0)               r3.2<1>:ud        63:ud
(W)     mov (1|M0)               r3.3<1>:ud        15:ud
(W)     mov (1|M0)               r3.4<1>:ud        63:ud
(W)     mov (1|M0)               r3.7<1>:ud        3855:ud
        mov (16|M0)              r4.0<1>:ud        r2.0<1;1,0>:ud              {I@7}
        mov (16|M0)              r5.0<1>:ud        r3.0<1;1,0>:ud              {I@2}
(W)     mov (1|M0)               r2.5<1>:ud        0:ud
(W)     mov (1|M0)               r2.6<1>:ud        0:ud
(W)     load_block2d.ugm.d32t.a64.ca.ca (1|M0)        r7:8  [r2:1]             {I@1,$5}               // wei load
(W)     mov (1|M0)               r3.5<1>:ud        0:ud
(W)     mov (1|M0)               r3.6<1>:ud        0xffffffff:ud
(W)     load_block2d.ugm.d16.a64.ca.ca (1|M0)         r15:8  [r3:1]            {I@1,$6}               // src load
(W)     mov (32|M0)              r24.0<1>:ud       0:ud
(W)     mov (32|M0)              r26.0<1>:ud       0:ud
(W)     mov (32|M0)              r28.0<1>:ud       0:ud
(W)     mov (32|M0)              r30.0<1>:ud       0:ud
(W)     mov (32|M0)              r32.0<1>:ud       0:ud
(W)     mov (32|M0)              r34.0<1>:ud       0:ud
(W)     mov (32|M0)              r36.0<1>:ud       0:ud
(W)     mov (32|M0)              r38.0<1>:ud       0:ud
(W)     mov (1|M0)               r1.0<1>:ud        0:ud
(W)     mov (1|M0)               r1.1<1>:ud        1:ud
(W)     mov (1|M0)               r1.2<1>:ud        0:ud                                               // kb = 0
(W)     mov (1|M0)               r4.6<1>:ud        0:ud
(W)     mov (1|M0)               r2.0<1>:ud        0:ud                        {$5.dst}
(W)     mov (1|M0)               r3.0<1>:ud        0:ud                        {$6.dst}
(W)     mov (1|M0)               r6.0<1>:ud        512:ud
(W)     mov (1|M0)               r23.0<1>:ud       512:ud
k_loop:  // for kb in [0, 5)
(W)     sync.allwr               0x90
(W)     store.slm.d64x64t.a32 (1|M0)                  [r2:1]  r7:8             {I@4,$8}               // wei store
(W)     store.slm.d64x64t.a32 (1|M0)                  [r6:1]  r15:8            {I@2,$9}               // src store
(W)     mad (1|M0)               r4.5<1>:d         8:w               r1.2<0;0>:d       8:uw {$8.dst}
(W)     load_block2d.ugm.d32t.a64.ca.ca (1|M0)        r7:8  [r4:1]             {I@1,$7}               // wei load
(W)     mul (1|M0)               r5.5<1>:d         r1.1<0;1,0>:d     16:uw
(W)     add (1|M0)               r5.6<1>:d         r1.0<0;1,0>:d     -1:d      {$9.dst}
(W)     load_block2d.ugm.d16.a64.ca.ca (1|M0)         r15:8  [r5:1]            {I@1,$4}               // src load
(W)     sync.nop                 null                                          {$0.src}
(W)     load.slm.d64x64t.a32 (1|M0)                   r43:8  [r3:1]            {$10}                  // wei fragment
(W)     load.slm.d64x64t.a32 (1|M0)                   r51:8  [r23:1]           {$11}                  // src fragment
(W)     sync.allwr               0xc00
        dpas.8x8 (16|M0)         r24:f             r24:f             r43:hf            r51.0:hf {Atomic,$0.dst}  // 1 steps of 1 x 2 tiles
        dpas.8x8 (16|M0)         r32:f             r32:f             r43:hf            r55.0:hf {$0}
(W)     add (1|M0)               r1.1<1>:d         r1.1<0;1,0>:d     1:d
(W)     cmp (1|M0) (ge)f0.0      r1.3<1>:d         r1.1<0;1,0>:d     2:d       {I@1}
(W)     add (1|M0)               r1.0<1>:d         r1.0<0;1,0>:d     -r1.3<0;1,0>:d {I@1}
(W&~f0.0)sel (1|M0)               r1.1<1>:d         r1.1<0;1,0>:d     0:d
(W)     add (1|M0)               r1.2<1>:d         r1.2<0;1,0>:d     1:d
(W)     cmp (1|M0) (lt)f0.0      null<1>:d         r1.2<0;1,0>:d     5:d       {I@1}
(W&f0.0)jmpi                     k_loop                                                               // next kb
