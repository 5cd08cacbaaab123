"""Random problems of all directions that are small enough to interpret, and random configs that fit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import permutations, product
from math import prod
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import HealthCheck, Phase, assume, reject, settings
from hypothesis import strategies as st

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.expr import Expr
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.record import evolve
from convgen.ir.types import Type
from convgen.plan.atoms import input_atoms
from convgen.plan.config import APART, COLUMNS, DIRECT, MERGED, REGISTERS, Config
from convgen.plan.directions import have_columns
from convgen.plan.phases import Columns
from convgen.plan.plan import make_plan
from convgen.plan.views import must_reorder
from convgen.problem.conv import Conv, Direction
from convgen.problem.matmul import Matmul
from tests import attributes
from tests.arithmetic import FLOATS, INTEGERS, kept

Case = tuple[Conv, Config]
Row = TypeVar("Row", bound=tuple[Any, ...])

#: What every run tries, always the same. Shrinking interprets and assembles too much to be worth its time.
FIXED = settings(phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))

#: What a sweep tries: other examples each day, by the seed that `./dev test-all` prints.
SWEEP = settings(FIXED, derandomize=False, max_examples=200)


def always(cases: Iterable[Row], keep: Callable[[int, Row], bool]) -> list[Any]:
    """Parameters of a test: the cases kept (by number and value) run always, the others in sweeps only."""
    return [pytest.param(*c, marks=() if keep(n, c) else pytest.mark.sweep) for n, c in enumerate(cases)]


_DIRECTIONS = tuple(d.value for d in Direction)
_INTEGERS = ("s8", "u8:s8", "s8:u8", "u8")
_INPUTS = ("f16", "bf16", "f32", "f64", *_INTEGERS)
_OUTPUTS = {
    **dict.fromkeys(_INPUTS, ("f16", "bf16", "f32", "f16", "bf16", "f32", "s32", "s8", "u8")),
    "f64": ("f64",),
    **dict.fromkeys(_INTEGERS, ("s32", "f32", "s8", "u8", "s32", "f32", "s8", "u8", "f16", "bf16")),
}


def _outputs(inputs: str) -> tuple[str, ...]:
    """The types of results that some inputs may have; of inputs that no default lists those of f16."""
    return _OUTPUTS.get(inputs, _OUTPUTS["f16"])


_TILES_M = (16, 32, 64, 96, 128)
_TILES_N = (16, 32, 64, 96)
_TILES_K = (16, 32, 64)
_SLICES = (1, 1, 1, 2, 3, 4, 7)
_WAVES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))


@st.composite
def _axis(draw: st.DrawFn, name: str, most: int) -> str:
    """One spatial axis. Output size and padding are free, so right padding may be of any size and sign, windows may
    lie wholly outside the input, and a left padding that is not given is deduced, perhaps negative."""
    k, d = draw(st.sampled_from((1, 1, 2, 3, 3, 5, 7))), draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
    fields = {
        "i": draw(st.integers(1, most)),
        "o": draw(st.integers(1, most)),
        "k": k,
        "s": draw(st.sampled_from((1, 1, 2, 3, 4))),
        "d": d,
    }
    if draw(st.integers(0, 4)):
        fields["p"] = draw(st.integers(0, k + 1) | st.sampled_from((0, (k - 1) * (d + 1) + 2)))
    return "".join(f"{field}{name}{value}" for field, value in fields.items())


@st.composite
def _strides(draw: st.DrawFn, dims: tuple[int, ...]) -> str:
    """A stride for each dim, in any order of the dims in memory, with gaps here and there."""
    strides, reach = [0] * len(dims), 1
    for dim in draw(st.permutations(range(len(dims)))):
        strides[dim] = reach + draw(st.sampled_from((0, 0, 0, 1, 3, 8)))
        reach = strides[dim] * max(1, dims[dim])
    return "x".join(map(str, strides))


@st.composite
def _layout(draw: st.DrawFn, dims: tuple[int, ...], tag: str, *, adds: bool) -> tuple[str, str]:
    """A tag and strides: those of a tensor, or one of blocks, which slices add to, or at times strides or blocks."""
    if adds:
        return draw(_blocks(len(dims))), ""
    if not draw(st.integers(0, 4)):
        return "any", draw(_strides(dims))
    return (tag if draw(st.integers(0, 3)) else draw(_blocks(len(dims)))), ""


@st.composite
def _attributes(draw: st.DrawFn, problem: Conv, inputs: str) -> dict[str, str]:
    """Scales, post-ops and zero points of a problem with these types of inputs."""
    known = {"src": ("1",), "wei": ("per_oc", "1"), "dst": attributes.masks(problem.ndims)}
    return {
        "attr_scales": draw(attributes.scales(known)),
        "attr_post_ops": draw(attributes.post_ops(problem.ndims)),
        "attr_zero_points": draw(attributes.zero_points()) if inputs in _INTEGERS else "",
    }


def _types(direction: str, inputs: str, output: str) -> str:
    """src:wei:dst of a direction."""
    types = list(_pair(inputs))
    types.insert({"BWD_D": 0, "BWD_W": 1, "BWD_WB": 1}.get(direction, 2), output)
    return ":".join(types)


def _sum_type(inputs: str) -> str:
    """The type of sums of some inputs."""
    return "f64" if inputs == "f64" else "s32" if inputs in _INTEGERS else "f32"


def _pair(inputs: str) -> tuple[str, str]:
    first, _, second = inputs.partition(":")
    return first, second or first


def input_types(facts: TargetFacts) -> tuple[str, ...]:
    """The types of inputs that a target multiplies; with s8 also u8."""
    known = {(atom.a_elem.name, atom.b_elem.name) for atom in facts.atoms}
    return tuple(name for name in _INPUTS if _pair(name.replace("u8", "s8")) in known)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most: int = 9,
    channels: int = 40,
    directions: tuple[str, ...] = _DIRECTIONS,
    types: tuple[str, ...] = _INPUTS,
    unusual: bool = False,
    sums: bool = False,
) -> Conv:
    """A problem with at most `most` positions an axis and `channels` channels.

    With `unusual`, also no images, groups, weights with a dimension for one group, strided tensors, scales, zero
    points and post-ops. With `sums`, which includes `unusual`, slices may add to the result by atomics: it has the type
    of the sums, a layout of blocks, and no scales or post-ops.
    """
    sizes = st.integers(1, channels) | st.sampled_from(range(8, channels + 1, 8))
    direction, inputs = draw(st.sampled_from(directions)), draw(st.sampled_from(types))
    mb, ic, oc = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    names = draw(st.sampled_from(("hw", "hw", "hw", "w", "dhw")))
    axes = "".join(draw(_axis(name, most if names != "dhw" else min(most, 4))) for name in names)
    dims = "abcde"[: len(names) + 2]
    tags = st.just("any") | st.sampled_from(("any", "axb", "abx", "xba", *map("".join, permutations(dims))))
    grouped = ""
    unusual |= sums
    if unusual:
        mb = draw(st.sampled_from((0, *[mb] * 15)))
        groups = draw(st.sampled_from((0, 0, 0, 1, 2, 3, 8)))
        grouped = f"g{groups}" if groups else ""
        ic, oc = (max(1, groups) * -(-size // max(1, groups)) for size in (ic, oc))
    chosen = {tag: draw(tags) for tag in ("stag", "wtag", "dtag")}
    if grouped:
        chosen["wtag"] = draw(st.sampled_from(("any", "abx", "abxc")))
    knobs = {
        "dir": direction,
        "dt": _types(direction, inputs, _sum_type(inputs) if sums else draw(st.sampled_from(_outputs(inputs)))),
        "attr_fpmath": draw(st.sampled_from(("strict", "tf32"))),
    }
    deterministic = not sums and draw(st.booleans())
    result = {"BWD_D": "stag", "BWD_W": "wtag", "BWD_WB": "wtag"}.get(direction, "dtag")
    text = f"{grouped}mb{mb}ic{ic}oc{oc}{axes}"
    listed = ["", "", ""]
    if unusual:
        dense = Conv.parse(text, **knobs)
        for n, (tag, sizes_of) in enumerate(zip(chosen, (dense.src_dims, dense.wei_dims, dense.dst_dims))):
            chosen[tag], listed[n] = draw(_layout(sizes_of, chosen[tag], adds=sums and tag == result))
        if dense.direction.is_forward and inputs != "f64" and not sums:
            knobs |= draw(_attributes(dense, inputs))
    made = Conv.parse(text, strides=":".join(listed), attr_deterministic=deterministic, **knobs, **chosen)
    return made if _can_move(made) else Conv.parse(text, attr_deterministic=deterministic, **knobs)


@st.composite
def _blocks(draw: st.DrawFn, rank: int) -> str:
    """A tag whose second dim, with the first or third at times, is in blocks; each of them of one or two."""
    letters = "abcdef"[:rank]
    order = draw(st.permutations(letters))
    blocked = draw(st.sampled_from(["b", "ab", "bc" if rank > 4 else "b"]))
    sizes = st.sampled_from([2, 4, 8, 16, 32])
    inner = [f"{draw(sizes)}{letter}" for letter in draw(st.permutations(blocked * draw(st.sampled_from([1, 1, 2]))))]
    return "".join([c.upper() if c in blocked else c for c in order] + inner)


def _can_move(problem: Conv) -> bool:
    """Whether blocks of the result end where views can follow."""
    with suppress(Unsupported):
        must_reorder(problem)
        return True
    return False


@st.composite
def products(draw: st.DrawFn, *, most: int = 70, types: tuple[str, ...] = _INPUTS) -> Matmul:
    """A product of matrices, or of several with batches that one side may have alone, with a bias, scales, post-ops."""
    size = st.integers(1, most) | st.sampled_from(range(8, most + 1, 8))
    m, k, n = (draw(size) for _ in range(3))
    batch = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(((1, 1), (1, 1), (1, 0), (0, 1)))), max_size=2))
    src, wei = ("".join(f"{extent if own[side] else 1}x" for extent, own in batch) for side in (0, 1))
    inputs, ndims = draw(st.sampled_from(types)), len(batch) + 2
    tags = st.just("any") | st.permutations("abcd"[:ndims]).map("".join)
    knobs = {
        "dt": ":".join((*_pair(inputs), draw(st.sampled_from(_outputs(inputs))))),
        **{tag: draw(tags) for tag in ("stag", "wtag", "dtag")},
    }
    if inputs != "f64":
        known = {
            "src": attributes.masks(ndims, without=1 << ndims - 1),
            "wei": attributes.masks(ndims, without=1 << ndims - 2),
            "dst": attributes.masks(ndims),
        }
        knobs |= {
            "bia_dt": draw(st.sampled_from(("undef", "f32", "f16", "s8"))),
            "bia_mask": str(draw(st.integers(0, (1 << ndims) - 1))),
            "attr_scales": draw(attributes.scales(known)),
            "attr_post_ops": draw(attributes.post_ops(ndims)),
            "attr_zero_points": draw(attributes.zero_points()) if inputs in _INTEGERS else "",
        }
    return Matmul.parse(f"{src}{m}x{k}:{wei}{k}x{n}", **knobs)


@cache
def _shapes(atoms: tuple[MmaAtom, ...]) -> tuple[Config, ...]:
    """Configs of all small tiles that split evenly over waves and instructions."""
    found = []
    for m, n, k, waves, waves_k, atom in product(_TILES_M, _TILES_N, _TILES_K, _WAVES, (1, 2, 4), atoms):
        tiles_m, tiles_n = m // (waves[0] * atom.m), n // (waves[1] * atom.n)
        shared_out = waves_k == 1 or (waves_k * prod(waves) <= 4 and tiles_m * tiles_n % waves_k == 0)
        uneven = m % (waves[0] * atom.m) or n % (waves[1] * atom.n) or k % (waves_k * atom.k)
        if shared_out and not uneven:
            found.append(Config((m, n, k), waves, (atom.n, atom.m, atom.k), waves_k=waves_k))
    return tuple(found)


@st.composite
def _reorder(draw: st.DrawFn, problem: Conv) -> tuple[str, ...]:
    """Inputs to reorder: those that must be, and mostly no others."""
    names = [t.name for t in problem.factors]
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if not draw(st.integers(0, 3)) else []
    return tuple(dict.fromkeys([*must_reorder(problem), *chosen]))


def _copies(facts: TargetFacts) -> st.SearchStrategy[tuple[str, ...]]:
    """Paths of the inputs into shared memory; direct ones, if a target has any, more often than not."""
    paths = ((DIRECT,), (DIRECT, REGISTERS), (REGISTERS, DIRECT), ())
    return st.sampled_from(paths) if facts.direct_widths else st.just(())


_SIZE, _DIM, _SNAKE = st.integers(1, 12), st.sampled_from("mn"), st.sampled_from(["", ":snake"])

_WALKS = st.one_of(
    st.sampled_from(["rows", "cols", "hilbert"]),
    st.builds("{}:{}{}{}".format, st.sampled_from(["group", "even"]), _SIZE, _DIM, _SNAKE),
    st.builds("wgm:{}{}".format, _SIZE, _DIM),
    st.builds("rect:{}x{}{}{}".format, _SIZE, _SIZE, _DIM, _SNAKE),
    st.builds("zorder:{}x{}".format, *[st.sampled_from([1, 2, 4, 8])] * 2),
)
_REMAPS = st.one_of(st.builds("xcc:{}".format, _SIZE), st.builds("chunk:{}x{}".format, _SIZE, _SIZE))
_FLIPS = st.builds("flip:{}".format, _SIZE)
_PERSISTS = st.builds("persist:{}{}".format, _SIZE, _SNAKE) | st.builds(
    "stream:{}{}".format, _SIZE, st.sampled_from(["", ":all"])
)
ORDERS = st.builds(
    lambda remaps, walk, flip, persist: Order.parse("+".join([*remaps, walk, *flip, *persist])),
    st.lists(_REMAPS, max_size=2),
    _WALKS,
    st.lists(_FLIPS, max_size=1),
    st.lists(_PERSISTS, max_size=1),
)


def _has_phases(problem: Conv) -> bool:
    return problem.direction is Direction.BWD_D and any(axis.s > 1 and axis.k > 1 for axis in problem.axes)


@st.composite
def configs(draw: st.DrawFn, problem: Conv, facts: TargetFacts, work: int, sums: bool = False) -> Config:
    """A config with small tiles that fits the problem, with at most `work` turns of the K loop over all waves.

    With `sums`, K is in slices or shares, half of which are added by atomics.
    """
    shapes = _shapes(tuple(input_atoms(problem, facts)))
    for _ in range(8):  # copies may not come out even
        config = evolve(
            shapes[draw(st.sampled_from(range(len(shapes))))],
            slots=draw(st.integers(1, 3)),
            copy=draw(_copies(facts)),
            taps=draw(st.sampled_from(("split", "chunk", "fused", "images", "runs"))),
            acc=draw(st.sampled_from("va")),
            slices=draw(st.sampled_from(_SLICES[3:] if sums else _SLICES)),
            subtiles=draw(st.sampled_from(tuning(facts).subtiles)),
            reorder=draw(_reorder(problem)),
            map=draw(st.just(IN_ROWS) | ORDERS),
        )
        if config.slices > 1:
            ways = ("", "launch", "last") if facts.tickets else ("", "launch")
            config = evolve(config, sum=draw(st.sampled_from((*ways, "atomic") if sums else ways)))
            if config.sum == "last":
                config = evolve(config, at_a_time=draw(st.sampled_from((0, 2, 3, 8))))
        if config.map.shares:
            config = evolve(config, slices=1, sum="last" if facts.tickets else "atomic")
            config = evolve(config, sum=draw(st.sampled_from(("atomic", config.sum)))) if sums else config
        if _has_phases(problem) and config.slices == 1 and not config.map.persist:
            config = evolve(config, grids=draw(st.sampled_from((APART, MERGED))))
        if config.grids == APART and have_columns(problem):
            config = evolve(config, phases=draw(st.sampled_from((APART, COLUMNS))))
        if config.slices == 1 and not config.map.shares and draw(st.booleans()):
            tile_m, tile_n, tile_k = config.tile
            taps = prod(a.k if config.phases == APART else Columns.of(a, "").taps for a in problem.axes)
            config = evolve(config, taps="resident", tile=(tile_m, tile_n, tile_k * taps))
        try:
            plan = make_plan(problem, config, facts)
        except DoesNotFit:
            continue
        turns = sum(prod(p.mapping.grid) * p.k_blocks for p in plan.parts) * plan.subgroups
        assume(turns <= work)
        break
    else:
        reject()
    return config


@st.composite
def cases(
    draw: st.DrawFn,
    facts: TargetFacts,
    *,
    most: int = 9,
    channels: int = 40,
    work: int = 40,
    unusual: bool = False,
    sums: bool = False,
) -> tuple[Conv, Config]:
    """A problem with a config that fits it and needs at most `work` turns of the K loop over all waves."""
    problem = draw(problems(most=most, channels=channels, types=input_types(facts), unusual=unusual, sums=sums))
    assume(not problem.is_empty)
    return problem, draw(configs(problem, facts, work, sums))


@attrs.frozen
class Tree:
    """A random operation on three values of a type: each step one of `kept(elem)` on values made before."""

    elem: Type
    steps: tuple[tuple[str, int, int, int], ...]

    def __call__(self, a: Expr, b: Expr, c: Expr) -> Expr:
        made, rows = [a, b, c], kept(self.elem)
        for name, *operands in self.steps:
            made.append(rows[name](*(made[n % len(made)] for n in operands)))
        return made[-1]


@st.composite
def trees(draw: st.DrawFn, most: int = 7) -> Tree:
    """A tree of at most so many operations, whose results serve more than once."""
    elem = draw(st.sampled_from([*FLOATS, *INTEGERS]))
    place = st.integers(0, 2 + most)
    step = st.tuples(st.sampled_from(sorted(kept(elem))), place, place, place)
    return Tree(elem, tuple(draw(st.lists(step, min_size=2, max_size=most))))


def in_memory(*digits: tuple[str, int, int]) -> Digits:
    """The digits of a shared tile from (dim, size, stride in elements), innermost first."""
    return Digits((ROW, COL), tuple(Digit(dim, size, Space.MEMORY, stride) for dim, size, stride in digits))


def image_of(fragment: Fragment, lanes: int, elem_bytes: int) -> Digits:
    """The digits of a shared tile in which the fragment's registers stand as they are."""
    return fragment.image(lanes, elem_bytes).renamed(dict(zip(fragment.dims, (ROW, COL))))
