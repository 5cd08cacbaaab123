"""Products of warpgroups: descriptors of factors in shared memory, and waits for products that still run.

A factor is a shared tile in panels (`ir.layout.shared_panels`): a panel has `span` bytes of each line, line after line,
swizzled. A line is a row of K elements, or one element of K for all rows if the tile is transposed.

`wgmma.mma_async` reads its factors and adds to its sums until a `wait_group` of its warpgroup covers it. A barrier
waits for the products that read a slot which is overwritten before the next barrier. The sums are awaited where another
instruction reads them. A group of products ends (`commit_group`) ahead of each barrier, if this or a later one waits,
and behind the products that complete sums.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Matrix Descriptor Format".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from convgen.backends.nvidia.statement_flow import Ages, GroupFlow, KernelAccesses, behind_a_group
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Mma, Var
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.shared_panels import SPANS, span_of
from convgen.ir.mma_operands import operand_sizes_of
from convgen.ir.mutate import free_vars, statements
from convgen.ir.program import Kernel
from convgen.ir.record import frozen
from convgen.ir.stmt import Barrier, Block, FlatDirectLoad, For, If, Let, LoadFactor, ReleaseSlot, SharedWrite, Stmt
from convgen.passes.reach import Access

_UNIT = 16  #: bytes; unit of addresses and offsets in a descriptor
_LINES = 8  #: lines of a panel after which the swizzle repeats; the stride offset of a descriptor spans them
_MODES = dict(zip(SPANS, (1, 2, 3)))  #: bytes of a line in a panel -> a descriptor's swizzle mode


@frozen
class FactorPlace:
    """The place of a factor in shared memory, as descriptors state it: a tile in panels."""

    tile: Shared
    span: int  #: bytes of a line in a panel

    @classmethod
    def of(cls, tile: Shared, base: int) -> FactorPlace:
        """Return the place of a tile that begins at byte `base`; Unsupported for tiles that no descriptor describes."""
        span = span_of(tile)
        if not span or base % (_LINES * span):
            given = f"given the shared tile {tile.name} at byte {base}"
            raise Unsupported(f"{given}, wanted panels of {SPANS} bytes at a multiple of {_LINES} lines")
        return cls(tile, span)

    @property
    def _panel(self) -> int:
        """Return the bytes from a panel to the next one."""
        return self.span * (self.tile.cols if self.tile.is_transposed else self.tile.rows)

    @property
    def constant(self) -> int:
        """Return the descriptor of a factor that begins at address 0.

        A transposed tile has the distance of panels as leading offset; for others instructions ignore the field.
        """
        leading = self._panel if self.tile.is_transposed else _UNIT
        return leading // _UNIT << 16 | _LINES * self.span // _UNIT << 32 | _MODES[self.span] << 62

    def offset(self, row: int, k: int) -> int:
        """Return the descriptor's address of (row, k) less that of (0, 0); Unsupported for a row within a panel."""
        along, line = (row, k) if self.tile.is_transposed else (k, row)
        panel, within = divmod(along * self.tile.elem.bytes, self.span)
        if self.tile.is_transposed and within:
            raise Unsupported(f"given rows from {row} on of {self.tile.name}, wanted a whole panel")
        return (panel * self._panel + line * self.span + within) // _UNIT


@frozen
class Products:
    """Products of warpgroups in a kernel, and the waits for them."""

    factors: Mapping[Var, LoadFactor]  #: variable that a product names as a factor -> where it stands
    at_barriers: Mapping[Barrier, int]  #: groups that may run behind a barrier; barriers without a wait are absent
    ends: Container[Let]  #: products behind which a group ends
    awaited: Container[Let]  #: products whose sums are awaited at once: other instructions read them next
    added_to: Container[Expr]  #: sums to which products add, directly or through a loop
    fences: Container[Barrier]  #: barriers ahead of which lanes fence what they wrote: products read it behind them
    inputs: Container[Var]  #: variables with registers that products read

    def at(self, address: Expr) -> Iterable[Shared]:
        """Return the tiles with factors that begin at an address."""
        return dict.fromkeys(s.tile for s in self.factors.values() if s.address is address)


_UNKNOWN = -1  #: number of a group that is older than all whose order is known


class InFlight:
    """Products in flight where code is being selected, in groups that end in the order of their numbers."""

    def __init__(self) -> None:
        self.sums: dict[Expr, int] = {}  #: variable to whose registers a product may still add -> number of its group
        self.ended = 0  #: groups that have ended
        self.is_open = False  #: whether products have been issued since the end of the last group

    def __contains__(self, e: Expr) -> bool:
        return e in self.sums

    def __bool__(self) -> bool:
        return bool(self.sums)

    def copy(self) -> InFlight:
        """Return the state for another path, which begins here."""
        other = InFlight()
        other.sums, other.ended, other.is_open = {**self.sums}, self.ended, self.is_open
        return other

    def add(self, v: Expr) -> None:
        """Note a product of the open group."""
        self.sums[v] = self.ended

    def end_group(self) -> None:
        """Note the end of the open group."""
        self.ended, self.is_open = self.ended + 1, False

    def groups_behind(self, of: Expr) -> int:
        """Return how many groups have surely ended behind the group of a variable's product."""
        group = self.sums[of]
        return 0 if group == _UNKNOWN else self.ended - group - 1

    def landed(self, running: int) -> None:
        """Note that only the last `running` groups may be in flight."""
        self.sums = {v: group for v, group in self.sums.items() if group >= self.ended - running}

    def forget_order(self, added_to: Iterable[Expr] = ()) -> None:
        """Note that groups may have ended on only some of the paths that lead here.

        Products of other iterations of a loop may add to `added_to`, too.
        """
        self.sums = dict.fromkeys((*self.sums, *added_to), _UNKNOWN)

    def join(self, other: InFlight) -> None:
        """Note that another path leads here, too."""
        self.sums |= other.sums
        self.is_open |= other.is_open
        if self.ended != other.ended:
            self.ended = max(self.ended, other.ended)
            self.forget_order()


def products_of(kernel: Kernel, accesses: KernelAccesses) -> Products | None:
    """Return the products of warpgroups of a message-level kernel; None if it has none."""
    factors = {s.var: s for s in statements(kernel.body) if isinstance(s, LoadFactor)}
    if not factors:
        return None
    products = [s for s in statements(kernel.body) if isinstance(s, Let) and is_of_warpgroup(s.value)]
    in_own_groups = _RunningProducts(factors, accesses, products)  # finds each barrier that may wait
    in_own_groups.walk(kernel.body, {})
    group_ends = _GroupEnds(in_own_groups.at_barriers)
    group_ends.walk(kernel.body, (False, False))
    added_to = _added_to(kernel, products)
    complete = {s for s in products if s.var not in added_to}
    ends = group_ends.ends | complete
    in_groups = _RunningProducts(factors, accesses, ends)
    in_groups.walk(kernel.body, {})
    written = {s.tile.region for s in statements(kernel.body) if isinstance(s, (FlatDirectLoad, SharedWrite))}
    read = {s.tile.region for s in factors.values()} & written
    fences = {barrier for barrier, later in accesses.ahead.items() if any(_is_read(access, read) for access in later)}
    awaited, inputs = _last_of_blocks(kernel, complete), _inputs(kernel, products) - factors.keys()
    return Products(factors, in_groups.at_barriers, ends, awaited, added_to, fences, inputs)


def _inputs(kernel: Kernel, products: Iterable[Let]) -> set[Var]:
    """Return the variables that hold operands, or parts of them, of products that read a factor from registers."""
    values = (s.value for s in products if isinstance(s.value, Mma) and s.value.op.atom.b_in_registers)
    return {*operand_sizes_of(values, kernel.body)}


def _added_to(kernel: Kernel, products: Iterable[Let]) -> set[Expr]:
    """Return the sums to which products add, directly or through loops."""
    loops = [s for s in statements(kernel.body) if isinstance(s, For)]
    same = [
        pair for s in loops for pair in (*zip(s.carried, s.yields), *zip(s.results, s.yields), *zip(s.carried, s.inits))
    ]
    added_to: set[Expr] = {s.value.acc for s in products if isinstance(s.value, Mma)}
    while more := {before for later, before in same if later in added_to} - added_to:
        added_to |= more
    return added_to


def _last_of_blocks(kernel: Kernel, products: Container[Let]) -> set[Let]:
    """Return the last of these products in each block, without those whose sums are read behind those of another."""
    last = set()
    for stmts in (s.stmts for s in statements(kernel.body) if isinstance(s, Block)):
        of_block = [s for s in stmts if isinstance(s, Let) and s in products]
        if of_block and not _is_read_later(of_block, stmts[stmts.index(of_block[-1]) + 1 :]):
            last.add(of_block[-1])
    return last


def _is_read_later(products: Sequence[Let], behind: Iterable[Stmt]) -> bool:
    """Return whether the statements behind products read the sums of the last one behind those of another."""
    *others, last = (product.var for product in products)
    reads = ({v for s in statements(each) for e in s.operands for v in free_vars(e)} for each in behind)
    return next((last not in read for read in reads if not read.isdisjoint({*others, last})), False)


def _is_read(access: Access, regions: set[str]) -> bool:
    return not access.write and access.tile.region in regions


class _GroupEnds:
    """Finds the last products before barriers, where this or a later barrier waits: a group `ends` behind them.

    A release of a ring's slot counts as a barrier that waits. It walks against the order of execution. Its state has
    two flags: whether a barrier may follow before the next product, and whether a later barrier waits.
    """

    def __init__(self, waits: Container[Barrier]) -> None:
        self.waits = waits
        self.ends: set[Let] = set()

    def walk(self, s: Stmt, behind: tuple[bool, bool]) -> tuple[bool, bool]:
        """Return the state ahead of a statement, given that behind it."""
        match s:
            case Block(stmts):
                for inner in reversed(stmts):
                    behind = self.walk(inner, behind)
                return behind
            case Barrier():
                return True, behind[1] or s in self.waits
            case ReleaseSlot():
                return True, True
            case Let() if is_of_warpgroup(s.value):
                self.ends.update([s] if all(behind) else [])
                return False, behind[1]
            case If(_, then, other):
                return _either(self.walk(then, behind), self.walk(other, behind))
            case For():
                once = _either(self.walk(s.body, behind), behind)
                return _either(self.walk(s.body, once), once)
        return behind


def _either(a: tuple[bool, bool], b: tuple[bool, bool]) -> tuple[bool, bool]:
    return a[0] or b[0], a[1] or b[1]


class _RunningProducts(GroupFlow):
    """Ages of running products, whose groups end behind `ends`."""

    def __init__(self, factors: Mapping[Var, LoadFactor], accesses: KernelAccesses, ends: Container[Let]) -> None:
        super().__init__(accesses.ahead)
        self.factors, self.accesses, self.ends = factors, accesses.of_workgroup, ends

    def let(self, s: Let, ages: Ages) -> Ages:
        if not is_of_warpgroup(s.value):
            return ages
        own = {access for factor in self._factors(s.value) for access in self.accesses[factor]}
        ages = {**ages, **dict.fromkeys(own, -1)}
        return behind_a_group(ages) if s in self.ends else ages

    def _factors(self, product: Expr) -> Iterator[LoadFactor]:
        assert isinstance(product, Mma)
        sides = (side for side in (product.a, product.b) if isinstance(side, Var))
        return (self.factors[side] for side in sides if side in self.factors)

    def step(self, s: Stmt, ages: Ages, /) -> Ages:
        return self.at_barrier(s, ages) if isinstance(s, Barrier) else ages


def is_of_warpgroup(e: Expr) -> TypeGuard[Mma]:
    """Return whether a value is a product that a warpgroup computes, from shared memory at least in part."""
    return isinstance(e, Mma) and e.op.atom.in_shared
