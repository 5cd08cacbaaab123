"""The message planner: the messages that move a distributed tile between registers and global memory.

An address is split into a varying offset, a uniform offset and an immediate. With surfaces, bounds-checked terms must
be in the varying offset, and a lane that must not access gets an offset beyond every surface (docs/ir.md, "Global
memory"). With flat addresses the lane's condition is the message's mask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Expr, Slice, Surface, Uniform
from convgen.ir.record import evolve, frozen
from convgen.ir.types import u32, u64
from convgen.passes.messages.access import Position, TileAccess, scale
from convgen.passes.messages.linear import WORD, ZERO, add_exprs, loads_runs
from convgen.passes.messages.masks import TRUE, Leaving, Masks, Tests
from convgen.passes.messages.partial_runs import Run, Runs
from convgen.passes.messages.positions import Positions
from convgen.passes.messages.surface_windows import Window


@frozen
class GlobalMessage:
    """Registers [start, start + count) of the fragment at `varying + uniform + imm` bytes of `surface`."""

    start: int
    count: int
    surface: Surface
    varying: Expr
    uniform: Expr
    imm: int
    mask: Expr  #: whether the element exists; always true where an out-of-range offset disables the lane

    @property
    def address(self) -> Expr:
        """Return the flat address; loop-invariant parts come first, so that they can be hoisted together.

        The first is the surface's start, which may precede the buffer.
        """
        base = Uniform(AddressOf(self.surface.buffer) + self.surface.shift.to(u64))
        address = base + self.varying.to(u64)
        return address if self.uniform is ZERO else address + self.uniform.to(u32).to(u64)


def global_messages(access: TileAccess, widest: int | None) -> Iterator[GlobalMessage]:
    """Yield one message per run of registers of at most `widest` bytes, in register order.

    Raises Unsupported if offsets cannot fit.
    """
    window, positions = Window(access), Positions(access)
    guard = _guard_flat if access.facts.flat else _guard_without_imm if access.places else _guard_on_surface
    if loads_runs(access.view, access.layout):
        yield from _of_runs(access, window, positions)
        return
    if access.view.has_runs:
        access = evolve(access, view=access.view.whole)
    masks = Masks(access, is_moved=window.origin is not None)
    run = _run(access, positions, widest or access.facts.global_widths[0])
    for start in range(0, access.layout.registers, run):
        at = positions.of(start)
        leaving = masks.leaving(at)
        varying, uniform, imm = _offset(access, window, at, leaving)
        varying, imm, mask = guard(access, masks, masks.tests(at, leaving), varying, imm)
        yield GlobalMessage(start, run, window.surface, varying, uniform, imm, mask)


def _of_runs(access: TileAccess, window: Window, positions: Positions) -> Iterator[GlobalMessage]:
    """Yield messages of whole words that load runs, with one more word where a run may begin inside a word."""
    runs = Runs(access, positions)
    masks = Masks(access, is_moved=window.origin is not None, trimmed=runs.edges)
    guard = _guard_flat if access.facts.flat else _guard_on_surface
    begin = 0
    for start in range(0, access.layout.registers, runs.count):
        at, run = runs.at(start), runs.of(start)
        leaving = masks.leaving(at)
        # A message displaced backwards may begin before the block that the uniform offset would contain.
        together = (runs.inner.name,) if run.moves_back else ()
        varying, uniform, imm = _displaced(*_offset(access, window, at, leaving, together), run, access)
        if not runs.is_skewed:
            varying, imm, mask = guard(access, masks, masks.tests(at, leaving, run.outside), varying, imm)
            yield GlobalMessage(start, runs.count, window.surface, varying, uniform, imm, mask)
            continue
        # Some words may be past the end of the buffer; only the varying offset is checked for that.
        place, remaining, first = (varying + uniform + imm) & -WORD, runs.loaded, 0
        while remaining:
            count = next(w for w in access.facts.global_widths if w <= remaining * access.view.memory.elem.bytes)
            count //= access.view.memory.elem.bytes
            offset = first * access.view.memory.elem.bytes
            varying, imm, mask = guard(access, masks, masks.tests(at, leaving, run.outside), place, offset)
            yield GlobalMessage(begin, count, window.surface, varying, ZERO, imm, mask)
            begin, first, remaining = begin + count, first + count, remaining - count


def trims(access: TileAccess, value: Expr) -> Iterator[Expr]:
    """Yield the tile's elements, run by run, from `value`, the result of the messages that loaded its runs."""
    if not loads_runs(access.view, access.layout):
        yield value
        return
    window, positions = Window(access), Positions(access)
    runs = Runs(access, positions)
    for n, start in enumerate(range(0, access.layout.registers, runs.count)):
        run = runs.of(start)
        varying, uniform, imm = _displaced(*_offset(access, window, runs.at(start)), run, access)
        yield run.trimmed(Slice(value, n * runs.loaded, runs.loaded), varying + uniform + imm)


def _displaced(varying: Expr, uniform: Expr, imm: int, run: Run, access: TileAccess) -> tuple[Expr, Expr, int]:
    """Return the offsets of a message displaced to where all its words exist."""
    elem = access.view.memory.elem.bytes
    imm += run.fixed * elem
    if imm >= 0 and run.varying is ZERO:
        return varying, uniform, imm
    # The varying offset must not be negative by itself: masks set its sign bit.
    return add_exprs(varying, scale(run.varying, elem)) + imm, uniform, 0


_Guarded = tuple[Expr, int, Expr]  #: varying offset, immediate, and the condition that the element exists


def _guard_flat(access: TileAccess, masks: Masks, tests: Tests, varying: Expr, imm: int) -> _Guarded:
    """Return a single offset and a mask; an offset that is never negative is unsigned, which adds in fewer steps."""
    offset, is_signed = varying + imm if imm else varying, access.bounds(varying)[0] + imm < 0
    return offset if is_signed else offset.to(u32), 0, masks.mask(*tests)


def _guard_on_surface(access: TileAccess, masks: Masks, tests: Tests, varying: Expr, imm: int) -> _Guarded:
    """Return the mask as part of the varying offset, and an immediate that fits."""
    varying = masks.masked(varying, *tests)
    extra = imm - imm % (access.facts.global_imm_max + 1)
    return varying + extra if extra else varying, imm - extra, TRUE


def _guard_without_imm(access: TileAccess, masks: Masks, tests: Tests, varying: Expr, imm: int) -> _Guarded:
    """Return the mask as part of the varying offset; no immediate, as it would apply to shared memory, too."""
    return masks.masked(varying + imm if imm else varying, *tests), 0, TRUE


def _run(access: TileAccess, positions: Positions, widest: int) -> int:
    """Return the elements of a message: contiguous in registers and memory, aligned, existing as a whole or not."""
    view, layout, alignment = access.view, access.layout, access.facts.message_alignment
    axis, elem = view.unit_axis, view.memory.elem.bytes
    if axis is None:
        return 1
    together = layout.contiguous(layout.dims[axis])
    for run in range(together, 1, -1):
        legal = together % run == 0 and run * elem <= widest and run * elem in access.facts.global_widths
        # Of several messages of three words every second one would begin at an odd register, where no tuple may.
        legal = legal and (run == together or (run * elem).bit_count() == 1)
        if legal and positions.multiples[axis] % run == 0 and view.makes_messages(run, alignment):
            return run
    return 1


def _offset(
    access: TileAccess,
    window: Window,
    positions: Mapping[str, Position],
    leaving: Leaving = (),
    together: Collection[str] = (),
) -> tuple[Expr, Expr, int]:
    """Return (varying, uniform, immediate) in bytes from the window's start.

    Dims of `leaving` that the bounds check catches, and dims in `together`, contribute no uniform part.
    """
    varying_only = {*together, *(d.name for d, is_caught in leaving if is_caught)}
    varying: Expr = ZERO
    uniform: Expr = ZERO
    imm = access.view.skew
    for dims in access.view.axes:
        for d in dims:
            at = window.position(d, positions[d.name])
            varying = add_exprs(varying, scale(at.varying, d.stride))
            if access.is_invariant(at.uniform) or d.name in varying_only:
                varying = add_exprs(varying, scale(at.uniform, d.stride))
            else:
                uniform = add_exprs(uniform, scale(at.uniform, d.stride))
            if isinstance(d.stride, int):
                imm += at.const * d.stride
            elif at.const:
                varying = add_exprs(varying, d.stride * at.const)
    if imm >= 1 << 31:
        spans = f"given {access.view.memory.name} of which one tile spans {imm} bytes and more"
        raise Unsupported(f"{spans}, wanted less than 2^31", rule="size")
    return varying, uniform, imm
