"""Selection of element comparisons, of logic on their results, and of selects by them.

A variable holds a vector of bools as dwords, all ones where an element is true; a select by it turns them into flags. A
comparison of elements as wide as those that it selects sets the flags directly.
"""

from __future__ import annotations

from collections.abc import Callable

from convgen.backends.intel.byte_gather import UNSIGNED
from convgen.backends.intel.isa import Literal, region
from convgen.backends.intel.operands import Operands, Words, check, in_pairs, in_wider, is_constant, uniform
from convgen.backends.intel.operations import TYPES, WIDER
from convgen.backends.intel.scalars import CONDITIONS, SWAPPED
from convgen.backends.machine.instruction import Operand, Reg
from convgen.backends.machine.scalars import plain
from convgen.backends.machine.vectors import single_words
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.text import in_short
from convgen.ir.types import Kind, Type, f32, s32, u32

Flags = Callable[[int], Reg]  #: dword number -> flags of its elements

LOGIC: dict[type[Expr], str] = {x.And: "and", x.Or: "or", x.Xor: "xor"}


class Comparisons(Operands):
    """Evaluates comparisons of elements and logic on them, and selects by them."""

    def select(self, e: Expr) -> Reg:
        """Select elements, or whole dwords if one bool selects all."""
        assert isinstance(e, x.Select)
        elem = e.type.elem
        if elem.bits < 16 and elem in WIDER:
            a, b = (in_wider(c, WIDER[elem]) for c in (e.a, e.b))
            return self.tuple_of(self.value(x.Select(e.cond, a, b).to(e.type)))
        check(e.type)
        if elem is f32 and (tested := _comparison_with_zero(e.cond)) is not None:
            return self._select_by_zero(e, tested)
        width = 32 if isinstance(e.cond.type, Type) else elem.bits
        is_swapped = is_constant(e.a) and not is_constant(e.b)
        first, second = (e.b, e.a) if is_swapped else (e.a, e.b)
        chosen, otherwise = self.bits(first, width, last=False), self.bits(second, width, last=True)
        flags = self.flags(e.cond, width)
        dst, into = self.result(e.type)
        kind, modifiers = UNSIGNED[width // 8], ("unless",) if is_swapped else ()
        for pair in in_pairs(into):
            pair_flags = [flags(n) for n, _ in pair]
            for flag, (n, to) in zip(pair_flags, pair):
                self.element_op("sel", region(to, kind), chosen(n), otherwise(n), predicate=flag, modifiers=modifiers)
        return dst

    def _select_by_zero(self, e: x.Select, tested: x.Comparison) -> Reg:
        """Compare with zero and select in one instruction."""
        condition, kind, numbers, _ = self._comparison(tested)
        chosen, otherwise = (self.typed(c, last=False) for c in (e.a, e.b))
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.element_op("csel", region(to, kind), chosen(n), otherwise(n), numbers(n), condition=condition)
        return dst

    # ------------------------------------------------------------ flags

    def flags(self, cond: Expr, width: int) -> Flags:
        """Return the flags of a bool, or of a vector of bools that selects elements of `width` bits."""
        if isinstance(cond.type, Type):
            one = self.scalars.mask(cond)
            return lambda n: one
        cond = plain(cond)
        if isinstance(cond, x.Comparison) and cond.a.type.elem.bits == width and cond.a.type.elem not in WIDER:
            return self._compared(cond)
        kind = UNSIGNED[width // 8]
        words = self.masks(cond, width)
        return lambda n: self.compare("ne", kind, region(words[n], kind), Literal(0, kind))

    def compared(self, e: x.Comparison) -> Reg:
        """Return the flags of a comparison of one element a lane, each in its own dword."""
        elem = e.a.type.elem
        wide = f32 if elem.is_float else s32 if elem.kind is Kind.SIGNED else u32
        return self._compared(type(e)(in_wider(e.a, wide), in_wider(e.b, wide)))(0)

    def _compared(self, e: x.Comparison) -> Flags:
        condition, kind, a, b = self._comparison(e)
        return lambda n: self.compare(condition, kind, a(n), b(n))

    def _comparison(self, e: x.Comparison) -> tuple[str, str, Words, Words]:
        """Return the condition, type and operands of a comparison."""
        first, second, condition = e.a, e.b, CONDITIONS[type(e)]
        if is_constant(first):
            first, second, condition = second, first, SWAPPED[condition]
        a, b = self.operand(first, last=False), self.operand(second, last=True)
        return condition, TYPES[e.a.type.elem], a, b

    def compare(self, condition: str, kind: str, a: Operand, b: Operand, into: Reg | None = None) -> Reg:
        """Compare the elements in a dword of each lane; return flags. `into` gets all ones or zeros in each element."""
        dst = None if into is None else region(into, kind)
        return self.out.compare(condition, kind, a, b, self.lanes(kind), dst)

    # ------------------------------------------------------------ masks

    def masks(self, e: Expr, width: int) -> list[Reg]:
        """Return the dwords of a vector of bools: all ones or zeros in elements of `width` bits."""
        e = plain(e)
        match e:
            case x.Comparison():
                return self._compared_masks(e, width)
            case x.And() | x.Or() | x.Xor():
                pairs = zip(self.masks(e.a, width), self.masks(e.b, width))
                return [self._logic(LOGIC[type(e)], *pair) for pair in pairs]
            case x.Not(a):
                return [self._logic("not", word) for word in self.masks(a, width)]
        return self._widened_masks(self._masks_of_bools(e), 32, width)

    def _masks_of_bools(self, e: Expr) -> list[Reg]:
        """Return a dword for each bool of a variable, slice, shuffle, splat or uniform."""
        match e:
            case x.Var():
                return single_words(self.value(e))
            case x.Slice(a, start, count):
                return self.masks(a, 32)[start : start + count]
            case x.Shuffle(a, order):
                masks = self.masks(a, 32)
                return [masks[i] for i in order]
            case x.Splat(_, a):
                return [self.spread(self.scalars.mask(a))] * e.type.lanes
            case x.Uniform(a):
                return self.masks(a, 32)
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a comparison or logic: {in_short(e)}")

    def spread(self, flag: Reg) -> Reg:
        """Return a register with all ones in the lanes of the flags, else zeros."""
        dst = self.out.new("v")
        self.out.fill(dst, Literal(0, "ud"))
        self.element_op("mov", region(dst, "d"), Literal(-1, "d"), predicate=flag)
        return dst

    def _logic(self, name: str, *words: Reg) -> Reg:
        dst = self.out.new("v")
        self.element_op(name, region(dst, "ud"), *(region(w, "ud") for w in words))
        return dst

    def _compared_masks(self, e: x.Comparison, width: int) -> list[Reg]:
        """Compare at the operands' width, then convert the masks to `width`."""
        wide = WIDER.get(e.a.type.elem)
        if wide is not None:
            e = type(e)(in_wider(e.a, wide), in_wider(e.b, wide))
        condition, kind, a, b = self._comparison(e)
        _, into = self.result(e.a.type)
        for n, to in enumerate(into):
            self.compare(condition, kind, a(n), b(n), to)
        return self._widened_masks(into, e.a.type.elem.bits, width)

    def _widened_masks(self, words: list[Reg], of: int, width: int) -> list[Reg]:
        """Convert masks from width `of` to another width."""
        if of == width:
            return words
        if width == 32:
            return [self.side_by_side("d", region(w, "w", part, 2)) for w in words for part in (0, 1)]
        even = [*words, *words[-1:]] if len(words) % 2 else words
        pairs = zip(even[::2], even[1::2])
        return [self.side_by_side("uw", *(region(w, "uw", 0, 2) for w in pair)) for pair in pairs]


def _comparison_with_zero(cond: Expr) -> x.Comparison | None:
    """Return the comparison if it compares f32 elements with zero, else None."""
    cond = plain(cond)
    if not isinstance(cond, x.Comparison) or isinstance(cond.type, Type) or cond.a.type.elem is not f32:
        return None
    zero = uniform(cond.a if is_constant(cond.a) else cond.b)
    return cond if isinstance(zero, x.Const) and zero.value == 0 else None
