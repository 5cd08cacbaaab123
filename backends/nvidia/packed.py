"""Operations and conversions of whole words of narrow elements: f16 and bf16 in pairs, 8-bit floats in fours.

PTX ISA, "Half Precision Floating Point Instructions", "cvt". The upper half of a word with one element is undefined. So
are results computed from it, which no instruction reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.backends.nvidia.ptx import Writer
from convgen.ir import expr as x
from convgen.ir import floats
from convgen.ir.expr import Expr
from convgen.ir.types import Type, bf16, f8_e4m3, f8_e5m2, f16, f32

#: Operation -> mnemonic, without its type.
_OPERATIONS: Mapping[type[Expr], str] = {
    x.Add: "add.rn",
    x.Sub: "sub.rn",
    x.Mul: "mul.rn",
    x.Min: "min",
    x.Max: "max",
    floats.Fma: "fma.rn",
    floats.Neg: "neg",
    floats.Abs: "abs",
}
#: Operations on bf16 that every target has; sm_90 and later have `add`, `sub` and `mul` besides.
_OF_BF16 = (x.Min, x.Max, floats.Fma, floats.Neg, floats.Abs)
BYTES = {f8_e4m3: "e4m3x2", f8_e5m2: "e5m2x2"}  #: 8-bit floats -> their pairs in mnemonics


def operation(node: type[Expr], of: Type, *, bf16_sums: bool) -> str:
    """Return the instruction that computes an operation on pairs of elements of type `of`; empty if there is none.

    `bf16_sums` is whether the target adds and multiplies bf16.
    """
    name = _OPERATIONS.get(node, "")
    if of not in (f16, bf16) or (of is bf16 and not bf16_sums and node not in _OF_BF16):
        return ""
    return f"{name}.{of.name}x2" if name else ""


def halves(out: Writer, word: str) -> tuple[str, str]:
    """Return the 16-bit registers of a word, lowest first."""
    low, high = out.new("h"), out.new("h")
    out.emit(f"mov.b32 {{{low}, {high}}}, {word}")
    return low, high


def word_of(out: Writer, low: str, high: str) -> str:
    """Return the word of two 16-bit registers."""
    word = out.new()
    out.emit(f"mov.b32 {word}, {{{low}, {high}}}")
    return word


def convertible(of: Type, to: Type, *, saturate: bool) -> bool:
    """Return whether `convert` converts whole words of type `of` to type `to`."""
    if saturate:
        return of is f32 and to in BYTES
    return (of, to) in ((f32, f16), (f32, bf16), (f16, f32)) or (of in BYTES and to in (f16, f32))


def convert(out: Writer, of: Type, to: Type, words: Sequence[str], count: int) -> list[str]:
    """Return the words of `count` converted elements; elements of the last word beyond `count` are undefined."""
    if of in BYTES:
        quarters = [half for word in words for half in halves(out, word)][: -(-count // 2)]
        wide = [out.op(f"cvt.rn.f16x2.{BYTES[of]}", quarter) for quarter in quarters]
        return wide if to is f16 else convert(out, f16, f32, wide, count)
    if of is f16:
        return [out.op("cvt.f32.f16", half) for word in words for half in halves(out, word)][:count]
    pairs = list(zip(words[:count:2], [*words[1:count:2], *words[count - 1 : count]]))
    if to in (f16, bf16):
        return [out.op(f"cvt.rn.{to.name}x2.f32", high, low) for low, high in pairs]
    bytes_ = [out.op(f"cvt.rn.satfinite.{BYTES[to]}.f32", high, low, kind="h") for low, high in pairs]
    return [word_of(out, low, high) for low, high in zip(bytes_[::2], [*bytes_[1::2], bytes_[-1]])]
