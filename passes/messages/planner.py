"""The message planner: how a distributed tile moves between registers and global memory, message by message.

An address is split into a varying and a uniform offset and an immediate. What must be bounds-checked stands in the
varying part; a lane that must not access gets an offset beyond every surface (docs/ir.md, "Surfaces").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

import attrs

from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Const, Expr, Lane, Surface, Var, const, maximum, minimum, select
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.mutate import free_vars
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.types import bool_, s32, s64, u32, u64
from convgen.passes.messages.linear import ZERO, Halo, LinearDim, LinearView, divisor, plus

#: A varying offset no surface reaches; with any uniform and immediate offset added it stays out of range.
OUT_OF_RANGE = -(1 << 31)

#: Most positions of a dimension whose halo is kept as one bit each (a shift must stay below 32).
MASK_BITS = 31


@attrs.frozen
class GlobalMessage:
    """Registers [start, start + count) of the fragment at `varying + uniform + imm` bytes of `surface`."""

    start: int
    count: int
    surface: Surface
    varying: Expr
    uniform: Expr
    imm: int
    mask: Expr  #: where the element exists; always true where the offset of the others is out of range

    @property
    def address(self) -> Expr:
        """The flat address; parts that stay the same all through a loop come first, for they can leave it together."""
        base: Expr = AddressOf(self.surface.buffer)
        shift, varying = self.surface.shift, self.varying + self.imm
        if isinstance(shift, Const):
            varying = varying + shift.bits
        else:
            base = base + shift.to(u64)
        return base + varying.to(u64) + self.uniform.to(u32).to(u64)


@attrs.frozen
class _Position:
    """A position along one dimension: uniform + varying + constant part."""

    uniform: Expr
    varying: Expr
    const: int

    @property
    def value(self) -> Expr:
        return self.uniform + self.varying + self.const


ONES = const(0xFFFFFFFF, u32)
TRUE = const(True, bool_)


class GlobalPlanner:
    """Plans the messages of one distributed access to a view."""

    def __init__(
        self,
        view: LinearView,
        coords: Sequence[Expr],
        layout: Fragment,
        subgroup: Expr,
        facts: TargetFacts,
        bounds: Bounds,
        steady: frozenset[Var],
        values: Mapping[Var, Expr],
    ) -> None:
        """`steady` are the variables (outer lets, group ids) whose terms belong into the varying offset.

        `values` are the lets in scope: what a start is a multiple of shows there.
        """
        self.view, self.layout, self.facts, self.bounds, self.steady = view, layout, facts, bounds, steady
        self.coords = tuple(coords)
        self.subgroup = subgroup
        self.far = min(range(len(view.axes)), key=lambda n: (not self._moves(n), self._reach(n)))
        self.origin = self._rebase()
        self.multiples = tuple(divisor(c, values) for c in coords)
        self.lane_part = _sum_parts(layout.partial(Space.SUBGROUP, subgroup), layout.partial(Space.LANE, Lane()))
        self.surface = self._surface()

    # ------------------------------------------------------------ surface

    def _rebase(self) -> Expr | None:
        """Where along the dimension of largest stride the tile begins, if offsets from its start may not fit 31 bits.

        Positions beyond the view, which the last tiles have, count: their offsets must not wrap into the surface.
        """
        beyond = sum(
            (self.layout.extent(name) * dims[0].padded // self.view.extent(axis) + 1) * dims[0].stride
            for axis, (name, dims) in enumerate(zip(self.layout.dims, self.view.axes))
        )
        if self.view.memory.bytes - self.view.base + beyond <= self.facts.surface_max:
            return None
        position = self.coords[self.far]
        for d in self.view.axes[self.far][:0:-1]:
            position = position // d.padded
        return position

    def _moves(self, axis: int) -> bool:
        """Whether a surface can begin further on with the first dimension of an axis."""
        outer = self.view.axes[axis][0]
        return not outer.reversed and outer.stride > 0

    def _reach(self, axis: int) -> int:
        """The bytes that a tile spans at most, from where it begins along the first dimension of an axis."""
        outer, tile = self.view.axes[axis][0], self.layout.extent(self.layout.dims[axis])
        inner = self.view.extent(axis) // outer.padded
        span = min(outer.size, (tile + inner - 2) // inner + 1)
        others = sum((d.size - 1) * d.stride for dims in self.view.axes for d in dims if d is not outer)
        return (span - 1) * outer.stride + others + self.view.memory.elem.bytes

    def _surface(self) -> Surface:
        memory, base = self.view.memory, self.view.base
        if self.origin is None:
            return Surface(memory, const(base, s64), const(memory.bytes - base))
        outer, reach = self.view.axes[self.far][0], self._reach(self.far)
        step = outer.stride if self._moves(self.far) else memory.bytes
        rows, rest = divmod(memory.bytes - base, step)
        fitting = (self.facts.surface_max - rest) // step
        if fitting * step + rest < reach or step != outer.stride:
            raise Unsupported(
                f"given {memory.name} of which one tile spans {reach} bytes, wanted at most {fitting * step + rest}",
                rule="size",
            )
        # To the end of the buffer or as far as a surface goes: what the tile may not touch is masked.
        shift = self.origin.to(s64) * const(outer.stride, s64) + const(base, s64)
        left = minimum(maximum(const(rows) - self.origin, 0), fitting)
        return Surface(memory, shift, left * outer.stride + const(rest))

    # ------------------------------------------------------------ positions

    def _decode(self, axis: int, register: int) -> dict[str, _Position]:
        """The position along each dim of an axis for the element in `register`."""
        name = self.layout.dims[axis]
        dims, start = self.view.axes[axis], self.coords[axis]
        lanes, fixed = self.lane_part[name], self.layout.partial(Space.REGISTER, register)[name]
        tile = self.layout.extent(name)
        if len(dims) == 1:
            return {dims[0].name: _Position(start, lanes, fixed)}
        inner = dims[-1]
        out: dict[str, _Position] = {}
        if inner.padded % tile == 0 and self.multiples[axis] % tile == 0:  # the tile lies within one run of `inner`
            out[inner.name] = _Position(start % inner.padded, lanes, fixed)
            rest, varying = start // inner.padded, False
        else:
            # Positions that share all digits above a common divisor are decoded once.
            unit = math.gcd(inner.padded, self.multiples[axis], divisor(lanes, {}))
            position = start + lanes + (fixed - fixed % unit)
            out[inner.name] = _Position(ZERO, position % inner.padded, fixed % unit)
            rest, varying = position // inner.padded, True
        for d in dims[-2:0:-1]:
            out[d.name] = _place(rest % d.padded, varying)
            rest = rest // d.padded
        out[dims[0].name] = _place(rest, varying)
        return out

    # ------------------------------------------------------------ messages

    def run(self, widest: int) -> int:
        """Elements a message: contiguous in registers and memory, aligned, and all there or none."""
        axis, elem = self.view.unit_axis, self.view.memory.elem.bytes
        if axis is None:
            return 1
        run = self.layout.contiguous(self.layout.dims[axis])
        while run > 1:
            legal = run * elem <= widest and run * elem in self.facts.global_widths
            if legal and self.multiples[axis] % run == 0 and self.view.makes_messages(run):
                break
            run -= 1 if run % 2 else run // 2
        return run

    def messages(self, widest: int | None = None) -> Iterator[GlobalMessage]:
        """One message per run of registers of at most `widest` bytes, in register order."""
        run = self.run(widest or self.facts.global_widths[0])
        for start in range(0, self.layout.registers, run):
            positions = {k: v for a in range(len(self.view.axes)) for k, v in self._decode(a, start).items()}
            varying, uniform, imm = self._offset(positions)
            if imm >= 1 << 31:
                spans = f"given {self.view.memory.name} of which one tile spans {imm} bytes and more"
                raise Unsupported(f"{spans}, wanted less than 2^31", rule="size")
            words, conditions = self._tests(positions)
            if self.facts.flat:
                yield GlobalMessage(start, run, self.surface, varying, uniform, imm, self._mask(words, conditions))
                continue
            varying = self._masked(varying, words, conditions)
            extra = imm - imm % (self.facts.global_imm_max + 1)
            varying = varying + extra if extra else varying
            yield GlobalMessage(start, run, self.surface, varying, uniform, imm - extra, TRUE)

    def _offset(self, positions: dict[str, _Position]) -> tuple[Expr, Expr, int]:
        varying: Expr = ZERO
        uniform: Expr = ZERO
        imm = 0
        for dims in self.view.axes:
            for d in dims:
                at = self._reversed(d, positions[d.name]) if d.reversed else positions[d.name]
                if self.origin is not None and d is self.view.axes[self.far][0]:
                    at = self._from_origin(at, self.origin)
                varying = plus(varying, _scale(at.varying, d.stride))
                if self._is_steady(at.uniform):
                    varying = plus(varying, _scale(at.uniform, d.stride))
                else:
                    uniform = plus(uniform, _scale(at.uniform, d.stride))
                imm += at.const * d.stride
        return varying, uniform, imm

    def _from_origin(self, at: _Position, origin: Expr) -> _Position:
        """The position counted from where the surface begins. No part may be negative: the varying one is checked."""
        if at.uniform is ZERO:
            return _Position(ZERO, at.varying - origin, at.const)
        return _Position(at.uniform - origin, at.varying, at.const)

    def _reversed(self, dim: LinearDim, at: _Position) -> _Position:
        """The position counted from the other end, where memory begins; never below, for an offset must not wrap.

        It is one part, for as several these would be negative.
        """
        place = const(dim.size - 1) - at.value
        if self.bounds(place)[0] < 0:
            place = maximum(place, 0)
        return _Position(ZERO, place, 0) if at.varying is not ZERO else _Position(place, ZERO, 0)

    def _is_steady(self, e: Expr) -> bool:
        names = free_vars(e)
        return bool(names) and all(v in self.steady for v in names)

    # ------------------------------------------------------------ masks

    def _tests(self, positions: dict[str, _Position]) -> tuple[list[Expr], list[Expr]]:
        """What tells whether an element exists: words whose sign bit says that it does not, and conditions."""
        words: list[Expr] = []
        conditions: list[Expr] = []
        tested: list[str] = []
        for halo in self.view.halos:
            tap = self._tap(halo, positions)
            if tap is None:
                conditions.append(self._coordinate(halo.terms, halo.const, positions).to(u32) < const(halo.size, u32))
            else:
                tested.append(tap[0].name)
                words.append(self._halo_word(halo, *tap, positions))
        for dim, value in self._overruns(positions):
            if self._fits_word(value) and not self._is_steady_or_lane(value):
                words += [] if dim.name in tested else [(ONES >> const(dim.size, u32)) << value.to(u32)]
            else:
                conditions.append(value < dim.size)
        return words, conditions

    def _mask(self, words: list[Expr], conditions: list[Expr]) -> Expr:
        """Where the element exists. Loop-invariant conditions come first."""
        tests = sorted(conditions, key=lambda c: not self._is_steady_or_lane(c))
        tests += [reduce(or_, words).to(s32) >= 0] if words else []
        return _all(tests) if tests else TRUE

    def _masked(self, offset: Expr, words: list[Expr], conditions: list[Expr]) -> Expr:
        """`offset`, out of range in the lanes whose element does not exist. Loop-invariant conditions come first."""
        steady = [c for c in conditions if self._is_steady_or_lane(c)]
        moving = [c for c in conditions if not self._is_steady_or_lane(c)]
        if steady and not self._is_steady_or_lane(offset):
            words.append(select(_all(steady), const(0, u32), 1 << 31))
        else:
            for condition in steady:
                offset = select(condition, offset, OUT_OF_RANGE)
        if words:
            offset = (reduce(or_, words) & const(1 << 31, u32)).to(s32) | offset
        if moving:
            offset = (select(_all(moving), const(0), 1) << 31) | offset
        return offset

    def _is_steady_or_lane(self, e: Expr) -> bool:
        return all(v in self.steady for v in free_vars(e))

    def _overruns(self, positions: dict[str, _Position]) -> Iterator[tuple[LinearDim, Expr]]:
        """The dims that may leave their range and whose offsets would not show it, with their positions."""
        last = self.view.memory.bytes - self.view.base
        for dims in self.view.axes:
            for i, d in enumerate(dims):
                value = positions[d.name].value
                if i and d.size == d.padded:
                    continue  # a remainder
                if self.bounds(value)[1] < d.size:
                    continue
                # Past the end of the buffer by the varying offset alone: soffset may not take part in the check.
                alone = positions[d.name].uniform is ZERO or self._is_steady(positions[d.name].uniform)
                shows = alone and not (d.reversed or self.facts.flat) and d.size * d.stride >= last
                shows = shows and self.origin is None
                if not shows:
                    yield d, value

    def _coordinate(self, terms: Sequence[tuple[str, int]], start: int, positions: dict[str, _Position]) -> Expr:
        total: Expr = const(start)
        for name, coef in terms:
            if name in positions:
                total = plus(total, _scale(positions[name].value, coef))
        return total

    def _tap(self, halo: Halo, positions: dict[str, _Position]) -> tuple[LinearDim, int] | None:
        """The one dim of a halo's coordinate on the last axis, K, and its step; None if a bit a tap does not do."""
        moving = {d.name: d for d in self.view.axes[-1]}
        taps = [(moving[n], c) for n, c in halo.terms if n in moving and n in positions]
        if len(taps) != 1 or taps[0][1] < 1:
            return None
        dim, step = taps[0]
        return (dim, step) if dim.size <= MASK_BITS and self._fits_word(positions[dim.name].value) else None

    def _fits_word(self, position: Expr) -> bool:
        """Whether a word has a bit for each value of a position."""
        low, high = self.bounds(position)
        return low >= 0 and high <= MASK_BITS

    def _halo_word(self, halo: Halo, tap: LinearDim, step: int, positions: dict[str, _Position]) -> Expr:
        """A word whose sign bit is set where the coordinate is outside, or the tap beyond its dim.

        Bit 31-t of a loop-invariant word says "outside at tap t", so shifting left by t brings it to the sign.
        """
        terms = [(n, c) for n, c in halo.terms if n in positions and n != tap.name]
        origin = self._coordinate(terms, halo.const, positions)
        # Inside at taps [first, end): 0 <= origin + step * tap < size.
        first = minimum(maximum((const(step - 1) - origin) // step, 0), tap.size)
        end = minimum(maximum((const(halo.size - 1) - origin) // step + 1, 0), tap.size)
        outside = ~(ONES >> first.to(u32)) | (ONES >> end.to(u32))
        return outside << positions[tap.name].value.to(u32)


def _all(conditions: Sequence[Expr]) -> Expr:
    return reduce(and_, conditions)


def _place(position: Expr, varying: bool) -> _Position:
    return _Position(ZERO, position, 0) if varying else _Position(position, ZERO, 0)


def _sum_parts(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Expr]:
    out: dict[str, Expr] = {}
    for name in a:
        parts = [p for p in (a[name], b[name]) if isinstance(p, Expr)]
        out[name] = parts[0] + parts[1] if len(parts) == 2 else (parts[0] if parts else ZERO)
    return out


def _scale(e: Expr, factor: int) -> Expr:
    return e if factor == 1 or e is ZERO else e * factor
