"""The lines of a text of the IR, and the names that they declare for the lines after them."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

from convgen.ir.error import UserError
from convgen.ir.expr import Var
from convgen.ir.layout.memory import Global
from convgen.ir.layout.mma import BlockAtom, MmaAtom, MmaTile
from convgen.ir.node import Node
from convgen.ir.text import declared, instructions
from convgen.ir.text.expressions import Expressions
from convgen.ir.text.lexer import NUMBERED
from convgen.ir.text.templates import reserved
from convgen.ir.types import AnyType

_MOST_LINES = 1 << 19  #: of statements and declarations
_LONGEST = 1 << 20  #: characters of a line
_IDS = re.compile(r"[A-Za-z_]\w*\.([0-9]{1,18})\b", re.ASCII)


class Lines(Expressions):
    """Reads lines. A declaration is visible to the lines after it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[tuple[int, int, str]] = []  #: number, indentation, text; no remarks
        for number, ended in enumerate(StringIO(text, newline="\n"), 1):
            line = ended.rstrip("\n")
            bare = line.lstrip(" ")
            if bare and bare[0] != "#" and not bare.isspace():
                self.lines.append((number, len(line) - len(bare), line))
            if len(line) > _LONGEST or len(self.lines) > _MOST_LINES:
                raise UserError(
                    f"given line {number} of {len(line)} characters, wanted at most {_MOST_LINES} lines of {_LONGEST}"
                )
        self.whole = text
        self.line_at = 0
        self.greatest = 0  #: id of a variable so far
        self.instructions: dict[str, MmaAtom | BlockAtom] = {}
        self._next_id: int | None = None

    @property
    def indent(self) -> int:
        """Spaces before the next line; -1 behind the last."""
        return self.lines[self.line_at][1] if self.line_at < len(self.lines) else -1

    def next_line(self) -> None:
        number, _, text = self.lines[self.line_at]
        self.line_at += 1
        self.begin(number, text)

    def peeks(self, *words: str) -> bool:
        """Whether the next line begins with these words."""
        if self.line_at == len(self.lines):
            return False
        bare = self.lines[self.line_at][2].lstrip(" ")
        return bare.startswith(words) and re.match(r"\w+", bare)[0] in words  # type: ignore[index]

    def declaration(self, indent: int) -> Any:
        """Read the next line if it is a declaration, else return None."""
        if self.indent != indent or not self.peeks(*_DECLARATIONS):
            return None
        number, _, text = self.lines[self.line_at]
        self.begin(number, text)
        word = self.words[0]
        if len(self.words) < 3 or self.words[2] not in (":", "="):  # a statement on shared memory
            return None
        self.next_line()
        self.at = 1
        found = _DECLARATIONS[word](self)
        self.end()
        return found

    def _given(self) -> Node:
        text = self.new_name()
        self.take(":")
        return self.scalar(text)

    def scalar(self, text: str) -> Var:
        """Read a scalar argument behind its name."""
        name, id = self.identity(text)
        return self.bound(text, declared.read_scalar(self, name, id))

    def buffer_declared(self) -> Global:
        name = self.name()
        self.take(":")
        return self.known_buffer(declared.read_buffer(self, name))

    def known_buffer(self, found: Global) -> Global:
        self.check_new(found.name)
        self.buffers[found.name] = found
        return found

    def check_new(self, name: str) -> None:
        if name in self.buffers or name in self.tiles:
            raise self.error(f"two buffers or shared tiles are called {name}", max(0, self.at - 1))

    def _shared(self) -> Node:
        name = self.name()
        self.take(":")
        found = declared.read_shared(self, name)
        self.check_new(name)
        self.tiles[name] = found
        return found

    def _view(self) -> Node:
        name = self.name()
        self.take("=")
        found = declared.read_view(self, self.buffer)
        self.views[name] = found
        return found

    def _instruction(self) -> MmaAtom | BlockAtom:
        name = self.name()
        self.take(":")
        atom = instructions.read_instruction(self, name)
        self.instructions[name] = atom
        if isinstance(atom, BlockAtom):
            self.products[name] = atom
        return atom

    def _product(self) -> MmaTile:
        name = self.name()
        self.take(":")
        self.products[name] = found = instructions.read_product(self, self._atom)
        return found

    def _atom(self) -> MmaAtom:
        found = self.known_as(self.instructions, "instruction")
        if not isinstance(found, MmaAtom):
            raise self.error("given an instruction on blocks, wanted one on whole fragments")
        return found

    def identity(self, text: str) -> tuple[str, int]:
        """Return the name and the id of a declared variable. A declaration without an id gets the next one."""
        found = NUMBERED.fullmatch(text.partition(":")[0])
        if found is not None:
            return found[1], int(found[2])
        if self._next_id is None:
            self._next_id = max((int(found[1]) for found in _IDS.finditer(self.whole)), default=0)
        self._next_id += 1
        return text, self._next_id

    def bound(self, text: str, v: Var) -> Var:
        """Make a variable known by its name, with and without its id."""
        self.greatest = max(self.greatest, v.id)
        for name in (text, v.name):
            self.variables[name] = v
            self.temporaries.pop(name, None)
        return v

    def new_name(self) -> str:
        """Take the name of a variable. Raises UserError for a word of the language."""
        word = self.words[self.at]
        if word in reserved():
            raise self.error(f"given the name {word}, which is a word of the language, wanted `{word}`")
        return self.name()

    def bind(self, default: AnyType | None = None) -> Var:
        """Take `NAME: TYPE`, or a name alone where there is a default."""
        text = self.new_name()
        dtype = default
        if default is None or self.sees(":"):
            self.take(":")
            dtype = self.type()
        name, id = self.identity(text)
        return self.bound(text, self.made(Var, name, id, dtype))


_DECLARATIONS: dict[str, Callable[[Lines], Any]] = {
    "given": Lines._given,
    "buffer": Lines.buffer_declared,
    "shared": Lines._shared,
    "view": Lines._view,
    "instruction": Lines._instruction,
    "product": Lines._product,
}
