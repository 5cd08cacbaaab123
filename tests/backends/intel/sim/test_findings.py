"""Each finding, in a kernel that deserves it and in its corrected form."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

#: r5, r6 are the addresses of `in` and `out`; the correct bodies store r20 to `out`.
STARTS = {
    "xehpc": """
(W) mov (1|M0) r5.0<1>:uq r4.0<0;1,0>:uq
(W) mov (1|M0) r6.0<1>:uq r4.1<0;1,0>:uq
(W) mov (16|M0) r20.0<1>:ud 0x0:ud
(W) mov (16|M0) r30.0<1>:f 1.0:f
(W) mov (16|M0) r31.0<1>:f 1.0:f
(W) sync.nop null {A@1}
""",
    "xehpg": """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (8|M0) r20.0<1>:ud 0x0:ud
(W) mov (8|M0) r30.0<1>:f 1.0:f
(W) mov (8|M0) r31.0<1>:f 1.0:f
(W) sync.nop null {A@1}
""",
}
ENDS = {
    "xehpc": "\n(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}\n",
    "xehpg": "\n(W) store.ugm.d32x8t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}\n",
}


@attrs.frozen
class Case:
    """A body that is right, and a part of it whose replacement must be noticed."""

    kind: str
    body: str
    part: str
    replacement: str = ""
    platform: str = "xehpc"
    workgroup: int = 0
    barriers: int = 0
    slm: int = 0
    groups: int = 1
    registers: int = 128


LOAD = "(W) load.ugm.d32x16t.a64 (1|M0) r10:1 [r5:1] {$1}\n"
MATRIX = """
(W) mov (16|M0) r40.0<1>:f 0.0:f
(W) mov (16|M0) r41.0<1>:f 0.0:f
(W) mov (16|M0) r42.0<1>:f 0.0:f
(W) mov (16|M0) r43.0<1>:f 0.0:f
(W) mov (16|M0) r50.0<1>:f 0.0:f
(W) mov (16|M0) r51.0<1>:f 0.0:f
(W) mov (16|M0) r52.0<1>:f 0.0:f
(W) mov (16|M0) r53.0<1>:f 0.0:f
(W) mov (16|M0) r54.0<1>:f 0.0:f
(W) mov (16|M0) r55.0<1>:f 0.0:f
(W) mov (16|M0) r56.0<1>:f 0.0:f
(W) mov (16|M0) r57.0<1>:f 0.0:f
(W) mov (16|M0) r60.0<1>:f 0.0:f
(W) mov (16|M0) r61.0<1>:f 0.0:f
(W) sync.nop null {A@1}
dpas.8x4 (16|M0) r40:f r40:f r50:hf r60.0:hf {$3}
(W) mov (16|M0) r20.0<1>:ud r40.0<1;1,0>:ud {$3.dst}
"""
#: Each thread writes its number to local memory, the next one reads it.
EXCHANGE = """
(W) and (1|M0) r7.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r8.0<1>:ud r7.0<0;1,0>:ud 2:w {I@1}
(W) xor (1|M0) r9.0<1>:ud r8.0<0;1,0>:ud 4:w {I@1}
(W) mov (1|M0) r15.2<1>:f 0.0:f
(W) mov (2|M0) r15.10<1>:ub r0.11<0;1,0>:ub {F@1}
(W) store.slm.d32x1t.a32 (1|M0) [r8:1] r7:1 {A@1,$3}
(W) send.slm (1|M0) r28 r0 null:0 0x0 0x0210011F {$5}
(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}
(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$6}
(W) sync.bar null
(W) load.slm.d32x1t.a32 (1|M0) r21:1 [r9:1] {$7}
(W) mov (16|M0) r20.0<1>:ud r21.0<0;1,0>:ud {$7.dst}
(W) shl (1|M0) r3.0<1>:ud r7.0<0;1,0>:ud 6:w
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r3.0<0;1,0>:ud {I@1}
"""
STORE = "(W) store.slm.d32x1t.a32 (1|M0) [r8:1] r7:1 {A@1,$3}\n"
FENCE = "(W) send.slm (1|M0) r28 r0 null:0 0x0 0x0210011F {$5}\n(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}\n"
SIGNAL = "(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$6}\n"
#: Another turn: what was read is overwritten behind a second barrier.
AGAIN = (
    "(W) load.slm.d32x1t.a32 (1|M0) r22:1 [r9:1] {$11}\n(W) sync.nop null {$11.dst}\n"
    + SIGNAL
    + "(W) sync.bar null\n"
    + STORE
)
#: The same through global memory: each thread stores to its own line, fences, and reads the other's.
GLOBAL_EXCHANGE = """
(W) and (1|M0) r7.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r3.0<1>:ud r7.0<0;1,0>:ud 6:w {I@1}
(W) xor (1|M0) r3.1<1>:ud r3.0<0;1,0>:ud 0x40:uw {I@1}
(W) add (1|M0) r9.0<1>:uq r6.0<0;1,0>:uq r3.1<0;1,0>:ud {I@1}
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r3.0<0;1,0>:ud
(W) mov (1|M0) r15.2<1>:f 0.0:f
(W) mov (2|M0) r15.10<1>:ub r0.11<0;1,0>:ub {F@1}
(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {A@1,$3}
(W) send.ugm (1|M0) r28 r0 null:0 0x0 0x0214031F {$5}
(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}
(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$6}
(W) sync.bar null
(W) load.ugm.d32x16t.a64 (1|M0) r21:1 [r9:1] {$7}
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq 0x100:uw {$3.dst}
(W) mov (16|M0) r20.0<1>:ud r21.0<1;1,0>:ud {$7.dst}
"""
BLOCK = """
(W) mov (1|M0) r10.0<1>:uq r5.0<0;1,0>:uq
(W) mov (1|M0) r10.2<1>:ud 0x3F:ud
(W) mov (1|M0) r10.3<1>:ud 0x7:ud
(W) mov (1|M0) r10.4<1>:ud 0x3F:ud
(W) mov (1|M0) r10.5<1>:ud 0x0:ud
(W) mov (1|M0) r10.6<1>:ud 0x0:ud
(W) mov (1|M0) r10.7<1>:ud 0x70F:ud
(W) load_block2d.ugm.d16.a64 (1|M0) r16:4 [r10:1] {A@1,$3}
(W) mov (16|M0) r20.0<1>:ud r16.0<1;1,0>:ud {$3.dst}
"""


CASES = {
    "distance": Case(
        "distance",
        "(W) mov (16|M0) r21.0<1>:d 1:w\n(W) add (16|M0) r20.0<1>:d r21.0<1;1,0>:d 1:w {I@1}",
        " {I@1}",
    ),
    "distance too weak": Case(
        "distance",
        "(W) mov (16|M0) r21.0<1>:d 1:w\n(W) mov (16|M0) r22.0<1>:d 1:w\n"
        "(W) add (16|M0) r20.0<1>:d r21.0<1;1,0>:d 1:w {I@2}",
        "I@2",
        "I@3",
    ),
    "distance of another pipe": Case(
        "distance",
        "(W) mov (16|M0) r21.0<1>:f 1.0:f\n(W) add (16|M0) r20.0<1>:d r21.0<1;1,0>:d 1:w {F@1}",
        "F@1",
        "I@1",
    ),
    "overwriting across pipes": Case(
        "distance",
        "(W) add (16|M0) r21.0<1>:f r30.0<1;1,0>:f r31.0<1;1,0>:f\n(W) mov (16|M0) r21.0<1>:d 1:w {F@1}",
        " {F@1}",
    ),
    "overwriting a source across pipes": Case(
        "distance",
        "(W) add (16|M0) r21.0<1>:f r30.0<1;1,0>:f r31.0<1;1,0>:f\n(W) mov (16|M0) r30.0<1>:d 1:w {F@1}",
        " {F@1}",
    ),
    "distance around a loop": Case(
        "distance",
        """
(W) mov (1|M0) r21.0<1>:d 4:w
(W) mov (1|M0) r22.0<1>:d 0:w
again:
(W) add (1|M0) r20.0<1>:d r22.0<0;1,0>:d 1:w {I@1}
(W) add (1|M0) r21.0<1>:d r21.0<0;1,0>:d -1:w
(W) cmp (1|M0) (gt)f0.0 null<1>:d r21.0<0;1,0>:d 0:w {I@1}
(W) mov (1|M0) r22.0<1>:d r20.0<0;1,0>:d
(W&f0.0) jmpi again
""",
        "r22.0<0;1,0>:d 1:w {I@1}",
        "r22.0<0;1,0>:d 1:w {I@2}",
    ),
    "flag of another pipe": Case(
        "distance",
        "(W) cmp (16|M0) (lt)f0.0 null<1>:f r30.0<1;1,0>:f r31.0<1;1,0>:f\n(W&f0.0) mov (16|M0) r20.0<1>:d 1:w {F@1}",
        " {F@1}",
    ),
    "flag of a message": Case(
        "distance",
        "(W) cmp (1|M0) (eq)f0.0 null<1>:d r20.0<0;1,0>:d 0:w\n"
        "(W&f0.0) load.ugm.d32x16t.a64 (1|M0) r10:1 [r5:1] {I@1,$1}",
        "I@1,",
    ),
    "math pipe": Case(
        "distance",
        "(W) math.inv (16|M0) r21.0<1>:f r30.0<1;1,0>:f\n"
        "(W) add (16|M0) r20.0<1>:f r21.0<1;1,0>:f r21.0<1;1,0>:f {M@1}",
        "{M@1}",
        "{F@1}",
    ),
    "math token": Case(
        "token-wait",
        "(W) math.inv (8|M0) r21.0<1>:f r30.0<1;1,0>:f {$3}\n"
        "(W) add (8|M0) r20.0<1>:f r21.0<1;1,0>:f r21.0<1;1,0>:f {$3.dst}",
        " {$3.dst}",
        platform="xehpg",
    ),
    "math without token": Case(
        "token",
        "(W) math.inv (8|M0) r21.0<1>:f r30.0<1;1,0>:f {$3}",
        " {$3}",
        platform="xehpg",
    ),
    "mode": Case(
        "distance",
        "(W) or (1|M0) cr0.0<1>:ud cr0.0<0;1,0>:ud 0x4C0:uw\n(W) mov (16|M0) r20.0<1>:d 1:w {A@1}",
        " {A@1}",
    ),
    "load": Case("token-wait", LOAD + "(W) mov (16|M0) r20.0<1>:d r10.0<1;1,0>:d {$1.dst}", " {$1.dst}"),
    "load, only its source": Case(
        "token-wait", LOAD + "(W) mov (16|M0) r20.0<1>:d r10.0<1;1,0>:d {$1.dst}", "$1.dst", "$1.src"
    ),
    "overwriting a load": Case("token-wait", LOAD + "(W) mov (16|M0) r10.0<1>:d 1:w {$1.dst}", " {$1.dst}"),
    "overwriting an address": Case("token-wait", LOAD + "(W) mov (1|M0) r5.0<1>:ud 1:w {$1.dst}", " {$1.dst}"),
    "overwriting an address after its read": Case(
        "send-war", LOAD + "(W) mov (1|M0) r5.0<1>:ud 1:w {$1.dst}", "$1.dst", "$1.src"
    ),
    "address of a load": Case(
        "distance",
        "(W) add (1|M0) r5.0<1>:uq r5.0<0;1,0>:uq 0x40:uw\n(W) load.ugm.d32x16t.a64 (1|M0) r10:1 [r5:1] {I@1,$1}",
        "I@1,",
    ),
    "token in use elsewhere": Case(
        "token-wait",
        LOAD + "(W) load.ugm.d32x16t.a64 (1|M0) r11:1 [r6:1] {$4}\n"
        "(W) sync.nop null {$4.dst}\n(W) mov (16|M0) r20.0<1>:d r10.0<1;1,0>:d {$1.dst}",
        "{$1.dst}",
        "{$4.dst}",
    ),
    "sync all": Case(
        "token-wait",
        LOAD + "(W) sync.allwr ($1,$2)\n(W) mov (16|M0) r20.0<1>:d r10.0<1;1,0>:d",
        "($1,$2)",
        "($2,$3)",
    ),
    "too many tokens": Case("token", LOAD, "{$1}", "{$17}"),
    "result of a matrix operation": Case("token-wait", MATRIX, " {$3.dst}"),
    "source of a matrix operation": Case(
        "token-wait",
        MATRIX.replace("(W) mov (16|M0) r20.0<1>:ud r40.0<1;1,0>:ud {$3.dst}\n", "")
        + "(W) mov (16|M0) r60.0<1>:d 1:w {$3.src}",
        " {$3.src}",
    ),
    "matrix operation of width 8": Case("dpas", MATRIX, "dpas.8x4 (16|M0)", "dpas.8x4 (8|M0)"),
    "matrix operation mixing types": Case("dpas", MATRIX, "r50:hf r60.0:hf", "r50:hf r60.0:bf"),
    "matrix operation of 8 rows off a register": Case(
        "dpas", MATRIX.replace("8x4", "8x8").replace("r60.0", "r58.0"), "r58.0:hf", "r58.16:hf"
    ),
    "matrix operation over its source": Case("dpas", MATRIX, "r40:f r40:f", "r50:f r40:f"),
    "matrix operation half over its sum": Case("dpas", MATRIX, "r40:f r40:f", "r41:f r40:f"),
    "depth": Case("dpas", MATRIX, "dpas.8x4", "dpas.4x4"),
    "signed into unsigned": Case(
        "dpas", MATRIX.replace("r40:f r40:f r50:hf r60.0:hf", "r40:ud r40:ud r50:ub r60.0:ub"), "r60.0:ub", "r60.0:b"
    ),
    "response over its payload": Case("message", LOAD + "(W) sync.nop null {$1.dst}\n", "r10:1 [r5:1]", "r5:1 [r5:1]"),
    "last message from below": Case(
        "message",
        "(W) mov (16|M0) r127.0<1>:f r0.0<1;1,0>:f\n"
        "(W) send.gtwy (8|M0) null r127 null:0 0x0 0x02000010 {EOT,F@1,$15}\n",
        "r127",
        "r111",
    ),
    "undefined address": Case("poison", LOAD, "[r5:1]", "[r70:1]"),
    "undefined data": Case("poison", "", "", "(W) mov (16|M0) r20.0<1>:d r70.0<1;1,0>:d"),
    "undefined lanes stored": Case("poison", "", "", "(W) mov (16|M0) r20.0<1>:ud r70.0<1;1,0>:ud"),
    "undefined branch": Case(
        "poison",
        "(W) cmp (1|M0) (eq)f0.0 null<1>:ud r20.0<0;1,0>:ud 1:uw\n(W&f0.0) jmpi away\naway:",
        "(W&f0.0)",
        "(W&f1.0)",
    ),
    "undefined predicate": Case(
        "poison",
        "cmp (16|M0) (eq)f1.0 null<1>:ud r20.0<0;1,0>:ud 1:uw\n(f1.0) mov (16|M0) r20.0<1>:ud 1:uw",
        "(f1.0) mov",
        "(f2.0) mov",
    ),
    "condition of a result that is cut": Case(
        "poison",
        "(W) mov (16|M0) r71.0<1>:d 0x3FFFFFFF:d\n"
        "(W) shl (16|M0) (ge)f0.0 null<1>:d r71.0<1;1,0>:d 1:w {I@1}\n"
        "(W&f0.0) mov (16|M0) r20.0<1>:d 1:w",
        "0x3FFFFFFF",
        "0x7FFFFFFF",
    ),
    "undefined because only half is written": Case(
        "poison",
        "(W) mov (16|M0) r71.0<1>:d 1:w\n(W) mov (16|M0) r20.0<1>:d r71.0<1;1,0>:d {I@1}",
        "mov (16|M0) r71",
        "mov (8|M0) r71",
    ),
    "out of bounds": Case("out-of-bounds", LOAD, "d32x16t.a64 (1|M0) r10:1", "d32x64t.a64 (1|M0) r10:4"),
    "misaligned": Case(
        "misaligned",
        "(W) add (1|M0) r5.0<1>:uq r5.0<0;1,0>:uq 0x4:uw\n(W) load.ugm.d32x1t.a64 (1|M0) r10:1 [r5:1] {I@1,$1}",
        "0x4:uw",
        "0x2:uw",
    ),
    "beyond the register file": Case("register-range", "(W) mov (16|M0) r100.0<1>:d 1:w", "r100", "r200"),
    "within 256 registers": Case(
        "register-range",
        "(W) mov (16|M0) r200.0<1>:d 1:w\n(W) mov (16|M0) r20.0<1>:d 1:w",
        "r20.0",
        "r255.8",
        registers=256,
    ),
    "message length": Case(
        "message-length",
        "(W) send.ugm (1|M0) r10 r5 null:0 0x0 0x0210D580 {$1}",
        "0x0210D580",
        "0x0220D580",
    ),
    "address length": Case(
        "message-length",
        "(W) send.ugm (1|M0) r10 r5 null:0 0x0 0x0210D580 {$1}",
        "0x0210D580",
        "0x0410D580",
    ),
    "long integers": Case(
        "type",
        "(W) add (2|M0) r7.0<1>:ud r5.0<1;1,0>:ud 0x4:uw",
        "(2|M0) r7.0<1>:ud r5.0<1;1,0>:ud",
        "(1|M0) r7.0<1>:uq r5.0<0;1,0>:uq",
        platform="xehpg",
    ),
    "carry": Case(
        "acc-wr-en", "(W) addc (1|M0) r7.0<1>:ud r5.0<0;1,0>:ud 0x4:ud {AccWrEn}", " {AccWrEn}", platform="xehpg"
    ),
    "2-D block on a platform without": Case(
        "unsupported-message",
        "(W) load.ugm.d32x8t.a64 (1|M0) r10:1 [r5:1] {$1}",
        "(W) load.ugm.d32x8t.a64 (1|M0) r10:1 [r5:1] {$1}",
        "(W) send.ugm (1|M0) r10 r5 null:0 0x0 0x02400203 {$1}",
        platform="xehpg",
    ),
    "region over three registers": Case("region", "mov (16|M0) r40.0<1>:d 1:w", "r40.0<1>", "r40.0<4>"),
    "bytes packed": Case("region", "mov (16|M0) r40.0<2>:ub r20.0<2;1,0>:uw", "r40.0<2>", "r40.0<1>"),
    "floats moved between lanes": Case(
        "region",
        "add (8|M0) r40.0<1>:f r30.0<1;1,0>:f r31.0<1;1,0>:f",
        "r30.0<1;1,0>",
        "r30.8<1;1,0>",
    ),
    "floats of other strides": Case(
        "region",
        "add (8|M0) r40.0<1>:f r30.0<1;1,0>:f r31.0<1;1,0>:f",
        "r30.0<1;1,0>",
        "r30.0<2;1,0>",
    ),
    "block base": Case(
        "block2d", BLOCK, "r5.0<0;1,0>:uq\n(W) mov (1|M0) r10.2", "0x700000000020:uq\n(W) mov (1|M0) r10.2"
    ),
    "block width": Case("block2d", BLOCK, "r10.2<1>:ud 0x3F:ud", "r10.2<1>:ud 0x1F:ud"),
    "block pitch": Case("block2d", BLOCK, "r10.4<1>:ud 0x3F:ud", "r10.4<1>:ud 0x43:ud"),
    "block x": Case("block2d", BLOCK, "r10.5<1>:ud 0x0:ud", "r10.5<1>:ud 0x1:ud"),
    "block rows": Case("block2d", BLOCK, "0x70F:ud", "0x200F:ud"),
    "block of another size": Case("message-length", BLOCK, "0x70F:ud", "0xF0F:ud"),
    "barrier": Case("slm-race", EXCHANGE, "(W) sync.bar null\n", workgroup=32, barriers=1, slm=64),
    "fence": Case(
        "slm-race",
        EXCHANGE,
        "(W) send.slm (1|M0) r28 r0 null:0 0x0 0x0210011F {$5}\n(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}\n",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "fence not waited for": Case(
        "slm-race",
        EXCHANGE,
        "(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}\n",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "store behind the signal": Case(
        "slm-race",
        EXCHANGE,
        STORE + FENCE + SIGNAL,
        SIGNAL + STORE + FENCE,
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "load not back at the signal": Case(
        "slm-race",
        EXCHANGE + AGAIN,
        "(W) sync.nop null {$11.dst}\n" + SIGNAL,
        SIGNAL + "(W) sync.nop null {$11.dst}\n",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "barrier header": Case(
        "barrier",
        EXCHANGE,
        "(W) mov (2|M0) r15.10<1>:ub r0.11<0;1,0>:ub {F@1}",
        "(W) mov (2|M0) r15.10<1>:ub r15.8<0;1,0>:ub {F@1}",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "barrier header undefined": Case(
        "poison", EXCHANGE, "(W) mov (1|M0) r15.2<1>:f 0.0:f\n", workgroup=32, barriers=1, slm=64
    ),
    "wait without signal": Case(
        "barrier",
        EXCHANGE,
        "(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$6}\n",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "local memory out of bounds": Case(
        "out-of-bounds",
        EXCHANGE,
        "0xFF:ud\n",
        "0xFF:ud\n(W) or (1|M0) r7.0<1>:ud r7.0<0;1,0>:ud 0x10:uw {I@1}\n(W) sync.nop null {I@1}\n",
        workgroup=32,
        barriers=1,
        slm=64,
    ),
    "local memory undefined": Case(
        "poison", EXCHANGE, "r8.0<0;1,0>:ud 4:w", "r8.0<0;1,0>:ud 32:w", workgroup=32, barriers=1, slm=64
    ),
    "two workgroups store": Case(
        "global-race",
        """
(W) shl (1|M0) r7.0<1>:ud r0.1<0;1,0>:ud 6:w
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r7.0<0;1,0>:ud {I@1}
(W) mov (16|M0) r20.0<1>:ud r0.1<0;1,0>:ud
""",
        "r0.1<0;1,0>:ud 6:w",
        "r0.5<0;1,0>:ud 6:w",
        groups=2,
    ),
    "global exchange": Case(
        "global-visibility",
        GLOBAL_EXCHANGE,
        "(W) send.ugm (1|M0) r28 r0 null:0 0x0 0x0214031F {$5}\n(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}\n",
        workgroup=32,
        barriers=1,
    ),
    "global exchange, fence not waited for": Case(
        "global-visibility",
        GLOBAL_EXCHANGE,
        "(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$5.dst}\n",
        workgroup=32,
        barriers=1,
    ),
    "global exchange, fence of typed memory": Case(
        "global-visibility", GLOBAL_EXCHANGE, "send.ugm (1|M0) r28", "send.tgm (1|M0) r28", workgroup=32, barriers=1
    ),
    "indirect": Case(
        "distance",
        "(W) mov (1|M0) a0.0<1>:uw 0x540:uw\n(W) mov (16|M0) r21.0<1>:d 1:w\n"
        "(W) mov (16|M0) r20.0<1>:d r[a0.0]<1;1,0>:d {A@1}",
        "A@1",
        "I@2",
    ),
    "two workgroups": Case(
        "global-visibility",
        """
(W) shl (1|M0) r7.0<1>:ud r0.1<0;1,0>:ud 6:w
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r7.0<0;1,0>:ud {I@1}
(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {A@1,$1}
(W) load.ugm.d32x1t.a64 (1|M0) r10:1 [r6:1] {$3}
(W) sync.nop null {$3.dst}
""",
        "r0.1<0;1,0>",
        "r0.5<0;1,0>",
        groups=2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_finding(sim: Any, name: str) -> None:
    case = CASES[name]
    wrong = case.body.replace(case.part, case.replacement) if case.part else case.body + case.replacement
    assert wrong != case.body
    for body, kinds in ((case.body, []), (wrong, [case.kind])):
        buffers = {"in": np.zeros(512 if "block" in name else 128, np.uint8), "out": np.zeros(1024, np.uint8)}
        end = ENDS[case.platform]
        if case.registers == 256:
            end += "(W) mov (16|M0) r255.0<1>:f r0.0<1;1,0>:f\n" + sim.epilogues[case.platform].splitlines()[2].replace(
                "r127", "r255"
            )
        text = STARTS[case.platform] + body + end
        report = sim.run(
            case.platform,
            text,
            buffers,
            workgroup=case.workgroup or None,
            grid=(case.groups, 1, 1),
            source=sim.Source("", barriers=case.barriers, slm=case.slm, grf=case.registers),
        )
        found = sim.kinds(report)
        if kinds:
            assert case.kind in found, [str(finding) for finding in report.findings]
        else:
            assert not found, [str(finding) for finding in report.findings]
