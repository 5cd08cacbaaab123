"""Split packed fragments: loops carry the parts of a pack, and slices of a pack become its parts.

Each message's registers then have their own live ranges, and narrow elements are packed only where they are used. An
operand of a matrix instruction stays one part, though several messages load it. Ensures: no dead lets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from convgen.ir.expr import Expr, Pack, Slice, Var, var
from convgen.ir.mma_operands import operand_sizes
from convgen.ir.mutate import mutate, rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt import Block, For, Let, Stmt, block
from convgen.ir.types import Type, vector
from convgen.passes.unused import drop_unused


def resolve_packs(kernel: Kernel) -> Kernel:
    """Carry packs in loops part by part, replace slices of packs by parts, and drop dead packs."""
    body = _by_operands(kernel.body)
    body = _CarryParts(body).within(body)
    packs = _packs(body)
    body = mutate(body, {Slice: lambda s: _part(s, packs)})
    return evolve(kernel, body=drop_unused(body))


def _by_operands(body: Stmt) -> Stmt:
    """Regroup packs of fragments by the operands of their instructions, if several messages load an operand."""
    taken = operand_sizes(body)

    def grouped(s: Let) -> Stmt:
        lanes = taken.get(s.var)
        groups = _groups(s.value.parts, lanes) if lanes and isinstance(s.value, Pack) else []
        if len(groups) < 2 or all(len(parts) == 1 for parts in groups):
            return s
        assert lanes
        type_ = vector(s.var.type.elem, lanes)
        parts_of = [Let(var(f"{s.var.name}_{n}", type_), Pack(type_, parts)) for n, parts in enumerate(groups)]
        return block(*parts_of, Let(s.var, Pack(s.var.type, tuple(o.var for o in parts_of))))

    return rewrite(body, {Let: grouped})


def _is_operand(pack: Pack, lanes: int | None) -> bool:
    """Return whether a pack is one operand of `lanes` elements that several messages load."""
    return lanes is not None and len(pack.parts) > 1 and len(_groups(pack.parts, lanes)) == 1


def _groups(parts: Sequence[Expr], lanes: int) -> list[tuple[Expr, ...]]:
    """Return the parts grouped by operands of `lanes` elements; [] unless each is whole parts of whole words."""
    groups: list[tuple[Expr, ...]] = [()]
    for part in parts:
        if sum(p.type.lanes for p in groups[-1]) == lanes:
            groups.append(())
        groups[-1] += (part,)
    whole = all(sum(p.type.lanes for p in group) == lanes for group in groups)
    return groups if whole and all(p.type.bits % 32 == 0 for p in parts) else []


def _packs(body: Stmt) -> dict[Var, Pack]:
    return {s.var: s.value for s in statements(body) if isinstance(s, Let) and isinstance(s.value, Pack)}


class _CarryParts:
    """Replaces carried packs by carried parts, outermost loops first."""

    def __init__(self, body: Stmt) -> None:
        taken = operand_sizes(body)
        self.packs = {v: pack for v, pack in _packs(body).items() if not _is_operand(pack, taken.get(v))}

    def within(self, s: Any) -> Any:
        """Return the statement with parts carried in its loops."""
        if isinstance(s, For):
            return self._loop(s)
        new = s.map_bodies(self.within)
        return block(*new.stmts) if isinstance(new, Block) and new is not s else new

    def _loop(self, s: For) -> Stmt:
        """Carry each pack of a loop as its parts; the body and the code behind pack them again."""
        leaves_early = any(exits_of(s.body))  # exits pass whole values
        rows: list[tuple[Sequence[Expr], ...]] = []  # carried, inits, yields and results that replace one of each
        before: list[Stmt] = []
        after: list[Stmt] = []
        for c, init, out, result in zip(s.carried, s.inits, s.yields, s.results):
            first, last = self._parts(init), self._parts(out)
            if leaves_early or not first or [p.type for p in first] != [p.type for p in last]:
                rows.append(((c,), (init,), (out,), (result,)))
                continue
            names = tuple(var(f"{c.name}_{i}", p.type) for i, p in enumerate(first))
            ends = tuple(var(n.name, n.type) for n in names)
            rows.append((names, first, last, ends))
            before.append(Let(c, Pack(c.type, names)))
            self.packs[result] = pack = Pack(c.type, ends)
            after.append(Let(result, pack))
        columns: Any = (tuple(chain.from_iterable(row[n] for row in rows)) for n in range(4))
        carried, inits, yields, results = columns
        body = block(*before, self.within(s.body))
        return block(evolve(s, carried=carried, inits=inits, body=body, yields=yields, results=results), *after)

    def _parts(self, e: Expr) -> Sequence[Expr]:
        pack = self.packs.get(e) if isinstance(e, Var) else None
        return () if pack is None else pack.parts


def _part(s: Slice, packs: dict[Var, Pack]) -> Expr:
    """Return the slice as a part, or as a pack of the whole parts that it covers."""
    pack = packs.get(s.a) if isinstance(s.a, Var) else None
    if pack is None:
        return s
    first, end = (n * s.type.elem.bits for n in (s.start, s.start + s.count))  # bits, as parts may be of other types
    at, covered = 0, []
    for p in pack.parts:
        if at >= end:
            break
        if at >= first:
            covered.append(p)
        elif at + p.type.bits > first:
            return s
        at += p.type.bits
    if sum(p.type.bits for p in covered) != end - first or any(isinstance(p.type, Type) for p in covered):
        return s
    return covered[0] if len(covered) == 1 and covered[0].type is s.type else Pack(s.type, tuple(covered))
