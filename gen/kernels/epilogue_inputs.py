"""The inputs of an epilogue beside the sums of a tile, loaded piece by piece, those of some pieces ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from convgen.epilogue.epilogue import Epilogue, Loaded, Reader
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen


@frozen
class Piece:
    """Some sums of a tile that take the steps of an epilogue together."""

    sums: int  #: number of the sums that they are part of
    number: int  #: place among equal parts of these
    layout: Fragment


@frozen(eq=False)
class Ahead:
    """The inputs of an epilogue that are loaded ahead, for the first pieces of a tile."""

    reader: Reader  #: loads those of further pieces
    loaded: deque[tuple[Loaded, ...]]

    def inputs(self, epilogue: Epilogue, pieces: Sequence[Piece]) -> Iterator[tuple[Loaded, ...]]:
        """Yield the inputs of each piece; where some are loaded ahead, load those of a further one behind each."""
        rest = (epilogue.load(self.reader, piece.layout) for piece in pieces[len(self.loaded) :])
        loads_ahead = bool(self.loaded)
        for _ in pieces:
            yield self.loaded.popleft() if self.loaded else next(rest)
            if loads_ahead:
                self.loaded.extend(islice(rest, 1))
