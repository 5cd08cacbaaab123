"""The software scoreboard: what each instruction waits for, over the whole control-flow graph.

In-order pipes are waited for by distance (`I@2`: the second last instruction of the integer pipe is done), what is out
of order by the token it sets (`$3.dst`: all of it is done, `$3.src`: its sources are read). No wait is placed that
another has made needless. Sources: Intel's Programmer's Reference Manual of Alchemist, "Software Scoreboard"; IGA's
RegDeps (which dependences the pipes order by themselves).

- True dependences are waited for, except through flags and accumulators within one pipe.
- Overwriting needs a wait where the other access is in another pipe or out of order.
- Units take their instructions in order: one may overwrite what an earlier one of the same unit reads (IGC and IGA
  place no wait there either).
- A token that is set again is waited for first, so a chain on one accumulator keeps to one token, and each unit has
  tokens of its own: a message to local memory does not wait for a load from afar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import cycle, takewhile

import attrs

from convgen.backends.intel.barriers import behind_signals, conflict, touches_local, unfenced_signals
from convgen.backends.intel.isa import MATH, OPCODES, Literal, XeInstruction
from convgen.backends.intel.physical import Cell, Physical
from convgen.backends.intel.tables import Generation
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.instruction import Function, Instruction, Unit, VirtualRegister
from convgen.backends.machine.loops import natural_loops

#: Tokens of matrix instructions: a result is ready about as many instructions later, so that a chain does not stall.
_MATRIX_TOKENS = 4
_FARTHEST = 7  #: the greatest distance that encodes
#: Instructions of a pipe after which one of it is done, waited for or not (IGA, RegDeps).
_SETTLED: Mapping[str | int, int] = {"F": 10, "I": 10, "L": 12, "M": 18}
_INTERLOCKED = frozenset(("f", "acc0"))  #: banks that readers in the writer's own pipe need not wait for
_MODE = Cell("cr0", 0)  #: the control register: who writes it, and whoever comes next, waits for all pipes
_PIPES = "FILM"
#: The units of matrix instructions, by mnemonic; those of messages are named as in their text. Kernels that make sums
#: again have both, of which neither waits for the other to read its sources.
_MATRIX = "dpasw", "dpas"
_LOCAL_LOADS = "local loads"  #: cells, one for each instruction, of what is in flight

Source = str | int  #: an in-order pipe by its letter, or a token


@attrs.frozen
class Pending:
    """What may be unfinished: for each cell and source the distance since it was last written or read there.

    Distances of tokens are 1.
    """

    writes: Mapping[tuple[Cell, Source], int]
    reads: Mapping[tuple[Cell, Source], int]


@attrs.frozen
class Waits:
    """What one instruction waits for."""

    distances: Mapping[str, int]  #: by pipe
    done: tuple[int, ...]  #: tokens
    read: tuple[int, ...]  #: tokens of which only the sources matter


@attrs.frozen
class _Deeds:
    """What the scoreboard must know of one instruction."""

    source: Source  #: that says when it is done: its token or its pipe; "" for neither
    read: list[Cell]
    written: list[Cell]


def pipe_of(i: XeInstruction, generation: Generation) -> str:
    """The letter of the in-order pipe that executes an instruction; "" if none does."""
    if i.op.unit is not Unit.VALU:
        return ""
    if i.op.port == MATH:
        return generation.math_pipe
    return type_pipe(i, generation)


def type_pipe(i: XeInstruction, generation: Generation) -> str:
    """The pipe that a distance without a letter means: that of the destination's type."""
    if i.long and not generation.long_alu:
        return "L"
    return "F" if i.floats else "I"


def _unit(i: Instruction, generation: Generation) -> str:
    """The unit that executes an instruction out of order; "" if none does."""
    if i.op.unit is Unit.MATRIX:
        return i.op.name.partition(".")[0]
    return "" if i.op.port == MATH and generation.math_pipe else i.op.port


def _shares(function: Function, generation: Generation, tokens: int) -> dict[str, int]:
    """How many tokens each unit has: one at least, those of messages further ones by how many there are in loops.

    The first kind of matrix instructions has its own beside them.
    """
    graph = [function.successors(n) for n in range(len(function.blocks))]
    looped = {n for body in natural_loops(graph).values() for n in body} or range(len(graph))
    units = [(n, _unit(i, generation)) for n, block in enumerate(function.blocks) for i in block.instructions]
    first = next((kind for kind in _MATRIX if any(unit == kind for _, unit in units)), "")
    share = {unit: 1 for _, unit in units if unit not in ("", first)}
    wanted = Counter(unit for n, unit in units if n in looped and unit not in _MATRIX)
    for _ in range(tokens - len(share) if share else 0):
        share[max(share, key=lambda unit: wanted[unit] / share[unit])] += 1
    return share


class Scoreboard:
    """Annotates a function whose registers are placed."""

    def __init__(self, function: Function, physical: Physical, generation: Generation, tokens: int) -> None:
        self.function, self.physical, self.generation = function, physical, generation
        self.tokens: dict[Instruction, int] = {}
        self.units: dict[Source, str] = {}  # by token
        self._assign_tokens(tokens)
        self.deeds: dict[Instruction, _Deeds] = {
            i: self._deeds(i) for i in function.instructions() if isinstance(i, XeInstruction)
        }
        self._note_local_loads()

    def _assign_tokens(self, tokens: int) -> None:
        """Tokens for matrix instructions by accumulator, for messages in turn among those of their unit."""
        own: dict[str, list[int]] = {}
        number = _MATRIX_TOKENS
        for unit, share in _shares(self.function, self.generation, tokens - _MATRIX_TOKENS).items():
            own[unit] = list(range(number, number + share))
            self.units.update(dict.fromkeys(own[unit], unit))
            number += share
        turns = {unit: cycle(numbers) for unit, numbers in own.items()}
        accumulators: dict[VirtualRegister, int] = {}
        for i in self.function.instructions():
            unit = _unit(i, self.generation)
            if unit in turns:
                self.tokens[i] = next(turns[unit])
            elif unit:
                (result,) = (r.vreg for r in i.defs())
                token = self.tokens[i] = accumulators.setdefault(result, len(accumulators)) % _MATRIX_TOKENS
                self.units[token] = unit

    def _deeds(self, i: XeInstruction) -> _Deeds:
        """What an instruction reads and writes, and what says when it is done."""
        source = self.tokens.get(i, pipe_of(i, self.generation))
        return _Deeds(source, self.physical.read(i), self.physical.written(i))

    def _note_local_loads(self) -> None:
        """A load of local memory must be done before a barrier behind which others may overwrite what it reads.

        A fence ahead of the signal sees to that.
        """
        unfenced = set(unfenced_signals(self.function))
        loads = [i for i in self.function.instructions() if touches_local(i, stores=False)]
        for n, load in enumerate(loads):
            self.deeds[load].written.append(Cell(_LOCAL_LOADS, n))
        for signal, stores in behind_signals(self.function, stores=True):
            if signal not in unfenced:
                continue
            endangered = (n for n, i in enumerate(loads) if any(conflict(i.access, s.access) for s in stores))
            self.deeds[signal].read.extend(Cell(_LOCAL_LOADS, n) for n in endangered)

    def run(self) -> Function:
        """The function, all instructions annotated; instructions that only wait are put in where needed."""
        return walked(self.function, Pending({}, {}), self._walk, _merged)

    # ------------------------------------------------------------ data flow

    def _walk(self, index: int, entry: Pending) -> tuple[Pending, list[Instruction]]:
        facts, body = _Now(entry), list[Instruction]()
        for i in self.function.blocks[index].instructions:
            assert isinstance(i, XeInstruction)
            waits = self._waits(facts, i)
            body += self._annotated(i, waits)
            self._step(facts, i, waits)
        return facts.frozen(), body

    def _waits(self, facts: _Now, i: XeInstruction) -> Waits:
        deeds = self.deeds[i]
        me = deeds.source
        distances: dict[str, int] = {}
        done: dict[int, None] = {}
        read: dict[int, None] = {}

        def after(source: Source, distance: int, tokens: dict[int, None]) -> None:
            if isinstance(source, str):
                distances[source] = min(distance, distances.get(source, _FARTHEST))
            else:
                tokens[source] = None

        for cell in deeds.read:
            for source, distance in facts.writers(cell):
                ordered = source == me and cell.bank in _INTERLOCKED
                branch = not me and cell.bank == "f" and source == "I"  # the branch unit's flags are interlocked
                if not ordered and not branch:
                    after(source, distance, done)
        for cell in deeds.written:
            for source, distance in facts.writers(cell):
                if source != me:
                    after(source, distance, done)
            for source, distance in facts.readers(cell):
                if source != me and not self._in_turn(source, me):
                    payload = cell.bank != "f" and self._is_message(source)
                    after(source, distance, done if payload and self.generation.waits_for_writes else read)
        if _MODE in deeds.written or facts.writers(_MODE):
            distances.update(dict.fromkeys(_PIPES if facts.is_busy() else "", 1))
        if len(distances) > 1:  # one distance serves all pipes: each is done as far
            distances = dict.fromkeys(_PIPES, min(distances.values()))
        if isinstance(me, int):
            done.pop(me, None)
            read.pop(me, None)
        return Waits(distances, tuple(done), tuple(t for t in read if t not in done))

    def _is_message(self, source: Source) -> bool:
        return isinstance(source, int) and self.units[source] not in _MATRIX

    def _in_turn(self, earlier: Source, later: Source) -> bool:
        """Whether one unit takes both, so that the earlier one has read its sources when the later one writes."""
        return self.units.get(earlier, "") == self.units.get(later)

    def _step(self, facts: _Now, i: XeInstruction, waits: Waits) -> None:
        """What is unfinished behind an instruction that waited."""
        for pipe, distance in waits.distances.items():
            facts.finish_pipe(pipe, distance)
        for token in waits.done:
            facts.finish_token(token)
        for token in waits.read:
            facts.finish_reads(token, flags_only=self.generation.waits_for_writes and self._is_message(token))
        deeds = self.deeds[i]
        if isinstance(deeds.source, int):
            facts.finish_token(deeds.source)
        if deeds.source != "":
            facts.issue(deeds.source, deeds.read, deeds.written, lambda reader: self._in_turn(reader, deeds.source))

    # ------------------------------------------------------------ annotation

    def _annotated(self, i: XeInstruction, waits: Waits) -> Iterator[XeInstruction]:
        """The instruction with as many of its waits as it can carry, syncs with the others before it."""
        distance = _joined(waits.distances)
        tokens = [(t, "dst") for t in waits.done] + [(t, "src") for t in waits.read]
        own = f"${self.tokens[i]}" if i in self.tokens else ""
        carried: list[str] = []
        if i.op.unit is Unit.MATRIX or (i.op.unit is Unit.CONTROL and not i.op.ends):
            pass
        elif own and i.op.unit is Unit.VALU:
            pipe, _, d = distance.partition("@")
            if pipe == type_pipe(i, self.generation):
                carried, distance = [f"@{d}"], ""
        elif own or i.op.ends:
            if distance:
                pipe, _, d = distance.partition("@")
                carried.append(f"{pipe if pipe in self.generation.distance_pipes else 'A'}@{d}")
                distance = ""
        elif distance:
            carried, distance = [distance], ""
        elif len(tokens) == 1:
            (token, what), tokens = tokens[0], []
            carried = [f"${token}.{what}"]
        yield from (_sync(annotation) for annotation in ([distance] if distance else []))
        for name, what in (("sync.allwr", "dst"), ("sync.allrd", "src")):
            alike = [token for token, kind in tokens if kind == what]
            if len(alike) == 1:
                yield _sync(f"${alike[0]}.{what}")
            elif alike:
                yield XeInstruction(OPCODES[name], src=(Literal(sum(1 << token for token in alike), "ud"),))
        yield i.annotated(*carried, *((own,) if own else ()))


def _joined(distances: Mapping[str, int]) -> str:
    """One distance that serves all pipes."""
    if not distances:
        return ""
    pipe = next(iter(distances)) if len(distances) == 1 else "A"
    return f"{pipe}@{min(distances.values())}"


def _sync(annotation: str) -> XeInstruction:
    return XeInstruction(OPCODES["sync.nop"], annotations=(annotation,))


class _Table:
    """The unfinished accesses of one kind: by cell for those who ask, by source for those who finish."""

    def __init__(self) -> None:
        self.by_cell: dict[Cell, dict[Source, int]] = {}
        self.by_source: dict[Source, dict[Cell, int]] = {}  # in order of issue

    def note(self, cell: Cell, source: Source, at: int) -> None:
        """The last access of a cell by a source."""
        self.by_cell.setdefault(cell, {})[source] = at
        cells = self.by_source.setdefault(source, {})
        cells.pop(cell, None)
        cells[cell] = at

    def drop(self, cell: Cell, keeps: Callable[[Source], bool] = lambda source: False) -> None:
        for source in [s for s in self.by_cell.get(cell, ()) if not keeps(s)]:
            self.drop_one(cell, source)

    def drop_one(self, cell: Cell, source: Source) -> None:
        """Forget what one source did to one cell."""
        del self.by_source[source][cell]
        del self.by_cell[cell][source]
        if not self.by_cell[cell]:
            del self.by_cell[cell]

    def finish(self, source: Source, last: int) -> None:
        """Forget what a source issued up to number `last`."""
        cells = self.by_source.get(source, {})
        done = list(takewhile(lambda cell: cells[cell] <= last, cells))
        for cell in done:
            self.drop_one(cell, source)


class _Now:
    """What is pending, which changes from instruction to instruction; distances are kept as differences to counters."""

    def __init__(self, facts: Pending) -> None:
        self.count: dict[Source, int] = {}
        self.writes, self.reads = _Table(), _Table()
        for table, known in ((self.writes, facts.writes), (self.reads, facts.reads)):
            for (cell, source), distance in sorted(known.items(), key=lambda item: -item[1]):
                table.note(cell, source, -distance)

    def _distances(self, held: Mapping[Source, int]) -> list[tuple[Source, int]]:
        """The sources of unfinished accesses with their distances; what is far back in its pipe is done."""
        found: list[tuple[Source, int]] = []
        for source, at in held.items():
            distance = self.count.get(source, 0) - at if isinstance(source, str) else 1
            if distance <= _SETTLED.get(source, 1):
                found.append((source, distance))
        return found

    def writers(self, cell: Cell) -> list[tuple[Source, int]]:
        held = self.writes.by_cell.get(cell)
        return self._distances(held) if held else []

    def readers(self, cell: Cell) -> list[tuple[Source, int]]:
        held = self.reads.by_cell.get(cell)
        return self._distances(held) if held else []

    def issue(
        self, source: Source, read: Iterable[Cell], written: Iterable[Cell], keeps: Callable[[Source], bool]
    ) -> None:
        """`keeps` says of which sources the reads were not waited for, so that a third one must."""
        at = self.count.get(source, 0)
        for cell in written:
            self.writes.drop(cell)
            self.reads.drop(cell, keeps)
            self.writes.note(cell, source, at)
        for cell in read:
            if cell.bank != _LOCAL_LOADS:  # a signal waits for these and keeps none
                self.reads.note(cell, source, at)
        if isinstance(source, str):
            self.count[source] = at + 1

    def is_busy(self) -> bool:
        """Whether something may be unfinished in some pipe."""
        return any(table.by_source.get(pipe) for table in (self.writes, self.reads) for pipe in _PIPES)

    def finish_pipe(self, pipe: str, distance: int) -> None:
        last = self.count.get(pipe, 0) - distance
        self.writes.finish(pipe, last)
        self.reads.finish(pipe, last)

    def finish_token(self, token: Source) -> None:
        self.writes.finish(token, 0)
        self.reads.finish(token, 0)

    def finish_reads(self, token: int, *, flags_only: bool) -> None:
        """The sources of a token's instructions are read; where that is not enough for payloads, only flags are."""
        if not flags_only:
            self.reads.finish(token, 0)
            return
        for cell in [c for c in self.reads.by_source.get(token, ()) if c.bank == "f"]:
            self.reads.drop_one(cell, token)

    def frozen(self) -> Pending:
        tables = [
            {(cell, source): d for cell, held in table.by_cell.items() for source, d in self._distances(held)}
            for table in (self.writes, self.reads)
        ]
        return Pending(*tables)


def _merged(a: Pending, b: Pending) -> Pending:
    tables = []
    for one, other in ((a.writes, b.writes), (a.reads, b.reads)):
        both = dict(one)
        for key, distance in other.items():
            both[key] = min(distance, both.get(key, distance))
        tables.append(both)
    return Pending(*tables)
