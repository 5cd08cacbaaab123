"""Times and errors of whole models of torch with convgen's kernels, beside torch's own, on one GPU.

    python bench/torch_models.py [--quick] [--json FILE] [MODEL ...]

Models have random weights, f16 (batch norms f32) and channels last; torch searches among cuDNN's algorithms. Both sides
take turns: a round times one step of each, eagerly and as a CUDA graph; a row holds the medians. A step is a forward
pass without gradients, or forward pass, loss and backward pass. Errors are those of the results (of a training step:
of the gradients of the parameters, of which the median counts) relative to the model in f32: the largest difference by
the largest value, and the mean by the mean. CONVGEN_REGISTRY=h200 takes measured configs. On `--device cpu` torch
computes both sides: a test of this script.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from convgen.ir.record import frozen

ROUNDS = 15
_SIDES = ("convgen", "torch")
_LOSS_SCALE = 1024.0  #: keeps gradients of f16 above its denormals


@frozen
class Case:
    """A model, its input's sizes, and whether a step trains. `network` is a class of `lib.torch_networks`."""

    name: str
    network: str
    input: tuple[int, ...]
    trains: bool = False
    quick: bool = True  #: whether --quick has it


CASES = (
    Case("resnet50-infer-64", "ResNet50", (64, 3, 224, 224)),
    Case("resnet50-train-64", "ResNet50", (64, 3, 224, 224), trains=True),
    Case("unet-infer-2", "UNet", (2, 4, 64, 64)),
    Case("vae-decode-256", "Decoder", (1, 4, 32, 32)),
    Case("vae-decode-512", "Decoder", (1, 4, 64, 64), quick=False),
    Case("unet-train-2", "UNet", (2, 4, 64, 64), trains=True, quick=False),
    Case("resnet50-infer-128", "ResNet50", (128, 3, 224, 224), quick=False),
    Case("resnet50-train-128", "ResNet50", (128, 3, 224, 224), trains=True, quick=False),
)


def build(case: Case, device: str) -> tuple[Any, Any]:
    """Return the model in f32 and its input, channels last, on a device."""
    import torch
    from lib import torch_networks

    torch.manual_seed(0)
    model = getattr(torch_networks, case.network)().to(device, memory_format=torch.channels_last)
    x = torch.randn(case.input, device=device).to(memory_format=torch.channels_last)
    return model.train(case.trains), x


def in_halves(model: Any) -> Any:
    """Return a copy of a model in f16 with batch norms in f32, as cuDNN wants them beside f16 tensors."""
    import torch

    model = copy.deepcopy(model).half()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.float()
    return model


def step_of(model: Any, x: Any, trains: bool) -> Callable[[], list[Any]]:
    """Return a function that executes a step and returns its result, or the gradients of all parameters."""
    import torch

    parameters = list(model.parameters())

    def infer() -> list[Any]:
        with torch.no_grad():
            return [model(x)]

    def train() -> list[Any]:
        loss = model(x).float().square().mean() * _LOSS_SCALE
        return list(torch.autograd.grad(loss, parameters))

    return train if trains else infer


def errors(results: Sequence[Any], exact: Sequence[Any]) -> tuple[float, float]:
    """Return the largest difference by the largest value, and the mean by the mean: medians of the tensors."""
    largest, means = [], []
    for result, right in zip(results, exact, strict=True):
        difference, size = (result.double() - right.double()).abs(), right.double().abs().clamp_min(1e-12)
        largest.append(float(difference.max() / size.max()))
        means.append(float(difference.mean() / size.mean()))
    return statistics.median(largest), statistics.median(means)


def milliseconds(call: Callable[[], Any], device: str) -> float:
    """Return how long a call takes, on the device if there is one."""
    if device == "cpu":
        begun = perf_counter()
        call()
        return (perf_counter() - begun) * 1e3
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def graph_of(step: Callable[[], Any]) -> Any:
    """Return a CUDA graph of a step, after calls outside it that compile and choose algorithms."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


def in_turns(calls: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call; a first round does not count."""
    times = [{name: milliseconds(call, device) for name, call in calls.items()} for _ in range(rounds + 1)][1:]
    return {name: statistics.median(each[name] for each in times) for name in calls}


def compile_ahead(step: Callable[[], Any], processes: int) -> float:
    """Compile all problems of a step in parallel, into the compile cache; return the seconds."""
    import convgen as cg

    begun = perf_counter()
    with cg.torch.prepared(processes):
        step()
    return perf_counter() - begun


def exact_results(model: Any, x: Any, trains: bool) -> list[Any]:
    """Return the results of a step in f32, without TF32 and without a search among algorithms."""
    from torch import backends

    settings = (backends.cudnn, "allow_tf32"), (backends.cudnn, "benchmark"), (backends.cuda.matmul, "allow_tf32")
    before = [getattr(module, name) for module, name in settings]
    for module, name in settings:
        setattr(module, name, False)
    try:
        return step_of(model, x, trains)()
    finally:
        for (module, name), value in zip(settings, before):
            setattr(module, name, value)


def measure(row: dict[str, Any], case: Case, device: str, processes: int, rounds: int) -> None:
    """Add to a row: milliseconds of a step eagerly and as a graph, errors, calls by convgen and by torch."""
    import convgen as cg

    model, x = build(case, device)
    halves = {"torch": in_halves(model), "convgen": cg.torch.replace(in_halves(model))}
    steps = {side: step_of(halves[side], x.half(), case.trains) for side in _SIDES}
    row["compile_s"] = compile_ahead(steps["convgen"], processes)
    begun = perf_counter()
    first = {side: steps[side]() for side in _SIDES}
    row["load_s"] = perf_counter() - begun
    rows = cg.torch.report(halves["convgen"]).rows
    row["calls"] = {"convgen": sum(r.by_convgen for r in rows), "torch": sum(r.by_torch for r in rows)}
    row["refused"] = {r.layer: list(r.reasons) for r in rows if r.reasons}
    exact = exact_results(model, x, case.trains)
    row["errors"] = {side: errors(first[side], exact) for side in _SIDES}
    del model, exact, first
    row["eager_ms"] = in_turns(dict(steps), device, rounds)
    if device != "cpu":
        graphs = {side: graph_of(steps[side]) for side in _SIDES}
        row["graph_ms"] = in_turns({side: graph.replay for side, graph in graphs.items()}, device, rounds)


def attempt(case: Case, device: str, processes: int, rounds: int) -> dict[str, Any]:
    """Return the row of a case, as far as it was measured, with what went wrong as its `error`."""
    row: dict[str, Any] = {"model": case.name}
    try:
        measure(row, case, device, processes, rounds)
    except Exception as error:  # the next model may work
        traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"
    if device != "cpu":
        import torch

        with suppress(RuntimeError):  # after a fault the device is lost
            torch.cuda.empty_cache()
    return row


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for a terminal; pairs are convgen's figure and torch's."""
    shown = Table("model", "graph ms", "speed", "eager ms", "max error", "mean error", "calls", "compile, load s")
    for row in rows:
        graph, found = row.get("graph_ms", {}), row.get("errors", {})
        shown.add_row(
            row["model"],
            _pair(graph, ".3f"),
            f"{graph['torch'] / graph['convgen']:.3f}" if graph else "-",
            _pair(row.get("eager_ms", {}), ".3f"),
            *(_pair({side: found[side][number] for side in found}, ".1e") for number in (0, 1)),
            _pair(row.get("calls", {}), "d"),
            ", ".join(f"{row[name]:.1f}" for name in ("compile_s", "load_s") if name in row),
        )
    return shown


def _pair(figures: dict[str, Any], form: str) -> str:
    return " / ".join(format(figures[side], form) if side in figures else "-" for side in _SIDES)


def notes(row: dict[str, Any]) -> list[str]:
    """Return a line for each reason for which torch computed layers of convgen's side, and for an error."""
    reasons: dict[str, list[str]] = {}
    for layer, whys in row.get("refused", {}).items():
        for why in whys:
            reasons.setdefault(why, []).append(layer)
    lines = [f"{row['model']}: torch computed {', '.join(layers)}: {why}" for why, layers in reasons.items()]
    return lines + ([f"{row['model']}: {row['error']}"] if "error" in row else [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"some of {', '.join(case.name for case in CASES)}")
    parser.add_argument("--quick", action="store_true", help="fewer models and rounds")
    parser.add_argument("--limit", type=float, default=None, metavar="SECONDS", help="starts no model later than that")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, after each model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile")
    asked = parser.parse_args(arguments)
    chosen = [
        case for case in CASES if case.name in asked.models or (not asked.models and (case.quick or not asked.quick))
    ]
    limit = asked.limit if asked.limit is not None else 75.0 if asked.quick else float("inf")
    console, rows, begun = Console(), [], perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CONVGEN_CACHE", folder)
        import torch

        torch.backends.cudnn.benchmark = True
        for case in chosen:
            if perf_counter() - begun > limit:
                row = {"model": case.name, "error": f"not started: {limit:g} s were over"}
            else:
                row = attempt(case, asked.device, asked.processes, ROUNDS // 3 if asked.quick else ROUNDS)
            rows.append(row)
            print(json.dumps({name: value for name, value in row.items() if name != "refused"}), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=2) + "\n")
    console.print(table(rows))
    for row in rows:
        for note in notes(row):
            console.print(note, soft_wrap=True, markup=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
