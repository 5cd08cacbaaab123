"""Records: attrs classes that share the methods which attrs would generate for each class.

With attrs alone a command takes 9 to 12 % more CPU time: 0.50 s instead of 0.44 for `convgen targets`, 0.70 instead of
0.62 for `convgen conv` (`python bench/records.py` measures both).

`repr`, comparison and hash are the same code for all records except for field names, but attrs generates and compiles
them class by class, which takes as long as the rest of importing them. `frozen` and `define` take the options of attrs.
A class that uses an option or field setting beyond the common ones keeps the methods of attrs.

Most records are *plain*: their fields have types and perhaps defaults, nothing more. A process never instantiates a
third of these classes and inspects the fields of few. So slow steps are deferred: `__init__` is generated and compiled
for the first instance, and attrs describes the fields when `attrs.fields` is called. A `cached_property`, and a cached
hash (`cache_hash`), has its own slot, empty until first use.

No library does this. A command imports three hundred such classes: attrs takes 0.2 ms for each with any options;
msgspec takes 0.013 ms a class, but 17 ms to import besides attrs, and has no cached properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack, dataclass_transform, overload

import attrs

__all__ = ["as_dict", "define", "evolve", "fields_of", "frozen", "rebuilt"]

T = TypeVar("T")


@attrs.frozen
class _Frozen:
    """The source of attrs' `__setattr__` that refuses: with it, frozen records can derive from frozen attrs classes."""


_ATTRS_FIELD = type(attrs.field())
_FACTORY: Any = attrs.Factory  # a class, which type checkers take for a function


class _Field(NamedTuple):
    annotation: Any
    default: Any  #: the value or its factory; NOTHING if the argument is required
    kw_only: bool


def _is_plain(cls: type) -> bool:
    """Return whether a class and its bases use only field types and simple defaults."""
    own = vars(cls)
    if "__init__" in own or "__getattr__" in own or any(_needs_attrs(value) for value in own.values()):
        return False
    return all("__fields__" in vars(base) or not attrs.has(base) for base in cls.__mro__[1:-1])


def _needs_attrs(value: object) -> bool:
    """Return whether a default needs attrs itself: `attrs.field(...)`, or a factory that takes the instance."""
    return isinstance(value, _ATTRS_FIELD) or (isinstance(value, _FACTORY) and value.takes_self)


def _plain(cls: type, *, kw_only: bool, cache_hash: bool, frozen: bool) -> Any:
    """Return the class rebuilt with slots for its fields, as attrs would."""
    scope = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    annotations = {f: a for f, a in scope.get("__annotations__", {}).items() if not str(a).startswith("ClassVar")}
    bases = [vars(base) for base in reversed(cls.__mro__[1:-1])]
    inherited = {f: field for base in bases for f, field in base.get("__fields__", {}).items()}
    own = {f: _Field(a, scope.pop(f, attrs.NOTHING), kw_only) for f, a in annotations.items()}
    fields = {f: field for f, field in inherited.items() if f not in own} | own
    inherited_deferred = {f: compute for base in bases for f, compute in base.get("__deferred__", {}).items()}
    deferred = {f: scope.pop(f).func for f, value in vars(cls).items() if isinstance(value, cached_property)}
    if cache_hash:
        deferred[_HASH], scope["__hash__"] = _hash_of_fields, _cached_hash
    slots = [*(f for f in own if f not in inherited), *(f for f in deferred if f not in inherited_deferred)]
    scope["__slots__"] = (*slots, *([] if any("__weakref__" in base for base in bases) else ["__weakref__"]))
    scope["__fields__"], scope["__arguments__"] = fields, {f.lstrip("_"): f for f in fields}
    if deferred:
        scope["__deferred__"], scope["__getattr__"] = inherited_deferred | deferred, _fill_slot
    scope["__attrs_attrs__"] = _Described()
    scope["__match_args__"] = tuple(f for f, field in fields.items() if not field.kw_only)
    scope["__getstate__"], scope["__setstate__"] = _state, _restore
    if frozen:
        scope["__setattr__"], scope["__delattr__"] = _Frozen.__setattr__, _Frozen.__delattr__
    slotted: Any = rebuilt(cls, scope, deferred.values())

    def first(self: object, *args: Any, **named: Any) -> None:
        slotted.__init__ = init = _generated_init(slotted)
        init(self, *args, **named)

    slotted.__init__ = first
    return slotted


def rebuilt(cls: type, scope: Mapping[str, Any], others: Iterable[Callable[..., Any]] = ()) -> Any:
    """Return the class with another scope; `super()` in functions of the scope or in `others` finds the new class."""
    slotted = type(cls)(cls.__name__, cls.__bases__, dict(scope))
    for function in (*scope.values(), *others):
        # methods that use `super()` refer to the class in a cell
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is cls:
                cell.cell_contents = slotted
    return slotted


_HASH = "_hash"  #: the slot of a cached hash


def _fill_slot(self: Any, name: str) -> Any:
    """Compute and store the value of an empty slot (`__getattr__` of plain records)."""
    compute = type(self).__deferred__.get(name)
    if compute is None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
    value = compute(self)
    object.__setattr__(self, name, value)
    return value


def _cached_hash(self: Any) -> int:
    return self._hash  # type: ignore[no-any-return]


def _hash_of_fields(self: Any) -> int:
    return hash(self.__compared__(self))


class _Described:
    """The fields of a class as attrs describes them, computed on first access."""

    def __get__(self, instance: object, owner: Any) -> Any:
        fields: Mapping[str, _Field] = owner.__fields__
        specs = {f: attrs.field(default=field.default, kw_only=field.kw_only) for f, field in fields.items()}
        twin = type(owner.__name__, (), {"__annotations__": {f: fields[f].annotation for f in fields}, **specs})
        attrs_twin = attrs.define(twin, init=False, repr=False, eq=False, slots=False, match_args=False)
        owner.__attrs_attrs__ = description = attrs.fields(attrs_twin)
        return description


def _generated_init(cls: Any) -> Callable[..., None]:
    """Return the generated `__init__` of a class. Arguments are named as fields, without leading underscores."""
    scope: dict[str, Any] = {"NOTHING": attrs.NOTHING}
    is_frozen = cls.__setattr__ is _Frozen.__setattr__
    placed, named, lines = ["self"], list[str](), list[str]()
    for f, (_, default, kw_only) in cls.__fields__.items():
        argument = value = f.lstrip("_")
        if isinstance(default, _FACTORY):
            scope[f"make_{f}"] = default.factory
            argument, value = f"{argument}=NOTHING", f"make_{f}() if {value} is NOTHING else {value}"
        elif default is not attrs.NOTHING:
            scope[f"default_{f}"] = default
            argument = f"{argument}=default_{f}"
        (named if kw_only else placed).append(argument)
        if is_frozen:
            scope[f"set_{f}"] = getattr(cls, f).__set__
        lines.append(f"set_{f}(self, {value})" if is_frozen else f"self.{f} = {value}")
    lines += ["self.__attrs_post_init__()"] if hasattr(cls, "__attrs_post_init__") else []
    arguments = ", ".join([*placed, *(["*", *named] if named else [])])
    exec(f"def __init__({arguments}):\n    {'; '.join(lines) or 'pass'}", scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _state(self: Any) -> dict[str, Any]:
    return {f: getattr(self, f) for f in self.__fields__}


def _restore(self: Any, state: Mapping[str, Any]) -> None:
    for f, value in state.items():
        object.__setattr__(self, f, value)


# ---------------------------------------------------------------- methods that all records share

if TYPE_CHECKING:
    from dataclasses import replace as evolve  # checkers see dataclasses, as which they see nodes

    class _Options(TypedDict, total=False):
        eq: bool
        repr: bool
        kw_only: bool
        slots: bool
        cache_hash: bool
        order: bool

    @overload
    @dataclass_transform(field_specifiers=(attrs.field,))
    def define(cls: type[T]) -> type[T]: ...
    @overload
    @dataclass_transform(field_specifiers=(attrs.field,))
    def define(**options: Unpack[_Options]) -> Callable[[type[T]], type[T]]: ...
    def define(*_: Any, **options: Any) -> Any: ...
    @overload
    @dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
    def frozen(cls: type[T]) -> type[T]: ...
    @overload
    @dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
    def frozen(**options: Unpack[_Options]) -> Callable[[type[T]], type[T]]: ...
    def frozen(*_: Any, **options: Any) -> Any: ...
else:

    def _sharing(make: Callable[..., Any], hashed: Callable[[Any], int] | None) -> Callable[..., Any]:
        """Return `make`, a decorator of attrs, as one whose classes share methods, `hashed` among them."""

        def decorate(cls: type | None = None, *, eq: bool | None = None, repr: bool = True, **options: Any) -> Any:
            if cls is None:
                return partial(decorate, eq=eq, repr=repr, **options)
            own = vars(cls)
            is_plain = options.keys() <= {"kw_only", "cache_hash"} and _is_plain(cls)
            is_shared = is_plain or options.keys().isdisjoint(("cache_hash", "order"))
            compares = eq is not False and is_shared and "__eq__" not in own
            if is_plain:
                kw_only, cache_hash = options.get("kw_only", False), options.get("cache_hash", False)
                record = _plain(cls, kw_only=kw_only, cache_hash=cache_hash, frozen=make is attrs.frozen)
                compared = [*record.__fields__]
            else:
                record = make(cls, eq=False if compares else eq, repr=False, **options)
                compared = [f.name for f in attrs.fields(record) if f.eq]
            if repr and "__repr__" not in own:
                record.__repr__ = _shown
            if compares:
                record.__compared__ = attrgetter(*compared or ["__class__"])
                record.__eq__ = _equal
                record.__hash__ = vars(record).get("__hash__", hashed)
            return record

        return decorate

    @recursive_repr()
    def _shown(self: Any) -> str:
        fields = [f.name for f in attrs.fields(type(self)) if f.repr]
        name = type(self).__qualname__.rpartition(">.")[2]  # without the function in which the class is defined
        return f"{name}({', '.join(f'{field}={getattr(self, field)!r}' for field in fields)})"

    def _equal(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__compared__(self) == self.__compared__(other)

    def evolve(record: Any, /, **changes: Any) -> Any:
        """Return a copy of a record or node with some fields changed, named as constructor arguments."""
        arguments = getattr(record, "__arguments__", None)
        if arguments is None:  # of a class that attrs wrote
            return attrs.evolve(record, **changes)
        kept = {argument: getattr(record, f) for argument, f in arguments.items() if argument not in changes}
        return type(record)(**kept, **changes)

    define = _sharing(attrs.define, None)
    frozen = _sharing(attrs.frozen, _hash_of_fields)


def fields_of(record: object) -> Any:
    """Return attrs' description of the fields of a record or a class of records, a named tuple."""
    return attrs.fields(record if isinstance(record, type) else type(record))


def as_dict(record: object, *, recurse: bool = True) -> dict[str, Any]:
    """Return a record's values by field name; with `recurse`, records among the values become dicts, too."""
    return attrs.asdict(record, recurse=recurse)  # type: ignore[arg-type]
