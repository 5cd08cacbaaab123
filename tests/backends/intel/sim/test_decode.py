"""Both forms of iga64's JSON decode to the same instructions; kernels for xe2 run where iga64 knows it."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from convgen.backends.intel.sim import CodeObject, SimulatorError
from convgen.backends.intel.sim.decode import EACH_ROW, Operand, Payload, Region, disassemble
from convgen.backends.intel.sim.platforms import XEHPC
from convgen.backends.toolchain import IGA64
from convgen.commands import cli
from convgen.ir.record import as_dict
from tests.conftest import with_debian_12

NEWER = Path(__file__).parents[1] / "newer_iga64.py"


def program(path: Path, body: str) -> str:
    """An executable script; its path."""
    path.write_text(body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The assembler named by the variable is one that prints the new form and knows xe2."""
    if shutil.which("iga64") is None:
        pytest.skip("iga64 is not installed")
    tool = program(tmp_path / "iga64-new", f'#!/bin/sh\nexec "{sys.executable}" "{NEWER}" "$@"\n')
    monkeypatch.setenv("CONVGEN_IGA64", tool)


def decoded(data: bytes) -> list[dict[str, Any]]:
    """The instructions of all kernels, decoded anew: the listing of equal bytes is kept."""
    disassemble.cache_clear()
    code = CodeObject.load(data)
    return [as_dict(instruction) for name in code.kernels for instruction in code.instructions(name)]


@with_debian_12
@pytest.mark.parametrize("name", ["matrix8_dg2", "doubles_pvc", "division_pvc", "blocks_pvc"])
def test_both_forms_decode_alike(sim: Any, name: str, request: pytest.FixtureRequest) -> None:
    data = (sim.compiled / f"{name}.bin").read_bytes()
    old = decoded(data)
    request.getfixturevalue("newer")
    assert decoded(data) == old
    assert len(old) > 50


def test_messages_without_a_surface_decode_from_the_listing_of_an_older_iga64(
    sim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """libigc-tools 1.0.10840 (Ubuntu 22.04) prints an error, unquoted, where later ones print "invalid"."""
    data = (sim.compiled / "matrix8_dg2.bin").read_bytes()
    wanted = decoded(data)
    renamed = """-e 's/"type":"invalid"/"type":IR.Error("invalid surface type")/'"""
    tool = program(tmp_path / "iga64-old", f'#!/bin/sh\n"{IGA64.find()}" "$@" | sed {renamed}\n')
    monkeypatch.setenv("CONVGEN_IGA64", tool)
    assert decoded(data) == wanted


#: As FormatterJSON2.cpp writes it: zeros, falsehoods and empty fields are not there.
LISTING = """{
  "version":"2.0",
  "platform":"xehpc",
  "elems":[
    {"kind":"L", "id":0, "pc":0, "symbol":"L0000", "succs":[1]},
    {"kind":"I", "id":1, "pc":0, "pred":{"inv":true, "func":".any"}, "op":"add", "es":16, "eo":16,
      "freg":{"rn":"f","sr":1},
      "dst":{"kind":"RD", "reg":{"rn":"r","r":10}, "sat":true, "rgn":{"h":1}, "type":"f"},
      "srcs":[
        {"kind":"RI", "mods":"na", "areg":{"rn":"a","sr":4}, "aoff":-16, "rgn":{"w":1,"h":0}, "type":"f"},
        {"kind":"IM", "value":"0x3F800000", "type":"f"}
      ], "regDist":"A@1", "sbid":{"id":3, "func":".dst"}, "opts":["AccWrEn"]},
    {"kind":"I", "id":2, "pc":16, "wren":true, "op":"send", "subop":"ugm", "es":1,
      "dst":{"kind":"DA", "reg":{"rn":"null"}, "len":0},
      "srcs":[
        {"kind":"AD", "areg":{"rn":"r","r":12}, "alen":2, "stype":"flat"},
        {"kind":"DA", "reg":{"rn":"r","r":20}, "len":4},
        {"kind":"RD", "reg":{"rn":"a","sr":2}},
        {"kind":"IM", "value":"0x2480203"}
      ], "sbid":{"id":5, "func":""}, "comment":"store"},
    {"kind":"I", "id":3, "pc":32, "wren":true, "op":"jmpi", "es":1,
      "srcs":[
        {"kind":"LB", "target":"L0016"}
      ]}
  ]
}
"""


def printing(tmp_path: Path, text: str) -> str:
    (tmp_path / "listing").write_text(text)
    return program(tmp_path / "iga64", f'#!/bin/sh\ncat "{tmp_path / "listing"}"\n')


def test_the_second_form_leaves_out_zeros(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVGEN_IGA64", printing(tmp_path, LISTING))
    add, send, jump = disassemble(bytes(48), XEHPC)
    f1 = Operand("imm", "f", value=0x3F800000)
    indirect = Operand("indirect", "f", "a", 0, 4, Region(EACH_ROW, 1, 0), True, True, -16)
    target = Operand("reg", "f", "r", 10, 0, Region(0, 0, 1), saturate=True)
    assert (add.dst, add.sources) == (target, (indirect, f1))
    assert (add.predicate, add.predicate_function, add.flag, add.offset) == ("-", ".any", (0, 1), 16)
    assert (add.distance, add.token, add.options) == (("A", 1), (3, "dst"), frozenset(("AccWrEn",)))
    assert not add.no_mask
    message = send.message
    assert message is not None
    assert (message.dst, message.src0, message.src1) == (Payload(-1, 0), Payload(12, 2), Payload(20, 4))
    assert (message.descriptor, message.extended) == (0x2480203, None)
    assert (send.token, send.no_mask, send.sub) == ((5, ""), True, "ugm")
    assert jump.sources == (Operand("label", value=16),)
    assert [(i.size, i.address) for i in (add, send, jump)] == [(16, 0), (16, 16), (16, 32)]


DAMAGED = {
    "neither form": ('{"version":"3.0", "lines":[]}', "of another form than IGAJSONv1 and v2"),
    "no JSON": ("nothing of the kind", "its listing breaks off"),
    "half an instruction": ('{"elems":[{"kind":"I","pc":0}]}', "of another form than IGAJSONv1 and v2"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_another_listing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    text, message = DAMAGED[name]
    monkeypatch.setenv("CONVGEN_IGA64", printing(tmp_path, text))
    with pytest.raises(SimulatorError, match=message):
        disassemble(bytes(16), XEHPC)


@with_debian_12
@pytest.mark.usefixtures("newer")
def test_a_kernel_for_xe2_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = str(tmp_path / "k")
    assert cli.main(["gemm", "32x32:32x32", "--dt", "f16", "--target", "xe2", "-o", prefix, "--run"]) == 0
    assert "PASSED" in capsys.readouterr().out
    assert cli.main(["analyze", f"{prefix}.zebin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["target"] == "xe2"
