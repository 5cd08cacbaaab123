"""Hoist stores to shared memory that write the same dwords in every iteration out of the loop.

If each iteration of an unrolled round has its own slot, the padding of a slot is equal in every round: zeros behind
the end of a run, for instance. Stored before the loop it takes no registers in the loop, and the loop's messages get
shorter.

The bytes that a message touches are computed from its addresses in all lanes of a workgroup. A message whose address
depends on anything else may touch any byte of its tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from convgen.ir import stmt as st
from convgen.ir.evaluate import Evaluator, InterpError, Value
from convgen.ir.expr import AddressOf, Expr, Pack, Slice, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.interp_messages import shared_bytes
from convgen.ir.layout.fragment import DWORD
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import free_vars, postorder, rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.types import u32, vector
from convgen.passes.clone import Cloner, changing_vars
from convgen.passes.unused import drop_unused

_BITS = 8 * DWORD

Mask = npt.NDArray[np.bool_]
_Span = tuple[int, int]  # first dword and number of dwords in a message


def hoist_stores(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Hoist writes of shared-memory dwords that are equal in every iteration out of loops; message level.

    Nothing else in the loop may write them, and neither a read of them nor a barrier may come before the write.
    """
    body = rewrite(kernel.body, {st.For: _Hoister(kernel, facts).hoisted})
    return kernel if body is kernel.body else evolve(kernel, body=drop_unused(body))


@frozen
class _Split:
    """A write split into writes of loop-invariant dwords and of all others."""

    invariant: tuple[st.Stmt, ...]
    changing: tuple[st.Stmt, ...]


class _Hoister:
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        self.kernel, self.facts = kernel, facts
        inside = statements(kernel.body)
        binders = Counter(v for s in inside for v in s.of_kind("Var"))
        self.lets = {s.var: s.value for s in inside if isinstance(s, st.Let) and binders[s.var] == 1}
        self.touched = _Touched(kernel, self.lets)

    @cached_property
    def cloner(self) -> Cloner:
        """Return a cloner; created late, as it visits all sites."""
        return Cloner(self.kernel)

    def hoisted(self, loop: st.For) -> st.Stmt:
        """Return the loop behind the writes hoisted from it."""
        body = st.stmts_of(loop.body)
        varying = changing_vars(loop)
        before: list[st.Stmt] = []
        new: list[st.Stmt] = []
        for n, s in enumerate(body):
            if any(isinstance(x, (st.Barrier, st.ExitIf)) for x in statements(s)):
                new += body[n:]
                break
            split = self._split(s, varying) if type(s) is st.SharedWrite else None
            if split and self._may_hoist(split, body[:n], body[n + 1 :]):
                before += split.invariant
                new += split.changing
            else:
                new.append(s)
        if not before:
            return loop
        return st.block(st.if_it_runs(loop, st.block(*before)), evolve(loop, body=st.block(*new)))

    def _split(self, s: st.SharedWrite, varying: Collection[Var]) -> _Split | None:
        """Split a write; None if no shorter message covers all changing dwords."""
        parts = _joined(_parts(s.value, self.lets))
        spans = _spans(_is_changing(parts, varying), self.facts.shared_widths)
        if spans is None:
            return None
        changing, invariant = spans
        try:
            return _Split(*(tuple(self._part(s, parts, span) for span in of) for of in (invariant, changing)))
        except _SplitElement:
            return None

    def _part(self, s: st.SharedWrite, parts: Sequence[Expr], span: _Span) -> st.Stmt:
        """Return the write of a span of a message's dwords."""
        first, count = span
        value = Pack(vector(u32, count), tuple(_bits(parts, _BITS * first, _BITS * (first + count))))
        return evolve(s, imm=s.imm + DWORD * first, value=value, site=self.cloner.site(s.site))

    def _may_hoist(self, split: _Split, earlier: Sequence[st.Stmt], later: Sequence[st.Stmt]) -> bool:
        """Return whether hoisted dwords are written nowhere else in the loop, nor read before their write."""
        others = [x for s in (*earlier, *later) for x in statements(s) if _tile(x.writes)]
        reads = [x for s in earlier for x in statements(s) if _tile(x.reads)]
        hoisted = [self.touched.exactly(s) for s in split.invariant]
        return all(
            mask is not None and not any((mask & self.touched(x)).any() for x in (*others, *reads)) for mask in hoisted
        )


# ---------------------------------------------------------------- values


class _SplitElement(Exception):
    """A part would begin or end inside an element."""


def _parts(e: Expr, lets: Mapping[Var, Expr]) -> Iterator[Expr]:
    """Yield the expressions that a value is packed from."""
    definition = lets.get(e, e) if isinstance(e, Var) else e
    if isinstance(definition, Pack):
        for part in definition.parts:
            yield from _parts(part, lets)
    else:
        yield e


def _joined(parts: Iterable[Expr]) -> list[Expr]:
    """Return the parts with neighbouring slices of one vector joined."""
    out: list[Expr] = []
    for part in parts:
        match out[-1:], part:
            case [Slice(a, start, count)], Slice(b, following, more) if a is b and start + count == following:
                out[-1] = Slice(a, start, count + more)
            case _:
                out.append(part)
    return out


def _is_changing(parts: Iterable[Expr], varying: Collection[Var]) -> list[bool]:
    """Return, for each dword, whether it depends on a varying variable."""
    bits: list[bool] = []
    for part in parts:
        bits += [any(v in varying for v in free_vars(part))] * part.type.bits
    return [any(bits[at : at + _BITS]) for at in range(0, len(bits), _BITS)]


def _bits(parts: Iterable[Expr], begin: int, end: int) -> Iterator[Expr]:
    """Yield the expressions packed in bits [begin, end)."""
    at = 0
    for part in parts:
        elem, (low, high) = part.type.elem.bits, (max(begin - at, 0), min(end - at, part.type.bits))
        if low == 0 and high == part.type.bits:
            yield part
        elif low < high:
            if low % elem or high % elem:
                raise _SplitElement
            yield Slice(part, low // elem, (high - low) // elem)
        at += part.type.bits


def _spans(changing: Sequence[bool], widths: Iterable[int]) -> tuple[list[_Span], list[_Span]] | None:
    """Return the span of one message that covers all changing dwords, and spans that cover the others.

    None if the first would be the whole message. A message begins at a multiple of the power of two in its width.
    """
    size, counts = len(changing), sorted(w // DWORD for w in widths if w % DWORD == 0)
    if not any(changing):
        return [], list(_covered(0, size, counts))
    first, last = changing.index(True), size - changing[::-1].index(True)
    starts = ((start, n) for n in counts if n < size for start in range(0, size - n + 1, n & -n))
    span = next(((start, n) for start, n in starts if start <= first and last <= start + n), None)
    if span is None:
        return None
    start, n = span
    return [span], [*_covered(0, start, counts), *_covered(start + n, size, counts)]


def _covered(at: int, end: int, counts: Sequence[int]) -> Iterator[_Span]:
    while at < end:
        n = max(n for n in counts if at + n <= end and at % (n & -n) == 0)
        yield at, n
        at += n


# ---------------------------------------------------------------- places


def _tile(memory: Iterable[object]) -> Shared | None:
    return next((m for m in memory if isinstance(m, Shared)), None)


_ADDRESSED = (st.SharedRead, st.SharedWrite, st.DirectMessage)


class _Touched(dict[st.Stmt, Mask | None]):
    """The bytes of a workgroup's shared memory that statements touch."""

    def __init__(self, kernel: Kernel, lets: Mapping[Var, Expr]) -> None:
        super().__init__()
        self.kernel, self.lets = kernel, lets
        self.ev = Evaluator(kernel.width, numbers=range(kernel.subgroups))
        numbers = np.repeat(np.arange(kernel.subgroups, dtype=kernel.subgroup.type.elem.numpy), kernel.width)
        self.ev.env[kernel.subgroup] = Value(numbers)

    def __call__(self, s: st.Stmt) -> Mask:
        """Return all bytes that a statement may touch."""
        tile, exactly = _tile(s.memory()), self.exactly(s)
        assert tile is not None
        return self._marked(tile, np.arange(tile.bytes)) if exactly is None else exactly

    def exactly(self, s: st.Stmt) -> Mask | None:
        """Return the bytes that a statement touches in any lane; None if its address depends on more than the lane."""
        if s not in self:
            self[s] = self._bytes_of(s) if isinstance(s, _ADDRESSED) else None
        return self[s]

    def _bytes_of(self, s: st.SharedRead | st.SharedWrite | st.DirectMessage) -> Mask | None:
        try:
            if not self._is_known(s.place if isinstance(s, st.DirectMessage) else s.address):
                return None
            at = shared_bytes(self.ev, s)
        except InterpError:  # in lanes that the kernel may mask off
            return None
        inside = at.min() >= 0 and at.max() < s.tile.bytes
        return self._marked(s.tile, at) if inside else None

    def _marked(self, tile: Shared, at: npt.NDArray[np.int64]) -> Mask:
        mask = np.zeros(self.kernel.shared_bytes, np.bool_)
        mask[self.kernel.shared_base(tile) + at] = True
        return mask

    def _is_known(self, e: Expr) -> bool:
        """Return whether an expression depends only on the lane and subgroup; then bind its variables."""
        inside = postorder(e)
        return not any(isinstance(n, AddressOf) for n in inside) and all(
            self._is_bound(n) for n in inside if isinstance(n, Var)
        )

    def _is_bound(self, v: Var) -> bool:
        definition = self.lets.get(v)
        if v not in self.ev.env and definition is not None and self._is_known(definition):
            self.ev.env[v] = self.ev(definition)
        return v in self.ev.env
