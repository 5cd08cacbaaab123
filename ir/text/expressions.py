"""Read expressions: operators bind as in Python, and a bare number takes the type of the other operand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from convgen.ir import expr as x
from convgen.ir import floats, fused, products, sizes, votes
from convgen.ir.error import UserError, meant
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.memory import Global, Shared, View
from convgen.ir.layout.mma import BlockAtom, MmaTile
from convgen.ir.node import CLASSES
from convgen.ir.sizes import Extent
from convgen.ir.text.cursor import Cursor, type_named
from convgen.ir.types import AnyType, Type, VectorType, bool_, f32, s32

#: Precedence, as in Python: a stronger operator binds tighter.
LOOSEST, UNARY, POSTFIX, ATOM = 0, 8, 9, 10
STRENGTH = {"<": 1, "<=": 1, "==": 1, "!=": 1, "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6}
STRENGTH |= {"*": 7, "//": 7, "%": 7}

#: Operators that are read but not written -> the operator that they stand for, with its operands swapped.
_SWAPPED = {">": "<", ">=": "<="}

_DEEPEST = 100  #: parentheses, calls and signs inside one another
_MOST_NAMES = 1000  #: beyond which no similar name is suggested
_MOST_IN_EXTENT = 100  #: operators and operands
_HEX = re.compile(r"0x([0-9a-f]{1,16})(?:_(.*))?", re.ASCII)
_NUMBER = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,5})?|inf|nan)(?:_(.*))?", re.ASCII)


class Number(NamedTuple):
    """A number that takes its type from the other operand."""

    text: str

    @property
    def default(self) -> Type:
        """The type if there is no other operand."""
        return s32 if self.text.lstrip("-").isdigit() else f32


def number(text: str, dtype: AnyType) -> Expr:
    """Return the constant of a type, for a vector in each element. Raises UserError for a number that does not fit."""
    elem = dtype.elem
    if elem.is_bool or (not elem.is_float and not text.lstrip("-").isdigit()):
        raise UserError(f"given the number {text[:40]}, wanted one of {elem}")
    with np.errstate(over="ignore"):
        found = x.const(float(text) if elem.is_float else int(text), elem)
    if elem.is_float and text[-1].isdigit() and not isfinite(found.value):
        raise UserError(f"given the number {text[:40]}, wanted one that {elem} can hold")
    return x.Splat(dtype, found) if isinstance(dtype, VectorType) else found


def _shown(word: str) -> str:
    return ascii(word)[1:41].strip("'")


def _suggestion(word: str, names: Collection[str]) -> str:
    """Return a suggestion: the most similar of the names."""
    return meant(word, names) if len(names) < _MOST_NAMES else ""


@cache
def signs() -> dict[str, type[x.Binary]]:
    """Return the classes of infix operators by symbol."""
    return {c.symbol: c for c in CLASSES.values() if issubclass(c, x.Binary) and c.symbol in STRENGTH}


@cache
def calls() -> dict[str, type[Expr]]:
    """Return the expression classes of `convgen.ir` that are written as calls, by the name of the function."""
    found = (c for c in CLASSES.values() if issubclass(c, Expr) and c.symbol.isidentifier())
    return {c.symbol: c for c in found if c.__module__.startswith("convgen.ir.")}


#: Calls of a type: `f16(x)`, `f16.pack(x, y)`. A scalar is put in each element of a vector, anything else is cast.
_SATURATE, _PACK, _CAST = "saturate", "pack", "cast"


class Expressions(Cursor):
    """Reads expressions. Its tables map names to what has been declared or bound under them."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[str, Var] = {}
        self.temporaries: dict[str, Expr] = {}
        self.buffers: dict[str, Global] = {}
        self.tiles: dict[str, Shared] = {}
        self.views: dict[str, View] = {}
        self.products: dict[str, MmaTile | BlockAtom] = {}
        self._depth = 0
        self._is_extent = False

    def expr(self, wanted: AnyType | None = None) -> Expr:
        """Take an expression; if it is a bare number, it has the wanted type."""
        return self._settled(self._binary(LOOSEST), wanted)

    def exprs(self) -> tuple[Expr, ...]:
        found = [self.expr()]
        while self.skip(","):
            found.append(self.expr())
        return tuple(found)

    # ------------------------------------------------------------ extents

    def extent(self) -> Extent:
        """Take a number, or an expression of sizes."""
        start, self._is_extent = self.at, True
        found = self._binary(LOOSEST)
        self._is_extent = False
        if self.at - start > _MOST_IN_EXTENT:
            raise self.error(f"given an extent of {self.at - start} tokens, wanted at most {_MOST_IN_EXTENT}", start)
        if isinstance(found, Number):
            if found.default is not s32 or len(found.text) > 20:
                raise self.error(f"given {found.text[:40]}, wanted an integer", start)
            return int(found.text)
        return found

    def extents(self) -> list[Extent]:
        found = [self.extent()]
        while self.skip("x"):
            found.append(self.extent())
        return found

    def extent_expression(self) -> Expr:
        """Take an extent as an expression; a number becomes a constant."""
        found = self.extent()
        return x.const(found) if isinstance(found, int) else found

    # ------------------------------------------------------------ operators

    def _settled(self, found: Expr | Number, wanted: AnyType | None) -> Expr:
        """Return an operand as an expression; a bare number gets the wanted type, or its default."""
        if isinstance(found, Number):
            return self.made(number, found.text, wanted or found.default)
        return found

    def _binary(self, least: int) -> Expr | Number:
        """Read operands and operators that bind tighter than `least` (precedence climbing)."""
        left = self._operand()
        compared = False
        while True:
            sign = self.words[self.at]
            strength = STRENGTH.get(_SWAPPED.get(sign, sign), LOOSEST)
            if strength <= least:
                return left
            if compared and strength == STRENGTH["<"]:
                raise self.error("given comparisons in a row, wanted parentheses")
            compared = strength == STRENGTH["<"]
            self.at += 1
            left = self._pair(sign, left, self._binary(strength))

    def _pair(self, sign: str, left: Expr | Number, right: Expr | Number) -> Expr:
        if isinstance(left, Number):
            left = self._settled(left, None if isinstance(right, Number) else right.type)
        if isinstance(right, Number):
            right = self._settled(right, left.type)
        if sign in _SWAPPED:
            return self.made(signs()[_SWAPPED[sign]], right, left)
        return self.made(signs()[sign], left, right)

    def _operand(self) -> Expr | Number:
        word = self.words[self.at]
        first = word[:1]
        if first.isalpha() or first in ("_", "`"):
            found = self._named(word)
        elif first.isdigit():
            self.at += 1
            return self._literal(word)
        elif first == "(":
            self.at += 1
            found = self._inner(lambda: self._binary(LOOSEST))
            self.take(")")
        elif first in ("-", "~"):
            return self._signed(first)
        else:
            raise self.error(f"{self.given()}, wanted an expression")
        while self.words[self.at] == "[":
            found = self._elements(self._settled(found, None))
        return found

    def _inner(self, read: Callable[[], Any]) -> Any:
        """Call `read` one level of nesting deeper. Raises UserError beyond the deepest level."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.error(f"given more than {_DEEPEST} expressions inside one another")
        found = read()
        self._depth -= 1
        return found

    def _signed(self, sign: str) -> Expr | Number:
        self.at += 1
        word = self.words[self.at]
        if sign == "-" and (word[:1].isdigit() or word.split("_")[0] in ("inf", "nan")):
            self.at += 1
            return self._literal(word, "-")
        operand = self._settled(self._inner(self._operand), None)
        return self.made(floats.Neg if sign == "-" else x.Not, operand)

    def _elements(self, a: Expr) -> Expr:
        """Read `[0:4]` or `[3, 0]` behind a vector."""
        self.take("[")
        first = self.integer()
        if self.skip(":"):
            end = self.integer()
            self.take("]")
            return self.made(x.Slice, a, first, end - first)
        order = [first]
        while self.skip(","):
            order.append(self.integer())
        self.take("]")
        return self.made(x.Shuffle, a, tuple(order))

    # ------------------------------------------------------------ numbers

    def _literal(self, word: str, sign: str = "") -> Expr | Number:
        """Return a number. Its type may follow behind `_`; hexadecimal digits are the bits of a value of that type."""
        bits = _HEX.fullmatch(word)
        found = bits or _NUMBER.fullmatch(word)
        if found is None:
            raise self.error(f"given the number {word[:40]}, wanted one such as 3, 0.5 or 3_u8", self.at - 1)
        if found[2] is None and not bits:
            return Number(sign + found[1])
        dtype = self.made(type_named, found[2] or "s32")
        if not isinstance(dtype, Type):
            raise self.error(f"given a number of type {found[2]}, wanted a scalar type", self.at - 1)
        if bits is None:
            return self.made(number, sign + found[1], dtype)
        if sign or int(bits[1], 16) >> dtype.bits or not (dtype.is_float or dtype.is_int):
            raise self.error(f"given bits {word[:40]}, wanted at most {dtype.bits} without a sign", self.at - 1)
        value = int(bits[1], 16)
        return x.Const(dtype, value) if dtype.is_float else self.made(x.const, value, dtype)

    # ------------------------------------------------------------ names

    def _named(self, word: str) -> Expr | Number:
        if self.following() == "(":
            return self._called(word)
        match word:
            case "lane":
                self.at += 1
                return x.Lane()
            case "true" | "false":
                self.at += 1
                return x.const(word == "true", bool_)
        name = word.strip("`")
        known = self.temporaries.get(name)
        if known is not None and self._is_extent:
            raise self.error(f"given {word} in an extent, wanted sizes and numbers")
        if known is None:
            known = self.variables.get(name)
        if known is None:
            if word.split("_")[0] in ("inf", "nan"):
                self.at += 1
                return self._literal(word)
            known_names = ("lane", *self.variables, *self.temporaries)
            raise self.error(f"an unknown name {_shown(word)}{_suggestion(name, known_names)}")
        self.at += 1
        return known

    def _called(self, word: str) -> Expr:
        name = word.strip("`")
        group, dot, rest = name.partition(".")
        cls = calls().get(word)
        op = self.products.get(rest) if group == "mma" and dot else None
        dtype = None if cls or op else self.made(type_named, group)
        if not (cls or op or dtype or name in fused.MEANING):
            raise self.error(f"an unknown name {_shown(word)}{_suggestion(name, calls())}")
        at = self.at
        self.at += 2
        if cls is not None:
            return self._inner(lambda: self._call(cls))  # type: ignore[no-any-return]
        arguments = self._inner(self._arguments)
        if name in fused.MEANING:
            return self.made(fused.Fused, name, *self._alike(arguments))
        if op is not None:
            settled = [self._settled(a, None) for a in arguments]
            if isinstance(op, BlockAtom):
                return self.made(products.BlockMma, op, *settled)
            return self.made(x.Mma, op, *settled[:3], tuple(settled[3:]))
        assert dtype is not None
        if rest == _PACK:
            return self.made(x.Pack, dtype, tuple(self._settled(a, None) for a in arguments))
        if len(arguments) != 1 or rest not in ("", _SATURATE, _CAST):
            raise self.error(f"given {word[:40]} of {len(arguments)} arguments, wanted a conversion of one", at)
        return self._converted(dtype, rest, arguments[0])

    def _converted(self, dtype: AnyType, how: str, found: Expr | Number) -> Expr:
        if isinstance(dtype, VectorType) and not how:
            a = self._settled(found, dtype.elem)
            return self.made(x.Splat if isinstance(a.type, Type) else x.Cast, dtype, a)
        return self.made(x.Saturate if how == _SATURATE else x.Cast, dtype, self._settled(found, None))

    def _arguments(self) -> list[Expr | Number]:
        """Read arguments and the parenthesis that ends them."""
        if self.skip(")"):
            return []
        found = [self._binary(LOOSEST)]
        while self.skip(","):
            found.append(self._binary(LOOSEST))
        self.take(")")
        return found

    def _alike(self, arguments: list[Expr | Number]) -> list[Expr]:
        """Return arguments of one type: bare numbers get that of the first argument that has one."""
        typed = next((a for a in arguments if not isinstance(a, Number)), None)
        if typed is None and arguments:
            typed = self._settled(arguments[0], None)
            return [typed, *(self._settled(a, typed.type) for a in arguments[1:])]
        return [self._settled(a, typed.type if typed is not None else None) for a in arguments]

    def _call(self, cls: Any) -> Expr:
        """Read the arguments of a function, in the order of its fields."""
        values: dict[str, Any] = {}
        for field in cls.fields:
            if values:
                self.take(",")
            is_expr = field in cls.child_fields
            values[field] = self._binary(LOOSEST) if is_expr else self.buffer()
        self.take(")")
        if cls.alike:
            values |= zip(cls.alike, self._alike([values[field] for field in cls.alike]))
        for field in cls.child_fields:
            values[field] = self._settled(values[field], None)
        return self.made(cls, **values)  # type: ignore[no-any-return]

    def known_as(self, table: dict[str, Any], what: str) -> Any:
        """Take a name of a table and return its entry. Raises UserError for any other name."""
        at, name = self.at, self.name()
        if name not in table:
            raise self.error(f"an unknown {what} {_shown(name)}{_suggestion(name, table)}", at)
        return table[name]

    def buffer(self) -> Global:
        """Take the name of a buffer."""
        return self.known_as(self.buffers, "buffer")  # type: ignore[no-any-return]


_ = floats, fused, products, sizes, votes  # imported because `calls` and `signs` look their classes up in CLASSES
