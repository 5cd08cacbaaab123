"""Nothing in the text is there in vain: the simulator notices the loss of any one wait, barrier or no-op.

Each `s_waitcnt`, `s_barrier` and `s_nop` line is deleted, and each field of a wait and each no-op is weakened by one. A
field that the hardware clamps says so in its comment and is not weakened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs
import pytest

from convgen import driver, verify
from convgen.backends.amdgpu.assemble import assemble
from convgen.code import Code
from convgen.problem import Conv

#: name -> descriptor, knobs, config: at least 4 K iterations and 2 workgroups each
KERNELS: dict[str, tuple[str, dict[str, str], str]] = {
    "two slots": (
        "mb1ic64ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 taps=split acc=v",
    ),
    "three slots": (
        "mb1ic64ih6oc32kh3ph1",
        {"dt": "f16"},
        "tile=32x32x64 waves=2x2 mma=16x16x16 slots=3 taps=split acc=v",
    ),
    "one slot": (
        "mb1ic16ih6oc32kh3ph1",
        {"dt": "bf16:bf16:f32"},
        "tile=32x32x32 waves=1x2 mma=16x16x16 slots=1 taps=fused acc=a",
    ),
    "waves read their own rows": (
        "mb1ic16ih6oc32kh3ph1",
        {"dt": "bf16:bf16:f32"},
        "tile=32x32x32 waves=2x1 mma=16x16x16 slots=1 taps=fused acc=a",
    ),
}

BATCH = 24  #: variants assembled together

_FIELD = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")


@attrs.frozen
class Change:
    """Line `number` of the text becomes `text` (nothing if empty)."""

    number: int
    text: str
    what: str


def changes(asm: str) -> Iterator[Change]:
    """Every deletion and every weakening by one."""
    for number, line in enumerate(asm.splitlines()):
        code, _, comment = line.partition("//")
        name, _, rest = code.strip().partition(" ")
        if name not in ("s_waitcnt", "s_barrier", "s_nop"):
            continue
        what = " ".join(code.split())
        yield Change(number, "", f"{what} deleted")
        clamped = comment.replace(",", " ").split() if "clamped" in comment else []
        for field in _FIELD.finditer(rest):
            if field[1] not in clamped:
                weaker = code.replace(field[0], f"{field[1]}({int(field[2]) + 1})")
                yield Change(number, weaker, f"{what} with {field[0]} one higher")
        if name == "s_nop" and int(rest):
            yield Change(number, code.replace(rest.strip(), str(int(rest) - 1)), f"{what} one shorter")


def variants(code: Code, wanted: list[Change]) -> Iterator[tuple[Change, Code]]:
    """The code with each change, assembled in batches: a batch is one object with one kernel a change."""
    head, _, rest = code.asm.partition(f"    .text\n    .globl  {code.name}")
    body, _, note = (f"    .text\n    .globl  {code.name}" + rest).partition("    .amdgpu_metadata")
    before, _, entry = note.partition("amdhsa.kernels:\n")
    entry, _, after = entry.partition("...\n")
    first = head.count("\n")
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        bodies, entries = [], []
        for n, change in enumerate(batch):
            lines = body.splitlines()
            lines[change.number - first] = change.text
            bodies.append("\n".join(lines).replace(code.name, f"{code.name}_{n}") + "\n")
            entries.append(entry.replace(code.name, f"{code.name}_{n}"))
        text = f"{head}{''.join(bodies)}    .amdgpu_metadata{before}amdhsa.kernels:\n{''.join(entries)}...\n{after}"
        made = assemble(text, code.target)
        (launch,) = code.record.launches
        for n, change in enumerate(batch):
            renamed = attrs.evolve(launch, kernel=f"{code.name}_{n}")
            record = attrs.evolve(code.record, launches=(renamed,))
            yield change, attrs.evolve(code, object=made, record=record)


def unnoticed(name: str) -> list[Change]:
    """The changes to a kernel that the simulator lets pass."""
    descriptor, knobs, config = KERNELS[name]
    code = driver.compile(driver.build(Conv.parse(descriptor, dir="FWD_D", **knobs), config=config))
    assert code.record.launches[0].grid[0] >= 2
    assert verify.run(code).passed
    found = list(changes(code.asm))
    kinds = {change.what.split()[0] for change in found}
    assert kinds == {"s_waitcnt", "s_barrier", "s_nop"}, "the kernel does not show all three"
    return [change for change, changed in variants(code, found) if verify.run(changed).passed]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] if n else []) for n, name in enumerate(KERNELS)]
)
def test_every_loss_is_noticed(name: str) -> None:
    found = unnoticed(name)
    lines = "\n".join(f"line {change.number + 1}: {change.what}" for change in found)
    assert not found, lines
