"""Random message-level kernels of integers, masks, 64-bit addresses, loops and branches, as Xe takes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import AddressOf, Cast, Expr, Lane, MulHi, Select, Uniform, Var, const
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.types import Type, bool_, s32, u32, u64
from convgen.passes import pipeline

Draw = st.DrawFn
Memory = dict[str, npt.NDArray[np.uint8]]

RING = (x.Add, x.Sub, x.Mul, x.Min, x.Max, x.And, x.Or, x.Xor)
ORDER = (x.Lt, x.Le, x.Eq, x.Ne)
GROUPS = 2
_SENTINEL = 0xA5
_EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 31, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x10001, 0x7FFFFFFF, -1, -2, -8, -0x8000)
_STRIDES = (3, 4, 12, 0xFFFF, 0x10000, 0x12345, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Grower:
    """Grows expressions from variables by drawing what stands at each place."""

    def __init__(self, draw: Draw, names: list[Expr]) -> None:
        self.draw, self.names = draw, names

    def pick(self, *options: Any) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def const(self, dtype: Type) -> Expr:
        n = self.pick(*_EDGES) if self.pick(0, 0, 1) else self.draw(st.integers(-(1 << 31), (1 << 32) - 1))
        return const((n - dtype.min) % (1 << 32) + dtype.min, dtype)

    def leaf(self, dtype: Type) -> Expr:
        return self.const(dtype) if not self.pick(0, 1, 2) else self.pick(*self.names).to(dtype)

    def value(self, dtype: Type, depth: int) -> Expr:
        """A 32-bit integer; all lanes need not agree."""
        if not depth:
            return self.leaf(dtype)

        def below() -> Expr:
            return self.value(dtype, depth - 1)

        match self.draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                return self.pick(*RING)(below(), below())  # type: ignore[no-any-return]
            case 3:
                return x.Mul(below(), self.const(dtype))
            case 4:
                return self.pick(x.Shl, x.Shr)(below(), const(self.pick(0, 1, 5, 16, 31), dtype))  # type: ignore[no-any-return]
            case 5:
                return self.pick(x.Shl, x.Shr)(below(), below() & const(31, dtype))  # type: ignore[no-any-return]
            case 6:
                return Select(self.truth(depth - 1), below(), below())
            case 7:
                return below() + Select(self.truth(0), const(1, dtype), const(0, dtype))
            case 8:
                return MulHi(below(), below()) if self.pick(0, 1) else ~below()
        other = u32 if dtype is s32 else s32
        if self.pick(0, 0, 1):  # the lower half of an address
            return self.wide(depth - 1).to(u32).to(dtype)
        return Cast(dtype, self.value(other, depth - 1))

    def truth(self, depth: int) -> Expr:
        """A condition, sometimes compound."""
        if depth > 0 and not self.draw(st.integers(0, 2)):
            a, b = self.truth(depth - 1), self.truth(depth - 1)
            return ~a if self.pick(0, 0, 1) else self.pick(x.And, x.Or)(a, b)
        dtype = self.pick(s32, u32)
        if not self.draw(st.integers(0, 5)):
            return x.Le(const(0), self.value(s32, 1) << (self.value(s32, 0) & 31))
        return self.pick(*ORDER)(self.value(dtype, max(depth, 0)), self.value(dtype, 1))  # type: ignore[no-any-return]

    def wide(self, depth: int) -> Expr:
        """A 64-bit integer of the forms that addresses have."""
        a = self.value(self.pick(s32, u32), max(0, depth - 1))
        match self.draw(st.integers(0, 5)) if depth > 0 else 0:
            case 0 | 1:
                return Cast(u64, a)
            case 2:
                return x.Mul(Cast(u64, a), const(self.pick(*_STRIDES), u64))
            case 3:
                return x.Sub(self.wide(depth - 1), const(self.draw(st.integers(0, (1 << 64) - 1)), u64))
            case 4:
                return x.Add(self.wide(depth - 1), const(self.draw(st.integers(0, (1 << 64) - 1)), u64))
        return x.Add(self.wide(depth - 1), self.wide(depth - 1))


class KernelGrower:
    """Statements around them. Every store has its own place, one word a lane and workgroup and turn of the loop."""

    def __init__(self, draw: Draw, width: int) -> None:
        self.draw, self.width, self.stores = draw, width, 0
        self.k = KernelBuilder("k", grid=(GROUPS, 1, 1), width=width)
        self.given, self.out = (self.k.buffer(n, u32, 4096) for n in ("given", "out"))
        self.n = self.k.scalar("n")
        self.uniform: list[Expr] = [self.k.group[0], self.n]
        self.names: list[Expr] = [Lane(), *self.uniform]
        self.load()

    def grower(self, *, uniform: bool = False) -> Grower:
        return Grower(self.draw, self.uniform if uniform else self.names)

    def number(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def load(self) -> None:
        """Each lane reads a word somewhere in the buffer, if at all."""
        where = self.grower().value(u32, 1) & 1023
        mask = const(True, bool_) if self.number(1) else self.grower().truth(1)
        v = self.k.var("v", u32)
        self.k.add(s.FlatLoad(v, self.given, AddressOf(self.given) + (where * 4).to(u64), mask, self.k.site()))
        self.names.append(v)

    def store(self) -> None:
        group, lanes = self.k.group[0], self.width * 4
        offset = group * (1024 * 4) + Lane() * 4 + self.stores * lanes
        self.stores += 1
        address: Expr = AddressOf(self.out) + offset.to(u64)
        if not self.number(2):  # there and back again
            stride = self.grower().pick(*_STRIDES)
            steps, times = self.grower().pick(
                (self.n, TIMES), (Uniform(Lane() * 0 - self.n), -TIMES), (~self.n, ~TIMES)
            )
            address = address + Cast(u64, steps) * const(stride, u64) + const(-stride * times % (1 << 64), u64)
        mask = const(True, bool_) if self.number(1) else self.grower().truth(2)
        self.k.add(s.FlatStore(self.out, address, mask, self.grower().value(u32, 3), self.k.site()))

    @contextmanager
    def scope(self) -> Iterator[None]:
        names, uniform = len(self.names), len(self.uniform)
        yield
        del self.names[names:], self.uniform[uniform:]

    def bind(self, v: Var, *, uniform: bool) -> None:
        self.names.append(v)
        if uniform:
            self.uniform.append(v)

    def suite(self, depth: int) -> None:
        with self.scope():
            for _ in range(1 + self.number(2)):
                self.statement(depth)
            self.store()

    def statement(self, depth: int) -> None:
        match self.number(5 if depth < 2 else 2):
            case 0:
                uniform = bool(self.number(1))
                self.bind(self.k.let("t", self.grower(uniform=uniform).value(s32, 2)), uniform=uniform)
            case 1:
                self.load()
            case 2:
                self.store()
            case 3:
                then, other = (self.arm(depth) for _ in range(2))
                self.k.add(s.If(self.grower(uniform=True).truth(1), then, other))
            case _:
                self.loop(depth)

    def arm(self, depth: int) -> s.Stmt:
        with self.k.suite() as body:
            self.suite(depth + 1)
        return s.block(*body)

    def loop(self, depth: int) -> None:
        begin = const(self.number(2)) if self.number(1) else self.k.group[0]
        first = {"c": self.grower(uniform=True).value(s32, 1), "d": self.grower().value(u32, 1)}
        with self.k.loop("i", begin, begin + self.number(3), **first) as loop, self.scope():
            self.bind(loop.var, uniform=True)
            self.bind(loop["c"], uniform=True)
            self.bind(loop["d"], uniform=False)
            self.suite(depth + 1)
            if not self.number(2):
                self.k.exit_if(
                    self.grower(uniform=True).truth(1),
                    self.grower(uniform=True).value(s32, 1),
                    self.grower().value(u32, 1),
                )
            loop.yields(self.grower(uniform=True).value(s32, 2), self.grower().value(u32, 2))
        self.bind(loop.result("c"), uniform=True)
        self.bind(loop.result("d"), uniform=False)


TIMES = 0x1234567  #: what the kernels' scalar argument is


@st.composite
def kernels(draw: Draw, width: int) -> Kernel:
    """Kernels of one subgroup and a few workgroups."""
    grower = KernelGrower(draw, width)
    grower.suite(0)
    return grower.k.done()


def memory_for(kernel: Kernel) -> Memory:
    rng = np.random.default_rng(1)
    sizes = {p.name: p.bytes for p in kernel.params if isinstance(p, Global)}
    found = {name: np.full(size, _SENTINEL, np.uint8) for name, size in sizes.items()}
    words = np.array([*_EDGES], np.int64).astype(np.uint32)
    drawn = rng.integers(0, 1 << 32, 4096, dtype=np.uint32)
    mixed = np.where(rng.integers(0, 2, 4096) == 0, rng.choice(words, 4096), drawn)
    found["given"] = mixed.astype(np.uint32).view(np.uint8)[: sizes["given"]]
    return found


def assert_simulates(name: str, kernel: Kernel, emit: Kernel | None = None, given: Memory | None = None) -> None:
    """The kernel's text, assembled and simulated, leaves the memory that its interpretation leaves, without a finding.

    `emit` is what passes have made of it, `given` the memory before.
    """
    target = targets.get(name)
    emitted = target.emit(emit or kernel)
    if shutil.which("iga64") is None:
        pytest.skip("iga64 is not installed")
    code = target.assemble(target.module([emitted]))
    assert code is not None
    given = given or memory_for(kernel)
    expected, memory = ({buffer: data.copy() for buffer, data in given.items()} for _ in range(2))
    scalars = {p.name: TIMES for p in kernel.params if isinstance(p, Var)}
    interpret(kernel, expected, scalars)
    args = [
        KernelArg(offset, size, scalars[a].to_bytes(size, "little") if a in scalars else a)
        for a, offset, size in emitted.arguments
    ]
    workgroup = (kernel.subgroups * kernel.width, 1, 1)
    report = target.simulate(code, [LaunchRequest(kernel.name, kernel.grid, workgroup, tuple(args))], memory)
    assert not report.findings, "\n".join(map(str, report.findings)) + "\n" + emitted.text
    for buffer, data in expected.items():
        wrong = np.flatnonzero(memory[buffer] != data)
        assert not wrong.size, f"byte {wrong[0]} of {buffer} is wrong\n{kernel}\n{emitted.text}"


def simulates_through_the_passes(target: str, kernel: Kernel, given: Memory | None = None) -> None:
    """The same behind all passes; examples with more masks at once than there are flag registers do not count."""
    try:
        assert_simulates(target, kernel, pipeline.run(kernel, targets.get(target).facts), given)
    except DoesNotFit as error:
        if "bank f" not in str(error):
            raise
        reject()
