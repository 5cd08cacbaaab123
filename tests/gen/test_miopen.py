"""MIOpenDriver lines: every flag, sizes computed by hand, and what each wrong line is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.commands import cli
from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import evolve
from convgen.problem import miopen
from convgen.problem.conv import Conv
from convgen.problem.grammar import parse_types

LINE = "./bin/MIOpenDriver convfp16 -n 128 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -F 2"


def texts(line: str, **knobs: str) -> list[str]:
    return [str(problem) for problem in miopen.problems(line, knobs)]


def one(flags: str, base: str = "conv") -> Conv:
    (problem,) = miopen.problems(f"./bin/MIOpenDriver {base} -F 1 {flags}")
    return problem


def test_the_line_of_the_manual() -> None:
    assert texts(LINE) == ["--dir=BWD_D --dt=f16 --stag=abcd --wtag=abcd --dtag=abcd mb128_ic64oc64_ih56oh56kh3ph1"]


def test_every_default() -> None:
    assert texts("MIOpenDriver conv") == [
        f"--dir={name} --stag=abcd --wtag=abcd --dtag=abcd mb100_ic3oc32_ih32oh30kh3ph0"
        for name in ("FWD_D", "BWD_D", "BWD_W")
    ]


#: flags of a 2-D line -> mb, ic, oc, then i, o, k, s, p, d of h and of w; outputs by hand
SHAPES = [
    ("-n 128 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1", (128, 64, 64), (56, 56, 3, 1, 1, 0), (56, 56, 3, 1, 1, 0)),
    ("-c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2", (100, 3, 64), (224, 112, 7, 2, 3, 0), None),
    ("-H 55 -W 55 -y 1 -x 1 -u 2 -v 2", (100, 3, 32), (55, 28, 1, 2, 0, 0), None),
    ("-H 227 -W 227 -k 96 -y 11 -x 11 -u 4 -v 4", (100, 3, 96), (227, 55, 11, 4, 0, 0), None),
    ("-H 17 -W 17 -y 1 -x 7 -p 0 -q 3", (100, 3, 32), (17, 17, 1, 1, 0, 0), (17, 17, 7, 1, 3, 0)),
    ("-H 341 -W 79 -y 5 -x 20 -u 2 -v 2", (100, 3, 32), (341, 169, 5, 2, 0, 0), (79, 30, 20, 2, 0, 0)),
    ("-l 2 -j 2 -p 2 -q 2", (100, 3, 32), (32, 32, 3, 1, 2, 1), None),
    ("-l 3 -j 1", (100, 3, 32), (32, 26, 3, 1, 0, 2), (32, 30, 3, 1, 0, 0)),
    ("-z same", (100, 3, 32), (32, 32, 3, 1, 1, 0), None),
    ("-z same -u 2 -v 3 -p 9", (100, 3, 32), (32, 15, 3, 2, 0, 0), (32, 10, 3, 3, 0, 0)),
    ("-z same -H 33 -u 2 -y 6 -x 1", (100, 3, 32), (33, 16, 6, 2, 2, 0), (32, 32, 1, 1, 0, 0)),
    ("-z same -l 2 -y 1 -x 1", (100, 3, 32), (32, 32, 1, 1, 0, 1), (32, 32, 1, 1, 0, 0)),
    ("-z valid -p 2 -q 2", (100, 3, 32), (32, 30, 3, 1, 0, 0), None),
    ("-z default -p 2", (100, 3, 32), (32, 34, 3, 1, 2, 0), (32, 30, 3, 1, 0, 0)),
    ("-n 0", (0, 3, 32), (32, 30, 3, 1, 0, 0), None),
]


@pytest.mark.parametrize(("flags", "channels", "h", "w"), SHAPES, ids=[flags for flags, *_ in SHAPES])
def test_shapes(flags: str, channels: tuple[int, ...], h: tuple[int, ...], w: tuple[int, ...] | None) -> None:
    problem = one(flags)
    assert (problem.mb, problem.ic, problem.oc) == channels
    assert [(a.i, a.o, a.k, a.s, a.p, a.d) for a in problem.spatial] == [h, w or h]
    assert (problem.groups, problem.has_groups, problem.ndims) == (1, False, 4)
    assert Conv.parse(str(problem)) == problem


def test_three_spatial_dimensions() -> None:
    line = (
        "-_ 3 -n 2 -c 4 -k 6 --in_d 8 -H 9 -W 10 --fil_d 1 -y 2 -x 3 --pad_d 1 -p 2 -q 3"
        " --conv_stride_d 2 -u 3 -v 1 --dilation_d 2 -l 1 -j 2"
    )
    problem = one(line)
    axes = [(a.i, a.o, a.k, a.s, a.p, a.d) for a in problem.spatial]
    assert axes == [(8, 5, 1, 2, 1, 1), (9, 4, 2, 3, 2, 0), (10, 12, 3, 1, 3, 1)]
    assert (problem.stag, problem.wtag, problem.dtag) == ("abcde", "abcde", "abcde")
    short = one("-_ 3 -n 2 -c 4 -k 6 -! 8 -H 9 -W 10 -@ 1 -y 2 -x 3 -$ 1 -p 2 -q 3 -# 2 -u 3 -v 1 -^ 2 -l 1 -j 2")
    assert short == problem


@pytest.mark.parametrize(
    ("bias", "mask", "wanted"),
    [
        *((0, mask, names) for mask, names in [(0, "FDW"), (1, "F"), (2, "D"), (3, "FD"), (4, "W"), (5, "FW")]),
        *((0, mask, names) for mask, names in [(6, "DW"), (7, "FDW")]),
        *((1, mask, names) for mask, names in [(0, "FDW"), (1, "F"), (2, "D"), (4, "W")]),
    ],
)
def test_directions(bias: int, mask: int, wanted: str) -> None:
    names = {"F": "FWD_B", "D": "BWD_D", "W": "BWD_WB"} if bias else {"F": "FWD_D", "D": "BWD_D", "W": "BWD_W"}
    problems = miopen.problems(f"MIOpenDriver conv --forw {mask} -b {bias}")
    assert [problem.direction.value for problem in problems] == [names[letter] for letter in wanted]


LAYOUTS = [
    ("-I NHWC -O NHWC -f NHWC", ("acdb", "acdb", "acdb")),
    ("-I CHWN -O NCHW -f NHWC", ("bcda", "acdb", "abcd")),
    ("--in_layout NCHW --out_layout CHWN --fil_layout CHWN", ("abcd", "bcda", "bcda")),
    ("-_ 3 -I NDHWC -f NDHWC -O NCDHW", ("acdeb", "acdeb", "abcde")),
    ("-g 3", ("abcd", "abcde", "abcd")),
    ("-g 3 -k 33 -f NHWC", ("abcd", "abdec", "abcd")),
    ("-g 3 -k 33 -f CHWN", ("abcd", "cdeab", "abcd")),
    ("-_ 3 -g 3 -k 33 -f NDHWC", ("abcde", "abdefc", "abcde")),
]


@pytest.mark.parametrize(("flags", "tags"), LAYOUTS)
def test_layouts(flags: str, tags: tuple[str, str, str]) -> None:
    problem = one(f"-k 33 {flags}")
    assert (problem.stag, problem.wtag, problem.dtag) == tags


def test_groups_keep_totals() -> None:
    problem = one("-g 4 -c 8 -k 12")
    assert (problem.groups, problem.has_groups, problem.ic, problem.oc) == (4, True, 8, 12)
    assert problem.wei_dims == (4, 3, 2, 3, 3)


@pytest.mark.parametrize(
    ("base", "dtypes"),
    [
        *(("conv", "f32"), ("convfp16", "f16"), ("convbfp16", "bf16"), ("convint8", "s8:s8:s32")),
        *(("convfp8", "f8_e4m3"), ("convbfp8", "f8_e5m2")),
    ],
)
def test_types(base: str, dtypes: str) -> None:
    problem = one("", base)
    src, wei, dst = parse_types(dtypes)
    assert problem == evolve(one(""), src_type=src, wei_type=wei, dst_type=dst)
    if base == "convint8":  # backward is not among MIOpenDriver's
        assert miopen.problems("MIOpenDriver convint8") == (problem,)


def test_flags_that_are_not_used_are_not_checked() -> None:
    flags = "--conv_stride_d 0 --dilation_d 0 --in_d 0 --fil_d x -$ -1 --trans_output_pad_d many"
    assert one(flags) == one("")
    assert one("-z same -p -1 -q none") == one("-z same")
    with pytest.raises(PointedError, match="given '0' at --conv_stride_d, wanted a number from 1"):
        one("--conv_stride_d 0 -_ 3")


def test_transposed_convolutions_have_input_channels_first_in_weights() -> None:
    """MIOpen's weights are [C, K / g, y, x]; the logical ones here are [g, K / g, C / g, y, x]."""
    flags = "-m trans -n 2 -c 8 -k 6 -H 5 -W 4 -y 3 -x 2 -u 2 -v 1 -p 1 -q 0 -Y 1"
    assert str(one(flags)) == (
        "--deconv --dir=FWD_D --stag=abcd --wtag=bacd --dtag=abcd mb2_ic8oc6_ih5oh10kh3sh2ph1_iw4ow5kw2pw0"
    )
    assert str(one(f"{flags} -g 2 -f NHWC")) == (
        "--deconv --dir=FWD_D --stag=abcd --wtag=acdeb --dtag=abcd g2mb2_ic8oc6_ih5oh10kh3sh2ph1_iw4ow5kw2pw0"
    )


@pytest.mark.parametrize(
    "flags",
    [
        *("--in_layout=NHWC --forw=1", "-in_layout=NHWC", "-in_layout NHWC", "-I=NHWC"),
        *("--in_layout nhwc", "-in_layout=nhwc"),
    ],
)
def test_other_spellings(flags: str) -> None:
    assert one(flags) == one("-I NHWC")


@pytest.mark.parametrize(
    "tail", ["2>&1 | tee log.txt", "> out.txt", ">out.txt 2>&1", "&> log", "; echo done", "|| exit 1"]
)
def test_a_line_ends_where_the_shell_goes_on(tail: str) -> None:
    assert one(f"-n 4 {tail}") == one("-n 4")


#: flag -> a value that changes the problem of a line with three spatial dimensions
USED = {
    **dict.fromkeys(("batchsize", "in_channels", "in_d", "in_h", "in_w", "out_channels"), "7"),
    **{f"{name}_{axis}": "2" for axis in "dhw" for name in ("fil", "conv_stride", "pad", "dilation")},
    **{f"{name}_layout": "NDHWC" for name in ("in", "out", "fil")},
    "forw": "4",
    "spatial_dim": "2",
    "pad_mode": "same",
    "bias": "1",
    "group_count": "2",
}


@pytest.mark.parametrize("flag", miopen.FLAGS, ids=lambda flag: flag.name)
def test_both_spellings_of_every_flag(flag: miopen.Flag) -> None:
    base = "MIOpenDriver conv -_ 3 -c 4 -F 1"
    value = USED.get(flag.name, flag.default or "file")
    short, long = (miopen.problems(f"{base} {spelled} {value}") for spelled in (f"-{flag.short}", f"--{flag.name}"))
    assert short == long
    assert (short != miopen.problems(base)) == (flag.name in USED)


def test_ignored_flags_take_anything() -> None:
    ignored = [flag for flag in miopen.FLAGS if flag.least is None and not flag.words and not flag.only]
    assert {flag.name for flag in ignored} & USED.keys() == set()
    assert one(" ".join(f"-{flag.short} -x" for flag in ignored)) == one("")


def test_old_names_and_the_last_of_repeated_flags() -> None:
    assert one("-u 9 --conv_stride_0 2 --conv_stride_1 2") == one("-u 2 -v 2")


@pytest.mark.parametrize(
    "line",
    [
        "MIOpenDriver conv",
        "bin/MIOpenDriver conv",
        "/opt/rocm/bin/MIOpenDriver conv",
        "MIOPEN_FIND_MODE=1 ./bin/MIOpenDriver conv",
        "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver conv",
        "C:/rocm/MIOpenDriver.exe conv",
        "$MIOpenDriver conv",
        "${MIOpenDriver} conv",
        'time "$MIOpenDriver" conv',
    ],
)
def test_what_is_a_line(line: str) -> None:
    assert miopen.is_line(line)
    assert miopen.problems(line) == miopen.problems("MIOpenDriver conv")


@pytest.mark.parametrize(
    "text", ["", "mb1ic4oc4ih4kh1", "conv", "--conv -n 4", "MIOpenDrivers conv", "xMIOpenDriver conv"]
)
def test_what_is_none(text: str) -> None:
    assert not miopen.is_line(text)


def test_knobs_win() -> None:
    assert texts(LINE, mb="2", stag="axb", dt="bf16", dir="FWD_D") == [
        "--dir=FWD_D --dt=bf16 --stag=axb --wtag=abcd --dtag=abcd mb2_ic64oc64_ih56oh56kh3ph1"
    ]
    assert len(texts("MIOpenDriver conv", dir="FWD_D")) == 1


#: flags -> the error; a ^ in it stands before the character
WRONG = [
    ("", "given no base argument, wanted one of <bases>, at column 13: MIOpenDriver^"),
    (
        "convfp61 -n 4",
        "given the base argument 'convfp61' (did you mean convfp16?), wanted one of <bases>, at column 14: "
        "MIOpenDriver ^convfp61 -n 4",
    ),
    (
        "conv -N 4",
        "given '-N', wanted a flag of MIOpenDriver conv such as -n or --in_h, at column 19: MIOpenDriver conv ^-N 4",
    ),
    (
        "conv -n4",
        "given '-n4' (did you mean -n?), wanted a flag of MIOpenDriver conv such as -n or --in_h, at column 19: "
        "MIOpenDriver conv ^-n4",
    ),
    (
        "conv 4",
        "given '4', wanted a flag of MIOpenDriver conv such as -n or --in_h, at column 19: MIOpenDriver conv ^4",
    ),
    ("conv -c 4 -n", "given -n without a value, wanted one, at column 26: MIOpenDriver conv -c 4 -n^"),
    (
        "conv -n many",
        "given 'many' at -n, wanted a number from 0 to 2^31 - 1, at column 22: MIOpenDriver conv -n ^many",
    ),
    ("conv -c -4", "given '-4' at -c, wanted a number from 1 to 2^31 - 1, at column 22: MIOpenDriver conv -c ^-4"),
    (
        "conv --in_h 0",
        "given '0' at --in_h, wanted a number from 1 to 2^31 - 1, at column 26: MIOpenDriver conv --in_h ^0",
    ),
    (
        "conv -k 2147483648",
        "given '2147483648' at -k, wanted a number from 1 to 2^31 - 1, at column 22: MIOpenDriver conv -k ^2147483648",
    ),
    ("conv -u 0", "given '0' at -u, wanted a number from 1 to 2^31 - 1, at column 22: MIOpenDriver conv -u ^0"),
    ("conv -l 0", "given '0' at -l, wanted a number from 1 to 2^31 - 1, at column 22: MIOpenDriver conv -l ^0"),
    ("conv -F 8", "given '8' at -F, wanted a number from 0 to 7, at column 22: MIOpenDriver conv -F ^8"),
    ("conv -_ 1", "given '1' at -_, wanted one of 2, 3, at column 22: MIOpenDriver conv -_ ^1"),
    ("conv -b 2", "given '2' at -b, wanted one of 0, 1, at column 22: MIOpenDriver conv -b ^2"),
    (
        "conv -m deconv",
        "given 'deconv' (did you mean conv?) at -m, wanted one of conv, trans, at column 22: "
        "MIOpenDriver conv -m ^deconv",
    ),
    (
        "conv -z full",
        "given 'full' at -z, wanted one of same, valid, default, at column 22: MIOpenDriver conv -z ^full",
    ),
    (
        "conv -I nchw",
        "given 'nchw' at -I, wanted one of NCHW, NHWC, CHWN, NCDHW, NDHWC, at column 22: MIOpenDriver conv -I ^nchw",
    ),
    (
        "conv -O NDHWC",
        "given NDHWC for 2 spatial dimensions, wanted one of NCHW, NHWC, CHWN, at column 22: "
        "MIOpenDriver conv -O ^NDHWC",
    ),
    (
        "conv -_ 3 -f CHWN",
        "given CHWN for 3 spatial dimensions, wanted one of NCDHW, NDHWC, at column 27: "
        "MIOpenDriver conv -_ 3 -f ^CHWN",
    ),
    (
        "conv -c 8 -g 3",
        "given 8 in_channels in 3 groups, wanted a multiple of the groups, at column 27: MIOpenDriver conv -c 8 -g ^3",
    ),
    (
        "conv -g 3",
        "given 32 out_channels in 3 groups, wanted a multiple of the groups, at column 22: MIOpenDriver conv -g ^3",
    ),
    (
        "conv -z same -l 2",
        "given pad_mode same and a dilated filter, wanted dilations of 1, at column 22: "
        "MIOpenDriver conv -z ^same -l 2",
    ),
    (
        "conv -H 1",
        "given sizes that make oh -1, wanted at least 1, at column 13: mb100ic3oc32^ih1kh3sh1ph0dh0iw32kw3sw1pw0dw0",
    ),
]
UNSUPPORTED = [
    ("pool -n 4", "given pool of MIOpenDriver, wanted one of conv, "),
    ("newopfp16 -Q 4", "given newopfp16 of MIOpenDriver, wanted one of conv, "),
    ("CBAInfer -n 4", "given fusion_mode 0, with batch normalisation, wanted one of 4, 5, 6"),
    ("CBAInfer -F 4 -m 6", "given activMode 6, wanted one of 0, 1, 3, 4, 5, 7, 8, 9"),
    ("convint8 -F 2", "given convint8 and -F 2, wanted a forward direction: MIOpenDriver has no other of 8-bit"),
    ("conv -n $batch", "given $batch, wanted its value: no shell's variables are expanded"),
    ("${base} -n 4", "given ${base}, wanted its value: no shell's variables are expanded"),
    ("conv -U fp8", "given -U fp8 (in_cast_type), wanted -U -1: others are not generated yet"),
    ("conv -r 1", "given -r 1 (pad_val), wanted -r 0: others are not generated yet"),
    ("conv -Z 1 -L 4", "given -Z 1 (tensor_vect), wanted -Z 0: others are not generated yet"),
    ("conv --vector_length 8", "given --vector_length 8 (vector_length), wanted --vector_length 1: others are not"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_wrong_lines(flags: str, message: str) -> None:
    with pytest.raises(PointedError) as error:
        miopen.problems(f"MIOpenDriver {flags}".strip())
    assert error.value.one_line == message.replace("<bases>", ", ".join(miopen.BASES))


@pytest.mark.parametrize(("flags", "message"), UNSUPPORTED)
def test_unsupported_lines(flags: str, message: str) -> None:
    with pytest.raises(Unsupported) as error:
        miopen.problems(f"MIOpenDriver {flags}")
    assert str(error.value).startswith(message)


@given(st.lists(st.sampled_from(["-n", "-H", "--in_h", "-g", "-F", "-I", "4", "NHWC", "0", "-z", "same", "-_", "3"])))
def test_any_words_are_problems_or_refused(words: list[str]) -> None:
    try:
        problems = miopen.problems(" ".join(["MIOpenDriver", "conv", *words]))
    except (UserError, Unsupported):
        return
    assert problems
    assert all(Conv.parse(str(problem)) == problem for problem in problems)


# At the command line

SMALL = "MIOpenDriver convfp16 -n 1 -c 16 -H 6 -W 6 -k 16 -p 1 -q 1 -F 1"
NHWC = "-I NHWC -O NHWC -f NHWC"


def problems_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["problem"] for line in capsys.readouterr().out.splitlines()]


def test_quoted_or_as_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"{SMALL} {NHWC}"
    wanted = "--dir=FWD_D --dt=f16 --stag=acdb --wtag=acdb --dtag=acdb mb1_ic16oc16_ih6oh6kh3ph1"
    assert cli.main(["conv", "--json", line]) == 0
    assert problems_of(capsys) == [wanted]
    assert cli.main(["conv", "--json", *line.split()]) == 0
    assert problems_of(capsys) == [wanted]
    assert cli.main(["conv", line, "--mb", "3", "--dt=bf16", "mb1ic16oc16ih6kh1", "--dir", "FWD_D", "--json"]) == 0
    assert problems_of(capsys) == [
        wanted.replace("mb1", "mb3").replace("=f16", "=bf16"),
        "--dir=FWD_D --dt=bf16 mb3_ic16oc16_ih6oh6kh1ph0",
    ]


def test_each_direction_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{SMALL} {NHWC}".replace("-F 1", "-F 0")
    assert cli.main(["conv", line, "-o", "k"]) == 2
    assert capsys.readouterr().err == ("convgen: given 3 problems and -o k, wanted one problem, or a directory DIR/\n")


def test_errors_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conv", "MIOpenDriver", "conv", "-n", "4", "--run"]) == 2
    assert capsys.readouterr().err == (
        "convgen: given '--run', wanted a flag of MIOpenDriver conv such as -n or --in_h, at column 24: "
        "MIOpenDriver conv -n 4 ^--run\n"
    )
