"""The instructions of bulk copies: cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk, their groups.

Each lane that executes one copies. Cache hints, prefetches and the multicast to a cluster of one make no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from convgen.backends.nvidia.sim.atomics import reduction_of
from convgen.backends.nvidia.sim.bulk_copies import alone
from convgen.backends.nvidia.sim.mbarrier_steps import shared_operand
from convgen.backends.nvidia.sim.mbarriers import SIZE, Mbarrier
from convgen.backends.nvidia.sim.memory_access import PARAM_WINDOW, addresses
from convgen.backends.nvidia.sim.operands import Getter, numbers_of, report_undefined, source, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Literal, Operand, TensorAddress, Vector
from convgen.backends.nvidia.sim.shared_access import located
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported, wants_target
from convgen.backends.nvidia.sim.tensor_boxes import Chunks, chunks_of
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.layout.tensor_map import MAP_BYTES, TensorMap

_UNIT = 16  #: bytes: of the sizes and addresses of bulk copies
_TENSOR_ALIGN = 128  #: bytes; alignment of a tensor copy's shared address; a swizzle asks for eight of its rows


def compile_bulk(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a bulk copy or of its groups; None for other instructions."""
    if instruction.name != "cp" or not instruction.has("bulk"):
        return None
    wants_target(instruction, context, "sm_90")
    if instruction.has("commit_group"):
        return Step(instruction, "wait", lambda g: g.env.bulk_copies.commit(g))
    if instruction.has("wait_group"):
        return _wait(instruction)
    if instruction.has("prefetch"):
        return Step(instruction, "other", lambda g: None)
    to_shared = _ends_in_shared(instruction)
    if instruction.has("mbarrier::complete_tx::bytes") != to_shared or instruction.has("bulk_group") == to_shared:
        raise unsupported(instruction, "loads are counted by an mbarrier, stores by groups; others are not simulated")
    if instruction.has("tensor"):
        return _tensor(instruction, context, loads=to_shared)
    return _plain(instruction, context, loads=to_shared)


def _ends_in_shared(instruction: Instruction) -> bool:
    """Return whether a copy goes to shared memory: its spaces are named in the order destination, source."""
    spaces = [m.partition("::")[0] for m in instruction.modifiers if m.partition("::")[0] in ("shared", "global")]
    if sorted(spaces) != ["global", "shared"]:
        raise unsupported(instruction, "copies between global and shared memory are simulated")
    return spaces[0] == "shared"


def _wait(instruction: Instruction) -> Step:
    (count,) = instruction.operands
    if not isinstance(count, Literal):
        raise wrong(instruction, "a register", "a constant")
    allowed, reads = count.bits, instruction.has("read")
    return Step(instruction, "wait", lambda g: g.env.bulk_copies.wait(g, allowed, reads=reads))


_FindMbarriers = Callable[[WarpGroup, Step], dict[tuple[int, int], Mbarrier]]


def _mbarriers_named(instruction: Instruction, context: Context, operand: Operand) -> _FindMbarriers:
    """Return a function that finds the mbarrier that each lane names, by row and lane."""
    where, numbers = shared_operand(context, instruction, operand), numbers_of(operand)

    def find(g: WarpGroup, step: Step) -> dict[tuple[int, int], Mbarrier]:
        report_undefined(g, step, numbers, "the address of an mbarrier")
        access = located(g, step, where(g), SIZE, g.active)
        if access is None:
            return {}
        g.env.mbarriers.check_fenced(g, step, access)
        uses = g.env.mbarriers.uses(g, step, access)
        return {(use.row, lane): use.mbarrier for use in uses for lane in use.lanes.tolist()}

    return find


def _active_lanes(g: WarpGroup) -> Iterator[tuple[int, int]]:
    """Yield the row and number of each lane that executes an instruction."""
    yield from ((row, lane) for row, lane in np.argwhere(g.active).tolist())


def _is_multiple(g: WarpGroup, step: Step, single: WarpGroup, lane: int, name: str, value: int, unit: int) -> bool:
    """Return whether `value` is a multiple of `unit` bytes; report it otherwise, as `name` of a bulk copy."""
    if value % unit == 0:
        return True
    kind = "operand" if name == "the size" else "misaligned"
    finding = f"{name} of a bulk copy, {value:#x}, is not a multiple of {unit} bytes"
    g.env.reporter.add(kind, finding, step.instruction, single, 0, lane)
    return False


# ---------------------------------------------------------------- copies of a run of bytes


def _plain(instruction: Instruction, context: Context, *, loads: bool) -> Step:
    """Return the step of a copy of a run of bytes: a load, or a store or reduction."""
    to, of, size, *mbarrier = instruction.operands
    inner, outer = (to, of) if loads else (of, to)
    in_shared = shared_operand(context, instruction, inner, space="shared")
    in_global = addresses(context, instruction, outer, wide=True)
    read = source(context, instruction, size, "u32")
    numbers = numbers_of(to, of, size)
    signals = _mbarriers_named(instruction, context, mbarrier[0]) if loads else None
    reduces = instruction.has("reduce")
    step = Step(instruction, "bulk_copy", lambda g: None)
    atomic = reduction_of(step, instruction.types[-1]) if reduces else None

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of a bulk copy")
        mbarriers = {} if signals is None else signals(g, step)
        places, origins, sizes = (np.broadcast_to(part(g), g.shape) for part in (in_shared, in_global, read))
        for row, lane in _active_lanes(g):
            place, origin, count = int(places[row, lane]), int(origins[row, lane]), int(sizes[row, lane])
            single = alone(g, row, lane)
            parts = (("the size", count), ("the address in shared memory", place), ("the address", origin))
            if not all(_is_multiple(g, step, single, lane, name, value, _UNIT) for name, value in parts):
                continue
            chunk_bytes = _UNIT if atomic is None else atomic.size
            offset = np.arange(0, count, chunk_bytes)
            chunks = Chunks(chunk_bytes, place + offset, offset, np.ones(len(offset), np.bool_))
            if not loads:
                g.env.bulk_copies.store(single, step, lane, chunks, origin, atomic)
            elif (row, lane) in mbarriers:
                g.env.bulk_copies.load(single, step, lane, chunks, origin, mbarriers[row, lane])

    return step.running(run)


# ---------------------------------------------------------------- copies of tensors


def _tensor(instruction: Instruction, context: Context, *, loads: bool) -> Step:
    """Return the step of a copy by a tensor map: a load, or a store or reduction."""
    operands = list(instruction.operands)
    inner = operands.pop(0 if loads else 1)
    tensor = operands.pop(0)
    if not isinstance(tensor, TensorAddress):
        raise wrong(instruction, "an operand without coordinates", "[tensor map, {coordinates}]")
    rank = next(int(m[0]) for m in instruction.modifiers if m in ("1d", "2d", "3d", "4d", "5d"))
    if len(tensor.coordinates.items) != rank:
        raise wrong(instruction, f"{len(tensor.coordinates.items)} coordinates", str(rank))
    coordinates = [source(context, instruction, item, "s32") for item in tensor.coordinates.items]
    signals = _mbarriers_named(instruction, context, operands.pop(0)) if loads else None
    offsets = _offsets(instruction, context, operands)
    in_shared = shared_operand(context, instruction, inner, space="shared")
    map_at = addresses(context, instruction, tensor.address, wide=True)
    numbers = numbers_of(inner, tensor)
    map_offsets = frozenset(v.offset for v in context.kernel.parameters if v.size == MAP_BYTES)
    mode = "im2col" if instruction.has("im2col", "im2col_no_offs") else "tiled"
    step = Step(instruction, "bulk_copy", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of a bulk copy")
        mbarriers = {} if signals is None else signals(g, step)
        places, at = (np.broadcast_to(part(g), g.shape) for part in (in_shared, map_at))
        numbers_by_lane: list[Array] = [np.broadcast_to(read(g), g.shape) for read in (*coordinates, *offsets)]
        for row, lane in _active_lanes(g):
            single = alone(g, row, lane)
            tensor_map = _map_at(single, step, lane, int(at[row, lane]) - PARAM_WINDOW, map_offsets, (rank, mode))
            atomic = reduction_of(step, tensor_map.element) if instruction.has("reduce") else None
            values = [int(by_lane[row, lane]) for by_lane in numbers_by_lane]
            place = int(places[row, lane])
            if not _is_aligned(g, step, single, lane, tensor_map, place, values[0]):
                continue
            extra = values[rank:] or [0] * (rank - 2)
            chunks = chunks_of(tensor_map, place, values[:rank], extra, by_element=atomic is not None)
            base = g.env.memory.by_name[tensor_map.buffer].base + tensor_map.shift
            if not loads:
                g.env.bulk_copies.store(single, step, lane, chunks, base, atomic)
            elif (row, lane) in mbarriers:
                g.env.bulk_copies.load(single, step, lane, chunks, base, mbarriers[row, lane])

    return step.running(run)


def _offsets(instruction: Instruction, context: Context, operands: Sequence[Operand]) -> list[Getter]:
    """Return how to read the offsets of im2col, which stand behind the mbarrier."""
    if not instruction.has("im2col"):
        return []
    vector = operands[0] if operands else None
    if not isinstance(vector, Vector):
        raise wrong(instruction, "im2col without offsets", "a vector of them")
    return [source(context, instruction, item, "u16") for item in vector.items]


def _is_aligned(
    g: WarpGroup, step: Step, single: WarpGroup, lane: int, tensor: TensorMap, place: int, first: int
) -> bool:
    """Return whether the shared address and the innermost coordinate of a copy are aligned; report others."""
    align = max(_TENSOR_ALIGN, 8 * tensor.swizzle)
    fits = _is_multiple(g, step, single, lane, "the address in shared memory", place, align)
    name = f"the innermost coordinate ({first} elements)"
    return _is_multiple(g, step, single, lane, name, first * tensor.size, _UNIT) and fits


def _map_at(
    single: WarpGroup, step: Step, lane: int, offset: int, map_offsets: Collection[int], shape: tuple[int, str]
) -> TensorMap:
    """Return the tensor map at an offset of the parameters, for a copy with the rank and mode of `shape`.

    `map_offsets` has the parameters that may be maps. Raises LaunchStopped after it reports a wrong offset or shape;
    SimulatorError for a parameter for which the launch has no map.
    """
    tensor, (rank, mode) = single.env.tensor_maps.get(offset), shape
    finding = ""
    if tensor is None:
        if offset in map_offsets:
            given = f"given no tensor map at offset {offset} of the parameters"
            raise SimulatorError(f"{given}, wanted one: a launch record has it (convgen run NAME.launch.json)")
        finding = "the address is not that of a parameter with a tensor map (cvta.param gives it)"
    elif len(tensor.dims) != rank or tensor.kind != mode:
        finding = f"a {mode} copy of {rank} dimensions by a {tensor.kind} map of {len(tensor.dims)}"
    if finding or tensor is None:
        single.env.reporter.add("operand", finding, step.instruction, single, 0, lane)
        raise LaunchStopped
    inner = tensor.extents[0] * tensor.size
    if tensor.swizzle and inner != tensor.swizzle:
        raise Unsupported(f"`{step.instruction.text}`: rows of {inner} bytes in a swizzle of {tensor.swizzle}")
    return tensor
