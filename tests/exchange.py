"""Kernels that exchange a fragment between lanes, random fragments for them, and what numpy says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from convgen.backends.target import Target
from convgen.ir import expr as x
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import Type, bf16, f16, f32, s8
from convgen.ir.verify import verify
from tests.arithmetic import after_passes, clean, compile_all, launch, results
from tests.watched import Watched

OPERATIONS: dict[type[x.Binary], Any] = {
    x.Add: np.add, x.Mul: np.multiply, x.Min: np.minimum, x.Max: np.maximum, x.And: np.bitwise_and, x.Or: np.bitwise_or
}  # fmt: skip
_SPACES = (Space.REGISTER, Space.LANE, Space.SUBGROUP)


def row(memory: Global, size: int) -> View:
    """All elements as a view with one axis."""
    return View(memory, Layout.dense((size,), (0,)), ((Dim("at", size, size),),), (TensorDim(size, (("at", 1),)),))


@st.composite
def fragments(draw: st.DrawFn, shape: tuple[int, int], width: int, subgroups: int, most: int = 32) -> Fragment:
    """A layout of n x m elements, both products of twos and threes, with gaps in lanes and subgroups for replicas."""
    digits: list[tuple[str, int]] = []
    for dim, size in zip("nm", shape):
        for prime in (2, 3):
            while size % prime == 0:
                digits.append((dim, prime))
                size //= prime
    order = draw(st.permutations(digits))
    end = {Space.REGISTER: 1, Space.LANE: 1, Space.SUBGROUP: 1}
    room = {Space.REGISTER: most, Space.LANE: width, Space.SUBGROUP: subgroups}
    placed: dict[tuple[str, int], list[Digit]] = {}
    for dim, size in order:
        if draw(st.integers(0, 9)) == 0:
            space = draw(st.sampled_from(_SPACES[1:]))
            if end[space] * 2 * size <= room[space]:
                end[space] *= 2  # a gap: replicas
        fitting = [s for s in _SPACES if end[s] * size <= room[s]]
        space = draw(st.sampled_from(fitting)) if fitting else Space.REGISTER
        placed.setdefault((dim, 0), []).append(Digit(dim, size, space, end[space]))
        end[space] *= size
    found = [d for dim in "nm" for d in draw(st.permutations(placed.get((dim, 0), [])))]
    return Fragment(("n", "m"), tuple(found))


@attrs.frozen
class Case:
    """A fragment that is reduced along a dim by `op`, or redistributed where there is no `op`."""

    elem: Type
    of: Fragment
    to: Fragment | None
    dim: str
    op: type[x.Binary] | None
    width: int
    subgroups: int

    @property
    def out_shape(self) -> tuple[int, int]:
        n, m = self.of.shape
        return (n, m) if self.op is None else (1, m) if self.dim == "n" else (n, 1)

    def kernel(self, name: str) -> Kernel:
        n, m = self.of.shape
        k = KernelBuilder(name, subgroups=self.subgroups, width=self.width)
        held = k.load_view("held", matrix(k.buffer("a", self.elem, n * m), n, m), (0, 0), self.of)
        rows, cols = self.out_shape
        out = k.buffer("out", self.elem, rows * cols)
        if self.op is None:
            assert self.to is not None
            k.store_view(matrix(out, n, m), (0, 0), k.redistribute("moved", held, self.of, self.to), self.to)
        else:
            total, left = k.reduce("total", held, self.of, self.dim, self.op)
            k.store_view(row(out, rows * cols), (0,), total, left)
        return k.done()

    def memory(self, given: Any) -> dict[str, Any]:
        rows, cols = self.out_shape
        return {"a": given.view(np.uint8).ravel(), "out": np.zeros(rows * cols * self.elem.bytes, np.uint8)}

    def wanted(self, given: Any) -> Any:
        """What numpy says; sums must be of numbers whose sums are exact."""
        if self.op is None:
            return given
        axis = "nm".index(self.dim)
        with np.errstate(all="ignore"):
            return OPERATIONS[self.op].reduce(given, axis=axis, keepdims=True, dtype=given.dtype)


@st.composite
def cases(draw: st.DrawFn, elems: list[Type], width: int) -> Case:
    elem, subgroups = draw(st.sampled_from(elems)), draw(st.sampled_from([1, 2, 3, 4]))
    sizes = st.sampled_from([1, 2, 4, 6, 8, 12, 16, 32])
    shape = draw(sizes), draw(sizes)
    of = draw(fragments(shape, width, subgroups))
    if draw(st.booleans()):
        return Case(elem, of, draw(fragments(shape, width, subgroups)), "", None, width, subgroups)
    ops = [x.Add, x.Min, x.Max, x.Mul] + ([x.And, x.Or] if elem.is_int else [])
    return Case(elem, of, None, draw(st.sampled_from("nm")), draw(st.sampled_from(ops)), width, subgroups)


def exchanging(width: int) -> Kernel:
    """Sums over registers, all lanes and two subgroups, and another distribution, over and over in the same tiles."""
    lanes, subgroups = Digit("n", width, Space.LANE, 1), Digit("n", 2, Space.SUBGROUP, 1)
    of = Fragment(("n", "m"), (Digit("n", 2, Space.REGISTER, 1), lanes, subgroups, Digit("m", 2, Space.REGISTER, 2)))
    turned = Fragment(("n", "m"), (Digit("n", 4, Space.REGISTER, 1), lanes, Digit("m", 2, Space.SUBGROUP, 1)))
    k, rows = KernelBuilder("exchanging", subgroups=2, width=width), 4 * width
    a, out = (matrix(k.buffer(name, f32, 6 * rows), 3 * rows, 2) for name in ("a", "out"))
    with k.loop("turn", 0, 3) as loop:
        held = k.load_view("held", a, (loop.var * rows, 0), of)
        total, left = k.reduce("total", held, of, "n", x.Add)
        moved = k.redistribute("moved", held * k.broadcast(total, left, of), of, turned)
        k.store_view(out, (loop.var * rows, 0), moved, turned)
    return k.done()


def watched(to: Target) -> Watched:
    """`exchanging` as compiled for a target."""
    kernel = exchanging(to.facts.subgroup_size)
    given = np.random.default_rng(1).integers(-9, 9, 24 * to.facts.subgroup_size).astype(np.float32)
    memory = {"a": given.view(np.uint8), "out": np.zeros(given.nbytes, np.uint8)}
    return Watched(to, kernel, memory, "out", f32)


def between_products(facts: TargetFacts) -> Iterator[Case]:
    """For f16, each matrix instruction's result brought into the distribution of its operands, by two subgroups."""
    for atom in facts.atoms:
        if atom.a_elem is not f16 or (atom.m % atom.k and atom.k % atom.m):
            continue
        steps = max(1, atom.m // atom.k)
        tiles = atom.k * steps // atom.m, atom.k * steps // atom.n if atom.k * steps % atom.n == 0 else 0
        left = MmaTile(atom, 1, tiles[0], steps, teams_n=2)
        yield Case(f16, left.d, left.a.renamed({"k": "m"}), "", None, facts.subgroup_size, 2 * atom.spans)
        if tiles[1]:
            right = MmaTile(atom, tiles[1], 1, steps, teams_m=2)
            to = evolve(right.b.renamed({"k": "n"}), dims=("n", "m"))
            yield Case(f16, right.d, to, "", None, facts.subgroup_size, 2 * atom.spans)


def numbers(case: Case, rng: np.random.Generator) -> Any:
    """Data whose sums and products are exact in every order."""
    n, m = case.of.shape
    low = 0 if case.elem.is_int and case.elem.min == 0 else -3
    given = rng.integers(low, 4, (n, m))
    if case.op is x.Mul:
        given = np.where(rng.integers(0, max(n, m), (n, m)) < 3, rng.choice([1, 2], (n, m)), 1)
    return given.astype(case.elem.numpy)


def rounded(case: Case, rng: np.random.Generator) -> Any:
    """Data whose sums and products depend on their order."""
    return (rng.standard_normal(case.of.shape) * (3 if case.elem.is_float else 1000)).astype(case.elem.numpy)


def check(to: Target, cases: list[Case], seed: int) -> None:
    """Interpreted before and after each pass, and simulated: what numpy says, and for all data the same bits."""
    rng = np.random.default_rng(seed)
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases)]
    code, emitted = compile_all(to, kernels)
    for case, kernel in zip(cases, kernels):
        exact, other = numbers(case, rng), rounded(case, rng)
        assert np.array_equal(results(kernel, case.memory(exact.copy()), case.elem), case.wanted(exact).ravel()), case
        for name, after in after_passes(kernel, to.facts).items():
            found = results(verify(after), case.memory(exact.copy()), case.elem)
            assert np.array_equal(found, case.wanted(exact).ravel()), (name, case, str(after))
        for given in (exact, other):
            memory = case.memory(given.copy())
            wanted = results(kernel, memory, case.elem)
            clean(to.simulate(code, [launch(kernel, emitted[kernel.name])], memory))
            found = memory["out"].view(case.elem.numpy)
            assert np.array_equal(found.view(np.uint8), wanted.view(np.uint8)), (case, found, wanted)


def within_words(facts: TargetFacts) -> Iterator[Case]:
    """What two or three lanes hold, each odd parts of words, brought together in one."""
    for elem, lanes, registers in ((bf16, 2, 3), (s8, 2, 3), (s8, 3, 5), (f16, 3, 1)):
        of = Digit("n", lanes, Space.LANE, 1), Digit("n", registers, Space.REGISTER, 1)
        to = Digit("n", lanes, Space.REGISTER, 1), Digit("n", registers, Space.REGISTER, lanes)
        yield Case(elem, Fragment(("n", "m"), of), Fragment(("n", "m"), to), "", None, facts.subgroup_size, 1)


def check_within_words(to: Target) -> None:
    """Values that begin or end within a word stand side by side."""
    check(to, list(within_words(to.facts)), 3)


def check_between_products(to: Target) -> None:
    """Of each instruction that a target has, the result as an operand of the next."""
    cases = list(between_products(to.facts))
    assert len(cases) >= 2
    check(to, cases, 5)
