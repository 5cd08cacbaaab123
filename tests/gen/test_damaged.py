"""Whatever a file holds, a command ends soon and in little memory: with a result, or one line and exit code 2.

Files are damaged by a seed (`mutants`); `./dev test-all` tries ten times as many.
"""

from __future__ import annotations

import copy
import json
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.backends.toolchain import IGA64
from convgen.commands import cli
from convgen.commands.journal import KIND, KNOB, Journal
from convgen.ir.error import UserError
from convgen.run.store import Store
from convgen.show import report
from tests.conftest import found_tool
from tests.gen import mutants

Good = Callable[[str], Path]
FAMILIES = {"amdgpu": ("gfx942", ".hsaco"), "intel": ("xehpc", ".zebin")}
SECONDS = 60  #: that a command may take, however busy the machine is
MEGABYTES = 700  #: by which memory may grow

#: (how many, by which seed): some always, many in the sweep
COUNTS = [pytest.param(20, 1), pytest.param(200, 2, marks=pytest.mark.sweep)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """A folder with a small kernel of a family, its record and its dumps."""

    @cache
    def make(family: str) -> Path:
        target, _ = FAMILIES[family]
        if family == "intel":
            found_tool(IGA64)
        folder = tmp_path_factory.mktemp(family)
        line = ["conv", "mb1ic16ih4oc16kh3ph1", "--dir", "FWD_B", "--dt", "f16", "--target", target]
        assert cli.main([*line, "-o", f"{folder}/k", "--dump-dir", f"{folder}/dumps"]) == 0
        return folder

    return make


@contextmanager
def bounded() -> Iterator[None]:
    """Neither hang nor eat memory."""

    def ring(*_: object) -> None:
        raise KeyboardInterrupt(f"more than {SECONDS} s")

    before, handler = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEGABYTES << 10


def survives(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    """The exit code of a command that must not be internal, with one line for what it refuses."""
    with bounded():
        code = cli.main(arguments)
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if not line.startswith("convgen: note: ")]
    assert code in (0, 1, 2), err
    assert len(lines) == (code == 2), err
    assert all(line.isprintable() for line in lines)
    return code


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("count", "seed"), COUNTS)
def test_damaged_objects(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, good: Good, family: str, count: int, seed: int
) -> None:
    _, suffix = FAMILIES[family]
    path = tmp_path / f"k{suffix}"
    (tmp_path / "k.launch.json").write_bytes((good(family) / "k.launch.json").read_bytes())
    codes = set()
    for content in mutants.mutants((good(family) / f"k{suffix}").read_bytes(), count, seed):
        path.write_bytes(content)
        codes.add(survives(capsys, "analyze", str(path)))
        codes.add(survives(capsys, "run", str(tmp_path / "k.launch.json")))
    assert codes >= {0, 2}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all entries of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


HOSTILE: list[Any] = [
    *(None, True, 0, -1, 1, 7, 2**28, 2**31 - 1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf")),
    *("", "x", "../../escaped", "a\0b", "\x1b[31m", "\udcff", "a\nb", "x" * 5000, "f16", "gfx90a", "xehpg", "1x1x1x1"),
    *([], {}, [[]], [1] * 5, ["a"], {"value": 2}),
]


def changed(data: Any, path: tuple[Any, ...], value: object) -> Any:
    """A copy with another value at a path."""
    made = copy.deepcopy(data)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def hostile(data: Any, count: int, seed: int) -> Iterator[Any]:
    """`count` copies, each with a value where another kind, size or text was wanted."""
    random = np.random.default_rng(seed)
    at = list(places(data))
    for _ in range(count):
        yield changed(data, at[int(random.integers(len(at)))], HOSTILE[int(random.integers(len(HOSTILE)))])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("count", "seed"), [pytest.param(60, 1), pytest.param(600, 2, marks=pytest.mark.sweep)])
def test_hostile_records(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, good: Good, family: str, count: int, seed: int
) -> None:
    record = json.loads((good(family) / "k.launch.json").read_text())
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    object_ = good(family) / f"k{FAMILIES[family][1]}"
    (folder / object_.name).write_bytes(object_.read_bytes())
    for data in hostile(record, count, seed):
        (folder / "k.launch.json").write_text(json.dumps(data))
        survives(capsys, "run", str(folder / "k.launch.json"), "--out", str(folder / "out"))
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and folder not in path.parents]
    assert not outside


NAMES = ["../../escaped", "/tmp/escaped", "a/b", "..", "a\0b", "\x1b[31mred", "a\nb", "", "x" * 300]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_buffers_lead_nowhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, good: Good, name: str
) -> None:
    record = json.loads((good("amdgpu") / "k.launch.json").read_text())
    path = tmp_path / "k.launch.json"
    path.write_text(json.dumps(changed(record, ("launches", 0, "args", 3, "name"), name)))
    assert survives(capsys, "run", str(path), "--out", str(tmp_path / "out")) == 2


LARGE: list[tuple[tuple[Any, ...], object, str]] = [
    (("grid", 0), 2**63, "wanted an integer from 1 to 2147483647, at launches[0].grid[0]"),
    (("grid", 0), 2**28, "268435456 workgroups of kernel"),
    (("workgroup", 0), 2**31, "wanted an integer from 1 to 1024"),
    (("workgroup", 1), 1024, "wanted at most 1024 work-items"),
    (("lds_bytes",), 2**40, "wanted an integer from 0 to"),
    (("kernarg_size",), 2**40, "wanted an integer from 0 to 65536"),
    (("args", 0, "tensor", "bytes"), 2**45, "of memory, wanted at most"),
    (("args", 0, "tensor", "bytes"), 10**30, "wanted an integer from 0 to"),
    (("args", 0, "tensor", "dims"), [1] * 40, "wanted at most 12 items"),
    (("kernel",), "nobody", "no kernel 'nobody' in the code object"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("path", "value", "message"), LARGE, ids=[f"{p[-1]} {v}" for p, v, _ in LARGE])
def test_what_is_too_large_is_refused_at_the_door(
    capsys: pytest.CaptureFixture[str], good: Good, family: str, path: tuple[Any, ...], value: object, message: str
) -> None:
    record = json.loads((good(family) / "k.launch.json").read_text())
    file = good(family) / "large.launch.json"
    file.write_text(json.dumps(changed(record, ("launches", 0, *path), value)))
    with bounded():
        assert cli.main(["run", str(file)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


ROW: dict[str, Any] = {
    "exit": 0,
    "said": "convgen: note: one\nconvgen: note: two\n",
    "kept": False,
    "data": {
        **report.without_code("mb1ic4oc4ih4kh1", "gfx942", ""),
        "run": {"status": "passed", "checked": 64, "mismatches": 0},
        "status": "passed",
        "error": None,
        "seconds": 0.5,
    },
}


def read(path: Path, key: str) -> Any:
    """The entry of a key in a journal, or the error that the file led to."""
    try:
        with closing(Journal(path, report.check_row)) as journal:
            return read_from(journal, key)
    except UserError as error:
        return error


def read_from(journal: Journal, key: str) -> Any:
    """The entry of a key, or the error that it led to."""
    try:
        return journal.get(key)
    except UserError as error:
        return error


@pytest.mark.parametrize(("count", "seed"), [pytest.param(200, 1), pytest.param(5000, 2, marks=pytest.mark.sweep)])
def test_hostile_journals(tmp_path: Path, count: int, seed: int) -> None:
    """Entries that no batch has written are refused when they are asked for."""
    path, refused = tmp_path / "journal", 0
    with closing(Store(path, KNOB)) as store:
        for number, entry in enumerate(hostile({"entry": ROW}, count, seed)):
            store.add(KIND, str(number), json.dumps(entry.get("entry")).encode())
    with closing(Journal(path, report.check_row)) as journal:
        for number in range(count):
            row = read_from(journal, str(number))
            refused += isinstance(row, UserError)
            if isinstance(row, UserError):
                assert f"entry {number} of {path}" in str(row)
                continue
            assert row["exit"] in range(4)
            assert all(line.isprintable() for line in row["said"].splitlines())
    assert count / 3 < refused < count


@pytest.mark.parametrize(("count", "seed"), COUNTS)
def test_damaged_journals(tmp_path: Path, count: int, seed: int) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        for key in "abc":
            journal.add(key, ROW)
    for content in mutants.mutants(path.read_bytes(), count, seed):
        path.write_bytes(content)
        found = read(path, "a")
        assert found is None or isinstance(found, UserError) or found["exit"] in range(4)


@pytest.mark.parametrize("value", ["'{}'", "1.5", "1234567890123", "-3", "NULL", "x'7b7d'", "value || 'x'"])
def test_entries_that_are_not_as_they_were_kept(tmp_path: Path, value: str) -> None:
    """Also of other types, of which sqlite keeps any anywhere."""
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        journal.add("a", ROW)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE entries SET value = {value}")
    assert str(read(path, "a")) == f"given entry a of {path} that is damaged, wanted an intact one, at {KNOB}"


def test_a_row_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        journal.add("a", {**ROW, "data": {name: value for name, value in ROW["data"].items() if name != "error"}})
    assert str(read(path, "a")) == f"given no 'error', wanted one, at data of entry a of {path}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("count", "seed"), [pytest.param(25, 1), pytest.param(250, 2, marks=pytest.mark.sweep)])
def test_hostile_dumps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, good: Good, family: str, count: int, seed: int
) -> None:
    files = sorted((good(family) / "dumps").glob("*.dump"))
    random = np.random.default_rng(seed)
    path = tmp_path / "m.dump"
    for number in range(count):
        text = files[int(random.integers(len(files)))].read_text()
        path.write_text(next(mutants.dumps(text, 1, seed * 10_000 + number)), errors="backslashreplace")
        survives(capsys, "replay", str(path), "-o", str(tmp_path / "k"))
        assert not any("incbin" in asm.read_text() for asm in tmp_path.glob("k.*s*") if asm.suffix in (".s", ".asm"))


def npy(dtype: str, shape: tuple[int, ...], elements: int = 0) -> bytes:
    """A file that says that it holds an array."""
    np.lib.format.write_array_header_1_0(file := BytesIO(), {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(2 * elements)


NPY = {
    "empty": b"",
    "nonsense": b"nonsense",
    "no header": b"\x93NUMPY\x01\x00",
    "half a header": npy("<f2", (1, 16, 4, 4))[:50],
    "of 2^62 elements": npy("<f2", (1 << 62,)),
    "of objects": npy("|O", (1, 16, 4, 4), 256),
    "of another type": npy("<f4", (1, 16, 4, 4), 512),
    "cut off": npy("<f2", (1, 16, 4, 4), 200),
}


@pytest.mark.parametrize("content", NPY.values(), ids=NPY)
def test_wrong_arrays(capsys: pytest.CaptureFixture[str], tmp_path: Path, good: Good, content: bytes) -> None:
    (tmp_path / "src.npy").write_bytes(content)
    assert survives(capsys, "run", str(good("amdgpu") / "k.launch.json"), "--data", str(tmp_path)) == 2
