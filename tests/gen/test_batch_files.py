"""Batch files: products of lists, resets, comments, continuation, nesting, selection, and what is wrong in them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.problem import grammar, miopen, options
from convgen.problem import requests as batch
from convgen.problem.conv import Conv

A, B = "mb1_ic4oc4_ih4oh4kh1ph0", "mb1_ic8oc4_ih4oh4kh1ph0"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, match: str | None = None, start: int | None = None, **knobs: str) -> batch.Batch:
    Path("file").write_text(text)
    return batch.read(Path("file"), knobs, match, start)


def problems(text: str, match: str | None = None, start: int | None = None, **knobs: str) -> list[str]:
    requests = read(text, match, start, **knobs).requests
    assert all(request.problem is not None for request in requests), requests
    return [request.text for request in requests]


def errors(text: str) -> list[str]:
    return [f"{each.where}: {each.error}" for each in read(text).requests if each.error is not None]


def test_words() -> None:
    assert problems(f"--dir=FWD_D  {A}\t{B}\n\n  --dt=f16\n{A}") == [
        f"--dir=FWD_D {A}",
        f"--dir=FWD_D {B}",
        f"--dir=FWD_D --dt=f16 {A}",
    ]


def test_products() -> None:
    assert problems(f"--mb=1,2 --dt=f16,bf16 --dir=FWD_D,bwd_d\n{A}") == [
        f"--dir={name} --dt={dtype} {A.replace('mb1', mb)}"
        for name in ("FWD_D", "BWD_D")
        for dtype in ("f16", "bf16")
        for mb in ("mb1", "mb2")
    ]


def test_a_list_is_replaced_and_reset() -> None:
    text = f"--dir=FWD_D,BWD_D\n{A}\n--dir=FWD_I --dt=f16\n{A}\n--reset {A}\n"
    assert problems(text) == [f"--dir=FWD_D {A}", f"--dir=BWD_D {A}", f"--dir=FWD_I --dt=f16 {A}", A]


def test_values_may_be_the_next_word() -> None:
    assert problems(f"--dir FWD_D --dt f16,bf16 {A}") == [f"--dir=FWD_D --dt={dtype} {A}" for dtype in ("f16", "bf16")]


def test_comments() -> None:
    assert problems(f"# --dir=FWD_I\n{A} # {B}\n\t#{B}\n#\n{B}n#1") == [A, f'{B}_n"#1"']


JOINED = [
    (f"--dir=FWD_D --dt=f16,\\\n  bf16 {A}", ["f16", "bf16"]),
    (f"--dir=FWD_D --dt=f16, \\\n  bf16 {A}", ["f16", "bf16"]),
    (f"--dir=FWD_D --dt=f16, \\  # joined\n\n  # all the same\n  bf16, \\\n f32 {A}", ["f16", "bf16", "f32"]),
    (f"--dir=FWD_D --dt=f16, \\ bf16 {A}\\\n", ["f16", "bf16"]),
]


@pytest.mark.parametrize(("text", "types"), JOINED)
def test_a_backslash_joins_words(text: str, types: list[str]) -> None:
    """With white space before it, too; benchdnn reads words, not lines."""
    wanted = [f"--dir=FWD_D --dt={dtype} {A}" for dtype in types]
    assert problems(text) == [line.replace("--dt=f32 ", "") for line in wanted]


def test_a_backslash_continues_the_line_of_a_shell() -> None:
    line = "./bin/MIOpenDriver convfp16 -n 4 -c 8 -H 5 -W 5 -k 8 -F 3"
    assert problems(line.replace(" -c", " \\\n  -c").replace(" -F", " \\\n\t-F")) == problems(line)


def test_places_are_where_logical_lines_begin() -> None:
    text = f"# one\n{A} --dt=f16,\\\n bf16 {B}\r\n{A}"
    assert [each.where for each in read(text).requests] == ["file:2"] * 3 + ["file:4"] * 2


def test_the_command_line_wins() -> None:
    assert problems(f"--dir=BWD_D --dt=f32 --mb=7\n{A}\n--reset --dir=FWD_I {A}", dir="FWD_D", dt="f16,bf16") == [
        f"--dir=FWD_D --dt=f16 {A.replace('mb1', 'mb7')}",
        f"--dir=FWD_D --dt=bf16 {A.replace('mb1', 'mb7')}",
        f"--dir=FWD_D --dt=f16 {A}",
        f"--dir=FWD_D --dt=bf16 {A}",
    ]


# Nesting


def test_options_go_into_nested_files_and_out_again() -> None:
    """The settings of a driver of benchdnn are static: nothing but `--reset` ends them."""
    Path("deep").mkdir()
    Path("deep/inner").write_text(f"--batch=innermost --dt=bf16 {A}")
    Path("deep/innermost").write_text(f"{A} --stag=acdb {B} --match=ic8")
    text = f"--dir=FWD_D --dt=f16 {A} --batch=deep/inner {A} {B} --reset {A}"
    assert problems(text) == [
        f"--dir=FWD_D --dt=f16 {A}",
        f"--dir=FWD_D --dt=f16 {A}",
        f"--dir=FWD_D --dt=f16 --stag=acdb {B}",
        f"--dir=FWD_D --dt=bf16 --stag=acdb {B}",
        A,
    ]
    wheres = [each.where for each in read(text).requests]
    assert wheres == ["file:1", "deep/innermost:1", "deep/innermost:1", "file:1", "file:1"]


def test_a_reset_in_a_nested_file_is_one_outside() -> None:
    Path("inner").write_text(f"--reset --dt=f16 {A}")
    assert problems(f"--dir=FWD_D {A} --batch=inner {B}") == [f"--dir=FWD_D {A}", f"--dt=f16 {A}", f"--dt=f16 {B}"]


def test_files_are_found_beside_those_around() -> None:
    Path("deep").mkdir()
    Path("deep/inner").write_text("--batch=shapes")
    Path("shapes").write_text(A)
    assert problems("--batch=deep/inner") == [A]


def test_a_file_may_be_included_twice() -> None:
    Path("inner").write_text(A)
    assert problems("--batch=inner\n--batch=inner") == [A, A]


def test_cycles_are_refused() -> None:
    Path("inner").write_text(f"{A}\n--batch=file\n{B}")
    text = f"{B} --batch=inner"
    assert [each.text for each in read(text).requests] == [B, A, "--batch=file", B]
    assert errors(text) == ["inner:2: given --batch=file in a cycle, file includes inner includes file, wanted none"]


def test_missing_files() -> None:
    assert errors(f"{A}\n--batch=none\n") == ["file:2: cannot read none: No such file or directory"]
    with pytest.raises(UserError, match=r"^cannot read none: No such file or directory$"):
        batch.read(Path("none"), {})
    Path("bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"^given 'bytes' that is not text, wanted a batch file$"):
        batch.read(Path("bytes"), {})
    assert errors("--batch=a\0b") == ["file:1: cannot read a\\x00b: a null byte in its name"]


# What is bounded


def test_many_files_within_each_other() -> None:
    """Not as many as benchdnn would read, but a line each, and no more than that."""
    for number in range(400):
        Path(f"n{number}").write_text(f"--batch=n{number + 1} mb{number}{A[3:]}")
    Path("n400").write_text(B)
    found = read("--batch=n0")
    (error,) = (str(each.error) for each in found.requests if each.error is not None)
    assert error == "given --batch=n99 in 100 files within each other, wanted fewer"
    assert len(found.requests) == 99


def test_files_that_name_the_next_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_FILES", 1000)
    for number in range(22):
        Path(f"n{number}").write_text(f"--batch=n{number + 1}\n" * 2)
    Path("n22").write_text(A)
    with pytest.raises(batch.TooMuch, match=r"^given more than 1000 files by --batch, wanted fewer$"):
        read("--batch=n0")


def test_products_of_many_options() -> None:
    knobs = " ".join(f"--{name}={','.join(['any'] * 30)}" for name in ("stag", "wtag", "dtag"))
    with pytest.raises(batch.TooMuch, match=r"^given more than 2000000 problems with .* in file:1, wanted fewer$"):
        read(f"{knobs} --mb={','.join(['1'] * 370)} {A}")


def test_devices_and_pipes_are_no_files() -> None:
    os.mkfifo("pipe")
    for name in ("/dev/zero", "pipe"):
        assert errors(f"--batch={name} {A}") == [
            f"file:1: given {name} that is a device or a pipe, wanted a batch file"
        ]


def test_a_file_of_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convgen.problem.request_text._BYTES", 2**20)
    Path("large").write_text("#" * (2**20 + 1))
    assert errors("--batch=large") == ["file:1: given large of more than 1 MiB, wanted a batch file"]


def test_patterns_that_go_back_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_MATCHING", 0.1)
    text = f"--match=(([a-z0-9_]+)+)+! {A} {B}"
    with pytest.raises(batch.TooMuch, match=r"^given --match=\(\(.* that takes more than 0.1 s, wanted one that "):
        read(text)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


# Selection


def test_match() -> None:
    text = f"--match=ic8 {A} {B}\n--match=oc4.*kh1 {A}\n--reset {A}"
    assert problems(text) == [B, A, A]
    assert problems(text, match="ic8") == [B]
    assert problems(f"--dt=f16,bf16 {A} {B}", match="=f16.*ic4") == [f"--dt=f16 {A}"]


def test_match_selects_what_cannot_be_read_too() -> None:
    assert errors("--match=zz ic4zz\n--match=yy ic4zz")[0].startswith("file:1: given 'zz'")
    assert len(errors("--match=zz ic4zz\n--match=yy ic4zz")) == 1


def test_empty_values_select_everything() -> None:
    assert problems(f"--match=zz {A} --match= {A} --start= --batch=") == [A]


def test_masks_of_a_bias_that_is_not_there_count_once() -> None:
    product = "4x4:4x4"
    assert len(problems(f"--matmul --bia_mask=1,2,3 {product}")) == 1
    assert len(problems(f"--matmul --bia_mask=1,2,3 --bia-dt=undef,f32,f16 {product}")) == 1 + 3 + 3


def test_start_counts_what_matches() -> None:
    text = f"--start=1 --match=ic8 {A} {B} --match=ic4 {A}"
    assert problems(text) == [A]
    assert problems(text, start=0) == [B, A]
    assert problems(text, start=9) == []


# What means nothing here, and what is wrong


def test_ignored_options_are_told_once() -> None:
    text = f"--mode=P -v5 --engine=gpu\n{A}\n--mode=P --canonical=true --perf-template=%prb% --impl=x {A}"
    assert read(text).ignored == {
        "--mode=P": "file:1",
        "-v5": "file:1",
        "--engine=gpu": "file:1",
        "--canonical=true": "file:3",
        "--perf-template=%prb%": "file:3",
        "--impl=x": "file:3",
    }
    assert problems(text) == [A, A]


KNOWN = " ".join(
    f"--{knob}"
    for knob in (
        *(option.name for option in options.KNOBS_OF["conv"]),
        *("match", "start", "batch", "reset", "conv", "deconv", "matmul", "ip"),
    )
)
WRONG = [
    ("--speed=9", f"given the option '--speed=9', wanted one of {KNOWN}, at column 1"),
    ("-q", f"given the option '-q', wanted one of {KNOWN}, at column 1"),
    ("-dt=f16", f"given the option '-dt=f16' (did you mean --dt?), wanted one of {KNOWN}, at column 1"),
    ("-v5x", f"given the option '-v5x', wanted one of {KNOWN}, at column 1"),
    ("--reset=1", f"given the option '--reset=1' (did you mean --reset?), wanted one of {KNOWN}, at column 1"),
    ("--dt", "given --dt without a value, wanted one, at column 5"),
    ("--start=x", "given 'x' at --start, wanted an integer from 0, at column 9"),
    (
        "--match=ic(4",
        "given a pattern with missing ), unterminated subpattern, wanted a regular expression, in --match, "
        "at column 11",
    ),
]


@pytest.mark.parametrize(("option", "message"), WRONG)
def test_wrong_options(option: str, message: str) -> None:
    """They take with them what stands behind them on their line, and nothing else."""
    text = f"{A}\n{option}\n--dir=FWD_D {A}"
    assert errors(text) == [f"file:2: {message}"]
    assert [each.text for each in read(text).requests] == [A, option, f"--dir=FWD_D {A}"]


def test_a_wrong_option_takes_its_line_with_it() -> None:
    text = f"{A} --speed=9 {A} --dt=f16 {A}\n{B}"
    texts = [each.text for each in read(text).requests]
    assert texts == [A, text.partition("\n")[0], f"--dt=f16 {B}"]


def test_wrong_descriptors_and_values_stand_for_themselves() -> None:
    assert errors(f"{A} ic4zz {B}\n--dt=f17,f16 {A}") == [
        f"file:1: given 'zz', wanted a key ({' '.join(grammar.KEYS)}), at column 4",
        f"file:2: given the type 'f17' (did you mean f16?), wanted one of {' '.join(grammar.DATA_TYPES)} in --dt, "
        "at column 1",
    ]


def test_a_wrong_pattern_of_the_command_line_is_refused() -> None:
    with pytest.raises(UserError, match="given a pattern with"):
        read(A, match="(")


WORDS = [
    "--dir=FWD_D",
    "--dt=f16,bf16",
    "--mb",
    "--match=ic",
    "--match=(",
    "--batch=file",
    "--reset",
    "--what",
    "2",
    "#",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*WORDS, A, "ic4", "#", "\n", "\\\n", "MIOpenDriver", "conv", "-n", "é", "\x0c"])))
def test_any_text_is_requests(words: list[str]) -> None:
    """Each is a problem or an error, with a place."""
    for request in read(" ".join(words)).requests:
        assert (request.problem is None) != (request.error is None)
        assert request.where.startswith("file:")


def test_an_internal_error_is_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(driver: str, text: str, knobs: object) -> tuple[Conv, ...]:
        if text == B:
            raise ZeroDivisionError
        return (Conv.parse(text),)

    monkeypatch.setattr(batch, "problems", parse)
    assert [type(each.error) for each in read(f"{B} {A}").requests] == [ZeroDivisionError, type(None)]


# MIOpenDriver lines


def test_lines_of_miopen() -> None:
    line = "./bin/MIOpenDriver convfp16 -n 4 -c 8 -H 5 -W 5 -k 8 -# 1 -F 3"
    text = f"--dt=bf16 --mb=9\n{line} # two of them\n{B}"
    assert problems(text)[:2] == [str(problem) for problem in miopen.problems(line)]
    assert problems(text, mb="1,2", dir="FWD_D") == [
        *(str(Conv.parse(f"--dir=FWD_D --dt=f16 --stag=abcd --wtag=abcd --dtag=abcd mb{n}ic8oc8ih5kh3")) for n in "12"),
        *(f"--dir=FWD_D --dt=bf16 {B.replace('mb1', f'mb{n}')}" for n in "12"),
    ]
    assert problems("MIOpenDriver conv -m trans -F 1")[0].startswith("--deconv --dir=FWD_D ")
