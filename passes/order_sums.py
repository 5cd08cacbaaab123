"""Reassociate sums from the outermost block inwards, so that loop-invariant terms are added before the loop.

Terms of one block form one subexpression, which other sums with these terms share. Addition wraps, so any order gives
equal results. A nested sum is taken apart only if it has no other use; if it is uniform, also if it is multiplied by a
constant, or if all its users add constants, which then move outwards, too. A constant, which the simplifier puts last,
joins the outermost term: `(row + tap) + -1` in a loop over taps becomes `(row + -1) + tap`. On targets with immediate
offsets sums stay: constants become immediates, and the other terms of an address are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import chain

from convgen.ir.expr import Add, Const, Expr, Mul, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import Mutator, postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.rules import make, number, wrapped
from convgen.ir.stmt import Stmt
from convgen.ir.types import Type
from convgen.ir.uniform import uniformity


def order_sums(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Add integer terms of different blocks outermost first, on targets without immediate offsets; message level."""
    return kernel if facts.global_imm_max else evolve(kernel, body=_Orderer(kernel)(kernel.body))


class _Orderer(Mutator):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        operands = [(node, node.children()) for node in postorder(kernel.body)]
        self.uses = Counter(chain.from_iterable(children for _, children in operands))
        apart = (children for node, children in operands if not (type(node) is Add and type(node.b) is Const))
        self.others = set(chain.from_iterable(apart))  # operands with a user that does not add a constant
        self.depths: dict[Node, int] = {}  # nesting depth of the block in which an expression's variables are bound
        self._note_binders(kernel.body, 0)

    def Add(self, e: Add) -> Expr:
        if not isinstance(e.type, Type) or not e.type.is_int:
            return self.descend(e)
        terms = list(self._terms(e))
        depths = [self._depth(t) for t in terms if not isinstance(t, Const)]
        if not depths or min(depths) == max(depths):
            return self.descend(e)
        by_depth: dict[int, list[Expr]] = {depth: [] for depth in sorted(set(depths))}
        for t in sorted(terms, key=lambda t: isinstance(t, Const)):
            by_depth[min(depths) if isinstance(t, Const) else self._depth(t)].append(self.mutate(t))
        return reduce(Add, (reduce(Add, alike) for alike in by_depth.values()))

    def _terms(self, e: Expr, factor: int = 1) -> Iterator[Expr]:
        """Yield the terms of a sum times `factor`, in order, opening nested sums that may be taken apart."""
        assert isinstance(e, Add)
        for part in (e.a, e.b):
            inner, by = (part.a, part.b.bits) if isinstance(part, Mul) and isinstance(part.b, Const) else (part, 1)
            if isinstance(inner, Add) and self._may_open(part, inner):
                yield from self._terms(inner, factor * by)
            else:
                yield _times(inner, factor * by)

    def _may_open(self, part: Expr, inner: Expr) -> bool:
        """Return whether a term may be taken apart: the sum `inner`, or its product by a constant."""
        if self.uses[part] == 1 and (inner is part or (self.uses[inner] == 1 and self._uniform(inner))):
            return True
        return inner is part and part not in self.others and self._uniform(part)

    def _uniform(self, e: Expr) -> bool:
        return uniformity(self.kernel)(e)

    def _note_binders(self, s: Stmt, depth: int) -> None:
        self.depths.update(dict.fromkeys(s.binds, depth))
        self.depths.update(dict.fromkeys(s.binds_within, depth + 1))
        for inner in s.bodies:
            self._note_binders(inner, depth + 1)

    def _depth(self, e: Expr) -> int:
        """Return the depth of the innermost block that binds a variable of `e`."""
        known = self.depths.get(e)
        if known is None:
            known = self.depths[e] = 0 if isinstance(e, Var) else max(map(self._depth, e.children()), default=0)
        return known


def _times(e: Expr, factor: int) -> Expr:
    """Return a product by a constant, computed if both factors are constants."""
    known = number(e)
    if known is None:
        return e if factor == 1 else e * make(wrapped(factor, e.type.elem), e.type)
    return make(wrapped(known * factor, e.type.elem), e.type)
