from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import pytest

from convgen.ir import stmt
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.expr import Add, Const, Lane, Var, const, eq, minimum, select, var
from convgen.ir.mutate import Mutator, free_vars, mutate, postorder, substitute
from convgen.ir.node import compiling, sweep, table_size
from convgen.ir.stmt import Site
from convgen.ir.types import bool_, f16, f32, s8, s32, u8, vector

X, Y = var("x"), var("y")


def test_equal_fields_are_one_object() -> None:
    assert X + 1 is X + 1
    assert X + 1 is not X + 2
    assert X + Y is not Y + X
    assert {X + 1: "here"}[X + 1] == "here"
    assert stmt.Barrier(Site(1)) is not stmt.Barrier(Site(2))


def test_constants_are_keyed_by_type_and_bits() -> None:
    zero = const(0.0, f32)
    assert zero is not const(-0.0, f32)
    assert const(1, s32) is not const(1, u8)
    assert const(True, bool_) is const(1, bool_)
    assert const(float("nan"), f32) is const(float("nan"), f32)
    assert const(1.5, f16).value == 1.5


def test_nodes_refuse_assignment_and_truth() -> None:
    with pytest.raises(AttributeError, match="Add is immutable"):
        (X + 1).a = Y
    with pytest.raises(UserError, match="a GPU value where Python needs a bool"):
        bool(X < 1)


def test_operands_must_agree() -> None:
    with pytest.raises(UserError, match="operands are s32 and u8"):
        Add(X, var("u", u8))
    with pytest.raises(UserError, match="constant 300 does not fit s8"):
        var("c", s8) + 300
    with pytest.raises(UserError, match="constant inf does not fit s32"):
        X + float("inf")
    with pytest.raises(UserError, match="constant nan does not fit s32"):
        X + float("nan")
    with pytest.raises(UserError, match="select"):
        select(X, X, Y)


def test_pickles_and_copies_are_the_same_object() -> None:
    e = select(X < 3, minimum(X, Y) * 2, Lane()).to(f32)
    k = KernelBuilder("k")
    k.barrier()
    kernel = k.done()
    for node in (e, kernel, stmt.Let(X, Y + 1)):
        assert pickle.loads(pickle.dumps(node)) is node
        assert copy.copy(node) is node
        assert copy.deepcopy(node) is node
    assert pickle.loads(pickle.dumps(vector(f16, 8))) is vector(f16, 8)


def test_sweep_frees_what_nothing_refers_to() -> None:
    sweep()
    before = table_size()
    kept = X * 12345
    e = kept
    for i in range(1000):
        e = e + i
    assert table_size() >= before + 1000
    del e
    assert sweep() >= 1000
    assert table_size() <= before + 2
    assert X * 12345 is kept


def test_compiling_suspends_the_cyclic_collector() -> None:
    assert gc.isenabled()
    with compiling():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_unchanged_is_the_same_object_and_visited_once() -> None:
    e = X + 1
    for _ in range(60):  # 2^60 paths
        e = e + e
    seen = []

    def visit(v: Var) -> Var:
        seen.append(v)
        return v

    assert mutate(e, {Var: visit}) is e
    assert seen == [X]
    assert len(list(postorder(e))) == 63


def test_substitution_keeps_what_it_does_not_touch() -> None:
    left = Y * 3
    new = substitute(left + X, {X: const(4)})
    assert new is left + 4
    assert new.a is left  # type: ignore[attr-defined]


def test_free_variables_in_order_of_appearance() -> None:
    assert free_vars((Y + X) * Y) == (Y, X)


def test_scopes_of_a_mutator_have_memos_of_their_own() -> None:
    class Depth(Mutator):
        depth = 0

        def If(self, s: stmt.If) -> stmt.Stmt:
            self.depth += 1
            with self.scope():
                then = self.mutate(s.then)
            self.depth -= 1
            return stmt.If(s.cond, then, self.mutate(s.other))

        def Const(self, c: Const) -> Const:
            return const(self.depth)

    same = stmt.Let(X, const(7))
    new = Depth()(stmt.If(Y < Y, same, same))
    assert new is stmt.If(Y < Y, stmt.Let(X, const(1)), stmt.Let(X, const(0)))


PROGRAM = """
from convgen.ir.build import KernelBuilder
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.text import to_text
from convgen.ir.expr import Lane, const, eq
from convgen.ir.simplify.simplify import simplify
from convgen.ir.types import f32

k = KernelBuilder("k", grid=(4, 4, 1), subgroups=2)
x = k.surface(k.buffer("x", f32, 4096))
with k.loop("i", 0, 8, a=const(0), b=const(1)) as loop:
    t = k.let("t", (loop["a"] + loop["b"] * 4 + loop.var * 64 + k.group[0] * 256) % 256)
    k.global_store(x, k.let("v", (t + Lane()).to(f32)), t * 4 + Lane() * 4)
    with k.when(eq(t % 3, 1)):
        k.barrier()
    loop.yields(loop["b"], loop["a"] + t)
kernel = simplify(k.done())
print(kernel, to_text(kernel), var_ranges(kernel), sep="\\n")
"""


def test_text_does_not_depend_on_the_hash_seed() -> None:
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(texts) == 1
    assert "kernel k(x: f32[4096])" in texts.pop()


def test_a_second_copy_of_the_package_is_refused() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import ir"
    import convgen.ir

    (folder,) = convgen.ir.__path__
    done = subprocess.run([sys.executable, "-c", code, folder.removesuffix("/ir")], capture_output=True, text=True)
    assert "import this package as convgen.ir" in done.stderr


def test_identity_is_equality() -> None:
    assert (eq(X, Y) == eq(X, Y)) is True
    assert (eq(X, Y) == eq(Y, X)) is False
