"""Compare kernels of other compilers for the cases of `whole.py` with convgen's, all by one model (`convgen profile`).

FOLDER holds code objects and `manifest.json`, a list with an entry for each variant of a case: `peer`, `case`,
`target`, `config`, and `launches`, each with the keys of a launch in an entry of `foreign.py`. A peer's fastest variant
counts. `triton_kernels.py` and `iree_kernels.py` make such folders.

    python bench/peers.py FOLDER --target gfx942
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import whole
from lib.cases import read_arguments
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.target import get
from convgen.ir.error import ConvgenError
from convgen.ir.record import as_dict
from convgen.profile import launch_times
from convgen.run.prepared import Prepared

Entry = Mapping[str, Any]
_BITS = {"fp16": 16, "fp32": 32, "i8": 8}


@attrs.frozen
class Timed:
    """A peer's kernels for a case, timed by the model."""

    us: float
    config: str
    bound: str


def launches_of(folder: Path, entry: Entry) -> list[Prepared]:
    """An entry's launches, each of a code object of its own."""
    return [_prepared(folder / each["file"], each) for each in entry["launches"]]


def _prepared(path: Path, launch: Entry) -> Prepared:
    content = path.read_bytes()
    kernel = CodeObject.load(content).kernel(launch["kernel"])
    arguments = read_arguments(launch, [int(each[".offset"]) for each in kernel.metadata.get(".args", ())])
    tensors = {a.name: a for a in arguments if a.shape}
    passed = [
        KernelArg(a.offset, 8, a.name) if a.shape else KernelArg(a.offset, len(a.encoded), a.encoded) for a in arguments
    ]
    request = LaunchRequest(
        launch["kernel"], tuple(launch["grid"]), tuple(launch["block"]), tuple(passed), launch["shared"]
    )

    def buffers() -> dict[str, Any]:
        return {name: np.zeros(int(np.prod(a.shape)) * _BITS[a.dtype] // 8, np.uint8) for name, a in tensors.items()}

    return Prepared(path.name, content, (request,), buffers)


def timed(folder: Path, entry: Entry) -> Timed:
    """Return the time of an entry's launches, one after another."""
    total, longest = 0.0, 0.0
    bound = ""
    for number, each in enumerate(launches_of(folder, entry)):
        alone = launch_times.profile(each)
        caches = get(entry["target"]).facts.caches
        time = launch_times.time_of(alone.longest.profile, alone.chip, caches, further=number > 0)
        total += time.total
        if time.total > longest:
            longest, bound = time.total, time.bound
    return Timed(total, entry["config"], bound)


def best(folder: Path, entries: Sequence[Entry]) -> Timed | None:
    """Return the fastest entry; None if the model supports none of them."""
    found = []
    for entry in entries:
        try:
            found.append(timed(folder, entry))
        except ConvgenError as error:
            Console(stderr=True).print(f"{entry['peer']} {entry['case']} {entry['config']}: {error}")
    return min(found, key=lambda each: each.us, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose `name direction type` contains it")
    parser.add_argument("--json", action="store_true", help="print one JSON object a case, too")
    options = parser.parse_args()
    variants: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in json.loads((options.folder / "manifest.json").read_text()):
        if entry["target"] == options.target:
            variants[entry["case"], entry["peer"]].append(entry)
    table = Table("case", "convgen us", "peer", "us", "ratio", "its config", "its bound", title=options.target)
    ratios = []
    for case in track(whole.CASES, transient=True, console=Console(stderr=True)):
        name = case.title
        peers = sorted(peer for known, peer in variants if known == name and options.only in name)
        ours = whole.row(case, options.target).us if peers else 0.0
        for peer in peers:
            theirs = best(options.folder, variants[name, peer])
            if theirs is None:
                continue
            ratios.append(ours / theirs.us)
            if options.json:
                print(json.dumps({"case": name, "convgen_us": ours, "peer": peer, **as_dict(theirs)}), flush=True)
            table.add_row(
                name, f"{ours:.1f}", peer, f"{theirs.us:.1f}", f"{ratios[-1]:.2f}", theirs.config, theirs.bound
            )
    Console(width=160).print(table)
    if ratios:
        ahead = sum(ratio < 1 for ratio in ratios)
        mean = np.exp(np.mean(np.log(ratios)))
        print(f"{options.target}: convgen / peer {mean:.3f} in the geometric mean, ahead in {ahead} of {len(ratios)}")


if __name__ == "__main__":
    main()
