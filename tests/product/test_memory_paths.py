"""How operands come from memory: through shared tiles or at once, brought nearer or not, in rectangles or by lanes."""

from __future__ import annotations

from itertools import product

import pytest

from convgen import driver
from convgen.backends import target
from convgen.choose.choose import candidates
from convgen.ir.error import UserError
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code
from tests.strategies import always

pytestmark = pytest.mark.in_turn(2)

#: Matrix instruction and tile.
SHAPES = {
    "gfx90a": "mma=32x32x8 tile=64x64x32",
    "gfx942": "mma=16x16x16 tile=32x32x32",
    "gfx950": "mma=16x16x32 tile=32x32x32",
    "xehpg": "mma=8x8x16 tile=32x32x16",
    "xehpc": "mma=16x8x16 tile=32x32x16",
}
PROBLEMS = {
    "gemm": "--dt=f16 200x136:136x96",
    "columns": "--dt=bf16:bf16:f32 --wtag=ab 72x160:160x48",
    "pixels": "--dir=FWD_B --dt=f16 mb1ic64ih9oc32kh3ph1",
}


def compiled(name: str, problem: str, config: str) -> Code:
    line = f"{SHAPES[name]} waves=2x2 taps=split acc=v {config}"
    return driver.compile(driver.build(parse_problem(PROBLEMS[problem]), name, line))


@pytest.mark.parametrize(("name", "problem"), always(product(SHAPES, PROBLEMS), lambda n, case: n // 3 % 3 != n % 3))
def test_fragments_straight_from_memory(name: str, problem: str) -> None:
    """No shared memory, no barrier."""
    code = compiled(name, problem, "slots=0")
    assert all(not launch.shared_bytes for launch in code.record.launches)
    assert not [word for word in ("s_barrier", "sync.bar", "ds_", "load.slm", "store.slm") if word in code.asm]
    assert verdict.run(code).passed


@pytest.mark.parametrize(
    ("name", "problem", "slots"),
    always(
        product([n for n in SHAPES if target.get(n).facts.prefetch], PROBLEMS, range(4)),
        lambda n, case: case[2] == 2 * ((n // 4 + n // 12) % 2),
    ),
)
def test_blocks_are_brought_nearer(name: str, problem: str, slots: int) -> None:
    """Loads that nobody waits for, of planes and of pixels, past the last block too."""
    plain, ahead = (compiled(name, problem, f"slots={slots}{more}") for more in ("", " prefetch=3"))
    assert "null:0  [" not in plain.asm
    assert {"src prefetch", "wei prefetch"} <= {line.partition("// ")[2] for line in ahead.asm.splitlines()}
    assert verdict.run(ahead).passed


def test_no_target_pretends_to_prefetch() -> None:
    with pytest.raises(UserError, match="gfx942 has no prefetch"):
        compiled("gfx942", "gemm", "slots=2 prefetch=1")


RECTANGLES = {
    "columns": ("--dt=f16 --wtag=ab 128x128:128x128", "16x8x16", {"d16", "d16v"}),
    "rows": ("--dt=f16 --wtag=ba 128x128:128x128", "16x8x16", {"d16", "d32t"}),
    "tf32": ("--dt=f32 --attr-fpmath=tf32 --wtag=ab 128x128:128x128", "16x8x8", {"d32"}),
    "pixels": ("--dir=FWD_D --dt=f16 mb2ic64ih14oc64kh1", "16x8x16", {"d16", "d32t"}),
}


@pytest.mark.parametrize("name", RECTANGLES)
def test_every_plane_comes_and_goes_as_rectangles(name: str) -> None:
    """Of both operands, through shared memory in blocks only; results leave so, too, of which some lie outside."""
    line, mma, loads = RECTANGLES[name]
    config = f"tile=32x64x16 waves=2x2 mma={mma} slots=2"
    code = driver.compile(driver.build(parse_problem(line), "xehpc", config))
    forms = {text.split(".")[2] for text in code.asm.splitlines() if "load_block2d" in text}
    assert forms == loads
    assert "store_block2d" in code.asm
    local = [text for text in code.asm.splitlines() if "load.slm" in text or "store.slm" in text]
    assert local
    assert all("t.a32" in text for text in local)
    assert "store.ugm" not in code.asm
    assert verdict.run(code).passed


def test_what_comes_as_fragments_needs_no_shared_memory() -> None:
    """The chooser's way for two planes on xehpc; not for pixels with a halo, nor for columns that must be turned."""

    def slots(line: str) -> int:
        return candidates(parse_problem(line), target.get("xehpc").facts)[0].config.slots

    assert [slots(RECTANGLES[name][0]) for name in ("columns", "rows", "pixels")] == [0, 0, 0]
    assert slots("--dt=f16 --stag=ba 128x128:128x128") > 0
    assert slots("--dir=FWD_D --dt=f16 mb2ic64ih14oc64kh3ph1") > 0
    assert candidates(parse_problem("--dt=f16 128x128:128x128"), target.get("xehpg").facts)[0].config.slots > 0
