"""Every instruction of PTX kernels that orders or masks accesses is needed: the simulator notices the loss of any one.

Each barrier, fence, commit and wait of asynchronous copies is deleted, and each wait lets one group more be pending.
Masks are dropped in kernels where no tile reaches beyond rows that are stored: the guard of a message, the size operand
of a copy, the zero that stands for masked elements. Elsewhere some masks keep nothing but unstored rows right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from math import prod

import pytest

from convgen import driver
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code
from tests.product.changes import Change, described
from tests.strategies import always

_NHWC = "--stag=axb --wtag=axb --dtag=axb"

#: name -> target, problem, config: at least 4 K iterations and 2 workgroups a product
KERNELS: dict[str, tuple[str, str, str]] = {
    "direct copies, three slots": (
        "sm_90",
        "--dt=f16 64x160:160x64",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=3 taps=fused copy=direct",
    ),
    "direct copies of padded windows": (
        "sm_80",
        "--dir=FWD_D --dt=f16 mb1ic32ih6oc64kh3ph1",
        "tile=32x32x32 waves=1x2 mma=8x16x16 slots=3 taps=split copy=direct padding=zeros",
    ),
    "direct copies, two slots": (
        "sm_90",
        "--dt=bf16:bf16:f32 70x200:200x40",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=2 taps=fused copy=direct",
    ),
    "direct copies, four slots": (
        "sm_90",
        "--dt=s8:s8:s32 64x448:448x64",
        "tile=32x32x64 waves=2x2 mma=8x16x32 slots=4 taps=fused copy=direct",
    ),
    "copies through registers": (
        "sm_90",
        "--dir=FWD_D --dt=f16 mb1ic32ih6oc64kh3ph1",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=2 taps=split padding=zeros",
    ),
    "one slot": (
        "sm_80",
        "--dt=bf16:bf16:f32 48x160:160x32",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=1 taps=fused",
    ),
    "one warp": ("sm_80", "--dt=f16 32x160:160x32", "tile=16x16x32 waves=1x1 mma=8x16x16 slots=2 taps=fused"),
    "one warp, direct copies": (
        "sm_80",
        "--dt=f16 32x160:160x32",
        "tile=16x16x32 waves=1x1 mma=8x16x16 slots=3 taps=fused copy=direct",
    ),
    "backward data of stride 2": (
        "sm_90",
        f"--dir=BWD_D --dt=f16 {_NHWC} mb4ic32oc64iw40kw3sw2pw1",
        "tile=32x32x32 waves=1x2 mma=8x16x16 slots=3 taps=split copy=direct padding=zeros",
    ),
    "stride phases in one launch": (
        "sm_90",
        "--dir=BWD_D --dt=f16 mb2ic32ih8oc128kh3ph1sh2",
        "tile=32x16x64 waves=2x1 mma=8x16x16 slots=2 taps=fused grids=merged padding=zeros",
    ),
    "backward weights with transposing reads": (
        "sm_90",
        f"--dir=BWD_W --dt=f16 {_NHWC} mb2ic32oc32iw70kw3pw1",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=3 taps=fused copy=direct padding=zeros",
    ),
    "slices by atomics": (
        "sm_90",
        "--dir=BWD_W --dt=f32 mb2ic24oc32iw40kw2",
        "tile=32x32x16 waves=1x2 mma=8x4x4 slots=1 taps=fused slices=2 padding=zeros",
    ),
    "slices, the last of which sums": (
        "sm_90",
        "--dir=BWD_W --dt=f16 mb2ic24oc32iw40kw2",
        "tile=32x32x16 waves=1x2 mma=8x16x16 slots=2 taps=fused slices=3 sum=last padding=zeros",
    ),
    "stream-K": (
        "sm_80",
        "--dt=f16 64x160:160x64",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=3 taps=fused map=stream:3 sum=last copy=direct",
    ),
    "persistent workgroups": (
        "sm_80",
        "--dt=f16 96x160:160x64",
        "tile=32x32x32 waves=2x2 mma=8x16x16 slots=3 taps=fused map=persist:2 copy=direct",
    ),
    "doubles": (
        "sm_80",
        "--dt=f64 33x40:40x34",
        "tile=32x32x16 waves=1x2 mma=8x4x2 slots=3 taps=fused copy=direct",
    ),
    "products of warpgroups, four slots": (
        "sm_90a",
        "--dt=f16 --wtag=ba 128x448:448x128",
        "tile=128x64x64 waves=2x4 mma=64x64x16 slots=4 copy=direct",
    ),
    "products of warpgroups, two slots": (
        "sm_90a",
        "--dt=bf16 --wtag=ab 128x320:320x64",
        "tile=64x64x64 waves=1x4 mma=64x64x16 slots=2 copy=direct",
    ),
    "products of warpgroups, copies through registers": (
        "sm_90a",
        f"--dir=FWD_D --dt=f16 {_NHWC} mb2ic32ih8oc32kh3ph1",
        "tile=64x32x32 waves=1x4 mma=32x64x16 slots=3 padding=zeros",
    ),
    "products of warpgroups, resident windows": (
        "sm_90a",
        f"--dir=BWD_D --dt=f16 {_NHWC} mb1ic32ih10oc64kh3ph1",
        "tile=64x32x288 waves=1x4 mma=32x64x16 slots=2 taps=resident copy=direct padding=zeros",
    ),
    "sums recomputed": (
        "sm_90",
        "--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1",
        "tile=32x32x32 waves=1x2 mma=8x16x16 slots=2 taps=split",
    ),
    "sums recomputed, direct copies": (
        "sm_90",
        "--dir=BWD_D --dt=bf16 mb1ic32ih6oc32kh3ph1",
        "tile=32x32x32 waves=1x2 mma=8x16x16 slots=3 taps=split copy=direct",
    ),
}

_ORDER = re.compile(
    r"\s*(bar|fence|membar|cp\.async\.(?:commit_group|wait_group|wait_all)|wgmma\.(?:fence|commit_group|wait_group))\b"
)
_WAIT = re.compile(r"wait_group(?:\.sync\.aligned)? (\d+)")
_GUARD = re.compile(r"@%p\d+ (?=(?:ld|st|red|atom)\.)")
_SIZE = re.compile(r"(cp\.async\.c[ag]\.[^;]*, \d+), %r\d+;")
_ZERO = re.compile(r"\s*mov\.b(?:32|64) (%r\w+), 0;")
_FILL = re.compile(r"selp\.(b\d+) (%r\w+), (%r\w+), 0, %p\d+;")


def orders(ptx: str) -> Iterator[Change]:
    """Yield every deletion of a barrier, fence, commit or wait, and every wait that lets one group more be pending.

    Of the fences ahead of products of warpgroups only the first counts, behind which sums begin: no instruction but
    products touches the sums between the others, which ptxas wants (C7519).
    """
    is_first = True
    for number, line in enumerate(ptx.splitlines()):
        code = line.partition("//")[0]
        shown = " ".join(code.split())
        repeats = "wgmma.fence" in code and not is_first
        is_first &= "wgmma.fence" not in code
        if _ORDER.match(code) and not repeats:
            yield Change(number, "", f"deleted: {shown}")
        if wait := _WAIT.search(code):
            more = wait[0].removesuffix(wait[1]) + str(int(wait[1]) + 1)
            yield Change(number, code.replace(wait[0], more), f"one more pending: {shown}")


def masks(ptx: str) -> Iterator[Change]:
    """Yield every mask that is dropped."""
    lines = ptx.splitlines()
    for number, line in enumerate(lines):
        code = line.partition("//")[0].rstrip()
        shown = " ".join(code.split())
        if _GUARD.search(code):
            yield Change(number, _GUARD.sub("", code), f"without guard: {shown}")
        if _SIZE.search(code):
            yield Change(number, _SIZE.sub(r"\1;", code), f"without mask: {shown}")
        if (zero := _ZERO.match(code)) and _loads(lines[number + 1 :], zero[1]):
            yield Change(number, "", f"without zeros: {shown}")
        if _FILL.search(code):
            yield Change(number, _FILL.sub(r"mov.\1 \2, \3;", code), f"without zeros: {shown}")


def _loads(lines: list[str], register: str) -> bool:
    """Return whether the next instruction other than zeros is a masked load of a register."""
    load = next(line for line in lines if not _ZERO.match(line))
    return bool(_GUARD.search(load)) and re.search(rf"{register}\b", load) is not None


@cache
def compiled(name: str) -> Code:
    target, problem, config = KERNELS[name]
    return driver.compile(driver.build(parse_problem(problem), target, config))


def changed(code: Code, change: Change) -> Code:
    asm = change.applied(code.asm)
    return evolve(code, asm=asm, object=asm.encode())


def unnoticed(code: Code, wanted: Iterable[Change]) -> list[Change]:
    """Return the changes to a kernel that the simulator lets pass."""
    assert verdict.run(code).passed
    return [change for change in wanted if verdict.run(changed(code, change)).passed]


#: Kernels of every run.
DAILY = (
    "direct copies, three slots",
    "direct copies, two slots",
    "direct copies of padded windows",
    "copies through registers",
    "one warp, direct copies",
    "backward weights with transposing reads",
)
MASKS_DAILY = ("direct copies, two slots", "slices, the last of which sums")
#: Kernels whose masks are all needed, and the kinds of masks that they have.
MASKED = {
    "direct copies, two slots": {"mask", "guard"},
    "direct copies of padded windows": {"mask", "guard"},
    "copies through registers": {"guard", "zeros"},
    "backward weights with transposing reads": {"mask"},
    "slices, the last of which sums": {"guard", "zeros"},
    "doubles": {"mask", "guard"},
}


@pytest.mark.parametrize("name", always(zip(KERNELS), lambda _, case: case[0] in DAILY))
def test_every_loss_of_order_is_noticed(name: str) -> None:
    code = compiled(name)
    assert all(prod(launch.grid) >= 2 for launch in code.record.launches if "_main" in launch.kernel)
    wanted = list(orders(code.asm))
    kinds = {change.what.split(":")[0] for change in wanted}
    assert ("one more pending" in kinds) == ("copy=direct" in code.config or "wgmma" in code.asm)
    found = unnoticed(code, wanted)
    assert not found, described(found)


@pytest.mark.parametrize("name", always(zip(MASKED), lambda _, case: case[0] in MASKS_DAILY))
def test_every_loss_of_a_mask_is_noticed(name: str) -> None:
    code = compiled(name)
    wanted = list(masks(code.asm))
    assert {change.what.split(":")[0] for change in wanted} == {f"without {kind}" for kind in MASKED[name]}
    found = unnoticed(code, wanted)
    assert not found, described(found)


def test_groups_end_where_copies_are_pending_only() -> None:
    """Between the tiles of a workgroup that persists, no copy is pending."""
    text = compiled("persistent workgroups").asm.splitlines()
    (barrier,) = (number for number, line in enumerate(text) if "// next_tile" in line)
    assert "commit_group" not in text[barrier - 1]


def test_a_loop_begins_when_its_first_block_has_landed() -> None:
    """Each block that is copied ahead of the loop is a group of its own."""
    ahead = compiled("direct copies, four slots").asm.partition("bar.sync")[0]
    assert ahead.count("commit_group") == 3
    assert ahead.split("wait_group")[1].startswith(" 2;")
