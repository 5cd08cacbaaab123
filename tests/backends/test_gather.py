"""Elements of buffers by number: gathered, scattered and added to, as numpy says, on every simulated target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Select, Splat, const, zeros
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.program import Kernel
from convgen.ir.stmt import ATOMICS
from convgen.ir.types import Type, bf16, f16, f32, f64, s8, s32, u32, vector
from convgen.ir.verify import verify
from tests import arithmetic as ar

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc")
_ROWS, _COLS = 8, 12


def layout(width: int) -> Fragment:
    digits = (Digit("n", 8, Space.LANE, 1), Digit("m", 6, Space.REGISTER, 1), Digit("m", 2, Space.SUBGROUP, 1))
    assert width >= 8
    return Fragment(("n", "m"), digits)


def kernel(elem: Type, width: int) -> Kernel:
    """out[to] = a[of] where `of` is not negative; and as many counted in `count`."""
    k = KernelBuilder(f"of_{elem}", subgroups=2, width=width)
    as_held = layout(width)
    of, to = (
        k.load_view(n, matrix(k.buffer(n, s32, _ROWS * _COLS), _ROWS, _COLS), (0, 0), as_held) for n in ("of", "to")
    )
    a, out, count = (k.buffer(n, e, 200) for n, e in (("a", elem), ("out", elem), ("count", s32)))
    exists = of >= 0
    value = k.load_at("value", a, of, as_held, exists)
    k.store_at(out, to, value, as_held)
    with k.when(k.subgroup < 1):  # lanes beyond the eighth hold the same, and would count again
        one = Splat(vector(s32, 6), const(1))
        k.atomic_at("add", count, to & 3, Select(exists, one, zeros(vector(s32, 6))), as_held, exists)
    return verify(k.done())


def data(elem: Type) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    given = {"of": rng.integers(-40, 200, _ROWS * _COLS), "to": rng.permutation(200)[: _ROWS * _COLS]}
    memory = {n: v.astype(np.int32).view(np.uint8) for n, v in given.items()}
    memory["a"] = rng.integers(1, 100, 200).astype(elem.numpy).view(np.uint8)
    return memory | {"out": np.zeros(200 * elem.bytes, np.uint8), "count": np.zeros(800, np.uint8)}


@pytest.mark.parametrize("target", TARGETS)
def test_gather_and_scatter(target: str) -> None:
    to = targets.get(target)
    elems = (f32, f16, bf16, s8, s32)
    kernels = [kernel(elem, to.facts.subgroup_size) for elem in elems]
    code, emitted = ar.compile_all(to, kernels)
    for elem, made in zip(elems, kernels):
        memory = data(elem)
        wanted = {n: b.copy() for n, b in memory.items()}
        interpret(made, wanted, {})
        of, places, a = memory["of"].view(np.int32), memory["to"].view(np.int32), memory["a"].view(elem.numpy)
        scattered = np.zeros(200, elem.numpy)
        scattered[places] = np.where(of >= 0, a[np.maximum(of, 0)], np.zeros((), elem.numpy))
        assert np.array_equal(wanted["out"].view(elem.numpy), scattered)
        ar.clean(to.simulate(code, [ar.launch(made, emitted[made.name])], memory))
        for name in ("out", "count"):
            assert np.array_equal(memory[name], wanted[name]), (elem, name)


def combining(op: str, elem: Type, width: int) -> Kernel:
    """Two workgroups: each element of `a` combined with one of three in `by_number` and with its own in `by_place`."""
    k = KernelBuilder(f"{op}_{elem}", (2, 1, 1), subgroups=2, width=width)
    rows = Fragment(("n", "m"), (Digit("n", width, Space.LANE, 1), Digit("m", 2, Space.REGISTER, 1)))
    whole = Fragment(rows.dims, (*rows.digits, Digit("m", 2, Space.SUBGROUP, 1)))
    a, place = (matrix(k.buffer(n, e, 4 * width), width, 4) for n, e in (("a", elem), ("place", s32)))
    value, to = (k.load_view(n, view, (0, 0), whole) for n, view in (("value", a), ("to", place)))
    k.atomic_at(op, k.buffer("by_number", elem, 3), to, value, whole, to >= 0)
    k.atomic_view(op, matrix(k.buffer("by_place", elem, 4 * width), width, 4), (0, 0), value, whole)
    return verify(k.done())


def combined(op: str, elem: Type, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Memory before and after."""
    rng = np.random.default_rng(5)
    a, start, places = (rng.integers(-50, 50, n).astype(np.int32) for n in (4 * width, 4 * width, 4 * width))
    a, start = (v.astype(np.uint32).astype(elem.numpy) if elem is u32 else v.astype(elem.numpy) for v in (a, start))
    places = places % 4 - 1
    numpy = {"add": np.add, "min": np.minimum, "max": np.maximum,
             "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]  # fmt: skip
    before = {"a": a, "place": places, "by_number": start[:3].copy(), "by_place": start.copy()}
    after = {name: data.copy() for name, data in before.items()}
    for _ in range(2):
        numpy.at(after["by_number"], places[places >= 0], a[places >= 0])
        after["by_place"] = numpy(after["by_place"], a)
    return ({n: v.view(np.uint8) for n, v in each.items()} for each in (before, after))  # type: ignore[return-value]


#: Elements whose atomic operations a family lacks, or has in part.
LACKING = {"gfx": {(op, f32) for op in ("min", "max")}, "xe": {(op, f64) for op in ("add", "min", "max")}}


@pytest.mark.parametrize("target", TARGETS)
def test_atomic_operations(target: str) -> None:
    """Of both families each that the other has, or one line that says so."""
    to = targets.get(target)
    width, lacking = to.facts.subgroup_size, next(LACKING[f] for f in LACKING if target.startswith(f))
    pairs = [(op, elem) for op, elems in ATOMICS.items() for elem in elems]
    kernels = [combining(op, elem, width) for op, elem in pairs if (op, elem) not in lacking]
    code, emitted = ar.compile_all(to, kernels)
    for (op, elem), made in zip([pair for pair in pairs if pair not in lacking], kernels):
        memory, wanted = combined(op, elem, width)
        interpreted = {n: b.copy() for n, b in memory.items()}
        interpret(made, interpreted, {})
        ar.clean(to.simulate(code, [ar.launch(made, emitted[made.name])], memory))
        for name in ("by_number", "by_place"):
            assert np.array_equal(interpreted[name], wanted[name]), (op, elem, name)
            assert np.array_equal(memory[name], wanted[name]), (op, elem, name)
    for op, elem in lacking:
        with pytest.raises(
            Unsupported, match=f"^given atomic {op} of {elem}x1, wanted one element a message, on {target} of"
        ):
            ar.compile_all(to, [combining(op, elem, width)])


def test_additions_meet() -> None:
    made, memory = kernel(f32, 8), data(f32)
    interpret(made, memory, {})
    of, places = (memory[n].view(np.int32).reshape(_ROWS, _COLS)[:, :6] for n in ("of", "to"))
    counts = np.bincount(places[of >= 0] & 3, minlength=200)
    assert np.array_equal(memory["count"].view(np.int32), counts)


def test_what_is_refused() -> None:
    as_held = layout(8)
    k = KernelBuilder("k", subgroups=2, width=8)
    a = k.buffer("a", f32, 4)
    k.load_at("v", a, Splat(vector(s32, 6), const(4)), as_held)
    with pytest.raises(InterpError, match="element 4 of buffer a, which has 4"):
        interpret(verify(k.done()), {"a": np.zeros(16, np.uint8)})
    k.store_at(a, Splat(vector(s32, 3), const(0)), zeros(vector(f32, 6)), as_held)
    with pytest.raises(VerifyError, match="offsets of s32x3 and a mask of boolx6, wanted s32x6 and as many bools"):
        verify(k.done())
