"""Leaders of chains of matrix instructions, because the hardware reuses source 1 too long (Wa_18023229625).

A matrix instruction must not read source 1 from the registers of the previous one if arithmetic may have written them.
That holds for the second of a chain, and for the first after a chain of one instruction; later in a chain, and after a
longer chain, it may (IGC, `prepareDPASFuseRSWA` in SWWA.cpp; `needWA` and `createADummyDpasRSWAInst` in SWSB_G4IR.cpp).
Such chains get a leader, an instruction with another source 1:

- the first of the next chain; the last of this chain then leads the next one;
- the last of the chain before;
- the last of the next chain, if both chains end in sums to one accumulator; the last of this chain then leads the next;
- a useless instruction, whose result goes to free registers.

If none is possible, a `mov` waits for each instruction of the chain before the next, which IGC accepts as well.

IGC always uses a useless instruction. Its result goes to the accumulators that the next one is about to read, which no
document permits. IGC does not look past a block, so the first chain of each block gets one; convgen follows the ends of
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

from convgen.backends.intel.chains import chains, same_operation
from convgen.backends.intel.isa import OPCODES, Null, Region, XeInstruction, as_register, region
from convgen.backends.intel.physical import Physical, Places
from convgen.backends.machine.dataflow import solve
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, Unit, VirtualRegister
from convgen.ir.record import evolve, frozen

#: Block with matrix instructions -> the last one if that is a chain of one, else nothing.
Lasts = dict[int, frozenset[XeInstruction]]
_Grfs = int  #: a set of registers, one bit each
_FACTOR = 8  #: registers of source 1
_SUMS = 8  #: registers of a result


def lead_chains(
    function: Function,
    physical: Physical,
    shared: frozenset[int],
    registers: int,
    finish: Callable[[Function], Function],
) -> tuple[Function, Places]:
    """Return the function, after `finish`, with leaders where chains need them, and the places of inserted tuples.

    `shared` are the numbers of the sources that make a chain, `registers` those of a thread. Instructions that `finish`
    adds count as arithmetic.
    """
    written, lasts = _by_arithmetic(function, physical.base), Lasts()
    while True:
        leads = _Leads(function, physical, shared, registers, written, lasts)
        led = finish(function.rewritten(leads.block))
        now = written | _by_arithmetic(led, {**physical.base, **leads.places})
        lasts = {n: lasts.get(n, frozenset()) | last for n, last in leads.lasts.items()}
        if (now, lasts) == (written, leads.assumed):
            return led, leads.places
        written = now


def _by_arithmetic(function: Function, places: Mapping[VirtualRegister, int]) -> _Grfs:
    """Return the registers that instructions other than messages write."""
    units = (Unit.VALU, Unit.MATRIX)
    return reduce(or_, (_grfs(i.defs(), places) for i in function.instructions() if i.op.unit in units), 0)


def _grfs(tuples: Iterable[Reg], places: Mapping[VirtualRegister, int]) -> _Grfs:
    return reduce(or_, ((1 << r.count) - 1 << places[r.vreg] + r.first for r in tuples if r.bank == "v"), 0)


@frozen
class _Piece:
    """A chain, and the instructions between it and the chain before."""

    gap: tuple[Instruction, ...]
    run: tuple[XeInstruction, ...]


_Pieces = list[_Piece]  #: pieces of a block; the last one has no chain


class _Leads:
    """One pass over a function, given the registers that arithmetic writes and the last instructions of blocks."""

    def __init__(
        self,
        function: Function,
        physical: Physical,
        shared: frozenset[int],
        registers: int,
        written: _Grfs,
        assumed: Lasts,
    ) -> None:
        self.function, self.physical, self.shared, self.registers = function, physical, shared, registers
        self.written, self.assumed = written, assumed
        self.lasts = Lasts()
        self.places: dict[VirtualRegister, int] = {}  #: places of inserted tuples
        self.base = dict(physical.base)  #: places of all tuples

    def block(self, number: int, block: BasicBlock) -> Iterator[Instruction]:
        """Yield the instructions of a block with leaders for its chains."""
        pieces = self._pieces(block)
        if len(pieces) > 1:
            pieces = self._with_leaders(pieces, self._ahead.get(number, frozenset()))
            self.lasts[number] = self._single_before(pieces, len(pieces) - 1, frozenset())
        for piece in pieces:
            yield from piece.gap
            yield from self._marked(piece.run)

    @cached_property
    def _ahead(self) -> Lasts:
        """Return, by block, the chains of one that may be the last before it and that nothing has waited for."""

        def leaving(number: int, facts: frozenset[XeInstruction]) -> frozenset[XeInstruction]:
            return self.assumed.get(number, self._not_waited_for(facts, self.function.blocks[number].instructions))

        return solve(self.function, frozenset(), leaving, or_)

    def _with_leaders(self, pieces: _Pieces, ahead: frozenset[XeInstruction]) -> _Pieces:
        """Return the pieces of a block with leaders for their chains."""
        n = 0
        while n < len(pieces):
            if self._needs_leader(pieces, n, ahead):
                for attempt in self._attempts(pieces, n):
                    if not any(self._needs_leader(attempt, at, ahead) for at in (n - 1, n)):
                        pieces = attempt
                        break
                else:
                    leader = self._useless_leader(pieces, n, ahead)
                    led = [evolve(pieces[n], run=(leader, *pieces[n].run))] if leader is not None else []
                    pieces[n : n + 1] = led or self._separated_by_waits(pieces, n, ahead)
            n += 1
        return pieces

    def _pieces(self, block: BasicBlock) -> _Pieces:
        pieces, gap = _Pieces(), list[Instruction]()
        heads = {chain[0]: chain for chain in chains(block.instructions, self.physical, self.shared)}
        for i in block.instructions:
            if i in heads:
                pieces.append(_Piece(tuple(gap), heads[i]))
                gap = []
            elif i.op.unit is not Unit.MATRIX:
                gap.append(i)
        return [*pieces, _Piece(tuple(gap), ())]

    def _marked(self, run: Sequence[XeInstruction]) -> Iterator[XeInstruction]:
        """Yield a chain, its leader marked."""
        leads = len(run) > 1 and self._factor(run[0]) != self._factor(run[1])
        yield from (evolve(i, leads=True) if leads and i is run[0] else i for i in run)

    # ------------------------------------------------------------ chains that need a leader

    def _needs_leader(self, pieces: _Pieces, n: int, ahead: frozenset[XeInstruction]) -> bool:
        """Return whether a chain needs a leader: its first instruction may find a stale source 1 in the engine."""
        if n < 0 or not pieces[n].run:
            return False
        first, *others = pieces[n].run
        factor = self._factor(first)
        if not self.written & ((1 << _FACTOR) - 1) << factor:
            return False
        if others and self._factor(others[0]) == factor:
            return True
        return any(
            self._factor(i) == factor for i in self._not_waited_for(self._single_before(pieces, n, ahead), [first])
        )

    def _single_before(self, pieces: _Pieces, n: int, ahead: frozenset[XeInstruction]) -> frozenset[XeInstruction]:
        """Return the chains of one that may be the last before a piece's chain and that nothing has waited for.

        `ahead` are those before the block.
        """
        gap = pieces[n].gap
        for piece in reversed(pieces[:n]):
            if piece.run:
                ahead = frozenset(piece.run if len(piece.run) == 1 else ())
                break
            gap = piece.gap + gap
        return self._not_waited_for(ahead, gap)

    def _not_waited_for(
        self, singles: Iterable[XeInstruction], following: Sequence[Instruction]
    ) -> frozenset[XeInstruction]:
        """Return the instructions whose results no `following` instruction reads: nothing has waited for them."""
        written = {i: _grfs(i.defs(), self.base) for i in singles}
        return frozenset(i for i in written if not any(_grfs(f.uses(), self.base) & written[i] for f in following))

    def _factor(self, i: XeInstruction) -> int:
        """Return the first register of source 1."""
        return self._at(as_register(i.src[1]))

    def _at(self, r: Reg) -> int:
        return self.base[r.vreg] + r.first

    # ------------------------------------------------------------ leaders from the block

    def _attempts(self, pieces: _Pieces, n: int) -> Iterator[_Pieces]:
        """Yield the pieces with a leader from one of their chains. Leaders that wait for no accumulator come first."""
        from_next, from_previous = self._led_by_next_first(pieces, n), self._led_by_previous_last(pieces, n)
        waits = from_next is not None and n and any(self._conflicts(from_next[n].run[0], i) for i in pieces[n - 1].run)
        yield from filter(None, (from_previous, from_next) if waits else (from_next, from_previous))
        yield from filter(None, (self._led_by_next_last(pieces, n),))

    def _led_by_next_first(self, pieces: _Pieces, n: int) -> _Pieces | None:
        """Swap the first of the next chain, as leader of this one, with this one's last, which leads the next.

        None if impossible.
        """
        (gap, run), following = (pieces[n].gap, pieces[n].run), pieces[n + 1]
        if not following.run:
            return None
        leader, *others = following.run
        staying = len(run) - (1 if others or len(run) == 1 else 0)
        stay, moved = run[:staying], run[staying:]
        fits = same_operation(leader, run[0]) and self._factor(leader) != self._factor(run[0])
        if not fits or not self._may_swap([leader], [*run, *following.gap]):
            return None
        if not self._may_swap(moved, [*following.gap, *others]):
            return None
        pair = _Piece(gap, (leader, *stay)), _Piece(following.gap, (*moved, *others))
        return [*pieces[:n], *pair, *pieces[n + 2 :]]

    def _led_by_previous_last(self, pieces: _Pieces, n: int) -> _Pieces | None:
        """Let the last of the previous chain lead this one; None if impossible.

        At most the last member of this chain may depend on that leader; it then becomes a chain alone.
        """
        run, gap = pieces[n].run, pieces[n].gap
        if n == 0 or not pieces[n - 1].run:
            return None
        *stay, leader = pieces[n - 1].run
        if (
            not same_operation(leader, run[0])
            or self._factor(leader) == self._factor(run[0])
            or not self._may_swap([leader], gap)
        ):
            return None
        led = [i for i in run if self._may_swap([leader], [i])]
        alone = [_Piece((), (run[-1],))] if len(led) < len(run) else []
        if not led or led != list(run[: len(led)]) or len(led) < len(run) - 1:
            return None
        shorter = evolve(pieces[n - 1], run=tuple(stay))
        return [*pieces[: n - 1], shorter, _Piece(gap, (leader, *led)), *alone, *pieces[n + 1 :]]

    def _led_by_next_last(self, pieces: _Pieces, n: int) -> _Pieces | None:
        """Let the last of the next chain lead this one, whose last leads the next; None if impossible.

        Both add to one accumulator, in exchanged order.
        """
        (gap, run), following = (pieces[n].gap, pieces[n].run), pieces[n + 1]
        if len(run) < 2 or len(following.run) < 2:
            return None
        (*stay, first), (*others, second) = run, following.run
        sums = second.src[0]
        if not isinstance(sums, Reg) or not all(sums.same(i.dst[0]) for i in (first, second)):
            return None
        if self._factor(second) == self._factor(run[0]) or not same_operation(first, second):
            return None
        if not self._may_swap([second], [*stay, *following.gap, *others]):
            return None
        if not self._may_swap([first], [*following.gap, *others]):
            return None
        leader, delayed = (evolve(i, src=(start, *i.src[1:])) for i, start in ((second, first.src[0]), (first, sums)))
        pair = _Piece(gap, (leader, *stay)), _Piece(following.gap, (delayed, *others))
        return [*pieces[:n], *pair, *pieces[n + 2 :]]

    def _may_swap(self, moved: Iterable[XeInstruction], others: Sequence[Instruction]) -> bool:
        """Return whether instructions may swap with others, which must be neither messages nor control instructions."""
        units, moved = (Unit.VALU, Unit.MATRIX), list(moved)
        return all(
            i.op.unit in units and not any(self._conflicts(i, m) or self._conflicts(m, i) for m in moved)
            for i in others
        )

    def _conflicts(self, i: Instruction, other: Instruction) -> bool:
        """Return whether an instruction touches registers that another one writes."""
        base = self.base
        return bool(_grfs((*i.uses(), *i.defs()), base) & _grfs(other.defs(), base))

    # ------------------------------------------------------------ useless leaders

    def _separated_by_waits(self, pieces: _Pieces, n: int, ahead: frozenset[XeInstruction]) -> _Pieces:
        """Return a chain as chains of one instruction, each after a `mov` that waits for the instruction before."""
        parts, gap, before = _Pieces(), pieces[n].gap, self._single_before(pieces, n, ahead)
        for i in pieces[n].run:
            parts.append(_Piece((*gap, *map(_wait_for, before)), (i,)))
            gap, before = (), frozenset((i,))
        return parts

    def _useless_leader(self, pieces: _Pieces, n: int, ahead: frozenset[XeInstruction]) -> XeInstruction | None:
        """Return a useless leader with another source 1 and free registers as result; None if none are free."""
        first, base = pieces[n].run[0], self.base
        around = [i for piece in pieces[max(0, n - 1) : n + 2] for i in piece.run]
        live = reduce(or_, (self._live[i] for i in around if i in self._live), 0)
        result = self._free(live | _grfs((r for i in around for r in (*i.uses(), *i.defs())), base))
        if result is None:
            return None
        taken = {self._factor(i) for i in (first, *self._single_before(pieces, n, ahead))}
        written = _grfs((r for i in pieces[n].run for r in i.defs()), base) | ((1 << _SUMS) - 1) << result
        factor = self._other_factor(first, taken, written)
        (sums,), (_, old, rows_operand) = first.dst, first.src
        assert isinstance(sums, Region)
        assert isinstance(old, Region)
        put, read = (self._placed(name, at) for name, at in (("unused", result), ("any", factor)))
        operands = (Null(sums.type), region(read, old.type), rows_operand)
        comment = "leads the chain; its result is unused"
        return XeInstruction(first.op, (region(put, sums.type),), operands, lanes=first.lanes, comment=comment)

    def _other_factor(self, i: XeInstruction, excluded: set[int], written: _Grfs) -> int:
        """Return the first register of another source 1: source 2, or else the registers nearest to the own source 1.

        It is none of `excluded`, and no register of it is in `written`.
        """
        own, rows = self._factor(i), self._at(as_register(i.src[2]))
        starts = [rows, *(own + step * side for step in range(1, self.registers) for side in (1, -1))]
        fitting = (at for at in starts if 0 < at <= self.registers - _FACTOR and at not in excluded)
        return next(at for at in fitting if not written & ((1 << _FACTOR) - 1) << at)

    def _placed(self, name: str, at: int) -> Reg:
        """Return a new tuple of eight registers from `at` on."""
        added = VirtualRegister(len(self.base), "v", _SUMS, name)
        self.places[added] = self.base[added] = at
        return Reg(added, 0, _SUMS)

    def _free(self, live: _Grfs) -> int | None:
        """Return the first of enough free registers for a result, after the scalars; None if there are none."""
        begin = min((at for v, at in self.physical.base.items() if v.bank == "v" and v.fixed is None), default=1)
        for at in range(begin, self.registers - _SUMS + 1):
            if not live & ((1 << _SUMS) - 1) << at:
                return at
        return None

    @cached_property
    def _live(self) -> Mapping[Instruction, _Grfs]:
        """Return the registers that are live ahead of each instruction."""
        base, count = self.base, len(self.function.blocks)
        entry, live_before = [0] * count, dict[Instruction, _Grfs]()
        changed = True
        while changed:
            changed = False
            for n in reversed(range(count)):
                live = reduce(or_, (entry[s] for s in self.function.successors(n)), 0)
                for i in reversed(self.function.blocks[n].instructions):
                    live = live & ~_grfs(i.defs(), base) | _grfs(i.uses(), base)
                    live_before[i] = live
                changed = changed or live != entry[n]
                entry[n] = live
        return live_before


def _wait_for(i: XeInstruction) -> XeInstruction:
    """Return a `mov` that waits for a matrix instruction and changes nothing."""
    (sums,) = i.defs()
    first = region(sums.words(0, 1), "ud")
    return XeInstruction(OPCODES["mov"], (first,), (first,), lanes=i.lanes, comment="waits for the accumulator")
