"""Kind, unit, cost and bytes of one decoded instruction, for any Xe code. A slot is one clock of an EU.

The accounting is a convention for comparing loops, not a measurement:

- An instruction of the vector engine takes a clock for each register of its result, twice that for 64-bit integers; a
  send, a sync or a branch takes one.
- A matrix instruction occupies the systolic array for the clocks in the generation's table, in proportion to its rows.
- A message occupies its unit for a clock per register of data (assumed; this gives the 512 bytes a clock and core that
  Intel stated for Ponte Vecchio at Hot Chips 33).

Register banks: IGC, visa/LocalScheduler/LocalScheduler_G4IR.cpp (`hasInternalConflict`) and visa/GraphColor.h
(`get_bundle`, `get_bank`). An instruction of three register sources has a conflict if two of them are in one bundle of
one bank, or all three in one bank. That IGC uses two registers a bank for XeHPG and one for XeHPC is assumed from the
names of its capabilities. Read suppression, which reuses a source of the previous instruction, is not modelled; only
the first register of each source counts, also for matrix instructions (assumed).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from convgen.backends.analysis import Line
from convgen.backends.family import check_rows
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.decode import ALL_TOKENS, Instruction, Message
from convgen.backends.intel.sim.dpas import BITS, DEPTH
from convgen.backends.intel.sim.pipes import LONG_INTEGERS
from convgen.backends.intel.sim.platforms import CORES
from convgen.backends.intel.tables import DPAS_ROWS, GENERATIONS
from convgen.backends.intel.zebin_devices import DEVICES

#: Target -> bank and bundle of a register, each bundle in one bank.
_BUNDLES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "xehpg": lambda r: (r % 4 // 2, r % 64 // 4),
    "xehpc": lambda r: (r % 2, r % 64 // 4),
    "xe2": lambda r: (r % 2, r % 16 // 2),
}
check_rows(
    FAMILY, {"costs.py: _BUNDLES": _BUNDLES, "sim/platforms.py: CORES": [platform.name for platform in CORES.values()]}
)

_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("dpas", "dpasw"), "dpas"),
    **dict.fromkeys(("jmpi", "goto", "join", "if", "else", "endif", "while", "break", "cont", "brd", "brc"), "branch"),
    **{name: name for name in ("mov", "math", "sync", "nop")},
}
_GATEWAY = {0x4: "barrier_signal", 0x10: "end"}
_UNITS = {"slm": ("lds", "lds"), "ugm": ("global", "global"), "tgm": ("global", "global")}
#: A label of iga64's text, which is the address of a branch's target in bytes.
_ADDRESS_SOURCES = re.compile(r"L(\d+)")


def line_of(instruction: Instruction, target: str) -> Line:
    """Return the instruction as a line of an analysis."""
    grf = DEVICES[target].grf_bytes
    if instruction.message is not None:
        return _send(instruction, instruction.message, grf)
    at, text = instruction.address, instruction.text
    kind = kind_of(instruction)
    if kind == "dpas":
        rows, flop = _matrix(instruction)
        clocks = GENERATIONS[target].dpas_clocks * rows // DPAS_ROWS
        return Line(at, text, kind, "matrix", max(1, clocks), flop=flop)
    if kind in ("alu", "mov", "math"):
        clocks = _clocks(instruction, grf)
        return Line(at, text, kind, "valu", clocks, clocks)
    if kind == "branch":
        text = _ADDRESS_SOURCES.sub(lambda m: f"+{int(m[1]):#x}", text)
    return Line(at, text, kind, "", 1)


def kind_of(instruction: Instruction) -> str:
    """Return dpas, mov, math, alu, sync, branch, or the action of a send: slm_load, ugm_store, barrier_signal, ..."""
    message = instruction.message
    if message is None:
        return _KINDS.get(instruction.op, "alu")
    if message.descriptor is None:
        return f"{message.unit}_other"
    if message.unit == "gtwy":
        return _GATEWAY.get(message.descriptor & 0xFF, "gtwy_other")
    if message.unit not in _UNITS:
        return f"{message.unit}_other"
    return f"{message.unit}_{_verb(msg.Lsc.decode(message.descriptor).op)}"


def _verb(op: int) -> str:
    if op in msg.ATOMICS:
        return "atomic"
    names = {msg.LOAD: "load", msg.LOAD_QUAD: "load", msg.LOAD_2D: "load_2d", msg.FENCE: "fence"}
    return {**names, msg.STORE: "store", msg.STORE_QUAD: "store", msg.STORE_2D: "store_2d"}.get(op, "other")


def _clocks(instruction: Instruction, grf: int) -> int:
    dst = instruction.dst
    size = 1 if dst is None or not dst.type else dst.size
    registers = max(1, -(-instruction.exec_size * size // grf))
    return 2 * registers if dst is not None and dst.type in LONG_INTEGERS else registers


def _matrix(instruction: Instruction) -> tuple[int, int]:
    """Return the rows and the operations of a matrix instruction."""
    rows = instruction.rows
    _, a, b = instruction.sources
    k = DEPTH * 32 // max(BITS.get(a.type, 32), BITS.get(b.type, 32), 4)
    return rows, 2 * rows * k * instruction.exec_size


def _send(instruction: Instruction, message: Message, grf: int) -> Line:
    """Return the line of a send: its unit, and the bytes that it moves."""
    kind = kind_of(instruction)
    at, text = instruction.address, instruction.text
    if message.unit not in _UNITS or message.descriptor is None or kind.endswith("_fence"):
        return Line(at, text, kind, "", 1)
    unit, path = _UNITS[message.unit]
    lsc = msg.Lsc.decode(message.descriptor)
    registers = max(1, message.dst.length, message.src1.length)
    if lsc.op in (msg.LOAD_2D, msg.STORE_2D):
        moved = registers * grf  # the shape is in the payload; this is the upper limit
    else:
        addresses = 1 if lsc.transposed else instruction.exec_size
        moved = addresses * (len(lsc.channels) or lsc.vector) * lsc.memory_bytes
    verb = {"load": "read", "store": "write"} if unit == "lds" else {}
    action = _verb(lsc.op).removesuffix("_2d")
    return Line(at, text, kind, unit, registers, bytes={f"{path} {verb.get(action, action)}": moved})


def conflicts(instruction: Instruction, target: str) -> int:
    """Return 1 if the register sources of a three-source instruction conflict in the banks, else 0."""
    numbers = [o.reg for o in instruction.sources if o.kind == "reg" and o.file == "r"]
    if len(instruction.sources) != 3 or len(numbers) < 2:
        return 0
    places = {r: _BUNDLES[target](r) for r in numbers}  # a register that occurs twice is read once
    banks = [bank for bank, _ in places.values()]
    return int(len(set(places.values())) < len(places) or (len(banks) == 3 and len(set(banks)) == 1))


def waits(instruction: Instruction, tokens: int) -> int:
    """Return how many tokens an instruction waits for; a wait for all tokens counts as `tokens`."""
    return sum(tokens if number == ALL_TOKENS else 1 for number, _ in instruction.waits())
