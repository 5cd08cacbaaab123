"""What other programs log as requests: BLAS benchmarks, oneDNN's verbose log, AITER's tables."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from convgen.commands import cli
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.tags import Layout
from convgen.problem import aiter, request_lines, requests
from convgen.problem.matmul import Matmul

TYPES = "--a_type f16_r --b_type f16_r --c_type f16_r --d_type f16_r --compute_type f32_r"
ONEDNN = "onednn_verbose,v1,primitive,exec,gpu"
CONV = "mb2_ic16oc16_ih7oh7kh5dh0ph2_iw7ow7kw5dw0pw2"

#: line -> the problem that it is
READ = {
    # as hipBLASLt logs it
    "hipblaslt-bench --api_method c -m 4096 -n 2048 -k 1024 --lda 4096 --ldb 1024 --ldc 4096 --ldd 4096  --stride_a 0"
    " --stride_b 0 --stride_c 0 --stride_d 0  --alpha 1.000000 --alphai 0.000000 --beta 0.000000 --betai 0.000000"
    " --transA N --transB N --batch_count 1 --scaleA 0 --scaleB 0  --a_type f16_r --b_type f16_r --c_type f16_r"
    " --d_type f16_r --scale_type f32_r --bias_type f32_r   --compute_type f32_r --algo_method index"
    " --solution_index 2010 --activation_type none --any_stride --rotating 0 --cold_iters 0 --iters 0": (
        "--dt=f16 --stag=ab --wtag=ab --dtag=ab 2048x1024:1024x4096"
    ),
    f"hipblaslt-bench -m 64 -n 32 -k 16 --transA T {TYPES} --activation_type relu --bias_vector --bias_type f32_r": (
        "--dt=f16 --stag=ab --wtag=ba --dtag=ab --attr-post-ops=relu --bia-dt=f32 32x16:16x64"
    ),
    f"/opt/rocm/bin/hipblaslt-bench -m 64 -n 32 -k 16 --batch_count 3 --bias_vector --bias_type f16_r {TYPES}": (
        "--dt=f16 --stag=abc --wtag=abc --dtag=abc --bia-dt=f16 --bia_mask=4 3x32x16:3x16x64"
    ),
    f"hipblaslt-bench -m 64 -n 32 -k 16 --batch_count 3 --stride_b 0 {TYPES}": (
        "--dt=f16 --strides=512x16x1:1024x64x1:2048x64x1 1x32x16:3x16x64"
    ),
    f"hipblaslt-bench -m 64 -n 32 -k 16 --batch_count 3 --transA T --lda 20 {TYPES}": (
        "--dt=f16 --strides=512x16x1:1280x1x20:2048x64x1 3x32x16:3x16x64"
    ),
    # as rocBLAS logs it
    "./rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 128 -n 64 -k 32 --alpha 2 --a_type f16_r --lda 40"
    " --b_type f16_r --ldb 32 --beta 0.5 --c_type f16_r --ldc 128 --d_type f16_r --ldd 128 --compute_type f32_r"
    " --algo 0 --solution_index 0 --flags 0": (
        "--dt=f16 --strides=32x1:1x40:128x1 --attr-post-ops=linear:2+sum:0.5 64x32:32x128"
    ),
    "rocblas-bench -f gemm -r f32_r --transposeA N --transposeB T -m 128 -n 64 -k 32 --alpha 1 --lda 128 --ldb 64"
    " --beta 0 --ldc 128": "--stag=ba --wtag=ab --dtag=ab 64x32:32x128",
    "rocblas-bench -f gemm_ex -m 8 -n 8 -k 8 --a_type i8_r --b_type i8_r --c_type i32_r --d_type i32_r"
    " --compute_type i32_r": "--dt=s8:s8:s32 --stag=ab --wtag=ab --dtag=ab 8x8:8x8",
    # as oneDNN logs it, of several versions
    f"{ONEDNN},convolution,jit:ir,forward_training,src:f16::blocked:acdb::f0 wei:f16::blocked:acdb::f0"
    " bia:f16::blocked:a::f0 dst:f16::blocked:acdb::f0,attr-scratchpad:user attr-post-ops:eltwise_relu+binary_add:f32:2"
    f",alg:convolution_direct,{CONV},0.03": (
        "--dir=FWD_D --bia-dt=f16 --dt=f16 --stag=acdb --wtag=acdb --dtag=acdb --attr-post-ops=relu+add:f32:2"
        " mb2_ic16oc16_ih7oh7kh5ph2"
    ),
    "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_inference,src_f32::blocked:aBcd8b:f0"
    f" wei_f32::blocked:ABcd8b8a:f0 bia_undef::undef::f0"
    f" dst_f32::blocked:aBcd8b:f0,,alg:convolution_direct,{CONV},0.03": (
        "--dir=FWD_D --stag=aBcd8b --wtag=ABcd8b8a --dtag=aBcd8b mb2_ic16oc16_ih7oh7kh5ph2"
    ),
    f"{ONEDNN},convolution,jit:ir,backward_weights,src:bf16::blocked:acdb::f0 wei:f32::blocked:acdb::f0"
    f" bia:f32::blocked:a::f0 dst:bf16::blocked:acdb::f0,,alg:convolution_direct,{CONV},0.03": (
        "--dir=BWD_WB --dt=bf16:f32:bf16 --stag=acdb --wtag=acdb --dtag=acdb mb2_ic16oc16_ih7oh7kh5ph2"
    ),
    f"{ONEDNN},convolution,jit:ir,backward_data,src:bf16::any:: wei:bf16:a:blocked:acdb::f0 bia:undef::undef:::"
    f" dst:bf16::blocked:acdb::f0,,alg:convolution_auto,{CONV},0.03": (
        "--dir=BWD_D --dt=bf16 --wtag=acdb --dtag=acdb mb2_ic16oc16_ih7oh7kh5ph2"
    ),
    "onednn_verbose,v1,1709.25,primitive,exec,gpu,matmul,jit:gemm:any,undef,src:bf16:a:blocked:ab::f0"
    " wei:bf16:a:blocked:ba::f0 bia:f32:a:blocked:ab::f0_mask2 dst:bf16:a:blocked:ab:96x1:f0,attr-deterministic:1,,"
    "64x32:32x48,0.01": (
        "--dt=bf16 --stag=ab --wtag=ba --strides=::96x1 --attr-deterministic=true --bia-dt=f32 64x32:32x48"
    ),
}


@pytest.mark.parametrize(("line", "problem"), READ.items(), ids=range(len(READ)))
def test_lines(line: str, problem: str) -> None:
    (found,) = request_lines.problems(line, {})
    assert request_lines.driver_of(line) == found.driver
    assert str(found) == problem


#: line -> what is said of it: malformed (by its first words), or refused by a rule
REFUSED = {
    f"hipblaslt-bench -n 32 -k 16 {TYPES}": "given no -m, wanted one",
    f"hipblaslt-bench -m x -n 32 -k 16 {TYPES}": "given 'x' at m, wanted a number",
    f"hipblaslt-bench 7 -m 64 -n 32 -k 16 {TYPES}": "given '7', wanted a flag such as -m or --a_type",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --lda 63 {TYPES}": "given --lda 63, wanted at least 64",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --transA X {TYPES}": "given 'X' at --transA, wanted one of N, T, C",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --alpha many {TYPES}": "given 'many' at --alpha, wanted a number",
    "hipblaslt-bench -m 64 -n 32 -k 16": "given no --b_type, wanted one",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --grouped_gemm {TYPES}": "blas-option",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --scaleA 3 {TYPES}": "blas-scale",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --activation_type clamp {TYPES}": "blas-activation",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --alpha 2 --bias_vector --bias_type f32_r {TYPES}": "blas-alpha",
    f"hipblaslt-bench -m 64 -n 32 -k 16 --beta 2 {TYPES} --d_type f32_r": "blas-beta",
    f"hipblaslt-bench -m 64 -n 32 -k 16 {TYPES} --compute_type f32_bf16_r": "blas-compute-type",
    "rocblas-bench -f trsm -r f32_r -m 64 -n 32": "blas-function",
    "rocblas-bench -f gemm -r f32_c -m 64 -n 32 -k 16": "blas-type",
    f"{ONEDNN},reorder,jit:ir,undef,src:f16::blocked:acdb::f0 dst:f16::blocked:abcd::f0,,,1x2x3x4,0.1": "driver",
    f"{ONEDNN},matmul,x,undef,src:f16::blocked:ab::f0 wei:f16::blocked:ab::f0 dst:f16::blocked:ab::f0,"
    "rnn_data_qparams:1:2,,64x32:32x48,0.01": "verbose-attribute",
    f"{ONEDNN},matmul,x": "given 3 fields after exec, wanted 9, in a line of oneDNN's log",
    f"{ONEDNN},matmul,x,undef,src:f16::blocked:ab::f0,,,64x32:32x48,0.01": "given fewer tensors than src, wei and dst",
    f"{ONEDNN},convolution,x,sideways,src:f16::blocked:a::f0 wei:f16::blocked:a::f0 dst:f16::blocked:a::f0,,,x,1": (
        "given the propagation 'sideways', wanted one of forward_training"
    ),
}


@pytest.mark.parametrize(("line", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_lines_that_are_refused(line: str, said: str) -> None:
    with pytest.raises((UserError, Unsupported)) as error:
        request_lines.problems(line, {})
    rule = getattr(error.value, "rule", None)
    assert said == rule if rule else str(error.value).startswith(said), str(error.value)


@pytest.mark.parametrize(("trans_a", "trans_b", "gap", "batch"), list(itertools.product("NT", "NT", (0, 3), (1, 2))))
def test_products_are_those_of_blas(trans_a: str, trans_b: str, gap: int, batch: int) -> None:
    """By the definition, column by column, of the same memory."""
    m, n, k = 4, 5, 6
    leading = {"a": (m if trans_a == "N" else k) + gap, "b": (k if trans_b == "N" else n) + gap, "d": m + gap}
    columns = {"a": k if trans_a == "N" else m, "b": n if trans_b == "N" else k, "d": n}
    strides = {name: leading[name] * columns[name] + gap for name in "abd"}
    words = [f"--ld{name} {leading[name]} --stride_{name} {strides[name]}" for name in "abd"]
    line = f"hipblaslt-bench -m {m} -n {n} -k {k} --transA {trans_a} --transB {trans_b} --batch_count {batch} {TYPES}"
    (problem,) = request_lines.problems(" ".join([line, *words]), {})
    assert isinstance(problem, Matmul)
    random = np.random.default_rng(0)
    memory = {name: random.integers(-9, 10, batch * strides[name]) for name in "abd"}

    def column_major(name: str, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        whole = memory[name][number * strides[name] :][: leading[name] * columns[name]]
        return whole.reshape(columns[name], leading[name]).T

    right = memory["d"].copy()
    for number in range(batch):
        a, b = column_major("a", number), column_major("b", number)
        a, b = (a[:m, :k] if trans_a == "N" else a[:k, :m].T), (b[:k, :n] if trans_b == "N" else b[:n, :k].T)
        view = right[number * strides["d"] :][: leading["d"] * n].reshape(n, leading["d"]).T
        view[:m] = a @ b
    src, wei, dst = (
        memory[name][np.asarray(spec.layout.offset(list(np.indices(spec.dims))))]
        for name, spec in zip("bad", (*problem.factors, *problem.outputs))
    )
    memory["d"][np.asarray(problem.outputs[0].layout.offset(list(np.indices(dst.shape))))] = src @ wei
    assert np.array_equal(memory["d"], right)


PRODUCT = "gpu,matmul,x,undef,src:f16::blocked:ab::f0 wei:f16::blocked:ab::f0 dst:f16::blocked:ab::f0,,,64x32:32x48"
LOG = f"""\
onednn_verbose,v1,info,oneDNN v3.5.0 (commit 0)
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors
onednn_verbose,v1,primitive,create:cache_miss,{PRODUCT},0.02
onednn_verbose,v1,primitive,exec,{PRODUCT},0.01
{ONEDNN},reorder,jit:ir,undef,src:f16::blocked:acdb::f0 dst:f16::blocked:abcd::f0,,,1x2x3x4,0.1
hipblaslt-bench -m 64 -n 32 -k 16 {TYPES}
--dt=f16 mb1ic16ih6oc16kh3ph1
"""


def test_logs_are_files_of_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").write_text(LOG)
    found = requests.read(tmp_path / "log.txt", {}).requests
    assert [str(each.problem) if each.problem else type(each.error).__name__ for each in found] == [
        "--dt=f16 --stag=ab --wtag=ab --dtag=ab 64x32:32x48",
        "Unsupported",
        "--dt=f16 --stag=ab --wtag=ab --dtag=ab 32x16:16x64",
        "--dt=f16 mb1_ic16oc16_ih6oh6kh3ph1",
    ]
    assert cli.main(["batch", str(tmp_path / "log.txt"), "--check", "--json"]) == 2
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["status"] for row in rows] == ["supported", "unsupported", "supported", "supported"]


TABLE = """\
cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName
304,16,1536,7168,False,torch.bfloat16,torch.float32,False,False,hipblaslt,7,0,9.5,Cijk
304,32,64,48,True,torch.float16,torch.float16,False,False,asm,7,0,9.5,"a,b"

304,32,64,x,False,torch.bfloat16,torch.bfloat16,False,False,asm,7,0,9.5,k
304,32,64,48,False,torch.float8,torch.bfloat16,False,False,asm,7,0,9.5,k
304,32,64,48,maybe,torch.bfloat16,torch.bfloat16,False,False,asm,7,0,9.5,k
304,32,64,48,False,torch.float8_e4m3fnuz,torch.bfloat16,True,False,asm,7,0,9.5,k
304,32,64
"""


def test_tables_of_products(tmp_path: Path) -> None:
    (tmp_path / "tuned.csv").write_text(TABLE)
    (tmp_path / "all.txt").write_text("--batch=tuned.csv\n")
    found = requests.read(tmp_path / "all.txt", {}).requests
    assert [str(each.problem or each.error) for each in found] == [
        "--dt=bf16:bf16:f32 --stag=ab --wtag=ba --dtag=ab 16x7168:7168x1536",
        "--dt=f16 --stag=ab --wtag=ba --dtag=ab --bia-dt=f16 32x48:48x64",
        "given 'x', wanted a number, in column K",
        "given the type 'float8' (did you mean float32?), wanted one of bfloat16, float16, float32, int8, int32, "
        "float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, in column dtype",
        "given 'maybe', wanted True or False, in column bias",
        "scaleAB of a table of products",
        "given 3 columns, wanted 14",
    ]
    assert [each.where.rpartition(":")[2] for each in found] == ["2", "3", "5", "6", "7", "8", "9"]


MIXED = """\
key,gfx,cu,dtype,quant,lib,M,N,K,us,file
a,gfx942,304,fp8,bpreshuffle,ck,16,32,64,5,dsv3_a8w8_bpreshuffle_tuned_gemm.csv
b,gfx950,256,fp8,blockscale,ck,16,128,256,5,a8w8_blockscale_tuned_gemm_ds_v3.csv
c,gfx942,304,i8,rowwise,ck,16,32,64,5,a8w8_tuned_gemm.csv
d,gfx950,256,bf16,,asm,16,32,64,5,llama70B_bf16_tuned_gemm.csv
e,gfx950,256,fp4,mx32,asm,16,32,64,5,a4w4_blockscale_tuned_gemm.csv
f,gfx942,304,fp8,bpreshuffle,ck,16,40,64,5,a8w8_bpreshuffle_tuned_gemm.csv
g,gfx942,304,fp8,bpreshuffle,ck,16,32,16,5,a8w8_bpreshuffle_tuned_gemm.csv
"""


@pytest.mark.parametrize("name", ["all.csv", "all.csv.gz"])
def test_rows_of_several_tables(name: str, tmp_path: Path) -> None:
    content = MIXED.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = requests.read(tmp_path / name, {}).requests
    tags = "--stag=ab --wtag={} --dtag=ab"
    plain, shuffled = tags.format("ba"), tags.format("BA16b16a")
    assert [str(each.problem or each.error) for each in found] == [
        f"--dt=f8_e4m3fnuz:f8_e4m3fnuz:bf16 {shuffled} --attr-scales=src:1+wei:2 16x64:64x32",
        f"--dt=f8_e4m3:f8_e4m3:bf16 {plain} --attr-scales=src:3:f32:1x128+wei:3:f32:128x128 16x256:256x128",
        f"--dt=s8:s8:bf16 {plain} --attr-scales=src:1+wei:2 16x64:64x32",
        f"--dt=bf16 {plain} 16x64:64x32",
        "given the types a4w4 of the table a4w4_blockscale_tuned_gemm.csv, wanted a8w8",
        "given shuffled weights of N = 40, K = 64, wanted multiples of 16 and 32",
        "given shuffled weights of N = 32, K = 16, wanted multiples of 16 and 32",
    ]


def test_damaged_and_large_gzip_files(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"\x1f\x8b\x08 no more")
    (tmp_path / "large").write_bytes(gzip.compress(b" " * (64 * 2**20 + 1)))
    for name, message in (("damaged", "that is damaged"), ("large", "of more than 64 MiB of text")):
        with pytest.raises(UserError, match=message):
            requests.read(tmp_path / name, {})


@pytest.mark.parametrize(("dtype", "chunk"), [("torch.int8", 16), ("torch.float8_e4m3fn", 16)])
def test_shuffled_weights_lie_as_aiter_shuffles_them(dtype: str, chunk: int) -> None:
    """`shuffle_weight` of aiter/ops/shuffle.py: rows in blocks of 16, elements along K in chunks of 16 bytes."""
    n, k = 48, 128
    (row,) = aiter.rows(f"M,N,K,q_dtype_w\n8,{n},{k},{dtype}\n", "a8w8_bpreshuffle_tuned_gemm.csv")
    weights = np.arange(n * k).reshape(n, k)
    right = weights.reshape(n // 16, 16, k // (2 * chunk), 2, chunk).transpose(0, 2, 3, 1, 4).ravel()
    layout = Layout.from_tag(row.knobs["wtag"], (k, n))
    memory = np.empty(n * k, np.int64)
    memory[np.asarray(layout.offset(list(np.indices((k, n)))))] = weights.T
    assert np.array_equal(memory, right)


def test_tables_of_others() -> None:
    (row,) = aiter.rows("M,N,name\n1,2,3\n")
    assert isinstance(row.error, Unsupported)
    assert str(row.error).startswith("given a table without the column K, wanted M, N, K of products or N, C, D, H, W")
    assert row.error.rule == "table-columns"


def damaged(text: str, random: Random) -> str:
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        put = random.choice(["", ":", ",", "-", "--", "x", "_", "9" * 20, "nan", "inf", "\0", "é", '"', " "])
        text = text[:at] + put + text[at + random.randint(0, 4) :]
    return text


def test_damaged_lines() -> None:
    """What is wrong with them is said, whatever it is."""
    random = Random(1)
    for text in random.choices([*READ, *REFUSED], k=2000):
        line = damaged(text, random)
        if request_lines.driver_of(line) is not None:
            with contextlib.suppress(UserError, Unsupported):
                request_lines.problems(line, {})
    for _ in range(500):
        with contextlib.suppress(UserError):
            list(aiter.rows(damaged(TABLE, random)))
    with pytest.raises(UserError, match=r"^given a table that cannot be read: field larger than field limit"):
        list(aiter.rows(f"M,N,K\n{'1' * 200_000},2,3\n"))


def test_descriptors_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """The last words of `gemm` are a line; one of the other driver is refused."""
    words = f"hipblaslt-bench -m 16 -n 16 -k 16 {TYPES}".split()
    assert cli.main(["gemm", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["problem"] == "--dt=f16 --stag=ab --wtag=ab --dtag=ab 16x16:16x16"
    assert cli.main(["conv", " ".join(words)]) == 2
    assert capsys.readouterr().err.startswith("convgen: given a matrix product ('hipblaslt-bench -m 16")
