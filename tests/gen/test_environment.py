"""A machine that lacks something: output that nobody can take, full disks, folders that are not there, broken tools."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from convgen.backends.amdgpu import assemble as amd
from convgen.backends.intel import assemble as intel
from convgen.backends.toolchain import CLANG
from convgen.commands import cli, session
from convgen.ir.error import UserError
from convgen.run import files
from tests.conftest import found_tool

CONV = ["conv", "mb1ic16ih4oc16kh1ph0", "--dir", "FWD_D", "--dt", "f16"]


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `convgen` is ours."""
    program = f"convgen() {{ '{sys.executable}' -m convgen \"$@\"; }}\n"
    env = {**os.environ, **environment}
    return subprocess.run(["bash", "-c", program + line], cwd=folder, env=env, capture_output=True, text=True)


#: a line, its exit code, what it says on stderr
STREAMS = [
    ("convgen passes >&-", 2, "convgen: cannot write to stdout: Bad file descriptor\n"),
    ("convgen passes >/dev/full", 2, "convgen: cannot write to stdout: No space left on device\n"),
    ("convgen conv --help >/dev/full", 2, "convgen: cannot write to stdout: No space left on device\n"),
    ("convgen passes >/dev/full 2>&1", 2, ""),
    ("convgen passes 2>&-", 0, ""),
    ("convgen conv ic4 2>&-", 2, ""),
    ("convgen conv ic4 2>/dev/full", 2, ""),
]


@pytest.mark.parametrize(("line", "code", "said"), STREAMS, ids=[line for line, *_ in STREAMS])
def test_streams_that_cannot_be_written(tmp_path: Path, line: str, code: int, said: str) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, done.stderr) == (code, said)


def test_closed_streams_get_no_file(tmp_path: Path) -> None:
    """A file that is opened must not take the number of stdout, where prints would land in it."""
    done = shell(f"convgen {' '.join(CONV)} -o k >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "k.launch.json").read_text())["object"] == "k.hsaco"


def test_characters_that_a_terminal_lacks(tmp_path: Path) -> None:
    line = f"convgen {' '.join(CONV)} --run $'mb1ic16ih4oc16kh1ph0n\\xff\\xc3\\xa4'".replace(f" {CONV[1]}", "", 1)
    done = shell(line, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "\\udcff" in done.stdout


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; convgen {' '.join(CONV)} -o k", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("convgen: cannot write k.s: No such file or directory")
    assert len(done.stderr.splitlines()) == 1


def test_temporary_files_have_a_place_where_there_is_one(tmp_path: Path) -> None:
    """Tools are told a folder of ours, for they would not look for another than TMPDIR."""
    done = shell(f"convgen {' '.join(CONV)} -o k", tmp_path, TMPDIR=str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr) == (0, "")


def test_no_place_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONVGEN_CLANG", found_tool(CLANG))  # a program: LLVM's library needs no files
    lack = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a', '/b']")
    with patch("tempfile.gettempdir", side_effect=lack), patch("tempfile._get_default_tempdir", side_effect=lack):
        assert cli.main([*CONV, "-o", "k"]) == 2
    assert capsys.readouterr().err == "convgen: No usable temporary directory found in ['/a', '/b']\n"
    assert not list(tmp_path.iterdir())


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*CONV, "-o", "k"]) == 0
    before = sorted(tmp_path.iterdir())
    create = files._create

    def half(path: Path, content: bytes, replaced: Path) -> None:
        create(path, content[:1], replaced)
        raise FULL

    with patch.object(files, "_create", half):
        assert cli.main([*CONV, "-o", "new/folder/other"]) == 2
        assert cli.main(["run", "k.launch.json", "--out", "."]) == 2
        assert cli.main(["layout", "--mma", "16x16x16", "-o", "new/a.png"]) == 2
        assert cli.main(["profile", "k.launch.json", "--timeline", "t.json"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "convgen: cannot write new/folder/other.s: No space left on device, at -o",
        "convgen: cannot write dst.npy: No space left on device, at --out",
        "convgen: cannot write new/a.png: No space left on device, at -o",
        "convgen: cannot write t.json: No space left on device, at --timeline",
    ]
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONV, "--dump-dir", ""]) == 2
    assert capsys.readouterr().err == "convgen: given an empty name, wanted a directory, at --dump-dir\n"


def test_what_the_machine_lacks_is_no_defect_of_ours() -> None:
    assert session.failure(FULL) == (2, "No space left on device")
    assert session.failure(PermissionError(13, "Permission denied", "x")) == (2, "cannot use x: Permission denied")
    code, text = session.failure(MemoryError("Unable to allocate 9 EiB"))
    assert code == 2
    assert text == "the machine has not memory enough for this: Unable to allocate 9 EiB"
    assert session.failure(MemoryError())[1] == "the machine has not memory enough for this"


def test_a_crash_is_told_even_if_no_dump_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    crash = patch("convgen.backends.amdgpu.targets.AmdTarget.emit", side_effect=ZeroDivisionError("by zero"))
    with crash, patch("tempfile.mkstemp", side_effect=FULL):
        assert cli.main(CONV) == 3
    assert "internal error: ZeroDivisionError: by zero" in capsys.readouterr().err


# Tools

BROKEN = {
    "kill -SEGV $$": "killed by SIGSEGV",
    "exit 0": "given nothing from",
    "printf '\\377\\376' >&2; exit 1": "cannot do its work: ��",
    "exit 3": "cannot do its work: it says nothing",
    "echo 'fatal: No space left on device' >&2; exit 1": "No space left on device",
}


@pytest.mark.parametrize(("script", "message"), BROKEN.items())
def test_broken_assemblers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    for name, variable in (("clang-22", "CONVGEN_CLANG"), ("iga64", "CONVGEN_IGA64")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv(variable, str(tmp_path / name))
    with pytest.raises(UserError, match=message):
        amd.assemble("s_endpgm\n", "gfx942")
    with pytest.raises(UserError, match=message):
        intel._encode(str(tmp_path / "iga64"), "nop\n", "12p72", tmp_path)


def test_what_is_no_machine_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clang-22"
    path.write_text('#!/bin/bash\nhead -c 300 /dev/zero >"${@: -1}"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CONVGEN_CLANG", str(path))
    with pytest.raises(UserError, match="given 300 bytes that are none from clang-22, wanted machine code"):
        amd.assemble("s_endpgm\n", "gfx942")


UNKNOWN = """\
    .amdgcn_target "amdgcn-amd-amdhsa--gfx942"
k:
    v_cvt_pk_u8_f32 v0, v1, v2, v3
    s_endpgm
    .rodata
    .p2align 6
    .amdhsa_kernel k
    .amdhsa_next_free_vgpr 8
    .amdhsa_next_free_sgpr 8
    .amdhsa_accum_offset 8
    .end_amdhsa_kernel
"""


def test_what_is_not_simulated_is_unsupported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    object_ = amd.assemble(UNKNOWN, "gfx942")
    assert object_ is not None
    (tmp_path / "k.hsaco").write_bytes(object_)
    launch = {"kernel": "k", "grid": [1, 1, 1], "workgroup": [64, 1, 1], "lds_bytes": 0, "kernarg_size": 0, "args": []}
    record = {"target": "gfx942", "object": "k.hsaco", "launches": [launch]}
    (tmp_path / "k.launch.json").write_text(json.dumps(record))
    assert cli.main(["run", str(tmp_path / "k.launch.json"), "--data", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convgen: unsupported: `v_cvt_pk_u8_f32")
    assert line.endswith("is not simulated")
