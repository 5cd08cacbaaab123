"""What the hot loops of the chooser's own Xe kernels may cost, and what may not stand in them.

Clocks are those of `analyze`: a convention for comparing loops, so no seconds are asserted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from math import inf

import pytest

from convgen import driver
from convgen.backends.intel.analyze import analyze
from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.sim import CodeObject
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.problem.matmul import parse_problem
from tests.backends.intel.listings import small_kernel

MOST = 0.6  #: clocks of all other instructions for each of the matrix instructions

PROBLEMS = {
    "deep layer": "--dir=FWD_D --dt=f16 mb32ic512ih7oc512oh7kh3ph1",
    "product": "--dt=f16 4096x4096:4096x4096",
}
CASES = [(target, name) for target in ("xehpc", "xehpg") for name in PROBLEMS]


@cache
def built(target: str, name: str) -> bytes:
    code = driver.compile(driver.build(parse_problem(PROBLEMS[name]), target))
    if code.object is None:
        pytest.skip("iga64 is not installed")
    return code.object


def written(i: Instruction, grf: int) -> range:
    """The registers that an instruction writes."""
    if i.message is not None:
        return range(i.message.dst.reg, i.message.dst.reg + i.message.dst.length)
    if i.dst is None or i.dst.kind != "reg" or i.dst.file != "r":
        return range(0)
    if i.op.startswith("dpas"):
        return range(i.dst.reg, i.dst.reg + int(i.sub.partition("x")[2]))
    stride = i.dst.region.horizontal if i.dst.region else 1
    last = (i.dst.sub + (i.exec_size - 1) * stride + 1) * i.dst.size - 1
    return range(i.dst.reg, i.dst.reg + last // grf + 1)


def multiplied(i: Instruction, grf: int) -> set[int]:
    """The registers of the two factors of a matrix instruction."""
    _, b, a = i.sources
    rows = int(i.sub.partition("x")[2])
    packed = -(-rows * 32 // grf) // (2 if i.op == "dpasw" else 1)
    return {*range(b.reg, b.reg + 8), *range(a.reg, a.reg + packed)}


def reordered(loop: Sequence[Instruction], grf: int) -> list[str]:
    """Instructions whose results a matrix instruction multiplies, other than loads; the loop goes round."""
    makers: dict[str, None] = {}
    for at, i in enumerate(loop):
        if not i.op.startswith("dpas"):
            continue
        wanted = multiplied(i, grf)
        for earlier in (*reversed(loop[:at]), *reversed(loop[at:])):
            if met := wanted.intersection(written(earlier, grf)):
                wanted -= met
                if earlier.message is None:
                    makers[earlier.text] = None
    return list(makers)


@pytest.mark.parametrize(("target", "name"), CASES)
def test_other_instructions_take_less_than_the_matrix_engine(target: str, name: str) -> None:
    (found,) = (k for k in analyze(built(target, name), "k.zebin").kernels if k.name.endswith("_main"))
    assert found.hot.is_loop
    ratio = found.hot.issue_per_matrix
    assert ratio is not None
    assert ratio <= MOST
    assert found.counts["token waits"] < found.counts.get("iga64's waits", inf)  # iga64 dies of some


_TO_ITSELF = re.compile(r"(r\d+)\.0<1>:ud \1\.0<1;1,0>:ud")


@pytest.mark.parametrize(("target", "name"), CASES)
def test_fragments_come_from_local_memory_as_they_are_multiplied(target: str, name: str) -> None:
    (found,) = (k for k in analyze(built(target, name), "k.zebin").kernels if k.name.endswith("_main"))
    inside = {line.offset for line in found.hot.lines}
    loop = [i for i in CodeObject.load(built(target, name)).instructions(found.name) if i.address in inside]
    assert sum(i.op.startswith("dpas") for i in loop) == found.hot.mix["dpas"]
    moved = [line for line in reordered(loop, DEVICES[target].grf_bytes) if not _TO_ITSELF.search(line)]
    assert moved == []  # a move to itself refreshes what the engine keeps (docs/workarounds.md)


REORDERED = """
(W)     load.slm.d32x64t.a32 (1|M0)  r16:REGS  [r10:1]  {$3}
        mov (M|M0)       r32.0<1>:ud  r16.0<1;1,0>:ud  {$3.dst}
        mov (M|M0)       r60.0<1>:ud  r61.0<1;1,0>:ud
        dpas.8x8 (M|M0)  r40:f  r40:f  r16.0:hf  r32.0:hf {$0}
"""


@pytest.mark.parametrize("target", ["xehpc", "xehpg"])
def test_the_search_can_fail(target: str) -> None:
    code = assemble(small_kernel(REORDERED, target))
    if code is None:
        pytest.skip("iga64 is not installed")
    (mov,) = reordered(CodeObject.load(code).instructions("k")[:4], DEVICES[target].grf_bytes)
    assert mov.startswith("mov")
    assert "r32.0" in mov
