"""Read and write operands of instructions: registers, constants, special registers and addresses of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.sim.ptx_text import (
    Instruction,
    Inverted,
    Literal,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    literal_bits,
    registers_of,
)
from convgen.backends.nvidia.sim.ptx_types import SIGNED, TYPES, UNSIGNED, storage, view_of
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.wave_arrays import Array, Bools

Getter = Callable[[WarpGroup], Array]


def numbers_of(*operands: Operand) -> tuple[int, ...]:
    """Return the numbers of the registers that operands name, each once."""
    return tuple(dict.fromkeys(register.number for operand in operands for register in registers_of(operand)))


def wrong(instruction: Instruction, given: str, wanted: str) -> SimulatorError:
    """Return the error for an operand that PTX forbids."""
    return SimulatorError(f"given {given} in `{instruction.text}`, wanted {wanted}")


def source(context: Context, instruction: Instruction, operand: Operand, type_: str, *, wide: bool = False) -> Getter:
    """Return a function that reads an operand as a type [rows, lanes], or as a constant without axes.

    `wide` registers may be larger than the type (PTX ISA, Operand Size Exceeding Instruction-Type Size).
    """
    dtype = view_of(type_) if type_ != "pred" else np.bool_
    if isinstance(operand, Inverted):
        number = operand.register.number
        return lambda g: ~g.read(number)
    if isinstance(operand, Register):
        return _register(instruction, operand, type_, dtype, wide=wide)
    if isinstance(operand, Literal):
        if type_ == "pred":
            flag = np.bool_(operand.bits & 1)
            return lambda g: np.asarray(flag)
        bits = literal_bits(operand, type_ if operand.kind != "int" else f"b{TYPES[type_].bits}")
        if operand.kind == "int" and TYPES[type_].kind == "f" and type_ in ("f32", "f64"):
            bits = literal_bits(operand, type_)
        constant: Array = np.array(bits, UNSIGNED[TYPES[type_].bits]).view(dtype)
        return lambda g: constant
    if isinstance(operand, Special):
        return _special(instruction, operand.name, type_)
    if isinstance(operand, Symbol):
        if operand.name not in context.symbols:
            raise unsupported(instruction, f"the address of {operand.name}")
        address = context.symbols[operand.name][1] + operand.offset
        constant = np.array(address & (1 << TYPES[type_].bits) - 1, UNSIGNED[TYPES[type_].bits]).view(dtype)
        return lambda g: constant
    if isinstance(operand, Vector):
        return _packed(context, instruction, operand, type_)
    raise unsupported(instruction)


def _register(
    instruction: Instruction, operand: Register, type_: str, dtype: type[np.generic], *, wide: bool
) -> Getter:
    number, stored = operand.number, storage(operand.type)
    if (operand.type == "pred") != (type_ == "pred"):
        raise wrong(instruction, f"a register of .{operand.type}", f"one of .{type_}")
    if type_ == "pred":
        return lambda g: g.read(number)
    have, want = TYPES[operand.type].bits, TYPES[type_].bits
    if have == want:
        if stored is dtype:
            return lambda g: g.read(number)
        return lambda g: g.read(number).view(dtype)
    if have > want and wide:
        narrow = UNSIGNED[want]
        return lambda g: g.read(number).astype(narrow).view(dtype)
    raise wrong(instruction, f"a register of {have} bits", f"one of {want}")


def _parts(instruction: Instruction, operand: Vector, type_: str) -> tuple[int, int, int]:
    """Return the bits of a type, the items of a vector that make one number of it, and the bits of an item."""
    total, count = TYPES[type_].bits, len(operand.items)
    item_bits = total // count
    if count * item_bits != total or item_bits not in UNSIGNED:
        raise unsupported(instruction, f"{count} parts of {total} bits")
    return total, count, item_bits


def _packed(context: Context, instruction: Instruction, operand: Vector, type_: str) -> Getter:
    """Read a vector as one number, its first item in the lowest bits (PTX ISA, mov)."""
    total, count, item_bits = _parts(instruction, operand, type_)
    parts = [source(context, instruction, item, f"b{item_bits}") for item in operand.items]
    dtype, bits = UNSIGNED[total], [np.array(item_bits * place, UNSIGNED[total]) for place in range(count)]

    def pack(g: WarpGroup) -> Array:
        value = np.asarray(parts[0](g)).astype(dtype)
        for part, shift in zip(parts[1:], bits[1:], strict=True):
            value = value | (np.asarray(part(g)).astype(dtype) << shift)
        return value.view(view_of(type_))

    return pack


# ---------------------------------------------------------------- special registers (PTX ISA, Special Registers)


def _lane_bits(comparison: Callable[[int, int], bool]) -> Callable[[WarpGroup], Array]:
    masks = np.array([sum(1 << j for j in range(LANES) if comparison(j, i)) for i in range(LANES)], np.uint32)
    return lambda g: np.broadcast_to(masks, g.shape)


def _of_group(axis: int) -> Callable[[WarpGroup], Array]:
    def value(g: WarpGroup) -> Array:
        x, y, _ = g.env.grid
        number = (g.group_id, g.group_id // x, g.group_id // (x * y))[axis]
        return (number % (x, y, 1 << 62)[axis])[:, None]

    return value


def _of_thread(axis: int) -> Callable[[WarpGroup], Array]:
    def value(g: WarpGroup) -> Array:
        x, y, _ = g.env.workgroup
        thread = g.wave[:, None] * LANES + np.arange(LANES)
        return (thread, thread // x, thread // (x * y))[axis] % (x, y, 1 << 62)[axis]

    return value


def _constant(read: Callable[[WarpGroup], int]) -> Callable[[WarpGroup], Array]:
    return lambda g: np.array(read(g))


def _size(field: str, axis: int) -> Callable[[WarpGroup], Array]:
    return lambda g: np.array(getattr(g.env, field)[axis])


def _clock(g: WarpGroup) -> Array:
    g.env.clock += 1
    return np.array(g.env.clock * 16)


_SPECIAL: Mapping[str, Callable[[WarpGroup], Array]] = {
    **{f"%tid.{'xyz'[axis]}": _of_thread(axis) for axis in range(3)},
    **{f"%ctaid.{'xyz'[axis]}": _of_group(axis) for axis in range(3)},
    **{f"%ntid.{'xyz'[axis]}": _size("workgroup", axis) for axis in range(3)},
    **{f"%nctaid.{'xyz'[axis]}": _size("grid", axis) for axis in range(3)},
    "%laneid": lambda g: np.broadcast_to(np.arange(LANES), g.shape),
    "%warpid": lambda g: g.wave[:, None],
    "%nwarpid": _constant(lambda g: g.env.waves),
    "%smid": _constant(lambda g: 0),
    "%nsmid": _constant(lambda g: 1),
    "%gridid": _constant(lambda g: 1),
    "%lanemask_eq": _lane_bits(lambda j, i: j == i),
    "%lanemask_lt": _lane_bits(lambda j, i: j < i),
    "%lanemask_le": _lane_bits(lambda j, i: j <= i),
    "%lanemask_gt": _lane_bits(lambda j, i: j > i),
    "%lanemask_ge": _lane_bits(lambda j, i: j >= i),
    "%clock": _clock,
    "%clock_hi": _constant(lambda g: 0),
    "%clock64": _clock,
    "%globaltimer": _clock,
    "%globaltimer_lo": _clock,
    "%globaltimer_hi": _constant(lambda g: 0),
    "%dynamic_smem_size": _constant(lambda g: g.env.dynamic_bytes),
    "%total_smem_size": _constant(lambda g: g.env.shared_bytes),
    **{f"%cluster_ctaid.{axis}": _constant(lambda g: 0) for axis in "xyz"},
    **{f"%cluster_nctaid.{axis}": _constant(lambda g: 1) for axis in "xyz"},
    **{f"%clusterid.{'xyz'[axis]}": _of_group(axis) for axis in range(3)},
    **{f"%nclusterid.{'xyz'[axis]}": _size("grid", axis) for axis in range(3)},
    "%cluster_ctarank": _constant(lambda g: 0),
    "%cluster_nctarank": _constant(lambda g: 1),
}


def _special(instruction: Instruction, name: str, type_: str) -> Getter:
    if name not in _SPECIAL:
        raise unsupported(instruction, f"the special register {name}")
    read, dtype = _SPECIAL[name], view_of(type_)
    unsigned = UNSIGNED[TYPES[type_].bits]
    return lambda g: np.asarray(read(g)).astype(unsigned).view(dtype)


# ---------------------------------------------------------------- destinations

Putter = Callable[[WarpGroup, Array, Bools | None], None]


def target(context: Context, instruction: Instruction, operand: Operand, type_: str, *, wide: bool = False) -> Putter:
    """Return a function that writes a value of a type, and flags of undefined lanes, to a destination.

    Values of `wide` destinations are extended, by their sign if the type has one.
    """
    if isinstance(operand, Sink):
        return lambda g, value, poison: None
    if isinstance(operand, Vector):
        return _unpacked(context, instruction, operand, type_)
    if not isinstance(operand, Register):
        raise unsupported(instruction)
    number = operand.number
    if (operand.type == "pred") != (type_ == "pred"):
        raise wrong(instruction, f"a register of .{operand.type}", f"one of .{type_}")
    have, want = TYPES[operand.type].bits, TYPES[type_].bits
    if have == want:
        return lambda g, value, poison: g.put(number, value, poison)
    if have > want and wide:
        signed = TYPES[type_].kind == "s"
        narrow, large = (SIGNED[want], SIGNED[have]) if signed else (UNSIGNED[want], UNSIGNED[have])
        return lambda g, value, poison: g.put(number, np.asarray(value).view(narrow).astype(large), poison)
    raise wrong(instruction, f"a destination of {have} bits", f"one of {want}")


def _unpacked(context: Context, instruction: Instruction, operand: Vector, type_: str) -> Putter:
    total, count, item_bits = _parts(instruction, operand, type_)
    parts = [target(context, instruction, item, f"b{item_bits}") for item in operand.items]
    dtype, narrow = UNSIGNED[total], UNSIGNED[item_bits]
    shifts = [np.array(item_bits * place, dtype) for place in range(count)]

    def unpack(g: WarpGroup, value: Array, poison: Bools | None) -> None:
        whole = np.asarray(value).view(dtype)
        for part, shift in zip(parts, shifts, strict=True):
            part(g, (whole >> shift).astype(narrow), poison)

    return unpack


# ---------------------------------------------------------------- steps


def computed(
    context: Context,
    instruction: Instruction,
    function: Callable[..., Array],
    types: Sequence[str],
    result: str,
    *,
    kind: str = "alu",
    wide: bool = False,
    wide_result: bool = False,
) -> Step:
    """Return the step of an instruction that computes its first operand by a function of the others."""
    operands = instruction.operands
    if len(operands) != len(types) + 1:
        raise wrong(instruction, f"{len(operands)} operands", str(len(types) + 1))
    reads = [source(context, instruction, o, t, wide=wide) for o, t in zip(operands[1:], types, strict=True)]
    if isinstance(operands[0], Pair):
        raise unsupported(instruction)
    write = target(context, instruction, operands[0], result, wide=wide_result)
    numbers = numbers_of(*operands[1:])
    return Step(instruction, kind, _runner(reads, write, numbers, function))


def _runner(
    reads: Sequence[Getter], write: Putter, numbers: tuple[int, ...], function: Callable[..., Array]
) -> Callable[[WarpGroup], None]:
    if len(reads) == 1:
        (one,) = reads
        return lambda g: write(g, function(one(g)), g.undefined(numbers))
    if len(reads) == 2:
        first, second = reads
        return lambda g: write(g, function(first(g), second(g)), g.undefined(numbers))
    if len(reads) == 3:
        a, b, c = reads
        return lambda g: write(g, function(a(g), b(g), c(g)), g.undefined(numbers))
    return lambda g: write(g, function(*(read(g) for read in reads)), g.undefined(numbers))


def report_undefined(g: WarpGroup, step: Step, numbers: Sequence[int], use: str) -> None:
    """Report undefined registers in lanes that execute an instruction; `use` names what they are for."""
    undefined = g.undefined(numbers)
    if undefined is not None and (undefined & g.active).any():
        names = g.env.names
        bad = [names[n] for n in numbers if (p := g.p[n]) is not None and (p & g.active).any()]
        g.env.reporter.at_first(
            "poison", f"{use} is undefined: {', '.join(bad[:4])}", step.instruction, g, undefined & g.active
        )
