"""Instructions whose costs or effects follow from values: accesses to memory, barriers, mbarriers, bulk copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from convgen.backends.event_model.cache_traffic import count_misses
from convgen.backends.nvidia.sim.async_copies import sizes_of
from convgen.backends.nvidia.sim.flow import reads_and_writes
from convgen.backends.nvidia.sim.mbarrier_steps import shared_operand
from convgen.backends.nvidia.sim.memory_access import addresses, space_of
from convgen.backends.nvidia.sim.operands import Getter, source
from convgen.backends.nvidia.sim.ptx_text import Address, Instruction, Operand
from convgen.backends.nvidia.sim.ptx_types import bytes_of
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context
from convgen.backends.nvidia.sim.tensor_boxes import Chunks
from convgen.backends.nvidia.timing.ops import ALL, Act, Op, Pipe, bits_as_numbers
from convgen.backends.nvidia.timing.shared_clocks import lines_and_sectors, sectors_of, shared_clocks
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import evolve

_L2_BYTES = 64  #: bytes a clock between L2 and an SM (`Core.global_rate`)
_LINE, _SECTOR = 128, 32  #: bytes
_LINES = 2  #: lines that L1 looks up in a clock (assumed)
#: Clocks of a row of a bulk copy, and bytes a clock of what it has inside its tensor. On an H200 rows of 128 bytes of
#: tiles take 2.2 clocks (8192x8192x8192 without its products: 59 bytes a clock), those of im2col 2.5 to 3.3, its rows
#: of 64 bytes 1.7 (gradients of weights in docs/silicon.json).
_ROW_CLOCKS, _ROW_RATE = {"tiled": 0.5, "im2col": 0.9}, 75.0
#: Bytes a clock that copies write into shared memory (assumed): with 128, a convolution by tiles of 128x128 could keep
#: tensor cores busy for 80 % of the time, not for the 91 % that counters of an H200 show.
_WRITTEN_BYTES = 256

Intern = Callable[[Op], Op]  #: returns the object that stands for all equal instructions


class Access(ABC):
    """An instruction whose operation depends on what each warp has in registers."""

    @abstractmethod
    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        """Return the operation of each warp [rows]; `active` are the lanes that its predicate selects."""


def access_of(instruction: Instruction, context: Context, intern: Intern, l1: L1) -> Access | None:
    """Return an instruction that needs values; None for others."""
    name = instruction.name
    if name in ("bar", "barrier") and not instruction.has("warp", "cluster"):
        return _Barrier(instruction, context, intern)
    if name == "mbarrier" or (name == "cp" and instruction.has("mbarrier") and instruction.has("arrive")):
        return _of_mbarrier(instruction, context, intern)
    if name == "cp" and instruction.has("commit_group", "wait_group", "wait_all"):
        return None
    if name == "cp" and instruction.has("bulk"):
        return _IssueOnly(instruction, intern)
    if name == "cp":
        return _Copy(instruction, context, intern)
    if name in ("ldmatrix", "stmatrix"):
        return _Shared(instruction, context, intern)
    if name in ("ld", "ldu", "st", "atom", "red"):
        space = space_of(instruction)
        if space == "shared":
            return _Shared(instruction, context, intern)
        if space in ("global", ""):
            loads = name in ("ld", "ldu")
            return _Load(instruction, context, intern, l1) if loads else _Store(instruction, context, intern)
    return None


# ---------------------------------------------------------------- memory


class L1:
    """The L1 of an SM, as if each workgroup had it alone."""

    def __init__(self, size: int) -> None:
        self.sectors = size // _SECTOR
        self._caches: dict[int, OrderedDict[int, None]] = {}  #: by workgroup

    def misses(self, group: int, places: Array, size: int) -> int:
        """Return the sectors that miss of lanes of a workgroup which load `size` bytes at some addresses."""
        cache = self._caches.setdefault(group, OrderedDict())
        return count_misses(cache, sectors_of(places, size), self.sectors)


class _Memory(Access):
    """An access by lanes. Its clocks do not change if all addresses move by a multiple of 128 bytes."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern) -> None:
        reads, writes = (bits_as_numbers(bits) for bits in reads_and_writes(instruction, context.carry))
        self.base = Op(instruction.address, reads=reads, writes=writes)
        self.intern = intern
        self.place: Getter
        self._known: dict[bytes, Op] = {}

    @abstractmethod
    def of_pattern(self, offsets: Array, active: Bools) -> Op:
        """Return the operation of a warp whose lanes have these byte offsets [lanes]."""

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        places = np.where(active, np.broadcast_to(self.place(g), g.shape).astype(np.int64), 0)
        first = places[np.arange(g.count), active.argmax(axis=1)] // _LINE * _LINE
        offsets = np.where(active, places - first[:, None], 0)
        return [self._of(offsets[row], active[row]) for row in range(g.count)]

    def _of(self, offsets: Array, active: Bools) -> Op:
        key = offsets.tobytes() + active.tobytes()
        op = self._known.get(key)
        if op is None:
            op = self._known[key] = self.intern(self.of_pattern(offsets, active) if active.any() else self.base)
        return op


class _Shared(_Memory):
    """ld, st, atom, ldmatrix or stmatrix of shared memory."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern) -> None:
        super().__init__(instruction, context, intern)
        self.place = shared_operand(context, instruction, _address(instruction))
        self.matrices = 0
        if instruction.name in ("ldmatrix", "stmatrix"):
            self.matrices = next((int(m[1:]) for m in instruction.modifiers if m in ("x1", "x2", "x4")), 1)
        self.size = 16 if self.matrices else bytes_of(instruction.types[-1]) * instruction.vector

    def of_pattern(self, offsets: Array, active: Bools) -> Op:
        if self.matrices:  # lanes 8i to 8i + 7 have the rows of matrix i
            active = active & (np.arange(LANES) < 8 * self.matrices)
        return evolve(self.base, pipe=Pipe.SHARED, busy=float(shared_clocks(offsets, self.size, active)))


class _Load(_Memory):
    """ld of global memory, through L1."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern, l1: L1) -> None:
        super().__init__(instruction, context, intern)
        self.place = addresses(context, instruction, _address(instruction), wide=True)
        self.size, self.l1 = bytes_of(instruction.types[-1]) * instruction.vector, l1

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        places = np.broadcast_to(self.place(g), g.shape)
        hits = super().ops(g, active)
        missed = [
            self.l1.misses(group, places[row][active[row]], self.size) for row, group in enumerate(g.group_id.tolist())
        ]
        return [
            self.intern(evolve(op, loaded=count * _SECTOR / _L2_BYTES)) if count else op
            for op, count in zip(hits, missed, strict=True)
        ]

    def of_pattern(self, offsets: Array, active: Bools) -> Op:
        lines, _ = lines_and_sectors(offsets, self.size, active)
        return evolve(self.base, pipe=Pipe.LSU, busy=max(1.0, lines / _LINES))


class _Store(_Memory):
    """st, atom or red of global memory."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern) -> None:
        super().__init__(instruction, context, intern)
        self.place = addresses(context, instruction, _address(instruction), wide=True)
        self.size = bytes_of(instruction.types[-1]) * instruction.vector
        self.returns = instruction.name == "atom"

    def of_pattern(self, offsets: Array, active: Bools) -> Op:
        lines, sectors = lines_and_sectors(offsets, self.size, active)
        clocks = sectors * _SECTOR / _L2_BYTES
        op = evolve(self.base, pipe=Pipe.LSU, busy=max(1.0, lines / _LINES, clocks))
        return evolve(op, loaded=clocks) if self.returns else op


class _Copy(_Memory):
    """cp.async: lanes read global memory, or nothing, and write shared memory."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern) -> None:
        super().__init__(instruction, context, intern)
        self.size, self.read_bytes = sizes_of(instruction, context)
        self.place = addresses(context, instruction, instruction.operands[1], wide=True)

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        return super().ops(g, active & (np.broadcast_to(self.read_bytes(g), g.shape) > 0))

    def _of(self, offsets: Array, active: Bools) -> Op:
        op = super()._of(offsets, active)
        return op if op.act else self.intern(evolve(op, pipe=Pipe.LSU, busy=1.0, act=Act.COPY))  # zeros only

    def of_pattern(self, offsets: Array, active: Bools) -> Op:
        lines, sectors = lines_and_sectors(offsets, self.size, active)
        port, loaded = LANES * self.size / _WRITTEN_BYTES, sectors * _SECTOR / _L2_BYTES
        return evolve(self.base, pipe=Pipe.LSU, busy=max(1.0, lines / _LINES), shared=port, loaded=loaded, act=Act.COPY)


def _address(instruction: Instruction) -> Address:
    return next(operand for operand in instruction.operands if isinstance(operand, Address))


# ---------------------------------------------------------------- bulk copies


class _IssueOnly(Access):
    """An instruction of which only the issue counts; a bulk copy's effect comes lane by lane (`bulk_op`)."""

    def __init__(self, instruction: Instruction, intern: Intern) -> None:
        self.op = intern(Op(instruction.address))

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        return [self.op] * g.count


def bulk_op(instruction: Instruction, chunks: Chunks, mbarrier: int | None) -> Op:
    """Return a bulk copy; `mbarrier` is the address of the one that counts a load, None for a store."""
    size = chunks.size * len(chunks.place)
    jumps = int(np.count_nonzero((np.diff(chunks.offset) != chunks.size) & (chunks.inside[1:] | chunks.inside[:-1])))
    rows, inside = max(-(-size // _LINE), 1 + jumps), chunks.size * int(np.count_nonzero(chunks.inside))
    kind = "im2col" if instruction.has("im2col", "im2col_no_offs") else "tiled"
    clocks, port = rows * _ROW_CLOCKS[kind] + inside / _ROW_RATE, size / _WRITTEN_BYTES
    act = Act.STORE_BULK if mbarrier is None else Act.LOAD_BULK
    objects = () if mbarrier is None else ((mbarrier, 0),)
    loaded = 0.0 if mbarrier is None else inside / _L2_BYTES
    base = Op(instruction.address, Pipe.TMA, 1, clocks, shared=port, loaded=loaded)
    return evolve(base, act=act, count=size, objects=objects)


# ---------------------------------------------------------------- barriers


class _Barrier(Access):
    """An instruction of a barrier: bar.sync or bar.arrive."""

    def __init__(self, instruction: Instruction, context: Context, intern: Intern) -> None:
        operands = list(instruction.operands)
        if instruction.has("red"):
            operands = operands[1:-1]
        self.at, self.intern = instruction.address, intern
        self.act = Act.PASS if instruction.has("arrive") else Act.MEET
        self.number = source(context, instruction, operands[0], "u32")
        self.threads = source(context, instruction, operands[1], "u32") if len(operands) > 1 else None

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        numbers = np.broadcast_to(self.number(g), g.shape)
        threads = None if self.threads is None else np.broadcast_to(self.threads(g), g.shape)
        lanes = active.argmax(axis=1)
        ops = []
        for row, lane in enumerate(lanes.tolist()):
            count = ALL if threads is None else int(threads[row, lane]) // LANES
            barrier = ((int(numbers[row, lane]), 0),)
            op = Op(self.at, act=self.act, count=count, objects=barrier) if active[row, lane] else Op(self.at)
            ops.append(self.intern(op))
        return ops


def _of_mbarrier(instruction: Instruction, context: Context, intern: Intern) -> Access:
    """Return an instruction of mbarriers; those without effect on phases issue only."""
    operands = instruction.operands
    if instruction.has("try_wait", "test_wait"):
        return _MbarrierAccess(instruction, context, intern, Act.AWAIT_PHASE, operands[1], operands[2])
    if instruction.name == "cp":
        return _MbarrierAccess(instruction, context, intern, Act.COPIES_ARRIVE, operands[0], None)
    if instruction.has("init"):
        return _MbarrierAccess(instruction, context, intern, Act.INIT, *operands[:2])
    if instruction.has("arrive", "arrive_drop", "expect_tx", "complete_tx"):
        where = 1 if len(operands) > 1 and not isinstance(operands[0], Address) else 0
        amount = operands[where + 1] if len(operands) > where + 1 else None
        return _MbarrierAccess(instruction, context, intern, Act.ARRIVE, operands[where], amount)
    return _IssueOnly(instruction, intern)


class _MbarrierAccess(Access):
    """An instruction that names mbarriers, with an amount: a parity, a count of arrivals, or bytes."""

    def __init__(
        self,
        instruction: Instruction,
        context: Context,
        intern: Intern,
        act: Act,
        where: Operand,
        amount: Operand | None,
    ) -> None:
        self.instruction, self.intern, self.act = instruction, intern, act
        self.place = shared_operand(context, instruction, where)
        wide = act is Act.AWAIT_PHASE and not instruction.has("parity")
        kind = "b64" if wide else "u32"
        self.amount = None if amount is None else source(context, instruction, amount, kind)
        self.shift = 32 if wide else 0  # a state has the phase in its upper half (`mbarrier_steps`)

    def ops(self, g: WarpGroup, active: Bools) -> Sequence[Op]:
        places = np.broadcast_to(self.place(g), g.shape)
        amounts = np.broadcast_to(1 if self.amount is None else self.amount(g), g.shape)
        return [self.intern(self._op(places[row], amounts[row], active[row])) for row in range(g.count)]

    def _op(self, places: Array, amounts: Array, active: Bools) -> Op:
        at, objects, expected = self.instruction.address, [], 0
        for place in np.unique(places[active]).tolist():
            lanes = active & (places == place)
            arrivals = int(lanes.sum())
            amount = int(amounts[lanes][0]) >> self.shift
            if self.act is Act.AWAIT_PHASE:
                objects.append((place, amount & 1))
            elif self.instruction.has("expect_tx", "complete_tx"):
                expected += amount * arrivals * (-1 if self.instruction.has("complete_tx") else 1)
                objects.append((place, arrivals if self.instruction.has("arrive") else 0))
            else:
                objects.append((place, amount if self.act is Act.INIT else amount * arrivals))
        act = self.act if objects else Act.NONE
        return Op(at, act=act, count=expected, objects=tuple(objects))
