"""Of messages whose addresses are constants apart all but the lowest get theirs from that, in fewer instructions.

A flat address is put together of a base and of offsets of 32 bits, which lanes do in some steps; a constant is one more
sum. What it adds to an offset it adds to the address, too, unless the offset wraps: neither of two offsets does that
have 31 bits, and constants of 30. On a surface the constant goes into the immediate of the message, as far as this
goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

from convgen.ir import stmt as st
from convgen.ir.expr import Add, And, Cast, Expr, Or, const
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.rules import number
from convgen.ir.simplify.sums import LinearForms
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import s32, u32, u64

_Flat = st.FlatLoad | st.FlatStore
_OnSurface = st.GlobalLoad | st.GlobalStore
_Message = _Flat | _OnSurface
_Placed = tuple[int, _Message]  #: a message, with the constants in its offsets
_SIGN = 1 << 31
_FAR = 1 << 30  #: bytes; constants are less, so that two are less than half of what 32 bits hold apart


def share_addresses(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Addresses of messages in a block that are constants apart are the lowest of them and these; message level."""
    return evolve(kernel, body=rewrite(kernel.body, {st.Block: _Sharer(kernel, facts).shared}))


class _Sharer:
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        self.linear, self.bounds = LinearForms(), Bounds(var_ranges(kernel), kernel.width)
        self.imm_max = facts.global_imm_max

    def shared(self, s: st.Block) -> st.Block:
        """The block, of whose messages those that are constants apart share the lowest address."""
        new: dict[st.Stmt, st.Stmt] = {}
        messages = [each for each in s.stmts if isinstance(each, _Message)]
        # Whether offsets may wrap is asked of those that are constants apart if they do not: it takes longer.
        for alike in self._alike(messages, lambda offset: offset.type is s32):
            for found in self._alike([each for _, each in alike], self._is_plain):
                least, lowest = found[0]
                for constant, each in found:
                    if isinstance(each, _OnSurface) and each.imm + constant - least > self.imm_max:
                        least, lowest = constant, each
                    elif constant > least:
                        new[each] = _moved(each, lowest, constant - least)
        return evolve(s, stmts=tuple(new.get(each, each) for each in s.stmts)) if new else s

    def _alike(self, messages: Sequence[_Message], is_plain: Callable[[Expr], bool]) -> Iterator[list[_Placed]]:
        """Those that are constants apart, the lowest first."""
        alike: dict[Hashable, list[_Placed]] = {}
        for each in messages:
            rest, constant = self._apart(each, is_plain)
            alike.setdefault(rest, []).append((constant, each))
        for found in alike.values():
            found.sort(key=lambda placed: placed[0])
            if found[0][0] < found[-1][0]:
                yield found

    def _apart(self, message: _Message, is_plain: Callable[[Expr], bool]) -> tuple[Hashable, int]:
        """Where a message is but for the constants in its plain offsets, and their sum."""
        rest: list[Hashable] = []
        total = 0
        for part, offset in _offsets(message):
            if offset is not None and is_plain(offset):
                terms, constant = self.linear(offset)
                rest.append(frozenset(terms.items()))
                total += constant
            else:
                rest.append(part)
        return frozenset(Counter(rest).items()), total

    def _is_plain(self, offset: Expr) -> bool:
        """Whether an offset is not negative, and its constant small."""
        return offset.type is s32 and self.bounds(offset)[0] >= 0 and abs(self.linear(offset)[1]) < _FAR


def _moved(message: _Message, lowest: _Message, by: int) -> _Message:
    """The message by so many bytes from where the lowest is, rather than where it is by itself."""
    if isinstance(message, _OnSurface):
        assert isinstance(lowest, _OnSurface)
        return evolve(message, varying=lowest.varying, imm=message.imm + by)
    assert isinstance(lowest, _Flat)
    return evolve(message, address=lowest.address + const(by, u64))


def _offsets(message: _Message) -> Iterator[tuple[Expr, Expr | None]]:
    """What an address is put together of, and as an offset of 32 bits, if it is one.

    On a surface that is the varying offset, of which the sign may be set in lanes that have nothing there.
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
