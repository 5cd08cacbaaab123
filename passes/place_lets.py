"""Common subexpression elimination and loop-invariant code motion, in one placement.

The home of an expression is the innermost block where all its variables are bound or, if one branch arm in that block
has all its uses, that arm. The expression is bound there, just before the first statement that needs it, if it has
several uses or a use in a loop below its home. All other expressions stay at their uses. Uniform comparisons and free
conversions are never bound: the first live in a flag, the second cost nothing. Vectors are bound only if they have
several uses: hoisting one would keep its registers live through the loop.

A hoisted varying value occupies a vector register throughout the loop. If these exceed the registers that the loop's
own values leave, values that take one operation are recomputed in the loop.

Lanes vote on conditions that nearly always hold (`ir/votes.py`); the arm for the other case is cold. It recomputes all
it needs, so that it costs other code neither time nor registers. It only reuses values that an enclosing loop keeps in
registers anyway, and surfaces, as scalar registers suffice. In it, varying values with one use stay in their loop.
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
from convgen.ir.stmt import Barrier, Block, For, If, Let, Load, Stmt, Store, block, stmts_of
from convgen.ir.types import Type, VectorType
from convgen.ir.uniform import Uniformity, uniformity, with_lets
from convgen.ir.votes import AllLanes

N = TypeVar("N", bound=Node)
Place = tuple["_Scope", ...]  #: the blocks around a statement except the kernel's body, outermost first
_LEAVES = (Const, Var, Lane)
_ARITHMETIC = (Unary, Binary, Fma, Select)  #: element-wise operations on vectors; masks stay in place

_TEMPORARIES = 24  #: registers; vector registers of a lane that hoisted values leave to temporaries; chosen
#: registers; if more vector registers are loaded or stored between two uses of an address, in code without loops and
#: products, the address is recomputed: a live register costs more than one addition. Chosen.
_FAR = 32


def place_lets(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Bind common subexpressions and loop invariants, as many as registers allow; requires message level."""
    body = _Placer(kernel.body, uniformity(kernel), spare_registers(kernel, facts), facts.flat).placed()
    return with_lets(evolve(kernel, body=body), kernel)


def spare_registers(kernel: Kernel, facts: TargetFacts) -> int:
    """Return the vector registers that the fullest loop leaves to values that are hoisted out of loops."""
    return max(0, facts.registers - _loop_registers(kernel.body, in_order=not facts.core.reorders) - _TEMPORARIES)


def _loop_registers(body: Stmt, *, in_order: bool) -> int:
    """Return the vector registers of the fullest loop: carried and loaded values, without separate accumulators."""
    most = 0
    for loop in statements(body):
        if isinstance(loop, For):
            inside = postorder(loop.body)
            elsewhere = {n.acc for n in inside if isinstance(n, Mma) and n.op.separate_accumulators}
            carried = [v for v in loop.carried if v not in elsewhere]
            most = max(most, _registers(carried) + _loaded_registers(loop, in_order=in_order))
    return most


def _loaded_registers(loop: For, *, in_order: bool) -> int:
    """Return the most vector registers that loaded, not carried values of a loop take between two barriers.

    All values loaded between two barriers may be live at once, with earlier ones that are used later; if statements
    stay `in_order`, each statement counts as an interval of its own.
    """
    interval, first, used = 0, dict[Var, int](), defaultdict[int, list[Expr]](list)
    for s in statements(loop.body):
        interval += in_order or isinstance(s, Barrier)
        used[interval] += s.operands
        if isinstance(s, Load) and s.var not in loop.yields:
            first[s.var] = interval
    last = first | {n: at for at, es in used.items() for n in postorder(*es) if n in first}
    begun, ended = Counter[int](), Counter[int]()
    for v in first:
        begun[first[v]] += _registers([v])
        ended[last[v] + 1] += _registers([v])
    return max(accumulate(begun[n] - ended[n] for n in range(interval + 1)))


def _registers(values: Iterable[Expr]) -> int:
    return sum(e.type.bits // 32 for e in values if isinstance(e.type, VectorType))


class _Scope(NamedTuple):
    """A loop's body, or an arm of a branch."""

    number: int
    is_loop: bool


class _Uses:
    """The uses of expressions that are not leaves."""

    def __init__(self, body: Stmt) -> None:
        self.is_straight = True  #: whether there is neither a loop nor a product so far
        self.moved = 0  #: vector registers that loads and stores have moved so far
        self.spans: dict[Expr, tuple[int, int]] = {}  #: the values of `moved` at the first and at the last use
        self.depths: dict[Expr, list[int]] = {}  #: depths of the blocks in which they are operands
        self.places: dict[Expr, Place] = {}  #: the innermost block with all uses, cold ones included
        self._blocks = count()
        self._note(body, (), cold=False)

    def _note(self, s: Stmt, place: Place, *, cold: bool) -> None:
        self._operands(s.operands, place, cold=cold)
        if isinstance(s, For) or (isinstance(s, Let) and isinstance(s.value, Mma)):
            self.is_straight = False
        if isinstance(s, (Load, Store)):
            self.moved += _registers([s.var if isinstance(s, Load) else s.value])
        for inner in s.bodies:
            inside = place if _inside(s, 0) == 0 else (*place, _Scope(next(self._blocks), isinstance(s, For)))
            self._note(inner, inside, cold=cold or (_is_vote(s) and inner is not s.then))
            if isinstance(s, For):
                self._operands(s.yields, inside, cold=cold)

    def _operands(self, operands: Iterable[Expr], place: Place, *, cold: bool) -> None:
        for e in operands:
            if isinstance(e, _LEAVES):
                continue
            if not cold:  # the cold arm is placed separately
                self.depths.setdefault(e, []).append(len(place))
            self.add_use(e, place)
            self.stretch(e, (self.moved, self.moved))

    def stretch(self, e: Expr, span: tuple[int, int]) -> None:
        """Extend the range of an expression's uses by `span`."""
        known = self.spans.setdefault(e, span)
        if known is not span:
            self.spans[e] = min(known[0], span[0]), max(known[1], span[1])

    def add_use(self, e: Expr, place: Place) -> None:
        """Add a place of use to an expression."""
        known = self.places.setdefault(e, place)
        if known is not place and known != place:
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, place)))
            self.places[e] = known[:shared]


class _Placer:
    """Places the lets of a body; depth 0 is its own statements and everything bound around it."""

    def __init__(self, body: Stmt, uniform: Uniformity, budget: int, flat: bool, *, cold: bool = False) -> None:
        self.body, self.uniform, self.budget = body, uniform, budget
        self.cold = cold  # whether this is a cold arm: registers matter more than time
        self.flat = flat  # 64-bit integers are then addresses
        self.homes: dict[Expr, int] = {}
        self.arms: dict[Expr, int] = {}  # depths of branch arms that have all uses
        self.names: dict[Node, Var] = {}  # expressions bound so far
        # depth -> nodes whose subexpressions with their home at that depth are all bound
        self.settled: dict[int, set[Node]] = {}
        self.kept: dict[Node, Var] = {}  # bound expressions that the enclosing loop keeps in registers
        self.hoisted: set[Expr] = set()  # expressions to bind that are used in a block below their home
        self._note_binders(body, 0)
        self.wanted = self._choose(body, budget)

    def placed(self) -> Stmt:
        return self.place(self.body, 0)

    # ------------------------------------------------------------ choice of expressions

    def _note_binders(self, s: Stmt, depth: int) -> None:
        for v in s.binds:
            self.homes[v] = depth
        for v in s.binds_within:
            self.homes[v] = depth + 1
        for inner in s.bodies:
            self._note_binders(inner, _inside(s, depth))

    def home(self, e: Expr) -> int:
        """Return the depth of the innermost block that binds a variable of `e`, or of its branch arm with all uses."""
        return max(self._binding_depth(e), self.arms.get(e, 0))

    def _binding_depth(self, e: Expr) -> int:
        """Return the depth of the innermost block that binds a variable of `e`."""
        depth = self.homes.get(e)
        if depth is None:
            depth = self.homes[e] = max(map(self._binding_depth, e.children()), default=0)
        return depth

    def _note_arm(self, e: Expr, place: Place) -> None:
        """Note the branch arm that has all uses of an expression, outside further loops."""
        bound = depth = self._binding_depth(e)
        while depth < len(place) and not place[depth].is_loop:
            depth += 1
        if depth > bound:
            self.arms[e] = depth

    def _choose(self, body: Stmt, budget: int) -> dict[Expr, None]:
        """Return the expressions to bind. Parents are decided before operands: a bound parent uses them once."""
        noted = _Uses(body)
        uses = noted.depths
        order = [n for n in postorder(*noted.places) if isinstance(n, Expr) and not isinstance(n, _LEAVES)]
        wanted: dict[Expr, None] = {}
        for e in reversed(order):
            place, depths = noted.places[e], uses.get(e, [])
            self._note_arm(e, place)
            span = noted.spans[e]
            if (len(depths) > 1 or self._hoists_alone(e, depths)) and self._may_bind(e):
                wanted[e] = None
                span = span[0], span[0]
                home = self.home(e)
                place, depths = place[:home], [home]
            is_operand = _is_operand(e)
            for c in e.children():
                if isinstance(c, _LEAVES):
                    continue
                noted.add_use(c, place)
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
        """Return whether an expression is worth a variable merely because it is used below its home."""
        deeper = max(depths, default=0) > self.home(e)
        return deeper and isinstance(e.type, Type) and (not self.cold or self.uniform(e))

    def _may_bind(self, e: Expr) -> bool:
        """Return whether a variable may hold an expression, by its kind and type."""
        if isinstance(e, Surface):
            return True
        if isinstance(e, _LEAVES) or _is_operand(e):
            return False
        if not isinstance(e.type, Type):
            widens = isinstance(e, Cast) and e.type.bits > e.a.type.bits  # narrowing conversions move to the store
            return (isinstance(e, _ARITHMETIC) or widens) and not e.type.elem.is_bool
        if isinstance(e, Cast) and e.type.is_int and e.a.type.elem.is_int and e.type.bits == e.a.type.bits:
            return False
        if e.type.is_int and e.type.bits == 64 and not self.flat:
            return False  # part of a surface's shift, which has registers only as a whole
        in_flag = isinstance(e, (Comparison, Not)) and e.type.is_bool and self.uniform(e)
        return not in_flag

    # ------------------------------------------------------------ placement

    def place(self, s: Stmt, depth: int) -> Stmt:
        """Return the block with its lets inserted and their expressions replaced."""
        out: list[Stmt] = []
        for x in stmts_of(s):
            if _is_vote(x):
                out += [*self._bind_parts((x.cond,), x, depth), self._voted(x, depth)]
                continue
            if isinstance(x, Let) and x.value in self.wanted and x.value not in self.names:
                out += self._bind_parts(x.value.children(), x, depth)
                if self.home(x.value) == depth:  # an existing let serves
                    out.append(evolve(x, value=self._named(x.value)))
                    self.names[x.value] = x.var
                    continue
            out += self._bind_parts((x,), x, depth)
            out.append(self._rewrite(x, depth))
        return block(*out)

    def _bind_parts(self, roots: tuple[Node, ...], user: Stmt, depth: int) -> list[Stmt]:
        """Return lets for the wanted expressions under `roots` that have their home here and are not bound yet."""
        out: list[Stmt] = []
        settled = self.settled.setdefault(depth, set())
        for root in roots:
            if root not in settled:
                self._bind(root, user, depth, settled, out)
        return out

    def _bind(self, n: Any, user: Stmt, depth: int, settled: set[Node], out: list[Stmt]) -> None:
        """Append lets for the wanted expressions under a node, operands first, then for the node."""
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
        """Place the usual arm as part of the enclosing block, and the cold arm separately."""
        before, settled = dict(self.names), {at: set(nodes) for at, nodes in self.settled.items()}
        then = self.place(s.then, depth)
        self.names, self.settled = before, settled
        available = self.kept | {e: v for e, v in before.items() if isinstance(e, Surface)}
        other = _Placer(substitute(s.other, available), self.uniform, self.budget, self.flat, cold=True)
        return If(self._named(s.cond), then, other.placed())

    def _rewrite(self, s: Stmt, depth: int) -> Stmt:
        match s:
            case For():
                around, self.kept = self.kept, {e: v for e, v in self.names.items() if e in self.hoisted}
                body = block(self.place(s.body, depth + 1), *self._bind_parts(s.yields, s, depth + 1))
                self.kept = around
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
        """Return a node with bound expressions replaced by their variables."""
        return substitute(n, self.names)


def _inside(s: Stmt, depth: int) -> int:
    """Return the depth of the blocks within a statement at `depth`."""
    return depth if isinstance(s, Block) or _is_vote(s) else depth + 1


def _is_step(e: Expr) -> bool:
    """Return whether an expression is a sum with a constant, as addresses of one lane often are."""
    return isinstance(e, Add) and isinstance(e.type, Type) and any(isinstance(c, Const) for c in e.children())


def _is_operand(e: Expr) -> bool:
    """Return whether an expression broadcasts the word of one lane, which an instruction reads directly.

    Passes create such expressions only for targets with such instructions.
    """
    return isinstance(e, Uniform) and isinstance(e.a, FromLane) and isinstance(e.a.lane, Const)


def _is_vote(s: Stmt) -> TypeGuard[If]:
    return isinstance(s, If) and isinstance(s.cond, AllLanes)


def _variable(e: Expr, user: Stmt) -> Var:
    """Return a variable for an expression, named after its role in the statement that uses it."""
    if isinstance(e, Surface):
        return var(f"{e.buffer.name}_surface", e.type)
    for field, role in user.roles.items():
        if getattr(user, field) is e:
            comment = user.site.comment if user.site else ""
            subject = next((m.name for m in user.memory() if isinstance(m, Shared)), comment)
            return var(f"{subject}_{role}", e.type)
    return temporary(e.type)
