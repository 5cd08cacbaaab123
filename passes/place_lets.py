"""Give shared and loop-invariant expressions a variable: common subexpressions and hoisting in one placement.

Every expression has a home: the innermost block where all its variables are known, or, where one arm of a condition
there has all its uses, that arm. It is bound there, just before the first statement that needs it, if it is used more
than once or in a loop below its home. Everything else stays where it is used. Uniform comparisons and free conversions
are never bound: the first live in a flag, the second cost nothing. Of vectors only what is used more than once is
bound: one that a loop does not change would hold its registers there.

A hoisted varying value occupies a vector register all through the loop. Where these exceed what the loop's own values
leave, those that one operation brings back from other variables are computed in the loop again.

Lanes vote on what nearly always holds (`ir/votes.py`). Where it does not, all is computed that is needed then, so that
nothing is done or held for it elsewhere. Only what a loop around it holds anyway is used there, too, and surfaces, for
which there are scalar registers enough. Of what differs between lanes, what is used once stays in its loop there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, count, takewhile
from typing import Any, NamedTuple, TypeGuard, TypeVar

from convgen.ir.expr import (
    Add,
    Binary,
    Cast,
    Comparison,
    Const,
    Expr,
    FromLane,
    Lane,
    Mma,
    Not,
    Select,
    Surface,
    Unary,
    Uniform,
    Var,
    temporary,
    var,
)
from convgen.ir.facts import TargetFacts
from convgen.ir.floats import Fma
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import postorder, statements, substitute
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Barrier, Block, For, If, Let, Load, Stmt, Store, block
from convgen.ir.types import Type, VectorType
from convgen.ir.uniform import Uniformity, uniformity, with_lets
from convgen.ir.votes import AllLanes

N = TypeVar("N", bound=Node)
Place = tuple["_Around", ...]  #: the blocks around a statement but for the kernel's own, outermost first
_LEAVES = (Const, Var, Lane)
_ARITHMETIC = (Unary, Binary, Fma, Select)  #: what computes the elements of a vector; masks stay in place

#: Vector registers left to temporaries, of those that the loops' values do not take.
_TEMPORARIES = 24
#: Vector registers that are loaded or stored between two uses of an address: with more, and with neither
#: loops nor products, the address is recomputed, for a register that holds it is dearer than one addition.
_FAR = 32


def place_lets(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Bind common subexpressions and loop invariants, as many as registers allow; requires message level."""
    budget = max(0, facts.registers - _loop_words(kernel.body, in_order=not facts.core.reorders) - _TEMPORARIES)
    body = _Placer(kernel.body, uniformity(kernel), budget, facts.flat).placed()
    return with_lets(evolve(kernel, body=body), kernel)


def _loop_words(body: Stmt, *, in_order: bool) -> int:
    """Vector registers that the values of the fullest loop take: carried or loaded in it, accumulators elsewhere."""
    most = 0
    for loop in statements(body):
        if isinstance(loop, For):
            inside = postorder(loop.body)
            elsewhere = {n.acc for n in inside if isinstance(n, Mma) and n.op.separate_accumulators}
            held = [v for v in loop.carried if v not in elsewhere]
            most = max(most, _words(held) + _loaded_words(loop, in_order=in_order))
    return most


def _loaded_words(loop: For, *, in_order: bool) -> int:
    """Those that loads in a loop bring and it does not carry, where most of them are held from barrier to barrier.

    Between two barriers all that is loaded there may be held at a time, and what was loaded before and is used later;
    where statements stay `in_order`, so is what each of them brings and uses.
    """
    run, first, used = 0, dict[Var, int](), defaultdict[int, list[Expr]](list)
    for s in statements(loop.body):
        run += in_order or isinstance(s, Barrier)
        used[run] += s.operands
        if isinstance(s, Load) and s.var not in loop.yields:
            first[s.var] = run
    last = first | {n: at for at, es in used.items() for n in postorder(*es) if n in first}
    begun, gone = Counter[int](), Counter[int]()
    for v in first:
        begun[first[v]] += _words([v])
        gone[last[v] + 1] += _words([v])
    return max(accumulate(begun[n] - gone[n] for n in range(run + 1)))


def _words(values: Iterable[Expr]) -> int:
    return sum(e.type.bits // 32 for e in values if isinstance(e.type, VectorType))


class _Around(NamedTuple):
    """A loop's body, or an arm of a condition."""

    number: int
    is_loop: bool


class _Uses:
    """Where expressions are used."""

    def __init__(self, body: Stmt) -> None:
        self.is_straight = True  #: whether there is neither a loop nor a product so far
        self.moved = 0  #: vector registers that loads and stores have moved so far
        self.spans: dict[Expr, tuple[int, int]] = {}  #: how many that is at the first use, and at the last
        self.depths: dict[Expr, list[int]] = {}  #: of the blocks in which they are operands
        self.places: dict[Expr, Place] = {}  #: the innermost block that has all uses, with those where lanes seldom go
        self._blocks = count()
        self._note(body, (), seldom=False)

    def _note(self, s: Stmt, place: Place, *, seldom: bool) -> None:
        self._operands(s.operands, place, seldom=seldom)
        if isinstance(s, For) or (isinstance(s, Let) and isinstance(s.value, Mma)):
            self.is_straight = False
        self.moved += _words([s.var] if isinstance(s, Load) else [s.value] if isinstance(s, Store) else [])
        for inner in s.bodies:
            inside = place if _inside(s, 0) == 0 else (*place, _Around(next(self._blocks), isinstance(s, For)))
            self._note(inner, inside, seldom=seldom or (_is_vote(s) and inner is not s.then))
            if isinstance(s, For):
                self._operands(s.yields, inside, seldom=seldom)

    def _operands(self, operands: Iterable[Expr], place: Place, *, seldom: bool) -> None:
        for e in operands:
            if not seldom:  # what is there is placed by itself
                self.depths.setdefault(e, []).append(len(place))
            self.meet(e, place)
            self.stretch(e, (self.moved, self.moved))

    def stretch(self, e: Expr, span: tuple[int, int]) -> None:
        """An expression is also used from here to there."""
        first, last = self.spans.get(e, span)
        self.spans[e] = min(first, span[0]), max(last, span[1])

    def meet(self, e: Expr, place: Place) -> None:
        """An expression is used in one more place."""
        known = self.places.setdefault(e, place)
        if known != place:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, place)))
            self.places[e] = known[:same]


class _Placer:
    """Places the lets of a body; what is bound around it has the depth of its first statements."""

    def __init__(self, body: Stmt, uniform: Uniformity, budget: int, flat: bool, *, seldom: bool = False) -> None:
        self.body, self.uniform, self.budget = body, uniform, budget
        self.seldom = seldom  # so that registers matter more than time
        self.flat = flat  # so 64-bit integers are addresses
        self.homes: dict[Expr, int] = {}
        self.arms: dict[Expr, int] = {}  # the depths of arms that have all uses
        self.names: dict[Node, Var] = {}  # expressions that are bound by now
        self.settled: dict[int, set[Node]] = {}  # depth -> nodes of which all parts with their home there are bound
        self.held: dict[Node, Var] = {}  # those of them that a loop holds in which we are
        self.hoisted: set[Expr] = set()  # those to bind that are used in a block below their home
        self._note_binders(body, 0)
        self.wanted = self._choose(body, budget)

    def placed(self) -> Stmt:
        return self.place(self.body, 0)

    # ------------------------------------------------------------ what to bind

    def _note_binders(self, s: Stmt, depth: int) -> None:
        for v in s.binds:
            self.homes[v] = depth
        for v in s.binds_within:
            self.homes[v] = depth + 1
        for inner in s.bodies:
            self._note_binders(inner, _inside(s, depth))

    def home(self, e: Expr) -> int:
        """The depth of the innermost block that binds a variable of `e`, or of the arm there that has all its uses."""
        return max(self._known(e), self.arms.get(e, 0))

    def _known(self, e: Expr) -> int:
        known = self.homes.get(e)
        if known is None:
            known = self.homes[e] = max(map(self._known, e.children()), default=0)
        return known

    def _sink(self, e: Expr, place: Place) -> None:
        """Note the arm that has all uses of an expression, in no further loop."""
        known = deep = self._known(e)
        while deep < len(place) and not place[deep].is_loop:
            deep += 1
        if deep > known:
            self.arms[e] = deep

    def _choose(self, body: Stmt, budget: int) -> dict[Expr, None]:
        """The expressions to bind. Parents are settled before their operands: a bound parent uses them once."""
        noted = _Uses(body)
        uses = noted.depths
        order = [n for n in postorder(*noted.places) if isinstance(n, Expr)]
        wanted: dict[Expr, None] = {}
        for e in reversed(order):
            place, depths = noted.places[e], uses.get(e, [])
            self._sink(e, place)
            span = noted.spans[e]
            if (len(depths) > 1 or self._hoists_alone(e, depths)) and self._may_bind(e):
                wanted[e] = None
                span = span[0], span[0]
                home = self.home(e)
                place, depths = place[:home], [home]
            is_operand = _is_operand(e)
            for c in e.children():
                noted.meet(c, place)
                noted.stretch(c, span)
                if depths and not (is_operand or (isinstance(e, FromLane) and c is e.lane)):
                    uses.setdefault(c, []).extend(depths)
        self.hoisted = {e for e in wanted if any(d > self.home(e) for d in uses[e])}
        hoisted = [e for e in wanted if e in self.hoisted and not self.uniform(e)]
        cheap = [e for e in hoisted if all(isinstance(c, _LEAVES) or c in wanted for c in e.children())]
        for e in sorted(cheap, key=lambda e: len(uses[e]))[: max(0, len(hoisted) - budget)]:
            del wanted[e]
        if noted.is_straight:
            for e in wanted.keys() - self.hoisted:
                if _is_step(e) and noted.spans[e][1] - noted.spans[e][0] > _FAR and not self.uniform(e):
                    del wanted[e]
        return wanted

    def _hoists_alone(self, e: Expr, depths: Sequence[int]) -> bool:
        """Whether an expression is worth a variable only because it is used below its home."""
        deeper = max(depths, default=0) > self.home(e)
        return deeper and isinstance(e.type, Type) and (not self.seldom or self.uniform(e))

    def _may_bind(self, e: Expr) -> bool:
        if isinstance(e, Surface):
            return True
        if isinstance(e, _LEAVES) or _is_operand(e):
            return False
        if not isinstance(e.type, Type):
            widens = isinstance(e, Cast) and e.type.bits > e.a.type.bits  # what narrows goes to where it is stored
            return (isinstance(e, _ARITHMETIC) or widens) and not e.type.elem.is_bool
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
            if _is_vote(x):
                out += [*self._bind_parts((x.cond,), x, depth), self._voted(x, depth)]
                continue
            if isinstance(x, Let) and x.value in self.wanted and x.value not in self.names:
                out += self._bind_parts(x.value.children(), x, depth)
                if self.home(x.value) == depth:  # a let that is there already serves
                    out.append(evolve(x, value=self._named(x.value)))
                    self.names[x.value] = x.var
                    continue
            out += self._bind_parts((x,), x, depth)
            out.append(self._rewrite(x, depth))
        return block(*out)

    def _bind_parts(self, roots: tuple[Node, ...], user: Stmt, depth: int) -> list[Stmt]:
        """Lets for the wanted expressions under `roots` whose home is here and that are not bound yet."""
        out: list[Stmt] = []
        settled = self.settled.setdefault(depth, set())
        for root in roots:
            if root not in settled:
                self._bind(root, user, depth, settled, out)
        return out

    def _bind(self, n: Any, user: Stmt, depth: int, settled: set[Node], out: list[Stmt]) -> None:
        """Lets for what is to be bound under a node, in their order, and for itself."""
        settled.add(n)
        for c in n.children():
            if c not in settled and not isinstance(c, _LEAVES):
                self._bind(c, user, depth, settled, out)
        if n in self.wanted and n not in self.names and self.home(n) == depth:
            value = self._named(n)
            self.names[n] = name = _variable(n, user)
            self.uniform.let(name, n)
            out.append(Let(name, value))

    def _voted(self, s: If, depth: int) -> Stmt:
        """What nearly always runs is placed as if it stood here; what seldom does, by itself."""
        before, settled = dict(self.names), {at: set(nodes) for at, nodes in self.settled.items()}
        then = self.place(s.then, depth)
        self.names, self.settled = before, settled
        there = self.held | {e: v for e, v in before.items() if isinstance(e, Surface)}
        other = _Placer(substitute(s.other, there), self.uniform, self.budget, self.flat, seldom=True)
        return If(self._named(s.cond), then, other.placed())

    def _rewrite(self, s: Stmt, depth: int) -> Stmt:
        match s:
            case For():
                around, self.held = self.held, {e: v for e, v in self.names.items() if e in self.hoisted}
                body = block(self.place(s.body, depth + 1), *self._bind_parts(s.yields, s, depth + 1))
                self.held = around
                return evolve(
                    s,
                    begin=self._named(s.begin),
                    end=self._named(s.end),
                    inits=tuple(map(self._named, s.inits)),
                    body=body,
                    yields=tuple(map(self._named, s.yields)),
                )
            case If(cond, then, other):
                return If(self._named(cond), self.place(then, depth + 1), self.place(other, depth + 1))
        return self._named(s)

    def _named(self, n: N) -> N:
        """What is bound by now, replaced by its name."""
        return substitute(n, self.names)


def _inside(s: Stmt, depth: int) -> int:
    """How deep the blocks within a statement of a block of that depth are nested."""
    return depth if isinstance(s, Block) or _is_vote(s) else depth + 1


def _is_step(e: Expr) -> bool:
    """Whether an expression is a constant away from another, as addresses of the same lane are."""
    return isinstance(e, Add) and isinstance(e.type, Type) and any(isinstance(c, Const) for c in e.children())


def _is_operand(e: Expr) -> bool:
    """Whether an expression is the word of one lane for all lanes, which an instruction reads as it is.

    Passes make such for targets alone where that is so.
    """
    return isinstance(e, Uniform) and isinstance(e.a, FromLane) and isinstance(e.a.lane, Const)


def _is_vote(s: Stmt) -> TypeGuard[If]:
    return isinstance(s, If) and isinstance(s.cond, AllLanes)


def _variable(e: Expr, user: Stmt) -> Var:
    """A variable for an expression, with a name that says what the value is for."""
    if isinstance(e, Surface):
        return var(f"{e.buffer.name}_surface", e.type)
    for field, role in user.roles.items():
        if getattr(user, field) is e:
            comment = user.site.comment if user.site else ""
            subject = next((m.name for m in user.memory() if isinstance(m, Shared)), comment)
            return var(f"{subject}_{role}", e.type)
    return temporary(e.type)
