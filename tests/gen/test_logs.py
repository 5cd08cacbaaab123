"""Logs as requests: forms of tests/data/problems/logs.txt behind any prefix, sentences, commands of a shell."""

from __future__ import annotations

import codecs
import io
import itertools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convgen.commands import cli
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.tags import Layout
from convgen.problem import request_lines, requests
from convgen.problem.requests import Reader
from convgen.run import reference

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
DATA = Path(__file__).parents[1] / "data" / "problems" / "logs.txt"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed() -> list[tuple[str, str]]:
    """(the problem or = and the rule, line)"""
    rows = [row for row in DATA.read_text().splitlines() if row and not row.startswith("#")]
    return [(expected, line) for expected, _, line in (row.partition("  ") for row in rows)]


@dataclass
class Told:
    """What a file asks for: problems, or = and a rule, or = and what is wrong; and the lines that ask for nothing."""

    requests: list[str]
    remarks: int


def told_of(name: str) -> Told:
    reader = Reader.of({}, None, None)
    found = list(reader.file(Path(name)))
    texts = [str(each.problem) if each.problem else f"={getattr(each.error, 'rule', each.error)}" for each in found]
    return Told(texts, len(reader.remarks))


def told(text: str, name: str = "file") -> list[str]:
    Path(name).write_text(text)
    return told_of(name).requests


def test_the_rules_are_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
    more = {
        "table-columns",
        "activation",
        "onnx-shape",
        "onnx-gemm",
        "onnx-bias",
        "torch-shape",
        "torch-gemm",
        "torch-vector",
    }
    for rule in {expected[1:] for expected, _ in listed() if expected.startswith("=")} | more:
        assert f"`{rule}`" in page, rule


@pytest.mark.parametrize(("expected", "line"), listed(), ids=range(len(listed())))
def test_forms(expected: str, line: str) -> None:
    assert told(line) == [expected]


def test_every_form_in_one_file() -> None:
    """Each line for itself: none changes what another asks for."""
    found = told("\n".join(line for _, line in listed()))
    assert found == [expected for expected, _ in listed()]


PREFIXES = [
    *("[rank0]: ", "[rank12]:", "[1,0]<stdout>:", "0: ", "node01: ", "[gw0] ", "worker-1  | ", "<6>", "stderr: "),
    *("[2024-05-01 12:00:00] ", "2024-05-01 12:00:00,123 - INFO - ", "2024-05-01T12:00:00.123456Z ", "12:00:00.1 | "),
    *("2024-05-01T12:00:00+02:00 host app[12]: ", "May  1 12:00:00 host app[123]: ", "2024/05/01 12:00:00 "),
    *(
        "05/01/2024 12:00:00 PM ",
        "Wed May  1 12:00:00 2024 ",
        "[ 12.345678] ",
        "1714557600.123 ",
        "I0501 12:00:00.12 1 f.cc:5] ",
    ),
    *("INFO:root:", "WARNING:my.logger:", "INFO:    ", "DEBUG ", "INFO 05-01 12:00:00 [core.py:58] ", "[main] [INFO] "),
    *("(EngineCore_0 pid=123) ", "(VllmWorker rank=0 pid=1234) INFO 05-01 12:00:00 [core.py:58] ", "#12 0.345 "),
    *("E   ", "E       ", "> ", "+ ", "++ ", "$ ", "* ", "- ", "1. ", "  12: ", "25\t", "[   OK   ] "),
    *("tests/test_foo.py::test_bar PASSED ", "0:PASSED (123 ms) __REPRO: ", "\x1b[32m", "\x1b[1;31mINFO\x1b[0m "),
]
REQUESTS = {
    "onednn": "onednn_verbose,v1,primitive,exec,gpu:0,matmul,x,undef,src:f16::blocked:ab::f0 wei:f16::blocked:ba::f0"
    " dst:f16::blocked:ab::f0,,,64x32:32x48,0.1",
    "miopen": "./bin/MIOpenDriver convfp16 -n 1 -c 64 -H 14 -W 14 -k 64 -F 1",
    "boo": "convfp16 -n 1 -c 64 -H 14 -W 14 -k 64 -F 1",
    "hipblaslt": "hipblaslt-bench -m 64 -n 64 -k 64 --a_type f16_r --b_type f16_r --d_type f16_r",
    "trace": "rocblas_sgemm,N,T,8,8,8,1,0x1,8,0x2,8,0,0x3,8,atomics_allowed",
    "profile": '- { rocblas_function: "rocblas_sgemm", transA: N, transB: N, M: 8, N: 8, K: 8, ldc: 8 }',
    "finddb": "64-14-14-3x3-64-12-12-1-0x0-1x1-1x1-0-NCHW-FP16-F=x:0.1",
    "conv": "--dir=FWD_D --dt=f16 mb1ic64ih14oc64kh3ph1",
    "matmul": "--matmul --dt=f16 64x64:64x64",
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_prefixes(kind: str) -> None:
    (wanted,) = told(REQUESTS[kind])
    assert not wanted.startswith("=")
    text = "\n".join(f"{prefix}{REQUESTS[kind]}\r" for prefix in PREFIXES)
    assert told(text) == [wanted] * len(PREFIXES)
    assert told(f"\"{REQUESTS[kind]}\"\n'{REQUESTS[kind]}'") == [wanted] * 2


@pytest.mark.parametrize("kind", ["miopen", "hipblaslt"])
def test_commands_of_a_shell(kind: str) -> None:
    line = REQUESTS[kind]
    (wanted,) = told(line)
    continued = line.replace(" -", " \\\n   -")
    around = [
        *(
            "cd build && {}",
            "time {}",
            "rocprof --stats {}",
            "rocprofv3 --kernel-trace -- {}",
            "A=1 B='x y' {}",
            "(cd x; {})",
        ),
        *(
            "{} | grep x",
            "{} |& tee log",
            "{} > out.txt 2>&1",
            "{} 2>/dev/null",
            "{} &",
            "{};",
            "{} && echo done",
            'bash -c "{}"',
        ),
        *("mpirun -np 2 {}", "timeout 60 {}", "$({})", '{{"cmd": "{}", "n": 1}}', "`{}`"),
    ]
    for command in around:
        assert told(command.format(line)) == [wanted], command
    assert told(f"{continued}\n{line}") == [wanted] * 2
    assert told(f"{line} && {line}; {line}") == [wanted] * 3


def test_benchdnn_words_continue_and_windows_paths_do_not() -> None:
    conv = REQUESTS["conv"]
    (wanted,) = told(conv)
    assert told(conv.replace(" --dt", " \\\n --dt")) == [wanted]
    call = "./benchdnn --conv \\\n --dir=FWD_D \\\n  --dt=f16 \\\n mb1ic64ih14oc64kh3ph1"
    assert told(call) == told(call.replace("./benchdnn --conv", "convgen conv")) == [wanted]
    assert told(f"python -m {call.replace('./benchdnn --conv', 'convgen conv')}") == [wanted]
    assert told(f"saved to C:\\logs\\\n{conv}") == [wanted]


def test_commands_of_other_programs_are_one_remark() -> None:
    text = f"python train.py \\\n  --batch-size 8 \\\n  --lr=1e-3\n{REQUESTS['conv']}\n"
    wanted = told(REQUESTS["conv"])
    Path("file").write_text(text)
    assert told_of("file") == Told(wanted, 1)


def test_a_wrong_line_is_one_row() -> None:
    assert len(told("--what=1 --where=2 -x ic4 ic5")) == 1


SENTENCES = """\
Warming up the model
Please run MIOpenDriver to reproduce
MIOpenDriver is a tool, and MIOpenDriver conv is slow
MIOpenDriver convfp16 -n 32 hangs
hipblaslt-bench is slow
I ran hipblaslt-bench with -m 64 and it hangs
rocblas_gemm_ex, which is slow, crashes
rocblas_create_handle,atomics_not_allowed
rocblas_set_stream,0x23ef2880,atomics_not_allowed,x
Use --dir=FWD_D to set the direction
--dir=FWD_D is the forward direction
Running conv with 64x64 tiles
64x64
128x128x32
12:30:45
100%|##########| 64/64 [00:01<00:00]
======= test session starts =======
collected 3 items
FAILED tests/test.py::test_x[64x64:32] - AssertionError
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    x = y - 1
RuntimeError: miopenStatusUnknownError
tests:1 passed:1 skipped:0 mistrusted:0 unimplemented:0 invalid_arguments:0 failed:0 listed:0
total 48
-rw-r--r-- 1 root root 64 Nov 29 f01.txt
--- Captured stdout call ---
name,value
{"a": 1, "b": [2, 3]}
on({ click: 1, function: handler })
onednn_verbose is great
onednn_verbose,v1,info,oneDNN v3.5.0 (commit 0)
onednn_verbose,v0,primitive,create:check,matmul,dimension src:1 is inconsistent with weights:0,src/common/matmul.cpp:144
onednn_verbose,v1,graph,exec,cpu,100002,x,,,,,,0.1
ONEDNN_VERBOSE=1 ./app
conv is 3 times slower
conv -n is the batch
sum of all: 5
reduce -x
layernorm takes 3 us
--batch-size 4 --model llama
python train.py --dt f16 --lr 1e-3
step 1/10 id: 5
3x3 conv of ratio 3:4
2-3-4 and 1-2-3-4x5
hipblaslt-bench --help
MIOpenDriver --help
./benchdnn --help
convgen gemm --help
mb1ic64ih14oc64kh3ph1 passed
Le modèle est prêt …
"""


def test_sentences_are_remarks() -> None:
    for sentence in SENTENCES.splitlines():
        Path("file").write_text(f"{sentence}\n")
        assert told_of("file") == Told([], 1), sentence


def test_remarks_are_one_line_of_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text(f"Warming up the model\nagain \x1b[2J\n{REQUESTS['conv']}\n")
    assert cli.main(["batch", "file", "--check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == "2 lines are no requests, the first is file:1 'Warming up the model'"
    assert cli.main(["batch", "file", "--check", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err.splitlines()[-1] == "2 lines are no requests, the first is file:1 'Warming up the model'"
    Path("file").write_text("Warming up\n")
    assert cli.main(["batch", "file", "--check"]) == 2
    assert capsys.readouterr().err == (
        "convgen: given file with no problem that is selected (1 line is no request, it is file:1 'Warming up'),"
        " wanted at least one\n"
    )


TRACE = """\
[2024-05-14 08:20:45][HIPBLASLT][12345][Api][hipblasLtCreate] handle[out]=0x55d0c0
[2024-05-14 08:20:45][HIPBLASLT][12345][Trace][hipblasLtMatmul] A=0x7f0 Adesc=[type=R_16F rows=128 cols=256 ld=128]
"""


def test_traces_of_calls_are_one_remark_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text(f"{TRACE}{REQUESTS['hipblaslt']}\n")
    assert cli.main(["batch", "file", "--check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == (
        "2 lines are no requests, the first is file:1 '[2024-05-14 08:20:45][HIPBLASLT][12345][';"
        " hipBLASLt logs requests with HIPBLASLT_LOG_MASK=32, not its API trace"
    )
    assert "malformed" not in out


def test_creations_of_what_is_executed_are_remarks() -> None:
    what = REQUESTS["onednn"].partition("exec,")[2]
    (wanted,) = told(REQUESTS["onednn"])
    create = f"onednn_verbose,v1,primitive,create:cache_miss,{what}"
    error = f"onednn_verbose,v1,primitive,error,gpu,{what.rpartition(',')[0]},out of memory,x.cpp:1"
    Path("file").write_text(f"{create}\n{create}\n{REQUESTS['onednn']}\n")
    assert told_of("file") == Told([wanted], 2)
    assert told(f"{create}\n{create}\n") == [wanted]
    assert told(f"{error}\n") == [wanted]
    assert told(f"{create}\n{error}\n") == [wanted]


@pytest.mark.parametrize("line", [
    "hipblaslt-bench -m 64 -n 64 -k 64 --scaleA 1 --scaleB 1 --transA T --a_type f8_r --b_type f8_r --d_type bf16_r",
    REQUESTS["onednn"].replace(",,,64", ",attr-scales:src0:0:f32+wei:0:f32,,64"),
])  # fmt: skip
def test_scales_of_one_value_known_at_launch(line: str) -> None:
    (found,) = told(line)
    assert "src:common:f32+wei:common:f32" in found


def test_zero_points_of_one_value_known_at_launch() -> None:
    (found,) = told(REQUESTS["onednn"].replace(",,,64", ",attr-zero-points:src0:0:s32,,64"))
    assert "--attr-zero-points=src:common:s32 " in found


@pytest.mark.parametrize("attribute", ["scales:src0:0:half", "zero-points:src0:0:s32:3x", "scales:wei:2:f32:1x2x3"])
def test_scales_and_zero_points_that_are_none_are_malformed(attribute: str) -> None:
    """Where the grammar has no such entry, nothing is said to be known at launch only."""
    (found,) = told(REQUESTS["onednn"].replace(",,,64", f",attr-{attribute},,64"))
    assert "wanted" in found
    assert "-runtime" not in found


def test_byte_order_marks_and_line_ends() -> None:
    (wanted,) = told(REQUESTS["conv"])
    for content in (
        codecs.BOM_UTF8 + REQUESTS["conv"].encode(),
        REQUESTS["conv"].encode("utf-16"),
        codecs.BOM_UTF16_BE + REQUESTS["conv"].encode("utf-16-be"),
        b"10%\r50%\r" + REQUESTS["conv"].encode() + b"\r\n",
    ):
        Path("file").write_bytes(content)
        assert told_of("file").requests == [wanted]


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_the_standard_input(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"hello\n{REQUESTS['conv']}\n".encode())))
    assert cli.main(["batch", name, "--check", "--json"]) == 0
    (row,) = capsys.readouterr().out.splitlines()
    assert json.loads(row)["where"] == f"{name}:2"


def test_what_a_shell_connects() -> None:
    """Process substitution; a pipe that somebody names is refused still."""
    own, far = os.pipe()
    os.write(far, REQUESTS["conv"].encode())
    os.close(far)
    try:
        assert len(told_of(f"/dev/fd/{own}").requests) == 1
    finally:
        os.close(own)
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"^given pipe that is a device or a pipe, wanted a batch file$"):
        told_of("pipe")


CONV3D = (
    "gfx,cu_num,N,C,D,H,W,K,kT,kH,kW,stride_d,stride_h,stride_w,pad_d,pad_h,pad_w,dil_d,dil_h,dil_w,groups,bias,us\n"
)
TABLES = {
    "conv3d_bf16_tuned.csv": (
        f"{CONV3D}gfx950,256,1,16,6,14,12,32,3,3,1,1,2,1,0,1,0,1,1,1,1,True,3.1\n"
        "gfx950,256,1,16,1,14,14,32,1,3,3,1,1,1,0,1,1,1,2,2,2,False,3.1\n",
        [
            "--dir=FWD_D --bia-dt=bf16 --dt=bf16 --stag=abcde --wtag=abcde --dtag=abcde"
            " mb1_ic16oc32_id6od4kd3pd0_ih14oh7kh3sh2ph1_iw12ow12kw1pw0",
            "--dir=FWD_D --dt=bf16 --stag=abcde --wtag=abcdef --dtag=abcde"
            " g2mb1_ic16oc32_id1od1kd1pd0_ih14oh12kh3dh1ph1_iw14ow12kw3dw1pw1",
        ],
    ),
    "a8w8_tuned_gemm.csv": (
        "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us\ngfx950,256,64,256,512,torch.float8_e4m3fn,1,0,5.1\n"
        "gfx942,304,1,1280,8192,torch.int8,34,0,8.75\n",
        [
            "--dt=f8_e4m3:f8_e4m3:bf16 --stag=ab --wtag=ba --dtag=ab --attr-scales=src:1+wei:2 64x512:512x256",
            "--dt=s8:s8:bf16 --stag=ab --wtag=ba --dtag=ab --attr-scales=src:1+wei:2 1x8192:8192x1280",
        ],
    ),
    "a8w8_blockscale_untuned_gemm.csv": (
        "M,N,K\n16, 1536, 7168\n",
        [
            "--dt=f8_e4m3:f8_e4m3:bf16 --stag=ab --wtag=ba --dtag=ab"
            " --attr-scales=src:3:f32:1x128+wei:3:f32:128x128 16x7168:7168x1536"
        ],
    ),
    "a8w8_bpreshuffle_tuned_gemm.csv": (
        "M,N,K,q_dtype_w\n1,32,64,torch.int8\n",
        ["--dt=s8:s8:bf16 --stag=ab --wtag=BA16b16a --dtag=ab --attr-scales=src:1+wei:2 1x64:64x32"],
    ),
    "a4w4_blockscale_tuned_gemm.csv": ("cu_num,M,N,K,us\n256,1,2,3,4\n", ["=types"]),
    "tuned_fmoe.csv": ("cu_num,token,model_dim,inter_dim,expert\n256,1,2,3,4\n", ["=table-columns"]),
    "shapes.csv": ("M,N,K\n1,2,3\n", ["=table-columns"]),
    "bf16_tuned_gemm.txt": ("M,N,K,bias,dtype,outdtype\n1,2,3,True,torch.bfloat16,torch.bfloat16\n", [
        "--dt=bf16 --stag=ab --wtag=ba --dtag=ab --bia-dt=bf16 1x3:3x2"
    ]),
    "bf16_batched_untuned_gemm.csv": ("B,M,N,K\n4,1,2,3\n", ["--dt=bf16 --stag=abc --wtag=acb --dtag=abc 4x1x3:4x3x2"]),
    "verbose.csv": (REQUESTS["onednn"], ["--dt=f16 --stag=ab --wtag=ba --dtag=ab 64x32:32x48"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    """A table is one by its first line, not by its name, which may tell types."""
    text, wanted = TABLES[name]
    assert told(text, name) == wanted
    assert told(f"\ufeff{text}", name) == wanted


def test_commands_of_convgen_do_not_change_what_follows() -> None:
    text = "--dt=f16\nconvgen gemm --dt bf16 4x4:4x4\n./benchdnn --matmul --dt=f64 4x4:4x4\n4x4:4x4"
    assert told(text) == [f"--dt={dtype} 4x4:4x4" for dtype in ("bf16", "f64", "f16")]


# What is computed


def laid_out(tag: str, values: Array) -> Array:
    """The memory of a tensor in a layout."""
    layout = Layout.from_tag(tag, values.shape)
    memory = np.zeros(layout.size_elems)
    memory[np.asarray(layout.offset(list(np.indices(values.shape))))] = values
    return memory


def computed(line: str, memory: Mapping[str, Array]) -> Array:
    """The memory of what the problem of a line writes; `memory` is that of its roles."""
    (problem,) = request_lines.problems(line, {})
    (output,) = problem.outputs
    arrays = {
        spec.name: memory[spec.name.removeprefix("diff_")][
            np.asarray(spec.layout.offset(list(np.indices(spec.dims))))
        ].astype(np.float32)
        for spec in problem.factors
    }
    result = np.zeros(output.layout.size_elems)
    at = np.asarray(output.layout.offset(list(np.indices(output.dims))))
    result[at] = reference.whole(problem, arrays, output.name)
    return result


@pytest.mark.parametrize("tags", [("abcd", "abcd", "abcd"), ("acdb", "bacd", "acdb"), ("bacd", "cdab", "abdc")])
def test_deconvolutions_by_their_definition(tags: tuple[str, str, str]) -> None:
    """dst[n, o, i * s - p + k] sums src[n, c, i] * wei[o, c, k]."""
    mb, ic, oc, i, k, s, p, o = 2, 3, 4, 3, 3, 2, 1, 6
    random = np.random.default_rng(0)
    src, wei = (
        random.integers(-4, 5, (mb, ic, i, i)).astype(float),
        random.integers(-4, 5, (oc, ic, k, k)).astype(float),
    )
    dst = np.zeros((mb, oc, o, o))
    for h, w, y, x in itertools.product(range(i), range(i), range(k), range(k)):
        at = h * s - p + y, w * s - p + x
        if min(at) >= 0 and max(at) < o:
            dst[:, :, at[0], at[1]] += src[:, :, h, w] @ wei[:, :, y, x].T
    memory = [f"{name}:f32::blocked:{tag}::f0" for name, tag in zip(("src", "wei", "dst"), tags)]
    sizes = f"mb{mb}_ic{ic}oc{oc}_ih{i}oh{o}kh{k}sh{s}dh0ph{p}_iw{i}ow{o}kw{k}sw{s}dw0pw{p}"
    head = "onednn_verbose,v1,primitive,exec,gpu,deconvolution,x"
    line = f"{head},forward_training,{' '.join(memory)},,alg:deconvolution_direct,{sizes},1"
    found = computed(line, {"src": laid_out(tags[0], src), "wei": laid_out(tags[1], wei)})
    assert np.array_equal(found, laid_out(tags[2], dst))


@pytest.mark.parametrize("tags", [("ab", "ab", "ab"), ("ba", "ba", "ab"), ("ab", "ba", "ba")])
@pytest.mark.parametrize("way", ["forward_inference", "backward_data", "backward_weights"])
def test_inner_products_by_their_definition(way: str, tags: tuple[str, str, str]) -> None:
    mb, ic, oc = 3, 4, 5
    random = np.random.default_rng(1)
    tensors = {
        "src": random.integers(-4, 5, (mb, ic)).astype(float),
        "wei": random.integers(-4, 5, (oc, ic)).astype(float),
        "dst": random.integers(-4, 5, (mb, oc)).astype(float),
    }
    src, wei, dst = tensors.values()
    output, factors, right = {
        "forward_inference": ("dst", ("src", "wei"), src @ wei.T),
        "backward_data": ("src", ("dst", "wei"), dst @ wei),
        "backward_weights": ("wei", ("dst", "src"), dst.T @ src),
    }[way]
    memory = [f"{name}:f32::blocked:{tag}::f0" for name, tag in zip(tensors, tags)]
    head = "onednn_verbose,v1,primitive,exec,gpu,inner_product,x"
    line = f"{head},{way},{' '.join(memory)},,,mb{mb}ic{ic}oc{oc},1"
    tag = dict(zip(tensors, tags))
    given = {role: laid_out(tag[name], tensors[name]) for role, name in zip(("src", "wei"), factors)}
    assert np.array_equal(computed(line, given), laid_out(tag[output], right))


# Whatever the text

WORDS = st.sampled_from(
    "the a model conv gemm MIOpenDriver hipblaslt-bench is slow with 64 3x3 -m -n 4 --dt f16 takes us, rocblas_gemm_ex"
    " , : = | && > \\"
    " onednn_verbose,v1 exec pool sum NCHW [rank0] 12:00:00 INFO ( ) \" ' # {} %".split()
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=12))
def test_any_text_is_requests_or_remarks(words: list[str]) -> None:
    Path("file").write_bytes(" ".join(words).encode(errors="replace"))
    reader = Reader.of({}, None, None)
    for request in reader.file(Path("file")):
        assert (request.problem is None) != (request.error is None)


PROSE = (
    "the model was run with a batch of four images while we looked at how long each layer takes on this device and then"
    " it hangs or gives wrong numbers for pool softmax sum reduce conv gemm layernorm please see MIOpenDriver rocBLAS"
    " hipblaslt-bench benchdnn convgen oneDNN verbose rocblas_gemm_ex in groups of rows"
).split()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.lists(st.sampled_from(PROSE), min_size=1, max_size=14), st.sampled_from(["", ".", ":", "!", "...", " 3.5 ms"])
)
def test_prose_makes_no_row(words: list[str], end: str) -> None:
    assert told(" ".join(words) + end) == []


def test_damaged_lines_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mutation of a line of any form ends in another error than those of requests."""
    random, known = Random(2), [line for _, line in listed()]
    put = [
        "",
        ":",
        ",",
        "-",
        "--",
        "x",
        "_",
        "9" * 20,
        "nan",
        "*",
        "\x1b[",
        "é",
        '"',
        "'",
        " ",
        ";",
        "|",
        "{",
        "=",
        "+",
        "\\",
    ]
    for line in random.choices(known, k=1500):
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(line) + 1)
            line = line[:at] + random.choice(put) + line[at + random.randint(0, 4) :]
        reader = Reader.of({}, None, None)
        for request in reader.line(requests._Line(request_lines.plain(line), Path("file"), 1)):
            assert request.error is None or isinstance(request.error, UserError | Unsupported), (line, request.error)
