"""The software scoreboard: annotate each instruction with its waits, over the whole control-flow graph.

An instruction waits for an in-order pipe by distance (`I@2`: the second last instruction of the integer pipe is done),
for an out-of-order instruction by the token it set (`$3.dst`: it is done, `$3.src`: its sources are read). No wait is
placed that another wait implies. Sources: Intel's Programmer's Reference Manual of Alchemist, "Software Scoreboard";
IGA's RegDeps (which dependences the pipes order by themselves).

- True dependences need a wait, except through flags and accumulators within one pipe.
- Overwriting needs a wait if the other access is in another pipe or out of order.
- A unit reads the sources of its instructions in order, so an instruction may overwrite a source of an earlier one of
  its unit (IGC and IGA place no wait there either).
- Setting a token waits for its last use. So products that add to one accumulator share a token, and each unit has its
  own tokens: a message to local memory does not wait for a slow global load.
- A chain of matrix instructions waits before its first, which has room for one token, and sets one at its last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import cycle
from operator import or_

import attrs

from convgen.backends.intel.barriers import behind_signals, conflict, overwrites, signals, touches_local
from convgen.backends.intel.chains import chains
from convgen.backends.intel.isa import MATH, OPCODES, Literal, XeInstruction
from convgen.backends.intel.physical import Cells, Physical
from convgen.backends.intel.tables import Generation
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.instruction import Function, Instruction, Unit, VirtualRegister
from convgen.backends.machine.loops import natural_loops
from convgen.ir.record import frozen

#: Tokens of matrix instructions: a result is ready about this many instructions later, so that a chain does not stall.
_MATRIX_TOKENS = 4
_FARTHEST = 7  #: largest distance that can be encoded
#: Instructions of a pipe after which an earlier one is done without a wait (IGA, RegDeps).
_SETTLED: Mapping[str | int, int] = {"F": 10, "I": 10, "L": 12, "M": 18}
_ACCUMULATOR = "acc0"  #: as for flags, readers in the writer's own pipe need not wait
_ATOMIC = "Atomic"  #: annotation of a chain member: the next one follows at once
_MODE = "cr0"  #: the control register: its writer, and the next instruction, wait for all pipes
_PIPES = "FILM"
#: The units of matrix instructions, by mnemonic; units of messages are named as in their text. Kernels that recompute
#: accumulators have both, and neither waits for the other to read its sources.
_MATRIX = "dpasw", "dpas"

SYNCS = {"dst": "sync.allwr", "src": "sync.allrd"}  #: instructions that wait for several tokens

Source = str | int  #: an in-order pipe by its letter, or a token


@frozen
class Unfinished:
    """Possibly unfinished accesses of one kind: token -> cells; pipe -> instructions back -> cells.

    A cell is listed where its pipe touched it last.
    """

    tokens: Mapping[int, Cells] = attrs.Factory(dict)
    pipes: Mapping[str, Mapping[int, Cells]] = attrs.Factory(dict)

    def merged(self, other: Unfinished) -> Unfinished:
        """Return the accesses that are unfinished on either of two paths."""
        tokens = {t: self.tokens.get(t, 0) | other.tokens.get(t, 0) for t in {**self.tokens, **other.tokens}}
        pipes = {}
        for pipe in {**self.pipes, **other.pipes}:
            ages, others, nearer = self.pipes.get(pipe, {}), other.pipes.get(pipe, {}), 0
            nearest: dict[int, Cells] = {}
            for distance in sorted({**ages, **others}):
                here = (ages.get(distance, 0) | others.get(distance, 0)) & ~nearer
                nearer |= here
                if here:
                    nearest[distance] = here
            pipes[pipe] = nearest
        return Unfinished(tokens, pipes)


@frozen
class Pending:
    """Possibly unfinished writes and reads."""

    writes: Unfinished = attrs.Factory(Unfinished)
    reads: Unfinished = attrs.Factory(Unfinished)

    def merged(self, other: Pending) -> Pending:
        return Pending(self.writes.merged(other.writes), self.reads.merged(other.reads))


@frozen
class Waits:
    """The waits of one instruction."""

    distances: Mapping[str, int]  #: by pipe
    done: tuple[int, ...]  #: tokens
    read: tuple[int, ...]  #: tokens whose sources must have been read


_NO_WAITS = Waits({}, (), ())


@frozen
class _Effects:
    """The accesses of one instruction; the head of a chain has those of the whole chain."""

    source: Source  #: its token or pipe, by which others wait for it; "" for neither
    read: Cells
    written: Cells
    #: Cells that all members of a chain read and then write. The chain waits for its token, which its last member sets.
    chain: Sequence[Cells] = ()


def pipe_of(i: XeInstruction, generation: Generation) -> str:
    """Return the letter of the in-order pipe that executes an instruction; "" if none does."""
    if i.op.unit is not Unit.VALU:
        return ""
    if i.op.port == MATH:
        return generation.math_pipe
    return type_pipe(i, generation)


def type_pipe(i: XeInstruction, generation: Generation) -> str:
    """Return the pipe that a distance without a letter refers to: that of the destination's type."""
    if i.long and not generation.long_alu:
        return "L"
    return "F" if i.floats else "I"


def _unit(i: Instruction, generation: Generation) -> str:
    """Return the unit that executes an instruction out of order; "" if none does."""
    if i.op.unit is Unit.MATRIX:
        return i.op.name.partition(".")[0]
    return "" if i.op.port == MATH and generation.math_pipe else i.op.port


def _shares(function: Function, generation: Generation, tokens: int) -> dict[str, int]:
    """Return how many tokens each unit has: at least one; message units share the rest by their instructions in loops.

    The first kind of matrix instructions has its own tokens besides.
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
    """Annotates a function after allocation."""

    def __init__(self, function: Function, physical: Physical, generation: Generation, tokens: int) -> None:
        self.function, self.physical, self.generation = function, physical, generation
        self.tokens: dict[Instruction, int] = {}
        self.units: dict[int, str] = {}  # token -> unit
        matrix_chains = [
            chain for block in function.blocks for chain in chains(block.instructions, physical, generation.dpas_chains)
        ]
        self._assign_tokens(tokens, [chain[0] for chain in matrix_chains])
        self.peers = {token: {t for t in self.units if self.units[t] == unit} for token, unit in self.units.items()}
        written_names, read_names = self._local_accesses()
        self.effects: dict[Instruction, _Effects] = {}
        for i in function.instructions():
            assert isinstance(i, XeInstruction)
            source = self.tokens.get(i, pipe_of(i, generation))
            read = physical.read(i) | physical.named(read_names.get(i, ()))
            self.effects[i] = _Effects(source, read, physical.written(i) | physical.named(written_names.get(i, ())))
        self.heads = {chain[0] for chain in matrix_chains if len(chain) > 1}
        self.members: dict[Instruction, str] = {}  # later member of a chain -> its annotation
        for chain in matrix_chains:
            self._join(chain)
        self.flags, self.mode = physical.flags, physical.named((_MODE,))
        self.interlocked = self.flags | physical.named((_ACCUMULATOR,))
        self.local = physical.named(name for names in written_names.values() for name in names)

    def _assign_tokens(self, tokens: int, heads: Iterable[Instruction]) -> None:
        """Assign tokens: to heads of matrix chains by accumulator, to messages in turn within their unit."""
        of_unit: dict[str, list[int]] = {}
        number = _MATRIX_TOKENS
        for unit, share in _shares(self.function, self.generation, tokens - _MATRIX_TOKENS).items():
            of_unit[unit] = list(range(number, number + share))
            self.units.update(dict.fromkeys(of_unit[unit], unit))
            number += share
        turns = {unit: cycle(numbers) for unit, numbers in of_unit.items()}
        accumulators: dict[tuple[VirtualRegister, int], int] = {}
        for i in (*(i for i in self.function.instructions() if i.op.unit is not Unit.MATRIX), *heads):
            unit = _unit(i, self.generation)
            if unit in turns:
                self.tokens[i] = next(turns[unit])
            elif unit:
                (result,) = i.defs()
                number = accumulators.setdefault((result.vreg, result.first), len(accumulators))
                token = self.tokens[i] = number % _MATRIX_TOKENS
                self.units[token] = unit

    def _join(self, chain: Sequence[XeInstruction]) -> None:
        """Give the accesses of a whole chain to its first instruction."""
        head, *others = chain
        if not others:
            return
        read = [cells for i in chain for cells in self.physical.by_register(i.touched())]
        written = [cells for i in chain for cells in self.physical.by_register(i.defs())]
        self.effects[head] = _Effects(self.tokens[head], reduce(or_, read), reduce(or_, written), (*read, *written))
        for i in others:
            self.effects[i] = _Effects("", 0, 0)
            self.members[i] = _ATOMIC
        self.members[others[-1]] = f"${self.tokens[head]}"

    def _local_accesses(self) -> tuple[dict[Instruction, list[str]], dict[Instruction, list[str]]]:
        """Return names of cells, (written, read), by which stores and signals wait for local loads and fences.

        After a barrier other threads may overwrite bytes that this thread loads: its signal waits for these loads, or
        for a fence ahead of the signal that cannot complete before them. If a store may complete before an earlier
        load, it waits for the loads of the bytes that it overwrites.
        """
        fences, overtaken = dict(signals(self.function)), self.generation.loads_overtaken
        loads = [i for i in self.function.instructions() if touches_local(i, stores=False)]
        written = {i: [f"local access {n}"] for n, i in enumerate((*loads, *filter(None, fences.values())))}
        awaited: dict[Instruction, list[str]] = {}
        for signal, stores in behind_signals(self.function, stores=True):
            fence, endangered = fences[signal], [i for i in loads if any(conflict(i.access, s.access) for s in stores)]
            waits_for = [*(endangered if fence is None or overtaken else ()), *filter(None, (fence,))]
            awaited[signal] = [name for i in waits_for for name in written[i]]
        for store in self.function.instructions() if overtaken else ():
            if touches_local(store, stores=True):
                awaited[store] = [name for i in loads if overwrites(store.access, i.access) for name in written[i]]
        return written, awaited

    def run(self) -> Function:
        """Return the function with all instructions annotated, and stand-alone waits inserted where needed."""
        return walked(self.function, Pending(), self._walk, Pending.merged)

    # ------------------------------------------------------------ data flow

    def _walk(self, index: int, entry: Pending) -> tuple[Pending, Iterable[Instruction]]:
        pending, waiting = _MutablePending(entry), list[tuple[XeInstruction, Waits]]()
        for i in self.function.blocks[index].instructions:
            assert isinstance(i, XeInstruction)
            waits = self._waits_of(pending, i)
            waiting.append((i, waits))
            self._step(pending, i, waits)
        return pending.frozen(), (each for i, waits in waiting for each in self._annotated(i, waits))

    def _waits_of(self, pending: _MutablePending, i: XeInstruction) -> Waits:
        """Return the waits that an instruction needs before it issues; the module's rules say why each is needed."""
        effects = self.effects[i]
        if not (pending.touched & (effects.read | effects.written | self.mode) or effects.written & self.mode):
            return _NO_WAITS
        distances = self._distances(pending, effects)
        if self._waits_for_all(i, distances):
            distances = dict.fromkeys(_PIPES, min(distances.values()))
        complete, read = self._awaited_tokens(pending, effects)
        if len(complete) > 1:  # the first member of a chain can carry one token wait
            complete.sort(key=lambda t: pending.apart(t, effects.chain))
        source = effects.source
        awaited = dict.fromkeys(t for t in complete if t != source or effects.chain)
        return Waits(distances, tuple(awaited), tuple(t for t in read if t != source and t not in awaited))

    def _distances(self, pending: _MutablePending, effects: _Effects) -> dict[str, int]:
        """Return the distance to wait for in each pipe."""
        source, distances = effects.source, dict[str, int]()
        # the last writers in pipes: a pipe orders its own writes, and interlocks accumulators and flags
        for pipe in pending.writes.pipes:
            awaited = effects.read & ~self.interlocked if pipe == source else effects.read | effects.written
            if not source and pipe == "I":  # the branch unit interlocks flags
                awaited = effects.read & ~self.flags | effects.written
            _shorten(distances, pipe, pending.writes.distance(pipe, awaited))
        # readers in other pipes, if this instruction overwrites their sources
        for pipe in pending.reads.pipes:
            if pipe != source:
                _shorten(distances, pipe, pending.reads.distance(pipe, effects.written))
        # the control register: its writer, and the next instruction, wait for all pipes
        if (self.mode & effects.written or pending.writes.holds(self.mode)) and pending.is_busy():
            distances.update(dict.fromkeys(_PIPES, 1))
        return distances

    def _awaited_tokens(self, pending: _MutablePending, effects: _Effects) -> tuple[list[int], list[int]]:
        """Return the tokens whose setters must be done, and those whose setters must have read their sources."""
        peers, reading = self._peers(effects.source), pending.reads.tokens
        complete = pending.writes.tokens_of(effects.read | effects.written)
        read = [t for t in pending.reads.tokens_of(effects.written) if t not in peers]
        # sources of messages, except flags, may be overwritten only once the message is done
        if self.generation.waits_for_writes:
            complete += [t for t in read if self._is_message(t) and reading[t] & effects.written & ~self.flags]
            read = [t for t in read if not self._is_message(t) or reading[t] & effects.written & self.flags]
        return complete, read

    def _waits_for_all(self, i: XeInstruction, distances: Mapping[str, int]) -> bool:
        """Return whether one distance for all pipes replaces the distances.

        It does for several pipes, and for a pipe that a message cannot name.
        """
        sends = i in self.tokens and i.op.unit not in (Unit.VALU, Unit.MATRIX)
        return len(distances) > 1 or (sends and not distances.keys() <= self.generation.distance_pipes)

    def _is_message(self, token: int) -> bool:
        return self.units[token] not in _MATRIX

    def _peers(self, source: Source) -> Collection[Source]:
        """Return the tokens of a token's unit.

        The unit works in order, so an earlier instruction has read before a later one writes.
        """
        return self.peers[source] if isinstance(source, int) else ()

    def _step(self, pending: _MutablePending, i: XeInstruction, waits: Waits) -> None:
        """Update the pending accesses with an instruction that has waited."""
        for pipe, distance in waits.distances.items():
            pending.finish_pipe(pipe, distance)
        for token in waits.done:
            pending.finish_token(token)
        for token in waits.read:
            flags_only = self.generation.waits_for_writes and self._is_message(token)
            pending.reads.finish_token(token, self.flags if flags_only else -1)
        effects = self.effects[i]
        if isinstance(effects.source, int) and not effects.chain:
            pending.finish_token(effects.source)
        if effects.source != "":
            # Reads that nothing waited for stay pending; local accesses do not, since signals have waited for them.
            pending.issue(effects.source, effects.read & ~self.local, effects.written, self._peers(effects.source))

    # ------------------------------------------------------------ annotation

    def _annotated(self, i: XeInstruction, waits: Waits) -> Iterator[XeInstruction]:
        """Yield the instruction with as many of its waits as its encoding can carry, after syncs with the others.

        The encoding has one token, which is set or waited for, and one distance; together they are restricted.
        """
        distance = _covering(waits.distances)
        tokens = [(t, "dst") for t in waits.done] + [(t, "src") for t in waits.read]
        token_set = f"${self.tokens[i]}" if i in self.tokens else ""
        carried: list[str] = []
        if i in self.members or i in self.heads:
            token_set = self.members.get(i, _ATOMIC)  # only the first member of a chain has waits; it sets no token
            if waits.done:
                (token, kind_of_wait), *tokens = tokens
                carried = [f"${token}.{kind_of_wait}"]
        elif i.op.unit is Unit.MATRIX or (i.op.unit is Unit.CONTROL and not i.op.ends):
            pass  # carries no wait
        elif token_set and i.op.unit is Unit.VALU:  # math that sets a token: a distance in its own pipe
            pipe, _, d = distance.partition("@")
            if pipe == type_pipe(i, self.generation):
                carried, distance = [f"@{d}"], ""
        elif token_set or i.op.ends:  # messages: any distance beside the token that they set
            if distance:
                carried, distance = [distance], ""
        elif distance:  # in-order instructions: a distance, or a single token wait
            carried, distance = [distance], ""
        elif len(tokens) == 1:
            (token, kind_of_wait), tokens = tokens[0], []
            carried = [f"${token}.{kind_of_wait}"]
        yield from (_sync(annotation) for annotation in ([distance] if distance else []))
        for kind_of_wait in SYNCS:
            if alike := [f"${token}" for token, kind in tokens if kind == kind_of_wait]:
                yield waiting(alike, kind_of_wait)
        annotations = (token_set, *carried) if token_set == _ATOMIC else (*carried, token_set)
        yield i.annotated(*filter(None, annotations))


def _covering(distances: Mapping[str, int]) -> str:
    """Return the text of one distance that covers all pipes, empty for none."""
    if not distances:
        return ""
    pipe = next(iter(distances)) if len(distances) == 1 else "A"
    return f"{pipe}@{min(distances.values())}"


def waiting(tokens: Collection[str], kind: str) -> XeInstruction:
    """Return a stand-alone wait for tokens: for results (`dst`), or until sources are read (`src`)."""
    if len(tokens) == 1:
        return _sync(f"{next(iter(tokens))}.{kind}")
    mask = sum(1 << number for number in {int(token[1:]) for token in tokens})
    return XeInstruction(OPCODES[SYNCS[kind]], src=(Literal(mask, "ud"),))


def _sync(annotation: str) -> XeInstruction:
    return XeInstruction(OPCODES["sync.nop"], annotations=(annotation,))


def _shorten(distances: dict[str, int], pipe: str, distance: int | None) -> None:
    """Add a wait for a pipe's instruction `distance` back (None: no wait); waits for nearer ones imply it."""
    if distance is not None:
        distances[pipe] = min(distance, distances.get(pipe, _FARTHEST))


class _MutableUnfinished:
    """`Unfinished` while a block is walked: accesses in a pipe by the number of the instruction, oldest first."""

    def __init__(self, known: Unfinished, count: Mapping[str, int]) -> None:
        self.count = count  #: pipe -> instructions so far
        self.tokens = dict(known.tokens)
        self.pipes = {p: {-d: ages[d] for d in sorted(ages, reverse=True)} for p, ages in known.pipes.items()}
        self.touched = self._all()  #: superset of all listed cells

    def _all(self) -> Cells:
        cells = 0
        for held in (*self.tokens.values(), *(held for numbers in self.pipes.values() for held in numbers.values())):
            cells |= held
        return cells

    def distance(self, pipe: str, cells: Cells) -> int | None:
        """Return how many instructions ago a pipe touched one of these cells.

        None if it never did, or so long ago that the instruction is done.
        """
        if cells:
            for number, held in reversed(self.pipes[pipe].items()):
                if held & cells:
                    distance = self.count[pipe] - number
                    return distance if distance <= _SETTLED[pipe] else None
        return None

    def tokens_of(self, cells: Cells) -> list[int]:
        """Return the tokens that have touched one of these cells."""
        return [token for token, held in self.tokens.items() if held & cells]

    def holds(self, cells: Cells) -> bool:
        """Return whether an unfinished instruction may touch one of these cells."""
        return bool(cells & self.touched) and (
            bool(self.tokens_of(cells)) or any(self.distance(pipe, cells) is not None for pipe in self.pipes)
        )

    def note(self, source: Source, cells: Cells) -> None:
        """Record that a source touches these cells, and forget its earlier accesses to them."""
        if not cells:
            return
        self.touched |= cells
        if isinstance(source, int):
            self.tokens[source] = self.tokens.get(source, 0) | cells
            return
        known, now = self.pipes.get(source, {}), self.count[source]
        self.pipes[source] = {number: rest for number, held in known.items() if (rest := held & ~cells)}
        self.pipes[source][now] = self.pipes[source].get(now, 0) | cells

    def drop(self, cells: Cells, except_for: Collection[Source] = ()) -> None:
        """Forget accesses to these cells by all sources but `except_for`."""
        if not cells & self.touched:
            return
        for token, touched in self.tokens.items():
            if touched & cells and token not in except_for:
                self.tokens[token] = touched & ~cells
        for numbers in self.pipes.values():
            for number, touched in numbers.items():
                if touched & cells:
                    numbers[number] = touched & ~cells
        if not except_for:
            self.touched &= ~cells

    def finish_token(self, token: int, cells: Cells = -1) -> None:
        """Record that a token is done with these cells."""
        if token in self.tokens:
            self.tokens[token] &= ~cells

    def finish_pipe(self, pipe: str, last: int) -> None:
        """Record that a pipe is done up to instruction number `last`."""
        numbers = self.pipes.get(pipe, {})
        for number in [n for n in numbers if n <= last]:
            del numbers[number]

    def frozen(self) -> Unfinished:
        """Return the accesses by distance, without those so far back in their pipe that they are done."""
        pipes = {
            pipe: {
                distance: cells
                for number, cells in reversed(numbers.items())
                if cells and (distance := self.count[pipe] - number) <= _SETTLED[pipe]
            }
            for pipe, numbers in self.pipes.items()
        }
        tokens = {token: cells for token, cells in self.tokens.items() if cells}
        return Unfinished(tokens, {pipe: ages for pipe, ages in pipes.items() if ages})


class _MutablePending:
    """`Pending` while a block is walked."""

    def __init__(self, entry: Pending) -> None:
        self.count = dict.fromkeys(_PIPES, 0)
        self.writes, self.reads = (
            _MutableUnfinished(entry.writes, self.count),
            _MutableUnfinished(entry.reads, self.count),
        )

    def issue(self, source: Source, read: Cells, written: Cells, peers: Collection[Source]) -> None:
        """Record an instruction's accesses; reads by its `peers` stay pending although it overwrites them."""
        if written:
            self.writes.drop(written)
            self.reads.drop(written, peers)
        self.writes.note(source, written)
        self.reads.note(source, read)
        if isinstance(source, str):
            self.count[source] += 1

    def apart(self, token: int, cells: Iterable[Cells]) -> list[bool]:
        """Return, for each set of cells, whether the setter of a token touches it no more."""
        touched = self.writes.tokens.get(token, 0) | self.reads.tokens.get(token, 0)
        return [not touched & each for each in cells]

    @property
    def touched(self) -> Cells:
        """Return a superset of the cells that may be pending."""
        return self.writes.touched | self.reads.touched

    def is_busy(self) -> bool:
        """Return whether some pipe may have unfinished instructions."""
        return any(any(numbers.values()) for table in (self.writes, self.reads) for numbers in table.pipes.values())

    def finish_pipe(self, pipe: str, distance: int) -> None:
        for table in (self.writes, self.reads):
            table.finish_pipe(pipe, self.count[pipe] - distance)

    def finish_token(self, token: int) -> None:
        self.writes.finish_token(token)
        self.reads.finish_token(token)

    def frozen(self) -> Pending:
        return Pending(self.writes.frozen(), self.reads.frozen())
