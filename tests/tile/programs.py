"""Random tile programs: a strategy, their functions, and what numpy says of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from convgen import tile
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve
from convgen.ir.types import scalar
from convgen.tile import Tensor
from convgen.tile.tile_kernel import TileProgram
from tests.tile.reference import FUNCTIONS, Block, Numpy

FLOATS, INTEGERS = ("f32", "f16", "bf16"), ("s32", "s8")
TYPES = FLOATS + INTEGERS
_PAIRS = ("add", "sub", "mul", "max", "min")
_KINDS = ("sum", "max", "min", "prod")
_WHOLE_KINDS = (*_KINDS, "and", "or")


@attrs.frozen
class Given:
    """A tensor that a block is loaded from, `shift` off the output's block, or along a `narrow` dim of size 1.

    `turned`, the tensor has its dims the other way round, and its blocks are transposed.
    """

    dtype: str
    tag: str
    size: tuple[int, int]
    narrow: tuple[bool, bool]
    shift: tuple[int, int]
    turned: bool


@attrs.frozen
class Step:
    """An operation; its operands are values made before, counted by `numbers`. A loop has a body."""

    op: str
    numbers: tuple[int, ...]
    body: tuple[Step, ...] = ()


@attrs.frozen
class Factors:
    """What products multiply: the type, sizes of K and of its blocks, and tags."""

    dtype: str
    k: int
    block: int
    tags: tuple[str, str]


@attrs.frozen
class Program:
    """A random tile program; its one output `y` has a block of `block` for each workgroup."""

    subgroups: tuple[int, int]
    block: tuple[int, int]
    size: tuple[int, int]
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    factors: Factors | None
    map: str

    def tensors(self) -> dict[str, Tensor]:
        """Those loaded, by name."""
        found = {
            f"x{n}": Tensor(_around(g, [1 if narrow else s for narrow, s in zip(g.narrow, g.size)]), g.dtype, g.tag)
            for n, g in enumerate(self.given)
        }
        if self.factors:
            f, (m, n) = self.factors, self.size
            found |= {"a": Tensor((m, f.k), f.dtype, f.tags[0]), "b": Tensor((f.k, n), f.dtype, f.tags[1])}
        return {name: evolve(t, name=name) for name, t in found.items()}

    def traced(self) -> TileProgram:
        """As a user writes it; the output's type is found by a first try."""
        inputs = list(self.tensors().values())
        made: list[Any] = []

        def first(*tensors: Tensor) -> None:
            made.append(_Run(tile, self, tensors).result())

        _kernel(self, first, [t.name for t in inputs])(*inputs)
        out = self.output(made[0].elem.name, made[0].shape)

        def whole(*tensors: Tensor) -> None:
            _Run(tile, self, tensors[:-1]).stored(tensors[-1])

        program: TileProgram = _kernel(self, whole, [*(t.name for t in inputs), "y"])(*inputs, out)
        return program

    def output(self, dtype: str, block: Sequence[int]) -> Tensor:
        """The output; along a dim of which blocks have one position it has one for each workgroup."""
        shape = tuple(s if b == whole else -(-s // whole) for s, b, whole in zip(self.size, block, self.block))
        return Tensor(shape, dtype, name="y")

    def data(self, seed: int) -> dict[str, Any]:
        """Small numbers: halves for floats."""
        rng = np.random.default_rng(seed)
        return {
            name: (rng.integers(-6, 7, t.shape) / (2 if t.elem.is_float and name[0] == "x" else 1)).astype(t.elem.numpy)
            for name, t in self.tensors().items()
        }

    def wanted(self, data: dict[str, Any], out: Tensor) -> Block:
        """What numpy says of the output, which holds zeros at first."""
        wide = np.float64 if out.elem.is_float else np.int64
        y = Block(out.elem, np.zeros(out.shape, wide), np.zeros(out.shape, wide))
        machine = Numpy({**data, "y": y.low}, {"y": y})
        for at in np.ndindex(*(-(-s // b) for s, b in zip(self.size, self.block))):
            machine.at = tuple(n * b for n, b in zip(at, self.block))
            with np.errstate(all="ignore"):
                _Run(machine, self, list(self.tensors().values())).stored(out)
        return y


def _around(given: Given, dims: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dims[::-1] if given.turned else dims)


def _kernel(program: Program, function: Any, names: list[str]) -> Any:
    """The function as a tile kernel whose parameters have these names."""
    made = eval(f"lambda {', '.join(names)}: function({', '.join(names)})", {"function": function})
    made.__name__ = "random"
    return tile.kernel(subgroups=program.subgroups)(made)


class _Run:
    """The program on `t`, which is `convgen.tile` or numpy; `pool` are the values made so far."""

    def __init__(self, t: Any, program: Program, tensors: Sequence[Tensor]) -> None:
        self.t, self.program = t, program
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.pool: list[Any] = []
        self.at = (
            t.grid(program.size, program.block)
            if t is not tile
            else t.grid(program.size, program.block, map=program.map)
        )

    def stored(self, out: Tensor) -> None:
        value = self.result()
        at = [o if s == b else o // b for o, s, b in zip(self.at, value.shape, self.program.block)]
        to = self.t.init_tile(out, at, value.shape)
        self.t.store_tile(value, to)

    def result(self) -> Any:
        for n in range(len(self.program.given)):
            self.load((n,))
        self.suite(self.program.steps)
        return self.pool[-1]

    def suite(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.op == "loop":
                self.loop(step)
            else:
                made = getattr(self, step.op)(step.numbers)
                if made is not None:
                    self.pool.append(made)

    def pick(self, number: int, like: Any = None) -> Any:
        """A value, of the type of another one if one is given."""
        kept = [v for v in self.pool if like is None or v.elem is like.elem]
        return kept[-1 - number % len(kept)]

    # ------------------------------------------------------------ operations: what they make of numbers

    def load(self, numbers: Sequence[int], further: Any = 0) -> None:
        n = numbers[0] % len(self.program.given)
        g = self.program.given[n]
        at = [0 if narrow else o + s for narrow, o, s in zip(g.narrow, self.at, g.shift)]
        at[1] = at[1] if g.narrow[1] else at[1] + further
        shape = [1 if narrow else b for narrow, b in zip(g.narrow, self.program.block)]
        where = self.t.init_tile(self.tensors[f"x{n}"], _around(g, at), _around(g, shape))
        self.pool.append(self.t.load_tile(where, transpose=g.turned))

    def pair(self, numbers: Sequence[int]) -> Any:
        a = self.pick(numbers[0])
        return self.combined(numbers[2], a, self.pick(numbers[1], a))

    def combined(self, number: int, a: Any, b: Any) -> Any:
        name = _PAIRS[number % len(_PAIRS)]
        if name in ("max", "min"):
            return getattr(self.t, name)(a, b)
        return a + b if name == "add" else a - b if name == "sub" else a * b

    def number(self, numbers: Sequence[int]) -> Any:
        a = self.pick(numbers[0])
        constants = (0.5, -1.25, 3.0, 2.0) if a.elem.is_float else (3, -2, 5, 1)
        return self.combined(numbers[2], a, constants[numbers[1] % 4])

    def one(self, numbers: Sequence[int]) -> Any:
        a = self.pick(numbers[0])
        names = ("neg", "abs", "floor", "ceil", "round") if a.elem.is_float else ("neg", "abs")
        name = names[numbers[1] % len(names)]
        return -a if name == "neg" else getattr(self.t, name)(a)

    def function(self, numbers: Sequence[int]) -> Any:
        """Of an operand that is bounded, so that nothing is too large or too small."""
        a = self.pick(numbers[0])
        if not a.elem.is_float:
            return None
        name = sorted(FUNCTIONS)[numbers[1] % len(FUNCTIONS)]
        a = self.t.min(self.t.max(a, 0.25 if name == "sqrt" else -4.0), 4.0)
        return getattr(self.t, name)(a)

    def compared(self, numbers: Sequence[int]) -> Any:
        a, c = self.pick(numbers[0]), self.pick(numbers[2])
        b = self.pick(numbers[1], a)
        cond = self.t.less(a, b) if numbers[3] % 2 else self.t.equal(a, b)
        return self.t.where(cond, c, self.pick(numbers[3] // 2, c))

    def mask(self, numbers: Sequence[int]) -> Any:
        """What lies beyond a place becomes a number."""
        a, axis = self.pick(numbers[0]), numbers[1] % 2
        shape = [1, 1]
        shape[axis] = self.program.block[axis]
        place = self.t.positions(shape, axis) + self.at[axis]
        inside = self.t.less(place, numbers[2] % self.program.size[axis] + 1)
        return self.t.where(inside, a, self.t.full((1, 1), (-3, 0, 1)[numbers[3] % 3], a.elem.name))

    def place(self, numbers: Sequence[int]) -> Any:
        axis = numbers[0] % 2
        return self.t.positions(self.program.block, axis) if numbers[1] % 2 else self.narrow_place(axis)

    def narrow_place(self, axis: int) -> Any:
        shape = [1, 1]
        shape[axis] = self.program.block[axis]
        return self.t.positions(shape, axis)

    def convert(self, numbers: Sequence[int]) -> Any:
        others = [name for name in TYPES if name != self.pick(numbers[0]).elem.name]
        return self.t.convert(self.pick(numbers[0]), others[numbers[1] % 4], saturate=bool(numbers[2] % 2))

    def reduce(self, numbers: Sequence[int]) -> Any:
        a = self.pick(numbers[0])
        kinds = _KINDS if a.elem.is_float else _WHOLE_KINDS
        return self.t.reduce(kinds[numbers[1] % len(kinds)], a, numbers[2] % 2)

    def product(self, numbers: Sequence[int]) -> Any:
        f = self.program.factors
        if f is None:
            return None
        (bm, bn), t = self.program.block, self.t
        a, b = self.tensors["a"], self.tensors["b"]
        ta, tb = t.init_tile(a, (self.at[0], 0), (bm, f.block)), t.init_tile(b, (0, self.at[1]), (f.block, bn))
        acc = t.zeros((bm, bn), "s32" if f.dtype == "s8" else "f32")
        for k in t.range(0, f.k, f.block):
            if numbers[0] % 2:
                left, right = t.load_tile(ta), t.load_tile(tb)
                ta, tb = t.update_tile_offset(ta, (0, f.block)), t.update_tile_offset(tb, (f.block, 0))
            else:
                left = t.load_tile(t.init_tile(a, (self.at[0], k), (bm, f.block)))
                right = t.load_tile(t.init_tile(b, (k, self.at[1]), (f.block, bn)))
            if f.dtype != "s8":  # bytes are reckoned with in words, for which registers do not suffice everywhere
                left = left * 2 if numbers[1] % 3 == 0 else left
                right = t.max(right, 0) if numbers[2] % 3 == 0 else right
            acc = t.tile_mma(left, right, acc)
        return acc

    def loop(self, step: Step) -> None:
        """Values are carried, each combined with what the body makes of it and of a block further on."""
        first, second, trips, _ = step.numbers
        state = [self.pick(first)]
        if self.pick(second) is not state[0]:
            state.append(self.pick(second))
        outside = tuple(id(v) for v in state)
        for k in self.t.range(0, (1 + trips % 3) * 3, 3):
            state = self._turn(step, outside, state, k)
        self.pool += state

    def _turn(self, step: Step, hidden: tuple[int, ...], state: list[Any], k: Any) -> list[Any]:
        """What the carried values are behind one iteration, which does not see what they were before the loop."""
        outside, how = self.pool, step.numbers[3]
        self.pool = [v for v in outside if id(v) not in hidden] + state
        self.load((how,), k)
        self.suite(step.body)
        made = [self._kept(how + n, s) for n, s in enumerate(state)]
        self.pool = outside
        return made

    def _kept(self, number: int, state: Any) -> Any:
        """A new value for one that is carried, of its shape and type."""
        made = self.pick(number, state)
        for axis in range(2):
            if state.shape[axis] == 1 != made.shape[axis]:
                made = self.t.reduce("max", made, axis)
        return self.combined(number, state, made)


_NUMBER = st.sampled_from([0, 0, 0, 0, 1, 1, 1, 2, 2, *range(3, 12)])  #: values made last are taken most
_OPS = (
    "pair",
    "pair",
    "number",
    "one",
    "function",
    "compared",
    "mask",
    "place",
    "convert",
    "convert",
    "reduce",
    "reduce",
)
_SMALL = ((8, 32), (16, 16), (32, 32), (4, 64), (64, 8), (1, 128), (24, 16), (12, 48), (16, 5))
_HELD, _ATOM = 12, 16  #: elements of a lane; rows or columns of a matrix instruction on most targets
_LARGE = ((32, 32), (64, 32), (32, 64), (64, 64))


@st.composite
def _steps(draw: st.DrawFn, most: int, ops: tuple[str, ...]) -> tuple[Step, ...]:
    found = []
    for _ in range(draw(st.integers(1, most))):
        op = draw(st.sampled_from(ops))
        body = draw(_steps(3, _OPS)) if op == "loop" else ()
        found.append(Step(op, tuple(draw(_NUMBER) for _ in range(4)), body))
    return tuple(found)


@st.composite
def _givens(draw: st.DrawFn, size: tuple[int, int]) -> Given:
    narrow = draw(st.sampled_from([(False, False)] * 3 + [(True, False), (False, True)]))
    near = st.integers(-3, 5)
    return Given(
        draw(st.sampled_from(TYPES)),
        draw(st.sampled_from(["", "", "ba"])),
        (max(1, size[0] + draw(near)), max(1, size[1] + draw(near))),
        narrow,
        (draw(st.sampled_from([0, 0, 1, -2])), draw(st.sampled_from([0, 0, 0, 3, -1, 8]))),
        draw(st.sampled_from([False, False, False, True])),
    )


def _subgroups(block: tuple[int, int], facts: TargetFacts, *, products: bool) -> list[tuple[int, int]]:
    """Subgroups between which a block may be divided, such that a lane has a few dozens of its elements at most."""
    held = prod(block) // (facts.subgroup_size * _HELD)
    many = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2), (3, 1), (8, 2), (4, 4)]
    even = [each for each in many if not products or all(b % (_ATOM * n) == 0 for b, n in zip(block, each))]
    return [each for each in even if prod(each) >= held] or even[-1:]


@st.composite
def programs(draw: st.DrawFn, facts: TargetFacts) -> Program:
    """A program of at most four small workgroups."""
    products = draw(st.integers(0, 3)) == 0
    block = draw(st.sampled_from(_LARGE if products else _SMALL))
    bm, bn = block
    size = draw(st.sampled_from([bm, bm - 1, bm + 3, 2 * bm])), draw(st.sampled_from([bn, bn - 1, bn + 5, 2 * bn]))
    factors = None
    steps = draw(_steps(6, (*_OPS, "loop", "loop")))
    if products:
        tags = st.sampled_from(["ab", "ba"])
        dtype, deep = draw(st.sampled_from(["f16", "bf16", "s8"])), draw(st.sampled_from([32, 64]))
        factors = Factors(dtype, draw(st.sampled_from([deep, 40, 70, 96])), deep, (draw(tags), draw(tags)))
        at = draw(st.integers(0, len(steps)))
        numbers = tuple(draw(_NUMBER) for _ in range(4))
        steps = (*steps[:at], Step("product", numbers), *steps[at:])
    size = max(1, size[0]), max(1, size[1])
    return Program(
        draw(st.sampled_from(_subgroups(block, facts, products=products))),
        block,
        size,
        tuple(draw(st.lists(_givens(size), min_size=1, max_size=3))),
        steps,
        factors,
        draw(st.sampled_from(["rows", "cols", "group:2m"])),
    )


def elements(array: Any, tag: str) -> Any:
    """The elements of a matrix as they lie in memory."""
    return np.ascontiguousarray(array.T if tag == "ba" else array).view(np.uint8).ravel()


def memory(program: Program, data: dict[str, Any], out: Tensor) -> dict[str, Any]:
    """The bytes of all tensors, the output's zero."""
    held = {name: elements(data[name], t.tag) for name, t in program.tensors().items()}
    return held | {"y": np.zeros(out.layout.size_elems * scalar(out.dtype).bytes, np.uint8)}
