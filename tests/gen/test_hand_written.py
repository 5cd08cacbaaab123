"""Kernels that come from no problem: built by hand, compiled, recorded, simulated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.commands import cli
from convgen.ir import types as t
from convgen.ir.build import Index, matrix
from convgen.ir.error import Unsupported, UserError
from convgen.ir.expr import Lane, const
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve
from convgen.run.abi import buffer_accesses
from convgen.run.files import write_code
from convgen.run.launch_record import Buffer, LaunchRecord, MapArgument


def saxpy(lanes: int = 64) -> cg.Kernel:
    """y[i] += n * x[i] over 256 integers: workgroups of one subgroup of so many lanes."""
    k = cg.Kernel("saxpy", grid=(256 // lanes, 1, 1), width=lanes)
    n = k.scalar("n")
    x, y = (k.surface(k.buffer(name, t.s32, 256)) for name in "xy")
    at = k.let("at", (k.group[0] * lanes + Lane()) * 4)
    a = k.global_load("a", t.s32, x, at)
    b = k.global_load("b", t.s32, y, at)
    k.global_store(y, a * n + b, at)
    return k


def arrays() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]:
    return {"x": np.arange(256, dtype=np.int32), "y": np.full(256, 7, np.int32)}


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_compile_and_simulate(target: str) -> None:
    code = cg.compile(saxpy(), target=target, scalars={"n": -3})
    assert code.problem is None
    assert (code.target, code.config, code.name) == (target, "", "saxpy")
    out = cg.simulate(code, **arrays())
    assert np.array_equal(out, 7 - 3 * np.arange(256))


def test_a_finished_kernel_is_the_same() -> None:
    once, again = (cg.compile(k, scalars={"n": 2}) for k in (saxpy(), saxpy().done()))
    assert once.asm == again.asm
    assert str(once).startswith("saxpy on gfx942\n  kernel  saxpy: grid 4x1x1, workgroup 64x1x1\n")


def test_the_record_tells_what_is_read_and_written() -> None:
    code = cg.compile(saxpy(), scalars={"n": 2})
    (launch,) = code.record.launches
    assert launch.grid == (4, 1, 1)
    assert [(a.name, getattr(a, "access", None)) for a in launch.args if not isinstance(a, MapArgument)] == [
        *(("n", None), ("x", "read"), ("y", "readwrite")),
    ]
    buffer = code.record.buffers["x"]
    assert isinstance(buffer, Buffer)
    assert (buffer.tensor.dims, buffer.tensor.dtype) == ((256,), "s32")
    assert LaunchRecord.from_json(code.record.to_json()) == code.record


def test_a_buffer_that_is_only_written() -> None:
    k = cg.Kernel("iota")
    out = k.buffer("out", t.s32, 64)
    k.global_store(k.surface(out), Lane(), Lane() * 4)
    assert buffer_accesses(k.done()) == {"out": "write"}
    assert np.array_equal(cg.simulate(cg.compile(k)), np.arange(64))


@pytest.mark.parametrize("tile_level", [True, False])
def test_a_buffer_that_is_added_to_is_read_and_written(tile_level: bool) -> None:
    k = cg.Kernel("adds")
    out = k.buffer("out", t.f32, 64)
    if tile_level:
        rows = Fragment(("i", "j"), (Digit("i", 64, Space.LANE, 1),))
        k.atomic_view("add", matrix(out, 64, 1), (0, 0), k.zeros(t.vector(t.f32, 1)), rows)
    else:
        k.global_atomic("add", k.surface(out), const(0.0, t.f32), Lane() * 4)
    assert buffer_accesses(k.done()) == {"out": "readwrite"}


def test_a_missing_scalar_is_refused() -> None:
    with pytest.raises(UserError, match="given no value for scalar n of kernel saxpy, wanted one in scalars="):
        cg.compile(saxpy())


def test_the_record_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_code(cg.compile(saxpy(), scalars={"n": 5}), f"{tmp_path}/", ".s", ".hsaco")
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    line = ["run", str(files.launch), "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "executed"  # for nobody knows what is right
    assert cli.main(line[:-1]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split(None, 1) == ["result", "EXECUTED, nothing to compare"]
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), 7 + 5 * np.arange(256))
    assert cli.main(["run", str(files.launch)]) == 2
    assert "wanted a directory of arrays" in capsys.readouterr().err


def test_wrong_arrays_are_refused() -> None:
    code = cg.compile(saxpy(), scalars={"n": 5})
    with pytest.raises(UserError, match="given arrays x 256, wanted x 256, y 256"):
        cg.simulate(code, x=arrays()["x"])
    assert evolve(code, stages={}).kernels["saxpy"].shared_bytes == 0


@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
def test_surfaces_on_a_target_of_flat_addresses(target: str) -> None:
    """The same kernel on Intel, whose subgroups are narrower."""
    lanes = get(target).facts.subgroup_size
    code = cg.compile(saxpy(lanes), target=target, scalars={"n": -3})
    assert np.array_equal(cg.simulate(code, **arrays()), 7 - 3 * np.arange(256))


def test_subgroups_of_another_width_are_refused() -> None:
    with pytest.raises(Unsupported, match="given subgroups of 64 lanes, wanted 16, as xehpc has them, at width= of k"):
        cg.compile(saxpy(), target="xehpc", scalars={"n": 1})


@pytest.mark.parametrize(("of", "target"), [("gfx90a", "gfx942"), ("gfx950", "gfx90a")])
def test_matrix_instructions_of_another_target_are_refused(of: str, target: str) -> None:
    """By the first that compiles for it, not by a table that lacks it."""
    tile = MmaTile(next(a for a in cg.facts(of).atoms if a.a_elem is t.f16), 1, 1, 1)
    k = cg.Kernel("product")
    n, depth = tile.a.shape
    view = matrix(k.buffer("a", t.f16, n * depth), n, depth)
    factors = [k.load_view(name, view, (const(0), const(0)), each) for name, each in (("a0", tile.a), ("b0", tile.b))]
    sums = k.mma("sums", tile, k.zeros(tile.acc_type), *factors)
    k.store_view(matrix(k.buffer("d", t.f32, n * n), n, n), (const(0), const(0)), sums, tile.d)
    cg.compile(k, of)
    with pytest.raises(Unsupported, match=f"given the matrix instruction v_mfma.*, wanted one that {target} has, in k"):
        cg.compile(k, target)


NUMPY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
ARITHMETIC = [
    (target, elem, lanes)
    for target in ("gfx90a", "gfx942", "xehpg", "xehpc")
    for elem in (t.f16, t.f32, t.f64, t.s32)
    for lanes in (1, 2, 4, 8)
    if lanes * elem.bytes <= 32
]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("target", "elem", "lanes"), ARITHMETIC)
def test_arithmetic_is_right_or_refused(target: str, elem: t.Type, lanes: int) -> None:
    """Sums, differences and products, one value and several a lane, also of more bytes than a message takes."""
    count = get(target).facts.subgroup_size * lanes
    dtype = elem.name.replace("s", "int").replace("f", "float")
    x, y = (np.random.default_rng(seed).integers(-9, 9, count).astype(dtype) for seed in (0, 1))
    done = computed(target, elem, lanes, NUMPY, x, y)  # all in one kernel; where one is refused, each by itself
    for name in () if done else NUMPY:
        done |= computed(target, elem, lanes, (name,), x, y)
    for name, value in done.items():
        assert np.array_equal(value, NUMPY[name](x, y))
    assert "add" in done or (elem is t.f64 and target.startswith("xe"))


def computed(target: str, elem: t.Type, lanes: int, names: Iterable[str], x: Any, y: Any) -> dict[str, Any]:
    """What a kernel of some operations computes of each; nothing where one of them is refused."""
    width, type = get(target).facts.subgroup_size, t.vector(elem, lanes) if lanes > 1 else elem
    k = cg.Kernel("k", width=width)
    a, b = (k.surface(k.buffer(n, elem, width * lanes)) for n in "xy")
    at = k.let("at", Lane() * (type.bits // 8))
    left, right = k.global_load("left", type, a, at), k.global_load("right", type, b, at)
    values = {"add": left + right, "subtract": left - right, "multiply": left * right}
    for name in names:
        out = k.surface(k.buffer(name, elem, width * lanes))
        k.global_store(out, k.let("value", values[name]), at)
    try:
        code = cg.compile(k, target=target)
    except Unsupported:
        return {}
    found = cg.simulate(code, x=x, y=y)
    return found if isinstance(found, dict) else dict.fromkeys(names, found)


def test_a_value_added_to_itself() -> None:
    """A let of a float is no operand of addresses."""
    k = cg.Kernel("twice")
    x, y = (k.surface(k.buffer(n, t.f32, 64)) for n in "xy")
    v = k.global_load("v", t.f32, x, Lane() * 4)
    k.global_store(y, k.let("m", v + v), Lane() * 4)
    x_values = np.arange(64, dtype=np.float32)
    assert np.array_equal(cg.simulate(cg.compile(k), x=x_values), 2 * x_values)


@pytest.mark.parametrize("elem", [t.s4, t.u4, t.f4_e2m1])
def test_elements_of_four_bits_come_back(elem: t.Type) -> None:
    k = cg.Kernel("copy")
    x, y = (k.surface(k.buffer(n, elem, 256)) for n in "xy")
    k.global_store(y, k.global_load("v", t.vector(elem, 4), x, Lane() * 2), Lane() * 2)
    given = (np.arange(256) % 16).astype(np.uint8).view(elem.numpy)
    found = cg.simulate(cg.compile(k), x=given)
    assert np.array_equal(found.view(np.uint8), given.view(np.uint8))


def copied(looped: bool, published: bool = True) -> cg.Kernel:
    """y = x, 16 x 32 halves, by way of shared memory: once, or 4 x 32 at a time in a loop that begins otherwise."""
    k = cg.Kernel("copied")
    rows = 4 if looped else 16
    x, y = (matrix(k.buffer(name, t.f16, 16 * 32), 16, 32) for name in "xy")
    tile = k.shared("tile", t.f16, rows, 32)
    inner = Digit("col", 2, Space.REGISTER, 1), Digit("col", 16, Space.LANE, 1), Digit("row", 4, Space.LANE, 16)
    there = Fragment(("row", "col"), (*inner, Digit("row", rows // 4, Space.REGISTER, 2)))
    back = Fragment(("row", "col"), (Digit("row", rows, Space.REGISTER, 1), Digit("col", 32, Space.LANE, 1)))

    def through(at: Index) -> None:
        k.copy(tile, x, (at, 0), there)
        if published:
            k.barrier()
            k.store_view(y, (at, 0), k.load_shared("v", tile, back), back)

    if looped and published:
        with k.loop("i", 0, 4) as loop:
            through(loop.var * 4)
            k.barrier()
    elif looped:
        with k.loop("i", 0, 4) as loop:
            k.barrier()
            through(loop.var * 4)
    else:
        through(0)
    return k


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("looped", [False, True])
def test_a_copy_that_no_loop_pipelines(target: str, looped: bool) -> None:
    given = np.arange(16 * 32, dtype=np.float16)
    assert np.array_equal(cg.simulate(cg.compile(copied(looped), target), x=given), given)


def test_a_loop_that_begins_like_a_pipelined_one_is_one() -> None:
    with pytest.raises(Unsupported, match=r"given loop i, .*, wanted barrier, copies, barrier, compute"):
        cg.compile(copied(looped=True, published=False))


@pytest.mark.parametrize("target", ["gfx942", "xehpg"])
def test_more_shared_memory_than_there_is_is_refused(target: str) -> None:
    facts = get(target).facts
    k = cg.Kernel("k", width=facts.subgroup_size)
    tile = k.shared("tile", t.s32, 1024, facts.shared_bytes // 4096 + 1)
    k.shared_write(tile, Lane(), Lane() * 4)
    k.global_store(k.surface(k.buffer("y", t.s32, 64)), k.shared_read("v", t.s32, tile, Lane() * 4), Lane() * 4)
    wanted = f"given kernel k, wanted one that fits: {tile.bytes} bytes of shared memory, at most {facts.shared_bytes}"
    with pytest.raises(UserError, match=wanted):
        cg.compile(k, target)


def test_a_kernel_that_has_no_meaning_is_refused() -> None:
    """It is no defect of convgen, though one like it behind a pass would be."""
    k = cg.Kernel("k")
    x, y = (matrix(k.buffer(name, t.f32, 64), 8, 8) for name in "xy")
    digits = Digit("row", 8, Space.LANE, 1), Digit("col", 8, Space.LANE, 8)
    given = Fragment(("row", "col"), digits)
    turned = Fragment(("row", "col"), (Digit("col", 8, Space.LANE, 1), Digit("row", 8, Space.LANE, 8)))
    k.store_view(y, (0, 0), k.load_view("v", x, (0, 0), given), turned)
    with pytest.raises(UserError, match="given a kernel that breaks a rule of the IR, k: a value distributed") as found:
        cg.compile(k)
    assert "^ a value distributed" in found.value.__notes__[0]
