"""The stages of the Xe targets: from a message-level kernel to assembly text."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.intel import printer
from convgen.backends.intel.barriers import delay_signals, drop_fences
from convgen.backends.intel.coalesce import coalesce
from convgen.backends.intel.flags import keep_flags
from convgen.backends.intel.fused_branches import parts_threads
from convgen.backends.intel.inplace import make_in_place
from convgen.backends.intel.isa import BANK_PERIOD
from convgen.backends.intel.order_loads import sink_loads
from convgen.backends.intel.payloads import keep_payloads, steady_addresses
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
_HOLD_STEPS = (3, 6, 12)  #: instructions for which sources of messages are not overwritten, if registers suffice
_ROOM = 67  #: percent; share of a loop's invariant addresses that get their own register; the others share the rest
_SCALARS = 192  #: scalars, at most; a dword each: 12 GRFs of 16 lanes, 24 of 8
#: Units whose loads are moved down to their first use; the first costs less time.
_SUNK = (Unit.SHARED, Unit.GLOBAL)
_SCALARS_AT = 1  #: first register of scalars; the thread's payload comes before


def banks(g: Generation) -> Mapping[str, Bank]:
    """Return the register files: tuples of GRFs, scalars of a dword each, flags."""
    return {
        "v": Bank(limit=_GRF_COUNTS[-1], alignment={1: 1}),
        "s": Bank(limit=_SCALARS, alignment={1: 1, 2: 2}),
        "f": Bank(limit=g.flags, alignment={1: 1, 2: 2}),
    }


def _generation(made: MachineKernel) -> Generation:
    return GENERATIONS[made.facts.name]


def _physical(made: MachineKernel) -> Physical:
    return Physical(made.allocation, _generation(made).lanes, _SCALARS_AT)


def _select(made: MachineKernel) -> MachineKernel:
    """Select instructions on virtual registers, statement by statement."""
    return evolve(made, function=select(made.kernel, made.facts, made.lines))


def _keep_flags(made: MachineKernel) -> MachineKernel:
    """Keep comparison results in flag registers instead of recomputing or moving them, as far as registers last."""
    return evolve(made, function=keep_flags(made.code, _generation(made).flags))


def _coalesce(made: MachineKernel) -> MachineKernel:
    """Compute values in their destination if they are only moved into a payload or part of a tuple."""
    return evolve(made, function=coalesce(made.code, _generation(made).lanes))


def _make_in_place(made: MachineKernel) -> MachineKernel:
    """Build a tuple of another tuple's words in that tuple, where some words are in place already."""
    return evolve(made, function=make_in_place(made.code, _generation(made).lanes))


def _drop_fences(made: MachineKernel) -> MachineKernel:
    """Remove fences that publish nothing: no thread loads earlier stores after them."""
    return evolve(made, function=drop_fences(made.code))


def _delay_signals(made: MachineKernel) -> MachineKernel:
    """Move barrier signals behind arithmetic that can wait for their fence."""
    return evolve(made, function=delay_signals(made.code))


def _order(made: MachineKernel, *, sunk: int = 0) -> MachineKernel:
    """Keep loads in program order; if registers run out, move the loads of some units to their first use."""
    return evolve(made, function=sink_loads(made.code, _SUNK[:sunk])) if sunk else made


def _allocate_scalars(made: MachineKernel) -> MachineKernel:
    """Place scalars and flags; tuples will follow them."""
    liveness = Liveness(made.code)
    allocation = allocate(made.code, {bank: made.banks[bank] for bank in "sf"}, liveness.ranges())
    return evolve(made, allocation=allocation, liveness=liveness)


def _allocate(
    made: MachineKernel, *, grf: int, hold: int, period: int = BANK_PERIOD, strict: int = True, room: int = 0
) -> MachineKernel:
    """Give every tuple its physical registers; nothing is spilled.

    There are `grf` registers. Sources of messages are not overwritten for `hold` instructions. Tuples start at their
    residue modulo `period`, without exception if `strict`. `room` percent of a loop's invariant addresses find
    registers at the end of the file.
    """
    assert made.liveness is not None
    bank = Bank(grf, {1: 1}, _tuples_at(made), period, bool(strict))
    aside = steady_addresses(made.code) * room // 100 if room else 0
    tuples = allocate(made.code, {"v": evolve(bank, aside=aside)}, made.liveness.ranges(hold=hold))
    scalars = made.allocation
    allocation = Allocation({**scalars.base, **tuples.base}, {**scalars.used, **tuples.used})
    return evolve(made, allocation=allocation, banks={**made.banks, "v": bank})


def _keep_payloads(made: MachineKernel) -> MachineKernel:
    """Hoist loop-invariant message payloads and constants out of loops, as far as registers are left."""
    assert made.liveness is not None
    allocation, lanes = made.allocation, _generation(made).lanes
    begun = lanes * (_tuples_at(made) - _SCALARS_AT)
    banks = {"v": made.banks["v"], "s": evolve(made.banks["s"], limit=begun)}
    function, places = keep_payloads(made.code, allocation.base, made.liveness, banks, _HOLD_STEPS)
    return evolve(made, function=function, allocation=evolve(allocation, base=places), liveness=None)


def _tuples_at(made: MachineKernel) -> int:
    return _SCALARS_AT - -made.allocation.used["s"] // _generation(made).lanes


def _apply_workarounds(made: MachineKernel) -> MachineKernel:
    """Work around hardware defects."""
    function, places = applied(made.code, _physical(made), _generation(made), made.banks["v"].limit)
    allocation = evolve(made.allocation, base={**made.allocation.base, **places})
    return evolve(made, function=function, allocation=allocation)


def _score(made: MachineKernel) -> MachineKernel:
    """Annotate each instruction with the distances and tokens it waits for, by data flow; hardware checks nothing."""
    g = _generation(made)
    return evolve(made, function=Scoreboard(made.code, _physical(made), g, g.tokens[made.banks["v"].limit]).run())


def _carry_waits(made: MachineKernel) -> MachineKernel:
    """Move stand-alone waits to arithmetic before them that has room for a token."""
    return evolve(made, function=carry_waits(made.code, _generation(made)))


def _print(made: MachineKernel) -> MachineKernel:
    """Print assembly text with the directives that the container is built from."""
    kernel, g, info = made.kernel, _generation(made), _info(made)
    body = printer.function_text(made.code, _physical(made), g, f"{kernel.name}.ir" if made.debug else "")
    notes = [*made.header, *maps(kernel, made.allocation, {"v": "r"})]
    placed = ((v, base) for v, base in made.allocation.base.items() if v.bank == "v" and v.fixed is None)
    emitted = Emitted(
        name=kernel.name,
        text=printer.kernel_text(notes, directives(info), body),
        registers={
            "grf": max((base + v.size for v, base in placed), default=_tuples_at(made)),
            "grf_count": info.grf_count,
        },
        shared_bytes=kernel.shared_bytes,
        arguments=tuple((a.name, a.offset, a.size) for a in info.arguments),
        kernarg_size=max((a.offset + a.size for a in info.arguments), default=0),
        listing=made.listing,
    )
    return evolve(made, emitted=emitted)


def _info(made: MachineKernel) -> KernelInfo:
    kernel, instructions = made.kernel, list(made.code.instructions())
    return KernelInfo(
        name=kernel.name,
        simd_size=kernel.width,
        grf_count=made.banks["v"].limit,
        slm_bytes=kernel.shared_bytes,
        barrier_count=int(any(i.barrier for i in instructions)),
        workgroup=(kernel.subgroups * kernel.width, 1, 1),
        has_dpas=any(i.op.unit is Unit.MATRIX for i in instructions),
        unfused=parts_threads(kernel, made.facts),
        arguments=tuple(
            Argument(p.name, offset, size, "buffer" if isinstance(p, Global) else "scalar")
            for p, offset, size in kernel_arguments(kernel)
        ),
    )


def _ladders(g: Generation) -> Ladders:
    """Return the attempts: the smaller register file if the kernel fits, with as long a hold as registers allow.

    If overwriting sources of a message means to wait for the whole message, the larger file is better than no hold. On
    other generations a short hold suffices, and hoisted addresses have priority over a longer one.
    """
    largest, ladders = _GRF_COUNTS[-1], list[tuple[Rung, ...]]()
    for grf in _GRF_COUNTS:
        if not g.waits_for_writes:
            ladders.append(tuple(Rung({"grf": grf, "hold": hold, "room": _ROOM}) for hold in _HOLD_STEPS))
        holds = _HOLD_STEPS if g.waits_for_writes else (0, *_HOLD_STEPS)
        ladders.append(tuple(Rung({"grf": grf, "hold": hold, "room": 0}) for hold in holds))
    return (
        *ladders,
        (Rung({"grf": largest, "hold": 0}),),
        tuple(Rung({"grf": largest, "hold": hold, "strict": False}) for hold in (0, *_HOLD_STEPS)),
        (Rung({"grf": largest, "hold": 0, "period": 0}, resort=True),),
        *((_sinking(largest, n),) for n in range(1, len(_SUNK) + 1)),
    )


def _sinking(grf: int, units: int) -> Rung:
    """Return the attempt that moves loads of `units` units to their first use, where nothing hides their latency."""
    remark = "order:   loads just before their use, to fit the registers"
    how = {"sunk": units}
    return Rung({"grf": grf, "hold": 0, "period": 0}, redone="order", how=how, remark=remark, resort=True)


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
