"""Products whose instructions multiply factors by scales, and take pairs of 4-bit numbers in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Expr, Mma, Var, var, zeros
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve
from convgen.ir.text import parse, to_text
from convgen.ir.types import e8m0, f4_e2m1, f8_e4m3, f32, u8
from convgen.ir.verify import verify

L, R, FIXED = Space.LANE, Space.REGISTER, Space.FIXED
WIDTH, SIDE, K, GROUP = 8, 4, 8, 4


def operand(row: str) -> Fragment:
    """Lanes hold two positions of each half of K, so parts of both groups."""
    digits = Digit(row, SIDE, L, 1), Digit("k", 2, R, 1), Digit("k", 2, L, SIDE), Digit("k", 2, R, 2)
    return Fragment((row, "k"), digits)


def scales(row: str) -> Fragment:
    return Fragment((row, "k"), (Digit(row, SIDE, L, 1), Digit("k", GROUP, FIXED, 0), Digit("k", 2, L, SIDE)))


SUMS = Fragment(("n", "m"), (Digit("n", 2, R, 1), Digit("n", 2, L, SIDE), Digit("m", SIDE, L, 1)))
SIDES = operand("n"), operand("m"), SUMS
ATOM = MmaAtom("scaled", SIDE, SIDE, K, f8_e4m3, f8_e4m3, f32, *SIDES, 4, scales=(scales("n"), scales("m")))
PAIRS = evolve(ATOM, a_elem=u8, b_elem=u8, packed=(f4_e2m1, f4_e2m1))


def half(fragment: Fragment) -> Fragment:
    """Return the layout of half as many positions along K: those of the first half of each lane's run."""
    digits = (evolve(d, size=d.size // 2) if d.dim == "k" and d.space is FIXED else d for d in fragment.digits)
    return evolve(fragment, digits=tuple(d for d in digits if (d.dim, d.space, d.stride) != ("k", R, 2)))


#: 8-bit numbers by pairs in half as many bytes, on either side
OF_EIGHT_BITS = evolve(ATOM, b_elem=u8, packed=(None, f4_e2m1), b=half(ATOM.b), scales=(scales("n"), half(scales("m"))))
OF_FOUR_BITS = evolve(ATOM, a_elem=u8, packed=(f4_e2m1, None), a=half(ATOM.a), scales=(half(scales("n")), scales("m")))


def held(matrix: Any, layout: Fragment) -> Any:
    """The elements of a matrix that each lane holds."""
    at = layout.coords(0, np.arange(WIDTH)[:, None], np.arange(layout.registers)[None, :])
    row, k = (np.broadcast_to(at[dim], (WIDTH, layout.registers)) for dim in layout.dims)
    return matrix[row, k]


@pytest.mark.parametrize("atom", [ATOM, PAIRS, OF_EIGHT_BITS, OF_FOUR_BITS])
@pytest.mark.parametrize("tiles", [(1, 1, 1), (2, 1, 3), (1, 3, 2)])
def test_a_product_is_that_of_scaled_factors(atom: MmaAtom, tiles: tuple[int, int, int]) -> None:
    op, rng, ev = MmaTile(atom, *tiles), np.random.default_rng(len(tiles)), Evaluator(WIDTH)
    assert op.scales is not None
    factors, held_values = [], []
    for layout, of_scales, shared, packed, count in zip((op.a, op.b), op.scales, atom.scaled_k, atom.packed, tiles):
        rows, depth = SIDE * count, layout.extent("k")
        numbers = rng.integers(-2, 3, (rows, depth * (2 if packed else 1))).astype((packed or f8_e4m3).numpy)
        codes = numbers.view(np.uint8)
        elements = (codes[:, ::2] & 0xF | codes[:, 1::2] << 4) if packed else numbers
        powers = rng.choice([0.5, 1, 2, 4], (rows, depth // shared)).astype(e8m0.numpy)
        runs = powers.astype(np.float64).repeat(numbers.shape[1] // powers.shape[1], axis=1)
        factors.append(numbers.astype(np.float64) * runs)
        held_values += [held(elements, layout), held(powers.repeat(shared, axis=1), of_scales)]
    types = op.a_type, op.scale_types[0], op.b_type, op.scale_types[1]
    a, scale_a, b, scale_b = (var(f"v{n}", t) for n, t in enumerate(types))
    ev.env |= {v: Value(data) for v, data in zip((a, scale_a, b, scale_b), held_values)}
    result = ev(Mma(op, zeros(op.acc_type), a, b, (scale_a, scale_b)))
    assert np.array_equal(result.data, held(factors[0] @ factors[1].T, op.d).astype(np.float32))


def test_scales_that_were_never_written_spoil_their_row_or_column() -> None:
    op, ev = MmaTile(ATOM, 1, 1, 1), Evaluator(WIDTH)
    a, b, of_a, of_b = (var(name, t) for name, t in zip(("a", "b", "s", "t"), (op.a_type, op.b_type, *op.scale_types)))
    for v in (a, b, of_a, of_b):
        poison = np.zeros((WIDTH, v.type.lanes), np.bool_)
        poison[1 if v is of_a else 2] = v in (of_a, of_b)
        ev.env[v] = Value(np.ones(poison.shape).astype(v.type.elem.numpy), poison if v in (of_a, of_b) else None)
    spoiled = ev(Mma(op, zeros(op.acc_type), a, b, (of_a, of_b))).mask
    n, m = np.indices((SIDE, SIDE))
    assert np.array_equal(spoiled, held((n == 1) | (m == 2), op.d))


def test_products_with_scales_come_back_from_text() -> None:
    for atom in (ATOM, PAIRS, OF_EIGHT_BITS, OF_FOUR_BITS):
        op = MmaTile(atom, 2, 1, 2)
        values = (Var(f"v{n}", n, t) for n, t in enumerate((op.a_type, op.b_type, *op.scale_types), 1))
        a, b, *of_both = values
        product = Mma(op, zeros(op.acc_type), a, b, tuple(of_both))
        assert parse(to_text(product)) is product


def test_scales_are_as_many_as_the_instruction_wants() -> None:
    op = MmaTile(ATOM, 1, 1, 1)
    with pytest.raises(UserError, match="mma scaled: operands"):
        Mma(op, zeros(op.acc_type), zeros(op.a_type), zeros(op.b_type), ())
    with pytest.raises(UserError, match="a pack of 2 instructions, whose positions along K share scales"):
        MmaTile(ATOM, 1, 1, 2, pack=2)


def test_scales_have_the_layout_that_the_instruction_wants() -> None:
    op = MmaTile(ATOM, 1, 1, 1)
    k = KernelBuilder("scaled", (1, 1, 1), 1, WIDTH)
    buffers = [Global(name, t, 256) for name, t in (("a", f8_e4m3), ("b", f8_e4m3), ("s", e8m0), ("t", e8m0))]
    k.params += buffers
    assert op.scales is not None

    def loaded(buffer: Global, layout: Fragment) -> Expr:
        view = matrix(buffer, 16, 16)
        return k.load_view(buffer.name, view, (0, 0), layout)

    of_a, of_b = op.scales
    by_k = Digit("k", 2, L, 1), Digit("m", SIDE, L, 2)
    wrong = evolve(of_b, digits=(Digit("k", GROUP, FIXED, 0), *by_k))
    for layout in (of_b, wrong):
        operands = (loaded(b, each) for b, each in zip(buffers, (op.a, op.b, of_a, layout)))
        k.mma("d", op, zeros(op.acc_type), *operands)
    with pytest.raises(VerifyError, match="mma operand b's scales is distributed as"):
        verify(k.done(), "tile")
