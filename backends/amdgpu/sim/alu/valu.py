"""Compile vector ALU instructions from their table rows: operands, modifiers, poison, hazards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from convgen.backends.amdgpu.sim.alu.curves import Curve
from convgen.backends.amdgpu.sim.alu.lanes import Dpp, sdwa_merge, sdwa_select
from convgen.backends.amdgpu.sim.alu.operands import (
    ENCODE,
    FLOATS,
    Fetch,
    Move,
    PoisonSource,
    any_poison,
    check_tuple,
    computed,
    mask_poison,
    poison_source,
    split_words,
    typed_fetch,
    words_of,
    write_mask,
    write_vector,
)
from convgen.backends.amdgpu.sim.alu.salu import refuse_poisoned_exec
from convgen.backends.amdgpu.sim.alu.saturate import saturating
from convgen.backends.amdgpu.sim.alu.valu_table import KEEPS_HIGH, VECTOR_ROWS
from convgen.backends.amdgpu.sim.alu.vector_rows import VectorRow
from convgen.backends.amdgpu.sim.decode import EXEC, VCC, Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.hazards import Consumes, Produces
from convgen.backends.amdgpu.sim.state import SCALAR_BIT, WaveGroup, pack_lanes, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.wave_arrays import U32, Array, Bools
from convgen.ir.record import frozen

VECTOR_MASK = (1 << SCALAR_BIT) - 1
_VCC_OPERAND = Operand("s", "vcc", VCC, 2)
_MOST_OP_SEL = 5  #: bits of op_sel: those of a row's sources, at most 4, and one of the result
_NARROW = frozenset("u16 i16 f16 bf16".split())
_PLAIN_MODIFIERS = frozenset("clamp mul div op_sel".split())
_SDWA_MODIFIERS = frozenset("clamp mul div dst_sel dst_unused src0_sel src1_sel".split())
_DPP_MODIFIERS = frozenset(
    "quad_perm row_shl row_shr row_ror row_newbcast row_bcast wave_shl wave_shr wave_rol wave_ror row_mirror "
    "row_half_mirror row_mask bank_mask bound_ctrl".split()
)


def vector_hazards(
    reads: int,
    writes: int,
    *,
    masks: int = 0,
    trans: bool = False,
    dot: bool = False,
    partial: bool = False,
    cmpx: bool = False,
) -> tuple[tuple[Produces, ...], tuple[Consumes, ...]]:
    """Return the hazards that a VALU instruction produces and consumes, from the registers it reads and writes.

    `masks` are the scalar registers among those read that hold a carry-in or lane mask, not a constant.
    """
    vector_in, vector_out = reads & VECTOR_MASK, writes & VECTOR_MASK
    scalar_in, scalar_out = reads & ~VECTOR_MASK, writes & ~VECTOR_MASK
    produces = [Produces("dot" if dot else "valu", vector_out), Produces("valu_sgpr", scalar_out)]
    if trans:
        produces.append(Produces("trans", vector_out))
    if partial:
        produces.append(Produces("partial", vector_out))
    if cmpx:
        produces.append(Produces("valu_exec", scalar_bits(EXEC, 2)))
    consumes = [
        Consumes("valu_read", vector_in),
        Consumes("valu_write", vector_out),
        Consumes("other_read", vector_in),
        Consumes("other_write", vector_out),
        Consumes("valu_sgpr", scalar_in & ~masks),
        Consumes("valu_mask", masks),
    ]
    if not trans:
        consumes.append(Consumes("plain_read", vector_in))
    return tuple(produces), tuple(use for use in consumes if use.mask)


def output_modifier(instruction: Instruction, kind: str) -> Callable[[Array], Array] | None:
    """Return the function of `mul:`, `div:` and `clamp` on a float result; None without these modifiers."""
    factor = 1.0
    factor *= instruction.number("mul", 1)
    factor /= instruction.number("div", 1)
    clamp = "clamp" in instruction.modifiers
    if factor == 1.0 and (not clamp or kind not in FLOATS):
        return None
    if kind not in FLOATS:
        raise unsupported(instruction, f"output modifier on {kind}")

    def function(value: Array) -> Array:
        scaled = value * value.dtype.type(factor) if factor != 1.0 else value
        return np.clip(np.nan_to_num(scaled, nan=0.0), 0.0, 1.0).astype(value.dtype) if clamp else scaled

    return function


@frozen(eq=False)
class _Sources:
    """The sources and masks of an instruction: fetches, poison, registers, and its DPP control, if any."""

    fetches: list[Fetch]
    poisons: list[PoisonSource]
    reads: int
    masks: int  #: registers among `reads` that hold lane masks
    dpp: Dpp | None


def _sources(
    row: VectorRow, instruction: Instruction, operands: Sequence[Operand], context: Context, target: Operand
) -> _Sources:
    """Compile the sources of a row; `operands` are those behind the results."""
    dpp = Dpp(instruction) if instruction.encoding == "dpp" else None
    op_sel = instruction.bits("op_sel", _MOST_OP_SEL)
    fetches: list[Fetch] = []
    poisons: list[PoisonSource] = []
    reads = masks = 0
    remaining = iter(operands)
    for number, kind in enumerate(row.sources):
        if kind == "acc":
            operand, kind = target, row.results[0]
        elif kind == "vcc":
            operand, kind = _VCC_OPERAND, "mask"
        else:
            operand = next(remaining)
        if operand.kind == "a":
            raise unsupported(instruction, "a VALU instruction cannot read accumulation registers")
        moved = dpp.move if dpp is not None and number == 0 else None
        move: Move | None = moved
        if instruction.encoding == "sdwa" and number < 2:
            selector = instruction.modifiers.get(f"src{number}_sel", "DWORD")
            move = sdwa_select(selector, sign_extend=operand.sign_extend)
        elif move is None and op_sel[number] and kind in _NARROW:
            move = lambda g, raw: raw >> np.uint32(16)  # noqa: E731
        fetches.append(typed_fetch(operand, kind, context, instruction, move))
        is_mask = kind == "mask"
        source = mask_poison(operand) if is_mask else poison_source(operand, context, words_of(kind), moved)
        if source is not None:
            poisons.append(source)
        reads |= context.bits(operand)
        masks |= context.bits(operand) if is_mask else 0
    return _Sources(fetches, poisons, reads, masks, dpp)


def compile_valu(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a table-driven vector ALU instruction; None for other mnemonics."""
    row = VECTOR_ROWS.get(instruction.name)
    if row is None:
        return None
    allowed = {"sdwa": _SDWA_MODIFIERS, "dpp": _DPP_MODIFIERS}.get(instruction.encoding, _PLAIN_MODIFIERS)
    require_plain(instruction, allowed)
    targets, operands = instruction.operands[: len(row.results)], instruction.operands[len(row.results) :]
    for target, kind in zip(targets, row.results, strict=True):
        if target.kind != ("s" if kind == "mask" else "v"):
            raise unsupported(instruction, f"destination {target.text}")
        check_tuple(target, words_of(kind), context)
    sources = _sources(row, instruction, operands, context, targets[0])
    dpp, reads, writes = sources.dpp, sources.reads, context.bits(*targets)
    cmpx = instruction.name.startswith("v_cmpx")
    if cmpx:
        writes |= scalar_bits(EXEC, 2)
    high = instruction.bits("op_sel", _MOST_OP_SEL)[len(row.sources)] and row.results[0] in _NARROW
    writers = [_writer(instruction, context, t, kind, high=high, cmpx=cmpx) for t, kind in zip(targets, row.results)]
    run = _written(_computation(row, instruction, sources.fetches, context.approximate), writers)
    rule, whole_of = row.poison, None
    if rule == "select":
        rule, whole_of = "all", None if dpp else _selected(instruction, context, sources.fetches[2])
    kinds, poisons = row.results, sources.poisons
    run = with_poison(
        run, instruction, context, targets, kinds, poisons, reads | writes, rule, cmpx=cmpx, whole_of=whole_of
    )
    partial = high or instruction.modifiers.get("dst_sel", "DWORD") != "DWORD"
    produces, consumes = vector_hazards(
        reads, writes, masks=sources.masks, trans=row.transcendental, dot=row.dot, partial=partial, cmpx=cmpx
    )
    consumes += tuple(_consumes(row, instruction, context, is_dpp=dpp is not None))
    return Step(instruction, "valu", dpp.wrap(run) if dpp else run, reads, writes, produces, consumes)


def _written(compute: Callable[[WaveGroup], Any], writers: Sequence[Callable[[WaveGroup, Array], None]]) -> Run:
    """Return a function that computes results and writes each by its writer; a single result is no tuple."""
    if len(writers) == 1:
        (only,) = writers
        return lambda g: only(g, compute(g))

    def run(g: WaveGroup) -> None:
        for write, part in zip(writers, compute(g), strict=True):
            write(g, part)

    return run


def _consumes(row: VectorRow, instruction: Instruction, context: Context, *, is_dpp: bool) -> Iterator[Consumes]:
    """Yield the hazard uses of an instruction beyond those of every vector instruction."""
    sources = instruction.operands[len(row.results) :]
    if is_dpp:
        yield Consumes("dpp", context.bits(sources[0]))
        yield Consumes("exec_dpp", scalar_bits(EXEC, 2))
    if row.dot:
        yield Consumes("dot_ab", context.bits(*sources[:2]))
    if "div_fmas" in instruction.name:
        yield Consumes("div_fmas", scalar_bits(VCC, 2))


def _selected(instruction: Instruction, context: Context, mask_of: Fetch) -> Callable[[WaveGroup], Bools | None]:
    """Return the poison function of v_cndmask: the poison of the source that each lane selects, and of the mask."""
    first, second = (poison_source(operand, context) for operand in instruction.operands[1:3])
    mask = mask_poison(instruction.operands[3])

    def lanes(g: WaveGroup) -> Bools | None:
        rows = [None if source is None else source.lanes(g, _ALL) for source in (first, second, mask)]
        if all(row is None for row in rows):
            return None
        unset, set_, doubt = (np.zeros((1, 1), np.bool_) if row is None else row for row in rows)
        picked: Bools = np.where(mask_of(g), set_, unset) | doubt
        return picked

    return lanes


def _computation(
    row: VectorRow, instruction: Instruction, fetches: list[Fetch], seed: int | None
) -> Callable[[WaveGroup], Array]:
    """Return the row's function of its fetched sources with output modifiers, with a seed within documented errors."""
    function = row.function
    if isinstance(function, Curve) and seed is not None:
        function = function.within(seed)
    kind = row.results[0]
    if "clamp" in instruction.modifiers and kind not in FLOATS:
        saturated = saturating(instruction.name, kind, function)
        if saturated is None:
            raise unsupported(instruction, f"clamp on {kind}")
        function = saturated
    after = output_modifier(instruction, kind)
    if after is not None:
        inner, modify = function, after
        function = lambda *values: modify(inner(*values))  # noqa: E731
    return computed(function, fetches)


def _writer(
    instruction: Instruction, context: Context, target: Operand, kind: str, *, high: bool, cmpx: bool
) -> Callable[[WaveGroup, Array], None]:
    """Return the function that writes one result to its registers."""
    if kind == "mask":
        row = target.index

        def put_mask(g: WaveGroup, value: Array) -> None:
            write_mask(g, row, value)
            if cmpx:
                if row != EXEC:
                    write_mask(g, EXEC, value)
                g.exec_changed()

        return put_mask
    encode, register = ENCODE[kind], context.vector(target)
    if words_of(kind) == 2:

        def put_pair(g: WaveGroup, value: Array) -> None:
            low, up = split_words(encode(value))
            write_vector(g, register, low)
            write_vector(g, register + 1, up)

        return put_pair
    if instruction.encoding == "sdwa" and instruction.modifiers.get("dst_sel", "DWORD") != "DWORD":
        selector = instruction.modifiers["dst_sel"]
        unused = instruction.modifiers.get("dst_unused", "UNUSED_PAD")
        return lambda g, value: write_vector(g, register, sdwa_merge(selector, unused, encode(value), g.v[register]))
    if high:
        return lambda g, value: write_vector(
            g, register, (g.v[register] & np.uint32(0xFFFF)) | (encode(value) << np.uint32(16))
        )
    if instruction.name in KEEPS_HIGH:
        return lambda g, value: write_vector(g, register, (g.v[register] & np.uint32(0xFFFF0000)) | encode(value))
    return lambda g, value: write_vector(g, register, encode(value))


def vector_step(
    instruction: Instruction,
    context: Context,
    run: Run,
    targets: Sequence[Operand],
    kinds: Sequence[str],
    sources: Sequence[Operand],
    *,
    partial: bool = False,
    keeps: bool = False,
) -> Step:
    """Return the step of an instruction without a table row, with its hazards; undefined sources spoil all results.

    `partial`: it writes part of a register. `keeps`: the rest of that register stays, so that it is a source, too.
    """
    reads, writes = context.bits(*sources), context.bits(*targets)
    poisons = [source for operand in sources if (source := poison_source(operand, context)) is not None]
    final = with_poison(run, instruction, context, targets, kinds, poisons, reads | writes)
    hazards = vector_hazards(reads | (writes if keeps else 0), writes, partial=partial)
    return Step(instruction, "valu", final, reads, writes, *hazards)


_ALL = slice(None)
#: Rule of a row's poison -> source words on which the low and the high word of a result depend.
_POISON_WORDS: Mapping[str, tuple[slice, slice]] = {
    "all": (_ALL, _ALL),
    "words": (slice(0, 1), slice(1, 2)),
    "low": (slice(0, 1), _ALL),
}


def with_poison(
    run: Run,
    instruction: Instruction,
    context: Context,
    targets: Sequence[Operand],
    kinds: Sequence[str],
    sources: Sequence[PoisonSource],
    touched: int,
    rule: str = "all",
    *,
    cmpx: bool = False,
    whole_of: Callable[[WaveGroup], Bools | None] | None = None,
) -> Run:
    """Return `run` followed by marking its results as undefined, if any register that it touches may be undefined.

    `whole_of` returns the poisoned lanes of a result if they are not simply those of any source.
    """
    fixed, word_sets = tuple(sources), _POISON_WORDS[rule]
    places = [(context.vector(t) if t.is_vector else t.index, kind) for t, kind in zip(targets, kinds, strict=True)]

    def poisoned(g: WaveGroup) -> None:
        if not g.poison & touched:
            run(g)
            return
        whole = _copied(any_poison(g, fixed) if whole_of is None else whole_of(g))
        low, high = (whole if words == _ALL else _copied(any_poison(g, fixed, words)) for words in word_sets)
        mask = _undefined_mask_bits(whole, g)
        run(g)
        for place, kind in places:
            if kind == "mask":
                _poison_mask(g, place, mask)
            else:
                g.poison_vector(place, low)
                if words_of(kind) == 2:
                    g.poison_vector(place + 1, high)
        if cmpx:
            _poison_mask(g, EXEC, mask)
            refuse_poisoned_exec(g, instruction)

    return poisoned


def _copied(lanes: Bools | None) -> Bools | None:
    """Copy lanes that the instruction's own results would overwrite."""
    return None if lanes is None else lanes.copy()


def _undefined_mask_bits(lanes: Bools | None, g: WaveGroup) -> tuple[U32 | None, U32 | None]:
    """Return the undefined bits of the two words of a lane mask, from its undefined lanes."""
    return (None, None) if lanes is None else pack_lanes(np.broadcast_to(lanes, (g.count, 64)) & g.exec)


def _poison_mask(g: WaveGroup, row: int, bits: tuple[U32 | None, U32 | None]) -> None:
    g.poison_scalar(row, bits[0])
    g.poison_scalar(row + 1, bits[1])
