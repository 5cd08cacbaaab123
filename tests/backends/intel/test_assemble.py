"""From text to zebin with iga64: the bytes decode to the same instructions, and complaints name the line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from convgen.backends.intel import assemble as module
from convgen.backends.intel.assemble import assemble, available
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.ir.error import AssemblerError
from convgen.ir.record import evolve
from tests.backends.intel.listings import AXPY, renamed, second_kernel, section

INSTRUCTION_BYTES = 16


def code_of(zebin: bytes | None, kernel: str) -> bytes:
    data: bytes = section(zebin, f".text.{kernel}").data()
    return data


def instructions(text: str) -> int:
    return sum(bool(line) and not line.startswith("//") for line in text.splitlines())


@pytest.mark.parametrize("target", AXPY)
def test_the_disassembly_assembles_to_the_same_bytes(target: str, tmp_path: Path) -> None:
    code = code_of(assemble(AXPY[target]), "axpy")
    code = code[: INSTRUCTION_BYTES * instructions(AXPY[target])]
    (tmp_path / "k.bin").write_bytes(code)
    platform = DEVICES[target].platform
    for step in (("-d", "k.bin", "-o", "k.asm"), ("-a", "k.asm", "-o", "again.bin")):
        subprocess.run(["iga64", f"-p={platform}", *step], cwd=tmp_path, check=True)
    assert (tmp_path / "again.bin").read_bytes() == code != b""
    assert "{EOT" in (tmp_path / "k.asm").read_text().splitlines()[-2]


def test_every_kernel_of_a_file_is_assembled() -> None:
    zebin = assemble(AXPY["xehpc"] + second_kernel(AXPY["xehpc"], "other"))
    assert code_of(zebin, "axpy") == code_of(zebin, "other")


WAIT = "(W)     sync.nop                 null                                                 {$0.dst}"

MIXED = "(W) mul (1|M0) r60.0<1>:ub r40.0<0;1,0>:f r0.0<0;1,0>:q"
COMPLAINTS = [
    ("        nothing r1", "line 24, column 9: invalid mnemonic: nothing r1"),
    (f"  {MIXED}", rf"line 24, column 3: .*type combination.*: {re.escape(MIXED)}"),
]


@pytest.mark.parametrize(("line", "message"), COMPLAINTS, ids=["error", "warning"])
def test_a_refused_line_is_an_error_that_quotes_it(line: str, message: str) -> None:
    with pytest.raises(AssemblerError, match=message):
        assemble(renamed(AXPY["xehpc"], WAIT, line))


def test_lines_are_counted_over_all_kernels() -> None:
    first = AXPY["xehpc"]
    text = first + renamed(second_kernel(first, "other"), WAIT, "        nothing r1")
    with pytest.raises(AssemblerError, match=f"line {first.count(chr(10)) + 23}, column 9: invalid mnemonic"):
        assemble(text)


def test_no_path_of_this_machine_reaches_the_zebin() -> None:
    zebin = assemble(AXPY["xehpg"])
    assert zebin is not None
    assert b"/tmp" not in zebin
    assert str(Path.home()).encode() not in zebin


def test_without_an_assembler_there_is_no_zebin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert assemble(AXPY["xehpc"]) is None


def test_an_assembler_may_be_too_old_for_a_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES, "xe2", evolve(DEVICES["xe2"], platform="99p9"))
    assert assemble(renamed(AXPY["xehpc"], "//.target xehpc", "//.target xe2")) is None


@pytest.mark.skipif(not available(DEVICES["xe2"].platform), reason="this iga64 does not know xe2")
def test_xe2_takes_the_text_of_xehpc() -> None:
    text = renamed(AXPY["xehpc"], "//.target xehpc", "//.target xe2")
    assert INSTRUCTION_BYTES * instructions(text) < len(code_of(assemble(text), "axpy"))


def test_a_text_is_read_even_where_it_cannot_be_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda platform: False)
    assert assemble(AXPY["xehpc"]) is None
    with pytest.raises(AssemblerError, match=r"no //.target"):
        assemble("nothing r1\n")
