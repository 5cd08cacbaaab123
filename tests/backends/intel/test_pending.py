"""What the scoreboard keeps as sets of bits, against the same kept cell by cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.intel.physical import Cells
from convgen.backends.intel.scoreboard import _PIPES, _SETTLED, Source, Unfinished, _MutableUnfinished

_CELLS = 6

SETS = st.integers(0, (1 << _CELLS) - 1)
SOURCES = st.sampled_from((*"FI", 3, 4))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), SOURCES, SETS),
        st.tuples(st.just("drop"), st.sampled_from((None, 3, 4)), SETS),
        st.tuples(st.just("token"), st.sampled_from((3, 4)), SETS),
        st.tuples(st.just("pipe"), st.sampled_from("FI"), st.integers(1, 12)),
        st.tuples(st.just("pass"), st.sampled_from("FI"), st.integers(1, 9)),
    ),
    max_size=30,
)


class ByCell:
    """For each cell and source the number of the instruction there that touched it last."""

    def __init__(self) -> None:
        self.count: dict[Source, int] = dict.fromkeys(_PIPES, 0)
        self.last: dict[tuple[int, Source], int] = {}

    def step(self, what: str, source: Source | None, number: int) -> None:
        cells = [cell for cell in range(_CELLS) if number >> cell & 1]
        match what:
            case "note":
                assert source is not None
                self.last |= {(cell, source): self.count.get(source, 0) for cell in cells}
            case "drop":
                self.last = {key: n for key, n in self.last.items() if key[0] not in cells or key[1] == source}
            case "token":
                self.last = {key: n for key, n in self.last.items() if key[0] not in cells or key[1] != source}
            case "pipe":
                ends = self.count[source] - number  # type: ignore[index]
                self.last = {key: n for key, n in self.last.items() if key[1] != source or n > ends}
            case "pass":
                self.count[source] += number  # type: ignore[index]

    def distances(self) -> dict[tuple[int, Source], int]:
        """Of what may be unfinished; 1 for tokens."""
        found = {key: self.count[key[1]] - n if key[1] in self.count else 1 for key, n in self.last.items()}
        return {key: d for key, d in found.items() if d <= _SETTLED.get(key[1], 1)}


def stepped(known: Unfinished, steps: list[tuple[str, Source | None, int]]) -> _MutableUnfinished:
    count = dict.fromkeys(_PIPES, 0)
    accesses = _MutableUnfinished(known, count)
    for what, source, number in steps:
        match what, source:
            case "note", int() | str():
                accesses.note(source, number)
            case "drop", _:
                accesses.drop(number, () if source is None else (source,))
            case "token", int():
                accesses.finish_token(source, number)
            case "pipe", str():
                accesses.finish_pipe(source, count[source] - number)
            case "pass", str():
                count[source] += number
    return accesses


def by_cell(unfinished: Unfinished) -> dict[tuple[int, Source], int]:
    sets: list[tuple[Source, int, Cells]] = [(token, 1, cells) for token, cells in unfinished.tokens.items()]
    sets += [(pipe, d, cells) for pipe, ages in unfinished.pipes.items() for d, cells in ages.items()]
    return {(cell, source): d for source, d, cells in sets for cell in range(_CELLS) if cells >> cell & 1}


@given(STEPS)
def test_sets_know_what_cells_do(steps: list[tuple[str, Source | None, int]]) -> None:
    wanted = ByCell()
    for step in steps:
        wanted.step(*step)
    accesses = stepped(Unfinished(), steps)
    distances = wanted.distances()
    again = _MutableUnfinished(accesses.frozen(), dict.fromkeys(_PIPES, 0))
    for known in (accesses, again):
        assert by_cell(known.frozen()) == distances
        for cells in range(1 << _CELLS):
            mine: dict[Source, int] = {}
            for (cell, source), d in distances.items():
                if cells >> cell & 1:
                    mine[source] = min(d, mine.get(source, d))
            assert known.holds(cells) == bool(mine)
            assert set(known.tokens_of(cells)) == {s for s in mine if isinstance(s, int)}
            assert {p: known.distance(p, cells) for p in known.pipes} == {p: mine.get(p) for p in known.pipes}


@given(STEPS, STEPS)
def test_of_two_paths_the_nearer_counts(
    one: list[tuple[str, Source | None, int]], other: list[tuple[str, Source | None, int]]
) -> None:
    a, b = (stepped(Unfinished(), steps).frozen() for steps in (one, other))
    wanted = by_cell(a)
    for key, distance in by_cell(b).items():
        wanted[key] = min(distance, wanted.get(key, distance))
    assert by_cell(a.merged(b)) == wanted
    assert a.merged(b) == b.merged(a)
