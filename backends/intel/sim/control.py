"""Program control: jumps of whole threads, structured branches of channels, syncs and no-ops.

A channel that is switched off keeps in `resume` the address at which it runs again. goto sends channels to its second
target, where a join switches them on; if no channel is left, the thread jumps to the first target (Intel's programmer's
reference manuals, "goto" and "join"). if, else, endif, while, break and cont switch channels off and on like goto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.execution_masks import check_flag, flag_bits, flag_place, predicate, undefined_flags
from convgen.backends.intel.sim.state import ACTIVE, ThreadGroup
from convgen.backends.intel.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.wave_arrays import Array, Bools, any_along


def compile_control(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a program control instruction; None for other instructions."""
    op = instruction.op
    if op == "nop":
        return Step(instruction, "nop", lambda g: None)
    if op == "sync":
        if instruction.sub not in ("nop", "allrd", "allwr", "fence", "flush", "host"):
            raise unsupported(instruction)
        return Step(instruction, "sync", lambda g: None)
    if op == "illegal":
        return Step(instruction, "nop", _illegal(instruction))
    if op == "jmpi":
        return _jump(instruction, context)
    if op in _BRANCHES:
        return _BRANCHES[op](instruction, context)
    return None


def _illegal(instruction: Instruction) -> Callable[[ThreadGroup], None]:
    def run(g: ThreadGroup) -> None:
        g.env.reporter.add("control", "executes an illegal instruction", instruction, g)
        raise LaunchStopped

    return run


def _targets(instruction: Instruction, context: Context) -> list[int]:
    """Return the instruction indices of a branch's targets; -1 if no instruction starts there."""
    return [context.index_of.get(o.value, -1) for o in instruction.sources if o.kind == "label"]


def _branch_step(instruction: Instruction, context: Context, run: Run) -> Step:
    reads = 0
    if instruction.predicate:
        check_flag(instruction, context)
        reads = flag_bits(instruction, context)
    return Step(instruction, "branch", run, reads=reads, control="branch", drains=True)


def _go(g: ThreadGroup, targets: Array) -> None:
    """Continue each thread at its instruction."""
    first = int(targets[0])
    if (targets == first).all():
        g.targets, g.pc = None, first
    else:
        g.targets = targets


def _check_pairs(instruction: Instruction, g: ThreadGroup, jumping: Bools) -> None:
    """Report a scalar branch that only one thread of a fused pair takes: the two share an instruction pointer.

    A branch of channels may diverge within a pair: the mask of the pair then stops even instructions without a mask in
    the thread that has left (IGC, SWWA.cpp, "NoMask WA", whose defect DG2's table of workarounds does not have).
    """
    if not g.env.fused or jumping.all() or not jumping.any():
        return
    pair = (g.slot.astype(np.int64) << 32) | (g.wave >> 1)
    order = np.argsort(pair, kind="stable")
    apart = (pair[order][1:] == pair[order][:-1]) & (jumping[order][1:] != jumping[order][:-1])
    if apart.any():
        row = int(order[1:][apart][0])
        pair_of = int(g.wave[row]) & ~1
        finding = f"only one of threads {pair_of} and {pair_of + 1}, a fused pair, takes the scalar branch"
        g.env.reporter.add("fused-branch", finding, instruction, g, row)


def _jump(instruction: Instruction, context: Context) -> Step:
    """Compile jmpi, which moves the whole thread, by the first bit of its flag."""
    targets = _targets(instruction, context)
    if not targets:
        raise unsupported(instruction, "jump to a register")
    target = targets[0]
    place, inverted = flag_place(instruction), instruction.predicate == "-"

    def run(g: ThreadGroup) -> None:
        g.targets = None
        if not instruction.predicate:
            g.pc = target
            return
        if g.flags_dirty and g.flag_poison[:, place].any():
            bad = g.flag_poison[:, place]
            g.env.reporter.at_first("poison", "the branch depends on undefined data", instruction, g, bad)
        jumping = g.flags[:, place] ^ inverted
        _check_pairs(instruction, g, jumping)
        _go(g, np.where(jumping, target, g.pc))

    return _branch_step(instruction, context, run)


def _chosen(instruction: Instruction) -> Callable[[ThreadGroup], Bools]:
    """Return a function that gives the running channels that the predicate selects, over all channels."""
    count, first = instruction.exec_size, instruction.offset
    scalar = count == 1
    value = predicate(instruction) if instruction.predicate else None

    def chosen(g: ThreadGroup) -> Bools:
        selected: Bools = g.mask.copy()
        selected[:, :first] = False
        selected[:, first + count :] = False
        if value is not None:
            window = selected[:, first : first + count]
            bad = undefined_flags(instruction, g, window)
            if bad is not None:
                g.env.reporter.at_first("poison", "the branch depends on undefined data", instruction, g, bad)
            window &= value(g)
            if scalar:
                _check_pairs(instruction, g, window[:, 0])
        return selected

    return chosen


def _leave(g: ThreadGroup, channels: Bools, address: int) -> None:
    """Switch channels off until an address."""
    g.mask = g.mask & ~channels
    g.resume[channels] = address
    g.mask_changed()


def _arrive(g: ThreadGroup, address: int, rows: Bools | None = None) -> None:
    """Switch on the channels that wait for an address."""
    back = g.resume == address
    if rows is not None:
        back &= rows[:, None]
    if back.any():
        g.mask = g.mask | back
        g.resume[back] = ACTIVE
        g.mask_changed()


def _goto(instruction: Instruction, context: Context) -> Step:
    join, target = _targets(instruction, context)
    addresses = [o.value for o in instruction.sources]
    chosen = _chosen(instruction)
    backward = "goto.b" in instruction.text

    def run(g: ThreadGroup) -> None:
        selected = chosen(g)
        if backward:
            going = any_along(selected, 1)
            _leave(g, g.mask & ~selected & going[:, None], addresses[0])
            _go(g, np.where(going, target, g.pc))
            return
        _leave(g, selected, addresses[1])
        _go(g, np.where(any_along(g.mask, 1), g.pc, join))

    return _branch_step(instruction, context, run)


def _join(instruction: Instruction, context: Context) -> Step:
    """Compile join and endif: channels that wait for this address run again."""
    targets = _targets(instruction, context)

    def run(g: ThreadGroup) -> None:
        _arrive(g, instruction.address)
        _go(g, np.where(any_along(g.mask, 1), g.pc, targets[0]))

    return _branch_step(instruction, context, run)


def _if(instruction: Instruction, context: Context) -> Step:
    behind, _ = _targets(instruction, context)
    address = instruction.sources[0].value
    chosen = _chosen(instruction)

    def run(g: ThreadGroup) -> None:
        selected = chosen(g)
        _leave(g, g.mask & ~selected, address)
        empty = ~any_along(g.mask, 1)
        _arrive(g, address, empty)
        _go(g, np.where(empty, behind, g.pc))

    return _branch_step(instruction, context, run)


def _else(instruction: Instruction, context: Context) -> Step:
    end = _targets(instruction, context)[0]
    address = instruction.sources[0].value

    def run(g: ThreadGroup) -> None:
        _leave(g, g.mask.copy(), address)
        _arrive(g, instruction.address + instruction.size)
        _go(g, np.where(any_along(g.mask, 1), g.pc, end))

    return _branch_step(instruction, context, run)


def _while(instruction: Instruction, context: Context) -> Step:
    top = _targets(instruction, context)[0]
    chosen = _chosen(instruction)
    behind = instruction.address + instruction.size

    def run(g: ThreadGroup) -> None:
        _arrive(g, instruction.address)
        selected = chosen(g)
        again = any_along(selected, 1)
        _leave(g, g.mask & ~selected & again[:, None], behind)
        _arrive(g, behind, ~again)
        _go(g, np.where(again, top, g.pc))

    return _branch_step(instruction, context, run)


def _break(instruction: Instruction, context: Context) -> Step:
    """Compile break and cont: channels go to the second target, the thread to the first if no channel is left."""
    skip = _targets(instruction, context)[0]
    address = instruction.sources[1].value
    chosen = _chosen(instruction)

    def run(g: ThreadGroup) -> None:
        _leave(g, chosen(g), address)
        _go(g, np.where(any_along(g.mask, 1), g.pc, skip))

    return _branch_step(instruction, context, run)


_BRANCHES: Mapping[str, Callable[[Instruction, Context], Step]] = {
    "goto": _goto,
    "join": _join,
    "endif": _join,
    "if": _if,
    "else": _else,
    "while": _while,
    "break": _break,
    "cont": _break,
}
