"""Rules that every machine function keeps, on virtual and on physical registers; checked after each stage in tests.

- Control: labels are unique, branches go to labels, only the last instruction of a block leaves it, and the last block
  does not fall through.
- Operands: views lie within their registers, and registers in existing banks; number, banks and words match the
  opcode's roles.
- Places: once a register of a bank is placed, all are: within the bank, aligned, pinned ones at their place.
- Contents: on every path to a read, the place holds the intended word of the intended register. So nothing is read
  before it is written, and no two live registers share a place. An early clobber does not overlap its sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from convgen.backends.machine.allocate import Allocation, Bank
from convgen.backends.machine.assembly import line, place
from convgen.backends.machine.dataflow import solve
from convgen.backends.machine.instruction import Function, Instruction, Operand, Reg, Role, VirtualRegister
from convgen.ir.error import VerifyError
from convgen.ir.record import frozen

Word = tuple[str, int, int]  #: physical: (bank, 0, place); virtual: (bank, number of the register, word)
Held = Mapping[Word, Word]  #: place -> the word of a virtual register that it holds


def verify(function: Function, banks: Mapping[str, Bank], allocation: Allocation) -> None:
    """Raise VerifyError for the first rule that a function breaks."""
    checker = _Checker(function, banks, allocation)
    for problem in checker.control():
        raise VerifyError(f"{function.name}: {problem}")
    for block in function.blocks:
        for i in block.instructions:
            views = (*i.defs(), *i.uses())
            for problem in (*checker.operands(i, views), *checker.places(i, views)):
                raise checker.error(block.label, i, problem)
    checker.contents()


@frozen
class _Checker:
    function: Function
    banks: Mapping[str, Bank]
    allocation: Allocation
    numbers: dict[int, VirtualRegister] = attrs.field(init=False, factory=dict)
    seen: set[VirtualRegister] = attrs.field(init=False, factory=set)  #: registers whose place has been checked

    @cached_property
    def placed(self) -> frozenset[str]:
        """Banks whose registers have places."""
        return frozenset(v.bank for v in self.allocation.base)

    def error(self, label: str, i: Instruction, problem: str) -> VerifyError:
        shown = line(i, lambda r: place(r, self.allocation))
        return VerifyError(f"{self.function.name}: {problem}, in {label}: {shown}")

    # ------------------------------------------------------------ control and operands

    def control(self) -> Iterator[str]:
        blocks = self.function.blocks
        labels = [b.label for b in blocks]
        yield from (f"label {name} stands twice" for n, name in enumerate(labels) if name in labels[:n])
        for b in blocks:
            for i in b.instructions:
                if i.target and i.target not in labels:
                    yield f"no block {i.target}, where {b.label} goes"
                if (i.target or i.op.ends or i.op.jumps) and i is not b.instructions[-1]:
                    yield f"{i.op.name} leaves {b.label} before its end"
        last = blocks[-1].instructions[-1:] if blocks else []
        if not any(i.op.ends or i.op.jumps for i in last):
            yield "the last block does not end the program"

    def operands(self, i: Instruction, views: Sequence[Reg]) -> Iterator[str]:
        for kind, operands, roles in (("result", i.dst, i.op.results), ("source", i.src, i.op.sources)):
            if roles and len(roles) != len(operands):
                yield f"{len(operands)} {kind}s, wanted {', '.join(r.name for r in roles)}"
            for operand, role in zip(operands, roles):
                yield from self._role(operand, role)
        for r in views:
            if not 0 <= r.first < r.first + r.count <= r.vreg.size:
                yield f"words {r.first} to {r.first + r.count - 1} of {r.vreg}"
            if r.bank not in self.banks:
                yield f"{r.vreg} in no bank of {', '.join(self.banks)}"
            elif i.op.banks and r.bank not in i.op.banks:
                yield f"{r.vreg} is an operand, wanted one in bank {' or '.join(i.op.banks)}"
            if self.numbers.setdefault(r.vreg.number, r.vreg) is not r.vreg:
                yield f"two registers with the number of {r.vreg}"

    def _role(self, operand: Operand, role: Role) -> Iterator[str]:
        if isinstance(operand, Reg):
            if role.banks and operand.bank not in role.banks:
                yield f"{role.name} in bank {operand.bank}, wanted {' or '.join(role.banks)}"
            if role.words and operand.count != role.words:
                yield f"{role.name} of {operand.count} words, wanted {role.words}"

    # ------------------------------------------------------------ places

    def places(self, i: Instruction, views: Sequence[Reg]) -> Iterator[str]:
        for r in views:
            if r.bank in self.placed and r.vreg not in self.seen:
                self.seen.add(r.vreg)
                yield from self._misplaced(r.vreg)
        if i.early_clobber:
            sources = {self.home(r, n): r.vreg for r in i.uses() for n in range(r.first, r.first + r.count)}
            for d in i.defs():
                others = (sources.get(self.home(d, n), d.vreg) for n in range(d.first, d.first + d.count))
                if any(v is not d.vreg for v in others):
                    yield "a source is overwritten before it is read"

    def _misplaced(self, v: VirtualRegister) -> Iterator[str]:
        base, bank = self.allocation.base.get(v), self.banks[v.bank]
        if base is None:
            yield f"{v} has no place"
        elif not 0 <= base <= base + v.size <= bank.limit:
            yield f"{v} at {base}, wanted a place within {bank.limit} words"
        elif v.fixed is not None and base != v.fixed % bank.limit:
            yield f"{v} at {base}, wanted {v.fixed % bank.limit}"
        elif v.fixed is None and base % bank.align(v.size):
            yield f"{v} at {base}, wanted a multiple of {bank.align(v.size)}"

    def home(self, r: Reg, word: int) -> Word:
        """Return the place of word number `word` of a view's register."""
        if r.bank in self.placed:
            return r.bank, 0, self.allocation.base[r.vreg] + word
        return r.bank, r.vreg.number, word

    # ------------------------------------------------------------ contents

    def contents(self) -> None:
        """Follow the contents of places over all paths. Raises VerifyError for a read of another word."""
        written = [dict(self._words(r for i in b.instructions for r in i.defs())) for b in self.function.blocks]
        entry = solve(self.function, self._inputs(), lambda index, held: {**held, **written[index]}, _agreed)
        for index, held in entry.items():
            now, block = dict(held), self.function.blocks[index]
            for i in block.instructions:
                for at, word in self._words(i.touched()):
                    if now.get(at) != word:
                        raise self.error(block.label, i, f"word {word[2]} of %{word[0]}{word[1]} is not there")
                now.update(self._words(i.defs()))

    def _inputs(self) -> Held:
        """Return the initial contents: pinned registers that no instruction writes without also reading them."""
        written = {v for i in self.function.instructions() for v in _vregs(i.defs()) - _vregs(i.uses())}
        read = (r for i in self.function.instructions() for r in i.uses())
        pinned = (v for v in dict.fromkeys(r.vreg for r in read) if v.fixed is not None and v not in written)
        return dict(self._words(Reg(v, 0, v.size) for v in pinned))

    def _words(self, registers: Iterable[Reg]) -> Iterator[tuple[Word, Word]]:
        """Yield each word of some views with its place."""
        for r in registers:
            bank, number = r.bank, r.vreg.number
            for n in range(r.first, r.first + r.count):
                yield self.home(r, n), (bank, number, n)


def _vregs(registers: Iterable[Reg]) -> set[VirtualRegister]:
    return {r.vreg for r in registers}


def _agreed(a: Held, b: Held) -> Held:
    """Return the contents of places that hold one word on both paths."""
    return {at: word for at, word in a.items() if b.get(at) == word}
