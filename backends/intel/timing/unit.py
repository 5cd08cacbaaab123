"""An event model of one EU of an Xe core: threads issue in order, pipes serve instructions first come, first served.

Each clock one instruction issues, of any thread that can go on: the distances and tokens it waits for are done, and its
pipe is free. Messages return after their latency, in any order. An EU has its share of the core's bandwidth to local
and global memory; the threads of a workgroup are spread evenly over the EUs, so the model's barriers wait for the
threads of one EU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import attrs

from convgen.backends.intel.sim.decode import ALL_TOKENS
from convgen.backends.intel.timing.ops import IN_ORDER, Op
from convgen.ir.record import define, frozen

_PAYLOAD = 8.0  #: clocks in which a message or matrix instruction reads its sources (assumed: a register a clock)
BARRIER = 30.0  #: clocks from the last signal until threads go on (IGC's latency table)


@define(eq=False)
class Thread:
    """One thread with its times, in clocks, by index of its instruction."""

    group: int
    ops: Sequence[Op]
    free_at: float = 0.0  #: when it is free to issue the next instruction
    waited: list[float] = attrs.Factory(list)  #: clocks waited before each instruction
    #: in-order pipe -> completion of each of the thread's instructions
    done: dict[str, list[float]] = attrs.Factory(dict)
    #: token -> when its sources are read, and when it is done
    tokens: dict[int, tuple[float, float]] = attrs.Factory(dict)
    matrix_tokens: set[int] = attrs.Factory(set)  #: tokens whose last setter is a matrix instruction
    passed: int = 0  #: barriers passed

    def stalls(self) -> Iterator[float]:
        """Return the clocks that the thread waits before each instruction."""
        return iter(self.waited)


@frozen(eq=False)
class ModelRun:
    """The result of a run; `waves` are its threads (the name that AMD's model shares)."""

    end: float  #: clocks until the last thread has ended
    waves: Sequence[Thread]


def run(workgroups: Sequence[Sequence[Sequence[Op]]]) -> ModelRun:
    """Run the threads of some workgroups on one EU."""
    return _Run(workgroups).result()


class _Run:
    def __init__(self, workgroups: Sequence[Sequence[Sequence[Op]]]) -> None:
        self.threads = [Thread(number, ops) for number, group in enumerate(workgroups) for ops in group]
        self.members = [len(group) for group in workgroups]
        self.signalled = [0] * len(workgroups)
        self.opened_at = [0.0] * len(workgroups)  #: when the last barrier let threads go on
        self.at_barrier: list[list[tuple[int, Thread]]] = [[] for _ in workgroups]  #: threads that wait at a barrier
        self.barriers_opened = [0] * len(workgroups)  #: by workgroup
        self.free: dict[str, float] = {}  #: when each pipe takes the next instruction
        self.queue = [(thread.free_at, n, thread) for n, thread in enumerate(self.threads)]
        self.issues = 0.0  #: when the EU issues the next instruction
        self.end = 0.0

    def result(self) -> ModelRun:
        """Run until no thread has an instruction left."""
        while self.queue:
            now, number, thread = heappop(self.queue)
            op = thread.ops[len(thread.waited)]
            start = max(now, self.issues, self.free.get(op.pipe, 0.0) if op.pipe else 0.0, _allowed(thread, op))
            if start > now:
                heappush(self.queue, (start, number, thread))
            elif op.barrier == "wait" and thread.passed == self.barriers_opened[thread.group]:
                self.at_barrier[thread.group].append((number, thread))
            else:
                self._issue(number, thread, op, now)
        return ModelRun(self.end, self.threads)

    def _issue(self, number: int, thread: Thread, op: Op, now: float) -> None:
        start = now
        if op.barrier == "wait":
            start = max(now, self.opened_at[thread.group])
            thread.passed += 1
        thread.waited.append(start - thread.free_at)
        self.issues = max(self.issues, now + 1)
        complete_at = start + op.busy - 1 + op.latency
        if op.pipe:
            self.free[op.pipe] = now + op.busy
        if op.pipe and op.pipe in IN_ORDER:
            thread.done.setdefault(op.pipe, []).append(complete_at)
        if op.sets is not None:
            thread.tokens[op.sets] = (now + max(_PAYLOAD, op.busy), complete_at)
            (thread.matrix_tokens.add if op.pipe == "matrix" else thread.matrix_tokens.discard)(op.sets)
        thread.free_at = start + op.issue
        self.end = max(self.end, complete_at, thread.free_at)
        if op.barrier == "signal":
            self._signal(thread.group, complete_at)
        if len(thread.waited) < len(thread.ops):
            heappush(self.queue, (thread.free_at, number, thread))

    def _signal(self, group: int, complete_at: float) -> None:
        """Count a signal; the last one of a workgroup opens its barrier."""
        self.signalled[group] += 1
        if self.signalled[group] < self.members[group]:
            return
        self.signalled[group], self.opened_at[group] = 0, complete_at + BARRIER
        waiting, self.at_barrier[group] = self.at_barrier[group], []
        self.barriers_opened[group] += 1
        for number, thread in waiting:
            heappush(self.queue, (self.opened_at[group], number, thread))


def _allowed(thread: Thread, op: Op) -> float:
    """Return when everything is done that an instruction waits for."""
    times = [0.0]
    if op.distance is not None:
        pipe, count = op.distance
        for letter in IN_ORDER if pipe == "A" else pipe:
            completions = thread.done.get(letter, [])
            times.append(completions[-count] if len(completions) >= count else 0.0)
    for token, only_read in op.waits:
        some = thread.tokens.values() if token == ALL_TOKENS else [thread.tokens.get(token, (0.0, 0.0))]
        times += [read if only_read else complete for read, complete in some]
    chained = op.pipe == "matrix" and op.sets in thread.matrix_tokens
    if op.sets is not None and not chained:
        times.append(thread.tokens.get(op.sets, (0.0, 0.0))[1])
    return max(times)
