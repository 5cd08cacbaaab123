"""Conversions of narrow types on every simulator: all values of what is widened, all ties of what is rounded."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir import types as t
from convgen.ir.build import KernelBuilder
from convgen.ir.evaluate import convert, from_bytes
from convgen.ir.expr import Expr, Lane, Pack, Slice
from convgen.ir.narrow import WIDENED, widens
from convgen.ir.program import Kernel
from convgen.ir.types import Type, vector
from convgen.passes import pipeline
from tests.strategies import always

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc")
WIDER = [(a, b) for a in (*WIDENED, t.e8m0) for b in (t.f16, t.bf16, t.f32, t.s8, t.u8) if widens(a, b)]
NARROWER = [(t.f32, to) for to in (t.f8_e4m3, t.f8_e5m2, t.f8_e4m3fnuz, t.f8_e5m2fnuz)]
INTEGERS = [(a, b) for a in (t.s4, t.u4) for b in (t.s8, t.u8, t.s16, t.u16, t.s32, t.u32)]
ROWS = [
    *dict.fromkeys((a, b, False) for a, b in (*WIDER, *INTEGERS)),
    *((a, b, s) for a, b in NARROWER for s in (False, True)),
    *((a, b, True) for a, b in INTEGERS),
    *((t.f8_e5m2, b, True) for b in (t.f16, t.bf16, t.f32)),
]
ELEMENTS = 1024


def source(of: Type, to: Type) -> Any:
    """Every code of a type of up to 8 bits; of an f32 all codes of the result, middles, neighbours and extremes."""
    if of.bits <= 8:
        return np.arange(ELEMENTS * of.bits // 8).astype(np.uint8)
    with np.errstate(all="ignore"):
        codes = np.arange(256).astype(np.uint8).view(to.numpy).astype(np.float32)
        middles = (codes[:-1] + codes[1:]) / 2
        near = (np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf))
        special = np.array([np.inf, -np.inf, 3e38, 464, -464, 465, 61440, 61439, 1e-40, -1e-45], np.float32)
        found = np.concatenate([codes, middles, *near, special])[-ELEMENTS:]
    return found.astype(np.float32).view(np.uint8)


Row = tuple[Type, Type, bool]  #: from, to, whether it saturates
Lanes = tuple[int, int]  #: elements of a lane, and of each conversion


def buffers(row: Row) -> tuple[str, str]:
    """Return the names of the buffers that a row reads and writes."""
    of, to, saturate = row
    name = f"{of}_to_{to}{'_saturating' * saturate}"
    return f"{name}_source", f"{name}_out"


def kernel(rows: list[Row], lanes: int, each: int, width: int) -> Kernel:
    """Each lane of each workgroup converts `lanes` elements of each row, `each` at a time; rows are of one type."""
    k = KernelBuilder(f"of_{rows[0][0]}_by_{lanes}_each_{each}", (ELEMENTS // (lanes * width), 1, 1), 1, width)
    at = k.group[0] * width + Lane()
    for row in rows:
        of, to, saturate = row
        given, out = (k.buffer(name, elem, ELEMENTS) for name, elem in zip(buffers(row), (of, to)))
        types = vector(of, lanes), vector(to, lanes)
        held = k.global_load("held", types[0], k.surface(given), at * (types[0].bits // 8))
        parts: list[Expr] = [Slice(held, n, min(each, lanes - n)) for n in range(0, lanes, each)]
        made = Pack(types[1], tuple(part.to(vector(to, part.type.lanes), saturate=saturate) for part in parts))
        k.global_store(k.surface(out), made, at * (types[1].bits // 8))
    return k.done()


@cache
def compiled(target: str) -> tuple[bytes, list[tuple[Any, Kernel, list[Row]]]]:
    """Return one code object of few kernels, which a disassembler is started for each, and their rows."""
    chosen = targets.get(target)
    by_type = {of: [row for row in ROWS if row[0] is of] for of, _, _ in ROWS}
    made = [
        (kernel(rows, *lanes, chosen.facts.subgroup_size), rows)
        for of, rows in by_type.items()
        for lanes in lanes_of(of)
    ]
    emitted = [chosen.emit(pipeline.run(k, chosen.facts)) for k, _ in made]
    code = chosen.assemble(chosen.module(emitted))
    assert code is not None
    return code, [(e, k, rows) for e, (k, rows) in zip(emitted, made)]


def lanes_of(of: Type) -> list[tuple[int, int]]:
    """Elements of whole words, and of less than one; such of 4 bits that begin or end within bytes."""
    return [(8, 8), (2, 2), (8, 1), (8, 3)] if of.bits == 4 else [(4, 4), (1, 1)]


#: The pass asks `facts.conversions` only, which both targets of Xe share.
DAILY = always(((target,) for target in TARGETS), lambda _, case: case[0] != "xehpg")


@pytest.mark.parametrize("target", DAILY)
def test_every_value(target: str) -> None:
    code, made = compiled(target)
    for emitted, k, rows in made:
        memory: dict[str, Any] = {}
        for row in rows:
            memory |= zip(buffers(row), (source(*row[:2]).copy(), np.zeros(ELEMENTS * row[1].bytes, np.uint8)))
        args = tuple(KernelArg(offset, size, argument) for argument, offset, size in emitted.arguments)
        report = targets.get(target).simulate(code, [LaunchRequest(k.name, k.grid, (k.width, 1, 1), args)], memory)
        assert not report.findings, report.findings[0]
        for row in rows:
            of, to, saturate = row
            raw, got = memory[buffers(row)[0]], memory[buffers(row)[1]].view(to.numpy)
            wanted = convert(from_bytes(raw[None], None, vector(of, ELEMENTS)).data[0], to, saturate=saturate)
            same = got.view(f"u{to.bytes}") == wanted.view(f"u{to.bytes}")
            if to.is_float:
                same |= np.isnan(got.astype(np.float32)) & np.isnan(wanted.astype(np.float32))
            assert same.all(), (k.name, row, np.flatnonzero(~same)[:4], wanted[~same][:4], got[~same][:4])
