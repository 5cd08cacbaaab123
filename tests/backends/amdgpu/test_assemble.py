"""Text to code object and back: two assemblers agree, and the disassembly assembles to the same bytes."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from convgen import driver
from convgen.backends.amdgpu import assemble as module
from convgen.backends.amdgpu.assemble import assemble, available
from convgen.backends.amdgpu.sim.code_object import CodeObject
from convgen.backends.target import get
from convgen.backends.toolchain import CLANG, LLVM_MC, LLVM_OBJDUMP
from convgen.ir.build import KernelBuilder
from convgen.ir.error import AssemblerError
from convgen.ir.expr import Lane
from convgen.ir.types import u32
from convgen.problem.conv import Conv
from convgen.run.code import Code
from tests.conftest import found_tool

KERNELS = {
    "3x3": ("mb1ic32ih6oc32kh3ph1", "f16", "tile=32x32x32 waves=2x1 mma=16x16x16 slots=2"),
    "1x1": ("mb1ic200ih6oc20kh1", "bf16:bf16:f32", "tile=64x64x32 waves=2x2 mma=32x32x8 slots=1 taps=fused acc=a"),
}


@pytest.fixture(scope="module", params=KERNELS)
def code(request: pytest.FixtureRequest) -> Code:
    descriptor, dt, config = KERNELS[request.param]
    return driver.compile(driver.build(Conv.parse(descriptor, dir="FWD_D", dt=dt), config=config))


def section(code_object: bytes | None, name: str) -> bytes:
    assert code_object is not None
    found = ELFFile(io.BytesIO(code_object)).get_section_by_name(name)
    assert found is not None
    data: bytes = found.data()
    return data


def test_two_assemblers_agree(code: Code) -> None:
    names = [Path(found_tool(tool)).name for tool in (CLANG, LLVM_MC)]
    assert set(names) <= set(available("gfx942"))
    one, other = (assemble(code.asm, "gfx942", name) for name in names)
    assert section(one, ".text") == section(other, ".text") != b""
    assert section(one, ".rodata") == section(other, ".rodata")


def disassembly(code_object: bytes, folder: Path) -> Iterator[str]:
    """What llvm-objdump prints, as text that assembles: branch targets by address become labels."""
    path = folder / "k.hsaco"
    path.write_bytes(code_object)
    done = subprocess.run([found_tool(LLVM_OBJDUMP), "-d", str(path)], capture_output=True, text=True, check=True)
    lines = re.findall(r"^\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+)", done.stdout, re.MULTILINE)
    for text, address, words in lines:
        name, _, rest = text.partition(" ")
        if name.startswith(("s_branch", "s_cbranch")):
            distance = int(words.split()[0][-4:], 16)
            distance -= (distance & 0x8000) << 1
            rest = f"L{int(address, 16) + 4 + 4 * distance:x}"
        yield f"L{int(address, 16):x}: {name} {rest}"


def test_the_disassembly_assembles_to_the_same_bytes(code: Code, tmp_path: Path) -> None:
    assert code.object is not None
    lines = list(disassembly(code.object, tmp_path))
    assert sum("s_cbranch" in line for line in lines) >= 1
    again = assemble('.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n' + "\n".join(lines) + "\n", "gfx942")
    assert section(again, ".text") == section(code.object, ".text")


@pytest.mark.parametrize("name", ["y", "No", "on", "true", "False", "inf", "nan"])
def test_an_argument_may_have_any_name(name: str) -> None:
    k = KernelBuilder("k", width=64)
    lane, buffer = Lane() * 4, k.buffer(name, u32, 64)
    k.global_store(k.surface(buffer), k.global_load("held", u32, k.surface(buffer), lane), lane)
    code = driver.compile(k.done(), "gfx942")
    assert code.object is not None
    (kernel,) = CodeObject.load(code.object).kernels.values()
    assert [argument[".name"] for argument in kernel.metadata[".args"]] == [name]


def test_a_refused_line_is_an_error_that_quotes_it() -> None:
    with pytest.raises(AssemblerError, match=r"invalid instruction"):
        assemble("v_nothing v0\n", "gfx942")


def test_no_path_of_this_machine_reaches_the_object(code: Code) -> None:
    assert code.object is not None
    assert b"/tmp" not in code.object
    assert str(Path.home()).encode() not in code.object


def test_without_an_assembler_there_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda target: ())
    assert get("gfx942").assemble("") is None
