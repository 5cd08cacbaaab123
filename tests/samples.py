"""Small problems, each with a config, that between them need every feature of plans, passes and emitters."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cache

import attrs

from convgen import driver
from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.ir.expr import restart_ids
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import greatest_id
from convgen.ir.program import Kernel
from convgen.passes import pipeline
from convgen.plan.atoms import input_atoms
from convgen.plan.config import Config
from convgen.problem.matmul import parse_problem


@attrs.frozen
class Sample:
    """A problem's line, and a config but for `mma=` and `waves=`, which are the target's if not said here.

    Of the matrix instructions that fit, smallest first, it takes that of a number.
    """

    problem: str
    config: str
    atom: int = 0
    waves: str = ""


_HALO = "mb1ic32ih6oc32kh3ph1"
_SAMPLES = {
    "halo": Sample(f"--dir=FWD_B --dt=f16 {_HALO}", "tile=32x32x32 slots=2"),
    "halo_unbuffered": Sample(
        f"--dir=FWD_D --dt=bf16:bf16:f32 {_HALO}", "tile=32x32x32 slots=1 taps=fused padding=zeros"
    ),
    "three_slots": Sample("--dir=FWD_D --dt=f16 mb2ic64ih4oc40kh1", "tile=64x64x32 slots=3", -1),
    "few_channels": Sample(
        "--dir=FWD_D --dt=f16 mb1ic3ih9oc16kh3ph1sh2", "tile=32x32x32 slots=2 taps=fused padding=zeros"
    ),
    "chunks": Sample("--dir=FWD_B --dt=bf16 mb1ic24iw17oc16kw3pw1dw1", "tile=32x32x32 slots=2 taps=chunk"),
    "planar": Sample(f"--dir=FWD_D --dt=f16 --stag=abx --wtag=oihw --dtag=abx {_HALO}", "tile=32x32x32"),
    "reordered": Sample(
        "--dir=FWD_D --dt=f16 --stag=abx --wtag=abx mb2ic16ih3oc16kh1", "tile=32x32x32 reorder=src+wei"
    ),
    "phases": Sample("--dir=BWD_D --dt=bf16 mb1ic32ih5iw3oc32kh3kw2ph1pw1sh2sw1", "tile=32x32x32 slots=2"),
    "holes": Sample("--dir=BWD_D --dt=f16 mb1ic16ih6oc16kh1sh3", "tile=32x32x32 slots=1"),
    "weights": Sample(f"--dir=BWD_WB --dt=f16 {_HALO}", "tile=32x32x32 slots=2 taps=fused"),
    "sums_of_slices": Sample(
        f"--dir=BWD_W --dt=bf16 --attr-deterministic=true mb4{_HALO[3:]}",
        "tile=32x32x32 slots=2 taps=fused slices=3",
    ),
    "atomics": Sample("--dir=FWD_B --dt=f16:f16:f32 mb1ic128ih3oc32kh3ph1", "tile=32x32x32 slots=2 slices=2"),
    "depth": Sample("--dir=FWD_D --dt=f32 mb1ic16id3ih4iw4oc16kd2kh3kw1ph1", "tile=32x32x16 slots=2 padding=zeros"),
    "gemm": Sample("--dt=f16:f16:f16 70x72:72x40", "tile=64x32x32 slots=2 taps=fused"),
    "gemm_turned": Sample("--dt=bf16 --stag=ba --wtag=ba 64x64:64x64", "tile=32x32x32 slots=2"),
    "gemm_singles": Sample("--dt=f32 --attr-fpmath=tf32 64x64:64x48", "tile=32x32x16 slots=2"),
    "gemm_doubles": Sample("--dt=f64 48x40:40x33", "tile=32x32x16 slots=2 taps=fused"),
    "bytes": Sample("--dir=FWD_B --dt=s8:s8:s8 mb1ic64ih5oc32kh3ph1", "tile=32x32x64 slots=2"),
    "bytes_to_words": Sample("--dt=s8:s8:s32 33x64:64x32", "tile=32x32x64 slots=1"),
    "one_subgroup": Sample("--dir=FWD_D --dt=f16 mb1ic16ih4oc16kh1", "tile=16x16x32 slots=1", waves="1x1"),
    # tensors beyond what a surface or an offset of 32 bits reaches
    "far_images": Sample("--dir=FWD_D --dt=f16 mb8192ic64ih56oc64kh3ph1", "tile=32x32x32 slots=1"),
    "far_rows": Sample("--dt=f32 90044944x16:16x32", "tile=32x32x16 slots=1"),
    "far_taps": Sample("--dir=BWD_D --dt=f16 --stag=abx --dtag=abx mb300ic32ih512oc32kh3ph1", "tile=32x32x32 slots=1"),
    "far_sums": Sample("--dir=BWD_W --dt=bf16 mb8192ic64ih56oc32kh1", "tile=32x32x32 slots=1 taps=fused slices=4"),
}
_AMD = {
    "accumulators": Sample(f"--dir=FWD_D --dt=f16:f16:f32 {_HALO}", "tile=64x64x32 slots=2 acc=a", -1),
}
_XE = {
    "subtiles": Sample("--dir=FWD_D --dt=f16 mb2ic32ih8oc32kh3ph1", "tile=64x32x32 slots=2 subtiles=2"),
}
_PLANES = {
    "planes": Sample("--dir=FWD_D --dt=bf16 mb1ic64ih8oc64kh1", "tile=32x32x32 slots=0 prefetch=2"),
    "planes_stored": Sample("--dt=f16:f16:f32 128x128:128x64", "tile=64x32x32 slots=3"),
}
_NVIDIA = {
    "direct": Sample("--dt=f16:f16:f16 70x72:72x40", "tile=64x32x32 slots=3 copy=direct"),
    "direct_halo": Sample(f"--dir=FWD_D --dt=f16 {_HALO}", "tile=32x32x32 slots=3 copy=direct padding=zeros"),
    "direct_transposed": Sample(
        "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb2ic32ih6oc32kh3ph1",
        "tile=32x32x32 slots=2 taps=fused copy=direct padding=zeros",
    ),
    "rounded_singles": Sample("--dt=f32 --attr-fpmath=tf32 64x64:64x48", "tile=32x32x16 slots=2", -1),
}
#: Products of warpgroups: the smallest of their instructions has 32 columns, behind that of a single warp.
_HOPPER = {
    "in_place": Sample("--dt=f16 --wtag=ba 70x200:200x40", "tile=64x32x64 slots=4 copy=direct", 1),
    "in_place_turned": Sample(
        "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb2ic32ih6oc32kh3ph1",
        "tile=64x32x32 slots=2 taps=fused slices=2 padding=zeros",
        1,
    ),
    "in_place_windows": Sample(
        "--dir=FWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb1ic32ih9oc32kh3ph1",
        "tile=64x32x288 slots=1 taps=resident copy=direct",
        1,
    ),
}
_LISTS = {
    "gfx90a": _AMD,
    "gfx942": _AMD,
    "gfx950": _AMD,
    "xehpg": _XE,
    "xehpc": _XE | _PLANES,
    "xe2": _XE | _PLANES,
    "sm_90": _NVIDIA,
    "sm_90a": _HOPPER,
}

TARGETS = tuple(_LISTS)
SIMULATED = tuple(t for t in TARGETS if t != "xe2")  #: which has no assembler here

_WAVES = dict.fromkeys(("gfx90a", "gfx942", "gfx950"), "1x2") | {
    "xehpg": "4x2",
    "xehpc": "2x2",
    "xe2": "2x2",
    "sm_90": "1x2",
    "sm_90a": "1x4",
}

#: What a target has no matrix instructions for, or too few registers.
_WITHOUT = {
    "xehpg": {"gemm_doubles", "gemm_singles"},
    "xehpc": {"gemm_doubles"},
    "xe2": {"gemm_doubles"},
    "sm_90a": set(_SAMPLES),  # which are those of sm_90
}


def names(target: str) -> tuple[str, ...]:
    """The samples for a target."""
    return tuple(name for name in _SAMPLES | _LISTS[target] if name not in _WITHOUT.get(target, ()))


def of_family(target: str, rows: Mapping[str, str]) -> str:
    """The row of a target's family, by the family's name."""
    family = families.of_target(target)
    assert family is not None
    return rows[family.name]


@cache
def program(target: str, name: str) -> driver.Build:
    """A sample as built for a target."""
    sample = (_SAMPLES | _LISTS[target])[name]
    problem = parse_problem(sample.problem)
    atoms = input_atoms(problem, targets.get(target).facts)
    atom = sorted(atoms, key=lambda a: (a.n * a.m, -a.k))[sample.atom]
    shape = f"waves={sample.waves or _WAVES[target]} mma={atom.n}x{atom.m}x{atom.k}"
    return driver.build(problem, target, Config.parse(f"{sample.config} {shape}"))


@cache
def lowered(target: str, name: str) -> tuple[Kernel, ...]:
    """The kernels of a sample behind the last pass."""
    built = program(target, name)
    return tuple(run(kernel, built.target.facts) for kernel in built.ir.kernels)


def run(
    kernel: Kernel, facts: TargetFacts, disable: Collection[str] = (), observe: pipeline.Observer | None = None
) -> Kernel:
    """The passes, whose variables get the same numbers whatever was built before."""
    restart_ids(greatest_id(kernel))
    return pipeline.run(kernel, facts, disable, observe)


def digest(text: str) -> str:
    """For a text that nobody is to read whole: how many lines it has, and what it hashes to."""
    return f"{text.count(chr(10)) + 1}:{hashlib.sha256(text.encode()).hexdigest()[:10]}"
