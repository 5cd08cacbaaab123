"""Derive message addresses that differ by constants from the lowest of them, which takes fewer instructions.

A flat address is the sum of a base and 32-bit offsets, which takes several vector instructions; adding a constant to
another address takes one. A constant in an offset may be added to the address instead, unless the offset wraps: offsets
below 2^31 with constants below 2^30 do not. On a surface the constant goes into the message's immediate, within its
range.

Beyond that range a loop keeps each offset in a vector register. Where vector registers do not suffice, the constant
goes into the start of the surface, which takes scalar registers, so that the loop computes no sums anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

from convgen.ir import stmt as st
from convgen.ir.expr import Add, And, Cast, Const, Expr, Or, Surface, const
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.rules import number
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.sums import LinearForms
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import Type, s32, u32, u64
from convgen.passes.place_lets import spare_registers

_OnSurface = st.GlobalLoad | st.GlobalStore
_Message = st.FlatMessage | _OnSurface
_Numbered = tuple[int, _Message]  #: the sum of the constants in a message's offsets, and the message
_SIGN = 1 << 31
_FAR = 1 << 30  #: bytes; bound of constants: two of them differ by less than half the range of 32 bits
_MOST_SURFACES = 12  #: shifted surfaces of a loop, of 4 scalar registers each; chosen


def share_addresses(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Derive addresses in a block that differ by constants from the lowest of them; message level."""
    sharer = _Sharer(kernel, facts)
    shared = evolve(kernel, body=rewrite(kernel.body, {st.Block: sharer.shared}))
    if not facts.checks_bounds:
        return shared
    spare = spare_registers(shared, facts)
    return evolve(shared, body=rewrite(shared.body, {st.For: lambda loop: sharer.shifted(loop, spare)}))


class _Sharer:
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        self.linear, self.bounds = LinearForms(), Bounds(var_ranges(kernel), kernel.width)
        self.imm_max = facts.global_imm_max

    def shared(self, s: st.Block) -> st.Block:
        """Return the block with messages at constant distances based on the lowest address."""
        new: dict[st.Stmt, st.Stmt] = {}
        messages = [message for message in s.stmts if isinstance(message, _Message)]
        # First group messages as if no offset wraps, then check that in each group: the check is slow.
        for candidates in self._groups(messages, lambda offset: offset.type is s32):
            for group in self._groups([message for _, message in candidates], self._does_not_wrap):
                base, lowest = group[0]
                for constant, message in group:
                    if isinstance(message, _OnSurface) and message.imm + constant - base > self.imm_max:
                        base, lowest = constant, message
                    elif constant > base:
                        new[message] = _moved(message, lowest, constant - base)
        return evolve(s, stmts=tuple(new.get(message, message) for message in s.stmts)) if new else s

    def shifted(self, loop: st.For, spare: int) -> st.For:
        """Return the loop with surfaces shifted in place of offsets, if `spare` registers do not hold these."""
        messages = [s for s in statements(loop.body) if isinstance(s, _OnSurface) and isinstance(s.surface, Surface)]
        if len({message.varying for message in messages}) <= spare:
            return loop
        new: dict[st.Stmt, st.Stmt] = {}
        surfaces: set[Surface] = set()
        for group in self._groups(messages, self._does_not_wrap):
            base, lowest = group[0]
            assert isinstance(lowest, _OnSurface)
            for constant, message in group:
                assert isinstance(message, _OnSurface)
                surface = _shifted(message, constant - base) if message.varying != lowest.varying else None
                if surface is not None and len(surfaces | {surface}) <= _MOST_SURFACES:
                    surfaces.add(surface)
                    new[message] = evolve(message, surface=surface, varying=lowest.varying)
        return evolve(loop, body=rewrite(loop.body, dict.fromkeys(map(type, new), lambda s: new.get(s, s))))

    def _groups(self, messages: Sequence[_Message], is_exact: Callable[[Expr], bool]) -> Iterator[list[_Numbered]]:
        """Yield groups of messages at constant distances, lowest first, if offsets that are `is_exact` do not wrap."""
        groups: dict[Hashable, list[_Numbered]] = {}
        for each in messages:
            rest, constant = self._without_constants(each, is_exact)
            groups.setdefault(rest, []).append((constant, each))
        for group in groups.values():
            group.sort(key=lambda numbered: numbered[0])
            if group[0][0] < group[-1][0]:
                yield group

    def _without_constants(self, message: _Message, is_exact: Callable[[Expr], bool]) -> tuple[Hashable, int]:
        """Return a message's address without the constants in its exact offsets, and the sum of these constants."""
        rest: list[Hashable] = []
        total = 0
        for part, offset in _offsets(message):
            if offset is not None and is_exact(offset):
                terms, constant = self.linear(offset)
                rest.append(frozenset(terms.items()))
                total += constant
            else:
                rest.append(part)
        return frozenset(Counter(rest).items()), total

    def _does_not_wrap(self, offset: Expr) -> bool:
        """Return whether an offset without its constant does not wrap: it is not negative, and the constant small."""
        return offset.type is s32 and self.bounds(offset)[0] >= 0 and abs(self.linear(offset)[1]) < _FAR


def _moved(message: _Message, lowest: _Message, by: int) -> _Message:
    """Return the message addressed as the lowest one's address plus `by` bytes."""
    if isinstance(message, _OnSurface):
        assert isinstance(lowest, _OnSurface)
        return evolve(message, varying=lowest.varying, imm=message.imm + by)
    assert isinstance(lowest, st.FlatMessage)
    return evolve(message, address=lowest.address + const(by, u64))


def _shifted(message: _OnSurface, by: int) -> Surface | None:
    """Return a message's surface from `by` bytes on; None if its extent is unknown or no greater than that."""
    match message.surface:
        case Surface(buffer, shift, Const(Type() as sized, extent)) if by < extent and isinstance(shift.type, Type):
            return Surface(buffer, simplify(shift + const(by, shift.type)), const(extent - by, sized))
    return None


def _offsets(message: _Message) -> Iterator[tuple[Expr, Expr | None]]:
    """Yield the addends of an address, each with the 32-bit offset that it widens, None for other addends.

    On a surface the varying offset is the only addend; its sign bit may be set in lanes without an element.
    """
    if isinstance(message, _OnSurface):
        match message.varying:
            case Or(Cast(_, And(_, sign)) as mask, offset) if number(sign) == _SIGN:
                yield mask, None
                yield offset, offset
            case offset:
                yield offset, offset
        return
    for part in _parts(message.address):
        match part:
            case Cast(_, Cast(_, offset) as unsigned) if unsigned.type is u32:
                yield part, offset
            case _:
                yield part, None


def _parts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Add):
        yield from _parts(e.a)
        yield from _parts(e.b)
    else:
        yield e
