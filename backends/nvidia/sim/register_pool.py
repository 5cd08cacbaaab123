"""setmaxnreg: warps give registers back to their workgroup's pool and take some from it (PTX ISA, setmaxnreg).

`.maxnreg` gives the registers of each thread at the kernel's entry. Without it they are the greatest multiple of 8, at
most 256, with which as many workgroups as `.minnctapersm` asks for, of as many threads as `.reqntid` or `.maxntid`
allows, fit in a multiprocessor. Without these directives setmaxnreg has no effect (ptxas, C7508).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.nvidia.sim.control import by_warps
from convgen.backends.nvidia.sim.operands import wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Literal
from convgen.backends.nvidia.sim.state import LANES, REGISTERS, WARPGROUP, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, wants_target
from convgen.backends.sim.wave_arrays import Array, Bools

KIND = "setmaxnreg"
_FILE = 1 << 16  #: registers of a multiprocessor
_LEAST, _MOST, _GRANULE = 24, 256, 8  #: registers of a thread


def at_entry(limits: Mapping[str, tuple[int, int, int]]) -> int:
    """Return the registers of a thread at the entry of a kernel with some directives; 0 if they leave it open."""
    if "maxnreg" in limits:
        return limits["maxnreg"][0]
    x, y, z = limits.get("reqntid") or limits.get("maxntid") or (0, 0, 0)
    threads = -(-x * y * z // LANES) * LANES * limits.get("minnctapersm", (1, 1, 1))[0]
    return min(_FILE // threads // _GRANULE * _GRANULE, _MOST) if threads else 0


class RegisterPool:
    """The registers of a thread by workgroup's slot and warp, and the free registers of each workgroup."""

    def __init__(self, slots: int, waves: int, entry: int) -> None:
        self.registers: Array = np.full((slots, waves), entry, np.int64)
        self.free: Array = np.zeros(slots, np.int64)
        self.changes: Array = np.zeros((slots, waves), np.int64)  #: setmaxnreg instructions of each warp

    def fits(self, g: WarpGroup, count: int) -> Bools:
        """Return by row whether a warp can have `count` registers a thread now."""
        return np.asarray(LANES * (count - self.registers[g.slot, g.wave]) <= self.free[g.slot])

    def change(self, g: WarpGroup, count: int) -> Bools:
        """Give each warp `count` registers a thread, one warp after the other; return by row whether they sufficed."""
        changed = np.zeros(g.count, np.bool_)
        for row, (slot, warp) in enumerate(zip(g.slot.tolist(), g.wave.tolist(), strict=True)):
            more = LANES * (count - int(self.registers[slot, warp]))
            if more <= self.free[slot]:
                self.free[slot] -= more
                self.registers[slot, warp] = count
                self.changes[slot, warp] += 1
                changed[row] = True
        return changed

    def check_end(self, g: WarpGroup, instruction: Instruction) -> None:
        """Report warpgroups that have ended, if their warps have executed different numbers of setmaxnreg."""
        if not self.changes.any():
            return
        for row, (slot, warp) in enumerate(zip(g.slot.tolist(), g.wave.tolist(), strict=True)):
            first = warp // WARPGROUP * WARPGROUP
            warps = slice(first, first + WARPGROUP)
            alive = g.env.alive[slot * g.env.waves : (slot + 1) * g.env.waves][warps]
            if not alive.any() and np.ptp(self.changes[slot, warps]):
                finding = "not all warps of the warpgroup have executed each setmaxnreg"
                g.env.reporter.add(KIND, finding, instruction, g, row)


def compile_register_pool(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of setmaxnreg; None for other instructions."""
    if instruction.name != "setmaxnreg":
        return None
    wants_target(instruction, context, "sm_90a")
    (operand,) = instruction.operands
    count = operand.bits if isinstance(operand, Literal) else 0
    if not _LEAST <= count <= _MOST or count % _GRANULE:
        raise wrong(instruction, f"{count} registers", f"a multiple of {_GRANULE} from {_LEAST} to {_MOST}")
    increases = instruction.has("inc")
    has_effect = bool(at_entry(context.kernel.limits))
    step = Step(instruction, "other", lambda g: None)

    def run(g: WarpGroup) -> None:
        if not has_effect:
            finding = "has no effect in a kernel without .maxntid, .reqntid or .maxnreg"
            g.env.reporter.add(KIND, finding, step.instruction, g)
            return
        pool = g.env.register_pool
        present = pool.registers[g.slot, g.wave]
        bad = present > count if increases else present < count
        if bad.any():
            row = int(bad.argmax())
            finding = f"sets {count} registers a thread where the warp has {int(present[row])}"
            g.env.reporter.add(KIND, finding, step.instruction, g, row)
        done = pool.change(g, count)
        if not done.all():
            g.await_rows(done, REGISTERS, count, resumes=True)

    return by_warps(step, run)
