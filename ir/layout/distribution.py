"""A layout on a workgroup: which of its threads or subgroups own an element, and what each of them holds."""

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

Numbers = Callable[[Index], Mapping[str, Index]]  #: an owner's number -> its numbers in the spaces of digits


@frozen
class Distribution:
    """`digits` whose spaces but REGISTER are numbers that the owners 0 to `owners` have by `numbers`.

    Elements whose digits no owner has are lost; where several have the same, all of them hold the element.
    """

    digits: Digits
    owners: int
    numbers: Numbers

    def __attrs_post_init__(self) -> None:
        if any(d.space == Space.FIXED for d in self.digits.digits):
            raise UserError(f"given {self.digits}, wanted a whole tile to tell the owners of")
        if not 1 <= self.owners <= _MOST_OWNERS:
            raise UserError(f"given {self.owners} owners of a layout, wanted 1 to {_MOST_OWNERS}")

    @classmethod
    def of(cls, fragment: Fragment, subgroup_size: int, threads: int) -> Distribution:
        """A fragment on the threads of a workgroup."""
        return cls(fragment, threads, lambda n: {Space.LANE: n % subgroup_size, Space.SUBGROUP: n // subgroup_size})

    def _key(self, numbers: Mapping[str, Index]) -> Index:
        """What an owner's numbers say of coordinates, as one number."""
        at = self.digits.coordinates({space: n for space, n in numbers.items() if space != Space.REGISTER})
        key: Index = 0
        for dim, size in zip(self.digits.dims, self.digits.shape):
            key = key * size + at[dim]
        return key

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        """The key of each owner."""
        every = np.arange(self.owners, dtype=np.int64)
        return np.broadcast_to(np.asarray(self._key(self.numbers(every)), dtype=np.int64), every.shape)

    def owners_of(self, coord: Sequence[int]) -> tuple[int, ...]:
        """All owners of an element; none where it is lost."""
        key = self._key(self.digits.place(dict(zip(self.digits.dims, coord))))
        return tuple(np.flatnonzero(self._keys == key).tolist())

    def held(self, owner: int) -> npt.NDArray[np.int64]:
        """The coordinates of the elements that an owner holds: registers x rank."""
        registers = np.arange(self.digits.count(Space.REGISTER), dtype=np.int64)
        at = self.digits.coordinates({**self.numbers(owner), Space.REGISTER: registers})
        columns = [np.broadcast_to(np.asarray(at[dim]), registers.shape) for dim in self.digits.dims]
        return np.stack(columns, axis=1) if columns else np.zeros((len(registers), 0), np.int64)

    @property
    def replication(self) -> tuple[int, ...]:
        """How many owners elements have, ascending; with a 0 where elements are lost."""
        keys, counts = np.unique(self._keys, return_counts=True)
        lost = len(keys) < prod(d.size for d in self.digits.digits if d.space != Space.REGISTER)
        return tuple(sorted({*counts.tolist(), *([0] if lost else [])}))

    @property
    def covers(self) -> bool:
        """Whether each element has an owner."""
        return self.replication[0] > 0

    def grid(self) -> npt.NDArray[np.int64]:
        """By coordinates, a number that elements of the same owners share: that of `sets`."""
        at = dict(zip(self.digits.dims, np.indices(self.digits.shape, dtype=np.int64, sparse=True)))
        key = np.broadcast_to(self._key(self.digits.place(at)), self.digits.shape)
        return np.asarray(key)

    def sets(self) -> dict[int, tuple[int, ...]]:
        """The owners by the numbers of `grid`."""
        found: dict[int, list[int]] = {}
        for owner, key in enumerate(self._keys.tolist()):
            found.setdefault(key, []).append(owner)
        return {key: tuple(owners) for key, owners in found.items()}
