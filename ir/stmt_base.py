"""Base classes of statements: a class declares what its statements bind, evaluate, read and write, and their text.

A field annotated `Expr` is evaluated, `Var` is bound, `Stmt` is run. The role of a field that names memory is an
`Effect`. The role of an operand is a word for names: `place_lets` calls a variable that it binds to it `tile_offset`.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.memory import Global, Plane, Shared, View
from convgen.ir.node import Node, family
from convgen.ir.record import frozen
from convgen.ir.types import AnyType


@frozen(cache_hash=True)
class Site:
    """The identity of a statement among equal ones, and remarks on it for readers and later passes.

    `number` is unique in a kernel; copies made by unrolling get new numbers. `stage` names the phase of the kernel.
    """

    number: int
    stage: str = ""
    comment: str = ""
    slot: int = -1  #: slot of the shared tile that the statement accesses; -1 if unknown
    private: bool = False  #: no other subgroup accesses the bytes of shared memory that this statement accesses

    def __attrs_post_init__(self) -> None:
        if self.stage:
            check_name(self.stage, "stage")
        if not self.comment.isprintable():
            raise UserError(f"given the comment {ascii(self.comment)[:60]}, wanted one line that can be printed")


class Effect(Enum):
    """The effect of a statement on the memory that a field names, directly or through a view."""

    READS = "reads"
    WRITES = "writes"
    PREFETCHES = "prefetches"
    SHAPES = "takes the shape of"  #: no access: the statement only depends on the shape of a view


_EFFECTS = tuple(Effect)


class Stmt(Node):
    """One step of a program; `ir.stmt` has the classes."""

    __slots__ = ()
    #: text with fields in braces; `{mask: if |true}` is left out where the mask is true (`ir.text.templates`)
    form: ClassVar[str]
    level: ClassVar[str] = ""  #: "tile" or "message"; empty for statements of both levels
    needs: ClassVar[str] = ""  #: field of `TargetFacts` that is true on targets with this message; empty if all have it
    updates: ClassVar[bool] = False  #: whether it reads the memory that it writes, as atomic operations do
    is_uniform: ClassVar[bool] = False  #: whether the value it binds is equal in all lanes of a subgroup
    bodies: ClassVar[tuple[Stmt, ...]] = ()  #: nested statements; `ir.node` overrides it for classes with such fields

    @property
    def site(self) -> Site | None:
        return None

    @property
    def binds(self) -> tuple[Var, ...]:
        """Return the variables that are visible to the statements behind it in its block."""
        return self.of_kind("Var")

    @property
    def binds_within(self) -> tuple[Var, ...]:
        """Return the variables that are visible only in its body."""
        return ()

    @property
    def operands(self) -> tuple[Expr, ...]:
        """Return the expressions that are evaluated before its body runs."""
        return self.kinds["Expr"](self)

    @property
    def yields(self) -> tuple[Expr, ...]:
        """Return the expressions that are evaluated at the end of its body."""
        return ()

    def memory(self, *effects: Effect) -> tuple[Global | Shared, ...]:
        """Return the buffers and shared tiles on which it has one of these effects; without arguments, any effect."""
        if not self.roles:
            return ()
        wanted = effects or _EFFECTS
        named = [getattr(self, f) for f, effect in self.roles.items() if effect in wanted]
        return tuple([m.memory if isinstance(m, (View, Plane)) else m for m in named])

    @property
    def reads(self) -> tuple[Global | Shared, ...]:
        """Return the memory whose content it depends on."""
        return self.memory(Effect.READS, *([Effect.WRITES] if self.updates else []))

    @property
    def writes(self) -> tuple[Global | Shared, ...]:
        """Return the memory that it changes."""
        return self.memory(Effect.WRITES)


@family
class Load(Stmt):
    """Bind `var` to a value from memory, from other lanes or, for `Trim`, from this lane's registers."""

    var: Var

    @property
    def moved(self) -> AnyType:
        """Return the type of the value that each lane moves."""
        return self.var.type


class Store(Stmt):
    """Write `value` to memory, or combine it with the content."""

    __slots__ = ()
    value: Expr

    @property
    def moved(self) -> AnyType:
        """Return the type of the value that each lane moves."""
        return self.value.type
