"""`convgen batch --check`: what becomes of each problem without generating it, and that the generator agrees."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.commands import cli, generate
from convgen.problem import miopen
from convgen.problem.matmul import parse_problem
from convgen.problem.options import KNOBS

DATA = Path(__file__).parents[1] / "data" / "problems" / "requests.txt"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed() -> list[tuple[str, str]]:
    """(what is expected, line)"""
    lines = [line for line in DATA.read_text().splitlines() if line and not line.startswith("#")]
    return [(expected, line) for expected, _, line in (line.partition("  ") for line in lines)]


def checked(capsys: pytest.CaptureFixture[str], text: str, *options: str) -> tuple[int, list[dict[str, str | None]]]:
    Path("file").write_text(text)
    code = cli.main(["batch", "file", "--check", "--json", *options])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_rules_are_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
    of_options = {option.rule for option in KNOBS if isinstance(option.rule, str)} - {""}
    of_flags = {flag.rule for flag in miopen.FLAGS} - {""}
    statuses = {"supported", "malformed"}
    for rule in ({expected for expected, _ in listed()} | of_options | of_flags) - statuses:
        assert f"`{rule}`" in page


@pytest.mark.parametrize("target", ["gfx942", "sm_90"])
def test_every_listed_line(capsys: pytest.CaptureFixture[str], target: str) -> None:
    code, rows = checked(capsys, "\n".join(f"--reset {line}" for _, line in listed()), "--target", target)
    assert code == 2
    told = [f"{row['where']} {row['rule'] or row['status']}" for row in rows]
    assert told == [f"file:{number} {expected}" for number, (expected, _) in enumerate(listed(), 1)]
    assert all((row["status"] == "unsupported") == (row["rule"] is not None) for row in rows)
    assert all((row["status"] == "supported") == (row["error"] is None) for row in rows)
    assert [*rows[0]] == ["problem", "where", "target", "status", "rule", "error"]
    assert {row["target"] for row in rows} == {target}


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "sm_90"])
def test_what_is_supported_is_generated(capsys: pytest.CaptureFixture[str], target: str) -> None:
    """A few lines through each target's generator; what is refused, it refuses by the same rule."""
    lines = [line for _, line in listed()]
    _, rows = checked(capsys, "\n".join(f"--reset {line}" for line in lines), "--target", target)
    taken = [row["problem"] or "" for row in rows if row["status"] == "supported"]
    assert len(taken) > 15
    for line in taken[::11]:
        assert cg.compile(cg.build(parse_problem(line), target=target)).asm
    for row in rows:
        if row["status"] == "unsupported" and row["rule"] not in ("driver", "size"):
            try:
                problem = parse_problem(row["problem"] or "")
            except (cg.Unsupported, cg.UserError):  # it is none, and says so
                continue
            with pytest.raises(cg.Unsupported) as refused:
                cg.build(problem, target=target)
            assert refused.value.rule == row["rule"]


def test_types_depend_on_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    text = "--dt=f64 mb1ic16oc16ih6kh3"
    assert [row["rule"] for row in checked(capsys, text, "--target", "xehpc")[1]] == ["types"]
    assert checked(capsys, text)[0] == 0


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("--dt=f16 mb1ic16oc16ih6kh3 ic2147483640oc16ih6kh3 ic2147483641oc16ih6kh3 ic4zz\n--mode=P")
    assert cli.main(["batch", "file", "--check"]) == 2
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["supported", "--dt=f16", "mb1_ic16oc16_ih6oh4kh3ph0"]
    assert lines[1].split() == ["unsupported", "size", "--dt=f16", "mb2_ic2147483640oc16_ih6oh4kh3ph0"]
    assert (
        lines[2]
        == "    unsupported: given ic of 2147483640, wanted less than 2^31 - 4096: larger sizes are not generated"
    )
    assert lines[5].split() == ["malformed", "--dt=f16", "ic4zz"]
    assert lines[6].startswith("    given 'zz', wanted a key")
    assert lines[7].endswith(" s: 1 supported, 2 unsupported, 1 malformed")
    assert lines[8].split() == ["2", "size"]
    assert err == "convgen: note: ignored, as they mean nothing here: --mode=P (file:2)\n"


def test_names_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("ic4oc4ih4kh1n\x1b[2J\nic4\x07")
    cli.main(["batch", "file", "--check"])
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert "\x07" not in out


def test_conv_and_matmul_in_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of both are set for both; a switch keeps them apart, and other drivers are told by a rule."""
    conv, product = "mb1ic16oc16ih6kh3", "32x16:16x32"
    text = (
        f"--dt=f16 --dir=FWD_D --wtag=ab {product} --wtag= {conv}\n"
        f"--matmul --reset --dt=bf16 {product} --conv {conv} --reset {conv}\n"
        f"--pool --bogus=1 --dir=FWD_D mb2ic4oc4 --matmul {product}"
    )
    _, rows = checked(capsys, text)
    assert [(row["rule"], row["problem"]) for row in rows] == [
        (None, "--dt=f16 --wtag=ab 32x16:16x32"),
        (None, "--dir=FWD_D --dt=f16 mb1_ic16oc16_ih6oh4kh3ph0"),
        (None, "--dt=bf16 32x16:16x32"),
        (None, "--dir=FWD_D --dt=f16 mb1_ic16oc16_ih6oh4kh3ph0"),
        (None, "mb1_ic16oc16_ih6oh4kh3ph0"),
        ("driver", "mb2ic4oc4"),
        (None, "--dt=bf16 32x16:16x32"),
    ]
    assert rows[5]["error"] == (
        "unsupported: given a problem of benchdnn's --pool, wanted one of --conv, --deconv, --ip or --matmul: "
        "others are not generated"
    )


def test_options_of_the_other_driver_are_refused_behind_a_switch(capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = checked(capsys, "--matmul --dir=FWD_D 4x4:4x4\n--conv\n--bia_mask=2\n--reset --dir=FWD_D ic4oc4ih4kh1")
    assert [row["status"] for row in rows] == ["malformed", "malformed", "supported"]
    assert (rows[0]["error"] or "").startswith("given the option '--dir=FWD_D', wanted one of --dt ")


SIZES = [
    ("mb2147483647ic16ih4oc16kh3ph1", "given mb of 2147483647, wanted less than 2^31 - 4096: larger sizes are not"),
    ("mb1ic16ih2147483647oc16kh3ph1", "given ih of 2147483647, wanted"),
    ("ic4294967311oc1iw27kw3", "given ic of 4294967311, wanted"),
    ("mb1ic16iw3ow3oc16kw3pw99999999999", "given pw of 99999999999, wanted"),
    ("mb1ic16ih99999oh1oc16kh99999", "given K of 159996800016, wanted"),
    ("mb65536ic16ih256oc16kh1", "given M of 4294967296, wanted"),
    (
        "--dir=BWD_D mb1ic8ih64oc8kh32sh31ph3",
        "given sh31sw31 in BWD_D, which makes 961 stride phases, wanted at most 256",
    ),
    (
        "--dir=BWD_D mb1ic8ih64oc8kh1sh2147480000",
        "given sh of 2147480000, wanted less than 2^31 - 4096",
    ),
    ("2147483647x16:16x16", "given M of 2147483647, wanted"),
]


@pytest.mark.parametrize(("line", "message"), SIZES, ids=[line for line, _ in SIZES])
def test_sizes_beyond_what_is_supported(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    """Said as such, at once, by the check and by the generator."""
    problem = parse_problem(f"--dt=f16 {line}")
    begun = perf_counter()
    for refuse in (lambda: generate.check(problem, "gfx942"), lambda: cg.build(problem, target="xehpc")):
        with pytest.raises(cg.Unsupported, match=r"^given ") as refused:
            refuse()
        assert str(refused.value).startswith(message)
        assert refused.value.rule in ("size", "stride-phases")
    assert perf_counter() - begun < 1


def test_tensors_beyond_a_surface_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether they are generated depends on the tiles; the command refuses them in the words of the check."""
    code, rows = checked(capsys, "--dt=f16 100000x20000:20000x16 8x3:3x516510367")
    assert [row["rule"] for row in rows] == [None, "size"]
    message = rows[1]["error"] or ""
    assert message.startswith("unsupported: given dst of which one tile spans ")
    assert cli.main(["gemm", "--dt=f16", "8x3:3x516510367"]) == code == 2
    assert capsys.readouterr().err == f"convgen: {message}\n"


def test_a_thousand_lines_take_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"--dt=f16 --attr-post-ops= mb{n % 30 + 1}ic16oc{n + 1}ih14kh3ph1" for n in range(1000)]
    begun = perf_counter()
    code, rows = checked(capsys, "\n".join(lines))
    assert (code, len(rows)) == (0, 1000)
    assert perf_counter() - begun < 10


@pytest.mark.parametrize("target", ["gfx942", "xehpg"])
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("--dt=f16 --dir=FWD_D mb0ic4oc4ih4kh1", None),
        ("--dt=bf16 --dir=BWD_D mb0ic4oc4ih4kh3ph1", None),
        ("0x4:4x8", None),
        ("--dt=f16 4x4:4x0", None),
        ("--dt=f16 0x0:0x8", None),
        ("--dt=f16 3x0x4:1x4x8", None),
        ("--dt=f16 --strides=0x0:8x1:8x1 0x4:4x8", None),
        ("--dt=f16:s4:f16 --attr-scales=wei:per_ocic:f16:16x1 --attr-zero-points=wei:per_oc 0x32:32x8", None),
        ("--dt=f16 --runtime_dims_masks=1 0x8:8x8", None),
        ("4x0:0x8", "zero-k"),
        ("--dt=f64:f16:f16 0x4:4x8", "types"),
        ("--dt=f16 --encoding=csr:: 0x4:4x8", "sparse"),
        ("--dt=f16 --dir=BWD_D --attr-post-ops=relu mb0ic4oc4ih4kh1", "post-op-backward"),
    ],
)
def test_sizes_of_zero_are_checked_built_and_generated_alike(
    capsys: pytest.CaptureFixture[str], target: str, line: str, rule: str | None
) -> None:
    """A result without elements is a valid request that launches nothing, as in oneDNN; its types must be supported."""
    code, (row,) = checked(capsys, line, "--target", target)
    assert (row["rule"], code) == (rule, 2 if rule else 0)
    problem = parse_problem(line)
    driver = "gemm" if "x" in line.split()[-1] else "conv"
    assert cli.main([driver, *line.split(), "--target", target, "--run"]) == code
    if rule is None:
        assert cg.compile(cg.build(problem, target)).record.launches == ()
        return
    with pytest.raises(cg.Unsupported) as refusal:
        cg.build(problem, target)
    assert (refusal.value.rule, f"unsupported: {refusal.value}") == (rule, row["error"])


def test_targets_are_checked_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["batch", "none", "--check", "--target", "gfx9"]) == 2
    assert capsys.readouterr().err.startswith("convgen: given target 'gfx9'")
    assert "gfx942" in targets.names()
