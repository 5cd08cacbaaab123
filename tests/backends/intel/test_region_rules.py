"""What regions of vector instructions must keep to, read off the assembly text: the simulator has rules of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs
import pytest

import convgen as cg
from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import TYPE_BYTES, region
from convgen.backends.intel.tables import GENERATIONS

_VECTOR = re.compile(
    r"(?:\(\S+\))?\s*(?P<op>[a-z0-9.]+) \((?P<lanes>\d+)\|M0\)(?:\s*\(\w+\)f[\d.]+)?\s+(?P<operands>r.*)"
)
_REGION = re.compile(r"r(\d+)\.(\d+)<(\d)(?:;\d+,\d+|;\d+)?>:(\w+)")
_NO_REGIONS = re.compile(r"ugm|slm|dpas|send|sync")

PROBLEMS = (
    ("mb4ic128ih15oc128oh8kh3sh2ph1", "BWD_W", "f16"),
    ("mb2ic17ih9oc23kh3ph1", "FWD_B", "f32"),
    ("mb2ic17ih9oc23kh3ph1", "BWD_D", "f16"),
    ("mb2ic33ih9oc40kh3ph1", "BWD_WB", "bf16"),
    ("--dtag=dcba mb1_ic8oc24_ih1oh1kh5sh2ph5_iw3ow7kw3sw2pw4", "BWD_D", "s8:s8:u8"),
)


@attrs.frozen
class _Operand:
    """The bytes of each lane: (first, count), counted from r0."""

    lanes: tuple[tuple[int, int], ...]
    type: str

    def bytes(self, first: int, last: int | None) -> set[int]:
        return {b for start, count in self.lanes[first:last] for b in range(start, start + count)}

    def spans(self, grf: int) -> bool:
        return self.lanes[0][0] // grf != (self.lanes[-1][0] + self.lanes[-1][1] - 1) // grf

    @property
    def scalar(self) -> bool:
        return self.lanes[0] == self.lanes[-1]


def _instructions(text: str, grf: int) -> Iterator[tuple[str, list[_Operand]]]:
    """Each vector instruction of more than one lane with its regions, the destination first."""
    for line in text.splitlines():
        m = _VECTOR.match(line)
        if m is None or _NO_REGIONS.search(m["op"]) or m["lanes"] == "1":
            continue
        operands = []
        for number, sub, stride, kind in _REGION.findall(m["operands"].partition("//")[0]):
            size = TYPE_BYTES[kind]
            at = int(number) * grf + int(sub) * size
            places = tuple((at + lane * int(stride) * size, size) for lane in range(int(m["lanes"])))
            operands.append(_Operand(places, kind))
        yield line, operands


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("target", ["xehpg", "xehpc", "xe2"])
@pytest.mark.parametrize(("descriptor", "direction", "types"), PROBLEMS)
def test_text(target: str, descriptor: str, direction: str, types: str) -> None:
    """No later half of an instruction reads what the first wrote; conversions of halves stay at the lowest bits."""
    grf = 4 * GENERATIONS[target].lanes
    text = cg.compile(cg.build(cg.Conv.parse(descriptor, dir=direction, dt=types), target=target)).asm
    seen = 0
    for line, (to, *sources) in _instructions(text, grf):
        seen += 1
        half = len(to.lanes) // 2
        if any(o.spans(grf) for o in (to, *sources)):
            for of in sources:
                assert not to.bytes(0, half) & of.bytes(half, None), line
        if to.type in ("b", "ub") and any(TYPE_BYTES[o.type] == 4 for o in sources):
            assert to.lanes[0][0] % 4 == 0, line  # what is narrower begins where a dword does
        if {"hf", "f"} <= {o.type for o in (to, *sources)}:
            packed = [
                o for o in (to, *sources) if o.type == "hf" and not o.scalar and o.lanes[1][0] - o.lanes[0][0] == 2
            ]
            for o in (to, *sources):
                assert o.scalar or o in packed or o.lanes[0][0] % 4 == 0, line
            assert all(o.lanes[0][0] % (grf // 2) == 0 for o in packed), line
    assert seen > 10


def test_operands_that_span_registers_clobber_early() -> None:
    out = XeEmitter("k", GENERATIONS["xehpg"])
    one, two = out.new("v"), out.new("v", 2)
    cases = (
        ((region(two, "ud", 0, 2),), (region(one, "ud"),), True),  # the destination spans two
        ((region(one, "ud"),), (region(two, "ud", 1, 2),), True),  # a source does
        ((region(two, "q"),), (region(two, "q"),), True),
        ((region(one, "ud"),), (region(one, "ud"),), False),
        ((region(one, "uw", 1, 2),), (region(one, "uw", 0, 2),), False),
        ((region(two, "ud", 8, 1),), (region(one, "ud"),), False),  # all of it in the second
    )
    for dst, src, early in cases:
        assert out.emit("mov", dst, src, lanes=8).early_clobber is early
