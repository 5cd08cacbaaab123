"""From machine code to instructions: iga64's JSON, and its text where the JSON leaves something out.

The JSON of IGA 1.1.0 has no region for a register addressed through a0 and forgets the braces around a send's source
when the descriptor is in a register; the first comes from the text, the second is repaired.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import attrs

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.errors import SimulatorError, Unsupported

#: Bytes of each operand type.
SIZES = {
    **dict.fromkeys(("ub", "b"), 1),
    **dict.fromkeys(("uw", "w", "hf", "bf", "uv", "v"), 2),
    **dict.fromkeys(("ud", "d", "f", "vf", "tf32"), 4),
    **dict.fromkeys(("uq", "q", "df"), 8),
}


EACH_ROW = -1  #: as vertical stride: every row has an address of its own


@attrs.frozen
class Region:
    """`<vertical; width, horizontal>` in elements; a destination has only the last."""

    vertical: int
    width: int
    horizontal: int


@attrs.frozen
class Operand:
    """An explicit operand of an instruction other than a send."""

    kind: str  #: "reg", "imm", "indirect", "label" or "null"
    type: str = ""
    file: str = "r"
    reg: int = 0
    sub: int = 0  #: in units of the type; for "indirect" the element of a0
    region: Region | None = None
    negate: bool = False
    absolute: bool = False
    value: int = 0  #: immediate bits, label address, or offset of an indirect register
    saturate: bool = False

    @property
    def size(self) -> int:
        return SIZES[self.type]


@attrs.frozen
class Payload:
    """Consecutive whole registers of a send; `length` is what IGA derived."""

    reg: int  #: -1 for null
    length: int


@attrs.frozen
class Message:
    """A send: where it goes and with what."""

    unit: str  #: shared function: ugm, slm, gtwy, dc0, dc1 ...
    dst: Payload
    src0: Payload
    src1: Payload
    descriptor: int | None  #: None when in a register
    extended: int | None
    extended_register: int = 0  #: element of a0


@attrs.frozen(eq=False)
class Instruction:
    """One decoded instruction."""

    address: int
    text: str
    op: str
    sub: str
    exec_size: int
    offset: int  #: first channel
    no_mask: bool
    predicate: str  #: "" for none, "+" or "-"
    predicate_function: str
    flag: tuple[int, int]  #: register and half
    condition: str
    dst: Operand | None
    sources: tuple[Operand, ...]
    distance: tuple[str, int] | None  #: pipe ("" for the own one) and count
    token: tuple[int, str] | None  #: number and "", "dst" or "src"
    options: frozenset[str]
    message: Message | None = None
    size: int = 16
    window: tuple[int, int] | None = None  #: first lane and end of one pass of an instruction that runs in two


def disassemble(code: bytes, platform: Platform) -> tuple[Instruction, ...]:
    """All instructions of a kernel's section, padding included."""
    tool = shutil.which("iga64")
    if tool is None:
        raise SimulatorError("iga64 (Debian package libigc-tools) is needed to decode Intel code and is not installed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.bin"
        path.write_bytes(code)
        common = [tool, "-d", f"-p={platform.iga}", "-Xprint-pc", "-Xprint-hex-floats", "-Xno-print-bfnexprs"]
        listing = _run([*common, "-Xprint-json", str(path)], platform)
        text = _run([*common, "-Xprint-ldst", str(path)], platform)
    repaired = re.sub(r'^(\s*)("kind":"RD".*"defs":\[\])(,?)$', r"\1{\2}\3", listing, flags=re.M)
    try:
        items = [item for item in json.loads(repaired)["insts"] if item["kind"] == "I"]
    except json.JSONDecodeError as error:
        raise SimulatorError(f"iga64 cannot decode the kernel: its listing breaks off ({error})") from None
    lines = _lines(text)
    ends = [item["pc"] for item in items[1:]] + [len(code)]
    try:
        return tuple(
            _instruction(item, lines.get(item["pc"], item["op"]), end - item["pc"])
            for item, end in zip(items, ends, strict=True)
        )
    except KeyError as error:
        raise SimulatorError(f"iga64's listing lacks {error}; is it another version than 1.1 or 2?") from None


def _run(command: list[str], platform: Platform) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = (done.stderr or done.stdout).strip().splitlines()[:1]
        if any("platform" in line for line in first):
            raise Unsupported(f"the installed iga64 does not know {platform.name} (-p={platform.iga})")
        raise SimulatorError(f"iga64 cannot decode the kernel: {' '.join(first)}")
    return done.stdout


_LINE = re.compile(r"^\s*/\* \[([0-9A-F]+)\]\s*\*/\s*(.*?)\s*(?://.*)?$")


def _lines(text: str) -> dict[int, str]:
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            found[int(match[1], 16)] = re.sub(r"\s+", " ", match[2])
    return found


def _instruction(item: dict[str, Any], text: str, size: int) -> Instruction:
    op = item["op"]
    flag = item["freg"]
    predicate = item["pred"]
    message = None
    dst: Operand | None = None
    sources: tuple[Operand, ...] = ()
    indirect = iter(re.findall(r"r\[a0\.\d+(?:,\s*-?\d+)?\](<[^>]*>)", text))
    if op in ("send", "sendc", "sends", "sendsc"):
        message = _message(item)
    else:
        if item["dst"] is not None:
            dst = _operand(item["dst"], indirect, is_dst=True)
        sources = tuple(_operand(source, indirect) for source in item["srcs"])
    return Instruction(
        item["pc"],
        text,
        op,
        item["subop"] or "",
        item["es"],
        item["eo"],
        item["wren"],
        "" if predicate is None else "-" if predicate["inv"] else "+",
        "" if predicate is None else predicate["func"],
        (0, 0) if flag is None else (flag["r"], flag["sr"]),
        "" if item["fm"] is None else item["fm"]["cond"],
        dst,
        sources,
        _distance(item["regDist"]),
        _token(item["sbid"]),
        frozenset(item["opts"]),
        message,
        size,
    )


def _distance(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    pipe, _, count = text.rpartition("@")
    return pipe, int(count)


def _token(text: str | None) -> tuple[int, str] | None:
    if not text:
        return None
    number, _, mode = text[1:].partition(".")
    return int(number), mode


def _region(text: str) -> Region:
    """`<v;w,h>`, `<w,h>` (one address per group of w) or a destination's `<h>`."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) == 2:
        return Region(EACH_ROW, *numbers)
    return Region(*numbers) if len(numbers) == 3 else Region(0, 0, numbers[0])


def _operand(item: dict[str, Any], indirect: Any, *, is_dst: bool = False) -> Operand:
    kind = item["kind"]
    type_ = item.get("type") or ""
    if kind == "IM":
        return Operand("imm", type_, value=_number(item["value"]))
    if kind == "LB":
        return Operand("label", value=int(item["target"][1:]))
    mods = item.get("mods", "")
    negate, absolute = "n" in mods or "-" in mods, "a" in mods
    saturate = bool(item.get("sat"))
    region = None
    if item.get("rgn"):
        numbers = item["rgn"]
        region = Region(numbers.get("Vt", 0), numbers.get("Wi", 0), numbers["Hz"])
    if kind == "RI":
        text = next(indirect, "")
        if region is None:
            region = _region(text)
        area = item["areg"]
        return Operand("indirect", type_, "a", area["r"], area["sr"], region, negate, absolute, item["aoff"], saturate)
    if kind == "RM":  # the extra bits of macro accumulators are not simulated
        kind, region = "RD", Region(0, 0, 1) if is_dst else Region(1, 1, 0)
    if kind != "RD":
        raise Unsupported(f"an operand of kind {kind} is not simulated")
    reg = item["reg"]
    if reg["rn"] == "null":
        return Operand("null", type_, "null", region=region, saturate=saturate)
    return Operand("reg", type_, reg["rn"], reg["r"], reg["sr"], region, negate, absolute, saturate=saturate)


def _number(text: str) -> int:
    return int(text, 0)


def _payload(item: dict[str, Any]) -> Payload:
    reg, length = item["reg"], item.get("len", 0)
    return Payload(-1 if reg["rn"] == "null" else reg["r"], length)


def _message(item: dict[str, Any]) -> Message:
    first, second, extended, descriptor = item["srcs"]
    extended_register = extended["reg"]["sr"] if extended["kind"] == "RD" else 0
    return Message(
        item["subop"],
        _payload(item["dst"]),
        _payload(first.get("addr", first)),
        _payload(second),
        _number(descriptor["value"]) if descriptor["kind"] == "IM" else None,
        _number(extended["value"]) if extended["kind"] == "IM" else None,
        extended_register,
    )
