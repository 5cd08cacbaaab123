"""What a statement class says of itself, once: what its statements bind, evaluate, read and write, and how they look.

A field annotated `Expr` is evaluated, `Var` is bound, `Stmt` is run. The role of a field is an `Effect` where it names
memory; that of an operand is how a variable is called that stands for it.
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
    """What tells two equal statements apart, and what people and later passes want to know of one.

    `number` is unique in a kernel (renewed by unrolling); `stage` names the phase for the reader and the pipeliner.
    """

    number: int
    stage: str = ""
    comment: str = ""
    slot: int = -1  #: which slot of a shared tile is touched; -1 if not known
    private: bool = False  #: no other subgroup touches what this touches in shared memory

    def __attrs_post_init__(self) -> None:
        if self.stage:
            check_name(self.stage, "stage")
        if not self.comment.isprintable():
            raise UserError(f"given the comment {ascii(self.comment)[:60]}, wanted one line that can be printed")


class Effect(Enum):
    """What a statement does with the memory that one of its fields names, or a view of which it does."""

    READS = "reads"
    WRITES = "writes"
    NEARS = "brings nearer"
    SHAPES = "takes the shape of"


_WAYS = tuple(Effect)


class Stmt(Node):
    """One step of a program; `ir.stmt` has the classes."""

    __slots__ = ()
    form: ClassVar[str]  #: as text, fields in braces; `{mask: if |true}` is left out where it is true (`ir.text`)
    level: ClassVar[str] = ""  #: "tile" or "message"; empty if both have it
    needs: ClassVar[str] = ""  #: the field of a target's facts that says whether there is such a message
    updates: ClassVar[bool] = False  #: what it writes is made of what stands there
    is_uniform: ClassVar[bool] = False  #: what it binds is the same in all lanes of a subgroup
    bodies: ClassVar[tuple[Stmt, ...]] = ()  #: the statements that it consists of; `ir.node` finds those that have any

    @property
    def site(self) -> Site | None:
        return None

    @property
    def binds(self) -> tuple[Var, ...]:
        """The variables that the statements after it in its block see."""
        return self.of_kind("Var")

    @property
    def binds_within(self) -> tuple[Var, ...]:
        """The variables that only its body sees."""
        return ()

    @property
    def operands(self) -> tuple[Expr, ...]:
        """What it evaluates where it begins."""
        return self.kinds["Expr"](self)

    @property
    def yields(self) -> tuple[Expr, ...]:
        """What it evaluates at the end of its body."""
        return ()

    def memory(self, *ways: Effect) -> tuple[Global | Shared, ...]:
        """The buffers and shared tiles that it accesses in one of these ways; in any if none is given."""
        if not self.roles:
            return ()
        wanted = ways or _WAYS
        named = [getattr(self, f) for f, way in self.roles.items() if way in wanted]
        return tuple([m.memory if isinstance(m, (View, Plane)) else m for m in named])

    @property
    def reads(self) -> tuple[Global | Shared, ...]:
        """The memory whose content matters to it."""
        return self.memory(Effect.READS, *([Effect.WRITES] if self.updates else []))

    @property
    def writes(self) -> tuple[Global | Shared, ...]:
        """The memory that it changes."""
        return self.memory(Effect.WRITES)


@family
class Load(Stmt):
    """Binds `var` to what memory, or another lane, holds."""

    var: Var

    @property
    def moved(self) -> AnyType:
        """What each lane moves."""
        return self.var.type


class Store(Stmt):
    """Changes memory by `value`."""

    __slots__ = ()
    value: Expr

    @property
    def moved(self) -> AnyType:
        """What each lane moves."""
        return self.value.type
