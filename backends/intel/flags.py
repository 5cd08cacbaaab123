"""Remove instructions that set flags again in a block, if a flag register can keep the flags in between.

Selection sets flags at each use: by a comparison for each register that is selected, by a move for each message with a
mask in a variable. An instruction that sets flags as an earlier one of its block did is removed; readers then use the
earlier flags. A copy of flags to a scalar that nothing reads any more is removed, too.

If `and` combines two comparisons of which neither is needed alone, one of them gets the other's flags as predicate and
as result, and the `and` is removed: a comparison keeps the flags of disabled lanes (IGC,
documentation/visa/instructions/CMP.md), which are zero here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from convgen.backends.intel.isa import Null, Region, Select, XeInstruction, recipe, region
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, VirtualRegister
from convgen.ir.record import define, evolve, frozen


def keep_flags(function: Function, most: int) -> Function:
    """Return the function without instructions that set flags again; a thread has `most` registers of 16 flags."""
    written = Counter(r.vreg for i in function.instructions() for r in i.defs() if r.bank == "f")
    users = Counter(v for block in function.blocks for v in {r.vreg for i in block.instructions for r in _flags(i)})
    local = {v for v, n in written.items() if n == 1 and users[v] == 1}
    # Pairs start at even registers. At worst a single register is taken in each pair, so only half of them count.
    usable = most // max((v.size for v in written), default=1)
    shorter = function.rewritten(lambda _, block: _with_predicates([*_Block(block, local, usable).needed()], local))
    read = {r.vreg for i in shorter.instructions() for r in i.uses()}

    def is_read(i: Instruction) -> bool:
        copy = _copy(i)
        return copy is None or copy.vreg in read

    return shorter.rewritten(lambda _, block: filter(is_read, block.instructions))


def _flags(i: Instruction) -> Iterator[Reg]:
    """Yield the flag registers that an instruction writes or reads."""
    return (r for r in (*i.defs(), *i.uses()) if r.bank == "f")


def _copy(i: Instruction) -> Reg | None:
    """Return the scalar to which an instruction copies flags, if that is all it does."""
    if i.op.name != "mov" or not isinstance(i.src[0], Reg) or i.src[0].bank != "f":
        return None
    to = i.dst[0]
    return to if isinstance(to, Reg) and to.bank == "s" and to.whole else None


def _set(i: XeInstruction) -> Reg | None:
    """Return the flags that an instruction sets in all its lanes, else None."""
    if i.predicate is not None or isinstance(i.op, Select):
        return None
    to = i.flag if i.flag is not None or len(i.dst) != 1 else i.dst[0]
    return to if isinstance(to, Reg) and to.bank == "f" and to.whole else None


def _only_sets(i: XeInstruction) -> bool:
    """Return whether an instruction has no result but flags."""
    return i.flag is None or all(isinstance(o, Null) for o in i.dst)


@define(eq=False)
class _KnownFlags:
    """Flags in their register, and the index of its last reader."""

    flags: Reg
    last: int


@frozen(eq=False)
class _Setter:
    """An instruction that sets known flags, and the registers that it reads."""

    known_flags: _KnownFlags
    sources: frozenset[VirtualRegister]


class _Renaming:
    """Flags that replace other flags."""

    def __init__(self) -> None:
        self.replacements: dict[VirtualRegister, Reg] = {}  # flags whose setter is removed -> flags that replace them

    def _renamed(self, i: XeInstruction) -> XeInstruction:
        """Return the instruction with replacements of the flags that it reads."""
        if all(r.vreg not in self.replacements for r in _flags(i)):
            return i
        predicate = None if i.predicate is None else self._replacement(i.predicate)
        return evolve(
            i, src=tuple(self._replacement(o) if isinstance(o, Reg) else o for o in i.src), predicate=predicate
        )

    def _replacement(self, r: Reg) -> Reg:
        replacement = self.replacements.get(r.vreg)
        if replacement is None:
            return r
        view = replacement.words(r.first, r.count)
        return region(view, r.type, r.sub, r.stride, signs=r.signs) if isinstance(r, Region) else view


class _Block(_Renaming):
    """The instructions of a block, with the known flags after each of them."""

    def __init__(self, block: BasicBlock, local: set[VirtualRegister], most: int) -> None:
        super().__init__()
        self.instructions, self.local, self.most = block.instructions, local, most
        self.last = {r.vreg: at for at, i in enumerate(block.instructions) for r in _flags(i)}
        self.taken = self._taken()
        self.setters: dict[tuple[object, ...], _Setter] = {}
        self.known_flags: dict[VirtualRegister, _KnownFlags] = {}

    def _taken(self) -> list[int]:
        """Return the flag registers in use at each instruction; those that other blocks use count everywhere."""
        in_use = [0] * len(self.instructions)
        first: dict[VirtualRegister, int] = {}
        for at, i in enumerate(self.instructions):
            for r in _flags(i):
                first.setdefault(r.vreg, at)
        for v, begin in first.items():
            for at in range(begin, self.last[v] + 1) if v in self.local else range(len(in_use)):
                in_use[at] += v.size
        return in_use

    def needed(self) -> Iterator[Instruction]:
        """Yield the instructions that are not redundant."""
        for at, i in enumerate(self.instructions):
            assert isinstance(i, XeInstruction)
            new = self._renamed(i)
            flags = _set(new)
            local_flags = flags if flags is not None and flags.vreg in self.local else None
            key = recipe(new.op.name, new.condition, new.lanes, *new.src) if local_flags is not None else ()
            setter = self.setters.get(key) if _only_sets(new) else None
            if local_flags is not None and setter is not None and self._keeps(setter.known_flags, at, local_flags.vreg):
                self.replacements[local_flags.vreg] = setter.known_flags.flags
                continue
            yield new
            self._forget(new)
            if local_flags is not None:
                known = _KnownFlags(local_flags, self.last[local_flags.vreg])
                sources = frozenset(r.vreg for r in new.uses())
                self.known_flags[local_flags.vreg] = known
                if sources.isdisjoint(r.vreg for r in new.defs()):
                    self.setters[key] = _Setter(known, sources)
            elif (copy := _copy(new)) is not None and (source := self.known_flags.get(new.uses()[0].vreg)) is not None:
                self.setters[recipe("mov", "", 1, region(copy, "uw", 0, 0))] = _Setter(source, frozenset((copy.vreg,)))

    def _keeps(self, known_flags: _KnownFlags, at: int, replaced: VirtualRegister) -> bool:
        """Return whether flags can stay in their register up to index `at`, to replace `replaced`; if so, do it."""
        between = range(known_flags.last + 1, at)
        if any(self.taken[n] + known_flags.flags.count > self.most for n in between):
            return False
        for n in between:
            self.taken[n] += known_flags.flags.count
        known_flags.last = max(known_flags.last, self.last[replaced])
        return True

    def _forget(self, i: XeInstruction) -> None:
        """Drop the setters whose sources an instruction overwrites."""
        written = {r.vreg for r in i.defs()}
        if any(not written.isdisjoint(setter.sources) for setter in self.setters.values()):
            self.setters = {key: setter for key, setter in self.setters.items() if written.isdisjoint(setter.sources)}


def _with_predicates(block: Sequence[Instruction], local: set[VirtualRegister]) -> Sequence[Instruction]:
    """Return the block with each `and` of two comparisons replaced by a comparison under the other one's flags."""
    return _Predicating(block, local).out if any(map(_anded_flags, block)) else block


class _Predicating(_Renaming):
    """The instructions of a block that combines flags, with the comparisons that may move down."""

    def __init__(self, block: Sequence[Instruction], local: set[VirtualRegister]) -> None:
        super().__init__()
        self.out: list[Instruction] = []
        self.touched = Counter(r.vreg for i in block for r in _flags(i))
        self.last = {r.vreg: at for at, i in enumerate(block) for r in _flags(i)}
        self.local = local
        self.setters: dict[VirtualRegister, XeInstruction] = {}  # flags -> comparison that sets them
        for at, i in enumerate(block):
            assert isinstance(i, XeInstruction)
            self._append(self._predicated(self._renamed(i), at))

    def _append(self, i: XeInstruction) -> None:
        if self.setters:
            written = {r.vreg for r in i.defs()}
            self.setters = {
                v: m for v, m in self.setters.items() if written.isdisjoint((v, *(r.vreg for r in m.uses())))
            }
        if i.flag is not None and i.op.name == "cmp" and i.predicate is None and _only_sets(i):
            self.setters[i.flag.vreg] = i
        self.out.append(i)

    def _predicated(self, i: XeInstruction, at: int) -> XeInstruction:
        """Return a predicated comparison instead of an `and` of two flags, where possible."""
        for flags_of_setter, flags_under_it in permutations(_anded_flags(i), 2):
            setter, result = self.setters.get(flags_of_setter.vreg), i.defs()[0]
            if setter is None or not self.local.issuperset((flags_of_setter.vreg, flags_under_it.vreg, result.vreg)):
                continue
            if self.touched[flags_of_setter.vreg] == 2 and self.last[flags_under_it.vreg] == at:
                self.out.remove(setter)
                self.replacements[result.vreg] = flags_under_it
                self.last[flags_under_it.vreg] = self.last[result.vreg]
                return evolve(setter, predicate=flags_under_it, flag=flags_under_it)
        return i


def _anded_flags(i: Instruction) -> Sequence[Reg]:
    """Return the two flags that an `and` combines; empty for other instructions."""
    if i.op.name != "and":
        return ()
    flags = [r for r in (*i.defs(), *i.uses()) if r.bank == "f" and r.whole]
    return flags[1:] if len(flags) == 3 else ()
