"""Operations on elements by number: gather, scatter, and atomic operations on elements and tiles."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.stmt import ATOMICS
from convgen.ir.types import scalar
from convgen.tile.language import broadcast, stored
from convgen.tile.tiles import Shape, Tensor, Tile, common_shape
from convgen.tile.trace import Gather, Scatter, Value, record


def gather(tensor: Tensor, indices: Value, mask: Value | None = None, other: float = 0) -> Value:
    """Return the tensor's elements whose numbers in memory order are the block `indices` of s32.

    The result is `other` where a number is out of range or `mask` does not hold. Raises UserError for wrong types.
    """
    shape, (indices, *rest) = _numbered("gather", tensor, indices, mask)
    (mask,) = rest or (None,)
    gathered = Gather(shape=shape, elem=tensor.elem, tensor=tensor, indices=indices, mask=mask, other=other)
    value: Value = record("gather", gathered)
    return value


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
    takes = ATOMICS.get(kind, ())
    if value.elem not in takes:
        wanted = f"one of {' '.join(map(str, takes))}" if takes else f"one of {', '.join(ATOMICS)}"
        raise UserError(f"given {kind} of {value.elem}, wanted {wanted}, at atomic_rmw")
    if isinstance(to, Tensor) and indices is not None:
        _scatter("atomic_rmw", to, indices, value, mask, kind)
    elif isinstance(to, Tile) and indices is None and mask is None:
        stored("atomic_rmw", value, to, kind)
    else:
        raise UserError("given neither a tile alone nor a tensor with indices, wanted one of these, at atomic_rmw")


def _scatter(operation: str, tensor: Tensor, indices: Value, values: Value, mask: Value | None, op: str = "") -> None:
    if values.elem is not tensor.elem:
        raise UserError(f"given values of {values.elem}, wanted {tensor.elem}, at {operation} to {tensor.name}")
    _, (indices, values, *rest) = _numbered(operation, tensor, indices, values, mask)
    (mask,) = rest or (None,)
    record(operation, Scatter(tensor, indices, values, mask, op))


def _numbered(operation: str, tensor: Tensor, indices: Value, *others: Value | None) -> tuple[Shape, list[Value]]:
    """Return the common shape of the blocks, and the blocks broadcast to it."""
    blocks = [indices, *(v for v in others if v is not None)]
    mask = others[-1]
    if indices.elem is not scalar("s32") or (mask is not None and mask.elem is not scalar("bool")):
        given = " and ".join(str(v.elem) for v in (indices, mask) if v is not None)
        raise UserError(f"given {given}, wanted indices of s32 and a mask of bool, at {operation} of {tensor.name}")
    shape = common_shape(operation, [v.shape for v in blocks])
    return shape, [broadcast(v, shape) for v in blocks]
