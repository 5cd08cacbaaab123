"""Every rule is a property test: it keeps the value on every type, and its right side is smaller."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from convgen.ir import expr as x
from convgen.ir.evaluate import Evaluator, InterpError, Value
from convgen.ir.expr import Add, Const, Expr, Mul, Splat, Sub, Var, const, var
from convgen.ir.mutate import mutate, postorder
from convgen.ir.node import Node
from convgen.ir.simplify.bounds import Range, type_range
from convgen.ir.simplify.identities import TABLES
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.rules import (
    INTEGER,
    VALUE,
    Rewrites,
    Rule,
    Rules,
    c0,
    c1,
    exact,
    make,
    number,
    u,
    wrapped,
    y,
    z,
)
from convgen.ir.simplify.rules import x as w
from convgen.ir.types import AnyType, Type, VectorType, bool_, f32, s8, s16, s32, s64, u8, u16, u32, u64, vector

RULES = [rule for table in TABLES for rule in table.rules]
INTEGERS = (s8, u8, s16, u16, s32, u32, s64, u64)
FIRINGS = 40  #: cases that satisfy the conditions, checked on all assignments

#: What an operation is worth; leaves count one, constants nothing.
WORTH = {x.Div: 8, x.Mod: 8, x.Not: 1, x.Uniform: 1}


# ---------------------------------------------------------------- value


@attrs.frozen
class Instance:
    """A left side about actual variables and constants."""

    left: Expr
    domains: dict[Var, Range]

    def values(self, e: Expr) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        axes = [np.arange(lo, hi + 1, dtype=object) for lo, hi in self.domains.values()]
        grid = np.meshgrid(*axes) if axes else []
        ev = Evaluator(grid[0].size if grid else 1)
        for v, axis in zip(self.domains, grid):
            data = axis.ravel().astype(v.type.elem.numpy)
            lanes = v.type.lanes if isinstance(v.type, VectorType) else 0
            ev.env[v] = Value(np.repeat(data[:, None], lanes, 1) if lanes else data)
        return ev(e).data


class Only:
    """Asks facts for one rule; simplifies nothing."""

    def __init__(self, facts: Knowledge) -> None:
        self.facts = facts

    def __call__(self, e: Expr) -> Expr:
        return e

    def proves(self, cond: Expr) -> bool:
        return self.facts.decided(cond) is True

    def cannot_wrap(self, e: Expr) -> bool:
        return self.facts.bounds.cannot_wrap(e)


def some_number(r: random.Random, type: Type) -> int:
    """Small, a power of two or just below it, or near an end of the type."""
    near = r.choice((0, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 63, 64, -1, -2, -8, type.max, type.min))
    return wrapped(near + r.choice((0, 0, 0, 1, -1)), type)


def some_domain(r: random.Random, type: Type) -> Range:
    lo = some_number(r, type)
    return lo, min(lo + r.choice((0, 1, 3, 8)), type.max)


def instance(rule: Rule, r: random.Random) -> Instance:
    """The rule's left side on one type, sometimes on vectors of it, operands in some order."""
    integer: Type = r.choice(INTEGERS)
    value: Type = r.choice((*INTEGERS, bool_))
    lanes = r.choice((0, 0, 0, 2))
    domains: dict[Var, Range] = {}

    def actual(type: AnyType) -> AnyType:
        elem = integer if type is INTEGER else value if type is VALUE else type.elem
        return vector(elem, lanes) if lanes else elem

    def leaf(e: Expr) -> Expr:
        type = actual(e.type)
        if isinstance(e, Const):
            return make(e.bits, type)
        assert isinstance(e, Var)
        if e.name.startswith("c"):
            return make(numbers.setdefault(e, some_number(r, type.elem)), type)
        new = named.setdefault(e, var(e.name, type))
        domains.setdefault(new, (0, 1) if type.elem is bool_ else some_domain(r, type.elem))
        return new

    def turned(e: Expr) -> Expr:
        swap = isinstance(e, x.Binary) and e.commutes and number(e.b) is None and r.random() < 0.5
        return type(e)(e.b, e.a) if swap else e  # type: ignore[call-arg, attr-defined]

    numbers: dict[Expr, int] = {}
    named: dict[Expr, Var] = {}
    handlers: dict[type[Node], Callable[[Any], Node]] = {Var: leaf, Const: leaf}
    handlers.update((type(n), turned) for n in postorder(rule.left) if isinstance(n, x.Binary))
    return Instance(mutate(rule.left, handlers), domains)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_value(rule: Rule) -> None:
    r = random.Random(rule.name)
    rewrite = Rewrites(Rules((rule.name, rule.left, rule.right, *rule.conditions)))[type(rule.left)]
    assert rewrite is not None
    fired = tried = 0
    while fired < FIRINGS and tried < 40_000:
        tried += 1
        case = instance(rule, r)
        new = rewrite(Only(Knowledge(64, case.domains)), case.left)
        if new is None:
            continue
        assert new.type is case.left.type
        try:
            before = case.values(case.left)
        except InterpError:
            continue  # docs/ir.md: a simplifier may assume that errors do not happen
        fired += 1
        assert np.array_equal(case.values(new), before), f"{case.left} -> {new} where {case.domains}"
    assert fired == FIRINGS, f"the conditions held {fired} times in {tried}"


# ---------------------------------------------------------------- termination


def occurrences(e: Expr) -> Counter[Expr]:
    """How often each wildcard occurs, the expression read as a tree."""
    if isinstance(e, Var):
        return Counter() if e.name.startswith("c") else Counter([e])
    return sum((occurrences(c) for c in e.children() if isinstance(c, Expr)), Counter())


def is_constant(e: Expr) -> bool:
    return not occurrences(e)


def size(e: Expr) -> int:
    """The worth of an expression, read as a tree; what folds is worth nothing."""
    if is_constant(e):
        return 0
    if isinstance(e, Var):
        return 1
    return WORTH.get(type(e), 2) + sum(size(c) for c in e.children() if isinstance(c, Expr))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_termination(rule: Rule) -> None:
    """Whatever stands for the wildcards, the right side is worth less: no wildcard occurs there more often."""
    assert size(rule.right) < size(rule.left)
    assert occurrences(rule.right) <= occurrences(rule.left)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_form(rule: Rule) -> None:
    """Names begin with the operator; constants stand on the right; the right side names nothing new."""
    assert rule.name.split(".")[0] == type(rule.left).__name__.lower()
    used = {leaf for leaf in postorder(rule.left) if isinstance(leaf, Var)}
    for side in (rule.right, *(c if isinstance(c, Expr) else c.expr for c in rule.conditions)):
        assert {leaf for leaf in postorder(side) if isinstance(leaf, Var)} <= used
    for n in postorder(rule.left):
        if isinstance(n, x.Binary) and n.commutes:
            assert not is_constant(n.a) or is_constant(n.b), "constants of operators that commute stand on the right"


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


# ---------------------------------------------------------------- the engine

A, B, C = var("a"), var("b"), var("c")
ENGINE = Rewrites(
    Rules(
        ("add.zero", w + 0, w),
        ("add.constants", (w + c0) + c1, w + (c0 + c1)),
        ("add.common_factor", w * y + w * z, w * (y + z)),
        ("add.both_ones", u & -1, u),
        ("sub.exact", (w + c0) - c0, w, exact(w + c0)),
    )
)


def applied(e: Expr, domains: dict[Var, Range] | None = None) -> Expr | None:
    rewrite = ENGINE[type(e)]
    return rewrite(Only(Knowledge(64, domains)), e) if rewrite else None


def test_repeated_wildcards_are_identical_objects_in_any_order() -> None:
    assert applied(A * B + C * A) is A * (B + C)
    assert applied(B * A + A * C) is A * (C + B)
    assert applied(A * B + C * C) is None


def test_constants_fold_and_wrap() -> None:
    e = var("s", s8)
    assert applied((e + 100) + 100) is e + const(-56, s8)
    assert applied((A + 3) + 4) is A + 7


def test_constants_of_vectors() -> None:
    v = var("v", vector(s32, 4))
    assert applied((v + 3) + 4) is v + 7
    assert applied(v + 0) is v
    assert isinstance((v + 7).b, Splat)  # type: ignore[attr-defined]


def test_minus_one_is_all_bits() -> None:
    e = var("e", u8)
    assert applied(x.And(e, const(255, u8))) is e
    assert applied(x.And(var("t", bool_), const(True, bool_))) is not None
    assert applied(x.And(A, const(255))) is None


def test_a_condition_that_is_not_proved_keeps_the_rule_from_firing() -> None:
    assert applied((A + 3) - 3) is None
    assert applied((A + 3) - 3, {A: (0, 9)}) is A
    assert applied((A + 3) - 4, {A: (0, 9)}) is None


def test_floats_do_not_match_integers() -> None:
    f = var("f", f32)
    assert applied(Add(f, const(0.0, f32))) is None
    assert applied(Sub(Add(f, const(1.0, f32)), const(1.0, f32))) is None
    assert applied(Add(Mul(f, f), Mul(f, f))) is None


@attrs.define
class Seeds:
    """Wrong rules that the tests must refuse: each has one flaw."""

    wrong_value = Rule("sub.seed", w - y, y - w, ())
    wraps = Rule("div.seed", (w * c0) // c0, w, (x.ne(c0, 0),))
    grows = Rule("add.seed", w + y, y + w, ())


def test_the_tests_refuse_wrong_rules() -> None:
    for rule in (Seeds.wrong_value, Seeds.wraps):
        with pytest.raises(AssertionError, match="->"):
            test_value(rule)
    with pytest.raises(AssertionError):
        test_termination(Seeds.grows)


def test_range_of_types() -> None:
    assert [type_range(t) for t in (s8, u8, bool_)] == [(-128, 127), (0, 255), (0, 1)]
