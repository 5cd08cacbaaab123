"""Times of `paged_attention` and `paged_decode` of `examples/attention.py` on one GPU, beside torch's flash kernels.

torch's kernels read keys and values that lie side by side, convgen's the same numbers through a table of pages in
random order. Kernels of both sides only, in CUDA graphs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lib.cuda_times import TARGET, in_turns, median
from rich.progress import track

sys.path.append(str(Path(__file__).parents[2]))

from convgen.ir.error import ConvgenError
from convgen.ir.record import frozen

_SETS = 2  #: input sets
_MIXED = 4096, 3072, 2048, 2048, 1536, 1024, 1024, 512, 512, 256, 256


@frozen
class Case:
    """The keys of each sequence, and how many of their queries are computed: all, or the last one."""

    keys: tuple[int, ...]
    decode: bool
    head: int  #: columns
    heads: int
    of_keys: int  #: heads of keys
    page: int  #: rows
    bm: int
    bn: int
    slots: int

    @property
    def starts(self) -> list[int]:
        """Return the first query of each sequence, and the end of the last."""
        return list(accumulate((1 if self.decode else keys for keys in self.keys), initial=0))

    @property
    def pages(self) -> int:
        """Return the pages of the longest sequence."""
        return -(-max(self.keys) // self.page)

    @property
    def flop(self) -> float:
        """Return the floating-point operations of both products."""
        pairs = sum(self.keys) if self.decode else sum(keys * keys / 2 for keys in self.keys)
        return 4.0 * self.heads * pairs * self.head

    def __str__(self) -> str:
        queries = "one query each" if self.decode else "causal"
        span = f"{min(self.keys)} to {max(self.keys)}" if len(set(self.keys)) > 1 else f"{self.keys[0]}"
        heads = f"{self.heads} heads of {self.head}, {self.of_keys} of keys"
        return f"{len(self.keys)} sequences of {span} keys in pages, {queries}, {heads}"


CASES = (
    Case(_MIXED, False, 64, 32, 32, 256, 128, 128, 4),
    Case(_MIXED, False, 128, 16, 16, 256, 128, 128, 3),
    Case((4096,) * 64, True, 128, 32, 8, 256, 64, 128, 3),
    Case((8192,) * 16, True, 128, 64, 8, 256, 64, 128, 3),
)


def generate(case: Case, folder: str) -> str:
    """Write the code of a case; return its path, or the reason of a refusal."""
    import convgen as cg  # in a process of its own
    from convgen import tile
    from convgen.backends import target as targets
    from convgen.run.files import write_code
    from convgen.tile import Tensor
    from examples.attention import paged_attention, paged_decode

    cache = Tensor((len(case.keys) * case.pages, case.page, case.of_keys * case.head), "f16")
    of_sequences = Tensor((len(case.keys),), "s32"), Tensor((len(case.keys), case.pages), "s32")
    words: dict[str, Any] = {"heads": case.heads, "bm": case.bm, "bn": case.bn, "overlap": True, "masked": False}
    options: dict[str, Any] = {"subgroups": (case.bm // 16, 1), "slots": case.slots, "copy": "tensor"}
    try:
        if case.decode:
            rows = Tensor((case.starts[-1] * case.heads, case.head), "f16")
            decode = tile.kernel(**options)(paged_decode.function)
            program = decode(rows, cache, cache, *of_sequences, rows, **words)
        else:
            rows = Tensor((case.starts[-1], case.heads * case.head), "f16")
            starts = Tensor((len(case.starts),), "s32")
            attention = tile.kernel(**options)(paged_attention.function)
            program = attention(rows, cache, cache, starts, *of_sequences, rows, queries=max(case.keys), **words)
        code = cg.compile(program, TARGET)
    except ConvgenError as error:
        return str(error)
    stem, family = Path(folder) / f"paged{CASES.index(case)}", targets.get(TARGET).family
    write_code(code, str(stem), family.text_suffix, family.object_suffix)
    return f"{stem}.launch.json"


def _inputs(case: Case, torch: Any) -> dict[str, Any]:
    """Return tensors for a case: queries, keys and values side by side, and the same in pages."""
    cuda: dict[str, Any] = {"device": "cuda", "dtype": torch.int32}
    most, count = case.pages, len(case.keys) * case.pages
    pages = torch.randperm(count, device="cuda").to(torch.int32).reshape(-1, most)
    found = {"q": torch.randn(case.starts[-1], case.heads, case.head, device="cuda", dtype=torch.float16)}
    for name in "kv":
        cache = torch.randn(count, case.page, case.of_keys, case.head, device="cuda", dtype=torch.float16)
        by_sequence = cache[pages.long()].flatten(1, 2)
        found |= {f"{name}_cache": cache, name: torch.cat([x[:n] for x, n in zip(by_sequence, case.keys)])}
    of_keys = torch.tensor([0, *accumulate(case.keys)], **cuda)
    numbers = {"starts": torch.tensor(case.starts, **cuda), "lengths": torch.tensor(case.keys, **cuda)}
    return found | numbers | {"pages": pages, "of_keys": of_keys, "o": torch.zeros_like(found["q"])}


def _ours(case: Case, kernel: Any, given: dict[str, Any], torch: Any) -> Callable[[], object]:
    rows = (-1, case.head) if case.decode else (case.starts[-1], -1)
    names = ("lengths", "pages") if case.decode else ("starts", "lengths", "pages")
    inputs = {name: given[name].view(rows) for name in "qo"} | {name: given[name] for name in names}
    inputs |= {name: given[f"{name}_cache"].flatten(2) for name in "kv"}
    return lambda: kernel(**inputs, stream=torch.cuda.current_stream())


def _flash(case: Case, given: dict[str, Any], torch: Any) -> Callable[[], Any]:
    """Return a call of torch's flash kernel for sequences of different lengths."""
    queries = 1 if case.decode else max(case.keys)
    tensors = (given[name] for name in ("q", "k", "v", "starts", "of_keys"))
    arguments = *tensors, queries, max(case.keys), 0.0, not case.decode, False
    return lambda: torch.ops.aten._flash_attention_forward(*arguments)[0]


def _cudnn(case: Case, given: dict[str, Any], torch: Any) -> Callable[[], Any]:
    """Return a call of cuDNN's kernel for sequences of equal lengths."""
    count, heads = len(case.keys), {"q": case.heads, "k": case.of_keys, "v": case.of_keys}
    tensors = [given[name].view(count, -1, of, case.head).transpose(1, 2) for name, of in heads.items()]

    def call() -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True)

    return call


def measure(case: Case, path: str, torch: Any) -> dict[str, Any]:
    """Return the medians of a case in microseconds, TFLOP/s, the ratio to torch's best, and the greatest difference."""
    import convgen as cg

    kernel = cg.load(path, device="cuda:0")
    sets = [_inputs(case, torch) for _ in range(_SETS)]
    peers = {"flash": [_flash(case, given, torch) for given in sets]}
    if len(set(case.keys)) == 1:
        peers["cudnn"] = [_cudnn(case, given, torch) for given in sets]
    ours = [_ours(case, kernel, given, torch) for given in sets]
    ours[0]()
    error = float((sets[0]["o"].float() - peers["flash"][0]().float()).abs().max())
    rounds = in_turns({"ours": ours, **peers}, torch)
    kernel.unload()
    us = {name: median(rounds, lambda each, name=name: each[name] * 1e6) for name in ("ours", *peers)}  # type: ignore[misc]
    ratio = median(rounds, lambda each: min(each[name] for name in peers) / each["ours"])
    figures = {f"{name}_us": value for name, value in us.items()}
    return figures | {"tflops": case.flop / us["ours"] * 1e-6, "ratio": ratio, "error": error}


def times(processes: int) -> list[dict[str, Any]]:
    """Return a row for each case: its figures, or the reason of a refusal."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            paths = list(pool.map(generate, CASES, [folder] * len(CASES)))
        import torch

        for case, path in track(list(zip(CASES, paths)), "measure"):
            figures = measure(case, path, torch) if path.endswith(".json") else {"refused": path}
            kernel = f"{case.bm}x{case.bn} copy=tensor overlap"
            rows.append({"case": str(case), "kernel": kernel} | figures)
    return rows
