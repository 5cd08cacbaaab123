"""Conversions between element types, as rows of one or a few instructions.

A conversion has up to four stages: elements are *unpacked* to a word each (two for f64), *stepped* from one word type
to another, *limited* to the range of the result, and *packed*. Widening is exact, so only one stage rounds; a pair of
types for which two stages would round has no conversion. Mnemonics and their rounding: CDNA3 ISA 12, CDNA4 ISA 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from convgen.backends.amdgpu.emitter import AmdEmitter
from convgen.backends.amdgpu.tables import F8_NAMES
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.ir.facts import TargetFacts
from convgen.ir.record import frozen
from convgen.ir.types import Kind, Type, VectorType, bf16, f16, f32, f64, s8, s16, s32, u8, u16, u32

Unpack = Callable[[AmdEmitter, Reg, Reg], None]  #: (packed word, destination): fills all words of the destination
Step = Callable[[AmdEmitter, Reg, "Reg | None"], Reg]  #: (element, destination or None)
#: (at most a word's elements, destination word): upper bits are zero
Pack = Callable[[AmdEmitter, Sequence[Reg], Reg], None]


@frozen
class ConversionRow:
    """A conversion of elements of `source` to `to`; `needs` is one of `TargetFacts.conversions`, or empty."""

    source: Type
    to: Type
    stage: Any  #: an Unpack, Step or Pack
    needs: str = ""


def _stage(rows: Iterable[ConversionRow], source: Type, to: Type, facts: TargetFacts) -> Any:
    """Return the stage of the first row that the target can do, None if there is none."""
    for row in rows:
        if row.source is source and row.to is to and (not row.needs or row.needs in facts.conversions):
            return row.stage
    return None


# ---------------------------------------------------------------- unpacking


def _field(out: AmdEmitter, word: Reg, into: Reg, *, name: str, bits: int) -> None:
    for i in range(into.count):
        out.valu(name, word, Imm(bits * i), Imm(bits), into=into.words(i, 1))


def _from_f16(out: AmdEmitter, word: Reg, into: Reg) -> None:
    # The long encoding: newer chips, and decoders for them, read the short one's registers above v127 as half
    # registers.
    out.valu("v_cvt_f32_f16_e64", word, into=into.words(0, 1))
    if into.count > 1:
        upper = ("dst_sel:DWORD", "dst_unused:UNUSED_PAD", "src0_sel:WORD_1")
        out.emit("v_cvt_f32_f16_sdwa", (into.words(1, 1),), (out.move_to_vector(word),), modifiers=upper)


def _from_bf16(out: AmdEmitter, word: Reg, into: Reg) -> None:
    out.valu("v_lshlrev_b32", Imm(16), word, into=into.words(0, 1))
    if into.count > 1:
        out.valu("v_and_b32", Imm(0xFFFF0000), word, into=into.words(1, 1))


def _from_u8(out: AmdEmitter, word: Reg, into: Reg) -> None:
    for i in range(into.count):
        out.valu(f"v_cvt_f32_ubyte{i}", word, into=into.words(i, 1))


def _from_f8(out: AmdEmitter, word: Reg, into: Reg, *, form: str) -> None:
    word = out.move_to_vector(word)
    for i in range(0, into.count - 1, 2):
        name, modifiers = (f"v_cvt_pk_f32_{form}_sdwa", ("src0_sel:WORD_1",)) if i else (f"v_cvt_pk_f32_{form}", ())
        out.emit(name, (into.words(i, 2),), (word,), modifiers=modifiers)
    if into.count % 2:
        last = into.count - 1
        out.emit(f"v_cvt_f32_{form}_sdwa", (into.words(last, 1),), (word,), modifiers=(f"src0_sel:BYTE_{last}",))


_UNPACK = (
    ConversionRow(f16, f32, _from_f16),
    ConversionRow(bf16, f32, _from_bf16),
    ConversionRow(u8, f32, _from_u8),
    *(ConversionRow(t, f32, partial(_from_f8, form=form), t.name) for t, form in F8_NAMES.items()),
    *(ConversionRow(t, s32, partial(_field, name="v_bfe_i32", bits=t.bits)) for t in (s8, s16)),
    *(ConversionRow(t, word, partial(_field, name="v_bfe_u32", bits=t.bits)) for t in (u8, u16) for word in (u32, s32)),
)


# ---------------------------------------------------------------- steps


def _by(name: str, *, size: int = 1) -> Step:
    """Return a step of one instruction, whose result has `size` words."""
    return lambda out, a, into: out.valu(name, a, size=size, into=into)


def _rounded(round_: str, name: str) -> Step:
    """Return a step that first rounds to an integral value, since the conversion itself truncates."""
    return lambda out, a, into: out.valu(name, out.valu(round_, a, size=a.count), into=into)


def _bounded(name: str, limit: int) -> Step:
    return lambda out, a, into: out.valu(name, Imm(limit), a, into=into)


def _unchanged(out: AmdEmitter, a: Reg, into: Reg | None) -> Reg:
    if into is not None:
        out.copy(into, a)
    return into or a


#: Steps that saturate by themselves (floats to integers: CDNA3 ISA, V_CVT_I32_F32) or cannot overflow.
_STEPS = (
    ConversionRow(s32, f32, _by("v_cvt_f32_i32")),
    ConversionRow(u32, f32, _by("v_cvt_f32_u32")),
    ConversionRow(f32, s32, _rounded("v_rndne_f32", "v_cvt_i32_f32")),
    ConversionRow(f32, u32, _rounded("v_rndne_f32", "v_cvt_u32_f32")),
    ConversionRow(f64, f32, _by("v_cvt_f32_f64")),
    ConversionRow(f64, s32, _rounded("v_rndne_f64", "v_cvt_i32_f64")),
    ConversionRow(f64, u32, _rounded("v_rndne_f64", "v_cvt_u32_f64")),
    ConversionRow(f32, f64, _by("v_cvt_f64_f32", size=2)),
    ConversionRow(s32, f64, _by("v_cvt_f64_i32", size=2)),
    ConversionRow(u32, f64, _by("v_cvt_f64_u32", size=2)),
)
_WRAPPING = (ConversionRow(s32, u32, _unchanged), ConversionRow(u32, s32, _unchanged))
_SATURATING = (
    ConversionRow(s32, u32, _bounded("v_max_i32", 0)),
    ConversionRow(u32, s32, _bounded("v_min_u32", s32.max)),
)


# ---------------------------------------------------------------- limits


def _limit(out: AmdEmitter, to: Type) -> Step:
    """Return a step that clamps words to the range of a narrower type; the limits are loaded once."""
    if to.kind is Kind.UNSIGNED:
        return _bounded("v_min_u32", to.max)
    if to.kind is Kind.SIGNED:
        most = out.in_lanes(to.max)
        return lambda out, a, into: out.valu("v_med3_i32", a, Imm(to.min), most, into=into)
    largest, least = (int(np.float32(x).view(np.uint32)) for x in (to.largest, -to.largest))
    most = out.in_lanes(largest)

    def keep_nan(out: AmdEmitter, a: Reg, into: Reg | None) -> Reg:
        a = out.move_to_vector(a)
        nan = out.valu("v_cmp_u_f32", a, a, bank="s", size=2)
        limited = out.valu("v_med3_f32", a, Imm(least), most)  # NaN gives the lower limit
        dst = into or out.new("v")
        out.emit("v_cndmask_b32", (dst,), (limited, a, nan))
        return dst

    return keep_nan


# ---------------------------------------------------------------- packing


_UPPER_HALF = ("dst_sel:WORD_1", "dst_unused:UNUSED_PRESERVE", "src0_sel:DWORD")


def _by_pair(out: AmdEmitter, values: Sequence[Reg], into: Reg, *, name: str) -> None:
    out.valu(name, values[0], values[1] if len(values) > 1 else Imm(0), into=into)


def _to_f16(out: AmdEmitter, values: Sequence[Reg], into: Reg) -> None:
    """Write the lower half, then the upper half next to it."""
    out.valu("v_cvt_f16_f32_e64", values[0], into=into)
    for upper in values[1:]:
        operands = out.move_to_vector(upper), into
        out.emit("v_cvt_f16_f32_sdwa", (into,), operands, modifiers=_UPPER_HALF)


def _bf16_high(out: AmdEmitter, a: Reg) -> Reg:
    """Return bf16 in the upper half of a word: integer addition rounds to nearest even, NaN is kept quiet."""
    a = out.move_to_vector(a)
    odd = out.valu("v_bfe_u32", a, Imm(16), Imm(1))
    rounded = out.valu("v_add3_u32", a, odd, Imm(0x7FFF))
    quiet = out.valu("v_or_b32", Imm(0x400000), a)
    nan = out.valu("v_cmp_u_f32", a, a, bank="s", size=2)
    dst = out.new("v")
    out.emit("v_cndmask_b32", (dst,), (rounded, quiet, nan))
    return dst


def _to_bf16(out: AmdEmitter, values: Sequence[Reg], into: Reg) -> None:
    high = [_bf16_high(out, v) for v in values]
    if len(high) == 1:
        out.valu("v_lshrrev_b32", Imm(16), high[0], into=into)
    else:
        upper_halves = Imm(0x07060302)  # bytes 3,2 of the first operand, then 3,2 of the second
        out.valu("v_perm_b32", high[1], high[0], upper_halves, into=into)


def _to_f8(out: AmdEmitter, values: Sequence[Reg], into: Reg, *, form: str) -> None:
    """Convert two at a time into one half; the other half keeps its bits, which the next conversion overwrites."""
    before: Operand = Imm(0)
    if len(values) <= 2:
        out.emit("v_mov_b32", (into,), (Imm(0),))
        before = into
    for i in range(0, len(values), 2):
        pair: list[Operand] = [out.move_to_vector(v) for v in values[i : i + 2]]
        pair += [Imm(0)] * (2 - len(pair))
        upper = ("op_sel:[0,0,1]",) if i else ()
        out.emit(f"v_cvt_pk_{form}_f32", (into,), (*pair, before), modifiers=upper)
        before = into


def _to_bytes(out: AmdEmitter, values: Sequence[Reg], into: Reg) -> None:
    halves = [_low_bytes(out, values[i : i + 2], into if len(values) <= 2 else None) for i in range(0, len(values), 2)]
    if len(halves) == 2:
        out.valu("v_lshl_or_b32", halves[1], Imm(16), halves[0], into=into)


def _low_bytes(out: AmdEmitter, values: Sequence[Reg], into: Reg | None) -> Reg:
    """Return the low bytes of one or two words in the low half of a word; selector 0x0c is a zero byte."""
    if len(values) == 1:
        return out.valu("v_and_b32", Imm(0xFF), values[0], into=into)
    return out.valu("v_perm_b32", values[1], values[0], Imm(0x0C0C0400), into=into)


def _to_halves(out: AmdEmitter, values: Sequence[Reg], into: Reg) -> None:
    if len(values) == 1:
        out.valu("v_and_b32", Imm(0xFFFF), values[0], into=into)
    else:
        out.valu("v_perm_b32", values[1], values[0], Imm(0x05040100), into=into)


_PACK = (
    ConversionRow(f32, f16, partial(_by_pair, name="v_cvt_pk_f16_f32"), "f16x2"),
    ConversionRow(f32, f16, _to_f16),
    ConversionRow(f32, bf16, partial(_by_pair, name="v_cvt_pk_bf16_f32"), "bf16x2"),
    ConversionRow(f32, bf16, _to_bf16),
    *(ConversionRow(f32, t, partial(_to_f8, form=form), t.name) for t, form in F8_NAMES.items()),
    *(ConversionRow(word, t, _to_bytes) for word, t in ((s32, s8), (u32, u8))),
    *(ConversionRow(word, t, _to_halves) for word, t in ((s32, s16), (u32, u16))),
)


# ---------------------------------------------------------------- all together


@frozen
class Conversion:
    """The stages of one conversion, None for an unneeded stage; `limit` is the type to clamp words to."""

    unpack: Unpack | None
    step: Step | None
    limit: Type | None
    pack: Pack | None


def _word(t: Type) -> Type | None:
    """Return the type of one element of `t` in its own register."""
    if t.bits >= 32:
        return t if t in (f32, f64, s32, u32) else None
    return {Kind.FLOAT: f32, Kind.SIGNED: s32, Kind.UNSIGNED: u32}.get(t.kind)


def plan(source: Type, to: Type, facts: TargetFacts, *, saturate: bool = False) -> Conversion | None:
    """Return the conversion on a target; None if it has no instructions for it, or they would round twice."""
    word, result_word = _word(source), _word(to)
    if word is None or result_word is None or (saturate and source.is_float and to is f64):
        return None
    if source is not word and _stage(_UNPACK, source, result_word, facts):
        word = result_word
    steps = (*_STEPS, *(_SATURATING if saturate else _WRAPPING))
    ways = ((_UNPACK, source, word), (steps, word, result_word), (_PACK, result_word, to))
    unpack, step, pack = stages = [_stage(rows, a, b, facts) for rows, a, b in ways]
    if any(a is not b and stage is None for stage, (_, a, b) in zip(stages, ways)):
        return None
    # f16 is no such case: integers that are inexact in f32 overflow it, whatever the rounding.
    if pack and to.is_float and (source is f64 or (source in (s32, u32) and to is not f16)):
        return None  # both the step and the packing would round
    limited = (saturate or (source.is_float and to.is_int)) if pack else (saturate and source.is_float and to is f32)
    return Conversion(unpack, step, to if limited else None, pack)


def convert(
    out: AmdEmitter, conversion: Conversion, source: Sequence[Reg], per_word: int, dst: Reg, to: VectorType
) -> None:
    """Fill `dst` from `source`: words that hold `per_word` elements each, or one register per element."""
    size, packed = max(1, to.elem.bits // 32), 32 // min(32, to.elem.bits)
    stages = [stage for stage in (conversion.step, conversion.limit and _limit(out, conversion.limit)) if stage]

    def element(i: int) -> Reg:
        return dst.words(i * size, size)

    for first in range(0, to.lanes, max(per_word, packed)):
        last = min(to.lanes, first + max(per_word, packed))
        values: list[Reg] = []
        for start in range(first, last, per_word):
            word, count = source[start // per_word], min(per_word, last - start)
            if conversion.unpack is None:
                values.append(word)
                continue
            into = out.new("v", count) if stages or conversion.pack else dst.words(start, count)
            conversion.unpack(out, word, into)
            values += [into.words(i, 1) for i in range(count)]
        for stage in stages:
            ends = stage is stages[-1] and conversion.pack is None
            values = [stage(out, v, element(first + i) if ends else None) for i, v in enumerate(values)]
        if conversion.pack:
            for i in range(0, len(values), packed):
                conversion.pack(out, values[i : i + packed], dst.words((first + i) // packed, 1))
