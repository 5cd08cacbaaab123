"""Parser of tile programs: `parse(str(program))` prints the same text, and compiles to the same kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from convgen.ir import arithmetic
from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.order import Order
from convgen.ir.record import frozen
from convgen.ir.simplify.extents import lower_bound
from convgen.tile import language
from convgen.tile.forms import KINDS, MAPS, STATEMENTS, VALUES, listed, type_of
from convgen.tile.tile_kernel import TileProgram, options
from convgen.tile.tiles import Index, Shape, Tensor, Tile, size
from convgen.tile.trace import Grid, Loop, Trace, Value, tracing
from convgen.tile.unread import drop_unread

_KERNEL = re.compile(r"kernel (\w+)\((.*)\)((?: \w+=\w+)*)")
ValueOrTile = TypeVar("ValueOrTile", Value, Tile)

_MOST_DIGITS = 309  #: digits of the greatest f64
_LONG_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS + 1},}}")
_EXTENT = r"(?:\d+|\[[^\]]*\])"
_PARAMETER = re.compile(rf"(\w+): (?:size<(\d+) to (\d+) by (\d+)>|memref<((?:{_EXTENT}x)*)(\w+)(?:, (\w+))?>)(?:, |$)")
_GRID = re.compile(r"(\w+(?:, \w+)*) = grid (.+) of <([\dx]+)> in (\S+)")
_LOOP = re.compile(r"for (\w+) in \[0, (.+)\)(?: carrying (.+))?")
_CARRIED = re.compile(r"(\w+) = (%\w+)")
_INIT = re.compile(rf"(%\w+) = init_tile (\w+)\[(.*)\](?: along ([\d, ]+))? : tile<((?:\d+x)*)(\w+)>({MAPS})")
_MOVE = re.compile(r"(%\w+) = update_tile_offset (%\w+), \[(.*)\]")
_SCALAR = re.compile(r"(\w+) = load_scalar (\w+)\[(.*)\] up to (\d+)")
_VALUE = re.compile(r"(%\w+) = (.+) : vector<((?:\d+x)*)(\w+)>")


_FUNCTIONS = {"min": language.minimum, "max": language.maximum}  #: of two scalars


def parse(text: str) -> TileProgram:
    """Return the program that prints as this text. Raises UserError, which names the line, for other text."""
    return _Reader(text).program()


@frozen
class _Line:
    number: int
    depth: int
    text: str


class _Reader:
    """Reader of the lines; `names` are the values and tiles in scope, `scalars` the scalars."""

    def __init__(self, text: str) -> None:
        if digits := _LONG_NUMBER.search(text):
            number = 1 + text.count("\n", 0, digits.start())
            raise UserError(f"line {number}: given a number of {len(digits[0])} digits, wanted at most {_MOST_DIGITS}")
        lines = ((n, line.rstrip()) for n, line in enumerate(text.splitlines(), 1))
        self.lines = [_Line(n, (len(t) - len(t.lstrip())) // 2, t.lstrip()) for n, t in lines if t]
        self.at = 0
        self.names: dict[str, Value | Tile] = {}
        self.scalars: dict[str, Expr] = {}
        self.tensors: dict[str, Tensor] = {}
        self.trace = Trace()

    # ------------------------------------------------------------ lines

    @contextmanager
    def line(self) -> Iterator[str]:
        """Take the next line; an error in it is reported with its number."""
        number, text = (self.lines[self.at].number, self.lines[self.at].text) if self.at < len(self.lines) else (1, "")
        self.at += 1
        try:
            yield text
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None

    def program(self) -> TileProgram:
        with self.line() as text:
            form = "kernel NAME(TENSOR: memref<...>, ...) subgroups=MxN"
            name, parameters, words = self.matched(_KERNEL, text, form)
            self.read_parameters(parameters)
            chosen = options(**_options(words))
        with tracing() as self.trace:
            if self.at < len(self.lines) and " = grid " in self.lines[self.at].text:
                self.read_grid()
            self.suite(1)
        if self.at < len(self.lines):
            with self.line() as text:
                raise UserError(f"given {text!r}, wanted a line two spaces further in than its loop or kernel")
        drop_unread(self.trace.statements)
        return TileProgram(name, tuple(self.tensors.values()), self.trace, chosen)

    def matched(self, pattern: re.Pattern[str], text: str, wanted: str) -> tuple[str, ...]:
        match = pattern.fullmatch(text)
        if match is None:
            raise UserError(f"given {text!r}, wanted {wanted}")
        return match.groups(default="")

    def read_parameters(self, text: str) -> None:
        end = 0
        for parameter in _PARAMETER.finditer(text):
            name, least, most, by, sizes, dtype, tag = parameter.groups(default="")
            if parameter.start() != end or name in self.tensors or name in self.scalars:
                break
            if most:
                self.scalars[name] = size(name, int(most), least=int(least), multiple=int(by))
            else:
                self.tensors[name] = Tensor(self.extents(sizes), dtype, tag, name)
            end = parameter.end()
        if end != len(text) or not self.tensors:
            raise UserError(f"given the tensors {text!r}, wanted such as a: memref<64x32xf16>, each with its own name")

    def extents(self, text: str) -> tuple[Index, ...]:
        """Return the sizes of a shape: numbers and, in brackets, expressions of sizes."""
        return tuple(self.scalar(part.strip("[]")) for part in re.findall(_EXTENT, text))

    def read_grid(self) -> None:
        with self.line() as text:
            offsets, counts, block, order = self.matched(_GRID, text, "M, N = grid 4x3 of <64x64> in ORDER")
            names, sizes, shape = offsets.split(", "), self.extents(counts), _shape(block)
            if not len(names) == len(sizes) == len(shape) or min(*map(lower_bound, sizes), *shape) < 1:
                raise UserError(f"given {text!r}, wanted as many offsets, counts and sizes from 1")
            Order.parse(order)
            self.trace.grid = Grid(sizes, shape, tuple(self.trace.var(n) for n in names), order)
            self.scalars |= dict(zip(names, self.trace.grid.offsets))

    # ------------------------------------------------------------ suites

    def suite(self, depth: int) -> None:
        """Read the lines of that depth, up to the `yield` of a loop."""
        while self.at < len(self.lines) and self.lines[self.at].depth == depth:
            text = self.lines[self.at].text
            if text.startswith("yield "):
                return
            if text.startswith("for "):
                self.loop(depth)
                continue
            with self.line() as text:
                self.operation(text)

    def loop(self, depth: int) -> None:
        with self.line() as text:
            name, trips, carrying = self.matched(_LOOP, text, "for I in [0, TRIPS) carrying NAME = %VALUE, ...")
            carried = [self.matched(_CARRIED, part, "NAME = %VALUE") for part in listed(carrying) if part]
            firsts = [self.value(of) for _, of in carried]
            inits: dict[str, Value | Tile] = {f"%{to}": first for (to, _), first in zip(carried, firsts)}
            if len(set(inits.values())) < len(carried):
                raise UserError(f"given {carrying!r}, wanted values of their own for each name")
            loop = Loop(self.trace.var(name), self.scalar(trips))
        outside, scalars = dict(self.names), dict(self.scalars)
        self.scalars[name] = loop.var
        self.names = {n: v for n, v in outside.items() if v not in inits.values()} | inits
        self.trace.suites[-1].append(loop)
        self.trace.suites.append(loop.body)
        self.suite(depth + 1)
        lasts = self.yields(depth + 1, len(carried)) if carried else []
        self.trace.suites.pop()
        loop.carried += [(to, first, last) for (to, _), first, last in zip(carried, firsts, lasts)]
        tiles = {n: t for n, t in self.names.items() if isinstance(t, Tile)}
        changed = [(n, t, tiles[n]) for n, t in outside.items() if isinstance(t, Tile) and tiles[n] is not t]
        loop.moved += changed
        self.scalars = scalars
        self.names = outside | {f"%{to}": last for (to, _), last in zip(carried, lasts)}
        self.names |= {n: last for n, _, last in changed}

    def yields(self, depth: int, count: int) -> list[Value]:
        """Return the values that a loop carries to its next iteration."""
        if self.at >= len(self.lines) or self.lines[self.at].depth != depth:
            self.at -= 1  # report the last line of the loop
        with self.line() as text:
            values = listed(text.removeprefix("yield ")) if text.startswith("yield ") else []
            if len(values) != count:
                raise UserError(f"given {text!r}, wanted a yield of {count} values at the end of the loop")
            return [self.value(part) for part in values]

    # ------------------------------------------------------------ operations

    def operation(self, text: str) -> None:
        if match := _INIT.fullmatch(text):
            self.init_tile(*match.groups(default=""))
        elif match := _MOVE.fullmatch(text):
            name, of, by = match.groups()
            self.bind(name, language.update_tile_offset(self.tile(of), self.indices(by)), again=name == of)
        elif match := _SCALAR.fullmatch(text):
            name, tensor, at, most = match.groups()
            self.scalars[name] = language.load_scalar(self.tensor(tensor), self.indices(at), int(most))
        elif match := _VALUE.fullmatch(text):
            name, text_of_value, sizes, dtype = match.groups()
            value = self.read_value(text_of_value, _shape(sizes), dtype)
            if (value.shape, value.elem.name) != (_shape(sizes), dtype):
                wanted_type = type_of("vector", value.shape, value.elem.name)
                raise UserError(f"given the type vector<{sizes}{dtype}>, wanted {wanted_type}, at {text_of_value}")
            self.bind(name, value)
        else:
            for form in STATEMENTS:
                if (fields := form.read(text, self)) is not None:
                    form.make(*fields)
                    return
            raise UserError(f"given {text!r}, wanted an operation of the tile language")

    def read_value(self, text: str, shape: Shape, dtype: str) -> Value:
        for form in VALUES:
            if (fields := form.read(text, self)) is not None:
                value: Value = form.make(shape, dtype, *fields) if form.typed else form.make(*fields)
                return value
        raise UserError(f"given {text!r}, wanted an operation that returns a value")

    def init_tile(self, name: str, tensor: str, at: str, along: str, sizes: str, dtype: str, maps: str) -> None:
        offsets, shape, of = self.indices(at), _shape(sizes), self.tensor(tensor)
        kept = [n for n in range(len(offsets)) if not along or str(n) in listed(along)]
        if along and list(map(str, kept)) != listed(along):
            raise UserError(f"given the dims {along!r}, wanted ascending numbers below {len(offsets)}, at init_tile")
        if len(kept) != len(shape) or dtype != of.dtype:
            raise UserError(f"given a tile of {sizes}{dtype}, wanted {len(kept)} sizes of {of.dtype}, at init_tile")
        sizes_of, maps_given = dict(zip(kept, shape)), KINDS["maps"].read(maps, self)
        self.bind(name, language.init_tile(of, offsets, [sizes_of.get(n) for n in range(len(offsets))], **maps_given))

    # ------------------------------------------------------------ names and scalars

    def bind(self, name: str, value: Value | Tile, *, again: bool = False) -> None:
        if name in self.names and not again:
            raise UserError(f"given {name} twice, wanted a name of its own")
        self.names[name] = value

    def defined(self, name: str, kind: type[ValueOrTile]) -> ValueOrTile:
        """Return the value or tile of that name. Raises UserError if there is none, or one of the other kind."""
        value = self.names.get(name)
        if not isinstance(value, kind):
            raise UserError(f"given {name}, wanted a {kind.__name__.lower()} that is defined before")
        return value

    def value(self, name: str) -> Value:
        return self.defined(name, Value)

    def tile(self, name: str) -> Tile:
        return self.defined(name, Tile)

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UserError(f"given the tensor {name}, wanted one of {', '.join(self.tensors)}")
        return self.tensors[name]

    def indices(self, text: str) -> list[Index]:
        return [self.scalar(part) for part in listed(text)]

    def scalar(self, text: str) -> Index:
        """Return the value of an expression of scalars in Python's syntax."""
        try:
            index: Index = arithmetic.value(text, self.scalars, _FUNCTIONS)
        except ValueError as error:
            wanted = "numbers and scalars, + - * // % min and max of them"
            raise UserError(f"given {str(error)!r}, wanted {wanted}") from None
        return index


def _shape(sizes: str) -> Shape:
    return tuple(int(n) for n in sizes.split("x") if n)


def _options(text: str) -> dict[str, Any]:
    """Return the arguments of `tile.kernel`."""
    words = dict(part.split("=") for part in text.split())
    wanted = ("subgroups", "slots", "mma", "acc", "copy")
    if not set(words) <= set(wanted):
        raise UserError(f"given {text.strip()!r}, wanted some of {', '.join(wanted)}")
    if len(words) < len(text.split()):
        raise UserError(f"given {text.strip()!r}, wanted each of {', '.join(wanted)} once at most")
    numbers: dict[str, Any] = {}
    try:
        numbers = {"subgroups": _shape(words.pop("subgroups", "1x1"))}
        numbers |= {"slots": int(words.pop("slots"))} if "slots" in words else {}
    except ValueError:
        raise UserError(f"given {text.strip()!r}, wanted whole numbers of subgroups and slots") from None
    return numbers | words
