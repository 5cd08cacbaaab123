"""Code that was compiled before: what is the same, what makes a difference, and files that are none."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from convgen import driver
from convgen.commands import cli
from convgen.commands.journal import Journal
from convgen.ir.error import UserError
from convgen.run import cache
from convgen.run.store import SEAL, Store, _seal

CONV = ["conv", "mb1ic16oc16ih6kh3ph1", "--dir", "FWD_D", "--dt", "f16"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_told", set())
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
    monkeypatch.setattr("convgen.backends.amdgpu.targets.assembled_by", lambda target: "clang of tomorrow")
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


def made(folder: Path) -> dict[str, bytes]:
    """The files of a command that must not fail, whatever its cache is."""
    assert cli.main([*CONV, "-o", f"{folder}/k"]) == 0
    return files(folder / "k")


def the_note(capsys: pytest.CaptureFixture[str]) -> str:
    """The reason on stderr, where nothing else may stand, why the cache is not used."""
    first = capsys.readouterr().err
    assert first.count("\n") == 1
    assert first.startswith("convgen: note: the cache in ")
    assert first.endswith("; CONVGEN_CACHE names another folder, or is off\n")
    return first.partition(" is not used: ")[2]


def test_a_cache_that_cannot_be_kept_is_done_without(
    folder: Path, built: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was asked for is missed in one note a process; the default is missed silently."""
    (folder / "cache").write_text("no folder")
    made(folder)
    assert the_note(capsys).startswith("File exists; ")
    made(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    made(folder)
    assert capsys.readouterr().err == ""
    assert len(built) == 3


def _plant(folder: Path) -> None:
    """Another object in the entry that there is, sealed as convgen seals it: what an attacker would leave."""
    with closing(sqlite3.connect(folder / "cache" / "code.sqlite")) as db, db:
        kind, key, value = db.execute("SELECT kind, key, value FROM entries").fetchone()
        content = bytes(value[SEAL:-4]) + b"evil"
        db.execute("UPDATE entries SET value = ?", (_seal(kind, key, content) + content,))


def _link(folder: Path) -> None:
    file = folder / "cache" / "code.sqlite"
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")


DISTRUSTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder that others may write": (lambda f: (f / "cache").chmod(0o777), "others may write {}/cache (mode 777)"),
    "a folder that the group may write": (lambda f: (f / "cache").chmod(0o770), "others may write {}/cache (mode 770)"),
    "a file that others may write": (
        lambda f: (f / "cache/code.sqlite").chmod(0o666),
        "others may write {}/cache/code.sqlite (mode 666)",
    ),
    "a file that is a link": (_link, "{}/cache/code.sqlite is no regular file"),
    "a folder of another user": (lambda f: os.chown(f / "cache", 4242, -1), "{}/cache belongs to another user"),
    "a file of another user": (
        lambda f: os.chown(f / "cache/code.sqlite", 4242, -1),
        "{}/cache/code.sqlite belongs to another user (uid 4242)",
    ),
}


@pytest.mark.parametrize("name", DISTRUSTED)
def test_code_that_others_may_have_planted_is_not_used(
    folder: Path, built: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, why = DISTRUSTED[name]
    if "another user" in name and os.geteuid():
        pytest.skip("only root gives files away")
    right = made(folder)
    _plant(folder)
    change(folder)
    assert made(folder) == right
    assert len(built) == 2
    assert the_note(capsys).startswith(why.format(folder))


def test_a_planted_entry_is_used_where_only_we_can_have_planted_it(folder: Path, built: list[str]) -> None:
    """So `_plant` does what the test above guards against."""
    made(folder)
    _plant(folder)
    assert made(folder)["k.hsaco"].endswith(b"evil")
    assert len(built) == 1


def _rewrite(folder: Path, content: bytes) -> None:
    (folder / "cache" / "code.sqlite").write_bytes(content)


def _shorten(folder: Path) -> None:
    file = folder / "cache" / "code.sqlite"
    _rewrite(folder, file.read_bytes()[: file.stat().st_size // 2])


def _folder(folder: Path) -> None:
    (folder / "cache" / "code.sqlite").unlink()
    (folder / "cache" / "code.sqlite").mkdir()


def _view(folder: Path) -> None:
    """A table that never ends to whoever reads it."""
    with closing(sqlite3.connect(folder / "cache" / "code.sqlite")) as db, db:
        db.execute("DROP TABLE entries")
        db.execute(
            "CREATE VIEW entries AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " SELECT 'code' AS kind, i AS key, x'00' AS value FROM n"
        )


DAMAGED: dict[str, Callable[[Path], None]] = {
    "cut off": _shorten,
    "empty": lambda f: _rewrite(f, b""),
    "nonsense": lambda f: _rewrite(f, b"nonsense" * 1000),
    "a folder": _folder,
    "a view without end": _view,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_costs_no_more_than_time(
    folder: Path, built: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    right = made(folder)
    DAMAGED[name](folder)
    assert made(folder) == right
    assert len(built) == 2
    if name != "empty":
        the_note(capsys)


def test_a_full_disk_costs_no_more_than_time(
    folder: Path, built: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files stands for the end of the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, limits[1]))
    try:
        assert cli.main(CONV) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    out, err = capsys.readouterr()
    assert "v_mfma" in out
    assert err.count("\n") == 1
    assert "is not used: cannot use " in err


NAMES = ["../../escaped", "/tmp/escaped", "..", "a/b", "", "x" * 300]


@pytest.mark.parametrize("place", ["kernels", "listings"])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_entries_lead_nowhere(folder: Path, built: list[str], place: str, name: str) -> None:
    """Not even those of a sealed entry: the code is made again."""
    assert cli.main([*CONV, "-g", "-o", f"{folder}/k/"]) == 0
    right = {path.name for path in (folder / "k").iterdir()}
    with closing(sqlite3.connect(folder / "cache" / "code.sqlite")) as db, db:
        kind, key, value = db.execute("SELECT kind, key, value FROM entries").fetchone()
        line, _, rest = value[SEAL:].partition(b"\n")
        head = json.loads(line)
        head[place] = {name: next(iter(head[place].values()))}
        if place == "kernels":
            record = json.loads(head["record"])
            record["launches"] = [{**record["launches"][0], "kernel": name}]
            head["record"] = json.dumps(record)
        content = json.dumps(head).encode() + b"\n" + rest
        db.execute("UPDATE entries SET value = ?", (_seal(kind, key, content) + content,))
    assert cli.main([*CONV, "-g", "-o", f"{folder}/k/"]) == 0
    assert len(built) == 2
    assert {path.name for path in (folder / "k").iterdir()} == right


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
