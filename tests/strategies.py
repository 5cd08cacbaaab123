"""Random forward problems that are small enough to interpret, and random configs that fit them."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

import attrs
from hypothesis import HealthCheck, Phase, assume, reject, settings
from hypothesis import strategies as st

from convgen.config import Config
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.plan import copy_split, make_plan
from convgen.problem import Conv

Case = tuple[Conv, Config]

#: Fixed examples, no database: a test run is the same everywhere. Shrinking interprets too much to be worth its time.
FIXED = settings(
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

_TAGS = ("any", "axb", "abx", *map("".join, permutations("abcd")))
_TYPES = tuple(f"{ab}:{ab}:{dst}" for ab in ("f16", "bf16") for dst in ("f16", "bf16", "f32"))

_TILES_M = (16, 32, 64, 128)
_TILES_N = (16, 32, 64)
_TILES_K = (16, 32, 64)
_WAVES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))


@st.composite
def _axis(draw: st.DrawFn, name: str, most: int) -> str:
    """One spatial axis. Output size and padding are free, so right padding may be of any size and sign, windows may
    lie wholly outside the input, and a left padding that is not given is deduced, perhaps negative."""
    k = draw(st.sampled_from((1, 1, 2, 3, 3, 5)))
    fields = {
        "i": draw(st.integers(1, most)),
        "o": draw(st.integers(1, most)),
        "k": k,
        "s": draw(st.sampled_from((1, 1, 2, 3))),
        "d": draw(st.sampled_from((0, 0, 1, 2))),
    }
    if draw(st.integers(0, 4)):
        fields["p"] = draw(st.integers(0, k + 1))
    return "".join(f"{field}{name}{value}" for field, value in fields.items())


@st.composite
def problems(draw: st.DrawFn, *, most: int = 9, channels: int = 40) -> Conv:
    """A 2-D ungrouped forward problem with at most `most` positions an axis and `channels` channels."""
    sizes = st.integers(1, channels) | st.sampled_from(range(8, channels + 1, 8))
    tags = st.just("any") | st.sampled_from(_TAGS)
    mb, ic, oc = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    descriptor = f"mb{mb}ic{ic}oc{oc}{draw(_axis('h', most))}{draw(_axis('w', most))}"
    stag, wtag, dtag = draw(tags), draw(tags), draw(tags)
    dt = draw(st.sampled_from(_TYPES))
    return Conv.parse(descriptor, dir="FWD_D", dt=dt, stag=stag, wtag=wtag, dtag=dtag)


@cache
def _shapes(dtype: str, facts: TargetFacts) -> tuple[Config, ...]:
    """Configs of all small tiles that split evenly over waves, instructions and copies."""
    found = []
    atoms = [a for a in facts.atoms if a.ab.name == dtype]
    for m, n, k, waves, atom in product(_TILES_M, _TILES_N, _TILES_K, _WAVES, atoms):
        even = not (m % (waves[0] * atom.cols) or n % (waves[1] * atom.rows) or k % atom.k)
        if even and all(_copies(rows, k, waves, facts) for rows in (m, n)):
            found.append(Config((m, n, k), waves, (atom.rows, atom.cols, atom.k)))
    return tuple(found)


def _copies(rows: int, k: int, waves: tuple[int, int], facts: TargetFacts) -> bool:
    try:
        copy_split(rows, k, 2, facts.subgroup_size, waves[0] * waves[1])
    except DoesNotFit:
        return False
    return True


@st.composite
def configs(draw: st.DrawFn, problem: Conv, facts: TargetFacts, work: int) -> Config:
    """A config with small tiles that fits the problem, with at most `work` turns of the K loop over all waves."""
    shape = draw(st.sampled_from(_shapes(problem.src_type, facts)))
    slots, taps, acc = draw(st.integers(1, 3)), draw(st.sampled_from(("split", "fused"))), draw(st.sampled_from("va"))
    config = attrs.evolve(shape, slots=slots, taps=taps, acc=acc)
    try:
        plan = make_plan(problem, config, facts)
    except DoesNotFit:
        reject()
    assume(plan.grid[0] * plan.grid[1] * plan.subgroups * plan.k_blocks <= work)
    return config


@st.composite
def cases(
    draw: st.DrawFn, facts: TargetFacts, *, most: int = 9, channels: int = 40, work: int = 40
) -> tuple[Conv, Config]:
    """A problem with a config that fits it and needs at most `work` turns of the K loop over all waves."""
    problem = draw(problems(most=most, channels=channels))
    return problem, draw(configs(problem, facts, work))
