"""What generating a kernel costs: by stage when warm, and whole commands when cold."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.figures import Figure, best, main

from convgen import driver
from convgen.problem.conv import Conv

LAYERS = {
    "conv1 7x7": "mb1ic3ih224oc64oh112kh7sh2ph3",
    "res2a 3x3": "mb1ic64ih56oc64oh56kh3ph1",
    "res3a 1x1": "mb1ic256ih56oc512oh28kh1sh2ph0",
    "res4b 3x3": "mb1ic256ih14oc256oh14kh3ph1",
    "res5a 1x1": "mb1ic512ih7oc2048oh7kh1ph0",
}
WARM = 0.08  #: seconds of Python that a typical kernel may take
PEER = "import numpy"
CONVGEN = [str(Path(sys.executable).with_name("convgen"))]


def cold(command: Sequence[str]) -> float:
    """Seconds of a fresh process."""
    return best(lambda: subprocess.run(command, check=True, capture_output=True), rounds=3)


def stages(descriptor: str) -> dict[str, float]:
    """Seconds by stage of the quickest of three warm runs."""
    runs = []
    for _ in range(4):
        problem = Conv.parse(descriptor, dir="FWD_D", dt="f16")
        runs.append(dict(driver.compile(driver.build(problem)).stages))
    return min(runs[1:], key=lambda run: sum(run.values()))


def measure() -> Iterator[Figure]:
    numpy = cold([sys.executable, "-c", PEER])
    yield Figure(f"python -c '{PEER}'", numpy * 1e3, "ms")
    layers = {name: stages(descriptor) for name, descriptor in LAYERS.items()}
    for name, found in layers.items():
        python = sum(seconds for stage, seconds in found.items() if stage != "assemble")
        yield Figure(f"{name}: Python, warm", python * 1e3, "ms", PEER, python / numpy, WARM / numpy)
        yield Figure(f"{name}: assembler", found["assemble"] * 1e3, "ms", PEER, found["assemble"] / numpy)
    for stage in next(iter(layers.values())):
        seconds = sum(found.get(stage, 0.0) for found in layers.values()) / len(layers)
        yield Figure(f"  {stage}, mean of the layers", seconds * 1e3, "ms", PEER, seconds / numpy)
    help_text = cold([*CONVGEN, "--help"])
    yield Figure("convgen --help, cold", help_text * 1e3, "ms", PEER, help_text / numpy, 1.3)
    with tempfile.TemporaryDirectory() as folder:
        knobs = ["--dir", "FWD_D", "--dt", "f16", "-o", f"{folder}/k"]
        conv = cold([*CONVGEN, "conv", "--no-cache", *knobs, LAYERS["res2a 3x3"]])
    yield Figure("convgen conv, cold, no --run", conv * 1e3, "ms", PEER, conv / numpy, 5.5)


if __name__ == "__main__":
    main("Generating kernels", measure)
