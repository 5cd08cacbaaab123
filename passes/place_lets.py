"""Give shared and loop-invariant expressions a variable: common subexpressions and hoisting in one placement.

Every expression has a home: the innermost block where all its variables are known. It is bound there, just before the
first statement that needs it, if it is used more than once or in a loop below its home. Everything else stays where it
is used. Uniform comparisons and free conversions are never bound: the first live in a flag, the second cost nothing.
"""

from __future__ import annotations

from convgen.ir.expr import Cast, Comparison, Const, Expr, Lane, Mma, Not, Pack, Slice, Splat, Var, var
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import Block, For, If, Let, Stmt, block
from convgen.ir.types import Type
from convgen.ir.uniform import Uniformity, varying

_LEAVES = (Const, Var, Lane)
_STRUCTURAL = (Pack, Slice, Splat, Mma)


def place_lets(kernel: Kernel) -> Kernel:
    """Bind what is worth binding; requires message level."""
    return kernel.replace(body=_Placer(kernel).run(kernel.body))


class _Placer:
    def __init__(self, kernel: Kernel) -> None:
        self.uniform = Uniformity(varying(kernel))
        self.scope_of: dict[Var, int] = {}  # depth of the block that binds a variable; -1 for the kernel
        self.home_memo: dict[Expr, int] = {}
        self.path: list[int] = []
        self.bound: dict[Expr, Var] = {}
        for v in (*kernel.group_ids, kernel.subgroup, *(p for p in kernel.params if isinstance(p, Var))):
            self.scope_of[v] = 0
        self._collect(kernel.body, 0)
        self._decide(kernel.body)

    # ------------------------------------------------------------ analysis

    def _collect(self, s: Stmt, depth: int) -> None:
        """Note the depth at which each variable is bound, and which statement roots stand at which depth."""
        if isinstance(s, Block):
            for x in s.stmts:
                self._collect(x, depth)
        elif isinstance(s, For):
            for v in s.results:
                self.scope_of[v] = depth
            for v in (s.var, *s.carried):
                self.scope_of[v] = depth + 1
            self._collect(s.body, depth + 1)
        elif isinstance(s, If):
            self._collect(s.then, depth + 1)
            self._collect(s.other, depth + 1)
        elif isinstance(bound := getattr(s, "var", None), Var):
            self.scope_of[bound] = depth

    def home(self, e: Expr) -> int:
        known = self.home_memo.get(e)
        if known is None:
            if isinstance(e, Var):
                known = self.scope_of[e]
            else:
                known = max((self.home(c) for c in e.children() if isinstance(c, Expr)), default=0)
            self.home_memo[e] = known
        return known

    def _bindable(self, e: Expr) -> bool:
        if isinstance(e, (*_LEAVES, *_STRUCTURAL)) or not isinstance(e.type, Type):
            return isinstance(e.type, Type) is False and type(e).__name__ == "Surface"
        if isinstance(e, Cast) and _free(e):
            return False
        return not (isinstance(e, (Comparison, Not)) and e.type.is_bool and self.uniform(e))

    def _decide(self, body: Stmt) -> None:
        """Fill `wanted`: the expressions to bind. Parents are settled before their operands."""
        uses: dict[Expr, list[int]] = {}
        order: list[Expr] = []
        roots = list(_roots(body, 0))
        for s, _ in roots:
            for e in _expressions(s):
                order.extend(n for n in postorder(e) if isinstance(n, Expr))
        order = list(dict.fromkeys(order))
        for s, depth in roots:
            for e in _expressions(s):
                uses.setdefault(e, []).append(depth)
        self.wanted: dict[Expr, None] = {}
        for e in reversed(order):
            at = uses.get(e, [])
            bound = self._bindable(e) and (len(at) > 1 or any(d > self.home(e) for d in at))
            if bound:
                self.wanted[e] = None
            passed = [self.home(e)] if bound else at
            for c in e.children():
                if isinstance(c, Expr):
                    uses.setdefault(c, []).extend(passed)

    # ------------------------------------------------------------ placement

    def run(self, body: Stmt) -> Stmt:
        return self._place(body, 0)

    def _place(self, s: Stmt, depth: int) -> Stmt:
        stmts = s.stmts if isinstance(s, Block) else (s,)
        out: list[Stmt] = []
        for x in stmts:
            for e in self._needs(x):
                if e in self.wanted and e not in self.bound and self.home(e) == depth:
                    value = self._rewrite_operands(e)
                    self.bound[e] = name = var(_name(e), e.type)
                    out.append(Let(name, value))
            out.append(self._rewrite(x, depth))
        return block(*out)

    def _needs(self, s: Stmt) -> list[Expr]:
        if isinstance(s, Let) and s.value in self.wanted and s.value not in self.bound and self.home(s.value) == self.scope_of[s.var]:
            self.bound[s.value] = s.var  # a let that is there already serves
            return [n for c in s.value.children() for n in postorder(c) if isinstance(n, Expr)]
        return [n for n in postorder(s) if isinstance(n, Expr)]

    def _rewrite(self, s: Stmt, depth: int) -> Stmt:
        if isinstance(s, For):
            head = [self._expr(e) for e in (s.begin, s.end)]
            inits = tuple(self._expr(e) for e in s.inits)
            body = self._place(s.body, depth + 1)
            yields = tuple(self._expr(e) for e in s.yields)
            return For(s.var, head[0], head[1], s.carried, inits, body, yields, s.results, s.label)
        if isinstance(s, If):
            return If(self._expr(s.cond), self._place(s.then, depth + 1), self._place(s.other, depth + 1))
        if isinstance(s, Let) and self.bound.get(s.value) is s.var:
            return Let(s.var, self._rewrite_operands(s.value))
        memo: dict[Node, Node] = {}
        return s.map(self._go(memo), memo.get)

    def _expr(self, e: Expr) -> Expr:
        memo: dict[Node, Node] = {}
        out = self._go(memo)(e)
        assert isinstance(out, Expr)
        return out

    def _rewrite_operands(self, e: Expr) -> Expr:
        memo: dict[Node, Node] = {}
        return e.map(self._go(memo), memo.get)

    def _go(self, memo: dict[Node, Node]):  # type: ignore[no-untyped-def]
        def go(n: Node) -> Node:
            v = self.bound.get(n) if isinstance(n, Expr) else None
            out = v if v is not None else n.map(go, memo.get)
            memo[n] = out
            return out

        return go


def _roots(s: Stmt, depth: int):  # type: ignore[no-untyped-def]
    """Each statement that has expressions, with the depth of its block."""
    if isinstance(s, Block):
        for x in s.stmts:
            yield from _roots(x, depth)
    elif isinstance(s, For):
        yield For(s.var, s.begin, s.end, s.carried, s.inits, Block(()), s.inits, s.results, s.label), depth
        yield from _roots(s.body, depth + 1)
        yield from ((Let(var("", e.type), e), depth + 1) for e in s.yields)
    else:
        yield s, depth
        if isinstance(s, If):
            yield from _roots(s.then, depth + 1)
            yield from _roots(s.other, depth + 1)


def _expressions(s: Stmt):  # type: ignore[no-untyped-def]
    return (c for c in s.children() if isinstance(c, Expr))


def _free(e: Cast) -> bool:
    """A conversion between integers of one width costs nothing."""
    return isinstance(e.dtype, Type) and e.dtype.is_int and e.a.type.elem.is_int and e.dtype.bits == e.a.type.bits


def _name(e: Expr) -> str:
    return type(e).__name__.lower()
