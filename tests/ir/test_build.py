from __future__ import annotations

import doctest

import numpy as np
import pytest

from convgen.ir import build
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.expr import Var, const, var
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder
from convgen.ir.types import f16, f32
from convgen.ir.verify import verify


def test_the_example_of_the_docstring_multiplies() -> None:
    """The text in the module's docstring is run, and its kernel gives the product."""
    example = doctest.DocTestFinder().find(build, "build")[0]
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, clear_globs=False)
    assert runner.summarize().failed == 0
    kernel = verify(example.globs["kernel"], "tile")

    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, (32, 64)).astype(np.float16) for _ in range(2))
    buffers = {"a": a.view(np.uint8).ravel(), "b": b.view(np.uint8).ravel(), "c": np.zeros(32 * 32 * 4, np.uint8)}
    interpret(kernel, buffers)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(buffers["c"].view(np.float32).reshape(32, 32), expected)


def test_two_builders_at_once_do_not_mix_their_variables() -> None:
    one, two = KernelBuilder("one"), KernelBuilder("two")
    names = [k.let("t", k.group[0] + i) for i in range(3) for k in (one, two)]
    assert [v.id for v in names] == [5, 5, 6, 6, 7, 7]


def test_a_build_depends_on_nothing_before_it() -> None:
    def make() -> object:
        k = KernelBuilder("k")
        x = k.buffer("x", f32, 64)
        with k.loop("i", 0, 4) as loop:
            k.global_store(k.surface(x), k.let("v", loop.var.to(f32)), loop.var * 4)
        return k.done()

    first = make()
    var("other")
    assert make() is first


def test_a_surface_without_an_extent_ends_with_its_buffer() -> None:
    k = KernelBuilder("k")
    x, n = k.buffer("x", f32, 64), k.scalar("n")
    assert k.surface(x, 16).extent is const(256 - 16)
    assert k.surface(x, n).extent is 256 - n
    assert k.surface(x, 16, 32).extent is const(32)


def test_variables_made_later_are_fresh() -> None:
    k = KernelBuilder("k")
    k.let("t", k.group[0] + 1)
    kernel = k.done()
    taken = {v.id for v in postorder(kernel) if isinstance(v, Var)}
    assert var("t").id not in taken


def test_a_loop_that_carries_must_yield() -> None:
    k = KernelBuilder("k")
    with pytest.raises(UserError, match="loop i carries a and yields nothing"), k.loop("i", 0, 4, a=k.group[0]):
        pass


def test_a_loop_must_yield_as_much_as_it_carries() -> None:
    k = KernelBuilder("k")
    with pytest.raises(UserError, match="2 values yielded, 1 carried"), k.loop("i", 0, 4, a=k.group[0]) as loop:
        loop.yields(k.group[0], k.group[1])


def test_shared_tiles_are_declared_in_order() -> None:
    k = KernelBuilder("k", subgroups=2)
    first, second = k.shared("first", f16, 16, 32), k.shared("second", f16, 16, 32, slots=2, pitch=80)
    kernel = k.done()
    assert kernel.shared_base(second) == first.bytes == 1024
    assert kernel.shared_bytes == 1024 + 2 * 16 * 80
