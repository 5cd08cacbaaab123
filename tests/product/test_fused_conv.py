"""A convolution and the depthwise convolution of its result (benchdnn's post-op `dw`), in one call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import driver, registry
from convgen.choose.choose import candidates
from convgen.commands import cli
from convgen.ir.record import evolve
from convgen.problem.fused_conv import FusedConv
from convgen.problem.matmul import members_of, parse_problem
from convgen.run import reference, verdict
from convgen.run.code import Code
from convgen.run.depthwise_sums import depthwise_sums
from convgen.run.launch_record import LaunchRecord
from convgen.run.ranges import Range
from tests.product.problems import expect_right
from tests.strategies import always

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90a")
OFTEN = ("gfx942", "xehpc", "sm_90a")
PLAIN = "--dir=FWD_D --dt=f32 --attr-post-ops=relu+dw:k3s2p1 mb2_ic16oc32_ih9kh1"
INTERMEDIATE = "attr_post_op_dw_src"

#: Attributes before and after `dw`, strides and windows, types of the two results, layouts, groups.
CASES = (
    "--dt=bf16 --attr-post-ops=relu+dw:k3s1p1:bf16+relu mb1_ic32oc64_ih14kh1",
    "--dir=FWD_I --dt=s8:s8:u8 --attr-post-ops=relu+dw:k3s2p1:u8+relu:0.5+add:s8 "
    "--attr-scales=src:common:0.25+wei:per_oc+dst:common:0.5+attr_post_op_dw_wei:per_oc mb2_ic32oc48_ih14kh1",
    "--dt=u8:s8:s8 --attr-post-ops=add:f32:per_oc+dw:k3s1p1+relu+add:f32:per_oc "
    "--attr-scales=src:common:0.25+wei:per_oc+dst:common+attr_post_op_dw_wei:common:2 mb1_ic16oc32_ih7kh1",
    "--dt=s8 --attr-post-ops=dw:k3s2p1:s32+abs --attr-scales=wei:per_oc+attr_post_op_dw_dst:common:4 "
    "mb1_ic20oc24_ih8kh1",
    "--dir=FWD_D --dt=f32 --attr-post-ops=tanh+dw:k3s1p0+tanh mb1_ic16oc32_ih9kh1",
    "--dt=f16 --dtag=aBcd16b --attr-post-ops=dw:k5s2p2:f16+add:f16:per_tensor mb1_ic16oc20_ih9kh1",
    "--dir=FWD_D --bia-dt=bf16 --dt=bf16 --attr-post-ops=dw:k5s1p1 mb1_ic24oc16_ih11oh6kh1sh2ph0_iw7kw1",
    "--dir=FWD_D --dt=f16 --stag=abx --dtag=abx --attr-post-ops=prelu:per_oc+dw:k3s1p1:f16+select:f16.per_oc:8 "
    "g2mb1_ic32oc32_ih6kh1",
    "--dir=FWD_I --dt=u8:s8:s8 --attr-scales=src:common:0.5+dst:per_oc --attr-post-ops=relu+dw:k3s1p1:s8+relu "
    "mb1_ic16oc32_ih8kh1",
)


def compiled(line: str, target: str, config: str | None = None) -> Code:
    return driver.compile(driver.build(parse_problem(line), target, config))


@pytest.mark.parametrize(
    ("line", "target"), always(list(product(CASES, TARGETS)), lambda n, row: row[1] == OFTEN[n // len(TARGETS) % 3])
)
@pytest.mark.in_turn(2)
def test_both_convolutions_are_right(line: str, target: str) -> None:
    outcome = verdict.run(compiled(line, target))
    assert outcome.checked
    expect_right(outcome)


def test_sampled_tiles_run_all_of_the_first_convolution() -> None:
    code = compiled(CASES[0], "gfx942")
    assert code.tiles is not None
    first, second = code.record.launches
    groups = code.tiles.groups(0, 0)
    assert groups[0] == tuple(range(int(np.prod(first.grid))))
    assert len(groups[1]) < np.prod(second.grid)
    assert verdict.run(code, groups=2).passed


@pytest.mark.parametrize("target", OFTEN)
def test_a_launch_that_reads_another_tensor_is_noticed(target: str) -> None:
    """The second launch reads src, or writes its result beside the first's."""
    code = compiled("--dt=f16 --attr-post-ops=dw:k3s1p1:f16 mb1_ic32oc32_ih8kh1", target)
    first, second = code.record.launches
    assert INTERMEDIATE in second.buffers
    assert not verdict.run(
        evolve(code, record=evolve(code.record, launches=(first, second.renamed(_exchanged("src")))))
    ).passed
    assert not verdict.run(
        evolve(code, record=evolve(code.record, launches=(first.renamed(_exchanged("dst")), second)))
    ).passed


def _exchanged(name: str) -> Callable[[str], str]:
    return lambda own: {INTERMEDIATE: name, name: INTERMEDIATE}.get(own, own)


def test_the_reference_is_that_of_plain_loops() -> None:
    problem = cg.Conv.parse(PLAIN)
    inputs = {name: np.asarray(fill).astype(np.float64) for name, fill in reference.fills(problem).items()}
    between = np.maximum(np.einsum("nchw,oc->nohw", inputs["src"], inputs["wei"][:, :, 0, 0]), 0)
    padded = np.pad(between, ((0, 0), (0, 0), (1, 1), (1, 1)))
    taps = inputs["attr_post_op_dw_wei"][:, 0, 0]
    wanted = sum(padded[:, :, h : h + 9 : 2, w : w + 9 : 2] * taps[:, h, w, None, None] for h, w in np.ndindex(3, 3))
    whole = reference.whole(problem, reference.fills(problem), "dst")
    assert whole.shape == (2, 32, 5, 5)
    assert np.array_equal(whole, wanted)


def test_simulate_takes_and_returns_arrays_of_the_call() -> None:
    problem = cg.Conv.parse(PLAIN)
    arrays = reference.fill(problem)
    assert sorted(arrays) == ["attr_post_op_dw_wei", "src", "wei"]
    dst = cg.simulate(compiled(PLAIN, "sm_90a"), **arrays)
    assert np.array_equal(dst, reference.whole(problem, arrays, "dst"))


def test_sums_of_uncertain_values_lie_within_a_range() -> None:
    """Sums that round, or of values of which several are right, have the exact sum of each inside."""
    second = members_of(cg.Conv.parse("--dir=FWD_D --attr-post-ops=dw:k3s1p1 mb1_ic4oc4_ih5kh1"))[1]
    assert isinstance(second, cg.Conv)
    rng = np.random.default_rng(3)
    source, weights = rng.standard_normal((25, 4)).astype(np.float32), rng.standard_normal((4, 1, 1, 3, 3))
    rows, columns = np.arange(25), np.arange(4)

    def sums(values: Sequence[Any], wei: Any = weights) -> Range:
        return depthwise_sums(second, lambda at: Range.of([each[at] for each in values]), wei, rows, columns, "f32")

    assert sums([np.rint(source)], np.rint(weights)).is_one
    inner, wide = sums([source]), sums([source - 1, source + 1])
    assert not inner.is_one
    assert (wide.least < inner.least).all()
    assert (inner.most < wide.most).all()
    assert (inner.most - inner.least < 1e-4).all()
    padded = np.pad(source.reshape(5, 5, 4).astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    taps = [padded[h : h + 5, w : w + 5] * weights[:, 0, 0, h, w] for h, w in np.ndindex(3, 3)]
    exact = np.sum(taps, axis=0).reshape(25, 4)
    assert (inner.least <= exact).all()
    assert (exact <= inner.most).all()


# ---------------------------------------------------------------- the request


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("dw:k3s1p1", "dw:k3s1p1"),
        ("dw:k3s1p1:f32", "dw:k3s1p1"),
        ("relu+DW:k5s2p0:bf16+relu", "relu+dw:k5s2p0:bf16+relu"),
        ("dw_k3s1p1", "dw:k3s1p1"),
        ("dw_k3s2p1:s8", "dw:k3s2p1:s8"),
    ],
)
def test_a_line_says_what_both_convolutions_are(written: str, printed: str) -> None:
    problem = cg.Conv.parse(f"--dir=FWD_D --attr-post-ops={written} mb1_ic8oc8_ih8kh1")
    assert isinstance(problem, FusedConv)
    assert f"--attr-post-ops={printed} " in str(problem)
    assert parse_problem(str(problem)) == problem


def test_members_are_those_of_benchdnn() -> None:
    """Output sizes are those of the input by stride, rounded up; dst's scale is src's of the second."""
    line = (
        "--dir=FWD_I --dt=s8:s8:u8 --attr-post-ops=relu+dw:k3s2p1:u8+relu:0.5+add:s8 "
        "--attr-scales=src:common:0.25+dst:common:0.5+attr_post_op_dw_wei:per_oc --dtag=aBcd16b mb2_ic32oc48_ih15kh1"
    )
    first, second = members_of(parse_problem(line))
    assert str(first) == (
        "--dir=FWD_I --dt=s8:s8:u8 --attr-scales=src:common:0.25+dst:common:0.5 --attr-post-ops=relu "
        "mb2_ic32oc48_ih15oh15kh1ph0"
    )
    assert str(second) == (
        "--dir=FWD_I --dt=u8:s8:u8 --dtag=aBcd16b --attr-scales=src:common:0.5+wei:per_oc "
        "--attr-post-ops=relu:0.5+add:s8 g48mb2_ic48oc48_ih15oh8kh3sh2ph1"
    )
    names = [spec.name for spec in parse_problem(line).tensors]
    assert names == ["src", "wei", "attr_post_op_dw_wei", "attr_post_op_dw_wei_scales", "post_op_3", "dst"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--attr-post-ops=dw:k3s1p1 mb1_ic8oc8_ih8kh3ph1", "of a 3x3 convolution, wanted a 1x1 convolution"),
        ("--attr-post-ops=dw:k3s1p1 mb1_ic8oc8_iw8kw1", "of a 1 convolution, wanted a 1x1 convolution"),
        ("--dir=BWD_D --attr-post-ops=dw:k3s1p1 mb1_ic8oc8_ih8kh1", "in BWD_D, wanted a forward direction"),
        ("--attr-post-ops=sum+dw:k3s1p1 mb1_ic8oc8_ih8kh1", "and sum, wanted neither sum nor dw beside it"),
        ("--attr-post-ops=dw:k3s1p1+sum mb1_ic8oc8_ih8kh1", "and sum, wanted neither sum nor dw beside it"),
        ("--attr-post-ops=dw:k3s1p1+dw:k3s2p1 mb1_ic8oc8_ih8kh1", "and dw:k3s2p1, wanted neither sum nor dw"),
        ("--attr-post-ops=dw:k3s1p3 mb1_ic8oc8_ih8kh1", "wanted padding less than the kernel's 3"),
        ("--dt=u8:s8:u8 --attr-zero-points=src:common:1 --attr-post-ops=dw:k3s1p1 mb1_ic8oc8_ih8kh1", "zero points"),
        (
            "--attr-scales=attr_post_op_dw_wei:per_oc mb1_ic8oc8_ih8kh1",
            "given attr-scales attr_post_op_dw_wei:per_oc, wanted none",
        ),
    ],
)
def test_what_onednn_does_not_define_is_refused(line: str, said: str) -> None:
    with pytest.raises(cg.Unsupported, match=re.escape(said)) as refused:
        driver.build(parse_problem(line))
    assert refused.value.rule == "post-op-dw"


@pytest.mark.parametrize("line", ["--deconv mb1_ic8oc8_ih8kh1", "8x8:8x8"])
@pytest.mark.parametrize("option", ["--attr-post-ops=dw:k3s1p1", "--attr-scales=attr_post_op_dw_dst:common:2"])
def test_other_drivers_have_no_depthwise_post_op(line: str, option: str) -> None:
    with pytest.raises(cg.Unsupported) as refused:
        driver.build(parse_problem(f"{option} {line}"))
    assert refused.value.rule == "post-op-dw"


# ---------------------------------------------------------------- configs and commands


def test_a_config_has_a_line_of_each_convolution() -> None:
    code = compiled(PLAIN, "gfx942")
    first, second = code.config.split(" + ")
    assert compiled(PLAIN, "gfx942", code.config).asm == code.asm
    assert compiled(PLAIN, "gfx942", f" + {second}").config == code.config
    for wrong in (first, f"{first} + {second} + {second}"):
        with pytest.raises(cg.UserError, match="wanted one of each"):
            compiled(PLAIN, "gfx942", wrong)


def test_a_registry_has_configs_of_the_convolutions(tmp_path: Path) -> None:
    path, problem = tmp_path / "r", parse_problem(PLAIN)
    second = members_of(problem)[1]
    own = str(candidates(second, driver.facts("gfx942"))[3].config)
    assert own != driver.build(second, "gfx942").config
    registry.add(path, [registry.Entry.of_result("gfx942", str(evolve(second, name="")), own, 5.0, "chip")])
    entry = registry.find(problem, "gfx942", path)
    assert entry is not None
    assert entry.config == f" + {own}"
    build = driver.build(problem, "gfx942", registry=path)
    assert build.config.endswith(f" + {own}")
    assert build.origin == f"{path}:2"
    assert registry.find(members_of(problem)[0], "gfx942", path) is None


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*map(str, words)]) == 0
    return capsys.readouterr().out


def test_commands_tell_both_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = str(tmp_path / "k")
    made = json.loads(told(capsys, "conv", *PLAIN.split(), "--target", "gfx942", "-o", prefix, "--run", "--json"))
    kernels = [launch["kernel"] for launch in made["launches"]]
    assert len(kernels) == 2
    assert kernels[1].startswith("attr_post_op_dw_conv_fwd_d_")
    assert made["run"]["status"] == "passed"
    record = LaunchRecord.read(Path(f"{prefix}.launch.json"))
    assert {name: buffer.access for name, buffer in record.buffers.items()} == {
        "src": "read", "wei": "read", INTERMEDIATE: "readwrite", "attr_post_op_dw_wei": "read", "dst": "write",
    }  # fmt: skip
    assert "PASSED" in told(capsys, "run", f"{prefix}.launch.json")
    times = json.loads(told(capsys, "profile", f"{prefix}.launch.json", "--json"))
    assert [launch["kernel"] for launch in times["launches"]] == kernels
    told(capsys, "export", f"{prefix}.launch.json", "--c", prefix)
    header = Path(f"{prefix}.h").read_text()
    assert "attr_post_op_dw_wei;" in header
    assert INTERMEDIATE not in header
    told(capsys, "explain", f"{prefix}.launch.json", "-o", f"{prefix}.html")
    page = Path(f"{prefix}.html").read_text()
    assert all(config in page for config in made["config"].split(" + "))
    assert all(str(member) in page for member in members_of(parse_problem(PLAIN)))


def test_one_kernel_is_replayed_among_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "conv", *PLAIN.split(), "--dump-dir", str(tmp_path), "-o", str(tmp_path / "k"))
    (dump,) = tmp_path.glob("attr_post_op_dw*.built.dump")
    assert "PASSED" in told(capsys, "replay", str(dump), "--run")


@pytest.mark.parametrize("command", [["map"], ["tune", "--registry", "r"]])
def test_commands_on_one_product_name_the_convolutions(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([command[0], *PLAIN.split(), *command[1:]]) == 2
    said = capsys.readouterr().err
    assert all(repr(str(member)) in said for member in members_of(parse_problem(PLAIN)))
