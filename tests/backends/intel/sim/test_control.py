"""Branches of channels and jumps of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

#: r8 holds lane numbers, r20 the result; threads are told apart by r9.0.
START = """
(W) mov (1|M0) r6.0<1>:uq r4.0<0;1,0>:uq
(W) mov (8|M0) r7.0<1>:uw 0x76543210:uv
(W) add (8|M0) r7.8<1>:uw r7.0<1;1,0>:uw 8:uw {I@1}
(W) mov (16|M0) r8.0<1>:d r7.0<1;1,0>:uw {I@1}
(W) and (1|M0) r9.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r9.1<1>:ud r9.0<0;1,0>:ud 6:w {I@1}
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r9.1<0;1,0>:ud {I@1}
mov (16|M0) r20.0<1>:d 0:w
(W) sync.nop null {A@1}
"""
END = "\n(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}\n"


def execute(sim: Any, body: str, threads: int = 1, **options: Any) -> Any:
    out = np.full((threads, 16), -1, np.int32)
    report = sim.run("xehpc", START + body + END, {"out": out}, workgroup=16 * threads, **options)
    assert not report.findings, "\n".join(map(str, report.findings))
    return out


LANE = np.arange(16)


def test_nested_branches(sim: Any) -> None:
    body = """
cmp (16|M0) (lt)f0.0 null<1>:d r8.0<1;1,0>:d 10:w
(f0.0) if (16|M0) L_else L_end
    cmp (16|M0) (lt)f1.0 null<1>:d r8.0<1;1,0>:d 4:w
    (f1.0) if (16|M0) L_in L_in
        add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 1:w {A@1}
    L_in:
    endif (16|M0) L_next
    L_next:
    add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 10:w {A@1}
    else (16|M0) L_end L_end
L_else:
    add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 100:w {A@1}
L_end:
endif (16|M0) L_out
L_out:
add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 1000:w {A@1}
"""
    want = np.where(LANE < 10, 10 + (LANE < 4), 100) + 1000
    np.testing.assert_array_equal(execute(sim, body)[0], want)


def test_loop_of_channels(sim: Any) -> None:
    """Each lane goes round as often as its number says, and leaves early at 12."""
    body = """
L_top:
    cmp (16|M0) (ge)f0.0 null<1>:d r20.0<1;1,0>:d 12:w
    (f0.0) break (16|M0) L_while L_behind
    add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 1:w
    cmp (16|M0) (lt)f1.0 null<1>:d r20.0<1;1,0>:d r8.0<1;1,0>:d {I@1}
L_while:
    (f1.0) while (16|M0) L_top
L_behind:
add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 100:w
"""
    np.testing.assert_array_equal(execute(sim, body)[0], np.clip(LANE, 1, 12) + 100)


GOTO = """
cmp (16|M0) (lt)f0.0 null<1>:d r8.0<1;1,0>:d 5:w
(f0.0) goto (16|M0) L_join L_join
add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 7:w
L_join:
join (16|M0) L_end
L_end:
add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 1:w {A@1}
"""


def test_goto_and_join(sim: Any) -> None:
    np.testing.assert_array_equal(execute(sim, GOTO)[0], np.where(LANE < 5, 1, 8))


def test_branches_do_not_stand_for_distances(sim: Any) -> None:
    """Only on request does a branch outlast what was issued before it, as Intel's compiler takes for granted."""
    body, out = START + GOTO.replace(" {A@1}", "") + END, np.zeros(16, np.int32)
    assert sim.kinds(sim.run("xehpc", body, {"out": out})) == ["distance"]
    assert not sim.run("xehpc", body, {"out": out}, trust_igc=True).findings


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_threads_part_and_meet(sim: Any, order: str) -> None:
    """Threads go round a jmpi loop by their number; they are one group again behind it."""
    body = """
(W) mov (1|M0) r9.2<1>:d r9.0<0;1,0>:ud
L_top:
add (16|M0) r20.0<1>:d r20.0<1;1,0>:d 1:w {A@1}
(W) add (1|M0) r9.2<1>:d r9.2<0;1,0>:d -1:w {A@1}
(W) cmp (1|M0) (ge)f0.0 null<1>:d r9.2<0;1,0>:d 0:w {I@1}
(W&f0.0) jmpi L_top
"""
    out = execute(sim, body, threads=6, wave_order=order)
    np.testing.assert_array_equal(out, np.repeat(np.arange(1, 7)[:, None], 16, axis=1))


def test_leaving_the_code(sim: Any) -> None:
    out = np.zeros(16, np.int32)
    source = sim.Source(sim.prologues["xehpc"] + "nop\n")
    code = sim.zebin("xehpc", {"k": source})
    from convgen.backends.intel.sim import simulate

    report = simulate(code, [sim.launch("k", ["out"])], {"out": out.view(np.uint8)})
    assert sim.kinds(report) == ["control"]


def test_running_for_ever(sim: Any) -> None:
    out = np.zeros(16, np.int32)
    report = sim.run("xehpc", START + "L_top:\n(W) jmpi L_top\n", {"out": out}, max_instructions=100_000)
    assert sim.kinds(report) == ["runaway"]
