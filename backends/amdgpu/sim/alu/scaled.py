"""Conversions between f32, f16 or bf16 and formats of 8, 6 and 4 bits that scale or round stochastically.

v_cvt_scalef32_* multiply narrow numbers by, or divide wide ones by, the power of two in the exponent field of an f32
(CDNA4 ISA, "VOP3 Opcodes"); v_cvt_sr_* do not scale. Stochastic rounding adds the random number's upper bits below the
last kept bit and truncates (HIP, amd_hip_fp8.h); each later number of a pair or of 32 takes the next random number
(V_PRNG_B32). Formats of 6 and 4 bits have no infinities and saturate; formats of 8 bits saturate under MODE.FP16_OVFL,
which the manual does not mention for these instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import FP16_OVFL, Fetch, check_tuple, raw_fetch, write_vector
from convgen.backends.amdgpu.sim.alu.valu import vector_step
from convgen.backends.amdgpu.sim.alu.valu_table import VECTOR_ROWS
from convgen.backends.amdgpu.sim.decode import Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import evolve, frozen

_NAME = re.compile(
    r"v_cvt_(?P<scaled>scalef32_)?(?P<random>sr_)?(?P<count>pk32_|pk_|2xpk16_)?(?P<to>[a-z]+\d+)_(?P<source>[a-z]+\d+)$"
)
_WIDE = {"f32": 32, "f16": 16, "bf16": 16}
_BITS = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}
_COUNTS = {None: 1, "pk_": 2, "pk32_": 32, "2xpk16_": 32}


@frozen
class _Conversion:
    """A conversion as its mnemonic names it."""

    to: str
    source: str
    count: int
    scaled: bool
    random: bool
    interleaved: bool

    @classmethod
    def of(cls, name: str) -> _Conversion | None:
        match = _NAME.match(name)
        if match is None or not (match["scaled"] or match["random"]):
            return None
        interleaved = match["count"] == "2xpk16_"
        count = _COUNTS[match["count"]]
        return cls(match["to"], match["source"], count, bool(match["scaled"]), bool(match["random"]), interleaved)


def compile_scaled(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction that this module knows; None for other mnemonics."""
    conversion = _Conversion.of(instruction.name)
    if conversion is None:
        return None
    require_plain(instruction, frozenset({"op_sel"}))
    target, *sources = instruction.operands
    for operand in instruction.operands:
        if operand.is_register:
            check_tuple(operand, operand.count, context)
    selected = instruction.words[0] >> 11 & 15  #: OPSEL, whose length in the text varies
    widen = conversion.to in _WIDE and conversion.source in _BITS
    compute = (_widening if widen else _narrowing)(conversion, instruction, context, selected)
    register = context.vector(target)
    part = _part(conversion, selected) if target.count == 1 else None

    def run(g: WaveGroup) -> None:
        words = compute(g)
        if part is None:
            for number, word in enumerate(words):
                write_vector(g, register + number, word)
        else:
            shift, mask = part
            kept = g.v[register] & ~np.uint32(mask << shift)
            write_vector(g, register, kept | (words[0] & np.uint32(mask)) << np.uint32(shift))

    targets = [evolve(target, index=target.index + n, count=1) for n in range(target.count)]
    # LLVM, GCNHazardRecognizer, getDstSelForwardingOperand: all parts but the lowest are forwarded, of fp4 all parts.
    partial = part is not None and (part[0] > 0 or conversion.to == "fp4")
    kinds, keeps = ["u32"] * len(targets), part is not None
    return vector_step(instruction, context, run, targets, kinds, sources, partial=partial, keeps=keeps)


def _part(conversion: _Conversion, selected: int) -> tuple[int, int] | None:
    """Return (shift, mask) of the part of a word that the result fills; None for the whole word."""
    width = _BITS.get(conversion.to) or _WIDE[conversion.to]
    bits = width * conversion.count
    if bits == 32:
        return None
    if bits == 16:
        return 16 * (selected >> 3), 0xFFFF
    return 8 * (selected >> 2), 0xFF


def _scale(conversion: _Conversion, instruction: Instruction, context: Context) -> Callable[[WaveGroup], Array]:
    """Return a function that gives the power of two in an f32's exponent field as f64, NaN for a field of ones."""
    if not conversion.scaled:
        return lambda g: np.ones(())
    fetch = raw_fetch(instruction.operands[-1], "f32", context, instruction)

    def factors(g: WaveGroup) -> Array:
        field = (fetch(g) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)
        return np.where(field == 0xFF, np.nan, np.ldexp(1.0, field - 127))

    return factors


def _registers(operand: Operand, context: Context, instruction: Instruction) -> Callable[[WaveGroup], list[Array]]:
    """Return a function that fetches all words of a source."""
    if not operand.is_vector:
        fetch = raw_fetch(operand, "f32", context, instruction)
        return lambda g: [fetch(g)]
    registers = context.registers(operand)
    return lambda g: [g.v[register] for register in registers]


# -- from narrow formats ----------------------------------------------------------------------------------------------


def _widening(
    conversion: _Conversion, instruction: Instruction, context: Context, selected: int
) -> Callable[[WaveGroup], list[Array]]:
    words_of = _registers(instruction.operands[1], context, instruction)
    scale = _scale(conversion, instruction, context)
    bits, name = _BITS[conversion.source], _table(conversion.source, context)
    field = bits * conversion.count
    base = 0 if field > 16 else 16 * (selected & 1) if field == 16 else 8 * (selected & 3)

    def compute(g: WaveGroup) -> list[Array]:
        words, factors = words_of(g), scale(g)
        codes = [_bits_at(words, base + bits * n, bits) for n in range(conversion.count)]
        return _packed([num.NARROW[name].take(code) * factors for code in codes], conversion.to)

    return compute


def _table(kind: str, context: Context) -> str:
    if _BITS[kind] != 8:
        return kind
    return f"{kind}_{'fnuz' if context.arch.fp8_finite_nuz else 'ocp'}"


def _bits_at(words: list[Array], place: int, bits: int) -> Array:
    """Return the field of `bits` from bit `place` on, which may cross words."""
    word, shift = divmod(place, 32)
    found = words[word] >> np.uint32(shift)
    if shift + bits > 32:
        found = found | words[word + 1] << np.uint32(32 - shift)
    result: Array = found & np.uint32((1 << bits) - 1)
    return result


def _packed(values: list[Array], kind: str) -> list[Array]:
    """Pack f64 numbers into words of one f32 or of two halves, the first one low."""
    if kind == "f32":
        return [value.astype(np.float32).view(np.uint32) for value in values]
    halves = [num.f32_to_half(v) if kind == "f16" else num.f32_to_bf16(v) for v in values]
    if len(halves) == 1:
        return halves
    return [low | high << np.uint32(16) for low, high in zip(halves[::2], halves[1::2], strict=True)]


# -- to narrow formats ------------------------------------------------------------------------------------------------


def _narrowing(
    conversion: _Conversion, instruction: Instruction, context: Context, selected: int
) -> Callable[[WaveGroup], list[Array]]:
    values_of = _wide_sources(conversion, instruction, context)
    scale = _scale(conversion, instruction, context)
    random_of: Fetch | None = None
    if conversion.random:
        random_of = raw_fetch(instruction.operands[2], "u32", context, instruction)
    name = conversion.to if conversion.to in _WIDE else _table(conversion.to, context)
    width = _BITS.get(conversion.to) or _WIDE[conversion.to]
    next_random = VECTOR_ROWS["v_prng_b32"].function

    def compute(g: WaveGroup) -> list[Array]:
        factors, saturate = scale(g), bool(g.mode & FP16_OVFL)
        random = None if random_of is None else random_of(g)
        codes = []
        for value in values_of(g):
            codes.append(num.f32_to_bits(value / factors, name, saturate=saturate, random=random))
            random = None if random is None else next_random(random)
        return _joined(codes, width)

    return compute


def _wide_sources(
    conversion: _Conversion, instruction: Instruction, context: Context
) -> Callable[[WaveGroup], list[Array]]:
    """Return a function that fetches the numbers to convert as f64, in the order of the result's fields."""
    pairs = conversion.source == "f32" and conversion.count == 2 and not conversion.random
    operands = instruction.operands[1 : 3 if pairs or conversion.interleaved else 2]
    parts = [_registers(operand, context, instruction) for operand in operands]
    if any(o.negate or o.absolute for o in operands) and conversion.source != "f32":
        raise unsupported(instruction, "sign modifier on packed numbers")
    count = conversion.count

    def values(g: WaveGroup) -> list[Array]:
        numbers = []
        for part, operand in zip(parts, operands, strict=True):
            for word in part(g):
                if conversion.source == "f32":
                    value = word.view(np.float32).astype(np.float64)
                    value = np.abs(value) if operand.absolute else value
                    numbers.append(-value if operand.negate else value)
                else:
                    decode = num.half_to_f32 if conversion.source == "f16" else num.bf16_to_f32
                    numbers += [decode(word).astype(np.float64), decode(word >> np.uint32(16)).astype(np.float64)]
        if conversion.interleaved:
            half = count // 2
            return [numbers[n // 2 + half * (n % 2)] for n in range(count)]
        return numbers[:count]

    return values


def _joined(codes: list[Array], bits: int) -> list[Array]:
    """Concatenate fields of `bits` into as few words as hold them."""
    words: list[Array] = [np.zeros((), np.uint32)] * -(-bits * len(codes) // 32)
    for number, code in enumerate(codes):
        word, shift = divmod(bits * number, 32)
        words[word] = words[word] | code << np.uint32(shift)
        if shift + bits > 32:
            words[word + 1] = words[word + 1] | code >> np.uint32(32 - shift)
    return words
