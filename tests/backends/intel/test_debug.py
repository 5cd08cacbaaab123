"""`-g` for Intel: the zebin's DWARF leads from addresses to lines of the listings; tools and driver take it."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from convgen import driver
from convgen.backends import dwarf
from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.sim import CodeObject
from convgen.backends.intel.zebin import debug_unit, parse
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.problem.matmul import parse_problem
from convgen.run.code import Code
from convgen.run.launch_record import Buffer, MapArgument
from tests.backends.intel.capture import Launch, available, capture
from tests.backends.intel.listings import AXPY, renamed, section

DWARFDUMP = "llvm-dwarfdump-22"
TARGETS = ("xehpc", "xehpg")


@cache
def compiled(target: str, *, debug: bool = True) -> Code:
    """Two launches of different kernels, so that there are two sections of code."""
    problem = parse_problem("--dir=BWD_WB --dt=f16 mb1ic16oc16ih4kh3ph1")
    code = driver.compile(driver.build(problem, target, debug=debug))
    if code.object is None:
        pytest.skip("iga64 is not installed")
    assert len(code.kernels) > 1
    return code


def tables(zebin: bytes) -> dict[str, list[tuple[int, int]]]:
    """Rows of (address, line) of each unit, by the name of its listing."""
    elf = ELFFile(io.BytesIO(zebin))
    info = elf.get_dwarf_info(relocate_dwarf_sections=False)
    found = {}
    for unit in info.iter_CUs():
        program = info.line_program_for_CU(unit)
        assert program is not None
        states = [entry.state for entry in program.get_entries() if entry.state is not None]
        assert states[-1].end_sequence
        name = program["file_entry"][1].name.decode()
        found[name] = [(state.address, state.line) for state in states[:-1]]
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_lead_to_the_statements_of_the_text(target: str) -> None:
    code = compiled(target)
    assert code.object is not None
    found = tables(code.object)
    assert set(found) == {f"{kernel}.ir" for kernel in code.kernels} == set(code.listings)
    loaded = CodeObject.load(code.object)
    for kernel in code.kernels:
        at = {i.address: i.op for i in loaded.instructions(kernel)}
        wanted = re.findall(rf"// {kernel}\.ir:(\d+)\n(?:\(\S+\))? *([a-z]\w*)", code.asm)
        rows = found[f"{kernel}.ir"]
        assert [(str(line), at[address]) for address, line in rows] == [
            (line, "send" if name.startswith(("load", "store", "atomic")) else name) for line, name in wanted
        ]
        assert max(line for _, line in rows) <= len(code.listings[f"{kernel}.ir"].splitlines())


@pytest.mark.parametrize("target", TARGETS)
def test_the_code_is_the_same(target: str) -> None:
    one, other = compiled(target), compiled(target, debug=False)
    assert other.object is not None
    assert b".debug" not in other.object
    for kernel in one.kernels:
        name = f".text.{kernel}"
        assert section(one.object, name).data() == section(other.object, name).data()


def test_addresses_are_relocated_by_the_sections_of_their_kernels() -> None:
    code = compiled("xehpc")
    assert code.object is not None
    elf = ELFFile(io.BytesIO(code.object))
    symbols = section(code.object, ".symtab")
    for name, field in ((".debug_info", 3), (".debug_line", 1)):
        relocations = list(section(code.object, f".rela{name}").iter_relocations())
        assert len(relocations) == (field if field == 1 else 2) * len(code.kernels)
        content = section(code.object, name).data()
        for relocation in relocations:
            at = relocation["r_offset"]
            assert content[at : at + 8] == bytes(8)
            target = elf.get_section(symbols.get_symbol(relocation["r_info_sym"])["st_shndx"])
            assert target.name.removeprefix(".text.") in code.kernels
    assert symbols["sh_info"] == symbols.num_symbols() == len(code.kernels) + 1


@pytest.mark.skipif(shutil.which(DWARFDUMP) is None, reason="llvm-dwarfdump is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_the_debug_information_is_well_formed(target: str, tmp_path: Path) -> None:
    path = tmp_path / "k.zebin"
    path.write_bytes(compiled(target).object or b"")
    checked = subprocess.run([DWARFDUMP, "--verify", str(path)], capture_output=True, text=True, check=False)
    assert checked.stdout.splitlines()[-1] == "No errors."


@pytest.mark.skipif(not available(), reason="Intel's Level Zero driver is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_the_driver_loads_it(target: str) -> None:
    code = compiled(target)
    asked = [
        Launch(
            n.kernel,
            n.grid,
            tuple(
                a.tensor.bytes if isinstance(a, Buffer) else a.encoded for a in n.args if not isinstance(a, MapArgument)
            ),
        )
        for n in code.record.launches
    ]
    assert capture(code.object or b"", DEVICES[target].product, asked).failure is None


def test_a_text_without_lines_has_no_debug_information() -> None:
    made = assemble(AXPY["xehpc"])
    assert made is not None
    assert b".debug" not in made
    assert b".symtab" not in made


def test_addresses_of_compacted_instructions_are_not_guessed() -> None:
    text = renamed(AXPY["xehpc"], "//.has_dpas no", "//.has_dpas no\n// axpy.ir:7")
    _, ((info, body),) = parse(text)
    size = 16 * sum(bool(line.strip()) and not line.startswith("//") for line in text.splitlines())
    unit = debug_unit(info, body, size)
    assert unit is not None
    assert (unit.listing, unit.rows) == ("axpy.ir", [(0, 7)])
    assert debug_unit(info, body, size - 8) is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, "00"), (-1, "7f"), (63, "3f"), (64, "c000"), (-64, "40"), (-65, "bf7f"), (624485, "e58e26")],
)
def test_signed_numbers(value: int, wanted: str) -> None:
    """The last is DWARF's own example (appendix C)."""
    assert dwarf.signed(value).hex() == wanted


@pytest.mark.parametrize(("value", "wanted"), [(2, "02"), (127, "7f"), (128, "8001"), (12857, "b964")])
def test_unsigned_numbers(value: int, wanted: str) -> None:
    assert dwarf.unsigned(value).hex() == wanted
