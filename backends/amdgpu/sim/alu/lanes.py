"""Moving data between lanes and parts of words: DPP controls and SDWA selectors (CDNA3 ISA, "SDWA", "DPP")."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import Move
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Run, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools

_LANE = np.arange(64)
_ROW, _IN_ROW = _LANE // 16 * 16, _LANE % 16


def dpp_source_lanes(instruction: Instruction) -> Array:
    """Return the lane that DPP reads for each lane, -1 where the control points outside."""
    modifiers = instruction.modifiers
    if "quad_perm" in modifiers:
        order = np.array([int(item) for item in modifiers["quad_perm"].strip("[]").split(",")])
        result: Array = _LANE // 4 * 4 + order[_LANE % 4]
        return result
    if "row_shl" in modifiers:
        at = _IN_ROW + instruction.number("row_shl")
        return np.where(at < 16, _ROW + at, -1)
    if "row_shr" in modifiers:
        at = _IN_ROW - instruction.number("row_shr")
        return np.where(at >= 0, _ROW + at, -1)
    if "row_ror" in modifiers:
        return _ROW + (_IN_ROW - instruction.number("row_ror")) % 16
    if "row_newbcast" in modifiers:
        return _ROW + instruction.number("row_newbcast")
    if "row_bcast" in modifiers:
        last = instruction.number("row_bcast")
        return np.where(last < _LANE, _LANE // (last + 1) * (last + 1) - 1, -1)
    fixed = {
        "wave_shl": np.append(_LANE[1:], -1),
        "wave_shr": np.append(-1, _LANE[:-1]),
        "wave_rol": np.roll(_LANE, -1),
        "wave_ror": np.roll(_LANE, 1),
        "row_mirror": _ROW + 15 - _IN_ROW,
        "row_half_mirror": _LANE // 8 * 8 + 7 - _LANE % 8,
    }
    for key, lanes in fixed.items():
        if key in modifiers:
            return lanes
    raise unsupported(instruction, "DPP control")


class Dpp:
    """One DPP control: moves the first source between lanes and narrows the lanes that are written."""

    def __init__(self, instruction: Instruction) -> None:
        source = dpp_source_lanes(instruction)
        self.inside: Bools = source >= 0
        self.source = np.where(self.inside, source, 0)
        self.zero_outside = "bound_ctrl" in instruction.modifiers
        rows, banks = instruction.number("row_mask", 0xF), instruction.number("bank_mask", 0xF)
        self._valid_now: Bools = np.ones((1, 64), np.bool_)
        self.enabled: Bools = ((rows >> (_LANE // 16)) & 1 & (banks >> (_LANE % 16 // 4))) != 0

    def valid(self, exec_: Bools) -> Bools:
        """Return the lanes whose source lane exists and is active."""
        return self.inside & exec_[:, self.source]

    def move(self, g: WaveGroup, raw: Array) -> Array:
        """Return the words that lanes read, 0 where there is no source."""
        return np.where(self._valid_now, raw[:, self.source], np.zeros((), raw.dtype))

    def wrap(self, run: Run) -> Run:
        """Return `run` with EXEC narrowed to the lanes that DPP writes."""

        def narrowed(g: WaveGroup) -> None:
            before, full = g.exec, g.exec_full
            self._valid_now = self.valid(before)
            lanes = before & self.enabled
            g.exec = lanes if self.zero_outside else lanes & self._valid_now
            g.exec_full = bool(g.exec.all())
            try:
                run(g)
            finally:
                g.exec, g.exec_full = before, full

        return narrowed


#: SDWA selectors: (shift, bits).
SELECTORS = {**{f"BYTE_{n}": (8 * n, 8) for n in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32)}


def sdwa_select(selector: str, *, sign_extend: bool) -> Move | None:
    """Return a function that picks a byte or half of each word; None for the whole word."""
    shift, bits = SELECTORS[selector]
    if bits == 32:
        return None
    left, right = 32 - bits - shift, 32 - bits
    if sign_extend:
        return lambda g, raw: ((raw << np.uint32(left)).view(np.int32) >> right).view(np.uint32)
    return lambda g, raw: (raw << np.uint32(left)) >> np.uint32(right)


def sdwa_merge(selector: str, unused: str, value: Array, old: Array) -> Array:
    """Return a word with a result in the selected part; the rest is cleared, sign-extended or kept."""
    shift, bits = SELECTORS[selector]
    if bits == 32:
        return value
    mask = np.uint32(((1 << bits) - 1) << shift)
    placed = (value << np.uint32(shift)) & mask
    if unused == "UNUSED_PRESERVE":
        return placed | (old & ~mask)
    if unused == "UNUSED_SEXT":
        spare = 32 - bits - shift
        extended = ((placed << np.uint32(spare)).view(np.int32) >> spare).view(np.uint32)
        return extended & ~np.uint32((1 << shift) - 1)
    return placed
