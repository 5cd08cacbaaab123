"""Hoist out of loops the message payloads that they recompute, and constants in scalars.

A hoisted address has a register of its own throughout the loop. Nothing overwrites that, so no message waits for an
earlier one to have read its address. The addresses that stay in the loop take the other free registers in turn, and
none is overwritten for a while after its message (`holds`): that limits how many are hoisted. A dword of a payload that
is always set to one value is hoisted without a register, since the payload itself stays. Constants take free dwords of
the last register of scalars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from convgen.backends.intel.isa import TYPE_BYTES, Literal, Message, Region, XeInstruction, recipe
from convgen.backends.machine.allocate import Bank, Liveness
from convgen.backends.machine.instruction import BasicBlock, Function, Inert, Instruction, Reg, VirtualRegister
from convgen.backends.machine.loops import innermost, natural_loops
from convgen.backends.machine.vectors import WORD_BYTES

_Dword = tuple[VirtualRegister, int]
_Places = Mapping[VirtualRegister, int]

_MAKERS = frozenset(("mov", "add"))  #: instructions that compute addresses from scalars and registers
_DWORDS = 16  #: dwords of a register, at most


def keep_payloads(
    function: Function, places: _Places, liveness: Liveness, banks: Mapping[str, Bank], holds: Sequence[int]
) -> tuple[Function, _Places]:
    """Return the function with hoisted payloads, and the places of tuples and scalars in `banks`.

    `liveness` is that of the function. Addresses that stay in the loop are not overwritten for the longest of `holds`
    (instructions) that registers allow.
    """
    graph = [function.successors(n) for n in range(len(function.blocks))]
    everywhere = _Uses(function.blocks)
    removed: set[Instruction] = set()
    hoisted: dict[int, Sequence[Instruction]] = {}
    for header, nodes in innermost(natural_loops(graph)).items():
        entries = [n for n, after in enumerate(graph) if header in after and n not in nodes]
        if entries != [header - 1] or graph[header - 1] != [header]:
            continue
        loop = _Uses([function.blocks[n] for n in nodes])
        # positions of the loop, as bits
        span = sum((1 << liveness.starts[n + 1]) - (1 << liveness.starts[n]) for n in nodes)
        free, addresses = _FreeRegisters(places, liveness, banks), loop.addresses(everywhere)
        constants = loop.constants(everywhere)
        hoisted_addresses, places = free.place_addresses(list(addresses), span, holds)
        scalars = free.place_scalars(list(constants), span)
        places = {**places, **scalars}
        moved = [*(constants[v] for v in scalars), *(addresses[v] for v in hoisted_addresses)]
        parts = loop.repeated_parts()
        removed.update(moved, *parts)
        hoisted[header - 1] = [*(same[0] for same in parts), *moved]
    if not removed:
        return function, places

    def body(n: int, block: BasicBlock) -> Sequence[Instruction]:
        return [*(i for i in block.instructions if i not in removed), *hoisted.get(n, ())]

    return function.rewritten(body), places


def invariant_addresses(function: Function) -> int:
    """Return the most registers that loop-invariant addresses take in any innermost loop."""
    graph = [function.successors(n) for n in range(len(function.blocks))]
    everywhere = _Uses(function.blocks)
    loops = (_Uses([function.blocks[n] for n in nodes]) for nodes in innermost(natural_loops(graph)).values())
    return max((len(loop.addresses(everywhere)) for loop in loops), default=0)


class _FreeRegisters:
    """The registers of the banks that are free at some positions."""

    def __init__(self, places: _Places, liveness: Liveness, banks: Mapping[str, Bank]) -> None:
        self.places, self.liveness, self.banks = places, liveness, banks

    def place_scalars(self, scalars: Sequence[VirtualRegister], span: int) -> Mapping[VirtualRegister, int]:
        """Return places for as many of some scalars as can stay throughout a loop at positions `span`."""
        free = [at for at, needed in self._needed("s", scalars, 0).items() if not needed & span]
        for count in range(len(scalars), 0, -1):
            taken = {self.places[v] for v in scalars[count:]}  # places of scalars that the loop still sets
            places = [at for at in free if at not in taken]
            if count <= len(places):
                return dict(zip(scalars[:count], places))
        return {}

    def place_addresses(
        self, addresses: Sequence[VirtualRegister], span: int, holds: Sequence[int]
    ) -> tuple[Sequence[VirtualRegister], _Places]:
        """Return the addresses that can stay throughout a loop at positions `span`, and the places of all.

        None stays if the others would then be overwritten at once.
        """
        free = [at for at, needed in self._needed("v", addresses, 0).items() if not needed & span]
        order = [*addresses[::2], *addresses[1::2]]  # keep every second one: neighbours are used close together
        for hold in sorted(holds, reverse=True):
            needed, live = self._needed("v", addresses, hold), self.liveness.ranges(hold=hold)
            for count in range(min(len(order), len(free)), 0, -1):
                hoisted = dict(zip(order[:count], free))
                in_loop = {v: live[v] for v in addresses if v not in hoisted}
                in_turn = _placed(in_loop, needed | {at: needed[at] | span for at in hoisted.values()})
                if in_turn is not None:
                    return list(hoisted), {**self.places, **hoisted, **in_turn}
        return [], self.places

    def _needed(self, bank: str, movable: Sequence[VirtualRegister], hold: int) -> dict[int, int]:
        """Return, for each register of a bank, the positions at which values other than `movable` need it."""
        needed = dict.fromkeys(range(self.banks[bank].first, self.banks[bank].limit), 0)
        ignored = set(movable)
        for v, live in self.liveness.ranges(hold=hold).items():
            if v.bank == bank and v not in ignored:
                for at in range(self.places[v], self.places[v] + v.size):
                    if at in needed:
                        needed[at] |= live
        return needed


def _placed(live: Mapping[VirtualRegister, int], needed: dict[int, int]) -> dict[VirtualRegister, int] | None:
    """Return places for registers with these live positions; None if there are too few."""
    places: dict[VirtualRegister, int] = {}
    for v in sorted(live, key=lambda v: live[v] & -live[v]):
        at = next((at for at, bits in needed.items() if not bits & live[v]), None)
        if at is None:
            return None
        needed[at] |= live[v]
        places[v] = at
    return places


class _Uses:
    """Writers and readers of registers in some code."""

    def __init__(self, blocks: Sequence[BasicBlock]) -> None:
        self.blocks = [block.instructions for block in blocks]
        self.code = code = [i for block in self.blocks for i in block]
        self.written = Counter(r.vreg for i in code for r in i.defs())
        self.readers: dict[VirtualRegister, list[Instruction]] = {}
        for i in code:
            for r in i.uses():
                self.readers.setdefault(r.vreg, []).append(i)

    def _is_invariant(self, i: Instruction) -> bool:
        """Return whether an instruction computes an invariant value, judging by its operands."""
        assert isinstance(i, XeInstruction)
        plain = i.op.name in _MAKERS and i.predicate is None and not i.condition
        return plain and all(isinstance(o, Inert) or (isinstance(o, Reg) and o.vreg not in self.written) for o in i.src)

    def constants(self, everywhere: _Uses) -> Mapping[VirtualRegister, Instruction]:
        """Return the scalars that get a constant and that only this code reads, with their instructions."""
        return {v: i for v, i in self._own("s", everywhere) if isinstance(i.src[0], Literal)}

    def addresses(self, everywhere: _Uses) -> Mapping[VirtualRegister, Instruction]:
        """Return the invariant addresses that only messages of this code read, with their instructions."""
        own = self._own("v", everywhere)
        return {v: i for v, i in own if all(isinstance(reader.op, Message) for reader in self.readers.get(v, []))}

    def _own(self, bank: str, everywhere: _Uses) -> Iterator[tuple[VirtualRegister, Instruction]]:
        """Yield registers of a bank that only this code reads and one instruction sets, to an invariant value."""
        for i in self.code:
            to = i.dst[0] if len(i.dst) == 1 else None
            if not isinstance(to, Reg) or to.bank != bank or to.vreg.size > 1 or not self._is_invariant(i):
                continue
            readers = (len(uses.readers.get(to.vreg, [])) for uses in (self, everywhere))
            if everywhere.written[to.vreg] == 1 and len(set(readers)) == 1:
                yield to.vreg, i

    def repeated_parts(self) -> list[list[Instruction]]:
        """Return groups of instructions that set a dword of a register to one value, before all readers.

        The dword has no other writer in this code.
        """
        writers: dict[_Dword, list[Instruction]] = {}
        for i in self.code:
            for place in _set_dwords(i):
                writers.setdefault(place, []).append(i)
        groups = (same for same in writers.values() if all(_is_part(i) and self._is_invariant(i) for i in same))
        alike = (same for same in groups if len({recipe(i.op.name, "", 1, *i.src) for i in same}) == 1)
        return [same for same in alike if self._come_first(same)]

    def _come_first(self, same: Sequence[Instruction]) -> bool:
        """Return whether in each block a member of the group precedes all readers of its result."""
        (result,) = {r.vreg for i in same for r in i.defs()}
        for block in self.blocks:
            first = next((i for i in block if i in same or any(r.vreg is result for r in i.touched())), None)
            if first is not None and first not in same:
                return False
        return True


def _set_dwords(i: Instruction) -> Iterator[_Dword]:
    """Yield the dwords of single registers that an instruction writes."""
    assert isinstance(i, XeInstruction)
    for r in i.defs():
        if r.bank == "v" and r.vreg.size == 1:
            dwords = range(_DWORDS)
            if isinstance(r, Region) and i.lanes == 1:
                begin, size = r.sub * TYPE_BYTES[r.type], TYPE_BYTES[r.type]
                dwords = range(begin // WORD_BYTES, -(-(begin + size) // WORD_BYTES))
            yield from ((r.vreg, dword) for dword in dwords)


def _is_part(i: Instruction) -> bool:
    """Return whether an instruction writes a dword of a register and keeps the rest."""
    to = i.dst[0]
    assert isinstance(i, XeInstruction)
    return i.partial and i.lanes == 1 and isinstance(to, Region) and TYPE_BYTES[to.type] == WORD_BYTES
