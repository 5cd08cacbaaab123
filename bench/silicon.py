"""Run everything that needs a GPU: instructions, uses, problems, compute-sanitizer, times beside cuDNN and cuBLAS.

    python bench/silicon.py [--write docs/silicon.json] [--parts PART,...]
    python bench/silicon.py --parts times [--config CONFIG] [LINE ...]

Parts: `instructions` and `sums` (results of single instructions, and of products of random floats, equal the recorded
ones, or `--record` them), `uses` (kernels called by torch, in a graph, from C and from the command line), `problems`
(layers of tests/data/problems in three directions and random problems, all exact), `sanitizer` (compute-sanitizer's
four tools on 40 of the random problems), `times`, `models` (times of layers of models that no fit has seen).

Each LINE is a problem as benchdnn writes it (`conv --dt=f16 --dir=FWD_D mb32ic64...`, `gemm --dt=f16 256x256:256x256`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

from lib import cuda_checks, cuda_sums, cuda_times, cuda_uses, model_layers
from rich.console import Console

from convgen.device.devices import open_device
from convgen.ir.error import ConvgenError

PARTS = ("instructions", "sums", "uses", "problems", "sanitizer", "times", "models")
_SANITIZED = 40  #: problems


def where(console: Console) -> dict[str, Any]:
    """Return what the figures were taken with: card, driver, libraries and date."""
    import torch

    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card, _, driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().partition(", ")
    libraries = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
    found = {"card": card, "driver": driver, **libraries, "date": date.today().isoformat()}
    console.print(", ".join(f"{name} {value}" for name, value in found.items()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", nargs="*", metavar="LINE")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--config", help="the config of every timed problem; the chooser's by default")
    parser.add_argument("--write", type=Path, metavar="FILE", help="JSON of all figures; keeps those of other parts")
    parser.add_argument("--record", action="store_true", help="record results of instructions in tests/data/silicon")
    parser.add_argument("--processes", type=int, default=12, help="for generation and checks")
    parser.add_argument("--checked", type=Path, help=argparse.SUPPRESS)  # under compute-sanitizer
    asked = parser.parse_args(arguments)
    if asked.checked:
        cuda_checks.run_checked(cuda_times.TARGET, asked.checked, lambda line: print(line, flush=True))
        return 0
    try:
        device = open_device(cuda_checks.DEVICE)
    except ConvgenError as error:
        print(f"no GPU, nothing to run: {error}")
        return 0
    if cuda_times.TARGET not in device.runs:
        print(f"given a GPU of {device.runs[-1]}, wanted one of {cuda_times.TARGET}, for which results are recorded")
        return 2
    console, parts = Console(), asked.parts.split(",")
    found: dict[str, Any] = json.loads(asked.write.read_text()) if asked.write and asked.write.exists() else {}
    found["where"] = where(console)
    wrong = False
    for part in parts:
        begin = perf_counter()
        if part == "instructions":
            found[part] = cuda_checks.instructions(record=asked.record)
            wrong |= bool(found[part]["differ"])
            console.print(found[part])
        elif part == "sums":
            found[part] = cuda_sums.sums(record=asked.record)
            wrong |= bool(found[part]["differ"])
            console.print(found[part])
        elif part == "uses":
            found[part] = cuda_uses.uses()
            wrong |= any(outcome != "right" for outcome in found[part].values())
            console.print(found[part])
        elif part == "problems":
            for name, cases in (("drawn", cuda_checks.drawn()), ("listed", cuda_checks.listed())):
                rows = cuda_checks.check_all(cuda_times.TARGET, cases, name, asked.processes)
                found[name] = cuda_checks.summary(rows)
                wrong |= any(row["device"] not in ("exact", "refused") for row in found[name]["other"])
                console.print(name, found[name])
        elif part == "sanitizer":
            if not shutil.which("compute-sanitizer"):
                console.print("no compute-sanitizer on PATH: part sanitizer is left out")
                continue
            cases = cuda_checks.drawn()
            cases = cases[:: len(cases) // _SANITIZED][:_SANITIZED]
            found[part] = cuda_checks.sanitize(Path(__file__), cases, asked.processes)
            wrong |= any(row["errors"] for row in found[part].values())
            console.print(found[part])
        elif part in ("times", "models"):
            lines = cuda_times.LINES if part == "times" else model_layers.LINES
            found[part] = cuda_times.times(asked.lines or lines, asked.config, asked.processes)
            console.print(cuda_times.table(found[part]), soft_wrap=True)
        else:
            parser.error(f"given --parts {part}, wanted some of {', '.join(PARTS)}")
        found.setdefault("seconds", {})[part] = round(perf_counter() - begin)
        if asked.write:  # after each part: a later one may take too long
            asked.write.write_text(json.dumps(found, indent=1) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
