"""Times of convgen's kernels beside cuDNN's and cuBLAS's on one GPU, in one process and taking turns.

Tensors hold random numbers and have channels last. Calls rotate among input sets that are larger together than twice
the L2, in CUDA graphs; a round replays each competitor's graph once, and a row holds the medians of nine rounds and of
their ratios. Kernels of both sides only: nothing on the host is timed.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from convgen.ir.error import ConvgenError
from convgen.ir.layout.tags import LETTERS
from convgen.problem.grouping import OFFSETS
from convgen.problem.matmul import grouping_of, parse_problem
from convgen.run.launch_record import StoredTensor

TARGET = "sm_90a"
_TORCH = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "s8": "int8",
    "s32": "int32",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}
ROUNDS = 9
CALLS = 20  #: of a graph
_PEER = "peer"
_LEAST_BYTES = 1 << 27  #: bytes of all input sets together: twice the L2 of an H200

CONVOLUTIONS = (
    "ic64ih56oc64oh56kh3ph1",
    "ic128ih56oc128oh28kh3sh2ph1",
    "ic256ih56oc64oh56kh1",
    "ic64ih56oc256oh56kh1",
    "ic256ih14oc256oh14kh3ph1",
    "ic512ih7oc512oh7kh3ph1",
    "ic3ih224oc64oh112kh7sh2ph3",
    "g96ic96ih56oc96oh56kh7ph3",
    "g384ic384ih14oc384oh14kh7ph3",
)
GEMMS = ("2048x2048:2048x2048", "4096x4096:4096x4096", "8192x8192:8192x8192", "4864x4160:4160x8192")
_F8 = "f8_e4m3:f8_e4m3:bf16"
#: options of two of the products
_OTHER_TYPES = "--dt=bf16", "--dt=s8:s8:s32", f"--dt={_F8}", f"--dt={_F8} --attr-acc-mode=relaxed"
LINES = (
    *(f"gemm --dt=f16 --wtag=ba {shape}" for shape in GEMMS),
    *(f"gemm {types} --wtag=ba {shape}" for types in _OTHER_TYPES for shape in GEMMS[1:3]),
    *(
        f"conv --dt=f16 --dir={direction} --stag=axb --wtag=axb --dtag=axb mb{mb}{shape}"
        for shape in CONVOLUTIONS
        for mb in (32, 128)
        for direction in ("FWD_D", "BWD_D", "BWD_W")
    ),
)
_TF32 = "--dt=f32 --attr-fpmath=tf32"
#: eight of the layers with other types, and products of which no, one or both factors are contiguous along K; f32 is
#: multiplied as TF32 on both sides
TYPES = (
    *(
        f"conv {types} --dir={direction} --stag=axb --wtag=axb --dtag=axb mb32{shape}"
        for types in ("--dt=bf16", _TF32)
        for shape in CONVOLUTIONS[:8]
        for direction in ("FWD_D", "BWD_D", "BWD_W")
    ),
    *(
        f"gemm {_TF32} {tags} {shape}"
        for shape in (GEMMS[1], "8192x1024:1024x1024")
        for tags in ("--wtag=ba", "--wtag=ab", "--stag=ba --wtag=ab")
    ),
)
#: K and N of products with few rows: of Llama-3-8B's and a larger model's layers
_WEIGHTS = "4096x4096", "4096x14336", "14336x4096", "8192x8192"
_ROWS = 1, 8, 16, 32, 64, 128
DECODE = tuple(
    f"gemm --dt=f16 --wtag=ba {rows}x{weights.partition('x')[0]}:{weights}" for weights in _WEIGHTS for rows in _ROWS
)


def _groups(count: int, rows: int, k: int, n: int) -> str:
    """Return a product of groups of rows: some empty or small, the largest twice the average."""
    shares = [number * 37 % count for number in range(count)]  # each number below `count` once
    sizes = [share * rows // sum(shares) for share in shares]
    sizes[-1] += rows - sum(sizes)
    text = "+".join(map(str, sizes))
    return f"gemm --dt=bf16 --grouped=0:{count}:{text} --wtag=acb {rows}x{k}:{count}x{k}x{n}"


#: products of experts: Mixtral-8x7B's, and DeepSeek-V3's on one of eight GPUs; of many tokens, and of few
GROUPS = tuple(
    _groups(count, rows, k, n)
    for count, sizes, layers in (
        (8, (8192, 128), ((4096, 28672), (14336, 4096))),
        (32, (8192, 256), ((7168, 4096), (2048, 7168))),
    )
    for rows in sizes
    for k, n in layers
)


def generate(line: str, config: str | None, folder: str, registry: str | None = None) -> tuple[str, str]:
    """Write the code for a problem; return its path and config, or "" and the reason of a refusal.

    The config is `config`, else the registry's, else the chooser's.
    """
    from convgen import driver  # in a process of its own
    from convgen.backends import target as targets
    from convgen.run.files import write_code

    _, _, words = line.partition(" ")
    try:
        code = driver.compile(driver.build(parse_problem(words), TARGET, config=config, registry=registry))
    except ConvgenError as error:
        return "", str(error)
    stem = Path(folder) / hashlib.sha256(f"{line} {code.config}".encode()).hexdigest()[:16]
    family = targets.get(TARGET).family
    write_code(code, str(stem), family.text_suffix, family.object_suffix)
    return f"{stem}.launch.json", code.config


def in_turns(
    calls: Mapping[str, Sequence[Callable[[], object]]], torch: Any, rounds: int = ROUNDS
) -> list[dict[str, float]]:
    """Return the seconds of a call in each round, by competitor; each one's calls rotate among input sets."""
    graphs = {name: _graph(of_sets, torch) for name, of_sets in calls.items()}
    return [{name: _seconds(graph, torch) for name, graph in graphs.items()} for _ in range(rounds + 1)][1:]


def median(rounds: Sequence[Mapping[str, float]], figure: Callable[[Mapping[str, float]], float]) -> float:
    """Return the median of a figure of each round."""
    return statistics.median(map(figure, rounds))


def _seconds(graph: Any, torch: Any) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    graph.replay()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / CALLS


def _graph(calls: Sequence[Callable[[], object]], torch: Any) -> Any:
    """Return a graph of `CALLS` calls that rotate among input sets, after a warm-up outside it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in (*calls, *calls):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(CALLS):
            calls[number % len(calls)]()
    return graph


def strides(stored: StoredTensor) -> list[int]:
    """Return the strides of a tensor in a plain layout, which has a block for each dimension, in elements."""
    by_dim = {block.dim: block.stride for block in stored.layout.blocks}
    return [by_dim[dim] for dim in LETTERS[: len(stored.dims)]]


def _tensors(kernel: Any, problem: Any, torch: Any) -> dict[str, Any]:
    """Return fresh random tensors for all inputs and outputs of a kernel, with the strides of its launch record.

    The ends of groups are the problem's.
    """
    found = {}
    for name in (*kernel.program.inputs, *kernel.program.outputs):
        stored = kernel.program.record.buffers[name].tensor
        dtype = getattr(torch, _TORCH[stored.dtype])
        made = torch.empty_strided(stored.dims, strides(stored), dtype=dtype, device="cuda")
        found[name] = made.copy_(_random(stored.dims, dtype, torch))
    if grouping := grouping_of(problem):
        found[OFFSETS].copy_(torch.tensor(grouping.ends, dtype=torch.int32))
    return found


def _random(dims: Sequence[int], dtype: Any, torch: Any) -> Any:
    """Return random numbers of a type: normal ones of variance 1/64, or integers from -8 to 8."""
    if dtype.is_floating_point:
        return (torch.randn(dims, device="cuda") / 8).to(dtype)
    return torch.randint(-8, 9, dims, device="cuda", dtype=dtype)


def _peer(problem: Any, given: dict[str, Any], torch: Any) -> Callable[[], object]:
    """Return a call of cuBLAS or cuDNN for a problem, on the tensors of convgen's kernel."""
    from convgen.problem.conv import Conv, Direction

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = problem.fpmath == "tf32"
    if not isinstance(problem, Conv):
        src, wei, dst = (given[name] for name in ("src", "wei", "dst"))
        if problem.grouping:
            return lambda: torch._grouped_mm(src, wei, offs=given[OFFSETS], out_dtype=dst.dtype)
        if not src.is_floating_point():
            return lambda: torch._int_mm(src, wei, out=dst)
        if src.element_size() == 1:
            one, fast = torch.ones((), device="cuda"), problem.acc_mode == "relaxed"
            return lambda: torch._scaled_mm(src, wei, one, one, out_dtype=dst.dtype, use_fast_accum=fast)
        return lambda: torch.mm(src, wei, out=dst)
    given = {name.removeprefix("diff_"): tensor for name, tensor in given.items()}
    spatial = problem.axes[-(problem.ndims - 2) :]
    strides, pads, dilations = ([getattr(axis, f) for axis in spatial] for f in ("s", "p", "d"))
    dilations = [1 + d for d in dilations]
    wei = given["wei"]
    wei = wei.flatten(0, 1) if problem.has_groups else wei
    where = strides, pads, dilations
    if problem.direction.is_forward:
        conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[len(spatial) - 1]
        return lambda: conv(given["src"], wei, None, *where, problem.groups)
    mask = [problem.direction is Direction.BWD_D, problem.direction is not Direction.BWD_D, False]
    backward = torch.ops.aten.convolution_backward
    common = None, *where, False, [0] * len(spatial), problem.groups, mask
    return lambda: backward(given["dst"], given["src"], wei, *common)


def libraries(problem: Any, sets: Sequence[dict[str, Any]], torch: Any) -> list[Callable[[], object]]:
    """Return a call of cuBLAS or cuDNN for each input set."""
    return [_peer(problem, given, torch) for given in sets]


def measure(
    line: str, paths: Mapping[str, str], torch: Any, *, peers: Any = libraries, rounds: int = ROUNDS
) -> dict[str, dict[str, float]]:
    """Return the medians of several kernels of a problem: microseconds of both sides, and the ratio of their times.

    `paths` has the launch record of each kernel; all of them and the peer take turns on the same tensors.
    """
    import convgen as cg

    problem = parse_problem(line.partition(" ")[2])
    kernels = {name: cg.load(path, device="cuda:0") for name, path in paths.items()}
    one = next(iter(kernels.values()))
    first = _tensors(one, problem, torch)
    count = max(2, -(-_LEAST_BYTES // sum(t.numel() * t.element_size() for t in first.values())))
    sets = [first, *(_tensors(one, problem, torch) for _ in range(min(count, CALLS) - 1))]
    names = {*one.program.inputs, *one.program.outputs}

    def ours(kernel: Any, given: dict[str, Any]) -> Callable[[], object]:
        taken = {name: tensor for name, tensor in given.items() if name in names}
        return lambda: kernel(**taken, stream=torch.cuda.current_stream())

    calls = {name: [ours(kernel, given) for given in sets] for name, kernel in kernels.items()}
    calls[_PEER] = peers(problem, sets, torch)
    times = in_turns(calls, torch, rounds)
    for kernel in kernels.values():
        kernel.unload()
    return {name: _figures(name, times) for name in kernels}


def _figures(name: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        "ours_us": median(rounds, lambda each: each[name] * 1e6),
        "peer_us": median(rounds, lambda each: each[_PEER] * 1e6),
        "ratio": median(rounds, lambda each: each[_PEER] / each[name]),
    }


def times(
    lines: Sequence[str], config: str | None, processes: int, peers: Any = libraries, registry: str | None = None
) -> list[dict[str, Any]]:
    """Return a row for each problem: its config and microseconds, or the reason of a refusal.

    `peers` returns the calls of the other side for a problem and its input sets. Configs are as `generate` says.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            count = len(lines)
            made = pool.map(generate, lines, [config] * count, [folder] * count, [registry] * count)
            codes = list(track(made, "generate", total=count))
        import torch

        torch.backends.cudnn.benchmark = True
        for line, (path, chosen) in track(list(zip(lines, codes)), "measure"):
            figures = measure(line, {chosen: path}, torch, peers=peers)[chosen] if path else {"refused": chosen}
            rows.append({"problem": line, "config": chosen if path else ""} | figures)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for a terminal."""
    shown = Table("problem", "convgen us", "peer us", "peer / convgen", "config")
    for row in rows:
        figures = [f"{row[name]:.2f}" if name in row else "-" for name in ("ours_us", "peer_us", "ratio")]
        shown.add_row(row["problem"], *figures, row["config"] or row["refused"])
    return shown
