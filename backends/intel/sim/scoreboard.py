"""The software scoreboard under the worst latencies that its annotations allow.

A `Score` holds the instructions that may be in flight on the paths to one instruction: for each in-order pipe the last
instructions, newest first, that no distance has completed; for each token the out-of-order instructions that set it,
and whether their sources may still be read. Distances and waits remove instructions. An access to a register of a
remaining instruction is a finding. The rules are those of IGC's SWSB pass and IGA's dependency analysis:

- read after write: always a hazard, except for accumulators and flags inside one in-order pipe, which hardware
  interlocks, and for flags read by branches;
- write after write and write after read: a hazard if the earlier instruction is out of order or in another pipe;
- a new use of a token waits for the old one; a control register write is seen by the next instruction that waits A@1;
- an out-of-order instruction may overwrite the source of an earlier one of its own unit (a message's destination, math,
  dpas), which has read it by then (neither IGC nor IGA adds a wait);
- an in-order instruction is complete when enough later ones of its pipe have issued (`Platform.distances`).

IGC assumes more: it puts no distance across a branch or jump, which in its model takes longer (23 cycles) than any
in-order instruction, and none from a comparison to a predicate or a move of flags in another pipe (IGA adds one there).
No document promises either, so both are assumed on request only (`Rules.trust_igc`).

Scores are interned and remember their successors, so that a loop pays for each instruction once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.backends.intel.sim.decode import ALL_TOKENS
from convgen.backends.intel.sim.pipes import own_pipe
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.step import Rules, Step
from convgen.ir.record import frozen

PIPES = ("F", "I", "L", "M")
Ops = frozenset[int]  #: indices of steps
NONE: Ops = frozenset()


@frozen
class Token:
    """The instructions in flight under a token."""

    ops: Ops = NONE
    sources: Ops = NONE  #: those of `ops` whose sources may not have been read
    released: Ops = NONE  #: those whose sources were waited for with `.src`


IDLE = Token()
State = tuple[tuple[tuple[Ops, ...], ...], tuple[Token, ...], Ops]


@frozen
class Outcome:
    """The effect of an instruction on a score."""

    score: Score
    findings: tuple[tuple[str, str], ...]
    retired: Ops  #: out-of-order instructions known to be complete


class Score:
    """An interned scoreboard state of one kernel."""

    __slots__ = ("_steps", "board", "chain", "pipes", "tokens")

    def __init__(self, board: Scoreboard, state: State) -> None:
        self.board = board
        self.pipes, self.tokens, self.chain = state
        self._steps: dict[int, Outcome] = {}

    def after(self, step: Step) -> Outcome:
        """Issue an instruction: return the next score, findings, and completed instructions."""
        outcome = self._steps.get(step.index)
        if outcome is None:
            outcome = self._steps[step.index] = self.board.issue(self, step)
        return outcome

    def union(self, other: Score) -> Score:
        """Return the score of instructions in flight on either of two paths."""
        if self is other:
            return self
        pipes = tuple(_union_pipe(a, b) for a, b in zip(self.pipes, other.pipes, strict=True))
        tokens = tuple(
            Token(a.ops | b.ops, a.sources | b.sources, a.released | b.released)
            for a, b in zip(self.tokens, other.tokens, strict=True)
        )
        return self.board.intern((pipes, tokens, self.chain | other.chain))


def _union_pipe(a: tuple[Ops, ...], b: tuple[Ops, ...]) -> tuple[Ops, ...]:
    if len(a) < len(b):
        a, b = b, a
    return tuple(ops | b[at] if at < len(b) else ops for at, ops in enumerate(a))


class Scoreboard:
    """The scoreboard of one kernel."""

    def __init__(self, platform: Platform, layout: Layout, steps: Sequence[Step | None], rules: Rules) -> None:
        self.platform, self.layout, self.steps = platform, layout, steps
        self.send_war = rules.errata and platform.send_war
        self.trust_igc = rules.trust_igc
        self.count = platform.tokens[layout.registers]
        self.scores: dict[State, Score] = {}
        self.empty = self.intern((((),) * len(PIPES), (IDLE,) * self.count, NONE))

    def intern(self, state: State) -> Score:
        """Return the one score of a state."""
        score = self.scores.get(state)
        if score is None:
            score = self.scores[state] = Score(self, state)
        return score

    def issue(self, score: Score, step: Step) -> Outcome:
        """Apply an instruction's waits, check its registers, and add it to the instructions in flight."""
        pipes, tokens = list(score.pipes), list(score.tokens)
        findings: list[tuple[str, str]] = []
        retired: set[int] = set()
        self._wait(step, pipes, tokens, retired, findings)
        chain = score.chain
        if chain and not step.is_dpas:
            findings.append(("token", "a dpas without a token is not followed by one that has it"))
            chain = NONE
        if chain and (step.instruction.distance or (step.instruction.token or ("", ""))[1]):
            findings.append(("token", "a dpas that follows another in a chain waits; only the first can"))
        for earlier in map(self._step, chain):
            if earlier.writes & step.factors:
                findings.append(self._hazard("reads", earlier.writes & step.factors, "result", earlier, "a token"))
        if step.reads | step.writes:
            self._check_pipes(step, pipes, findings)
            self._check_tokens(step, tokens, findings)
        if step.drains and self.trust_igc:
            pipes = [()] * len(PIPES)
        if step.pipe == "*":
            chain = self._set_token(step, tokens, chain, findings)
        elif step.pipe:
            at = PIPES.index(step.pipe)
            kept = self.platform.distances[step.pipe]
            pipes[at] = (frozenset((step.index,)), *pipes[at])[:kept]
        following = self.intern((tuple(pipes), tuple(tokens), chain))
        return Outcome(following, tuple(dict.fromkeys(findings)), frozenset(retired))

    def _wait(
        self,
        step: Step,
        pipes: list[tuple[Ops, ...]],
        tokens: list[Token],
        retired: set[int],
        findings: list[tuple[str, str]],
    ) -> None:
        """Drop what an instruction's waits complete from `pipes` and `tokens`; add to `retired` and `findings`."""
        instruction = step.instruction
        if instruction.distance is not None:
            pipe, count = instruction.distance
            pipe = pipe or own_pipe(instruction, self.platform)
            for at, letter in enumerate(PIPES):
                if pipe in (letter, "A"):
                    pipes[at] = pipes[at][: count - 1]
        waits = instruction.waits()
        if instruction.token is not None:
            number, mode = instruction.token
            if number >= self.count:
                registers = self.layout.registers
                findings.append(("token", f"token ${number}; there are {self.count} with {registers} registers"))
            elif not mode:  # setting a token waits for its last use
                waits.append((number, "dst"))
        for number, mode in waits:
            for at in range(self.count) if number == ALL_TOKENS else (number,):
                if at >= self.count:
                    continue
                token = tokens[at]
                if mode == "dst":
                    retired |= token.ops
                    tokens[at] = IDLE
                else:
                    tokens[at] = Token(token.ops, NONE, token.released | token.sources)

    def _check_pipes(self, step: Step, pipes: list[tuple[Ops, ...]], findings: list[tuple[str, str]]) -> None:
        free_flags = step.kind == "branch" or (self.trust_igc and step.pipe != "*")
        reads = step.reads & ~self.layout.flag_bits if free_flags else step.reads
        for letter, queue in zip(PIPES, pipes, strict=True):
            same, wait = letter == step.pipe, f"{letter}@"
            for earlier in (self._step(index) for ops in queue for index in ops):
                if shared := reads & (earlier.writes & ~self.layout.exempt if same else earlier.writes):
                    findings.append(self._hazard("reads", shared, "result", earlier, wait))
                elif same:
                    continue
                elif shared := earlier.writes & step.writes:
                    findings.append(self._hazard("overwrites", shared, "result", earlier, wait))
                elif shared := earlier.reads & step.writes & ~self.layout.control_bits:
                    findings.append(self._hazard("overwrites", shared, "source", earlier, wait))

    def _check_tokens(self, step: Step, tokens: list[Token], findings: list[tuple[str, str]]) -> None:
        for number, token in enumerate(tokens):
            for index in token.ops:
                earlier, wait = self._step(index), f"${number}.dst"
                if shared := earlier.writes & step.reads:
                    findings.append(self._hazard("reads", shared, "result", earlier, wait))
                elif shared := earlier.writes & step.writes:
                    findings.append(self._hazard("overwrites", shared, "result", earlier, wait))
                elif (shared := earlier.reads & step.writes) and step.unit != earlier.unit:
                    if index in token.sources:
                        findings.append(self._hazard("overwrites", shared, "source", earlier, f"${number}.src"))
                    elif self.send_war and earlier.is_send and shared & ~self.layout.flag_bits:  # but for the predicate
                        _, message = self._hazard("overwrites", shared, "payload", earlier, wait)
                        findings.append(("send-war", f"{message}: on this platform .src is not enough"))

    def _set_token(self, step: Step, tokens: list[Token], chain: Ops, findings: list[tuple[str, str]]) -> Ops:
        """Record an out-of-order instruction under its token; return the dpas that share a later one's token."""
        token = step.instruction.token
        ops = chain | {step.index}
        if token is None or token[1]:
            if step.is_dpas:
                if "Atomic" not in step.instruction.options:
                    findings.append(("token", "a dpas sets no token and is not {Atomic}, so another may come between"))
                return ops
            if "EOT" not in step.instruction.options:
                findings.append(("token", "an out-of-order instruction sets no token, so nothing can wait for it"))
            return NONE
        if token[0] < self.count:
            tokens[token[0]] = Token(ops, ops)
        return NONE

    def indirect(self, score: Score, index: int, reads: int) -> tuple[tuple[str, str], ...]:
        """Return findings on registers that instruction `index` reads through a0; `score` is the one after it."""
        in_flight = [(f"{letter}@", ops) for letter, queue in zip(PIPES, score.pipes, strict=True) for ops in queue]
        in_flight += [(f"${number}.dst", token.ops) for number, token in enumerate(score.tokens)]
        return tuple(
            self._hazard("reads", shared, "result", earlier, wait)
            for wait, ops in in_flight
            for earlier in (self._step(at) for at in ops if at != index)
            if (shared := earlier.writes & reads)
        )

    def _step(self, index: int) -> Step:
        step = self.steps[index]
        assert step is not None
        return step

    def _hazard(self, verb: str, bits: int, role: str, earlier: Step, wait: str) -> tuple[str, str]:
        name = describe(self.layout, (bits & -bits).bit_length() - 1)
        kind = "distance" if wait.endswith("@") else "token-wait"
        return kind, f"{verb} {name}, a {role} of `{earlier.instruction.text}`, without {wait}"


def describe(layout: Layout, byte: int) -> str:
    """Return the name of a register byte, such as r12.4:ub."""
    if byte < layout.acc:
        return f"r{byte // layout.grf}.{byte % layout.grf}:ub"
    areas: Mapping[str, tuple[int, int]] = {
        "acc": (layout.acc, layout.grf),
        "a": (layout.address, 32),
        "f": (layout.flag, 4),
        "cr": (layout.control, 16),
        "sr": (layout.state, 16),
    }
    name, (start, size) = next((n, area) for n, area in reversed(list(areas.items())) if byte >= area[0])
    return f"{name}{(byte - start) // size}"
