"""The text form reads back as it was written, and a zebin holds what it was made of, by pyelftools and by ocloc."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.dwarf import CompilationUnit
from convgen.backends.intel.zebin import Argument, KernelInfo, build, directives, parse, target_directive
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.ir.error import AssemblerError
from convgen.ir.record import evolve
from tests.backends.intel.listings import section

GEMM = KernelInfo(
    name="gemm",
    simd_size=16,
    grf_count=256,
    slm_bytes=8192,
    barrier_count=1,
    workgroup=(64, 2, 1),
    has_dpas=True,
    arguments=(Argument("src", 0, 8, "buffer"), Argument("k", 12, 4, "scalar"), Argument("mode", 8, 1, "scalar")),
)
PLAIN = KernelInfo("plain", 8, 128, 0, 0, (8, 1, 1), False, ())

TEXT = """\
//.kernel gemm
//.simd_size 16
//.grf_count 256
//.slm_bytes 8192
//.barrier_count 1
//.workgroup 64 2 1
//.has_dpas yes
//.argument buffer src  at 0 size 8
//.argument scalar k    at 12 size 4
//.argument scalar mode at 8 size 1
"""

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)


@st.composite
def infos(draw: st.DrawFn) -> KernelInfo:
    simd = draw(st.sampled_from([8, 16, 32]))
    arguments, end = [], 0
    for name in draw(st.lists(names, max_size=6)):
        kind = draw(st.sampled_from(["buffer", "scalar"]))
        size = 8 if kind == "buffer" else draw(st.sampled_from([1, 2, 4, 8]))
        offset = -(-end // size) * size + size * draw(st.integers(0, 2))
        arguments.append(Argument(name, offset, size, kind))
        end = offset + size
    return KernelInfo(
        draw(names),
        simd,
        draw(st.sampled_from([128, 256])),
        draw(st.integers(0, 131072)),
        draw(st.integers(0, 4)),
        (simd * draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        draw(st.booleans()),
        tuple(draw(st.permutations(arguments))),
    )


def module(target: str, kernels: list[tuple[KernelInfo, list[str]]]) -> str:
    lines = [target_directive(target)]
    for info, body in kernels:
        lines += ["", "// a comment", *directives(info), *body]
    return "\n".join([*lines, ""])


@given(
    target=st.sampled_from(sorted(DEVICES)),
    kernels=st.lists(infos(), min_size=1, max_size=3, unique_by=lambda info: info.name),
)
def test_what_is_written_reads_back(target: str, kernels: list[KernelInfo]) -> None:
    text = module(target, [(info, [f"nop  // {n}"]) for n, info in enumerate(kernels)])
    read_target, read = parse(text)
    assert read_target == target
    assert [info for info, _ in read] == kernels
    for n, (_, body) in enumerate(read):
        assert [line for line in body.splitlines() if "nop" in line] == [f"nop  // {n}"]
        at = body.splitlines().index(f"nop  // {n}")
        assert text.splitlines()[at] == f"nop  // {n}", "a line keeps its number"


def test_the_text_form() -> None:
    assert "\n".join([*directives(GEMM), ""]) == TEXT


WRONG = [
    ("", "no //.target"),
    (TEXT, "no //.target"),
    ("//.target gfx942\n" + TEXT, "//.target of gfx942, wanted one of xehpg, xehpc, xe2"),
    ("//.target xehpc\n//.grf_count 128\n" + TEXT, r"line 2: //.grf_count before the first //.kernel"),
    ("//.target xehpc\n//.target xehpc\n" + TEXT, r"line 2: //.target before the first //.kernel"),
    ("//.target xehpc\n" + TEXT.replace("grf_count", "grfs"), r"line 4: //.grfs 256: unknown or twice"),
    ("//.target xehpc\n" + TEXT.replace("256", "many"), r"line 4: //.grf_count many: invalid literal"),
    ("//.target xehpc\n" + TEXT.replace("256", "64"), r"line 2: .*grf_count.*"),
    ("//.target xehpc\n" + TEXT.replace("yes", "maybe"), r"line 8: //.has_dpas maybe"),
    ("//.target xehpc\n" + TEXT + "//.grf_count 256\n", r"line 12: //.grf_count 256: unknown or twice"),
    ("//.target xehpc\n" + TEXT.replace("//.has_dpas yes\n", ""), r"line 2: kernel gemm has no //.has_dpas"),
    ("//.target xehpc\n" + TEXT.replace("at 12", "12"), r"line 10: .*wanted buffer\|scalar NAME at OFFSET size BYTES"),
    ("//.target xehpc\n" + TEXT.replace("at 12", "at 10"), r"line 10: .*k of 4 bytes cannot stand at 10"),
    ("//.target xehpc\n" + TEXT.replace("at 12", "at 4"), r"line 2: arguments src and k overlap"),
    ("//.target xehpc\n" + TEXT + TEXT, r"line 12: kernel gemm twice"),
    ("//.target xehpc\n" + TEXT.replace("64 2 1", "64 2"), r"line 7: //.workgroup 64 2: not enough values"),
    ("//.target xehpc\n" + TEXT.replace("64 2 1", "60 2 1"), r"line 2: .* does not fill threads of 16"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_directives_are_refused(text: str, message: str) -> None:
    with pytest.raises(AssemblerError, match=message):
        parse(text)


def test_a_module_may_be_empty() -> None:
    assert parse(target_directive("xehpc") + "\n") == ("xehpc", [])


@pytest.mark.parametrize("change", [{"name": "a-b"}, {"simd_size": 64}, {"grf_count": 96}, {"workgroup": (0, 1, 1)}])
def test_facts_that_no_driver_takes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))}|does not fill"):
        evolve(GEMM, **change)


CODES = [(GEMM, bytes(range(16)) * 9), (PLAIN, b"\x01" * 64)]


def zebin(target: str) -> bytes:
    return build(DEVICES[target], CODES)


@pytest.mark.parametrize("target", DEVICES)
def test_sections_hold_code_and_description(target: str) -> None:
    read = ELFFile(io.BytesIO(zebin(target)))
    assert (read["e_type"], read["e_ident"]["EI_ABIVERSION"]) == ("ET_REL", 1)
    names = [found.name for found in read.iter_sections()]
    assert names == ["", ".text.gemm", ".text.plain", ".ze_info", ".note.intelgt.compat", ".strtab"]
    for info, code in CODES:
        text = section(zebin(target), f".text.{info.name}")
        assert text["sh_offset"] % 64 == text["sh_size"] % 64 == 0
        assert text["sh_flags"] == 6
        padding = text.data().removeprefix(code)
        assert len(code) + len(padding) == text["sh_size"]
        assert len(padding) >= 128
        assert not any(padding)
    assert section(zebin(target), ".ze_info")["sh_type"] == 0xFF000011


NOTES = {
    "xehpg": {1: 0x4F6, 2: 0xC07},
    "xehpc": {1: 0x4F7, 2: 0xC08},
    "xe2": {2: 0xC09},
}


@pytest.mark.parametrize("target", DEVICES)
def test_the_machine_is_intel_graphics(target: str) -> None:
    assert int.from_bytes(zebin(target)[18:20], "little") == 205


@pytest.mark.parametrize("target", DEVICES)
def test_notes_name_the_device(target: str) -> None:
    notes = list(section(zebin(target), ".note.intelgt.compat").iter_notes())
    assert {note["n_name"] for note in notes} == {"IntelGT"}
    data = {note["n_type"]: note["n_descdata"] for note in notes}
    assert b"1.20\0" in data.values()
    words = [int.from_bytes(value, "little") for value in data.values() if len(value) == 4]
    assert words == list(NOTES[target].values())


def test_a_kernel_is_described() -> None:
    text = section(zebin("xehpc"), ".ze_info").data().decode()
    gemm, plain = text.split("  - name: ")[1:]
    lines = [line.strip() for line in gemm.splitlines()]
    wanted = "gemm|barrier_count: 1|disable_mid_thread_preemption: true|has_dpas: true|grf_count: 256|simd_size: 16"
    for line in (*wanted.split("|"), "slm_size: 8192", "required_work_group_size: [64, 2, 1]", "offset: 12"):
        assert line in lines
    assert "local_id" not in text, "threads take no local ids"
    assert "inline_data" not in text, "all arguments are in memory"
    for key in ("payload_arguments", "has_dpas", "disable_mid_thread_preemption"):
        assert key not in plain


@pytest.mark.parametrize("target", DEVICES)
def test_every_byte(target: str, golden: Callable[[str, str], None]) -> None:
    """Headers, sections, notes and descriptions of two kernels, with and without debug information."""
    kernels = [(GEMM, bytes(range(80))), (PLAIN, bytes(16))]
    units = [
        CompilationUnit("gemm", "gemm.ir", 80, [(0, 3), (16, 9)]),
        CompilationUnit("plain", "plain.ir", 16, [(0, 2)]),
    ]
    rows = []
    for content in (build(DEVICES[target], kernels), build(DEVICES[target], kernels, units)):
        elf = ELFFile(io.BytesIO(content))
        rows += [f"{len(content)} bytes {hashlib.sha256(content).hexdigest()[:10]}, {dict(elf.header)}"]
        rows += [f"  {s.name} {list(s.header.values())} {s.data()[:48].hex()}" for s in elf.iter_sections()]
    golden(f"zebin/{target}.txt", "\n".join(rows) + "\n")


def test_the_same_kernels_give_the_same_bytes() -> None:
    assert build(DEVICES["xehpc"], CODES) == build(DEVICES["xehpc"], list(CODES))


@pytest.mark.skipif(shutil.which("ocloc") is None, reason="ocloc is not installed")
@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
def test_the_offline_compiler_finds_it_valid(target: str, tmp_path: Path) -> None:
    path = tmp_path / "module.zebin"
    path.write_bytes(zebin(target))
    command = ["ocloc", "validate", "-file", str(path), "-device", DEVICES[target].product]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Binary is VALID" in done.stdout
    assert "Unknown" not in done.stdout
    gemm = done.stdout.split("named gemm:")[1].split("named plain:")[0]
    assert "Cross-thread data size 32" in gemm
    assert "Per-thread data size 0" in gemm
