"""Sums in normal form: what merges, where signs and constants go, which factors are taken out."""

from __future__ import annotations

from collections.abc import Callable

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.sums import LinearForms, add_scaled, parts, peel, unit
from convgen.ir.types import u32

SUMS: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "x + y": lambda x, y, z: x + y,
    "y + x": lambda x, y, z: y + x,
    "x + y * -3": lambda x, y, z: x + y * -3,
    "x * -3 + y": lambda x, y, z: x * -3 + y,
    "x - y * -1": lambda x, y, z: x - y * -1,
    "x * -2 - y": lambda x, y, z: x * -2 - y,
    "x * 3 + x * 5": lambda x, y, z: x * 3 + x * 5,
    "x * 3 - x * 3": lambda x, y, z: x * 3 - x * 3,
    "x * 3 - x * 2": lambda x, y, z: x * 3 - x * 2,
    "x * 4 + (x << 2)": lambda x, y, z: x * 4 + (x << 2),
    "x * y + z": lambda x, y, z: x * y + z,
    "x + y * z + x": lambda x, y, z: x + y * z + x,
    "x + 3 + y + 4": lambda x, y, z: x + 3 + y + 4,
    "3 - x + (y - 5)": lambda x, y, z: 3 - x + (y - 5),
    "3 - (x - 5)": lambda x, y, z: 3 - (x - 5),
    "(x + 7) - (y + 7)": lambda x, y, z: (x + 7) - (y + 7),
    "(x + y) - (x + z)": lambda x, y, z: (x + y) - (x + z),
    "(x + y) * 3 - x * 3": lambda x, y, z: (x + y) * 3 - x * 3,
    "x // 8 * 8 + x % 8": lambda x, y, z: x // 8 * 8 + x % 8,
    "x // 8 * 8 + (x & 7)": lambda x, y, z: x // 8 * 8 + (x & 7),
    "x // 24 * 24 + x // 8 % 3 * 8": lambda x, y, z: x // 24 * 24 + x // 8 % 3 * 8,
    "x // 8 * 4 + x % 8": lambda x, y, z: x // 8 * 4 + x % 8,
    "x % 8 * 5 + x // 8 * 40": lambda x, y, z: x % 8 * 5 + x // 8 * 40,
    "x * 8 + y * 8": lambda x, y, z: x * 8 + y * 8,
    "lane * 8 + x * 8 + y": lambda x, y, z: Lane() * 8 + x * 8 + y,
    "lane + x + lane + y": lambda x, y, z: Lane() + x + Lane() + y,
    "(lane + x) + (lane + y) * 4": lambda x, y, z: (Lane() + x) + (Lane() + y) * 4,
    "(x + 5) * 4": lambda x, y, z: (x + 5) * 4,
    "(x - 5) * 4 + 20": lambda x, y, z: (x - 5) * 4 + 20,
    "x + (1 << 31) - 1 + 5": lambda x, y, z: x + ((1 << 31) - 1) + 5,
    "0 - x": lambda x, y, z: 0 - x,
    "0 - x - y": lambda x, y, z: 0 - x - y,
    "x * -1 + 5 - y * 2": lambda x, y, z: x * -1 + 5 - y * 2,
    "unsigned x - 3 + 1": lambda x, y, z: x.to(u32) - 3 + 1,
    "unsigned x + 3 - 5": lambda x, y, z: x.to(u32) + 3 - 5,
    "unsigned (x + y) - x": lambda x, y, z: (x.to(u32) + y.to(u32)) - x.to(u32),
}


def test_normal_forms(golden: Callable[[str, str], None]) -> None:
    """Of three scalars of which nothing is known, outside and within a loop over one of them."""
    rows = []
    for name, make in SUMS.items():
        k = KernelBuilder("k")
        x, y, z = (k.scalar(n) for n in "xyz")
        out = k.surface(k.buffer("out", u32, 64))
        k.global_store(out, make(x, y, z), Lane() * 4)
        with k.loop("i", 0, z) as loop:
            k.global_store(out, make(x, loop.var, y), Lane() * 4)
        lines = str(simplify(k.done())).splitlines()
        stored = [line.partition("  #")[0].partition("= ")[2] for line in lines if " = " in line and "global" in line]
        bound = [line.strip() for line in lines if line.strip().startswith("t")]
        rows.append(f"{name:32} ; {' ; '.join([*stored, *bound])}")
    golden("sums.txt", "\n".join(rows) + "\n")


def test_parts_and_units() -> None:
    k = KernelBuilder("k")
    x, y = k.scalar("x"), k.scalar("y")
    assert parts(x + y) == ((x, 1), (y, 1))
    assert parts(x - y) == ((x, 1), (y, -1))
    assert parts(x * 6) == ((x, 6),)
    assert parts(x << 3) == ((x, 8),)
    assert parts(x << 0) == ((x, 1),)
    assert parts(x << 31) == ((x, 1 << 31),)
    assert [parts(e) for e in (x, x * y, x << y, x << 32, x << -1)] == [()] * 5
    assert (unit(x * 6), unit(x * y), unit(x)) == ((x, 6), (x * y, 1), (x, 1))
    assert [peel(e) for e in (x + 3, x - 3, 3 - x, x - y, x)] == [
        *((x, 1, 3), (x, 1, -3), (x, -1, 3), (x - y, 1, 0), (x, 1, 0))
    ]
    assert peel(x * 0 + 5)[1:] == (1, 5)
    assert add_scaled(({x: 2, y: 1}, 3), ({x: 1, y: 1}, 5), -1) == ({x: 1}, -2)
    assert add_scaled(({x: 2}, 3), ({x: -1, y: 4}, 5), 2) == ({y: 8}, 13)


def test_forms_open_no_further_than_asked() -> None:
    k = KernelBuilder("k")
    x, y, z = (k.scalar(n) for n in "xyz")
    linear = LinearForms()
    e = (x + y * 2) * 3 + (z - 4)
    assert linear(e) == ({x: 3, y: 6, z: 1}, -4)
    assert linear.opened(e, {z: 1}) == ({(x + y * 2) * 3: 1, z: 1}, -4)
    assert linear.opened(e, {x: 1}) == ({x: 3, y * 2: 3, z - 4: 1}, 0)
    assert linear.opened(e, {e: 1}) == ({e: 1}, 0)
    assert linear.opened(e, {k.scalar("other"): 1}) == ({e: 1}, 0)
