"""Tile kernels: functions that are traced for the tensors with which they are called."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit, UserError, named
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.stmt import TensorCopy
from convgen.passes.exchange import exchange
from convgen.plan.config import TENSOR
from convgen.tile.emit import emit
from convgen.tile.lane_products import FmaTile
from convgen.tile.layouts import Layouts, Options
from convgen.tile.printing import text_of
from convgen.tile.source import Line, line_of
from convgen.tile.tiles import Tensor, sized
from convgen.tile.trace import Trace, Value, tracing
from convgen.tile.unread import drop_unread

_SLOTS = (2, 1, 0)  #: numbers of slots that are tried if none is given


@frozen
class TileProgram:
    """A kernel for tensors of given shapes and types, for any target."""

    name: str
    tensors: tuple[Tensor, ...]
    trace: Trace
    options: Options

    def __str__(self) -> str:
        return text_of(self.name, self.tensors, self.trace, self.options)

    def kernel(self, facts: TargetFacts) -> Kernel:
        """Return the kernel's IR on a target. Raises UserError or Unsupported, one line, for what the target lacks."""
        return next(self.kernels(facts))

    def by_lanes(self, facts: TargetFacts) -> list[tuple[str, Line | None]]:
        """Return the products, with their lines, for which a target has no matrix instruction; none with mma="fma"."""
        if self.options.mma == "fma":
            return []
        layouts = Layouts(self.trace, facts, self.options)
        products = [v for v, op in layouts.tiles.items() if isinstance(op, FmaTile)]
        factors = [" by ".join(f"{sized(factor.shape)} {factor.elem}" for factor in (v.a, v.b)) for v in products]
        return [(f"tile_mma of {ab} into {v.elem}", self.trace.lines.get(v)) for v, ab in zip(products, factors)]

    def largest(self, facts: TargetFacts) -> str:
        """Return a sentence about the block that takes the most registers of a lane."""
        layouts = Layouts(self.trace, facts, self.options)

        def words(v: Value) -> int:
            return layouts.of[v].fragment.registers * v.elem.bits // 32

        block = max(layouts.of, key=words)
        at = self.trace.lines.get(block)
        where = f" at {at}" if at else ""
        return f"the block of {sized(block.shape)} {block.elem}{where} takes {words(block)} registers of a lane"

    def kernels(self, facts: TargetFacts) -> Iterator[Kernel]:
        """Yield the kernel, then variants to try if its registers do not suffice, best first.

        The variants have fewer slots, unless `slots` is given, then fragments that are read step by step along K.
        Raises UserError if none fits in shared memory.
        """
        needed, fits = 0, False
        slots_to_try = _SLOTS if self.options.slots is None else (self.options.slots,)
        # Reading step by step saves registers only where the scheduler keeps the order of statements.
        by_steps_to_try = (False,) if facts.core.reorders else (False, True)
        # Exchanges between lanes take shared memory; where that does not suffice, a kernel does without them.
        wide_to_try = (True, False) if tuning(facts).exchanged_message else (False,)
        for by_steps, slots in itertools.product(by_steps_to_try, slots_to_try):
            for wide in wide_to_try:
                kernel = self._emitted(facts, slots=slots, by_steps=by_steps, wide=wide)
                needed = exchange(kernel, facts).shared_bytes
                if needed <= facts.shared_bytes:
                    fits = True
                    yield kernel
                    break
        if not fits:
            given = f"given {self.name} that takes {needed} bytes of shared memory"
            raise UserError(f"{given}, wanted at most {facts.shared_bytes} on {facts.name}, from smaller blocks")

    def _emitted(self, facts: TargetFacts, **changes: Any) -> Kernel:
        """Return the kernel with some options changed.

        Instructions read factors in shared memory only where copies bring all of them.
        """
        options = evolve(self.options, **changes)
        if options.copy == TENSOR:
            return self._with_bulk_copies(facts, options)
        with suppress(DoesNotFit):
            return emit(self.name, self.trace, self.tensors, options, facts)
        return emit(self.name, self.trace, self.tensors, evolve(options, in_place=False), facts)

    def _with_bulk_copies(self, facts: TargetFacts, options: Options) -> Kernel:
        """Return the kernel whose factors come by bulk copies. Raises UserError where none brings one."""
        if facts.roles is None:
            raise UserError(f"given copy={TENSOR!r}, wanted a target with bulk copies of tensors, not {facts.name}")
        given = f"given copy={TENSOR!r}, wanted factors that bulk copies bring"
        try:
            kernel = emit(self.name, self.trace, self.tensors, options, facts)
        except DoesNotFit as error:
            raise UserError(f"{given}: {error}") from None
        if not any(isinstance(s, TensorCopy) for s in statements(kernel.body)):
            raise UserError(f"{given}: {self.name} has no factor in shared memory, with slots={options.slots}")
        return kernel


@frozen
class TileKernel:
    """A function of tensors and, by keyword, of numbers."""

    function: Callable[..., None]
    options: Options

    def __call__(self, *tensors: Tensor, **numbers: Any) -> TileProgram:
        """Return the program for these tensors. Raises UserError where arguments do not suit the function."""
        name = self.function.__name__
        names = [p.name for p in inspect.signature(self.function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        _check_tensors(name, names, tensors)
        _check_numbers(self.function, numbers)
        described = tuple(evolve(t, name=n) for t, n in zip(tensors, names))
        with tracing() as trace:
            self._traced(described, numbers)
        if len(trace.suites) != 1:
            raise UserError(f"given a break or return out of tile.range, wanted loops that run to their end, at {name}")
        drop_unread(trace.statements)
        return TileProgram(name, described, trace, self.options)

    def _traced(self, tensors: Sequence[Tensor], numbers: Mapping[str, Any]) -> None:
        """Run the function; errors name its line."""
        try:
            self.function(*tensors, **numbers)
        except UserError as error:
            at = line_of(error, self.function.__code__.co_filename)
            raise UserError(f"{error}, in {at}" if at else str(error)) from error


def kernel(
    *arguments: object,
    subgroups: tuple[int, int] = (1, 1),
    slots: int | None = None,
    mma: str = "",
    acc: str = "",
    copy: str = "",
) -> Callable[[Callable[..., None]], TileKernel]:
    """Turn a function into a tile kernel.

    `subgroups` are those along M and N of products. `slots` are buffers in shared memory for factors that products
    share, 0 for none; by default two, or as many as fit. `mma` is NxMxK of a matrix instruction, by default the first
    that fits, or "fma" for none. `acc` is where sums live, "v" or "a". With `copy="tensor"` a further subgroup starts
    bulk copies of the factors into a ring of slots, where the target has them; by default all subgroups copy.
    """
    if arguments:
        raise UserError("given tile.kernel without parentheses, wanted @tile.kernel(), or with subgroups=(2, 2)")
    chosen = options(subgroups, slots, mma, acc, copy)

    def decorate(function: Callable[..., None]) -> TileKernel:
        if not callable(function) or getattr(function, "__name__", "<lambda>") == "<lambda>":
            raise UserError("given a lambda, wanted a function with a name, def NAME(a, b, c): ..., at tile.kernel")
        return TileKernel(function, chosen)

    return decorate


def _check_tensors(name: str, names: Sequence[str], given: Sequence[object]) -> None:
    """Raise UserError unless there is a tensor description for each parameter."""
    wanted = f"{name}({', '.join(['Tensor(shape, dtype)'] * len(names))})"
    wrong = [(n, value) for n, value in zip(names, given) if not isinstance(value, Tensor)]
    if wrong and all(hasattr(value, "__array__") for _, value in wrong):
        arrays = ", ".join(n for n, _ in wrong)
        message = f"given arrays for {arrays}, wanted their descriptions, {wanted}; arrays go to cg.simulate or cg.load"
        raise UserError(f"{message}, at {name}")
    if wrong:
        n, value = wrong[0]
        raise UserError(f"given {n} of type {type(value).__name__}, wanted a Tensor, {wanted}, at {name}")
    if len(given) != len(names):
        listed = f"the tensors {', '.join(names)}" + ("; numbers go by keyword" if len(given) > len(names) else "")
        raise UserError(f"given {len(given)} arguments, wanted {listed}, at {name}")


def _check_numbers(function: Callable[..., None], given: Mapping[str, object]) -> None:
    """Raise UserError unless the keywords are parameters of the function, and those without a default are given."""
    parameters = inspect.signature(function).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    missing = [n for n, p in known.items() if p.default is p.empty and n not in given]
    unknown = [n for n in given if n not in known]
    if missing or unknown:
        wrong = f"{named(unknown[0], known)}" if unknown else f"no {missing[0]}"
        wanted = f"wanted {', '.join(f'{n}=' for n in known)}" if known else "wanted no keywords"
        raise UserError(f"given {wrong}, {wanted}, at {function.__name__}")


def options(
    subgroups: tuple[int, ...] = (1, 1), slots: int | None = None, mma: str = "", acc: str = "", copy: str = ""
) -> Options:
    """Return the options of a kernel's workgroups. Raises UserError for impossible values."""
    if not isinstance(subgroups, tuple | list) or not all(isinstance(n, int) for n in subgroups):
        raise UserError(f"given subgroups={subgroups!r}, wanted their numbers along M and N, (2, 2), at tile.kernel")
    if len(subgroups) != 2 or min(subgroups) < 1 or slots not in (None, 0, 1, 2, 3, 4) or acc not in ("", "v", "a"):
        given = f"given subgroups={subgroups} slots={slots} acc={acc!r}"
        raise UserError(f"{given}, wanted subgroups from 1, slots of 0 to 4 and acc of v or a, at tile.kernel")
    if copy not in ("", TENSOR):
        raise UserError(f"given copy={copy!r}, wanted {TENSOR!r}, or none for copies by all subgroups, at tile.kernel")
    return Options((subgroups[0], subgroups[1]), slots, mma, acc, copy)
