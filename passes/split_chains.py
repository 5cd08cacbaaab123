"""Split element-wise work on fragments into parts of a few registers.

An operation on a whole fragment has as many temporaries as the fragment has registers, and so has each operation on its
result. So a chain of operations is split into parts, each computed from first to last operation before the next part
begins: only one part's temporaries are live at a time. A store computes its parts just before it. Ensures: no let of a
chain is computed for more elements than its temporaries leave room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from convgen.ir.expr import Binary, Conversion, Expr, Pack, Select, Shuffle, Slice, Splat, Unary, Uniform, Var, var
from convgen.ir.floats import Fma
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Let, Load, Stmt, Store, block, stmts_of
from convgen.ir.types import AnyType, VectorType, vector
from convgen.passes.unused import drop_unused

_ELEMENTWISE = (Unary, Binary, Conversion, Select, Fma)

# Chosen; tests/passes/test_split_chains.py bounds the registers that kernels take with them.
ROOM = 12  #: registers of a lane; budget for the temporaries of a part
_LEAST, _MOST = 2, 4  #: registers of a part; with more than one, instructions hide each other's latency
_WORD = 32  #: bits

_DEEPEST = 64  #: chains that may wait for one another: parts are computed recursively
_SMALL = 24  #: registers of a lane; a chain whose temporaries take no more stays whole; chosen


def split_chains(kernel: Kernel) -> Kernel:
    """Compute fragments part by part, all element-wise operations of a part in sequence."""
    chains = {s.var: s for s in statements(kernel.body) if isinstance(s, Let) and _is_chain(s.value)}
    if not chains and not any(_is_chain(s.value) for s in statements(kernel.body) if isinstance(s, Store)):
        return kernel
    return evolve(kernel, body=_Splitter().within(drop_unused(kernel.body)))


def _is_chain(e: Expr) -> bool:
    """Return whether an expression is element-wise work whose temporaries take more than a few registers."""
    if _is_list(e):
        return _registers(e.type) > _SMALL
    return _is_elementwise(e) and _registers(e.type) > _LEAST and _temporaries(e) * e.type.lanes > _SMALL


def _is_list(e: Expr) -> bool:
    """Return whether an expression packs one scalar per element of a vector, such as the element's position."""
    return isinstance(e, Pack) and e.type.lanes == len(e.parts) and all(p.type is e.type.elem for p in e.parts)


def _is_elementwise(e: Expr) -> bool:
    return isinstance(e, _ELEMENTWISE) and not isinstance(e, Uniform) and isinstance(e.type, VectorType)


def _registers(type: AnyType) -> float:
    return 0.0 if type.elem.is_bool else type.bits / _WORD


def _operations(e: Expr) -> list[Expr]:
    """Return the element-wise operations under an expression, operands first."""
    operations: dict[Expr, None] = {}
    _gather(e, operations)
    return list(operations)


def _gather(e: Expr, operations: dict[Expr, None]) -> None:
    for c in e.children():
        if c not in operations and _is_elementwise(c):
            _gather(c, operations)
    operations[e] = None


def _temporaries(e: Expr) -> float:
    """Return the registers of simultaneously live temporaries while one element is computed."""
    order = _operations(e)
    last = {c: n for n, operation in enumerate(order) for c in operation.children()}
    live = most = 0.0
    for n, operation in enumerate(order):
        live += _registers(operation.type) / operation.type.lanes
        most = max(most, live)
        live -= sum(
            _registers(c.type) / c.type.lanes
            for c in set(operation.children())
            if c in last and last[c] == n and _is_elementwise(c)
        )
    return most


def _part_size(e: Expr) -> int:
    """Return the elements of a part: a power of two that fills whole words of every type in the chain."""
    operations = _operations(e)
    widest = max((_registers(operation.type) for operation in operations), default=0.0) / e.type.lanes or 1.0
    narrowest = min((t.elem.bits for operation in operations for t in _types(operation)), default=_WORD)
    registers = min(_MOST, max(_LEAST, int(ROOM * widest / max(widest, _temporaries(e)))))
    size = 1 << max(0, int(registers / widest).bit_length() - 1)
    return max(size, _WORD // min(_WORD, narrowest))


def _types(e: Expr) -> Iterable[AnyType]:
    yield from (t.type for t in (e, *e.children()) if isinstance(t.type, VectorType) and not t.type.elem.is_bool)


class _Chain(NamedTuple):
    """A let of a chain, and the parts computed so far, by number."""

    let: Let
    size: int  #: elements of a part
    depth: int  #: lets that wait for one another, this one included
    parts: dict[int, Var]

    @property
    def number(self) -> int:
        """Return the number of parts of the whole."""
        return -(-self.let.var.type.lanes // self.size)


class _Splitter:
    """Walks a block; chains wait until a statement needs one of their parts."""

    def __init__(self) -> None:
        self.waiting: dict[Var, _Chain] = {}
        self.selections: dict[Var, Let] = {}  #: slices, shuffles and masks of waiting chains
        self.out: list[Stmt] = []
        self.known_parts: dict[tuple[Expr, int, int], Expr] = {}

    def within(self, s: Any) -> Any:
        """Return the statement, a block or the body of one, with its chains split."""
        around = self.waiting, self.selections, self.out, self.known_parts
        self.waiting, self.selections, self.out, self.known_parts = {}, {}, [], {}
        for inner in stmts_of(s):
            self._statement(inner)
        self._finish(list(self.waiting.values()))
        for v in list(self.selections):
            self._complete(v)
        split = block(*self.out)
        self.waiting, self.selections, self.out, self.known_parts = around
        return split

    def _statement(self, s: Stmt) -> None:
        """Place a statement: chains and selections wait, other statements first compute what they need."""
        if isinstance(s, Let) and _is_chain(s.value):
            self._wait(s)
        elif isinstance(s, Let) and self._is_selection(s.value):
            self.selections[s.var] = s
        elif isinstance(s, Let) and _is_elementwise(s.value):
            self.out.append(evolve(s, value=self._part(s.value, 0, s.var.type.lanes)))
        elif isinstance(s, Let):
            self._complete(s.value)
            self.out.append(s)
        elif isinstance(s, Store):
            self.out.append(self._stored(s))
        elif isinstance(s, Load):
            for e in s.operands:
                self._complete(e)
            self._finish([chain for chain in self.waiting.values() if self._frees(chain.let.value)])
            self.out.append(s)
        else:
            self._finish(list(self.waiting.values()))
            for v in list(self.selections):
                self._complete(v)
            self.out.append(s.map_bodies(self.within))

    def _wait(self, s: Let) -> None:
        """Let a chain wait; its operands are computed first if too many chains wait for one another."""
        if (depth := self._depth(s.value)) >= _DEEPEST:
            self._complete(s.value)
            depth = 0
        self.waiting[s.var] = _Chain(s, _part_size(s.value), depth + 1, {})

    def _depth(self, e: Expr) -> int:
        """Return how many waiting chains must be computed one after the other before an expression."""
        variables = (v for v in postorder(e) if isinstance(v, Var) and self._waits(v)) if self.waiting else ()
        return max(
            (self.waiting[v].depth if v in self.waiting else self._depth(self._value_of(v)) for v in variables),
            default=0,
        )

    def _stored(self, s: Any) -> Any:
        """Return a store whose value is computed part by part."""
        for e in s.operands:
            if e is not s.value:
                self._complete(e)
        value = s.value
        if _is_chain(value):
            size = _part_size(value)
            parts = [
                self._bound("part", value, at, min(size, value.type.lanes - at))
                for at in range(0, value.type.lanes, size)
            ]
            return evolve(s, value=Pack(value.type, tuple(parts)))
        return evolve(s, value=self._part(value, 0, value.type.lanes) if isinstance(value.type, VectorType) else value)

    # ------------------------------------------------------------ parts

    def _finish(self, chains: Sequence[_Chain]) -> None:
        """Compute waiting chains: the first parts of all chains, then the second ones, and so on."""
        for n in range(max((chain.number for chain in chains), default=0)):
            for chain in chains:
                if n < chain.number:
                    self._computed(chain, n)
        for chain in chains:
            self._whole(chain)

    def _waits(self, e: Expr) -> bool:
        return isinstance(e, Var) and (e in self.waiting or e in self.selections)

    def _is_selection(self, e: Expr) -> bool:
        """Return whether an expression selects elements of a waiting chain, or is a mask computed from one."""
        if isinstance(e, (Slice, Shuffle)):
            return self._waits(e.a)
        return (
            _is_elementwise(e)
            and e.type.elem.is_bool
            and any(isinstance(v, Var) and self._waits(v) for v in postorder(e))
        )

    def _frees(self, e: Expr) -> bool:
        """Return whether computing a chain frees registers, as it reads vectors and not only scalars."""
        vectors = (v for v in postorder(e) if isinstance(v, Var) and isinstance(v.type, VectorType))
        return any(self._frees(self._value_of(v)) if self._waits(v) else True for v in vectors)

    def _value_of(self, v: Var) -> Expr:
        return self.waiting[v].let.value if v in self.waiting else self.selections[v].value

    def _whole(self, chain: _Chain) -> None:
        """Bind the variable of a chain to the pack of all of its parts."""
        parts = tuple(self._computed(chain, n) for n in range(chain.number))
        self.out.append(evolve(chain.let, value=Pack(chain.let.var.type, parts)))
        self.waiting.pop(chain.let.var, None)

    def _complete(self, e: Expr) -> None:
        """Compute all waiting variables of an expression completely."""
        if not self.waiting and not self.selections:
            return
        for v in postorder(e):
            if isinstance(v, Var) and v in self.waiting:
                self._whole(self.waiting[v])
            elif isinstance(v, Var) and v in self.selections:
                whole = self._part(v, 0, v.type.lanes)
                self.out.append(evolve(self.selections.pop(v), value=whole))

    def _computed(self, chain: _Chain, n: int) -> Var:
        """Return the variable of a part, computing it if necessary."""
        if n not in chain.parts:
            v, at = chain.let.var, n * chain.size
            chain.parts[n] = self._bound(v.name, chain.let.value, at, min(chain.size, v.type.lanes - at))
        return chain.parts[n]

    def _bound(self, name: str, e: Expr, start: int, count: int) -> Var:
        value = self._part(e, start, count)
        part = var(name, value.type)
        self.out.append(Let(part, value))
        return part

    def _part(self, e: Expr, start: int, count: int) -> Expr:
        """Return some elements of an expression, with operations applied only to these."""
        key = e, start, count
        if (known := self.known_parts.get(key)) is None:
            known = self.known_parts[key] = self._build_part(e, start, count)
        return known

    def _build_part(self, e: Expr, start: int, count: int) -> Expr:
        """Build elements [start, start + count) of an expression from elements of its operands."""
        is_all = count == e.type.lanes
        match e:
            case Var() if e in self.waiting:
                return self._of_chain(self.waiting[e], start, count)
            case Var() if e in self.selections:
                return self._part(self.selections[e].value, start, count)
            case Slice(a, first, _):
                return self._part(a, first + start, count)
            case Splat(dtype, a) if not is_all:
                return Splat(vector(dtype.elem, count), a)
            case Shuffle(a, order):
                return self._in_order(a, order[start : start + count])
            case Pack(_, parts) if isinstance(e.type, VectorType):
                return self._of_pack(e, parts, start, count)
        if _is_elementwise(e):
            narrowed = [self._part(c, start, count) if isinstance(c.type, VectorType) else c for c in e.children()]
            fields: dict[str, Any] = dict(zip(e.child_fields, narrowed))
            if isinstance(e, Conversion):
                fields["dtype"] = vector(e.type.elem, count)
            return evolve(e, **fields)
        return e if is_all else Slice(e, start, count)

    def _in_order(self, a: Expr, order: Sequence[int]) -> Expr:
        """Return elements in an order; consecutive ones are a part."""
        first = order[0]
        if list(order) == list(range(first, first + len(order))):
            return self._part(a, first, len(order))
        if self._waits(a):
            parts = [self._part(a, n, 1) for n in order] if a.type.elem.bits >= _WORD else []
            return (
                Pack(vector(a.type.elem, len(order)), tuple(parts))
                if parts
                else Shuffle(self._completed(a), tuple(order))
            )
        return Shuffle(self._part(a, 0, a.type.lanes), tuple(order))

    def _completed(self, v: Expr) -> Expr:
        """Return a waiting variable after computing it completely."""
        self._complete(v)
        return v

    def _of_chain(self, chain: _Chain, start: int, count: int) -> Expr:
        """Return elements of a waiting chain; only the parts that contain them are computed."""
        first, last = start // chain.size, (start + count - 1) // chain.size
        parts = [self._computed(chain, n) for n in range(first, last + 1)]
        return self._of_parts(chain.let.var.type, parts, start - first * chain.size, count)

    def _of_pack(self, e: Pack, parts: Sequence[Expr], start: int, count: int) -> Expr:
        """Return elements of a pack, from those of its parts that contain them."""
        elem = e.type.elem
        if _is_list(e):
            return Pack(vector(elem, count), tuple(parts[start : start + count]))
        if any(not isinstance(p.type, VectorType) or p.type.elem.bits != elem.bits for p in parts):
            return Slice(e, start, count) if count != e.type.lanes else e
        at, needed, begin = 0, list[Expr](), 0
        for p in parts:
            if at < start + count and start < at + p.type.lanes:
                if not needed:
                    begin = at
                needed.append(p)
            at += p.type.lanes
        return self._of_parts(e.type, needed, start - begin, count)

    def _of_parts(self, type: AnyType, parts: Sequence[Expr], start: int, count: int) -> Expr:
        """Return elements of adjacent parts, each of which contains some of them."""
        pieces, at = list[Expr](), -start
        for p in parts:
            first, end = max(0, -at), min(p.type.lanes, count - at)
            pieces.append(self._part(p, first, end - first))
            at += p.type.lanes
        if len(pieces) == 1 and pieces[0].type.elem is type.elem:
            return pieces[0]
        return Pack(vector(type.elem, count), tuple(pieces))
