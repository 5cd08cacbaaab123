"""A layout on a workgroup: the threads or subgroups that own an element, and the elements of each owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digits, Index, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen

_MOST_OWNERS = 1 << 16

Numbers = Callable[[Index], Mapping[str, Index]]  #: owner's number -> its numbers in the spaces of the digits


@frozen
class Distribution:
    """`digits` on `owners` owners; `numbers` gives an owner's number in each space except REGISTER.

    An element whose digits no owner has is lost; several owners with equal digits all hold the element.
    """

    digits: Digits
    owners: int
    numbers: Numbers

    def __attrs_post_init__(self) -> None:
        if any(d.space == Space.FIXED for d in self.digits.digits):
            raise UserError(f"given {self.digits}, wanted a whole tile, as a part has no owners")
        if not 1 <= self.owners <= _MOST_OWNERS:
            raise UserError(f"given {self.owners} owners of a layout, wanted 1 to {_MOST_OWNERS}")

    @classmethod
    def of(cls, fragment: Fragment, subgroup_size: int, threads: int) -> Distribution:
        """Return a fragment's distribution on the threads of a workgroup."""
        return cls(fragment, threads, lambda n: {Space.LANE: n % subgroup_size, Space.SUBGROUP: n // subgroup_size})

    def _key(self, numbers: Mapping[str, Index]) -> Index:
        """Return the coordinates that an owner's numbers determine, as one number."""
        at = self.digits.coordinates({space: n for space, n in numbers.items() if space != Space.REGISTER})
        key: Index = 0
        for dim, size in zip(self.digits.dims, self.digits.shape):
            key = key * size + at[dim]
        return key

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        """Return the key of each owner."""
        every = np.arange(self.owners, dtype=np.int64)
        return np.broadcast_to(np.asarray(self._key(self.numbers(every)), dtype=np.int64), every.shape)

    def owners_of(self, coord: Sequence[int]) -> tuple[int, ...]:
        """Return all owners of an element; none if it is lost."""
        key = self._key(self.digits.place(dict(zip(self.digits.dims, coord))))
        return tuple(np.flatnonzero(self._keys == key).tolist())

    def elements_of(self, owner: int) -> npt.NDArray[np.int64]:
        """Return the coordinates of the elements that an owner holds: registers x rank."""
        registers = np.arange(self.digits.count(Space.REGISTER), dtype=np.int64)
        at = self.digits.coordinates({**self.numbers(owner), Space.REGISTER: registers})
        columns = [np.broadcast_to(np.asarray(at[dim]), registers.shape) for dim in self.digits.dims]
        return np.stack(columns, axis=1) if columns else np.zeros((len(registers), 0), np.int64)

    @property
    def replication(self) -> tuple[int, ...]:
        """Return the numbers of owners that elements have, ascending; with a 0 if elements are lost."""
        keys, counts = np.unique(self._keys, return_counts=True)
        lost = len(keys) < prod(d.size for d in self.digits.digits if d.space != Space.REGISTER)
        return tuple(sorted({*counts.tolist(), *([0] if lost else [])}))

    @property
    def covers(self) -> bool:
        """Return whether each element has an owner."""
        return self.replication[0] > 0

    def grid(self) -> npt.NDArray[np.int64]:
        """Return, by coordinates, the number of the element's owner set in `sets`."""
        at = dict(zip(self.digits.dims, np.indices(self.digits.shape, dtype=np.int64, sparse=True)))
        key = np.broadcast_to(self._key(self.digits.place(at)), self.digits.shape)
        return np.asarray(key)

    def sets(self) -> dict[int, tuple[int, ...]]:
        """Return the owner sets by their numbers in `grid`."""
        found: dict[int, list[int]] = {}
        for owner, key in enumerate(self._keys.tolist()):
            found.setdefault(key, []).append(owner)
        return {key: tuple(owners) for key, owners in found.items()}
