"""Outstanding memory operations: when they land and what they hold in flight (AMDGPUUsage, "Memory Model", s_waitcnt).

vmcnt counts loads, stores and LDS DMA, which complete in order. lgkmcnt counts LDS operations, in order among
themselves, and scalar loads, which return in any order; flat operations count in both, and those of which no lane
reaches LDS are done with vmcnt (so LLVM waits for what it knows to be global or private). An operation lands at the
latest moment the waits allow. More may be outstanding than a counter's field names: nothing documents that a full
counter holds back the next operation until the oldest is done, so that orders nothing here. A field at its largest
value is a wait like any other (CDNA3 ISA, S_WAITCNT: "at or below the specified levels"), on which LLVM relies.
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


def wait_vm(g: WaveGroup, allowed: int) -> None:
    """Land the oldest vector memory operations until at most `allowed` are outstanding."""
    excess = len(g.vm) - allowed
    if excess <= 0:
        return
    done, g.vm = g.vm[:excess], g.vm[excess:]
    for pending in done:
        if pending.kind != "flat" or pending not in g.lgkm:
            _land(g, pending)
    _refresh(g)


def wait_lgkm(g: WaveGroup, allowed: int) -> None:
    """Land what a wait for lgkmcnt(`allowed`) is sure to have completed.

    With scalar loads or flat operations outstanding the count does not say which operations are done: only the
    completions that these cannot account for are known to be LDS operations, oldest first.
    """
    queue = g.lgkm
    excess = len(queue) - allowed
    if excess <= 0:
        return
    if allowed == 0:
        done, g.lgkm = queue, []
    else:
        unordered = sum(pending.kind != "ds" for pending in queue)
        sure = excess - unordered
        if sure <= 0:
            return
        done, kept = [], []
        for pending in queue:
            if pending.kind == "ds" and sure > 0:
                done.append(pending)
                sure -= 1
            else:
                kept.append(pending)
        g.lgkm = kept
    for pending in done:
        if pending.kind != "flat" or pending not in g.vm:
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
