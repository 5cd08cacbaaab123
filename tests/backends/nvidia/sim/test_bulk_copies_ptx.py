"""Bulk copies, of tensors and of runs of bytes, compared with numpy; each rule broken by one change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.nvidia.sim import SimulatorError
from convgen.backends.simulation import SimReport
from convgen.ir.error import UserError
from convgen.ir.layout.tensor_map import TensorMap
from tests.backends.nvidia.sim import hopper

Run = Callable[..., SimReport]
Array = npt.NDArray[Any]
RNG = np.random.default_rng(11)
BOX_AT = 1024  #: where the box stands in shared memory
MAP = ".param .align 64 .b8 m[128]"
START = """
    mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; mov.b64 %rd10, m; cvta.param.u64 %rd10, %rd10;
    ld.param.u64 %a0, [p0]; cvta.to.global.u64 %a0, %a0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra W;\n"


def moved(size: int, *, out: bool) -> str:
    """Return statements by which 32 lanes copy the box from shared to global memory (`out`), or back, by 16 bytes."""
    ld, st = ("ld.shared", "st.global") if out else ("ld.global", "st.shared")
    a, b = ("[%r21]", "[%rd21]") if out else ("[%rd21]", "[%r21]")
    return f"""
    shl.b32 %r20, %r0, 4;
COPY: setp.ge.u32 %p3, %r20, {size}; @%p3 bra COPIED;
    add.u32 %r21, %r1, %r20; add.u32 %r21, %r21, {BOX_AT}; cvt.u64.u32 %rd20, %r20; add.u64 %rd21, %a0, %rd20;
    {ld}.v4.b32 {{%r22, %r23, %r24, %r25}}, {a}; {st}.v4.b32 {b}, {{%r22, %r23, %r24, %r25}};
    add.u32 %r20, %r20, 512; bra COPY;
COPIED:
"""


def load_text(tensor: TensorMap, coordinates: tuple[int, ...], offsets: tuple[int, ...] = ()) -> str:
    """Return a kernel that loads a box and copies it to p0."""
    mode = ".im2col" if tensor.kind == "im2col" else ""
    rank, at = len(tensor.dims), ", ".join(map(str, coordinates))
    extra = f", {{{', '.join(map(str, offsets))}}}" if offsets else ""
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    body = f"""{START}
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {tensor.bytes};
    @%p1 {copy} [%r1+{BOX_AT}], [%rd10, {{{at}}}], [%r1]{extra};
    {WAIT}{moved(tensor.bytes, out=True)}"""
    return hopper.kernel(body, f".param .u64 p0, {MAP}", target="sm_90")


def loaded(run: Run, tensor: TensorMap, data: Array, coordinates: tuple[int, ...], offsets: tuple[int, ...] = (),
           **options: Any) -> Array:  # fmt: skip
    """Return the box that a copy brings, as rows of its innermost dimension, without the swizzle."""
    out = np.zeros(tensor.bytes, np.uint8)
    ptx = load_text(tensor, coordinates, offsets)
    report = run(ptx, out, tensor, buffers={"x": data}, shared=BOX_AT + tensor.bytes, **options)
    assert not report.findings, "\n".join(map(str, report.findings))
    place = np.array([hopper.swizzle(BOX_AT + i, tensor.swizzle) - BOX_AT for i in range(tensor.bytes)])
    rows: Array = out[place].view(data.dtype).reshape(-1, tensor.extents[0])
    return rows


def dense(data: Array, element: str, **fields: Any) -> TensorMap:
    """Return the map of an array, whose innermost dimension is its last."""
    strides = tuple(data.strides[:-1][::-1])
    return TensorMap(fields.pop("kind", "tiled"), element, "x", data.shape[::-1], strides, **fields)


def box_of(data: Array, start: tuple[int, ...], extents: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """Return a box of an array with zeros outside it; start, extents and steps innermost first."""
    result = np.zeros(extents[::-1], data.dtype)
    for index in np.ndindex(*extents):
        at = tuple(s + i * step for s, i, step in zip(start, index, steps, strict=True))
        if all(0 <= a < d for a, d in zip(at, data.shape[::-1], strict=True)):
            result[index[::-1]] = data[at[::-1]]
    return result


@pytest.mark.parametrize(
    ("shape", "box", "start", "steps", "swizzle"),
    [
        ((100,), (64,), (40,), (1,), 0),
        ((20, 64), (64, 8), (0, 15), (1, 1), 128),
        ((20, 128), (64, 16), (64, -3), (1, 1), 128),
        ((20, 40), (32, 8), (16, 2), (1, 1), 64),
        ((9, 24), (16, 12), (8, 0), (1, 1), 32),
        ((9, 24), (16, 12), (-8, 4), (1, 1), 0),
        ((6, 7, 32), (32, 5, 3), (0, 4, -1), (1, 1, 1), 64),
        ((3, 6, 7, 16), (16, 4, 4, 2), (0, -1, 3, 1), (1, 2, 2, 1), 32),
        ((2, 3, 4, 5, 16), (8, 3, 2, 2, 2), (8, 3, 1, 2, 1), (1, 1, 1, 1, 1), 0),
        ((5, 32), (32, 5), (0, 1), (2, 1), 32),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_tiled_loads(run: Run, shape: Any, box: Any, start: Any, steps: Any, swizzle: int, early: bool) -> None:
    data = RNG.integers(0, 1 << 16, shape).astype(np.uint16)
    tensor = dense(data, "f16", box=box, element_strides=steps, swizzle=swizzle)
    got = loaded(run, tensor, data, start, early=early)
    assert (got == box_of(data, start, tensor.extents, steps).reshape(got.shape)).all()


@pytest.mark.parametrize("element", ["u8", "f32", "f64"])
def test_elements_of_all_sizes(run: Run, element: str) -> None:
    dtype = {"u8": np.uint8, "f32": np.float32, "f64": np.float64}[element]
    data = RNG.integers(0, 99, (10, 48)).astype(dtype)
    tensor = dense(data, element, box=(16, 4))
    assert (loaded(run, tensor, data, (32, 8)) == box_of(data, (32, 8), (16, 4), (1, 1))).all()
    odd = np.zeros((10, 48), dtype)
    odd[:, :41] = data[:, :41]
    clipped = TensorMap("tiled", element, "x", (41, 10), (odd.strides[0],), box=(16, 4))
    assert (loaded(run, clipped, data, (32, 8)) == box_of(odd, (32, 8), (16, 4), (1, 1))).all()


def test_workgroups_have_boxes_of_their_own(run: Run) -> None:
    data = RNG.integers(0, 1 << 16, (40, 64)).astype(np.uint16)
    tensor, out = dense(data, "f16", box=(64, 8), swizzle=128), np.zeros((5, 1024), np.uint8)
    ptx = load_text(tensor, (0, 4)).replace("{0, 4}", "{0, %r40}")
    own = "mov.u32 %r40, %ctaid.x; mul.wide.u32 %rd30, %r40, 1024; add.u64 %a0, %a0, %rd30; shl.b32 %r40, %r40, 3;"
    ptx = hopper.edited(ptx, "@%p1 mbarrier.init", f"{own} @%p1 mbarrier.init")
    report = run(ptx, out, tensor, buffers={"x": data}, shared=BOX_AT + 1024, grid=(5, 1, 1))
    assert not report.findings, "\n".join(map(str, report.findings))
    place = np.array([hopper.swizzle(i, 128) for i in range(1024)])
    assert (np.ascontiguousarray(out[:, place]).view(np.uint16).reshape(40, 64) == data).all()


def convolved(
    data: Array, start: tuple[int, ...], offsets: tuple[int, ...], kernel: Any, pad: Any, stride: Any, channels: int,
    pixels: int,
) -> Array:  # fmt: skip
    """Return rows of an implicit matrix of a convolution, from the output pixel that `start` names on.

    All but data is along W, then H (, D); data is [N, (D,) H, W, C].
    """
    spatial = data.shape[-2:0:-1]
    counts = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(spatial, pad, kernel, stride, strict=True)]
    first = [(c + p) // t for c, p, t in zip(start[1:-1], pad, stride, strict=True)]
    number = sum(f * int(np.prod(counts[:i])) for i, f in enumerate(first))
    rows = np.zeros((pixels, channels), data.dtype)
    per_image = int(np.prod(counts))
    for row in range(pixels):
        image, rest = divmod(number + row, per_image)
        image += start[-1]
        at = []
        for count, p, t, offset in zip(counts, pad, stride, offsets, strict=True):
            at.append(rest % count * t - p + offset)
            rest //= count
        inside = image < len(data) and all(0 <= a < s for a, s in zip(at, spatial, strict=True))
        if inside:
            found = data[(image, *at[::-1])][start[0] : start[0] + channels]
            rows[row, : len(found)] = found
    return rows


@pytest.mark.parametrize(
    ("shape", "kernel", "pad", "stride", "taps", "first", "channels", "pixels", "swizzle"),
    [
        ((2, 6, 5, 64), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0, 0), 64, 32, 128),
        ((2, 6, 5, 64), (3, 3), (1, 1), (1, 1), (2, 1), (3, 2, 0), 64, 64, 128),
        ((2, 7, 6, 40), (3, 3), (1, 1), (2, 2), (1, 2), (1, 1, 0), 32, 16, 64),
        ((2, 7, 6, 40), (3, 3), (0, 2), (3, 2), (2, 0), (0, 1, 1), 16, 24, 32),
        ((1, 5, 5, 8), (5, 3), (2, 1), (1, 1), (4, 2), (0, 0, 0), 8, 40, 0),
        ((3, 9, 32), (3,), (1,), (2,), (1,), (2, 0), 32, 12, 64),
        ((2, 3, 4, 5, 16), (3, 3, 3), (1, 1, 1), (1, 2, 1), (1, 2, 0), (2, 0, 1, 0), 16, 48, 32),
    ],
)
def test_im2col_loads(
    run: Run, shape: Any, kernel: Any, pad: Any, stride: Any, taps: Any, first: Any, channels: int, pixels: int,
    swizzle: int,
) -> None:  # fmt: skip
    data = RNG.integers(1, 1 << 16, shape).astype(np.uint16)
    lower = tuple(-p for p in pad)
    upper = tuple(p - (k - 1) for p, k in zip(pad, kernel, strict=True))
    tensor = dense(data, "f16", kind="im2col", lower=lower, upper=upper, channels=channels, pixels=pixels,
                   element_strides=(1, *stride, 1), swizzle=swizzle)  # fmt: skip
    start = (32 if shape[-1] == 40 and channels == 32 else 0,
             *(f * t - p for f, t, p in zip(first[:-1], stride, pad, strict=True)), first[-1])  # fmt: skip
    got = loaded(run, tensor, data, start, taps)
    assert (got == convolved(data, start, taps, kernel, pad, stride, channels, pixels)).all()


# ---------------------------------------------------------------- stores


def store_text(tensor: TensorMap, coordinates: tuple[int, ...], copy: str) -> str:
    """Return a kernel that brings p0 into shared memory by lanes and stores it as a box."""
    at = ", ".join(map(str, coordinates))
    body = f"""{START}{moved(tensor.bytes, out=False)}
    fence.proxy.async.shared::cta;
    bar.sync 1;
    @%p1 {copy} [%rd10, {{{at}}}], [%r1+{BOX_AT}];
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group.read 0;
    bar.sync 2;
    @%p1 st.shared.b32 [%r1+{BOX_AT}], 77;
    """
    return hopper.kernel(body, f".param .u64 p0, {MAP}", target="sm_90")


def stored(run: Run, tensor: TensorMap, rows: Array, data: Array, coordinates: tuple[int, ...], copy: str,
           **options: Any) -> None:  # fmt: skip
    """Store a box of rows, swizzled, into the buffer of a tensor map."""
    raw, flat = np.zeros(tensor.bytes, np.uint8), rows.reshape(-1).view(np.uint8)
    for i in range(0, tensor.bytes, 16):
        at = hopper.swizzle(BOX_AT + i, tensor.swizzle) - BOX_AT
        raw[at : at + 16] = flat[i : i + 16]
    ptx = store_text(tensor, coordinates, copy)
    report = run(ptx, raw, tensor, buffers={"x": data}, shared=BOX_AT + tensor.bytes, **options)
    assert not report.findings, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("early", [False, True])
def test_tiled_stores_clip_what_is_outside(run: Run, early: bool) -> None:
    data = np.zeros((9, 72), np.uint16)
    rows = RNG.integers(1, 1 << 16, (8, 64)).astype(np.uint16)
    tensor = dense(data, "bf16", box=(64, 8), swizzle=128)
    copy = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    stored(run, tensor, rows, data, (16, 4), copy, early=early)
    assert (data[4:, 16:] == rows[:5, :56]).all()
    assert not data[:4].any()
    assert not data[:, :16].any()


def test_pixels_are_stored_to_strided_tensors(run: Run) -> None:
    data = np.zeros((2, 6, 8, 32), np.uint16)
    rows = RNG.integers(1, 1 << 16, (20, 32)).astype(np.uint16)
    phase = data[:, 1::2, 0::2]  # 3 x 4 pixels an image
    tensor = TensorMap("im2col", "f16", "x", phase.shape[::-1], phase.strides[-2::-1], lower=(0, 0), upper=(0, 0),
                       channels=32, pixels=20, swizzle=64, shift=8 * 64)  # fmt: skip
    copy = "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group"
    stored(run, tensor, rows, data, (0, 2, 1, 0), copy)
    assert (phase.reshape(24, 32)[6:] == rows[:18]).all()
    assert np.count_nonzero(data) == 18 * 32


@pytest.mark.parametrize(
    ("operation", "element", "function"),
    [("add", "f32", np.add), ("min", "s32", np.minimum), ("max", "u32", np.maximum), ("xor", "u32", np.bitwise_xor),
     ("add", "u64", np.add), ("add", "f16", np.add), ("add", "bf16", np.add),
     ("inc", "u32", lambda a, b: np.where(a >= b, 0, a + 1))],
)  # fmt: skip
def test_reductions(run: Run, operation: str, element: str, function: Any) -> None:
    dtype = {
        "f32": np.float32,
        "s32": np.int32,
        "u32": np.uint32,
        "u64": np.uint64,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
    }
    low, most = (0, 1 << 40) if element == "u64" else (0 if element == "u32" else -99, 99)
    data, rows = (RNG.integers(low, most, shape).astype(dtype[element]) for shape in ((8, 16), (4, 16)))
    before = data.copy()
    tensor = dense(data, element, box=(16, 4))
    stored(run, tensor, rows, data, (0, 6), f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.bulk_group")
    assert (data[6:] == function(before[6:], rows[:2])).all()
    assert (data[:6] == before[:6]).all()


# ---------------------------------------------------------------- runs of bytes

RUNS = """
    ld.param.u64 %a1, [p1]; cvta.to.global.u64 %a1, %a1; ld.param.u64 %a0, [p0]; cvta.to.global.u64 %a0, %a0;
    mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, 512;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @!%p1 bra W;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+64], [%a0], %r2, [%r1];
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1+576], [%a0+512], 512, [%r1], %rd9;
W:  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra W;
    @!%p1 bra DONE;
    cp.async.bulk.global.shared::cta.bulk_group [%a1], [%r1+64], 1024;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a1+1024], [%r1+64], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
"""


@pytest.mark.parametrize("early", [False, True])
def test_runs_of_bytes(run: Run, early: bool) -> None:
    data, out = np.arange(256, dtype=np.uint32), np.ones(512, np.uint32)
    ptx = hopper.kernel(RUNS, ".param .u64 p0, .param .u64 p1", target="sm_90")
    assert not run(ptx, data, out, early=early, shared=2048).findings
    assert (out[:256] == data).all()
    assert (out[256:] == data + 1).all()


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("mov.u32 %r2, 512;", "mov.u32 %r2, 520;", "operand"),
        ("[%r1+576], [%a0+512]", "[%r1+584], [%a0+512]", "misaligned"),
        ("[%r1+576], [%a0+512]", "[%r1+576], [%a0+520]", "misaligned"),
        ("[%r1+576], [%a0+512]", "[%r1+2048], [%a0+512]", "out-of-bounds"),
        ("[%r1+576], [%a0+512]", "[%r1+576], [%a0+528]", "out-of-bounds"),
        ("[%r1+576], [%a0+512]", "[%r1+560], [%a0+512]", "bulk-copy"),
        ("[%r1], 1024;", "[%r1], 1008;", "mbarrier"),
        ("[%r1], 1024;", "[%r1], 1040;", "mbarrier"),
        ("[%r1], 1024;", "[%r1], 512;", "mbarrier"),
        ("[%r1+64], [%a0]", "[%r1], [%a0]", "mbarrier"),
        ("cp.async.bulk.wait_group 0;", "", "bulk-copy"),
        ("cp.async.bulk.commit_group;", "", "bulk-copy"),
        ("W:  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra W;", "W:", "bulk-copy"),
        ("@%p1 fence.mbarrier_init.release.cluster;", "", "mbarrier"),
        ("@!%p1 bra W;\n", "", "mbarrier"),
    ],
)
def test_runs_and_each_of_their_changes(run: Run, cut: str, instead: str, kind: str) -> None:
    data, out = np.arange(256, dtype=np.uint32), np.ones(512, np.uint32)
    ptx = hopper.kernel(RUNS, ".param .u64 p0, .param .u64 p1", target="sm_90")
    assert kind in hopper.judged(run, ptx, cut, instead, data, out, shared=2048)


# ---------------------------------------------------------------- order


def _box() -> tuple[Array, TensorMap]:
    data = RNG.integers(1, 99, (20, 64)).astype(np.uint16)
    return data, dense(data, "f16", box=(64, 8), swizzle=128)


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("[%rd10, {0, 4}]", "[%rd10, {4, 4}]", "misaligned"),
        ("[%r1+1024], [", "[%r1+1152], [", "misaligned"),
        ("[%rd10, {0, 4}]", "[%rd11, {0, 4}]", "poison"),
        ("cvta.param.u64 %rd10, %rd10;", "", "operand"),
        ("tensor.2d", "tensor.2d.tile", ""),
        (
            "complete_tx::bytes [%r1+1024], [%rd10, {0, 4}], [%r1];",
            "complete_tx::bytes.L2::cache_hint [%r1+1024], [%rd10, {0, 4}], [%r1], %rd9;",
            "",
        ),
        ("bar.sync 0;", "prefetch.tensormap [%rd10]; bar.sync 0;", ""),
        ("bar.sync 0;", "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd10, {0, 4}]; bar.sync 0;", ""),
        ("bar.sync 0;", "cp.async.bulk.prefetch.L2.global [%a0], 64; bar.sync 0;", ""),
        ("{0, 4}", "{0, 4, 0}", "refused"),
        ("tensor.2d.shared::cluster.global", "tensor.3d.shared::cluster.global", "refused"),
        (".global.mbarrier", ".global.im2col.mbarrier", "refused"),
        (WAIT, "", "bulk-copy"),
        ("[%r1], 1024;\n", "[%r1], 1008;\n", "mbarrier"),
        ("bar.sync 0;", "", "mbarrier"),
        ("@%p1 fence.mbarrier_init.release.cluster;", "", "mbarrier"),
        ("@%p1 fence.mbarrier_init.release.cluster;", "@%p1 fence.proxy.async;", ""),
        ("bar.sync 0;\n", "bar.sync 0; st.shared.b32 [%r1+1028], %r0;\n", "shared-race"),
        ("bar.sync 0;\n", "st.shared.b32 [%r1+1028], 1; bar.sync 0;\n", "proxy"),
        ("bar.sync 0;\n", "st.shared.b32 [%r1+1028], 1; fence.proxy.async; bar.sync 0;\n", ""),
        ("bar.sync 0;\n", "bar.sync 0; ld.param.b32 %r9, [m]; @%p1 st.global.b32 [%a0], %r9;\n", "poison"),
    ],
)
def test_loads_and_each_of_their_changes(run: Run, cut: str, instead: str, kind: str) -> None:
    data, tensor = _box()
    ptx, out = load_text(tensor, (0, 4)), np.zeros(1024, np.uint8)
    options: dict[str, Any] = {"buffers": {"x": data}, "shared": 4096, "block": (64, 1, 1)}
    ptx = ptx.replace("shl.b32 %r20, %r0, 4;", "and.b32 %r20, %r0, 31; shl.b32 %r20, %r20, 4;")
    if kind == "refused":
        with pytest.raises(Exception, match="wanted"):
            run(hopper.edited(ptx, cut, instead), out, tensor, **options)
        return
    found = hopper.judged(run, ptx, cut, instead, out, tensor, **options)
    assert kind in found if kind else not found


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("fence.proxy.async.shared::cta;", "", "proxy"),
        ("fence.proxy.async.shared::cta;\n    bar.sync 1;", "bar.sync 1; fence.proxy.async.shared::cta;", "proxy"),
        ("bar.sync 1;", "", "shared-race"),
        ("@%p1 cp.async.bulk.commit_group;", "", "bulk-copy"),
        ("@%p1 cp.async.bulk.wait_group.read 0;", "", "bulk-copy"),
        ("@%p1 cp.async.bulk.wait_group.read 0;", "@%p1 cp.async.bulk.wait_group.read 1;", "shared-race"),
        ("bar.sync 2;\n    @%p1 st.shared", "setp.eq.u32 %p1, %r0, 32; @%p1 st.shared", "shared-race"),
    ],
)
def test_stores_and_each_of_their_changes(run: Run, cut: str, instead: str, kind: str) -> None:
    data, tensor = _box()
    copy = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    raw = np.ones(1024, np.uint8)
    ptx = store_text(tensor, (0, 4), copy)
    ptx = ptx.replace("shl.b32 %r20, %r0, 4;", "and.b32 %r20, %r0, 31; shl.b32 %r20, %r20, 4;")
    options: dict[str, Any] = {"buffers": {"x": data}, "shared": 4096, "block": (64, 1, 1)}
    found = hopper.judged(run, ptx, cut, instead, raw, tensor, **options)
    assert kind in found


def handed_over_text(tensor: TensorMap) -> str:
    """Return a kernel whose warp 0 copies two boxes, one over the other once warp 1 has loaded the first."""
    copy = "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    expected = f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {tensor.bytes};"
    start = START.replace("], 1;\n", "], 1; @%p1 mbarrier.init.shared::cta.b64 [%r1+8], 1;\n", 1)
    body = f"""{start}
    and.b32 %r2, %r0, 31; setp.eq.u32 %p4, %r2, 0; setp.ge.u32 %p5, %r0, 32;
    {expected} {copy} [%r1+{BOX_AT}], [%rd10, {{0, 4}}], [%r1];
    @%p5 bra LOAD;
    EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0; @!%p2 bra EMPTY;
    {expected} {copy} [%r1+{BOX_AT}], [%rd10, {{0, 12}}], [%r1];
    bra SECOND;
    LOAD: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra LOAD;
    shl.b32 %r3, %r2, 4; add.u32 %r3, %r3, %r1;
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3+{BOX_AT}];
    fence.proxy.async.shared::cta; bar.warp.sync -1;
    @%p4 mbarrier.arrive.shared::cta.b64 _, [%r1+8];
    SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 1; @!%p2 bra SECOND;
    """
    return hopper.kernel(body, f".param .u64 p0, {MAP}", target="sm_90")


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("fence.proxy.async.shared::cta;", "", "proxy"),
        ("fence.proxy.async.shared::cta; bar.warp.sync -1;\n    @%p4", "bar.warp.sync -1; @%p4", "proxy"),
        ("fence.proxy.async.shared::cta;", "@%p4 fence.proxy.async.shared::cta;", "proxy"),
        ("fence.proxy.async.shared::cta; bar.warp.sync -1;", "bar.warp.sync -1; fence.proxy.async;", ""),
        ("bar.warp.sync -1;", "", "shared-race"),
        ("@%p4 mbarrier.arrive", "fence.proxy.async; @%p4 mbarrier.arrive", ""),
        ("EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0; @!%p2 bra EMPTY;", "", "bulk-copy"),
    ],
)
def test_a_copy_overwrites_only_what_lanes_have_loaded(run: Run, cut: str, instead: str, kind: str) -> None:
    """On an H200, a copy behind an arrival overwrote what `ldmatrix` ahead of the arrival was to load."""
    data, tensor = _box()
    options: dict[str, Any] = {"buffers": {"x": data}, "shared": 4096, "block": (64, 1, 1)}
    found = hopper.judged(run, handed_over_text(tensor), cut, instead, np.zeros(8, np.uint8), tensor, **options)
    assert kind in found if kind else not found


_FENCE = "fence.proxy.async.shared::cta; bar.warp.sync -1;"
_ELSEWHERE = "@%p4 mbarrier.arrive.shared::cta.b64 _, [%r1+16];"  #: nobody waits for this mbarrier


@pytest.mark.parametrize(
    ("handing_over", "kind"),
    [
        (f"bar.warp.sync -1; {_ELSEWHERE} {_FENCE}", ""),
        (f"bar.warp.sync -1; {_ELSEWHERE} fence.proxy.async; ld.shared.b32 %r8, [%r3+2048]; bar.warp.sync -1;", ""),
        (f"bar.warp.sync -1; {_ELSEWHERE} bar.warp.sync -1;", "proxy"),
        ("fence.proxy.async; st.shared.b32 [%r3+2048], %r4; bar.warp.sync -1;", ""),
        ("fence.proxy.async; ld.shared.b32 %r8, [%r3+2048]; bar.warp.sync -1;", ""),
        (f"{_FENCE} ld.shared.b32 %r8, [%r3+1024]; bar.warp.sync -1;", "proxy"),
        (f"{_FENCE} {_ELSEWHERE} ld.shared.b32 %r8, [%r3+1024]; bar.warp.sync -1;", "proxy"),
        ("@%p6 fence.proxy.async; @!%p6 fence.proxy.async; bar.warp.sync -1;", ""),
        ("@%p6 fence.proxy.async; @%p6 fence.proxy.async; bar.warp.sync -1;", "proxy"),
        ("bar.arrive 1, 64;", ""),
        ("bar.sync 1, 64;", ""),
        ("bar.arrive 1, 64; ld.shared.b32 %r8, [%r3+1024]; bar.warp.sync -1;", "proxy"),
    ],
)
def test_a_fence_or_barrier_ends_the_loads_ahead_of_it_only(run: Run, handing_over: str, kind: str) -> None:
    data, tensor = _box()
    text = hopper.edited(handed_over_text(tensor), _FENCE, handing_over)
    text = hopper.edited(text, "[%r1+8], 1;", "[%r1+8], 1; @%p1 mbarrier.init.shared::cta.b64 [%r1+16], 1;")
    first = "mad.lo.u32 %r9, %r0, 16, %r1; st.shared.v4.b32 [%r9+2048], {%r0, %r0, %r0, %r0}; setp.lt.u32 %p6, %r2, 16;"
    text = hopper.edited(text, "bar.sync 0;", f"and.b32 %r2, %r0, 31; {first} bar.sync 0;")
    if "bar." in handing_over and ", 64;" in handing_over:
        text = hopper.edited(text, "EMPTY:", "bar.sync 1, 64; EMPTY:")
    options: dict[str, Any] = {"buffers": {"x": data}, "shared": 4096, "block": (64, 1, 1)}
    report = run(text, np.zeros(8, np.uint8), tensor, **options)
    assert {finding.kind for finding in report.findings} == ({kind} if kind else set())


def test_targets_without_bulk_copies_are_refused(run: Run) -> None:
    ptx = hopper.kernel("cp.async.bulk.commit_group;", "", target="sm_80")
    with pytest.raises(SimulatorError, match="sm_90 or later"):
        run(ptx)


def test_a_launch_without_its_tensor_map_is_refused(run: Run) -> None:
    _, tensor = _box()
    with pytest.raises(SimulatorError, match="given no tensor map at offset 64"):
        run(load_text(tensor, (0, 4)), np.zeros(1024, np.uint8), 0, shared=4096)


def test_a_source_that_changes_in_flight_is_found(run: Run) -> None:
    data, tensor = _box()
    ptx = load_text(tensor, (0, 0)).replace(WAIT, "@%p1 st.global.b32 [%a0], %r0; " + WAIT)
    same = TensorMap("tiled", "f16", "p0", (64, 8), (128,), box=(64, 8), swizzle=128)
    report = run(ptx, np.ones(1024, np.uint8), same, buffers={"x": data}, shared=4096)
    assert "bulk-copy" in {finding.kind for finding in report.findings}


# ---------------------------------------------------------------- limits of maps

TILED: dict[str, Any] = {
    "kind": "tiled", "element": "f16", "buffer": "x", "dims": (64, 8), "strides": (128,), "box": (64, 8),
    "swizzle": 128,
}  # fmt: skip
IM2COL: dict[str, Any] = {
    "kind": "im2col", "element": "f16", "buffer": "x", "dims": (64, 8, 8, 2), "strides": (128, 1024, 8192),
    "lower": (-1, -1), "upper": (-1, -1), "channels": 64, "pixels": 64,
}  # fmt: skip


def test_maps_at_their_limits() -> None:
    assert TensorMap(**{**TILED, "dims": (1 << 32, 1), "box": (64, 256)}).bytes == 64 * 256 * 2
    assert TensorMap(**{**TILED, "element_strides": (1, 8)}).extents == (64, 1)
    assert TensorMap(**{**IM2COL, "lower": (-128, 127), "upper": (127, -128), "pixels": 1024, "channels": 256}).pixels
    narrow = {"dims": (64, 8, 2), "strides": (128, 1024), "lower": (-32768,), "upper": (32767,)}
    assert TensorMap(**{**IM2COL, **narrow}).steps == (1, 1, 1)


@pytest.mark.parametrize(
    ("base", "change", "why"),
    [
        (TILED, {"kind": "plane"}, "kind 'plane'"),
        (TILED, {"element": "s4"}, "element type 's4'"),
        (TILED, {"dims": (64,) * 6}, "6 dimensions"),
        (IM2COL, {"dims": (64, 8)}, "2 dimensions"),
        (TILED, {"dims": (64, 0)}, "dims"),
        (TILED, {"strides": ()}, "0 strides"),
        (TILED, {"strides": (120,)}, "multiples of 16"),
        (TILED, {"shift": 8}, "begins 8 bytes"),
        (TILED, {"element_strides": (1, 9)}, "element strides"),
        (TILED, {"swizzle": 16}, "swizzle of 16"),
        (TILED, {"swizzle": 64}, "at most the swizzle's 64"),
        (TILED, {"box": (64, 257)}, "the box"),
        (TILED, {"box": (4, 8), "swizzle": 0}, "multiple of 16"),
        (TILED, {"pixels": 8}, "wanted a box"),
        (IM2COL, {"lower": (-129, 0)}, "lower corner"),
        (IM2COL, {"upper": (0,)}, "upper corner"),
        (IM2COL, {"dims": (64, 8, 2), "strides": (128, 1024), "lower": (-32769,), "upper": (0,)}, "-32768 to 32767"),
        (IM2COL, {"dims": (64, 8, 2), "strides": (128, 1024), "lower": (0,), "upper": (32768,)}, "-32768 to 32767"),
        (TILED, {"dims": (64, (1 << 32) + 1)}, "dims"),
        (TILED, {"strides": (1 << 40,)}, "below 2"),
        (TILED, {"strides": (-128,)}, "below 2"),
        (TILED, {"element_strides": (0, 1)}, "element strides"),
        (TILED, {"box": (64, 0)}, "the box"),
        (IM2COL, {"pixels": 0}, "0 pixels"),
        (IM2COL, {"channels": 0}, "0 channels"),
        (IM2COL, {"upper": (128, 0)}, "upper corner"),
        (IM2COL, {"dims": (64, 4, 4, 4, 2), "strides": (128, 512, 2048, 8192), "lower": (-17, 0, 0),
                  "upper": (0, 0, 0)}, "-16 to 15"),
        (IM2COL, {"channels": 257}, "257 channels"),
        (IM2COL, {"pixels": 1025}, "1025 pixels"),
        (IM2COL, {"box": (1,)}, "wanted corners"),
    ],
)  # fmt: skip
def test_maps_that_the_driver_refuses(base: dict[str, Any], change: dict[str, Any], why: str) -> None:
    assert TensorMap(**base).bytes in (1024, 8192)
    with pytest.raises(UserError, match=why) as raised:
        TensorMap(**{**base, **change})
    assert "\n" not in str(raised.value)
