"""Outstanding memory operations: when they land and what they hold in flight (AMDGPUUsage, "Memory Model", s_waitcnt).

vmcnt counts loads, stores and LDS DMA, which complete in order. lgkmcnt counts LDS operations, in order among
themselves, and scalar loads, which return in any order. Flat operations count in both, and come back out of order where
LDS answers some lanes, so only a wait for zero is sure of them (CDNA3 ISA 10.2.1, Ordering, and 10.2.2; LLVM's
SIInsertWaitcnts forces zero behind them). Those of which no lane reaches LDS are done with vmcnt, in order (so LLVM
waits for what it knows to be global or private). An operation lands at the latest moment the waits allow. More may be
outstanding than a counter's field names: nothing documents that a full counter holds back the next operation until the
oldest is done, so that orders nothing here. A field at its largest value is a wait like any other (CDNA3 ISA 4.4:
"at, or below, specified values"), on which LLVM relies.
"""

from __future__ import annotations

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step

VM_MAX, LGKM_MAX = 63, 15  #: largest values of the fields


def _land(g: WaveGroup, pending: Pending) -> None:
    pending.land(g, pending)


def _nothing(g: WaveGroup, pending: Pending) -> None:
    """A flat operation has left lgkmcnt, which says nothing about its data."""


def _refresh(g: WaveGroup) -> None:
    inflight = 0
    for queue in (g.vm, g.lgkm):
        for pending in queue:
            inflight |= pending.writes
    g.inflight = inflight


def _surely_done(queue: list[Pending], allowed: int, ordered: tuple[str, ...]) -> tuple[list[Pending], list[Pending]]:
    """Split a counter's queue into what a wait for `allowed` is sure to have completed, and what may be outstanding.

    Operations of the `ordered` kinds complete oldest first; the others complete at any time, so a count that is not
    zero may be theirs alone.
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
    """Land what a wait for vmcnt(`allowed`) is sure to have completed: all but flat operations that reach LDS come
    back in order.
    """
    done, g.vm = _surely_done(g.vm, allowed, ("vm", "flat_memory"))
    _land_all(g, done, g.lgkm)


def wait_lgkm(g: WaveGroup, allowed: int) -> None:
    """Land what a wait for lgkmcnt(`allowed`) is sure to have completed: only LDS operations come back in order."""
    done, g.lgkm = _surely_done(g.lgkm, allowed, ("ds",))
    _land_all(g, done, g.vm)


def _land_all(g: WaveGroup, done: list[Pending], counted_elsewhere: list[Pending]) -> None:
    """Land operations, but for flat ones that the other counter still counts."""
    if not done:
        return
    for pending in done:
        if pending.kind != "flat" or pending not in counted_elsewhere:
            _land(g, pending)
    _refresh(g)


def issue(g: WaveGroup, pending: Pending) -> None:
    """Put an operation into its queues; without strictness it lands at once."""
    if not g.env.strict:
        _land(g, pending)
        return
    if pending.kind in ("vm", "flat", "flat_memory"):
        g.vm.append(pending)
    if pending.kind == "flat_memory":
        g.lgkm.append(Pending(pending.step, "flat_memory", 0, (), _nothing))
    elif pending.kind != "vm":
        g.lgkm.append(pending)
    g.inflight |= pending.writes


def allowed(instruction: Instruction) -> tuple[int, int]:
    """How many may be outstanding behind s_waitcnt: of vmcnt, in bits 3:0 and 15:14, and of lgkmcnt, in bits 11:8.

    expcnt guards nothing on CDNA.
    """
    field = instruction.words[0] & 0xFFFF
    return (field & 0xF) | (field >> 10 & 0x30), field >> 8 & 0xF


def compile_waitcnt(instruction: Instruction, context: Context) -> Step | None:
    """s_waitcnt."""
    if instruction.name != "s_waitcnt":
        return None
    vm, lgkm = allowed(instruction)

    def run(g: WaveGroup) -> None:
        wait_vm(g, vm)
        wait_lgkm(g, lgkm)

    return Step(instruction, "waitcnt", run, control="wait")
