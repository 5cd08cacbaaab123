"""Instructions of the Xe vector engine: rows, operands with regions, and attributes such as predicates and tokens.

A vector register of the machine layer (bank "v") is one general register, GRF: a dword a lane. A scalar register (bank
"s") is one dword of a GRF, a flag register (bank "f") one bit a lane. Sources: Intel's Programmer's Reference Manuals
of Alchemist and Ponte Vecchio, "Instruction Set Reference"; IGA rejects instructions that do not encode. Latencies are
those of the Intel Graphics Compiler's LatencyTable, and only steer the scheduler.
"""

from __future__ import annotations

from functools import cache

from convgen.backends.machine.instruction import Flag, Inert, Instruction, Opcode, Operand, Place, Reg, Role, Unit
from convgen.ir.layout.memory import RectangleOrder
from convgen.ir.record import define, frozen
from convgen.ir.types import Type, f32, s32, u32

#: Registers are in two banks, by bit 0 (XeHPC, Xe2) or bit 1 (XeHPG) of their number (IGC, GraphColor.h, `get_bank`).
#: An instruction whose three sources are in one bank takes a clock more. Residue 0 modulo 4 for accumulators and 3 for
#: inputs are different banks under both rules.
BANK_PERIOD, ACCUMULATORS_AT, INPUTS_AT = 4, 0, 3

TYPE_BYTES = {"ub": 1, "b": 1, "uw": 2, "w": 2, "hf": 2, "bf": 2, "ud": 4, "d": 4, "f": 4, "tf32": 4, "uq": 8, "q": 8}
FLOATS = frozenset(("f", "hf", "bf"))
LONGS = frozenset(("q", "uq"))
FLAG_BITS = 16  #: lanes of a flag register


@frozen(eq=False)
class Region(Reg):
    """A view of register words as elements of `type`, `stride` apart, beginning at element `sub`.

    Stride 0 is one element for all lanes. `signs` are modifiers of sources: "-", "(abs)" or "-(abs)". Destinations may
    be `saturated`.
    """

    type: str = "ud"
    sub: int = 0
    stride: int = 1
    saturated: bool = False
    signs: str = ""

    @property
    def uniform(self) -> bool:
        return self.stride == 0

    def shown(self, place: Place) -> str:
        sub = f".{self.sub}" if self.sub else ""
        return f"{self.signs}{place(self)}{sub}<{self.stride}>:{self.type}"

    def spans(self, lanes: int, register_bytes: int) -> bool:
        """Return whether `lanes` elements lie in more than one register of `register_bytes`."""
        size = TYPE_BYTES[self.type]
        first, last = self.sub * size, (self.sub + (lanes - 1) * self.stride + 1) * size - 1
        return first // register_bytes != last // register_bytes


def region(r: Reg, type: str, sub: int = 0, stride: int = 1, *, saturated: bool = False, signs: str = "") -> Region:
    """Return a view of a register as elements of `type`."""
    return Region(r.vreg, r.first, r.count, type, sub, stride, saturated, signs)


def as_register(o: object) -> Reg:
    """Return an operand that is known to be a register."""
    assert isinstance(o, Reg)
    return o


@frozen
class Literal(Inert):
    """An immediate of a type, as IGA writes it."""

    value: int | float
    type: str

    def __str__(self) -> str:
        return f"{self.value}:{self.type}"


@frozen
class Null(Inert):
    """The null register, as destination or operand."""

    type: str

    def __str__(self) -> str:
        return f"null:{self.type}"


@frozen
class Special(Flag):
    """An architecture register with the type of its region: the accumulator, the control register."""

    type: str

    def shown(self, place: Place) -> str:
        return f"{self.name}:{self.type}"


@frozen
class Select(Opcode):
    """Writes each lane from the source that the lane's flag selects; it reads the flag, and does not write it."""


@frozen
class Send(Opcode):
    """A send that IGA's load and store text does not cover: it has a descriptor."""

    descriptor: str = ""


@frozen
class Message(Opcode):
    """A send in IGA's load and store text; the address is the last source operand, or the one before the data."""

    block: bool = False  #: one address; the dwords of all lanes are adjacent in memory
    address_bits: int = 64
    stores: bool = False  #: the last source is data
    returns: bool = False  #: returns the old value, to the null register if it is unused
    window: str = ""  #: IGA's text before the address, such as a binding table entry


def recipe(name: str, condition: str, lanes: int, *src: Operand) -> tuple[object, ...]:
    """Return a key: instructions with equal keys compute equal values while the registers they read are unchanged."""
    return name, condition, lanes, *(o.shown(lambda r: f"{r.vreg.number}.{r.first}") for o in src)


@define(eq=False)
class XeInstruction(Instruction):
    """An instruction with execution size, predicate, condition and scoreboard annotations."""

    lanes: int = 1
    predicate: Reg | None = None
    condition: str = ""  #: condition modifier, e.g. "lt"
    flag: Reg | None = None  #: flag register that the condition writes
    partial: bool = False  #: writes only part of the destination's words
    discards: bool = False  #: the lanes that the predicate turns off are undefined
    apart: bool = False  #: the destination must not overlap the sources, some of which are read after it is written
    leads: bool = False  #: leads a chain of matrix instructions that has another source 1
    annotations: tuple[str, ...] = ()  #: scoreboard annotations: distances and tokens to wait for, and the token set

    def head(self, place: Place) -> str:
        predicate = "" if self.predicate is None else f"({self.predicate.shown(place)}) "
        condition = f" ({self.condition})" + (place(self.flag) if self.flag is not None else "")
        return f"{predicate}{self.op.name} ({self.lanes})" + (condition if self.condition else "")

    @property
    def moves(self) -> bool:
        """Return whether it is a plain move, without predicate or condition."""
        return self.op.name == "mov" and not (self.op.fence or self.predicate or self.condition)

    @property
    def remarks(self) -> tuple[str, ...]:
        return (*self.modifiers, *self.annotations)

    def touched(self) -> list[Reg]:
        touched = super().touched()
        if self.predicate is not None:
            touched.append(self.predicate)
        return touched

    def _written(self) -> list[Reg]:
        written = super()._written()
        if self.flag is not None and not isinstance(self.op, Select):
            written.append(self.flag)
        return written

    def _read(self) -> list[Reg]:
        read = super()._read()
        keeps = self.predicate is not None and not isinstance(self.op, Select) and not self.discards
        if self.partial or keeps:
            read += (r for r in self.dst if isinstance(r, Reg))
        return read

    def annotated(self, *annotations: str) -> XeInstruction:
        """Return the instruction with these scoreboard annotations. (`evolve` takes eight times as long.)"""
        return XeInstruction(
            self.op, self.dst, self.src, self.modifiers, self.access, self.target, self.comment, self.line,
            self.lanes, self.predicate, self.condition, self.flag, self.partial, self.discards, self.apart,
            self.leads, annotations,
        )  # fmt: skip

    @property
    def early_clobber(self) -> bool:
        return self.apart or self.op.early_clobber

    @property
    def long(self) -> bool:
        """Return whether an operand or the result has 64 bits."""
        return any(getattr(o, "type", "") in LONGS for o in (*self.dst, *self.src))

    @property
    def floats(self) -> bool:
        """Return whether the result is a float, which decides the pipe."""
        typed: tuple[object, ...] = self.dst or self.src
        return getattr(typed[0], "type", "") in FLOATS


_SLOT_CLOCKS = 4  #: clocks; an issue slot of the scheduler
_ALU_LATENCY, _TOKEN_LATENCY = 3, {"dpas": 8, "slm": 10, "ugm": 60, "gtwy": 8, "math": 5}  #: slots
#: Instructions after a message that should not overwrite its sources, by port: about its time in flight (assumed).
_HOLDS = {"slm": 12, "ugm": 96}

_ALU = "mov add3 mad csel dp4a shl shr asr not cmp bfn rndd rndu rnde".split()
_ALU_COMMUTES = "add mul and or xor".split()
_MATH = "inv log exp sqt rsqt sin cos".split()
MATH = "math"  #: port of the math unit; on some generations a pipe in order


def _send(
    port: str, descriptor: str, unit: Unit, *, barrier: bool = False, fence: bool = False, ends: bool = False
) -> Send:
    latency = 1 if ends else _TOKEN_LATENCY[port]
    return Send(
        f"send.{port}",
        unit,
        latency,
        barrier=barrier,
        fence=fence,
        ends=ends,
        sources=(Role("header", "v", 1),),
        port=port,
        descriptor=descriptor,
    )


OPCODES: dict[str, Opcode] = {
    **{name: Opcode(name, Unit.VALU, _ALU_LATENCY) for name in _ALU},
    **{name: Opcode(name, Unit.VALU, _ALU_LATENCY, commutes=True) for name in _ALU_COMMUTES},
    **{f"math.{f}": Opcode(f"math.{f}", Unit.VALU, _TOKEN_LATENCY[MATH], port=MATH) for f in _MATH},
    # reads the response of a fence, and so waits for the fence
    "fenced": Opcode("mov", Unit.VALU, _ALU_LATENCY, fence=True),
    "sel": Select("sel", Unit.VALU, _ALU_LATENCY),
    "addc": Opcode("addc", Unit.VALU, _ALU_LATENCY, writes=("acc0",)),
    **{n: Opcode(n, Unit.VALU, _ALU_LATENCY, reads=("acc0",), writes=("acc0",)) for n in ("mach", "macl")},
    "jmpi": Opcode("jmpi", Unit.CONTROL),
    "jump": Opcode("jmpi", Unit.CONTROL, jumps=True),
    "sync.nop": Opcode("sync.nop", Unit.CONTROL),
    "sync.allwr": Opcode("sync.allwr", Unit.CONTROL),
    "sync.allrd": Opcode("sync.allrd", Unit.CONTROL),
    "fence": _send("slm", "0x0210011F", Unit.SHARED, barrier=True),
    "signal": _send("gtwy", "0x02000004", Unit.SHARED, barrier=True),
    "wait": Opcode("sync.bar", Unit.CONTROL, barrier=True),
    "eot": _send("gtwy", "0x02000010", Unit.CONTROL, ends=True),
}


@cache
def device_fence(descriptor: str) -> Send:
    """Return the row of a fence of the global unit."""
    return _send("ugm", descriptor, Unit.GLOBAL, fence=True)


_VECTORS = {4: "d32", 8: "d32x2", 12: "d32x3", 16: "d32x4", 32: "d32x8", 2: "d16u32", 1: "d8u32"}

#: (operation, type) -> atomic operation (IGA's names)
GLOBAL_ATOMICS: dict[tuple[str, Type], str] = {
    **{(op, f32): f"atomic_f{op}" for op in ("add", "min", "max")},
    **{("add", elem): "atomic_iadd" for elem in (s32, u32)},
    **{(op, elem): f"atomic_{op}" for op in ("and", "or", "xor") for elem in (s32, u32)},
    **{(op, s32): f"atomic_s{op}" for op in ("min", "max")},
    **{(op, u32): f"atomic_u{op}" for op in ("min", "max")},
}


def _message(
    kind: str, port: str, form: str, busy: int, *, address_bits: int = 32, block: bool = True, window: str = ""
) -> Message:
    """Return the row of a load, store or atomic operation; `form` is the text after the port, such as d32x2.a64."""
    stores = kind not in ("load", "load_block2d")
    return Message(
        f"{kind}.{port}.{form}",
        Unit.SHARED if port == "slm" else Unit.GLOBAL,
        _TOKEN_LATENCY[port],
        busy,
        holds=0 if window else _HOLDS[port],
        sources=(Role("address", "v"), Role("data", "v")) if stores else (Role("address", "v"),),
        port=port,
        block=block,
        address_bits=address_bits,
        stores=stores,
        returns=kind in GLOBAL_ATOMICS.values(),
        window=window,
    )


@cache
def message(kind: str, port: str, lane_bytes: int) -> Message:
    """Return the row of a load, store or atomic operation of `lane_bytes` bytes a lane.

    Addresses have 64 bits in global memory ("ugm"), 32 in shared local memory ("slm"). Names follow IGA's load and
    store text.
    """
    bits = 64 if port == "ugm" else 32
    caches = "" if port == "slm" else {"load": ".ca.ca", "store": ".wb.wb"}.get(kind, ".uc.wb")
    form, busy = f"{_VECTORS[lane_bytes]}.a{bits}{caches}", max(1, lane_bytes // 4)
    return _message(kind, port, form, busy, address_bits=bits, block=False)


@cache
def block_message(kind: str, size: int) -> Message:
    """Return the row of a load or store of `size` adjacent bytes of shared local memory, up to 512."""
    elements, width = (size // 8, 64) if size > 256 else (size // 4, 32)
    return _message(kind, "slm", f"d{width}x{elements}t.a32", max(1, size // 128))


_ORDERS = {RectangleOrder.ROWS: "", RectangleOrder.ROW_A_LANE: "t", RectangleOrder.COLUMN_A_LANE: "v"}


@cache
def plane_message(kind: str, grain: int, order: RectangleOrder) -> Message:
    """Return the row of a two-dimensional load or store of elements of `grain` bytes; the payload has the rest.

    Columns of dwords need no rearrangement; narrower columns are packed ("v"). Stores never rearrange.
    """
    stores = kind == "store"
    rearranged = "" if stores or (grain == 4 and order is RectangleOrder.COLUMN_A_LANE) else _ORDERS[order]
    return _message(f"{kind}_block2d", "ugm", f"d{8 * grain}{rearranged}.a64.{'wb.wb' if stores else 'ca.ca'}", 8)


@cache
def load_arguments(dwords: int) -> Message:
    """Return the row of a load of cross-thread data: 32-bit addresses in the window of binding table entry 255."""
    return _message("load", "ugm", f"d32x{dwords}t.a32.ca.ca", 1, window="bti[255]")


@cache
def dpas(name: str, clocks: int) -> Opcode:
    """Return the row of a matrix instruction of systolic depth 8 that takes `clocks`."""
    return Opcode(
        name,
        Unit.MATRIX,
        _TOKEN_LATENCY["dpas"],
        clocks // _SLOT_CLOCKS,
        early_clobber=True,
        port="dpas",
        results=(Role("d", "v"),),
        sources=(Role("c", "v"), Role("a", "v"), Role("b", "v")),
    )
