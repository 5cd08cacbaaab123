"""2-D block loads, stores and prefetches of a rectangle of a surface, which a one-register payload describes.

Payload (cl_intel_subgroup_2d_block_io, LLVM's XeGPU documentation, checked against IGC's and nGEN's output): q0 base,
d2 width - 1 and d3 height - 1 and d4 pitch - 1 (width and pitch in bytes), d5 x (elements), d6 y,
d7 count - 1 in bits 23:16, block height - 1 in 15:8, block width - 1 in 7:0. Elements outside the surface read as 0 and
are not written. Limits are those of oneDNN's block_2d_utils.hpp.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from convgen.backends.intel.sim.decode import Instruction, Message
from convgen.backends.intel.sim.execution_masks import Lanes, active, flag_bits
from convgen.backends.intel.sim.late import note_late
from convgen.backends.intel.sim.messages import LOAD_2D, STORE_2D, Lsc
from convgen.backends.intel.sim.payload import check_length, check_range, fill, land, report_undefined, undefined
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, send_step, unsupported
from convgen.backends.intel.sim.stores import store_global
from convgen.backends.sim.global_access import load_lanes, peek_lanes
from convgen.backends.sim.wave_arrays import U64, Array, Bools, any_along
from convgen.ir.record import define, frozen

BASE_ALIGNMENT = 64  #: bytes
LEAST_WIDTH = 64  #: bytes; smallest width and pitch of a surface
LARGEST = 1 << 24  #: largest width in bytes and height in rows; the pitch is less
MOST_ROWS = {LOAD_2D: 32, STORE_2D: 8}
MOST_ROW_BYTES = 64
MOST_RESPONSE = 31  #: registers; largest value of the descriptor's field, which a block of 32 registers has, too


@frozen
class BlockShape:
    """A block as the payload gives it."""

    width: int  #: elements of a row
    height: int
    count: int


def power_of_two(value: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << (value - 1).bit_length()


@frozen
class Placement:
    """The surface element behind each element of the block's registers, relative to (x, y).

    `column` (bytes) and `row` are flat, one entry per element of `part` bytes; -1 is padding.
    """

    column: Array
    row: Array
    part: int


def placement(shape: BlockShape, size: int, grf: int, *, vnni: bool, transposed: bool) -> Placement:
    """Return the layout of a block's elements in registers; blocks begin at register boundaries, rows are padded."""
    columns, rows = np.meshgrid(np.arange(shape.width), np.arange(shape.height))  # [height, width]
    if transposed:
        grid = _rows_of(columns.T, rows.T, size)
    elif vnni:
        rows_of_dword = 4 // size
        padded = -(-shape.height // rows_of_dword) * rows_of_dword
        wide = power_of_two(shape.width)
        column = np.full((padded, wide), -1)
        row = np.full((padded, wide), -1)
        column[: shape.height, : shape.width], row[: shape.height, : shape.width] = columns, rows
        order = [a.reshape(-1, rows_of_dword, wide).transpose(0, 2, 1).reshape(-1) for a in (column, row)]
        grid = (order[0], order[1])
    else:
        grid = _rows_of(columns, rows, size)
    column, row = (_to_registers(part, size, grf) for part in grid)
    blocks = np.arange(shape.count)[:, None] * shape.width
    column = np.where(column < 0, -1, column + blocks)
    row = np.where(column < 0, -1, np.broadcast_to(row, column.shape))
    return Placement(np.where(column < 0, -1, column * size).reshape(-1), row.reshape(-1), size)


def _rows_of(columns: Array, rows: Array, size: int) -> tuple[Array, Array]:
    """Return columns and rows of a grid, flat, its rows padded to a power of two with -1."""
    height, width = columns.shape
    wide = max(power_of_two(width), 4 // size)
    column, row = np.full((height, wide), -1), np.full((height, wide), -1)
    column[:, :width], row[:, :width] = columns, rows
    return column.reshape(-1), row.reshape(-1)


def _to_registers(values: Array, size: int, grf: int) -> Array:
    """Return a block padded with -1 to whole registers, as [1, elements]."""
    each = grf // size
    padded = np.full(-(-len(values) // each) * each, -1)
    padded[: len(values)] = values
    return padded[None]


def compile_block2d(instruction: Instruction, message: Message, lsc: Lsc, context: Context) -> Step:
    """Return the step of a 2-D block message."""
    layout = context.layout
    if not context.platform.block2d:
        context.fault("unsupported-message", f"{context.platform.name} has no 2-D block messages")
    if message.unit != "ugm":
        context.fault("message", "2-D blocks are messages of the global unit")
    check_length(context, "an address payload", lsc.address_registers, 1)
    fits = check_range(context, "address payload", message.src0.reg, 1)
    step = send_step(instruction, "send_ugm", layout.grf_bits(message.src0.reg, 1))
    if instruction.predicate:
        step.reads |= flag_bits(instruction, context)
    if lsc.op == LOAD_2D:
        response = 32 if lsc.response == MOST_RESPONSE else lsc.response
        fits &= check_range(context, "response", message.dst.reg, response)
        step.writes = layout.grf_bits(message.dst.reg, response)
    else:
        fits &= check_range(context, "data payload", message.src1.reg, message.src1.length)
        step.reads |= layout.grf_bits(message.src1.reg, message.src1.length)
        if lsc.vnni or lsc.transposed:
            context.fault("block2d", "a 2-D block store neither transposes nor packs")
    if fits:
        step.run = Block(instruction, message, lsc, context, step, active(instruction, context)).run
    return step


def _elements(data: Array, inside: Bools | None, size: int) -> Array:
    """Convert words [n, threads, elements] to elements; those outside the surface are 0."""
    if size == 8:
        pair: Array = data[0].astype(np.uint64) | data[1].astype(np.uint64) << np.uint64(32)
        return pair
    return (data[0] if inside is None else np.where(inside, data[0], 0)).astype(f"u{size}")


@define(eq=False)
class Block:
    """One 2-D block message."""

    instruction: Instruction
    message: Message
    lsc: Lsc
    context: Context
    step: Step
    lanes: Lanes
    placements: dict[BlockShape, Placement] = attrs.field(factory=dict)

    def run(self, g: ThreadGroup) -> None:
        """Execute the message for the threads that take part."""
        lanes = self.lanes(g)
        taking = np.ones(g.count, np.bool_) if lanes is None else any_along(lanes, 1)
        if not taking.any():
            return
        reg = self.message.src0.reg
        report_undefined(g, self.instruction, undefined(g, reg, 4, 8), taking[:, None], "the block's description")
        base = g.layout.grf * reg
        words = g.views["u4"][:, base // 4 : base // 4 + 8].astype(np.int64)
        shapes = np.unique(words[taking, 7])
        if len(shapes) != 1:
            raise unsupported(self.instruction, "blocks of different shapes in one group")
        packed = int(shapes[0])
        shape = BlockShape((packed & 0xFF) + 1, (packed >> 8 & 0xFF) + 1, (packed >> 16 & 0xFF) + 1)
        origin = g.views["u8"][:, base // 8]
        if not self._check(g, shape, origin, words, taking):
            return
        self._move(g, shape, origin, words, taking)

    def _check(self, g: ThreadGroup, shape: BlockShape, origin: Array, words: Array, taking: Bools) -> bool:
        """Report values that the payload must not hold; return False if the block cannot be executed."""
        fine = True
        for message, broken in self._rules(shape, origin, words).items():
            bad = np.broadcast_to(np.asarray(broken), taking.shape) & taking
            if bad.any():
                g.env.reporter.at_first("block2d", message, self.instruction, g, bad)
                fine = False
        loads = self.lsc.op == LOAD_2D
        if fine and (not loads or self.message.dst.reg >= 0):
            payload = self.lsc.response if loads else self.message.src1.length
            wanted = len(self._placement(shape).column) * self.lsc.memory_bytes // self.context.layout.grf
            if payload != (min(wanted, MOST_RESPONSE) if loads else wanted):
                finding = f"the message has {payload} registers of data, the block needs {wanted}"
                g.env.reporter.add("message-length", finding, self.instruction, g)
                fine = False
        return fine

    def _rules(self, shape: BlockShape, origin: Array, words: Array) -> Mapping[str, Array | bool]:
        """Return whether each rule is broken, by message, for the payload's base and dwords [threads, 8]."""
        lsc, size = self.lsc, self.lsc.memory_bytes
        width, height, pitch = words[:, 2] + 1, words[:, 3] + 1, words[:, 4] + 1
        x = words[:, 5].astype(np.int32).astype(np.int64)
        row_bytes = shape.width * shape.count * size
        grain, widest = self.context.platform.pitch_multiple, 8 if size == 4 else 4
        return {
            f"the base is not aligned to {BASE_ALIGNMENT} bytes": origin % np.uint64(BASE_ALIGNMENT) != 0,
            f"the surface is narrower than {LEAST_WIDTH} bytes": width < LEAST_WIDTH,
            f"the surface is wider than {LARGEST} bytes": width > LARGEST,
            f"the surface's width is no multiple of {max(4, size)} bytes": width % max(4, size) != 0,
            f"the surface is higher than {LARGEST} rows": height > LARGEST,
            "the pitch is less than the width": pitch < width,
            f"the pitch is less than {LEAST_WIDTH} bytes": pitch < LEAST_WIDTH,
            f"the pitch reaches {LARGEST} bytes": pitch >= LARGEST,
            f"the pitch is no multiple of {grain} bytes": pitch % grain != 0,
            "x is no multiple of 4 bytes": x * size % 4 != 0,
            f"a row has {row_bytes} bytes, at most {MOST_ROW_BYTES} are possible": row_bytes > MOST_ROW_BYTES,
            "a row is no multiple of 4 bytes": shape.width * size % 4 != 0,
            f"the block has {shape.height} rows, at most {MOST_ROWS[lsc.op]} are possible": shape.height
            > MOST_ROWS[lsc.op],
            f"a store of {shape.count} blocks, 1 is possible": lsc.op == STORE_2D and shape.count != 1,
            f"transposing elements of {size} bytes, 4 and 8 are possible": lsc.transposed and size < 4,
            f"transposing {shape.count} blocks, 1 is possible": lsc.transposed and shape.count != 1,
            f"transposing {shape.width} columns, at most {widest} are possible": lsc.transposed
            and shape.width > widest,
            f"packing (VNNI) elements of {size} bytes, 1 or 2 are possible": lsc.vnni and size > 2,
            "a block is both packed (VNNI) and transposed": lsc.vnni and lsc.transposed,
        }

    def _placement(self, shape: BlockShape) -> Placement:
        layout = self.placements.get(shape)
        if layout is None:
            lsc = self.lsc
            layout = placement(
                shape, lsc.memory_bytes, self.context.layout.grf, vnni=lsc.vnni, transposed=lsc.transposed
            )
            self.placements[shape] = layout
        return layout

    def _move(self, g: ThreadGroup, shape: BlockShape, origin: Array, words: Array, taking: Bools) -> None:
        size = self.lsc.memory_bytes
        where = self._placement(shape)
        column = where.column + words[:, 5].astype(np.int32).astype(np.int64)[:, None] * size
        row = where.row + words[:, 6].astype(np.int32).astype(np.int64)[:, None]
        inside = (where.column >= 0) & (column >= 0) & (column <= words[:, 2, None]) & (row >= 0)
        inside &= (row <= words[:, 3, None]) & taking[:, None]
        offset = np.where(inside, row * (words[:, 4, None] + 1) + column, 0)
        address = origin[:, None] + offset.astype(np.uint64)
        moved = int(inside.sum()) * size
        if self.lsc.op == STORE_2D:
            self._store(g, address, inside)
            g.env.counters["global_write_bytes"] += moved
        elif self.message.dst.reg < 0:
            g.env.counters["prefetch_bytes"] += moved
        else:
            self._load(g, address, inside, taking)
            g.env.counters["global_read_bytes"] += moved

    def _load(self, g: ThreadGroup, address: Array, inside: Bools, taking: Bools) -> None:
        size = self.lsc.memory_bytes
        data, bad = load_lanes(g, self.step, address, size, inside, size)
        values = _elements(data, inside, size)
        spoilt = None if bad is None else any_along(bad, 0) & inside
        lanes = None if taking.all() else np.broadcast_to(taking[:, None], values.shape)
        land(g, self.message.dst.reg, size, values, lanes, spoilt)
        note_late(g, self.step.index, address, size, inside, self._reread, local=False)

    def _reread(self, g: ThreadGroup, address: U64, inside: Bools | None) -> None:
        size = self.lsc.memory_bytes
        fill(g, self.message.dst.reg, size, _elements(peek_lanes(g, address, size, inside), inside, size), inside)

    def _store(self, g: ThreadGroup, address: Array, inside: Bools) -> None:
        size, reg, count = self.lsc.memory_bytes, self.message.src1.reg, address.shape[1]
        report_undefined(g, self.instruction, undefined(g, reg, size, count), inside, "the data that is stored")
        first = reg * g.layout.grf // size
        values = g.views[f"u{size}"][:, first : first + count]
        if size == 8:
            data = np.stack((values & np.uint64(0xFFFFFFFF), values >> np.uint64(32))).astype(np.uint32)
        else:
            data = values.astype(np.uint32)[None]
        store_global(g, self.step, address, size, data, inside, size)
