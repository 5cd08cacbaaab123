"""Reductions and redistributions as the IR has them: what they mean, what is refused, and how they look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.expr import Add, And, FromLane, Lane, Mul, Sub, const, var
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.text import parse, to_text
from convgen.ir.types import f32, f64, s4, s32, vector
from convgen.ir.verify import verify
from tests.exchange import row

R, L, S, F = Space.REGISTER, Space.LANE, Space.SUBGROUP, Space.FIXED


def layout(*digits: tuple[str, int, Space, int], dims: tuple[str, ...] = ("n", "m")) -> Fragment:
    return Fragment(dims, tuple(Digit(*d) for d in digits))


MIXED = layout(("n", 8, L, 1), ("m", 4, R, 1), ("m", 2, L, 8), ("m", 2, S, 1), ("m", 3, R, 4))


def reduced(given: Any, of: Fragment, dim: str, width: int, subgroups: int) -> Any:
    """A sum along a dim, as interpreted."""
    k = KernelBuilder("k", subgroups=subgroups, width=width)
    n, m = of.shape
    held = k.load_view("held", matrix(k.buffer("a", f32, n * m), n, m), (0, 0), of)
    total, left = k.reduce("total", held, of, dim, Add)
    k.store_view(row(k.buffer("out", f32, left.shape[0]), left.shape[0]), (0,), total, left)
    out = np.zeros(4 * left.shape[0], np.uint8)
    interpret(verify(k.done()), {"a": given.view(np.uint8).ravel().copy(), "out": out})
    return out.view(np.float32)


def test_the_order_of_a_sum() -> None:
    """As docs/ir.md has it: registers from the largest stride, lanes from the smallest, then subgroups."""
    given = np.random.default_rng(1).standard_normal((8, 48)).astype(np.float32)
    at = given.reshape(8, 3, 2, 2, 2, 2)  # third register digit, subgroup, lane, and two of registers, n first
    total = (at[:, 0] + at[:, 1]) + at[:, 2]
    total = total[:, :, :, 0] + total[:, :, :, 1]
    total = total[..., 0] + total[..., 1]
    total = total[:, :, 0] + total[:, :, 1]
    total = total[:, 0] + total[:, 1]
    assert np.array_equal(reduced(given, MIXED, "m", 16, 2), total)
    assert not np.array_equal(total, given.sum(1, dtype=np.float32))


def test_what_is_left_of_a_layout() -> None:
    assert MIXED.without("m") == layout(("n", 8, L, 1), dims=("n",))
    assert MIXED.without("n") == layout(
        *[(d.dim, d.size, Space(d.space), d.stride) for d in MIXED.of("m")], dims=("m",)
    )
    gap = layout(("n", 2, R, 1), ("m", 3, R, 2), ("n", 5, R, 6))
    assert gap.without("m") == layout(("n", 2, R, 1), ("n", 5, R, 2), dims=("n",))
    steps = [(step, d.size, str(d.space), d.stride) for step, d in MIXED.reduction("m")]
    assert steps == [
        (16, 3, "register", 4), (2, 2, "register", 2), (1, 2, "register", 1), (4, 2, "lane", 8), (8, 2, "subgroup", 1)
    ]  # fmt: skip


def meeting(k: KernelBuilder) -> None:
    held = k.load_view("held", matrix(k.buffer("a", s32, 8 * 48), 8, 48), (0, 0), MIXED)
    k.reduce("total", held, MIXED, "m", Add)


def test_subgroups_that_meet_all_take_part() -> None:
    k = KernelBuilder("k", subgroups=2, width=16)
    with k.when(k.subgroup < 1):
        meeting(k)
    with pytest.raises(InterpError, match="an exchange between subgroups in which subgroup 1 does not take part"):
        interpret(verify(k.done()), {"a": np.zeros(4 * 8 * 48, np.uint8)})


def test_a_subgroup_may_reduce_what_it_has_alone() -> None:
    k = KernelBuilder("k", subgroups=2, width=16)
    with k.when(k.subgroup < 1):
        held = k.load_view("held", matrix(k.buffer("a", s32, 8 * 48), 8, 48), (0, 0), MIXED)
        k.reduce("total", held, MIXED, "n", Add)
    interpret(verify(k.done()), {"a": np.zeros(4 * 8 * 48, np.uint8)})


@pytest.mark.parametrize(
    ("to", "meet"),
    [
        (layout(("n", 4, S, 1), ("m", 2, L, 1)), False),
        (layout(("n", 2, S, 1), ("n", 2, S, 2), ("m", 2, R, 1)), False),
        (layout(("n", 2, S, 1), ("n", 2, R, 1), ("m", 2, S, 2)), True),
        (layout(("n", 4, S, 1), ("m", 2, S, 4)), False),
        (layout(("n", 4, S, 2), ("m", 2, S, 1)), True),
        (layout(("n", 4, R, 1), ("m", 2, R, 4)), True),
    ],
)
def test_who_meets(to: Fragment, meet: bool) -> None:
    of = layout(("n", 4, S, 1), ("m", 2, R, 1))
    values = var("v", vector(s32, of.registers)), var("w", vector(s32, to.registers))
    assert s.Redistribute(values[1], values[0], of, to, s.Site(1)).crosses_subgroups == meet
    assert not s.Redistribute(var("same", values[1].type), values[1], to, to, s.Site(1)).crosses_subgroups


def test_text_and_dump() -> None:
    k = KernelBuilder("k", subgroups=2, width=16)
    meeting(k)
    k.redistribute("moved", x.zeros(vector(s32, 12)), MIXED, MIXED)
    kernel = k.done()
    assert "total: s32x1 = reduce add of held along m of n8l1 m4r1 m2l8 m2s1 m3r4  # 2" in str(kernel)
    assert "moved: s32x12 = redistribute s32x12(0) of n8l1" in str(kernel)
    assert parse(to_text(kernel)) is kernel
    lane = FromLane(Lane(), Lane() ^ 1)
    assert str(lane) == "from_lane(lane, lane ^ 1)"
    assert parse(to_text(lane)) is lane


def test_what_cannot_be_exchanged() -> None:
    k = KernelBuilder("k", subgroups=2, width=16)
    held = var("held", vector(f32, 12))
    part = layout(("n", 8, L, 1), ("m", 12, R, 1), ("m", 2, F, 1))
    refused: dict[str, Callable[[], object]] = {
        "given Sub, wanted one of Add, Mul, Min, Max, And, Or": lambda: k.reduce("v", held, MIXED, "m", Sub),
        "given add along k, wanted one of .* along one of n, m": lambda: k.reduce("v", held, MIXED, "k", Add),
        "which is a part along m, wanted all of it": lambda: k.reduce("v", held, part, "m", Add),
        "given f32x6 as .* wanted f32x12": lambda: k.reduce("v", var("h", vector(f32, 6)), MIXED, "m", Add),
        "wanted two layouts of one tile": lambda: k.redistribute("v", held, MIXED, MIXED.renamed({"m": "k"})),
        "wanted at least 8 bits": lambda: k.reduce("v", var("h", vector(s4, 12)), MIXED, "m", Add),
        "given a lane of type f64, wanted s32": lambda: FromLane(held, const(1.0, f64)),
    }
    for message, make in refused.items():
        with pytest.raises(UserError, match=message):
            make()


def test_the_verifier_knows_how_values_are_distributed() -> None:
    other = layout(("n", 8, L, 1), ("m", 4, R, 1), ("m", 2, L, 8), ("m", 3, R, 4), ("m", 2, S, 1), dims=("n", "m"))
    for of, op, message in [
        (MIXED.renamed({"n": "i", "m": "j"}), Mul, None),
        (other, Add, "a value distributed as .* is exchanged as"),
        (MIXED, And, "a reduction by and of f32"),
        (layout(("n", 8, L, 1), ("m", 12, R, 1), ("m", 4, L, 8)), Add, "needs 32 lanes, the kernel has 16"),
    ]:
        k = KernelBuilder("k", subgroups=3, width=16)
        held = k.load_view("held", matrix(k.buffer("a", f32, 8 * 48), 8, 48), (0, 0), MIXED)
        value = x.zeros(vector(f32, 12)) if "lanes" in (message or "") else held
        k.reduce("total", value, of, of.dims[1], op)
        if message is None:
            verify(k.done())
            continue
        with pytest.raises(VerifyError, match=message):
            verify(k.done())


def test_bools_stay_in_their_lanes() -> None:
    k = KernelBuilder("k")
    k.let("v", FromLane(Lane() < 3, Lane() ^ 1))
    with pytest.raises(VerifyError, match="from another lane, wanted numbers"):
        verify(k.done())


def test_a_lane_outside_the_subgroup_is_an_error() -> None:
    k = KernelBuilder("k")
    k.let("v", FromLane(Lane(), Lane() + 1))
    with pytest.raises(InterpError, match="lane 64 of a subgroup, which has 64"):
        interpret(k.done(), {})


def test_broadcast_repeats_registers() -> None:
    of = layout(("m", 4, R, 1), ("m", 2, L, 1), dims=("m",))
    to = layout(("m", 4, R, 2), ("m", 2, L, 1), ("n", 2, R, 1), ("n", 4, L, 2))
    made = KernelBuilder.broadcast(var("v", vector(f32, 4)), of, to)
    assert str(made) == "v[0, 0, 1, 1, 2, 2, 3, 3]"
    with pytest.raises(UserError, match="redistribute it first"):
        KernelBuilder.broadcast(var("v", vector(f32, 8)), layout(("m", 8, R, 1), dims=("m",)), to)
    with pytest.raises(UserError, match="redistribute it first"):
        KernelBuilder.broadcast(var("v", vector(f32, 8)), MIXED, to)
