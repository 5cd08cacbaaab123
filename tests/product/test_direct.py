"""copy=direct: inputs that come into shared memory without registers, run on the strict simulator, exactly right."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import DoesNotFit, UserError
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import execution, reference, verdict
from convgen.run.code import Code
from tests.product.changes import Change, described
from tests.product.problems import expect_right
from tests.product.test_deletion import changes, unnoticed
from tests.product.test_padding import NAN
from tests.product.test_padding import check as check_padding
from tests.strategies import FIXED, SWEEP, always

MMA = {"gfx90a": "mma=16x16x16", "gfx942": "mma=16x16x16", "gfx950": "mma=16x16x32", "sm_90": "mma=8x16x16"}
DIRECT = re.compile(r"buffer_load_dword\S* .* lds|cp\.async\.c[ag]")
HALO = "mb1ic64ih6oc40kh3ph1"
FORWARD = f"--dir=FWD_D --dt=f16 {HALO}"
TILE = "tile=32x32x32 waves=2x1 mma=16x16x32"

#: what is special -> the problem's line, and the config but for `mma=`
CASES: dict[str, tuple[str, str]] = {
    "one slot": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=32x32x64 waves=2x2 slots=1"),
    "two slots": (f"--dir=FWD_B --dt=bf16 {HALO}", "tile=32x32x64 waves=2x1 slots=2"),
    "three slots": (f"--dir=FWD_D --dt=f16:f16:f32 {HALO}", "tile=32x64x64 waves=2x2 slots=3"),
    "four slots": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=32x32x32 waves=1x2 slots=4"),
    "short rows": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=64x64x32 waves=1x2 slots=3"),
    "one wave": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=32x32x32 waves=1x1 slots=2"),
    "strides, dilation, tails": (
        "--dir=FWD_D --dt=f16 mb3ic40ih13iw9oc24kh3kw2ph2sh2dw1",
        "tile=64x64x32 waves=2x2 slots=3",
    ),
    "groups": ("--dir=FWD_D --dt=f16 mb2g3ic96ih5oc60kh3ph1", "tile=32x32x32 waves=2x1 slots=2"),
    "few blocks of K": ("--dir=FWD_D --dt=f16 mb1ic32ih5oc32kh1", "tile=32x32x32 waves=2x1 slots=3"),
    "chunks": ("--dir=FWD_D --dt=f16 mb2ic24ih7oc24kh3ph1", "tile=32x32x32 waves=2x1 slots=2 taps=chunk"),
    "slices": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=32x32x32 waves=2x1 slots=2 slices=3"),
    "streams": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=32x32x32 waves=2x1 slots=2 map=stream:3 sum=last"),
    "subtiles": (f"--dir=FWD_D --dt=f16 {HALO}", "tile=64x32x32 waves=1x1 slots=2 subtiles=2"),
    "one side, backward data": (
        "--dir=BWD_D --dt=f16 mb2ic40ih7oc64kh3ph1sh2",
        "tile=32x32x32 waves=2x1 slots=3 copy=registers:direct",
    ),
    "one side, two stages": (
        "--dir=BWD_D --dt=f16 mb2ic40ih7oc64kh3ph1",
        "tile=32x32x32 waves=2x1 slots=2 stages=2 copy=registers:direct",
    ),
    "the other side": (
        "--dt=f16 --stag=ba --wtag=ba 64x96:96x70",
        "tile=32x32x32 waves=2x1 slots=2 copy=direct:registers",
    ),
    "product": ("--dt=f16 --stag=ab --wtag=ba 70x200:200x90", "tile=64x32x64 waves=2x2 slots=3"),
    "batch": ("--dt=f16 --stag=abc --wtag=acb 3x33x64:3x64x40", "tile=32x32x32 waves=2x1 slots=2"),
}  # fmt: skip


def config(line: str, target: str) -> str:
    return f"{line} {MMA[target]}" + ("" if "copy=" in line else " copy=direct")


def run(problem: Problem, target: str, line: str) -> Code:
    code = driver.compile(driver.build(problem, target, line))
    assert DIRECT.search(code.asm)
    outcome = verdict.run(code)
    expect_right(outcome)
    return code


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("name", "target"),
    always([(n, t) for t in MMA for n in CASES], lambda n, case: case[1] == "gfx950" or case[0] == "two slots"),
)
def test_results_are_exact(name: str, target: str) -> None:
    line, rest = CASES[name]
    run(parse_problem(line), target, config(rest, target))


@pytest.mark.parametrize(
    ("types", "line"),
    [
        ("s8:s8:s32", "tile=32x32x64 waves=2x1 mma=16x16x64 slots=3"),
        ("f8_e4m3:f8_e4m3:f32", "tile=32x32x128 waves=2x1 mma=16x16x128 slots=3"),
        ("f32", "tile=32x32x32 waves=2x1 mma=16x16x4 slots=3"),
        ("f64", "tile=32x32x16 waves=2x1 mma=16x16x4 slots=2"),
    ],
)
def test_elements_of_any_width(types: str, line: str) -> None:
    run(parse_problem(f"--dir=FWD_D --dt={types} mb1ic128ih6oc40kh3ph1"), "gfx950", f"{line} copy=direct")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Problem, str, str]:
    """Problems whose channels lie together, with a config of any slots."""
    target = draw(st.sampled_from(tuple(MMA)))
    whole = draw(st.sampled_from((2, 8, 8)))  # of which a message, or a dword, brings some
    k, s, p, d = (draw(st.integers(low, high)) for low, high in ((1, 3), (1, 2), (0, 2), (0, 1)))
    groups = draw(st.sampled_from((1, 1, 2)))
    ic, oc = (groups * draw(st.integers(1, 6)) * each for each in (whole, 3))
    size = draw(st.integers((k - 1) * (d + 1) + 1, 9))
    text = f"mb{draw(st.integers(1, 3))}g{groups}ic{ic}ih{size}oc{oc}kh{k}sh{s}ph{p}dh{d}"
    taps = draw(st.sampled_from(("split", "chunk") if whole == 8 else ("split",)))
    tile = draw(st.sampled_from(("32x32x32 waves=2x1", "64x32x64 waves=2x2", "32x64x32 waves=1x1")))
    line = f"tile={tile} slots={draw(st.integers(1, 4))} taps={taps}"
    return parse_problem(f"--dir=FWD_D --dt=f16 {text}"), target, config(line, target)


def check(case: tuple[Problem, str, str]) -> None:
    problem, target, line = case
    note(f"{problem}\n{target} {line}")
    try:
        make_plan(problem, Config.parse(line), get(target).facts)
    except DoesNotFit:
        reject()
    run(problem, target, line)


@settings(FIXED, max_examples=8)
@given(convolutions())
def test_random_problems(case: tuple[Problem, str, str]) -> None:
    check(case)


@pytest.mark.sweep
@settings(SWEEP)
@given(convolutions())
def test_more_random_problems(case: tuple[Problem, str, str]) -> None:
    check(case)


LAST = "--stag=axb --wtag=axb --dtag=axb"
DWORDS = {"sm_80": "mma=8x16x8", "sm_90a": "mma=8x16x8", "gfx950": "mma=16x16x4"}
#: what lies along rows in memory -> a problem of f32, and the config but for `mma=`
IN_COLUMNS: dict[str, tuple[str, str]] = {
    "wei of a product": ("--wtag=ab 70x200:200x92", "tile=64x64x32 waves=2x2 slots=3"),
    "src and wei": ("--stag=ba --wtag=ab 72x100:100x92", "tile=64x64x32 waves=2x2 slots=2"),
    "src": ("--stag=ba --wtag=ba 72x100:100x61", "tile=64x64x32 waves=2x2 slots=4"),
    "gradient of data": (f"--dir=BWD_D {LAST} mb2ic40ih7oc24kh3ph1", "tile=64x64x32 waves=2x2 slots=3"),
    "gradient of data, strides": (
        f"--dir=BWD_D {LAST} mb2ic40ih7oc24kh3ph1sh2",
        "tile=64x64x32 waves=2x2 slots=3 grids=merged",
    ),
    "gradient of weights": (
        f"--dir=BWD_WB {LAST} mb2ic40ih7oc24kh3ph1",
        "tile=64x64x32 waves=2x2 slots=3 taps=fused slices=3",
    ),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("target", DWORDS)
@pytest.mark.parametrize("name", IN_COLUMNS)
def test_columns_of_dwords_stay_as_in_memory(name: str, target: str) -> None:
    line, rest = IN_COLUMNS[name]
    problem = parse_problem(f"--dt=f32 --attr-fpmath=tf32 {line}")
    code = run(problem, target, f"{rest} {DWORDS[target]} copy=direct")
    plan = make_plan(problem, Config.parse(code.config), get(target).facts)
    paths = [path for part in plan.parts for path in (part.of_n, part.of_m)]
    assert any(path.tile and path.tile.is_transposed for path in paths)
    assert not any(path.conflicts for path in paths)


@pytest.mark.parametrize("value", [NAN, np.inf])
def test_padding_of_columns_contributes_nothing(value: float) -> None:
    problem = parse_problem(f"--dt=f32 --attr-fpmath=tf32 --dir=BWD_W {LAST} mb1ic32ih6oc32kh3ph1")
    assert isinstance(problem, Conv)
    line = "tile=32x32x32 waves=1x2 mma=8x16x8 slots=3 taps=fused copy=direct"
    check_padding(problem, "sm_90a", line, {(0, 1, 0, 2): value})


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("value", [NAN, np.inf])
def test_padding_contributes_nothing(slots: int, value: float) -> None:
    problem = Conv.parse("mb1ic32ih6oc32kh3ph1", dir="FWD_D", dt="f16")
    line = config(f"tile=32x32x32 waves=1x2 slots={slots}", "gfx950")
    check_padding(problem, "gfx950", line, {(3, 1, 0, 2): value})


def test_messages_are_the_widest_that_fit() -> None:
    def widths(problem: str, target: str) -> set[str]:
        asm = run(parse_problem(problem), target, config("tile=32x32x32 waves=2x1 slots=2", target)).asm
        return set(re.findall(r"buffer_load_(\S+) .* lds", asm))

    whole, dwords = (f"--dir=FWD_D --dt=f16 mb1ic{ic}ih4oc16kh1" for ic in (64, 66))
    assert widths(whole, "gfx950") == {"dwordx4"}
    assert widths(dwords, "gfx950") == widths(whole, "gfx942") == {"dword"}


@pytest.mark.parametrize(
    "line",
    [
        "tile=128x128x64 waves=2x2 mma=32x32x16 slots=4",
        "tile=128x128x32 waves=2x2 mma=32x32x16 slots=3",
        "tile=64x64x64 waves=2x2 mma=32x32x16 slots=2",
        "tile=128x64x64 waves=2x2 mma=16x16x32 slots=3",
    ],
)
def test_registers_are_estimated_well(line: str) -> None:
    problem = parse_problem("--dir=FWD_D --dt=f16 mb4ic512ih7oc512kh3ph1")
    plan = make_plan(problem, Config.parse(f"{line} copy=direct padding=zeros"), get("gfx950").facts)
    asm = driver.compile(driver.build(problem, "gfx950", f"{line} copy=direct padding=zeros")).asm
    (taken,) = map(int, re.findall(r"amdhsa_next_free_vgpr (\d+)", asm))
    assert taken - 8 <= plan.registers <= taken + 40


@pytest.mark.parametrize("slots", [3, 4])
def test_a_barrier_waits_for_the_block_that_it_publishes(slots: int) -> None:
    """What it need not wait for stays under way: four messages for each later block, but for those yet to come."""
    problem = parse_problem("--dir=FWD_D --dt=f16 mb1ic512ih6oc64kh1")
    line = f"tile=64x64x32 waves=2x1 mma=16x16x32 slots={slots} copy=direct"
    asm = driver.compile(driver.build(problem, "gfx950", line)).asm
    loop = asm[asm.index("k_loop:") : asm.index("k_loop_end:")]
    waits = [int(n) for n in re.findall(r"vmcnt\((\d+)\)", loop)]
    assert len(waits) == slots
    assert min(waits) > 4 * (slots - 3)


@pytest.mark.parametrize(
    ("depth", "atom"), [(32, "16x16x32"), (64, "16x16x32"), (64, "32x32x16"), (128, "32x32x16")], ids=str
)
def test_nothing_conflicts_in_shared_memory(depth: int, atom: str) -> None:
    problem = parse_problem("--dir=FWD_D --dt=f16 mb1ic128ih6oc64kh1")
    line = f"tile=64x64x{depth} waves=2x2 mma={atom} slots=2 copy=direct"
    code = driver.compile(driver.build(problem, "gfx950", line))
    assert code.object
    _, report = execution.execute(code.record, code.object, reference.fills(problem))
    assert report.counters["lds_write_bytes"]
    assert report.counters["lds_bank_conflict_cycles"] == 0


@pytest.mark.parametrize(
    ("problem", "target", "line", "complaint"),
    [
        (FORWARD, "xehpc", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=2", "xehpc copies through registers only"),
        (FORWARD, "gfx950", f"{TILE} slots=0", "there is no shared memory with slots=0"),
        (
            FORWARD,
            "gfx950",
            f"{TILE} slots=2 stages=2",
            "stages=2: with copy=direct nothing is on its way",
        ),
        (FORWARD, "gfx950", "tile=32x32x32 waves=2x2 mma=16x16x32 slots=2", "wanted a multiple of the 2048 of all"),
        (FORWARD, "gfx950", "tile=64x64x96 waves=2x2 mma=16x16x32 slots=2", "do not divide evenly over lanes"),
        (
            f"--dir=FWD_D --dt=u8:s8:s32 {HALO}",
            "gfx950",
            "tile=32x32x64 waves=2x1 mma=16x16x64 slots=2",
            "src of u8 is converted to s8 on the way",
        ),
        (
            f"--dir=BWD_D --dt=f16 {HALO}",
            "gfx942",
            "tile=32x32x32 waves=2x1 mma=16x16x16 slots=2",
            "along K of wei are not together",
        ),
        (
            "--dir=FWD_D --dt=f16 mb1ic33ih4oc16kh1",
            "gfx950",
            f"{TILE} slots=2",
            "neighbours along K of wei are not together in messages of 16, 12, 4 bytes",
        ),
    ],
)
def test_what_is_refused_in_one_line(problem: str, target: str, line: str, complaint: str) -> None:
    with pytest.raises(DoesNotFit, match=complaint):
        make_plan(parse_problem(problem), Config.parse(f"{line} copy=direct"), get(target).facts)


def test_the_word_in_the_config() -> None:
    start = "tile=32x32x32 waves=2x1 mma=16x16x32 slots=2 taps=split acc=v"
    for given_, printed in (
        (" copy=direct", " copy=direct"),
        (" copy=direct:direct", " copy=direct"),
        (" copy=registers:direct", " copy=registers:direct"),
        (" copy=registers", ""),
        ("", ""),
    ):
        assert str(Config.parse(start + given_)) == start + printed
    with pytest.raises(UserError, match="wanted copy="):
        Config.parse(f"{start} copy=dma")


# ---------------------------------------------------------------- deletions


def of_m0(asm: str) -> Iterator[Change]:
    """Every deletion of a write of M0."""
    for number, line in enumerate(asm.splitlines()):
        code = " ".join(line.partition("//")[0].split())
        if re.match(r"s_\w+ m0,", code):
            yield Change(number, "", f"{code} deleted")


@pytest.mark.parametrize(
    ("rest", "exact"),
    [
        pytest.param("tile=32x32x64 waves=2x2 slots=3 padding=zeros", True),
        pytest.param("tile=32x32x64 waves=2x2 slots=2 padding=zeros", True, marks=pytest.mark.sweep),
        pytest.param("tile=32x32x64 waves=2x2 slots=1 padding=zeros", True, marks=pytest.mark.sweep),
        # A wave by itself waits for all of a slot where it reads some of it.
        pytest.param("tile=32x32x64 waves=1x1 slots=2 padding=zeros", False, marks=pytest.mark.sweep),
    ],
)
def test_every_loss_is_noticed(rest: str, exact: bool) -> None:
    problem = Conv.parse("mb1ic64ih6oc32kh3ph1", dir="FWD_D", dt="f16")
    code = driver.compile(driver.build(problem, "gfx950", config(rest, "gfx950")))
    wanted = [change for change in (*changes(code.asm), *of_m0(code.asm)) if exact or not change.text]
    assert "vmcnt" in " ".join(change.what for change in wanted)
    assert any(" m0," in change.what for change in wanted)
    found = unnoticed(code, wanted)
    assert not found, described(found)
