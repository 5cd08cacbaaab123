"""Systolic matrix operations: D[rows][N] = C + A[rows][K] B[K][N].

Layouts (IGC, visa documentation DPAS.md): src1 is B, 8 registers, dword n of register d holds the consecutive k of
column n from d * ops on; src2 is A, rows of 8 dwords back to back; D and C have a row a register (bf and hf: two rows,
an assumption). Products are exact; an instruction sums them in f64 and rounds once, to the accumulator (assumed).

dpasw (DPASW.md): the two threads of a fused pair supply half of src2 each, the even one the first registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import or_

import ml_dtypes
import numpy as np

from convgen.backends.intel.sim.decode import Instruction, Operand
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import frozen

DEPTH = 8  #: systolic depth: dwords of K in a product
#: Bits of an element of src1 and src2.
BITS: Mapping[str, int] = {
    "tf32": 32,
    "f": 32,  # how IGA 1.1.0 may print tf32
    "hf": 16,
    "bf": 16,
    "b": 8,
    "ub": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "s2": 2,
    "u2": 2,
}
FLOATING = frozenset(("tf32", "hf", "bf"))
SIGNED = frozenset(("b", "s8", "s4", "s2", "d"))
ACCUMULATOR_BYTES = {"f": 4, "d": 4, "ud": 4, "hf": 2, "bf": 2}
ROW_BYTES = 32  #: bytes of a row of src2


@frozen(eq=False)
class DpasShape:
    """The operands of one systolic instruction."""

    rows: int
    columns: int
    ops: int  #: k values in a dword
    a_type: str
    b_type: str
    d_type: str
    c_type: str
    d: int  #: byte offset of the destination in the register file
    c: int  #: byte offset of src0, -1 for none
    b: int  #: byte offset of src1
    a: int  #: byte offset of src2
    a_bytes: int  #: bytes of src2 that a thread supplies

    @property
    def k(self) -> int:
        return self.ops * DEPTH


def compile_dpas(instruction: Instruction, context: Context) -> Step | None:
    """Return a step for dpas or dpasw, None for other instructions."""
    if instruction.op not in ("dpas", "dpasw"):
        return None
    if instruction.dst is None or instruction.predicate or instruction.condition:
        raise unsupported(instruction)
    fused = instruction.op == "dpasw"
    shape = _shape(instruction, context, fused=fused)
    _check(shape, context, fused=fused)
    layout = context.layout
    step = Step(instruction, "dpas", lambda g: None, pipe="*", is_dpas=True)
    d_bytes = _accumulator_bytes(shape, shape.d_type)
    c_bytes = _accumulator_bytes(shape, shape.c_type)
    spans = [(shape.d, d_bytes), (shape.b, DEPTH * layout.grf), (shape.a, shape.a_bytes)]
    if shape.c >= 0:
        spans.append((shape.c, c_bytes))
    for start, size in spans:
        if start + size > layout.acc:
            context.fault("register-range", f"an operand reaches beyond r{layout.registers - 1}")
            return step
    step.writes = ((1 << d_bytes) - 1) << shape.d
    for start, size in spans[1:]:
        step.reads |= ((1 << size) - 1) << start
    for start, size in spans[1:3]:
        step.factors |= ((1 << size) - 1) << start
        if start < shape.d + d_bytes and shape.d < start + size:
            context.fault("dpas", "the destination overlaps src1 or src2")
    if shape.c >= 0 and shape.c != shape.d and shape.c < shape.d + d_bytes and shape.d < shape.c + c_bytes:
        context.fault("dpas", "the destination overlaps src0 in part")
    if not any(kind == "dpas" for kind, _ in context.faults):
        step.run = _Multiplication(instruction, shape, layout, fused, *_decoders(instruction, shape)).run
    return step


def _shape(instruction: Instruction, context: Context, *, fused: bool) -> DpasShape:
    """Return the operands of a systolic instruction. Raises Unsupported for types that are not simulated."""
    depth, _, rows = instruction.sub.partition("x")
    dst, (c, b, a) = instruction.dst, instruction.sources
    assert dst is not None
    if int(depth) != DEPTH:
        context.fault("dpas", f"systolic depth {depth}, the hardware has {DEPTH}")
    for operand in (a, b):
        if operand.type not in BITS:
            raise unsupported(instruction, f"dpas on {operand.type}")
    ops = 32 // max(BITS[a.type], BITS[b.type], 4)
    grf = context.layout.grf
    a_bytes = int(rows) * ROW_BYTES
    if fused:
        a_bytes = (-(-a_bytes // grf) + 1) // 2 * grf

    def place(operand: Operand, bits: int) -> int:
        return operand.reg * grf + operand.sub * bits // 8

    return DpasShape(
        int(rows),
        instruction.exec_size,
        ops,
        a.type,
        b.type,
        dst.type,
        c.type or dst.type,
        place(dst, 8 * ACCUMULATOR_BYTES.get(dst.type, 4)),
        -1 if c.kind == "null" else place(c, 8 * ACCUMULATOR_BYTES.get(c.type, 4)),
        place(b, BITS[b.type]),
        place(a, BITS[a.type]),
        a_bytes,
    )


def _accumulator_bytes(shape: DpasShape, type_: str) -> int:
    return shape.rows * shape.columns * ACCUMULATOR_BYTES.get(type_, 4)


def _check(shape: DpasShape, context: Context, *, fused: bool) -> None:
    """Report breaches of DPAS.md and of Mesa's instruction_restrictions, which an assembler does not check."""
    platform, grf = context.platform, context.layout.grf
    floats = {kind in FLOATING for kind in (shape.a_type, shape.b_type)}
    narrow = shape.d_type in ("hf", "bf") or shape.c_type in ("hf", "bf")
    rules = {
        f"execution size {shape.columns}, {platform.name} has {platform.dpas_width}": shape.columns
        != platform.dpas_width,
        f"{shape.rows} rows, 1 to 8 are possible": not 1 <= shape.rows <= 8,
        "integers and floating point cannot mix": len(floats) != 1
        or (shape.a_type in FLOATING) != (shape.d_type in ("f", "hf", "bf")),
        f"{shape.b_type} and {shape.a_type} cannot mix": floats == {True} and shape.a_type != shape.b_type,
        f"{shape.d_type} cannot be accumulated": shape.d_type not in ACCUMULATOR_BYTES,
        f"{platform.name} has no bf or hf accumulators": narrow and not platform.narrow_accumulators,
        "a signed operand has an unsigned destination": shape.d_type == "ud"
        and bool({shape.a_type, shape.b_type, shape.c_type} & SIGNED),
        f"{platform.name} has no tf32": "tf32" in (shape.a_type, shape.b_type) and not platform.tf32,
        f"{platform.name} has no dpasw": fused and not platform.dpasw,
        "the destination does not start at a register": shape.d % grf != 0,
        "src0 does not start at a register": shape.c >= 0 and shape.c % grf != 0,
        "src1 does not start at a register": shape.b % grf != 0,
        "src2 does not start at a row of 8 dwords": shape.a % ROW_BYTES != 0,
        "src2 of 8 rows does not start at a register": platform.row_pair_alignment
        and shape.rows == 8
        and shape.a % grf != 0,
        "src2 of dpasw does not start at a register": fused and shape.a % grf != 0,
    }
    for message, broken in rules.items():
        if broken:
            context.fault("dpas", message)


Decode = Callable[[Array], Array]


def _decoder(type_: str) -> Decode:
    """Return a function that decodes bytes [..., n] to f64 numbers [..., n * 8 / bits], of at least 4 bits."""
    if type_ == "hf":
        return lambda raw: raw.view(np.float16).astype(np.float64)
    if type_ == "bf":
        return lambda raw: raw.view(ml_dtypes.bfloat16).astype(np.float64)
    if type_ in ("tf32", "f"):
        return lambda raw: (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if BITS[type_] == 8:
        kind = np.int8 if type_ in ("b", "s8") else np.uint8
        return lambda raw: raw.view(kind).astype(np.float64)
    signed = type_.startswith("s")

    def nibbles(raw: Array) -> Array:
        both = np.stack((raw & 15, raw >> 4), axis=-1).reshape(*raw.shape[:-1], -1).astype(np.int64)
        return (np.where(both > 7, both - 16, both) if signed else both).astype(np.float64)

    return nibbles


def _decoders(instruction: Instruction, shape: DpasShape) -> tuple[Decode, Decode]:
    """Return the decoders of both sources. Raises Unsupported for types of 2 bits, and for 4 bits with 8."""
    a, b = BITS[shape.a_type], BITS[shape.b_type]
    if min(a, b) < 4 or (min(a, b) == 4 and a != b):
        raise unsupported(instruction, f"{shape.b_type} with {shape.a_type}")
    return _decoder(shape.a_type), _decoder(shape.b_type)


@frozen(eq=False)
class _Multiplication:
    """A systolic instruction with its decoders."""

    instruction: Instruction
    shape: DpasShape
    layout: Layout
    fused: bool
    decode_a: Decode
    decode_b: Decode

    def run(self, g: ThreadGroup) -> None:
        """Execute the instruction."""
        shape = self.shape
        if g.on < shape.columns and not self.instruction.no_mask:
            off = ~np.logical_and.reduce(g.mask[:, : shape.columns], axis=1)
            finding = "some channels are disabled, dpas needs all of them"
            g.env.reporter.at_first("dpas", finding, self.instruction, g, off)
        a = self.decode_a(np.ascontiguousarray(self._rows(g.regs, g))).reshape(g.count, shape.rows, shape.k)
        b = self.decode_b(np.ascontiguousarray(g.regs[:, self._b])).reshape(g.count, DEPTH, shape.columns, shape.ops)
        total = a @ b.swapaxes(2, 3).reshape(g.count, shape.k, shape.columns)
        if shape.c >= 0:
            total += _number(np.ascontiguousarray(g.regs[:, self._c]), shape.c_type).reshape(total.shape)
        data = _stored(total, shape.d_type, saturate=self.instruction.saturates)
        g.regs[:, self._d] = data.reshape(g.count, -1).view(np.uint8)
        self._mark(g, self._undefined(g))

    @cached_property
    def _b(self) -> slice:
        return slice(self.shape.b, self.shape.b + DEPTH * self.layout.grf)

    @cached_property
    def _c(self) -> slice:
        return slice(self.shape.c, self.shape.c + _accumulator_bytes(self.shape, self.shape.c_type))

    @cached_property
    def _d(self) -> slice:
        return slice(self.shape.d, self.shape.d + _accumulator_bytes(self.shape, self.shape.d_type))

    def _rows(self, array: Array, g: ThreadGroup) -> Array:
        """Return the bytes of src2, for dpasw both halves of the fused pair."""
        rows = array[:, self.shape.a : self.shape.a + self.shape.a_bytes]
        if self.fused:
            even, odd = _pairs(g, self.instruction)
            rows = np.concatenate((rows[even], rows[odd]), axis=1)
        return rows[:, : self.shape.rows * ROW_BYTES]

    @cached_property
    def _read_units(self) -> int:
        places = [slice(self.shape.a, self.shape.a + self.shape.a_bytes), self._b]
        places += [self._c] if self.shape.c >= 0 else []
        return reduce(or_, (self._units(place) for place in places))

    def _units(self, place: slice) -> int:
        return self.layout.units(place.start, place.stop - place.start)

    def _undefined(self, g: ThreadGroup) -> Bools | None:
        """Return flags [threads, rows, columns] of results of undefined operands; None if there are none."""
        if not g.dirty & self._read_units:
            return None
        shape = self.shape
        bad = np.zeros((g.count, shape.rows, shape.columns), np.bool_)
        bad |= any_along(self._rows(g.poison, g).reshape(g.count, shape.rows, -1), 2)[:, :, None]
        bad |= any_along(g.poison[:, self._b].reshape(g.count, DEPTH, shape.columns, 4), (1, 3))[:, None, :]
        if shape.c >= 0:
            bad |= any_along(g.poison[:, self._c].reshape(g.count, shape.rows, shape.columns, -1), 3)
        return bad if bad.any() else None

    def _mark(self, g: ThreadGroup, undefined: Bools | None) -> None:
        """Mark the elements of the destination as undefined or defined."""
        place, units = self._d, self._units(self._d)
        if undefined is not None:
            size = ACCUMULATOR_BYTES[self.shape.d_type]
            g.poison[:, place] = np.repeat(undefined.reshape(g.count, -1), size, axis=1)
            g.dirty |= units
        elif g.dirty & units:
            g.poison[:, place] = 0
            g.clean(units)


def _number(raw: Array, type_: str) -> Array:
    if type_ == "bf":
        return np.asarray(raw.view(ml_dtypes.bfloat16).astype(np.float64))
    return raw.view({"f": "f4", "d": "i4", "ud": "u4", "hf": "f2"}[type_]).astype(np.float64)


def _stored(total: Array, type_: str, *, saturate: bool) -> Array:
    """Round sums once to the accumulator's type; integers wrap or saturate."""
    if type_ == "bf":
        return np.asarray(total.astype(ml_dtypes.bfloat16)).view(np.uint16)
    if type_ in ("f", "hf"):
        return total.astype({"f": np.float32, "hf": np.float16}[type_])
    whole = total.astype(np.int64)
    if saturate:
        low, high = (-(2**31), 2**31 - 1) if type_ == "d" else (0, 2**32 - 1)
        whole = np.clip(whole, low, high)
    return whole.astype(np.uint32)


def _pairs(g: ThreadGroup, instruction: Instruction) -> tuple[Array, Array]:
    """Return the rows of the even and the odd thread of each fused pair; report pairs of which one is elsewhere."""
    if not g.env.fused:
        g.env.reporter.add("dpasw", "the kernel runs without EU fusion, which pairs threads", instruction, g)
    keys = g.group_id.astype(np.int64) * (g.env.waves + g.env.waves % 2) + g.wave
    order = np.argsort(keys)
    ranked = keys[order]
    at = np.minimum(np.searchsorted(ranked, keys ^ 1), len(ranked) - 1)
    missing = ranked[at] != keys ^ 1
    if missing.any():
        finding = "the other thread of the fused pair is not at this instruction"
        g.env.reporter.at_first("dpasw", finding, instruction, g, missing)
    mine = np.arange(g.count)
    other = np.where(missing, mine, order[at])
    odd = keys & 1 == 1
    return np.where(odd, other, mine), np.where(odd, mine, other)
