"""Code that was compiled before: what is the same, what makes a difference, and files that are none."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from convgen import driver
from convgen.commands import cli
from convgen.commands.journal import Journal
from convgen.ir.error import UserError
from convgen.run import cache
from convgen.run.store import Store

CONV = ["conv", "mb1ic16oc16ih6kh3ph1", "--dir", "FWD_D", "--dt", "f16"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that were compiled."""
    problems: list[str] = []
    compile = driver.compile

    def counted(*args: Any, **kwargs: Any) -> Any:
        code = compile(*args, **kwargs)
        problems.append(f"{code.problem} {code.target} {code.config}")
        return code

    monkeypatch.setattr(driver, "compile", counted)
    return problems


def files(prefix: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(prefix.parent.glob(f"{prefix.name}.*"))}


@pytest.mark.parametrize("options", [[], ["--target", "xehpc"], ["-g"], ["--run"], ["--run-groups", "2"]])
def test_the_second_time_nothing_is_built(folder: Path, built: list[str], options: list[str]) -> None:
    first, again, anew = (
        _files_of(folder / name, *options, *more) for name, more in (("a", []), ("b", []), ("c", ["--no-cache"]))
    )
    assert len(built) == 2
    assert first == again == anew


def _files_of(folder: Path, *options: str) -> dict[str, bytes]:
    assert cli.main([*CONV, *options, "-o", f"{folder}/k"]) == 0
    return files(folder / "k")


def test_what_is_printed_is_the_same(folder: Path, built: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for _ in range(2):
        assert cli.main([*CONV, "--json", "--run"]) == 0
        row = json.loads(capsys.readouterr().out)
        shown.append({key: row[key] for key in ("config", "launches", "files", "problem", "target")})
        assert row["run"]["status"] == "passed"
    assert shown[0] == shown[1]
    assert len(built) == 1


DIFFERENT = [
    ["--target", "gfx90a"],
    ["--dt", "bf16"],
    ["--config", "tile=32x32x16 waves=1x1 mma=16x16x16 slots=1"],
    ["--disable", "peephole"],
    ["-g"],
]


def test_what_makes_a_difference(folder: Path, built: list[str]) -> None:
    for n, options in enumerate([[], *DIFFERENT, []]):
        assert cli.main([*CONV, *options, "-o", f"{folder}/{n}"]) == 0
    assert len(built) == 1 + len(DIFFERENT)


def test_another_convgen_or_assembler_begins_anew(
    folder: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    monkeypatch.setattr(cache, "fingerprint", lambda: "another")
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    monkeypatch.setattr("convgen.backends.amdgpu.targets.assembled_by", lambda: "clang of tomorrow")
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    assert len(built) == 3


def test_the_fingerprint_follows_the_files() -> None:
    before = cache.fingerprint()
    assert before == cache.fingerprint()
    source = Path(cache.__file__)
    times = source.stat().st_atime_ns, source.stat().st_mtime_ns
    os.utime(source, ns=(times[0], times[1] + 1))
    try:
        assert cache.fingerprint() != before
    finally:
        os.utime(source, ns=times)


@pytest.mark.parametrize("option", ["-v", "--time-passes", "--check-passes", "--dump=changed"])
def test_who_watches_sees_it_made(
    folder: Path, built: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert cli.main([*CONV, option, "-o", f"{folder}/k"]) == 0
    assert len(built) == 2


def test_damage_costs_no_more_than_time(folder: Path, built: list[str]) -> None:
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    file = folder / "cache" / "code.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("UPDATE entries SET value = ?", (b'{"target": 3}\n',))
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    assert len(built) == 2
    with sqlite3.connect(file) as db:  # what is read is replaced by what is right
        assert db.execute("SELECT count(*) FROM entries WHERE length(value) < 1000").fetchone() == (0,)


def test_a_bit_that_a_disk_has_changed_costs_no_more_than_time(folder: Path, built: list[str]) -> None:
    """In the object as well, where no text tells."""
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    (right,) = (path.read_bytes() for path in folder.glob("k.hsaco"))
    with closing(sqlite3.connect(folder / "cache" / "code.sqlite")) as db, db:
        (value,) = db.execute("SELECT value FROM entries").fetchone()
        db.execute("UPDATE entries SET value = ?", (value[:-1] + bytes([value[-1] ^ 1]),))
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    assert len(built) == 2
    assert (folder / "k.hsaco").read_bytes() == right


def test_a_cache_that_cannot_be_kept(
    folder: Path, built: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was asked for is missed; the default is done without."""
    (folder / "cache").write_text("no folder")
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 2
    assert capsys.readouterr().err == f"convgen: cannot keep a cache in {folder / 'cache'}, at CONVGEN_CACHE\n"
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for _ in range(2):
        assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    assert len(built) == 2


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other.sqlite"
    text.write_text("a line\n" * 100)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE precious (x)")
    db.close()
    for file in (text, other):
        before = file.read_bytes()
        with pytest.raises(UserError, match="that convgen has not written, wanted a file of its own, at --resume"):
            Journal(file)
        assert file.read_bytes() == before


def test_two_batches_cannot_share_a_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    first.add("k", {"exit": 0})
    with pytest.raises(UserError, match="that another batch writes, wanted one of its own"):
        Journal(tmp_path / "j")
    first.close()
    again = Journal(tmp_path / "j")
    assert again.get("k") == {"exit": 0}
    assert again.get("other") is None
    again.close()


def test_two_processes_may_share_a_store(tmp_path: Path) -> None:
    one, other = (Store(tmp_path / "s", "here") for _ in range(2))
    one.add("code", "k", b"1")
    assert other.get("code", "k") == b"1"
    other.add("code", "k", b"2")
    assert one.get("code", "k") == b"2"
    assert one.get("result", "k") is None
    one.clear()
    assert other.get("code", "k") is None
    one.close()
    other.close()
