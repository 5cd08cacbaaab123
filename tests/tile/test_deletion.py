"""Nothing in a tile kernel's code is there in vain: the loss of a wait, a barrier or a mask is noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.ir import stmt as st
from convgen.ir.error import AssemblerError
from convgen.ir.expr import Const, Expr, Select
from convgen.ir.mutate import rewrite, statements
from convgen.ir.node import replace
from convgen.ir.program import Kernel
from convgen.passes import pipeline
from convgen.tile import Tensor, TileProgram
from tests import arithmetic as ar
from tests.product import test_deletion, test_deletion_xe
from tests.product.changes import Change, described
from tests.tile import kernels
from tests.tile.test_simulated import on

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


class Watched:
    """A tile program on a target, and whether anyone notices that its kernel or its text has changed."""

    def __init__(self, name: str, target: str) -> None:
        made = program(name, target)
        self.to, self.out = targets.get(target), made.tensors[-1]
        self.tiles = made.kernel(self.to.facts)
        self.emitted = self.to.emit(pipeline.run(self.tiles, self.to.facts))
        self.text = self.to.module([self.emitted])
        rng = np.random.default_rng(1)
        self.memory = {
            t.name: rng.standard_normal(t.shape).astype(t.elem.numpy).view(np.uint8).ravel() for t in made.tensors
        }
        self.wanted = ar.interpreted(self.tiles, self.memory)[self.out.name]
        assert not self.notices(self.text)

    def notices(self, text: str) -> bool:
        """The assembler's objection counts as well."""
        try:
            code = self.to.assemble(text)
        except AssemblerError:
            return True
        assert code is not None
        memory: dict[str, Any] = {name: data.copy() for name, data in self.memory.items()}
        report = self.to.simulate(code, [ar.launch(self.tiles, self.emitted)], memory)
        found, wanted = (m.view(self.out.elem.numpy) for m in (memory[self.out.name], self.wanted))
        return bool(report.findings) or bool(ar.differing(found, wanted, self.out.elem).any())

    def notices_kernel(self, tiles: Kernel) -> bool:
        return self.notices(self.to.module([self.to.emit(pipeline.run(tiles, self.to.facts))]))


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
    lost = unnoticed(Watched(name, target), sample)
    assert not lost, described(lost)


def unmasked(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel without one of its masks each: what `where` chooses a constant in place of."""
    for s in statements(kernel.body):
        if isinstance(s, st.Let) and isinstance(s.value, Select) and s.var.name == "where":
            (kept,) = (arm for arm in (s.value.a, s.value.b) if not _is_constant(arm))
            yield _with(kernel, s, replace(s, value=kept))


def _is_constant(e: Expr) -> bool:
    return all(isinstance(leaf, Const) for leaf in _leaves(e))


def _leaves(e: Expr) -> Iterator[Expr]:
    inner = [c for c in e.children() if isinstance(c, Expr)]
    yield from (leaf for c in inner for leaf in _leaves(c)) if inner else (e,)


def _with(kernel: Kernel, old: st.Stmt, new: st.Stmt) -> Kernel:
    return replace(kernel, body=rewrite(kernel.body, {type(old): lambda s: new if s is old else s}))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_losses_of_masks(name: str, target: str) -> None:
    """Rows end within their block, and so do keys."""
    kernel = Watched(name, target)
    (without,) = unmasked(kernel.tiles)
    assert kernel.notices_kernel(without), str(without)
