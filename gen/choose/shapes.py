"""What there is to choose from: the products that a problem may become, and for each its tiles, orders and ways."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import RunView, View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, scalar
from convgen.passes.messages.linear import WORD, linearize
from convgen.passes.messages.planes import is_plane, rectangle_of
from convgen.plan.atoms import converted
from convgen.plan.config import (
    APART,
    CHUNK,
    COLUMNS,
    DIRECT,
    FUSED,
    IMAGES,
    LINES,
    MERGED,
    RESIDENT,
    RUNS,
    SPLIT,
    Config,
    Way,
)
from convgen.plan.contraction import Product, reordered
from convgen.plan.copies import ROWS, K, comes_as_rectangles, is_turned, message_elems, rows_evenly
from convgen.plan.directions import have_columns
from convgen.plan.images import are_worth
from convgen.plan.lines import in_lines
from convgen.plan.packing import packed
from convgen.plan.padding import has_whole_pairs, windows
from convgen.plan.registers import Pipeline
from convgen.plan.resident import Resident, resident
from convgen.plan.runs import in_runs
from convgen.plan.views import must_move, products
from convgen.problem.matmul import Problem

TILE_K = (16, 32, 64)  #: of 8-bit elements twice as many, so that rows are as long as those of 16-bit ones
_TILE_M = (32, 64, 96, 128, 192, 256)
_MORE_ROWS = (384, 512)  #: of resident windows, of which each tile reads as many rows around its own
_TILE_N = (16, 32, 64, 96, 128, 192, 256)

_GRIDS_OF_RUNS = ((3, 1, 1), (2, 4, 1))  #: subgroups; that win ties of runs, by the same
_MOST_COLUMNS = 128  #: columns of all phases; more fill tiles as well by themselves
_LEAST_RESIDENT = 4  #: taps of windows that may be resident in shared memory: fewer read little again
_MOST_MERGED = 9  #: products in one grid: phases of strides of 3 x 3 or 2 x 2 x 2, each code of its own in the kernel


#: Of windows that are resident, whose slots are large and whose blocks take long; the first wins ties.
_HELD = (Way(1), Way(2))
_STRAIGHT = Way(0, prefetch=3)  #: as oneDNN's convolutions for XeHPC have it


@frozen
class OperandLoad:
    """Elements that one load of an operand brings at most, and whether it runs along K."""

    widest: int
    along_k: bool
    as_rectangles: bool = False  #: whether such of memory come at once, which few instructions find and none turns
    by_reads: bool = False  #: whether chunks along rows are turned when they are read; if lanes share them out evenly
    trimmed: bool = False  #: whether messages bring runs, of which they leave a part out

    def upto(self, chunk: int) -> OperandLoad:
        """The same where lanes take chunks of so many elements along K."""
        along_k = self.along_k and not self.by_reads
        return evolve(self, widest=min(self.widest, chunk)) if along_k else self

    def messages(self, rows: int, k: int, lanes: int, elem_bytes: int) -> float:
        """Loads of each lane for a tile of rows x k."""
        share = rows * k / lanes
        if self.along_k and not (self.by_reads and share % self.widest):
            return share / self.widest
        return share / rows_evenly(self.widest, int(share), elem_bytes)


@frozen
class Shape:
    """The problem as a product: M x N outputs; K is `outer` runs of `inner` elements."""

    m: int
    n: int
    outer: int
    inner: int
    parts: int  #: number of launches of such products, one after the other
    batch: int  #: number of such products in one launch
    of_m: View
    of_n: View
    result: Type  #: of its elements
    grids: str = APART  #: of the launches of several products
    phases: str = APART  #: of strides, in products of their own or as columns of one
    windows: Resident | None = None  #: those that are resident in shared memory, if any are
    runs: int = 0  #: elements; with taps and channels as runs, of such blocks of K
    lines: bool = False  #: whether taps and channels are lines of whole chunks
    packed: tuple[str, ...] = ()  #: inputs that a launch before lays out as the product reads them
    before: float = 0.0  #: clocks; of those launches
    #: M, N and runs of K of each product in one grid, those of most work first, where there are several.
    merged: tuple[tuple[int, int, int], ...] = ()

    def types(self, atom: MmaAtom) -> tuple[str, ...]:
        """How a config writes the types that an instruction multiplies."""
        return converted((self.of_n.memory.elem, self.of_m.memory.elem), atom)

    def loads(self, atom: MmaAtom, facts: TargetFacts) -> tuple[OperandLoad, OperandLoad]:
        """How M's and N's operands are loaded."""
        return _fragment_load(self.of_m, atom.b, facts), _fragment_load(self.of_n, atom.a, facts)

    def makes(self, config: Config) -> bool:
        """Whether configs of this shape are like one that is given."""
        same = (self.grids, self.phases, self.packed) == (config.grids, config.phases, config.packed)
        in_runs = self.runs == (config.tile[2] if config.taps == RUNS else 0)
        as_said = (self.windows is not None, self.lines) == (config.taps == RESIDENT, config.taps == LINES)
        return same and in_runs and as_said


@frozen
class Choices:
    """All that one may combine: sizes of tiles, grids of subgroups, orders of K, ways of the operands."""

    tiles_m: tuple[int, ...]
    tiles_n: tuple[int, ...]
    tiles_k: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]
    k_orders: tuple[str, ...]
    ways: tuple[Way, ...]


def choices(shape: Shape, atom: MmaAtom, facts: TargetFacts) -> Choices:
    """What suits a product; one whose windows are resident or whose taps are runs has an order of K of its own."""
    elem, types = atom.elem_bytes, shape.types(atom)
    chunk, tiles_k = facts.chunk_bytes // elem, _tiles_k(atom, facts)
    grids = facts.core.grids
    if shape.windows:
        depths = (k for k in tiles_k if k % atom.k == 0 and shape.inner % k == 0)
        tiles_k = tuple(k * len(shape.windows.taps) for k in depths)
        return Choices(_TILE_M + _MORE_ROWS, _TILE_N, tiles_k, grids, (RESIDENT,), () if types else _HELD)
    if shape.runs:  # copies come out even over other workgroups, too
        blocks = max(1, shape.inner // shape.runs)
        # Of few blocks, as first layers forward have, those win ties that make a loop of them: it is less code.
        ways = sorted(_ways(facts), key=lambda way: not Pipeline.of(partial(getattr, way)).loops(shape.outer * blocks))
        # In loops that go round in whole runs it is known beforehand what is trimmed of a message.
        ways = [way for way in ways if way.round % blocks == 0] or ways
        return Choices(_TILE_M, _TILE_N, (shape.runs,), (*_GRIDS_OF_RUNS, *grids), (RUNS,), tuple(ways))
    if shape.lines:
        return Choices(_TILE_M, _TILE_N, tiles_k, grids, (LINES,), _ways(facts))
    loads = shape.loads(atom, facts)
    orders = _k_orders(shape, loads, tiles_k[-1], chunk, facts)
    if not any(load.along_k or load.by_reads for load in loads):
        tiles_k = tuple(dict.fromkeys((*tiles_k, *(row // elem for row in facts.core.turned_rows))))
    through = _ways(facts, direct=not types and _come_without_registers(loads, elem, facts))
    straight = (_STRAIGHT,) if _comes_as_fragments(shape, atom, facts) else ()
    return Choices(_TILE_M, _TILE_N, tiles_k, grids, orders, through + straight)


def _ways(facts: TargetFacts, *, direct: bool = False) -> tuple[Way, ...]:
    """Ways through shared memory that are worth a try, those without registers where operands may come so."""
    pipelines = (p for p in facts.core.pipelines if p[1] or direct)
    return tuple(Way(slots, stages) if stages else Way(slots, copy=(DIRECT,)) for slots, stages in pipelines)


def _k_orders(
    shape: Shape, loads: Iterable[OperandLoad], deepest: int, chunk: int, facts: TargetFacts
) -> tuple[str, ...]:
    """Ways to cut K. By images alone where offsets of surfaces say for all lanes where their pixel is."""
    turned = all(load.by_reads or not load.along_k for load in loads)
    if facts.surfaces and turned and are_worth(shape.of_n, shape.of_m):
        return (IMAGES,)
    orders = (SPLIT,) if shape.inner % deepest == 0 else (SPLIT, FUSED)
    return (*orders, CHUNK) if shape.inner % chunk else orders


def _tiles_k(atom: MmaAtom, facts: TargetFacts) -> tuple[int, ...]:
    return tuple(2 * k for k in TILE_K) + facts.core.byte_rows if atom.elem_bytes == 1 else TILE_K


def _come_without_registers(loads: Iterable[OperandLoad], elem_bytes: int, facts: TargetFacts) -> bool:
    """Whether messages are as wide as a chunk, along K."""
    whole = facts.chunk_bytes in facts.direct_widths
    return whole and all(load.along_k and load.widest * elem_bytes == facts.chunk_bytes for load in loads)


def _comes_as_fragments(shape: Shape, atom: MmaAtom, facts: TargetFacts) -> bool:
    """Whether both operands come as the instruction reads them, in rectangles, and can be brought nearer before.

    Of one plane each: every lane tile's subgroup would have to find out where those begin that move.
    """
    operands = (shape.of_m, atom.b), (shape.of_n, atom.a)
    return facts.prefetch and all(
        is_plane(linearize(view), facts.planes) and _is_rectangles(view, fragment, facts) for view, fragment in operands
    )


@lru_cache(maxsize=2**10)
def _is_rectangles(view: View, fragment: Fragment, facts: TargetFacts) -> bool:
    return rectangle_of(linearize(view), fragment, facts) is not None


@lru_cache(maxsize=2**10)
def _fragment_load(view: View, fragment: Fragment, facts: TargetFacts) -> OperandLoad:
    """How an operand of an instruction is loaded: whole chunks if it comes as rectangles, or is turned when read."""
    linear, chunk = linearize(view), facts.chunk_bytes // view.memory.elem.bytes
    if is_plane(linear, facts.planes) or comes_as_rectangles(linear, fragment, facts):
        return OperandLoad(chunk, True, as_rectangles=True)
    if is_turned(view, view.memory.elem, fragment, facts):
        return OperandLoad(chunk, True, by_reads=True)
    return _load(view, facts)


def _load(view: View, facts: TargetFacts) -> OperandLoad:
    along_k, along_rows = (message_elems(view, facts.chunk_bytes, axis) for axis in (K, ROWS))
    return OperandLoad(max(along_k, along_rows), along_k >= along_rows, trimmed=isinstance(view, RunView))


# ---------------------------------------------------------------- products


def shapes(problem: Problem, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[Shape]:
    """The products that a problem may become, and the same with weights packed where their loads are narrow."""
    for shape in _shapes(problem, facts, moved):
        yield shape
        yield from _packed(shape, problem, facts)


def _packed(shape: Shape, problem: Problem, facts: TargetFacts) -> Iterator[Shape]:
    """The same with inputs packed, if no launch moved them: weights that lanes load in less than a word otherwise, and
    with them, or alone, what is read in runs or lines where addresses are flat. Surfaces bound what reaches outside.
    """
    if shape.parts > 1 or shape.merged:
        return
    whole = {t.name for t in problem.factors if scalar(t.dtype).bits >= 8}
    given = [view for view in (shape.of_n, shape.of_m) if view.memory.name in whole]
    in_image = facts.flat and (shape.runs or shape.lines)
    runs = tuple(view for view in given if in_image and windows(view))
    weights = tuple(view for view in given[:1] if view is shape.of_n and _is_narrow(view, facts))
    for views in filter(None, dict.fromkeys((weights, runs, (*weights, *runs)))):
        with suppress(DoesNotFit):
            yield _with_packed(shape, {view.memory.name: view for view in views}, problem, facts)


def _is_narrow(view: View, facts: TargetFacts) -> bool:
    """Whether weights are loaded in less than words."""
    return view.memory.name == "wei" and _load(view, facts).widest * view.memory.elem.bits < 8 * WORD


def _with_packed(shape: Shape, views: Mapping[str, View], problem: Problem, facts: TargetFacts) -> Shape:
    """The same with some inputs packed; DoesNotFit where one is not, or has been moved."""
    chunk = facts.chunk_bytes // shape.of_m.memory.elem.bytes if shape.runs or shape.lines else 0
    found = {name: packed(v, "", (v.extent(0), v.extent(1)), image_of=chunk) for name, v in views.items()}
    read = sum(problem.tensor(name).layout.size_elems * p.seen.memory.elem.bytes for name, p in found.items())
    moved = read + sum(p.seen.memory.bytes for p in found.values())
    of_n, of_m = (found[v.memory.name].seen if v.memory.name in found else v for v in (shape.of_n, shape.of_m))
    before = _streaming(1, moved, facts)
    return evolve(shape, of_n=of_n, of_m=of_m, packed=tuple(sorted(found)), before=before)


def _shapes(problem: Problem, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[Shape]:
    """The largest product of the problem, if it has one; few products in one grid; and phases of few channels as
    columns of one.
    """
    parts = products(problem, 1, moved)
    if not parts:
        return
    largest = max(parts, key=lambda p: p.m * p.n * p.k)
    yield (apart := _shape(largest, len(parts)))
    if len(parts) == 1:
        yield from _in_rows(largest, problem, facts)
    if have_columns(problem):
        (joined,) = products(problem, 1, moved, COLUMNS)
        if joined.n <= _MOST_COLUMNS and has_whole_pairs(joined):
            yield evolve(_shape(joined, 1), phases=COLUMNS)
            yield from (evolve(each, phases=COLUMNS) for each in _in_rows(joined, problem, facts))
    if 1 < len(parts) <= _MOST_MERGED and not problem.runtime:
        sizes = sorted(((part.m, part.n, part.k // apart.inner) for part in parts), key=lambda size: -size[2])
        yield evolve(apart, parts=1, grids=MERGED, merged=tuple(sizes))
    if len(parts) == 1 and not problem.runtime:
        yield from (runs := tuple(_as_runs(apart, largest, facts)))
        yield from () if runs or facts.surfaces else _in_lines(largest, facts)


def _shape(part: Product, parts: int) -> Shape:
    """That of a product, the largest of so many."""
    inner, result = part.k_inner.size, part.result.memory.elem
    return Shape(part.m, part.n, part.k // inner, inner, parts, part.batch, part.of_m, part.of_n, result)


def _as_runs(shape: Shape, product: Product, facts: TargetFacts) -> Iterator[Shape]:
    """The same with taps and channels as runs, if messages are wider then; along K with blocks of whole runs.

    These are padded to chunks or, as blocks are, to a power of two. Elements have whole bytes.
    """
    views, chunk = (product.of_m, product.of_n), facts.chunk_bytes // product.of_m.memory.elem.bytes
    if any(view.memory.elem.bits < 8 for view in views):
        return
    widest = [_load(view, facts).widest for view in views]
    longest = TILE_K[-1] * max(1, chunk // 8)
    for tile_k in range(chunk, longest + 1, chunk) if min(widest) < chunk else ():
        try:
            found = in_runs(product, tile_k, facts)
        except DoesNotFit:
            return
        inner = found.k_inner
        along_k = found.of_m.extent(1) != product.of_m.extent(1)
        tight = inner.padded - inner.size < chunk and tile_k % inner.padded == 0
        wider = any(_load(v, facts).widest > now for v, now in zip((found.of_m, found.of_n), widest))
        if wider and (tile_k & (tile_k - 1) == 0 or (along_k and tight)):
            sizes = found.m, found.n, found.k // inner.padded, inner.padded
            of = found.of_m, found.of_n, shape.result
            yield Shape(*sizes, shape.parts, shape.batch, *of, shape.grids, runs=tile_k)


def _in_lines(part: Product, facts: TargetFacts) -> Iterator[Shape]:
    """The same in lines, where lanes would load pixels in less than words. Images hold them, so that only such as these
    are worth it.
    """
    if min(_load(view, facts).widest * view.memory.elem.bytes for view in (part.of_m, part.of_n)) < WORD:
        with suppress(DoesNotFit):
            yield evolve(_shape(in_lines(part, facts), 1), lines=True)


def _in_rows(part: Product, problem: Problem, facts: TargetFacts) -> Iterator[Shape]:
    """That of a product whose windows can be resident, where they have taps enough to be worth it."""
    taps = prod(d.size for d in part.of_m.axes[1][:-1])
    if problem.runtime or taps < _LEAST_RESIDENT:
        return
    with suppress(DoesNotFit):
        found = resident(part, part.k, facts.planes)
        yield evolve(_shape(part, 1), m=found.product.m, windows=found)


# ---------------------------------------------------------------- inputs that are moved before


def reorders(problem: Problem, facts: TargetFacts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Sets of inputs worth reordering, with the clocks that takes: those that must be; where one is read element by
    element, all that are not in their default layout, for the order of K follows memory.
    """
    least = must_move(problem)
    yield least, _moving(problem, least, facts)
    if all(
        _load(view, facts).widest > 1 for part in products(problem, 1, least)[:1] for view in (part.of_m, part.of_n)
    ):
        return
    whole = [t for t in problem.factors if scalar(t.dtype).bits >= 8]  # parts of bytes are not moved
    elsewhere = tuple(t.name for t in whole if reordered(problem, t.name).layout != t.layout)
    if elsewhere != least:
        yield elsewhere, _moving(problem, elsewhere, facts)


def _moving(problem: Problem, names: Collection[str], facts: TargetFacts) -> float:
    """Clocks that reordering inputs takes."""
    traffic = sum(2 * t.layout.size_elems * scalar(t.dtype).bytes for t in problem.factors if t.name in names)
    return _streaming(len(names), traffic, facts)


def _streaming(launches: int, traffic: int, facts: TargetFacts) -> float:
    """Clocks of so many launches that read and write so many bytes in all."""
    return launches * facts.costs.launch + traffic / (facts.compute_units * facts.costs.stream_rate)
