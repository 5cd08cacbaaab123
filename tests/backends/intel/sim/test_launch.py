"""What threads start with, and what is wrong with a launch or a code object."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from convgen.backends.intel.sim import CodeObject, SimulatorError, Unsupported, simulate
from convgen.ir.record import evolve

STORE_R20 = "\n(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}\n"
ADDRESS = """
(W) mov (1|M0) r6.0<1>:uq r4.0<0;1,0>:uq
(W) mad (1|M0) r7.0<1>:ud r0.1<0;0>:ud r0.6<0;0>:ud 3:uw
(W) shl (1|M0) r7.0<1>:ud r7.0<0;1,0>:ud 6:w {I@1}
(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq r7.0<0;1,0>:ud {I@1}
(W) mov (16|M0) r20.0<1>:ud 0x0:ud
"""


def test_header(sim: Any) -> None:
    """Group ids, thread count and number come from r0."""
    body = (
        ADDRESS
        + """
(W) mov (1|M0) r20.0<1>:ud r0.1<0;1,0>:ud {I@1}
(W) mov (1|M0) r20.1<1>:ud r0.6<0;1,0>:ud
(W) mov (1|M0) r20.2<1>:ud r0.7<0;1,0>:ud
(W) mov (1|M0) r20.3<1>:ud r0.11<0;1,0>:ub
(W) and (1|M0) r20.4<1>:ud r0.2<0;1,0>:ud 0xFF:ud
"""
    )
    out = np.zeros((2, 3, 16), np.uint32)
    report = sim.run("xehpc", body + STORE_R20, {"out": out}, grid=(3, 2, 1))
    assert not report.findings, "\n".join(map(str, report.findings))
    for y in range(2):
        for x in range(3):
            assert out[y, x, :5].tolist() == [x, y, 0, 1, 0]


def test_undefined_header(sim: Any) -> None:
    body = ADDRESS + "(W) mov (1|M0) r20.0<1>:ud r0.3<0;1,0>:ud {I@1}\n"
    report = sim.run("xehpc", body + STORE_R20, {"out": np.zeros(16, np.uint32)})
    assert sim.kinds(report) == ["poison"]


def test_some_workgroups(sim: Any) -> None:
    body = ADDRESS + "(W) mov (16|M0) r20.0<1>:ud 0x7:ud\n" + STORE_R20
    code = sim.zebin("xehpc", {"k": sim.Source(sim.prologues["xehpc"] + body + sim.epilogues["xehpc"])})
    out = np.zeros((3, 16), np.uint32)
    request = evolve(sim.launch("k", ["out"], (3, 1, 1)), groups=(1,))
    done: list[tuple[int, int]] = []
    report = simulate(
        code, [request], {"out": out.view(np.uint8).reshape(-1)}, progress=lambda now, total: done.append((now, total))
    )
    assert not report.findings
    assert out[:, 0].tolist() == [0, 7, 0]
    assert done == [(1, 1)]
    with pytest.raises(SimulatorError, match="given workgroup 9 of a grid of 3"):
        simulate(code, [evolve(request, groups=(9,))], {"out": out.view(np.uint8).reshape(-1)})


def test_missing_arguments_are_undefined(sim: Any) -> None:
    """An argument that the host does not give is noticed where it decides something."""
    body = ADDRESS + STORE_R20
    code = sim.zebin("xehpc", {"k": sim.Source(sim.prologues["xehpc"] + body + sim.epilogues["xehpc"])})
    report = simulate(code, [sim.launch("k", [])], {"out": np.zeros(64, np.uint8)})
    assert "poison" in sim.kinds(report)


def test_platform(sim: Any) -> None:
    source = sim.Source(sim.prologues["xehpc"] + sim.epilogues["xehpc"])
    assert CodeObject.load(sim.zebin("xehpc", {"k": source})).platform.name == "xehpc"
    xe2 = sim.zebin("xehpc", {"k": source}, product=0x4FA)
    with suppress(Unsupported):  # an iga64 that knows xe2 runs it
        assert not simulate(xe2, [sim.launch("k", [])], {}).findings
    with pytest.raises(Unsupported, match="product family 0x123"):
        CodeObject.load(sim.zebin("xehpc", {"k": source}, product=0x123))


def test_errors(sim: Any) -> None:
    with pytest.raises(SimulatorError, match="not a code object"):
        simulate(b"nonsense", [], {})
    source = sim.Source(sim.prologues["xehpc"] + sim.epilogues["xehpc"])
    code = sim.zebin("xehpc", {"k": source})
    with pytest.raises(SimulatorError, match="no kernel 'q'"):
        simulate(code, [sim.launch("q", [])], {})
    with pytest.raises(SimulatorError, match="no buffer 'x'"):
        simulate(code, [sim.launch("k", ["x"])], {})
    with pytest.raises(SimulatorError, match="2000 work-items"):
        simulate(code, [sim.launch("k", [], workgroup=2000)], {})
    single = code.replace(b"simd_size: 16", b"simd_size: 1 ")
    with pytest.raises(SimulatorError, match="256 threads of SIMD1; 1 to 255 are possible"):
        simulate(single, [sim.launch("k", [], workgroup=256)], {})
    assert not simulate(single, [sim.launch("k", [], workgroup=255)], {}).findings
    with pytest.raises(SimulatorError, match=r"\.ze_info is not as the zebin specification wants it"):
        CodeObject.load(code.replace(b"kernels:", b"kernals:"))
    with pytest.raises(SimulatorError, match=r"no \.note\.intelgt\.compat"):
        simulate(sim.elf([(".ze_info", 0xFF000011, b"kernels: []")]), [], {})


def test_slm_size(sim: Any) -> None:
    report = sim.run("xehpc", "", {"out": np.zeros(64, np.uint8)}, source=sim.Source("", slm=200 << 10))
    assert sim.kinds(report) == ["slm-size"]


def test_partial_thread(sim: Any) -> None:
    """A workgroup that does not fill its last thread leaves lanes off."""
    body = ADDRESS + "mov (16|M0) r20.0<1>:ud 0x7:ud\n" + STORE_R20
    out = np.zeros(16, np.uint32)
    report = sim.run("xehpc", body, {"out": out}, workgroup=5)
    assert not report.findings
    assert out.tolist() == [7] * 5 + [0] * 11
