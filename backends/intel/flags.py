"""Flags that a block sets twice are set once, where there is a flag register to keep them in between.

Selection makes flags where they are used: a comparison for each register that is chosen by it, a move for each message
under a mask that has a name. What sets flags as an earlier instruction of its block did goes, and what reads its flags
reads the earlier ones. So goes a copy of flags in a scalar that nobody reads any more.

Of two comparisons that both must hold, one is made in the lanes where the other does, in its flags, where nobody needs
these by themselves: `and` goes. A comparison keeps the flags of lanes that are off (IGC,
documentation/visa/instructions/CMP.md), and those are zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from convgen.backends.intel.isa import Null, Region, Select, XeInstruction, recipe, region
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, VirtualRegister
from convgen.ir.record import define, evolve, frozen


def keep_flags(function: Function, most: int) -> Function:
    """The function without what sets flags that are there still; a thread has `most` registers of 16 flags."""
    written = Counter(r.vreg for i in function.instructions() for r in i.defs() if r.bank == "f")
    users = Counter(v for block in function.blocks for v in {r.vreg for i in block.instructions for r in _flags(i)})
    local = {v for v, n in written.items() if n == 1 and users[v] == 1}
    room = most // max((v.size for v in written), default=1)  # pairs stand even, each perhaps between two alone
    found = function.rewritten(lambda _, block: _compared_in_place([*_Block(block, local, room).left()], local))
    read = {r.vreg for i in found.instructions() for r in i.uses()}

    def is_read(i: Instruction) -> bool:
        copy = _copy(i)
        return copy is None or copy.vreg in read

    return found.rewritten(lambda _, block: filter(is_read, block.instructions))


def _flags(i: Instruction) -> Iterator[Reg]:
    """The flag registers that an instruction writes or reads."""
    return (r for r in (*i.defs(), *i.uses()) if r.bank == "f")


def _copy(i: Instruction) -> Reg | None:
    """The scalar to which an instruction copies flags, if that is what it does."""
    if i.op.name != "mov" or not isinstance(i.src[0], Reg) or i.src[0].bank != "f":
        return None
    to = i.dst[0]
    return to if isinstance(to, Reg) and to.bank == "s" and to.whole else None


def _set(i: XeInstruction) -> Reg | None:
    """The flags that an instruction sets, those of all its lanes."""
    if i.predicate is not None or isinstance(i.op, Select):
        return None
    to = i.flag if i.flag is not None or len(i.dst) != 1 else i.dst[0]
    return to if isinstance(to, Reg) and to.bank == "f" and to.whole else None


def _only_sets(i: XeInstruction) -> bool:
    """Whether flags are all that an instruction makes."""
    return i.flag is None or all(isinstance(o, Null) for o in i.dst)


@define(eq=False)
class _Held:
    """Flags in their register, and the last place where that is read."""

    flags: Reg
    last: int


@frozen(eq=False)
class _Maker:
    """What would make flags again, from these registers."""

    held: _Held
    sources: frozenset[VirtualRegister]


class _Renaming:
    """Flags that stand for others."""

    def __init__(self) -> None:
        self.instead: dict[VirtualRegister, Reg] = {}  # of flags that are not set: those that are there

    def _on_kept(self, i: XeInstruction) -> XeInstruction:
        """The instruction, reading the flags that are kept."""
        if all(r.vreg not in self.instead for r in _flags(i)):
            return i
        predicate = None if i.predicate is None else self._kept(i.predicate)
        return evolve(i, src=tuple(self._kept(o) if isinstance(o, Reg) else o for o in i.src), predicate=predicate)

    def _kept(self, r: Reg) -> Reg:
        kept = self.instead.get(r.vreg)
        if kept is None:
            return r
        view = kept.words(r.first, r.count)
        return region(view, r.type, r.sub, r.stride, signs=r.signs) if isinstance(r, Region) else view


class _Block(_Renaming):
    """The instructions of a block, with what is known of flags behind each of them."""

    def __init__(self, block: BasicBlock, local: set[VirtualRegister], most: int) -> None:
        super().__init__()
        self.instructions, self.local, self.most = block.instructions, local, most
        self.last = {r.vreg: at for at, i in enumerate(block.instructions) for r in _flags(i)}
        self.taken = self._taken()
        self.makers: dict[tuple[object, ...], _Maker] = {}
        self.held: dict[VirtualRegister, _Held] = {}

    def _taken(self) -> list[int]:
        """Flag registers in use at each place; what other blocks know of is so everywhere."""
        taken = [0] * len(self.instructions)
        first: dict[VirtualRegister, int] = {}
        for at, i in enumerate(self.instructions):
            for r in _flags(i):
                first.setdefault(r.vreg, at)
        for v, begin in first.items():
            for at in range(begin, self.last[v] + 1) if v in self.local else range(len(taken)):
                taken[at] += v.size
        return taken

    def left(self) -> Iterator[Instruction]:
        """The instructions that are not in vain."""
        for at, i in enumerate(self.instructions):
            assert isinstance(i, XeInstruction)
            new = self._on_kept(i)
            flags = _set(new)
            own = flags if flags is not None and flags.vreg in self.local else None
            key = recipe(new.op.name, new.condition, new.lanes, *new.src) if own is not None else ()
            maker = self.makers.get(key) if _only_sets(new) else None
            if own is not None and maker is not None and self._keeps(maker.held, at, own.vreg):
                self.instead[own.vreg] = maker.held.flags
                continue
            yield new
            self._forget(new)
            if own is not None:
                held, sources = _Held(own, self.last[own.vreg]), frozenset(r.vreg for r in new.uses())
                self.held[own.vreg] = held
                if sources.isdisjoint(r.vreg for r in new.defs()):
                    self.makers[key] = _Maker(held, sources)
            elif (copy := _copy(new)) is not None and (source := self.held.get(new.uses()[0].vreg)) is not None:
                self.makers[recipe("mov", "", 1, region(copy, "uw", 0, 0))] = _Maker(source, frozenset((copy.vreg,)))

    def _keeps(self, held: _Held, at: int, instead: VirtualRegister) -> bool:
        """Whether flags can stay in their register up to a place, from where on they do for others."""
        between = range(held.last + 1, at)
        if any(self.taken[n] + held.flags.count > self.most for n in between):
            return False
        for n in between:
            self.taken[n] += held.flags.count
        held.last = max(held.last, self.last[instead])
        return True

    def _forget(self, i: XeInstruction) -> None:
        """Of what an instruction writes, flags are no longer made as they were."""
        written = {r.vreg for r in i.defs()}
        if any(not written.isdisjoint(maker.sources) for maker in self.makers.values()):
            self.makers = {key: maker for key, maker in self.makers.items() if written.isdisjoint(maker.sources)}


def _compared_in_place(block: Sequence[Instruction], local: set[VirtualRegister]) -> Sequence[Instruction]:
    """The instructions of a block, comparisons made under the flags that theirs were joined with."""
    return _Joining(block, local).left if any(map(_joined, block)) else block


class _Joining(_Renaming):
    """The instructions of a block in which flags are joined, with the comparisons that may stand later, too."""

    def __init__(self, block: Sequence[Instruction], local: set[VirtualRegister]) -> None:
        super().__init__()
        self.left: list[Instruction] = []
        self.touched = Counter(r.vreg for i in block for r in _flags(i))
        self.last = {r.vreg: at for at, i in enumerate(block) for r in _flags(i)}
        self.local = local
        self.makers: dict[VirtualRegister, XeInstruction] = {}  # comparisons by their flags
        for at, i in enumerate(block):
            assert isinstance(i, XeInstruction)
            self._put(self._made_in_place(self._on_kept(i), at))

    def _put(self, i: XeInstruction) -> None:
        if self.makers:
            written = {r.vreg for r in i.defs()}
            self.makers = {v: m for v, m in self.makers.items() if written.isdisjoint((v, *(r.vreg for r in m.uses())))}
        if i.flag is not None and i.op.name == "cmp" and i.predicate is None and _only_sets(i):
            self.makers[i.flag.vreg] = i
        self.left.append(i)

    def _made_in_place(self, i: XeInstruction, at: int) -> XeInstruction:
        """Instead of what joins two flags, the comparison that set one of them."""
        for own, other in permutations(_joined(i), 2):
            maker, result = self.makers.get(own.vreg), i.defs()[0]
            if maker is None or not self.local.issuperset((own.vreg, other.vreg, result.vreg)):
                continue
            if self.touched[own.vreg] == 2 and self.last[other.vreg] == at:
                self.left.remove(maker)
                self.instead[result.vreg] = other
                self.last[other.vreg] = self.last[result.vreg]
                return evolve(maker, predicate=other, flag=other)
        return i


def _joined(i: Instruction) -> Sequence[Reg]:
    """Two flags of which an instruction makes those that are set in both."""
    if i.op.name != "and":
        return ()
    flags = [r for r in (*i.defs(), *i.uses()) if r.bank == "f" and r.whole]
    return flags[1:] if len(flags) == 3 else ()
