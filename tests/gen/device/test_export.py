"""Kernels as C: the exported source, compiled and linked with the stand-in, does what the kernel does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import convgen as cg
from convgen.backends.amdgpu.family import RUNTIME
from convgen.backends.toolchain import CLANG
from convgen.commands import cli
from convgen.device.c_export import _templates, _Writer
from convgen.device.loaded import Program
from convgen.ir import types
from convgen.ir.layout.argument import evaluate
from convgen.problem.matmul import parse_problem
from convgen.run import reference
from convgen.run.code import Code
from convgen.run.files import write_code
from convgen.run.launch_record import LaunchRecord
from tests.gen.device.standin import StandIn
from tests.gen.device.test_load import CASES, Array, code_of, compiled, right, same
from tests.gen.test_hand_written import saxpy
from tests.strategies import always

STRICT = "-std=c11 -O1 -Wall -Wextra -Wpedantic -Wconversion -Werror".split()

#: Program around exported code: each buffer is a file, read before and written behind the launch.
MAIN = """
#include "k.h"
#include <stdio.h>
#include <stdlib.h>
int hipMalloc(void **pointer, size_t size);
int hipMemcpy(void *to, const void *from, size_t size, int kind);
int hipDeviceSynchronize(void);
static void check(int status, int line) {{ if (status) {{ printf("%d at %d\\n", status, line); exit(1); }} }}
#define CHECK(x) check(x, __LINE__)
static void *held(const char *path, size_t size) {{
    void *here = calloc(1, size), *there;
    FILE *file = fopen(path, "rb");
    if (file) {{ if (fread(here, 1, size, file) != size) exit(2); fclose(file); }}
    CHECK(hipMalloc(&there, size));
    CHECK(hipMemcpy(there, here, size, 1));
    free(here);
    return there;
}}
static void keep(const char *path, const void *there, size_t size) {{
    void *here = malloc(size);
    CHECK(hipMemcpy(here, there, size, 2));
    FILE *file = fopen(path, "wb");
    fwrite(here, 1, size, file);
    fclose(file);
    free(here);
}}
int main(void) {{
    k_kernel *kernel;
    k_buffers buffers;
    void *workspace;
    {scalars}
    CHECK(k_load(&kernel));
    {held}
    CHECK(hipMalloc(&workspace, k_workspace_bytes({given})));
    {clear}
    CHECK(k_launch(kernel, &buffers, {passed}workspace, NULL));
    CHECK(k_launch(kernel, &buffers, {passed}workspace, NULL)); /* launches leave the workspace as they want it */
    CHECK(hipDeviceSynchronize());
    {keep}
    CHECK(k_unload(kernel));
    return 0;
}}
"""


def compile_c(folder: Path, *rest: str) -> None:
    clang = CLANG.find()
    assert clang is not None
    done = subprocess.run([clang, *STRICT, *rest], cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def executed(
    code: Code,
    record: LaunchRecord,
    inputs: Mapping[str, Array],
    scalars: Sequence[str],
    standin: StandIn,
    folder: Path,
) -> dict[str, Array]:
    """What is in each output behind a program in C; `record` has the sizes of the launch."""
    program, buffers = Program.of(code), record.buffers
    cg.export(code, folder / "k")
    names = dict.fromkeys((*program.inputs, *program.outputs))
    for name, array in inputs.items():
        (folder / name).write_bytes(reference.pack(buffers[name].tensor.layout, array).tobytes())
    clear = [f"CHECK(k_clear(workspace, {'&scalars, ' if scalars else ''}NULL));"]
    sizes = {name: types.scalar(b.tensor.dtype).size(b.tensor.layout.size_elems) for name, b in buffers.items()}
    text = MAIN.format(
        scalars=f"k_scalars scalars = {{{', '.join(scalars)}}};" if scalars else "",
        held="\n    ".join(f'buffers.{n} = held("{n}", {sizes[n]});' for n in names),
        keep="\n    ".join(f'keep("{n}", buffers.{n}, {sizes[n]});' for n in program.outputs),
        clear="\n    ".join(clear if any(buffers[n].zero for n in program.workspaces) else []),
        given="&scalars" if scalars else "",
        passed="&scalars, " if scalars else "",
    )
    (folder / "main.c").write_text(text)
    library = standin.library
    compile_c(folder, "main.c", "k.c", str(library), f"-Wl,-rpath,{library.parent}", "-o", "main")
    done = subprocess.run(["./main"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not standin.findings
    tensors = {name: buffers[name].tensor for name in program.outputs}
    return {
        name: reference.unpack(t.layout, t.dtype, np.frombuffer((folder / name).read_bytes(), np.uint8))
        for name, t in tensors.items()
    }


#: Of all that has no output for an input: a launch writes that again.
APART = [name for name in CASES if "post-ops" not in name]
FEW = ("bytes", "channels in blocks", "slices that the last sums", "product")


@pytest.mark.parametrize("name", always([(name,) for name in APART], lambda _, row: row[0] in FEW))
def test_programs_in_c(name: str, standin: StandIn, tmp_path: Path) -> None:
    code = code_of(name)
    assert code.problem is not None
    inputs = reference.fill(code.problem)
    found = executed(code, code.record, inputs, [], standin, tmp_path)
    assert all(same(found[output], wanted) for output, wanted in right(code.problem, inputs).items())
    assert [n.kernel for n in standin.launches] == 2 * [n.kernel for n in code.record.launches]


def test_sizes_in_c(standin: StandIn, tmp_path: Path) -> None:
    code = compiled("--dt=f16 --runtime_dims_masks=3:3 96x64:64x80")
    other = parse_problem("--dt=f16 32x32:32x48")
    inputs, sizes = reference.fill(other), {"m": 32, "k": 32, "n": 48}
    scalars = [f".{name} = {size}" for name, size in sizes.items()]
    found = executed(code, code.record.with_scalars(sizes), inputs, scalars, standin, tmp_path)
    assert same(found["dst"], right(other, inputs)["dst"])


def test_numbers_that_break_a_promise(standin: StandIn, tmp_path: Path) -> None:
    cg.export(compiled("--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb3ic16ih5oc16kh3ph1"), tmp_path / "k")
    (tmp_path / "main.c").write_text(
        '#include "k.h"\n'
        "int main(void) {\n"
        "    k_kernel *kernel;\n"
        "    k_scalars fine = K_DEFAULTS, none = {.mb = 0}, many = {.mb = 4};\n"
        "    int there[4];\n"
        "    k_buffers buffers = {there, there, there}, missing = {there, NULL, there};\n"
        "    if (k_load(&kernel)) return 1;\n"
        "    if (k_launch(kernel, &buffers, &none, NULL, NULL) != K_INVALID) return 2;\n"
        "    if (k_launch(kernel, &buffers, &many, NULL, NULL) != K_INVALID) return 3;\n"
        "    if (k_launch(kernel, &buffers, NULL, NULL, NULL) != K_INVALID) return 4;\n"
        "    if (k_launch(kernel, &missing, &fine, NULL, NULL) != K_INVALID) return 5;\n"
        "    if (fine.mb != 3 || k_workspace_bytes(&fine)) return 6;\n"
        "    return k_unload(kernel);\n"
        "}\n"
    )
    library = standin.library
    compile_c(tmp_path, "main.c", "k.c", str(library), f"-Wl,-rpath,{library.parent}", "-o", "main")
    assert subprocess.run(["./main"], cwd=tmp_path).returncode == 0
    assert not standin.launches


@pytest.mark.parametrize("expr", ["(n + 63) // 64 - n % 7", "max(n, 3) * min(-n, 5)", "magic(n)", "shift(n)"])
def test_launch_expressions(expr: str, standin: StandIn, tmp_path: Path) -> None:
    """What C makes of them is what `evaluate` does."""
    writer = _Writer(Program.of(cg.compile(saxpy(), scalars={"n": 2})), RUNTIME, "k")
    text = writer.expression(expr)
    helpers = _templates(RUNTIME.package).get_template("arithmetic.c.j2").render(calls=writer.calls)
    numbers = (1, 2, 3, 64, 65, 127, 12345)
    rows = "\n".join(
        f"    {{ struct S s = {{ {n} }}, *scalars = &s; if ({text} != {evaluate(expr, {'n': n})}) return {n % 100}; }}"
        for n in numbers
    )
    (tmp_path / "e.c").write_text(
        f"#include <stdint.h>\nstruct S {{ int64_t n; }};\n{helpers}\nint main(void) {{\n{rows}\n    return 0;\n}}\n"
    )
    compile_c(tmp_path, "-Wno-sign-conversion", "e.c", "-o", "e")
    assert subprocess.run(["./e"], cwd=tmp_path).returncode == 0


def test_headers_tell_what_buffers_are(tmp_path: Path) -> None:
    """Which are written, and sizes: those now, or the expressions of those that are known at launch."""
    exact, _ = cg.export(compiled("--dir=FWD_D --dt=f16 mb2ic16ih6oc16kh3ph1"), tmp_path / "exact")
    assert "    const void *src; /* f16 [2, 16, 6, 6] acdb, 2304 bytes */\n" in exact.read_text()
    assert "    void *dst; /* f16 [2, 16, 6, 6] acdb, 2304 bytes */\n" in exact.read_text()
    line = "--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb9ic16ih6oc16kh3ph1"
    later, _ = cg.export(compiled(line), tmp_path / "later")
    assert "    const void *src; /* f16 [mb, 16, 6, 6] acdb */\n" in later.read_text()


def test_headers_in_cpp(tmp_path: Path) -> None:
    clang = CLANG.find()
    assert clang is not None
    cg.export(compiled("--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb3ic16ih5oc16kh3ph1"), tmp_path / "k")
    command = [clang, "-x", "c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-"]
    text = '#include "k.h"\nk_scalars scalars = K_DEFAULTS;\n'
    subprocess.run(command, input=text, cwd=tmp_path, text=True, check=True)


def test_the_command(standin: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_code(code_of("forward"), str(tmp_path / "a"), ".s", ".hsaco")
    assert cli.main(["export", str(tmp_path / "a.launch.json"), "--c", str(tmp_path / "out/k"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "header": f"{tmp_path}/out/k.h",
        "source": f"{tmp_path}/out/k.c",
    }
    first = (tmp_path / "out/k.c").read_bytes()
    assert cli.main(["export", str(tmp_path / "a.launch.json"), "--c", str(tmp_path / "out/k")]) == 0
    assert (tmp_path / "out/k.c").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "given no --c, wanted one; see convgen export --help"),
        (["--c", "7up"], "given the name '7up' for C, wanted a letter, and letters, digits, _, - or ."),
        (["--c", ""], "given the name '' for C, wanted a letter, and letters, digits, _, - or ."),
        (["--c", "a.launch.json/k"], "cannot write a.launch.json: File exists, at --c"),
    ],
)
def test_wrong_uses(
    words: list[str], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_code(code_of("forward"), "a", ".s", ".hsaco")
    before = sorted(tmp_path.iterdir())
    assert cli.main(["export", "a.launch.json", *words]) == 2
    assert capsys.readouterr().err == f"convgen: {wanted}\n"
    assert sorted(tmp_path.iterdir()) == before
