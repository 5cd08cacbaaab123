"""Records: shown, compared and hashed as attrs would, by methods that all share."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from convgen.ir.record import define, frozen


@frozen
class Point:
    x: int
    y: int = 0
    note: str = attrs.field(default="", eq=False, repr=False)


@frozen
class Place(Point):
    z: int = 0


@frozen
class One:
    value: Any


@frozen
class Nothing:
    pass


@frozen(eq=False)
class Itself:
    x: int


@define
class Cell:
    value: Any = None


@frozen
class Own:
    x: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7


@frozen
class Rough:
    """Has a hash of its own, but is compared like any other."""

    x: int

    def __hash__(self) -> int:
        return 7


@frozen(cache_hash=True)
class Kept:
    x: int
    y: int


@frozen(order=True)
class Rank:
    x: int


def test_records_are_equal_whose_compared_fields_are() -> None:
    assert Point(1, 2, "a") == Point(1, 2, "b") != Point(1, 3)
    assert hash(Point(1, 2, "a")) == hash(Point(1, 2, "b"))
    assert One(3) == One(3) != One(4)
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    assert Kept(1, 2) == Kept(1, 2) != Kept(2, 1)
    assert len({Kept(1, 2), Kept(1, 2)}) == 1


@pytest.mark.parametrize("other", [Place(1), Cell(1), (1, 0), 1])
def test_what_is_of_another_class_differs_whatever_it_holds(other: object) -> None:
    assert Point(1) != other
    assert One(1) != other
    assert other != One(1)


def test_fields_of_a_derived_class_are_compared_and_shown() -> None:
    assert Place(1, 2, "a", 3) == Place(1, 2, "b", 3) != Place(1, 2, "a", 4)
    assert str(Place(1, 2, "a", 3)) == "Place(x=1, y=2, z=3)"


def test_a_record_without_equality_is_itself_only() -> None:
    assert Itself(1) != Itself(1)
    assert len({Itself(1), Itself(1)}) == 2


def test_what_can_change_has_no_hash() -> None:
    assert Cell(1) == Cell(1) != Cell(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Cell(1))


def test_methods_of_the_class_itself_stay() -> None:
    assert repr(Own(1)) == "own"
    assert Own(1) == Own(2)
    assert Rough(1) != Rough(2)
    assert hash(Own(1)) == hash(Rough(1)) == 7
    assert Rank(1) < Rank(2)


def test_records_are_shown_with_their_fields() -> None:
    assert repr(Point(1, 2, "hidden")) == "Point(x=1, y=2)"
    assert repr(One("a")) == "One(value='a')"
    assert repr(Nothing()) == "Nothing()"
    cell = Cell()
    cell.value = [cell]
    assert repr(cell) == "Cell(value=[...])"


def test_classes_share_their_methods() -> None:
    for name in ("__repr__", "__eq__", "__hash__"):
        assert vars(Point)[name] is vars(One)[name]
