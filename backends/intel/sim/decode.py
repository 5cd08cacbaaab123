"""Decode machine code: iga64's JSON, and its text for fields that the JSON omits.

The JSON has two forms (IGAJSONv1.md and IGAJSONv2.md in IGC's folder visa/iga; iga64 prints the second since 2023):
`insts` with every field, or `elems` with other names and without fields that are null, false or zero. The first form is
converted to the second. JSON of IGA 1.1.0 lacks the region of a register addressed through a0, which is read from the
text, and the braces around a send's source if the descriptor is in a register, which are repaired.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.backends.toolchain import IGA64, run
from convgen.ir.record import frozen

#: Bytes of each operand type.
SIZES = {
    **dict.fromkeys(("ub", "b"), 1),
    **dict.fromkeys(("uw", "w", "hf", "bf", "uv", "v"), 2),
    **dict.fromkeys(("ud", "d", "f", "vf", "tf32"), 4),
    **dict.fromkeys(("uq", "q", "df"), 8),
}


ALL_TOKENS = -1  #: stands for every token of a thread
EACH_ROW = -1  #: vertical stride of a region whose rows have addresses of their own (Vx1, VxH)


@frozen
class Region:
    """A region `<vertical; width, horizontal>` in elements; a destination has only the horizontal stride."""

    vertical: int
    width: int
    horizontal: int


@frozen
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


@frozen
class Payload:
    """Consecutive whole registers of a send; `length` is IGA's number of registers."""

    reg: int  #: -1 for null
    length: int


@frozen
class Message:
    """A send: its unit, descriptor and payloads."""

    unit: str  #: shared function: ugm, slm, gtwy, dc0, dc1 ...
    dst: Payload
    src0: Payload
    src1: Payload
    descriptor: int | None  #: None when in a register
    extended: int | None


@frozen(cache_hash=True)
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

    @property
    def rows(self) -> int:
        """Return the rows of a systolic instruction's result."""
        return int(self.sub.partition("x")[2])

    @property
    def saturates(self) -> bool:
        """Return whether the result is clamped to the range of its type."""
        return self.dst is not None and self.dst.saturate

    def waits(self) -> list[tuple[int, str]]:
        """Return the tokens that the instruction waits for, each with "dst" or "src", or `ALL_TOKENS`."""
        waits = [self.token] if self.token is not None and self.token[1] else []
        if self.op != "sync" or self.sub not in ("allrd", "allwr"):
            return waits
        masks = [o.value for o in self.sources if o.kind == "imm"]
        numbers = [n for n in range(masks[0].bit_length()) if masks[0] >> n & 1] if masks else [ALL_TOKENS]
        return waits + [(number, "src" if self.sub == "allrd" else "dst") for number in numbers]


def follows(i: Instruction) -> tuple[bool, tuple[int, ...]]:
    """Return whether the next instruction may follow, and the addresses of a branch's targets."""
    targets = tuple(o.value for o in i.sources if o.kind == "label")
    ends = "EOT" in i.options or i.op == "illegal" or (i.op == "jmpi" and not i.predicate)
    return not ends, targets


@lru_cache(maxsize=32)
def disassemble(code: bytes, platform: Platform) -> tuple[Instruction, ...]:
    """Decode all instructions of a kernel's section, padding included; equal bytes are decoded once."""
    tool = IGA64.find()
    if tool is None:
        raise SimulatorError(f"no iga64 found ({IGA64.how_to_install}), which decodes Intel code")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "code.bin").write_bytes(code)
        common = [tool, "-d", f"-p={platform.iga}", "-Xprint-pc", "-Xprint-hex-floats", "-Xno-print-bfnexprs"]
        listing = _run([*common, "-Xprint-json", "code.bin"], Path(folder), platform)
        text = _run([*common, "-Xprint-ldst", "code.bin"], Path(folder), platform)
    lines = _lines(text)
    try:
        items = _items(listing)
        ends = [item["pc"] for item in items[1:]] + [len(code)]
        return tuple(
            _instruction(item, lines.get(item["pc"], item["op"]), end - item["pc"])
            for item, end in zip(items, ends, strict=True)
        )
    except json.JSONDecodeError as error:
        raise SimulatorError(f"iga64 cannot decode the kernel: its listing breaks off ({error})") from None
    except (KeyError, TypeError, ValueError) as error:
        finding = f"{type(error).__name__} {error}"
        raise SimulatorError(f"the listing of {tool} is of another form than IGAJSONv1 and v2 ({finding})") from None


def _run(command: list[str], folder: Path, platform: Platform) -> str:
    process = run(command, folder)
    if process.returncode:
        first = (process.stderr or process.stdout).strip().splitlines()[:1]
        if any("platform" in line for line in first):
            raise Unsupported(f"the installed iga64 does not know {platform.name} (-p={platform.iga})")
        raise SimulatorError(f"iga64 cannot decode the kernel: {' '.join(first)}")
    return process.stdout


#: An instruction of iga64's text: address, instruction, perhaps a comment.
_LINE = re.compile(r"\s*/\* \[([0-9A-F]+)\]\s*\*/(.*)")


def _lines(text: str) -> dict[int, str]:
    texts = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            texts[int(match[1], 16)] = " ".join(match[2].partition("//")[0].split())
    return texts


# ---------------------------------------------------------------- both forms of the JSON


#: Text that makes the first form invalid JSON, and its repair: a source without braces; an error in place of a type of
#: surface, in messages without one (iga64 of Ubuntu 22.04, libigc-tools 1.0.10840).
_REPAIRS = (
    (re.compile(r'^(\s*)("kind":"RD".*"defs":\[\])(,?)$', re.M), r"\1{\2}\3"),
    (re.compile(r'"type":IR\.Error\("invalid surface type"\)'), '"type":"invalid"'),
)


def _items(listing: str) -> list[dict[str, Any]]:
    """Return the instructions of a listing, in the second form."""
    repaired = reduce(lambda text, repair: repair[0].sub(repair[1], text), _REPAIRS, listing)
    document = json.loads(repaired, object_hook=None if '"elems"' in repaired else _renewed)
    return [item for item in document.get("elems") or document["insts"] if item["kind"] == "I"]


#: Fields of the first form whose name the second changes.
_NAMES = {"Vt": "v", "Wi": "w", "Hz": "h"}


def _renewed(old: dict[str, Any]) -> dict[str, Any]:
    """Convert one object of the first form, whose parts are converted already, to the second form."""
    fields = {_NAMES.get(key, key): item for key, item in old.items() if item is not None}
    if isinstance(fields.get("sbid"), str):
        number, _, event = fields["sbid"].lstrip("$").partition(".")
        fields["sbid"] = {"id": int(number), "func": event and f".{event}"}
    if "addr" in fields:
        fields |= {"areg": fields["addr"]["reg"], "alen": fields["addr"].get("len", 0)}
    return fields


def _instruction(item: dict[str, Any], text: str, size: int) -> Instruction:
    """Return an instruction of the second form of JSON; `text` is its line of the listing."""
    op = item["op"]
    predicate = item.get("pred")
    message = None
    dst: Operand | None = None
    sources: tuple[Operand, ...] = ()
    indirect = iter(re.findall(r"r\[a0\.\d+(?:,\s*-?\d+)?\](<[^>]*>)", text))
    if op in ("send", "sendc", "sends", "sendsc"):
        message = _message(item)
    else:
        if "dst" in item:
            dst = _operand(item["dst"], indirect, is_dst=True)
        sources = tuple(_operand(source, indirect) for source in item["srcs"])
    flag = _register(item["freg"]) if "freg" in item else ("f", 0, 0)
    return Instruction(
        item["pc"],
        text,
        op,
        item.get("subop", ""),
        item["es"],
        item.get("eo", 0),
        item.get("wren", False),
        "" if predicate is None else "-" if predicate.get("inv") else "+",
        "" if predicate is None else predicate.get("func", ""),
        flag[1:],
        item["fm"]["cond"] if "fm" in item else "",
        dst,
        sources,
        _distance(item.get("regDist")),
        _token(item.get("sbid")),
        frozenset(item.get("opts", ())),
        message,
        size,
    )


def _distance(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    pipe, _, count = text.rpartition("@")
    return pipe, int(count)


def _token(event: dict[str, Any] | None) -> tuple[int, str] | None:
    return None if event is None else (int(event["id"]), event.get("func", "").lstrip("."))


def _register(item: dict[str, Any]) -> tuple[str, int, int]:
    """Return file, number and subregister."""
    return item["rn"], item.get("r", 0), item.get("sr", 0)


def _region(text: str) -> Region:
    """Return a region from `<v;w,h>`, `<w,h>` (one address per group of w) or a destination's `<h>`."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) == 2:
        return Region(EACH_ROW, *numbers)
    return Region(*numbers) if len(numbers) == 3 else Region(0, 0, numbers[0])


def _operand(item: dict[str, Any], indirect: Any, *, is_dst: bool = False) -> Operand:
    """Return an operand; `indirect` yields the regions of registers addressed through a0, from the text."""
    kind = item["kind"]
    type_ = item.get("type") or ""
    if kind == "IM":
        return Operand("imm", type_, value=int(item["value"], 0))
    if kind == "LB":
        return Operand("label", value=int(item["target"][1:]))
    mods = item.get("mods", "")
    negate, absolute = "n" in mods or "-" in mods, "a" in mods
    saturate = bool(item.get("sat"))
    region = None
    if item.get("rgn"):
        numbers = item["rgn"]
        region = Region(
            numbers.get("v", EACH_ROW if kind == "RI" and not is_dst else 0), numbers.get("w", 0), numbers["h"]
        )
    if kind == "RI":
        text = next(indirect, "")
        if region is None:
            region = _region(text)
        _, number, sub = _register(item["areg"])
        return Operand("indirect", type_, "a", number, sub, region, negate, absolute, item["aoff"], saturate)
    if kind == "RM":  # the extra bits of macro accumulators are not simulated
        kind, region = "RD", Region(0, 0, 1) if is_dst else Region(1, 1, 0)
    if kind != "RD":
        raise Unsupported(f"an operand of kind {kind} is not simulated")
    file, number, sub = _register(item["reg"])
    if file == "null":
        return Operand("null", type_, "null", 0, sub, region, saturate=saturate)
    return Operand("reg", type_, file, number, sub, region, negate, absolute, saturate=saturate)


def _payload(register: dict[str, Any], length: int) -> Payload:
    file, number, _ = _register(register)
    return Payload(-1 if file == "null" else number, length)


def _message(item: dict[str, Any]) -> Message:
    first, second, extended, descriptor = item["srcs"]
    dst = item["dst"]
    at_first = _payload(first["areg"], first.get("alen", 0)) if "areg" in first else _payload(first["reg"], 0)
    return Message(
        item["subop"],
        _payload(dst["reg"], dst.get("len", 0)),
        at_first,
        _payload(second["reg"], second.get("len", 0)),
        int(descriptor["value"], 0) if descriptor["kind"] == "IM" else None,
        int(extended["value"], 0) if extended["kind"] == "IM" else None,
    )
