"""Compare two kernels: differing config words, their consequences, and the waits that make the time differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from convgen.backends.analysis import KernelAnalysis
from convgen.backends.timing import KernelProfile, LoopProfile, TimedLine
from convgen.explain import words
from convgen.explain.subject import Subject
from convgen.ir.record import frozen
from convgen.profile.launch_times import LaunchTime
from convgen.show import listing

_ALIKE = 0.005  #: share by which numbers that count as equal differ at most
_WAITS = 4  #: kinds of instructions whose stalls are reported

_REGISTERS, _ACCUMULATORS = "registers", "accumulators"  #: stand for the classes of registers in a family's terms

#: Word of a config -> what it decides first, by the names of `Side.numbers`, and classes of registers.
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "tile": ("workgroups", "FLOP of an iteration", "bytes of an iteration", "shared bytes", _REGISTERS, _ACCUMULATORS),
    "waves": ("threads", _REGISTERS, _ACCUMULATORS, "bytes of an iteration"),
    "mma": ("loop instructions", "FLOP of an iteration", "clocks a kFLOP"),
    "slots": ("shared bytes", "workgroups of a unit"),
    "stages": (_REGISTERS, "workgroups of a unit"),
    "taps": ("loop instructions", _REGISTERS),
    "acc": (_REGISTERS, _ACCUMULATORS, "workgroups of a unit"),
    "slices": ("workgroups", "launches"),
    "subtiles": (_REGISTERS, "workgroups of a unit"),
    "prefetch": ("loop instructions",),
    "reorder": ("launches",),
    "packed": ("launches", "loop instructions"),
    "sum": ("launches",),
    "map": ("L2 hits, %", "MiB from memory"),
    "in": ("clocks a kFLOP", "loop instructions"),
    "grids": ("launches", "code bytes"),
    "phases": ("launches", "workgroups"),
    "pixels": ("loop instructions", _REGISTERS),
    "groups": ("workgroups", "FLOP of an iteration", _ACCUMULATORS),
    "copy": ("loop instructions", _REGISTERS, "shared bytes"),
    "padding": ("code bytes", _REGISTERS),
}


@frozen(eq=False, slots=False)
class Side:
    """One of the two subjects, by its main kernel: the one with the longest launch, else with the most matrix work."""

    letter: str
    subject: Subject

    @property
    def name(self) -> str:
        return self.subject.name

    @cached_property
    def kernel(self) -> KernelAnalysis | None:
        if self.subject.analysis is None:
            return None
        kernels = self.subject.analysis.kernels
        if self.subject.times is not None:
            main = self.subject.times.longest.profile.kernel
            return next(k for k in kernels if k.name == main)
        return max(kernels, key=lambda k: k.hot.flop)

    @cached_property
    def launch(self) -> LaunchTime | None:
        return self.subject.times.longest if self.subject.times else None

    @cached_property
    def loop(self) -> LoopProfile | None:
        """Return the loop with as many workgroups as a unit holds, if no launch was timed."""
        return self._kernel_profile.loops[-1] if self._kernel_profile else None

    @property
    def _kernel_profile(self) -> KernelProfile | None:
        return next((k for k in self.subject.loops if self.kernel and k.name == self.kernel.name), None)

    @property
    def bound(self) -> str:
        return self.launch.bound if self.launch else self.loop.bound if self.loop else ""

    @property
    def timed(self) -> Sequence[TimedLine]:
        return self.subject.timed(self.kernel.name) if self.kernel else ()

    @cached_property
    def config(self) -> dict[str, str]:
        """Return the words of the config; none for a kernel that is not convgen's."""
        if self.subject.generated is None:
            return {}
        return {name: value for name, value, _ in words.config_words(self.subject.generated.longest.plan.config)}

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Return the numbers to compare, by name; names contain the unit."""
        return {**_known(self._of_time()), **self.of_kernel}

    def _of_time(self) -> Iterator[tuple[str, float | None]]:
        if self.subject.times is not None:
            assert self.launch is not None
            profile, moved = self.launch.profile, self.launch.profile.moved
            unit = profile.units[profile.full]
            yield "time, us", self.subject.times.total
            yield "launches", len(self.subject.times.launches)
            yield "workgroups", profile.workgroups
            yield "threads", profile.threads
            yield "workgroups of a unit", min(profile.resident.values())
            yield "clocks of them", unit.clocks
            yield "instructions of a wave", profile.instructions
            yield "L1 hits, %", round(100 * moved.l1_hits, 2)
            yield "L2 hits, %", round(100 * moved.l2_hits, 2)
            yield "MiB from memory", moved.memory / (1 << 20)
            for pipe, clocks in unit.busy.items():
                yield f"{pipe} busy, %", 100 * clocks / unit.clocks
        elif self.loop is not None:
            assert self._kernel_profile is not None
            yield "threads", self._kernel_profile.threads
            yield "workgroups of a unit", self._kernel_profile.resident
            yield "clocks of an iteration", self.loop.clocks
            if flop := self._kernel_profile.flop:
                yield "clocks a kFLOP", 1e3 * self.loop.clocks / (flop * self.loop.groups)
            for pipe, clocks in self.loop.busy.items():
                yield f"{pipe} busy, %", 100 * clocks / self.loop.clocks

    @cached_property
    def of_kernel(self) -> dict[str, float]:
        """Return the numbers of the code object, which do not depend on how it is timed."""
        return _known(self._of_kernel())

    def _of_kernel(self) -> Iterator[tuple[str, float | None]]:
        if self.kernel is None:
            return
        yield from self.kernel.registers.items()
        yield "shared bytes", self.kernel.shared_bytes
        yield "code bytes", self.kernel.code_bytes or None
        hot = self.kernel.hot
        if self.has_loop:
            yield "loop instructions", len(hot.lines)
            yield "FLOP of an iteration", hot.flop
            yield "bytes of an iteration", sum(n for path, n in hot.bytes.items() if path.startswith("global"))

    @property
    def has_loop(self) -> bool:
        """Return whether the kernel has a hot loop, which was executed if any instruction was."""
        return self.kernel is not None and listing.enters_loop(self.kernel, self.timed)

    def mix(self, *, of_loop: bool) -> dict[str, float]:
        """Return the number of instructions by kind: of an iteration of the hot loop, or that a subgroup executed."""
        if self.kernel is None:
            return {}
        if of_loop:
            return {kind: float(count) for kind, count in self.kernel.hot.mix.items()}
        return self._by_kind(lambda timed: timed.times, least=1e-9)

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Return the clocks that a subgroup stalls, by kind of instruction."""
        return self._by_kind(lambda timed: timed.stalled, least=0.5)

    def _by_kind(self, amount: Callable[[TimedLine], float], *, least: float) -> dict[str, float]:
        """Return the sums of an amount by kind of instruction, without those below `least`."""
        sums: dict[str, float] = {}
        for timed in self.timed:
            sums[timed.line.kind] = sums.get(timed.line.kind, 0.0) + amount(timed)
        return {kind: total for kind, total in sums.items() if total >= least}


@frozen(eq=False)
class Difference:
    """The difference of two kernels."""

    a: Side
    b: Side

    @classmethod
    def of(cls, a: Subject, b: Subject) -> Difference:
        """Compare two subjects: by launches if both were timed, else by their loops if both have one."""
        sides = Side("A", a), Side("B", b)
        if (a.times is None) != (b.times is None) and all(side.has_loop for side in sides):
            sides = Side("A", a.by_loops if a.times else a), Side("B", b.by_loops if b.times else b)
        return cls(*sides)

    @property
    def is_comparable(self) -> bool:
        """Return whether both sides' clocks are of subgroups of a launch, or both of an iteration."""
        return (self.a.launch is None) == (self.b.launch is None)

    @property
    def is_same(self) -> bool:
        """Return whether both sides have equal instructions."""
        a, b = (side.kernel and side.kernel.lines for side in (self.a, self.b))
        return a is not None and a == b

    def config(self) -> list[tuple[str, str, str]]:
        """Return the words that differ, with the value of each side."""
        a, b = self.a.config, self.b.config
        names = dict.fromkeys((*a, *b)) if a and b else ()
        rows = ((n, a.get(n) or words.default(n), b.get(n) or words.default(n)) for n in names)
        return [row for row in rows if row[1] != row[2]]

    def numbers(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the numbers of both sides by name; times only if both are of a launch, or both of a loop."""
        if self.is_comparable:
            return _side_by_side(self.a.numbers, self.b.numbers)
        return _side_by_side(self.a.of_kernel, self.b.of_kernel)

    @property
    def has_loops(self) -> bool:
        return self.a.has_loop and self.b.has_loop

    def mix(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the instructions by kind of both sides: of loops if both have one, else of subgroups."""
        return _side_by_side(*(side.mix(of_loop=self.has_loops) for side in (self.a, self.b)))

    def stalls(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the stalls by kind of both sides; kinds that differ most come first."""
        stalls = _side_by_side(self.a.stalls, self.b.stalls)
        return dict(sorted(stalls.items(), key=lambda row: -abs((row[1][1] or 0) - (row[1][0] or 0))))

    @property
    def subgroup(self) -> str:
        """Return the vendor's word for a subgroup, by A's family."""
        return self.a.subject.analysis.terms.subgroup if self.a.subject.analysis else "subgroup"

    # ------------------------------------------------------------ in words

    def sentences(self) -> list[str]:
        """Return the differences as sentences: the config, its consequences, then the time and the waits."""
        if self.is_same:
            return ["Both have the same instructions."]
        return [*self._of_config(), *self._of_time(), *self._of_waits()]

    def _of_config(self) -> Iterator[str]:
        reported: set[str] = set()
        if self.a.subject.target != self.b.subject.target:
            yield f"A is for {self.a.subject.target}, B for {self.b.subject.target}."
        for word, a, b in self.config():
            names = list(self._follows(word))
            changes = [text for name in names if name not in reported and (text := self._changed(name))]
            reported |= set(names)
            consequence = f" With it change: {'; '.join(changes)}." if changes else ""
            yield f"{word} is {a} in A and {b} in B ({words.MEANINGS[word]}).{consequence}"

    def _follows(self, word: str) -> Iterator[str]:
        """Yield the numbers that a word of the config decides first; registers by the classes of both families."""
        terms = [side.subject.analysis.terms for side in (self.a, self.b) if side.subject.analysis is not None]
        for name in _FOLLOWS[word]:
            if name == _REGISTERS:
                yield from dict.fromkeys(kind for each in terms for kind in each.registers)
            elif name == _ACCUMULATORS:
                yield from dict.fromkeys(kind for each in terms for kind in each.accumulators)
            else:
                yield name

    def _changed(self, name: str) -> str:
        """Return the values of a number if it differs, else ""."""
        a, b = self._values(name)
        return "" if a is None or b is None or _is_alike(a, b) else f"{name} {shown(a)} to {shown(b)}"

    def _values(self, name: str) -> tuple[float | None, float | None]:
        return self.a.numbers.get(name), self.b.numbers.get(name)

    def _of_time(self) -> Iterator[str]:
        for name in ("time, us", "clocks a kFLOP", "clocks of an iteration"):
            a, b = self._values(name)
            if a and b:
                yield _compared(name, a, b)
                break
        if self.is_comparable and self.a.bound and self.b.bound:
            if self.a.bound != self.b.bound:
                bounds = (f"{side.bound} ({words.bound(side.bound)})" for side in (self.a, self.b))
                yield f"A is bound by {', B by '.join(bounds)}."
            else:
                yield f"Both are bound by {self.a.bound}: {words.bound(self.a.bound)}."
        if self.a.launch and self.b.launch:
            of_a, of_b = self.a.launch.causes, self.b.launch.causes
            shared = {cause: (us, of_b[cause]) for cause, us in of_a.items() if cause in of_b}  # families have own ones
            apart = {cause: abs(b - a) for cause, (a, b) in shared.items() if not _is_alike(a, b)}
            if apart:
                cause = max(apart, key=lambda name: apart[name])
                yield f"Alone, {cause} would take {of_a[cause]:.2f} us in A and {of_b[cause]:.2f} us in B."

    def _of_waits(self) -> Iterator[str]:
        both = [(kind, a or 0.0, b or 0.0) for kind, (a, b) in self.stalls().items()]
        most = [f"{kind} {shown(a)} to {shown(b)}" for kind, a, b in both[:_WAITS] if not _is_alike(a, b)]
        if not self.is_comparable:
            launch = f"one side has the clocks of a {self.subgroup} of its launch"
            yield f"Do not compare clocks: {launch}, the other side those of an iteration."
        elif most:
            yield f"The waits of a {self.subgroup} that differ most, in clocks by kind: {'; '.join(most)}."
        for side in (self.a, self.b):
            longest = max(side.timed, key=lambda t: t.stalled, default=None)
            if longest is not None and longest.stalled >= 1:
                at = f"+{longest.line.offset:#06x} {longest.line.text}"
                yield f"In {side.letter} the longest wait is {shown(longest.stalled)} clocks, at {at}."


def _known(rows: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    return {name: value for name, value in rows if value is not None}


def _side_by_side(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, tuple[float | None, float | None]]:
    return {name: (a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b))}


def _is_alike(a: float, b: float) -> bool:
    return abs(a - b) <= _ALIKE * max(abs(a), abs(b))


def _compared(name: str, a: float, b: float) -> str:
    if _is_alike(a, b):
        return f"Both take equally long: {shown(a)} ({name})."
    slower, quicker = ("B", "A") if b > a else ("A", "B")
    factor = max(a, b) / min(a, b)
    return f"{slower} takes {factor:.2f} times as long as {quicker}: {shown(a)} in A, {shown(b)} in B ({name})."


def shown(value: float | None) -> str:
    """Return a number as text with four digits; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def as_json(difference: Difference) -> dict[str, Any]:
    """Return the comparison for `--json`."""

    def pairs(rows: Mapping[str, tuple[float | None, float | None]]) -> dict[str, list[float | None]]:
        return {name: [None if v is None else round(v, 4) for v in both] for name, both in rows.items()}

    return {
        **{side.letter.lower(): _side_json(side) for side in (difference.a, difference.b)},
        "same": difference.is_same,
        "config": {word: [a, b] for word, a, b in difference.config()},
        "numbers": pairs(difference.numbers()),
        "mix": pairs(difference.mix()),
        "stalls": pairs(difference.stalls()),
        "told": difference.sentences(),
    }


def _side_json(side: Side) -> dict[str, Any]:
    generated = side.subject.generated
    return {
        "name": side.name,
        "target": side.subject.target,
        "kernel": side.kernel.name if side.kernel else None,
        "config": generated.config if generated else None,
        "bound": side.bound or None,
        "remarks": list(side.subject.remarks),
    }
