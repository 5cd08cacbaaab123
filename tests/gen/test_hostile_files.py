"""Each command over each hostile file: exit code 2 and one short line within 2 s of processor and 300 MB.

The files are small and cost much, never end, are no files, or name one that is such.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.commands import cli
from convgen.run.store import Store
from tests.gen import limited

# ---------------------------------------------------------------- things that are no files, or have no end


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/ptmx")


def socket(path: Path) -> None:
    import socket as sockets

    with closing(sockets.socket(sockets.AF_UNIX)) as bound:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def circle(path: Path) -> None:
    path.symlink_to(path)


def nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def sparse(path: Path) -> None:
    """A terabyte of zeros that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


Maker = Callable[[Path], Any]

NO_FILES: tuple[Maker, ...] = (fifo, device, sparse, terminal, socket, folder, circle, nothing)
FEW = 3  #: of these, in the order that finds most, run always

# ---------------------------------------------------------------- code objects


def elf(sections: list[tuple[str, int, int, bytes]], machine: int, flags: int = 0, **changed: int) -> bytes:
    """An ELF file of sections: name, type, flags, content. `changed` are other values of fields of its header."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".names\0"
    table, body = [bytes(64)], b""
    for name, kind, flag, content in [*sections, (".names", 3, 0, names)]:
        size = int.from_bytes(content, "little") if kind == 8 else len(content)
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        table.append(struct.pack("<IIQQQQIIQQ", at, kind, flag, 0, 64 + len(body), size, 0, 0, 1, 0))
        body += b"" if kind == 8 else content
    header = {
        "type": 3, "machine": machine, "version": 1, "entry": 0, "phoff": 0, "shoff": 64 + len(body), "flags": flags,
        "ehsize": 64, "phentsize": 56, "phnum": 0, "shentsize": 64, "shnum": len(table), "shstrndx": len(table) - 1,
    } | changed  # fmt: skip
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQI6H", *header.values()) + body + b"".join(table)


COMPAT = struct.pack("<III8sI", 8, 4, 1, b"IntelGT\0", 0x4F7)


def zebin(info: str | bytes, *more: tuple[str, int, int, bytes], **changed: int) -> bytes:
    content = info.encode() if isinstance(info, str) else info
    note = (".note.intelgt.compat", 7, 0, COMPAT)
    return elf([(".ze_info", 0xFF000011, 0, content), note, *more], 205, **changed)


def bomb(levels: int = 9, width: int = 9) -> str:
    """A document of some hundred bytes that is width ** levels values to whoever follows its aliases."""
    lines = ["version: '1.0'", f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"kernels: *a{levels - 1}"]) + "\n"


def repeated(count: int) -> bytes:
    """Sections that are each the whole file."""
    content = zebin("a: 1\n")
    head = bytearray(content)
    at = len(head) + 64 * count
    table = [bytes(64)] + [struct.pack("<IIQQQQIIQQ", n % 20, 1, 0, 0, 0, at, 0, 0, 1, 0) for n in range(1, count)]
    struct.pack_into("<Q", head, 40, len(head))
    struct.pack_into("<HH", head, 60, count, 1)
    return bytes(head) + b"".join(table)


def segments(count: int) -> bytes:
    """Segments that are each the whole file."""
    size = 64 + 56 * count
    head = elf([], 224, 0x4C, phoff=64, phnum=count, shoff=0, shnum=0)[:64]
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096) * count


ZEBINS: dict[str, bytes] = {
    "aliases": zebin(bomb()),
    "aliases where a number is printed": zebin(
        bomb().replace("kernels: ", "value: &v ") + "kernels: [{name: k, execution_env: {simd_size: *v}}]\n",
        (".text.k", 1, 0, bytes(16)),
    ),
    "an alias of itself": zebin("kernels: &a [*a]\n"),
    "lists in lists": zebin("kernels: " + "[" * 100_000),
    "maps in maps": zebin("{a: " * 100_000),
    "many values": zebin("kernels: [" + "0," * 200_000 + "]"),
    "a number of base 60": zebin("kernels: " + "1:" * 200_000 + "1"),
    "an endless float of base 60": zebin("kernels: " + "59:" * 12 + "1.5e308"),
    "a number of many digits": zebin("kernels: " + "9" * 400_000),
    "a month 13": zebin("kernels: 2001-13-99\n"),
    "an object of Python": zebin("kernels: !!python/object/apply:os.system [id]\n"),
    "long names": zebin("kernels: [{name: " + "x" * 100_000 + "}]\n"),
    "names of escapes": zebin('kernels: [{name: "\\e[31mred\\a"}]\n'),
    "ten megabytes": zebin("#" * 10_000_000),
    "no room": zebin("a: 1\n", (".bss", 8, 0, (1 << 40).to_bytes(8, "little"))),
    "no room for .ze_info": elf([(".ze_info", 8, 0, (1 << 33).to_bytes(8, "little"))], 205),
    "compressed": zebin("a: 1\n", (".debug_info", 1, 0x800, struct.pack("<IIQQ", 1, 0, 1 << 40, 1) + bytes(64))),
    "sections that are the file": repeated(30_000),
    "more sections than the file has": zebin("a: 1\n", shnum=60_000),
    "sections without end": zebin("a: 1\n", shnum=0),
    "headers of no bytes": zebin("a: 1\n", shentsize=0, shnum=60_000),
    "a name without end": zebin("a: 1\n", (".strtab", 3, 0, b"x" * 10_000_000)),
}


def noted(metadata: bytes) -> bytes:
    """An object for gfx942 with a segment and metadata."""
    note = struct.pack("<III8s", 7, len(metadata), 32, b"AMDGPU\0") + metadata
    plain = elf([(".note", 7, 2, note)], 224, 0x4C)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 64, 4096)
    return elf([(".note", 7, 2, note)], 224, 0x4C, phoff=len(plain), phnum=1) + segment


HSACOS: dict[str, bytes] = {
    "segments that are the file": segments(60_000),
    "an image of 2^28 bytes": elf([], 224, 0x4C, phoff=64, phnum=1, shoff=0, shnum=0)[:64]
    + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 1 << 28, 4096),
    "no room": elf([(".bss", 8, 2, (1 << 40).to_bytes(8, "little"))], 224, 0x4C),
    "metadata in metadata": noted(b"\x91" * 100_000),
    "more metadata than there is": noted(b"\xdd\xff\xff\xff\xff"),
    "much metadata": noted(b"\xdc\xff\xff" + b"\x90" * 10_000_000),
    "symbols of no bytes": elf([(".symtab", 2, 0, bytes(1 << 20))], 224, 0x4C),
    "cut off": b"\x7fELF\x02\x01",
}

# ---------------------------------------------------------------- records, dumps, registries, journals, arrays


def text(content: str | bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


JSON: dict[str, str] = {
    "lists in lists": "[" * 100_000,
    "objects in objects": '{"a":' * 100_000,
    "lists in the launches": '{"target": "gfx942", "launches": ' + "[" * 900 + "]" * 900 + "}",
    "a number of many digits": '{"target": ' + "9" * 1_000_000 + "}",
    "a large number": '{"target": ' + "9" * 4000 + "}",
    "a long text": '{"target": "' + "x" * 8_000_000 + '"}',
    "escapes": '{"target": "\\u001b[31mred\\u0007\\n"}',
    "many lists": "[" + "[]," * 2_700_000 + "[]]",
    "many objects": "[" + "{}," * 2_700_000 + "{}]",
    "more than 8 MiB": "[" + "0," * 5_000_000 + "0]",
}


def npy(dtype: str, shape: str, data: bytes = b"", length: int | None = None, version: int = 2) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", length or len(header)) + header + data


def archive(path: Path) -> None:
    """An archive of ten thousand times its size under the name of an array."""
    inner = BytesIO()
    np.save(inner, np.zeros(1 << 24, np.uint8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(8):
            file.writestr(f"{number}.npy", inner.getvalue())


def long_header(path: Path) -> None:
    """A header of 4 GB in a file that takes no room."""
    with path.open("wb") as file:
        file.write(npy("<f2", "(1, 16, 4, 4)", length=(1 << 32) - 1))
        file.truncate(1 << 33)


def endless(path: Path) -> None:
    """A store whose table never ends to whoever reads it."""
    with closing(Store(path, "")):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE entries")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        db.execute(f"CREATE VIEW entries AS {numbers} SELECT 'result' AS kind, i AS key, x'00' AS value FROM n")


ARRAYS: dict[str, Callable[[Path], None]] = {
    "an archive": archive,
    "a long header": long_header,
    "a deep header": text(npy("<f2", "(" * 5000)),
    "2^62 elements": text(npy("<f2", f"({1 << 62},)")),
    "more elements than numbers have": text(npy("<f2", f"({'9' * 4000},)")),
    "a negative size": text(npy("<f2", "(-1, 16, 4, 4)")),
    "objects": text(npy("|O", "(1, 16, 4, 4)", b"cos\nsystem\n(S'id'\ntR.")),
    "pickled": text(b"cos\nsystem\n(S'id'\ntR."),
    "a text": text("x" * 100),
}

# ---------------------------------------------------------------- models of torch.export


def graph(content: Callable[[], Iterator[bytes]]) -> Maker:
    """Writes an archive whose graph has this content."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made, made.open("m/models/model.json", "w") as member:
            for part in content():
                member.write(part)

    return make


def program(nodes: str) -> Maker:
    head = '{"schema_version": {"major": 8}, "graph_module": {"graph": {"tensor_values": {}, "nodes": '
    return graph(lambda: iter([f"{head}{nodes}}}}}}}".encode()]))


MODELS: dict[str, Maker] = {
    "zeros without end": graph(lambda: (bytes(1 << 20) for _ in range(200))),
    "lists in lists": graph(lambda: iter([b"[" * 1_000_000])),
    "a long number": program("9" * 1_000_000),
    "nodes that are none": program("[1, 2]"),
    "no text": graph(lambda: iter([b"\xff" * 100])),
    "no archive": text(b"PK\x05\x06" + b"\xff" * 18),
}

# ---------------------------------------------------------------- the table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small kernel and its record."""
    where = tmp_path_factory.mktemp("hostile")
    assert cli.main(["conv", "mb1ic16ih4oc16kh3ph1", "--dir", "FWD_D", "--dt", "f16", "-o", f"{where}/k"]) == 0
    return where


Case = tuple[str, list[str]]


LAUNCH = ["--grid", "1", "--block", "64"]


def readers(place: Path) -> dict[str, list[list[str]]]:
    """The commands that read files of an ending, by ending."""
    page = ["explain", "-o", f"{place}/page.html"]
    return {
        ".hsaco": [["analyze"], ["profile"], page, ["run", *LAUNCH], ["diff"]],
        ".s": [["analyze"], ["profile"]],
        ".zebin": [["analyze"], ["profile"], page],
        ".launch.json": [["run"], ["profile"], page, ["export", "--c", f"{place}/c"]],
        ".dump": [["replay"]],
        ".txt": [["batch"], ["batch", "--check"], ["model"], ["tune", "--registry", f"{place}/new"]],
        ".pt2": [["model"], ["model", "--check"], ["batch"]],
    }


def hostile_files(place: Path, no_files: Sequence[Maker]) -> Iterator[tuple[str, str, Maker]]:
    """The ending, a name and the maker of each hostile file that commands read by its ending."""
    record = json.loads((place / "k.launch.json").read_text())
    contents = {".zebin": ZEBINS, ".hsaco": HSACOS, ".launch.json": JSON}
    for suffix, named_contents in contents.items():
        yield from ((suffix, name, text(content)) for name, content in named_contents.items())  # type: ignore[attr-defined]
    yield from ((".pt2", name, make) for name, make in MODELS.items())
    for no_file in no_files:
        no_file(place / f"object.{no_file.__name__}")
        named = json.dumps({**record, "object": f"object.{no_file.__name__}"})
        yield ".launch.json", f"object {no_file.__name__}", text(named)
    yield ".dump", "scalars in scalars", text("# convgen dump\n# target: gfx942\n# scalars: " + "[" * 100_000)
    yield ".dump", "none", text("\0" * 1000)


def cases(place: Path, no_files: Sequence[Maker] = NO_FILES) -> Iterator[Case]:
    """A name and a command line for each hostile file and each command that reads one of its kind; of the commands only
    the first for what a file holds if not all of `NO_FILES` are asked for, since one reader serves all of them.
    """
    most = None if len(no_files) == len(NO_FILES) else 1
    commands = readers(place)
    for suffix in commands:
        for no_file in no_files:
            yield from read_by(commands[suffix], place, suffix, no_file.__name__, no_file)
    for suffix, name, make in hostile_files(place, no_files):
        yield from read_by(commands[suffix][:most], place, suffix, name, make)
    yield from options(place, {make.__name__: make for make in no_files})


def read_by(commands: Sequence[list[str]], place: Path, suffix: str, name: str, make: Maker) -> Iterator[Case]:
    """A name and a command line for each of some commands that read a file."""
    path = place / f"{len(list(place.iterdir()))}{suffix}"
    make(path)
    for command, *more in commands:
        twice = [str(path)] if command == "diff" else []
        yield f"{command} {suffix} {name}", [command, str(path), *twice, *more]


def options(place: Path, no_files: dict[str, Maker]) -> Iterator[Case]:
    """A name and a command line for each hostile file that an option names: arrays, registries, journals."""
    for name, make in {**ARRAYS, **no_files}.items():
        data = place / f"data {name}"
        data.mkdir()
        make(data / "src.npy")
        yield f"run --data {name}", ["run", f"{place}/k.launch.json", "--data", str(data)]
        yield f"run --arg {name}", ["run", f"{place}/k.hsaco", *LAUNCH, "--arg", f"0={data}/src.npy"]
    layer = ["conv", "mb1ic16ih4oc16kh3ph1", "--dir", "FWD_D", "--dt", "f16"]
    (place / "one.txt").write_text("--dir=FWD_D --dt=f16\nmb1ic16ih4oc16kh3ph1\n")
    wrong = {"a line": text("x | y\n"), "lines": text("x\n" * 1_000_000), "bytes": text(b"\xff" * 1000)}
    for name, make in {**wrong, **no_files}.items():
        if make not in (nothing, folder):
            path = place / f"registry {name}"
            make(path)
            yield f"conv --registry {name}", [*layer, "--registry", str(path)]
    for name, make in {"a view without end": endless, **no_files}.items():
        if make not in (nothing, sparse):
            path = place / f"journal {name}"
            make(path)
            yield f"batch --resume {name}", ["batch", f"{place}/one.txt", "--resume", str(path)]


@pytest.mark.parametrize("count", [FEW, pytest.param(len(NO_FILES), marks=pytest.mark.sweep)])
def test_each_command_refuses_each_hostile_file_soon(place: Path, count: int) -> None:
    (place / str(count)).mkdir()
    for name in ("k.launch.json", "k.hsaco"):
        (place / str(count) / name).write_bytes((place / name).read_bytes())
    table = dict(cases(place / str(count), NO_FILES[:count]))
    outcomes = dict(zip(table, limited.run(list(table.values())), strict=True))
    wrong = {name: outcome for name, outcome in outcomes.items() if _fault(outcome)}
    assert not wrong, "\n".join(f"{name}: {_fault(outcome)}: {outcome['err'][:300]}" for name, outcome in wrong.items())
    assert len(outcomes) > 100


def _fault(outcome: dict[str, Any]) -> str:
    """What is wrong with how a command ended; empty if nothing is."""
    lines = [line for line in outcome["err"].splitlines() if not line.startswith("convgen: note: ")]
    if outcome["code"] != 2:
        return f"exit code {outcome['code']}"
    if len(lines) != 1 or not lines[0].startswith("convgen: "):
        return f"{len(lines)} lines"
    if not lines[0].isprintable() or len(lines[0]) > 2500:
        return f"a line of {len(lines[0])} characters"
    if outcome["seconds"] > limited.SECONDS:
        return f"{outcome['seconds']:.1f} s"
    return f"{outcome['megabytes']:.0f} MB" if outcome["megabytes"] > limited.MEGABYTES else ""
