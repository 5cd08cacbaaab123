"""What orders threads of different workgroups: two workgroups leave a line each, and the last one reads the other's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.simulation import Scrutiny

#: The threads of a workgroup part at scalar jumps, which fused pairs may not: order is what is looked at here.
JUMPS_APART = Scrutiny(allow=("fused-branch",))

PLATFORMS = ("xehpc", "xehpg")
#: r5 is the address of a count, r6 of the own line, r9 of the other's: a thread's line is the one of its number here.
START = """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (2|M0) r9.0<1>:ud r4.2<1;1,0>:ud
(W) and (1|M0) r7.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r8.0<1>:ud r0.1<0;1,0>:ud 1:w
(W) add (1|M0) r8.0<1>:ud r8.0<0;1,0>:ud r7.0<0;1,0>:ud {A@1}
(W) mov (1|M0) r12.0<1>:ud 1:ud
(W) add (1|M0) r20.0<1>:ud r8.0<0;1,0>:ud 7:ud {A@2}
(W) shl (1|M0) r8.0<1>:ud r8.0<0;1,0>:ud 6:w
(W) xor (1|M0) r10.0<1>:ud r8.0<0;1,0>:ud {OTHER}:ud {A@1}
(W) add (1|M0) r6.0<1>:ud r6.0<0;1,0>:ud r8.0<0;1,0>:ud {A@1}
(W) add (1|M0) r9.0<1>:ud r9.0<0;1,0>:ud r10.0<0;1,0>:ud {A@1}
(W) mov (1|M0) r15.2<1>:f 0.0:f
(W) mov (2|M0) r15.10<1>:ub r0.11<0;1,0>:ub {A@1}
"""
STORE = "(W) store.ugm.d32x1t.a64.wb.wb (1|M0) [r6:1] r20:1 {A@1,$1}\n"
RELEASE = "(W) send.ugm (1|M0) r28 r0 null:0 0x0 0x0210171F {$2}\n"
RELEASED = "(W) mov (8|M0) null<1>:ud r28.0<1;1,0>:ud {$2.dst}\n"
COUNT = "(W) atomic_iadd.ugm.d32.a64.uc.wb (1|M0) r21:1 [r5:1] r12:1 {$3}\n"
COUNTED = "(W) mov (1|M0) r22.0<1>:ud r21.0<0;1,0>:ud {$3.dst}\n"
ACQUIRE = "(W) send.ugm (1|M0) r29 r0 null:0 0x0 0x0210271F {$4}\n"
ACQUIRED = "(W) mov (8|M0) null<1>:ud r29.0<1;1,0>:ud {$4.dst}\n"
LAST = "(W) cmp (1|M0) (eq)f0.0 null<1>:ud r22.0<0;1,0>:ud 1:ud {A@1}\n(W&~f0.0) jmpi done\n"
READ = """
(W) load.ugm.d32x1t.a64 (1|M0) r23:1 [r9:1] {$5}
(W) add (1|M0) r6.0<1>:ud r6.0<0;1,0>:ud 0x100:ud {$1.dst}
(W) sync.nop null {$5.dst}
(W) store.ugm.d32x1t.a64.wb.wb (1|M0) [r6:1] r23:1 {A@1,$6}
"""
DONE = "done:\n(W) sync.nop null\n"
MEETING = STORE + RELEASE + RELEASED + COUNT + COUNTED + ACQUIRE + ACQUIRED + LAST + READ + DONE
BARRIER = "(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$7}\n(W) sync.bar null\n"
FIRST = "(W) cmp (1|M0) (eq)f0.0 null<1>:ud r7.0<0;1,0>:ud 0:ud {A@1}\n(W&~f0.0) jmpi done\n"
FENCE = "(W) send.ugm (1|M0) r30 r0 null:0 0x0 0x0214031F {$8}\n(W) mov (8|M0) null<1>:ud r30.0<1;1,0>:ud {$8.dst}\n"


def meet(sim: Any, platform: str, body: str, threads: int = 1, other: int = 0x80) -> Any:
    """The report, and what each thread has read."""
    buffers = {"count": np.zeros(64, np.uint32), "lines": np.zeros(128, np.uint32)}
    source = sim.Source("", barriers=1)
    items = threads * (16 if platform == "xehpc" else 8)
    text = START.replace("{OTHER}", hex(other)) + body
    options = {"workgroup": items, "source": source, "scrutiny": JUMPS_APART}
    report = sim.run(platform, text, buffers, grid=(2, 1, 1), **options)
    return report, buffers["lines"].reshape(-1, 16)[4:, 0].tolist()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_last_reads_what_the_first_has_left(sim: Any, platform: str) -> None:
    report, read = meet(sim, platform, MEETING)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert read == [0, 0, 7, 0]


def _as(fence: str, descriptor: str) -> tuple[str, str]:
    """A fence with another descriptor."""
    return fence, fence.replace("0x0210171F", descriptor).replace("0x0210271F", descriptor)


OWN = "(W) add (1|M0) r5.0<1>:ud r5.0<0;1,0>:ud r8.0<0;1,0>:ud\n"
#: What is replaced by what, so that it does not order workgroups any more.
WRONG: dict[str, tuple[str, str]] = {
    "no release": (RELEASE + RELEASED, ""),
    "release not waited for": (RELEASED, ""),
    "another waited for than the release": (RELEASED, "(W) sync.nop null {$1.dst}\n"),
    "release behind the count": (RELEASE + RELEASED + COUNT + COUNTED, COUNT + COUNTED + RELEASE + RELEASED),
    "store behind the release": (STORE + RELEASE + RELEASED, RELEASE + RELEASED + STORE),
    "release without a flush": _as(RELEASE, "0x0210071F"),
    "release that invalidates only": _as(RELEASE, "0x0210271F"),
    "release that discards": _as(RELEASE, "0x0210371F"),
    "release in the workgroup": _as(RELEASE, "0x0210111F"),
    "release in the core": _as(RELEASE, "0x0210131F"),
    "release of typed memory": (RELEASE, RELEASE.replace("ugm", "tgm")),
    "release of local memory": (RELEASE, RELEASE.replace("ugm", "slm")),
    "no acquire": (ACQUIRE + ACQUIRED, ""),
    "acquire not waited for": (ACQUIRED, ""),
    "another waited for than the acquire": (ACQUIRED, "(W) sync.nop null {$1.dst}\n"),
    "acquire before the count is back": (COUNTED + ACQUIRE, ACQUIRE + COUNTED),
    "acquire without a flush": _as(ACQUIRE, "0x0210071F"),
    "acquire that writes back only": _as(ACQUIRE, "0x0210471F"),
    "acquire in the workgroup": _as(ACQUIRE, "0x0210211F"),
    "acquire in the core": _as(ACQUIRE, "0x0210231F"),
    "counts of their own": (COUNT, OWN + COUNT.replace("{", "{A@1,")),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_orders_nothing(sim: Any, platform: str, name: str) -> None:
    part, replacement = WRONG[name]
    assert part in MEETING
    body = MEETING.replace(part, replacement)
    report, _ = meet(sim, platform, body if "own" not in name else body.replace(LAST, ""))
    assert sim.kinds(report) == ["global-visibility"], [str(finding) for finding in report.findings]


#: The same of what is right as well.
RIGHT: dict[str, tuple[str, str]] = {
    "release that keeps lines": _as(RELEASE, "0x0210471F"),
    "release to all devices": _as(RELEASE, "0x0210191F"),
    "acquire that evicts": _as(ACQUIRE, "0x0210171F"),
    "routed fences": _as(RELEASE, "0x0214171F"),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_other_fences(sim: Any, platform: str, name: str) -> None:
    part, replacement = RIGHT[name]
    assert part in MEETING
    report, read = meet(sim, platform, MEETING.replace(part, replacement))
    assert not report.findings, "\n".join(map(str, report.findings))
    assert read == [0, 0, 7, 0]


@pytest.mark.parametrize(("platform", "kinds"), [("xehpg", []), ("xehpc", ["global-visibility"])])
def test_a_tile_is_not_all_of_xehpc(sim: Any, platform: str, kinds: list[str]) -> None:
    tile = MEETING.replace("0x0210171F", "0x0210151F").replace("0x0210271F", "0x0210251F")
    assert sim.kinds(meet(sim, platform, tile)[0]) == kinds


#: Each workgroup has two threads, of which the first counts for both.
GATHERING = (
    STORE + FENCE + BARRIER + FIRST + RELEASE + RELEASED + COUNT + COUNTED + ACQUIRE + ACQUIRED + LAST + READ + DONE
)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_barrier_passes_on_what_its_threads_have_stored(sim: Any, platform: str) -> None:
    report, read = meet(sim, platform, GATHERING, threads=2, other=0xC0)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert read == [0, 0, 8, 0]


@pytest.mark.parametrize("part", [FENCE, BARRIER])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_no_barrier_passes_on(sim: Any, platform: str, part: str) -> None:
    report, _ = meet(sim, platform, GATHERING.replace(part, ""), threads=2, other=0xC0)
    assert sim.kinds(report) == ["global-visibility"], [str(finding) for finding in report.findings]


#: The first thread counts and acquires; the second one of the second workgroup, the last, reads behind a barrier.
COUNTING = RELEASE + RELEASED + COUNT + COUNTED + ACQUIRE + ACQUIRED + "behind:\n"
AGAIN = BARRIER.replace("$7", "$9")
READER = FIRST.replace("&~", "&") + FIRST.replace("r7", "r0").replace("0.0<0;1,0>:ud 0:ud", "0.1<0;1,0>:ud 1:ud")
SHARED = STORE + FENCE + BARRIER + FIRST.replace("done", "behind") + COUNTING + AGAIN + READER + READ + DONE


@pytest.mark.parametrize(("again", "kinds"), [(AGAIN, []), ("", ["global-visibility"])])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_barrier_passes_on_what_a_thread_has_acquired(sim: Any, platform: str, again: str, kinds: list[str]) -> None:
    report, read = meet(sim, platform, SHARED.replace(AGAIN, again), threads=2)
    assert sim.kinds(report) == kinds
    assert read == [0, 0, 0, 8]
