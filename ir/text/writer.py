"""Write the IR as text: `show` for people, `to_text` for `parse`, in one grammar (docs/ir.md).

Subexpressions that are repeated and not small, or that nest deeply, are given a name (`t3 = ...`) before the statement
that first uses them. So the text of a DAG does not grow exponentially, and no line nests deeply. A variable is written
by its name, or as `name.id` if several share the name. `to_text` writes ids at all declarations, and first declares
what the node uses but does not bind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.error import UserError
from convgen.ir.expr import Const, Expr, Var
from convgen.ir.fused import Fused
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Plane, Rectangle, Shared, View
from convgen.ir.layout.mma import BlockAtom, MmaAtom, MmaTile
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel, Program
from convgen.ir.record import frozen
from convgen.ir.sizes import Extent
from convgen.ir.stmt import Site, Stmt
from convgen.ir.text import declared, instructions
from convgen.ir.text.expressions import ATOM, LOOSEST, POSTFIX, STRENGTH, UNARY, number
from convgen.ir.text.lexer import NUMBERED
from convgen.ir.text.templates import parts_of, reserved
from convgen.ir.types import AnyType, VectorType, f32, s32

#: Chosen: limits that keep most lines within a screen.
SMALL = 3  #: operators: a repeated subexpression with fewer gets no name
DEEP = 24  #: nested operators: a subexpression that nests deeper gets a name


@frozen
class ListingLine:
    """One line of a listing and the statement that it begins, if it begins one."""

    text: str
    stmt: Stmt | None = None


def show(node: Node) -> str:
    """Return a node as text for people."""
    return "\n".join(line.text for line in listing(node))


def in_short(e: Expr) -> str:
    """Return the last line of `show`: the expression, with names for its repeated subexpressions."""
    return listing(e)[-1].text


def infix(e: Expr) -> str:
    """Return an expression on one line, with repeated subexpressions written out."""
    return Writer([e]).inline(e, LOOSEST)


def listing(node: Node) -> list[ListingLine]:
    """Return the lines of `show(node)`, each with its statement."""
    writer = Writer([node])
    writer.root(node)
    return writer.lines


def to_text(root: Node | Program) -> str:
    """Return the text from which `parse` makes the identical node, or an equal program."""
    if isinstance(root, Program):
        own = [f"  buffer {declared.write_buffer_declaration(g, str)}" for g in root.buffers]
        return "\n".join(["program:", *own, *map(to_text, root.kernels)])
    writer = Writer([root], is_whole=True)
    if not isinstance(root, Kernel):
        writer.declarations()
    writer.root(root)
    return "\n".join([*writer.preamble(), *(line.text for line in writer.lines)])


def excerpt(root: Node, stmt: Stmt, message: str, occurrence: int = 0, around: int = 3) -> str:
    """Return the listing of `root` around the `occurrence`-th place of `stmt`, with `message` under a `^` marker."""
    lines = listing(root)
    places = [i for i, line in enumerate(lines) if line.stmt is stmt]
    if not places:
        return f"{show(stmt)}\n^ {message}"
    at = places[min(occurrence, len(places) - 1)]
    text = lines[at].text
    marker = " " * (len(text) - len(text.lstrip())) + "^ " + message
    before = [line.text for line in lines[max(0, at - around) : at + 1]]
    return "\n".join([*before, marker, *(line.text for line in lines[at + 1 : at + 1 + around])])


class Writer:
    """Collects the lines of a listing."""

    def __init__(self, roots: Iterable[Node], *, is_whole: bool = False) -> None:
        nodes = _postorder(roots)
        kernels = [n for n in nodes if isinstance(n, Kernel)]
        params = [v for k in kernels for v in k.params if isinstance(v, Var)]
        self.is_whole = is_whole
        self.vars, self.binders = _variables([*(n for n in nodes if isinstance(n, Var)), *params], nodes, is_whole)
        tiles = {t.name for k in kernels for t in k.shared}
        self.views = _distinct((v for n in nodes if (v := getattr(n, "view", None))), lambda v: v.memory.name, tiles)
        self.ops = _distinct(
            (n.op for n in nodes if isinstance(n, (x.Mma, BlockMma))), lambda op: _atom(op).name, set()
        )
        self.atoms = _distinct(map(_atom, self.ops), lambda atom: atom.name, set())
        self.repeated = _repeated(nodes)
        taken = {*self.vars.values(), *self.binders.values(), *(str(v.name) for v in self.vars)}
        self.fresh = (name for i in range(len(nodes) + len(taken) + 1) if (name := f"t{i}") not in taken)
        self.temporaries: dict[Expr, str] = {}  # all names given, so that a subexpression has the same name everywhere
        self.visible: dict[Expr, str] = {}  # those bound in the current suites
        self.known: set[Any] = set()  # variables, buffers, tiles that are declared
        self.free: dict[Any, None] = {}  # those that are used but not declared before
        self.lines: list[ListingLine] = []
        self.depth = 0

    def line(self, text: str, stmt: Stmt | None = None) -> None:
        self.lines.append(ListingLine("  " * self.depth + text, stmt))

    @contextmanager
    def suite(self) -> Iterator[None]:
        """Indent the lines written inside; names given inside are not visible after it."""
        saved = self.visible
        self.visible, self.depth = dict(saved), self.depth + 1
        yield
        self.visible, self.depth = saved, self.depth - 1

    def root(self, node: Node) -> None:
        match node:
            case Kernel():
                self.kernel(node)
            case Stmt():
                self.stmts(node)
            case Expr():
                self.line(self.expr(node))
            case Shared():
                self.line(declared.write_shared(node, node.name))
            case View():
                self.line(self.view(node, self.buffer(node.memory)))
            case Global():
                self.line(("buffer " if self.is_whole else "") + declared.write_buffer_declaration(node, self.extent))
            case _:
                raise TypeError(f"show: {type(node).__name__}")

    def preamble(self) -> list[str]:
        """Return declarations of what the lines use and do not declare."""
        for memory in [m for m in self.free if isinstance(m, Global)]:
            declared.write_buffer_declaration(memory, self.extent)  # its sizes may be free, too
        lines = [f"given {self.binders[v]}: {declared.write_scalar(v)}" for v in self.free if isinstance(v, Var)]
        buffers = [g for g in self.free if isinstance(g, Global)]
        lines += [f"buffer {declared.write_buffer_declaration(g, self.extent)}" for g in buffers]
        lines += [declared.write_shared(t, t.name) for t in self.free if isinstance(t, Shared)]
        return lines

    def declare(self, thing: Any) -> None:
        self.known.add(thing)

    def use(self, thing: Any) -> None:
        if thing not in self.known:
            self.free[thing] = None

    # ------------------------------------------------------------ expressions

    def expr(self, e: Expr, wanted: AnyType | None = None) -> str:
        """Write lines that name repeated subexpressions; return the text of `e`. A bare number has type `wanted`."""
        self.bind(e)
        return self.inline(e, LOOSEST, wanted)

    def exprs(self, es: tuple[Expr, ...]) -> str:
        return ", ".join([self.expr(e) for e in es])

    def bind(self, root: Expr) -> None:
        """Write a line for each subexpression that gets a name, operands before their users."""
        stack: list[tuple[Expr, bool]] = [(root, False)]
        seen = set()
        while stack:
            e, is_ready = stack.pop()
            if e in self.visible or (not is_ready and e in seen):
                continue
            if not is_ready:
                seen.add(e)
                operands = e.children()
                if operands:
                    stack.append((e, True))
                    stack.extend((c, False) for c in reversed(operands))
            elif e in self.repeated:
                name = self.temporaries.get(e) or next(self.fresh)
                self.line(f"{name} = {self.inline(e, LOOSEST)}")
                self.temporaries[e] = self.visible[e] = name

    def inline(self, e: Expr, least: int, wanted: AnyType | None = None) -> str:
        """Return the text of `e`, in parentheses if its root binds more loosely than `least`."""
        known = self.visible.get(e)
        if known is not None:
            return known
        strength, text = self.unbound(e, wanted)
        return text if strength >= least else f"({text})"

    def unbound(self, e: Any, wanted: AnyType | None) -> tuple[int, str]:
        """Return the binding strength of the root of `e`, and its text."""
        if isinstance(e, Var):
            self.use(e)
            return ATOM, self.vars.get(e, e.name)  # sizes are fields of buffers, not nodes below them
        if isinstance(e, Const):
            text = _number(e, wanted)
            return UNARY if text.startswith("-") else ATOM, text
        if isinstance(e, x.Splat) and isinstance(e.a, Const) and e.dtype is wanted and not e.a.dtype.is_bool:
            text = _number(e.a, e.a.dtype)
            if "_" not in text:
                return UNARY if text.startswith("-") else ATOM, text
        if e.symbol:
            return self.by_symbol(e)
        return ATOM, _EXPRESSIONS[type(e)](self, e)

    def by_symbol(self, e: Any) -> tuple[int, str]:
        strength = STRENGTH.get(e.symbol)
        if isinstance(e, x.Unary) and e.symbol in "~-":
            operand = self.inline(e.a, UNARY)
            is_sign = e.symbol == "-" and isinstance(e.a, Const)  # which could be taken for that of a number
            return UNARY, f"-({operand})" if is_sign else e.symbol + operand
        if isinstance(e, x.Binary) and strength is not None:
            left = strength + isinstance(e, x.Comparison)  # comparisons do not chain
            a, b = self.alike((e.a, e.b), (left, strength + 1))
            return strength, f"{a} {e.symbol} {b}"
        written = dict(zip(e.alike, self.alike([getattr(e, f) for f in e.alike])))
        return ATOM, f"{e.symbol}({', '.join(written.get(f) or self.argument(getattr(e, f)) for f in e.fields)})"

    def argument(self, value: Any) -> str:
        return self.buffer(value) if isinstance(value, Global) else self.inline(value, LOOSEST)

    def alike(self, es: Any, least: tuple[int, ...] = ()) -> list[str]:
        """Return the texts of operands of one type. One shows it: the first that is no number, else the first."""
        typed = next((n for n, e in enumerate(es) if e in self.visible or not _is_number(e)), 0)
        return [
            self.inline(e, least[n] if least else LOOSEST, e.type if n != typed else None) for n, e in enumerate(es)
        ]

    def extent(self, e: Extent) -> str:
        """Return a number, or an expression of sizes, written out."""
        if isinstance(e, int):
            return str(e)
        saved, self.visible = self.visible, {}
        text = f"{e.bits}_{e.dtype}" if isinstance(e, Const) else self.inline(e, LOOSEST)
        self.visible = saved
        return text

    # ------------------------------------------------------------ statements

    def binder(self, v: Var) -> str:
        self.declare(v)
        return f"{self.binders[v]}: {v.type}"

    def counter(self, v: Var) -> str:
        """Return the declaration of an integer variable: with its type, unless that is s32."""
        return self.binder(v) if v.type is not s32 else self.names((v,))

    def names(self, vs: tuple[Var, ...]) -> str:
        self.known.update(vs)
        return ", ".join(self.binders[v] for v in vs)

    def stmts(self, node: Stmt) -> None:
        """Write a suite: the statements of a block, or a single statement."""
        if isinstance(node, s.Block) and len(node.stmts) != 1:
            self.block(node)
        else:
            self.stmt(node)

    def block(self, node: s.Block) -> None:
        for inner in node.stmts:
            self.stmt(inner)
        if not node.stmts:
            self.line("pass")

    def stmt(self, node: Stmt) -> None:
        match node:
            case s.Block():
                self.line("do:", node)
                with self.suite():
                    self.block(node)
            case s.Let():
                value = self.expr(node.value, node.var.type)
                self.line(f"{self.binder(node.var)} = {value}", node)
            case s.For():
                self.loop(node)
            case s.If():
                self.line(f"if {self.expr(node.cond)}:", node)
                with self.suite():
                    self.stmts(node.then)
                if node.other is not s.empty:
                    self.line("else:")
                    with self.suite():
                        self.stmts(node.other)
            case _:
                self.line(self.statement(node) + _remark(node.site), node)

    def loop(self, node: s.For) -> None:
        inits = [(v, self.expr(init, v.type)) for v, init in zip(node.carried, node.inits)]
        begin, end = self.expr(node.begin), self.expr(node.end)
        carried = ", ".join(f"{self.binder(v)} = {init}" for v, init in inits)
        head = f"for {self.counter(node.var)} in [{begin}, {end})"
        label = f" {_word(node.label)}" if node.label != node.var.name else ""
        carrying = f" carrying ({carried}) -> {self.names(node.results)}" if inits else ""
        circular = " circular" * node.circular
        self.line(f"{head}{label}{circular}{carrying}:", node)
        with self.suite():
            if node.body is not s.empty or not node.yields:
                self.stmts(node.body)
            if node.yields:
                values = [self.expr(e, v.type) for e, v in zip(node.yields, node.carried)]
                self.line(f"yield {', '.join(values)}")

    def statement(self, node: Stmt) -> str:
        """Return a statement as its class's form says."""
        out = []
        bound: dict[int, Var] = {}
        for part in parts_of(type(node)):
            if not part.field:
                out.append(part.prefix)
                continue
            value = getattr(node, part.field)
            if part.kind == "Var":
                bound[len(out)] = value
                out.append("")
            elif part.absent is None or value != part.default(node.__getattribute__):
                out.append(part.prefix + self.field(value))
        for at, v in bound.items():  # last, as its operands may use a free variable of this name
            out[at] = self.binder(v)
        return "".join(out)

    def field(self, value: Any) -> str:
        writes = _FIELDS.get(type(value))
        if writes is not None:
            return writes(self, value)
        match value:
            case Expr():
                return self.expr(value)
            case tuple():
                return self.exprs(value)
            case View():
                return self.view_name(value)
            case Shared():
                self.use(value)
                return _word(value.name)
            case Global():
                return self.buffer(value)
        return str(value)

    def buffer(self, g: Global) -> str:
        self.use(g)
        return _word(g.name)

    def view_name(self, v: View) -> str:
        return _word(self.views[v])

    def view(self, v: View, name: str) -> str:
        return declared.write_view(v, name, self.buffer(v.memory), self.extent)

    def plane(self, p: Plane) -> str:
        return declared.write_plane(p, self.buffer(p.memory), self.extent)

    # ------------------------------------------------------------ kernels

    def kernel(self, k: Kernel) -> None:
        self.known.update(k.params)
        self.known.update(k.shared)
        params = ", ".join(map(self.param, k.params))
        self.line(f"kernel {k.name}({params}):")
        self.depth = 1
        launched = f", launched {' x '.join(map(self.extent, k.launched))}" if k.launched else ""
        self.line(f"grid {' x '.join(map(str, k.grid))}{launched} as {', '.join(map(self.counter, k.group_ids))}")
        self.line(f"{k.subgroups} subgroups of {k.width} lanes as {self.counter(k.subgroup)}")
        for tile in k.shared:
            self.line(declared.write_shared(tile, tile.name))
        self.declarations()
        if k.body is not s.empty:
            self.stmts(k.body)

    def declarations(self) -> None:
        """Write the declarations of views, instructions and products."""
        for view in self.views:
            self.line(self.view(view, self.view_name(view)))
        for atom, name in self.atoms.items():
            self.line(instructions.write_instruction(atom, name))
        for op, name in self.ops.items():
            if isinstance(op, MmaTile):
                self.line(instructions.write_product(op, name, self.atoms[op.atom]))

    def param(self, p: Global | Var) -> str:
        if isinstance(p, Global):
            return declared.write_buffer_declaration(p, self.extent)
        return f"{self.binders[p]}: {declared.write_scalar(p)}"


# ---------------------------------------------------------------- names


def _variables(given: list[Var], nodes: list[Node], is_whole: bool) -> tuple[dict[Var, str], dict[Var, str]]:
    """Return the text of each variable where it is used, and where it is bound."""
    unique = list(dict.fromkeys(given))
    counts = Counter(v.name for v in unique)
    bound = Counter(v for n in nodes if isinstance(n, Stmt) for v in (*n.binds, *n.binds_within))
    same = Counter((v.name, v.id) for v in unique)
    uses, binders = {}, {}
    for v in unique:
        numbered = f"{v.name}.{v.id}"
        if same[v.name, v.id] > 1:  # told apart by their types
            uses[v] = binders[v] = f"`{numbered}:{v.type}`"
            continue
        is_plain = counts[v.name] == 1 and bound[v] < 2 and not NUMBERED.fullmatch(v.name)
        uses[v] = _word(v.name if is_plain else numbered)
        binders[v] = _word(numbered) if is_whole else uses[v]
    return uses, binders


def _word(name: str) -> str:
    """Return a name as a token: in backquotes if it is a word of the language."""
    return f"`{name}`" if name in reserved() else name


def _atom(op: MmaTile | BlockAtom) -> MmaAtom | BlockAtom:
    return op.atom if isinstance(op, MmaTile) else op


def _distinct(things: Iterable[Any], name: Callable[[Any], str], taken: set[str]) -> dict[Any, str]:
    """Return a name for each thing. If several share a name, or it is taken, a number is appended."""
    unique = list(dict.fromkeys(things))
    counts = Counter(map(name, unique))
    used = taken | {plain for plain, times in counts.items() if times > 1}
    out = {}
    for thing in unique:
        plain = name(thing)
        ranked = (f"{plain}.{rank}" for rank in count(1))
        out[thing] = next(text for text in chain([plain], ranked) if text not in used)
        used.add(out[thing])
    return out


def _postorder(roots: Iterable[Node]) -> list[Node]:
    """Return every node once, operands before their users. Nesting may be arbitrarily deep."""
    seen: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            seen[node] = None
        elif node not in seen:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children()))
    return list(seen)


def _repeated(nodes: list[Node]) -> set[Expr]:
    """Return the expressions to be named, those repeated and not small, or deep. `nodes` are in post-order."""
    uses = Counter(c for n in nodes for c in n.children())
    size: dict[Node, int] = {}
    depth: dict[Node, int] = {}
    out: set[Expr] = set()
    for n in nodes:
        if isinstance(n, Expr):
            operands = n.children()
            size[n] = sum(size[c] for c in operands) + bool(operands)
            depth[n] = max((depth[c] for c in operands), default=0) + bool(operands)
            if (uses[n] > 1 and size[n] >= SMALL) or depth[n] > DEEP:
                out.add(n)
                size[n] = depth[n] = 0
    return out


# ---------------------------------------------------------------- tables


def _is_number(e: Expr) -> bool:
    """Return whether an expression may be written as a bare number."""
    return (isinstance(e, Const) or (isinstance(e, x.Splat) and isinstance(e.a, Const))) and not e.type.elem.is_bool


def _number(c: Const, wanted: AnyType | None) -> str:
    """Return a constant: bare if it has the type wanted there, or else the default type of bare numbers."""
    if c.dtype.is_bool:
        return "true" if c.bits else "false"
    text = str(c.bits) if not c.dtype.is_float else _float(c)
    default = f32 if c.dtype.is_float and not text.startswith("0x") else s32
    return text if c.dtype is (wanted or default) and not text.startswith("0x") else f"{text}_{c.dtype}"


def _float(c: Const) -> str:
    """Return the shortest decimal number that is read as this float, or its bits."""
    text = str(c.dtype.numpy.type(c.value)).replace("E", "e")
    text = text if any(mark in text for mark in ".en") else f"{text}.0"
    try:
        if number(text, c.dtype) is c:
            return text
    except (UserError, ValueError, OverflowError):
        pass
    return f"0x{c.bits:x}"


def _call(p: Writer, function: str, *es: Expr) -> str:
    function = f"`{function}`" if "*" in function else function
    return f"{function}({', '.join(p.inline(e, LOOSEST) for e in es)})"


def _cast(p: Writer, e: Any) -> str:
    is_explicit = isinstance(e.dtype, VectorType) and not isinstance(e.a.type, VectorType)
    return _call(p, f"{e.dtype}.cast" if is_explicit else str(e.dtype), e.a)


def _product(p: Writer, e: Any) -> str:
    return _call(p, f"mma.{p.ops[e.op]}", e.acc, e.a, e.b, *(e.scales if isinstance(e, x.Mma) else ()))


_EXPRESSIONS: dict[type[Expr], Callable[[Writer, Any], str]] = {
    x.Lane: lambda p, e: "lane",
    Fused: lambda p, e: f"{e.name}({', '.join(p.alike((e.a, e.b, e.c)))})",
    x.Cast: _cast,
    x.Saturate: lambda p, e: _call(p, f"{e.dtype}.saturate", e.a),
    x.Splat: lambda p, e: f"{e.dtype}({p.inline(e.a, LOOSEST, e.dtype.elem)})",
    x.Pack: lambda p, e: _call(p, f"{e.dtype}.pack", *e.parts),
    x.Slice: lambda p, e: f"{p.inline(e.a, POSTFIX)}[{e.start}:{e.start + e.count}]",
    x.Shuffle: lambda p, e: f"{p.inline(e.a, POSTFIX)}[{', '.join(map(str, e.order))}]",
    x.Mma: _product,
    BlockMma: _product,
}

_FIELDS: dict[type[Any], Callable[[Writer, Any], str]] = {
    Plane: Writer.plane,
    Rectangle: lambda p, r: declared.write_rectangle(r),
    Fragment: lambda p, f: declared.write_fragment(f),
    TensorMap: lambda p, t: declared.write_tensor_map(t),
}


def _remark(site: Site | None) -> str:
    """Return `  # NUMBER STAGE [slot 1, private]: COMMENT`; all but the number may be missing."""
    if site is None:
        return ""
    known = [f"slot {site.slot}"] * (site.slot != -1) + ["private"] * site.private
    marks = f" [{', '.join(known)}]" if known else ""
    stage = f" {site.stage}" if site.stage else ""
    comment = f": {site.comment}" if site.comment else ""
    return f"  # {site.number}{stage}{marks}{comment}"
