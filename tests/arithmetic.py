"""Kernels of one expression on a fragment, or on one element a lane, and data for them: for every back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.backends.target import Target
from convgen.ir import floats as fl
from convgen.ir import stmt
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Expr, Lane, Max, Min, const, eq, lift, ne, select
from convgen.ir.facts import TargetFacts
from convgen.ir.floats import fma
from convgen.ir.interp import interpret
from convgen.ir.mutate import rewrite
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import AnyType, Type, bf16, bool_, f16, f32, f64, s8, s16, s32, u8, u16, u32, u64, vector
from convgen.passes import pipeline
from convgen.passes.pipeline import Pass

FLOATS = (f16, bf16, f32, f64)
INTEGERS = (s8, u8, s16, u16, s32, u32)
TINY = {f16: 2.0**-14, bf16: 2.0**-126, f32: 2.0**-126, f64: 2.0**-1022}  #: the smallest normal numbers
_MANTISSA = {f16: 10, f32: 23}  #: bits
Operation = Callable[[Expr, Expr, Expr], Expr]


def _chosen(compare: Callable[[Expr, Expr], Expr]) -> Operation:
    return lambda a, b, c: select(compare(a, b), c, a)


#: What gives exactly what the interpreter gives, for all numbers.
NUMBERS: dict[str, Operation] = {
    "a + b": lambda a, b, c: a + b,
    "a - b": lambda a, b, c: a - b,
    "a * b": lambda a, b, c: a * b,
    "min(a, b)": lambda a, b, c: Min(a, b),
    "max(a, b)": lambda a, b, c: Max(a, b),
    "-a": lambda a, b, c: -a,
    "abs(a)": lambda a, b, c: fl.absolute(a),
    "a < b": _chosen(lambda a, b: a < b),
    "a <= b": _chosen(lambda a, b: a <= b),
    "a == b": _chosen(eq),
    "a != b": _chosen(ne),
    "a < b and not b == c or a != c": _chosen(lambda a, b: ((a < b) & ~eq(b, a + b)) | ne(a, 1)),
    "one bool or another": lambda a, b, c: select((a < b) ^ (b < c), a, c),
    "bools chosen by a bool": lambda a, b, c: select(select(a < b, b < c, c < a), a, b),
    "equal bools": lambda a, b, c: select(eq(a < b, b < c), a, c),
    "a bool as a number": lambda a, b, c: (a < b).to(c.type) + c,
    "a number as a bool": lambda a, b, c: select(a.to(truth(a.type)), b, c),
    "constants": lambda a, b, c: (a + 3) * 5 - b,
    "chosen constants": lambda a, b, c: select(a < 2, c, 7),
}
_BITS: dict[str, Operation] = {
    "a & b": lambda a, b, c: a & b,
    "a | b": lambda a, b, c: a | b,
    "a ^ b": lambda a, b, c: a ^ b,
    "~a": lambda a, b, c: ~a,
    "a << (b & 7)": lambda a, b, c: a << (b & 7),
    "a >> (b & 7)": lambda a, b, c: a >> (b & 7),
    "a & 0x35": lambda a, b, c: a & 0x35,
}
_ROUNDED: dict[str, Operation] = {
    "floor(a)": lambda a, b, c: fl.Floor(a),
    "ceil(a)": lambda a, b, c: fl.Ceil(a),
    "round(a)": lambda a, b, c: fl.Round(a),
}
_BY_ZERO: dict[str, Operation] = {
    "a < 0": _chosen(lambda a, b: a < 0),
    "0 <= a, or a != 0": lambda a, b, c: select(lift(0, a) <= a, b, select(ne(a, 0), lift(0, a), c)),
}
_FUSED: dict[str, Operation] = {
    "fma(a, b, c)": fma,
    "fma(a, 1.5, b)": lambda a, b, c: fma(a, 1.5, b),
    "fma(a, 1.5, -0.75)": lambda a, b, c: fma(a, 1.5, -0.75),
}
#: On f16, with f32 results.
WIDENED: dict[str, Operation] = {
    "fma of widened": lambda a, b, c: fma(wide(a), wide(b), wide(c)),
    "fma(widened, 1.5, f32)": lambda a, b, c: fma(wide(a), 1.5, wide(b) * wide(c)),
    "fma(f32, 0, widened)": lambda a, b, c: fma(wide(a) * wide(b), 0.0, wide(c)),
}


def wide(a: Expr) -> Expr:
    """f32 of the same values."""
    return a.to(f32 if isinstance(a.type, Type) else vector(f32, a.type.lanes))


def truth(type: AnyType) -> AnyType:
    """Bools, as many as elements of the type."""
    return bool_ if isinstance(type, Type) else vector(bool_, type.lanes)


#: Operations with an error, by the class that has its bound.
APPROXIMATE: dict[type[fl.Approximate], Operation] = {cls: (lambda a, b, c, cls=cls: cls(a)) for cls in fl.APPROXIMATE}  # type: ignore[misc]


def exact(elem: Type) -> dict[str, Operation]:
    """The operations on elements of a type that are exact."""
    return kept(elem) | (WIDENED if elem is f16 else {})


def kept(elem: Type) -> dict[str, Operation]:
    """Those whose results are of the type, too, or bools."""
    if elem.is_int:
        return NUMBERS | _BITS
    return NUMBERS | _ROUNDED | _BY_ZERO | ({} if elem is bf16 else _FUSED)


def widths(elem: Type) -> list[AnyType]:
    """A fragment's registers, and one element a lane."""
    return [vector(elem, 128 // elem.bits), elem]


@attrs.frozen
class Case:
    """An operation on values of a type."""

    operation: Operation
    type: AnyType
    width: int  #: lanes of a subgroup

    def kernel(self, name: str, groups: int = 1) -> Kernel:
        """The kernel, of so many workgroups of one subgroup."""
        k = KernelBuilder(name, (groups, 1, 1), width=self.width)
        thread = k.group[0] * self.width + Lane()
        held = [self._load(k, n, thread, groups) for n in "abc"]
        value = k.let("value", self.operation(*held))
        out = k.buffer("out", value.type.elem, groups * self.width * value.type.lanes)
        k.global_store(k.surface(out), value, thread * (value.type.bits // 8))
        return k.done()

    def _load(self, k: KernelBuilder, name: str, thread: Expr, groups: int) -> Expr:
        buffer = k.buffer(name, self.type.elem, groups * self.width * self.type.lanes)
        return k.global_load(name, self.type, k.surface(buffer), thread * (self.type.bits // 8))

    def memory(self, seed: int) -> dict[str, Any]:
        """Inputs, and room for as many results of at most eight bytes."""
        rng = np.random.default_rng(seed)
        count = self.width * self.type.lanes
        given = {n: data(rng, self.type.elem, count).view(np.uint8) for n in "abc"}
        return {**given, "out": np.zeros(8 * count, np.uint8)}


def data(rng: np.random.Generator, elem: Type, count: int) -> Any:
    """Numbers of all kinds: bit patterns, small whole ones and halves, what lies at the ends; no signalling NaN."""
    raw = rng.integers(0, 256, count * elem.bytes, dtype=np.uint8).view(elem.numpy)
    if elem.is_int:
        ends = np.array([elem.min, elem.max, 0, 1, elem.max - 1]).astype(elem.numpy)
        small = rng.integers(max(elem.min, -9), 9, count).astype(elem.numpy)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            ends = np.array([*edges(elem), *(-e for e in edges(elem))]).astype(elem.numpy)
            raw = np.where(raw == raw, raw, elem.numpy.type(np.nan))
        small = (rng.integers(-9, 9, count) / 2).astype(elem.numpy)
    choices = [values.view(f"u{elem.bytes}") for values in (raw, small, rng.choice(ends, count))]
    return np.choose(rng.integers(0, 3, count), choices)


def edges(elem: Type) -> list[float]:
    """Positive floats where something happens."""
    tiny = TINY[elem]
    return [0.0, np.inf, np.nan, elem.largest, tiny, tiny / 2, 0.5, 1.0, 1.5, 2.5, 1023.5]


def compile_all(target: Target, kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Any]]:
    """One code object for all: to assemble and decode it takes hardly longer than for one of them."""
    emitted = [target.emit(pipeline.run(addressed(k, target.facts), target.facts)) for k in kernels]
    code = target.assemble(target.module(emitted))
    assert code is not None
    return code, {e.name: e for e in emitted}


def after_passes(kernel: Kernel, facts: TargetFacts) -> dict[str, Kernel]:
    """What each pass makes of the kernel, by the pass's name."""
    made: dict[str, Kernel] = {}

    def observe(p: Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        made[p.name] = after

    pipeline.run(addressed(kernel, facts), facts, observe=observe)
    return made


def launch(kernel: Kernel, emitted: Any) -> LaunchRequest:
    args = tuple(KernelArg(offset, size, name) for name, offset, size in emitted.arguments)
    workgroup = kernel.subgroups * kernel.width, 1, 1
    return LaunchRequest(kernel.name, kernel.grid, workgroup, args, emitted.shared_bytes)


def interpreted(kernel: Kernel, memory: dict[str, Any]) -> dict[str, Any]:
    """What the interpreter makes of a memory, which stays as it is."""
    mine = {n: b.copy() for n, b in memory.items()}
    interpret(kernel, mine, {})
    return mine


def results(kernel: Kernel, memory: dict[str, Any], elem: Type) -> Any:
    """What the interpreter leaves in `out`."""
    return interpreted(kernel, memory)["out"].view(elem.numpy)


def differing(found: Any, wanted: Any, elem: Type) -> Any:
    """Where results differ, and are not both NaN."""
    differ = found.view(f"u{elem.bytes}") != wanted.view(f"u{elem.bytes}")
    if elem.is_float:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            differ &= ~(np.isnan(found.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
    return differ


def clean(report: SimReport) -> None:
    """No finding."""
    assert not report.findings, report.findings[0]


def error(found: Any, exact: Any, elem: Type, of: fl.Accuracy) -> Any:
    """How far results are from exact ones, 1 being as far as allowed; not numbers, infinities and zeros are exact."""
    with np.errstate(all="ignore"):
        wide, size = found.astype(np.float64), np.abs(exact)
        normal = np.maximum(size, TINY[elem])
        ulp = 2.0 ** (np.floor(np.log2(np.where(np.isfinite(normal), normal, 1))) - _MANTISSA[elem])
        distance = np.abs(wide - exact) / np.maximum(of.ulps * ulp, of.absolute)
        flushed = (size < TINY[elem]) & (wide == 0) & (elem is f32)
        beyond = np.isinf(wide) & (size >= elem.largest)
        same = (wide == exact) | (np.isnan(wide) & np.isnan(exact)) | flushed | beyond
        return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


def check_exact(to: Target, cases: dict[str, Case], elem: Type) -> None:
    """Simulated as interpreted, bit for bit."""
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases.values())]
    code, emitted = compile_all(to, kernels)
    for (name, case), kernel in zip(cases.items(), kernels):
        memory = case.memory(7)
        wanted = results(kernel, memory, elem)
        clean(to.simulate(code, [launch(kernel, emitted[kernel.name])], memory))
        found = memory["out"].view(elem.numpy)
        differ = differing(found, wanted, elem)
        given = [memory[n].view(case.type.elem.numpy)[differ[: case.width * case.type.lanes]][:3] for n in "abc"]
        assert not differ.any(), (name, given, found[differ][:3], wanted[differ][:3])


def run(to: Target, kernel: Kernel, given: Any, scalars: dict[str, float]) -> tuple[Any, Any]:
    """What the kernel leaves in `out`, interpreted and simulated; its scalar arguments are f32."""
    code, emitted = compile_all(to, [kernel])
    mine, theirs = ({"a": given.view(np.uint8).copy(), "out": np.zeros(given.nbytes, np.uint8)} for _ in range(2))
    interpret(kernel, mine, scalars)  # type: ignore[arg-type]
    request = launch(kernel, emitted["k"])
    raw = {name: np.float32(value).tobytes() for name, value in scalars.items()}
    args = tuple(evolve(a, value=raw.get(str(a.value), a.value)) for a in request.args)
    clean(to.simulate(code, [evolve(request, args=args)], theirs))
    return mine["out"].view(np.float32), theirs["out"].view(np.float32)


def addressed(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """The kernel with flat addresses where a target has no surfaces; all accesses must stay inside theirs."""
    if not facts.flat:
        return kernel

    def address(s: stmt.GlobalLoad | stmt.GlobalStore) -> Expr:
        return AddressOf(s.buffer) + (s.varying + s.uniform + s.imm).to(u64)

    def load(s: stmt.GlobalLoad) -> stmt.Stmt:
        return stmt.FlatLoad(s.var, s.buffer, address(s), const(True, bool_), s.site)

    def store(s: stmt.GlobalStore) -> stmt.Stmt:
        return stmt.FlatStore(s.buffer, address(s), const(True, bool_), s.value, s.site)

    return evolve(kernel, body=rewrite(kernel.body, {stmt.GlobalLoad: load, stmt.GlobalStore: store}))
