"""Packed and mixed-precision vector instructions (CDNA3 ISA, "VOP3P"), fp8 conversions and v_bitop3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.amdgpu.sim.alu.float_table import maximum, minimum
from convgen.backends.amdgpu.sim.alu.lanes import sdwa_select
from convgen.backends.amdgpu.sim.alu.operands import (
    DOMAIN,
    ENCODE,
    FLOATS,
    FP16_OVFL,
    Fetch,
    PoisonSource,
    any_poison,
    check_tuple,
    raw_fetch,
    write_vector,
)
from convgen.backends.amdgpu.sim.alu.saturate import saturating
from convgen.backends.amdgpu.sim.alu.valu import vector_hazards, vector_step
from convgen.backends.amdgpu.sim.decode import Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array

Function = Callable[..., Array]
_PK_MODIFIERS = frozenset("op_sel op_sel_hi neg_lo neg_hi clamp".split())
_MIX_MODIFIERS = frozenset("op_sel op_sel_hi clamp".split())
_LOW = np.uint32(0xFFFF)


def _shift(function: Function) -> Function:
    return lambda a, b: function(b, a & 15)


#: (type of a half, function)
HALVES: Mapping[str, tuple[str, Function]] = {
    "v_pk_add_f16": ("f16", lambda a, b: a + b),
    "v_pk_mul_f16": ("f16", lambda a, b: a * b),
    "v_pk_fma_f16": ("f16", num.fma_f16),
    "v_pk_min_f16": ("f16", minimum),
    "v_pk_max_f16": ("f16", maximum),
    "v_pk_minimum3_f16": ("f16", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_pk_maximum3_f16": ("f16", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_pk_fmac_f16": ("f16", num.fma_f16),
    "v_pk_add_u16": ("u16", lambda a, b: a + b),
    "v_pk_sub_u16": ("u16", lambda a, b: a - b),
    "v_pk_add_i16": ("i16", lambda a, b: a + b),
    "v_pk_sub_i16": ("i16", lambda a, b: a - b),
    "v_pk_mul_lo_u16": ("u16", lambda a, b: a * b),
    "v_pk_mad_u16": ("u16", lambda a, b, c: a * b + c),
    "v_pk_mad_i16": ("i16", lambda a, b, c: a * b + c),
    "v_pk_min_u16": ("u16", np.minimum),
    "v_pk_max_u16": ("u16", np.maximum),
    "v_pk_min_i16": ("i16", np.minimum),
    "v_pk_max_i16": ("i16", np.maximum),
    "v_pk_lshlrev_b16": ("u16", _shift(lambda a, b: a << b)),
    "v_pk_lshrrev_b16": ("u16", _shift(lambda a, b: a >> b)),
    "v_pk_ashrrev_i16": ("i16", _shift(lambda a, b: a >> b)),
}
WORDS: Mapping[str, Function] = {
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_fma_f32": num.fma_f32,
}
MIXED: Mapping[str, str] = {"v_fma_mix_f32": "", "v_fma_mixlo_f16": "lo", "v_fma_mixhi_f16": "hi"}


def compile_packed(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction that this module knows; None for other mnemonics."""
    name = instruction.name
    if name in HALVES:
        return _halves(instruction, context, *HALVES[name])
    if name in WORDS or name == "v_pk_mov_b32":
        return _words(instruction, context)
    if name in MIXED:
        return _mixed(instruction, context, MIXED[name])
    if name in ("v_bitop3_b32", "v_bitop3_b16"):
        return _bitop3(instruction, context)
    for prefix, make in _FP8_PREFIXES.items():
        if name.startswith(prefix):
            return make(instruction, context)
    return None


def _clamped(instruction: Instruction, kind: str, function: Function) -> Function:
    """Return a packed function with its output modifier (clamp) applied."""
    if "clamp" not in instruction.modifiers:
        return function
    if kind in FLOATS:
        return lambda *values: np.clip(np.nan_to_num(function(*values), nan=0.0), 0.0, 1.0)
    saturated = saturating(instruction.name, kind, function)
    if saturated is None:
        raise unsupported(instruction, f"clamp on {kind}")
    return saturated


def _finish(
    instruction: Instruction,
    context: Context,
    run: Callable[[WaveGroup], None],
    *,
    partial: bool = False,
    keeps: bool = False,
) -> Step:
    """Return the step of an instruction with a one-word result; with `keeps` the rest of the destination is kept."""
    target, *sources = instruction.operands
    check_tuple(target, 1, context)
    return vector_step(instruction, context, run, (target,), ("u32",), sources, partial=partial, keeps=keeps)


def _halves(instruction: Instruction, context: Context, kind: str, function: Function) -> Step:
    """Two 16-bit operations: op_sel picks the halves for the low result, op_sel_hi for the high one."""
    require_plain(instruction, _PK_MODIFIERS)
    target, *sources = instruction.operands
    if instruction.name == "v_pk_fmac_f16":
        sources.append(target)
    count = len(sources)
    fetches = [raw_fetch(operand, kind, context, instruction) for operand in sources]
    selects = (instruction.bits("op_sel", count), instruction.bits("op_sel_hi", count, 1))
    negates = (instruction.bits("neg_lo", count), instruction.bits("neg_hi", count))
    domain, encode, register = DOMAIN[kind], ENCODE[kind], context.vector(target)
    function = _clamped(instruction, kind, function)

    def half(raw: Sequence[Array], part: int) -> Array:
        values = []
        for word, high, negate in zip(raw, selects[part], negates[part], strict=True):
            value = domain(word >> np.uint32(16) if high else word)
            values.append(-value if negate else value)
        return encode(function(*values))

    def run(g: WaveGroup) -> None:
        raw = [fetch(g) for fetch in fetches]
        write_vector(g, register, (half(raw, 0) & _LOW) | (half(raw, 1) << np.uint32(16)))

    return _finish(instruction, context, run, keeps=instruction.name == "v_pk_fmac_f16")


def _words(instruction: Instruction, context: Context) -> Step:
    """Two 32-bit operations on register pairs, or two moves; op_sel and op_sel_hi pick the word of each source."""
    require_plain(instruction, _PK_MODIFIERS)
    target, *sources = instruction.operands
    for operand in instruction.operands:
        if operand.is_register:
            check_tuple(operand, 2, context)
    count = len(sources)
    low, high = instruction.bits("op_sel", count), instruction.bits("op_sel_hi", count, 1)
    if instruction.name == "v_pk_mov_b32":
        chosen = [[(sources[0], low[0])], [(sources[1], low[1])]]
        functions: list[Function] = [lambda a: a] * 2
    else:
        chosen = [list(zip(sources, low, strict=True)), list(zip(sources, high, strict=True))]
        functions = [_on_f32(instruction, instruction.bits(name, count)) for name in ("neg_lo", "neg_hi")]
    fetches = [[_word_fetch(operand, upper, instruction, context) for operand, upper in word] for word in chosen]
    poisons = [_word_poison(word, context) for word in chosen]
    first = context.vector(target)
    reads, writes = context.bits(*sources), context.bits(target)

    def run(g: WaveGroup) -> None:
        # Copies, since the first result may overwrite a source of the second.
        results = [np.array(function(*(fetch(g) for fetch in word))) for function, word in zip(functions, fetches)]
        spoiled = None
        if g.poison & (reads | writes):
            spoiled = [None if bad is None else bad.copy() for bad in (any_poison(g, word) for word in poisons)]
        for number, result in enumerate(results):
            write_vector(g, first + number, result)
            if spoiled is not None:
                g.poison_vector(first + number, spoiled[number])

    return Step(instruction, "valu", run, reads, writes, *vector_hazards(reads, writes))


def _on_f32(instruction: Instruction, negates: Sequence[bool]) -> Function:
    """Return the operation of a packed f32 instruction on words, with its modifiers."""
    function = _clamped(instruction, "f32", WORDS[instruction.name])

    def operate(*words: Array) -> Array:
        values = (word.view(np.float32) for word in words)
        result = function(*(-v if negate else v for v, negate in zip(values, negates, strict=True)))
        return np.asarray(result).view(np.uint32)

    return operate


def _word_poison(word: Sequence[tuple[Operand, bool]], context: Context) -> tuple[PoisonSource, ...]:
    """Return the poison sources of a result word: the words of registers that it selects."""
    return tuple(
        PoisonSource(operand.is_vector, (_word_index(operand, upper, context),))
        for operand, upper in word
        if operand.is_register
    )


def _word_index(operand: Operand, upper: bool, context: Context) -> int:
    return (context.vector(operand) if operand.is_vector else operand.index) + int(upper)


def _word_fetch(operand: Operand, upper: bool, instruction: Instruction, context: Context) -> Fetch:
    if not operand.is_register:
        if upper:
            raise unsupported(instruction, "the high word of a constant")
        return raw_fetch(operand, "f32", context, instruction)
    row = _word_index(operand, upper, context)
    if operand.is_vector:
        return lambda g: g.v[row]
    return lambda g: g.s[row][:, None]


def _mixed(instruction: Instruction, context: Context, half: str) -> Step:
    """v_fma_mix*: each source is f32, or the half of a word that op_sel picks where op_sel_hi is set."""
    require_plain(instruction, _MIX_MODIFIERS)
    target, *sources = instruction.operands
    is_half, upper = instruction.bits("op_sel_hi", 3), instruction.bits("op_sel", 3)
    register = context.vector(target)
    clamp = "clamp" in instruction.modifiers
    raws = [
        raw_fetch(operand, "f16" if halved else "f32", context, instruction)
        for operand, halved in zip(sources, is_half, strict=True)
    ]

    def value(g: WaveGroup, number: int) -> Array:
        raw = raws[number](g)
        if is_half[number]:
            got: Array = num.half_to_f32(raw >> np.uint32(16) if upper[number] else raw)
        else:
            got = raw.view(np.float32)
        got = np.abs(got) if sources[number].absolute else got
        return -got if sources[number].negate else got

    def run(g: WaveGroup) -> None:
        operands = [value(g, number) for number in range(3)]
        result = num.fma_f32(*operands) if not half else num.fma_f16(*operands)
        if clamp:
            result = np.clip(np.nan_to_num(result, nan=0.0), 0.0, 1.0)
        if not half:
            write_vector(g, register, ENCODE["f32"](result))
        elif half == "lo":
            write_vector(g, register, (g.v[register] & ~_LOW) | num.f32_to_half(result))
        else:
            write_vector(g, register, (g.v[register] & _LOW) | (num.f32_to_half(result) << np.uint32(16)))

    return _finish(instruction, context, run, partial=half == "hi", keeps=bool(half))


def _bitop3(instruction: Instruction, context: Context) -> Step:
    """Any function of three bits: bit (a << 2 | b << 1 | c) of the truth table."""
    require_plain(instruction, frozenset({"bitop3"}))
    table = instruction.number("bitop3")
    target, *sources = instruction.operands
    fetches = [raw_fetch(operand, "u32", context, instruction) for operand in sources]
    register = context.vector(target)
    narrow = instruction.name.endswith("b16")

    def run(g: WaveGroup) -> None:
        a, b, c = (fetch(g) for fetch in fetches)
        result = np.zeros((g.count, 64), np.uint32)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        write_vector(g, register, result & _LOW if narrow else result)

    return _finish(instruction, context, run)


def _format(instruction: Instruction, context: Context) -> str:
    narrow = "bf8" if "bf8" in instruction.name else "fp8"
    return f"{narrow}_{'fnuz' if context.arch.fp8_finite_nuz else 'ocp'}"


def _from_fp8(instruction: Instruction, context: Context) -> Step:
    """v_cvt_f32_fp8 and bf8: one byte, which SDWA may pick."""
    require_plain(instruction, frozenset("src0_sel dst_sel dst_unused".split()))
    target, source = instruction.operands
    name, register = _format(instruction, context), context.vector(target)
    fetch = raw_fetch(source, "u32", context, instruction)
    pick = sdwa_select(instruction.modifiers.get("src0_sel", "BYTE_0"), sign_extend=False)

    def run(g: WaveGroup) -> None:
        raw = fetch(g)
        picked = raw if pick is None else pick(g, raw)
        write_vector(g, register, num.narrow_to_f32(picked, name).view(np.uint32))

    return _finish(instruction, context, run)


def _pair_from_fp8(instruction: Instruction, context: Context) -> Step:
    """v_cvt_pk_f32_fp8 and bf8: the two bytes of one half; op_sel or SDWA picks the high half."""
    require_plain(instruction, frozenset("src0_sel dst_sel dst_unused op_sel".split()))
    target, source = instruction.operands
    check_tuple(target, 2, context)
    name, register = _format(instruction, context), context.vector(target)
    high = instruction.bits("op_sel", 1)[0] or instruction.modifiers.get("src0_sel") == "WORD_1"
    shift = 16 if high else 0
    fetch = raw_fetch(source, "u32", context, instruction)

    def run(g: WaveGroup) -> None:
        raw = fetch(g)
        pair = [num.narrow_to_f32(raw >> np.uint32(shift + 8 * number), name) for number in (0, 1)]
        for number, value in enumerate(pair):  # the source may be the first of the two
            write_vector(g, register + number, value.view(np.uint32))

    return vector_step(instruction, context, run, (target,), ("u64",), (source,))


def _to_fp8(instruction: Instruction, context: Context) -> Step:
    """v_cvt_pk_fp8_f32 and bf8: two bytes into the half that op_sel names; the other half stays."""
    require_plain(instruction, frozenset({"op_sel"}))
    target, *sources = instruction.operands
    name, register = _format(instruction, context), context.vector(target)
    fetches = [raw_fetch(operand, "f32", context, instruction) for operand in sources]
    high = instruction.bits("op_sel", 3)[2]

    def run(g: WaveGroup) -> None:
        saturate = bool(g.mode & FP16_OVFL)
        pair = np.zeros((), np.uint32)
        for number, (fetch, operand) in enumerate(zip(fetches, sources, strict=True)):
            value = fetch(g).view(np.float32)
            value = np.abs(value) if operand.absolute else value
            value = -value if operand.negate else value
            pair = pair | (num.f32_to_narrow(value, name, saturate=saturate) << np.uint32(8 * number))
        old = g.v[register]
        write_vector(g, register, (old & _LOW) | (pair << np.uint32(16)) if high else (old & ~_LOW) | pair)

    return _finish(instruction, context, run, partial=high, keeps=True)


_FP8_PREFIXES: Mapping[str, Callable[[Instruction, Context], Step]] = {
    "v_cvt_f32_fp8": _from_fp8,
    "v_cvt_f32_bf8": _from_fp8,
    "v_cvt_pk_f32_fp8": _pair_from_fp8,
    "v_cvt_pk_f32_bf8": _pair_from_fp8,
    "v_cvt_pk_fp8_f32": _to_fp8,
    "v_cvt_pk_bf8_f32": _to_fp8,
}
