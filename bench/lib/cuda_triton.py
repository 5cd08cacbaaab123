"""Matrix products by Triton on a GPU, beside which `cuda_times` times convgen's: bulk copies by tensor descriptors.

The kernel is that of Triton's tutorials on products; the quickest of some usual configs is taken. Sums of 8-bit floats
stay in the instruction if the problem's accumulation is relaxed; else they move to f32 every 128 elements.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#: rows and columns of a tile, bytes of K, warps, stages
CONFIGS = (
    (128, 256, 128, 8, 3),
    (128, 256, 128, 8, 4),
    (256, 128, 128, 8, 3),
    (128, 128, 128, 4, 4),
    (128, 128, 128, 8, 4),
    (64, 256, 128, 4, 4),
    (64, 128, 128, 4, 5),
    (64, 64, 256, 4, 5),
)
_TRIALS = 3
_EXACT_K = 128  #: elements of K after which strict sums of 8-bit floats move to f32


@triton.jit
def product(
    A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr, OUT: tl.constexpr,
    EXACT_K: tl.constexpr,
):  # fmt: skip
    number, rows, columns = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = number // (8 * columns) * 8
    height = min(rows - first, 8)
    m = (first + number % (8 * columns) % height) * BM
    n = number % (8 * columns) // height * BN
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        acc = tl.dot(A.load([m, k]), B.load([n, k]).T, acc, max_num_imprecise_acc=EXACT_K, out_dtype=ACC)
    C.store([m, n], acc.to(OUT))


def calls(problem: Any, sets: Sequence[Mapping[str, Any]], torch: Any) -> list[Callable[[], object]]:
    """Return a call for each input set, by the config that is quickest on the first of them."""
    by_config = [_calls(problem, sets, config, torch) for config in CONFIGS]
    times = [(min(_seconds(each[0], torch) for _ in range(_TRIALS)), n) for n, each in enumerate(by_config) if each]
    return by_config[min(times)[1]]


def _calls(problem: Any, sets: Sequence[Mapping[str, Any]], config: tuple[int, ...], torch: Any) -> list[Any]:
    """Return a call of a config for each input set; none for a config that does not fit."""
    bm, bn, bytes_k, warps, stages = config
    types = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.int32: tl.int32, torch.float32: tl.float32}
    first = sets[0]
    size, (m, k), n = first["src"].element_size(), first["src"].shape, first["wei"].shape[1]
    bk, is_int = bytes_k // size, not first["src"].is_floating_point()
    exact = _EXACT_K if size == 1 and problem.acc_mode != "relaxed" else None
    grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
    constants = (bm, bn, bk, tl.int32 if is_int else tl.float32, types[first["dst"].dtype], exact)

    def call(given: Mapping[str, Any]) -> Callable[[], object]:
        pairs = ((given["src"], [bm, bk]), (given["wei"].t(), [bn, bk]), (given["dst"], [bm, bn]))
        described = [TensorDescriptor.from_tensor(tensor, block) for tensor, block in pairs]
        return lambda: product[grid](*described, m, n, k, *constants, num_warps=warps, num_stages=stages)

    made = [call(given) for given in sets]
    try:
        made[0]()
        torch.cuda.synchronize()
    except Exception:  # shared memory that an SM does not have
        return []
    return made


def _seconds(call: Callable[[], object], torch: Any) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)
