"""The state of subgroups that run in step: their variables and the memory they access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convgen.ir.evaluate import Array, Evaluator, Mask, SurfaceValue, Value, coordinates
from convgen.ir.expr import Expr, Var
from convgen.ir.interp_shared import Accessors, SharedTile
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.program import Kernel
from convgen.ir.simplify.extents import value_of
from convgen.ir.sizes import Extent

_BUFFER_SPACING = 40  #: log2 of the bytes between the addresses of two buffers: no buffer is as long

Group = tuple[int, int, int]  # a workgroup's place in the grid

#: Atomic operations by name; min and max ignore a NaN operand.
_COMBINED: dict[str, np.ufunc] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def picked(data: Array, at: Array, exists: Mask) -> Array:
    """Return the elements `at` of an array, zero where they do not exist; the array may be empty."""
    zero = np.zeros((), data.dtype)
    return np.where(exists, data[at] if data.size else zero, zero)


class Lanes:
    """All lanes of some subgroups, concatenated. `interp_tiles` and `interp_messages` define the statements."""

    def __init__(
        self,
        k: Kernel,
        members: Sequence[tuple[Group, int]],
        values: Mapping[Var, int],
        memory: Mapping[Global, Array],
        shared: Mapping[Shared, SharedTile],
    ) -> None:
        self.numbers = tuple(number for _, number in members)
        self.subgroups = k.subgroups  # in a workgroup
        self.memory, self.shared = memory, shared
        self.bases = {buffer: n << _BUFFER_SPACING for n, buffer in enumerate(memory, 1)}
        self.ev = Evaluator(k.width, self.bases, self.numbers)
        self.overwritten: list[tuple[Array, Array, Array]] = []  # (memory, places, overwritten elements), oldest first
        number = np.repeat(self.numbers, k.width)
        group = np.arange(len(number)) // k.width // k.subgroups
        self.accessors = Accessors(group, [(n, np.flatnonzero(number == n)) for n in sorted({*self.numbers})])
        self.sizes = values
        for var, value in values.items():
            self.bind(var, self.ev.full(var.type, value))
        for var, of in zip((*k.group_ids, k.subgroup), (*zip(*(place for place, _ in members)), self.numbers)):
            self.bind(var, Value(np.repeat(np.array(of, var.type.elem.numpy), k.width)))

    def bind(self, var: Var, value: Value | SurfaceValue) -> None:
        self.ev.env[var] = value

    def integers(self, e: Expr, what: str) -> Array:
        """Return the exact integers of all lanes, for an address."""
        return self.ev(e).defined(what).astype(np.int64)

    def coordinates(self, layout: Fragment) -> tuple[Array, ...]:
        """Return the coordinates along each dim of `layout`, `[lanes, registers]` each."""
        return coordinates(layout, self.numbers, self.ev.width)

    def extent(self, e: Extent) -> int:
        """Return the value of an extent in this launch."""
        return value_of(e, self.sizes)

    def elements(self, memory: Global) -> Array:
        """Return a buffer as an array of its elements; read-only for 4-bit elements."""
        data = self.memory[memory]
        if memory.elem.bits == 4:
            return np.stack((data & 0xF, data >> 4), axis=1).reshape(-1).view(memory.elem.numpy)  # a copy: read-only
        return data[: len(data) // memory.elem.bytes * memory.elem.bytes].view(memory.elem.numpy)

    def read(self, memory: Global, at: Array, exists: Mask) -> Value:
        """Return the elements `at` of a buffer, zero where they do not exist."""
        return Value(picked(self.elements(memory), at, exists))

    def put(self, memory: Array, places: Array, data: Array, op: str = "") -> None:
        """Store `data` at `places` of a memory, or combine it by the atomic operation `op` with the elements there."""
        self.overwritten.append((memory, places, memory[places]))
        if op:
            _COMBINED[op].at(memory, places, data)
        else:
            memory[places] = data
