"""Time many configs of each problem on one GPU: what a chooser is fitted to, and judged by.

    python bench/configs.py --write rows.jsonl [--configs 16] [--seconds 400] --from LIST|FILE ...
    python bench/configs.py --write rows.jsonl --pairs FILE

Configs are those of `convgen tune`: the chooser's best, and the best of other kinds. LIST is `times`, `models` or
`decode` of `silicon.py`; FILE has a line of those for each problem. `--pairs` takes lines of a problem, a tab and a
config. Kernels of a problem take turns with the peer on inputs that are not in L2 (`lib/cuda_times.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from lib import cuda_times, model_layers

LISTS = {"times": cuda_times.LINES, "models": model_layers.LINES, "decode": cuda_times.DECODE}
_ROUNDS = 5

Pair = tuple[str, str]  #: problem and config


def configs_of(line: str, count: int) -> list[Pair]:
    """Return a problem with each of its configs that are worth timing."""
    from convgen.problem.matmul import parse_problem  # in a process of its own
    from convgen.tune import trials

    configs = trials.worth_timing(parse_problem(line.partition(" ")[2]), cuda_times.TARGET, count)
    return [(line, str(config)) for config in configs]


def generated(pair: Pair, folder: str) -> tuple[str, str]:
    """Write the code of a config; return its path and config, or "" and why there is none."""
    try:
        return cuda_times.generate(*pair, folder)
    except Exception as error:  # an internal error is a row, too
        return "", f"{type(error).__name__}: {error}"


def lines_of(names: Sequence[str]) -> list[str]:
    """Return the problems of lists and files."""
    return [line for name in names for line in LISTS.get(name) or Path(name).read_text().splitlines() if line]


def pairs_of(asked: argparse.Namespace, pool: ProcessPoolExecutor) -> list[Pair]:
    """Return all problems with their configs, those of a problem together."""
    if asked.pairs:
        found = [line.partition("\t")[::2] for line in asked.pairs.read_text().splitlines()]
    else:
        lines = lines_of(asked.sources)
        found = [pair for pairs in pool.map(configs_of, lines, [asked.configs] * len(lines)) for pair in pairs]
    together: dict[str, dict[Pair, None]] = {}
    for pair in found:
        together.setdefault(pair[0], {})[pair] = None
    return [pair for pairs in together.values() for pair in pairs]


def by_problem(pairs: Sequence[Pair], pool: ProcessPoolExecutor, folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each problem with the path of each config's code, or a refusal, as soon as all of them are generated."""
    left: dict[str, dict[str, str]] = defaultdict(dict)
    counts = Counter(line for line, _ in pairs)
    futures: dict[Future[tuple[str, str]], Pair] = {pool.submit(generated, pair, folder): pair for pair in pairs}
    for future in as_completed(futures):
        (line, config), (path, why) = futures[future], future.result()
        left[line][config] = path or f"refused: {why}"
        if len(left[line]) == counts[line]:
            yield line, left.pop(line)


def rows_of(line: str, paths: dict[str, str], torch: Any) -> list[dict[str, Any]]:
    """Return a row for each config of a problem: its figures, or why there are none."""
    code = {config: path for config, path in paths.items() if path.endswith(".json")}
    found: dict[str, dict[str, Any]] = {config: {"refused": path} for config, path in paths.items()}
    try:
        found |= cuda_times.measure(line, code, torch, rounds=_ROUNDS) if code else {}
    except RuntimeError as error:  # the peer lacks the problem
        found = {config: {"refused": f"{type(error).__name__}: {error}"} for config in paths}
    return [{"problem": line, "config": config, **each} for config, each in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", dest="sources", nargs="+", default=[], metavar="LIST|FILE")
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="lines of a problem, a tab and a config")
    parser.add_argument("--configs", type=int, default=16, help="of a problem")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which no further problem is timed")
    parser.add_argument("--processes", type=int, default=16, help="that generate")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="a JSON object a line")
    asked = parser.parse_args()
    begin, count = perf_counter(), 0
    pool = ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn"))
    with tempfile.TemporaryDirectory() as folder, asked.write.open("w") as out, pool:
        pairs = pairs_of(asked, pool)
        print(f"{len(pairs)} configs in {perf_counter() - begin:.0f} s")
        import torch

        torch.backends.cudnn.benchmark = True
        for line, paths in by_problem(pairs, pool, folder):
            rows = rows_of(line, paths, torch)
            out.writelines(json.dumps(row) + "\n" for row in rows)
            out.flush()
            count += len(rows)
            if perf_counter() - begin > asked.seconds:
                pool.shutdown(cancel_futures=True)
                break
    print(f"{count} of {len(pairs)} configs timed in {perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
