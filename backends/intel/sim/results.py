"""Destinations: results as register data, written under the execution mask, with undefined lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from convgen.backends.intel.sim.decode import Instruction, Operand
from convgen.backends.intel.sim.operands import FLOATS, KEEPS_DENORMALS, TINY, VIEWS, flush, indirect_places
from convgen.backends.intel.sim.register_file import byte_bits
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define, evolve

_RANGES: Mapping[str, tuple[int, int]] = {
    "ub": (0, 255),
    "b": (-128, 127),
    "uw": (0, 65535),
    "w": (-32768, 32767),
    "ud": (0, 2**32 - 1),
    "d": (-(2**31), 2**31 - 1),
    "uq": (0, 2**63 - 1),  # working numbers are int64
    "q": (-(2**63), 2**63 - 1),
}


def convert(values: Array, type_: str, control: int, *, saturate: bool) -> Array:
    """Convert working numbers to a register type: round to nearest even, saturate, flush denormals."""
    if type_ in FLOATS:
        if values.dtype == np.int64:
            values = values.astype(np.float64 if type_ == "df" else np.float32)
        if saturate:
            values = np.where(np.isnan(values), values.dtype.type(0), np.clip(values, 0, 1))
        if type_ == "bf":
            return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        rounded = values.astype(VIEWS[type_])
        kept = control & KEEPS_DENORMALS[type_]
        return rounded if kept else flush(rounded, TINY[type_])
    if values.dtype.kind == "f":
        return _to_integer(values, type_)
    if saturate:
        values = np.clip(values, *_RANGES[type_])
    return values.astype(VIEWS[type_])


def _to_integer(values: Array, type_: str) -> Array:
    """Convert floats to integers: round toward zero, saturate, NaN to 0."""
    limits = np.iinfo(VIEWS[type_])
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = np.where((whole > limits.min) & (whole < limits.max), whole, 0).astype(limits.dtype)
    low, high = limits.dtype.type(limits.min), limits.dtype.type(limits.max)
    return np.where(whole >= limits.max, high, np.where(whole <= limits.min, low, inside))


#: (group, data, acting lanes, undefined lanes or poison marks of the type's size); None: all act, all is defined.
Put = Callable[[ThreadGroup, Array, "Bools | None", "Array | None"], None]


@define(eq=False)
class Writer:
    """A compiled destination."""

    put: Put
    bits: int  #: register bytes that it may write
    type: str
    wide: bool = False  #: an accumulator of 32-bit integers, which keeps all bits of a product


def target(operand: Operand | None, lanes: int, instruction: Instruction, context: Context) -> Writer:
    """Return a writer of a destination of `lanes` elements."""
    if operand is None or operand.kind == "null":
        return Writer(lambda g, data, active, undefined: None, 0, "" if operand is None else operand.type)
    if operand.type not in VIEWS:
        raise unsupported(instruction, f"type {operand.type}")
    if operand.kind == "indirect":
        return _indirect_target(operand, lanes, instruction)
    if operand.file == "f":
        return _flag_target(operand, context)
    writer = _register_target(operand, lanes, context)
    if operand.file == "cr":
        writer.put = _control_put(writer.put, instruction)
    return writer


def _register_target(operand: Operand, lanes: int, context: Context) -> Writer:
    """Return a writer of registers at a known place."""
    layout = context.layout
    start = layout.start(operand.file, operand.reg, operand.sub * operand.size)
    stride = operand.region.horizontal if operand.region is not None else 1
    size = operand.size
    end = start + ((lanes - 1) * stride + 1) * size
    if end > layout.end(operand.file):
        context.fault("register-range", f"destination reaches beyond {operand.file}{layout.registers - 1}")
        return Writer(lambda g, data, active, undefined: None, 0, operand.type)
    if start % size:
        context.fault("region", f"destination is not aligned to its type {operand.type}")
    bits = 0
    for lane in range(lanes):
        bits |= byte_bits(start + lane * stride * size, size)
    index = slice(start // size, start // size + (lanes - 1) * stride + 1, stride)
    units, view = layout.units(start, end - start), VIEWS[operand.type]

    def put(g: ThreadGroup, data: Array, active: Bools | None, undefined: Array | None) -> None:
        _write(g.views[view][:, index], data, active)
        if undefined is None and not g.dirty & units:
            return
        marks = g.poisons[size][:, index]
        _write(marks, _marks(undefined, marks.dtype), active)
        if undefined is not None:
            g.dirty |= units
        else:
            g.clean(units)

    return Writer(put, bits, operand.type, wide=operand.file == "acc" and operand.type in ("d", "ud"))


def _write(place: Array, data: Array, active: Bools | None) -> None:
    """Write the active lanes of a view of registers."""
    if active is None:
        place[...] = data
    else:
        np.copyto(place, data, where=active)


def _marks(undefined: Array | None, dtype: np.dtype[Any]) -> Array:
    """Return the poison of each lane's element: all bits of an undefined lane, or the given marks."""
    if undefined is None:
        return np.zeros(1, dtype)
    return undefined if undefined.dtype != np.bool_ else np.where(undefined, ~dtype.type(0), dtype.type(0))


def _control_put(put: Put, instruction: Instruction) -> Put:
    def put_control(g: ThreadGroup, data: Array, active: Bools | None, undefined: Array | None) -> None:
        put(g, data, active, undefined)
        values = np.unique(g.views["u4"][:, g.layout.control // 4])
        if len(values) != 1:
            raise unsupported(instruction, "threads set different modes")
        g.control = int(values[0])

    return put_control


def _flag_target(operand: Operand, context: Context) -> Writer:
    """Return a writer of flag registers."""
    first = operand.reg * 32 + operand.sub * operand.size * 8
    count = operand.size * 8

    def put(g: ThreadGroup, data: Array, active: Bools | None, undefined: Array | None) -> None:
        raw = np.ascontiguousarray(np.broadcast_to(data, (g.count, 1)))
        bits = np.unpackbits(raw.view(np.uint8), axis=1, bitorder="little").view(np.bool_)
        rows = np.ones(g.count, np.bool_) if active is None else active[:, 0]
        g.flags[rows, first : first + count] = bits[rows]
        if undefined is not None and undefined.dtype != np.bool_:
            poison = np.ascontiguousarray(np.broadcast_to(undefined, (g.count, 1))).view(np.uint8)
            bits = np.unpackbits(poison, axis=1, bitorder="little").view(np.bool_)
            g.flag_poison[rows, first : first + count] = bits[rows]
            g.flags_dirty = True
        elif undefined is not None:
            g.flag_poison[rows, first : first + count] = np.broadcast_to(undefined, (g.count, 1))[rows]
            g.flags_dirty = True
        elif g.flags_dirty:
            g.flag_poison[rows, first : first + count] = False

    start = context.layout.start("f", operand.reg, operand.sub * operand.size)
    return Writer(put, byte_bits(start, operand.size), operand.type)


def _indirect_target(operand: Operand, lanes: int, instruction: Instruction) -> Writer:
    """Return a writer of registers addressed through a0."""
    size = operand.size

    def put(g: ThreadGroup, data: Array, active: Bools | None, undefined: Array | None) -> None:
        stride = operand.region.horizontal if operand.region is not None else 1
        packed = evolve(operand, region=None)
        first = indirect_places(packed, 1, instruction, g)
        places = first + np.arange(lanes) * stride * size
        shape = (g.count, lanes)
        acting = np.ones(shape, np.bool_) if active is None else np.broadcast_to(active, shape)
        rows = np.broadcast_to(np.arange(g.count)[:, None], shape)[acting]
        at = (places // size)[acting]
        g.views[VIEWS[operand.type]][rows, at] = np.broadcast_to(data, shape)[acting]
        marks = g.poisons[size]
        if undefined is None:
            marks[rows, at] = 0
        else:
            ones = ~marks.dtype.type(0)
            marks[rows, at] = np.where(np.broadcast_to(undefined != 0, shape)[acting], ones, 0)
            for unit in np.unique(at * size // g.layout.grf):
                g.dirty |= 1 << int(unit)

    return Writer(put, 0, operand.type)
