"""PTX and ptxas: where it is found, what convgen writes with and without it, and which of its messages are errors."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import toolchain
from convgen.backends.nvidia import assemble, targets
from convgen.backends.nvidia.assemble import ADVISORIES, compiled, resources
from convgen.backends.toolchain import PTXAS, Tool, cuda_folders
from convgen.commands import cli
from convgen.ir.error import AssemblerError, UserError
from convgen.problem.matmul import parse_problem
from tests.backends.test_toolchain import program

GEMM = ["gemm", "32x32:32x32", "--dt", "f16", "--target", "sm_90"]


def release() -> tuple[int, ...]:
    """Return the release of the installed ptxas."""
    text = subprocess.run([str(PTXAS.find()), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    assert found is not None
    return tuple(map(int, found.groups()))


needs_ptxas = pytest.mark.skipif(PTXAS.find() is None, reason="ptxas is not installed")

PTX = """.version 8.0
.target {target}
.address_size 64
.visible .entry k(.param .b64 p) .maxntid 128, 1, 1
{{
    .reg .b64 %rd<3>;
    .reg .f32 %f<9>;
    ld.param.u64 %rd1, [p];
    mov.b64 %rd2, 0;
{body}
    st.global.f32 [%rd1], %f1;
    ret;
}}
"""
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd2, %rd2, 1,1,1,0,0;"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without ptxas."""
    nothing = Tool("ptxas-that-nobody-has", "none", folders=lambda: ())
    monkeypatch.setattr(assemble, "PTXAS", nothing)
    monkeypatch.setattr(targets, "PTXAS", nothing)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A ptxas that prints the content of a file, and fails where it has no line of information."""
    words = tmp_path / "words"
    body = f'cat {words} >&2; printf "\\177ELFmachine" >kernel.cubin; grep -q info {words}'
    monkeypatch.setenv("CONVGEN_PTXAS", str(program(tmp_path / "bin" / "ptxas", body)))
    return words


def test_a_variable_comes_before_path_and_path_before_wheels_and_the_toolkit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("nvidia/cu13/bin", "nvidia/cu12/bin", "nvidia/cuda_nvcc/bin")
    wheels = [program(tmp_path / "site" / name / "ptxas") for name in names]
    toolkit, on_path, mine = (program(tmp_path / name / "ptxas") for name in ("cuda", "bin", "mine"))
    monkeypatch.delenv("CONVGEN_PTXAS", raising=False)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(toolchain, "CUDA", str(toolkit.parent))
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    assert [*map(Path, cuda_folders())] == [path.parent for path in (*wheels, toolkit)]
    assert [*map(Path, PTXAS.all())] == [on_path, *wheels, toolkit]
    monkeypatch.setenv("CONVGEN_PTXAS", str(mine))
    assert PTXAS.find() == str(mine)


def test_the_text_and_the_record_do_not_depend_on_ptxas(
    said: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said.write_text("ptxas info    : Used 40 registers\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main([*GEMM, "--no-cache", "-o", "with/k"]) == 0
    with monkeypatch.context() as patched:
        nothing = Tool("ptxas-that-nobody-has", "none", folders=lambda: ())
        patched.setattr(assemble, "PTXAS", nothing)
        patched.setattr(targets, "PTXAS", nothing)
        assert cli.main([*GEMM, "--no-cache", "-o", "without/k"]) == 0
    files = {folder: {p.name: p.read_bytes() for p in Path(folder).iterdir()} for folder in ("with", "without")}
    assert files["with"].pop("k.cubin") == b"\x7fELFmachine"
    assert files["with"] == files["without"]
    assert sorted(files["without"]) == ["k.launch.json", "k.ptx"]
    assert json.loads(files["without"]["k.launch.json"])["object"] == "k.ptx"


def test_the_cache_keeps_machine_code_and_registers(
    said: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    problem = parse_problem("--dt=f16 32x32:32x32")
    said.write_text("ptxas info\n")
    name = cg.compile(cg.build(problem, "sm_90")).name
    said.write_text(
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90'\nptxas info    : Used 40 registers\n"
    )
    monkeypatch.setenv("CONVGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shown = []
    for prefix in ("first/k", "second/k"):
        assert cli.main([*GEMM, "-o", prefix, "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert [each["launches"][0]["registers"] for each in shown] == [{"reg": 40}] * 2
    assert shown[1]["files"] == {
        "asm": "second/k.ptx",
        "object": "second/k.ptx",
        "machine": "second/k.cubin",
        "launch": "second/k.launch.json",
    }
    assert Path("first/k.cubin").read_bytes() == Path("second/k.cubin").read_bytes() == b"\x7fELFmachine"


def test_registers_that_nobody_has_allocated_are_virtual(absent: None) -> None:
    code = cg.compile(cg.build(parse_problem("--dt=f16 32x32:32x32"), "sm_90"))
    assert code.machine is None
    assert "          virtual registers, " in str(code)


def test_spills_are_reported() -> None:
    said = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    24 bytes stack frame, 40 bytes spill stores, 36 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers
"""
    assert resources(said) == {
        "a": {"reg": 255, "stack_bytes": 24, "spill_store_bytes": 40, "spill_load_bytes": 36},
        "b": {"reg": 18},
    }


@needs_ptxas
def test_a_cubin_has_equal_bytes_in_every_run() -> None:
    code = cg.compile(cg.build(parse_problem("--dt=f16 32x32:32x32"), "sm_90"))
    again = compiled(code.asm)
    assert again is not None
    assert code.machine == again.content
    assert code.kernels[code.name].registers["reg"] == again.registers[code.name]["reg"] > 0


@needs_ptxas
@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("C7508", "setmaxnreg.inc.sync.aligned.u32 232;"),
        (
            "C7519",
            f"mov.f32 %f0, 0f00000000;\n{PRODUCT}\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        ),
        ("C7517", f"wgmma.fence.sync.aligned;\n{PRODUCT}\nwgmma.commit_group.sync.aligned;\nadd.f32 %f1, %f1, %f2;"),
    ],
)
def test_advisories_on_matrix_products_are_errors(code: str, body: str) -> None:
    if code == "C7519" and release() > (13, 0):
        pytest.skip("ptxas after 13.0 puts the fence in without a message")
    with pytest.raises(AssemblerError, match=f"^ptxas: .*{ADVISORIES[code]}.*"):
        compiled(PTX.format(target="sm_90a", body=body))


@pytest.mark.parametrize("code", [code for code in ADVISORIES if code != "C7512"])
def test_each_advisory_is_one_line(code: str, said: Path) -> None:
    said.write_text(f"ptxas info    : ({code}) Potential Performance Loss: something in function 'k'\n")
    wanted = f"^ptxas: {ADVISORIES[code]}: .{code}. Potential Performance Loss: something in function 'k'$"
    with pytest.raises(AssemblerError, match=wanted):
        compiled(PTX.format(target="sm_90a", body=""))


def test_a_kernel_with_too_few_registers_is_the_users(said: Path) -> None:
    said.write_text("ptxas info    : (C7512) Potential Performance Loss: insufficient registers in function 'k'\n")
    wanted = r"^given a kernel whose .* for want of registers: \(C7512\) .*, wanted smaller tiles, .*, at --config$"
    with pytest.raises(UserError, match=wanted):
        compiled(PTX.format(target="sm_90a", body=""))


def test_text_that_ptxas_rejects_is_a_defect_of_convgen(said: Path) -> None:
    said.write_text("ptxas kernel.ptx, line 4; error   : Unknown modifier '.b33'\nptxas fatal   : aborted\n")
    with pytest.raises(AssemblerError, match=r"^ptxas: kernel.ptx, line 4; error : Unknown modifier '.b33'$"):
        compiled(PTX.format(target="sm_90", body=""))


def test_a_ptxas_that_fails_by_itself_is_the_users(said: Path) -> None:
    said.write_text("ptxas fatal   : Cannot find license\n")
    with pytest.raises(UserError, match=r"^ptxas cannot do its work: fatal : Cannot find license$"):
        compiled(PTX.format(target="sm_90", body=""))


@pytest.mark.parametrize(
    "message",
    [
        "ptxas kernel.ptx, line 1; fatal   : Unsupported .version 8.0; current version is '7.4'",
        "ptxas kernel.ptx, line 2; fatal   : Unsupported .target 'sm_90a'",
        "ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'",
    ],
)
def test_a_ptxas_that_does_not_know_the_target_is_refused_only_if_it_was_named(
    said: Path, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said.write_text(f"{message}\n")
    text = PTX.format(target="sm_90a", body="")
    with pytest.raises(UserError, match=r"^given CONVGEN_PTXAS=.*, wanted a ptxas that knows sm_90a: "):
        compiled(text)
    monkeypatch.setenv("PATH", f"{said.parent / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CONVGEN_PTXAS")
    assert compiled(text) is None


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_cubin_is_not_simulated(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.cubin").write_bytes(b"\x7fELF".ljust(18, b"\0") + (190).to_bytes(2, "little") + bytes(44))
    assert cli.main([command, "k.cubin"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convgen: ")
    assert line.endswith("given a cubin, whose machine code (SASS) is not simulated; wanted the .ptx text of it")


@pytest.mark.parametrize("command", ["run", "check"])
def test_shared_memory_of_the_launchs_size_is_asked_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = cg.compile(cg.build(parse_problem("--dt=f16 32x32:32x32"), "sm_90"))
    Path("k.ptx").write_text(code.asm)
    (launch,) = code.record.launches
    words = [command, "k.ptx", "--grid", "1", "--block", str(launch.workgroup[0])]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    wanted = f"given no --lds for {code.name}, wanted one: the launch gives the size of its shared memory"
    assert line.endswith(wanted)
    if command == "check":
        assert cli.main([*words, "--lds", str(launch.shared_bytes)]) == 0
        assert "CLEAN" in capsys.readouterr().out


def test_a_page_and_a_difference_of_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*GEMM, "-o", "k"]) == 0
    assert cli.main(["explain", "k.ptx", "-o", "k.html"]) == 0
    assert "Nothing is timed: for this target there is no model." in Path("k.html").read_text()
    assert cli.main(["explain", "k.launch.json", "-o", "record.html"]) == 0
    assert "the code equals that of k.ptx, instruction by instruction" in Path("record.html").read_text()
    assert cli.main(["diff", "k.ptx", "k.ptx"]) == 0
    assert "Both have the same instructions." in capsys.readouterr().out
