"""Views of 4-bit elements as views of bytes: a 4-bit element has no address of its own, a pair has.

Pairs are neighbours along the view's unit axis, along which everything counts pairs: the innermost dim, the tile's
coordinate, the fragment's digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.expr import Add, Const, Expr, Mul, Var, const
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, SizedView, TensorDim, View, stride
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve
from convgen.ir.types import u8


@lru_cache(maxsize=2**10)
def pairs_of(view: View) -> tuple[View, int] | None:
    """Return the view with pairs as elements, and the axis along which they count; None if there is none."""
    if isinstance(view, SizedView) or not view.layout.is_plain:
        return None
    innermost = enumerate(dims[-1] for dims in view.axes)
    axis = next((n for n, d in innermost if d.size > 1 and stride(view.layout, view.index, d.name) == 1), None)
    if axis is None:
        return None
    unit = view.axes[axis][-1]
    index = [_halved(t, unit) if unit.name in dict(t.terms) else t for t in view.index]
    alone = [t.size == 1 or unit.name in dict(t.terms) for t in view.index]
    strides = [s if own else s / 2 for own, s in zip(alone, view.layout.strides())]
    if unit.size % 2 or unit.padded % 2 or None in index or any(s != int(s) for s in strides):
        return None
    whole = [t for t in index if t is not None]
    layout = Layout.strided((t.size for t in whole), [int(s) for s in strides])
    pairs = evolve(unit, size=unit.size // 2, padded=unit.padded // 2)
    axes = tuple((*dims[:-1], pairs) if n == axis else dims for n, dims in enumerate(view.axes))
    memory = Global(view.memory.name, u8, view.memory.bytes)
    return View(memory, layout, axes, tuple(whole)), axis


def check_pairs(view: View) -> None:
    """Raise Unsupported for a view of 4-bit elements that do not form pairs."""
    if view.memory.elem.bits == 4 and pairs_of(view) is None:
        given = f"given {view.memory.name} of {view.memory.elem}"
        if view.layout.is_plain:
            given += f" with strides {'x'.join(map(str, view.layout.strides()))}"
            wanted = "wanted an even number along a dimension of stride 1, and even strides along all others"
        else:
            given, wanted = f"{given} in the layout {view.layout.tag}", "wanted one without blocks"
        raise Unsupported(f"{given}, {wanted}", rule="nibbles")


def check_halves(view: View, layout: Fragment) -> None:
    """Raise DoesNotFit if lanes that load a view in that layout would take one element of a pair."""
    if view.memory.elem.bits != 4:
        return
    pairs = pairs_of(view)
    if pairs is None:
        raise DoesNotFit(f"{view.memory.name} of {view.memory.elem} has no pairs along any axis")
    whole = layout.over(len(view.axes))
    halved_fragment(whole, whole.dims[pairs[1]])


def halved_fragment(layout: Fragment, dim: str) -> Fragment:
    """Return a fragment whose registers hold pairs along a dim. Raises DoesNotFit if they do not form pairs."""
    first = next((d for d in layout.digits if d.dim == dim and d.size > 1), None)
    if first is None or first.space != Space.REGISTER or first.stride != 1 or first.size % 2:
        raise DoesNotFit(f"no pairs of neighbours along {dim} in the registers of a fragment {layout}")
    digits = [evolve(d, size=d.size // 2) if d is first else _further(d) for d in layout.digits]
    return evolve(layout, digits=tuple(d for d in digits if d.size > 1))


def half(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return half of an even coordinate; `values` are the lets in scope."""
    match e:
        case Const(dtype, bits) if bits % 2 == 0:
            return const(bits // 2, dtype)
        case Mul(a, Const(dtype, bits)) if bits % 2 == 0:
            return a if bits == 2 else a * const(bits // 2, dtype)
        case Add(a, b):
            return half(a, values) + half(b, values)
        case Var() if e in values:
            return half(values[e], values)
    return e // 2


def _halved(t: TensorDim, unit: Dim) -> TensorDim | None:
    """Return the coordinate in pairs; None if it splits pairs."""
    others = [(name, coef) for name, coef in t.terms if name != unit.name]
    if t.size % 2 or t.const % 2 or any(coef % 2 for _, coef in others):
        return None
    terms = tuple((name, coef if name == unit.name else coef // 2) for name, coef in t.terms)
    return evolve(t, size=t.size // 2, terms=terms, const=t.const // 2)


def _further(d: Digit) -> Digit:
    """Return a digit behind the first one; register strides are halved."""
    return evolve(d, stride=d.stride // 2) if d.space == Space.REGISTER else d
