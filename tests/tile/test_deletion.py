"""Nothing in a tile kernel's code is there in vain: the loss of a wait, a barrier or a mask is noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import takewhile

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.ir import stmt as st
from convgen.ir.expr import Const, Expr, Select
from convgen.ir.mutate import rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.tile import Tensor, TileProgram
from tests.product import test_deletion, test_deletion_xe
from tests.product.changes import Change, described
from tests.tile import kernels
from tests.tile.test_simulated import on
from tests.watched import Watched

SAMPLE = 6  #: changes tried of a kernel in each run; sweeps try all
TARGETS = ("gfx942", "xehpc")


def program(name: str, target: str) -> TileProgram:
    """A GEMM of four turns, a softmax whose rows several subgroups share, or attention; all of ragged shapes."""
    if name == "gemm":
        tensors = (Tensor(shape, t) for shape, t in (((40, 100), "f16"), ((100, 40), "f16"), ((40, 40), "f32")))
        return on(kernels.gemm, (2, 2))(*tensors, bm=32, bn=32, bk=32)
    if name == "softmax":
        wide = 512 if target == "gfx942" else 256
        return on(kernels.softmax, (4, 1))(*[Tensor((3, wide - 9), "f32")] * 2, rows=2, cols=wide)
    return on(kernels.attention, (2, 1) if target == "gfx942" else (4, 2))(
        *[Tensor((50, 32), "f16")] * 4, bm=32, bn=32, causal=False
    )


def watched(name: str, target: str) -> Watched:
    """A tile program as compiled for a target."""
    made, to = program(name, target), targets.get(target)
    rng, out = np.random.default_rng(1), made.tensors[-1]
    memory = {t.name: rng.standard_normal(t.shape).astype(t.elem.numpy).view(np.uint8).ravel() for t in made.tensors}
    return Watched(to, made.kernel(to.facts), memory, out.name, out.elem)


def unnoticed(kernel: Watched, sample: int | None) -> list[Change]:
    """The losses of waits and barriers that nobody notices."""
    if kernel.to.facts.name == "gfx942":
        waits = [[change] for change in test_deletion.changes(kernel.text)]
    else:
        waits = [list(wait) for wait in test_deletion_xe.changes(kernel.text)]
    waits = waits if sample is None else random.Random(1).sample(waits, sample)
    return [c for wait in waits for c in takewhile(lambda c: not kernel.notices(c.applied(kernel.text)), wait)]


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(None, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gemm", "softmax", "attention"])
def test_losses_of_waits_and_barriers(name: str, target: str, sample: int | None) -> None:
    lost = unnoticed(watched(name, target), sample)
    assert not lost, described(lost)


def unmasked(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel without one of its masks each: what `where` chooses a constant in place of."""
    for s in statements(kernel.body):
        if isinstance(s, st.Let) and isinstance(s.value, Select) and s.var.name == "where":
            (kept,) = (arm for arm in (s.value.a, s.value.b) if not _is_constant(arm))
            yield _with(kernel, s, evolve(s, value=kept))


def _is_constant(e: Expr) -> bool:
    return all(isinstance(leaf, Const) for leaf in _leaves(e))


def _leaves(e: Expr) -> Iterator[Expr]:
    inner = [c for c in e.children() if isinstance(c, Expr)]
    yield from (leaf for c in inner for leaf in _leaves(c)) if inner else (e,)


def _with(kernel: Kernel, old: st.Stmt, new: st.Stmt) -> Kernel:
    return evolve(kernel, body=rewrite(kernel.body, {type(old): lambda s: new if s is old else s}))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_losses_of_masks(name: str, target: str) -> None:
    """Rows end within their block, and so do keys."""
    compiled = watched(name, target)
    (without,) = unmasked(compiled.kernel)
    assert compiled.notices_kernel(without), str(without)
