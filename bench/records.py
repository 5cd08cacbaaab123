"""CPU time of whole commands by `ir/record.py`, beside plain attrs in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.figures import Figure, main
from lib.processors import processor_seconds

ROOT = Path(__file__).parents[1]
ROOMS = {"gen": "convgen", "ir": "convgen/ir", "passes": "convgen/passes", "backends": "convgen/backends"}
LAYER = ("conv", "mb1ic16ih6oc16kh3ph1", "--dt", "f16", "--dir", "FWD_D", "--target", "gfx942", "-o", "k")
COMMANDS = {
    "targets": ("targets",),
    "conv, config chosen": LAYER,
    "conv, config given": (*LAYER, "--config", "tile=32x16x144 waves=2x1 mma=16x16x16 slots=1 taps=resident acc=v"),
}
ENDS = {"records": "", "attrs": "\ndefine, frozen = attrs.define, attrs.frozen\n"}  #: of record.py, by what it makes
ROUNDS = 5


def copied(folder: Path, end: str) -> Path:
    """Copy the packages under their installed names, with `end` at the end of record.py."""
    for room, name in ROOMS.items():
        shutil.copytree(ROOT / room, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "convgen" / "ir" / "record.py").open("a") as file:
        file.write(end)
    return folder


def seconds(packages: Path, command: Sequence[str]) -> float:
    """Seconds of processors that a fresh process takes."""
    environment = dict(os.environ, PYTHONPATH=str(packages), CONVGEN_CACHE="off")
    before = processor_seconds()
    run = [sys.executable, "-m", "convgen", *command]
    subprocess.run(run, env=environment, cwd=packages, check=True, capture_output=True)
    return processor_seconds() - before


def measure() -> Iterator[Figure]:
    """The quickest of some rounds of each command; the first round compiles the packages and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        packages = {name: copied(Path(folder) / name, end) for name, end in ENDS.items()}
        for name, command in COMMANDS.items():
            rounds = [{kind: seconds(at, command) for kind, at in packages.items()} for _ in range(ROUNDS + 1)][1:]
            records, plain = (min(taken[kind] for taken in rounds) for kind in ENDS)
            yield Figure(name, records, "s", "attrs", records / plain)


if __name__ == "__main__":
    main("CPU time of commands", measure)
