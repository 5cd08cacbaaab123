"""Nothing in the text is there in vain: the simulator notices the loss of any one wait, barrier, fence or no-op.

Each `s_waitcnt`, `s_barrier`, `s_nop` and fence is deleted, and each field of a wait and each no-op is weakened by one.
A field that the hardware clamps says so in its comment and is not weakened. Runs have the data of `--run`: where
integers leave instructions unexecuted, some subgroups then find infinities or NaNs and recompute their sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

import pytest

from convgen import driver
from convgen.backends.amdgpu.assemble import assemble
from convgen.ir.record import evolve
from convgen.problem.conv import Conv
from convgen.run import verdict
from convgen.run.code import Code
from tests.product.changes import Change, described

#: name -> descriptor, knobs, config: at least 4 K iterations and 2 workgroups a product
KERNELS: dict[str, tuple[str, dict[str, str], str]] = {
    "two slots": (
        "mb1ic64ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 taps=split acc=v padding=zeros",
    ),
    "three slots": (
        "mb1ic64ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=3 taps=split acc=v padding=zeros",
    ),
    "two stages": (
        "mb1ic64ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 stages=2 taps=split acc=v padding=zeros",
    ),
    "four stages": (
        "mb1ic128ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 stages=4 taps=split acc=v padding=zeros",
    ),
    "three slots and three stages": (
        "mb1ic128ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=3 stages=3 taps=split acc=v padding=zeros",
    ),
    "one slot": (
        "mb1ic16ih6oc32kh3ph1",
        {"dt": "bf16:bf16:f32"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=1 taps=fused acc=a padding=zeros",
    ),
    "waves read their own rows": (
        "mb1ic16ih6oc32kh3ph1",
        {"dt": "bf16:bf16:f32"},
        "tile=32x32x32 waves=2x1 mma=16x16x16 slots=1 taps=fused acc=a padding=zeros",
    ),
    "backward data of stride 2, weights transposed": (
        "mb4ic32oc128iw40kw3sw2pw1",
        {"dir": "BWD_D", "dt": "f16"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 taps=split acc=v padding=zeros",
    ),
    "backward weights in slices, with a workspace": (
        "mb4ic24oc32iw140kw2",
        {"dir": "BWD_WB", "dt": "bf16"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 taps=fused acc=v slices=2 padding=zeros",
    ),
    "backward weights in slices, the last of which sums": (
        "mb2ic24oc32iw40kw2",
        {"dir": "BWD_W", "dt": "f16"},
        "tile=32x32x16 waves=1x2 mma=16x16x16 slots=1 taps=fused acc=v slices=3 sum=last padding=zeros",
    ),
    "workgroups that persist": (
        "mb1ic64ih6oc64kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 taps=split acc=v map=persist:2 padding=zeros",
    ),
    "stream-K": (
        "mb1ic64ih6oc64kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 taps=split acc=v map=stream:3 sum=last padding=zeros",
    ),
    "backward weights in slices, with atomics": (
        "mb2ic24oc32iw40kw2",
        {"dir": "BWD_W", "dt": "f32"},
        "tile=32x32x16 waves=1x2 mma=16x16x4 slots=1 taps=fused acc=v slices=2 padding=zeros",
    ),
    "f64 forward with a reordered input": (
        "mb2ic18oc16ih6kh2",
        {"dir": "FWD_B", "dt": "f64", "stag": "abx"},
        "tile=32x32x16 waves=2x2 mma=16x16x4 slots=1 taps=fused acc=v reorder=src padding=zeros",
    ),
    "stride phases in one launch": (
        "mb2ic32ih8oc256kh3ph1sh2",
        {"dir": "BWD_D", "dt": "f16"},
        "tile=32x16x64 waves=2x1 mma=16x16x16 slots=3 stages=2 taps=fused acc=v grids=merged padding=zeros",
    ),
    "forward, sums made again": (
        "mb1ic16ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 taps=split acc=v",
    ),
    "backward weights, sums made again": (
        "mb2ic8ih6oc32kh3ph1",
        {"dir": "BWD_W", "dt": "f16"},
        "tile=32x32x16 waves=2x1 mma=16x16x16 slots=1 taps=fused acc=a",
    ),
    "stream-K, sums made again": (
        "mb1ic32ih6oc64kh3ph1",
        {"dt": "f16"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=1 taps=split acc=v map=stream:3 sum=last",
    ),
    "lanes, sums made again": (
        "mb4g16ic16ih6oc16kh3ph1",
        {"dt": "f16"},
        "tile=128x16x9 waves=1x2 mma=fma:4x2x2 slots=0 taps=fused",
    ),
    "lanes with taps in a loop, sums made again": (
        "mb4g16ic16ih6oc16kh3ph1",
        {"dir": "BWD_D", "dt": "bf16"},
        "tile=128x16x3 waves=1x2 mma=fma:4x2x2 slots=0 taps=fused",
    ),
    "backward weights by lanes, sums made again": (
        "mb8g16ic16ih6oc16kh3ph1",
        {"dir": "BWD_W", "dt": "f16"},
        "tile=3x16x128 waves=1x2 mma=fma:4x2x2 slots=0 taps=fused slices=2",
    ),
    "blocks of lanes, sums made again": (
        "mb4g4ic16ih6oc16kh3ph1",
        {"dt": "f16"},
        "tile=64x16x36 waves=1x2 mma=4x4x4:4x1x2 slots=0 taps=fused",
    ),
}

FENCES = ("buffer_wbl2", "buffer_inv")  #: what orders workgroups

BATCH = 24  #: variants assembled together

_DIGEST = re.compile(r"_[0-9a-f]{8}(?=_)")  #: in the names of all kernels of a problem
_HIGHEST = {"vmcnt": 63, "lgkmcnt": 15, "expcnt": 7}  #: what a wait can count; one more is no wait
_FIELD = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")


def changes(asm: str) -> Iterator[Change]:
    """Every deletion and every weakening by one."""
    for number, line in enumerate(asm.splitlines()):
        code, _, comment = line.partition("//")
        name, _, rest = code.strip().partition(" ")
        if name not in ("s_waitcnt", "s_barrier", "s_nop", *FENCES):
            continue
        what = " ".join(code.split())
        yield Change(number, "", f"{what} deleted")
        clamped = comment.replace(",", " ").split() if "clamped" in comment else []
        for field in _FIELD.finditer(rest):
            if field[1] not in clamped:
                higher = f"{field[1]}({int(field[2]) + 1})" if int(field[2]) < _HIGHEST[field[1]] else ""
                weaker = code.replace(field[0], higher)
                if _FIELD.search(weaker):  # else it was deleted above
                    yield Change(number, weaker, f"{what} with {field[0]} one higher")
        if name == "s_nop" and int(rest):
            yield Change(number, code.replace(rest.strip(), str(int(rest) - 1)), f"{what} one shorter")


def variants(code: Code, wanted: list[Change]) -> Iterator[tuple[Change, Code]]:
    """The code with each change, assembled in batches: a batch is one object with all the kernels once a change."""
    (prefix,) = {name[: match.end()] for name in code.kernels if (match := _DIGEST.search(name))}
    start, end = (code.asm.index(mark) for mark in ("    .text\n", "    .amdgpu_metadata\n"))
    head, body = code.asm[:start], code.asm[start:end]
    before, mark, entries = code.asm[end:].partition("amdhsa.kernels:\n")
    entries, dots, after = entries.partition("...\n")
    first = head.count("\n")
    for at in range(0, len(wanted), BATCH):
        batch = wanted[at : at + BATCH]
        bodies, described = [], []
        for n, change in enumerate(batch):
            lines = body.splitlines()
            lines[change.number - first] = change.text
            bodies.append("\n".join(lines).replace(prefix, f"{prefix}_{n}") + "\n")
            described.append(entries.replace(prefix, f"{prefix}_{n}"))
        made = assemble("".join([head, *bodies, before, mark, *described, dots, after]), code.target)
        for n, change in enumerate(batch):
            launches = tuple(
                evolve(launch, kernel=launch.kernel.replace(prefix, f"{prefix}_{n}")) for launch in code.record.launches
            )
            yield change, evolve(code, object=made, record=evolve(code.record, launches=launches))


def compiled(name: str) -> Code:
    descriptor, knobs, config = KERNELS[name]
    return driver.compile(driver.build(Conv.parse(descriptor, **{"dir": "FWD_D", **knobs}), config=config))


def unnoticed(code: Code, wanted: list[Change]) -> list[Change]:
    """The changes to a kernel that the simulator lets pass."""
    assert verdict.run(code).passed
    return [change for change, changed in variants(code, wanted) if verdict.run(changed).passed]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] if n else []) for n, name in enumerate(KERNELS)]
)
def test_every_loss_is_noticed(name: str) -> None:
    code = compiled(name)
    assert all(prod(launch.grid) >= 2 for launch in code.record.launches if "_main" in launch.kernel)
    wanted = list(changes(code.asm))
    barriers = {"s_barrier"} if "ds_write" in code.asm else set()
    fences = set(FENCES) if "sum=last" in code.config else set()
    assert {change.what.split()[0] for change in wanted} == {"s_waitcnt", "s_nop"} | barriers | fences
    found = unnoticed(code, wanted)
    assert not found, described(found)


def test_deletions_where_sums_are_made_again_are_noticed() -> None:
    """One of two subgroups finds a NaN among its weights, in the second run that `--run` makes."""
    code = compiled("forward, sums made again")
    begin, end = (n for n, line in enumerate(code.asm.splitlines()) if re.match(r"\.L\S*\.(else|endif)_\d+:", line))
    wanted = [change for change in changes(code.asm) if begin < change.number < end and not change.text]
    assert wanted
    found = unnoticed(code, wanted)
    assert not found, described(found)
