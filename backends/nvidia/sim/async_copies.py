"""cp.async: copies from global to shared memory that land when their thread waits for their group.

PTX ISA, cp.async.commit_group, cp.async.wait_group: a thread's copies since its last commit form a group, and
wait_group N returns once all but its last N groups are complete. Copies that nobody commits never land. The bytes are
visible to the thread itself after the wait, and to other threads after a barrier that follows it. The simulator lands
copies as late as it may, and reads their source then, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convgen.backends.nvidia.sim.memory_access import addresses
from convgen.backends.nvidia.sim.operands import Getter, numbers_of, report_undefined, source, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Inverted, Literal, Operand, Register
from convgen.backends.nvidia.sim.shared_access import Access, located
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.global_access import load_lanes, peek_lanes
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import define, evolve

KIND, BULK_KIND, MBARRIER_KIND = "cp-async", "bulk-copy", "mbarrier"


@define(eq=False)
class Copy:
    """The copies of one execution of cp.async, one column a lane."""

    step: Step
    number: int
    thread: Array  #: numbers of the warps in the batch
    lane: Array
    group: Array  #: number of its group: groups that its thread has committed before
    access: Access  #: the destination
    source: Array  #: addresses
    size: int
    read_bytes: Array  #: bytes that are read; the rest of `size` are zeros
    data: Array  #: words [size/4, columns] of the source at the issue

    def take(self, columns: Array) -> Copy:
        """Return the copies of some columns."""
        return evolve(
            self,
            thread=self.thread[columns],
            lane=self.lane[columns],
            group=self.group[columns],
            access=self.access.take(columns),
            source=self.source[columns],
            read_bytes=self.read_bytes[columns],
            data=self.data[:, columns],
        )


class Copies:
    """The copies in flight of a batch, and the groups that each thread has committed."""

    def __init__(self, warps: int) -> None:
        self.committed: Array = np.zeros((warps, LANES), np.int64)
        self.pending: list[Copy] = []
        self.count = 0
        self._bulk: dict[int, Step] = {}  #: bulk copies by number

    def issue(self, g: WarpGroup, copy: Copy) -> None:
        """Add copies in flight; their destination is undefined until they land."""
        shared = g.env.local
        self.pending.append(copy)
        shared.flight[copy.access.units] = copy.number + 1

    def number(self, step: Step) -> int:
        """Return the number that marks the destination of a bulk copy as in flight."""
        self.count += 1
        self._bulk[self.count] = step
        return self.count

    def commit(self, g: WarpGroup) -> None:
        """End a group of each thread."""
        self.committed[g.thread] += g.active

    def wait(self, g: WarpGroup, step: Step, allowed: int | None) -> None:
        """Land the copies of all but the last `allowed` committed groups of each thread; None: all copies."""
        if allowed is None:
            self.committed[g.thread] += g.active
            allowed = 0
        upto = np.zeros(self.committed.shape, np.int64)
        upto[g.thread] = np.where(g.active, self.committed[g.thread] - allowed, 0)
        self._land_chosen(g, step, lambda copy: np.asarray(copy.group < upto[copy.thread, copy.lane]))

    def landing(self, g: WarpGroup, row: int, lanes: Array) -> Callable[[WarpGroup, int, int], None]:
        """Return the function by which an mbarrier lands the copies that some lanes of a warp have issued so far."""
        thread, upto = int(g.thread[row]), self.count

        def land(waiting: WarpGroup, agent: int, clock: int) -> None:
            def is_counted(copy: Copy) -> Bools:
                return np.asarray((copy.number < upto) & (copy.thread == thread) & np.isin(copy.lane, lanes))

            self._land_chosen(waiting, None, is_counted, (agent, clock))

        return land

    def _land_chosen(
        self, g: WarpGroup, step: Step | None, chosen: Callable[[Copy], Bools], agent: tuple[int, int] | None = None
    ) -> None:
        """Land the chosen copies; `agent`, if an mbarrier counts them, is its number and the phase's clock."""
        pending: list[Copy] = []
        row_of = np.zeros(len(self.committed), np.int64)
        row_of[g.thread] = np.arange(g.count)
        for copy in self.pending:
            landing = chosen(copy)
            if landing.any():
                landed_copies = copy if landing.all() else copy.take(np.flatnonzero(landing))
                self._land(g, step or copy.step, landed_copies, row_of)
                if agent is not None:
                    g.env.local.pass_to_agent(landed_copies.access, *agent)
            if not landing.all():
                pending.append(copy if not landing.any() else copy.take(np.flatnonzero(~landing)))
        self.pending = pending

    def _land(self, g: WarpGroup, step: Step, copy: Copy, row_of: Array) -> None:
        """Write the bytes, stamped with the present clock of the threads that wait."""
        shared, access = g.env.local, copy.access
        access.row = row_of[copy.thread]
        late = _peek(g, copy)
        if (late != copy.data).any():
            column = int((late != copy.data).any(axis=0).argmax())
            finding = f"copies bytes that changed before the wait for `{copy.step.instruction.text}`"
            row, lane = int(access.row[column]), int(access.lane[column])
            g.env.reporter.add(KIND, finding, copy.step.instruction, g, row, lane)
        mine = shared.flight[access.units] == copy.number + 1
        shared.flight[access.units] = np.where(mine, 0, shared.flight[access.units])
        shared.store(access.stretch, copy.data)
        units = access.units
        stamps = shared.stamps_of(*access.who)
        shared.stores[units] = np.broadcast_to(stamps, units.shape)
        shared.note_generic(access)
        shared.defined[units] = True
        g.env.memory.changes += 1

    # -- findings -----------------------------------------------------------------------------------------------------

    def _named(self, number: int) -> str:
        """Name the copy of a number for a finding, and say if its lane has not committed it."""
        for copy in self.pending:
            if copy.number == number:
                committed = copy.group < self.committed[copy.thread, copy.lane]
                state = "" if committed.all() else ", which no commit_group has closed,"
                return f"`{copy.step.instruction.text}`{state}"
        return "a copy"

    def report(self, g: WarpGroup, step: Step, access: Access, flight: Array, verb: str) -> None:
        """Report an access to bytes that a copy in flight will write; `verb` is "loads" or "stores to"."""
        unit, column = (int(i) for i in np.argwhere(flight)[0])
        number = int(flight[unit, column])
        kind, finding = MBARRIER_KIND, f"{verb} bytes of an mbarrier"
        if number in self._bulk:
            text = self._bulk[number].instruction.text
            kind, finding = BULK_KIND, f"{verb} bytes of `{text}`, whose mbarrier it has not waited for"
        elif number > 0:
            kind, finding = KIND, f"{verb} bytes of {self._named(number - 1)} before its wait"
        g.env.reporter.add(kind, finding, step.instruction, g, int(access.row[column]), int(access.lane[column]))


def _peek(g: WarpGroup, copy: Copy) -> Array:
    """Read the source of copies again, without checks; bytes beyond `read_bytes` are zeros."""
    read = np.asarray(copy.read_bytes > 0)
    words = np.zeros_like(copy.data)
    if read.any():
        words[:, read] = peek_lanes(g, copy.source[read][None], copy.size, None)[:, 0]
    return _cut(words, copy.read_bytes)


def _cut(words: Array, read_bytes: Array) -> Array:
    """Replace the bytes from `read_bytes` on by zeros."""
    size = 4 * len(words)
    if (read_bytes == size).all():
        return words
    raw = np.ascontiguousarray(np.moveaxis(words, 0, -1)).view(np.uint8)
    raw = np.where(np.arange(size) < read_bytes[:, None], raw, 0).astype(np.uint8)
    return np.moveaxis(np.ascontiguousarray(raw).view(np.uint32), -1, 0)


def compile_copy(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of cp.async and its groups; None for other instructions."""
    if instruction.name != "cp":
        return None
    modifiers = instruction.modifiers
    if modifiers[:1] != ("async",) or instruction.has("bulk"):
        raise unsupported(instruction)
    if instruction.has("commit_group"):
        return Step(instruction, "wait", lambda g: g.env.copies.commit(g))
    if instruction.has("wait_all", "wait_group"):
        return _wait(instruction)
    return _copy(instruction, context)


def _wait(instruction: Instruction) -> Step:
    allowed: int | None = None
    if instruction.has("wait_group"):
        (count,) = instruction.operands
        if not isinstance(count, Literal):
            raise wrong(instruction, "a register", "a constant")
        allowed = count.bits
    step = Step(instruction, "wait", lambda g: None)
    return step.running(lambda g: g.env.copies.wait(g, step, allowed))


def _copy(instruction: Instruction, context: Context) -> Step:
    """Return the step of cp.async."""
    operands = instruction.operands
    size, read_bytes_of = sizes_of(instruction, context)
    to = addresses(context, instruction, operands[0])
    of = addresses(context, instruction, operands[1], wide=True)
    numbers = numbers_of(*operands)
    step = Step(instruction, "cp_async", lambda g: None)

    def run(g: WarpGroup) -> None:
        offset, where = to(g), of(g)
        read_bytes = np.broadcast_to(read_bytes_of(g), g.shape)
        report_undefined(g, step, numbers, "an operand of a copy")
        if (read_bytes > size)[g.active].any():
            finding = f"a source size above {size} bytes (PTX ISA, cp.async: src-size)"
            g.env.reporter.at_first("operand", finding, step.instruction, g, (read_bytes > size) & g.active)
            read_bytes = np.minimum(read_bytes, size)
        access = located(g, step, offset, size, g.lanes)
        if access is None:
            return
        data = _fetch(g, step, where, size, read_bytes)
        row, lane = access.row, access.lane
        words = _cut(data[:, row, lane], read_bytes[row, lane])
        copies = g.env.copies
        number = copies.count
        copies.count += 1
        thread = g.thread[row]
        g.env.local.note_stores(g, step, access, None, defined=False)
        group = copies.committed[thread, lane]
        copies.issue(
            g, Copy(step, number, thread, lane, group, access, where[row, lane], size, read_bytes[row, lane], words)
        )
        g.env.counters["cp_async_bytes"] += size * len(row)

    return step.running(run)


def sizes_of(instruction: Instruction, context: Context) -> tuple[int, Getter]:
    """Return the bytes that a lane of cp.async writes, and a function that computes how many of them it reads."""
    operands = instruction.operands
    size = operands[2].bits if len(operands) > 2 and isinstance(operands[2], Literal) else 0
    allowed = (16,) if instruction.has("cg") else (4, 8, 16)
    if size not in allowed:
        raise wrong(instruction, f"{size} bytes", " or ".join(map(str, allowed)))
    return size, _bytes_read(instruction, context, operands[3:], size)


def _bytes_read(instruction: Instruction, context: Context, sizes: Sequence[Operand], size: int) -> Getter:
    """Return a function that computes the bytes that are read: src-size, 0 under ignore-src, or all of the copy's.

    `sizes` are the operands behind cp-size; a cache policy is the last of them.
    """
    sizes = sizes[:-1] if instruction.has("L2::cache_hint") else sizes
    if not sizes:
        return lambda g: np.array(size)
    ignores = isinstance(sizes[0], Inverted) or (isinstance(sizes[0], Register) and sizes[0].type == "pred")
    value = source(context, instruction, sizes[0], "pred" if ignores else "u32")
    return lambda g: np.where(value(g), 0, size) if ignores else value(g).astype(np.int64)


def _fetch(g: WarpGroup, step: Step, where: Array, size: int, read_bytes: Array) -> Array:
    """Read the sources; a lane that copies fewer bytes reads no others."""
    data: Array = np.zeros((size // 4, *g.shape), np.uint32)
    for count in np.unique(read_bytes[g.active]).tolist():
        if not count:
            continue
        lanes: Bools = g.active & (read_bytes == count)
        if count == size:
            words, poison = load_lanes(g, step, where, size, None if lanes.all() else lanes, size)
            data = words if lanes.all() else np.where(lanes, words, data)
            _report_poison(g, step, poison, lanes)
            continue
        bad = lanes & (where & np.uint64(size - 1) != 0)
        if bad.any():
            finding = f"global access of {size} bytes not aligned to {size}"
            g.env.reporter.at_first("misaligned", finding, step.instruction, g, bad)
        raw = np.zeros((*g.shape, size), np.uint8)
        for byte in range(count):
            value, poison = load_lanes(g, step, where + np.uint64(byte), 1, lanes, 1)
            raw[..., byte] = value[0]
            _report_poison(g, step, poison, lanes)
        data = np.where(lanes, np.moveaxis(raw.view(np.uint32), -1, 0), data)
    return data


def _report_poison(g: WarpGroup, step: Step, poison: Bools | None, lanes: Bools) -> None:
    if poison is not None and (poison & lanes).any():
        bad = any_along(poison & lanes, 0)
        g.env.reporter.at_first("poison", "copies undefined bytes of global memory", step.instruction, g, bad)
