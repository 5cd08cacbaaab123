"""Selection of exchanges between lanes: DPP in rows of 16 lanes, else the LDS crossbar, which uses no LDS memory.

The instruction depends on the lanes read, if they follow from the lane's own number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from convgen.backends.amdgpu.scalars import AmdScalars
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.lanes import lanes_read
from convgen.ir.expr import Expr
from convgen.ir.simplify.simplify import simplify

if TYPE_CHECKING:
    from convgen.ir.evaluate import Array

_LANE = np.arange(WAVE)
#: lanes; size of the groups within which quad_perm, a row control, or ds_swizzle moves
_QUAD, _ROW, _CROSSBAR = 4, 16, 32
_ALL_LANES = ("row_mask:0xf", "bank_mask:0xf")


def from_lanes(scalars: AmdScalars, words: Sequence[Reg], lane: Expr) -> Reg:
    """Return a tuple of the words of lanes `lane`."""
    out = scalars.out
    dst = out.new("v", len(words))
    lanes = lanes_read(lane, WAVE, scalars.lets)
    controls = None if lanes is None else _controls(lanes)
    pattern = None if lanes is None else _pattern(np.array(lanes))
    address: Operand = Imm(0)
    if controls is None and pattern is None:
        address = out.move_to_vector(scalars.value(simplify(lane * 4)))
    for n, word in enumerate(words):
        source, into = out.move_to_vector(word), dst.words(n, 1)
        if controls is not None:
            for control in controls[:-1]:
                source = out.valu("v_mov_b32_dpp", source, modifiers=(control, *_ALL_LANES))
            out.valu("v_mov_b32_dpp", source, into=into, modifiers=(controls[-1], *_ALL_LANES))
        elif pattern is not None:
            out.emit("ds_swizzle_b32", (into,), (source,), modifiers=(f"offset:{pattern}",))
        else:
            out.emit("ds_bpermute_b32", (into,), (address, source))
    return dst


@lru_cache(maxsize=2**8)
def _controls(lanes: tuple[int, ...]) -> tuple[str, ...] | None:
    """Return the DPP controls that move lanes in this pattern, in order (CDNA3 ISA 12.14.3); None if there are none."""
    wanted, quad, row = np.array(lanes), _LANE % _QUAD, _LANE % _ROW
    if np.array_equal(wanted, _LANE - quad + wanted[:_QUAD][quad] % _QUAD):
        return (f"quad_perm:[{','.join(map(str, lanes[:_QUAD]))}]",)
    in_rows: dict[tuple[str, ...], Array] = {
        ("row_mirror",): 15 - row,
        ("row_half_mirror",): row ^ 7,
        ("row_half_mirror", "quad_perm:[3,2,1,0]"): row ^ 4,
        **{(f"row_ror:{n}",): (row - n) % _ROW for n in range(1, _ROW)},
        **{(f"row_newbcast:{n}",): np.full(WAVE, n) for n in range(_ROW)},
    }
    return next((names for names, moved in in_rows.items() if np.array_equal(wanted, _LANE - row + moved)), None)


def _pattern(lanes: Array) -> int | None:
    """Return the ds_swizzle offset (bit mode: keep, set, flip) for this pattern of lanes; None if none fits."""
    keep = flip = 0
    for bit in (1, 2, 4, 8, 16):
        keep |= bit & (lanes[0] ^ lanes[bit])
        flip |= bit & lanes[0]
    within = _LANE % _CROSSBAR
    moves = np.array_equal(lanes, _LANE - within + (within & keep ^ flip))
    return int(keep | flip << 10) if moves else None
