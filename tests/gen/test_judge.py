"""`convgen check`: verdicts and exit codes, what is made up where no option says, bundles, Triton's cache, zebin."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.backends.amdgpu.sim import sources as amd
from convgen.backends.intel.sim import sources as intel
from convgen.backends.nvidia.sim import sources as nvidia
from convgen.backends.simulation import Budget, Parameter, Signature
from convgen.commands import cli
from convgen.ir import untrusted
from convgen.ir.error import UserError
from convgen.run import foreign_launch
from convgen.run.defaults import Defaults, element

DATA = Path(__file__).parents[1] / "data"
SOFTMAX = DATA / "foreign" / "triton_gfx942_softmax_f32.hsaco"
GEMM = DATA / "foreign" / "triton_gfx942_small_gemm_NT.hsaco"
ZEBIN = DATA / "intel" / "arithmetic_dg2.bin"
TTIR = """\
module {
  tt.func public @softmax(%X: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("X"(#loc)), %Y: !tt.ptr<f32>, \
%n: i32 {tt.divisibility = 16 : i32} loc("n"(#loc))) attributes {noinline = false} {
    %c1_i32 = arith.constant 1 : i32 loc(#loc6)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(*arguments: object) -> int:
    return cli.main(["check", *map(str, arguments)])


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = check(*arguments, "--json")
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


def faulty(name: str, changes: Mapping[str, str] | None = None) -> Path:
    """An assembled kernel of tests/data/check, with lines replaced."""
    text = (DATA / "check" / f"{name}.s").read_text()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    content = targets.get("gfx942").assemble(text)
    if content is None:
        pytest.skip("no assembler for gfx942 is installed")
    path = Path(f"{name}.hsaco")
    path.write_bytes(content)
    return path


def bundle(*entries: tuple[str, bytes]) -> bytes:
    """A bundle as clang's ClangOffloadBundler documents it."""
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    at = len(head) + sum(24 + len(name) for name, _ in entries)
    for name, content in entries:
        head += struct.pack("<QQQ", at, len(content), len(name)) + name.encode()
        at += len(content)
    return head + b"".join(content for _, content in entries)


def cache(folder: Path, **changes: object) -> Path:
    """A folder as Triton's cache is: an object, its JSON and .ttir, and the driver's helper for the host."""
    inner = folder / "4KHXQ"
    inner.mkdir(parents=True)
    shutil.copy(SOFTMAX, inner / "softmax.hsaco")
    target = {"backend": "hip", "arch": "gfx942", "warp_size": 64}
    told = {"name": "softmax", "num_warps": 4, "shared": 16, "target": target, **changes}
    (inner / "softmax.json").write_text(json.dumps(told))
    (inner / "softmax.ttir").write_text(TTIR)
    (inner / "__grp__softmax.json").write_text('{"child_paths": {}}')
    (inner / "hip_utils.so").write_bytes(b"\x7fELF\2\1\1" + bytes(11) + struct.pack("<H", 62))
    return folder


def test_a_clean_kernel_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(GEMM, "--lds", "8192") == 0
    told = capsys.readouterr().out
    assert "launch        grid 1x1x1, workgroup 256x1x1, 8192 bytes of LDS" in told
    assert "arguments     0=268435456 bytes, 1=268435456 bytes, 2=268435456 bytes, 3=1, 4=1" in told
    assert told.endswith("verdict       CLEAN\n")


@pytest.mark.parametrize(
    ("name", "options", "kind", "instruction", "missing"),
    [
        ("missing_nop", (), "wait-states", "v_pk_mul_f32 v[6:7], v[4:5], v[4:5]", {"  v_pk": "  s_nop 0\n  v_pk"}),
        ("missing_wait", (), "lds-race", "ds_read_b32 v3, v2", {"  s_barrier": "  s_waitcnt lgkmcnt(0)\n  s_barrier"}),
        (
            "missing_fence",
            ("--grid", "2"),
            "global-visibility",
            "global_load_dword v4, v1, s[4:5]",
            {"  s_waitcnt vmcnt(0) ; a": "  buffer_wbl2 sc1\n  s_waitcnt vmcnt(0) ; a"},
        ),
    ],
)
def test_a_fault_is_found_and_its_mending_is_clean(
    name: str,
    options: tuple[str, ...],
    kind: str,
    instruction: str,
    missing: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, told = checked(capsys, faulty(name), *options)
    assert code == 1
    (kernel,) = told["kernels"]
    assert told["verdict"] == kernel["verdict"] == "findings"
    assert {found["kind"] for found in kernel["findings"]} == {kind}
    assert kernel["findings"][0]["instruction"] == instruction
    assert kernel["findings"][0]["required"]
    assert check(faulty(name, missing), *options) == 0


def test_advice_is_told_apart_from_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """Strides of 1 make loads of 16 bytes misaligned, which Linux permits: no manual asks for more."""
    assert check(GEMM, "--lds", "8192") == 0
    told = capsys.readouterr().out
    assert re.search(r"^advice +[1-9][0-9]*\n +misaligned: ", told, re.MULTILINE)
    assert "findings      0\n" in told
    assert check(GEMM, "--lds", "8192", "--strict", "llvm") == 1
    assert re.search(r"^findings +[1-9][0-9]*\n +misaligned: ", capsys.readouterr().out, re.MULTILINE)


def test_findings_that_are_allowed_do_not_count() -> None:
    assert check(faulty("missing_wait"), "--allow", "lds-race") == 0


def test_the_json_of_a_clean_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = checked(capsys, SOFTMAX, "--lds", "16", "--arg", "2=1000", "--arg", "1=f32:1000", "--grid", "1")
    assert code == 0
    (kernel,) = told["kernels"]
    assert told["path"] == kernel["object"] == str(SOFTMAX)
    assert (kernel["kernel"], kernel["target"], kernel["verdict"]) == ("softmax", "gfx942", "clean")
    assert (kernel["grid"], kernel["workgroup"], kernel["lds_bytes"]) == ([1, 1, 1], [256, 1, 1], 16)
    assert kernel["arguments"]["1"] == "f32:1000"
    assert kernel["places"]["executed"] == kernel["places"]["of"] > 0


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (
            "text.hsaco",
            b"nothing",
            "given text.hsaco, wanted a launch record, or a code object for a GPU of AMD, Intel or NVIDIA",
        ),
        ("zipped.o", b"CCOB" + bytes(40), "given zipped.o, a compressed bundle, wanted it unbundled"),
        (
            "host.o",
            bundle(("host-x86_64-unknown-linux-gnu-", b"")),
            "given the bundle host.o, wanted one with a code object",
        ),
        ("cut.o", b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2), "given the damaged bundle cut.o"),
        ("far.o", bundle(("hip-amdgcn--gfx942", b"x" * 64))[:-1], "given the damaged bundle far.o"),
    ],
)
def test_a_file_that_cannot_be_judged_is_one_line(
    name: str, content: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_bytes(content)
    assert check(name) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([GEMM, "--kernel", "gem"], "given the kernel 'gem' (did you mean gemm?), wanted one of gemm"),
        ([GEMM, "--arg", "n=1"], "given the argument n of gemm"),
        ([ZEBIN, "--kernel", "saxpy"], "given no --block for saxpy, wanted one: the object does not state"),
        (["nowhere"], "cannot read nowhere"),
        ([GEMM, "--buffer", 1 << 40], "given --buffer 1099511627776, wanted at most 4294967296 bytes"),
    ],
)
def test_a_launch_that_cannot_be_built_is_one_line(
    arguments: list[object], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*arguments) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def test_every_object_of_a_bundle_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    host = ("host-x86_64-unknown-linux-gnu-", b"")
    amd = "hipv4-amdgcn-amd-amdhsa--gfx942"
    Path("k.o").write_bytes(
        bundle(host, (amd, SOFTMAX.read_bytes()), (f"{amd}:xnack-", faulty("missing_wait").read_bytes()))
    )
    code, told = checked(capsys, "k.o", "--lds", "16")
    assert code == 1
    assert [(entry["object"], entry["verdict"]) for entry in told["kernels"]] == [
        (f"k.o:{amd}", "clean"),
        (f"k.o:{amd}:xnack-", "findings"),
    ]


def test_an_entry_for_an_unknown_processor_does_not_stop_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    content = SOFTMAX.read_bytes()
    flags = struct.unpack_from("<I", content, 48)[0]
    other = content[:48] + struct.pack("<I", flags & ~0xFF | 0x41) + content[52:]  # EF_AMDGPU_MACH_AMDGCN_GFX1100
    Path("k.o").write_bytes(bundle(("hip-amdgcn--gfx1100", other), ("hip-amdgcn--gfx942", content)))
    code, told = checked(capsys, "k.o", "--lds", "16")
    assert code == 2
    assert [entry["verdict"] for entry in told["kernels"]] == ["not judged", "clean"]


def test_a_cache_of_triton_gives_workgroup_lds_names_and_types(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = checked(capsys, cache(Path("cache")))
    assert code == 0
    (kernel,) = told["kernels"]
    assert (kernel["kernel"], kernel["workgroup"], kernel["lds_bytes"]) == ("softmax", [256, 1, 1], 16)
    assert list(kernel["arguments"]) == ["X", "Y", "n", "3", "4"]
    assert kernel["arguments"]["n"] == "16"


def test_the_workgroup_of_a_cache_goes_before_the_bound_of_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    _, told = checked(capsys, cache(Path("cache"), num_warps=2))
    assert told["kernels"][0]["workgroup"] == [128, 1, 1]


def test_options_override_what_a_cache_says(capsys: pytest.CaptureFixture[str]) -> None:
    cache(Path("cache"))
    _, told = checked(capsys, "cache", "--arg", "n=1000", "--grid", "2,2", "--block", "128", "--lds", "64")
    (kernel,) = told["kernels"]
    assert (kernel["grid"], kernel["workgroup"], kernel["lds_bytes"]) == ([2, 2, 1], [128, 1, 1], 64)
    assert kernel["arguments"]["n"] == "1000"


def test_a_folder_is_judged_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged object does not hide the others; the exit code is the worst."""
    folder = cache(Path("cache"))
    (folder / "broken.hsaco").write_bytes(SOFTMAX.read_bytes()[:64])
    code, told = checked(capsys, folder)
    assert code == 2
    assert [entry["verdict"] for entry in told["kernels"]] == ["clean", "not judged"]
    assert told["kernels"][1]["reason"]


def test_a_file_that_cannot_be_read_does_not_stop_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache(Path("cache"))
    (folder / "locked.hsaco").write_bytes(b"")

    def opened(path: Path, *rest: object, **options: object) -> BinaryIO:
        if path.name == "locked.hsaco":
            raise UserError(f"cannot read {path}: Permission denied")
        return whole(path, *rest, **options)  # type: ignore[arg-type]

    whole = untrusted.opened
    monkeypatch.setattr(untrusted, "opened", opened)
    code, told = checked(capsys, folder)
    assert code == 2
    assert [entry["verdict"] for entry in told["kernels"]] == ["clean", "not judged"]


def test_a_folder_can_be_asked_for_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    folder = cache(Path("cache"))
    shutil.copy(GEMM, folder / "gemm.hsaco")
    _, told = checked(capsys, folder, "--kernel", "softmax")
    assert [entry["kernel"] for entry in told["kernels"]] == ["softmax"]
    assert check(folder, "--kernel", "none") == 2


def test_a_folder_without_objects_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert check("empty") == 2
    assert "given the folder empty without code objects" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"num_warps": 0}, {"num_warps": 64}, {"shared": -1}, {"name": 3}])
def test_a_wrong_json_of_triton_is_refused(changes: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert check(cache(Path("cache"), **changes)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_kernels_of_intels_compiler_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = checked(capsys, ZEBIN, "--block", "64", "--arg", "2=64", "--kernel", "reduce")
    assert code == 0
    (kernel,) = told["kernels"]
    assert (kernel["target"], kernel["verdict"], kernel["lds_bytes"]) == ("xehpg", "clean", 256)


def test_local_pointers_of_a_zebin_are_offsets_and_its_names_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "intel" / "groups_dg2.bin"
    code, told = checked(capsys, path, "--kernel", "exchange", "--block", "64", "--lds", "256")
    assert code == 0
    size = f"{1 << 28} bytes"
    assert told["kernels"][0]["arguments"] == {"out": size, "in": size, "tile": "0"}
    assert check(path, "--kernel", "exchange", "--block", "64") == 1
    assert "give its size: --lds BYTES" in capsys.readouterr().out


def test_local_pointers_of_opencl_on_amd_begin_behind_static_lds(capsys: pytest.CaptureFixture[str]) -> None:
    given = ".offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global"
    local = ".offset: {}, .size: 4, .value_kind: dynamic_shared_pointer, .pointee_align: 4"
    one = faulty("missing_wait", {given: local.format(8)})
    _, told = checked(capsys, one, "--lds", "64")
    assert told["kernels"][0]["arguments"]["flag"] == "512"
    assert told["kernels"][0]["lds_bytes"] == 576
    two = faulty("missing_wait", {given: f"{local.format(8)}}}\n      - {{.name: more, {local.format(12)}"})
    assert check(two, "--lds", "64") == 2
    assert "given no --arg more, wanted --arg more=OFFSET in local memory" in capsys.readouterr().err
    assert check(two, "--lds", "64", "--arg", "more=544") == 1


def test_run_executes_kernels_of_intels_compiler() -> None:
    np.save("x.npy", np.arange(64, dtype=np.float32))
    np.save("y.npy", np.ones(64, np.float32))
    launch = ["--kernel", "saxpy", "--grid", "1", "--block", "64"]
    values = ["--arg=0=y.npy", "--arg=1=x.npy", "--arg=2=3.0", "--arg=3=64"]
    assert cli.main(["run", str(ZEBIN), *launch, *values, "--out", "0=r.npy"]) == 0
    np.testing.assert_array_equal(np.load("r.npy"), 3 * np.arange(64, dtype=np.float32) + 1)


def test_a_kernel_that_reads_local_memory_which_nobody_wrote_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """`reduce` sums 64 words of SLM: 32 work-items write half of them."""
    code, told = checked(capsys, ZEBIN, "--block", "32", "--kernel", "reduce")
    assert code == 1
    assert {found["kind"] for found in told["kernels"][0]["findings"]} == {"poison"}


def test_too_little_dynamic_lds_is_hinted_at(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--arg={number}=128" for number in range(3, 9)]
    assert check(GEMM, *sizes) == 1
    assert "give its size: --lds BYTES" in capsys.readouterr().out
    arrays = ["--arg=0=zeros:f16:128x128", "--arg=1=zeros:f16:128x128", "--arg=2=f32:128x128"]
    assert cli.main(["run", str(GEMM), "--grid", "1", "--block", "256", *arrays, *sizes]) == 1
    assert "give its size: --lds BYTES" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("float*", "f32"),
        ("const _Float16 *restrict", "f16"),
        ("i32", "s32"),
        ("f8E4M3FNUZ*", "f8_e4m3fnuz"),
        ("S*", None),
    ],
)
def test_element_types_are_known_by_their_names(type_name: str, expected: str | None) -> None:
    found = element(type_name)
    assert (None if found is None else found.name) == expected


def test_buffers_that_nobody_gives_hold_small_numbers_in_every_page() -> None:
    made = Defaults(1 << 20, Budget(1 << 30)).buffer(Parameter("X", 0, 8, True, "bf16*"), 0)
    values = made.whole().view(element("bf16").numpy).astype(np.float32)  # type: ignore[union-attr]
    assert set(np.unique(values)) == {-2, -1, 0, 1, 2}
    again = Defaults(1 << 20, Budget(1 << 30)).buffer(Parameter("X", 0, 8, True, "bf16*"), 0)
    again.touch(np.array([70_000]), 4)
    np.testing.assert_array_equal(again.data[70_000:70_004], made.data[70_000:70_004])


def test_a_whole_number_given_to_a_float_is_that_float() -> None:
    known = targets.executor(SOFTMAX.read_bytes(), "x").signatures(SOFTMAX.read_bytes())["softmax"]
    parameters = (*known.parameters[:2], Parameter("scale", 16, 4, False, "f32"))
    signature = Signature("softmax", parameters, 0)
    options = foreign_launch.LaunchOptions(None, (1, 1, 1), (256, 1, 1), arguments=[("scale", "2")])
    launch = foreign_launch.prepare({"softmax": signature}, options)
    assert launch.request.args[0].value == np.float32(2).tobytes()


def test_the_page_names_only_kinds_of_findings_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    known = {*amd.SOURCES, *intel.SOURCES, *nvidia.SOURCES, "wait-states", "slm-race", "type", "block2d"}
    for row in re.findall(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \| ", page, re.MULTILINE):
        assert {*re.findall(r"`([^`]+)`", row)} <= known
