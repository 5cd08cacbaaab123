"""Times of `examples/attention.py` beside torch's attention on one GPU, in one process and taking turns.

Each case has 16,384 positions in all sequences together, and 2048 columns in all heads of one. Sequences and heads lie
side by side, so that a sequence more is a head more. Kernels of both sides only, in CUDA graphs; torch's is the faster
of its flash kernel and cuDNN's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lib.cuda_times import TARGET, in_turns, median
from rich.progress import track
from rich.table import Table

sys.path.append(str(Path(__file__).parents[2]))

from convgen.ir.error import ConvgenError
from convgen.ir.record import frozen

MOST_ERROR = 2e-3  #: greatest difference from torch's result, which has rounded its weights elsewhere
_POSITIONS, _COLUMNS = 1 << 14, 2048
_SETS = 2  #: input sets, of 268 MB each


@frozen
class Case:
    """One attention: columns of a head, positions of a sequence, and how a kernel computes it."""

    head: int
    length: int
    causal: bool
    bm: int  #: rows of a block of queries, 64 for each warpgroup
    bn: int  #: rows of a block of keys
    copy: str  #: "tensor": bulk copies
    overlap: bool  #: whether weights are computed while those of the block before are multiplied by values
    order: str = "cols"  #: of the workgroups

    @property
    def heads(self) -> int:
        """Return the heads of all sequences."""
        return _COLUMNS // self.head * (_POSITIONS // self.length)

    @property
    def flop(self) -> float:
        """Return the floating-point operations of both products; half as many if causal."""
        return 4.0 * self.heads * self.length**2 * self.head / (2 if self.causal else 1)

    def __str__(self) -> str:
        return f"head {self.head}, {self.length} positions{', causal' if self.causal else ''}"

    @property
    def kernel(self) -> str:
        """Return what a table shows of the kernel."""
        words = " copy=tensor" * bool(self.copy) + " overlap" * self.overlap
        return f"{self.bm}x{self.bn}{words} map={self.order}"

    @property
    def slots(self) -> int:
        """Return the slots for blocks of keys and values: up to four, in 192 KB."""
        return min(4, 3 * 128 * 128 // (self.bn * self.head)) if self.copy else 2


_LARGE: tuple[tuple[Any, ...], ...] = ((128, 128, "tensor", True), (128, 128, "tensor", True, "cols+persist:132:snake"))
_SMALL: tuple[tuple[Any, ...], ...] = ((192, 64, "tensor", True), (192, 64, "tensor", True, "cols+persist:132:snake"))
#: by columns of a head: three warpgroups have no registers for heads of 128
_KERNELS = {64: (*_LARGE, *_SMALL), 128: _LARGE}
CASES = tuple(
    Case(head, length, causal, *kernel)
    for head, length, causal in product((64, 128), (1024, 4096, 16384), (False, True))
    for kernel in _KERNELS[head]
)


def generate(case: Case, folder: str) -> str:
    """Write the code of a case; return its path, or the reason of a refusal."""
    import convgen as cg  # in a process of its own
    from convgen import tile
    from convgen.backends import target as targets
    from convgen.run.files import write_code
    from convgen.tile import Tensor
    from examples.attention import attention

    kernel = tile.kernel(subgroups=(case.bm // 16, 1), slots=case.slots, copy=case.copy)(attention.function)
    tensors = [Tensor((case.length, case.heads * case.head), "f16")] * 4
    try:
        program = kernel(
            *tensors,
            heads=case.heads,
            bm=case.bm,
            bn=case.bn,
            causal=case.causal,
            overlap=case.overlap,
            order=case.order,
        )
        code = cg.compile(program, TARGET)
    except ConvgenError as error:
        return str(error)
    stem, family = Path(folder) / str(CASES.index(case)), targets.get(TARGET).family
    write_code(code, str(stem), family.text_suffix, family.object_suffix)
    return f"{stem}.launch.json"


def _peer(case: Case, backend: Any, q: Any, k: Any, v: Any, torch: Any) -> Callable[[], Any]:
    """Return a call of torch's attention by one of its backends, on the tensors of convgen's kernel."""
    heads = [x.view(case.length, case.heads, case.head).transpose(0, 1)[None] for x in (q, k, v)]

    def call() -> Any:
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=case.causal)

    return call


def measure(case: Case, path: str, torch: Any) -> dict[str, Any]:
    """Return the medians of a case in microseconds, TFLOP/s, the ratio to torch's best, and the greatest difference."""
    import convgen as cg

    kernel = cg.load(path, device="cuda:0")
    shape = case.length, case.heads * case.head
    sets = [[torch.randn(shape, device="cuda", dtype=torch.float16) for _ in "qkvo"] for _ in range(_SETS)]

    def ours(q: Any, k: Any, v: Any, o: Any) -> Callable[[], object]:
        return lambda: kernel(q=q, k=k, v=v, o=o, stream=torch.cuda.current_stream())

    known = torch.nn.attention.SDPBackend
    backends = {"flash": known.FLASH_ATTENTION, "cudnn": known.CUDNN_ATTENTION}
    peers = {name: [_peer(case, of, q, k, v, torch) for q, k, v, _ in sets] for name, of in backends.items()}
    *_, result = sets[0]
    ours(*sets[0])()
    wanted = peers["flash"][0]()[0].transpose(0, 1).reshape(shape)
    error = float((result.float() - wanted.float()).abs().max())
    rounds = in_turns({"ours": [ours(*each) for each in sets], **peers}, torch)
    kernel.unload()
    us = {name: median(rounds, lambda each, name=name: each[name] * 1e6) for name in ("ours", *peers)}  # type: ignore[misc]
    ratio = median(rounds, lambda each: min(each[name] for name in peers) / each["ours"])
    return {
        **{f"{name}_us": value for name, value in us.items()},
        "tflops": case.flop / us["ours"] * 1e-6,
        "ratio": ratio,
        "error": error,
    }


def times(processes: int) -> list[dict[str, Any]]:
    """Return a row for each case: its figures, or the reason of a refusal."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            paths = list(track(pool.map(generate, CASES, [folder] * len(CASES)), "generate", total=len(CASES)))
        import torch

        for case, path in track(list(zip(CASES, paths)), "measure"):
            figures = measure(case, path, torch) if path.endswith(".json") else {"refused": path}
            rows.append({"case": str(case), "kernel": case.kernel} | figures)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for a terminal."""
    names = ("ours_us", "tflops", "flash_us", "cudnn_us", "ratio")
    shown = Table("attention", "kernel", "convgen us", "TFLOP/s", "flash us", "cuDNN us", "torch / convgen", "error")
    for row in rows:
        figures = [f"{row[name]:.2f}" if name in row else "-" for name in names]
        shown.add_row(row["case"], row["kernel"], *figures, f"{row['error']:.1e}" if "error" in row else row["refused"])
    return shown
