"""Read the IR's text, which `to_text` or a person wrote.

Texts are untrusted: sizes and nesting are bounded, nothing is evaluated, and an error points at a character. The forms
of all statements are merged into a prefix tree (`templates.forms`). Where several parts may follow, literal words are
tried before fields, and a name is taken for a view or a tile if it is declared as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from convgen.ir import expr, stmt
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.node import Node
from convgen.ir.program import Kernel, Program
from convgen.ir.sizes import Extent
from convgen.ir.stmt import Site, Stmt
from convgen.ir.text import declared
from convgen.ir.text.lines import Lines
from convgen.ir.text.templates import Fork, Part, forms, parts_of
from convgen.ir.types import AnyType, s32

_DEEPEST = 150  #: suites inside one another
_MOST_NAMED = 4  #: parts that may follow, in an error
_REMARK = re.compile(r"# (-?[0-9]{1,19})(?: ([A-Za-z_][\w.]*))?(?: \[([^\]]*)\])?(?:: (.*))?", re.ASCII)
_SLOT = re.compile(r"slot (-?[0-9]{1,19})", re.ASCII)
_SITES = re.compile(r"# ([0-9]{1,18})\b", re.ASCII)


def read(text: str) -> Any:
    """Return the node, or the program, that a text describes (`ir.text.parse`)."""
    reader = _Reader(text)
    try:
        root = reader.root()
    except RecursionError:
        raise reader.error("given too much inside one another") from None
    finally:
        expr.reserve_ids(reader.greatest)
    return root


class _Reader(Lines):
    """Reads programs, kernels and statements."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._next_site: int | None = None
        self._suites = 0
        self._carried: list[tuple[Var, ...]] = []  #: variables of the loops around the current line

    # ------------------------------------------------------------ roots

    def root(self) -> Any:
        if not self.lines:
            raise UserError("given an empty text, wanted a kernel, statements or an expression of the IR")
        if self.indent:
            self.next_line()
            raise self.error("given a first line that is indented, wanted one that is not")
        found = self.program() if self.peeks("program") else self.node()
        if self.line_at < len(self.lines):
            self.next_line()
            raise self.error("given more lines, wanted the end of the text")
        return found

    def program(self) -> Program:
        self.next_line()
        self.take("program", ":")
        self.end()
        buffers = []
        while self.indent > 0:
            self.next_line()
            self.take("buffer")
            buffers.append(self.buffer_declared())
            self.end()
        kernels = []
        while self.line_at < len(self.lines):
            own = self.variables, self.temporaries, self.buffers, self.tiles, self.views
            for table in (*own, self.instructions, self.products):
                table.clear()
            inner = self.node()
            if not isinstance(inner, Kernel):
                raise self.error("given something else, wanted a kernel of the program")
            kernels.append(inner)
        return Program(tuple(kernels), tuple(buffers))

    def node(self) -> Node:
        """Read declarations, then a kernel, statements or an expression; without them, return the last declaration."""
        last: Any = None
        while (made := self.declaration(0)) is not None:
            last = made
        if self.peeks("kernel") and self.indent == 0:
            return self.kernel()
        if self.indent < 0:
            if last is None:
                raise self.error("given no statement")
            return last  # type: ignore[no-any-return]
        statements: list[Stmt] = []
        while self.indent == 0 and not self.peeks("kernel", "program"):
            found = self.line(is_root=True)
            if isinstance(found, Expr):
                if statements:
                    raise self.error("given an expression, wanted a statement", 0)
                return found
            if found is not None:
                statements.append(found)
        return _one(statements)

    # ------------------------------------------------------------ kernels

    def kernel(self) -> Kernel:
        self.next_line()
        self.take("kernel")
        name = self.name()
        self.take("(")
        params = self.params()
        self.take(":")
        self.end()
        depth = self.indent
        if depth <= 0:
            raise self.error("given a kernel of no lines, wanted its grid")
        self.next_line()
        self.take("grid")
        sizes = self.extents()
        launched: list[Extent] = self.extents() if self.skip(",", "launched") else []
        self.take("as")
        ids = [self.bind(s32)]
        while self.skip(","):
            ids.append(self.bind(s32))
        self.end()
        if len(sizes) != 3 or not all(isinstance(n, int) for n in sizes):
            raise self.error("wanted a grid of three numbers X x Y x Z", 1)
        if self.indent != depth:
            raise self.error("given no line of subgroups behind the grid")
        self.next_line()
        subgroups = self.integer()
        self.take("subgroups", "of")
        width = self.integer()
        self.take("lanes", "as")
        subgroup = self.bind(s32)
        self.end()
        tiles = []
        while (found := self.declaration(depth)) is not None:
            if isinstance(found, Shared):
                tiles.append(found)
        body = _one(self.suite(0)[0] if self.indent > 0 else [])
        values = (name, params, tuple(sizes), subgroups, width, tuple(ids), subgroup, tuple(tiles), body)
        return self.made(Kernel, *values, tuple(launched))

    def params(self) -> tuple[Global | Var, ...]:
        """Read the arguments of a kernel. Sizes of a buffer may be arguments behind it."""
        found: list[Any] = []
        later: list[tuple[int, int, str]] = []
        while not self.sees(")"):
            if found:
                self.take(",")
            first, name = self.at, self.name()
            self.take(":")
            start = self.at
            self.type()
            if self.sees("["):
                later.append((len(found), start, name))
                found.append(None)
                while not self.sees("]"):
                    if self.ends:
                        raise self.error("wanted ']'")
                    self.at += 1
                self.at += 1
            else:
                self.at = first
                self.new_name()
                self.at = start
                found.append(self.scalar(name))
        end = self.at
        for n, start, name in later:
            self.at = start
            found[n] = self.known_buffer(declared.read_buffer(self, name))
        self.at = end
        self.take(")")
        return tuple(found)

    # ------------------------------------------------------------ statements

    def suite(self, outer: int) -> tuple[list[Stmt], tuple[Expr, ...]]:
        """Read the lines indented further than `outer`: statements, and the values of a `yield` at their end."""
        depth = self.indent
        if depth <= outer:
            raise self.error("wanted lines further in behind this one, if only 'pass'", 0)
        self._suites += 1
        if self._suites > _DEEPEST:
            raise self.error(f"given more than {_DEEPEST} suites inside one another")
        statements: list[Stmt] = []
        yields: tuple[Expr, ...] = ()
        while self.indent == depth and not yields:
            if self.peeks("yield"):
                yields = self.yielded()
            elif isinstance(found := self.line(), Stmt):
                statements.append(found)
        if self.indent > outer:
            self.next_line()
            raise self.error("given a line that belongs to no suite, wanted the indentation of one")
        self._suites -= 1
        return statements, yields

    def body(self, outer: int) -> Stmt:
        """Read a suite without a yield as one statement."""
        return _one(self._without_yield(outer))

    def _without_yield(self, outer: int) -> list[Stmt]:
        statements, yields = self.suite(outer)
        if yields:
            raise self.error("given a yield, wanted one at the end of a loop", 0)
        return statements

    def yielded(self) -> tuple[Expr, ...]:
        self.next_line()
        self.take("yield")
        found = [self.expr(self._wanted(0))]
        while self.skip(","):
            found.append(self.expr(self._wanted(len(found))))
        self.end()
        return tuple(found)

    def _wanted(self, n: int) -> AnyType | None:
        """Return the type of the n-th carried variable of the innermost loop."""
        carried = self._carried[-1] if self._carried else ()
        return carried[n].type if n < len(carried) else None

    def line(self, *, is_root: bool = False) -> Stmt | Expr | None:
        """Read the statement that begins with the next line; return None if the line only names an expression."""
        depth = self.indent
        self.next_line()
        word, next_word = self.words[0], self.words[1] if len(self.words) > 1 else ""
        if next_word == ":" and word not in ("else", "do"):
            return self.binding()
        if next_word == "=":
            self.temporary()
            return None
        structure = _STRUCTURE.get(word)
        if structure is not None:
            return structure(self, depth)  # type: ignore[no-any-return]
        if is_root and not any(part.words[:1] == (word,) for part, _ in forms().edges if not part.field):
            found = self.expr()
            self.end()
            return found
        return self.by_form(forms())

    def temporary(self) -> None:
        """Read `NAME = EXPRESSION`: a name for an expression, not a statement."""
        name = self.name()
        self.take("=")
        value = self.expr()
        self.end()
        self.temporaries[name] = value

    def binding(self) -> Stmt:
        """Read `NAME: TYPE = …`: another statement if the words of its form follow, else a let."""
        self.name()
        self.take(":")
        wanted = self.type()
        fork = next(fork for part, fork in forms().edges if part.kind == "Var")
        if any(self.fits(part) for part, _ in fork.edges):
            return self.by_form(fork, is_bound=True)
        self.take("=")
        value = self.expr(wanted)
        self.end()
        return self.made(stmt.Let, self._bound_at([0])[0], value)

    def by_form(self, fork: Fork, *, is_bound: bool = False) -> Stmt:
        """Read a statement by its form, from a fork on. If `is_bound`, the line begins with its variable."""
        values: dict[str, Any] = {}
        while not (fork.ends and self.ends):
            edge = next((edge for edge in fork.edges if self.fits(edge[0])), None)
            if edge is None:
                raise self.error(f"{self.given()}, wanted {_wanted(fork)}")
            part, fork = edge
            if part.field:
                self.field(part, values)
            else:
                self.take(*part.words)
        cls = fork.ends
        if is_bound:  # only now, as its operands may name an earlier variable of this name
            values["var"] = self._bound_at([0])[0]
        if "site" in cls.fields:
            values["site"] = self.site()
        for part in parts_of(cls):
            if part.absent is not None and part.field not in values:
                values[part.field] = part.default(values.__getitem__)
        self.end()
        return self.made(cls, **values)  # type: ignore[no-any-return]

    def fits(self, part: Part) -> bool:
        """Return whether the next tokens may begin this part."""
        if not part.field:
            words = part.words
            return tuple(self.words[self.at : self.at + len(words)]) == words
        if part.kind == "Var":
            return False  # `binding` reads these
        if part.kind in ("View", "Shared"):
            table: dict[str, Any] = self.views if part.kind == "View" else self.tiles
            other: dict[str, Any] = self.tiles if part.kind == "View" else self.views
            name = self.words[self.at].strip("`")
            return name in table or name not in other
        return True

    def field(self, part: Part, values: dict[str, Any]) -> None:
        """Read a field into `values`, unless it is optional and absent."""
        if part.prefix and not self.skip(*part.words):
            return
        values[part.field] = _FIELDS[part.kind](self)

    def site(self) -> Site:
        """Read the remark of a statement; without one, return a site with the next number."""
        found = _REMARK.fullmatch(self.words[self.at])
        if found is None:
            if self._next_site is None:
                self._next_site = max((int(found[1]) for found in _SITES.finditer(self.whole)), default=-1)
            self._next_site += 1
            return Site(self._next_site)
        slot, private = -1, False
        for mark in found[3].split(", ") if found[3] is not None else ():
            numbered = _SLOT.fullmatch(mark)
            if numbered:
                slot = int(numbered[1])
            elif mark == "private":
                private = True
            else:
                raise self.error(f"given the mark {ascii(mark)[:40]} of a site, wanted 'slot N' or 'private'")
        return self.made(Site, int(found[1]), found[2] or "", found[4] or "", slot, private)

    # ------------------------------------------------------------ statements that contain others

    def loop(self, depth: int) -> Stmt:
        self.take("for")
        binder = self.at
        self.name()
        if self.skip(":"):
            self.type()
        self.take("in", "[")
        begin = self.expr()
        self.take(",")
        end = self.expr()
        self.take(")")
        label = "" if self.ends or any(map(self.sees, ("circular", "carrying", ":"))) else self.name()
        circular = self.skip("circular")
        starts, inits = self._inits() if self.skip("carrying", "(") else ([], [])
        carried, results = self._bound_at(starts), self.results(starts)
        self.take(":")
        self.end()
        (v,) = self._bound_at([binder], s32)
        head = self.place
        self._carried.append(carried)
        for var in (*results, v, *carried):
            self.variables[var.name] = var
        statements, yields = self.suite(depth)
        self._carried.pop()
        for var in results:
            self.variables[var.name] = var
        self.return_to(head)
        return self.made(
            stmt.For, v, begin, end, carried, tuple(inits), _one(statements), yields, results, label or v.name, circular
        )

    def _inits(self) -> tuple[list[int], list[Expr]]:
        """Read `NAME: TYPE = EXPRESSION, …) ->`; return the token at which each declaration begins, and the values.

        The variables are bound later: the values may use earlier variables of these names.
        """
        starts: list[int] = []
        inits: list[Expr] = []
        while not self.sees(")"):
            if inits:
                self.take(",")
            starts.append(self.at)
            self.name()
            self.take(":")
            wanted = self.type()
            self.take("=")
            inits.append(self.expr(wanted))
        self.take(")", "->")
        return starts, inits

    def _bound_at(self, starts: list[int], default: AnyType | None = None) -> tuple[Var, ...]:
        """Bind the variables whose declarations begin at these tokens, of the type `default` where they name none."""
        end, found = self.at, []
        for start in starts:
            self.at = start
            found.append(self.bind(default))
        self.at = end
        return tuple(found)

    def results(self, starts: list[int]) -> tuple[Var, ...]:
        """Read the names of results. They have the types of the carried variables, declared at `starts`."""
        found: list[Var] = []
        for start in starts:
            if found:
                self.take(",")
            end, self.at = self.at, start
            self.name()
            self.take(":")
            dtype = self.type()
            self.at = end
            text = self.new_name()
            name, id = self.identity(text)
            found.append(self.bound(text, self.made(Var, name, id, dtype)))
        return tuple(found)

    def branch(self, depth: int) -> Stmt:
        self.take("if")
        cond = self.expr()
        self.take(":")
        self.end()
        head = self.place
        then = self.body(depth)
        other: Stmt = stmt.empty
        if self.indent == depth and self.peeks("else"):
            self.next_line()
            self.take("else", ":")
            self.end()
            other = self.body(depth)
        self.return_to(head)
        return self.made(stmt.If, cond, then, other)

    def inner(self, depth: int) -> Stmt:
        """Read `do:` and its suite, a block within a block."""
        self.take("do", ":")
        self.end()
        return stmt.Block(tuple(self._without_yield(depth)))

    def nothing(self, depth: int) -> None:
        self.take("pass")
        self.end()


def _one(statements: list[Stmt]) -> Stmt:
    """Return the only statement, or a block of all."""
    return statements[0] if len(statements) == 1 else stmt.Block(tuple(statements))


def _wanted(fork: Fork) -> str:
    """Return the parts that may follow, as text for an error."""
    parts = [part for part, _ in fork.edges]
    if len(parts) > _MOST_NAMED:
        return "a statement"
    return " or ".join(repr(" ".join(p.words)) if p.words else f"a {p.kind.lower()}" for p in parts) or "nothing more"


_STRUCTURE: dict[str, Callable[[_Reader, int], Any]] = {
    "for": _Reader.loop,
    "if": _Reader.branch,
    "do": _Reader.inner,
    "pass": _Reader.nothing,
}

_FIELDS: dict[str, Callable[[_Reader], Any]] = {
    "Expr": lambda r: r.expr(),
    "tuple[Expr, ...]": lambda r: () if r.sees("]") else r.exprs(),
    "View": lambda r: r.known_as(r.views, "view or shared tile"),
    "Shared": lambda r: r.known_as(r.tiles, "shared tile"),
    "Global": lambda r: r.buffer(),
    "Plane": lambda r: declared.read_plane(r, r.buffer),
    "Rectangle": declared.read_rectangle,
    "Fragment": declared.read_fragment,
    "TensorMap": declared.read_tensor_map,
    "int": lambda r: r.integer(),
    "str": lambda r: r.name(),
}
