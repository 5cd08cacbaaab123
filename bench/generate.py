"""Measure the cost of generating a kernel: by stage when warm, on several targets, and whole commands when cold.

With PYTHON, a Python that has Triton, also the cost of each case of `whole.py` from problem to object, beside Triton's
kernel for it (`triton_kernels.py`): processor seconds, best of two turns of three runs of warm compilers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from time import process_time

import whole
from lib.figures import Figure, best, main
from lib.processors import processor_seconds

from convgen import driver
from convgen.problem.conv import Conv

LAYERS = {
    "conv1 7x7": "mb1ic3ih224oc64oh112kh7sh2ph3",
    "res2a 3x3": "mb1ic64ih56oc64oh56kh3ph1",
    "res3a 1x1": "mb1ic256ih56oc512oh28kh1sh2ph0",
    "res4b 3x3": "mb1ic256ih14oc256oh14kh3ph1",
    "res5a 1x1": "mb1ic512ih7oc2048oh7kh1ph0",
}
TRITON = Path(__file__).with_name("triton_kernels.py")
TARGETS = ("gfx942", "sm_90", "sm_90a", "xehpc")  #: the first is what the others are compared with
OF_TRITON = 0.3  #: of Triton's time, at most
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


def by_target() -> Iterator[Figure]:
    """Python's seconds from problem to object, the geometric mean of the cases; `ptxas` and `iga64` are told apart."""
    seconds: dict[str, list[float]] = {target: [] for target in TARGETS}
    for case in whole.CASES:
        rounds = [[_seconds(case, target, process_time) for target in TARGETS] for _ in range(4)]  # by turns
        for target, each in zip(TARGETS, zip(*rounds[1:])):
            seconds[target].append(min(each))
    first, *others = TARGETS
    base = geometric_mean(seconds[first])
    yield Figure(f"{first}: Python, mean of {len(whole.CASES)} kernels", base * 1e3, "ms")
    for target in others:
        mean = geometric_mean(seconds[target])
        yield Figure(f"{target}: Python, mean of these kernels", mean * 1e3, "ms", first, mean / base, 1.0)


def beside_triton(python: Path, target: str = "gfx942") -> Iterator[Figure]:
    """A kernel's cost in seconds of processors; the cases' geometric mean of the ratio comes last."""
    command = [str(python), str(TRITON), "--seconds", "--target", target]
    theirs: dict[str, float] = {}
    ours: dict[str, float] = {}
    for _ in range(2):  # by turns, since a machine is not as fast all the time
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        theirs = {title: min(seconds, theirs.get(title, seconds)) for title, seconds in found.items()}
        rounds = [[_seconds(case, target) for case in whole.CASES] for _ in range(4)]
        for case, each in zip(whole.CASES, zip(*rounds[1:])):
            ours[case.title] = min(*each, ours.get(case.title, each[0]))
    for title, seconds in ours.items():
        yield Figure(title, seconds * 1e3, "ms", "Triton", seconds / theirs[title])
    mean, of_triton = geometric_mean(ours.values()), geometric_mean(theirs[title] for title in ours)
    yield Figure("geometric mean of the cases", mean * 1e3, "ms", "Triton", mean / of_triton, OF_TRITON)


def _seconds(case: whole.Case, target: str, clock: Callable[[], float] = processor_seconds) -> float:
    """Return the seconds of a case by a clock: `process_time` leaves out other programs, such as `ptxas`."""
    start = clock()
    driver.compile(driver.build(case.problem, target))
    return clock() - start


def measure(triton: Path | None) -> Iterator[Figure]:
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
    yield from by_target()
    help_text = cold([*CONVGEN, "--help"])
    yield Figure("convgen --help, cold", help_text * 1e3, "ms", PEER, help_text / numpy, 1.3)
    with tempfile.TemporaryDirectory() as folder:
        knobs = ["--dir", "FWD_D", "--dt", "f16", "-o", f"{folder}/k"]
        conv = cold([*CONVGEN, "conv", "--no-cache", *knobs, LAYERS["res2a 3x3"]])
    yield Figure("convgen conv, cold, no --run", conv * 1e3, "ms", PEER, conv / numpy, 5.5)
    if triton is not None:
        yield from beside_triton(triton)


if __name__ == "__main__":
    main("Generating kernels", measure, path=("PYTHON", "one that has Triton, to compare with"))
