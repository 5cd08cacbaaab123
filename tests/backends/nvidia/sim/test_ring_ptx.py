"""A matrix product with roles: bulk tensor copies into a ring of mbarriers, wgmma, stmatrix, bulk tensor stores.

One producer warpgroup of which a lane works, two consumer warpgroups of 64 rows each, two tiles of 128 x 128 one after
the other, 32 of K a block, three slots, and for each consumer two panels of 64 columns on their way out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.simulation import SimReport
from convgen.ir.layout.tensor_map import TensorMap
from tests.backends.nvidia.sim import hopper

Run = Callable[..., SimReport]
Array = npt.NDArray[Any]
RNG = np.random.default_rng(13)
SLOTS, SLOT, RING = 3, 16 << 10, 1024
PANELS = RING + SLOTS * SLOT
SHARED = PANELS + 4 * (8 << 10)
PARAMETERS = ", ".join(f".param .align 64 .b8 {name}[128]" for name in ("ma", "mb", "mc"))
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"

START = """
    mov.u32 %r1, s; shr.u32 %r2, %r0, 7; setp.eq.u32 %p1, %r0, 0;
    mov.b64 %rd1, ma; cvta.param.u64 %rd1, %rd1; mov.b64 %rd2, mb; cvta.param.u64 %rd2, %rd2;
    mov.b64 %rd3, mc; cvta.param.u64 %rd3, %rd3;
    @!%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.init.shared::cta.b64 [%r1+8], 1;
    mbarrier.init.shared::cta.b64 [%r1+16], 1; mbarrier.init.shared::cta.b64 [%r1+24], 2;
    mbarrier.init.shared::cta.b64 [%r1+32], 2; mbarrier.init.shared::cta.b64 [%r1+40], 2;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    mov.u32 %r10, 0; mov.u32 %r12, 0;
    setp.ne.u32 %p2, %r2, 0; @%p2 bra CONSUME;
"""
ADVANCE = """
    add.u32 %r10, %r10, 1; setp.eq.u32 %p7, %r10, 3; @%p7 xor.b32 %r11, %r11, 1; @%p7 mov.u32 %r10, 0;
"""
PRODUCER = f"""
    setmaxnreg.dec.sync.aligned.u32 40;
    @!%p1 bra DONE;
    mov.u32 %r11, 1; mov.u32 %r13, 0;
PRODUCE:
    shl.b32 %r3, %r10, 3; add.u32 %r3, %r3, %r1; mad.lo.u32 %r4, %r10, {SLOT}, %r1; add.u32 %r4, %r4, {RING};
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+24], %r11; @!%p3 bra EMPTY;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {SLOT};
    {LOAD} [%r4], [%rd1, {{%r13, 0}}], [%r3];
    {LOAD} [%r4+{SLOT // 2}], [%rd2, {{%r13, %r12}}], [%r3];
    {ADVANCE}
    add.u32 %r13, %r13, 32; setp.lt.u32 %p4, %r13, 128; @%p4 bra PRODUCE;
    mov.u32 %r13, 0; add.u32 %r12, %r12, 128; setp.lt.u32 %p4, %r12, 256; @%p4 bra PRODUCE;
    bra DONE;
"""
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " + hopper.numbered("%f", 64)
#: Waits until the slot at %r4 is full, and multiplies its two steps of K; %r3: its barrier, %r11: the phase.
MULTIPLY_BLOCK = f"""\
add.u64 %rd12, %rd10, %rd4; add.u64 %rd13, %rd11, %rd4; add.u64 %rd14, %rd12, 2; add.u64 %rd15, %rd13, 2;
    setp.ne.u32 %p4, %r20, 0;
FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], %r11; @!%p3 bra FULL;
    wgmma.fence.sync.aligned;
    {MULTIPLY}, %rd12, %rd13, %p4, 1, 1, 0, 0;
    {MULTIPLY}, %rd14, %rd15, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;"""
#: %r5: the consumer's number, %r6: its thread, %p5: its first thread, %rd10, %rd11: descriptors of slot 0.
CONSUMER = f"""
CONSUME:
    setmaxnreg.inc.sync.aligned.u32 232;
    mov.u32 %r11, 0; sub.u32 %r5, %r2, 1; and.b32 %r6, %r0, 127; setp.eq.u32 %p5, %r6, 0; add.u32 %r7, %r2, 0;
    add.u32 %r3, %r1, {RING}; mad.lo.u32 %r4, %r5, 4096, %r3; shr.u32 %r4, %r4, 4; cvt.u64.u32 %rd4, %r4;
    mov.b64 %rd5, {hopper.descriptor(0, 64, 0, 512)}; add.u64 %rd10, %rd5, %rd4;
    add.u32 %r4, %r3, {SLOT // 2}; shr.u32 %r4, %r4, 4; cvt.u64.u32 %rd4, %r4; add.u64 %rd11, %rd5, %rd4;
    shr.u32 %r14, %r6, 5; and.b32 %r15, %r6, 31; shr.u32 %r16, %r15, 3; and.b32 %r17, %r15, 7;
    and.b32 %r18, %r16, 1; shl.b32 %r18, %r18, 3; mad.lo.u32 %r18, %r14, 16, %r18; add.u32 %r18, %r18, %r17;
    shr.u32 %r19, %r16, 1; shl.b32 %r18, %r18, 7; add.u32 %r18, %r18, %r1; mad.lo.u32 %r18, %r5, 16384, %r18;
    add.u32 %r18, %r18, {PANELS}; shl.b32 %r21, %r5, 6;
    mad.lo.u32 %r22, %r5, 16384, %r1; add.u32 %r22, %r22, {PANELS};
TILE:
    mov.u32 %r20, 0;
BLOCK:
    shl.b32 %r3, %r10, 3; add.u32 %r3, %r3, %r1; shl.b32 %r4, %r10, 10; cvt.u64.u32 %rd4, %r4;
    {MULTIPLY_BLOCK}
    wgmma.wait_group.sync.aligned 1;
    and.pred %p6, %p4, %p5;
    @%p6 mbarrier.arrive.shared::cta.b64 _, [%r23+24];
    mov.u32 %r23, %r3;
    {ADVANCE}
    add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 4; @%p3 bra BLOCK;
    wgmma.wait_group.sync.aligned 0;
    @%p5 mbarrier.arrive.shared::cta.b64 _, [%r23+24];
"""


def panel(number: int) -> str:
    """Return the way out of a panel of 64 columns: registers, shared memory, global memory."""
    lines = ["@%p5 cp.async.bulk.wait_group.read 1;", "bar.sync %r7, 128;"]
    for group in range(4):  # of 16 columns
        first = 32 * number + 8 * group
        for i in range(4):
            lines.append(f"cvt.rn.f16x2.f32 %r{30 + i}, %f{first + 2 * i + 1}, %f{first + 2 * i};")
        lines.append(f"add.u32 %r24, %r19, {2 * group}; xor.b32 %r24, %r24, %r17; mad.lo.u32 %r24, %r24, 16, %r18;")
        at = f"[%r24+{8192 * number}]"
        lines.append(f"stmatrix.sync.aligned.m8n8.x4.shared.b16 {at}, {{%r30, %r31, %r32, %r33}};")
    lines += ["fence.proxy.async.shared::cta;", "bar.sync %r7, 128;", f"add.u32 %r25, %r12, {64 * number};"]
    lines.append(f"@%p5 {STORE} [%rd3, {{%r25, %r21}}], [%r22+{8192 * number}];")
    lines.append("@%p5 cp.async.bulk.commit_group;")
    return "\n".join(lines)


END = """
    add.u32 %r12, %r12, 128; setp.lt.u32 %p3, %r12, 256; @%p3 bra TILE;
    @%p5 cp.async.bulk.wait_group.read 0;
DONE:
"""
TEXT = hopper.kernel(START + PRODUCER + CONSUMER + panel(0) + panel(1) + END, PARAMETERS, ".maxntid 384")


def run_ring(run: Run, ptx: str, a: Array, b: Array, c: Array, **options: Any) -> SimReport:
    """Run the kernel on A [128, 128], B [256, 128] and C [128, 256]."""
    maps = [
        TensorMap("tiled", "f16", name, array.shape[::-1], array.strides[:1], box=box, swizzle=swizzle)
        for name, array, box, swizzle in (("a", a, (32, 128), 64), ("b", b, (32, 128), 64), ("c", c, (64, 64), 128))
    ]
    return run(ptx, *maps, buffers={"a": a, "b": b, "c": c}, block=(384, 1, 1), shared=SHARED, **options)


def operands() -> tuple[Array, Array, Array]:
    """Return A, B and an empty C."""
    a, b = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((128, 128), (256, 128)))
    return a, b, np.zeros((128, 256), np.float16)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_ring_with_roles(run: Run, early: bool, order: str) -> None:
    a, b, c = operands()
    report = run_ring(run, TEXT, a, b, c, early=early, wave_order=order)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (c == a.astype(np.float64) @ b.astype(np.float64).T).all()


CHANGES = [
    ("fence.mbarrier_init.release.cluster;", "", {"mbarrier"}),
    ("bar.sync 0;", "", {"mbarrier"}),
    ("[%r1+24], 2;", "[%r1+24], 1;", {"mbarrier", "shared-race"}),
    ("[%r1+24], 2;", "[%r1+24], 3;", {"mbarrier"}),
    ("mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+24], %r11; @!%p3 bra EMPTY;", "", {"shared-race"}),
    ("mov.u32 %r11, 1; mov.u32 %r13", "mov.u32 %r11, 0; mov.u32 %r13", {"mbarrier"}),
    (f"[%r3], {SLOT};", f"[%r3], {SLOT - 16};", {"mbarrier"}),
    (f"[%r3], {SLOT};", f"[%r3], {SLOT + 16};", {"mbarrier"}),
    (f"[%r3], {SLOT};", f"[%r3], {SLOT // 2};", {"mbarrier"}),
    ("mbarrier.arrive.expect_tx.shared::cta.b64 _", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 _", {"refused"}),
    (f"{LOAD} [%r4], [%rd1, {{%r13, 0}}], [%r3];", "", {"mbarrier"}),
    ("mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], %r11; @!%p3 bra FULL;", "", {"bulk-copy", "poison"}),
    ("mov.u32 %r11, 0; sub", "mov.u32 %r11, 1; sub", {"bulk-copy", "poison"}),
    ("wgmma.fence.sync.aligned;", "", {"wgmma"}),
    ("wgmma.commit_group.sync.aligned;", "", {"wgmma"}),
    ("wgmma.wait_group.sync.aligned 1;", "", {"shared-race"}),
    ("wgmma.wait_group.sync.aligned 0;", "", {"wgmma"}),
    ("@%p6 mbarrier.arrive.shared::cta.b64 _, [%r23+24];", "", {"mbarrier"}),
    ("[%r23+24];\n    mov.u32 %r23, %r3;", "[%r3+24];\n    mov.u32 %r23, %r3;", {"shared-race", "mbarrier"}),
    ("@%p5 cp.async.bulk.wait_group.read 1;", "", {"shared-race"}),
    ("@%p5 cp.async.bulk.wait_group.read 1;", "@%p5 cp.async.bulk.wait_group.read 2;", {"shared-race"}),
    ("@%p5 cp.async.bulk.wait_group.read 0;", "", {"bulk-copy"}),
    ("@%p5 cp.async.bulk.commit_group;", "", {"bulk-copy", "shared-race"}),
    ("fence.proxy.async.shared::cta;", "", {"proxy"}),
    ("fence.proxy.async.shared::cta;\nbar.sync %r7, 128;", "bar.sync %r7, 128;\nfence.proxy.async;", {"proxy"}),
    ("fence.proxy.async.shared::cta;\nbar.sync %r7, 128;", "fence.proxy.async.shared::cta;", {"shared-race"}),
    ("read 1;\nbar.sync %r7, 128;", "read 1;", {"shared-race"}),
    ("add.u32 %r7, %r2, 0;", "mov.u32 %r7, 1;", {"barrier", "shared-race"}),
    ("setmaxnreg.dec.sync.aligned.u32 40;", "", {"setmaxnreg"}),
    (".maxntid 384", "", {"setmaxnreg"}),
]  # fmt: skip


@pytest.mark.parametrize(("cut", "instead", "kinds"), CHANGES)
def test_each_change_of_the_ring_is_found(run: Run, cut: str, instead: str, kinds: set[str]) -> None:
    assert cut in TEXT
    ptx = TEXT.replace(cut, instead)
    if kinds == {"refused"}:
        with pytest.raises(Exception, match="wanted"):
            run_ring(run, ptx, *operands())
        return
    found: set[str] = set()
    for early in (False, True):
        for order in ("forward", "reverse"):
            report = run_ring(run, ptx, *operands(), early=early, wave_order=order)
            found |= {finding.kind for finding in report.findings}
            if found & kinds:
                return
    raise AssertionError(found)


# ---------------------------------------------------------------- consumers that take turns

#: The bytes of a slot: 64 rows of A, 128 of B. Tile t has rows 64 (t % 2) and columns 128 (t / 2).
TURN_SLOT = 12 << 10
TURN_PRODUCER = f"""
    @!%p1 bra DONE;
    mov.u32 %r11, 1; mov.u32 %r13, 0;
PRODUCE:
    shl.b32 %r3, %r10, 3; add.u32 %r3, %r3, %r1; mad.lo.u32 %r4, %r10, {TURN_SLOT}, %r1; add.u32 %r4, %r4, {RING};
    and.b32 %r14, %r12, 1; shl.b32 %r14, %r14, 6; shr.u32 %r15, %r12, 1; shl.b32 %r15, %r15, 7;
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+24], %r11; @!%p3 bra EMPTY;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {TURN_SLOT};
    {LOAD} [%r4], [%rd1, {{%r13, %r14}}], [%r3];
    {LOAD} [%r4+4096], [%rd2, {{%r13, %r15}}], [%r3];
    {ADVANCE}
    add.u32 %r13, %r13, 32; setp.lt.u32 %p4, %r13, 128; @%p4 bra PRODUCE;
    mov.u32 %r13, 0; add.u32 %r12, %r12, 1; setp.lt.u32 %p4, %r12, 8; @%p4 bra PRODUCE;
    bra DONE;
"""
#: %r5: the consumer's number and first tile, %r8, %r9: barriers of its turn and of the next one.
TURN_CONSUMER = f"""
CONSUME:
    mov.u32 %r11, 0; sub.u32 %r5, %r2, 1; and.b32 %r6, %r0, 127; setp.eq.u32 %p5, %r6, 0;
    add.u32 %r8, %r5, 4; sub.u32 %r9, 5, %r5; mov.u32 %r12, %r5; setp.eq.u32 %p8, %r5, 0;
    add.u32 %r3, %r1, {RING}; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd4, %r4;
    mov.b64 %rd5, {hopper.descriptor(0, 64, 0, 512)}; add.u64 %rd10, %rd5, %rd4; add.u64 %rd11, %rd10, 256;
    @%p8 bra TILE;
    bar.arrive 4, 256;
    {ADVANCE * 4}
TILE:
    mov.u32 %r20, 0;
    bar.sync %r8, 256;
BLOCK:
    shl.b32 %r3, %r10, 3; add.u32 %r3, %r3, %r1; mul.lo.u32 %r4, %r10, {TURN_SLOT // 16}; cvt.u64.u32 %rd4, %r4;
    {MULTIPLY_BLOCK}
    wgmma.wait_group.sync.aligned 0;
    @%p5 mbarrier.arrive.shared::cta.b64 _, [%r3+24];
    {ADVANCE}
    add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 4; @%p3 bra BLOCK;
    bar.arrive %r9, 256;
    {ADVANCE * 4}
    and.b32 %r14, %r12, 1; shr.u32 %r15, %r12, 1; mul.lo.u32 %r16, %r15, 256; mad.lo.u32 %r16, %r14, 128, %r16;
    add.u32 %r16, %r16, %r6; mul.wide.u32 %rd6, %r16, 4; add.u64 %rd7, %a0, %rd6;
"""
TURN_END = """
    add.u32 %r12, %r12, 2; setp.lt.u32 %p3, %r12, 8; @%p3 bra TILE;
DONE:
"""


def turns() -> str:
    """Return the kernel: a consumer has every second tile, and multiplies while the other one stores."""
    start = START.replace("[%r1+24], 2;", "[%r1+24], 1;").replace("[%r1+32], 2;", "[%r1+32], 1;")
    start = start.replace("[%r1+40], 2;", "[%r1+40], 1;").replace("mov.b64 %rd3, mc; cvta.param.u64 %rd3, %rd3;", "")
    start = "ld.param.u64 %a0, [p2]; cvta.to.global.u64 %a0, %a0;" + start
    stores = "\n".join(f"st.global.f32 [%rd7+{4 * 1024 * i}], %f{i};" for i in range(64))
    parameters = ".param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128], .param .u64 p2"
    return hopper.kernel(start + TURN_PRODUCER + TURN_CONSUMER + stores + TURN_END, parameters)


def run_turns(run: Run, ptx: str, **options: Any) -> tuple[bool, set[str]]:
    """Return whether the product [128, 512] is right, and the kinds of findings."""
    a, b = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((128, 128), (512, 128)))
    out = np.zeros((64, 4, 2, 128), np.float32)  # number, columns, rows, thread
    maps = [
        TensorMap("tiled", "f16", name, array.shape[::-1], array.strides[:1], box=(32, rows), swizzle=64)
        for name, array, rows in (("a", a, 64), ("b", b, 128))
    ]
    shared = RING + SLOTS * TURN_SLOT
    report = run(ptx, *maps, out, buffers={"a": a, "b": b}, block=(384, 1, 1), shared=shared, **options)
    number, thread = np.arange(64)[:, None], np.arange(128)
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (number // 2 % 2)
    column = 8 * (number // 4) + 2 * (thread % 4) + number % 2
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).reshape(2, 64, 4, 128)
    right = all((out[:, j, i] == wanted[i][row, j, column]).all() for i in range(2) for j in range(4))
    return right, {finding.kind for finding in report.findings}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_consumers_take_turns(run: Run, early: bool, order: str) -> None:
    """Each consumer waits for some phases of a barrier only: it knows of the others by its turn."""
    assert run_turns(run, turns(), early=early, wave_order=order) == (True, set())


@pytest.mark.parametrize(
    ("cut", "instead"),
    [
        ("bar.sync %r8, 256;", ""),
        ("bar.arrive %r9, 256;", ""),
        ("bar.arrive 4, 256;", ""),
        ("@%p5 mbarrier.arrive.shared::cta.b64 _, [%r3+24];", ""),
        ("wgmma.wait_group.sync.aligned 0;", ""),
        ("mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], %r11; @!%p3 bra FULL;", ""),
    ],
)
def test_each_change_of_the_turns_is_found(run: Run, cut: str, instead: str) -> None:
    ptx = hopper.edited(turns(), cut, instead)
    found = [run_turns(run, ptx, early=early, wave_order=o) for early in (False, True) for o in ("forward", "reverse")]
    assert any(kinds for _, kinds in found)
