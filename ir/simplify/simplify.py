"""The simplifier: equalities and proofs over expressions and statements.

`simplify` keeps the value of every expression, wraparound included. It returns the same object if nothing changes, and
is idempotent. It uses the facts of binders and conditions at each place (`proof`), the rules of `identities`, the
algorithms of `algebra`, and groups sums by the loop depth at which they are computed (`sums`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from itertools import compress
from operator import or_
from typing import TypeVar

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.expr import Const, Expr, Splat, Var
from convgen.ir.mutate import Handler, Mutator, substitute
from convgen.ir.node import CLASSES, Node
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.algebra import Algebra, Notes
from convgen.ir.simplify.bounds import WIDTH, Range
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.rounds import SUMS, USES, Rounds
from convgen.ir.simplify.rules import number
from convgen.ir.simplify.sums import Grouping, Home, Homes
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt import Stmt
from convgen.ir.types import AnyType, VectorType

N = TypeVar("N", bound=Node)

_ROUNDS = 16  #: rounds at most, since each may enable the next; chosen: kernels need two or three


def simplify(node: N, known: Knowledge | Mapping[Var, Range] | None = None) -> N:
    """Simplify all expressions of `node`, given `known`: facts, or ranges of free variables. A kernel binds its own."""
    width = node.width if isinstance(node, Kernel) else WIDTH
    facts = known if isinstance(known, Knowledge) else Knowledge(width, known)
    notes, rounds = Notes(), Rounds()
    for _ in range(_ROUNDS):
        rounds.begin(node)
        before, node = node, _Simplifier(facts.child(), notes, rounds)(node)
        if node is before:
            break
    return node


def prove(cond: Expr, known: Knowledge | Mapping[Var, Range] | None = None) -> bool:
    """Return whether `cond` provably holds in every lane wherever `known` holds; False means unknown."""
    return number(simplify(cond, known)) == 1


class _Simplifier(Mutator):
    """One round. Each scope has its own facts and memo."""

    def __init__(self, facts: Knowledge, notes: Notes, rounds: Rounds) -> None:
        super().__init__()
        self.facts, self.notes, self.rounds = facts, notes, rounds
        self.results = rounds.outside
        self.changed = USES  #: bits of what changed since the last round: use counts, and variables by their facts
        self.enclosing: Mapping[Node, Node] = {}  #: results for expressions in the enclosing scope
        self.bound_bits = 0  #: bits of the variables that this scope binds
        self.algebra = Algebra(facts, notes, self.results.root_unchanged)
        self.values: dict[Var, Expr] = {}  # lets of constants and of other variables, substituted at their uses
        self.depth = 0
        self.home_of: dict[Var, Home | Expr] = {}  # the home of a variable, or the value whose home it has
        self.homes = Homes(self.home_of)
        notes.uses = rounds.uses
        self.group = Grouping(self.homes, notes.uses, rounds.compared)

    def handlers(self) -> dict[type[Node], Handler]:
        every: dict[type[Node], Handler] = {}
        for cls in CLASSES.values():
            if issubclass(cls, Expr):
                every[cls] = self.expression
            elif issubclass(cls, s.Load):
                every[cls] = self.flat_load if cls is s.FlatLoad else self.load
        return every | super().handlers()

    # ------------------------------------------------------------ expressions

    def expression(self, e: Expr) -> Expr:
        """Simplify an expression, reusing results of the enclosing scope and of the last round where valid."""
        if (outer := self.enclosing.get(e)) is not None and not self.rounds.dependencies(e) & self.bound_bits:
            return outer  # type: ignore[return-value]
        unchanged = self.results.unchanged
        was_unchanged = e in unchanged
        # None if an equality changed the root in the last round, or none was tried; else the bits that they consulted
        # beside facts: USES or 0
        consulted = self.results.root_unchanged.get(e)
        # bits of what `e` depends on and what has changed since; all bits if nothing is known about the last round
        changes = self.rounds.dependencies(e) & self.changed if was_unchanged or consulted is not None else -1
        if was_unchanged and not changes:
            return e
        updated = e.map(*self._go)  # with simplified operands
        is_root_unchanged = updated is e and consulted is not None and not changes & (consulted | ~USES)
        new = updated if is_root_unchanged and type(e) not in SUMS else self.algebra(updated)
        if type(new) in SUMS and e not in self.rounds.addends and not new.type.elem.is_float:
            new = self.group(self.algebra, new)
        if new is e:
            unchanged.add(e)
        elif was_unchanged:
            unchanged.discard(e)
        return new

    def Const(self, c: Const) -> Expr:
        return c

    def Var(self, v: Var) -> Expr:
        if v in self.values:
            return self.values[v]
        return v if v.type.elem.is_float else self.algebra(v)

    Size = HostValue = Var

    # ------------------------------------------------------------ scopes

    @contextmanager
    def within(self, what: object, enclosing: Mapping[Node, Node], *bound: x.Var) -> Iterator[None]:
        """Enter the nested scope `what`.

        Results of the enclosing scope, `enclosing`, are reused for expressions without variables that the scope binds.
        """
        saved = self.results, self.algebra, self.enclosing, self.bound_bits
        self.results = self.results.inner(what)
        self.algebra = Algebra(self.facts, self.notes, self.results.root_unchanged)
        self.enclosing, self.bound_bits = enclosing, reduce(or_, map(self.rounds.bit, bound), 0)
        try:
            with self.scope():
                yield
        finally:
            self.results, self.algebra, self.enclosing, self.bound_bits = saved

    @contextmanager
    def assuming(self, cond: Expr, truth: bool) -> Iterator[None]:
        """Enter a scope in which `cond` is known to hold (or not)."""
        saved = self.facts, self.changed
        self.facts = self.facts.child()
        self.facts.assume(cond, truth)
        if self.rounds.dependencies(cond) & self.changed & ~USES:
            self.changed = -1  # the changed assumption may change the facts about any variable
        try:
            with self.within((cond, truth), {}):
                yield
        finally:
            self.facts, self.changed = saved

    def note_facts(self, var: x.Var, *values: Expr) -> None:
        """Record the facts about `var`, which are complete, and whether they changed since the last round."""
        facts = self.facts.ranges.get(var), self.facts.congruences.get(var), self.home_of.get(var), *values
        known, bit = self.results.facts, self.rounds.bit(var)
        self.bound_bits |= bit
        if facts != known.get(var):
            known[var] = facts
            self.changed |= bit
        elif values and reduce(or_, map(self.rounds.dependencies, values)) & self.changed & ~USES:
            self.changed |= bit

    def Kernel(self, k: Kernel) -> Kernel:
        self.facts.kernel(k)
        body = self.mutate(k.body)
        return evolve(k, body=body)

    def Block(self, b: s.Block) -> Stmt:
        """Simplify a block; statements behind an exit may assume that its condition does not hold."""
        stmts: list[Stmt] = []
        with ExitStack() as stack:
            for inner in b.stmts:
                new = self.mutate(inner)
                stmts.append(new)
                if isinstance(new, s.ExitIf):
                    stack.enter_context(self.assuming(new.cond, False))
        return b if tuple(stmts) == b.stmts else s.block(*stmts)

    def If(self, n: s.If) -> Stmt:
        cond = self.mutate(n.cond)
        if (known := number(cond)) is not None:
            arm: Stmt = self.mutate(n.then if known else n.other)
            return arm
        with self.assuming(cond, True):
            then: Stmt = self.mutate(n.then)
        with self.assuming(cond, False):
            other: Stmt = self.mutate(n.other)
        return s.empty if then is other is s.empty else evolve(n, cond=cond, then=then, other=other)

    def For(self, n: s.For) -> Stmt:
        """Simplify a loop: drop it if it never runs, inline it if it runs once, else simplify its body."""
        begin, end, inits = self.mutate(n.begin), self.mutate(n.end), tuple(map(self.mutate, n.inits))
        least, most = self.facts.difference(end, begin)
        if most <= 0:
            return _lets(n.results, inits)
        if least == most == 1 and not any(exits_of(n.body)):
            once = s.block(s.Let(n.var, begin), _lets(n.carried, inits), n.body, _lets(n.results, n.yields))
            return self.mutate(once)  # type: ignore[no-any-return]
        self.facts.loop(evolve(n, begin=begin, end=end, inits=inits))
        self.depth += 1
        self.home_of[n.var] = Home(self.depth)
        for var, init in zip(n.carried, inits):
            self.home_of[var] = Home(self.depth, self.homes(init).varying)
        self.note_facts(n.var, begin, end)
        for var in n.carried:
            self.note_facts(var)
        with self.within(n.var, self._memo, n.var, *n.carried):
            body = self.mutate(n.body)
            yields = tuple(map(self.mutate, n.yields))
        self.depth -= 1
        new = evolve(n, begin=begin, end=end, inits=inits, body=body, yields=yields)
        self.facts.results(new)
        for var in n.results:
            self.note_facts(var)
        return _without_constants(new)

    # ------------------------------------------------------------ binders

    def Let(self, n: s.Let) -> Stmt:
        """Simplify a let; lets of constants and of other variables are dropped and substituted."""
        value = self.mutate(n.value)
        self.values.pop(n.var, None)
        self.facts.let(n.var, value)
        self.home_of[n.var] = value
        self.note_facts(n.var, value)
        if isinstance(value, Var) or _is_constant(value):
            self.values[n.var] = value
            return s.empty
        return s.Let(n.var, value)

    def load(self, n: s.Load) -> Stmt:
        """Simplify a load: its value is unknown and varies, at the present loop depth."""
        self.home_of[n.var] = Home(self.depth, True)
        self.bound_bits |= self.rounds.bit(n.var)
        return self.descend(n)

    def flat_load(self, n: s.FlatLoad) -> Stmt:
        """Replace a load by zeros if its mask never holds."""
        is_empty = number(self.mutate(n.mask)) == 0
        return self.Let(s.Let(n.var, _zeros(n.var.type))) if is_empty else self.load(n)

    def ExitIf(self, n: s.ExitIf) -> Stmt:
        new = self.descend(n)
        return s.empty if number(new.cond) == 0 else new


def _without_constants(loop: s.For) -> s.Stmt:
    """Return the loop without carried values that are one constant before it and after each iteration."""
    same = [init is after and _is_constant(init) for init, after in zip(loop.inits, loop.yields)]
    if not any(same) or any(exits_of(loop.body)):
        return loop
    fixed: dict[Expr, Expr] = dict(compress(zip(loop.carried, loop.inits), same))
    others = [not each for each in same]
    new = evolve(
        loop,
        carried=tuple(compress(loop.carried, others)),
        inits=tuple(compress(loop.inits, others)),
        body=substitute(loop.body, fixed),
        yields=tuple(compress(loop.yields, others)),
        results=tuple(compress(loop.results, others)),
    )
    return s.block(_lets(tuple(compress(loop.results, same)), tuple(fixed.values())), new)


def _is_constant(e: Expr) -> bool:
    return isinstance(e, Const) or (isinstance(e, Splat) and isinstance(e.a, Const))


def _zeros(type: AnyType) -> Expr:
    zero = Const(type.elem, 0)  # all bits are zero, whatever the type
    return Splat(type, zero) if isinstance(type, VectorType) else zero


def _lets(names: tuple[Var, ...], values: tuple[Expr, ...]) -> Stmt:
    return s.Block(tuple(map(s.Let, names, values)))
