"""wgmma of each type, layout and swizzle, and each rule of its order broken by one change to a clean kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.nvidia.sim import SimulatorError
from convgen.backends.simulation import SimReport
from tests.backends.nvidia.sim import hopper

Run = Callable[..., SimReport]
Array = npt.NDArray[Any]
RNG = np.random.default_rng(9)
SHARED = 64 << 10
B_AT = 32 << 10  #: bytes; where B begins


def kinds(report: SimReport) -> set[str]:
    """Return the kinds of a report's findings."""
    return {finding.kind for finding in report.findings}


PARAMETERS = ".param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u32 p4"

#: Bytes p0 into shared memory, registers of C from p1, a product with descriptors p2 and p3, D back into p1.
PRODUCT = """
    ld.param.u64 %a0, [p0]; ld.param.u64 %a1, [p1]; ld.param.u64 %rd10, [p2]; ld.param.u64 %rd11, [p3];
    ld.param.u32 %r1, [p4]; setp.ne.u32 %p2, %r1, 0;
    mov.u32 %r1, s; shl.b32 %r3, %r0, 4;
COPY:
    cvt.u64.u32 %rd1, %r3; add.u64 %rd2, %a0, %rd1; add.u32 %r4, %r1, %r3;
    ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd2]; st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
    add.u32 %r3, %r3, 2048; setp.lt.u32 %p1, %r3, 65536; @%p1 bra COPY;
    mul.wide.u32 %rd3, %r0, 4; add.u64 %rd4, %a1, %rd3;
    {loads}
    fence.proxy.async;
    bar.sync 0;
    wgmma.fence.sync.aligned;
    {product}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    {stores}
"""


def text(types: tuple[str, str, str], n: int, trailing: str, *, left: bool = False, modifier: str = "") -> str:
    """Return a kernel of one product, of A from registers if `left`: then C's registers are followed by A's."""
    result, a, b = types
    k = 32 // np.dtype(hopper.NUMPY[a]).itemsize
    count = n // 4 if result == "f16" else n // 2
    d = hopper.numbered("%r", count, 20)
    loads = "".join(f"ld.global.b32 %r{20 + i}, [%rd4+{512 * i}];" for i in range(count + 4 * left))
    stores = "".join(f"st.global.b32 [%rd4+{512 * i}], %r{20 + i};" for i in range(count))
    first = hopper.numbered("%r", 4, 20 + count) if left else "%rd10"
    product = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{modifier}.{result}.{a}.{b} {d}, {first}, %rd11, %p2{trailing};"
    body = PRODUCT.replace("{loads}", loads).replace("{product}", product).replace("{stores}", stores)
    return hopper.kernel(body, PARAMETERS)


def matrix(kind: str, rows: int, columns: int) -> Array:
    """Return whole numbers that sums of any type keep exactly."""
    if kind in ("s8", "u8"):
        info = np.iinfo(hopper.NUMPY[kind])
        return RNG.integers(info.min, info.max + 1, (rows, columns)).astype(hopper.NUMPY[kind])
    values: Array = RNG.integers(-4, 5, (rows, columns)).astype(np.float32).astype(hopper.NUMPY[kind])
    return values


def places(n: int) -> tuple[Array, Array]:
    """Return row and column of each number [numbers, 128 threads] (PTX ISA, wgmma: register fragments of D)."""
    i, thread = np.arange(n // 2)[:, None], np.arange(128)
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
    return row, 8 * (i // 4) + 2 * (thread % 4) + i % 2


def pack(c: Array, result: str) -> Array:
    """Return the registers [registers, 128] of C [64, n]."""
    numbers = c[places(c.shape[1])]
    if result == "f16":
        halves = numbers.astype(np.float16).view(np.uint16).astype(np.uint32)
        return halves[0::2] | halves[1::2] << 16
    return numbers.astype({"f32": np.float32, "s32": np.int32}[result]).view(np.uint32)


def unpack(registers: Array, n: int, result: str) -> Array:
    """Return D [64, n] of its registers."""
    numbers: Array = registers.view({"f32": np.float32, "s32": np.int32, "f16": np.uint32}[result])
    if result == "f16":
        both = np.stack([numbers & 0xFFFF, numbers >> 16], axis=1).astype(np.uint16)
        numbers = both.reshape(n // 2, 128).view(np.float16)
    d = np.zeros((64, n), numbers.dtype)
    d[places(n)] = numbers
    return d


def strides(span: int, size: int, *, transposed: bool) -> tuple[int, int]:
    """Return leading and stride bytes of dense operands of up to 256 rows."""
    if span:
        return (16 * span, 8 * span) if transposed else (0, 8 * span)
    return (128 * 32, 128) if transposed else (128, 256)


def multiply(
    run: Run, types: tuple[str, str, str], a: Array, b: Array, c: Array, *,
    spans: tuple[int, int] = (128, 128), transposed: tuple[bool, bool] = (False, False), trailing: str = "",
    adds: int = 1, left: bool = False, modifier: str = "", shift: int = 0,
) -> Array:  # fmt: skip
    """Return D = A B' + C of matrices A [64, k], B [n, k]."""
    image = np.zeros(SHARED, np.uint8)
    describers = []
    for operand, at, span, across in zip((a, b), (shift, B_AT + shift), spans, transposed, strict=True):
        leading, stride = strides(span, operand.itemsize, transposed=across)
        hopper.put(image, operand, at, span, leading, stride, transposed=across)
        describers.append(hopper.descriptor(at, span, leading, stride))
    registers = pack(c, types[0])
    if left:
        lane, word = np.arange(128), 4 // a.itemsize
        row = 16 * (lane // 32) + lane % 32 // 4
        parts = []
        for i in range(4):
            columns = (lane % 4 * word + 4 * word * (i // 2))[:, None] + np.arange(word)
            parts.append(np.ascontiguousarray(a[(row + 8 * (i % 2))[:, None], columns]).view(np.uint32)[:, 0])
        registers = np.concatenate((registers, np.stack(parts)))
    registers = np.ascontiguousarray(registers)
    ptx = text(types, len(b), trailing, left=left, modifier=modifier)
    report = run(ptx, image, registers, *describers, adds, block=(128, 1, 1), shared=SHARED)
    assert not report.findings, "\n".join(map(str, report.findings))
    return unpack(np.ascontiguousarray(registers[: len(pack(c, types[0]))]), len(b), types[0])


SCALES = ", 1, 1"
TYPES = [
    (("f32", "f16", "f16"), f"{SCALES}, 0, 0"), (("f16", "f16", "f16"), f"{SCALES}, 0, 0"),
    (("f32", "bf16", "bf16"), f"{SCALES}, 0, 0"), (("f32", "tf32", "tf32"), SCALES),
    *(((d, a, b), SCALES) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *((("s32", a, b), "") for a in ("s8", "u8") for b in ("s8", "u8")),
]  # fmt: skip


def operands(types: tuple[str, str, str], n: int) -> tuple[Array, Array, Array]:
    """Return A [64, k], B [n, k] and C [64, n]."""
    k = 32 // np.dtype(hopper.NUMPY[types[1]]).itemsize
    return matrix(types[1], 64, k), matrix(types[2], n, k), RNG.integers(-99, 99, (64, n))


def exact(a: Array, b: Array, c: Array | int = 0) -> Array:
    """Return A B' + C."""
    result: Array = a.astype(np.float64) @ b.astype(np.float64).T + c
    return result


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("types", "trailing"), TYPES, ids=lambda v: "-".join(v) if isinstance(v, tuple) else "")
@pytest.mark.parametrize("span", [128, 64, 32, 0])
@pytest.mark.parametrize("n", [8, 48])
def test_types_and_swizzles(run: Run, types: tuple[str, str, str], trailing: str, span: int, n: int) -> None:
    a, b, c = operands(types, n)
    shift = 32 if span == 128 else 0  # a step along K within the swizzle
    assert (multiply(run, types, a, b, c, spans=(span, span), trailing=trailing, shift=shift) == exact(a, b, c)).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("spans", [(128, 128), (64, 32), (32, 64), (0, 0), (0, 128)])
@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)])
def test_operands_whose_rows_are_major(
    run: Run, kind: str, spans: tuple[int, int], transposed: tuple[bool, bool]
) -> None:
    types = ("f32", kind, kind)
    a, b, c = operands(types, 64)
    trailing = f"{SCALES}, {int(transposed[0])}, {int(transposed[1])}"
    got = multiply(run, types, a, b, c, spans=spans, transposed=transposed, trailing=trailing)
    assert (got == exact(a, b, c)).all()


@pytest.mark.parametrize(("types", "trailing"), TYPES, ids=lambda v: "-".join(v) if isinstance(v, tuple) else "")
def test_a_from_registers(run: Run, types: tuple[str, str, str], trailing: str) -> None:
    a, b, c = operands(types, 256 if types[0] == "f16" else 16)
    trailing = trailing.removesuffix(", 0")
    assert (multiply(run, types, a, b, c, trailing=trailing, left=True) == exact(a, b, c)).all()


@pytest.mark.parametrize("shift", [3 * 128, 5 * 128 + 64])
def test_a_descriptor_may_begin_at_any_row_of_a_swizzle(run: Run, shift: int) -> None:
    types = ("f32", "f16", "f16")
    a, b, c = operands(types, 48)
    assert (multiply(run, types, a, b, c, trailing=f"{SCALES}, 0, 0", shift=shift) == exact(a, b, c)).all()


def test_rows_may_overlap(run: Run) -> None:
    """Windows of a line 8 elements apart: rows of a group 16 bytes apart, chunks of K as far, groups a line apart."""
    line = 80  # elements
    image, b = matrix("f16", 8, line), matrix("f16", 16, 16)
    a = np.stack([image[r // 8, 8 * (r % 8) : 8 * (r % 8) + 16] for r in range(64)])
    memory = np.zeros(SHARED, np.uint8)
    memory[: image.nbytes] = image.view(np.uint8).reshape(-1)
    hopper.put(memory, b, B_AT, 128, 0, 1024, transposed=False)
    describers = hopper.descriptor(0, 0, 16, 2 * line), hopper.descriptor(B_AT, 128, 0, 1024)
    registers = np.zeros((8, 128), np.uint32)
    report = run(text(*PLAIN), memory, registers, *describers, 0, block=(128, 1, 1), shared=SHARED)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (unpack(registers, 16, "f32") == exact(a, b)).all()


def test_scales_negate_and_scale_d_drops_the_accumulators(run: Run) -> None:
    types = ("f32", "f16", "f16")
    a, b, c = operands(types, 16)
    for first, second in ((-1, 1), (1, -1), (-1, -1)):
        got = multiply(run, types, a, b, c, trailing=f", {first}, {second}, 0, 0")
        assert (got == exact(a, b) * first * second + c).all()
    assert (multiply(run, types, a, b, c, trailing=f"{SCALES}, 0, 0", adds=0) == exact(a, b)).all()


def test_integers_wrap_or_saturate(run: Run) -> None:
    types = ("s32", "s8", "s8")
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    c = np.full((64, 8), 2**31 - 5)
    assert (multiply(run, types, a, b, c) == 32 * 127 * 127 - 5 - 2**31).all()
    assert (multiply(run, types, a, b, c, modifier=".satfinite") == 2**31 - 1).all()


def _one_sum(run: Run, kind: str, products: list[float], c: float) -> float:
    dtype = hopper.NUMPY[kind]
    k = 32 // np.dtype(dtype).itemsize
    a, b = np.zeros((64, k), dtype), np.zeros((8, k), dtype)
    for i, product in enumerate(products):
        exponent = int(np.floor(np.log2(abs(product)))) // 2 if product else 0
        a[0, i], b[0, i] = product / 2.0**exponent, 2.0**exponent
    trailing = f"{SCALES}, 0, 0" if kind in ("f16", "bf16") else SCALES
    return float(multiply(run, ("f32", kind, kind), a, b, np.full((64, 8), c), trailing=trailing)[0, 0])


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_sums_are_cut_as_measured_on_h200(run: Run, kind: str) -> None:
    for k in (20, 25, 26):
        assert _one_sum(run, kind, [2.0**k, -(2.0**k), 1.0], 0.0) == (1.0 if k <= 25 else 0.0)
    for k in (23, 24):
        assert _one_sum(run, kind, [1.0], 2.0**k) == 2.0**k + (k == 23)
    assert _one_sum(run, kind, [1.0, 1.0, 1.0], 2.0**24) == 2**24 + 2
    assert _one_sum(run, kind, [-1.0, -1.0, -1.0], -(2.0**24)) == -(2**24) - 2


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_sums_of_8_bit_floats_keep_14_bits(run: Run, kind: str) -> None:
    for k in (12, 13, 14):
        assert _one_sum(run, kind, [2.0**k, -(2.0**k), 1.0], 0.0) == (1.0 if k <= 13 else 0.0)
        assert _one_sum(run, kind, [1.0], 2.0**k) == 2.0**k + (k <= 13)
    assert _one_sum(run, kind, [1.0, 1.0, 1.0], 2.0**24) == 2**24
    assert _one_sum(run, kind, [-1.0, -1.0, -1.0], -(2.0**24)) == -(2**24)


# ---------------------------------------------------------------- order

PLAIN = (("f32", "f16", "f16"), 16, f"{SCALES}, 0, 0")
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}"
ONE = "wgmma.mma_async"
APART = "and.b32 %r200, %r0, {}; cvt.u64.u32 %rd20, %r200; add.u64 %rd10, %rd10, %rd20;"


def plain_values() -> tuple[Array, Array, int, int, int]:
    """Return the arguments of a product of zeros."""
    first, second = (hopper.descriptor(at, 128, 0, 1024) for at in (0, B_AT))
    return np.zeros(SHARED, np.uint8), np.zeros((12, 128), np.uint32), first, second, 1


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        (FENCE, "", "wgmma"),
        (FENCE, f"{FENCE} mov.b32 %r21, 0;", "wgmma"),
        (FENCE, f"{FENCE} add.u32 %r200, %r21, 1;", "wgmma"),
        (COMMIT, "", "wgmma"),
        (WAIT, "", "wgmma"),
        (WAIT, WAIT.replace("0;", "1;"), "wgmma"),
        (WAIT, f"mov.b32 %r21, 0; {WAIT}", "wgmma"),
        (f"{COMMIT}\n    {WAIT}", f"{WAIT} {COMMIT}", "wgmma"),
        ("fence.proxy.async;", "", "proxy"),
        ("fence.proxy.async;\n    bar.sync 0;", "bar.sync 0; fence.proxy.async;", "proxy"),
        ("bar.sync 0;", "", "shared-race"),
        (FENCE, f"{FENCE} setp.lt.u32 %p3, %r0, 96; @!%p3 bra REST;", "wgmma"),
        (FENCE, f"{FENCE} setp.lt.u32 %p3, %r0, 16; @!%p3 bra REST;", "divergence"),
        (ONE, "@%p3 wgmma.mma_async", "poison"),
        (FENCE, f"{FENCE} {APART.format(1)}", "operand"),
        (FENCE, f"{FENCE} {APART.format(32)}", "divergence"),
        *((FENCE, f"{FENCE} add.u64 %rd10, %rd10, {1 << bit};", "operand") for bit in (14, 15, 30, 31, 46, 48, 52, 61)),
        (FENCE, f"{FENCE} add.u64 %rd10, %rd10, 0x2000000000000;", "operand"),
        (FENCE, f"{FENCE} add.u64 %rd11, %rd11, 2048;", "out-of-bounds"),
    ],
)  # fmt: skip
def test_order_of_products(run: Run, cut: str, instead: str, kind: str) -> None:
    ptx = hopper.edited(text(*PLAIN), "ret;", "REST:\n ret;")
    found = hopper.judged(run, ptx, cut, instead, *plain_values(), block=(128, 1, 1), shared=SHARED)
    assert kind in found


def test_a_fence_behind_the_barrier_is_advised_against(run: Run) -> None:
    late = hopper.edited(text(*PLAIN), "fence.proxy.async;\n    bar.sync 0;", "bar.sync 0; fence.proxy.async;")
    options: dict[str, Any] = {"block": (128, 1, 1), "shared": SHARED}
    (finding,) = run(late, *plain_values(), **options).findings
    assert (finding.kind, finding.source.required) == ("proxy", False)
    some = late.replace("fence.proxy.async;", "setp.lt.u32 %p3, %r0, 96; @%p3 fence.proxy.async;")
    (finding,) = run(some, *plain_values(), **options).findings
    assert (finding.kind, finding.source.required) == ("proxy", True)


def test_a_warpgroup_has_four_warps(run: Run) -> None:
    report = run(text(*PLAIN), *plain_values(), block=(96, 1, 1), shared=SHARED)
    assert "divergence" in kinds(report)
    assert any("fewer than 4 warps" in finding.message for finding in report.findings)


def test_descriptors_are_defined(run: Run) -> None:
    ptx = text(*PLAIN).replace("%rd10, %rd11, %p2", "%rd40, %rd11, %p2")
    assert "poison" in kinds(run(ptx, *plain_values(), block=(128, 1, 1), shared=SHARED))


def test_products_end_before_their_threads(run: Run) -> None:
    ptx = text(*PLAIN).partition("st.global")[0] + "ret; }"
    options: dict[str, Any] = {"block": (128, 1, 1), "shared": SHARED}
    assert not run(ptx, *plain_values(), **options).findings
    for cut in (WAIT, COMMIT):
        (finding,) = run(hopper.edited(ptx, cut, ""), *plain_values(), **options).findings
        assert (finding.kind, "ends with 1 products in flight" in finding.message) == ("wgmma", True)


def test_uncommitted_products_are_named(run: Run) -> None:
    report = run(hopper.edited(text(*PLAIN), COMMIT, ""), *plain_values(), block=(128, 1, 1), shared=SHARED)
    assert any("commit_group" in finding.message for finding in report.findings)


def test_accumulators_in_flight_are_of_one_shape(run: Run) -> None:
    again = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, %rd10, %rd11, 1, 1, 1, 0, 0;"
    equal = f"{MULTIPLY}, %rd10, %rd11, 1, 1, 1, 0, 0;"
    values = plain_values()
    clean = hopper.edited(text(*PLAIN), COMMIT, f"{equal} {COMMIT}")
    assert hopper.judged(run, clean, equal, again, *values, block=(128, 1, 1), shared=SHARED) == {"wgmma"}
    mixed = equal.replace("%r20, %r21", "%r21, %r20")
    assert hopper.judged(run, clean, equal, mixed, *values, block=(128, 1, 1), shared=SHARED) == {"wgmma"}


def in_turn() -> str:
    """Return a kernel of one product that warp after warp of the warpgroup executes."""
    start = "shr.u32 %r210, %r0, 5; and.b32 %r211, %r0, 31; shl.b32 %r212, %r210, 3; add.u32 %r212, %r212, %r1; "
    start += f"add.u32 %r212, %r212, {SHARED}; setp.eq.u32 %p9, %r211, 0; "
    start += "@%p9 mbarrier.init.shared.b64 [%r212], 1; fence.proxy.async;"
    wait = "setp.gt.u32 %p10, %r0, 31; @!%p10 bra MINE; "
    wait += "TURN: mbarrier.try_wait.parity.shared.b64 %p11, [%r212], 0; @!%p11 bra TURN; MINE: "
    arrive = f"{COMMIT} setp.lt.u32 %p12, %r210, 3; and.pred %p12, %p12, %p9; "
    arrive += "@%p12 mbarrier.arrive.shared.b64 _, [%r212+8];"
    ptx = hopper.edited(text(*PLAIN), "fence.proxy.async;", start)
    return hopper.edited(hopper.edited(ptx, FENCE, wait + FENCE), COMMIT, arrive)


def test_warps_that_come_apart_execute_equal_products(run: Run) -> None:
    """Each warp waits for an mbarrier on which the warp before it arrives behind its product."""
    ptx, options = in_turn(), {"block": (128, 1, 1), "shared": SHARED + 1024}
    assert not run(ptx, *plain_values(), **options).findings
    for warp in range(4):
        change = f"setp.eq.u32 %p7, %r210, {warp}; @%p7 add.u64 %rd11, %rd11, 1; {FENCE}"
        assert "divergence" in kinds(run(hopper.edited(ptx, FENCE, change), *plain_values(), **options))


def test_a_wait_lasts_until_all_warps_have_executed_the_product(run: Run) -> None:
    ptx, options = in_turn(), {"block": (128, 1, 1), "shared": SHARED + 1024}
    stored = f"setp.eq.u32 %p7, %r0, 0; @%p7 st.shared.b32 [%r1], 7; {WAIT}"
    first = hopper.edited(ptx, WAIT, WAIT + stored.removesuffix(WAIT))
    assert not run(first, *plain_values(), **options).findings
    assert "shared-race" in kinds(run(hopper.edited(ptx, WAIT, stored), *plain_values(), **options))
    alone = hopper.edited(ptx, "@%p12 mbarrier.arrive", "setp.eq.u32 %p12, %r0, 0; @%p12 mbarrier.arrive")
    found = run(hopper.edited(alone, "setp.gt.u32 %p10", "setp.eq.u32 %p13, %r210, 3; @%p13 ret; setp.gt.u32 %p10"),
                *plain_values(), **options).findings  # fmt: skip
    assert any(f.kind == "wgmma" and "other warps of its warpgroup never execute" in f.message for f in found)


def test_another_shape_wants_a_fence(run: Run) -> None:
    again = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, %rd10, %rd11, 1, 1, 1, 0, 0;"
    factors = f"{MULTIPLY.replace('%r2', '%r4')}, {{%r20, %r21, %r22, %r23}}, %rd11, 0, 1, 1, 0;"
    for product in (again, factors):
        clean = hopper.edited(text(*PLAIN), WAIT, f"{WAIT} wgmma.fence.sync.aligned; {product} {COMMIT} {WAIT}")
        found = hopper.judged(run, clean, f"{WAIT} wgmma.fence.sync.aligned;", WAIT, *plain_values(),
                              block=(128, 1, 1), shared=SHARED)  # fmt: skip
        assert found == {"wgmma"}


def test_registers_of_a_belong_to_the_product(run: Run) -> None:
    ptx = text(("f32", "f16", "f16"), 16, f"{SCALES}, 0", left=True)
    values = plain_values()
    options = {"block": (128, 1, 1), "shared": SHARED}
    for statement in ("mov.b32 %r28, 0;", "add.u32 %r200, %r31, 1;"):
        assert hopper.judged(run, ptx, WAIT, f"{statement} {WAIT}", *values, **options) == {"wgmma"}
        assert hopper.judged(run, ptx, ONE, f"{statement} {ONE}", *values, **options) == {"wgmma"}


def test_undefined_operands_spoil_their_rows_and_columns(run: Run) -> None:
    ptx = hopper.edited(text(*PLAIN), "st.shared.v4.b32", "setp.lt.u32 %p4, %r3, 34000; @%p4 st.shared.v4.b32")
    report = run(ptx, *plain_values(), block=(128, 1, 1), shared=SHARED)
    assert {(f.kind, "st.global" in f.instruction) for f in report.findings} == {("poison", True)}


def test_all_warps_of_a_warpgroup_finish_before_one_goes_on(run: Run) -> None:
    """Warp 0 overwrites what its own wait has released; the other warps multiply later."""
    slow = "setp.lt.u32 %p5, %r0, 32; @%p5 bra GO; mov.u32 %r200, 0; SPIN: add.u32 %r200, %r200, 1;"
    slow += "setp.lt.u32 %p6, %r200, 50; @%p6 bra SPIN; GO: "
    ptx = hopper.edited(text(*PLAIN), FENCE, slow + FENCE)
    stored = "setp.eq.u32 %p7, %r0, 0; @%p7 st.shared.b32 [s], %r0; @%p7 st.shared.b32 [s], 7;"
    ptx = hopper.edited(ptx, WAIT, f"{WAIT} {stored}")
    options = {"block": (128, 1, 1), "shared": SHARED}
    for order in ("forward", "reverse"):
        found = hopper.judged(run, ptx, WAIT, "", *plain_values(), wave_order=order, **options)
        assert {"shared-race", "wgmma"} <= found


@pytest.mark.parametrize(
    ("cut", "instead", "why"),
    [
        (".target sm_90a", ".target sm_90", "wanted .target sm_90a"),
        ("m64n16k16", "m64n16k32", "k of 32 bytes"),
        ("m64n16k16", "m64n12k16", "an n that the types have"),
        (".f32.f16.f16", ".f32.f16.bf16", "a combination"),
        (".f32.f16.f16", ".f32.tf32.tf32", "k of 32 bytes"),
        ("1, 1, 0, 0;", "1, 1, 0;", "operands"),
        ("1, 1, 0, 0;", "1, 0, 0, 0;", "1 or -1"),
        ("%r26, %r27}", "%r26}", "7 registers"),
        (".sync.aligned.m64", ".sync.m64", "without .sync.aligned"),
    ],
)
def test_products_that_ptx_lacks_are_refused(run: Run, cut: str, instead: str, why: str) -> None:
    with pytest.raises(SimulatorError, match=why):
        run(hopper.edited(text(*PLAIN), cut, instead), *plain_values(), block=(128, 1, 1), shared=SHARED)


# ---------------------------------------------------------------- a matrix product without roles

SLOT = 16 << 10  #: bytes: 128 rows of A, then of B, 64 bytes each
BLOCKS, SLOTS = 4, 3


def _copies(block: int) -> str:
    """Return the copies of a block of 32 k into its slot, swizzled in rows of 64 bytes."""
    lines = []
    for pointer, at in (("%rd12", 0), ("%rd13", SLOT // 2)):
        for half in (0, 1):
            to = block % SLOTS * SLOT + at + half * 4096
            lines.append(f"cp.async.cg.shared.global [%r6+{to}], [{pointer}+{block * 64 + half * 64 * 256}], 16;")
    return "\n".join([*lines, "cp.async.commit_group;"])


def gemm() -> str:
    """Return a product of [128, 128] and [128, 128]' in f16, all lanes copying, products in flight across barriers."""
    declared, loads = hopper.pointers(3)
    d = hopper.numbered("%f", 64)
    body = [
        loads,
        "shr.u32 %r1, %r0, 2; and.b32 %r2, %r0, 3; mul.lo.u32 %r3, %r1, 256; mad.lo.u32 %r3, %r2, 16, %r3;",
        "cvt.u64.u32 %rd1, %r3; add.u64 %rd12, %a0, %rd1; add.u64 %rd13, %a1, %rd1;",
        "bfe.u32 %r4, %r1, 1, 2; xor.b32 %r4, %r4, %r2; shl.b32 %r5, %r1, 6; mad.lo.u32 %r5, %r4, 16, %r5;",
        "mov.u32 %r7, s; add.u32 %r6, %r7, %r5; shr.u32 %r8, %r0, 7; mad.lo.u32 %r9, %r8, 4096, %r7;",
        f"mov.b64 %rd20, {hopper.descriptor(0, 64, 0, 512)}; shr.u32 %r9, %r9, 4; cvt.u64.u32 %rd1, %r9;",
        f"add.u64 %rd21, %rd20, %rd1; add.u64 %rd22, %rd20, {SLOT // 2 // 16};",
        _copies(0),
    ]
    for block in range(BLOCKS):
        at = block % SLOTS * SLOT // 16
        body += ["cp.async.wait_group 0;", "fence.proxy.async;", "wgmma.wait_group.sync.aligned 1;", "bar.sync 0;"]
        body.append("wgmma.fence.sync.aligned;")
        for step in (0, 2):
            body.append(f"add.u64 %rd30, %rd21, {at + step}; add.u64 %rd31, %rd22, {at + step};")
            adds = int(bool(block or step))
            product = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"
            body.append(f"{product} {d}, %rd30, %rd31, {adds}, 1, 1, 0, 0;")
        body.append("wgmma.commit_group.sync.aligned;")
        if block + 1 < BLOCKS:
            body.append(_copies(block + 1))
    body.append("wgmma.wait_group.sync.aligned 0;")
    body.append("mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %a2, %rd1;")
    body += [f"st.global.f32 [%rd2+{1024 * i}], %f{i};" for i in range(64)]
    return hopper.kernel("\n".join(body), declared)


def test_a_matrix_product_by_copies_and_each_of_its_deletions(run: Run) -> None:
    a, b = (RNG.integers(-3, 4, (128, 128)).astype(np.float16) for _ in range(2))
    out = np.zeros((64, 256), np.float32)
    options = {"block": (256, 1, 1), "shared": SLOTS * SLOT}
    ptx = gemm()
    assert not run(ptx, a, b, out, **options).findings
    d = np.concatenate([unpack(np.ascontiguousarray(out[:, 128 * i : 128 * i + 128]), 128, "f32") for i in (0, 1)])
    assert (d == exact(a, b)).all()
    wanted = {
        "cp.async.wait_group 0;": {"cp-async"},
        "fence.proxy.async;": {"proxy"},
        "wgmma.wait_group.sync.aligned 1;": {"shared-race"},
        "bar.sync 0;": {"shared-race", "cp-async", "proxy"},
        "wgmma.fence.sync.aligned;": {"wgmma"},
        "wgmma.commit_group.sync.aligned;": {"wgmma", "shared-race"},
        "wgmma.wait_group.sync.aligned 0;": {"wgmma"},
    }
    for order in ("forward", "reverse"):
        for line, some in wanted.items():
            every = ptx.replace(line, "") if line != "wgmma.fence.sync.aligned;" else hopper.edited(ptx, line, "")
            found = kinds(run(every, a, b, out.copy(), wave_order=order, **options))
            assert found & some, (line, found)


def test_a_predicate_may_differ_between_warpgroups(run: Run) -> None:
    a, b = (RNG.integers(-3, 4, (128, 128)).astype(np.float16) for _ in range(2))
    out = np.zeros((64, 256), np.float32)
    ptx = hopper.edited(gemm(), "shr.u32 %r1", "setp.lt.u32 %p7, %r0, 128; shr.u32 %r1")
    ptx = ptx.replace("wgmma.mma", "@%p7 wgmma.mma")
    ptx = ptx.replace("st.global.f32", "@%p7 st.global.f32")
    report = run(ptx, a, b, out, block=(256, 1, 1), shared=SLOTS * SLOT)
    assert not report.findings, "\n".join(map(str, report.findings))
    d = unpack(np.ascontiguousarray(out[:, :128]), 128, "f32")
    assert (d == exact(a, b)[:64]).all()
    assert not out[:, 128:].any()


def test_many_stores_without_fences_keep_their_order(run: Run) -> None:
    """A loop stores to all of shared memory again and again; a fence behind it counts, one ahead of it does not."""
    again = "mov.u32 %r202, 0; AGAIN: st.shared.b32 [%r203], 0; add.u32 %r202, %r202, 1; "
    again += "setp.lt.u32 %p8, %r202, 600; @%p8 bra AGAIN; "
    ptx = hopper.edited(text(*PLAIN), "fence.proxy.async;", f"shl.b32 %r203, %r0, 2; {again} fence.proxy.async;")
    ptx = hopper.edited(ptx, "add.u32 %r202", "st.shared.b32 [%r203+512], 0; add.u32 %r202")
    options: dict[str, Any] = {"block": (128, 1, 1), "shared": SHARED}
    assert hopper.judged(run, ptx, "fence.proxy.async;", "", *plain_values(), **options) == {"proxy"}
    bare = hopper.edited(ptx, "fence.proxy.async;", "")
    ahead = hopper.edited(bare, "mov.u32 %r202", "fence.proxy.async; mov.u32 %r202")
    assert kinds(run(ahead, *plain_values(), **options)) == {"proxy"}
