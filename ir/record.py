"""Records: classes of attrs that share what attrs would write and compile for each.

How a record is shown, compared and hashed is the same for all, but for the names of fields; attrs makes Python of it,
class by class, which takes as long as all else that is done to load them. `frozen` and `define` are those of attrs with
their options. Where a hash is kept (`cache_hash`), or records have an order, what attrs writes stays. Of plain records
attrs writes nothing (`plain.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

import attrs

from convgen.ir.plain import is_plain, made_plain

if TYPE_CHECKING:
    from attrs import define as define  # type checkers know these
    from attrs import frozen as frozen
else:

    def _sharing(make: Callable[..., Any], hashed: Callable[[Any], int] | None) -> Callable[..., Any]:
        """The decorator `make` of attrs, whose classes share methods, `hashed` among them."""

        def decorate(cls: type | None = None, *, eq: bool | None = None, repr: bool = True, **options: Any) -> Any:
            if cls is None:
                return partial(decorate, eq=eq, repr=repr, **options)
            own = vars(cls)
            compares = eq is not False and not options.keys() & {"cache_hash", "order"} and "__eq__" not in own
            make_it = partial(make, eq=False if compares else eq, repr=False, **options)
            if options.keys() <= {"kw_only"} and is_plain(cls):
                made = made_plain(cls, make_it, kw_only=options.get("kw_only", False), frozen=make is attrs.frozen)
                compared = [*made.__fields__]
            else:
                made = make_it(cls)
                compared = [f.name for f in attrs.fields(made) if f.eq]
            if repr and "__repr__" not in own:
                made.__repr__ = _shown
            if compares:
                made.__compared__ = attrgetter(*compared or ["__class__"])
                made.__eq__ = _equal
                made.__hash__ = own.get("__hash__", hashed)
            return made

        return decorate

    @recursive_repr()
    def _shown(self: Any) -> str:
        fields = [f.name for f in attrs.fields(type(self)) if f.repr]
        name = type(self).__qualname__.rpartition(">.")[2]  # without the function that it is local to
        return f"{name}({', '.join(f'{field}={getattr(self, field)!r}' for field in fields)})"

    def _equal(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__compared__(self) == self.__compared__(other)

    def _hashed(self: Any) -> int:
        return hash(self.__compared__(self))

    define = _sharing(attrs.define, None)
    frozen = _sharing(attrs.frozen, _hashed)
