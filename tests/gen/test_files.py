"""Files of results: all or none, through links, and never in the place of what is no file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from convgen.commands import cli
from convgen.ir.error import UserError
from convgen.run import files
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


# ---------------------------------------------------------------- what others planted


def test_no_name_of_a_temporary_file_can_be_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes in one process use two names, neither of which follows from the file's name and the process."""
    names: list[str] = []
    create = files._create

    def noted(path: Path, content: bytes, replaced: Path) -> None:
        names.append(path.name)
        create(path, content, replaced)

    monkeypatch.setattr(files, "_create", noted)
    for _ in range(2):
        write_all({Path("k.s"): b"x"})
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"\.convgen-[0-9a-f]{24}", name) for name in names)
    assert os.listdir() == ["k.s"]


@pytest.mark.parametrize("kind", ["a link", "a link to nothing", "a file", "a pipe"])
def test_a_planted_temporary_file_is_not_followed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Even if somebody foresees the name: nothing is written to where a link leads, and nothing waits for a pipe."""
    Path("precious").write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)
    name = Path(f".convgen-{'00' * 12}")
    match kind:
        case "a link":
            name.symlink_to("precious")
        case "a link to nothing":
            name.symlink_to("new")
        case "a file":
            os.link("precious", name)
        case _:
            os.mkfifo(name)
    with pytest.raises(UserError, match=r"^cannot write k\.s: File exists, at -o$"):
        write_all({Path("k.s"): b"x"})
    assert Path("precious").read_text() == "precious"
    assert not Path("new").exists()
    assert not Path("k.s").exists()


def test_planted_names_of_old_are_no_matter() -> None:
    """convgen once wrote .NAME.PID before NAME."""
    Path("precious").write_text("precious")
    Path(f".k.s.{os.getpid()}").symlink_to("precious")
    write_all({Path("k.s"): b"x"})
    assert Path("precious").read_text() == "precious"
    assert not Path("k.s").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives links away")
def test_a_link_of_another_user_is_not_followed() -> None:
    """As Linux does not in folders that anybody may write; one of the folder's owner is."""
    Path("precious").write_text("precious")
    Path("k.s").symlink_to("precious")
    os.lchown("k.s", 4242, -1)
    with pytest.raises(UserError, match=r"^cannot write k\.s: is a link that another user made, at -o$"):
        write_all({Path("k.s"): b"x"})
    assert Path("precious").read_text() == "precious"
    os.chown(".", 4242, -1)
    write_all({Path("k.s"): b"x"})
    assert Path("precious").read_text() == "x"


def test_permissions_are_kept() -> None:
    """New files have those that the user's mask gives, also for a moment no more than those of what they replace."""
    before = os.umask(0o027)
    try:
        write_all({Path("new"): b"x"})
        Path("private").touch(mode=0o600)
        Path("shared").touch()
        Path("shared").chmod(0o664)
        Path("set").touch()
        Path("set").chmod(0o4755)
        write_all({Path("private"): b"x", Path("shared"): b"x", Path("set"): b"x"})
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in Path().iterdir()}
    assert modes == {"new": "0o640", "private": "0o600", "shared": "0o664", "set": "0o755"}


def test_a_name_as_long_as_names_may_be_is_written() -> None:
    name = Path("x" * 255)
    write_all({name: b"x"})
    assert name.read_bytes() == b"x"
