"""Modules assembled and linked in this process: the same as what the programs make, in all that is loaded."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from convgen import driver
from convgen.backends.amdgpu.assemble import _is_harmless, assemble, assemble_module
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.hsaco import linked
from convgen.backends.amdgpu.llvm import library
from convgen.backends.target import get
from convgen.backends.toolchain import CLANG
from convgen.ir.error import AssemblerError, ConvgenError
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from tests.conftest import found_tool

MODULES: dict[str, tuple[Problem, str]] = {
    "one kernel": (Matmul.parse("64x96:96x64", dt="f16"), "gfx942"),
    "two kernels": (Conv.parse("mb1ic32ih14oc32oh14kh3ph1", dir="BWD_WB", dt="bf16"), "gfx90a"),
    "four kernels, so that symbols have two buckets": (
        Conv.parse("mb2ic64ih14oc64oh14kh3ph1", dir="FWD_D", dt="u8"),
        "gfx950",
    ),
}

REFUSED = {
    "an instruction": "v_nothing v0\n",
    "a register": "v_add_f32 v999, v1, v2\n",
    "a label": "s_branch nowhere\n",
    "a distance": "s_branch far\n.fill 70000,4,0\nfar:\n",
    "a directive": ".nothing\n",
    "the target": '.amdgcn_target "amdgcn-amd-amdhsa--gfx90a"\n',
}


def loaded(code_object: bytes) -> list[bytes]:
    """The bytes that reach memory, with the headers but for where sections are listed."""
    header, (first,), (count,) = (
        code_object[:64],
        *(struct.unpack_from(form, code_object, at) for form, at in (("<Q", 32), ("<H", 56))),
    )
    segments = [struct.unpack_from("<IIQQQQQQ", code_object, first + 56 * n) for n in range(count)]
    parts = [code_object[max(64, start) : start + size] for kind, _, start, _, _, size, _, _ in segments if kind == 1]
    return [header[:40], header[48:60], *parts]


def listed(code_object: bytes) -> tuple[dict[str, tuple[Any, ...]], list[object]]:
    """Sections and symbols as tools see them, without those that only lld leaves."""
    elf = ELFFile(io.BytesIO(code_object))
    fields = ("sh_type", "sh_flags", "sh_addr", "sh_info", "sh_addralign", "sh_entsize")
    sections = {
        s.name: (elf.get_section(s["sh_link"]).name, s["sh_addr"] and s["sh_size"], *map(s.__getitem__, fields))
        for s in elf.iter_sections()
        if s.name not in (".relro_padding", ".comment")
    }
    return sections, [(s.name, s["st_value"], s["st_size"], s["st_info"], s["st_other"]) for s in _symbols(elf)]


def _symbols(elf: Any) -> Iterator[Any]:
    for name in (".symtab", ".dynsym"):
        yield from elf.get_section_by_name(name).iter_symbols()


def in_process(text: str, target: str) -> bytes | None:
    llvm = library(FAMILY.first_llvm[target])
    assert llvm is not None
    relocatable = llvm.relocatable(text, target)
    return None if relocatable is None else linked(relocatable)


@pytest.mark.parametrize("name", MODULES)
def test_all_that_is_loaded_is_as_lld_has_it(name: str) -> None:
    problem, target = MODULES[name]
    text = driver.compile(driver.build(problem, target)).asm
    made, wanted = in_process(text, target), assemble(text, target)
    assert made is not None
    assert wanted is not None
    assert loaded(made) == loaded(wanted)
    assert listed(made) == listed(wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_what_llvm_refuses_makes_nothing_and_ends_nothing(name: str) -> None:
    assert in_process(REFUSED[name] + "s_endpgm\n", "gfx942") is None


@pytest.mark.parametrize(
    ("more", "is_linked"),
    [
        ("", True),
        ('.section .more,"a",@progbits\n.long 1\n', False),
        ('.section .more,"a",@progbits\n', True),  # in which there is nothing
        ("named:\n.long 0\n", False),
        (".globl named\n", False),  # of another module
        (".section .rodata\n.quad other\n.globl other\n", False),
        (".text\ns_nop 5\n", False),
    ],
    ids="nothing section empty local undefined distance code".split(),
)
def test_what_the_printer_does_not_write_is_left_to_the_linker(more: str, is_linked: bool) -> None:
    problem, target = MODULES["one kernel"]
    text = driver.compile(driver.build(problem, target)).asm
    llvm = library(FAMILY.first_llvm[target])
    assert llvm is not None
    relocatable = llvm.relocatable(text + "\n" + more, target)
    assert relocatable is not None
    assert (linked(relocatable) is not None) == is_linked


def test_a_refused_line_is_told_by_the_program() -> None:
    with pytest.raises(AssemblerError, match=r"kernel\.s:1:1: error: invalid instruction"):
        assemble_module("v_nothing v0\n", "gfx942")


def test_what_would_end_the_process_is_left_to_programs() -> None:
    with pytest.raises(ConvgenError):
        assemble_module(".globl k\nk:\ns_endpgm\n.size k, nowhere - k\n", "gfx942")
    with pytest.raises(ConvgenError):
        assemble_module(".p2align 70\ns_endpgm\n.incbin nothing\n", "gfx942")


def test_modules_of_the_printer_are_harmless() -> None:
    problem, target = MODULES["four kernels, so that symbols have two buckets"]
    assert _is_harmless(driver.compile(driver.build(problem, target)).asm)


def test_debug_information_is_left_to_the_linker() -> None:
    build = driver.build(Matmul.parse("64x96:96x64", dt="f16"), debug=True)
    code = driver.compile(build)
    assert in_process(code.asm, "gfx942") is None
    assert code.object is not None
    assert b".debug_line" in code.object


def test_a_variable_names_another_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = get("gfx942").assembled_by()
    monkeypatch.setenv("CONVGEN_CLANG", found_tool(CLANG))
    assert "libLLVM" in ours
    assert "libLLVM" not in get("gfx942").assembled_by()
