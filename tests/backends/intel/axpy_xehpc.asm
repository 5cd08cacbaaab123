//.target xehpc
//.kernel axpy
//.simd_size 16
//.grf_count 128
//.slm_bytes 0
//.barrier_count 0
//.workgroup 32 1 1
//.has_dpas no
//.argument buffer x at 0 size 8
//.argument buffer y at 8 size 8
//.argument scalar a at 16 size 4
// y[i] += a * x[i], one item a lane; i = 32 * group + 16 * thread + lane
(W)     and (1|M0)               r127.0<1>:ud  r0.0<0;1,0>:ud    0xFFFFFFC0:ud
(W)     load.ugm.d32x16t.a32.ca.ca (1|M0)  r4:1 bti[255][r127:1]                     {I@1,$0}
(W)     and (1|M0)               r5.0<1>:ud    r0.2<0;1,0>:ud    0xFF:uw
(W)     shl (1|M0)               r5.1<1>:ud    r0.1<0;1,0>:ud    5:w
(W)     shl (1|M0)               r5.0<1>:ud    r5.0<0;1,0>:ud    4:w                  {I@2}
(W)     add (1|M0)               r5.0<1>:ud    r5.0<0;1,0>:ud    r5.1<0;1,0>:ud       {I@1}
(W)     mov (8|M0)               r6.0<1>:uw    0x76543210:uv
(W)     add (8|M0)               r6.8<1>:uw    r6.0<1;1,0>:uw    8:uw                 {I@1}
        add (16|M0)              r7.0<1>:ud    r5.0<0;1,0>:ud    r6.0<1;1,0>:uw       {I@1}
        shl (16|M0)              r7.0<1>:ud    r7.0<1;1,0>:ud    2:w                  {I@1}
        mov (16|M0)              r8.0<2>:ud    r7.0<1;1,0>:ud                         {I@1}
(W)     sync.nop                 null                                                 {$0.dst}
        add (16|M0)              r10.0<1>:q    r4.0<0;1,0>:q     r8.0<2;1,0>:ud       {I@1}
        add (16|M0)              r12.0<1>:q    r4.1<0;1,0>:q     r8.0<2;1,0>:ud
        load.ugm.d32.a64 (16|M0)  r14:1 [r10:2]                                       {A@1,$1}
        load.ugm.d32.a64 (16|M0)  r15:1 [r12:2]                                       {$2}
(W)     sync.nop                 null                                                 {$1.dst}
        mad (16|M0)              r15.0<1>:f    r15.0<1;0>:f      r14.0<1;0>:f      r4.4<0>:f {$2.dst}
        store.ugm.d32.a64 (16|M0)  [r12:2] r15:1                                      {F@1,$3}
(W)     mov (16|M0)              r127.0<1>:f   r0.0<1;1,0>:f
(W)     send.gtwy (8|M0)         null     r127    null:0  0x0            0x02000010   {EOT,F@1,$4}
