"""Legalize messages that a target lacks: cut wide ones, turn surfaces into addresses and masks.

`lower_tiles` only emits legal messages; this pass is for hand-written kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Any

from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Const, Expr, Pack, Slice, Surface, Var, const, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import Mutator, statements
from convgen.ir.node import CLASSES
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.extents import divisor
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import AnyType, Type, bool_, u8, u16, u32, u64, vector
from convgen.passes.clone import Cloner
from convgen.passes.messages.linear import ZERO, add_exprs

_WORD = 4  #: bytes; the granule of a surface's bounds check (docs/ir.md, "Global memory")
_ELEMENTS: dict[int, Type] = {1: u8, 2: u16, 4: u32}  #: bytes -> element type of a message's part
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1  #: range of an offset

Loading = st.GlobalLoad | st.FlatLoad | st.SharedRead
Storing = st.GlobalStore | st.FlatStore | st.SharedWrite

#: Builds the message for bytes [first, first + size): it loads the variable, or stores the value.
Part = Callable[[int, int, Expr], st.Stmt]


def legalize_messages(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Cut messages wider than the target's, and turn surfaces into masked addresses on targets without surfaces.

    Raises Unsupported for a message that the target lacks.
    """
    body = _Legalizer(kernel, facts)(kernel.body)
    lacking = next((s for s in statements(body) if not facts.takes(type(s))), None)
    if lacking is not None:
        messages = (c for c in CLASSES.values() if issubclass(c, st.Stmt) and c.level == "message" and c.roles)
        has = [c.__name__ for c in messages if facts.takes(c)]
        raise Unsupported(
            f"given {type(lacking).__name__}, wanted a message that {facts.name} has: {', '.join(has)}, "
            f"in kernel {kernel.name} at {lacking}"
        )
    return evolve(kernel, body=body)


class _Legalizer(Mutator):
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        super().__init__()
        self.kernel, self.facts = kernel, facts
        self.cloner = Cloner(kernel)
        self.values = {s.var: s.value for s in statements(kernel.body) if isinstance(s, st.Let)}

    @cached_property
    def bounds(self) -> Bounds:
        """Return the ranges of expressions, needed only where surfaces become addresses."""
        return Bounds(var_ranges(self.kernel), self.kernel.width)

    def Let(self, s: st.Let) -> st.Stmt:
        return st.empty if self.facts.flat and isinstance(s.value, Surface) else s

    # ------------------------------------------------------------ messages

    def GlobalLoad(self, s: st.GlobalLoad) -> st.Stmt:
        """Cut a load to legal widths, as masked flat loads on targets without surfaces."""
        if self.facts.flat:
            window = _FlatWindow(s, self)

            def masked(first: int, size: int, v: Expr) -> st.Stmt:
                return st.FlatLoad(_variable(v), s.buffer, *window.at(first, size), self.cloner.site(s.site))

            return self._load(s, window.widths(s.var.type.bits // 8), masked)
        return self._load(s, self.facts.global_widths)

    def DirectLoad(self, s: st.DirectLoad) -> st.Stmt:
        """Turn a direct load from a surface into one from masked addresses on targets without surfaces."""
        if not self.facts.flat:
            return s
        window = _FlatWindow(s, self)
        if s.width not in window.widths(s.width):
            given = f"given a direct load of {s.width} bytes a lane from a surface that may end inside them"
            raise Unsupported(f"{given}, wanted one whose surface ends between loads, as {self.facts.name} masks lanes")
        address, mask = window.at(0, s.width)
        site = self.cloner.site(s.site)
        return st.FlatDirectLoad(s.buffer, address, mask, s.tile, s.place, s.imm, s.width, site)

    def GlobalStore(self, s: st.GlobalStore) -> st.Stmt:
        return self._global_store(s, self.facts.global_widths, st.FlatStore)

    def GlobalAtomic(self, s: st.GlobalAtomic) -> st.Stmt:
        return self._global_store(s, (s.value.type.bits // 8,), partial(st.FlatAtomic, op=s.op))

    def _global_store(self, s: st.GlobalStore, widths: Sequence[int], flat: Callable[..., st.FlatStore]) -> st.Stmt:
        if self.facts.flat:
            window = _FlatWindow(s, self)

            def masked(first: int, size: int, value: Expr) -> st.Stmt:
                return flat(s.buffer, *window.at(first, size), value, self.cloner.site(s.site))

            return self._store(s, [w for w in widths if w in window.widths(s.value.type.bits // 8)] or widths, masked)
        return self._store(s, widths)

    def FlatLoad(self, s: st.FlatLoad) -> st.Stmt:
        return self._load(s, self.facts.global_widths)

    def FlatStore(self, s: st.FlatStore) -> st.Stmt:
        return self._store(s, self.facts.global_widths)

    def SharedRead(self, s: st.SharedRead) -> st.Stmt:
        return self._load(s, self.facts.shared_widths)

    def SharedWrite(self, s: st.SharedWrite) -> st.Stmt:
        return self._store(s, self.facts.shared_widths)

    # ------------------------------------------------------------ parts

    def _further(self, s: Loading | Storing, first: int) -> dict[str, Any]:
        """Return the fields of the message for the bytes from `first` on that differ from those of `s`."""
        site = self.cloner.site(s.site)
        if isinstance(s, (st.FlatLoad, st.FlatStore)):
            return {"address": s.address + const(first, u64), "site": site}
        imm = s.imm + first
        if isinstance(s, (st.SharedRead, st.SharedWrite)) or imm <= self.facts.global_imm_max:
            return {"imm": imm, "site": site}
        return {"varying": add_exprs(s.varying, const(imm)), "imm": 0, "site": site}

    def _load(self, s: Loading, widths: Sequence[int], part: Part | None = None) -> st.Stmt:
        """Cut a load to the widths; `part` builds its parts, by default messages of its own class."""
        part = part or (lambda first, _, v: evolve(s, var=_variable(v), **self._further(s, first)))
        pieces = _pieces(s.var.type, widths)
        if len(pieces) == 1:
            return s if self._is_legal(s) else part(*pieces[0], s.var)
        parts = [var(f"{s.var.name}_{first}", _part_type(size)) for first, size in pieces]
        loads = (part(*piece, v) for piece, v in zip(pieces, parts))
        return st.block(*loads, st.Let(s.var, Pack(s.var.type, tuple(parts))))

    def _store(self, s: Storing, widths: Sequence[int], part: Part | None = None) -> st.Stmt:
        """Cut a store to the widths; `part` builds its parts, by default messages of its own class."""
        part = part or (lambda first, _, value: evolve(s, value=value, **self._further(s, first)))
        pieces = _pieces(s.value.type, widths)
        if len(pieces) == 1:
            return s if self._is_legal(s) else part(*pieces[0], s.value)
        grain = min(_WORD, *(size for _, size in pieces))
        bits = var("stored", vector(_ELEMENTS[grain], s.value.type.bits // 8 // grain))
        stores = (part(first, size, Slice(bits, first // grain, size // grain)) for first, size in pieces)
        return st.block(st.Let(bits, Pack(bits.type, (s.value,))), *stores)

    def _is_legal(self, s: st.Stmt) -> bool:
        return not (self.facts.flat and isinstance(s, (st.GlobalLoad, st.GlobalStore)))


class _FlatWindow:
    """A message to a surface as flat addresses: its byte addresses, and the lanes in which they exist."""

    def __init__(self, s: st.GlobalLoad | st.GlobalStore | st.DirectLoad, legalizer: _Legalizer) -> None:
        self.imm = 0 if isinstance(s, st.DirectLoad) else s.imm  # of a direct load it counts in shared memory
        self.s, self.facts, self.values, self.bounds = s, legalizer.facts, legalizer.values, legalizer.bounds
        found = self.values.get(s.surface) if isinstance(s.surface, Var) else s.surface
        assert isinstance(found, Surface)
        self.surface = found
        ends = zip(self.bounds(s.varying), self.bounds(s.uniform))
        self.low, self.high = (a + b + self.imm for a, b in ends)

    def widths(self, size: int) -> Sequence[int]:
        """Return the byte widths that a message may have: at most a word if the surface may end inside the value."""
        extent = self.surface.extent
        steps = (*(divisor(e, self.values) for e in (self.s.varying, self.s.uniform)), self.imm)
        aligned = isinstance(extent, Const) and not any(n % size for n in (*steps, extent.bits))
        if aligned or self._inside(0, size):
            return self.facts.global_widths
        return tuple(w for w in self.facts.global_widths if w <= _WORD)

    def _inside(self, first: int, size: int) -> bool:
        return self.low + first >= 0 and self.high + first + size <= self.bounds(self.surface.extent)[0]

    def at(self, first: int, size: int) -> tuple[Expr, Expr]:
        """Return address and mask of bytes [first, first + size), which are all inside or all outside the surface."""
        low, high = self.low + first, self.high + first
        if low < _LEAST or high > _MOST:
            raise Unsupported(
                f"given offsets into {self.surface.buffer.name} from {low} to {high}, wanted 32-bit offsets, "
                f"as {self.facts.name} checks the surface's bounds by comparing them: {self.s}"
            )
        offset = add_exprs(
            add_exprs(self.s.varying, self.s.uniform), const(self.imm + first) if self.imm + first else ZERO
        )
        base: Expr = AddressOf(self.surface.buffer)
        shift = self.surface.shift
        if not (isinstance(shift, Const) and shift.bits == 0):
            base = base + shift.to(u64)
        inside = self._inside(first, size)
        mask = const(True, bool_) if inside else offset.to(u32) < self.surface.extent.to(u32)
        return base + offset.to(u64), mask


def _pieces(type: AnyType, widths: Collection[int]) -> list[tuple[int, int]]:
    """Return (first byte, bytes) of the messages that move a value, each as wide as possible."""
    size = type.bits // 8
    if size in widths:
        return [(0, size)]
    out: list[tuple[int, int]] = []
    at, widths = 0, sorted(widths, reverse=True)
    while at < size:
        width = next((w for w in widths if at + w <= size), None)
        if width is None:
            raise Unsupported(f"given a message of {type}, wanted one of {', '.join(map(str, widths))} bytes")
        out.append((at, width))
        at += width
    return out


def _part_type(size: int) -> AnyType:
    grain = min(size, _WORD)
    return vector(_ELEMENTS[grain], size // grain)


def _variable(e: Expr) -> Var:
    assert isinstance(e, Var)
    return e
