"""What selection makes of single operations and messages, on every target: digests of what is printed.

Where a change is meant, look at the text that a failing row shows with -vv, and accept it with `./dev bless`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from convgen.backends import target as targets
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import ConvgenError
from convgen.ir.expr import (
    AddressOf,
    Cast,
    Expr,
    Lane,
    MulHi,
    Pack,
    Saturate,
    Shuffle,
    Slice,
    Splat,
    Uniform,
    const,
    eq,
    maximum,
    minimum,
    ne,
    select,
)
from convgen.ir.layout.memory import Global
from convgen.ir.types import Type, bf16, f16, f32, f64, s8, s32, u8, u16, u32, u64, vector
from tests import samples

Binary = Callable[[Expr, Expr], Expr]

_INTEGERS: dict[str, Binary] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a + 70000": lambda a, b: a + 70000,
    "5 - a": lambda a, b: 5 - a,
    "a * 24": lambda a, b: a * 24,
    "(a & 255) * 3 + b": lambda a, b: (a & 255) * 3 + b,
    "a << 3": lambda a, b: a << 3,
    "a << (b & 31)": lambda a, b: a << (b & 31),
    "a >> 3": lambda a, b: a >> 3,
    "(a << 4) | b": lambda a, b: (a << 4) | b,
    "(a & 15) | b": lambda a, b: (a & 15) | b,
    "~a ^ b": lambda a, b: ~a ^ b,
    "min(a, b)": minimum,
    "max(a, 3)": lambda a, b: maximum(a, 3),
    "(a & 4095) // 7": lambda a, b: (a & 4095) // 7,
    "(a & 4095) % 56": lambda a, b: (a & 4095) % 56,
    "a < b ? a : 3": lambda a, b: select(a < b, a, 3),
    "a == b ? 1 : 0": lambda a, b: select(eq(a, b), a * 0 + 1, 0),
    "a <= b and b != 0": lambda a, b: select((a <= b) & ne(b, 0), a, b),
    "a < 10 or not b < 3": lambda a, b: select((a < 10) | ~(b < 3), b, a),
    "unsigned a < b": lambda a, b: select(a.to(u32) < b.to(u32), b, a),
    "mulhi(a, b)": lambda a, b: MulHi(a.to(u32), b.to(u32)).to(s32),
    "c ? a : 1, c ? b : 2": lambda a, b: select(a < 7, a, 1) * select(a < 7, b, 2),
    "uniform(a) + b": lambda a, b: Uniform(a) + b,
}
_FLOATS: dict[str, Binary] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a * 2.0 + 0.37": lambda a, b: a * 2.0 + 0.37,
    "min(a, b)": minimum,
    "max(a, b)": maximum,
    "a < b ? a : b": lambda a, b: select(a < b, a, b),
    "a == b ? b : a": lambda a, b: select(eq(a, b), b, a),
}


#: Around the ends of what instructions take as immediates.
_EDGES = (-32769, -32768, -17, -16, 64, 65, 32767, 32768, 65535, 65536, (1 << 31) - 1)
_INTEGERS |= {f"a + {n}": lambda a, b, n=n: a + n for n in _EDGES}  # type: ignore[misc]
#: Of sixteen bytes.
_ORDERS = {
    "a matrix turned round": tuple(4 * (i % 4) + i // 4 for i in range(16)),
    "halves of words": (2, 3, 6, 7, 0, 1, 4, 5),
    "one word and parts of it": (4, 5, 6, 7, 5, 6, 4, 7),
    "of three words": (0, 1, 4, 12, 2, 2, 9, 13),
    "of four words": (0, 4, 8, 12, 1, 5, 9, 13),
    "pairs of three words": (0, 1, 4, 5, 8, 9, 12, 13),
    "fewer than a word": (9, 3),
    "a single one": (6,),
}


def code(target: str, make: Callable[[KernelBuilder], object]) -> str:
    """The digest of a kernel's text, or why there is none."""
    to = targets.get(target)
    k = KernelBuilder("k", (4, 1, 1), subgroups=2, width=to.facts.subgroup_size)
    try:
        make(k)
        return samples.digest(to.emit(samples.run(k.done(), to.facts)).text)
    except ConvgenError as error:
        return str(error)


def place(k: KernelBuilder, memory: str, elem: Type, lanes: int, flat: bool) -> tuple[Global, Expr, Expr]:
    """A buffer; a surface and the offset into it of each lane, or a flat address and a mask."""
    buffer = k.buffer(memory, elem, 4096)
    at = (k.subgroup * k.width + Lane()) * (lanes * elem.bytes)
    return (buffer, AddressOf(buffer) + at.to(u64), Lane() < 60) if flat else (buffer, k.surface(buffer), at)


def load(k: KernelBuilder, name: str, elem: Type, lanes: int, flat: bool) -> Expr:
    type = vector(elem, lanes) if lanes > 1 else elem
    buffer, where, what = place(k, name, elem, lanes, flat)
    if not flat:
        return k.global_load(name, type, where, what)
    v = k.var(name, type)
    k.add(s.FlatLoad(v, buffer, where, what, k.site()))
    return v


def store(k: KernelBuilder, value: Expr, flat: bool) -> None:
    buffer, where, what = place(k, "out", value.type.elem, value.type.lanes, flat)
    if flat:
        k.add(s.FlatStore(buffer, where, what, value, k.site()))
    else:
        k.global_store(where, value, what)


def binary(operation: Binary, elem: Type, lanes: int, uniform: str, flat: bool) -> Callable[[KernelBuilder], None]:
    """Store what comes of two operands; those that `uniform` names are arguments, the others loaded."""

    def make(k: KernelBuilder) -> None:
        a, b = (k.scalar(n, elem) if n in uniform else load(k, n, elem, lanes, flat) for n in "ab")
        value = operation(a, b)
        store(k, value + Lane().to(s32) if uniform == "ab" and elem is s32 else value, flat)

    return make


def unary(operation: Callable[[Expr], Expr], elem: Type, lanes: int, flat: bool) -> Callable[[KernelBuilder], None]:
    return lambda k: store(k, operation(load(k, "a", elem, lanes, flat)), flat)


def rows(target: str, of: dict[str, Callable[[KernelBuilder], None]]) -> str:
    return "\n".join(f"{name}: {code(target, make)}" for name, make in of.items()) + "\n"


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "xehpg", "xehpc"])
def test_integers(target: str, golden: Callable[[str, str], None]) -> None:
    flat = targets.get(target).facts.flat
    table = {
        f"{name} of {uniform or 'no'} uniform": binary(operation, s32, 1, uniform, flat)
        for name, operation in _INTEGERS.items()
        for uniform in (("", "a") if name.startswith("a + ") and "b" not in name else ("", "b", "ab"))
    }
    golden(f"operations/integers_{target}.txt", rows(target, table))


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "xehpg", "xehpc"])
def test_floats_and_conversions(target: str, golden: Callable[[str, str], None]) -> None:
    flat = targets.get(target).facts.flat
    table = {
        f"{name} of {elem} x {lanes}": binary(operation, elem, lanes, "", flat)
        for name, operation in _FLOATS.items()
        for elem, lanes in ((f32, 1), (f32, 4), (f64, 2), (f16, 4))
    }
    pairs = ((a, b) for a in (f16, bf16, f32, f64, s8, u8, s32, u32) for b in (f16, bf16, f32, s32, u8) if a is not b)
    for source, sink in pairs:
        to = vector(sink, 4)
        table[f"{source} to {sink}"] = unary(lambda a, to=to: Cast(to, a), source, 4, flat)  # type: ignore[misc]
    for source, sink in ((f32, s8), (f32, u8), (s32, s8), (s32, u8), (f32, s32)):
        to = vector(sink, 4)
        table[f"{source} to {sink}, saturated"] = unary(lambda a, to=to: Saturate(to, a), source, 4, flat)  # type: ignore[misc]
    golden(f"operations/floats_{target}.txt", rows(target, table))


def _shared(elem: Type, lanes: int, offset: int, flat: bool) -> Callable[[KernelBuilder], None]:
    def make(k: KernelBuilder) -> None:
        tile = k.shared("tile", elem, 64, 4 * lanes)
        value = load(k, "a", elem, lanes, flat)
        k.shared_write(tile, value, Lane() * (lanes * elem.bytes), offset)
        k.barrier()
        type = vector(elem, lanes) if lanes > 1 else elem
        store(k, k.shared_read("r", type, tile, Lane() * (lanes * elem.bytes), offset), flat)

    return make


def _adding(elem: Type, flat: bool) -> Callable[[KernelBuilder], None]:
    def make(k: KernelBuilder) -> None:
        value = load(k, "a", elem, 1, flat)
        buffer, where, what = place(k, "out", elem, 1, flat)
        if flat:
            k.add(s.FlatAtomic(buffer, where, what, value, k.site(), "add"))
        else:
            k.global_atomic("add", where, value, what)

    return make


def _control(k: KernelBuilder, flat: bool) -> None:
    n = k.scalar("n")
    with k.loop("i", 1, n, a=n, b=const(3)) as loop:
        with k.when(loop["a"] < 100):
            store(k, loop["a"] + Lane(), flat)
        k.exit_if(eq(loop["b"], 77), loop["a"] + 1, loop.var)
        loop.yields(loop["b"], loop["a"] + k.group[0])
    with k.when((n < 3) | (k.subgroup < 1)):
        k.barrier()
    k.params[-1:] = []
    store(k, loop.result("a") - loop.result("b") + Lane(), flat)


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "xehpg", "xehpc"])
def test_movement(target: str, golden: Callable[[str, str], None]) -> None:
    """Messages of every width, parts of vectors, shared memory, additions, loops and branches."""
    flat = targets.get(target).facts.flat
    table: dict[str, Callable[[KernelBuilder], None]] = {}
    for elem in (u8, u16, f32, f64):
        for lanes in (1, 2, 4, 8):
            table[f"{elem} x {lanes} moved"] = unary(lambda a: a, elem, lanes, flat)
            if lanes > 1:
                table[f"{elem} x {lanes} reversed"] = unary(
                    lambda a, n=lanes: Shuffle(a, tuple(range(n))[::-1]),  # type: ignore[misc]
                    elem,
                    lanes,
                    flat,
                )
                table[f"{elem} x {lanes} upper half"] = unary(
                    lambda a, n=lanes: Slice(a, n // 2, n // 2),  # type: ignore[misc]
                    elem,
                    lanes,
                    flat,
                )
    for name, order in _ORDERS.items():
        table[f"bytes {name}"] = unary(lambda a, o=order: Shuffle(a, o), u8, 16, flat)  # type: ignore[misc]
    table["f16 packed"] = unary(lambda a: Pack(vector(f16, 4), (a,)), u32, 2, flat)
    table["u8 out of words"] = unary(lambda a: Pack(vector(u8, 8), (Slice(a, 1, 1), Slice(a, 0, 1))), u32, 2, flat)
    table["splat"] = unary(lambda a: Splat(vector(f32, 4), a), f32, 1, flat)

    for elem, lanes in ((u8, 1), (u8, 4), (u16, 1), (f16, 4), (f16, 8), (f32, 1), (f32, 4), (f64, 2)):
        table[f"{elem} x {lanes} shared"] = _shared(elem, lanes, 0, flat)
        table[f"{elem} x {lanes} shared, 48 on"] = _shared(elem, lanes, 48, flat)

    table |= {f"{elem} added": _adding(elem, flat) for elem in (f32, f64, s32)}

    table["loops and branches"] = partial(_control, flat=flat)
    golden(f"operations/movement_{target}.txt", rows(target, table))
