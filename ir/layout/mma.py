"""Matrix multiplication on fragments: D[n, m] += sum over k of A[n, k] * B[m, k]; lanes hold neighbours along N."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from math import gcd
from operator import mul
from typing import Any

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, VectorType, e8m0, vector


@frozen(cache_hash=True)
class MmaAtom:
    """One matrix instruction: an (n x k) times (k x m) product held by one subgroup.

    `a`, `b`, `d` are the fragments of a single instruction over dims (n, k), (m, k) and (n, m); their registers count
    elements. The target's table decides which side of the result is N: the hardware manual may call it M.

    Fragments may span neighbouring subgroups, which then execute the instruction together. If bytes pack the numbers of
    a factor, its fragment counts bytes along K, and `k` is that of the factor with more elements.
    """

    name: str
    n: int
    m: int
    k: int
    a_elem: Type
    b_elem: Type  #: type; as wide as `a_elem`
    acc: Type
    a: Fragment
    b: Fragment
    d: Fragment
    clocks: int  #: clocks; issue interval of this instruction
    rounds_to: str = ""  #: type to which inputs are truncated, if they are: "xf32" keeps ten mantissa bits
    #: whether it reads factors from shared memory: fragments that are loaded from there then take no registers
    in_shared: bool = False
    b_in_registers: bool = False  #: whether, with `in_shared`, it reads only a from there, and b from registers
    sum_bits: int = 0  #: bits that a sum keeps where it has fewer than its type, from that of the greatest term; else 0
    #: layouts over (n, k) and (m, k) of the scales of a and b, of type e8m0, if it multiplies its factors by scales: a
    #: scale stands at the first of the positions along K that share it
    scales: tuple[Fragment, Fragment] | None = None
    #: types of the numbers that bytes, the elements of a and of b, pack along K, low bits first; None for unpacked ones
    packed: tuple[Type | None, Type | None] = (None, None)

    def __attrs_post_init__(self) -> None:
        check_name(self.name, "matrix instruction")
        for value in (self.n, self.m, self.k, self.clocks):
            check_range(value, 1, 1 << 10, f"in matrix instruction {self.name}")

    @property
    def factor_types(self) -> tuple[Type, Type]:
        """Return the types of the numbers that are multiplied, of a and of b."""
        return self.packed[0] or self.a_elem, self.packed[1] or self.b_elem

    @cached_property
    def scaled_k(self) -> tuple[int, int]:
        """Return the positions along K of a, and of b, that share a scale; 0 without scales."""
        if self.scales is None:
            return 0, 0
        of_a, of_b = (next(d.size for d in scales.of("k") if d.space is Space.FIXED) for scales in self.scales)
        return of_a, of_b

    @cached_property
    def _depths(self) -> tuple[int, int]:
        return self.a.extent("k"), self.b.extent("k")

    def depths(self, k: Any) -> tuple[Any, Any]:
        """Return the elements of a, and of b, along `k` positions of K, a number or an array."""
        of_a, of_b = self._depths
        return k * of_a // self.k, k * of_b // self.k

    @property
    def elem_bytes(self) -> int:
        """Return the bytes of an element of a or b."""
        return self.a_elem.bytes

    @cached_property
    def spans(self) -> int:
        """Return the number of subgroups that execute one instruction together."""
        return max(f.subgroups for f in (self.a, self.b, self.d))

    def of_one_subgroup(self, atoms: Iterable[MmaAtom]) -> MmaAtom:
        """Return the instruction in `atoms` with equal sums that a single subgroup executes.

        Raises DoesNotFit where there is none: not every instruction of several subgroups has such a twin.
        """
        if self.spans == 1:
            return self
        what = self.a_elem, self.b_elem, self.acc, self.k, self.rounds_to
        twins = (a for a in atoms if (a.a_elem, a.b_elem, a.acc, a.k, a.rounds_to) == what and a.spans == 1)
        alone = next((a for a in twins if self._repeats(a)), None)
        if alone is None:
            why = f"{self.name} takes {self.spans} subgroups, and no instruction of one has its sums"
            raise DoesNotFit(why, short_of="twins")
        return alone

    def _repeats(self, one: MmaAtom) -> bool:
        """Return whether a subgroup's sums are those of an instruction, or of several instructions along N."""
        own = Digits(self.d.dims, tuple(d for d in self.d.digits if d.space is not Space.SUBGROUP))
        further = Digit("n", own.extent("n") // one.n, Space.REGISTER, one.d.registers)
        repeated = Digits(one.d.dims, (*one.d.digits, further)) if further.size > 1 else one.d
        return own.canonical(*Space) == repeated.canonical(*Space)


@frozen(cache_hash=True)
class BlockAtom:
    """One matrix instruction on many small products: an independent one in each block of `side` lanes.

    A lane holds a row of A, a column of B and a column of D: `k` elements of each factor, `side` sums.
    """

    name: str
    side: int
    k: int
    elem: Type  #: type of both factors
    acc: Type
    clocks: int  #: clocks; issue interval of this instruction

    def __attrs_post_init__(self) -> None:
        check_name(self.name, "matrix instruction")
        for value in (self.side, self.k, self.clocks):
            check_range(value, 1, 1 << 10, f"in matrix instruction {self.name}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape as configs write it."""
        return self.side, self.side, self.k


MOST = 1 << 12  #: most instructions along a side of a tile, or in a sequence along K


def _k_digits(atom: Fragment, pack: int, steps: int) -> tuple[Digit, ...]:
    """Return a subgroup's K digits of `steps` instructions; registers hold `pack` instructions' elements together.

    Any K order serves as long as A and B agree. One instruction keeps its own; with several, the order makes a lane's
    elements contiguous.
    """
    if pack == 1:
        return (*atom.of("k"), Digit("k", steps, Space.REGISTER, atom.registers))
    inner = tuple(d for d in atom.digits if d.dim == "k" and d.space is Space.REGISTER)
    lanes = tuple(d for d in atom.digits if d.dim == "k" and d.space is Space.LANE)
    size = atom.registers
    outer = (Digit("k", pack, Space.REGISTER, size), *lanes, Digit("k", steps // pack, Space.REGISTER, size * pack))
    return inner + outer


def shares(teams_k: int, tiles_m: int) -> tuple[int, int]:
    """Return the shares along (N, M) that teams along K take of the reduced sums: along M as far as possible."""
    along_m = gcd(teams_k, tiles_m)
    return teams_k // along_m, along_m


def _cut(digits: tuple[Digit, ...], sizes: Iterable[int]) -> tuple[Digit, ...]:
    """Return the digits of one dimension cut to these sizes."""
    dim = digits[0].dim
    steps = accumulate(sizes, mul, initial=1)
    wanted = (Digit(dim, size, dim, step) for size, step in zip(sizes, steps))
    return tuple(part for each in wanted for part in Digits((dim,), digits).part(each))


def _inner(d: Digit, size: int) -> Digit:
    """Return a digit of the first `size` positions of `d`."""
    return evolve(d, size=size)


def _outer(d: Digit, size: int) -> Digit:
    """Return the digit that counts blocks of `size` positions of `d`."""
    return evolve(d, size=d.size // size, stride=d.stride * size)


@frozen(cache_hash=True)
class MmaTile:
    """A workgroup's product or a part of it: a grid of teams, each with tiles_n x tiles_m x steps instructions.

    A team is the subgroups that execute an instruction together, usually one. Teams are numbered along N first, along K
    last. Teams along K hold partial sums of one result until these are reduced; then each has a share of it. `pack`
    instructions share a contiguous run of K per lane, for wider reads of shared memory.
    """

    atom: MmaAtom
    tiles_n: int
    tiles_m: int
    steps: int
    pack: int = 1
    teams_n: int = 1
    teams_m: int = 1
    separate_accumulators: bool = False  #: accumulators are in a register file of their own
    parts: int = 1  #: parts into which the workgroup's tile is cut along M
    part: int = 0  #: number of the part that this tile multiplies
    run: int = 1  #: elements; contiguous along N in a lane's registers of D, if the atom and its tiles have as many
    rows: int = 0  #: rows; runs of so many are interleaved over instructions (see `_rows`); 0: each has its rows in one
    teams_k: int = 1  #: teams along K, each with `steps` steps and partial sums of all its rows and columns

    def __attrs_post_init__(self) -> None:
        counts = self.tiles_n, self.tiles_m, self.steps, self.pack, self.teams_n, self.teams_m, self.parts, self.run
        for value in (*counts, self.teams_k):
            check_range(value, 1, MOST, "in an mma tile")
        check_range(self.part, 0, self.parts - 1, "part of an mma tile:")
        if self.tiles_n % self.shares[0]:
            raise UserError(f"mma tile: {self.tiles_n} x {self.tiles_m} tiles have no {self.teams_k} shares")
        if self.rows and self.atom.m % self.rows:
            raise UserError(f"mma tile: instructions of {self.atom.m} rows are not cut into runs of {self.rows}")
        if self.atom.scales and self.pack > 1:
            raise UserError(f"mma tile: a pack of {self.pack} instructions, whose positions along K share scales")
        if self.steps % self.pack:
            raise UserError(f"mma tile: {self.steps} steps do not split into packs of {self.pack}")

    @cached_property
    def a(self) -> Fragment:
        """Return the layout of the A operand over (n, k), n relative to the workgroup's tile."""
        teams = Digit("n", self.teams_n, Space.SUBGROUP, self.atom.spans)
        share = self._share("n", self.tiles_n, self.atom.a.registers * self.steps)
        return self._operand((*self._columns[0], *share, teams), self.atom.a)

    @cached_property
    def b(self) -> Fragment:
        """Return the layout of the B operand over (m, k)."""
        tiles = Digit("m", self.tiles_m, Space.REGISTER, self.atom.b.registers * self.steps)
        return self._operand(self._rows(self.atom.b, tiles), self.atom.b)

    def _operand(self, rows: tuple[Digit, ...], atom: Fragment) -> Fragment:
        teams = (self.along_k("k"),) if self.teams_k > 1 else ()
        return Fragment((rows[0].dim, "k"), (*rows, *_k_digits(atom, self.pack, self.steps), *teams))

    @cached_property
    def scales(self) -> tuple[Fragment, Fragment] | None:
        """Return the layouts of the scales of A over (n, k) and of B over (m, k); None if the atom takes none.

        Scale `tile * steps + step` of a lane belongs to instruction (tile, step).
        """
        if self.atom.scales is None:
            return None
        a, b = zip((self.a, self.b), (self.atom.a, self.atom.b), self.atom.scales)
        return self._scales(*a), self._scales(*b)

    def _scales(self, operand: Fragment, atom: Fragment, scale: Fragment) -> Fragment:
        """Return the layout of the scales of an operand: one register for the registers of each of its instructions."""
        row = operand.dims[0]
        rows = (
            evolve(d, stride=d.stride // atom.registers) if d.space is Space.REGISTER else d for d in operand.of(row)
        )
        steps = Digit("k", self.steps, Space.REGISTER, 1)
        teams = (self.along_k("k"),) if self.teams_k > 1 else ()
        return Fragment(operand.dims, (*rows, *scale.of("k"), steps, *teams))

    @property
    def scale_types(self) -> tuple[VectorType, ...]:
        """Return the types of the scales of A and B; none if the atom takes none."""
        return tuple(vector(e8m0, layout.registers) for layout in self.scales or ())

    @property
    def fragment_elements(self) -> int:
        """Return the elements of both factors that a lane holds in registers for a block of K."""
        atom = self.atom
        return self.a.registers * (not atom.in_shared) + self.b.registers * (not atom.in_shared or atom.b_in_registers)

    @property
    def teams(self) -> int:
        """Return the number of subgroups in all teams that have one part of K."""
        return self.atom.spans * self.teams_n * self.teams_m

    def along_k(self, dim: str) -> Digit:
        """Return the teams along K as a digit of dimension `dim`."""
        return Digit(dim, self.teams_k, Space.SUBGROUP, self.teams)

    @cached_property
    def _columns(self) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
        """Return the digits of N in A and in D, within a subgroup and its share of the sums.

        A subgroup's columns may be assigned to its instructions freely: columns that one lane of D holds come first.
        """
        atom, d_digits, tiles = self.atom, self.atom.d.of("n"), self.tiles_n // self.shares[0]
        tile_of_a = Digit("n", tiles, Space.REGISTER, atom.a.registers * self.steps)
        tile_of_d = Digit("n", tiles, Space.REGISTER, atom.d.registers)
        if d_digits[0].space is Space.REGISTER and d_digits[0].size >= self.run:
            return (*atom.a.of("n"), tile_of_a), (*d_digits, tile_of_d)
        d_digits = tuple(d for d in d_digits if d.size > 1)
        a_digits = (*_cut(atom.a.of("n"), [d.size for d in d_digits]), tile_of_a)
        inner: list[tuple[Digit, Digit]] = []
        outer: list[tuple[Digit, Digit]] = []
        wanted = self.run
        for a, d in zip(a_digits, (*d_digits, tile_of_d), strict=True):
            size = gcd(wanted, d.size) if d.space is Space.REGISTER else 1
            wanted //= size
            inner.append((_inner(a, size), _inner(d, size)))
            outer.append((_outer(a, size), _outer(d, size)))
        of_a, of_d = (Digits(("n",), side).merged(Space.LANE, Space.REGISTER).digits for side in zip(*inner, *outer))
        return of_a, of_d

    @property
    def regroups_columns(self) -> bool:
        """Return whether `run` makes columns contiguous in a lane of D that are in several instructions."""
        return self.atom.d.of("n")[0].space is Space.LANE and self._columns[1][0].space is Space.REGISTER

    def _rows(self, atom: Fragment, *tiles: Digit) -> tuple[Digit, ...]:
        """Return the digits of M in B or D, of one instruction and a subgroup's tiles.

        The workgroup's rows may be assigned to instructions freely. Without `rows`, an instruction's rows are
        contiguous. Otherwise runs of `rows` rows are distributed over the instructions of all teams, then over each
        team's further instructions, before the next run of the first instruction.
        """
        own = Digits(("m",), atom.of("m"))
        teams = Digit("m", self.teams_m, Space.SUBGROUP, self.atom.spans * self.teams_n)
        part = (Digit("m", self.parts, Space.FIXED, self.part),) if self.parts > 1 else ()
        if not self.rows:
            return (*own.digits, *tiles, teams, *part)
        near, far = Digit("m", self.rows, "m", 1), Digit("m", self.atom.m // self.rows, "m", self.rows)
        return (*own.part(near), teams, *tiles, *part, *own.part(far))

    @cached_property
    def d(self) -> Fragment:
        """Return the layout of the accumulator over (n, m)."""
        return self._sums(reduced=False)

    @cached_property
    def reduced_d(self) -> Fragment:
        """Return the layout of the sums after teams along K are reduced: each has a share of a subgroup's tiles."""
        return self._sums(reduced=True).renumbered(Space.REGISTER)

    def _sums(self, *, reduced: bool) -> Fragment:
        """Return the layout of the accumulator; `reduced` after teams along K are reduced."""
        registers = self.atom.d.registers
        tiles_m = self.tiles_m // self.shares[1]
        of_n = self._share("n", self.tiles_n, registers, reduced=reduced)
        of_m = self._share("m", self.tiles_m, registers * self.tiles_n, reduced=reduced)
        return Fragment(
            ("n", "m"),
            (
                *self._columns[1],
                *of_n,
                Digit("n", self.teams_n, Space.SUBGROUP, self.atom.spans),
                *self._rows(self.atom.d, Digit("m", tiles_m, Space.REGISTER, registers * self.tiles_n), *of_m),
            ),
        )

    @cached_property
    def shares(self) -> tuple[int, int]:
        """Return the shares of columns and rows that teams along K have after the reduction."""
        return shares(self.teams_k, self.tiles_m)

    def _share(self, dim: str, tiles: int, registers: int, *, reduced: bool = False) -> tuple[Digit, ...]:
        """Return the digits of a dim's shares: all in a team's registers or, if `reduced`, one share a team along K.

        There are `tiles` tiles along the dim, each of `registers` register elements.
        """
        count = self.shares["nm".index(dim)]
        if count == 1:
            return ()
        if reduced:
            return (Digit(dim, count, Space.SUBGROUP, self.teams * (self.shares[1] if dim == "n" else 1)),)
        return (Digit(dim, count, Space.REGISTER, registers * tiles // count),)

    def a_start(self, tile: int, step: int) -> int:
        """Return the first register element of A for instruction (tile, step)."""
        return (tile * self.steps + step) * self.atom.a.registers

    def b_start(self, tile: int, step: int) -> int:
        return (tile * self.steps + step) * self.atom.b.registers

    def d_start(self, tile_n: int, tile_m: int) -> int:
        return (tile_m * self.tiles_n + tile_n) * self.atom.d.registers

    @property
    def a_type(self) -> VectorType:
        return vector(self.atom.a_elem, self.a.registers)

    @property
    def b_type(self) -> VectorType:
        return vector(self.atom.b_elem, self.b.registers)

    @property
    def acc_type(self) -> VectorType:
        return vector(self.atom.acc, self.d.registers)
