"""The semantics of expressions: numpy over the lanes of one or more subgroups in step, with poison.

A value has one element a lane (`[width]`) or a vector a lane (`[width, n]`) in the numpy type of its elements. `poison`
marks elements read from memory that was never written. It propagates through every operation and becomes an error only
where it decides something (an address, a branch, a stored value): `Value.defined` is that point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir.bit_fields import unpacked
from convgen.ir.error import VerifyError
from convgen.ir.evaluate_floats import APPROXIMATE, EXACT, fma
from convgen.ir.expr import Expr, Var
from convgen.ir.floats import Fma
from convgen.ir.fused import Fused
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.layout.mma import MmaTile
from convgen.ir.products import BlockMma
from convgen.ir.record import frozen
from convgen.ir.types import AnyType, Type, VectorType, half_bytes, s4, u4
from convgen.ir.votes import AllLanes

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class InterpError(VerifyError):
    """The program breaks a rule of docs/ir.md; the message says which, the notes say where."""


@frozen(eq=False)
class Value:
    """The elements of all lanes and their poison mask; None if no element is poison."""

    data: Array
    poison: Mask | None = None

    @property
    def mask(self) -> Mask:
        """Return the poison mask, also if no element is poison."""
        return np.zeros(self.data.shape, np.bool_) if self.poison is None else self.poison

    def defined(self, what: str, where: Mask | None = None) -> Array:
        """Return the elements for a use that must not see poison; InterpError if one that is used `where` is poison."""
        if self.poison is not None and (bad := self.poison if where is None else self.poison & where).any():
            lanes = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
            raise InterpError(f"{what} depends on uninitialized memory, in lanes {_few(lanes)}")
        return self.data

    def moved(self, move: Callable[[Array], Array]) -> Value:
        """Return the elements that `move` selects, with their poison."""
        return Value(move(self.data), None if self.poison is None else move(self.poison))


@frozen(eq=False)
class SurfaceValue:
    """The value of a surface: `extent` bytes of a buffer from byte `shift` on, both per lane."""

    buffer: Global
    shift: Array
    extent: Array


def _few(values: Array) -> str:
    return ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")


def check_inside(numbers: Array, end: int, what: str, where: str) -> None:
    """Raise InterpError unless all numbers are in [0, end); it says `what` they number, a byte say, of `where`."""
    if (bad := numbers[(numbers < 0) | (numbers >= end)]).size:
        raise InterpError(f"{what} {bad[0]} of {where}, which has {end}")


@lru_cache(maxsize=2**8)
def coordinates(layout: Fragment, subgroups: tuple[int, ...], width: int) -> tuple[Array, ...]:
    """Return the coordinates along each dim of `layout`, as [lane of some subgroups, register]."""
    lanes, registers = np.arange(width)[:, None], np.arange(layout.registers)[None, :]
    at = [layout.coords(subgroup, lanes, registers) for subgroup in subgroups]
    shape = (width, layout.registers)
    return tuple(
        np.concatenate([np.broadcast_to(one[dim], shape) for one in at]).astype(np.int64) for dim in layout.dims
    )


class Evaluator:
    """Evaluate expressions for all lanes of some subgroups, concatenated; `env` maps variables to values.

    Results are memoized. Call `forget` before binding a variable again.
    """

    def __init__(self, width: int, bases: Mapping[Global, int] | None = None, numbers: Sequence[int] = (0,)) -> None:
        """Set the lanes of a subgroup (`width`), the buffers' addresses (`bases`) and the subgroups' `numbers`."""
        self.width, self.numbers, self.lanes = width, numbers, width * len(numbers)
        #: Operands (a, b) of a product: one pair with the lanes of all subgroups that are evaluated together, or a pair
        #: for each subgroup of the team where one is evaluated alone; concatenated, they are whole teams in order.
        self.team: Callable[[x.Mma], Sequence[tuple[Value, ...]]] = lambda e: [(self(e.a), self(e.b))]
        self.env: dict[Var, Value | SurfaceValue] = {}
        self.bases: Mapping[Global, int] = bases or {}
        self._memo: dict[Expr, Value] = {}

    def forget(self) -> None:
        self._memo.clear()

    def __call__(self, e: Expr) -> Value:
        """Return the value of an expression that is not a surface."""
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = _EVALUATED[type(e)](self, e)
        return known

    def window(self, e: Expr) -> SurfaceValue:
        """Return the value of a surface."""
        if isinstance(e, x.Surface):
            return SurfaceValue(
                e.buffer, self.uniform(e.shift, "a surface's shift"), self.uniform(e.extent, "a surface's extent")
            )
        found = self.env.get(e) if isinstance(e, Var) else None
        if not isinstance(found, SurfaceValue):
            raise InterpError(f"{e} is no surface")
        return found

    def uniform(self, e: Expr, what: str) -> Array:
        """Return for each lane the integer that all lanes of its subgroup agree on; InterpError if they differ."""
        data = self(e).defined(what)
        if self.differs(data):
            raise InterpError(f"{what} differs between lanes: {_few(np.unique(data))}")
        return data.astype(np.int64)

    def differs(self, data: Array) -> bool:
        """Return whether lanes of one subgroup have different elements."""
        of_subgroups = data.reshape(-1, self.width, *data.shape[1:])
        return bool((of_subgroups != of_subgroups[:, :1]).any())

    def bound(self, e: Expr) -> Value | SurfaceValue:
        """Return the value that a variable gets when bound to `e`."""
        known = self.env.get(e) if isinstance(e, Var) else None
        return self.window(e) if isinstance(e, x.Surface) or isinstance(known, SurfaceValue) else self(e)

    def full(self, type: AnyType, value: int | float) -> Value:
        """Return `value` in every element of every lane."""
        shape = (self.lanes, type.lanes) if isinstance(type, VectorType) else (self.lanes,)
        return Value(np.full(shape, value, type.elem.numpy))


def tainted(a: Value, b: Value) -> Mask | None:
    """Return the poison mask of an element-wise operation on both."""
    if a.poison is None or b.poison is None:
        return a.poison if b.poison is None else b.poison
    return a.poison | b.poison


# ---------------------------------------------------------------- operators


def _binary(ev: Evaluator, e: Any) -> Value:
    result = operate(type(e), ev(e.a), ev(e.b), e.a.type.elem)
    return Value(result.data.astype(e.type.elem.numpy, copy=False), result.poison)


def operate(kind: type[Expr], a: Value, b: Value, elem: Type) -> Value:
    """Apply the operation `kind` to elements of type `elem`."""
    poison = tainted(a, b)
    with np.errstate(all="ignore"):
        return Value(_OPERATORS[kind](a.data, b.data, poison, elem), poison)


def _pure(f: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    return lambda a, b, poison, type: f(a, b)


def _divide(a: Array, b: Array, poison: Mask | None, type: Type, f: Callable[[Array, Array], Array]) -> Array:
    if type.is_float:
        raise InterpError(f"division of {type}")
    zero = b == 0
    if (zero if poison is None else zero & ~poison).any():
        raise InterpError("division by zero")
    return f(a, np.where(zero, 1, b).astype(b.dtype))


def _shift(a: Array, b: Array, poison: Mask | None, type: Type, f: Callable[[Array, Array], Array]) -> Array:
    outside = (b < 0) | (b >= type.bits)
    if (outside if poison is None else outside & ~poison).any():
        raise InterpError(f"shift of {type} by {_few(np.unique(b[outside]))}")
    return f(a, np.where(outside, 0, b).astype(b.dtype))


def _mulhi(a: Array, b: Array) -> Array:
    product = a.view(np.uint32).astype(np.uint64) * b.view(np.uint32).astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.uint32).view(a.dtype)


def _extremum(pick: Callable[[Array, Array], Array], zero: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a function that picks element by element: a number over NaN, and of two zeros by their signs."""

    def function(a: Array, b: Array, poison: Mask | None, type: Type) -> Array:
        if not type.is_float:
            return pick(a, b)
        picked = np.where((a == 0) & (b == 0), np.where(zero(np.signbit(a), np.signbit(b)), -0.0, 0.0), pick(a, b))
        return np.where(a != a, b, np.where(b != b, a, picked.astype(a.dtype)))

    return function


_OPERATORS: dict[type[Expr], Callable[..., Array]] = {
    x.Add: _pure(np.add),
    x.Sub: _pure(np.subtract),
    x.Mul: _pure(np.multiply),
    x.MulHi: _pure(_mulhi),
    x.Div: lambda a, b, poison, type: _divide(a, b, poison, type, np.floor_divide),
    x.Mod: lambda a, b, poison, type: _divide(a, b, poison, type, np.mod),
    x.Min: _extremum(np.minimum, np.logical_or),
    x.Max: _extremum(np.maximum, np.logical_and),
    x.And: _pure(np.bitwise_and),
    x.Or: _pure(np.bitwise_or),
    x.Xor: _pure(np.bitwise_xor),
    x.Shl: lambda a, b, poison, type: _shift(a, b, poison, type, np.left_shift),
    x.Shr: lambda a, b, poison, type: _shift(a, b, poison, type, np.right_shift),
    x.Lt: _pure(np.less),
    x.Le: _pure(np.less_equal),
    x.Eq: _pure(np.equal),
    x.Ne: _pure(np.not_equal),
}


def _var(ev: Evaluator, e: Var) -> Value:
    found = ev.env.get(e)
    if not isinstance(found, Value):
        raise InterpError(f"{e.name}.{e.id} is {'not bound' if found is None else 'a surface'}")
    return found


def _not(ev: Evaluator, e: x.Not) -> Value:
    a = ev(e.a)
    return Value(np.invert(a.data), a.poison)


def _exact(ev: Evaluator, e: Any) -> Value:
    a = ev(e.a)
    return Value(EXACT[type(e)](a.data), a.poison)


def _approximate(ev: Evaluator, e: Any) -> Value:
    a = ev(e.a)
    with np.errstate(all="ignore"):
        return Value(convert(APPROXIMATE[type(e)](a.data.astype(np.float64)), e.type.elem), a.poison)


def _fma(ev: Evaluator, e: Fma) -> Value:
    a, b, c = (ev(operand) for operand in (e.a, e.b, e.c))
    with np.errstate(all="ignore"):
        data = convert(fma(a.data, b.data, c.data), e.type.elem)
    return Value(data, tainted(Value(a.data, tainted(a, b)), c))


def _select(ev: Evaluator, e: x.Select) -> Value:
    cond, a, b = ev(e.cond), ev(e.a), ev(e.b)

    def spread(per_lane: Array) -> Array:
        return per_lane.reshape(per_lane.shape + (1,) * (a.data.ndim - per_lane.ndim))

    chosen = spread(cond.data)
    poison = None
    if not (cond.poison is a.poison is b.poison is None):
        poison = np.where(chosen, a.mask, b.mask) | spread(cond.mask)
    return Value(np.where(chosen, a.data, b.data), poison)


def convert(data: Array, to: Type, *, saturate: bool = False) -> Array:
    """Convert elements as `Cast` does, or `Saturate`: docs/ir.md, "Conversions"."""
    data = _plain(data)
    whole = data.dtype.kind != "f"
    with np.errstate(all="ignore"):
        if to.is_bool:
            return np.not_equal(data, 0)
        if to.is_int:
            return data.astype(to.numpy) if whole and not saturate else _nearest(data if whole else np.rint(data), to)
        if to.bits < 32 and data.dtype != np.float32:
            data = _single_odd(_double_odd(data))
        if saturate and data.dtype.kind == "f":
            data = np.clip(data.astype(np.float64) if to.bits == 64 else data, -to.largest, to.largest)
        return data.astype(to.numpy)


def _plain(data: Array) -> Array:
    """Return the numbers in a type that numpy computes with: s4 and u4 as int8, f16 and narrower floats as float32."""
    if data.dtype in (s4.numpy, u4.numpy):
        return data.astype(np.int8)
    return data if data.dtype.isbuiltin == 1 and data.dtype != np.float16 else data.astype(np.float32)


def _nearest(data: Array, to: Type) -> Array:
    """Round whole numbers to the nearest value of an integer type; NaN becomes 0.

    If a limit of the type is not a float, numpy compares with the adjacent power of two; no float lies between the two.
    """
    below, above = data <= to.min, data >= to.max
    inside = np.where(below | above | (data != data), 0, data).astype(to.numpy)
    return np.where(below, np.array(to.min, to.numpy), np.where(above, np.array(to.max, to.numpy), inside))


def _double_odd(data: Array) -> Array:
    """Return float64; 64-bit integers that it cannot represent are rounded to odd (see `_single_odd`)."""
    wide = data.astype(np.float64)
    if data.dtype.kind == "f" or data.dtype.itemsize < 8:
        return wide
    coarse = data >> 11 | (data & 0x7FF != 0)
    return np.where((data > -(1 << 53)) & (data < 1 << 53), wide, coarse.astype(np.float64) * 2048.0)


def _single_odd(wide: Array) -> Array:
    """Return float32 rounded to odd (an inexact value has its last bit set), so that rounding again rounds once."""
    near = wide.astype(np.float32)
    below = near.view(np.uint32) - (np.abs(near) > np.abs(wide))
    return np.where(near == wide, near, (below | np.uint32(1)).astype(np.uint32).view(np.float32))


def _conversion(ev: Evaluator, e: x.Conversion) -> Value:
    a = ev(e.a)
    data = convert(a.data, e.dtype.elem, saturate=isinstance(e, x.Saturate)).reshape(ev.full(e.dtype, 0).data.shape)
    return Value(data, None if a.poison is None else a.poison.reshape(data.shape))


def _uniform(ev: Evaluator, e: x.Uniform) -> Value:
    a = ev(e.a)
    data = a.defined("a uniform value")
    if ev.differs(data):
        raise InterpError(f"uniform() of a value that differs between lanes: {_few(np.unique(data))}")
    return a


def _from_lane(ev: Evaluator, e: x.FromLane) -> Value:
    a, lane = ev(e.a), ev(e.lane).defined("the number of a lane")
    check_inside(lane, ev.width, "lane", "a subgroup")
    first = np.arange(ev.lanes) // ev.width * ev.width
    return a.moved(lambda data: data[first + lane])


def _all_lanes(ev: Evaluator, e: AllLanes) -> Value:
    votes = ev(e.a).defined("what lanes vote on").reshape(-1, ev.width)
    return Value(np.repeat(votes.all(1), ev.width))


def to_bytes(v: Value) -> tuple[Array, Mask | None]:
    """Return the bytes `[width, bytes]` of each lane and their poison mask; two 4-bit elements share a byte."""
    size = v.data.dtype.itemsize
    raw: Array = np.ascontiguousarray(v.data).reshape(len(v.data), -1).view(np.uint8)
    poison = None if v.poison is None else np.repeat(v.poison.reshape(len(v.data), -1), size, axis=1)
    if v.data.dtype in half_bytes():
        if raw.shape[1] % 2:
            raise InterpError(f"{raw.shape[1]} elements of 4 bits have no bytes")
        raw = raw[:, ::2] & 0xF | raw[:, 1::2] << 4
        poison = None if poison is None else poison[:, ::2] | poison[:, 1::2]
    return raw, poison


def from_bytes(raw: Array, poison: Mask | None, type: AnyType) -> Value:
    """Return the value that has these bytes; an element is poison if one of its bytes is."""
    shape = (len(raw), type.lanes) if isinstance(type, VectorType) else (len(raw),)
    if type.elem.bits == 4:
        raw = np.stack((raw & 0xF, raw >> 4), axis=2)
        poison = None if poison is None else np.repeat(poison, 2, axis=1)
    data = np.ascontiguousarray(raw).view(type.elem.numpy).reshape(shape)
    if poison is None or not poison.any():
        return Value(data)
    return Value(data, poison.reshape(len(raw), type.lanes, -1).any(axis=2).reshape(shape))


def _pack(ev: Evaluator, e: x.Pack) -> Value:
    parts = [Value(*to_bytes(ev(p))) for p in e.parts]
    poison = None
    if any(v.poison is not None for v in parts):
        poison = np.concatenate([v.mask for v in parts], axis=1)
    return from_bytes(np.concatenate([v.data for v in parts], axis=1), poison, e.dtype)


# ---------------------------------------------------------------- matrices


@lru_cache(maxsize=2**8)
def _scale_owners(op: MmaTile) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return (subgroup, lane, register) of the scale of each element of one instruction's A[row, k] and B[col, k]."""
    assert op.atom.scales is not None
    (of_a, of_b), (shared_a, shared_b) = op.atom.scales, op.atom.scaled_k
    i, k = np.indices(op.atom.a.shape)
    j, kb = np.indices(op.atom.b.shape)
    return (
        of_a.owner({"n": i, "k": k // shared_a * shared_a}),
        of_b.owner({"m": j, "k": kb // shared_b * shared_b}),
    )


@lru_cache(maxsize=2**8)
def _owners(op: MmaTile) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return (subgroup, lane, register) of each element of one instruction's A[row, k] and B[col, k]."""
    atom = op.atom
    i, k = np.indices(atom.a.shape)
    j, kb = np.indices(atom.b.shape)
    return atom.a.owner({"n": i, "k": k}), atom.b.owner({"m": j, "k": kb})


def _ten_bits(data: Array) -> Array:
    """Truncate f32 to the 10 mantissa bits of xf32; NaN stays as it is."""
    cut: Array = (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(data), data, cut)


#: Rounding that a matrix instruction applies to its inputs, by `MmaAtom.rounds_to`.
_INPUTS: dict[str, Callable[[Array], Array]] = {"": lambda data: data, "xf32": _ten_bits}


def _numbers(rows: Array, packed: Type | None, wide: np.dtype[Any]) -> Array:
    """Return the numbers of an operand [..., k], those that its elements pack side by side."""
    if packed is None:
        return rows.astype(wide)
    return unpacked(rows, packed.bits).view(packed.numpy).astype(wide)


def _by_rows(op: MmaTile, width: int, parts: Sequence[Array], tiles: int, place: tuple[Array, ...]) -> Array:
    """Return an operand, given as one part for each subgroup of a team, as [team, tile, step, row, k]."""
    registers = parts[0].shape[1] // (tiles * op.steps)
    shaped = np.concatenate(parts).reshape(-1, op.atom.spans, width, tiles, op.steps, registers)
    subgroup, lane, register = place
    rows: Array = shaped.transpose(0, 3, 4, 1, 2, 5)[:, :, :, subgroup, lane, register]
    return rows


def _mma(ev: Evaluator, e: x.Mma) -> Value:
    """Add exact products to the accumulator: one float64 (or wrapping integer) sum an instruction, rounded once.

    Products with scales are exact, too: float64 has the exponents of two factors and two scales.
    """
    op: MmaTile = e.op
    atom = op.atom
    members = ev.numbers[: atom.spans]  # the subgroups of the team that are evaluated together
    i, j = coordinates(atom.d, tuple(n % atom.spans for n in members), ev.width)
    wide = np.dtype(np.float64 if atom.acc.is_float else np.int64)

    operand = partial(_by_rows, op, ev.width)

    def of_lanes(rows: Array) -> Array:
        """Reshape [team, tile of j, tile of i, lane, register] to the value's [lane, register]."""
        return rows.transpose(0, 3, 1, 2, 4).reshape(acc.data.shape)

    acc, (a, b), scales = ev(e.acc), zip(*ev.team(e)), [ev(scale) for scale in e.scales]
    cut, sides = _INPUTS[atom.rounds_to], ((a, op.tiles_n), (b, op.tiles_m))

    def numbers(side: int) -> Array:
        """Return the numbers of a factor, times their scales, as [team, tile, step, row, k]."""
        parts, tiles = sides[side]
        factor = _numbers(operand([cut(v.data) for v in parts], tiles, _owners(op)[side]), atom.packed[side], wide)
        for scale in scales[side : side + 1]:
            runs = operand([scale.data], tiles, _scale_owners(op)[side]).astype(wide)
            factor = factor * runs.repeat(factor.shape[-1] // runs.shape[-1], axis=-1)
        return factor

    def poison(side: int) -> Mask:
        parts, tiles = sides[side]
        rows = _any(operand([v.mask for v in parts], tiles, _owners(op)[side]))
        for scale in scales[side : side + 1]:
            rows = rows | _any(operand([scale.mask], tiles, _scale_owners(op)[side]))
        return rows

    shape = (-1, len(members) * ev.width, op.tiles_m, op.tiles_n, atom.d.registers)
    total = acc.data.reshape(shape).transpose(0, 2, 3, 1, 4)
    with np.errstate(all="ignore"):
        rows_of_a, rows_of_b = numbers(0), numbers(1)
        for step in range(op.steps):
            # [team, tile of j, tile of i, lane, register, k]
            products = rows_of_a[:, None, :, step, i] * rows_of_b[:, :, None, step, j]
            total = convert(total.astype(wide) + products.sum(axis=-1), atom.acc)
    data = of_lanes(total)
    if all(v.poison is None for v in (acc, *a, *b, *scales)):
        return Value(data)
    return Value(data, acc.mask | of_lanes(poison(0)[:, None, :, i] | poison(1)[:, :, None, j]))


def _block_mma(ev: Evaluator, e: BlockMma) -> Value:
    """Add products within each block of lanes; one sum an instruction, rounded once."""
    acc, a, b, side = ev(e.acc), ev(e.a), ev(e.b), e.op.side
    wide = np.dtype(np.float64 if e.op.acc.is_float else np.int64)
    first = np.arange(len(b.data)) // side * side
    rows = first[:, None] + np.arange(side)[None, :]  # [lane, i]
    with np.errstate(all="ignore"):
        products = a.data[rows].astype(wide) * b.data[:, None, :].astype(wide)  # [lane, i, k]
        data = convert(acc.data.astype(wide) + products.sum(axis=-1), e.op.acc)
    if all(v.poison is None for v in (acc, a, b)):
        return Value(data)
    row, column = (np.asarray(np.broadcast_to(v.mask, v.data.shape).any(axis=1)) for v in (a, b))
    return Value(data, acc.mask | row[rows] | column[:, None])


def _any(operand: Mask) -> Mask:
    """Return which [team, tile, row] have poison in some step or k."""
    found: Mask = np.logical_or.reduce(operand, axis=(2, 4))
    return found


#: Semantics of expressions.
_EVALUATED: dict[type[Expr], Callable[[Evaluator, Any], Value]] = {
    **dict.fromkeys(_OPERATORS, _binary),
    x.Const: lambda ev, e: ev.full(e.dtype, e.value),
    x.Var: _var,
    sizes.Size: _var,
    sizes.HostValue: _var,
    x.Lane: lambda ev, e: Value(np.tile(np.arange(ev.width, dtype=np.int32), len(ev.numbers))),
    x.Not: _not,
    **dict.fromkeys(EXACT, _exact),
    **dict.fromkeys(APPROXIMATE, _approximate),
    Fma: _fma,
    x.Select: _select,
    Fused: lambda ev, e: ev(e.meaning),
    x.Cast: _conversion,
    x.Saturate: _conversion,
    x.Uniform: _uniform,
    x.Splat: lambda ev, e: ev(e.a).moved(lambda data: np.repeat(data[:, None], e.dtype.lanes, 1)),
    x.Slice: lambda ev, e: ev(e.a).moved(lambda data: data[:, e.start : e.start + e.count]),
    x.Shuffle: lambda ev, e: ev(e.a).moved(lambda data: data[:, list(e.order)]),
    x.FromLane: _from_lane,
    AllLanes: _all_lanes,
    x.Pack: _pack,
    x.Mma: _mma,
    BlockMma: _block_mma,
    x.AddressOf: lambda ev, e: ev.full(e.type, ev.bases[e.buffer]),
}
