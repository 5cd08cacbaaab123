"""Products in groups of rows (M) or of terms (K), whose sizes are data of a launch, against plain indexing.

Group g of rows is multiplied by weights[g]; group g of terms makes result[g].
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.ir.layout.memory import Global
from convgen.ir.types import s32
from convgen.plan.grouped_axis import GroupedAxis
from convgen.problem.grouping import Grouping
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from convgen.run.code import Code
from convgen.run.execution import SENTINEL
from tests.product.problems import outcome_of
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90", "sm_90a", "sm_120")
SIZES = (
    (7, 0, 1, 20, 12),
    (0, 0, 0, 0, 40),
    (40, 0, 0, 0, 0),
    (8, 8, 8, 8, 8),
    (1, 1, 1, 1, 36),
    (0, 33, 0, 7, 0),
)
ROWS = f"--dt=f16:f16:f32 --grouped=0:5:{'+'.join(map(str, SIZES[0]))} 40x72:5x72x40"
TERMS = f"--dt=f16:f16:f32 --grouped=1:5:{'+'.join(map(str, SIZES[0]))} 24x40:40x40"

Floats = npt.NDArray[np.float64]


def drawn(problem: cg.Matmul, sizes: Sequence[int], seed: int = 1) -> dict[str, Any]:
    """Small integers, of which every sum is exact, and the ends of groups of these sizes."""
    rng = np.random.default_rng(seed)
    arrays = {
        spec.name: rng.integers(-3, 4, spec.dims).astype(reference.numpy_type(spec.dtype)) for spec in problem.inputs
    }
    return {**arrays, "offsets": np.cumsum(sizes).astype(np.int32)}


def expected(problem: cg.Matmul, arrays: dict[str, Any]) -> Floats:
    """The result by plain indexing, group by group, without attributes."""
    src, wei = (arrays[name].astype(np.float64) for name in ("src", "wei"))
    groups = list(pairwise((0, *arrays["offsets"].tolist())))
    assert problem.grouping is not None
    if problem.grouping.dim == "k":
        return np.stack([src[:, begin:end] @ wei[begin:end] for begin, end in groups])
    return np.concatenate([src[begin:end] @ wei[g] for g, (begin, end) in enumerate(groups)])


def compiled(line: str, target: str, config: str | None = None) -> tuple[cg.Matmul, Code]:
    problem = parse_problem(line)
    assert isinstance(problem, cg.Matmul)
    return problem, cg.compile(cg.build(problem, target, config))


@pytest.mark.parametrize("line", [ROWS, TERMS], ids=["rows", "terms"])
@pytest.mark.parametrize("target", TARGETS)
def test_one_kernel_is_right_for_groups_of_any_sizes(line: str, target: str) -> None:
    problem, code = compiled(line, target)
    for sizes in SIZES:
        arrays = drawn(problem, sizes)
        assert np.array_equal(cg.simulate(code, **arrays), expected(problem, arrays))


@pytest.mark.parametrize("special", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize(("line", "target"), always(
    [(line, target) for target in TARGETS for line in (ROWS, TERMS)], lambda n, _: n // 2 in (1, 3, 4, 8)
))  # fmt: skip
def test_infinities_and_nans_stay_in_their_group(line: str, target: str, special: float) -> None:
    problem, code = compiled(line, target)
    sizes = (7, 0, 1, 20, 12)
    arrays = drawn(problem, sizes)
    begin, end = 8, 28  # of group 3
    if problem.grouping and problem.grouping.dim == "k":
        arrays["src"][:, begin:end], arrays["wei"][begin:end] = special, special
        clean = np.array([g != 3 for g in range(len(sizes))])
    else:
        arrays["src"][begin:end], arrays["wei"][3] = special, special
        clean = np.array([not begin <= m < end for m in range(problem.m)])
    with np.errstate(invalid="ignore"):
        right = expected(problem, arrays)
    got = cg.simulate(code, **arrays)
    assert np.array_equal(got[clean], right[clean])
    assert not np.isfinite(got[~clean]).any()


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_80"])
def test_rows_behind_the_last_group_are_not_stored(target: str) -> None:
    problem, code = compiled(ROWS, target)
    arrays = drawn(problem, (3, 0, 9, 5, 0))
    got = cg.simulate(code, **arrays)
    assert np.array_equal(got[:17], expected(problem, arrays))
    assert (got[17:].view(np.uint8) == SENTINEL).all()


ATTRIBUTES = [
    ("f16", "--bia-dt=f16 --bia_mask=2 --attr-scales=src:1+wei:5"),
    ("bf16:bf16:f32", "--attr-scales=wei:4:f16 --attr-post-ops=relu+mul:f32:1"),
    ("f16:s4:f16", "--attr-fpmath=f16:true --bia-dt=f16 --bia_mask=2 --attr-scales=wei:5:f16"),
    ("f16:s8:f16", "--attr-fpmath=f16:true --attr-zero-points=wei:5:s8 --attr-scales=wei:7:f16:36x1"),
    ("f8_e4m3:f8_e4m3:bf16", "--attr-scales=src:1+wei:5"),
    ("u8:s8:s32", "--attr-zero-points=src:common:3+wei:common:1"),
    ("s8:s8:f32", "--attr-zero-points=wei:5:s8 --attr-post-ops=sum"),
    ("f32", "--bia-dt=f32 --bia_mask=2 --dtag=ba --attr-post-ops=add:f32:3"),
]


@pytest.mark.parametrize(("types", "words", "target"), always(
    [(*each, target) for each in ATTRIBUTES for target in TARGETS], lambda n, _: n % 7 == 0
))  # fmt: skip
def test_attributes_of_groups_of_rows(types: str, words: str, target: str) -> None:
    """Scales and zero points of weights, and a bias, are those of a row's group."""
    _, code = compiled(f"--dt={types} {words} {ROWS.partition(' ')[2]}", target)
    assert verdict.run(code, seed=3).passed


@pytest.mark.parametrize(("types", "words"), [
    ("bf16:bf16:f32", "--bia-dt=f32 --bia_mask=2 --attr-scales=src:1+wei:2"),
    ("f32", "--dtag=acb --attr-post-ops=relu"),
    ("s8:s8:s32", "--stag=ab --wtag=ba"),
    ("f16:s8:f16", "--attr-fpmath=f16:true --attr-zero-points=wei:common:3"),
])  # fmt: skip
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_attributes_of_groups_of_terms(types: str, words: str, target: str) -> None:
    _, code = compiled(f"--dt={types} {words} {TERMS.partition(' ')[2]}", target)
    assert verdict.run(code, seed=3).passed


@pytest.mark.parametrize(("target", "config"), [
    ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 map=cols"),
    ("gfx942", "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 map=group:2m+persist:3"),
    ("gfx942", "tile=96x32x32 waves=1x2 mma=16x16x16 slots=0"),
    ("gfx942", "tile=32x32x64 waves=1x1x2 mma=16x16x16 slots=2"),
    ("xehpc", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=0 prefetch=1"),
    ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 slices=2 sum=last"),
    ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 map=stream:5:all sum=last"),
    ("xehpg", "tile=32x32x16 waves=2x2 mma=16x8x16 slots=1 slices=3 sum=last:2"),
    ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=3 copy=tensor map=persist:2"),
    ("sm_90a", "tile=64x32x32 waves=1x4 mma=32x64x16 slots=3 copy=tensor slices=2 sum=last"),
    ("sm_90a", "tile=64x64x64 waves=1x4 mma=64x64x16 slots=4 copy=direct"),
    *((target, f"{config} map={order}") for target, config in (
        ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1"),
        ("xehpg", "tile=32x32x16 waves=2x2 mma=16x8x16 slots=1 slices=3 sum=last"),
        ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=3 copy=tensor"),
    ) for order in ("ragged", "xcc:3+ragged")),
    ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=3 copy=tensor map=ragged+persist:2:snake"),
    ("gfx90a", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 map=ragged+stream:5:all sum=last"),
])  # fmt: skip
def test_configs_of_groups_of_rows(target: str, config: str) -> None:
    problem, code = compiled(ROWS, target, config)
    for sizes in SIZES[:2]:
        arrays = drawn(problem, sizes)
        assert np.array_equal(cg.simulate(code, **arrays), expected(problem, arrays))


def test_samples_of_tiles_know_the_workgroups_of_their_group() -> None:
    columns = f"--dt=f16 --dtag=ba {ROWS.partition(' ')[2]}"
    for line, order in ((ROWS, ""), (TERMS, ""), (columns, ""), (ROWS, " map=ragged"), (columns, " map=ragged")):
        _, code = compiled(line, "gfx942", f"tile=16x16x32 waves=1x1 mma=16x16x16 slots=1{order}")
        for groups in (1, 5, 12):
            outcome = verdict.run(code, groups=groups, seed=groups)
            assert outcome.passed
            assert outcome.checked


def test_the_reference_takes_the_sizes_of_the_data() -> None:
    for line in (ROWS, TERMS):
        problem, code = compiled(line, "gfx942")
        arrays = drawn(problem, SIZES[4])
        assert verdict.run(code, arrays=arrays).passed
        right = reference.whole(problem, arrays, "dst")
        assert np.array_equal(right, expected(problem, arrays))
        assert not np.array_equal(right, reference.whole(problem, drawn(problem, SIZES[0]), "dst"))


@pytest.mark.parametrize("side", [16, 32, 96])
def test_numbers_of_tiles_cover_each_row_once(side: int) -> None:
    rng = np.random.default_rng(side)
    for count in (1, 2, 7, 40):
        for most in (1, 5, 100):
            ends = np.cumsum(rng.integers(0, most + 1, count) * rng.integers(0, 2, count))
            groups = GroupedAxis(Global("offsets", s32, 4 * count), count, int(ends[-1]), 1)
            tiles = list(groups.numbered(ends.tolist(), side))
            assert [tile.number for tile in tiles] == list(range(len(tiles)))
            assert len(tiles) <= int(groups.most_tiles(side))
            rows = [(tile.group, row) for tile in tiles for row in tile.positions]
            group_of = np.searchsorted(ends, np.arange(ends[-1]), "right")
            assert rows == list(zip(group_of.tolist(), range(int(ends[-1]))))


def test_few_rows_take_few_workgroups() -> None:
    """A decoder's few tokens take a tile each, not one for each of many groups."""
    groups = GroupedAxis(Global("offsets", s32, 1024), 256, 8, 1)
    assert groups.most_tiles(32) == 8


def test_a_launch_takes_the_ends_of_groups_as_a_tensor() -> None:
    _, code = compiled(ROWS, "gfx942")
    (launch,) = code.record.launches
    offsets = launch.buffers["offsets"]
    assert (offsets.access, offsets.tensor.dims, offsets.tensor.dtype) == ("read", (5,), "s32")


def test_a_grouping_is_printed_as_it_is_read() -> None:
    for line in (ROWS, TERMS, "--grouped=0:2:3+0:7 3x4:2x4x5"):
        assert str(parse_problem(line)) == line
    assert Grouping.parse("1:3:8+0+16:16") == Grouping("k", (8, 0, 16), 16)


REFUSED = [
    ("--grouped=0:2:3+4 8x16:2x16x8", "given groups of 7 in all, wanted the 8 of M"),
    ("--grouped=1:2:3+4 8x16:16x8", "given groups of 7 in all, wanted the 16 of K"),
    ("--grouped=0:2:3+5 8x16:16x8", "given a 2-D by a 2-D tensor, wanted MxK:GxKxN with groups"),
    ("--grouped=0:2:3+5 8x16:3x16x8", "given weights of 3 groups, wanted 2"),
    ("--bia-dt=f32 --bia_mask=3 --grouped=0:2:3+5 8x16:2x16x8", "given bia_mask 3 with groups, wanted 2"),
    ("--dtag=BA16a16b --grouped=0:2:3+13 16x16:2x16x16", "given groups along m and a layout in blocks"),
    (
        "--dt=f16 --attr-scales=src:3:f16:1x8+wei:3:f16:8x1 --grouped=1:2:3+13 8x16:16x8",
        "wanted no other division of k",
    ),
    ("--dt=u8:s8:s32 --grouped=1:2:3+13 8x16:16x8", "of types that gfx942 multiplies as they are"),
    (
        "--stag=ab --wtag=abc --dtag=ab --runtime_dims_masks=1 --grouped=0:2:3+5 8x16:2x16x8",
        "wanted sizes that are known",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_groups_are_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises((cg.UserError, cg.Unsupported), match=message) as refused:
        cg.build(parse_problem(line), "gfx942")
    assert "\n" not in str(refused.value).partition(":\n")[0]


@pytest.mark.parametrize(("line", "words", "message"), [
    (TERMS, "slices=2 sum=last", "groups of terms want one slice"),
    (TERMS, "map=stream:4:all", "groups of terms want one slice"),
    (TERMS, "map=flip:2", "groups of terms want one slice"),
    (ROWS, "slices=2", "slices of groups of rows want sum=last"),
    (ROWS, "slices=2 sum=launch", "slices of groups of rows want sum=last"),
    (TERMS, "map=ragged", "wanted a product in groups of rows"),
    ("--dt=f16 8x8:8x8", "map=ragged", "wanted a product in groups of rows"),
])  # fmt: skip
def test_configs_that_divide_k_otherwise_are_refused(line: str, words: str, message: str) -> None:
    config = f"tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 {words}"
    with pytest.raises(cg.UserError, match=message):
        cg.build(parse_problem(line), "gfx942", config)


@pytest.mark.parametrize(("line", "copy"), [
    (f"--stag=ba {ROWS}", "copy=tensor"),
    (f"--stag=ba {ROWS}", "copy=direct"),
    (f"--stag=ab {TERMS}", "copy=direct"),
])  # fmt: skip
def test_groups_that_begin_within_a_message_are_copied_by_registers(line: str, copy: str) -> None:
    config = f"tile=64x32x32 waves=1x4 mma=32x64x16 slots=3 {copy}"
    with pytest.raises(cg.UserError, match="groups of src begin anywhere along its contiguous dim"):
        cg.build(parse_problem(line), "sm_90a", config)
    problem, code = compiled(line, "sm_90a", config.removesuffix(copy).strip())
    arrays = drawn(problem, SIZES[0])
    assert np.array_equal(cg.simulate(code, **arrays), expected(problem, arrays))


def test_many_groups_are_refused_where_lanes_cannot_compare_their_ends() -> None:
    for target, most in (("xehpg", 256), ("gfx942", 2048)):
        assert cg.build(parse_problem(f"--grouped=0:{most}:{'+'.join('1' * most)} {most}x8:{most}x8x8"), target)
        with pytest.raises(cg.Unsupported, match=f"groups of rows, wanted at most {most}"):
            cg.build(
                parse_problem(f"--grouped=0:{most + 1}:{'+'.join('1' * (most + 1))} {most + 1}x8:{most + 1}x8x8"),
                target,
            )


def test_a_few_rows_with_a_long_k_take_slices() -> None:
    build = cg.build(parse_problem("--dt=f16 --grouped=0:4:1+0+1+0 2x8192:4x8192x256"), "gfx942")
    assert " slices=" in build.config
    assert " sum=last" in build.config


def test_the_chooser_numbers_no_more_tiles_than_a_division_is_exact_for() -> None:
    for rows, order in ((1 << 16, "map=ragged"), (1 << 22, "map=even:")):
        problem = parse_problem(f"--dt=f16 --grouped=0:4:{'+'.join([str(rows // 4)] * 4)} {rows}x64:4x64x32768")
        config = cg.build(problem, "sm_90a").config
        assert order in config
        assert cg.build(problem, "sm_90a", config).config == config


SWEPT_TYPES = (
    *("f16", "bf16", "f32", "f16:f16:f32", "s8:s8:s32", "u8:s8:s32", "s8:u8:f32", "u8:u8:s32", "s8:s8:s8", "s8:s4:s32"),
    *("f8_e4m3:f8_e4m3:bf16", "f8_e5m2:f8_e4m3:f16", "f16:s4:f16", "f16:s8:f16", "bf16:u4:bf16", "f16:bf16:f32", "f64"),
)


def random_line(rng: random.Random) -> str:
    """A random product in groups, mostly of uneven sizes, with random layouts, types and attributes."""
    of_rows, count, each = rng.random() < 0.6, rng.choice((1, 2, 3, 5, 8, 17, 70)), rng.choice((1, 4, 20, 33))
    sizes = [rng.choice((0, each, rng.randint(0, 2 * each))) for _ in range(count)]
    sizes[rng.randrange(count)] += 3
    total, other, n, types = (
        sum(sizes),
        rng.choice((8, 20, 33, 70)),
        rng.choice((8, 20, 48, 66)),
        rng.choice(SWEPT_TYPES),
    )
    words = [f"--dt={types}", f"--stag={rng.choice(('any', 'ab', 'ba'))}"]
    words.append(f"--wtag={rng.choice(('any', 'abc', 'acb', 'bac') if of_rows else ('any', 'ab', 'ba'))}")
    words.append(f"--dtag={rng.choice(('any', 'ab', 'ba') if of_rows else ('any', 'abc', 'acb', 'bac'))}")
    words += ["--bia-dt=f32", "--bia_mask=2"] if types != "f64" and rng.random() < 0.4 else []
    if types != "f64" and rng.random() < 0.5:
        of_weights = ("wei:5", "wei:4", "wei:1:bf16", "wei:common") if of_rows else ("wei:2", "wei:common")
        words.append(f"--attr-scales=src:{rng.choice(('1', 'common:0.5', '1:f16'))}+{rng.choice(of_weights)}")
    if types != "f64" and rng.random() < 0.4:
        steps = "relu", "sum", "mul:f32:1", "add:f32:3", "linear:2:1+relu", "mul:f16:per_tensor", "prelu:1"
        words.append(f"--attr-post-ops={rng.choice(steps)}")
    words.append(f"--grouped={int(not of_rows)}:{count}:{'+'.join(map(str, sizes))}")
    words.append(f"{total}x{other}:{count}x{other}x{n}" if of_rows else f"{other}x{total}:{total}x{n}")
    return " ".join(words)


def test_products_of_one_block_at_most_end_their_group_in_the_loop() -> None:
    """ptxas begins products anew (C7519), which is an error, where a loop that may not run leaves their group open."""
    line = "--dt=s8:u8:f32 --stag=ab --wtag=ba --dtag=bac --grouped=1:4:30+0+20+4 33x54:54x48"
    config = "tile=64x64x64 waves=1x4 mma=64x64x32 slots=3 taps=split acc=v"
    assert outcome_of(line, "sm_90a", 3, config) == "passed"


@pytest.mark.parametrize(("target", "seed"), always(
    [(target, seed) for seed in range(40) for target in TARGETS], lambda n, _: n % 23 == 0
))  # fmt: skip
def test_random_groups(target: str, seed: int) -> None:
    """A random problem is right on a target, or is refused in one line. A seed gives all targets one problem."""
    outcome = outcome_of(random_line(random.Random(seed)), target, seed)
    assert re.fullmatch("passed|given .*, wanted .*", outcome)
