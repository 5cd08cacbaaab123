"""Matrix products by Triton on a GPU, beside which `cuda_times` times convgen's: bulk copies by tensor descriptors.

The kernels are those of Triton's tutorials on products, and on products in groups, whose workgroups persist; the
quickest of some usual configs is taken. Sums of 8-bit floats stay in the instruction if the problem's accumulation is
relaxed; else they move to f32 every 128 elements.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from convgen.problem.grouping import OFFSETS

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


@triton.jit
def product_of_groups(
    A, B, C, ENDS, COUNT, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    number, before, begin = tl.program_id(0), 0, 0  # of the tile, tiles and rows of the groups before
    for group in range(COUNT):
        end = tl.load(ENDS + group)
        rows = end - begin
        height = tl.cdiv(rows, BM)
        tiles = height * tl.cdiv(N, BN)
        if number < before + tiles:
            a = tl.make_tensor_descriptor(A + begin.to(tl.int64) * K, [rows, K], [K, 1], [BM, BK])
            b = tl.make_tensor_descriptor(B + group.to(tl.int64) * N * K, [N, K], [K, 1], [BN, BK])
            c = tl.make_tensor_descriptor(C + begin.to(tl.int64) * N, [rows, N], [N, 1], [BM, BN])
            while number < before + tiles:
                m, n = (number - before) % height * BM, (number - before) // height * BN
                acc = tl.zeros((BM, BN), tl.float32)
                for k in range(0, K, BK):
                    acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
                c.store([m, n], acc.to(OUT))
                number += tl.num_programs(0)
        before += tiles
        begin = end


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
    size, (m, k), n = first["src"].element_size(), first["src"].shape, first["dst"].shape[1]
    bk, is_int = bytes_k // size, not first["src"].is_floating_point()
    exact = _EXACT_K if size == 1 and problem.acc_mode != "relaxed" else None
    grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
    out, options = types[first["dst"].dtype], {"num_warps": warps, "num_stages": stages}
    constants = (bm, bn, bk, tl.int32 if is_int else tl.float32, out, exact)

    def call(given: Mapping[str, Any]) -> Callable[[], object]:
        if problem.grouping:
            tensors, count = [given[name] for name in ("src", "wei", "dst", OFFSETS)], problem.grouping.count
            return lambda: product_of_groups[(_units(torch),)](*tensors, count, n, k, bm, bn, bk, out, **options)
        pairs = ((given["src"], [bm, bk]), (given["wei"].t(), [bn, bk]), (given["dst"], [bm, bn]))
        described = [TensorDescriptor.from_tensor(tensor, block) for tensor, block in pairs]
        return lambda: product[grid](*described, m, n, k, *constants, **options)

    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    made = [call(given) for given in sets]
    try:
        made[0]()
        torch.cuda.synchronize()
    except Exception:  # shared memory that an SM does not have
        return []
    return made


def _units(torch: Any) -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def _seconds(call: Callable[[], object], torch: Any) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)
