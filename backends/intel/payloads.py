"""What loops compute again and again for their messages is computed before them, and so are constants in scalars.

An address that nothing in the loop changes takes a register of its own all through the loop, where one is left. Nobody
writes there, so that no message waits for an earlier one to have read its address, either. The others take the rest by
turns: as many are kept as leave these room enough to be left alone for a while. A part of a payload that always gets
the same value takes none: the payload stays anyhow. Constants stay in what the last register of scalars has left.
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

_MAKERS = frozenset(("mov", "add"))  #: what makes addresses of scalars and of registers
_DWORDS = 16  #: of a register, at most


def keep_payloads(
    function: Function, places: _Places, liveness: Liveness, banks: Mapping[str, Bank], holds: Sequence[int]
) -> tuple[Function, _Places]:
    """The function with less in its innermost loops, and where tuples and scalars stand in `banks` then.

    `liveness` is that of the function; addresses that are not kept are left alone for the longest of `holds`, in
    instructions, for which there is room.
    """
    graph = [function.successors(n) for n in range(len(function.blocks))]
    everywhere = _Uses(function.blocks)
    gone: set[Instruction] = set()
    ahead: dict[int, Sequence[Instruction]] = {}
    for header, nodes in innermost(natural_loops(graph)).items():
        entries = [n for n, after in enumerate(graph) if header in after and n not in nodes]
        if entries != [header - 1] or graph[header - 1] != [header]:
            continue
        loop = _Uses([function.blocks[n] for n in nodes])
        span = sum((1 << liveness.starts[n + 1]) - (1 << liveness.starts[n]) for n in nodes)  # positions, as bits
        room, addresses, constants = (
            _Room(places, liveness, banks),
            loop.addresses(everywhere),
            loop.constants(everywhere),
        )
        kept, places = room.shared_out(list(addresses), span, holds)
        staying = room.kept(list(constants), span)
        places = {**places, **staying}
        moved, parts = [*(constants[v] for v in staying), *(addresses[v] for v in kept)], loop.same_parts()
        gone.update(moved, *parts)
        ahead[header - 1] = [*(same[0] for same in parts), *moved]
    if not gone:
        return function, places
    left = function.rewritten(lambda n, block: [*(i for i in block.instructions if i not in gone), *ahead.get(n, ())])
    return left, places


def steady_addresses(function: Function) -> int:
    """The most registers that addresses which stay the same take in any innermost loop."""
    graph = [function.successors(n) for n in range(len(function.blocks))]
    everywhere = _Uses(function.blocks)
    loops = (_Uses([function.blocks[n] for n in nodes]) for nodes in innermost(natural_loops(graph)).values())
    return max((len(loop.addresses(everywhere)) for loop in loops), default=0)


class _Room:
    """The registers of the banks, and who needs them where."""

    def __init__(self, places: _Places, liveness: Liveness, banks: Mapping[str, Bank]) -> None:
        self.places, self.liveness, self.banks = places, liveness, banks

    def kept(self, made: Sequence[VirtualRegister], span: int) -> Mapping[VirtualRegister, int]:
        """Places for as many of some scalars as can stay all through a loop of those positions."""
        free = [at for at, needed in self._needed("s", made, 0).items() if not needed & span]
        for count in range(len(made), 0, -1):
            taken = {self.places[v] for v in made[count:]}  # by those that are made there again
            places = [at for at in free if at not in taken]
            if count <= len(places):
                return dict(zip(made[:count], places))
        return {}

    def shared_out(
        self, made: Sequence[VirtualRegister], span: int, holds: Sequence[int]
    ) -> tuple[Sequence[VirtualRegister], _Places]:
        """Those of some addresses that stay all through a loop of those positions, and the places of all.

        None stays where the others would not be left alone for any time.
        """
        free = [at for at, needed in self._needed("v", made, 0).items() if not needed & span]
        order = [*made[::2], *made[1::2]]  # neighbours follow closely: not both take a register by turns
        for hold in sorted(holds, reverse=True):
            needed, live = self._needed("v", made, hold), self.liveness.ranges(hold=hold)
            for count in range(min(len(order), len(free)), 0, -1):
                kept = dict(zip(order[:count], free))
                others = {v: live[v] for v in made if v not in kept}
                by_turns = _placed(others, needed | {at: needed[at] | span for at in kept.values()})
                if by_turns is not None:
                    return list(kept), {**self.places, **kept, **by_turns}
        return [], self.places

    def _needed(self, bank: str, made: Sequence[VirtualRegister], hold: int) -> dict[int, int]:
        """The positions at which others than those made need each register of a bank, which they hold for a time."""
        needed = dict.fromkeys(range(self.banks[bank].first, self.banks[bank].limit), 0)
        apart = set(made)
        for v, live in self.liveness.ranges(hold=hold).items():
            if v.bank == bank and v not in apart:
                for at in range(self.places[v], self.places[v] + v.size):
                    if at in needed:
                        needed[at] |= live
        return needed


def _placed(live: Mapping[VirtualRegister, int], needed: dict[int, int]) -> dict[VirtualRegister, int] | None:
    """Places for registers that are needed at some positions each; None if there are too few."""
    found: dict[VirtualRegister, int] = {}
    for v in sorted(live, key=lambda v: live[v] & -live[v]):
        at = next((at for at, bits in needed.items() if not bits & live[v]), None)
        if at is None:
            return None
        needed[at] |= live[v]
        found[v] = at
    return found


class _Uses:
    """Who writes and reads which register in some code."""

    def __init__(self, blocks: Sequence[BasicBlock]) -> None:
        self.blocks = [block.instructions for block in blocks]
        self.code = code = [i for block in self.blocks for i in block]
        self.written = Counter(r.vreg for i in code for r in i.defs())
        self.readers: dict[VirtualRegister, list[Instruction]] = {}
        for i in code:
            for r in i.uses():
                self.readers.setdefault(r.vreg, []).append(i)

    def _is_steady(self, i: Instruction) -> bool:
        """Whether an instruction makes the same each time, by all that it says."""
        assert isinstance(i, XeInstruction)
        plain = i.op.name in _MAKERS and i.predicate is None and not i.condition
        return plain and all(isinstance(o, Inert) or (isinstance(o, Reg) and o.vreg not in self.written) for o in i.src)

    def constants(self, everywhere: _Uses) -> Mapping[VirtualRegister, Instruction]:
        """What puts a constant into a scalar that only this code reads."""
        return {v: i for v, i in self._own("s", everywhere) if isinstance(i.src[0], Literal)}

    def addresses(self, everywhere: _Uses) -> Mapping[VirtualRegister, Instruction]:
        """What makes an address that stays the same, which only messages of this code read."""
        own = self._own("v", everywhere)
        return {v: i for v, i in own if all(isinstance(reader.op, Message) for reader in self.readers.get(v, []))}

    def _own(self, bank: str, everywhere: _Uses) -> Iterator[tuple[VirtualRegister, Instruction]]:
        """The registers of a bank that only this code reads, and what alone writes each, always the same."""
        for i in self.code:
            to = i.dst[0] if len(i.dst) == 1 else None
            if not isinstance(to, Reg) or to.bank != bank or to.vreg.size > 1 or not self._is_steady(i):
                continue
            readers = (len(uses.readers.get(to.vreg, [])) for uses in (self, everywhere))
            if everywhere.written[to.vreg] == 1 and len(set(readers)) == 1:
                yield to.vreg, i

    def same_parts(self) -> list[list[Instruction]]:
        """What sets a dword of a register that nothing else here writes, always to the same value, ahead of readers."""
        writers: dict[_Dword, list[Instruction]] = {}
        for i in self.code:
            for place in _set_dwords(i):
                writers.setdefault(place, []).append(i)
        groups = (same for same in writers.values() if all(_is_part(i) and self._is_steady(i) for i in same))
        alike = (same for same in groups if len({recipe(i.op.name, "", 1, *i.src) for i in same}) == 1)
        return [same for same in alike if self._come_first(same)]

    def _come_first(self, same: Sequence[Instruction]) -> bool:
        """Whether in each block one of some instructions stands before all that read what they make."""
        (made,) = {r.vreg for i in same for r in i.defs()}
        for block in self.blocks:
            first = next((i for i in block if i in same or any(r.vreg is made for r in i.touched())), None)
            if first is not None and first not in same:
                return False
        return True


def _set_dwords(i: Instruction) -> Iterator[_Dword]:
    """The dwords of single registers that an instruction writes."""
    assert isinstance(i, XeInstruction)
    for r in i.defs():
        if r.bank == "v" and r.vreg.size == 1:
            dwords = range(_DWORDS)
            if isinstance(r, Region) and i.lanes == 1:
                begin, size = r.sub * TYPE_BYTES[r.type], TYPE_BYTES[r.type]
                dwords = range(begin // WORD_BYTES, -(-(begin + size) // WORD_BYTES))
            yield from ((r.vreg, dword) for dword in dwords)


def _is_part(i: Instruction) -> bool:
    """Whether an instruction writes a dword of a register and keeps the rest."""
    to = i.dst[0]
    assert isinstance(i, XeInstruction)
    return i.partial and i.lanes == 1 and isinstance(to, Region) and TYPE_BYTES[to.type] == WORD_BYTES
