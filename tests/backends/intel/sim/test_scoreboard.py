"""Random programs whose annotations IGA has derived: the simulator misses none, but all when they are left out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.backends.intel.sim import simulate
from convgen.backends.toolchain import IGA64

SCOREBOARD = {"distance", "token-wait", "token", "send-war", "swsb"}
LANES = {"xehpc": 16, "xehpg": 8}
FIRST, COUNT = 10, 12  #: few registers, so that instructions often meet


def instruction(rng: np.random.Generator, platform: str) -> str:
    n = LANES[platform]
    a, b, c, d = (FIRST + int(r) for r in rng.integers(0, COUNT, 4))
    pick = rng.random()
    if pick < 0.3:
        return f"(W) add ({n}|M0) r{a}.0<1>:d r{b}.0<1;1,0>:d r{c}.0<1;1,0>:d"
    if pick < 0.5:
        return f"(W) mul ({n}|M0) r{a}.0<1>:f r{b}.0<1;1,0>:f r{c}.0<1;1,0>:f"
    if pick < 0.55:
        flag, kind = rng.choice(["f0.0", "f1.0"]), rng.choice(["f", "d"])
        if rng.random() < 0.5:
            return f"(W) cmp ({n}|M0) (lt){flag} null<1>:{kind} r{b}.0<1;1,0>:{kind} r{c}.0<1;1,0>:{kind}"
        return f"(W&{flag}) add ({n}|M0) r{a}.0<1>:{kind} r{b}.0<1;1,0>:{kind} r{c}.0<1;1,0>:{kind}"
    if pick < 0.6:
        return f"(W) mov ({n}|M0) r{a}.0<1>:{rng.choice(['f', 'd'])} r{b}.0<1;1,0>:{rng.choice(['f', 'd'])}"
    if pick < 0.68:
        return f"(W) mad ({n}|M0) r{a}.0<1>:f r{b}.0<1;0>:f r{c}.0<1;0>:f r{d}.0<1>:f"
    if pick < 0.76:
        return f"(W) math.inv ({n}|M0) r{a}.0<1>:f r{b}.0<1;1,0>:f"
    if pick < 0.88:
        return f"(W) load.ugm.d32x{n}t.a64 (1|M0) r{a}:1 [r5:1]"
    if pick < 0.94:
        return f"(W) store.ugm.d32x{n}t.a64 (1|M0) [r6:1] r{a}:1"
    if platform == "xehpc" and pick < 0.97:
        return f"(W) add (8|M0) r{a}.0<1>:df r{b}.0<1;1,0>:df r{c}.0<1;1,0>:df"
    return f"dpas.8x1 ({n}|M0) r{a}:f r{a}:f r40:hf r48.0:hf"


def annotated(platform: str, body: str, folder: Path, iga: str) -> str:
    """The body with IGA's annotations."""
    source, binary = folder / "a.asm", folder / "a.bin"
    source.write_text(body)
    tool = IGA64.find() or IGA64.name
    subprocess.run([tool, "-a", "-Xauto-deps", f"-p={iga}", str(source), "-o", str(binary)], check=True)
    done = subprocess.run([tool, "-d", f"-p={iga}", str(binary)], check=True, capture_output=True, text=True)
    return done.stdout.replace("L0:", "")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("platform", LANES)
def test_annotations_of_iga(sim: Any, platform: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    n = LANES[platform]
    zeros = "".join(f"(W) mov ({n}|M0) r{r}.0<1>:ud 0x0:ud\n" for r in [*range(FIRST, FIRST + COUNT), *range(40, 50)])
    addresses = f"(W) mov ({n}|M0) r5.0<1>:ud r4.0<0;1,0>:ud\n(W) mov ({n}|M0) r6.0<1>:ud r4.0<0;1,0>:ud\n"
    for reg, at in ((5, 0), (6, 2)):
        addresses += f"(W) mov (2|M0) r{reg}.0<1>:ud r4.{at}<1;1,0>:ud\n"
    zeros += "(W) mov (1|M0) f0.0<1>:ud 0x0:ud\n(W) mov (1|M0) f1.0<1>:ud 0x0:ud\n"
    start = addresses + zeros + "(W) sync.nop null {A@1}\n"
    body = "\n".join(instruction(rng, platform) for _ in range(60)) + "\n"
    text = annotated(platform, body, tmp_path, sim.iga[platform])
    end = "(W) sync.nop null {A@1}\n(W) sync.allwr null\n"

    def found(middle: str) -> set[str]:
        code = sim.zebin(
            platform, {"k": sim.Source(sim.prologues[platform] + start + middle + end + sim.epilogues[platform])}
        )
        buffers = {"in": np.zeros(64, np.uint8), "out": np.zeros(64, np.uint8)}
        report = simulate(code, [sim.launch("k", ["in", "out"])], buffers, errata=False)
        return {f"{finding}" for finding in report.findings if finding.kind in SCOREBOARD}

    assert not found(text), "\n".join(sorted(found(text)))
    if "sync" in text or "{" in text:
        assert found(body)
