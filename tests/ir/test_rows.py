"""What statement classes say of themselves, and the tools that read it."""

from __future__ import annotations

from string import Formatter

import pytest

from convgen.ir import stmt
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.expr import AddressOf, Expr, Lane, Var, const, temporary, var
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Global, Plane, Shared, View
from convgen.ir.mutate import rewrite, statements, substitute
from convgen.ir.node import CLASSES, Node, node
from convgen.ir.record import evolve, fields_of
from convgen.ir.stmt import Barrier, Effect, For, If, Let, Load, Site, Stmt, Store, block
from convgen.ir.types import bool_, s32, u32

STRUCTURE = (stmt.Block, stmt.For, stmt.If, stmt.Let)
STATEMENTS = [
    c for c in CLASSES.values() if issubclass(c, Stmt) and c not in STRUCTURE and c.__module__ == "convgen.ir.stmt"
]
MEMORY = {t.__name__ for t in (Global, Plane, Shared, View)}


@pytest.mark.parametrize("cls", STATEMENTS)
def test_every_row_is_whole(cls: type[Stmt]) -> None:
    """Memory has a way in which it is accessed, operands have names, and the text shows every field."""
    memory = {f for f in cls.fields if cls.declared[f].annotation in MEMORY}
    assert memory == {f for f, way in cls.roles.items() if isinstance(way, Effect)}
    assert all(str(name).isidentifier() for f, name in cls.roles.items() if f not in memory)
    shown = {name for _, name, _, _ in Formatter().parse(cls.form) if name}
    assert shown == set(cls.fields) - {"site"}
    assert cls.level in ("", "tile", "message")
    assert bool(memory) <= bool(cls.level or cls.is_uniform)  # what a subgroup does as one needs no lowering
    assert not cls.needs or hasattr(TargetFacts, cls.needs) or hasattr(fields_of(TargetFacts), cls.needs)
    assert not cls.updates or issubclass(cls, (Store, stmt.Ticket))


def loop() -> For:
    i, c, r = var("i"), var("c"), var("r")
    body = block(Let(var("x"), i * 2), Barrier(Site(1)))
    return For(i, const(0), const(4), (c,), (const(7),), body, (c + i,), (r,), "loop", False)


def test_what_a_loop_binds_and_evaluates_where() -> None:
    s = loop()
    assert (s.binds, s.binds_within) == (s.results, (s.var, *s.carried))
    assert (s.operands, s.yields) == ((const(0), const(4), const(7)), s.yields)
    assert s.bodies == (s.body,)
    assert [type(x).__name__ for x in statements(s)] == ["Let", "Barrier", "Block", "For"]


def test_what_messages_access() -> None:
    k = KernelBuilder("k")
    x, tile = k.buffer("x", u32, 64), k.shared("tile", u32, 4, 4)
    v, at, zero, site = k.var("v", u32), AddressOf(x), const(0), k.site()
    load = stmt.FlatLoad(v, x, at, const(True, bool_), site)
    add = stmt.FlatAtomic(x, at, const(True, bool_), v, site, "add")
    write = stmt.SharedWrite(tile, zero, 0, v, site)
    nearer = stmt.FlatPrefetch(x, at, const(True, bool_), site)
    assert (load.reads, load.writes, load.binds) == ((x,), (), (v,))
    assert (add.reads, add.writes, add.binds) == ((x,), (x,), ())
    assert (write.reads, write.writes) == ((), (tile,))
    assert (nearer.reads, nearer.writes, nearer.memory()) == ((), (), (x,))
    assert isinstance(load, Load)
    assert load.moved is add.moved is u32


def test_replace_keeps_what_it_is_not_given() -> None:
    s = loop()
    assert evolve(s, label="loop") is s
    assert evolve(s, label="other").body is s.body
    with pytest.raises(TypeError, match="bodyy"):
        evolve(s, bodyy=s.body)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="carried types"):
        evolve(s, inits=(const(0, u32),))


def test_rewrite_takes_each_statement_where_it_stands() -> None:
    """Inner loops first, expressions not at all; blocks within blocks become one."""
    inner = evolve(loop(), label="inner")
    twice = If(Lane() < 3, inner, block(inner, Barrier(Site(2))))
    seen: list[str] = []

    def twofold(f: For) -> Stmt:
        seen.append(f.label)
        return block(Barrier(Site(len(seen) + 2)), f)

    new = rewrite(twice, {For: twofold})
    assert seen == ["inner", "inner"]
    assert isinstance(new, If)
    assert [type(s).__name__ for s in (*new.then.bodies, *new.other.bodies)] == [
        *("Barrier", "For"), *("Barrier", "For", "Barrier"),
    ]  # fmt: skip
    assert rewrite(twice, {For: lambda f: f}) is twice


def test_substitution_replaces_the_outermost() -> None:
    x, y = var("x"), var("y")
    whole = (x + 1) * 2
    assert substitute(whole + x, {whole: y, x + 1: x, x: y}) is y + y
    assert substitute(Let(x, whole), {whole: y}) is Let(x, y)


def test_a_temporary_says_so() -> None:
    assert temporary(s32).is_temporary
    assert not var("x").is_temporary


def test_children_do_not_hide_in_data() -> None:
    with pytest.raises(AssertionError, match=r"children in a field of data: Expr \| None"):

        @node
        class Hidden(Node):
            a: Expr | None

    @node
    class Parameters(Node):
        params: tuple[Global | Var, ...]

    assert Parameters.child_fields == {}


def test_a_message_on_a_surface_wants_one() -> None:
    k = KernelBuilder("k")
    x = k.buffer("x", u32, 64)
    bound = k.let("window", k.surface(x))
    k.global_store(bound, const(0, u32), 0)
    (_, store) = k.done().body.bodies
    assert store.writes == (x,)
    with pytest.raises(UserError, match=r"given n.*, wanted a surface"):
        k.global_load("v", u32, k.scalar("n"), 0)
