"""Hash consing: constructing a node with equal fields returns the existing object.

`@node` makes an annotated class an interned, immutable record. Equality is identity, so nodes are fast dictionary keys
and "unchanged" is `new is old`. The intern table holds strong references; children always precede parents in it, so one
reverse pass (`sweep`) frees all nodes that nothing else refers to. `compiling` sweeps, so a process that compiles many
kernels keeps at most about twice the nodes in use.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from sys import getrefcount
from types import CodeType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from convgen.ir.record import rebuilt

T = TypeVar("T")
Go = Callable[["Node"], "Node"]
Get = Callable[["Node"], "Node | None"]

_TABLE: dict[tuple[Any, ...], Node] = {}
CLASSES: dict[str, type[Node]] = {}  #: every concrete node class by name, in order of declaration

#: Annotations of child fields (or tuples of children): subexpressions, bound variables, nested statements. All other
#: fields are plain hashable data.
_CHILD = ("Expr", "Var", "Stmt")


class Field(NamedTuple):
    """A field as its class declares it."""

    annotation: str
    by: str | None  #: the method that derives it; None for a constructor argument
    role: Any


class Node:
    """Base of all interned records."""

    __slots__ = ()
    declared: ClassVar[Mapping[str, Field]] = {}  #: all fields in order, derived ones included
    fields: ClassVar[tuple[str, ...]] = ()
    child_fields: ClassVar[Mapping[str, str]] = {}  #: the annotated kind of each child field: "Expr", "Var" or "Stmt"
    #: by kind, a function that returns the children of that kind
    kinds: ClassVar[Mapping[str, Callable[[Any], tuple[Any, ...]]]] = {}
    roles: ClassVar[Mapping[str, Any]] = {}  #: the roles of fields declared with one

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, f) for f in self.fields))

    def __copy__(self: T) -> T:
        return self

    def __deepcopy__(self: T, memo: object) -> T:
        return self

    def infer(self) -> None:
        """Check the operands; runs once, when a new node is constructed."""

    def map(self: T, go: Go, get: Get) -> T:
        """Return this node with each child c replaced by `get(c)`, or by `go(c)` if that is None; self if unchanged."""
        return self

    def map_bodies(self: T, go: Go) -> T:
        """Return this node with each child statement c replaced by `go(c)`; self if nothing changed."""
        return self

    def children(self) -> tuple[Node, ...]:
        """Return the child nodes in field order."""
        return ()

    def of_kind(self, kind: str) -> tuple[Any, ...]:
        """Return the children in fields annotated as "Expr", as "Var" or as "Stmt", in field order."""
        return self.kinds[kind](self)

    def __str__(self) -> str:
        from convgen.ir.text import show

        return show(self)

    def __repr__(self) -> str:
        return str(self)


def derived(*, by: str, init: Literal[False] = False) -> Any:
    """Declare a field computed by the method `by`: neither a constructor argument nor part of the identity.

    `init` exists for type checkers, which read its default.
    """
    return by, None


def role(what: Any) -> Any:
    """Declare an ordinary constructor argument and record its role: an `Effect`, or a word (see `stmt_base`)."""
    return None, what


def _new_source(fields: tuple[str, ...], makers: Mapping[str, str], infers: bool) -> str:
    """Return the source of `__new__`; `makers` has the method that derives each derived field."""
    args = "".join(f", {f}" for f in fields)
    lines = [f"def __new__(cls{args}):", f"    key = (cls{args})" if fields else "    key = (cls,)"]
    lines += ["    self = table.get(key)", "    if self is None:", "        self = allocate(cls)"]
    lines += [f"        set_{f}(self, {f})" for f in fields]
    lines += [f"        set_{f}(self, self.{by}())" for f, by in makers.items()]
    lines += ["        self.infer()"] * infers
    lines += ["        table[key] = self", "    return self"]
    return "\n".join(lines)


def _map_source(fields: tuple[str, ...], annotations: Mapping[str, str]) -> str:
    """Return the source of `map` for a class with these fields: a constructor call unless no child changed."""
    lines = ["def map(self, go, get):"]
    for i, f in enumerate(fields):
        lines.append(f"    o{i} = n{i} = self.{f}")
        if annotations[f] in _CHILD:
            lines += [f"    n{i} = get(o{i})", f"    if n{i} is None: n{i} = go(o{i})"]
        elif _kind(annotations[f]):
            lines += [f"    n{i} = mapped(o{i}, go, get)"]
    same = " and ".join(f"n{i} is o{i}" for i, f in enumerate(fields) if _kind(annotations[f]))
    news = ", ".join(f"n{i}" for i in range(len(fields)))
    lines.append(f"    return self if {same} else type(self)({news})")
    return "\n".join(lines)


def _map_bodies_source(annotations: Mapping[str, str]) -> str:
    """Return the source of `map_bodies` for a class with these fields: a constructor call unless no body changed."""
    bodies = [f for f, a in annotations.items() if _kind(a) == "Stmt"]
    lines = ["def map_bodies(self, go):"]
    for f in bodies:
        each = f"go(self.{f})" if annotations[f] in _CHILD else f"mapped(self.{f}, go, unknown)"
        lines.append(f"    new_{f} = {each}")
    same = " and ".join(f"new_{f} is self.{f}" for f in bodies)
    news = ", ".join(f"new_{f}" if f in bodies else f"self.{f}" for f in annotations)
    lines.append(f"    return self if {same} else type(self)({news})")
    return "\n".join(lines)


def _unknown(node: Node) -> None:
    """Return None for any node: a `get` for `map` that knows no node."""


def _children_source(annotations: Mapping[str, str], *kinds: str) -> str:
    """Return the source of a function that returns the children of some kinds."""
    parts = [f"self.{f}" if a in _CHILD else f"*self.{f}" for f, a in annotations.items() if _kind(a) in kinds]
    return f"def children(self):\n    return ({', '.join([*parts, ''])})"


def _with_slots(cls: Any) -> Any:
    """Return a copy of the class with slots for its fields that no base has.

    Field defaults only carry `derived` and `role`. Fields of a base come first, unless the class declares them again.
    """
    own = {f: a for f, a in vars(cls).get("__annotations__", {}).items() if not a.startswith("ClassVar")}
    scope = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    declared = {f: Field(a, *scope.pop(f, (None, None))) for f, a in own.items()}
    inherited: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:-1]):
        for f, field in base.declared.items():
            inherited.pop(f, None)
            inherited[f] = field
    every = {f: field for f, field in inherited.items() if f not in own} | declared
    scope["declared"], scope["__slots__"] = every, tuple(f for f in own if f not in inherited)
    scope["__match_args__"] = tuple(f for f, field in every.items() if field.by is None)
    return rebuilt(cls, scope)


@cache
def _code(source: str) -> CodeType:
    """Compile source once: many classes have equal fields and so equal source."""
    return compile(source, "<node>", "exec")


def _defined(name: str, source: str, **scope: Any) -> Any:
    """Return the function `name` that the source defines."""
    scope.update(table=_TABLE, allocate=object.__new__, mapped=_mapped, unknown=_unknown)
    exec(_code(source), scope)
    return scope[name]


def _compile_on_first_call(cls: Any, name: str, source: Callable[[], str]) -> None:
    """Give a class a method that is compiled on its first call: most classes of a process are never used."""

    def first(*args: Any, **named: Any) -> Any:
        method = _defined(name, source(), **{f"set_{f}": getattr(cls, f).__set__ for f in cls.declared})
        setattr(cls, name, staticmethod(method) if name == "__new__" else method)
        return method(*args, **named)

    setattr(cls, name, first)


class _Kinds(dict[str, Callable[[Any], tuple[Any, ...]]]):
    """Functions that return the children of a kind, compiled on first use."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        super().__init__()
        self.annotations = annotations

    def __missing__(self, kind: str) -> Callable[[Any], tuple[Any, ...]]:
        self[kind] = _defined("children", _children_source(self.annotations, kind))
        return self[kind]


def _mapped(old: tuple[Node, ...], go: Go, get: Get) -> tuple[Node, ...]:
    new = []
    changed = False
    for o in old:
        n = get(o)
        if n is None:
            n = go(o)
        changed = changed or n is not o
        new.append(n)
    return tuple(new) if changed else old


def _kind(annotation: str) -> str:
    """Return the kind in `_CHILD` of a field or of its elements; "" for a data field."""
    inner = annotation.removeprefix("tuple[").removesuffix(", ...]")
    if inner in _CHILD:
        return inner
    assert not re.search(r"\b(Expr|Stmt)\b", annotation), f"children in a field of data: {annotation}"
    return ""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(derived, role))
def node(cls: type[T]) -> type[T]:
    """Make `cls` an interned node class; its annotated fields, in order, are constructor arguments and identity."""
    slotted = _with_slots(cls)
    annotations = {f: field.annotation for f, field in slotted.declared.items() if field.by is None}
    makers = {f: field.by for f, field in slotted.declared.items() if field.by is not None}
    slotted.fields = fields = tuple(annotations)
    slotted.__arguments__ = {f: f for f in fields}  # for `evolve`
    slotted.child_fields = {f: kind for f, a in annotations.items() if (kind := _kind(a))}
    slotted.kinds = _Kinds(annotations)
    slotted.roles = {f: field.role for f, field in slotted.declared.items() if field.role is not None}
    _compile_on_first_call(slotted, "__new__", partial(_new_source, fields, makers, slotted.infer is not Node.infer))
    if slotted.child_fields:
        _compile_on_first_call(slotted, "map", partial(_map_source, fields, annotations))
        _compile_on_first_call(slotted, "children", partial(_children_source, annotations, *_CHILD))
    if "Stmt" in slotted.child_fields.values():
        _compile_on_first_call(slotted, "map_bodies", partial(_map_bodies_source, annotations))
        slotted.bodies = property(lambda self: self.kinds["Stmt"](self))
    CLASSES[cls.__name__] = slotted
    return slotted  # type: ignore[no-any-return]


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(derived, role))
def family(cls: type[T]) -> type[T]:
    """Make `cls` a base whose fields node classes inherit; it has no instances of its own."""
    return _with_slots(cls)  # type: ignore[no-any-return]


def table_size() -> int:
    """Return the number of interned nodes."""
    return len(_TABLE)


def _dead_count() -> int:
    """Return the reference count that `sweep` sees for a node only in the table; measured, as it depends on CPython."""
    probe: dict[tuple[Any, ...], object] = {("probe",): object()}
    _, node = probe.popitem()
    return getrefcount(node)


def sweep() -> int:
    """Remove all nodes that nothing outside the table refers to; return their number."""
    dead, before = _dead_count(), len(_TABLE)
    kept: list[tuple[tuple[Any, ...], Node]] = []
    try:
        while _TABLE:
            key, node = _TABLE.popitem()  # the newest node; its children lose their last reference when it is dropped
            if getrefcount(node) > dead:
                kept.append((key, node))
    finally:
        _TABLE.update(reversed(kept))
    return before - len(_TABLE)


_LEAST_SWEPT = 1 << 15  #: nodes; sweeping a smaller table, which takes a few milliseconds, is not worth it


class _Compiling:
    """The nesting depth of `compiling`, and the table size above which leaving the outermost one sweeps."""

    depth = 0
    limit = _LEAST_SWEPT


@contextmanager
def compiling() -> Iterator[None]:
    """Suspend the cyclic collector: nodes form no cycles, and its scans double the cost of construction.

    Leaving the outermost `compiling` sweeps the table if it has doubled since the last sweep: amortized constant cost a
    node.
    """
    was = gc.isenabled()
    gc.disable()
    _Compiling.depth += 1
    try:
        yield
    finally:
        _Compiling.depth -= 1
        if not _Compiling.depth and table_size() > _Compiling.limit:
            sweep()
            _Compiling.limit = max(_LEAST_SWEPT, 2 * table_size())
        if was:
            gc.enable()
