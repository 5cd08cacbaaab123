"""Orders of workgroups: remaps and then a walk, with their text.

| text | order |
|---|---|
| `rows`, `cols` | row by row (column by column) |
| `group:8m` | groups of 8 rows of tiles, column by column: rocRoller's WGM 8 of dimension 0, Wave's groups |
| `wgm:8m` | groups of `wgm` rows, a kernel argument that the host may change from launch to launch |
| `even:8m` | groups of at most 8 rows whose sizes differ by at most one |
| `rect:8x5m` | groups of 8 rows, walked in rectangles of 8 x 5 tiles, row by row within each |
| `zorder:8x8` | oneDNN's: 8 x 8 blocks that double along N and M in turn; the blocks row by row; padded |
| `hilbert` | a generalised Hilbert curve |
| `ragged` | groups of uneven sizes one after another, each column by column; a launch has their sizes |
| `xcc:8` | remap for workgroups distributed round-robin over 8 dies: each die gets one range of numbers |
| `chunk:8x64` | remap for 8 dies: within each 8 x 64 workgroups, each die gets a range of 64 numbers |
| `flip:304` | every second round of 304 workgroups walks K backwards |
| `persist:304` | 304 workgroups are launched; each takes tile after tile, 304 numbers apart |
| `persist:304:snake` | 304 persistent workgroups, which take the tiles of every second turn in descending order |
| `stream:304` | 304 persistent workgroups that share the K of the last tiles evenly: two-tile stream-K |
| `stream:304:all` | 304 persistent workgroups that share the K of all tiles evenly |

`n` in place of `m` exchanges the dimensions; `:snake` behind a group, an even group or rectangles reverses every
second group, so that it begins where the one before ended. Steps are joined by `+`, remaps first:
`xcc:8+even:8m:snake`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from convgen.ir.error import UserError, named
from convgen.ir.layout.hilbert import Hilbert
from convgen.ir.layout.turns import Persist, SharedOut
from convgen.ir.layout.walks import ROWS, ArgumentGroups, Chunk, Grouped, Ragged, Rectangles, Remap, Walk, Xcc, ZOrder
from convgen.ir.record import frozen


@frozen
class Order:
    """The order in which workgroups work: `remaps` permute their numbers, then `walk` maps them to tiles.

    With `flip`, workgroups of each odd round of that size walk K backwards, which reuses the end of K in the caches.
    With `persist` only that many workgroups are launched; each takes one tile after the other, or shares of K.
    """

    remaps: tuple[Remap, ...] = ()
    walk: Walk = ROWS
    flip: int = 0
    persist: Persist | None = None

    @property
    def shares(self) -> bool:
        """Return whether workgroups may share the K of a tile."""
        return self.persist is not None and self.persist.shared is not SharedOut.NONE

    @classmethod
    def parse(cls, text: str) -> Order:
        """Return the order written as `text`. Raises UserError: given, wanted, where."""
        steps = [_step(step, text) for step in text.split("+")]
        flips = [step for step in steps if isinstance(step, _Flip)]
        persists = [step for step in steps if isinstance(step, Persist)]
        remaps = tuple(step for step in steps if isinstance(step, Xcc | Chunk))
        walks = [step for step in steps if not isinstance(step, Xcc | Chunk | _Flip | Persist)]
        if max(len(flips), len(persists), len(walks)) > 1 or steps != [*remaps, *walks, *flips, *persists]:
            wanted = "remaps, one walk, at most one flip: and one persist: or stream:, in that order"
            raise UserError(f"given the order {text!r}, wanted {wanted}")
        flip = flips[0].count if flips else 0
        return cls(remaps, walks[0] if walks else ROWS, flip, persists[0] if persists else None)

    def __str__(self) -> str:
        behind = [step for step in (_Flip(self.flip), self.persist) if step and step.count]
        walk = [] if self.walk == ROWS and (self.remaps or behind) else [self.walk]
        return "+".join(map(str, (*self.remaps, *walk, *behind)))


IN_ROWS = Order()


@frozen
class _Flip:
    count: int

    def __str__(self) -> str:
        return f"flip:{self.count}"


def _grouped(even: bool) -> Callable[[re.Match[str]], Grouped]:
    return lambda at: Grouped(at["dim"], int(at["a"]), even, bool(at["snake"]))


def _rectangles(at: re.Match[str]) -> Rectangles:
    return Rectangles(at["dim"], int(at["a"]), snake=bool(at["snake"]), width=int(at["b"]))


def _stream(at: re.Match[str]) -> Persist:
    return Persist(int(at["a"]), SharedOut.ALL if at["all"] else SharedOut.LAST)


_A, _B, _DIM, _SNAKE = r"(?P<a>[1-9]\d{0,8})", r"x(?P<b>[1-9]\d{0,8})", r"(?P<dim>[mn])", r"(?P<snake>:snake)?"

#: name -> its parameters for help, the pattern that matches them, and the constructor of the step
STEPS: dict[str, tuple[str, str, Callable[[re.Match[str]], Any]]] = {
    "rows": ("", "", lambda at: ROWS),
    "cols": ("", "", lambda at: Grouped("m")),
    "group": (":COUNTm|n[:snake]", f":{_A}{_DIM}{_SNAKE}", _grouped(even=False)),
    "even": (":COUNTm|n[:snake]", f":{_A}{_DIM}{_SNAKE}", _grouped(even=True)),
    "wgm": (":COUNTm|n", f":{_A}{_DIM}", lambda at: ArgumentGroups(at["dim"], int(at["a"]))),
    "rect": (":COUNTxCOUNTm|n[:snake]", f":{_A}{_B}{_DIM}{_SNAKE}", _rectangles),
    "zorder": (":MxN", f":{_A}{_B}", lambda at: ZOrder(int(at["a"]), int(at["b"]))),
    "hilbert": ("", "", lambda at: Hilbert()),
    "ragged": ("", "", lambda at: Ragged()),
    "xcc": (":DIES", f":{_A}", lambda at: Xcc(int(at["a"]))),
    "chunk": (":DIESxRUN", f":{_A}{_B}", lambda at: Chunk(int(at["a"]), int(at["b"]))),
    "flip": (":ROUND", f":{_A}", lambda at: _Flip(int(at["a"]))),
    "persist": (":WORKGROUPS[:snake]", f":{_A}{_SNAKE}", lambda at: Persist(int(at["a"]), snake=bool(at["snake"]))),
    "stream": (":WORKGROUPS[:all]", f":{_A}(?P<all>:all)?", _stream),
}


def _step(step: str, text: str) -> Any:
    name = step.partition(":")[0]
    if name not in STEPS:
        raise UserError(f"given {named(name, STEPS)}, wanted one of {', '.join(STEPS)} in the order {text!r}")
    shown, pattern, make = STEPS[name]
    match = re.fullmatch(name + pattern, step)
    if match is None:
        raise UserError(f"given {step!r}, wanted {name}{shown} in the order {text!r}")
    return make(match)
