"""Code objects to check: in a file, in the bundles of clang's offloading, or in a folder such as Triton's cache.

Bundle: `__CLANG_OFFLOAD_BUNDLE__`, then u64 count, and of each entry u64 offset, u64 size, u64 length of its name, and
the name, KIND-TRIPLE-PROCESSOR (clang, ClangOffloadBundler). Triton writes NAME.json and NAME.ttir beside the code
object: the JSON gives kernel, subgroups and shared memory, the .ttir names, types and divisors of the arguments, in
order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.backends.simulation import Parameter, Signature
from convgen.ir import untrusted
from convgen.ir.error import UserError
from convgen.ir.record import evolve, frozen
from convgen.run.launch_record import MOST_ITEMS, MOST_SHARED, Extents
from convgen.run.schema import Entry

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"  #: the first bytes of a compressed bundle
_MOST_ENTRIES = 256
_MOST_FILES = 4096  #: files in a folder
_ANY_SIZE = 1 << 62  #: bytes of a file of which only the beginning is read
_MOST_DIVISOR = 1 << 16
_MOST_TEXT = 1 << 24  #: bytes of a .ttir
#: An argument of a function in MLIR: `%name: type {tt.divisibility = 16 : i32} loc(...)`.
_ARGUMENT = re.compile(
    r"%(?P<name>\w+): (?:!tt\.ptr<(?P<pointee>\w+)(?:, \d+)?>|(?P<type>\w+))"
    r"(?: \{(?P<attributes>[^{}]*)\})?"
)
_DIVISOR = re.compile(r"tt\.divisibility = (?P<value>[0-9]{1,9}) :")


@frozen
class Hints:
    """The launch that a compiler recorded beside a code object; None or 0 where it did not."""

    kernel: str | None = None
    block: Extents | None = None
    dynamic_lds: int = 0
    parameters: tuple[Parameter, ...] = ()  #: without places: those of the source, in order

    def applied(self, signature: Signature) -> Signature:
        """Return the signature with the recorded workgroup, and with names, types and divisors where kinds agree."""
        signature = evolve(signature, workgroup=self.block or signature.workgroup)
        pairs = list(zip(signature.parameters, self.parameters))
        if len(pairs) != len(self.parameters) or any(a.is_pointer != b.is_pointer for a, b in pairs):
            return signature
        named = [evolve(b, offset=a.offset, size=a.size) for a, b in pairs]
        return evolve(signature, parameters=(*named, *signature.parameters[len(named) :]))


@frozen(eq=False)
class Subject:
    """A code object and the launch recorded beside it. `name` is its path, with the entry of a bundle."""

    name: str
    content: bytes
    hints: Hints = Hints()

    def hints_of(self, kernel: str) -> Hints:
        """Return the hints on a kernel, empty ones for a kernel that they do not name."""
        return self.hints if kernel == self.hints.kernel else Hints()


def files(path: Path) -> list[Path]:
    """Return the file itself, or a folder's code objects and bundles, known by how they begin.

    Raises UserError for a folder without any.
    """
    if not path.is_dir():
        return [path]
    paths = list(_below(path))
    if not paths:
        wanted = f"files of code ({families.suffixes('object_suffix')}) or offload bundles"
        raise UserError(f"given the folder {path} without code objects, wanted {wanted} in it")
    return paths


def _below(folder: Path) -> Iterator[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(paths) > _MOST_FILES:
        raise UserError(f"given the folder {folder} of {len(paths)} files, wanted at most {_MOST_FILES}")
    yield from filter(_looks_like_code, paths)


def _looks_like_code(path: Path) -> bool:
    """Return whether a file begins as code objects and bundles do, or cannot be read, which its reader will report."""
    try:
        with untrusted.opened(path, most=_ANY_SIZE) as file:
            begin = file.read(families.BEGINNING) or b""
    except UserError:
        return True
    return targets.can_execute(begin) or begin.startswith(_BUNDLE) or begin[:4] == _COMPRESSED


def of_file(path: Path) -> Iterator[Subject]:
    """Yield the code objects of a file, those of a bundle one by one. Raises UserError."""
    content = targets.read(path)
    if content.startswith(_COMPRESSED):
        raise UserError(f"given {path}, a compressed bundle, wanted it unbundled: clang-offload-bundler --unbundle")
    if not content.startswith(_BUNDLE):
        yield Subject(str(path), content, _hints(path))
        return
    entries = [(name, code) for name, code in _unbundled(content, path) if targets.can_execute(code)]
    if not entries:
        wanted = f"a code object for a GPU of {families.makers('executor')}"
        raise UserError(f"given the bundle {path}, wanted one with {wanted}")
    for name, code in entries:
        yield Subject(f"{path}:{name}", code)


def _unbundled(content: bytes, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the entries of a bundle. Raises UserError for a damaged one."""
    try:
        at = len(_BUNDLE)
        (count,) = struct.unpack_from("<Q", content, at)
        at += 8
        if count > _MOST_ENTRIES:
            raise UserError(f"given the bundle {path} of {count} entries, wanted at most {_MOST_ENTRIES}")
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", content, at)
            at += 24
            name = content[at : at + length].decode()
            at += length
            if at > len(content) or offset + size > len(content):
                raise UserError(f"given the damaged bundle {path}, wanted a whole one: an entry lies beyond its end")
            yield untrusted.shown(name), content[offset : offset + size]
    except (struct.error, UnicodeDecodeError):
        raise UserError(f"given the damaged bundle {path}, wanted a whole one: its table is cut short") from None


def _hints(path: Path) -> Hints:
    """Read the launch that Triton recorded beside a code object; empty for one of another origin. Raises UserError."""
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return Hints()
    text = untrusted.read(beside, "JSON", untrusted.MOST_RECORD).decode(errors="replace")
    entry = Entry.parse(text, str(beside))
    if not all(entry.has(key) for key in ("num_warps", "shared", "name")):
        return Hints()
    target = entry["target"] if entry.has("target") else entry
    items = entry["num_warps"].integer(1, MOST_ITEMS) * target["warp_size"].integer(1, 64)
    if items > MOST_ITEMS:
        raise UserError(f"given workgroups of {items} work-items, wanted at most {MOST_ITEMS}, at {beside}")
    name = entry["name"].text()
    return Hints(
        name, (items, 1, 1), entry["shared"].integer(0, MOST_SHARED), _parameters(path.with_suffix(".ttir"), name)
    )


def _parameters(path: Path, kernel: str) -> tuple[Parameter, ...]:
    """Return the arguments of a function in a .ttir; none without such a file or function."""
    if not path.is_file():
        return ()
    text = untrusted.read(path, "text", _MOST_TEXT).decode(errors="replace")
    begin = re.search(rf"tt\.func public @{re.escape(kernel)}\(", text)
    if begin is None:
        return ()
    arguments = text[begin.end() :].partition("attributes {")[0].partition("\n")[0]
    return tuple(map(_parameter, _ARGUMENT.finditer(arguments)))


def _parameter(argument: re.Match[str]) -> Parameter:
    groups: Mapping[str, str | None] = argument.groupdict()
    divisor = _DIVISOR.search(groups["attributes"] or "")
    default = 1 if divisor is None or groups["pointee"] else min(_MOST_DIVISOR, max(1, int(divisor["value"])))
    type_name = f"{groups['pointee']}*" if groups["pointee"] else groups["type"] or ""
    return Parameter(groups["name"] or "", 0, 0, groups["pointee"] is not None, type_name, default)
