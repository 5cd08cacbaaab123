"""Run everything that needs a GPU: instructions, uses, problems, compute-sanitizer, times beside cuDNN and cuBLAS.

    python bench/silicon.py [--write docs/silicon.json] [--parts PART,...]
    python bench/silicon.py --parts times [--config CONFIG] [LINE ...]

Parts: `instructions` and `sums` (results of single instructions, and of products of random floats, equal the recorded
ones, or `--record` them), `uses` (kernels called by torch, in a graph, from C and from the command line), `drawn` and
`listed` (random problems; layers of tests/data/problems in three directions), `sanitizer` (compute-sanitizer's
four tools on 40 of the random problems), `times`, `tuned` (the problems of `times` and `decode` with the configs of the
registry of an H200), `models` (times of layers of models that no fit has seen), `types` (layers with bf16 and TF32),
`decode` (products with few rows), `groups` (products of experts), `attention` (`examples/attention.py` beside torch's),
`triton` (all products beside Triton's).

Each LINE is a problem as benchdnn writes it (`conv --dt=f16 --dir=FWD_D mb32ic64...`, `gemm --dt=f16 256x256:256x256`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from lib import cuda_attention, cuda_checks, cuda_paged, cuda_sums, cuda_times, cuda_uses, model_layers
from rich.console import Console

from convgen.device.devices import open_device
from convgen.ir.error import ConvgenError

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


def _checked(figures: dict[str, Any], wrong: bool, console: Console) -> tuple[Any, bool]:
    console.print(figures)
    return figures, wrong


def _instructions(asked: Namespace, console: Console) -> tuple[Any, bool]:
    figures = cuda_checks.instructions(record=asked.record)
    return _checked(figures, bool(figures["differ"]), console)


def _sums(asked: Namespace, console: Console) -> tuple[Any, bool]:
    figures = cuda_sums.sums(record=asked.record)
    return _checked(figures, bool(figures["differ"]), console)


def _uses(asked: Namespace, console: Console) -> tuple[Any, bool]:
    figures = cuda_uses.uses()
    return _checked(figures, any(outcome != "right" for outcome in figures.values()), console)


def _problems(name: str, cases: Callable[[], Any], asked: Namespace, console: Console) -> tuple[Any, bool]:
    figures = cuda_checks.summary(cuda_checks.check_all(cuda_times.TARGET, cases(), name, asked.processes))
    return _checked(figures, any(row["device"] not in ("exact", "refused") for row in figures["other"]), console)


def _sanitizer(asked: Namespace, console: Console) -> tuple[Any, bool]:
    if not shutil.which("compute-sanitizer"):
        console.print("no compute-sanitizer on PATH: part sanitizer is left out")
        return None, False
    cases = cuda_checks.drawn()
    cases = cases[:: len(cases) // _SANITIZED][:_SANITIZED]
    figures = cuda_checks.sanitize(Path(__file__), cases, asked.processes)
    return _checked(figures, any(row["errors"] for row in figures.values()), console)


def _times(lines: Sequence[str], asked: Namespace, console: Console, registry: str | None = None) -> tuple[Any, bool]:
    rows = cuda_times.times(asked.lines or lines, asked.config, asked.processes, registry=registry)
    console.print(cuda_times.table(rows), soft_wrap=True)
    return rows, False


def _triton(asked: Namespace, console: Console) -> tuple[Any, bool]:
    try:
        from lib import cuda_triton
    except ImportError:
        console.print("no Triton: part triton is left out")
        return None, False
    products = (line for line in cuda_times.LINES if line.startswith("gemm"))
    lines = asked.lines or [*products, *cuda_times.DECODE, *cuda_times.GROUPS]
    rows = cuda_times.times(lines, asked.config, asked.processes, cuda_triton.calls)
    console.print(cuda_times.table(rows), soft_wrap=True)
    return rows, False


def _attention(asked: Namespace, console: Console) -> tuple[Any, bool]:
    rows = cuda_attention.times(asked.processes) + cuda_paged.times(asked.processes)
    console.print(cuda_attention.table(rows), soft_wrap=True)
    return rows, any(row.get("error", 0) > cuda_attention.MOST_ERROR for row in rows)


#: Part -> function that returns its figures, None if it is left out, and whether anything is wrong.
PARTS: Mapping[str, Callable[[Namespace, Console], tuple[Any, bool]]] = {
    "instructions": _instructions,
    "sums": _sums,
    "uses": _uses,
    "drawn": partial(_problems, "drawn", cuda_checks.drawn),
    "listed": partial(_problems, "listed", cuda_checks.listed),
    "sanitizer": _sanitizer,
    "times": partial(_times, cuda_times.LINES),
    "tuned": partial(_times, (*cuda_times.LINES, *cuda_times.DECODE), registry="h200"),
    "models": partial(_times, model_layers.LINES),
    "types": partial(_times, cuda_times.TYPES),
    "decode": partial(_times, cuda_times.DECODE),
    "groups": partial(_times, cuda_times.GROUPS),
    "attention": _attention,
    "triton": _triton,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", nargs="*", metavar="LINE", help="problems to time; FILE keeps the rows of others")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument(
        "--config", help="the config of every timed problem; by default the chooser's, in part tuned the registry's"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="JSON of all figures; keeps those of other parts")
    parser.add_argument("--record", action="store_true", help="record results of instructions in tests/data/silicon")
    parser.add_argument("--processes", type=int, default=12, help="for generation and checks")
    parser.add_argument("--checked", type=Path, help=argparse.SUPPRESS)  # under compute-sanitizer
    asked = parser.parse_args(arguments)
    if asked.checked:
        cuda_checks.run_checked(cuda_times.TARGET, asked.checked, lambda line: print(line, flush=True))
        return 0
    parts = asked.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"given --parts {part}, wanted some of {', '.join(PARTS)}")
    try:
        device = open_device(cuda_checks.DEVICE)
    except ConvgenError as error:
        print(f"no GPU, nothing to run: {error}")
        return 0
    if cuda_times.TARGET not in device.runs:
        print(f"given a GPU of {device.runs[-1]}, wanted one of {cuda_times.TARGET}, for which results are recorded")
        return 2
    return int(_run(parts, asked, Console()))


def _run(parts: Sequence[str], asked: Namespace, console: Console) -> bool:
    """Run parts, and write all figures after each: a later one may take too long. Return whether anything is wrong."""
    found: dict[str, Any] = json.loads(asked.write.read_text()) if asked.write and asked.write.exists() else {}
    found["where"] = where(console)
    any_wrong = False
    for part in parts:
        begin = perf_counter()
        figures, wrong = PARTS[part](asked, console)
        any_wrong |= wrong
        if figures is not None:
            found[part] = _with_others(found.get(part, ()), figures) if asked.lines else figures
            found.setdefault("seconds", {})[part] = round(perf_counter() - begin)
        if asked.write:
            asked.write.write_text(json.dumps(found, indent=1) + "\n")
    return any_wrong


def _with_others(before: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run, in their order, with those of this one in place of theirs or behind them."""
    by_problem = {row["problem"]: row for row in before} | {row["problem"]: row for row in rows}
    return list(by_problem.values())


if __name__ == "__main__":
    sys.exit(main())
