"""Products that run while others are awaited, and loops that follow each other through one ring: attention.

Its kernel multiplies the weights of a block by values while it computes those of the next block.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.nvidia.sim import simulate
from convgen.ir.error import ConvgenError
from convgen.run.code import Code
from convgen.run.execution import allocate
from convgen.tile import Tensor
from examples.attention import attended, attention
from tests.backends.nvidia.test_rings import HARMLESS, changes
from tests.product.changes import Change, described

LENGTH, HEAD = 136, 64  #: the last block of keys is ragged, and there are more blocks than slots
MODES = tuple(product((False, True), ("forward", "reverse")))
SAMPLE = 8  #: changes tried in each run; sweeps try all


@cache
def compiled(*, causal: bool) -> Code:
    kernel = tile.kernel(subgroups=(4, 1), slots=2, copy="tensor")(attention.function)
    tensors = [Tensor((LENGTH, HEAD), "f16")] * 4
    return cg.compile(kernel(*tensors, bm=64, bn=32, causal=causal, overlap=True, order="cols+persist:1"), "sm_90a")


@cache
def inputs() -> tuple[Any, ...]:
    return tuple(np.random.default_rng(n).standard_normal((LENGTH, HEAD)).astype(np.float16) for n in range(3))


def outcome(code: Code, text: str, *, early: bool, order: str) -> Any:
    """Return the output of a run, or None if it has findings or is refused."""
    memory = allocate(code.record, dict(zip("qkv", inputs())))
    try:
        report = simulate(text.encode(), code.record.requests(), memory, early=early, wave_order=order)
    except ConvgenError:
        return None
    return None if report.findings else memory["o"].whole().tobytes()


@pytest.mark.parametrize("causal", [False, True])
def test_overlapped_attention_is_right(causal: bool) -> None:
    code = compiled(causal=causal)
    found, wanted = cg.simulate(code, **dict(zip("qkv", inputs()))), attended(*inputs(), causal=causal)
    assert np.abs(found.astype(np.float64) - wanted).max() < 2e-3
    assert len({outcome(code, code.asm, early=early, order=order) for early, order in MODES}) == 1


def test_weights_are_computed_while_products_run() -> None:
    """The loop awaits its first group alone, and the second behind the exponentials."""
    loop = compiled(causal=False).asm.split("// slot is full")[2]
    first, exponentials, second = (
        loop.index(text)
        for text in ("wgmma.wait_group.sync.aligned 1;", "ex2.approx", "wgmma.wait_group.sync.aligned 0;")
    )
    assert first < exponentials < second
    assert loop[:first].count("wgmma.commit_group") == 2


def test_loops_fill_the_tiles_of_one_ring() -> None:
    code = compiled(causal=False)
    assert code.asm.count("mbarrier.init") == 4
    (request,) = code.record.requests()
    slots, scratch = 2 * 2 * (32 * HEAD * 2), 4 * 2048  # keys and values; what lanes of four subgroups exchange
    assert request.shared_bytes <= slots + scratch + 1024


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(None, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_loss_is_noticed(causal: bool, sample: int | None) -> None:
    code = compiled(causal=causal)
    right = outcome(code, code.asm, early=False, order="forward")
    tried = [change for change in changes(code.asm) if not HARMLESS.match(change.what)]

    def is_noticed(change: Change) -> bool:
        text = change.applied(code.asm)
        return any(outcome(code, text, early=early, order=order) != right for early, order in MODES)

    lost = [
        each for each in (tried if sample is None else random.Random(1).sample(tried, sample)) if not is_noticed(each)
    ]
    assert not lost, described(lost)


@cache
def through_the_ring() -> Code:
    """Return a kernel whose blocks of queries and of keys have one shape, and which computes several tiles."""
    kernel = tile.kernel(subgroups=(4, 1), slots=2, copy="tensor")(attention.function)
    tensors = [Tensor((LENGTH, HEAD), "f16")] * 4
    return cg.compile(kernel(*tensors, bm=64, bn=64, overlap=True, order="cols+persist:1"), "sm_90a")


def test_queries_come_through_the_slots_of_keys() -> None:
    """The producer copies queries ahead of time; lanes load them from a slot, and release it behind a fence."""
    code = through_the_ring()
    assert "ld.global" not in code.asm
    assert code.asm.count("// q copy") == 1
    assert code.asm.count("mbarrier.init") == 4
    read = code.asm[code.asm.index("// slot is full") : code.asm.index("// release")]
    parts = [read.index(text) for text in ("ldmatrix", "fence.proxy.async.shared::cta", "bar.warp.sync -1")]
    assert parts == sorted(parts)
    right = {outcome(code, code.asm, early=early, order=order) for early, order in MODES}
    assert len(right) == 1
    found = np.frombuffer(right.pop(), np.float16).reshape(LENGTH, HEAD).astype(np.float64)
    assert np.abs(found - attended(*inputs())).max() < 2e-3


@pytest.mark.parametrize("lost", ["fence.proxy.async.shared::cta;", "bar.warp.sync -1;"])
def test_loads_from_a_slot_end_before_its_release(lost: str) -> None:
    code = through_the_ring()
    at = code.asm.index(lost)
    text = f"{code.asm[:at]}{code.asm[at + len(lost) :]}"
    assert {outcome(code, text, early=early, order=order) for early, order in MODES} == {None}


def test_queries_of_another_shape_go_to_the_lanes() -> None:
    assert "// q load" in compiled(causal=False).asm


@pytest.mark.parametrize(("column", "how"), [(8, "copy"), (4, "load")])
def test_factors_that_begin_between_chunks_go_to_the_lanes(column: int, how: str) -> None:
    """Bulk copies begin at multiples of 16 bytes."""

    @tile.kernel(subgroups=(4, 1), slots=2, copy="tensor")
    def summed(q: Tensor, k: Tensor, o: Tensor) -> None:
        query, acc = tile.load_tile(tile.init_tile(q, (0, column), (64, 64))), tile.zeros((64, 64))
        for n in tile.range(0, 128, 64):
            acc = tile.tile_mma(query, tile.load_tile(tile.init_tile(k, (n, 0), (64, 64)), transpose=True), acc)
        tile.store_tile(acc, tile.init_tile(o, (0, 0), (64, 64)))

    q, k = (np.random.default_rng(n).integers(-4, 5, (128, 80)).astype(np.float16) for n in range(2))
    code = cg.compile(summed(Tensor(q.shape, "f16"), Tensor(k.shape, "f16"), Tensor((64, 64), "f32")), "sm_90a")
    assert f"// q {how}" in code.asm
    found = cg.simulate(code, q=q, k=k)
    assert np.array_equal(found, q[:64, column : column + 64] @ (k[:64, :64] + k[64:, :64]).T)


@pytest.mark.parametrize(("bn", "exchanges"), [(128, True), (224, False)])
def test_lanes_exchange_elements_where_they_have_room(bn: int, *, exchanges: bool) -> None:
    """Queries are loaded, and results stored, by 16 bytes a lane, unless the ring leaves no shared memory for that."""
    kernel = tile.kernel(subgroups=(4, 1), slots=4, copy="tensor")(attention.function)
    asm = cg.compile(kernel(*[Tensor((512, HEAD), "f16")] * 4, bm=64, bn=bn), "sm_90a").asm
    for access in ("ld.global.nc", "st.global"):
        counts = asm.count(f"{access}.v4.b32"), asm.count(f"{access}.b32")
        assert counts == ((4, 0) if exchanges else (0, 16))
