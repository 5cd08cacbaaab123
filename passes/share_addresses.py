"""Of messages whose addresses are constants apart all but the lowest get theirs from that, in fewer instructions.

A flat address is put together of a base and of offsets of 32 bits, which lanes do in some steps; a constant is one more
sum. What it adds to an offset it adds to the address, too, unless the offset wraps: neither of two offsets does that
have 31 bits, and constants of 30.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from convgen.ir import stmt as st
from convgen.ir.expr import Add, Cast, Expr, const
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite
from convgen.ir.node import replace
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.scopes import var_ranges
from convgen.ir.simplify.sums import LinearForms
from convgen.ir.types import s32, u32, u64

_Flat = st.FlatLoad | st.FlatStore
_FAR = 1 << 30  #: bytes; constants are less, so that two are less than half of what 32 bits hold apart


def share_addresses(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Flat addresses in a block that are constants apart are sums of the lowest of them and these; message level."""
    if not facts.flat:
        return kernel
    return replace(kernel, body=rewrite(kernel.body, {st.Block: _Sharer(kernel).shared}))


class _Sharer:
    def __init__(self, kernel: Kernel) -> None:
        self.linear, self.bounds = LinearForms(), Bounds(var_ranges(kernel), kernel.width)

    def shared(self, s: st.Block) -> st.Block:
        """The block, of whose messages those that are constants apart share the lowest address."""
        alike: dict[Hashable, list[tuple[int, _Flat]]] = {}
        for each in s.stmts:
            if isinstance(each, st.FlatLoad | st.FlatStore):
                rest, constant = self._apart(each.address)
                alike.setdefault(rest, []).append((constant, each))
        new: dict[st.Stmt, st.Stmt] = {}
        for found in alike.values():
            least, lowest = min(found, key=lambda item: item[0])
            for constant, each in found:
                if constant > least:
                    new[each] = replace(each, address=lowest.address + const(constant - least, u64))
        return replace(s, stmts=tuple(new.get(each, each) for each in s.stmts)) if new else s

    def _apart(self, address: Expr) -> tuple[Hashable, int]:
        """An address but for the constants in its offsets, and their sum."""
        rest: list[Hashable] = []
        total = 0
        for part in _parts(address):
            match part:
                case Cast(_, Cast(_, offset) as unsigned) if unsigned.type is u32 and self._is_plain(offset):
                    terms, constant = self.linear(offset)
                    rest.append(frozenset(terms.items()))
                    total += constant
                case _:
                    rest.append(part)
        return frozenset(Counter(rest).items()), total

    def _is_plain(self, offset: Expr) -> bool:
        """Whether an offset is not negative, and its constant small."""
        return offset.type is s32 and self.bounds(offset)[0] >= 0 and abs(self.linear(offset)[1]) < _FAR


def _parts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Add):
        yield from _parts(e.a)
        yield from _parts(e.b)
    else:
        yield e
