"""The engine of warps: splitting at divergent branches, and barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.sim.control import guard_of
from convgen.backends.nvidia.sim.environment import BARRIERS, Environment
from convgen.backends.nvidia.sim.ptx_program import Program
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.recording import Recorder
from convgen.backends.nvidia.sim.state import CLUSTER, LANES, PRODUCTS, REGISTERS, WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.nvidia.sim.warpgroup_products import check_access
from convgen.backends.sim.engine import Engine
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.wave_arrays import Array

_Key = tuple[int, int, int]  #: a barrier: id of its environment, slot of its workgroup, number


class _IndicesFrom(frozenset[int]):
    """All indices from the lowest of a set on; a group that reaches one stops for the groups at or before it."""

    def __init__(self, indices: frozenset[int]) -> None:
        self.lowest = min(indices)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index >= self.lowest


class WarpEngine(Engine[WarpGroup, Step]):
    """Executes one batch of workgroups to their end."""

    def __init__(
        self,
        env: Environment,
        program: Program,
        limit: int,
        begin_more: Callable[[], WarpGroup | None],
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(env, program, limit)
        self._recorder = recorder
        if recorder is not None:
            recorder.begin(program.context)
        self._more = begin_more
        self._program = program
        self._blocked: list[WarpGroup] = []  #: groups that wait while others poll

    def _advance(self, g: WarpGroup, meet: frozenset[int]) -> list[WarpGroup]:
        """Run a group until it reaches, or passes, the lowest instruction of other groups: they may merge there."""
        return super()._advance(g, _IndicesFrom(meet) if meet else meet)

    def _prepare(self, g: WarpGroup, step: Step) -> None:
        """Note the registers that an instruction accesses; report those of products of warpgroups in flight."""
        if self._recorder is not None:
            self._recorder.execute(g, step)
            return
        if not self._program.has_agents or step.instruction.name == "wgmma":
            return
        registers = self._program.accessed(self._executing)
        if registers & g.in_flight and guard_of(g, step).any():
            check_access(g, step.instruction, registers)
        g.touched |= registers

    def _has_polled(self, g: WarpGroup) -> bool:
        polled, g.polled = g.polled, False
        return polled

    def _begin_more_or_stop(self, group: WarpGroup) -> WarpGroup:
        """Return workgroups that have not begun; report a wait at an mbarrier as such if all have begun."""
        fresh = self._begin_more()
        if fresh is not None:
            self._states.clear()
            return fresh
        blocked = [g for g in self._blocked if (g.waiting_at >= BARRIERS).all()]
        for g in blocked:
            self._report_blocked(g, int(g.waiting_at[0]))
        if group.env.mbarriers.deadlock(group) or blocked:
            raise LaunchStopped
        return super()._begin_more_or_stop(group)

    def _begin_more(self) -> WarpGroup | None:
        return self._more()

    def _state(self, groups: Sequence[WarpGroup]) -> object:
        """Return program counters and registers in use of all groups, and shared memory, as a hashable key."""
        local = {id(g.env): hash(g.env.local.data.tobytes()) for g in groups}
        parts = []
        for g in groups:
            values = (g.r[number] for number in self._program.live(g.pc))
            registers = tuple(hash(np.where(g.mask, value, 0).tobytes()) for value in values if value is not None)
            parts.append((g.pc, g.thread.tobytes(), g.mask.tobytes(), registers))
        return tuple(parts), tuple(local.values())

    @staticmethod
    def _split(g: WarpGroup, targets: Array) -> list[WarpGroup]:
        """Return the parts of a group by where its lanes go on; a warp may be in several of them.

        `targets` [rows, lanes]: twice the index of the next instruction, plus one if the lane waits there; negative for
        lanes that are absent or end (`control`).
        """
        g.ready()
        parts = []
        for target in np.unique(targets).tolist():
            if target < 0:
                continue
            mask = targets == target
            part = g.part(mask, target >> 1)
            part.blocked = bool(target & 1)
            if not part.blocked:
                part.awaiting = None
            parts.append(part)
        return parts

    # -- barriers -----------------------------------------------------------------------------------------------------

    def _release(self, waiting: list[WarpGroup]) -> tuple[list[WarpGroup], list[WarpGroup]]:
        """Let the warps pass whose barriers are complete; report a deadlock if there are none."""
        released, blocked = self._pass(waiting)
        if not released:
            self._deadlock(waiting[0])
        return released, blocked

    def _release_some(
        self, waiting: list[WarpGroup], live: Sequence[WarpGroup]
    ) -> tuple[list[WarpGroup], list[WarpGroup]]:
        released, self._blocked = self._pass(waiting)
        return released, self._blocked

    @staticmethod
    def _needed(env: Environment, slot: int, barrier: int) -> tuple[int, int]:
        """Return how many threads have arrived at a barrier, and how many it takes."""
        expected = int(env.expected[slot, barrier])
        if expected < 0:  # without a number, threads that have ended do not count
            alive = env.alive[slot * env.waves : (slot + 1) * env.waves]
            return int(env.threads[slot, barrier]), int(alive.sum())
        return env.arrivals(slot, barrier), expected

    def _pass(self, waiting: list[WarpGroup]) -> tuple[list[WarpGroup], list[WarpGroup]]:
        """Return the groups whose barriers are complete, and the rest."""
        complete = self._complete(waiting)
        released: list[WarpGroup] = []
        blocked: list[WarpGroup] = []
        for g in waiting:
            keys = [
                (id(g.env), slot, barrier) for slot, barrier in zip(g.slot.tolist(), g.waiting_at.tolist(), strict=True)
            ]
            free = np.array([key in complete for key in keys])
            free |= (g.waiting_at == PRODUCTS) & g.env.products.complete(g, g.needed)
            free |= (g.waiting_at == CLUSTER) & g.env.cluster_barriers.ended(g)
            free |= (g.waiting_at == REGISTERS) & g.env.register_pool.fits(g, g.needed)
            if not free.all():
                blocked.append(g.select(np.flatnonzero(~free)) if free.any() else g)
            if not free.any():
                continue
            part = g if free.all() else g.select(np.flatnonzero(free))
            part.blocked = False
            if part.awaiting is not None:
                self._deliver(part, [complete[key] for key in keys if key in complete])
            part.waiting_at = np.full(part.count, -1)
            self._join(released, part)
        return released, blocked

    def _complete(self, waiting: Sequence[WarpGroup]) -> Mapping[_Key, Array]:
        """Return the barriers at which enough threads have arrived, with the flags of bar.red; reset them."""
        warps: dict[_Key, tuple[Environment, set[int]]] = {}
        for g in waiting:
            for slot, barrier, warp in zip(g.slot.tolist(), g.waiting_at.tolist(), g.wave.tolist(), strict=True):
                if barrier >= BARRIERS:
                    continue
                warps.setdefault((id(g.env), slot, barrier), (g.env, set()))[1].add(warp)
        complete: dict[_Key, Array] = {}
        for key, (env, arrivals) in warps.items():
            _, slot, barrier = key
            arrived, needed = self._needed(env, slot, barrier)
            if arrived < needed:
                continue
            if arrived > needed:
                g = next(g for g in waiting if g.env is env and ((g.slot == slot) & (g.waiting_at == barrier)).any())
                row = int(((g.slot == slot) & (g.waiting_at == barrier)).argmax())
                finding = f"{arrived} threads have arrived at barrier {barrier}, which takes {needed}"
                self.reporter.add("barrier", finding, self._behind(g), g, row)
            env.local.meet(slot, np.array(sorted(arrivals)), env.passed_on.pop((slot, barrier), []))
            env.epoch[slot] += np.uint32(1)
            env.arrived[slot, barrier] = env.threads[slot, barrier] = env.expected[slot, barrier] = 0
            env.arriving[slot, barrier] = False
            complete[key] = np.concatenate(env.reduction.pop((slot, barrier), [np.zeros(0, np.bool_)]))
        return complete

    @staticmethod
    def _deliver(g: WarpGroup, flags: Sequence[Array]) -> None:
        """Write the results of bar.red."""
        assert g.awaiting is not None
        write, operation = g.awaiting
        combined = [{"popc": f.sum(), "and": f.all(), "or": f.any()}[operation] for f in flags]
        kind = np.uint32 if operation == "popc" else np.bool_
        write(g, np.repeat(np.array(combined).astype(kind)[:, None], LANES, axis=1), None)
        g.awaiting = None

    def _behind(self, g: WarpGroup) -> Instruction | None:
        """Return the barrier behind which a group stands."""
        return self._program.instructions[g.pc - 1] if g.pc else None

    def _deadlock(self, g: WarpGroup) -> None:
        slot, barrier = int(g.slot[0]), int(g.waiting_at[0])
        if barrier >= BARRIERS:
            self._report_blocked(g, barrier)
            raise LaunchStopped
        arrived, needed = self._needed(g.env, slot, barrier)
        message = f"waits for ever: {arrived} threads of {needed} have arrived at barrier {barrier}, and no other can"
        self.reporter.add("barrier", message, self._behind(g), g)
        raise LaunchStopped

    def _report_blocked(self, g: WarpGroup, place: int) -> None:
        """Report a group that waits for ever at an instruction which it repeats."""
        kind, finding = {
            PRODUCTS: ("wgmma", "other warps of its warpgroup never execute the products that it waits for"),
            CLUSTER: ("barrier", "other threads never arrive at the cluster's barrier"),
            REGISTERS: ("setmaxnreg", "no other warp gives back the registers that it asks for"),
        }[place]
        self.reporter.add(kind, f"waits for ever: {finding}", self._program.instructions[g.pc], g)
