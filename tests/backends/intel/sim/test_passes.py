"""Instructions of two passes: the second reads what the first wrote, and that is a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
KIND = "dst-src-overlap"
BYTES = {"xehpg": 32, "xehpc": 64}  #: of a register
ROOM = 4  #: registers that a case may use, from r20 on

#: The addresses of `in` and `out` go to r5 and r6; r20 to r23 are loaded and stored.
FRAMES = {
    "xehpg": (
        """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) load.ugm.d32x32t.a64 (1|M0) r20:4 [r5:1] {A@1,$1}
(W) sync.nop null {$1.dst}
""",
        "(W) store.ugm.d32x32t.a64 (1|M0) [r6:1] r20:4 {A@1,$2}\n",
    ),
    "xehpc": (
        """
(W) mov (1|M0) r5.0<1>:uq r4.0<0;1,0>:uq
(W) mov (1|M0) r6.0<1>:uq r4.1<0;1,0>:uq
(W) load.ugm.d32x64t.a64 (1|M0) r20:4 [r5:1] {A@1,$1}
(W) sync.nop null {$1.dst}
""",
        "(W) store.ugm.d32x64t.a64 (1|M0) [r6:1] r20:4 {A@1,$2}\n",
    ),
}


@attrs.frozen
class Case:
    """An instruction on r20 to r23, and what one pass makes of them: (registers as bytes, lanes) change the bytes."""

    text: str
    lanes: int
    split: int  #: the first lane of the second pass
    act: Callable[[Array, range], None]
    platform: str = "xehpg"


def move(type_: str, to: tuple[int, int], at: tuple[int, int], wide: str = "") -> Callable[[Array, range], None]:
    """Lanes from (first element, stride) to (first element, stride), the destination of a type of its own perhaps."""

    def act(registers: Array, lanes: range) -> None:
        source, target = registers.view(type_), registers.view(wide or type_)
        given = [source[at[0] + at[1] * lane] for lane in lanes]
        for lane, value in zip(lanes, given, strict=True):
            target[to[0] + to[1] * lane] = value

    return act


def add(registers: Array, lanes: range) -> None:
    """Element 3 of r20, and lanes of r22."""
    data = registers.view("u4")
    data[lanes.start : lanes.stop] = data[3:4] + data[16 + lanes.start : 16 + lanes.stop]


CASES = {
    "strided, in place": Case("mov (8|M0) r20.0<2>:ud r20.0<1;1,0>:ud", 8, 4, move("u4", (0, 2), (0, 1))),
    "one element for all": Case("add (16|M0) r20.0<1>:ud r20.3<0;1,0>:ud r22.0<1;1,0>:ud", 16, 8, add),
    "one register on": Case("mov (16|M0) r21.0<1>:ud r20.0<1;1,0>:ud", 16, 8, move("u4", (8, 1), (0, 1))),
    "words to dwords": Case("mov (16|M0) r20.0<1>:ud r20.0<1;1,0>:uw", 16, 8, move("u2", (0, 1), (0, 1), "u4")),
    "from the middle": Case("mov (8|M0) r20.4<1>:ud r20.0<1;1,0>:ud", 8, 4, move("u4", (4, 1), (0, 1))),
    "by the dword": Case("mov (16|M0) r20.1<2>:uw r20.0<0;1,0>:uw", 16, 8, move("u2", (1, 2), (0, 0))),
    "64 bits": Case("mov (16|M0) r20.0<1>:uq r20.1<0;1,0>:uq", 16, 8, move("u8", (0, 1), (1, 0)), "xehpc"),
    "strided on 64 bytes": Case("mov (16|M0) r20.0<2>:ud r20.0<1;1,0>:ud", 16, 8, move("u4", (0, 2), (0, 1)), "xehpc"),
    "a source of two registers": Case("mov (8|M0) r21.0<1>:ud r20.4<1;1,0>:ud", 8, 4, move("u4", (8, 1), (4, 1))),
    "addressed through a0": Case(
        "mov (1|M0) a0.0<1>:uw 0x288:uw\n(W) sync.nop null {A@1}\n(W) mov (16|M0) r21.0<1>:ud r[a0.0]<1;1,0>:ud",
        16,
        8,
        move("u4", (8, 1), (2, 1)),
    ),
}
#: Their neighbours, which two passes do not change.
FINE = {
    "in place": Case("mov (16|M0) r20.0<1>:ud r20.0<1;1,0>:ud", 16, 16, move("u4", (0, 1), (0, 1))),
    "apart": Case("mov (8|M0) r20.0<2>:ud r22.0<1;1,0>:ud", 8, 8, move("u4", (0, 2), (16, 1))),
    "backwards": Case("mov (16|M0) r20.0<1>:ud r21.0<1;1,0>:ud", 16, 16, move("u4", (0, 1), (8, 1))),
    "one element of the second part": Case(
        "mov (16|M0) r20.0<1>:ud r21.3<0;1,0>:ud", 16, 16, move("u4", (0, 1), (11, 0))
    ),
    "one register of 32 bytes": Case("mov (8|M0) r20.0<1>:ud r20.3<0;1,0>:ud", 8, 8, move("u4", (0, 1), (3, 0))),
    "one register of 64 bytes": Case(
        "mov (16|M0) r20.0<1>:ud r20.3<0;1,0>:ud", 16, 16, move("u4", (0, 1), (3, 0)), "xehpc"
    ),
    "to narrower elements": Case("mov (16|M0) r20.0<2>:uw r20.0<1;1,0>:ud", 16, 16, move("u2", (0, 2), (0, 2))),
}


def outcome(sim: Any, case: Case) -> tuple[Array, Array, Any]:
    """The registers before and after, and the report."""
    given = np.random.default_rng(5).integers(0, 256, ROOM * BYTES[case.platform]).astype(np.uint8)
    buffers = {"in": given.copy(), "out": np.zeros_like(given)}
    start, end = FRAMES[case.platform]
    report = sim.run(case.platform, f"{start}(W) {case.text}\n{end}", buffers)
    return given, buffers["out"], report


@pytest.mark.parametrize("name", CASES)
def test_two_passes(sim: Any, name: str) -> None:
    case = CASES[name]
    wanted, found, report = outcome(sim, case)
    for lanes in (range(case.split), range(case.split, case.lanes)):
        case.act(wanted, lanes)
    assert sim.kinds(report) == [KIND], [str(finding) for finding in report.findings]
    assert all("[IGC" in finding.message for finding in report.findings)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", FINE)
def test_one_pass(sim: Any, name: str) -> None:
    case = FINE[name]
    wanted, found, report = outcome(sim, case)
    case.act(wanted, range(case.lanes))
    assert not report.findings, [str(finding) for finding in report.findings]
    assert np.array_equal(found, wanted)


def test_flags_of_two_passes(sim: Any) -> None:
    """Lanes that a predicate masks write nothing in either pass, and each pass sets its own flags."""
    body = (
        FRAMES["xehpg"][0]
        + """
(W) mov (1|M0) f0.0<1>:uw 0xFFFE:uw
(W) sync.nop null {A@1}
(W&f0.0) mov (16|M0) r20.0<1>:ud r20.0<0;1,0>:ud
(W) mov (16|M0) (eq)f1.0 r22.0<1>:ud r22.1<0;1,0>:ud
(W) mov (1|M0) r20.0<1>:ud f1.0<0;1,0>:uw {I@1}
"""
        + FRAMES["xehpg"][1]
    )
    given = np.arange(7, 7 + 32, dtype=np.uint32)
    given[17], given[16] = 0, 9
    buffers = {"in": given.copy(), "out": np.zeros_like(given)}
    report = sim.run("xehpg", body, buffers)
    assert sim.kinds(report) == [KIND]
    found = buffers["out"]
    assert found[1:16].tolist() == [7] * 15, "the first element is masked, so that both passes read it"
    assert found[0] == 0xFFFF
    assert not found[16:].any()
