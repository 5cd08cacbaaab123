"""Text forms of the operations of a tile program: one table, for printing and for parsing.

A form is text with fields in braces, `{axis:int}`: the name of an attribute, and its kind, a row of `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.xetile import SgMap, WgMap
from convgen.ir.record import frozen
from convgen.ir.text import infix
from convgen.tile import indexed, language
from convgen.tile.tiles import Tensor, Tile, sized
from convgen.tile.trace import (
    ELEMENTWISE,
    Convert,
    Full,
    Gather,
    Load,
    Map,
    Positions,
    Prefetch,
    Product,
    Redistributed,
    Reduced,
    Scatter,
    Store,
    Transposed,
    Value,
    applied,
)


class Names(Protocol):
    """Names of values and tiles while printing."""

    def name(self, value: Value | Tile) -> str: ...


class Scope(Protocol):
    """Meanings of names while parsing."""

    def value(self, name: str) -> Value: ...
    def tile(self, name: str) -> Tile: ...
    def tensor(self, name: str) -> Tensor: ...
    def scalar(self, text: str) -> int | Expr: ...


@frozen
class Kind:
    """The text of a field: its pattern, and functions that print and parse it."""

    pattern: str
    show: Callable[[Any, Names], str]
    read: Callable[[str, Scope], Any]


MAPS = r"(?: {#xetile[^}]*})?"  #: text of explicit layouts, if any


def number(text: str) -> float | None:
    """Return the number that a Python literal stands for; None for other text."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def shown(scalar: float | Expr) -> str:
    """Return the text of a number or a scalar of the kernel."""
    return infix(scalar) if isinstance(scalar, Expr) else repr(scalar)


def extents(shape: Sequence[int | Expr]) -> str:
    """Return the text of a shape; sizes known only at launch stand in brackets."""
    return "x".join(f"[{infix(size)}]" if isinstance(size, Expr) else str(size) for size in shape)


def listed(text: str) -> list[str]:
    """Return the parts of a list, split at commas outside of parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def _operand(text: str, scope: Scope) -> Value | float | Expr:
    if text.startswith("%"):
        return scope.value(text)
    known = number(text)
    return scope.scalar(text) if known is None else known


def _operands(operands: Sequence[Value | float | Expr], names: Names) -> str:
    return ", ".join(names.name(o) if isinstance(o, Value) else shown(o) for o in operands)


def _constant(text: str, scope: Scope) -> float:
    value = number(text)
    if value is None:
        raise UserError(f"given {text!r}, wanted a number")
    return value


def _flag(word: str) -> Kind:
    """Return the kind of a flag: a word that is present if the flag is set."""
    return Kind(rf"(?: {{{word}}})?", lambda field, _: f" {{{word}}}" if field else "", lambda text, _: bool(text))


def _optional_block(before: str) -> Kind:
    """Return the kind of a block that may be missing, with the text before it."""
    return Kind(
        rf"(?:{before}%\w+)?",
        lambda field, names: "" if field is None else f"{before}{names.name(field)}",
        lambda text, scope: scope.value(text.removeprefix(before)) if text else None,
    )


def _maps(text: str, scope: Scope) -> dict[str, Any]:
    """Return the arguments `wg_map` and `sg_map` of an operation."""
    arguments: dict[str, Any] = {}
    for kind, name in re.findall(r"(#xetile\.(\w+)<[^>]*>)", text):
        if name == "wg_map":
            wg = WgMap.parse(kind)
            arguments[name] = wg.sg_layout, wg.sg_data
        else:
            sg = SgMap.parse(kind)
            arguments[name] = sg.wi_layout, sg.wi_data
    return arguments


KINDS: dict[str, Kind] = {
    "block": Kind(r"%\w+", lambda field, names: names.name(field), lambda text, scope: scope.value(text)),
    "tile": Kind(r"%\w+", lambda field, names: names.name(field), lambda text, scope: scope.tile(text)),
    "int": Kind(r"\d+", lambda field, _: str(field), lambda text, _: int(text)),
    "word": Kind(r"\w+", lambda field, _: str(field), lambda text, _: text),
    "number": Kind(r"\S+", lambda field, _: shown(field), _constant),
    "operands": Kind(r".+", _operands, lambda text, scope: tuple(_operand(part, scope) for part in listed(text))),
    "tensor": Kind(r"\w+", lambda field, _: str(field.name), lambda text, scope: scope.tensor(text)),
    "mask": _optional_block(" if "),
    "other": Kind(
        r"(?: else \S+)?",
        lambda field, _: f" else {shown(field)}" if field else "",
        lambda text, scope: _constant(text[6:], scope) if text else 0,
    ),
    "maps": Kind(MAPS, lambda field, _: f" {{{field}}}" if field else "", _maps),
    "more": _optional_block(", "),
    "ends": Kind(
        r"(?: until \[[^\]]*\])?",
        lambda field, _: f" until [{', '.join('-' if e is None else shown(e) for e in field)}]" if field else "",
        lambda text, scope: tuple(None if e == "-" else scope.scalar(e) for e in listed(text[8:-1])) if text else (),
    ),
    "transpose": _flag("transpose"),
    "saturate": _flag("saturate"),
}
_FIELD = re.compile(r"{(\w+):(\w+)}")


@frozen
class Form:
    """The text form of operations of one class, restricted to those whose attributes have the values in `where`.

    `make` rebuilds the operation from its fields, in the order of the text; if `typed`, from the shape of its value
    and the name of its type before them.
    """

    operation: type[Any]
    text: str
    make: Callable[..., Any]
    where: Mapping[str, Any] = attrs.field(factory=dict)
    typed: bool = False

    def suits(self, statement: Any) -> bool:
        return isinstance(statement, self.operation) and all(getattr(statement, k) == v for k, v in self.where.items())

    def show(self, statement: Any, names: Names) -> str:
        return _FIELD.sub(lambda f: KINDS[f[2]].show(getattr(statement, f[1]), names), self.text)

    def read(self, text: str, scope: Scope) -> list[Any] | None:
        """Return the parsed fields, in order; None if the text has another form."""
        literal = re.split(_FIELD, self.text)
        groups = (f"({KINDS[kind].pattern})" for kind in literal[2::3])
        pattern = re.escape(literal[0]) + "".join(
            group + re.escape(between) for group, between in zip(groups, literal[3::3])
        )
        match = re.fullmatch(pattern, text)
        if match is None:
            return None
        return [KINDS[kind].read(part, scope) for kind, part in zip(literal[2::3], match.groups(default=""))]


def _map(name: str, operands: tuple[Any, ...]) -> Value:
    if name not in ELEMENTWISE:
        raise UserError(f"given the operation {name!r}, wanted one of those in docs/tile.md")
    return applied(name, *operands)


#: The forms of values, between `%name = ` and ` : vector<...>`; the first that suits is printed.
VALUES: tuple[Form, ...] = (
    Form(
        Load,
        "load_tile {tile:tile}{ends:ends}{transposed:transpose}{own_maps:maps}",
        lambda tile, ends, transposed, maps: language.load_tile(tile, transpose=transposed, ends=ends, **maps),
    ),
    Form(Full, "constant {value:number}", lambda shape, dtype, value: language.full(shape, value, dtype), typed=True),
    Form(Positions, "positions along {axis:int}", lambda shape, _, axis: language.positions(shape, axis), typed=True),
    Form(
        Convert,
        "convert {of:block}{saturate:saturate}",
        lambda shape, dtype, of, saturate: language.convert(of, dtype, saturate=saturate),
        typed=True,
    ),
    Form(Reduced, "reduce {kind:word} {of:block} along {axis:int}", language.reduce),
    Form(Product, "tile_mma {a:block}, {b:block}{acc:more}", language.tile_mma),
    Form(Gather, "gather {tensor:tensor}[{indices:block}]{mask:mask}{other:other}", indexed.gather),
    Form(Transposed, "transpose {of:block}", language.transpose),
    Form(
        Redistributed,
        "convert_layout {of:block}{maps:maps}",
        lambda of, maps: language.convert_layout(of, **({"wg_map": None} | maps)),
    ),
    Form(
        Map,
        "broadcast {operands:operands}",
        lambda shape, dtype, operands: language.broadcast(operands[0], shape),
        {"name": "broadcast"},
        typed=True,
    ),
    Form(Map, "{name:word} {operands:operands}", _map),
)
#: The forms of statements without a value.
STATEMENTS: tuple[Form, ...] = (
    Form(
        Store,
        "store_tile {value:block}, {tile:tile}{ends:ends}",
        lambda value, tile, ends: language.store_tile(value, tile, ends=ends),
        {"op": ""},
    ),
    Form(Store, "atomic_rmw {op:word} {value:block}, {tile:tile}", indexed.atomic_rmw),
    Form(
        Scatter,
        "scatter {value:block}, {tensor:tensor}[{indices:block}]{mask:mask}",
        lambda value, tensor, indices, mask: indexed.scatter(tensor, indices, value, mask),
        {"op": ""},
    ),
    Form(
        Scatter, "atomic_rmw {op:word} {value:block}, {tensor:tensor}[{indices:block}]{mask:mask}", indexed.atomic_rmw
    ),
    Form(Prefetch, "prefetch_tile {tile:tile}", language.prefetch_tile),
)


def written(statement: Any, names: Names) -> str:
    """Return the text of a value or statement."""
    return next(form for form in (*VALUES, *STATEMENTS) if form.suits(statement)).show(statement, names)


def type_of(kind: str, shape: Sequence[int], dtype: str) -> str:
    """Return the text of a type, `tile<64x32xf16>`; `kind` is tile or vector."""
    return f"{kind}<{sized(shape)}x{dtype}>"
