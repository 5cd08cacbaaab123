"""Loads, stores and address conversions (PTX ISA, Data Movement and Conversion: ld, st, cvta, isspacep)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convgen.backends.nvidia.sim.fences import acquire, note_store, publish_and_observe, release
from convgen.backends.nvidia.sim.operands import (
    Getter,
    Putter,
    computed,
    numbers_of,
    report_undefined,
    source,
    target,
    wrong,
)
from convgen.backends.nvidia.sim.ptx_text import Address, Instruction, Operand, Register, Sink, Symbol, Vector
from convgen.backends.nvidia.sim.ptx_types import TYPES, UNSIGNED, bytes_of
from convgen.backends.nvidia.sim.shared_access import located
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.global_access import (
    LoadKind,
    buffers_of,
    check_collisions,
    check_overwrites,
    check_reads,
    issue_store,
    land_store,
    load_lanes,
    store_lanes,
)
from convgen.backends.sim.wave_arrays import Array, Bools, any_along

#: Generic addresses at which the windows of shared memory, local memory and parameters begin.
SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 1 << 40, 1 << 41, 1 << 42
WINDOW_BYTES = 1 << 32
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
_UNSUPPORTED_SPACES = ("param::func",)


def space_of(instruction: Instruction) -> str:
    """Return the state space of a memory instruction; "" for generic addresses."""
    for modifier in instruction.modifiers:
        if modifier in _UNSUPPORTED_SPACES:
            raise unsupported(instruction, modifier)
        name = modifier.removesuffix("::cta").removesuffix("::cluster").removesuffix("::entry")
        if name in _WINDOWS:
            return name
    return ""


def addresses(context: Context, instruction: Instruction, operand: Operand, *, wide: bool = False) -> Getter:
    """Return a function that computes addresses [rows, lanes]: int64 offsets, or `wide` uint64 addresses."""
    if not isinstance(operand, Address):
        raise wrong(instruction, "an operand without brackets", "an address")
    dtype = np.uint64 if wide else np.int64
    base, offset = operand.base, operand.offset
    if base is None or isinstance(base, Symbol):
        value = offset
        if base is not None:
            if base.name not in context.symbols:
                raise unsupported(instruction, f"the address of {base.name}")
            value += context.symbols[base.name][1]
        constant = np.array(value & (1 << 64) - 1, np.uint64).view(dtype)
        return lambda g: np.broadcast_to(constant, g.shape)
    bits = TYPES[base.type].bits
    if bits not in (32, 64):
        raise wrong(instruction, f"an address of {bits} bits", "one of 32 or 64")
    number, unsigned = base.number, np.array(offset & (1 << 64) - 1, np.uint64)
    if wide:
        if not offset and bits == 64:
            return lambda g: g.read(number)
        return lambda g: g.read(number).astype(np.uint64) + unsigned
    change = np.int64(offset)
    return lambda g: g.read(number).astype(np.int64) + change


# ---------------------------------------------------------------- data of several elements


def _elements(words: Array, size: int, count: int) -> list[Array]:
    """Split words [words, rows, lanes] into `count` elements of `size` bytes."""
    if size == 4:
        return [words[place] for place in range(count)]
    if size == 8:
        high = np.uint64(32)
        return [
            words[2 * place].astype(np.uint64) | (words[2 * place + 1].astype(np.uint64) << high)
            for place in range(count)
        ]
    per = 4 // size
    dtype = UNSIGNED[8 * size]
    return [(words[place // per] >> np.uint32(8 * size * (place % per))).astype(dtype) for place in range(count)]


def _words(values: Sequence[Array], size: int) -> Array:
    """Join elements of `size` bytes into words [words, rows, lanes]; one value for less than a word."""
    if size == 4:
        return np.stack([value.view(np.uint32) for value in values])
    if size == 8:
        both = [value.view(np.uint64) for value in values]
        parts = [
            part for value in both for part in (value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32))
        ]
        return np.stack(parts)
    per = min(4 // size, len(values))
    words = []
    for first in range(0, len(values), per):
        word = values[first].astype(np.uint32)
        for place in range(1, per):
            word = word | (values[first + place].astype(np.uint32) << np.uint32(8 * size * place))
        words.append(word)
    return np.stack(words)


# ---------------------------------------------------------------- spaces


def in_spaces(g: WarpGroup, space: str, address: Array, work: Callable[[str, Array, Bools | None], None]) -> None:
    """Call `work(space, address, lanes)` for each state space that lanes address."""
    if space:
        work(space, address, g.lanes)
        return
    unassigned = g.active
    for name in ("shared", "local", "param"):
        window = np.uint64(_WINDOWS[name])
        inside = unassigned & (address >= window) & (address < window + np.uint64(WINDOW_BYTES))
        if inside.any():
            unassigned = unassigned & ~inside
            lanes = None if inside.all() else inside
            work(name, (address - window).view(np.int64), lanes)
    if unassigned.any():
        work("global", address, None if unassigned.all() else unassigned)


def load_shared(
    g: WarpGroup, step: Step, offset: Array, size: int, lanes: Bools | None, *, strong: bool = False
) -> tuple[Array, Bools | None]:
    """Load `size` bytes a lane from shared memory: words [words, rows, lanes], and flags of undefined words."""
    access = located(g, step, offset, size, lanes)
    words: Array = np.zeros((max(size // 4, 1), *g.shape), np.uint32)
    if access is None:
        return words, None
    shared = g.env.local
    undefined = shared.note_loads(g, step, access, strong=strong)
    words[:, access.row, access.lane] = shared.load(access.stretch)
    g.env.counters["shared_load_bytes"] += size * len(access.row)
    if undefined is None:
        return words, None
    poison = np.zeros(words.shape, np.bool_)
    flags = undefined.reshape(len(words), -1, undefined.shape[-1]).any(axis=1)
    poison[:, access.row, access.lane] = flags
    return words, poison


def _load_param(g: WarpGroup, step: Step, offset: Array, size: int, lanes: Bools | None) -> tuple[Array, Bools | None]:
    """Load from the parameters, which all threads share."""
    block, defined = g.env.parameters, g.env.parameters_defined
    acting = g.active if lanes is None else lanes
    beyond = acting & ((offset < 0) | (offset > len(block) - size))
    if beyond.any():
        finding = f"{size} bytes are outside the {len(block)} bytes of parameters"
        g.env.reporter.at_first("out-of-bounds", finding, step.instruction, g, beyond)
    at = np.where(acting & ~beyond, offset, 0)[..., None] + np.arange(size)
    bad = acting & (offset % size != 0)
    if bad.any():
        finding = f"access to parameters of {size} bytes not aligned to {size}"
        g.env.reporter.at_first("misaligned", finding, step.instruction, g, bad)
    at = np.minimum(at, max(len(block) - 1, 0))
    raw, flags = block[at], ~defined[at]
    return _from_bytes(raw), _flags_from_bytes(flags) if flags.any() else None


def _from_bytes(raw: Array) -> Array:
    """Return the words [words, rows, lanes] of bytes [rows, lanes, size]."""
    size = raw.shape[-1]
    if size >= 4:
        return np.moveaxis(np.ascontiguousarray(raw).view(np.uint32), -1, 0)
    value = raw[..., 0].astype(np.uint32)
    return (value if size == 1 else value | (raw[..., 1].astype(np.uint32) << np.uint32(8)))[None]


def _flags_from_bytes(flags: Bools) -> Bools:
    """Return flags of words [words, rows, lanes] from those of their bytes [rows, lanes, size]."""
    size = flags.shape[-1]
    parts = flags.reshape(*flags.shape[:-1], max(size // 4, 1), -1)
    return np.moveaxis(np.any(parts, axis=-1), -1, 0)


def load(
    g: WarpGroup, step: Step, space: str, address: Array, size: int, *, strong: bool, constant: bool = False
) -> tuple[Array, Bools | None]:
    """Load `size` bytes a lane: words [words, rows, lanes], and flags of undefined words."""
    data: Array | None = None
    poison: Bools | None = None

    def work(space: str, at: Array, lanes: Bools | None) -> None:
        nonlocal data, poison
        undefined: Bools | None
        if space == "shared":
            words, undefined = load_shared(g, step, at, size, lanes, strong=strong)
        elif space == "local":
            assert g.env.thread_local is not None
            raw, flags = g.env.thread_local.load(g, step, at, size, g.active if lanes is None else lanes)
            words, undefined = _from_bytes(raw), _flags_from_bytes(flags) if flags.any() else None
        elif space == "param":
            words, undefined = _load_param(g, step, at, size, lanes)
        else:
            words, undefined = load_lanes(g, step, at, size, lanes, size, LoadKind.ATOMIC if strong else LoadKind.PLAIN)
            g.env.counters["global_load_bytes"] += size * (g.count * 32 if lanes is None else int(lanes.sum()))
            if constant:
                _note_constant(g, step, at, size, lanes)
        if lanes is not None and data is not None:
            words = np.where(lanes, words, data)
        data = words
        if undefined is not None:
            undefined = undefined if lanes is None else undefined & lanes
            poison = undefined if poison is None else poison | undefined

    in_spaces(g, space, address, work)
    if data is None:
        data = np.zeros((max(size // 4, 1), *g.shape), np.uint32)
    return data, poison


def _note_constant(g: WarpGroup, step: Step, address: Array, size: int, lanes: Bools | None) -> None:
    """Remember what ld.global.nc reads, and report bytes that this launch has stored (PTX ISA, ld: .nc)."""
    for allocation, offsets, some in buffers_of(g, address, size, lanes):
        if not allocation.writable:
            continue
        in_buffer = np.ones(g.shape, np.bool_) if some is None else some
        offset = offsets[in_buffer]
        units = (offset[None] + np.arange(0, size, 4)[:, None]) // 4
        flags = g.env.constant_reads.get(allocation.name)
        if flags is None:
            flags = g.env.constant_reads[allocation.name] = np.zeros(len(allocation.data) // 4 + 1, np.bool_)
        flags[units] = True
        marks = allocation.marks(offset[None], size)
        # `marks`: tickets of the last stores [units, 1, lanes]; 0 where this launch has not stored
        stored = None if marks is None else marks[0].max(axis=0)[0] > 0
        if allocation.updated is not None:
            changed = allocation.updated.take(allocation.units(offset, size)).any(axis=0)
            stored = changed if stored is None else stored | changed
        if stored is not None and stored.any():
            bad = np.zeros(g.shape, np.bool_)
            bad[in_buffer] = stored
            finding = f"loads by .nc what this launch has stored to {allocation.name}"
            g.env.reporter.at_first("constant-cache", finding, step.instruction, g, bad)


def check_constant(g: WarpGroup, step: Step, address: Array, size: int, lanes: Bools | None) -> None:
    """Report a store to bytes that ld.global.nc has read in this launch."""
    if not g.env.constant_reads:
        return
    for allocation, offset, in_buffer in buffers_of(g, address, size, lanes):
        flags = g.env.constant_reads.get(allocation.name)
        if flags is None:
            continue
        hit = any_along(flags[(offset[None] + np.arange(0, size, 4)[:, None, None]) // 4], 0)
        hit = hit if in_buffer is None else hit & in_buffer
        if hit.any():
            finding = f"stores to bytes of {allocation.name} that a load by .nc has read in this launch"
            g.env.reporter.at_first("constant-cache", finding, step.instruction, g, hit)


def store_shared(
    g: WarpGroup, step: Step, offset: Array, size: int, words: Array, poison: Array | None, lanes: Bools | None,
    *, strong: bool = False,
) -> None:  # fmt: skip
    """Store words [words, rows, lanes] to shared memory; `poison` flags undefined elements [elements, rows, lanes]."""
    access = located(g, step, offset, size, lanes)
    if access is None:
        return
    shared = g.env.local
    values = words[:, access.row, access.lane]
    defined: Bools | bool = True
    if poison is not None:
        flags = poison[:, access.row, access.lane]
        units = len(access.units)
        flags = np.repeat(flags, max(units // len(flags), 1), axis=0)
        defined = ~any_along(flags.reshape(units, -1, flags.shape[-1]), 1)
    changed = shared.differing(access, values) if not strong else None
    shared.store(access.stretch, values)
    shared.note_stores(g, step, access, changed, defined, values=values, strong=strong)
    g.env.memory.changes += 1
    g.env.counters["shared_store_bytes"] += size * len(access.row)


def _store(
    g: WarpGroup, step: Step, space: str, address: Array, size: int, words: Array, poison: Array | None, *, strong: bool
) -> None:
    """Store words of each lane to the state space that it addresses."""

    def work(space: str, at: Array, lanes: Bools | None) -> None:
        if space == "shared":
            store_shared(g, step, at, size, words, poison, lanes, strong=strong)
        elif space == "local":
            assert g.env.thread_local is not None
            raw = np.ascontiguousarray(np.moveaxis(words, 0, -1)).view(np.uint8)[..., :size]
            flags = None
            if poison is not None:
                flags = np.repeat(np.moveaxis(poison, 0, -1), size // len(poison), axis=-1)
            g.env.thread_local.store(g, step, at, raw, flags, g.active if lanes is None else lanes)
        elif space == "param":
            raise ValueError("a store to parameters")
        else:
            _store_global(g, step, at, size, words, poison, lanes, strong=strong)

    in_spaces(g, space, address, work)


def _store_global(
    g: WarpGroup, step: Step, at: Array, size: int, words: Array, poison: Array | None, lanes: Bools | None,
    *, strong: bool,
) -> None:  # fmt: skip
    """Store words to global memory; report races and loads by .nc of these bytes."""
    if poison is not None:
        bad = poison.any(axis=0) & (g.active if lanes is None else lanes)
        g.env.reporter.at_first("poison", "stores an undefined value", step.instruction, g, bad)
    ticket = issue_store(g)
    if not strong:
        check_overwrites(g, step, at, size, words, lanes, own_in_order=True)
        check_reads(g, step, at, size, words, lanes)
    check_constant(g, step, at, size, lanes)
    if strong:
        publish_and_observe_all(g, at, size, lanes, "store")
    store_lanes(g, step, at, size, words, lanes, ticket, size, atomic=strong)
    if not strong and g.count > 1:
        check_collisions(g, step, at, size, words, lanes)
    land_store(g, (ticket,))
    note_store(g, g.active if lanes is None else lanes, ticket)
    g.env.counters["global_store_bytes"] += size * (g.count * 32 if lanes is None else int(lanes.sum()))


def publish_and_observe_all(g: WarpGroup, address: Array, size: int, lanes: Bools | None, kind: str) -> None:
    """Publish and observe at all places of a strong access to global memory (`backends.sim.causality`)."""
    if not g.env.causality.tracked:
        return
    for allocation, offset, in_buffer in buffers_of(g, address, size, lanes):
        publish_and_observe(g, allocation, offset, size, in_buffer, kind)


# ---------------------------------------------------------------- compiling


def compile_memory(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of ld, st, cvta and their kin; None for other instructions."""
    name = instruction.name
    if name in ("ld", "ldu"):
        return _compile_load(instruction, context)
    if name == "st":
        return _compile_store(instruction, context)
    if name == "cvta":
        return _compile_cvta(instruction, context)
    if name == "isspacep":
        return _compile_isspacep(instruction, context)
    if name in ("prefetch", "prefetchu", "applypriority", "discard"):
        return Step(instruction, "other", lambda g: None)
    return None


def _shape(instruction: Instruction, operand: Operand) -> tuple[str, int, Sequence[Operand]]:
    """Return the element type of a load or store, the bytes of an element, and the operands of the elements."""
    kind, count = instruction.types[-1], instruction.vector
    items: Sequence[Operand] = operand.items if isinstance(operand, Vector) else (operand,)
    if count != len(items):
        raise wrong(instruction, f"{len(items)} elements", str(count))
    if kind == "b128" or count * bytes_of(kind) > 16:
        raise unsupported(instruction, "more than 16 bytes")
    return kind, bytes_of(kind), items


def _compile_load(instruction: Instruction, context: Context) -> Step:
    """Return the step of ld or ldu."""
    kind, elem_bytes, items = _shape(instruction, instruction.operands[0])
    space = space_of(instruction)
    strong = instruction.has(*_STRONG)
    acquires, constant = instruction.has("acquire"), instruction.has("nc")
    size = elem_bytes * len(items)
    address_of = addresses(context, instruction, instruction.operands[1], wide=space in ("", "global", "const"))
    writes: list[Putter] = [target(context, instruction, item, _extended_as(kind), wide=True) for item in items]
    numbers = numbers_of(instruction.operands[1])
    quick = _uniform_parameter(instruction, context, space, kind, size, items)
    if quick is not None:
        return quick
    step_kind = {"shared": "ld_shared", "param": "other", "const": "other", "local": "other"}.get(space, "ld_global")
    step = Step(instruction, step_kind, lambda g: None, control="wait" if strong else "")

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an address")
        address = address_of(g)
        words, poison = load(g, step, space, address, size, strong=strong, constant=constant)
        if strong and space in ("", "global"):
            publish_and_observe_all(g, address, size, g.lanes, "load")
            if acquires:
                acquire(g)
        g.polled = strong
        per = max(elem_bytes // 4, 1)
        for place, (write, value) in enumerate(zip(writes, _elements(words, elem_bytes, len(items)), strict=True)):
            flags = None
            if poison is not None:
                first = place * elem_bytes // 4
                some = any_along(poison[first : first + per], 0)
                flags = some if np.count_nonzero(some) else None
            write(g, value, flags)

    return step.running(run)


def _extended_as(kind: str) -> str:
    """Return the type by which a load extends its value: bits for floating-point types."""
    return f"b{TYPES[kind].bits}" if TYPES[kind].kind == "f" else kind


def _uniform_parameter(
    instruction: Instruction, context: Context, space: str, kind: str, size: int, items: Sequence[Operand]
) -> Step | None:
    """Return the step of a load of a parameter by name, which is one value for all threads."""
    operand = instruction.operands[1]
    if space != "param" or len(items) > 1 or not isinstance(operand, Address) or not isinstance(operand.base, Symbol):
        return None
    if not isinstance(items[0], Register | Sink) or operand.base.name not in context.symbols:
        return None
    offset = context.symbols[operand.base.name][1] + operand.offset
    write = target(context, instruction, items[0], _extended_as(kind), wide=True)
    if offset % size:
        raise wrong(instruction, f"the parameter's offset {offset}", f"a multiple of {size}")
    step = Step(instruction, "other", lambda g: None)

    def run(g: WarpGroup) -> None:
        raw = g.env.parameters[offset : offset + size]
        if len(raw) < size:
            finding = f"{size} bytes are outside the {len(g.env.parameters)} bytes of parameters"
            g.env.reporter.at_first("out-of-bounds", finding, step.instruction, g, g.active)
            raw = np.zeros(size, np.uint8)
        value = np.full(g.shape, raw.view(UNSIGNED[8 * size])[0])
        undefined = not g.env.parameters_defined[offset : offset + size].all()
        write(g, value, np.ones(g.shape, np.bool_) if undefined else None)

    return step.running(run)


def _compile_store(instruction: Instruction, context: Context) -> Step:
    """Return the step of st."""
    if instruction.has("async"):
        raise unsupported(instruction)
    _, elem_bytes, items = _shape(instruction, instruction.operands[1])
    space = space_of(instruction)
    if space in ("param", "const"):
        raise unsupported(instruction, f"a store to .{space}")
    strong, releases = instruction.has(*_STRONG), instruction.has("release")
    size = elem_bytes * len(items)
    address_of = addresses(context, instruction, instruction.operands[0], wide=space in ("", "global"))
    reads = [source(context, instruction, item, f"b{8 * elem_bytes}", wide=True) for item in items]
    numbers = numbers_of(instruction.operands[0])
    parts = [numbers_of(item) for item in items]
    step = Step(instruction, {"shared": "st_shared", "local": "other"}.get(space, "st_global"), lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an address")
        values = [np.broadcast_to(read(g), g.shape) for read in reads]
        poison = None
        if any(flags is not None and (flags & g.active).any() for flags in map(g.undefined, parts)):
            poison = np.stack([g.flags(registers) for registers in parts])
        if releases:
            release(g)
        words = _words([np.ascontiguousarray(value) for value in values], elem_bytes)
        _store(g, step, space, address_of(g), size, words, poison, strong=strong)

    return step.running(run)


def _compile_cvta(instruction: Instruction, context: Context) -> Step:
    space = space_of(instruction)
    if space not in _WINDOWS or instruction.types[-1] != "u64":
        raise unsupported(instruction)
    window = np.uint64(_WINDOWS[space])
    if instruction.has("to"):
        return computed(context, instruction, lambda a: a - window, ["u64"], "u64")
    return computed(context, instruction, lambda a: a + window, ["u64"], "u64")


def _compile_isspacep(instruction: Instruction, context: Context) -> Step:
    space = space_of(instruction)
    others = [np.uint64(_WINDOWS[name]) for name in ("shared", "local", "param")]
    size = np.uint64(WINDOW_BYTES)

    def inside(a: Array) -> Array:
        if space in ("global", "const"):
            flags = np.ones(np.shape(a), np.bool_)
            for window in others:
                flags = flags & ~((a >= window) & (a < window + size))
            return flags if space == "global" else np.zeros_like(flags)
        window = np.uint64(_WINDOWS[space])
        return (a >= window) & (a < window + size)

    return computed(context, instruction, inside, ["u64"], "pred")
