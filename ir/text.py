"""Text for people: infix expressions, indented statements, kernels under a header. `ir.dump` writes what parses back.

Subtrees that occur more than once and are not small are bound to a name (`t3 = ...`) before the statement that first
uses them, so a DAG never prints exponentially. A variable prints by its name, and as `name.id` where two share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from string import Formatter
from typing import Any

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir import stmt as s
from convgen.ir.expr import Expr, Var
from convgen.ir.floats import Fma
from convgen.ir.fused import Fused
from convgen.ir.layout.memory import (
    Dim,
    Global,
    Overlay,
    Plane,
    Rectangle,
    RunView,
    Shared,
    SizedGlobal,
    SizedView,
    TensorDim,
    View,
)
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.record import frozen
from convgen.ir.stmt import Site, Stmt
from convgen.ir.types import bool_

TRUE = x.const(True, bool_)
ZERO = x.const(0)
SMALL = 3  #: operators; a repeated subtree of fewer is written out again

# Binding strength, as in Python.
_LOOSEST, _UNARY, _ATOM = 0, 8, 9
_STRENGTH = {"<": 1, "<=": 1, "==": 1, "!=": 1, "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6}
_STRENGTH |= {"*": 7, "//": 7, "%": 7}


@frozen
class ListingLine:
    """One line of a listing and the statement that it begins, if it begins one."""

    text: str
    stmt: Stmt | None = None


def show(node: Node) -> str:
    """A node as text for people."""
    return "\n".join(line.text for line in listing(node))


def in_short(e: Expr) -> str:
    """An expression on one line: the last of `show`, where what is repeated has a name."""
    return listing(e)[-1].text


def infix(e: Expr) -> str:
    """An expression on one line: what it repeats is written out again."""
    return _Printer(e).inline(e, _LOOSEST)


def listing(node: Node) -> list[ListingLine]:
    """The lines of `show(node)`, each with its statement."""
    printer = _Printer(node)
    printer.root(node)
    return printer.lines


def excerpt(root: Node, stmt: Stmt, message: str, occurrence: int = 0, around: int = 3) -> str:
    """The listing of `root` around the `occurrence`-th place of `stmt`, with `message` under a `^` marker."""
    lines = listing(root)
    places = [i for i, line in enumerate(lines) if line.stmt is stmt]
    if not places:
        return f"{show(stmt)}\n^ {message}"
    at = places[min(occurrence, len(places) - 1)]
    text = lines[at].text
    marker = " " * (len(text) - len(text.lstrip())) + "^ " + message
    before = [line.text for line in lines[max(0, at - around) : at + 1]]
    return "\n".join([*before, marker, *(line.text for line in lines[at + 1 : at + 1 + around])])


class _Printer:
    """Collects the lines of one listing."""

    def __init__(self, root: Node) -> None:
        nodes = list(postorder(root))
        params = root.params if isinstance(root, Kernel) else ()
        self.vars = _distinct([n for n in (*nodes, *params) if isinstance(n, Var)], lambda v: str(v.name))
        self.views = _distinct([v for n in nodes if (v := getattr(n, "view", None))], lambda v: str(v.memory.name))
        self.repeated = _repeated(nodes)
        taken = set(self.vars.values())
        self.fresh = (name for i in range(len(nodes) + len(taken) + 1) if (name := f"t{i}") not in taken)
        self.temporaries: dict[Expr, str] = {}  # every name given, so that a subtree has one name everywhere
        self.visible: dict[Expr, str] = {}  # those bound in the current suites
        self.lines: list[ListingLine] = []
        self.depth = 0

    def line(self, text: str, stmt: Stmt | None = None) -> None:
        self.lines.append(ListingLine("  " * self.depth + text, stmt))

    @contextmanager
    def suite(self) -> Iterator[None]:
        """Lines one level deeper, whose temporaries end with it."""
        saved = self.visible
        self.visible, self.depth = dict(saved), self.depth + 1
        yield
        self.visible, self.depth = saved, self.depth - 1

    def root(self, node: Node) -> None:
        match node:
            case Kernel():
                self.kernel(node)
            case Stmt():
                self.stmt(node)
            case Expr():
                self.line(self.expr(node))
            case Shared() | View() | Global():
                self.line(_DEFINITIONS[type(node)](node))
            case _:
                raise TypeError(f"show: {type(node).__name__}")

    # ------------------------------------------------------------ expressions

    def expr(self, e: Expr) -> str:
        """The text of `e`, after lines that bind what it repeats."""
        self.bind(e)
        return self.inline(e, _LOOSEST)

    def exprs(self, es: tuple[Expr, ...]) -> str:
        return ", ".join([self.expr(e) for e in es])

    def bind(self, e: Expr) -> None:
        if e in self.visible:
            return
        for c in e.children():
            self.bind(c)
        if e in self.repeated:
            name = self.temporaries.get(e) or next(self.fresh)
            self.line(f"{name} = {self.inline(e, _LOOSEST)}")
            self.temporaries[e] = self.visible[e] = name

    def inline(self, e: Expr, least: int) -> str:
        """The text of `e`, in parentheses if its root binds more loosely than `least`."""
        known = self.visible.get(e)
        if known is not None:
            return known
        strength, text = _infix(self, e)
        return text if strength >= least else f"({text})"

    # ------------------------------------------------------------ statements

    def binder(self, v: Var) -> str:
        return f"{self.vars[v]}: {v.type}"

    def stmt(self, node: Stmt) -> None:
        if isinstance(node, s.Block):
            for inner in node.stmts:
                self.stmt(inner)
        elif isinstance(node, s.For):
            self.loop(node)
        elif isinstance(node, s.If):
            self.line(f"if {self.expr(node.cond)}:", node)
            with self.suite():
                self.stmt(node.then)
            if node.other is not s.empty:
                self.line("else:")
                with self.suite():
                    self.stmt(node.other)
        else:
            self.line(self.statement(node) + _remark(node.site), node)

    def loop(self, node: s.For) -> None:
        inits = [f"{self.binder(v)} = {self.expr(init)}" for v, init in zip(node.carried, node.inits)]
        head = f"for {self.vars[node.var]} in [{self.exprs((node.begin,))}, {self.expr(node.end)})"
        carrying = f" carrying ({', '.join(inits)}) -> {self.names(node.results)}" if inits else ""
        self.line(f"{head} {node.label}".rstrip() + carrying + ":", node)
        with self.suite():
            self.stmt(node.body)
            if node.yields:
                self.line(f"yield {self.exprs(node.yields)}")

    def names(self, vs: tuple[Var, ...]) -> str:
        return ", ".join(self.vars[v] for v in vs)

    def statement(self, node: Stmt) -> str:
        """As the class says that its statements look."""
        parts = Formatter().parse(node.form)
        return "".join(text + (self.field(node, name, prefix or "") if name else "") for text, name, prefix, _ in parts)

    def field(self, node: Stmt, name: str, prefix: str) -> str:
        """A field behind its prefix; one that has a prefix and says nothing is left out."""
        value: Any = getattr(node, name)
        if prefix and (value in ((), 0, TRUE, ZERO) or value == getattr(node, "layout", None)):
            return ""
        if node.child_fields.get(name) == "Var":
            return prefix + self.binder(value)
        match value:
            case Expr():
                return prefix + self.expr(value)
            case tuple():
                return prefix + self.exprs(value)
            case View():
                return self.views[value]
            case Shared() | Global():
                return value.name
            case Plane():
                return _show_plane(value)
            case Rectangle():
                return _rectangle(value)
        return f"{prefix}{value}"

    # ------------------------------------------------------------ kernels

    def kernel(self, k: Kernel) -> None:
        params = ", ".join(_DEFINITIONS[Global](p) if isinstance(p, Global) else self.binder(p) for p in k.params)
        self.line(f"kernel {k.name}({params}):")
        self.depth = 1
        x, y, z = k.grid
        self.line(f"grid {x} x {y} x {z} as {self.names(k.group_ids)}")
        self.line(f"{k.subgroups} subgroups of {k.width} lanes as {self.vars[k.subgroup]}")
        for tile in k.shared:
            self.line(_DEFINITIONS[Shared](tile))
        for view, name in self.views.items():
            self.line(_DEFINITIONS[type(view)](view).replace("view ", f"view {name} = ", 1))
        self.stmt(k.body)


def _distinct(things: list[Any], name: Callable[[Any], str]) -> dict[Any, str]:
    """A name for each thing; where several share one, it is followed by the thing's id or its rank."""
    unique = list(dict.fromkeys(things))
    counts = Counter(map(name, unique))
    ranks: Counter[str] = Counter()
    out = {}
    for thing in unique:
        plain = name(thing)
        ranks[plain] += 1
        out[thing] = plain if counts[plain] == 1 else f"{plain}.{getattr(thing, 'id', ranks[plain])}"
    return out


def _repeated(nodes: list[Node]) -> set[Expr]:
    """The expressions that several nodes use (or one several times) and that are not small; `nodes` in post-order."""
    uses = Counter(c for n in nodes for c in n.children())
    size: dict[Node, int] = {}
    out: set[Expr] = set()
    for n in nodes:
        if isinstance(n, Expr):
            operands = n.children()
            size[n] = sum(size[c] for c in operands) + bool(operands)
            if uses[n] > 1 and size[n] >= SMALL:
                out.add(n)
                size[n] = 0
    return out


# ---------------------------------------------------------------- tables


def _infix(p: _Printer, e: Any) -> tuple[int, str]:
    """The binding strength of the root of `e`, and its text."""
    if isinstance(e, x.Binary) and e.symbol in _STRENGTH:
        strength = _STRENGTH[e.symbol]
        left = strength + isinstance(e, x.Comparison)  # comparisons do not chain
        return strength, f"{p.inline(e.a, left)} {e.symbol} {p.inline(e.b, strength + 1)}"
    if isinstance(e, x.Binary):
        return _ATOM, f"{e.symbol}({p.inline(e.a, _LOOSEST)}, {p.inline(e.b, _LOOSEST)})"
    if isinstance(e, x.Unary) and e.symbol in "~-":
        return _UNARY, f"{e.symbol}{p.inline(e.a, _UNARY)}"
    if isinstance(e, x.Unary):
        return _ATOM, f"{e.symbol}({p.inline(e.a, _LOOSEST)})"
    if isinstance(e, x.Const):
        return (_UNARY if str(e.value).startswith("-") else _ATOM), _number(e)
    return _ATOM, _EXPRESSIONS[type(e)](p, e)


def _number(c: x.Const) -> str:
    if c.dtype.is_bool:
        return "true" if c.bits else "false"
    return str(c.dtype.numpy.type(c.value)) if c.dtype.is_float else str(c.bits)


def _args(p: _Printer, *es: Expr) -> str:
    return ", ".join(p.inline(e, _LOOSEST) for e in es)


_EXPRESSIONS: dict[type[Expr], Callable[[_Printer, Any], str]] = {
    x.Var: lambda p, e: p.vars[e],
    sizes.Size: lambda p, e: p.vars[e],
    sizes.HostValue: lambda p, e: p.vars[e],
    x.Lane: lambda p, e: "lane",
    x.Select: lambda p, e: f"select({_args(p, e.cond, e.a, e.b)})",
    Fma: lambda p, e: f"fma({_args(p, e.a, e.b, e.c)})",
    Fused: lambda p, e: f"{e.name}({_args(p, e.a, e.b, e.c)})",
    x.Cast: lambda p, e: f"{e.dtype}({_args(p, e.a)})",
    x.Saturate: lambda p, e: f"{e.dtype}.saturate({_args(p, e.a)})",
    x.Splat: lambda p, e: f"{e.dtype}({_args(p, e.a)})",
    x.Pack: lambda p, e: f"{e.dtype}.pack({_args(p, *e.parts)})",
    x.Slice: lambda p, e: f"{p.inline(e.a, _ATOM)}[{e.start}:{e.start + e.count}]",
    x.FromLane: lambda p, e: f"from_lane({_args(p, e.a, e.lane)})",
    x.Shuffle: lambda p, e: f"{p.inline(e.a, _ATOM)}[{', '.join(map(str, e.order))}]",
    x.Mma: lambda p, e: f"mma.{e.op.atom.name}({_args(p, e.acc, e.a, e.b)})",
    BlockMma: lambda p, e: f"mma.{e.op.name}({_args(p, e.acc, e.a, e.b)})",
    x.AddressOf: lambda p, e: f"address_of({e.buffer.name})",
    x.Surface: lambda p, e: f"surface({e.buffer.name}, {_args(p, e.shift, e.extent)})",
}


def _rectangle(r: Rectangle) -> str:
    count = f"{r.count} times " if r.count > 1 else ""
    return f"{count}{r.rows} x {r.cols} {r.order.value}"


def _show_plane(p: Plane) -> str:
    return f"{p.memory.name}({p.height} x {p.width} bytes, pitch {p.pitch}" + (f", from {p.base})" if p.base else ")")


def _remark(site: Site | None) -> str:
    if site is None:
        return ""
    return f"  # {site.number} {site.stage}".rstrip() + (f": {site.comment}" if site.comment else "")


def _tile(t: Shared) -> str:
    swizzle = f", {t.chunk}-byte chunks ^ ({t.swizzle})" if t.swizzle.mask else ""
    over = f", over {t.region}" if t.region != t.name else ""
    return f"shared {t.name}: {t.slots} of {t.elem} {t.rows} x {t.cols}, {_order(t)}{swizzle}{over}"


def _order(t: Shared) -> str:
    """How a tile's elements follow one another, innermost digit first."""
    if t.pitch is not None:
        return f"pitch {t.pitch}"
    return "order " + " ".join(f"{d.dim}{d.size}@{d.stride}" for d in t.digits.digits)


def _view(v: View) -> str:
    axes = ", ".join(".".join(map(_dim, axis)) for axis in v.axes)
    index = ", ".join(map(_tensor_dim, v.index))
    return f"view [{axes}] -> {v.memory.name}[{index}] as {v.layout}"


def _dim(d: Dim) -> str:
    size = d.size if d.exact is None else f"({d.exact})"
    return f"{d.name}{size}" + (f"<{d.padded}" if d.padded != d.size else "")


def _tensor_dim(t: TensorDim) -> str:
    total = " + ".join(name if coef == 1 else f"{coef}*{name}" for name, coef in t.terms) or str(t.const)
    if t.const and t.terms:
        total += f" {'+' if t.const > 0 else '-'} {abs(t.const)}"
    return f"0 <= {total} < {t.size}" if t.masked else total


_DEFINITIONS: dict[type[Node], Callable[[Any], str]] = {
    **dict.fromkeys((Global, SizedGlobal), lambda g: f"{g.name}: {g.elem}[{g.elements}]"),
    **dict.fromkeys((Shared, Overlay), _tile),
    View: _view,
    RunView: lambda v: f"{_view(v)} in runs",
    SizedView: lambda v: f"{_view(v)} by {'x'.join(map(str, v.apart))}",
}
