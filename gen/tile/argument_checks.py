"""Checks of the arguments of a kernel's operations. Each raises UserError, which names the operation."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.tile.source import called
from convgen.tile.tiles import Index, Shape, Tensor, Tile
from convgen.tile.trace import Value

_KINDS: dict[type, str] = {Value: "a block", Tile: "a tile", Tensor: "a tensor"}
_LONGEST = 60  #: characters of a wrong argument in a message


def expect(operation: str, value: object, kind: type, example: str) -> None:
    """Raise UserError unless a value is a `kind`, one of `_KINDS`; `example` shows a right call."""
    if not isinstance(value, kind):
        known = isinstance(value, tuple(_KINDS))
        given = described(value) if known else f"an argument of type {type(value).__name__}"
        raise UserError(f"given {given}, wanted {_KINDS[kind]}, as in {example}, at {operation}")


def described(value: object) -> str:
    """Return a wrong argument in a few words: a block, tile or tensor with its name, any other value in one line."""
    kind = next((name for known, name in _KINDS.items() if isinstance(value, known)), "")
    if kind:
        return f"{kind} ({name})" if (name := called(value, "")) else kind
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_sequence(operation: str, what: str, value: object) -> None:
    """Raise UserError unless `value`, the shape of a block, is a sequence."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"given the {what} {described(value)}, wanted a tuple of sizes, at {operation}")


def check_shape(operation: str, shape: object) -> Shape:
    """Return the shape of a block: a sequence of numbers from 1."""
    check_sequence(operation, "shape", shape)
    assert isinstance(shape, Sequence)
    for size in shape:
        if not isinstance(size, int) or size < 1:
            wanted = "at least 1" if isinstance(size, int) else "a number"
            raise UserError(f"given a block size {described(size)}, wanted {wanted}, at {operation}")
    return tuple(shape)


def check_offsets(operation: str, offsets: object) -> tuple[Index, ...]:
    """Return offsets, or distances, along the dims of a tensor: integers and scalars of the kernel."""
    if not isinstance(offsets, Sequence) or isinstance(offsets, str):
        raise UserError(f"given the offsets {described(offsets)}, wanted a tuple of them, at {operation}")
    for offset in offsets:
        if not isinstance(offset, Integral | Expr):
            text = called(offset) if isinstance(offset, Value) else described(offset)
            raise UserError(f"given the offset {text}, wanted an integer or a scalar of the kernel, at {operation}")
    return tuple(each if isinstance(each, Expr) else int(each) for each in offsets)  # numpy's integers as well


def check_ends(operation: str, ends: object) -> tuple[Index | None, ...]:
    """Return ends along the dims of a tensor: None, integers and scalars of the kernel."""
    if not isinstance(ends, Sequence) or isinstance(ends, str):
        raise UserError(f"given ends={described(ends)}, wanted a tuple of them, at {operation}")
    known = iter(check_offsets(operation, [end for end in ends if end is not None]))
    return tuple(None if end is None else next(known) for end in ends)


def check_inside(operation: str, tile: Tile) -> None:
    """Raise UserError for a tile at known offsets that has no element in the tensor."""
    block = dict(zip(tile.kept, tile.shape))
    for n, (offset, size) in enumerate(zip(tile.offsets, tile.tensor.most)):
        length = block.get(n, 1)
        if isinstance(offset, int) and not -length < offset < size:
            wanted = f"an offset below {size}" if offset >= 0 else "some of it in the tensor"
            place = f"a block of {length} at {offset} along dim {n} of {tile.tensor.name}"
            raise UserError(f"given {place}, wanted {wanted}, at {operation}")
