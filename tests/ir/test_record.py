"""Records: shown, compared and hashed as attrs would, by methods that all share."""

from __future__ import annotations

import inspect
import pickle
import re
from copy import copy, deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from weakref import ref

import attrs
import pytest

from convgen.ir.expr import Add, Var
from convgen.ir.record import as_dict, define, evolve, fields_of, frozen
from convgen.ir.types import s32

ROOT = Path(__file__).parents[2]


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


@frozen
class Hidden:
    _name: int
    record: int = 0


@frozen(eq=False)
class Itself:
    x: int


@define
class Cell:
    value: Any = None


@frozen
class LanePart:
    x: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LanePart)

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


_asked: list[str] = []  #: what was computed, by name


@frozen(cache_hash=True)
class Square:
    side: Any

    @cached_property
    def area(self) -> Any:
        _asked.append("area")
        return self.side * self.side


@frozen(cache_hash=True)
class Box(Square):
    height: int = 1

    @cached_property
    def area(self) -> Any:
        _asked.append("surface")
        return self.side * self.side * 2 + self.side * self.height * 4

    @cached_property
    def volume(self) -> Any:
        _asked.append("volume")
        return self.side * self.side * self.height


class Counted:
    """Counts how often its hash was asked for."""

    asked = 0

    def __hash__(self) -> int:
        self.asked += 1
        return 1


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


def test_what_is_cached_is_computed_when_it_is_asked_for_and_once() -> None:
    _asked.clear()
    box, square = Box(2, 3), Square(2)
    assert not _asked
    assert (box.area, box.area, box.volume, box.volume, square.area) == (32, 32, 12, 12, 4)
    assert _asked == ["surface", "volume", "area"]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        box.volume = 7
    with pytest.raises(AttributeError, match="'Box' object has no attribute 'weight'"):
        box.weight  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(square, "volume")


@pytest.mark.parametrize("again", [copy, deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_compute_anew(again: Any) -> None:
    box = Box(2, 3)
    assert box.volume == 12
    _asked.clear()
    assert again(box) == box
    assert hash(again(box)) == hash(box)
    assert again(box).volume == 12
    assert _asked == ["volume"]


def test_a_hash_is_kept() -> None:
    counted = Counted()
    square = Square(counted)
    assert hash(square) == hash(square)
    assert counted.asked == 1


def test_a_record_with_other_fields() -> None:
    box = Box(2, 3)
    assert evolve(box, height=5) == Box(2, 5)
    assert evolve(box) == box
    assert evolve(Point(1, 2, "a"), x=3).note == "a"
    assert evolve(Hidden(1), name=2, record=3) == Hidden(2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        evolve(box, depth=1)  # type: ignore[call-arg]


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
    assert repr(LanePart(1)) == "own"
    assert LanePart(1) == LanePart(2)
    assert Rough(1) != Rough(2)
    assert hash(LanePart(1)) == hash(Rough(1)) == 7
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


# ---------------------------------------------------------------- plain records, which attrs does not make


@frozen
class Plain:
    first: int
    more: list[int] = attrs.Factory(list)
    _hidden: str = "h"
    count: ClassVar[int] = 3

    def doubled(self) -> int:
        return 2 * self.first


@frozen(kw_only=True)
class Named(Plain):
    last: int = 5

    def doubled(self) -> int:
        return super().doubled() + self.last


@frozen
class Checked(Plain):  # by attrs
    size: int = attrs.field(default=4, validator=attrs.validators.in_((4, 8)))

    def __attrs_post_init__(self) -> None:
        assert self.first >= 0


@define
class Settled:
    value: int
    seen: list[int] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self.seen.append(self.value)


def test_a_plain_record_is_made_as_attrs_makes_it() -> None:
    assert (Plain(1).first, Plain(1).more, Plain(1)._hidden) == (1, [], "h")
    assert Plain(1, hidden="x")._hidden == "x"  # type: ignore[call-arg]
    assert Plain(1).more is not Plain(1).more
    assert Named(1, last=7).doubled() == 9
    assert Settled(2).seen == [2]
    assert Plain.count == Plain(1).count == 3
    with pytest.raises(TypeError, match="first"):
        Plain()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Named(1, [], "h", 7)  # type: ignore[call-arg]


def test_a_plain_record_has_slots_and_stays_as_it_is() -> None:
    for record in (Plain(1), Named(1), Checked(1)):
        assert not hasattr(record, "__dict__")
        assert ref(record)() is record
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            record.first = 2  # type: ignore[misc]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            del record.first
    cell = Cell(1)
    cell.value = 2
    assert cell == Cell(2)


def test_attrs_knows_the_fields_of_plain_records() -> None:
    assert [f.name for f in fields_of(Named)] == ["first", "more", "_hidden", "last"]
    assert fields_of(Named).last.default == 5
    assert evolve(Named(1), hidden="x", last=6) == Named(1, hidden="x", last=6)  # type: ignore[call-arg]
    assert as_dict(Plain(1)) == {"first": 1, "more": [], "_hidden": "h"}
    assert attrs.has(Plain)
    with pytest.raises(ValueError, match="size"):
        Checked(1, size=5)
    assert evolve(Checked(1), size=8).size == 8


@pytest.mark.parametrize("record", [Plain(1, [2]), Named(1, last=3), Checked(1, size=8), Settled(1)])
def test_records_are_copied_and_pickled(record: object) -> None:
    for other in (copy(record), deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert other == record
        assert type(other) is type(record)


def test_plain_records_are_matched_by_place() -> None:
    match Plain(1, [2], "x"):
        case Plain(first, more, hidden):
            assert (first, more, hidden) == (1, [2], "x")
    assert Named.__match_args__ == ("first", "more", "_hidden")


def test_an_init_is_written_once_it_is_wanted() -> None:
    @frozen
    class Late:
        x: int

    assert Late.__init__.__name__ == "first"
    assert Late(1) == Late(x=1)
    assert inspect.signature(Late) == inspect.signature(lambda x: None)


def test_evolve_changes_records_and_nodes() -> None:
    a, b = Var("a", 0, s32), Var("b", 1, s32)
    assert evolve(Point(1), y=2) == Point(1, 2)
    assert evolve(Add(a, b), b=a) is Add(a, a)
    with pytest.raises(TypeError, match="'c'"):
        evolve(Add(a, b), c=a)  # type: ignore[call-arg]


def test_no_other_word_makes_changed_copies() -> None:
    """Neither attrs' nor that of dataclasses, but where record.py builds on them."""
    others = re.compile(r"attrs\.evolve|from attrs import .*evolve|dataclasses\b.*\breplace|copy import replace")
    sources = (path for room in ("ir", "passes", "gen", "backends") for path in (ROOT / room).rglob("*.py"))
    assert [path.name for path in sources if others.search(path.read_text())] == ["record.py"]
