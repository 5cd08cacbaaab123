"""Outstanding memory operations: when they complete, and which registers are in flight (AMDGPUUsage, "Memory Model").

vmcnt counts loads, stores and LDS DMA, which complete in order. lgkmcnt counts LDS operations, which complete in order
among themselves, and scalar loads, which return in any order. Flat operations count in both and return out of order if
some lanes address LDS, so only a wait for zero completes them for sure (CDNA3 ISA 10.2.1, Ordering, and 10.2.2; LLVM's
SIInsertWaitcnts forces zero after them). A flat operation without a lane in LDS completes with vmcnt, in order (LLVM
waits this way for addresses that it knows to be global or private). An operation completes at the latest moment that
the waits allow. More operations may be outstanding than a counter's field can name: no document states that a full
counter holds back the next operation, so a full counter orders nothing in this simulator. A field at its largest value
is a wait like any other (CDNA3 ISA 4.4: "at, or below, specified values"), on which LLVM relies.
"""

from __future__ import annotations

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step

VM_MAX, LGKM_MAX = 63, 15  #: largest values of the fields


def _land_later(g: WaveGroup, pending: Pending) -> None:
    """Do nothing: lgkmcnt no longer counts a flat operation, but its data arrives with vmcnt."""


def _refresh(g: WaveGroup) -> None:
    inflight = 0
    for queue in (g.vm, g.lgkm):
        for pending in queue:
            inflight |= pending.writes
    g.inflight = inflight


def _surely_done(queue: list[Pending], allowed: int, ordered: tuple[str, ...]) -> tuple[list[Pending], list[Pending]]:
    """Split a counter's queue into operations that a wait for `allowed` surely completes, and the rest.

    Operations of the `ordered` kinds complete oldest first. All others complete at any time, so that a count above zero
    may consist of them alone.
    """
    excess = len(queue) - allowed
    if excess <= 0:
        return [], queue
    if allowed == 0:
        return queue, []
    sure = excess - sum(pending.kind not in ordered for pending in queue)
    done: list[Pending] = []
    kept: list[Pending] = []
    for pending in queue:
        finished = pending.kind in ordered and len(done) < sure
        (done if finished else kept).append(pending)
    return done, kept


def wait_vm(g: WaveGroup, allowed: int) -> None:
    """Complete the operations that vmcnt(`allowed`) surely waits for: all but flat ones in LDS return in order."""
    done, g.vm = _surely_done(g.vm, allowed, ("vm", "flat_memory"))
    _land_all(g, done, g.lgkm)


def wait_lgkm(g: WaveGroup, allowed: int) -> None:
    """Complete the operations that lgkmcnt(`allowed`) surely waits for: only LDS operations return in order."""
    done, g.lgkm = _surely_done(g.lgkm, allowed, ("ds",))
    _land_all(g, done, g.vm)


def _land_all(g: WaveGroup, done: list[Pending], counted_elsewhere: list[Pending]) -> None:
    """Complete operations, except flat ones that the other counter still counts."""
    if not done:
        return
    for pending in done:
        if pending.kind != "flat" or pending not in counted_elsewhere:
            pending.land(g, pending)
    _refresh(g)


def issue(g: WaveGroup, pending: Pending) -> None:
    """Put an operation into its queues; without strictness it completes at once."""
    if not g.env.strict:
        pending.land(g, pending)
        return
    if pending.kind in ("vm", "flat", "flat_memory"):
        g.vm.append(pending)
    if pending.kind == "flat_memory":
        g.lgkm.append(Pending(pending.step, "flat_memory", 0, (), _land_later))
    elif pending.kind != "vm":
        g.lgkm.append(pending)
    g.inflight |= pending.writes


def allowed(instruction: Instruction) -> tuple[int, int]:
    """Return the counts of s_waitcnt: vmcnt (bits 15:14 and 3:0) and lgkmcnt (bits 11:8).

    expcnt guards nothing on CDNA.
    """
    field = instruction.words[0] & 0xFFFF
    return (field & 0xF) | (field >> 10 & 0x30), field >> 8 & 0xF


def compile_waitcnt(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of s_waitcnt; None for other mnemonics."""
    if instruction.name != "s_waitcnt":
        return None
    vm, lgkm = allowed(instruction)

    def run(g: WaveGroup) -> None:
        wait_vm(g, vm)
        wait_lgkm(g, lgkm)

    return Step(instruction, "waitcnt", run, control="wait")
