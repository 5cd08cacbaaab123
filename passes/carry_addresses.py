"""Carry flat addresses that grow by a constant from one loop iteration to the next.

An address is the sum of a base and 32-bit offsets. `base + u64(16 * i + lane)` takes a product and two sums in each
iteration, one of them of 64 bits; carried, it takes the 64-bit sum alone, and its loop-invariant part needs no
register. Only offsets that are never negative are carried: widening them to 64 bits then keeps their growth.
"""

from __future__ import annotations

from convgen.ir.expr import Add, Cast, Const, Expr, Var, const, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite, statements, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.stmt import FlatMessage, For
from convgen.ir.types import s32, u32, u64
from convgen.passes.counting import Counting, carrying


def carry_addresses(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Increment addresses of flat messages once an iteration where messages lack immediates; message level."""
    if facts.global_imm_max:
        return kernel
    bounds = Bounds(var_ranges(kernel), kernel.width)
    return evolve(kernel, body=rewrite(kernel.body, {For: lambda loop: _carried(loop, bounds)}))


def _carried(loop: For, bounds: Bounds) -> For:
    """Return the loop with its growing addresses carried."""
    inside = Counting(loop, bounds)
    flat = [s for s in statements(loop.body) if isinstance(s, FlatMessage)]
    starts = {_start(s.address): s.buffer.name for s in reversed(flat)}
    growing = {e: growth for e in starts if (growth := _growth(e, inside) or 0) > 0}
    if not growing:
        return loop
    new: dict[Expr, Var] = {e: var(f"{starts[e]}_address", u64) for e in growing}
    carried = [(v, simplify(substitute(e, {loop.var: loop.begin})), v + const(growing[e], u64)) for e, v in new.items()]
    return carrying(loop, substitute(loop.body, new), [substitute(y, new) for y in loop.yields], carried)


def _start(address: Expr) -> Expr:
    """Return an address without its constant offset."""
    return address.a if isinstance(address, Add) and isinstance(address.b, Const) else address


def _growth(e: Expr, loop: Counting) -> int | None:
    """Return the constant by which an iteration increments part of an address; None if it is not constant."""
    match e:
        case _ if loop.is_invariant(e):
            return 0
        case Add(a, b):
            growths = [_growth(part, loop) for part in (a, b)]
            return None if None in growths else sum(filter(None, growths))
        case Cast(_, Cast(_, offset) as unsigned) if unsigned.type is u32 and offset.type is s32:
            affine = loop.affine(offset) if loop.bounds(offset)[0] >= 0 else None
            return None if affine is None else affine.a
    return None
