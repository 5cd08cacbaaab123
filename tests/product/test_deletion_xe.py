"""Nothing in the text of Xe kernels is there in vain: the simulator notices the loss of any wait, fence or barrier.

Every wait of every line is deleted alone: a distance (`I@2`), a token (`$3.dst`), a bit of a mask of tokens. And it is
weakened: a distance by one, `.dst` to `.src`. Fences that order workgroups reach less far, or flush nothing. A token
that is set (`{$3}`) cannot be left out. Where a weaker wait is noticed, so is none at all: the scoreboard only ever
finds more. Runs have the data of `--run`: where integers leave instructions unexecuted, some subgroups then find
infinities or NaNs and recompute their sums.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from math import prod

import pytest

from convgen import driver
from convgen.backends.intel.assemble import assemble, available
from convgen.ir.error import AssemblerError
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code
from tests.product.changes import Change, described
from tests.strategies import always

pytestmark = pytest.mark.skipif(not available("12p72"), reason="iga64 is not installed")

_MMA = {"xehpc": "16x8", "xehpg": "8x8"}  #: without its K

#: name -> problem, config without the matrix instruction: at least four turns of a loop, two workgroups
KERNELS: dict[str, tuple[str, str]] = {
    "two slots": (
        "--dir=FWD_D --dt=f16 mb1ic64ih6oc32kh3ph1",
        "tile=32x32x32 waves=2x2 slots=2 taps=split padding=zeros",
    ),
    "three slots": (
        "--dir=FWD_D --dt=f16 mb1ic64ih6oc32kh3ph1",
        "tile=32x32x32 waves=2x2 slots=3 taps=split padding=zeros",
    ),
    "one slot": ("--dt=bf16:bf16:f32 48x160:160x32", "tile=32x32x32 waves=2x2 slots=1 taps=split"),
    "straight": ("--dt=f16 48x160:160x96", "tile=32x32x16 waves=2x2 slots=0 taps=split prefetch=2"),
    "backward weights": ("--dir=BWD_W --dt=f16 mb2ic24oc32iw60kw2", "tile=32x32x16 waves=2x2 slots=2 taps=fused"),
    "stride phases in one launch": (
        "--dir=BWD_D --dt=f16 mb4ic32oc128iw16kw3sw2pw1",
        "tile=32x32x32 waves=2x2 slots=2 taps=split grids=merged padding=zeros",
    ),
    "resident": (
        "--dir=FWD_D --dt=f16 mb1ic64ih6oc32kh3ph1 --stag=axb --wtag=axb --dtag=axb",
        "tile=32x32x144 waves=2x2 slots=1 taps=resident padding=zeros",
    ),
    "backward weights in slices": (
        "--dir=BWD_W --dt=f16 mb2ic24oc32iw60kw2",
        "tile=32x32x16 waves=2x2 slots=1 taps=fused slices=2 sum=last",
    ),
    "slices dealt out": ("--dt=f16 32x960:960x32", "tile=32x32x32 waves=2x2 slots=2 taps=split slices=4"),
    # The loop stores what is not padding, and in front of it once what is.
    "runs": (
        "--dir=FWD_D --dt=f16 mb1ic3ih16oc32kh7sh2ph3 --stag=axb --wtag=axb --dtag=axb",
        "tile=32x32x16 waves=2x2 slots=2 taps=runs padding=zeros",
    ),
    "last slice": ("--dt=s8:s8:s32 32x256:256x64", "tile=32x32x32 waves=4x2 slots=1 taps=split slices=2 sum=last"),
}
#: (target, name) -> problem, config; of several subgroups one finds a NaN that meets padding
AGAIN: dict[tuple[str, str], tuple[str, str]] = {
    ("xehpc", "forward again"): (
        "--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1",
        "tile=16x32x32 waves=1x2 mma=16x8x16 slots=2 taps=split",
    ),
    ("xehpg", "backward data again"): (
        "--dir=BWD_D --dt=f16 mb1ic32ih6oc16kh3ph1",
        "tile=16x32x32 waves=1x2 mma=8x8x16 slots=1 taps=chunk",
    ),
    ("xehpg", "backward weights again"): (
        "--dir=BWD_W --dt=f16 mb2ic8ih6oc32kh3ph1",
        "tile=16x16x16 waves=2x1 mma=8x8x16 slots=1 taps=fused",
    ),
    ("xehpc", "lanes again"): (
        "--dir=FWD_D --dt=f16 mb2g16ic16ih6oc16kh3ph1",
        "tile=32x16x9 waves=1x2 mma=fma:4x2x2 slots=0 taps=fused",
    ),
    ("xehpg", "backward weights by lanes again"): (
        "--dir=BWD_W --dt=bf16 mb2g16ic16ih6oc16kh3ph1",
        "tile=3x16x16 waves=1x2 mma=fma:4x2x2 slots=0 taps=fused",
    ),
}
CASES = [(target, name) for target in _MMA for name in KERNELS]

SAMPLE = 4  #: waits of each kernel, by seed, in the short run
_FARTHEST = 7  #: the greatest distance that encodes

_OPTIONS = re.compile(r"\{([^}]*)\}")
_DISTANCE = re.compile(r"([A-Z]?)@(\d)")
_TOKEN = re.compile(r"\$(\d+)\.(dst|src)")
_REACH = re.compile(r"(send\.ugm.*0x021[04])([12])(7)(1F)")  #: what a fence flushes, and how far it reaches
_MASK = re.compile(r"(sync\.all(?:wr|rd)\s+)(0x[0-9a-f]+)")
#: Lines that order memory and are no waits of the scoreboard -> what they are.
_ORDER = {
    "0x0210011F": "fence",
    "send.ugm": "fence of the device",
    "0x02000004": "signal",
    "sync.bar": "wait at the barrier",
    "// fence done": "fence's end",
}


@cache
def compiled(target: str, name: str) -> Code:
    if (target, name) in AGAIN:
        problem, config = AGAIN[target, name]
        return driver.compile(driver.build(parse_problem(problem), target, config))
    problem, config = KERNELS[name]
    k = 32 if "s8" in problem else 16
    return driver.compile(driver.build(parse_problem(problem), target, f"{config} mma={_MMA[target]}x{k} acc=v"))


def changes(asm: str) -> Iterator[list[Change]]:
    """For every wait, and everything else that orders memory: changes to it, the slightest first."""
    for number, line in enumerate(asm.splitlines()):
        code = line.partition("//")[0]
        if not code.strip():
            continue
        shown = " ".join(line.split())
        for mark, what in _ORDER.items():
            if mark in line:
                yield [Change(number, "", f"{what} deleted: {shown}")]
        if reach := _REACH.search(code):
            before, flush, scope, after = reach.groups()
            yield [Change(number, code.replace(reach[0], f"{before}0{scope}{after}"), f"no flush: {shown}")]
            yield [Change(number, code.replace(reach[0], f"{before}{flush}3{after}"), f"local: {shown}")]
        if mask := _MASK.search(code):
            yield from _masks(number, code, mask, shown)
        if options := _OPTIONS.search(code):
            yield from _options(number, code, options, shown)


def _masks(number: int, code: str, mask: re.Match[str], shown: str) -> Iterator[list[Change]]:
    bits = int(mask[2], 16)
    for bit in (b for b in range(32) if bits >> b & 1):
        left = code.replace(mask[0], f"{mask[1]}{bits & ~(1 << bit):#x}")
        weaker = code.replace(mask[0], f"sync.nop null {{${bit}.src}}")
        weakened = [Change(number, f"{left}\n{weaker}", f"${bit} weakened to .src: {shown}")]
        yield [*(weakened if "allwr" in mask[1] else []), Change(number, left, f"${bit} deleted: {shown}")]


def _options(number: int, code: str, options: re.Match[str], shown: str) -> Iterator[list[Change]]:
    given = options[1].split(",")

    def with_option(at: int, other: str) -> str:
        text = ",".join(o for o in [*given[:at], other, *given[at + 1 :]] if o)
        return code.replace(options[0], f"{{{text}}}" if text else "")

    for at, option in enumerate(given):
        weaker = ""
        if distance := _DISTANCE.fullmatch(option):
            farther = int(distance[2]) + 1
            weaker = f"{distance[1]}@{farther}" if farther <= _FARTHEST else ""
        elif token := _TOKEN.fullmatch(option):
            weaker = f"${token[1]}.src" if token[2] == "dst" else ""
        else:
            continue
        weakened = [Change(number, with_option(at, weaker), f"{option} weakened to {weaker}: {shown}")]
        yield [*(weakened if weaker else []), Change(number, with_option(at, ""), f"{option} deleted: {shown}")]


def is_noticed(code: Code, change: Change) -> bool:
    """Whether the simulator objects to the changed text; the assembler's objection counts as well."""
    try:
        made = assemble(change.applied(code.asm))
    except AssemblerError:
        return True
    return not verdict.run(evolve(code, object=made), groups=2).passed


def unnoticed(code: Code, waits: Iterable[list[Change]]) -> list[Change]:
    """The changes that nobody notices."""
    return [change for wait in waits for change in takewhile(lambda c: not is_noticed(code, c), wait)]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("target", "name"), CASES)
def test_kernels_have_loops_and_several_groups(target: str, name: str) -> None:
    code = compiled(target, name)
    assert re.search(r"^k_loop\w*:", code.asm, re.M)
    assert all(prod(launch.grid) >= 2 for launch in code.record.launches if "_main" in launch.kernel)
    assert verdict.run(code, groups=2).passed


def test_kernels_show_every_kind_of_wait() -> None:
    listed = [change.what for case in CASES for wait in changes(compiled(*case).asm) for change in wait]
    kinds = " ".join(listed)
    for kind in (
        *_ORDER.values(),
        "no flush",
        "local:",
        "@1 deleted",
        ".dst deleted",
        ".dst weakened",
        ".src deleted",
        "weakened to I@",
    ):
        assert kind in kinds, kind


@pytest.mark.parametrize(("target", "name"), always(CASES, lambda n, case: case[1] != "three slots" or n == 1))
def test_a_sample_of_losses_is_noticed(target: str, name: str) -> None:
    code = compiled(target, name)
    wanted = random.Random(f"{target} {name}").sample(list(changes(code.asm)), SAMPLE)
    found = unnoticed(code, wanted)
    assert not found, described(found)


@pytest.mark.parametrize("target", _MMA)
def test_losses_of_order_among_workgroups_are_noticed(target: str) -> None:
    code = compiled(target, "last slice")
    wanted = [wait for wait in changes(code.asm) if "send.ugm" in wait[0].what]
    at_the_end = [wait for wait in wanted if "atomics before the end" in wait[0].what]  # xehpg: docs/workarounds.md
    assert len(wanted) - len(at_the_end) == 6
    found = unnoticed(code, wanted)
    assert not found, described(found)


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "name"), CASES)
def test_every_loss_is_noticed(target: str, name: str) -> None:
    code = compiled(target, name)
    found = unnoticed(code, changes(code.asm))
    assert not found, described(found)


def part(code: Code, begins: str, ends: str) -> range:
    """The lines between two labels, of which there is one of a kind."""
    begin, end = (
        next(n for n, line in enumerate(code.asm.splitlines()) if re.match(rf"\S*{label}_\d+:", line))
        for label in (begins, ends)
    )
    return range(begin, end)


def test_a_sample_of_losses_where_sums_are_made_again_is_noticed() -> None:
    code = compiled("xehpc", "forward again")
    again = part(code, "else", "endif")
    waits = [wait for wait in changes(code.asm) if wait[0].number in again]
    found = unnoticed(code, random.Random(7).sample(waits, SAMPLE))
    assert not found, described(found)


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "name"), AGAIN)
def test_every_loss_where_sums_are_made_again_is_noticed(target: str, name: str) -> None:
    code = compiled(target, name)
    found = unnoticed(code, changes(code.asm))
    assert not found, described(found)
