"""Give shared and loop-invariant expressions a variable: common subexpressions and hoisting in one placement.

Every expression has a home: the innermost block where all its variables are known. It is bound there, just before the
first statement that needs it, if it is used more than once or in a loop below its home. Everything else stays where it
is used. Uniform comparisons and free conversions are never bound: the first live in a flag, the second cost nothing.

A hoisted varying value occupies a vector register all through the loop. Where these exceed what the loop's own values
leave, those that one operation brings back from other variables are computed in the loop again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convgen.ir.expr import Cast, Comparison, Const, Expr, Lane, Mma, Not, Surface, Var, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import (
    MESSAGE_LOADS,
    Block,
    BlockRead,
    BlockWrite,
    FlatAdd,
    FlatLoad,
    FlatPrefetch,
    FlatStore,
    For,
    GlobalAdd,
    GlobalLoad,
    GlobalStore,
    If,
    Let,
    PlaneLoad,
    PlanePrefetch,
    PlaneStore,
    SharedRead,
    SharedWrite,
    Stmt,
    block,
)
from convgen.ir.types import Type, VectorType
from convgen.ir.uniform import Uniformity, varying

#: What a variable is called after the operand it first serves as: statement class -> field -> suffix.
_ROLES: dict[type[Stmt], dict[str, str]] = {
    GlobalLoad: {"surface": "surface", "varying": "offset", "uniform": "step"},
    GlobalAdd: {"surface": "surface", "varying": "offset", "uniform": "step"},
    GlobalStore: {"surface": "surface", "varying": "offset", "uniform": "step"},
    PlaneLoad: {"x": "x", "y": "y"},
    PlaneStore: {"x": "x", "y": "y"},
    PlanePrefetch: {"x": "x", "y": "y"},
    FlatLoad: {"address": "address", "mask": "exists"},
    FlatStore: {"address": "address", "mask": "exists"},
    FlatAdd: {"address": "address", "mask": "exists"},
    FlatPrefetch: {"address": "address", "mask": "exists"},
    SharedRead: {"address": "read_address"},
    SharedWrite: {"address": "write_address"},
    BlockRead: {"address": "read_address"},
    BlockWrite: {"address": "write_address"},
}

_GLOBAL = (GlobalLoad, GlobalStore, FlatLoad, FlatPrefetch, FlatStore, PlaneLoad, PlanePrefetch, PlaneStore)
_LEAVES = (Const, Var, Lane)

#: The name of a part of a larger expression; the text does not comment on these.
ANONYMOUS = "t"


#: Vector registers left to temporaries, of those that the loops' values do not take.
_TEMPORARIES = 24


def place_lets(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Bind common subexpressions and loop invariants, as many as registers allow; requires message level."""
    budget = max(0, facts.registers - _loop_words(kernel.body) - _TEMPORARIES)
    return kernel.replace(body=_Placer(kernel, budget, facts.flat).place(kernel.body, 0))


def _loop_words(body: Stmt) -> int:
    """Vector registers that the values of the fullest loop take: carried or loaded in it, accumulators elsewhere."""
    most = 0
    for loop in postorder(body):
        if isinstance(loop, For):
            inside = postorder(loop.body)
            elsewhere = {n.acc for n in inside if isinstance(n, Mma) and n.op.acc_bank != "v"}
            held = [v for v in loop.carried if v not in elsewhere]
            loaded = [n.var for n in inside if isinstance(n, MESSAGE_LOADS) and n.var not in loop.yields]
            most = max(most, sum(v.type.bits // 32 for v in (*held, *loaded) if isinstance(v.type, VectorType)))
    return most


class _Placer:
    def __init__(self, kernel: Kernel, budget: int, flat: bool) -> None:
        self.flat = flat  # so 64-bit integers are addresses
        self.uniform = Uniformity(varying(kernel))
        self.depth_of: dict[Var, int] = {}  # how deep the block that binds a variable is nested
        self.homes: dict[Expr, int] = {}
        self.names: dict[Node, Var] = {}  # expressions that are bound by now
        for v in (*kernel.group_ids, kernel.subgroup, *(p for p in kernel.params if isinstance(p, Var))):
            self.depth_of[v] = 0
        self._note_binders(kernel.body, 0)
        self.wanted = self._choose(kernel.body, budget)

    # ------------------------------------------------------------ what to bind

    def _note_binders(self, s: Stmt, depth: int) -> None:
        match s:
            case Block(stmts):
                for x in stmts:
                    self._note_binders(x, depth)
            case For():
                self.depth_of.update(dict.fromkeys(s.results, depth))
                self.depth_of.update(dict.fromkeys((s.var, *s.carried), depth + 1))
                self._note_binders(s.body, depth + 1)
            case If(_, then, other):
                self._note_binders(then, depth + 1)
                self._note_binders(other, depth + 1)
            case _ if isinstance(bound := getattr(s, "var", None), Var):
                self.depth_of[bound] = depth

    def home(self, e: Expr) -> int:
        """The depth of the innermost block that binds a variable of `e`."""
        known = self.homes.get(e)
        if known is None:
            inner = (self.home(c) for c in e.children() if isinstance(c, Expr))
            known = self.homes[e] = self.depth_of[e] if isinstance(e, Var) else max(inner, default=0)
        return known

    def _choose(self, body: Stmt, budget: int) -> dict[Expr, None]:
        """The expressions to bind. Parents are settled before their operands: a bound parent uses them once."""
        uses: dict[Expr, list[int]] = {}
        for e, depth in _uses(body, 0):
            uses.setdefault(e, []).append(depth)
        order = dict.fromkeys(n for e in list(uses) for n in postorder(e) if isinstance(n, Expr))
        wanted: dict[Expr, None] = {}
        for e in reversed(order):
            depths = uses.get(e, [])
            if self._may_bind(e) and (len(depths) > 1 or any(d > self.home(e) for d in depths)):
                wanted[e] = None
                depths = [self.home(e)]
            for c in e.children():
                if isinstance(c, Expr):
                    uses.setdefault(c, []).extend(depths)
        hoisted = [e for e in wanted if not self.uniform(e) and any(d > self.home(e) for d in uses[e])]
        cheap = [e for e in hoisted if all(isinstance(c, _LEAVES) or c in wanted for c in e.children())]
        for e in sorted(cheap, key=lambda e: len(uses[e]))[: max(0, len(hoisted) - budget)]:
            del wanted[e]
        return wanted

    def _may_bind(self, e: Expr) -> bool:
        if isinstance(e, Surface):
            return True
        if isinstance(e, _LEAVES) or not isinstance(e.type, Type):
            return False
        if isinstance(e, Cast) and e.type.is_int and e.a.type.elem.is_int and e.type.bits == e.a.type.bits:
            return False
        if e.type.is_int and e.type.bits == 64 and not self.flat:
            return False  # part of a surface's shift: only all of it has registers
        in_flag = isinstance(e, (Comparison, Not)) and e.type.is_bool and self.uniform(e)
        return not in_flag

    # ------------------------------------------------------------ where

    def place(self, s: Stmt, depth: int) -> Stmt:
        """The block with its lets put in and their expressions replaced."""
        out: list[Stmt] = []
        for x in s.stmts if isinstance(s, Block) else (s,):
            if isinstance(x, Let) and x.value in self.wanted and x.value not in self.names:
                out += self._bind_parts(x.value.children(), x, depth)
                if self.home(x.value) == depth:  # a let that is there already serves
                    out.append(Let(x.var, self._operands(x.value)))
                    self.names[x.value] = x.var
                    continue
            out += self._bind_parts((x,), x, depth)
            out.append(self._rewrite(x, depth))
        return block(*out)

    def _bind_parts(self, roots: tuple[Node, ...], user: Stmt, depth: int) -> list[Stmt]:
        """Lets for the wanted expressions under `roots` whose home is here and that are not bound yet."""
        out: list[Stmt] = []
        for root in roots:
            for e in postorder(root):
                if isinstance(e, Expr) and e in self.wanted and e not in self.names and self.home(e) == depth:
                    value = self._operands(e)
                    self.names[e] = name = var(_name(e, user), e.type)
                    out.append(Let(name, value))
        return out

    def _rewrite(self, s: Stmt, depth: int) -> Stmt:
        match s:
            case For():
                begin, end = self._expr(s.begin), self._expr(s.end)
                inits = tuple(map(self._expr, s.inits))
                body = block(self.place(s.body, depth + 1), *self._bind_parts(s.yields, s, depth + 1))
                yields = tuple(map(self._expr, s.yields))
                return For(s.var, begin, end, s.carried, inits, body, yields, s.results, s.label)
            case If(cond, then, other):
                return If(self._expr(cond), self.place(then, depth + 1), self.place(other, depth + 1))
        go, get = self._rewriter()
        return s.map(go, get)

    def _expr(self, e: Expr) -> Expr:
        out = self._rewriter()[0](e)
        assert isinstance(out, Expr)
        return out

    def _operands(self, e: Expr) -> Expr:
        """`e` itself kept, its operands replaced by their names."""
        go, get = self._rewriter()
        return e.map(go, get)

    def _rewriter(self) -> tuple[Callable[[Node], Node], Callable[[Node], Node | None]]:
        memo: dict[Node, Node] = {**self.names}

        def go(n: Node) -> Node:
            known = memo.get(n)
            if known is None:
                known = memo[n] = n.map(go, memo.get)
            return known

        return go, memo.get


def _uses(s: Stmt, depth: int) -> Iterator[tuple[Expr, int]]:
    """The operands of all statements, each with the depth of the block it stands in."""
    match s:
        case Block(stmts):
            for x in stmts:
                yield from _uses(x, depth)
        case For():
            yield from ((e, depth) for e in (s.begin, s.end, *s.inits))
            yield from _uses(s.body, depth + 1)
            yield from ((e, depth + 1) for e in s.yields)
        case If(cond, then, other):
            yield cond, depth
            yield from _uses(then, depth + 1)
            yield from _uses(other, depth + 1)
        case _:
            yield from ((c, depth) for c in s.children() if isinstance(c, Expr))


def _name(e: Expr, user: Stmt) -> str:
    """A name that says what the value is for."""
    if isinstance(e, Surface):
        return f"{e.buffer.name}_surface"
    for field, suffix in _ROLES.get(type(user), {}).items():
        if getattr(user, field) is e:
            subject = user.tile.name if isinstance(user, (SharedRead, SharedWrite)) else _comment(user)
            return f"{subject}_{suffix}"
    return ANONYMOUS


def _comment(user: Stmt) -> str:
    return user.site.comment if isinstance(user, _GLOBAL) else ""
