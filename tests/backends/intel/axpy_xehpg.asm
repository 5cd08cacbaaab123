//.target xehpg
//.kernel axpy
//.simd_size 8
//.grf_count 128
//.slm_bytes 0
//.barrier_count 0
//.workgroup 16 1 1
//.has_dpas no
//.argument buffer x at 0 size 8
//.argument buffer y at 8 size 8
//.argument scalar a at 16 size 4
// y[i] += a * x[i], one item a lane; i = 16 * group + 8 * thread + lane; carries of 64-bit sums go through acc0
(W)     and (1|M0)               r127.0<1>:ud  r0.0<0;1,0>:ud    0xFFFFFFC0:ud
(W)     load.ugm.d32x8t.a32.ca.ca (1|M0)  r4:1 bti[255][r127:1]                      {A@1,$0}
(W)     and (1|M0)               r5.0<1>:ud    r0.2<0;1,0>:ud    0xFF:uw
(W)     shl (1|M0)               r5.1<1>:ud    r0.1<0;1,0>:ud    4:w
(W)     shl (1|M0)               r5.0<1>:ud    r5.0<0;1,0>:ud    3:w                  {I@2}
(W)     add (1|M0)               r5.0<1>:ud    r5.0<0;1,0>:ud    r5.1<0;1,0>:ud       {I@1}
(W)     mov (8|M0)               r6.0<1>:uw    0x76543210:uv
        add (8|M0)               r7.0<1>:ud    r5.0<0;1,0>:ud    r6.0<1;1,0>:uw       {I@1}
        shl (8|M0)               r7.0<1>:ud    r7.0<1;1,0>:ud    2:w                  {I@1}
(W)     sync.nop                 null                                                 {$0.dst}
        addc (8|M0)              r8.0<1>:ud    r7.0<1;1,0>:ud    r4.0<0;1,0>:ud       {AccWrEn,I@1}
        add (8|M0)               r9.0<1>:ud    acc0.0<1;1,0>:ud  r4.1<0;1,0>:ud
        mov (8|M0)               r10.0<2>:ud   r8.0<1;1,0>:ud                         {I@2}
        mov (8|M0)               r10.1<2>:ud   r9.0<1;1,0>:ud                         {I@2}
        addc (8|M0)              r8.0<1>:ud    r7.0<1;1,0>:ud    r4.2<0;1,0>:ud       {AccWrEn}
        add (8|M0)               r9.0<1>:ud    acc0.0<1;1,0>:ud  r4.3<0;1,0>:ud
        mov (8|M0)               r12.0<2>:ud   r8.0<1;1,0>:ud                         {I@2}
        mov (8|M0)               r12.1<2>:ud   r9.0<1;1,0>:ud                         {I@2}
        load.ugm.d32.a64 (8|M0)  r14:1 [r10:2]                                        {A@1,$1}
        load.ugm.d32.a64 (8|M0)  r15:1 [r12:2]                                        {A@1,$2}
(W)     sync.nop                 null                                                 {$1.dst}
        mad (8|M0)               r15.0<1>:f    r15.0<1;0>:f      r14.0<1;0>:f      r4.4<0>:f {$2.dst}
        store.ugm.d32.a64 (8|M0)  [r12:2] r15:1                                       {A@1,$3}
(W)     mov (8|M0)               acc0.0<1>:f   0x0:f
(W)     mov (8|M0)               r127.0<1>:f   r0.0<1;1,0>:f
(W)     send.gtwy (8|M0)         null     r127    null:0  0x0            0x02000010   {EOT,A@1,$4}
