"""Operations on elements by number: gather, scatter, and atomic operations on elements and tiles."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.stmt import ATOMICS
from convgen.ir.types import scalar
from convgen.tile.argument_checks import expect
from convgen.tile.language import broadcast, stored
from convgen.tile.tiles import Shape, Tensor, Tile, common_shape
from convgen.tile.trace import Gather, Scatter, Value, record


def gather(tensor: Tensor, indices: Value, mask: Value | None = None, other: float = 0) -> Value:
    """Return the tensor's elements whose numbers in memory order are the block `indices` of s32.

    The result is `other` where a number is out of range or `mask` does not hold. Raises UserError for wrong types.
    """
    for argument, kind in ((tensor, Tensor), (indices, Value)):
        expect("gather", argument, kind, "gather(tensor, indices)")
    shape, mask, (indices,) = _of_one_shape("gather", tensor, mask, indices)
    gathered = Gather(shape=shape, elem=tensor.elem, tensor=tensor, indices=indices, mask=mask, other=other)
    return record("gather", gathered)


def scatter(tensor: Tensor, indices: Value, values: Value, mask: Value | None = None) -> None:
    """Store each element to the tensor's element whose number `indices` has, as for `gather`; drop the rest.

    Values stored to one element more than once must be equal. Raises UserError for wrong types.
    """
    _scatter("scatter", tensor, indices, values, mask)


def atomic_rmw(
    kind: str, value: Value, to: Tile | Tensor, indices: Value | None = None, mask: Value | None = None
) -> None:
    """Combine each element atomically with the tile's, or with the tensor's that `indices` names as for `scatter`.

    `kind` is add, min or max of f32, f64, s32 or u32, or and, or or xor of integers, as far as the target has them. The
    order is undefined. Raises UserError for other kinds and types.
    """
    expect("atomic_rmw", value, Value, "atomic_rmw(kind, block, to)")
    elems = ATOMICS.get(kind, ())
    if value.elem not in elems:
        wanted = f"one of {' '.join(map(str, elems))}" if elems else f"one of {', '.join(ATOMICS)}"
        raise UserError(f"given {kind} of {value.elem}, wanted {wanted}, at atomic_rmw")
    if isinstance(to, Tensor) and indices is not None:
        _scatter("atomic_rmw", to, indices, value, mask, kind)
    elif isinstance(to, Tile) and indices is None and mask is None:
        stored("atomic_rmw", value, to, kind)
    else:
        raise UserError("given neither a tile alone nor a tensor with indices, wanted one of these, at atomic_rmw")


def _scatter(operation: str, tensor: Tensor, indices: Value, values: Value, mask: Value | None, op: str = "") -> None:
    for argument, kind in ((tensor, Tensor), (indices, Value), (values, Value)):
        expect(operation, argument, kind, "scatter(tensor, indices, values)")
    if values.elem is not tensor.elem:
        raise UserError(f"given values of {values.elem}, wanted {tensor.elem}, at {operation} to {tensor.name}")
    _, mask, (indices, values) = _of_one_shape(operation, tensor, mask, indices, values)
    record(operation, Scatter(tensor, indices, values, mask, op))


def _of_one_shape(
    operation: str, tensor: Tensor, mask: Value | None, indices: Value, *values: Value
) -> tuple[Shape, Value | None, list[Value]]:
    """Return the common shape, then mask, indices and values broadcast to it.

    Raises UserError unless indices are s32 and the mask is bool.
    """
    if indices.elem is not scalar("s32") or (mask is not None and mask.elem is not scalar("bool")):
        given = " and ".join(str(v.elem) for v in (indices, mask) if v is not None)
        raise UserError(f"given {given}, wanted indices of s32 and a mask of bool, at {operation} of {tensor.name}")
    blocks = [indices, *values]
    shape = common_shape(operation, [v.shape for v in (*blocks, mask) if v is not None])
    return shape, None if mask is None else broadcast(mask, shape), [broadcast(v, shape) for v in blocks]
