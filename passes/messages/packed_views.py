"""Views of elements of fewer than 8 bits as views of the bytes that pack them: such an element has no address.

Bytes pack neighbours along the view's unit axis, two of 4 bits in a byte or four of 6 bits in three bytes. Along that
axis everything counts bytes: the innermost dim, the tile's coordinate, the fragment's digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd

from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.expr import Add, Const, Expr, Mul, Var, const
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, SizedView, TensorDim, View, stride
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, u8

_BYTE = 8  #: bits


@frozen
class Run:
    """The fewest neighbours that make whole bytes."""

    elements: int
    bytes: int

    @classmethod
    def of(cls, elem: Type) -> Run:
        """Return the run of an element type of at most 8 bits."""
        shared = gcd(elem.bits, _BYTE)
        return cls(_BYTE // shared, elem.bits // shared)

    def counts(self, *numbers: int) -> bool:
        """Return whether numbers of elements are whole runs."""
        return not any(number % self.elements for number in numbers)

    def in_bytes(self, number: int) -> int:
        """Return the bytes of some elements, which must be whole runs."""
        return number // self.elements * self.bytes


@lru_cache(maxsize=2**10)
def bytes_of(view: View) -> tuple[View, int] | None:
    """Return the view with bytes as elements, and the axis along which they count; None if there is none."""
    if isinstance(view, SizedView) or not view.layout.is_plain:
        return None
    innermost, run = enumerate(dims[-1] for dims in view.axes), Run.of(view.memory.elem)
    axis = next((n for n, d in innermost if d.size > 1 and stride(view.layout, view.index, d.name) == 1), None)
    if axis is None:
        return None
    unit = view.axes[axis][-1]
    index = [_in_bytes(t, unit, run) if unit.name in dict(t.terms) else t for t in view.index]
    further = [0 if t.size == 1 or unit.name in dict(t.terms) else s for t, s in zip(view.index, view.layout.strides())]
    if None in index or not run.counts(unit.size, unit.padded, *further):
        return None
    whole = [t for t in index if t is not None]
    strides = [run.in_bytes(n) if n else s for n, s in zip(further, view.layout.strides())]
    layout = Layout.strided((t.size for t in whole), strides)
    own = evolve(unit, size=run.in_bytes(unit.size), padded=run.in_bytes(unit.padded))
    axes = tuple((*dims[:-1], own) if n == axis else dims for n, dims in enumerate(view.axes))
    memory = Global(view.memory.name, u8, view.memory.bytes)
    return View(memory, layout, axes, tuple(whole)), axis


def check_whole_bytes(view: View) -> None:
    """Raise Unsupported for a view of elements of fewer than 8 bits of which no run makes whole bytes."""
    if view.memory.elem.bits >= _BYTE or bytes_of(view) is not None:
        return
    given = f"given {view.memory.name} of {view.memory.elem}"
    if view.layout.is_plain:
        given += f" with strides {'x'.join(map(str, view.layout.strides()))}"
        count = Run.of(view.memory.elem).elements
        number, steps = (
            ("an even number", "even") if count == 2 else (f"a multiple of {count}", f"multiples of {count} as")
        )
        wanted = f"wanted {number} along a dimension of stride 1, and {steps} strides along all others"
    else:
        given, wanted = f"{given} in the layout {view.layout.tag}", "wanted one without blocks"
    raise Unsupported(f"{given}, {wanted}", rule="nibbles")


def check_halves(view: View, layout: Fragment) -> None:
    """Raise DoesNotFit if lanes that load a view in that layout would take one element of a pair."""
    if view.memory.elem.bits != 4:
        return
    pairs = bytes_of(view)
    if pairs is None:
        raise DoesNotFit(f"{view.memory.name} of {view.memory.elem} has no pairs along any axis")
    whole = layout.over(len(view.axes))
    fragment_of_bytes(whole, whole.dims[pairs[1]], view.memory.elem)


def fragment_of_bytes(layout: Fragment, dim: str, elem: Type) -> Fragment:
    """Return a fragment whose registers hold bytes along a dim; DoesNotFit if its elements make no whole bytes."""
    run = Run.of(elem)
    first = next((d for d in layout.digits if d.dim == dim and d.size > 1), None)
    if first is None or first.space != Space.REGISTER or first.stride != 1 or not run.counts(first.size):
        runs = "pairs" if run.elements == 2 else f"runs of {run.elements}"
        raise DoesNotFit(f"no {runs} of neighbours along {dim} in the registers of a fragment {layout}")
    own = evolve(first, size=run.in_bytes(first.size))
    digits = [own if d is first else _further(d, run) for d in layout.digits]
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


def _in_bytes(t: TensorDim, unit: Dim, run: Run) -> TensorDim | None:
    """Return the coordinate in bytes; None if it splits runs."""
    others = [coef for name, coef in t.terms if name != unit.name]
    if not run.counts(t.size, t.const, *others):
        return None
    terms = tuple((name, coef if name == unit.name else run.in_bytes(coef)) for name, coef in t.terms)
    return evolve(t, size=run.in_bytes(t.size), terms=terms, const=run.in_bytes(t.const))


def _further(d: Digit, run: Run) -> Digit:
    """Return a digit behind the first one; register strides count bytes."""
    return evolve(d, stride=run.in_bytes(d.stride)) if d.space == Space.REGISTER else d
