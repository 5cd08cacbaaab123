"""Stride phases of backward data along one axis: as separate convolutions, or side by side as columns of one product.

With D = d + 1 between taps, tap k takes output position o to the input position i = o*s + k*D - p. Taps that differ by
s/gcd(D, s) reach input positions with one residue of i + p modulo the stride, a phase. Within a phase backward data is
a convolution of stride 1.
"""

from __future__ import annotations

from math import gcd

from convgen.ir.layout.memory import TensorDim
from convgen.ir.record import frozen
from convgen.problem.conv import Axis


@frozen
class Phase:
    """One residue of (i + p) modulo the stride along an axis, for which backward data is a convolution of stride 1.

    With i + p = s*q + r, a tap k contributes where k*(d + 1) = r modulo s. With g = gcd(d + 1, s) these are the taps
    first + (s/g)*j, and o = q + (r - first*(d + 1))/s - j*(d + 1)/g. Taps are counted downwards, so that o grows with
    the tap as in the forward convolution; q starts at the first input position.
    """

    axis: Axis
    name: str
    first_tap: int  #: smallest tap that contributes

    @staticmethod
    def count(axis: Axis) -> int:
        """Return the number of residues that have taps: each of the first taps has its own."""
        return min(axis.k, axis.s // gcd(axis.d + 1, axis.s))

    @classmethod
    def with_taps(cls, axis: Axis, name: str) -> list[Phase]:
        """Return the phases along an axis that have taps, by their residues."""
        return sorted((Phase(axis, name, tap) for tap in range(cls.count(axis))), key=lambda phase: phase.residue)

    @property
    def residue(self) -> int:
        return self.first_tap * (self.axis.d + 1) % self.axis.s

    @property
    def _first_q(self) -> int:
        return -((self.residue - self.axis.p) // self.axis.s)

    @property
    def positions(self) -> int:
        """Return the number of input positions with this residue."""
        first = self._first_q * self.axis.s + self.residue - self.axis.p
        return max(0, -(-(self.axis.i - first) // self.axis.s))

    @property
    def is_empty(self) -> bool:
        """Whether no sum has a term: there are no positions, or all taps fall outside diff_dst."""
        if not self.positions:
            return True
        taps, _, _, diff_dst = self.coordinates()
        (_, growth), start = diff_dst.terms[1], diff_dst.const
        return start >= self.axis.o or start + self.positions - 1 + (taps - 1) * growth < 0

    def coordinates(self) -> tuple[int, TensorDim, TensorDim, TensorDim]:
        """Return the number of taps and the coordinates along this axis of diff_src, the weights and diff_dst."""
        a, first, g = self.axis, self.first_tap, gcd(self.axis.d + 1, self.axis.s)
        step = a.s // g
        taps = -(-(a.k - first) // step)
        last = first + (taps - 1) * step
        start = self._first_q + (self.residue - last * (a.d + 1)) // a.s
        growth = (a.d + 1) // g
        reach = start + self.positions - 1 + (taps - 1) * growth
        q, k = f"i{self.name}", f"k{self.name}"
        diff_src = TensorDim(a.i, ((q, a.s),), self._first_q * a.s + self.residue - a.p)
        wei = TensorDim(a.k, ((k, -step),), last)
        diff_dst = TensorDim(a.o, ((q, 1), (k, growth)), start, start < 0 or reach >= a.o)
        return taps, diff_src, wei, diff_dst


@frozen
class Untapped(Phase):
    """A residue that no tap has."""

    rest: int

    @classmethod
    def of(cls, axis: Axis, name: str) -> list[Untapped]:
        """Return the phases along an axis that have no taps."""
        tapped = {phase.residue for phase in Phase.with_taps(axis, name)}
        return [cls(axis, name, 0, rest) for rest in range(axis.s) if rest not in tapped]

    @property
    def residue(self) -> int:
        return self.rest

    @property
    def is_empty(self) -> bool:
        return True


@frozen
class Columns:
    """All phases along an axis, padded to the most taps of a phase; missing taps have zero weights.

    Phase f has the taps k = f - e + s*j, where its positions are i = s*q + (f - e)*D - p and o = q - j*D: all linear in
    f, q and j, whatever the dilation. The shift e < s decides where input positions are cut into q; an e near p modulo
    s needs the fewest products. Taps are counted downwards, as in `Phase`.
    """

    axis: Axis
    name: str
    shift: int = 0

    @classmethod
    def of(cls, axis: Axis, name: str) -> Columns:
        """Return the columns whose shift needs the fewest products."""
        return min((cls(axis, name, e) for e in range(axis.s)), key=lambda c: (c.positions * c.taps, c.shift))

    @staticmethod
    def suit(axis: Axis) -> bool:
        """Whether each input position is in a phase that has taps."""
        return axis.k >= axis.s and gcd(axis.d + 1, axis.s) == 1

    @property
    def phase(self) -> str:
        """Return the name of the dim that counts phases."""
        return f"p{self.name}"

    @property
    def count(self) -> int:
        """Return the number of phases."""
        return self.axis.s

    @property
    def taps(self) -> int:
        return (self.axis.k - 1 + self.shift) // self.axis.s + 1

    @property
    def positions(self) -> int:
        """Return the number of q that reach all input positions."""
        return self._last_q - self._first_q + 1

    @property
    def _start(self) -> int:
        """Return the input position of phase 0 at q = 0."""
        return -self.shift * (self.axis.d + 1) - self.axis.p

    @property
    def _first_q(self) -> int:
        """Return the first q at which the last phase is inside the tensor."""
        return -((self._start + (self.count - 1) * (self.axis.d + 1)) // self.axis.s)

    @property
    def _last_q(self) -> int:
        return (self.axis.i - 1 - self._start) // self.axis.s

    def coordinates(self) -> tuple[TensorDim, TensorDim, TensorDim]:
        """Return the coordinates along this axis of diff_src, the weights and diff_dst."""
        a, tap_distance = self.axis, self.axis.d + 1
        q, k = (f"i{self.name}", self.positions), (f"k{self.name}", self.taps)
        f = [(self.phase, self.count)] if self.count > 1 else []
        earlier_taps = self.taps - 1  #: taps before the last one
        diff_src = _within(a.i, [(*q, a.s), *((*dim, tap_distance) for dim in f)], a.s * self._first_q + self._start)
        wei = _within(a.k, [*((*dim, 1) for dim in f), (*k, -a.s)], a.s * earlier_taps - self.shift)
        diff_dst = _within(a.o, [(*q, 1), (*k, tap_distance)], self._first_q - earlier_taps * tap_distance)
        return diff_src, wei, diff_dst


def _within(size: int, counted: list[tuple[str, int, int]], const: int) -> TensorDim:
    """Return a coordinate by (dim, its positions, coefficient), masked only where it leaves the tensor."""
    steps = [(count - 1) * coef for _, count, coef in counted]
    least, most = (const + sum(end(0, step) for step in steps) for end in (min, max))
    return TensorDim(size, tuple((name, coef) for name, _, coef in counted), const, least < 0 or most >= size)
