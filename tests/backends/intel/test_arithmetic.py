"""Every operation on every type, as vectors and as one element a lane: simulated as the interpreter says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.backends.intel.sim import simulate
from convgen.backends.intel.tables import GENERATIONS
from convgen.ir import floats as fl
from convgen.ir.evaluate_floats import APPROXIMATE
from convgen.ir.types import Type, f16, f32, f64
from tests import arithmetic as ar

TARGETS = {name: targets.get(name) for name in ("xehpg", "xehpc")}
FLOATS = [elem for elem in ar.FLOATS if elem is not f64]


@pytest.mark.parametrize("elem", [*FLOATS, *ar.INTEGERS], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_exact_operations(target: str, elem: Type) -> None:
    to, width = TARGETS[target], GENERATIONS[target].lanes
    cases = {f"{name}, {t}": ar.Case(f, t, width) for name, f in ar.exact(elem).items() for t in ar.widths(elem)}
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases.values())]
    code, emitted = ar.compile_all(to, kernels)
    for (name, case), kernel in zip(cases.items(), kernels):
        memory = case.memory(7)
        wanted = ar.results(kernel, memory, elem)
        ar.clean(to.simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
        found = memory["out"].view(elem.numpy)
        differ = ar.differing(found, wanted, elem)
        given = [memory[n].view(elem.numpy)[differ[: case.width * case.type.lanes]][:3] for n in "abc"]
        assert not differ.any(), (name, given, found[differ][:3], wanted[differ][:3])


def operands(elem: Type) -> Any:
    """All f16, or as many f32: of all sizes, and such as functions like."""
    raw = np.arange(1 << 16, dtype=np.uint16)
    if elem is f16:
        return raw.view(np.float16)
    rng = np.random.default_rng(3)
    some = np.concatenate([rng.uniform(-150, 150, 1 << 14), rng.uniform(0, 4, 1 << 14), ar.edges(f32), [256.5, 1e6]])
    bits = rng.integers(0, 1 << 32, (1 << 16) - some.size, dtype=np.uint32).view(np.float32)
    return np.concatenate([some.astype(np.float32), np.where(bits == bits, bits, np.float32(np.nan))])


#: Beside the hardware's error in radians, that of turning turns into them, and of rounding to halves.
_WAVES = {f32: fl.Accuracy(1, 0.00081), f16: fl.Accuracy(1, 0.0013)}


def wanted(cls: type[fl.Approximate], given: Any) -> Any:
    with np.errstate(all="ignore"):
        return APPROXIMATE[cls](given.astype(np.float64))


def far(cls: type[fl.Approximate], given: Any, found: Any, elem: Type) -> Any:
    """How far results are from the exact ones, or from those of zeros where operands are denormal f32."""
    of = _WAVES[elem] if cls in (fl.Sin, fl.Cos) else cls.accuracy[elem]
    with np.errstate(all="ignore"):
        tiny = np.abs(given) < np.finfo(np.float32).tiny
        flushed = np.where(tiny & (elem is f32), np.copysign(given.dtype.type(0), given), given)
    return np.minimum(*(ar.error(found, wanted(cls, operand), elem, of) for operand in (given, flushed)))


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_approximate_operations_keep_their_bounds(target: str, elem: Type) -> None:
    """With whatever errors the hardware may make."""
    given, width = operands(elem), GENERATIONS[target].lanes
    groups = given.size // (width * (128 // elem.bits))
    cases = {cls: ar.Case(f, ar.widths(elem)[0], width) for cls, f in ar.APPROXIMATE.items()}
    kernels = [case.kernel(f"k{n}", groups) for n, case in enumerate(cases.values())]
    code, emitted = ar.compile_all(TARGETS[target], kernels)
    for cls, kernel in zip(cases, kernels):
        results = {}
        for seed in (None, 1, 2):
            memory = {**dict.fromkeys("abc", given.view(np.uint8)), "out": np.zeros(given.nbytes, np.uint8)}
            ar.clean(simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory, approximate=seed))
            found = results[seed] = memory["out"].view(elem.numpy)
            errors = far(cls, given, found, elem)
            worst = errors.argmax()
            assert errors.max() <= 1, (cls, seed, given[worst], found[worst], wanted(cls, given)[worst])
        assert far(cls, given, results[None], elem).max() < far(cls, given, results[1], elem).max() or elem is f16, cls
        assert ar.differing(results[1], results[2], elem).any() or cls is fl.Rcp, cls
