"""`taps=runs`: taps along a row of pixels and their channels as one dim, where memory has them side by side.

Under a window, the pixels of a row with all their channels are one run of memory, which starts `stride * channels`
elements further on for each position. A tap and a channel therefore become one number, `tap * channels + channel`, and
one dim of the product, padded to whole messages. A window may start inside a word; so that messages start at words of
memory, a run may have a `lead`, empty elements before its first one. Elements outside the image and in the padding of a
run are trimmed after the load (`passes/messages/partial_runs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Dim, RunView, SizedView, TensorDim, View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve
from convgen.ir.types import scalar
from convgen.passes.messages.linear import WORD, linearize
from convgen.plan.config import REGISTERS, Config
from convgen.plan.contraction import Joined, Product
from convgen.plan.loads import view_load
from convgen.plan.padding import window_coordinates
from convgen.plan.registers import Pipeline
from convgen.plan.variants.images import by_images, fill_rectangles
from convgen.plan.variants.variant import TILE_K, TILE_M, Choices, Form, Offer, Variant, stagings, tiles_n
from convgen.problem.matmul import Problem

#: share of a run; most padding by which its length becomes whole blocks, so that all lanes of a message trim alike.
#: By `convgen profile`, runs of 196 pixels take .92 of the time in chunks (2 % of padding) that they take in blocks
#: (31 %).
_MOST_PADDING = 1 / 8
_ROWS, _K = 0, 1  #: axes of a factor's view
_RUN = "run"
_GRIDS = ((3, 1, 1), (2, 4, 1))  #: subgroups; grids tried first, since the first wins ties in modelled clocks


def in_runs(product: Product, tile_k: int, facts: TargetFacts, axes: Sequence[int] = (1, 0)) -> Product:
    """Return the product with taps along rows and channels as runs; DoesNotFit where memory has none.

    The run is the shortest one of the factors' `axes` (0: rows, 1: K), the first of equally short ones.
    Runs along K are padded so that a block of `tile_k` holds whole runs, or a run whole blocks. A message of a run that
    starts inside a word loads one word more, possibly past the end of a buffer: with flat addresses windows get no such
    messages, and views without windows that would need them are loaded element by element.
    """
    side, axis, dims = _shortest_run(product, axes)
    views = product.of_n, product.of_m
    elem = views[side].memory.elem
    if elem.bytes > WORD:
        raise DoesNotFit(f"taps=runs: wanted elements of {WORD} bytes at most, {views[side].memory.name} has {elem}")
    chunk = max(1, facts.chunk_bytes // elem.bytes)
    best, widest = product, (1, True)
    for lead in range(max(1, WORD // elem.bytes)):
        size = lead + prod(d.size for d in dims)
        padded = _padded(size, tile_k, chunk) if axis == _K else -(-size // chunk) * chunk
        run = Dim(_RUN, size, padded)
        of_n, of_m, result = (
            _merged(view, dims, run, lead, windowed=view is views[side]) for view in (*views, product.result)
        )
        windowed = (of_n, of_m)[side]
        linear = linearize(windowed)
        message = max(n for n in _widths(chunk) if linear.makes_messages(n))
        score = message, not linear.is_skewed
        if score > widest and (facts.checks_bounds or not linear.is_skewed):
            if not facts.checks_bounds:
                of_n, of_m, result = map(_unskewed, (of_n, of_m, result))
            joined = Joined(_RUN, dims, lead, product.result.index)
            best, widest = evolve(product, of_n=of_n, of_m=of_m, result=result, joined=joined), score
    if widest[0] == 1:
        raise DoesNotFit(f"taps=runs: windows of {views[side].memory.name} have no messages of {WORD} bytes and more")
    return best


def _unskewed(view: View) -> View:
    """Return the view without messages of runs where these may start inside a word."""
    skewed = isinstance(view, RunView) and linearize(view).is_skewed
    return View(view.memory, view.layout, view.axes, view.index) if skewed else view


def _widths(most: int) -> Iterator[int]:
    """Yield the elements that a message may bring: a power of two, then its halves."""
    while most:
        yield most
        most //= 2


def _padded(size: int, tile_k: int, chunk: int) -> int:
    """Return the padded elements of a run: an even part of a block if one holds the run, else whole blocks.

    Where whole blocks would add too much to a run that no block on offer holds, blocks may hold parts of several runs,
    each padded to whole chunks.
    """
    for runs in range(tile_k // size, 0, -1):
        if tile_k % (runs * chunk) == 0:
            return tile_k // runs
    in_blocks = -(-size // tile_k) * tile_k
    is_short = size <= _longest_block(chunk) or in_blocks <= size * (1 + _MOST_PADDING)
    return in_blocks if is_short else -(-size // chunk) * chunk


def _longest_block(chunk: int) -> int:
    """Return the elements of the longest block of K on offer, for chunks of so many."""
    return TILE_K[-1] * max(1, chunk // 8)


def along_memory(view: View, axis: Sequence[Dim]) -> Iterator[tuple[Dim, ...]]:
    """Yield dims of an axis that are contiguous in memory: taps along a row, or taps and a pixel's channels.

    Blocked views, and views with sizes known only at launch, have none.
    """
    if isinstance(view, SizedView) or not view.layout.is_plain:
        return
    steps = view.layout.strides()
    alone = {t.terms: step for t, step in zip(view.index, steps)}
    in_one = ((d, alone[terms]) for d in axis if (terms := ((d.name, 1),)) in alone)
    channels = [d for d, step in in_one if step == 1 or d.size == 1]
    for n, t in window_coordinates(view).items():
        for taps in (d for d in axis if (d.name, 1) in t.terms):
            yield from ((taps, d) for d in channels if d.size == steps[n])
            if steps[n] == 1:
                yield (taps,)


def _shortest_run(product: Product, axes: Sequence[int]) -> tuple[int, int, tuple[Dim, ...]]:
    """Return the factor with windows, the one of `axes` with taps, and the dims that form a run there, innermost.

    Along the window's other axis are pixels, which outnumber taps: the shorter run is the taps.
    """
    runs = [
        (side, axis, dims)
        for side, view in enumerate((product.of_n, product.of_m))
        for axis in axes
        for dims in along_memory(view, view.axes[axis])
        if dims[0].size > 1 and view.axes[axis][-len(dims) :] == dims
    ]
    if not runs:
        raise DoesNotFit("taps=runs: wanted taps without dilation that are contiguous in memory")
    return min(runs, key=lambda each: prod(d.size for d in each[2]))


def _merged(view: View, dims: tuple[Dim, ...], run: Dim, lead: int, *, windowed: bool) -> View:
    """Return a view with one dim instead of neighbouring dims; DoesNotFit where they are apart in its memory."""
    names = [d.name for d in dims]
    if not any(d.name in names for axis in view.axes for d in axis):
        return view
    places = _side_by_side(view, dims)
    strides, tap, channels = view.layout.strides(), view.index[places[0]], prod(d.size for d in dims[1:])
    terms = tuple((run.name, 1) if name == names[0] else (name, coef * channels) for name, coef in tap.terms)
    masked = tap.masked or (lead > 0 and not windowed)
    merged = TensorDim(tap.size * channels, terms, tap.const * channels - lead, masked)
    others = [n for n in range(len(view.index)) if n not in places]
    index = [merged, *(view.index[n] for n in others)]
    steps = [strides[places[-1]], *(strides[n] for n in others)]
    if lead and windowed:
        index.append(TensorDim(run.size - lead, ((run.name, 1),), -lead, True))
        steps.append(0)
    axes = tuple(_replaced(axis, names, run) for axis in view.axes)
    return RunView(view.memory, Layout.strided((t.size for t in index), steps), axes, tuple(index))


def _side_by_side(view: View, dims: tuple[Dim, ...]) -> list[int]:
    """Return the number of each dim's coordinate; DoesNotFit unless taps and channels are side by side in memory."""
    at = {name: n for n, t in enumerate(view.index) for name, _ in t.terms if name in {d.name for d in dims}}
    if not view.layout.is_plain or isinstance(view, SizedView) or len(set(at.values())) < len(dims):
        raise DoesNotFit(f"taps=runs: {view.memory.name} has taps in blocks, or sizes known at launch")
    taps, *channels = dims
    places, strides, count = [at[d.name] for d in dims], view.layout.strides(), prod(d.size for d in channels)
    are_plain = all(view.index[at[d.name]] == TensorDim(d.size, ((d.name, 1),)) for d in channels)
    are_together = all(strides[places[0]] == count * strides[n] for n in places[1:])
    if dict(view.index[places[0]].terms)[taps.name] != 1 or not are_plain or not are_together:
        raise DoesNotFit(f"taps=runs: {view.memory.name} has channels and taps apart")
    return places


def _replaced(axis: tuple[Dim, ...], names: list[str], run: Dim) -> tuple[Dim, ...]:
    """Return an axis with one dim instead of neighbouring dims; DoesNotFit where it has them in another order."""
    if not any(d.name in names for d in axis):
        return axis
    if [d.name for d in axis[-len(names) :]] != names:
        raise DoesNotFit("taps=runs: wanted taps and channels innermost")
    return (*axis[: -len(names)], run)


class Runs(Variant):
    word = "runs"
    summary = "blocks of whole runs: taps along a row of pixels with their channels, as memory has them"
    packs_images = True
    trims = True

    def refusals(self, problem: Problem, config: Config, facts: TargetFacts) -> Iterator[str]:
        if not config.slots or {*config.paths} != {REGISTERS}:
            yield f"taps={self.word}: wanted copies through registers"
        if facts.message_alignment > WORD:
            yield f"taps={self.word}: wanted messages that begin at any word, {facts.name} aligns them"
        if any(scalar(tensor.dtype).bits < 8 for tensor in problem.factors):
            yield f"taps={self.word}: wanted elements of whole bytes"

    def in_runs(self, product: Product, tile_k: int, facts: TargetFacts) -> Product:
        """Return the product in this variant's runs; DoesNotFit where memory has none."""
        return in_runs(product, tile_k, facts)

    def product(self, plain: Product, config: Config, facts: TargetFacts) -> Product:
        """Return the product in runs; with images innermost where 2-D messages load packed runs that way."""
        tile_k = config.tile[2]
        joined = self.in_runs(plain, tile_k, facts)
        if not config.packed or not facts.planes or not fill_rectangles(plain.of_n, plain.of_m):
            return joined
        rows = [(d, view.memory.elem) for view in (joined.of_n, joined.of_m) for d in view.axes[0]]
        run_bytes = [d.padded * elem.bytes for d, elem in rows if joined.joined and d.name == joined.joined.name]
        return in_runs(by_images(plain), tile_k, facts) if any(n >= facts.planes.row for n in run_bytes) else joined

    def offers(self, form: Form, facts: TargetFacts) -> Iterator[Offer]:
        """Yield blocks of whole runs where messages get wider, padded to chunks or to powers of two."""
        if form.launches > 1 or form.merged or form.has_columns or form.is_sized or facts.message_alignment > WORD:
            return
        product = form.product
        views, chunk = (product.of_m, product.of_n), facts.chunk_bytes // product.of_m.memory.elem.bytes
        if any(view.memory.elem.bits < 8 for view in views):
            return
        widest = [view_load(view, facts).widest for view in views]
        for tile_k in range(chunk, _longest_block(chunk) + 1, chunk) if min(widest) < chunk else ():
            try:
                joined = self.in_runs(product, tile_k, facts)
            except DoesNotFit:
                return
            inner = joined.k_inner
            along_k = joined.of_m.extent(1) != product.of_m.extent(1)
            tight = inner.padded - inner.size < chunk and tile_k % inner.padded == 0
            wider = any(view_load(v, facts).widest > w for v, w in zip((joined.of_m, joined.of_n), widest))
            if wider and (tile_k & (tile_k - 1) == 0 or (along_k and tight)):
                sizes = joined.m, joined.n, joined.k // inner.padded, inner.padded
                yield Offer(form, *sizes, joined.of_m, joined.of_n, (self,), tile_k=tile_k)

    def choices(self, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> Choices:
        """Return the configs worth trying, with further workgroup shapes over which copies divide evenly.

        With few blocks, as in first layers forward, ties go to pipelines that make a loop of them: it is less code. In
        loops whose rounds are whole runs, the trimmed part of each message is known at compile time.
        """
        blocks = max(1, offer.inner // offer.tile_k) if offer.inner % offer.tile_k == 0 else 1
        tried = sorted(stagings(facts), key=lambda s: not Pipeline.of(partial(getattr, s)).loops(offer.outer * blocks))
        tried = [staging for staging in tried if staging.round % blocks == 0] or tried
        grids = (*_GRIDS, *tuning(facts).grids)
        return Choices(TILE_M, tiles_n(facts), (offer.tile_k,), grids, (self,), tuple(tried))


VARIANT = Runs()
