"""A round of the simplifier passes over what nothing has changed for, and over nothing else."""

from __future__ import annotations

import pytest

from convgen import driver
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Mul, const
from convgen.ir.mutate import mutate
from convgen.ir.program import Kernel
from convgen.ir.simplify.algebra import Algebra, Notes
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.rounds import USES, Rounds
from convgen.ir.simplify.simplify import _Simplifier, simplify
from convgen.ir.types import s32
from convgen.passes import pipeline
from convgen.problem.conv import Conv


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Expr]:
    """The expressions with operands that algebra is asked about, in order."""
    found: list[Expr] = []
    ask = Algebra.__call__

    def asked(self: Algebra, e: Expr) -> Expr:
        if e.children():
            found.append(e)
        return ask(self, e)

    monkeypatch.setattr(Algebra, "__call__", asked)
    return found


def one_round(rounds: Rounds, kernel: Kernel) -> Kernel:
    rounds.begin(kernel)
    return _Simplifier(Knowledge(kernel.width), Notes(), rounds)(kernel)


def kernel(factor: int) -> Kernel:
    """Two stores, of which the second depends on a let in a loop that depends on `factor`."""
    k = KernelBuilder("k", grid=(8, 1, 1))
    x = k.surface(k.buffer("x", s32, 1 << 12))
    with k.loop("i", 0, 4) as i:
        k.global_store(x, k.group[0] * 5 + Lane(), i.var * 16)
        row = k.let("row", i.var * factor + k.group[0])
        k.global_store(x, row // 3, row * 4)
    return k.done()


def test_a_round_in_which_nothing_changes_looks_at_nothing(looked_at: list[Expr]) -> None:
    rounds = Rounds()
    k = kernel(7)
    for _ in range(3):
        k = one_round(rounds, k)
    looked_at.clear()
    assert one_round(rounds, k) is k
    assert looked_at == []


def test_what_rests_on_a_let_that_changes_is_looked_at_again(looked_at: list[Expr]) -> None:
    rounds = Rounds()
    k = kernel(7)
    for _ in range(3):
        k = one_round(rounds, k)
    before = set(map(str, looked_at))
    looked_at.clear()
    one_round(rounds, _with_sixes(k))
    again = set(map(str, looked_at))
    assert {"row // 3", "row * 4"} <= again & before
    assert "group_x * 5 + lane" in before - again


def _with_sixes(k: Kernel) -> Kernel:
    return mutate(k, {Mul: lambda e: e.a * 6 if e.b is const(7) else e})


def test_algebra_is_not_asked_about_what_it_has_made_itself(looked_at: list[Expr]) -> None:
    rounds = Rounds()
    k = KernelBuilder("k", grid=(64, 1, 1))
    x = k.surface(k.buffer("x", s32, 1 << 12))
    k.global_store(x, k.group[0] % 8 % 4 // 3, k.group[0] * 2)
    new = one_round(rounds, k.done())
    assert {"group_x % 4", "group_x % 4 // 3"} <= set(map(str, looked_at))
    looked_at.clear()
    assert one_round(rounds, new) is new
    assert {"group_x % 4", "group_x % 4 // 3"}.isdisjoint(map(str, looked_at))


def test_what_a_loop_does_not_change_is_looked_at_around_it_only(looked_at: list[Expr]) -> None:
    k = KernelBuilder("k", grid=(64, 1, 1))
    x = k.surface(k.buffer("x", s32, 1 << 12))
    at = k.group[0] % 8 % 4 // 3
    k.global_store(x, at, at)
    with k.loop("i", 0, 4) as i:
        k.global_store(x, at, i.var * 6 % 4)
    one_round(Rounds(), k.done())
    assert list(map(str, looked_at)).count("group_x % 8 % 4") == 1
    assert "i * 6 % 4" in map(str, looked_at)


def test_bits_tell_variables_and_other_users() -> None:
    rounds = Rounds()
    k = kernel(7)
    group = k.group_ids[0]
    rounds.begin(k)
    assert rounds.dependencies(group + 1) == rounds.bit(group)
    assert rounds.dependencies(const(1) + 2) == 0
    rounds.begin(kernel(6))
    five = next(e for e in rounds.uses if str(e) == "group_x * 5")
    assert not rounds.dependencies(five) & USES
    six = next(e for e in rounds.uses if str(e) == "i * 6")
    assert rounds.dependencies(six + 1) == USES | rounds.bit(six.children()[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layer", ["mb32ic256ih14oc256oh14kh3ph1", "mb32ic512ih7oc512oh7kh3ph1", "mb2ic64ih14oc64oh7kh3sh2ph1"]
)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_what_rounds_leave_of_a_layer_is_as_simple_as_from_the_start(layer: str, direction: str) -> None:
    """Sums are grouped by who uses what they might become, which the round after may have changed."""
    program = driver.build(Conv.parse(layer, dir=direction, dt="f16", stag="axb", wtag="axb", dtag="axb"))
    simple: list[Kernel] = []

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        if p.name == "simplify":
            simple.append(after)

    for each in program.ir.kernels:
        pipeline.run(each, program.target.facts, observe=observe, after=program.passed.get(each.name))
    assert simple
    assert all(simplify(k) is k for k in simple)
