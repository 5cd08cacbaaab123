"""Analysis of PTX: instructions by unit, bytes, loops, and what ptxas says of registers, of any compiler's text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends.analysis import KernelAnalysis
from convgen.backends.nvidia import analyze as module
from convgen.backends.nvidia.assemble import resources
from convgen.backends.stages import MachineCode
from convgen.commands import cli
from convgen.ir.error import Unsupported, UserError
from convgen.problem.matmul import parse_problem

DATA = Path(__file__).parents[2] / "data" / "nvidia"
KERNEL = """.version 8.0
.target {target}
.address_size 64
.shared .align 16 .b8 tile[1024];
.visible .entry k(.param .b64 p) .maxntid 64, 1, 1
{{
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<10>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 0;
LOOP:
{body}
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, 8;
    @%p1 bra LOOP;
    st.global.v4.b32 [%rd1], {{%r1, %r2, %r3, %r4}};
    ret;
}}
"""


@pytest.fixture(autouse=True)
def _without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compiled", lambda text: None)


def of(body: str, target: str = "sm_90") -> KernelAnalysis:
    (kernel,) = module.analyze(KERNEL.format(body=body, target=target).encode(), "k.ptx").kernels
    return kernel


@pytest.mark.parametrize(
    ("body", "kind", "unit", "clocks", "moved"),
    [
        ("ld.global.v2.b64 {%rd2, %rd3}, [%rd1];", "ld_global", "global", 8, {"global load": 512}),
        ("ld.global.nc.u16 %h, [%rd1];", "ld_global", "global", 1, {"global load": 64}),
        (
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16384;",
            "wait",
            "global",
            256,
            {"global load": 16384, "lds write": 16384},
        ),
        ("st.global.b32 [%rd1], %r2;", "st_global", "global", 2, {"global store": 128}),
        ("ld.shared::cta.b32 %r2, [%r1];", "ld_shared", "lds", 1, {"lds read": 128}),
        ("st.shared::cta.b32 [%r1], %r2;", "st_shared", "lds", 1, {"lds write": 128}),
        ("ld.param::entry.u64 %rd2, [p];", "other", "", 1, {}),
        ("red.global.add.f32 [%rd1], %f1;", "atomic", "global", 2, {"global store": 128}),
        ("ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [tile];", "ld_shared", "lds", 4, {"lds read": 512}),
        ("st.shared.b32 [tile], %r2;", "st_shared", "lds", 1, {"lds write": 128}),
        (
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [tile];",
            "ldmatrix", "lds", 4, {"lds read": 512},
        ),
        (
            "cp.async.cg.shared.global [tile], [%rd1], 16;",
            "cp_async", "global", 8, {"global load": 512, "lds write": 512},
        ),
        ("cp.async.wait_group 1;", "wait", "", 1, {}),
        ("bar.sync 0;", "barrier", "", 1, {}),
        ("ex2.approx.f32 %f1, %f2;", "alu", "valu", 8, {}),
        ("fma.rn.f32 %f1, %f2, %f2, %f1;", "alu", "valu", 1, {}),
    ],
)  # fmt: skip
def test_an_instruction_has_its_unit_and_its_bytes(
    body: str, kind: str, unit: str, clocks: int, moved: dict[str, int]
) -> None:
    line = of(f".reg .b16 %h; {body}").hot.lines[0]
    assert (line.kind, line.unit, line.slots, line.bytes) == (kind, unit, clocks, moved)


@pytest.mark.parametrize(
    ("body", "target", "clocks", "flop"),
    [
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
            " {%f0,%f1,%f2,%f3}, {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%f0,%f1,%f2,%f3};",
            "sm_80", 8, 4096,
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
            " {%f0,%f1,%f2,%f3}, {%r2,%r3}, {%r6}, {%f0,%f1,%f2,%f3};",
            "sm_80", 4, 2048,
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
            " {%r10,%r11,%r12,%r13}, {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%r10,%r11,%r12,%r13};",
            "sm_90", 7, 8192,
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32"
            " {%f0,%f1,%f2,%f3}, {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%f0,%f1,%f2,%f3};",
            "sm_90", 12, 8192,
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd2, %rd2, 1,1,1,0,0;",
            "sm_90a", 4, 4096,
        ),
    ],
)  # fmt: skip
def test_products_take_the_clocks_of_their_target(body: str, target: str, clocks: int, flop: int) -> None:
    line = of(body, target).hot.lines[0]
    assert (line.kind, line.unit, line.slots, line.flop) == ("mma", "matrix", clocks, flop)


def test_the_hot_code_is_the_loop() -> None:
    kernel = of("ld.global.b32 %r2, [%rd1];")
    assert kernel.loops == 1
    assert kernel.hot.is_loop
    assert [line.text.split()[0] for line in kernel.hot.lines] == ["ld.global.b32", "add.s32", "setp.lt.s32", "@%p1"]
    assert len(kernel.lines) == 8
    assert kernel.workgroup == 64


def test_registers_are_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (of("").registers, of("").occupancy) == ({}, {"shared memory": 64})
    machine = MachineCode(b"", resources("Compiling entry function 'k' for 'sm_90'\nUsed 100 registers\n"))
    monkeypatch.setattr(module, "compiled", lambda text: machine)
    kernel = of("")
    assert kernel.registers == {"reg": 100}
    assert kernel.occupancy == {"registers": 18, "shared memory": 64}  # 104 registers x 32 lanes, in workgroups of two


@pytest.mark.parametrize("path", sorted(DATA.glob("*.ptx")), ids=lambda path: path.stem)
def test_text_of_any_compiler(path: Path) -> None:
    for kernel in targets.analyze(path).kernels:
        offsets = [line.offset for line in kernel.lines]
        assert offsets == sorted(set(offsets))
        assert kernel.hot.lines


def test_the_command_says_what_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = cg.compile(cg.build(parse_problem("--dt=f16 64x64:64x64"), "sm_90"))
    Path("k.ptx").write_text(code.asm)
    assert cli.main(["analyze", "k.ptx"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:5])
    assert lines["registers"] == "virtual"
    assert "instructions of text, " in lines["code"]
    assert cli.main(["analyze", "k.ptx", "--json", "-v"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["hot"]["mix"]["mma"] > 0


@pytest.mark.parametrize(
    ("content", "error", "wanted"),
    [
        (
            b"\x7fELF",
            Unsupported,
            "analysis of k.x: given a cubin, whose machine code .SASS. is not read, wanted the .ptx",
        ),
        (b"lorem ipsum", UserError, "given k.x that cannot be read: given text without .version"),
        (b".version 8.0\n.target sm_70\n.address_size 64\n.entry k() { ret; }", Unsupported, "given .target sm_70"),
        (b".version 8.0\n.target sm_80\n.address_size 64\n", UserError, "given k.x without a kernel"),
        (b"\xff\xfe", UserError, "given k.x that is neither"),
    ],
)
def test_what_is_not_read(content: bytes, error: type[Exception], wanted: str) -> None:
    with pytest.raises(error, match=wanted):
        module.analyze(content, "k.x")
