"""Instructions as restrictions see them: the bytes of each operand's lanes, and the types of the computation."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from convgen.backends.intel.sim.decode import EACH_ROW, Instruction, Operand, Region
from convgen.backends.intel.sim.operands import FLOATS, element_bytes
from convgen.backends.intel.sim.step import Context
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

INTEGERS = frozenset(("b", "ub", "w", "uw", "d", "ud", "q", "uq"))
VECTORS = frozenset(("v", "uv", "vf"))  #: immediates that hold a number a lane


@frozen(eq=False)
class Area:
    """One operand of an instruction of `lanes` lanes; bytes count from the start of the operand's register."""

    operand: Operand
    lanes: int
    grf: int
    destination: bool

    @property
    def type(self) -> str:
        return self.operand.type

    @property
    def size(self) -> int:
        """Return the bytes of an element."""
        return self.operand.size

    @cached_property
    def region(self) -> Region:
        """Return the operand's region, by default that of packed elements."""
        packed = Region(0, 0, 1) if self.destination else Region(1, 1, 0)
        return self.operand.region or packed

    @property
    def is_register(self) -> bool:
        """Return whether lanes are read or written in general registers or accumulators at a known place."""
        return self.operand.kind == "reg" and self.operand.file in ("r", "acc")

    @property
    def is_null(self) -> bool:
        return self.operand.kind == "null"

    @property
    def is_immediate(self) -> bool:
        return self.operand.kind == "imm"

    @property
    def each_row(self) -> bool:
        """Return whether every row has an address of its own (the manuals' Vx1 and VxH)."""
        return not self.destination and self.region.vertical == EACH_ROW

    @property
    def start(self) -> int:
        """Return the first byte, in the register that the operand names."""
        return self.operand.sub * self.size if self.operand.kind in ("reg", "null") else 0

    @cached_property
    def places(self) -> Array:
        """Return the first byte of each lane's element."""
        return element_bytes(self.operand, self.lanes, self.start, destination=self.destination)

    @property
    def registers(self) -> int:
        """Return the number of registers that the bytes from the first to the last element touch."""
        return int((self.places.max() + self.size - 1) // self.grf - self.places.min() // self.grf) + 1

    @property
    def is_scalar(self) -> bool:
        """Return whether all lanes read one element."""
        region = self.region
        return not self.destination and (region.vertical, region.width, region.horizontal) == (0, 1, 0)

    @cached_property
    def stride(self) -> int | None:
        """Return the bytes from each lane to the next; None where they differ."""
        if self.destination:
            return self.region.horizontal * self.size
        steps = np.unique(np.diff(self.places))
        return int(steps[0]) if len(steps) == 1 else 0 if not len(steps) else None

    @property
    def is_packed(self) -> bool:
        return self.stride == self.size


@frozen(eq=False)
class Operation:
    """An instruction that computes, on a platform."""

    instruction: Instruction
    context: Context
    dst: Area | None
    sources: tuple[Area, ...]

    @classmethod
    def of(cls, instruction: Instruction, context: Context) -> Operation:
        """Return an instruction's operands as areas."""
        lanes, grf = instruction.exec_size, context.layout.grf
        dst = None if instruction.dst is None else Area(instruction.dst, lanes, grf, True)
        return cls(instruction, context, dst, tuple(Area(o, lanes, grf, False) for o in instruction.sources))

    @property
    def op(self) -> str:
        return self.instruction.op

    @property
    def lanes(self) -> int:
        return self.instruction.exec_size

    @property
    def grf(self) -> int:
        return self.context.layout.grf

    @property
    def native_lanes(self) -> int:
        """Return the lanes of 32 bits that fill a register (IGC: native execution size)."""
        return self.grf // 4

    @cached_property
    def types(self) -> frozenset[str]:
        """Return the types of all operands."""
        areas = self.sources if self.dst is None else (self.dst, *self.sources)
        return frozenset(area.type for area in areas if area.type)

    @cached_property
    def execution_size(self) -> int:
        """Return the bytes of the type that is computed in: the widest source, bytes as words, hf beside f as f."""
        sizes = [max(area.size, 2) for area in self.sources if area.type]
        return max(sizes, default=0 if self.dst is None or not self.dst.type else self.dst.size)

    @property
    def is_raw_move(self) -> bool:
        """Return whether bits are copied: a move between equal types, signs aside, without modifiers."""
        if self.op != "mov" or self.dst is None or self.dst.operand.saturate:
            return False
        source = self.sources[0]
        if source.operand.negate or source.operand.absolute or source.type in VECTORS:
            return False
        return self.dst.type.lstrip("u") == source.type.lstrip("u")

    @property
    def multiplies_dwords(self) -> bool:
        """Return whether two 32-bit integers are multiplied, for which the rules of 64-bit operations hold."""
        return self.op == "mul" and all(source.type in ("d", "ud") for source in self.sources)

    @cached_property
    def is_long(self) -> bool:
        """Return whether the manuals' rules for 64-bit operations apply."""
        return self.execution_size == 8 or (self.dst is not None and self.dst.size == 8) or self.multiplies_dwords

    @cached_property
    def mixes_halves(self) -> bool:
        """Return whether hf and f are mixed."""
        return {"hf", "f"} <= self.types

    @property
    def converts_halves(self) -> bool:
        """Return whether this is a move between f and packed hf, which has rules of its own."""
        if self.op != "mov" or self.dst is None or not self.mixes_halves:
            return False
        half = self.dst if self.dst.type == "hf" else self.sources[0]
        return not half.is_immediate and half.is_packed

    @cached_property
    def is_float(self) -> bool:
        """Return whether the destination is floating point (bf aside, which has rules of its own)."""
        return self.dst is not None and self.dst.type in FLOATS - {"bf"}
