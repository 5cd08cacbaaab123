"""Record the instructions that warps execute in an outlined run, and the addresses they use, for the model of an SM."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import attrs

from convgen.backends.analysis import Line
from convgen.backends.nvidia.costs import line_of
from convgen.backends.nvidia.sim.control import guard_of
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step
from convgen.backends.nvidia.sim.tensor_boxes import Chunks
from convgen.backends.nvidia.timing.accesses import L1, Access, access_of, bulk_op
from convgen.backends.nvidia.timing.ops import Act, Op, static_op
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import define


@define(eq=False)
class Trace:
    """The instructions of each warp (`recording.Recorder`); warps are identified by workgroup and number.

    Polls of an mbarrier count once: the last one, which succeeds.
    """

    wanted: frozenset[int]  #: recorded workgroups
    target: str  #: key of `FACTS`
    l1: L1
    waves: dict[tuple[int, int], list[Op]] = attrs.Factory(dict)
    instructions: dict[int, Instruction] = attrs.Factory(dict)  #: by address
    entry: int = 0  #: address of the kernel's first instruction
    flop: int = 0
    _context: Context | None = None
    _forms: dict[Instruction, Access | Op] = attrs.Factory(dict)
    _interned: dict[tuple[Any, ...], Op] = attrs.Factory(dict)
    _warps: Array | None = None  #: warp numbers of the group that `_lists` belongs to
    _lists: Sequence[list[Op] | deque[Op]] = ()
    _flops: dict[Instruction, int] = attrs.Factory(dict)

    # ------------------------------------------------------------ a recorder

    def begin(self, context: Context) -> None:
        self._context, self.entry = context, context.kernel.code[0].address

    def execute(self, g: WarpGroup, step: Step) -> None:
        if g.wave is not self._warps:
            self._warps, self._lists = g.wave, self._lists_of(g)
        form = self._forms.get(step.instruction)
        if form is None:
            form = self._form(step.instruction)
        if isinstance(form, Op):
            self.flop += self._flops[step.instruction] * g.count
            for mine in self._lists:
                mine.append(form)
            return
        active = guard_of(g, step)
        for mine, op in zip(self._lists, form.ops(g, active), strict=True):
            if op.act is Act.AWAIT_PHASE:
                _drop_poll(mine, op)
            mine.append(op)

    def copy(self, g: WarpGroup, step: Step, chunks: Chunks, mbarrier: int | None) -> None:
        (mine,) = self._lists_of(g)
        mine.append(self._intern(bulk_op(step.instruction, chunks, mbarrier)))

    # ------------------------------------------------------------ a trace

    @property
    def takes_tickets(self) -> bool:
        """Return whether the last workgroup to arrive continues; sums of slices have a launch of their own."""
        return False

    @property
    def share_of_last(self) -> float:
        """Return the share of warps that arrive last."""
        return 0.0

    @property
    def element(self) -> str:
        """Return the input type of most matrix instructions; empty if there are none."""
        times = Counter(op.at for ops in self.waves.values() for op in ops if op.is_matrix)
        most = max(times, key=lambda at: times[at], default=None)
        return "" if most is None else self.instructions[most].types[1]

    def line(self, at: int) -> Line:
        """Return the instruction at an address."""
        return line_of(self.instructions[at], at - self.entry, self.target)

    def learn(self, other: Trace) -> None:
        """Take instructions that only another run has executed."""
        self.instructions.update(other.instructions)

    # ------------------------------------------------------------ ops

    def _form(self, instruction: Instruction) -> Access | Op:
        assert self._context is not None
        self.instructions[instruction.address] = instruction
        form: Access | Op | None = access_of(instruction, self._context, self._intern, self.l1)
        if form is None:
            form = self._intern(static_op(instruction, self.target, self._context.kernel))
        self._forms[instruction] = form
        self._flops[instruction] = line_of(instruction, 0, self.target).flop
        return form

    def _intern(self, op: Op) -> Op:
        """Return the object that stands for all equal instructions."""
        key = op.at, op.pipe, op.busy, op.loaded, op.act, op.count, op.objects
        return self._interned.setdefault(key, op)

    def _lists_of(self, g: WarpGroup) -> list[list[Op] | deque[Op]]:
        warps = zip(g.group_id.tolist(), g.wave.tolist(), strict=True)
        return [self.waves.setdefault(each, []) if each[0] in self.wanted else deque(maxlen=0) for each in warps]


def _drop_poll(ops: list[Op] | deque[Op], poll: Op) -> None:
    """Drop the poll before this one, if only branches stand between the two: it failed."""
    for number in range(len(ops) - 1, -1, -1):
        op = ops[number]
        if op.act is Act.AWAIT_PHASE and op.at == poll.at and isinstance(ops, list):
            del ops[number:]
            return
        if not op.is_branch:
            return
