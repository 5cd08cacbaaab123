"""Kernels in every order of workgroups: each tile is written once, and right, on both families."""

from __future__ import annotations

from pathlib import Path

import pytest

import convgen as cg
from convgen.commands.cli import main
from convgen.ir.layout.digits import Index
from convgen.ir.layout.order import Order
from convgen.ir.layout.walks import FreeForm
from convgen.ir.record import evolve
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import execution, reference, verdict

pytestmark = pytest.mark.in_turn(2)

MMA = {"gfx942": "16x16x16", "xehpc": "16x8x16"}
ORDERS = (
    *("cols", "group:2m", "xcc:8+group:2n:snake", "even:3n", "rect:2x3m:snake", "zorder:2x4", "hilbert"),
    *("chunk:4x2+hilbert", "xcc:8+even:2m+flip:8", "xcc:3+wgm:2n", "wgm:9m+flip:5"),
    *("persist:5", "xcc:8+group:2m+flip:4+persist:8", "zorder:2x2+persist:7"),
    *("stream:5", "xcc:8+group:2m+flip:4+stream:8", "zorder:2x2+stream:6:all", "stream:40"),
)


@pytest.mark.parametrize("target", MMA)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_computes_the_same(order: str, target: str) -> None:
    problem = Matmul.parse("160x64:64x104", dt="f16")
    config = f"tile=32x32x32 waves=1x1 mma={MMA[target]} map={order}"
    assert verdict.run(cg.compile(cg.build(problem, target=target, config=config))).passed


@pytest.mark.parametrize("order", ORDERS)
def test_every_tile_is_written_once(order: str) -> None:
    """By the bytes that are stored: the tiles come out even, so nothing is masked."""
    problem = Matmul.parse("160x32:32x96", dt="f16")
    code = cg.compile(cg.build(problem, config=f"tile=32x32x32 waves=1x1 mma=16x16x16 map={order}"))
    _, report = execution.execute(code.record, code.object, reference.fill(problem))
    assert report.counters["global_write_bytes"] == 160 * 96 * 2


@pytest.mark.parametrize("target", MMA)
def test_an_order_of_ones_own(target: str) -> None:
    """A function of the number, on a kernel: diagonals of tiles."""

    def diagonal(number: Index, m: int, n: int) -> tuple[Index, Index]:
        column = number // m
        return (number + column) % m, column

    order = Order(walk=FreeForm("diagonal", diagonal))
    problem = Matmul.parse("160x32:32x104", dt="f16")
    config = evolve(Config.parse(f"tile=32x32x32 waves=1x1 mma={MMA[target]}"), map=order)
    assert verdict.run(cg.compile(cg.build(problem, target=target, config=config))).passed


@pytest.mark.parametrize("target", MMA)
def test_the_group_size_is_an_argument(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One kernel, whose host chooses the size and computes what follows from it."""
    config = f"tile=32x32x32 waves=1x1 mma={MMA[target]} map=wgm:2m"
    words = ["--dt", "f16", "--target", target, "--config", config, "-o", str(tmp_path / "k")]
    assert main(["gemm", "160x32:32x104", *words]) == 0
    record = str(tmp_path / "k.launch.json")
    for size in (1, 3, 5, 40):
        assert main(["run", record, "--set", f"wgm={size}"]) == 0
    capsys.readouterr()
    for setting, said in (
        ("wgm=0", "given the launch expression 'magic(min(wgm, 5) * 4)'"),
        ("block_shift=3", "given the scalar block_shift, wanted one that a host may choose: wgm"),
        ("wgm=9999999999", "given wgm=9999999999 of kernel"),
        ("wgm", "given 'wgm', wanted NAME=VALUE, at --set"),
    ):
        assert main(["run", record, "--set", setting]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1


def test_tiles_one_after_the_other_are_divided_further() -> None:
    """K is one block, so the loop over tiles is the innermost one; what follows from its counter is divided by 17."""
    problem = Conv.parse("mb2ic17oc29iw9ow2kw5dw1", dir="BWD_W", dt="f64", wtag="xba", dtag="bac")
    words = "tile=64x64x16 waves=1x2 mma=16x16x4 slots=1 acc=a slices=3 sum=last map=xcc:12+rect:6x12m:snake+persist:1"
    assert verdict.run(cg.compile(cg.build(problem, target="gfx90a", config=words))).passed
