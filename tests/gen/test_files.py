"""Files of results: all or none, through links, and never in the place of what is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from convgen.commands import cli
from convgen.ir.error import UserError
from convgen.run.files import write_all


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_no_file_stays_as_it_is() -> None:
    """Whoever may do so would else replace devices by files."""
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    os.mkdir("folder")
    for name, what in {"pipe": "a device or a pipe", "link": "a device or a pipe", "folder": "a directory"}.items():
        with pytest.raises(UserError, match=f"cannot write {name}: is {what}, at -o"):
            write_all({Path("first"): b"1", Path("new/second"): b"2", Path(name): b"3"})
    assert sorted(os.listdir()) == ["folder", "link", "pipe"]
    assert Path("pipe").is_fifo()
    assert os.readlink("link") == "pipe"


def test_a_link_stays_one() -> None:
    """Also one that leads to nothing yet."""
    os.mkdir("there")
    Path("there/old").write_text("old")
    for name in ("old", "new"):
        Path(name).symlink_to(f"there/{name}")
    write_all({Path("old"): b"1", Path("new"): b"2"})
    assert [(os.readlink(name), Path("there", name).read_bytes()) for name in ("old", "new")] == [
        *(("there/old", b"1"), ("there/new", b"2")),
    ]
    assert sorted(os.listdir("there")) == ["new", "old"]


def test_a_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("k.s")
    assert cli.main(["gemm", "16x16:16x16", "--dt", "f16", "-o", "k"]) == 2
    assert capsys.readouterr().err == "convgen: cannot write k.s: is a device or a pipe, at -o\n"
    assert os.listdir() == ["k.s"]
