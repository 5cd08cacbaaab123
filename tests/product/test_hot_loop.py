"""What the hot loops of the ResNet-50 layers may not hold: divisions, and vector work that is the same every turn.

Where a config fills the registers, `place_lets` has some of it computed anew: little, beside the matrix instructions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets

FORWARD = (  # those whose K loop is not wholly unrolled
    "mb32ic64ih56oc64oh56kh3ph1",
    "mb1ic256ih56oc128oh28kh3sh2ph1",
    "mb32ic128ih56oc128oh28kh3sh2ph1",
    "mb32ic256ih56oc512oh28kh1sh2",
    "mb1ic512ih14oc512oh14kh3ph1",
    "mb32ic256ih14oc256oh14kh3ph1",
    "mb32ic2048ih7oc512oh7kh1",
)
BACKWARD = (
    "mb32ic64ih56oc64oh56kh3ph1",
    "mb32ic128ih56oc128oh28kh3sh2ph1",
    "mb32ic256ih56oc512oh28kh1sh2",
    "mb32ic256ih14oc256oh14kh3ph1",
    "mb128ic512ih7oc2048oh7kh1",
)
LAYERS = [
    *(("FWD_D", layer) for layer in FORWARD),
    *((direction, layer) for direction in ("BWD_D", "BWD_W") for layer in BACKWARD),
]
_FEW = 8  #: matrix instructions for each that computes what another turn computed, too, at least
REGISTERS = re.compile(r"\b([vas])(?:(\d+)|\[(\d+):(\d+)\])(?!\w)|\b(vcc|exec|scc|m0)\b")
QUOTIENT = re.compile(r"[vs]_mul_hi_")  #: every division by a constant ends in the high half of a product


def registers(text: str) -> set[str]:
    found: set[str] = set()
    for m in REGISTERS.finditer(text):
        bank, one, first, last, named = m.groups()
        found |= {named} if named else {f"{bank}{i}" for i in range(int(one or first), int(one or last) + 1)}
    return found


def written(text: str) -> set[str]:
    """The registers an instruction writes: its first operand's (carries and masks too), none for a store."""
    name, _, operands = text.partition(" ")
    if re.match(r"buffer_store|global_store|ds_write|s_cmp|s_cbranch|s_waitcnt|s_barrier|s_nop", name):
        return set()
    first, second = [*operands.split(","), ""][:2]
    return registers(first) | (registers(second) & {"vcc"} if "_co_" in name else set())


def invariant(lines: list[str]) -> list[str]:
    """The vector instructions of a loop that read nothing the loop writes."""
    inside = set().union(*map(written, lines))
    vector = [t for t in lines if t.startswith("v_") and not t.startswith("v_mfma")]
    return [t for t in vector if not registers(t.partition(",")[2]) & inside]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("direction", "layer"), LAYERS)
def test_hot_loops_compute_only_what_changes(direction: str, layer: str, tmp_path: Path) -> None:
    path = tmp_path / "k.s"
    path.write_text(cg.compile(cg.build(cg.Conv.parse(layer, dir=direction, dt="f16"))).asm)
    kernels = targets.analyze(path).kernels
    assert any("_main" in found.name and found.hot.is_loop for found in kernels)
    for found in (found for found in kernels if found.hot.is_loop):
        lines = [line.text for line in found.hot.lines]
        assert [t for t in lines if QUOTIENT.match(t)] == [], found.name
        again = len(invariant(lines)) * _FEW
        assert again <= sum(t.startswith("v_mfma") for t in lines), found.name


def test_the_count_can_fail() -> None:
    loop = ["v_add_u32_e32 v1, s2, v2", "v_add_u32_e32 v3, v3, v1", "s_add_u32 s4, s4, 1"]
    assert invariant(loop) == loop[:1]
