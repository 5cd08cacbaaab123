"""Record the instructions that waves execute on the simulator, with their lanes and LDS addresses, for the CU model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from convgen.backends.amdgpu.costs import element, flop, line_of
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.watching import Halt
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.amdgpu.timing.lds_places import Access, access_of
from convgen.backends.amdgpu.timing.ops import Op, op_of
from convgen.backends.analysis import Line
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import define

_MEMORY = ("vmem_load", "vmem_store", "lds_dma", "atomic")
_TAKES_TICKET = "buffer_atomic_inc"  #: returns the old value: how many waves arrived before


@define(eq=False)
class Trace:
    """The instructions of each wave, recorded during a launch: called before each instruction (`Scrutiny.watch`).

    Waves are identified by workgroup and number. Equal instructions (address, number of lanes, LDS clocks) are one `Op`
    object.

    With `last`, waves get the last ticket, as if they were the last to arrive.
    """

    context: Context
    wanted: frozenset[int]  #: traced workgroups
    entry: int  #: address of the kernel
    last: bool = False
    tickets: dict[int, int] = attrs.Factory(dict)  #: address of an instruction that takes tickets -> their number
    waves: dict[tuple[int, int], list[Op]] = attrs.Factory(dict)
    instructions: dict[int, Instruction] = attrs.Factory(dict)  #: by address
    flop: int = 0
    _ops: dict[tuple[int, float, int], Op] = attrs.Factory(dict)
    _accesses: dict[int, Access | None] = attrs.Factory(dict)
    _places: dict[tuple[int, bytes], Sequence[float]] = attrs.Factory(dict)
    _group_waves: Array | None = None  #: wave numbers of the group that `_lists` belongs to
    _lists: Sequence[list[Op] | deque[Op]] = ()
    #: workgroup and wave -> register of its ticket, and the last ticket
    _last_tickets: dict[tuple[int, int], tuple[int, Array]] = attrs.Factory(dict)

    def __call__(self, halt: Halt) -> None:
        group, step = halt.group, halt.step
        if group.wave is not self._group_waves:
            self._group_waves, self._lists = group.wave, self._lists_of(group)
        if self._last_tickets:
            self._give_last_ticket(group, step)
        if step.kind == "atomic" and step.writes and step.instruction.name == _TAKES_TICKET:
            self._note_tickets(group, step)
        if step.kind == "mfma":
            self.flop += flop(step.instruction, self.context.arch.name) * group.count
        ops: Sequence[Op]
        if step.instruction.name.startswith("ds_"):
            ops = [self._op(step, lds=clocks) for clocks in self._lds(group, step)]
        elif step.kind in _MEMORY and not group.exec_full:
            ops = [self._op(step, lanes=lanes) for lanes in group.exec.sum(axis=1).tolist()]
        else:
            ops = [self._op(step)] * group.count
        for mine, op in zip(self._lists, ops, strict=True):
            mine.append(op)

    @property
    def share_of_last(self) -> float:
        """Return the share of waves that take the last ticket of their counter.

        If these take tickets of a further counter, it is the mean over the counters, weighted by their tickets.
        """
        done, remaining = 0.0, 1.0
        for count in self.tickets.values():
            remaining /= count
            done += count * remaining
        return done / max(1, sum(self.tickets.values()))

    def _note_tickets(self, group: WaveGroup, step: Step) -> None:
        """Note the number of tickets: its register holds the largest count until the old value overwrites that."""
        register = step.writes.bit_length() - 1
        most = int(group.v[register][:, 0].max()) + 1
        self.tickets[step.instruction.address] = max(most, self.tickets.get(step.instruction.address, 1))
        if self.last:
            for who, limit in zip(_who(group), group.v[register].copy(), strict=True):
                self._last_tickets[who] = register, limit

    def _give_last_ticket(self, group: WaveGroup, step: Step) -> None:
        """Before an instruction reads its ticket, replace that by the last one."""
        for n, who in enumerate(_who(group)):
            register, limit = self._last_tickets.get(who, (0, None))
            if limit is not None and step.reads >> register & 1:
                group.v[register][n] = limit
                del self._last_tickets[who]

    @property
    def takes_tickets(self) -> bool:
        """Return whether workgroups count their arrivals, and the last one continues."""
        return bool(self.tickets)

    @property
    def element(self) -> str:
        """Return the input type of most matrix instructions; empty if there are none."""
        times = Counter(op.at for ops in self.waves.values() for op in ops if op.is_matrix)
        most = max(times, key=lambda at: times[at], default=None)
        return "" if most is None else element(self.instructions[most], self.context.arch.name)

    def line(self, at: int) -> Line:
        """Return the instruction at an address."""
        return line_of(self.instructions[at], at - self.entry, self.context.arch.name)

    def learn(self, other: Trace) -> None:
        """Take instructions that only another run has executed."""
        self.instructions.update(other.instructions)

    def _lists_of(self, group: WaveGroup) -> list[list[Op] | deque[Op]]:
        return [self.waves.setdefault(each, []) if each[0] in self.wanted else deque(maxlen=0) for each in _who(group)]

    def _op(self, step: Step, lds: float = 0.0, lanes: int = WAVE) -> Op:
        key = step.instruction.address, lds, lanes
        op = self._ops.get(key)
        if op is None:
            self.instructions[step.instruction.address] = step.instruction
            op = self._ops[key] = op_of(
                step.instruction, self.context.arch.name, (step.reads, step.writes), lds or None, lanes
            )
        return op

    def _lds(self, group: WaveGroup, step: Step) -> Sequence[float]:
        """Return the LDS clocks of each wave; 0 if the instruction alone determines them.

        Conflicts are cached: they do not change if all addresses move by one offset.
        """
        at = step.instruction.address
        if at not in self._accesses:
            self._accesses[at] = access_of(self.context, step.instruction)
        access = self._accesses[at]
        if access is None:
            return [0.0] * group.count
        base = group.v[access.register].astype(np.int64)
        pattern = at, (base - base[:, :1]).tobytes() + group.exec.tobytes()
        if pattern not in self._places:
            self._places[pattern] = access.clocks(base, group.exec).tolist()
        return self._places[pattern]


def _who(group: WaveGroup) -> Iterator[tuple[int, int]]:
    """Yield the workgroup and number of each wave."""
    return zip(group.group_id.tolist(), group.wave.tolist(), strict=True)
