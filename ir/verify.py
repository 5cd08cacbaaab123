"""Well-formedness of kernels, as tables of rules; docs/ir.md states each rule.

`Checker` walks the kernel and provides the context of the rules (`verify_rules`): visible variables, uniformity, and
the distribution of fragments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.error import UserError, VerifyError
from convgen.ir.expr import Expr, Var
from convgen.ir.floats import Fma
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.simplify.extents import extent_complaint
from convgen.ir.stmt import Stmt
from convgen.ir.text import excerpt
from convgen.ir.types import VectorType
from convgen.ir.uniform import uniformity
from convgen.ir.verify_exprs import EXPRESSIONS
from convgen.ir.verify_rules import (
    ANY_LAYOUT,
    STATEMENTS,
    KnownLayout,
    Rule,
    belongs,
    common_layout,
    declared,
    site,
    split_barriers,
)

Level = Literal["tile", "message"]
_MOST_GROUPS = (1 << 31) - 1  #: workgroups along an axis of the grid: ids are s32
MOST_LANES = 1024  #: lanes of a workgroup, on every target


def verify(kernel: Kernel, level: Level | None = None) -> Kernel:
    """Return `kernel` if it is well formed and, if `level` is given, only has statements of that level.

    Raises VerifyError: one line for the first broken rule, and a note that shows the place.
    """
    if complaint := _kernel(kernel):
        raise VerifyError(f"{kernel.name}: {complaint}")
    Checker(kernel, level).sequence(kernel.body)
    return kernel


def sound(kernel: Kernel, where: str = "") -> Kernel:
    """Return a kernel from outside convgen if it is well formed. Raises UserError, which says `where` the kernel is."""
    try:
        return verify(kernel)
    except VerifyError as error:
        refused = UserError(f"given a kernel that breaks a rule of the IR, {error}{where and f', in {where}'}")
        for note in getattr(error, "__notes__", ()):
            refused.add_note(note)
        raise refused from error


def _entry(k: Kernel) -> Iterator[Var]:
    yield from (p for p in k.params if isinstance(p, Var))
    yield from (*k.group_ids, k.subgroup)


def _kernel(k: Kernel) -> str | None:
    """Return a complaint about a kernel's arguments, shared tiles and grid; None if there is none."""
    names = Counter(p.name for p in (*k.params, *k.shared))
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        return f"two arguments or shared tiles are called {twice[0]}"
    capacity = {t.name: t.bytes for t in k.shared if t.region == t.name}
    outside = [t for t in k.shared if t.bytes > capacity.get(t.region, 0)]
    if outside:
        given = f"shared tile {outside[0].name} of {outside[0].bytes} bytes"
        return f"{given} in {outside[0].region}, wanted a tile that holds it"
    found = [extent_complaint(n, k.params, 0, most) for n, most in zip(k.workgroups, k.grid)] if k.launched else []
    found += [extent_complaint(p.length, k.params, 0, p.bytes) for p in k.params if isinstance(p, Global)]
    if any(found) or len(k.workgroups) != len(k.grid):
        return next(filter(None, found), f"{len(k.launched)} counts of workgroups")
    if min(*k.grid, k.subgroups, k.width) < 1 or len(k.group_ids) != 3:
        return f"a grid of {k.grid} as {k.group_ids}, {k.subgroups} subgroups of {k.width} lanes"
    if max(k.grid) > _MOST_GROUPS or k.subgroups * k.width > MOST_LANES:
        return f"a grid of {k.grid}, workgroups of {k.subgroups * k.width}; at most {_MOST_GROUPS} and {MOST_LANES}"
    return None


class _Rules(dict[type[Stmt], tuple[Rule, ...]]):
    """The rules for each class of statements: its own, and the general rules that it can break."""

    def __missing__(self, kind: type[Stmt]) -> tuple[Rule, ...]:
        general = (kind.level, belongs), (kind.roles, declared), ("site" in kind.fields, site), (True, split_barriers)
        self[kind] = (*(rule for concerns, rule in general if concerns), *STATEMENTS.get(kind, ()))
        return self[kind]


_RULES = _Rules()


class Checker:
    """Walks a kernel in order; `visible` maps the variables in scope to their distributions."""

    def __init__(self, kernel: Kernel, level: Level | None) -> None:
        self.kernel, self.level = kernel, level
        self.uniform = uniformity(kernel)
        self.visible: dict[Var, KnownLayout] = dict.fromkeys(_entry(kernel))
        # variables bound on the path to this point, visible or not
        self.path: dict[Var, None] = dict.fromkeys(self.visible)
        self.checked: dict[Expr, None] = {}  # expressions that were checked in the present scope
        self.sites: dict[int, None] = {}
        self.loops: list[s.For] = []
        self.visits: dict[Stmt, int] = {}  # how often each statement was visited so far
        self.arrived = False  # whether the subgroup has arrived at a barrier and not yet waited

    def refuse(self, node: Stmt, complaint: str) -> NoReturn:
        """Raise VerifyError at `node`."""
        error = VerifyError(f"{self.kernel.name}: {complaint}")
        error.add_note(excerpt(self.kernel, node, complaint, self.visits[node] - 1))
        raise error

    @contextmanager
    def suite(self) -> Iterator[None]:
        """Enter a scope: variables bound inside are not visible after it."""
        saved = self.visible, self.checked
        self.visible, self.checked = dict(self.visible), dict(self.checked)
        yield
        self.visible, self.checked = saved

    def sequence(self, body: Stmt) -> None:
        """Check the statements of `body` in the present scope."""
        arrival: Stmt | None = None
        for node in s.stmts_of(body):
            arrival = node if isinstance(node, s.Arrive) else arrival
            self.stmt(node)
        if arrival and self.arrived:
            self.refuse(arrival, "an arrival at a barrier without a wait in its block")

    def stmt(self, node: Stmt) -> None:
        if isinstance(node, s.Block):
            with self.suite():
                return self.sequence(node)
        self.visits[node] = self.visits.get(node, 0) + 1
        self.expressions(node, node.operands)
        for rule in _RULES[type(node)]:
            if complaint := rule(self, node):
                self.refuse(node, complaint)
        match node:
            case s.For():
                self.loop(node)
            case s.If():
                self.branches(node)
            case s.Let():
                is_fragment = isinstance(node.value.type, VectorType)
                self.bind(node, node.var, self.distribution(node.value) if is_fragment else None)
            case s.Load():
                self.bind(node, node.var, getattr(node, "layout", None))
        return None

    def loop(self, node: s.For) -> None:
        layouts = [self.distribution(i) for i in node.inits]
        with self.suite():
            self.bind(node, node.var, None)
            for var, layout in zip(node.carried, layouts):
                self.bind(node, var, layout)
            self.loops.append(node)
            self.sequence(node.body)
            self.loops.pop()
            self.expressions(node, node.yields)
            layouts = [common_layout((before, self.distribution(y))) for before, y in zip(layouts, node.yields)]
        for var, layout in zip(node.results, layouts):
            self.bind(node, var, layout)

    def branches(self, node: s.If) -> None:
        before, after = self.path, dict(self.path)
        for arm in (node.then, node.other):
            self.path = dict(before)
            with self.suite():
                self.sequence(arm)
            after |= self.path
        self.path = after

    def bind(self, node: Stmt, var: Var, layout: KnownLayout) -> None:
        if var in self.path:
            self.refuse(node, f"{var.name}.{var.id} is bound twice")
        self.path[var] = None
        self.visible[var] = layout

    def expressions(self, node: Stmt, es: Iterable[Expr]) -> None:
        """Check that every variable is visible and every operation accepts its operands."""
        checked = self.checked
        for e in es:
            if e not in checked:
                if operands := e.children():
                    self.expressions(node, operands)
                elif isinstance(e, Var) and e not in self.visible:
                    self.refuse(node, f"{e.name}.{e.id} is {'out of scope' if e in self.path else 'not bound'}")
                for rule in EXPRESSIONS.get(type(e), ()):
                    if complaint := rule(self, e):
                        self.refuse(node, complaint)
                checked[e] = None

    def distribution(self, e: Expr, known: dict[Expr, KnownLayout] | None = None) -> KnownLayout:
        """Return the distribution of a fragment, None if its origin does not show it; `known` is a memo."""
        if isinstance(e, Var):
            return self.visible.get(e)
        known = {} if known is None else known
        if e not in known:
            known[e] = self._distribution(e, known)
        return known[e]

    def _distribution(self, e: Expr, known: dict[Expr, KnownLayout]) -> KnownLayout:
        match e:
            case x.Mma(op=op):
                return op.d
            case x.Const() | x.Splat():
                return ANY_LAYOUT
            case x.Binary() | x.Unary() | x.Conversion() | x.Select() | Fma():
                return common_layout([self.distribution(c, known) for c in e.children()])
        return None
