"""Defects of the hardware that a program's text shows: each in a kernel that lacks the workaround, and with it."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from convgen.backends.intel.sim.decode import disassemble
from convgen.backends.intel.sim.defects import defects_of
from convgen.backends.intel.sim.platforms import XE2, XEHPC
from convgen.backends.intel.sim.register_file import Layout


def zeros(first: int, count: int) -> str:
    return "".join(f"(W) mov (8|M0) r{reg}.0<1>:f 0.0:f\n" for reg in range(first, first + count))


START = "(W) mov (2|M0) r6.0<1>:ud r4.0<1;1,0>:ud\n" + zeros(40, 40) + "(W) sync.nop null {A@1}\n"
END = "(W) store.ugm.d32x8t.a64 (1|M0) [r6:1] r40:1 {$2}\n"
REWRITE = "mov (8|M0) r50.0<1>:ud r50.0<1;1,0>:ud {A@1}\n(W) sync.nop null {A@1}\n"
DPAS = "dpas.8x1 (8|M0) r40:f r40:f r50:hf r60.0:hf {$3}\n(W) sync.nop null {$3.dst}\n"
FLAG = "(W) mov (1|M0) f0.0<1>:ud 0xF:ud\n(W) sync.nop null {A@1}\n"
PREDICATED = "(W&f0.0) load.ugm.d32x1t.a64 (1|M0) r90:1 [r6:1] {A@1,$4}\n(W) sync.nop null {$4.dst}\n"
DIVERGENT = "(f0.0) goto (8|M0) MEET MEET\nmov (8|M0) r91.0<1>:ud 1:w\nMEET:\njoin (8|M0) ON\nON:\n"
UNIFORM = "(W&f0.0) jmpi MEET\n(W) mov (8|M0) r91.0<1>:ud 1:w\nMEET:\n"


def chain(*factors: int) -> str:
    """Dpas of whole arrays in one chain, with these registers as src1."""
    lines = [f"dpas.8x8 (8|M0) r{40}:f r40:f r{factor}:hf r70.0:hf" for factor in factors]
    return "".join(f"{line} {{Atomic}}\n" for line in lines[:-1]) + lines[-1] + " {$3}\n(W) sync.nop null {$3.dst}\n"


def alone(factor: int, sums: int, token: int) -> str:
    """A dpas of whole arrays that is no chain, for which nobody waits."""
    return f"dpas.8x8 (8|M0) r{sums}:f r{sums}:f r{factor}:hf r70.0:hf {{${token}}}\n"


LOADED = "(W) load.ugm.d32x64t.a64 (1|M0) r80:8 [r6:1] {A@1,$5}\n(W) sync.nop null {$5.dst}\n"
KEPT = "mov (8|M0) r80.0<1>:ud r80.0<1;1,0>:ud {A@1}\n(W) sync.nop null {A@1}\n"
DONE = "(W) sync.allwr null\n"


@attrs.frozen
class Case:
    """A body that lacks a workaround, and one that has it."""

    kind: str
    wrong: str
    right: str


CASES = {
    "predicated load and dpas": Case("send-suppression", FLAG + PREDICATED + DPAS, FLAG + PREDICATED + REWRITE + DPAS),
    "predicated load behind the mov": Case(
        "send-suppression", FLAG + REWRITE + PREDICATED + DPAS, FLAG + PREDICATED + REWRITE + DPAS
    ),
    "predicated load in another block": Case(
        "send-suppression", FLAG + PREDICATED + UNIFORM + DPAS, FLAG + PREDICATED + UNIFORM + REWRITE + DPAS
    ),
    "divergent branch and dpas": Case("send-suppression", FLAG + DIVERGENT + DPAS, FLAG + DIVERGENT + REWRITE + DPAS),
    "uniform branch and dpas": Case("send-suppression", FLAG + DIVERGENT + DPAS, FLAG + UNIFORM + DPAS),
    "chain of one factor": Case("dpas-suppression", chain(50, 50), chain(60, 50, 50)),
    "dpas alone behind another": Case(
        "dpas-suppression",
        alone(50, 40, 3) + alone(50, 60, 4) + DONE,
        alone(50, 40, 3) + "(W) sync.nop null {$3.dst}\n" + alone(50, 60, 4) + DONE,
    ),
    "chain behind a dpas alone": Case(
        "dpas-suppression",
        alone(50, 60, 4) + chain(50, 70, 50) + DONE,
        alone(50, 60, 4) + chain(70, 50, 50) + DONE,
    ),
    "dpas alone in another block": Case(
        "dpas-suppression",
        FLAG + alone(50, 60, 4) + UNIFORM + chain(50) + DONE,
        FLAG + chain(70, 50) + UNIFORM + chain(50) + DONE,
    ),
    "factor that only its mov writes": Case("dpas-suppression", LOADED + KEPT + chain(80, 80), LOADED + chain(80, 80)),
    "leader written by none": Case("dpas-suppression", LOADED + chain(50, 50), LOADED + chain(80, 50, 50)),
}


@pytest.mark.parametrize("name", CASES)
def test_defect(sim: Any, name: str) -> None:
    case = CASES[name]
    for body, wanted in ((case.wrong, [case.kind]), (case.right, [])):
        buffers = {"out": np.zeros(64, np.uint32)}
        report = sim.run("xehpg", START + body + END, buffers)
        assert sim.kinds(report) == wanted, [str(finding) for finding in report.findings]
        if wanted:
            assert "Wa_" in report.findings[0].message
            assert not sim.run("xehpg", START + body + END, buffers, errata=False).findings


#: By kind and name what must not follow one another, and what may.
PAIRS = {
    "halves chosen and added": (
        "half-suppression",
        "sel (16|M0) (ge)f0.0 r60.0<1>:hf r40.0<1;1,0>:hf r41.0<1;1,0>:hf",
        "add (16|M0) r61.0<1>:hf r42.0<1;1,0>:hf r41.0<1;1,0>:hf",
        "add (16|M0) r61.0<1>:hf r41.0<1;1,0>:hf r42.0<1;1,0>:hf",
    ),
    "halves added and chosen": (
        "half-suppression",
        "add (16|M0) r61.0<1>:hf r42.0<1;1,0>:hf r41.0<1;1,0>:hf",
        "sel (16|M0) (lt)f0.0 r60.0<1>:hf r40.0<1;1,0>:hf r41.0<1;1,0>:hf",
        "sel (16|M0) (lt)f0.0 r60.0<1>:hf r40.0<1;1,0>:hf -r41.0<1;1,0>:hf",
    ),
    "halves moved and converted": (
        "half-suppression",
        "mov (16|M0) r60.0<1>:hf r40.0<1;1,0>:hf",
        "mov (16|M0) r61.0<1>:f r40.0<1;1,0>:hf",
        "mov (16|M0) r61.0<1>:f r40.16<1;1,0>:hf",
    ),
    "products of scalars and elements": (
        "mul-suppression",
        "mul (16|M0) r60.0<1>:d r40.0<1;1,0>:d r42.0<0;1,0>:uw",
        "mul (16|M0) r61.0<1>:d r41.0<1;1,0>:d r42.0<2;1,0>:uw",
        "mul (16|M0) r61.0<1>:d r41.0<1;1,0>:d r42.2<0;1,0>:uw",
    ),
    "completion behind a sum": (
        "mul-suppression",
        "add (16|M0) r60.0<1>:d r40.0<1;1,0>:d r42.0<1;1,0>:d",
        "macl (16|M0) r61.0<1>:d r41.0<1;1,0>:d r42.0<1;1,0>:d",
        "macl (16|M0) r61.0<1>:d r41.0<1;1,0>:d r42.0<0;1,0>:d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_neighbours_share_no_source(sim: Any, name: str) -> None:
    """Read by XeHPC's decoder, for the assembler need not know Xe2."""
    kind, before, after, apart = PAIRS[name]
    for first, second, wanted in ((before, after, True), (before, apart, False), (after, after, False)):
        code = disassemble(sim.machine_code("xehpc", f"{first}\n(W) sync.nop null\n{second}\n"), XEHPC)
        assert [*defects_of(code, Layout.of(XEHPC, 128), frozenset({kind}))] == [2] * wanted, (first, second)
    assert kind in (XEHPC if kind == "half-suppression" else XE2).defects


@pytest.mark.parametrize("platform", ["xehpg", "xehpc"])
def test_something_stands_behind_the_end_of_a_thread(sim: Any, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sim.run(platform, "", {"out": np.zeros(64, np.uint8)}).findings
    monkeypatch.setitem(sim.epilogues, platform, sim.epilogues[platform].replace("nop\n", ""))
    (finding,) = sim.run(platform, "", {"out": np.zeros(64, np.uint8)}).findings
    assert finding.kind == "code-end"
    assert "Wa_16013338947" in finding.message


def test_the_end_of_a_thread_with_256_registers(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    epilogue = sim.epilogues["xehpg"].replace("r127", "r255")
    halves = "(W) csel (4|M0) (eq)f0.0 r20.0<1>:w r20.0<1;0>:w r20.0<1;0>:w r20.0<1>:w\n"
    floats = "(W) csel (4|M0) (eq)f0.0 r21.0<1>:f r21.0<1;0>:f r21.0<1;0>:f r21.0<1>:f\n"
    start = "(W) mov (8|M0) r20.0<1>:ud 0:w\n(W) mov (8|M0) r21.0<1>:f 0.0:f\n(W) sync.nop null {A@1}\n"
    wide = sim.Source("", grf=256)
    for before, wanted in (("", ["end-suppression"]), (floats, ["end-suppression"]), (halves + floats, [])):
        monkeypatch.setitem(sim.epilogues, "xehpg", epilogue.replace("(W) send.gtwy", before + "(W) send.gtwy"))
        report = sim.run("xehpg", start, {"out": np.zeros(64, np.uint8)}, source=wide)
        assert sim.kinds(report) == wanted, [str(finding) for finding in report.findings]
