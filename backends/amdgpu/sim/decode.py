"""Decode machine code: mnemonic, operands and modifiers from llvm-objdump's text, the rest from the raw dwords.

Branch distances, wait counts and 16-bit immediates come from the dwords, because the printer omits saturated wait
fields and prints branch targets as labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.ir.record import frozen

#: Register numbers of the scalar file that have names (CDNA3 ISA, "Scalar ALU operands").
VCC, M0, EXEC, SCC = 106, 124, 126, 128
GENERAL_SCALARS = 102  #: scalar registers below it are allocated as the kernel asks; the others have names of their own
SCALAR_ROWS = 129  #: rows of the scalar register file, SCC kept behind the architectural ones
NAMED_SCALARS: Mapping[str, tuple[int, int]] = {
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
    "xnack_mask_lo": (104, 1),
    "xnack_mask_hi": (105, 1),
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "m0": (M0, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "scc": (SCC, 1),
    "src_scc": (SCC, 1),
}
#: Inline floating-point constants, by their printed text; the operand's type gives them their width.
INLINE_FLOATS: Mapping[str, float] = {
    "0.5": 0.5,
    "-0.5": -0.5,
    "1.0": 1.0,
    "-1.0": -1.0,
    "2.0": 2.0,
    "-2.0": -2.0,
    "4.0": 4.0,
    "-4.0": -4.0,
    "0.15915494": 0.15915494309189532,
    "0.1591": 0.15915494309189532,
    "0.15915494309189532": 0.15915494309189532,
}
#: Flat addresses at which the apertures of LDS and scratch begin, 2^32 bytes each (AMDGPUUsage, "Flat"). The simulator
#: chose them; no buffer lies there.
APERTURES: Mapping[str, int] = {"src_shared_base": 1 << 48, "src_private_base": 2 << 48}
ENCODING_SUFFIXES = ("_e32", "_e64", "_sdwa", "_dpp")

_LINE = re.compile(r"^\t(?P<text>.*?)\s*//\s*(?P<address>[0-9A-F]{12}):(?P<words>(?: [0-9A-F]{8})+)")
_REGISTER = re.compile(r"^(?P<file>[vas])(?:(?P<one>\d+)|\[(?P<first>\d+)(?::(?P<last>\d+))?\])$")
_WRAPPED = re.compile(r"^(?P<wrap>sext|abs|neg|lit)\((?P<inner>.*)\)$")
_TOKEN = re.compile(r"(?:[^\s,\[\(|]+|\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\)|\|[^|]*\|)+|,")


@frozen
class Operand:
    """One source or destination as written: a register tuple, a constant or a keyword such as `off`."""

    kind: str  #: "v", "a", "s", "int" (inline integer), "float" (inline constant), "literal", "aperture" or "word"
    text: str
    index: int = 0
    count: int = 1
    value: int = 0
    number: float = 0.0
    negate: bool = False
    absolute: bool = False
    sign_extend: bool = False

    @property
    def is_vector(self) -> bool:
        return self.kind in ("v", "a")

    @property
    def is_register(self) -> bool:
        return self.kind in ("v", "a", "s")


@frozen(eq=False)
class Instruction:
    """One decoded instruction. `name` is the mnemonic without its encoding suffix (`encoding`)."""

    address: int
    words: tuple[int, ...]
    text: str
    name: str
    encoding: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str]

    @property
    def size(self) -> int:
        return 4 * len(self.words)

    @property
    def simm16(self) -> int:
        """Return the signed 16-bit immediate of SOPP and SOPK encodings."""
        low = self.words[0] & 0xFFFF
        return low - 0x10000 if low & 0x8000 else low

    def number(self, modifier: str, default: int = 0) -> int:
        """Return an integer modifier such as `offset:64`."""
        text = self.modifiers.get(modifier)
        return default if text is None else int(text, 0)

    def bits(self, modifier: str, count: int, default: int = 0) -> tuple[bool, ...]:
        """Return a bit-list modifier such as `op_sel:[0,1]`, padded with `default`."""
        text = self.modifiers.get(modifier)
        given = [] if text is None else [item.strip() != "0" for item in text.strip("[]").split(",")]
        return tuple(given[:count]) + (bool(default),) * (count - len(given))


def follows(i: Instruction) -> tuple[bool, tuple[int, ...]]:
    """Return whether the next instruction may follow, and the address that a branch or call names."""
    falls = i.name not in ("s_branch", "s_endpgm", "s_endpgm_saved", "s_setpc_b64")
    jumps = i.name in ("s_branch", "s_call_b64") or i.name.startswith("s_cbranch")
    return falls, (i.address + 4 + 4 * i.simm16,) if jumps else ()


def parse_operand(text: str) -> Operand:
    """Return one operand of the disassembly."""
    negate = absolute = sign_extend = False
    inner = text
    while True:
        wrapped = _WRAPPED.match(inner)
        if wrapped is not None:
            wrap, inner = wrapped["wrap"], wrapped["inner"]
            sign_extend |= wrap == "sext"
            absolute |= wrap == "abs"
            negate |= wrap == "neg"
        elif inner.startswith("|") and inner.endswith("|"):
            absolute, inner = True, inner[1:-1]
        elif inner.startswith("-") and not inner[1:2].isdigit():
            negate, inner = True, inner[1:]
        else:
            break
    flags = {"negate": negate, "absolute": absolute, "sign_extend": sign_extend}
    register = _REGISTER.match(inner)
    if register is not None:
        first = int(register["one"] or register["first"])
        last = int(register["last"] or first)
        return Operand(register["file"], text, first, last - first + 1, **flags)
    if inner in NAMED_SCALARS:
        index, count = NAMED_SCALARS[inner]
        return Operand("s", text, index, count, **flags)
    if inner in APERTURES:
        return Operand("aperture", text, value=APERTURES[inner], **flags)
    if inner in INLINE_FLOATS:
        return Operand("float", text, number=INLINE_FLOATS[inner], **flags)
    if re.fullmatch(r"-?\d+", inner):
        return Operand("int", text, value=int(inner), **flags)
    if re.fullmatch(r"-?0x[0-9a-fA-F]+", inner):
        return Operand("literal", text, value=int(inner, 16) & 0xFFFFFFFFFFFFFFFF, **flags)
    return Operand("word", text)


@lru_cache(maxsize=1 << 15)
def parse_instruction(address: int, words: tuple[int, ...], text: str) -> Instruction:
    """Return the instruction of one line of the disassembly, whose comment has the address and the words."""
    mnemonic, _, rest = text.partition(" ")
    operands: list[Operand] = []
    modifiers: dict[str, str] = {}
    expect_operand = True
    for token in _TOKEN.findall(rest):
        if token == ",":
            expect_operand = True
        elif expect_operand:
            operands.append(parse_operand(token))
            expect_operand = False
        else:
            key, _, value = token.partition(":")
            modifiers[key] = value
    if operands and operands[-1].kind == "word" and len(operands) == 1 and ":" in operands[0].text:
        key, _, value = operands.pop().text.partition(":")
        modifiers[key] = value
    name, encoding = mnemonic, ""
    for suffix in ENCODING_SUFFIXES:
        if mnemonic.endswith(suffix):
            name, encoding = mnemonic.removesuffix(suffix), suffix[1:]
    return Instruction(address, words, text, name, encoding, tuple(operands), modifiers)


def parse_disassembly(listing: str) -> tuple[Instruction, ...]:
    """Return all instructions of an `llvm-objdump -d` listing, in order of address. Raises SimulatorError for none."""
    instructions: list[Instruction] = []
    for line in listing.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        words = tuple(int(word, 16) for word in match["words"].split())
        instructions.append(parse_instruction(int(match["address"], 16), words, match["text"].strip()))
    if not instructions:
        raise SimulatorError("the code object holds no instructions")
    return tuple(instructions)


def require_plain(instruction: Instruction, allowed: frozenset[str]) -> None:
    """Refuse a modifier that the caller would silently ignore."""
    for key in instruction.modifiers:
        if key not in allowed:
            raise Unsupported(f"modifier {key!r} of `{instruction.text}` at {instruction.address:#x}")
