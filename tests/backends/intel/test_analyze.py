"""`analyze` on Intel code: a loop counted by hand, costs row by row, our own kernels, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends.analysis import KernelAnalysis, Line
from convgen.backends.intel import costs
from convgen.backends.intel.assemble import assemble, available
from convgen.backends.intel.sim import CodeObject
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.commands import cli
from convgen.ir.error import UserError
from tests.backends.intel.listings import AXPY, small_kernel

pytestmark = pytest.mark.skipif(not available("12p72"), reason="iga64 is not installed")

TARGETS = tuple(AXPY)

#: Two loops; the shorter one has the matrix work, and waits for three tokens.
LOOPS = """
first:
        dpas.8x8 (M|M0)  r40:f  r40:f  r16.0:hf  r32.0:hf {$0}
        mad (M|M0)       r60.0<1>:f  r61.0<1;0>:f  r63.0<1;0>:f  r65.0<1>:f
(W)     load.slm.d32x64t.a32 (1|M0)  r16:REGS  [r10:1]  {$3}
(W)     sync.allwr       0x5
        mov (M|M0)       r70.0<1>:f  r16.0<1;1,0>:f  {$3.dst}
(W&f0.0) jmpi first
second:
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {I@1}
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {I@1}
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {I@1}
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {I@1}
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {I@1}
(W&f0.0) jmpi second
(W)     mov (8|M0)       r127.0<1>:f  r0.0<1;1,0>:f
(W)     send.gtwy (1|M0) null  r127  null:0  0x0  0x02000010  {EOT}
"""


def kernel(body: str, target: str, tmp_path: Path) -> KernelAnalysis:
    path = tmp_path / "k.asm"
    path.write_text(small_kernel(body, target))
    (found,) = targets.analyze(path).kernels
    return found


def decoded(line: str, target: str) -> Instruction:
    code = assemble(small_kernel(line + "\n", target))
    assert code is not None
    return CodeObject.load(code).instructions("k")[0]


def line(text: str, target: str) -> Line:
    return costs.line_of(decoded(text, target), target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_hot_loop_has_the_matrix_work_not_the_length(target: str, tmp_path: Path) -> None:
    found = kernel(LOOPS, target, tmp_path)
    lanes = DEVICES[target].simd_size
    assert found.loops == 2
    assert found.hot.mix == {"dpas": 1, "alu": 1, "slm_load": 1, "sync": 1, "mov": 1, "branch": 1}
    assert found.hot.flop == 2 * 8 * 16 * lanes
    assert found.hot.bytes == {"lds read": 256}
    assert found.hot.lines[-1].text.endswith(f"jmpi +{found.hot.lines[0].offset:#x}")
    assert found.counts["dpas clocks"] == {"xehpc": 8, "xehpg": 16}[target]
    assert found.counts["other clocks"] == 5
    assert found.hot.issue_per_matrix == 5 / found.counts["dpas clocks"]
    assert found.counts["token waits"] == 3
    # the mad's three sources are odd and lie in bank 1 of XeHPC; on XeHPG banks change every two registers
    assert found.counts["bank conflicts"] == {"xehpc": 2, "xehpg": 1}[target]
    assert found.registers == {"grf": 72, "grf_count": 128}
    assert found.shared_bytes == 32768
    # four workgroups of four threads share a core of 8 EUs or 16
    assert found.occupancy == {"registers": 8, "lds": {"xehpc": 2, "xehpg": 1}[target]}


def test_a_kernel_without_loops_is_taken_whole(tmp_path: Path) -> None:
    for target, listing in AXPY.items():
        (tmp_path / "k.asm").write_text(listing)
        found = targets.analyze(tmp_path / "k.asm")
        assert found.target == target
        (axpy,) = found.kernels
        assert (axpy.loops, axpy.hot.is_loop) == (0, False)
        assert axpy.hot.lines[0].offset == 0
        assert axpy.hot.lines[-1].kind == "end"
        assert axpy.hot.issue_per_matrix is None


@pytest.mark.parametrize("target", TARGETS)
def test_our_own_hot_loop(target: str, tmp_path: Path) -> None:
    problem = cg.Conv.parse("mb1ic64oc32ih8kh3ph1", dir="FWD_D", dt="f16")
    code = cg.compile(cg.build(problem, target=target))
    (tmp_path / "k.asm").write_text(code.asm)
    (tmp_path / "k.zebin").write_bytes(code.object or b"")
    (found,) = targets.analyze(tmp_path / "k.asm").kernels
    assert targets.analyze(tmp_path / "k.zebin").kernels == (found,)
    assert dict(found.registers) == dict(code.kernels[code.name].registers)
    assert found.shared_bytes == code.kernels[code.name].shared_bytes
    depths = [32 if ":b" in line.text else 16 for line in found.hot.lines if "dpas" in line.text]  # a vote counts bytes
    assert len(depths) == found.hot.mix["dpas"]
    assert sum(depths) * 2 * 8 * DEVICES[target].simd_size == found.hot.flop
    assert 0 < found.counts["token waits"] < found.counts["iga64's waits"]


COSTS = [
    ("mov (M|M0) r10.0<1>:ud r11.0<1;1,0>:ud", "mov", "valu", 1, {}),
    ("(W) mov (1|M0) r10.0<1>:ud r11.0<0;1,0>:ud", "mov", "valu", 1, {}),
    ("add (M|M0) r10.0<1>:q r12.0<1;1,0>:q r14.0<1;1,0>:q", "alu", "valu", 4, {}),
    ("mov (M|M0) r10.0<1>:hf r12.0<1;1,0>:f", "mov", "valu", 1, {}),
    ("(W) sync.nop null {$1.dst}", "sync", "", 1, {}),
    ("load.ugm.d32x8.a64.ca.ca (M|M0) r20:8 [r10:2] {$1}", "ugm_load", "global", 8, {"global load": 8}),
    ("(W) store.slm.d64x32t.a32 (1|M0) [r10:1] r20:REGS {$1}", "slm_store", "lds", 256, {"lds write": 256}),
    ("(W) send.slm (1|M0) r28 r0 null:0 0x0 0x0210011F {$1}", "slm_fence", "", 1, {}),
    ("(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {$1}", "barrier_signal", "", 1, {}),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("text", "kind", "unit", "slots", "moved"), COSTS, ids=[row[1] for row in COSTS])
def test_costs(text: str, kind: str, unit: str, slots: int, moved: dict[str, int], target: str) -> None:
    """Bytes of gathers are those of a lane and dword, slots of blocks are bytes."""
    device = DEVICES[target]
    found = line(text, target)
    assert (found.kind, found.unit) == (kind, unit)
    assert found.slots == (slots // device.grf_bytes if slots > 8 else slots)
    scale = 4 * device.simd_size if unit == "global" else 1
    assert dict(found.bytes) == {path: count * scale for path, count in moved.items()}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ((10, 11, 13), {"xehpc": 0, "xehpg": 1}),  # r10 and r11 are a bank's pair of XeHPG, in one bundle
        ((10, 12, 14), {"xehpc": 1, "xehpg": 0}),
        ((10, 10, 13), {"xehpc": 0, "xehpg": 0}),  # the same register is read once
        ((10, 74, 13), {"xehpc": 1, "xehpg": 1}),
        ((12, 14, 13), {"xehpc": 1, "xehpg": 1}),  # two of a bundle suffice
        ((12, 16, 13), {"xehpc": 0, "xehpg": 1}),
    ],
)
def test_bank_conflicts(sources: tuple[int, int, int], expected: dict[str, int]) -> None:
    a, b, c = sources
    for target, count in expected.items():
        mad = decoded(f"mad (M|M0) r60.0<1>:f r{a}.0<1;0>:f r{b}.0<1;0>:f r{c}.0<1>:f", target)
        assert costs.conflicts(mad, target) == count, target


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.asm"
    path.write_text(small_kernel(LOOPS, "xehpc"))
    assert cli.main(["analyze", str(path), "-v"]) == 0
    out = capsys.readouterr().out
    for expected in ("grf 72 grf_count 128", "1 : 0.62 of dpas", "token waits", "threads an EU", "8 clocks at least"):
        assert expected in out
    assert cli.main(["analyze", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["kernels"]
    assert found["hot"]["others_per_dpas"] == 5
    assert found["hot"]["counts"]["token waits"] == 3


def test_what_is_no_code_is_refused_in_a_line(tmp_path: Path) -> None:
    for name, content, reason in (
        ("a.asm", b"mov", "no //.target"),
        ("b.asm", b"\xff\xfe", "neither a code object nor text"),
        ("c.zebin", b"\x7fELF", "cannot be read"),
        ("d.asm", small_kernel("bogus\n", "xehpc").encode(), "does not assemble"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=reason):
            targets.analyze(tmp_path / name)
