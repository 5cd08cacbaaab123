"""The stages of the Xe targets: from a message-level kernel to assembly text."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.intel import printer
from convgen.backends.intel.barriers import delay_signals, drop_fences
from convgen.backends.intel.coalesce import coalesce
from convgen.backends.intel.flags import keep_flags
from convgen.backends.intel.fused_branches import may_diverge
from convgen.backends.intel.inplace import make_in_place
from convgen.backends.intel.isa import BANK_PERIOD
from convgen.backends.intel.order_loads import sink_loads
from convgen.backends.intel.payloads import invariant_addresses, keep_payloads
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.scoreboard import Scoreboard
from convgen.backends.intel.select import select
from convgen.backends.intel.syncs import carry_waits
from convgen.backends.intel.tables import GENERATIONS, Generation
from convgen.backends.intel.workarounds import applied
from convgen.backends.intel.zebin import Argument, KernelInfo, directives
from convgen.backends.machine.allocate import Allocation, Bank, Liveness, allocate
from convgen.backends.machine.instruction import Unit
from convgen.backends.machine.maps import maps
from convgen.backends.machine.selection import kernel_arguments
from convgen.backends.stages import Emitted, Ladders, MachineKernel, Rung, Stage
from convgen.ir.layout.memory import Global
from convgen.ir.record import evolve

_GRF_COUNTS = (128, 256)  #: registers of a thread; with 256, half as many threads are resident
#: Instructions for which sources of messages are not overwritten, if registers suffice (assumed).
_HOLD_STEPS = (3, 6, 12)
#: Percent of a loop's invariant addresses for which registers are set aside; the others take turns (assumed).
_OWN_PERCENT = 67
_SCALARS_AT = 1  #: first register of scalars; the thread's payload comes before
_SCALARS = 192  #: scalars, at most; a dword each: 12 GRFs of 16 lanes, 24 of 8
_SUNK = (Unit.SHARED, Unit.GLOBAL)  #: units whose loads may move down to their first use, the faster one first


def banks(g: Generation) -> Mapping[str, Bank]:
    """Return the register files: tuples of GRFs, scalars of a dword each, flags."""
    return {
        "v": Bank(limit=_GRF_COUNTS[-1], alignment={1: 1}),
        "s": Bank(limit=_SCALARS, alignment={1: 1, 2: 2}),
        "f": Bank(limit=g.flags, alignment={1: 1, 2: 2}),
    }


def _generation(machine: MachineKernel) -> Generation:
    return GENERATIONS[machine.facts.name]


def _physical(machine: MachineKernel) -> Physical:
    return Physical(machine.allocation, _generation(machine).lanes, _SCALARS_AT)


def _select(machine: MachineKernel) -> MachineKernel:
    """Select instructions on virtual registers, statement by statement."""
    return evolve(machine, function=select(machine.kernel, machine.facts, machine.lines))


def _keep_flags(machine: MachineKernel) -> MachineKernel:
    """Keep comparison results in free flag registers instead of recomputing or moving them."""
    return evolve(machine, function=keep_flags(machine.code, _generation(machine).flags))


def _coalesce(machine: MachineKernel) -> MachineKernel:
    """Compute values in their destination if they are only moved into a payload or part of a tuple."""
    return evolve(machine, function=coalesce(machine.code, _generation(machine).lanes))


def _make_in_place(machine: MachineKernel) -> MachineKernel:
    """Build a tuple of another tuple's words in that tuple, where some words are in place already."""
    return evolve(machine, function=make_in_place(machine.code, _generation(machine).lanes))


def _drop_fences(machine: MachineKernel) -> MachineKernel:
    """Remove needless fences: after their barrier no thread loads what was stored before."""
    return evolve(machine, function=drop_fences(machine.code))


def _delay_signals(machine: MachineKernel) -> MachineKernel:
    """Move barrier signals behind arithmetic that can wait for their fence."""
    return evolve(machine, function=delay_signals(machine.code))


def _order(machine: MachineKernel, *, sunk: int = 0) -> MachineKernel:
    """Keep loads in program order; if registers run out, move the loads of some units to their first use."""
    return evolve(machine, function=sink_loads(machine.code, _SUNK[:sunk])) if sunk else machine


def _allocate_scalars(machine: MachineKernel) -> MachineKernel:
    """Place scalars and flags; tuples will follow them."""
    liveness = Liveness(machine.code)
    allocation = allocate(machine.code, {bank: machine.banks[bank] for bank in "sf"}, liveness.ranges())
    return evolve(machine, allocation=allocation, liveness=liveness)


def _allocate(
    machine: MachineKernel, *, grf: int, hold: int, period: int = BANK_PERIOD, strict: int = True, own_percent: int = 0
) -> MachineKernel:
    """Give every tuple its physical registers; nothing is spilled.

    There are `grf` registers. Sources of messages are not overwritten for `hold` instructions. Tuples start at their
    residue modulo `period`, without exception if `strict`. `own_percent` of a loop's invariant addresses get
    registers at the end of the file.
    """
    assert machine.liveness is not None
    bank = Bank(grf, {1: 1}, _tuples_at(machine), period, bool(strict))
    reserved = invariant_addresses(machine.code) * own_percent // 100 if own_percent else 0
    tuples = allocate(machine.code, {"v": evolve(bank, pinned_only=reserved)}, machine.liveness.ranges(hold=hold))
    scalars = machine.allocation
    allocation = Allocation({**scalars.base, **tuples.base}, {**scalars.used, **tuples.used})
    return evolve(machine, allocation=allocation, banks={**machine.banks, "v": bank})


def _keep_payloads(machine: MachineKernel) -> MachineKernel:
    """Hoist loop-invariant message payloads and constants out of loops into free registers."""
    assert machine.liveness is not None
    allocation, lanes = machine.allocation, _generation(machine).lanes
    begun = lanes * (_tuples_at(machine) - _SCALARS_AT)
    banks = {"v": machine.banks["v"], "s": evolve(machine.banks["s"], limit=begun)}
    function, places = keep_payloads(machine.code, allocation.base, machine.liveness, banks, _HOLD_STEPS)
    return evolve(machine, function=function, allocation=evolve(allocation, base=places), liveness=None)


def _tuples_at(machine: MachineKernel) -> int:
    """Return the first register of tuples, after the registers that scalars fill."""
    return _SCALARS_AT + -(-machine.allocation.used["s"] // _generation(machine).lanes)


def _apply_workarounds(machine: MachineKernel) -> MachineKernel:
    """Work around hardware defects."""
    function, places = applied(machine.code, _physical(machine), _generation(machine), machine.banks["v"].limit)
    allocation = evolve(machine.allocation, base={**machine.allocation.base, **places})
    return evolve(machine, function=function, allocation=allocation)


def _score(machine: MachineKernel) -> MachineKernel:
    """Annotate each instruction with the distances and tokens it waits for, by data flow; hardware checks nothing."""
    g = _generation(machine)
    return evolve(
        machine, function=Scoreboard(machine.code, _physical(machine), g, g.tokens[machine.banks["v"].limit]).run()
    )


def _carry_waits(machine: MachineKernel) -> MachineKernel:
    """Move stand-alone waits to arithmetic before them that has room for a token."""
    return evolve(machine, function=carry_waits(machine.code, _generation(machine)))


def _print(machine: MachineKernel) -> MachineKernel:
    """Print assembly text with the directives that the container is built from."""
    kernel, g, info = machine.kernel, _generation(machine), _info(machine)
    body = printer.function_text(machine.code, _physical(machine), g, f"{kernel.name}.ir" if machine.debug else "")
    notes = [*machine.header, *maps(kernel, machine.allocation, {"v": "r"})]
    placed = ((v, base) for v, base in machine.allocation.base.items() if v.bank == "v" and v.fixed is None)
    emitted = Emitted(
        name=kernel.name,
        text=printer.kernel_text(notes, directives(info), body),
        registers={
            "grf": max((base + v.size for v, base in placed), default=_tuples_at(machine)),
            "grf_count": info.grf_count,
        },
        shared_bytes=kernel.shared_bytes,
        lanes=kernel.subgroups * kernel.width,
        arguments=tuple((a.name, a.offset, a.size) for a in info.arguments),
        kernarg_size=max((a.offset + a.size for a in info.arguments), default=0),
        listing=machine.listing,
    )
    return evolve(machine, emitted=emitted)


def _info(machine: MachineKernel) -> KernelInfo:
    kernel, instructions = machine.kernel, list(machine.code.instructions())
    return KernelInfo(
        name=kernel.name,
        simd_size=kernel.width,
        grf_count=machine.banks["v"].limit,
        slm_bytes=kernel.shared_bytes,
        barrier_count=int(any(i.barrier for i in instructions)),
        workgroup=(kernel.subgroups * kernel.width, 1, 1),
        has_dpas=any(i.op.unit is Unit.MATRIX for i in instructions),
        unfused=may_diverge(kernel, machine.facts),
        arguments=tuple(
            Argument(p.name, offset, size, "buffer" if isinstance(p, Global) else "scalar")
            for p, offset, size in kernel_arguments(kernel)
        ),
    )


def _ladders(g: Generation) -> Ladders:
    """Return the attempts: the smaller register file if the kernel fits, with the longest `hold` that registers allow.

    Where sources of a message may be overwritten only once the message is done, the larger file is tried before a
    `hold` of 0. On other generations a short one suffices, and registers for hoisted addresses matter more.
    """
    largest, ladders = _GRF_COUNTS[-1], list[tuple[Rung, ...]]()
    for grf in _GRF_COUNTS:
        if not g.waits_for_writes:
            ladders.append(tuple(Rung({"grf": grf, "hold": hold, "own_percent": _OWN_PERCENT}) for hold in _HOLD_STEPS))
        holds = _HOLD_STEPS if g.waits_for_writes else (0, *_HOLD_STEPS)
        ladders.append(tuple(Rung({"grf": grf, "hold": hold, "own_percent": 0}) for hold in holds))
    return (
        *ladders,
        (Rung({"grf": largest, "hold": 0}),),
        tuple(Rung({"grf": largest, "hold": hold, "strict": False}) for hold in (0, *_HOLD_STEPS)),
        (Rung({"grf": largest, "hold": 0, "period": 0}, is_slow=True),),
        *((_sinking(largest, n),) for n in range(1, len(_SUNK) + 1)),
    )


def _sinking(grf: int, units: int) -> Rung:
    """Return the attempt that moves loads of `units` units to their first use, where nothing hides their latency."""
    remark = "order:   loads just before their use, to fit the registers"
    how = {"sunk": units}
    return Rung({"grf": grf, "hold": 0, "period": 0}, undoes="order", rerun_arguments=how, remark=remark, is_slow=True)


def stages(g: Generation) -> tuple[Stage, ...]:
    """Return the stages of a generation, in order."""
    return (
        Stage("select", _select),
        Stage("order", _order, optional=True),
        Stage("flags", _keep_flags, optional=True),
        Stage("coalesce", _coalesce, optional=True),
        Stage("inplace", _make_in_place, optional=True),
        Stage("fences", _drop_fences, optional=True),
        Stage("signals", _delay_signals, optional=True),
        Stage("scalars", _allocate_scalars),
        Stage("allocate", _allocate, ladders=_ladders(g)),
        Stage("payloads", _keep_payloads, optional=True),
        Stage("workarounds", _apply_workarounds),
        Stage("scoreboard", _score),
        Stage("syncs", _carry_waits, optional=True),
        Stage("print", _print),
    )
