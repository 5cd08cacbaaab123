"""Fixed digits and images of fragments, products of parts of a tile, instructions that subgroups execute together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.expr import Expr, Mma, Var
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle, row_major
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve
from convgen.ir.text import parse, show, to_text
from convgen.ir.types import f16, f32
from convgen.ir.verify import verify
from tests.strategies import image_of, in_memory

L, R, S, FIXED = Space.LANE, Space.REGISTER, Space.SUBGROUP, Space.FIXED
Draw = st.DrawFn


@st.composite
def fragments(draw: Draw, fixed: int) -> Fragment:
    """Digits of powers of two over two dims that fill each space without gaps, in any order, `fixed` of them fixed."""
    strides = {L: 1, R: 1, S: 1}
    digits = []
    for _ in range(draw(st.integers(1, 6))):
        space, size = draw(st.sampled_from((L, R, S))), draw(st.sampled_from((1, 2, 4)))
        digits.append(Digit(draw(st.sampled_from("nm")), size, space, strides[space]))
        strides[space] *= size
    for _ in range(fixed):
        size = draw(st.sampled_from((2, 3, 4)))
        digits.append(Digit(draw(st.sampled_from("nm")), size, FIXED, draw(st.integers(0, size - 1))))
    return Fragment(("n", "m"), tuple(draw(st.permutations(digits))))


def owners(f: Fragment) -> Any:
    lanes = int(np.prod([d.size for d in f.digits if d.space is L]))
    return np.indices((f.subgroups, lanes, f.registers))


def elements(f: Fragment) -> np.ndarray[Any, Any]:
    """The number of the element that each (subgroup, lane, register) holds, rows i of the whole tile."""
    where = owners(f)
    at = f.coords(*where)
    found: np.ndarray[Any, Any] = at["n"] * f.extent("m") + at["m"] + np.zeros_like(where[0])
    return found


def values_of(f: Fragment) -> list[Fragment]:
    """The fragment with every value of its fixed digits."""
    out = [Fragment(f.dims, ())]
    for d in f.digits:
        choices = [evolve(d, stride=v) for v in range(d.size)] if d.space is FIXED else [d]
        out = [Fragment(f.dims, (*g.digits, c)) for g in out for c in choices]
    return out


@settings(max_examples=150)
@given(st.integers(1, 2).flatmap(fragments))
def test_the_values_of_fixed_digits_share_the_tile_out(f: Fragment) -> None:
    parts = values_of(f)
    assert {g.shape for g in parts} == {f.shape}
    held = np.concatenate([elements(g).ravel() for g in parts])
    assert np.array_equal(np.sort(held), np.arange(f.shape[0] * f.shape[1]))


@settings(max_examples=150)
@given(st.integers(1, 2).flatmap(fragments))
def test_a_fixed_digit_is_a_subgroup_that_is_always_the_same(f: Fragment) -> None:
    where, count = owners(f), f.subgroups
    digits, number = [], 0
    for d in f.digits:
        if d.space is FIXED:
            number += d.stride * count
            d, count = Digit(d.dim, d.size, S, count), count * d.size
        digits.append(d)
    whole = Fragment(f.dims, tuple(digits))
    for dim, at in whole.coords(where[0] + number, *where[1:]).items():
        assert np.array_equal(at + np.zeros_like(where[0]), f.coords(*where)[dim] + np.zeros_like(where[0]))


@settings(max_examples=150)
@given(fragments(1))
def test_owners_and_partial_coordinates_of_a_part(f: Fragment) -> None:
    where = owners(f)
    at = f.coords(*where)
    for one, found in zip(where, f.owner(at)):
        assert np.array_equal(np.broadcast_to(found, one.shape), one)
    parts = [f.partial(space, number) for space, number in zip((S, L, R), where)]
    for dim in f.dims:
        assert np.array_equal(sum(p[dim] for p in parts) + np.zeros_like(where[0]), at[dim] + np.zeros_like(where[0]))


@pytest.mark.parametrize("stride", [-1, 4])
def test_a_fixed_digit_has_a_value_below_its_size(stride: int) -> None:
    with pytest.raises(UserError, match="bad digit"):
        Fragment(("n",), (Digit("n", 4, FIXED, stride),))


def placed(digits: Digits, coords: dict[str, Any]) -> Any:
    """Where digits put an element."""
    scale = dict.fromkeys(coords, 1)
    place = 0
    for d in digits.digits:
        place = place + coords[d.dim] // scale[d.dim] % d.size * d.stride
        scale[d.dim] *= d.size
    return place


@settings(max_examples=200)
@given(st.integers(0, 1).flatmap(fragments), st.sampled_from((1, 2, 4)))
def test_an_image_is_the_registers_as_they_stand(f: Fragment, elem_bytes: int) -> None:
    """Seen as a block of dwords: [part, subgroup, dword, lane, element within the dword]."""
    each = 4 // elem_bytes
    sub, lane, register = owners(f)
    lanes = lane.shape[1]
    if f.registers % each:
        return
    wanted = ((sub * (f.registers // each) + register // each) * lanes + lane) * each + register % each
    image = f.image(lanes, elem_bytes)
    whole = f.subgroups * f.registers * lanes
    for g in values_of(f):
        part = next((d.stride for d in g.digits if d.space is FIXED), 0)
        at = {dim: c + np.zeros_like(sub) for dim, c in g.coords(sub, lane, register).items()}
        assert np.array_equal(placed(image, at) + np.zeros_like(sub), part * whole + wanted)


# ---------------------------------------------------------------- shared tiles of digits


@settings(max_examples=100)
@given(st.integers(0, 1).flatmap(fragments))
def test_a_tile_may_be_the_image_of_a_fragment(f: Fragment) -> None:
    """Every element has a place of its own, and the slots follow one another without gaps."""
    lanes = owners(f)[1].shape[1]
    digits = image_of(f, lanes, 4)
    rows, cols = f.shape
    tile = Shared("t", f32, rows, cols, digits, 2, Swizzle(), 16)
    slot, row, col = np.indices((2, rows, cols))
    assert sorted(tile.address(slot, row, col).ravel().tolist()) == list(range(0, tile.bytes, 4))


@pytest.mark.parametrize(
    ("digits", "swizzle"),
    [
        (in_memory((COL, 8, 1), (ROW, 2, 8)), Swizzle()),  # too few rows
        (in_memory((COL, 8, 1), (ROW, 4, 7)), Swizzle()),  # rows overlap
        (in_memory((COL, 2, 1), (COL, 4, 1), (ROW, 4, 8)), Swizzle()),
        (in_memory((COL, 2, 1), (ROW, 4, 2), (COL, 4, 8)), Swizzle(0, 1)),  # not by rows
        (row_major(4, 8), Swizzle(0, 8)),  # more chunks than there are
        (row_major(4, 8), Swizzle(-1, 2)),  # a row would change by itself
    ],
)
def test_places_that_are_none_are_refused(digits: Digits, swizzle: Swizzle) -> None:
    with pytest.raises(UserError, match="shared tile t of 4 x 8: digits"):
        Shared("t", f32, 4, 8, digits, 1, swizzle, 16)
    Shared("t", f32, 4, 8, row_major(4, 8, 9), 1, Swizzle(), 16)


def test_how_a_tile_of_digits_prints() -> None:
    digits = in_memory((COL, 2, 1), (ROW, 4, 2), (COL, 4, 8))
    one, other = (Shared("t", f32, 4, 8, d, 1, Swizzle(), 16) for d in (digits, row_major(4, 8, 9)))
    assert show(one) == "shared t: 1 of f32 4 x 8, order col2@1 row4@2 col4@8"
    assert show(other) == "shared t: 1 of f32 4 x 8, pitch 36"
    assert parse(to_text(one)) is one


# ---------------------------------------------------------------- products

XEHPG = target.get("xehpg").facts


def atom(name: str) -> MmaAtom:
    return next(a for a in XEHPG.atoms if a.name.startswith(name) and a.a_elem is f16)


PAIR = atom("dpasw")


class Product(KernelBuilder):
    """C = A B^T over a whole workgroup; `loads` come from the views as the tile wants them."""

    def __init__(self, tile: MmaTile) -> None:
        super().__init__("k", subgroups=tile.atom.spans * tile.teams_n * tile.teams_m, width=8)
        (self.m, self.depth), (self.n, _) = tile.a.shape, tile.b.shape
        self.a = matrix(self.buffer("a", f16, self.m * self.depth), self.m, self.depth)
        self.b = matrix(self.buffer("b", f16, self.n * self.depth), self.n, self.depth)
        self.c = matrix(self.buffer("c", f32, self.m * self.n), self.m, self.n)
        self.op = tile

    def loads(self, op: MmaTile) -> tuple[Var, Var]:
        return self.load_view("fa", self.a, (0, 0), op.a), self.load_view("fb", self.b, (0, 0), op.b)

    def multiply(self, op: MmaTile) -> None:
        d = self.mma("d", op, self.zeros(op.acc_type), *self.loads(op))
        self.store_view(self.c, (0, 0), d, op.d)

    def run(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-8, 9, (r, self.depth)).astype(np.float16) for r in (self.m, self.n))
        c = np.full((self.m, self.n), np.nan, np.float32)
        memory = {name: data.view(np.uint8).reshape(-1) for name, data in (("a", a), ("b", b), ("c", c))}
        interpret(verify(self.done(), "tile"), memory)
        return c, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize(
    "tile",
    [
        MmaTile(PAIR, 1, 1, 1),
        MmaTile(PAIR, 2, 3, 2),
        MmaTile(PAIR, 1, 2, 2, teams_n=2),
        MmaTile(PAIR, 2, 1, 1, teams_n=2, teams_m=2),
        MmaTile(atom("dpas."), 2, 2, 2, teams_m=2),
    ],
    ids=lambda t: f"{t.atom.name}-{t.tiles_n}x{t.tiles_m}x{t.steps}w{t.teams_n}{t.teams_m}",
)
def test_subgroups_multiply_together(tile: MmaTile) -> None:
    assert (PAIR.spans, atom("dpas.").spans) == (2, 1)
    k = Product(tile)
    k.multiply(tile)
    got, wanted = k.run()
    assert np.array_equal(got, wanted)


def test_products_in_a_loop_meet_as_often() -> None:
    tile = MmaTile(PAIR, 1, 1, 1)
    k = Product(tile)
    a, b = k.loads(tile)
    with k.loop("i", 0, 3, acc=k.zeros(tile.acc_type)) as loop:
        loop.yields(k.mma("d", tile, loop["acc"], a, b))
    k.store_view(k.c, (0, 0), loop.result("acc"), tile.d)
    got, wanted = k.run()
    assert np.array_equal(got, 3 * wanted)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("spans", ["dpas.", "dpasw"])
def test_the_parts_of_a_tile_are_multiplied_one_by_one(spans: str, parts: int, rows: int) -> None:
    whole = MmaTile(atom(spans), 1, 2, 2, teams_n=2, teams_m=2, parts=parts, rows=rows)
    k = Product(whole)
    for part in range(parts):
        k.multiply(evolve(whole, part=part))
    got, wanted = k.run()
    assert np.array_equal(got, wanted)


def alone(k: Product) -> None:
    a, b = k.loads(k.op)
    with k.when(k.subgroup < 1):
        k.mma("d", k.op, k.zeros(k.op.acc_type), a, b)


def at_a_barrier(k: Product) -> None:
    a, b = k.loads(k.op)
    product = s.Let(k.var("d", k.op.acc_type), Mma(k.op, k.zeros(k.op.acc_type), a, b, ()))
    k.add(s.If(k.subgroup < 1, product, s.Barrier(k.site())))


def another(k: Product) -> None:
    a, b = k.loads(k.op)
    with k.when(k.subgroup < 1):
        k.mma("d", k.op, k.zeros(k.op.acc_type), a, b)
    with k.when(k.subgroup >= 1):
        k.mma("d", k.op, k.zeros(k.op.acc_type), a, a if k.op.a == k.op.b else b + b)


def more_often(k: Product) -> None:
    a, b = k.loads(k.op)
    with k.loop("i", 0, k.subgroup + 1):
        k.mma("d", k.op, k.zeros(k.op.acc_type), a, b)


def within(k: Product) -> None:
    a, b = k.loads(k.op)
    product: Expr = Mma(k.op, k.zeros(k.op.acc_type), a, b, ())
    k.store_view(k.c, (0, 0), product, k.op.d)


@pytest.mark.parametrize("make", [alone, at_a_barrier, another, more_often, within])
def test_a_missing_partner_is_an_error(make: Callable[[Product], None]) -> None:
    k = Product(MmaTile(PAIR, 1, 1, 1))
    make(k)
    with pytest.raises(InterpError, match=r"of 2 subgroups that subgroup [01] executes without the others"):
        k.run()


def test_half_a_team_is_an_error() -> None:
    """A workgroup of one subgroup has no partner for it."""
    k = Product(MmaTile(PAIR, 1, 1, 1))
    k.multiply(k.op)
    with pytest.raises(VerifyError, match="needs 2 subgroups, the kernel has 1"):
        verify(evolve(k.done(), subgroups=1))


def test_poison_of_a_partner_spreads() -> None:
    """Half of the rows of B come from the other subgroup: its poison reaches both results."""
    tile = MmaTile(PAIR, 1, 1, 1)
    k = Product(tile)
    shared = k.shared("t", f16, tile.b.shape[0], tile.b.shape[1])
    a = k.load_view("fa", k.a, (0, 0), tile.a)
    with k.when(k.subgroup < 1):
        k.store_shared(shared, k.load_view("some", k.b, (0, 0), tile.b), tile.b)
    k.barrier()
    b = k.load_shared("fb", shared, tile.b)  # the second half was never written
    d = k.mma("d", tile, k.zeros(tile.acc_type), a, b)
    with k.when(k.subgroup < 1):
        k.store_view(k.c, (0, 0), d, tile.d)
    with pytest.raises(InterpError, match="depends on uninitialized memory"):
        k.run()
