"""Matrix instructions: products of each pair of types are right, by the row that multiplies them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends import toolchain
from convgen.backends.nvidia.tables import FACTS
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import verdict

PTXAS = toolchain.PTXAS.find()


def multiplied(text: str) -> set[str]:
    """The types of the matrix instructions in PTX."""
    return set(re.findall(r"mma\.sync\.aligned\.\w+\.row\.col\.([\w.]+)", text))


@pytest.mark.parametrize(
    ("dt", "target", "kinds"),
    [
        ("f8_e4m3:f8_e4m3:f32", "sm_90", "f32.e4m3.e4m3.f32"),
        ("f8_e5m2:f8_e4m3:f16", "sm_90", "f32.e5m2.e4m3.f32"),
        ("f8_e4m3:f8_e5m2:bf16", "sm_89", "f32.e4m3.e5m2.f32"),
        ("f8_e5m2", "sm_120", "f32.e5m2.e5m2.f32"),
        ("f8_e4m3", "sm_80", "f32.f16.f16.f32"),
        ("f8_e5m2:f8_e4m3:f32", "sm_86", "f32.f16.f16.f32"),
        ("u8:s8:s32", "sm_90", "s32.u8.s8.s32"),
        ("s8:u8:s8", "sm_80", "s32.s8.u8.s32"),
    ],
)
def test_a_product(dt: str, target: str, kinds: str) -> None:
    code = cg.compile(cg.build(Matmul.parse("40x200:200x72", dt=dt), target=target))
    assert multiplied(code.asm) == {kinds}
    assert verdict.run(code).passed


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
def test_convolutions_of_8_bit_floats(direction: str) -> None:
    code = cg.compile(cg.build(Conv.parse("mb2ic32oc48ih7kh3ph1", dir=direction, dt="f8_e4m3"), target="sm_90"))
    assert multiplied(code.asm) == {"f32.e4m3.e4m3.f32"}
    assert verdict.run(code).passed


@pytest.mark.in_turn(2)
@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", FACTS)
def test_the_assembler_takes_every_instruction(target: str, tmp_path: Path) -> None:
    """Products of all types that a target multiplies, in one kernel each."""
    assert PTXAS
    names = {atom.a_elem.name: atom.b_elem.name for atom in targets.get(target).facts.atoms}
    for src, wei in names.items():
        out = "s32" if src in ("s8", "u8") else src if src in ("f32", "f64") else "f32"
        code = cg.compile(cg.build(Matmul.parse("40x64:64x72", dt=f"{src}:{wei}:{out}"), target=target))
        path = tmp_path / f"{src}.ptx"
        path.write_text(code.asm)
        subprocess.run([PTXAS, f"-arch={target}", path, "-o", tmp_path / "out"], check=True, capture_output=True)
