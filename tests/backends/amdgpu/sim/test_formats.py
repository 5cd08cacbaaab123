"""Typed buffer loads and stores: every data format with every kind of numbers, by fractions and `struct`."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

UNORM, SNORM, USCALED, SSCALED, UINT, SINT, FLOAT = NUMBERS = (0, 1, 2, 3, 4, 5, 7)
#: Bits of the components from the lowest on, by the format's name, which begins with the highest.
FORMATS = {
    1: "8",
    2: "16",
    3: "8_8",
    4: "32",
    5: "16_16",
    6: "10_11_11",
    7: "11_11_10",
    8: "10_10_10_2",
    9: "2_10_10_10",
    10: "8_8_8_8",
    11: "32_32",
    12: "16_16_16_16",
    13: "32_32_32",
    14: "32_32_32_32",
}
RNG = np.random.default_rng(31)


def components(data: int) -> list[int]:
    return [int(bits) for bits in reversed(FORMATS[data].split("_"))]


def f32(value: Fraction | float) -> int:
    return int(np.float32(float(value)).view(np.uint32))


def meaning(field: int, bits: int, numbers: int) -> int:
    """The word that a register holds."""
    signed = field - (1 << bits) if field >> (bits - 1) else field
    if numbers == FLOAT:
        if bits == 32:
            return field
        return f32(struct.unpack("<e", struct.pack("<H", field << (15 - bits) if bits < 16 else field))[0])
    if numbers in (UINT, SINT):
        return (signed if numbers == SINT else field) & 0xFFFFFFFF
    if numbers == UNORM:
        return f32(Fraction(field, (1 << bits) - 1))
    if numbers == SNORM:
        return f32(max(Fraction(signed, (1 << (bits - 1)) - 1), Fraction(-1)))
    return f32(signed if numbers == SSCALED else field)


def cases() -> list[tuple[int, int]]:
    """Data formats with kinds of numbers: of floats those of 32, 16, 11 and 10 bits, of 32 bits no fractions."""
    known = [(data, numbers) for data in FORMATS for numbers in NUMBERS]
    floats = (2, 4, 5, 6, 7, 11, 12, 13, 14)
    return [(d, n) for d, n in known if (d in floats if n == FLOAT else n in (UINT, SINT) or 32 not in components(d))]


def field(words: list[int], at: int, bits: int) -> int:
    return sum(word << 32 * n for n, word in enumerate(words)) >> at & ((1 << bits) - 1)


def test_loads_and_stores(sim: Any) -> None:
    """A load of four components, and a store of what was loaded to another place: the bytes come back."""
    body = """s_load_dwordx4 s[4:7], s[0:1], 0x0
      v_lshlrev_b32_e32 v1, 4, v0
      s_waitcnt lgkmcnt(0)
      s_mov_b32 s8, s4
      s_and_b32 s9, s5, 0xffff
      s_movk_i32 s10, 0x400
      s_mov_b32 s11, 0x27000
      s_mov_b32 s12, s6
      s_and_b32 s13, s7, 0xffff
      s_mov_b32 s14, 0x200000
      s_mov_b32 s15, s11
      """
    for number, (data, numbers) in enumerate(cases()):
        form = f"format:{data | numbers << 4}"
        body += f"""s_mov_b32 s20, {2048 * number}
          tbuffer_load_format_xyzw v[4:7], v1, s[8:11], 0 {form} offen
          s_waitcnt vmcnt(0)
          buffer_store_dwordx4 v[4:7], v1, s[12:15], s20 offen
          s_nop 1
          """
        if (data, numbers) not in [(6, FLOAT), (7, FLOAT)]:
            body += f"tbuffer_store_format_xyzw v[4:7], v1, s[12:15], s20 {form} offen offset:1024\n"
    words = RNG.integers(0, 1 << 32, (64, 4), np.uint32) & np.uint32(0x3FCFB9FF)  # no infinities and NaNs
    out = np.zeros((len(cases()), 2, 64, 4), np.uint32)
    report = sim.run("gfx942", body, {"in": words, "out": out})
    assert not report.findings, str(report.findings[0])
    for number, (data, numbers) in enumerate(cases()):
        for lane in range(0, 64, 5):
            row, at, want = [int(word) for word in words[lane]], 0, []
            for bits in components(data):
                want.append(meaning(field(row, at, bits), bits, numbers))
                at += bits
            missing = [0, 0, 0, 1 if numbers in (UINT, SINT) else f32(1)]
            assert out[number, 0, lane].tolist() == want + missing[len(want) :], (FORMATS[data], numbers)
            if numbers != SNORM and (data, numbers) not in [(6, FLOAT), (7, FLOAT)]:  # two codes mean -1
                back = field([int(word) for word in out[number, 1, lane]], 0, at)
                assert back == field(row, 0, at), (FORMATS[data], numbers)


@pytest.mark.parametrize(
    ("word3", "want"),
    [
        (0x50000 | 0xFAC | 7 << 12, [0, 1, 2, 3]),
        (0x50000 | 0x7000 | 4 | 1 << 3 | 0 << 6 | 5 << 9, [0, -2, -1, 1]),
    ],
)
def test_formats_of_descriptors(sim: Any, word3: int, want: list[int]) -> None:
    """The descriptor says the format and which component, 0 or 1 goes where: here two halves, of four registers."""
    word3 = word3 & ~0x78000 | 5 << 15
    body = f"""s_load_dwordx4 s[4:7], s[0:1], 0x0
      v_lshlrev_b32_e32 v1, 2, v0
      v_lshlrev_b32_e32 v2, 4, v0
      s_waitcnt lgkmcnt(0)
      s_mov_b32 s8, s4
      s_and_b32 s9, s5, 0xffff
      s_movk_i32 s10, 0x100
      s_mov_b32 s11, {word3:#x}
      buffer_load_format_xyzw v[4:7], v1, s[8:11], 0 offen
      s_waitcnt vmcnt(0)
      global_store_dwordx4 v2, v[4:7], s[6:7]"""
    halves = RNG.normal(0, 1, (64, 2)).astype(np.float16)
    out = np.zeros((64, 4), np.float32)
    report = sim.run("gfx90a", body, {"in": halves, "out": out})
    assert not report.findings, str(report.findings[0])
    zero, one = np.zeros(64), np.ones(64)
    wide: dict[int, npt.NDArray[Any]] = {0: halves[:, 0], 1: halves[:, 1], -1: zero, -2: one, 2: zero, 3: one}
    np.testing.assert_array_equal(out, np.stack([wide[n] for n in want], axis=1).astype(np.float32))
