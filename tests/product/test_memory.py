"""A process that compiles one problem after the other keeps no more than it needs for one."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import convgen.ir
import convgen.passes
from convgen import driver
from convgen.ir import node
from convgen.problem.conv import Conv

PROBLEMS = [
    Conv.parse(f"mb1ic16ih{size}oc16kh1", dir=direction, dt="f16")
    for size in (4, 5, 6, 7)
    for direction in ("FWD_D", "BWD_D", "BWD_W")
]

#: Caches without a bound, and why they need none.
UNBOUNDED = {
    "convgen.ir.types.pointer": "a type is interned",
    "convgen.ir.types.vector": "a type is interned",
    "convgen.ir.types.has_infinity": "one entry for each type of floats",
    "convgen.ir.types.has_nan": "one entry for each type of floats",
    "convgen.ir.types.has_zero": "one entry for each type",
    "convgen.ir.types._limits": "one entry for each type of floats",
    "convgen.ir.types._narrow": "one entry for each narrow type",
    "convgen.ir.types.half_bytes": "one entry",
    "convgen.ir.node._code": "one entry for each way in which classes of nodes have their fields",
}


def test_compiling_many_problems_does_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    node.sweep()
    before = node.table_size()  # what other tests keep
    monkeypatch.setattr(node, "_LEAST_SWEPT", 1 << 9)
    monkeypatch.setattr(node._Compiling, "limit", 0)
    sizes = []
    for problem in PROBLEMS:
        driver.compile(driver.build(problem, "xehpc"))
        sizes.append(node.table_size())
    assert max(sizes) <= 4 * (before + sizes[0])  # twice what is in use, and some problems are larger than others


def test_only_the_outermost_compiling_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = []
    monkeypatch.setattr(node, "sweep", lambda: swept.append(node._Compiling.depth))
    monkeypatch.setattr(node._Compiling, "limit", 0)
    with node.compiling():
        with node.compiling():
            pass
        assert not swept
    with node.compiling():
        pass  # the table has not doubled since
    assert swept == [0]


def caches() -> Iterator[tuple[str, int | None]]:
    """Each cached function of the IR, the passes and the generator, and how many results it keeps."""
    for package in (convgen, convgen.ir, convgen.passes):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.ispkg and module.name != "convgen.__main__":
                for value in vars(importlib.import_module(module.name)).values():
                    if hasattr(value, "cache_parameters") and value.__module__ == module.name:
                        yield f"{module.name}.{value.__name__}", value.cache_parameters()["maxsize"]


def test_caches_have_a_bound() -> None:
    found = dict(caches())
    assert {name for name, most in found.items() if most is None} == set(UNBOUNDED)
    assert max(most for most in found.values() if most is not None) <= 1 << 14
