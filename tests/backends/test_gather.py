"""Elements of buffers by number: gathered, scattered and added to, as numpy says, on every simulated target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import VerifyError
from convgen.ir.expr import Select, Splat, const, zeros
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.program import Kernel
from convgen.ir.types import Type, bf16, f16, f32, s8, s32, vector
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
        k.add_at(count, to & 3, Select(exists, one, zeros(vector(s32, 6))), as_held, exists)
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
