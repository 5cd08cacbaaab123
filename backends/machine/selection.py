"""Instruction selection, as far as all targets share it: statements in order, loops with carried values, branches.

A family subclasses `Selector` with its kernel entry, its memory operations and its control instructions. Values are
shared only through variables; selection keeps no other state between statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from convgen.backends.machine.emitter import Emitter
from convgen.backends.machine.instruction import Function, Operand, Reg
from convgen.backends.machine.scalars import Scalars
from convgen.backends.machine.vectors import Parts, Vectors, held_as_vector, single_words
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Expr, Mma, Pack, Shuffle, Slice, Surface, Var
from convgen.ir.layout.memory import Global
from convgen.ir.layout.tensor_map import MAP_ALIGN, MAP_BYTES, TensorMap
from convgen.ir.mma_operands import operand_sizes_of
from convgen.ir.mutate import free_vars, postorder, statements
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.simplify.simplify import simplify
from convgen.ir.types import Type, bool_
from convgen.ir.votes import AllLanes

Row = TypeVar("Row")
Handlers = Mapping[type[st.Stmt], Callable[[Any, Any], None]]  #: statement class -> method of a selector


def atomic(s: st.GlobalAtomic | st.FlatAtomic, rows: Mapping[tuple[str, Type], Row], target: str) -> Row:
    """Return the row of an atomic operation. Raises Unsupported if the target lacks it."""
    row = rows.get((s.op, s.value.type.elem))
    if row is None or s.value.type.lanes != 1:
        types = ", ".join(str(elem) for op, elem in rows if op == s.op) or "no type"
        raise Unsupported(
            f"given atomic {s.op} of {s.value.type}, wanted one element a message, on {target} of {types}"
        )
    return row


class Selector(ABC):
    """The walk over a kernel's statements."""

    out: Emitter
    scalars: Scalars
    vectors: Vectors
    counts_down = False  #: whether loop counters without readers count the remaining iterations down

    def __init__(self, kernel: Kernel, lines: Mapping[st.Stmt, int], messages: Handlers) -> None:
        """Prepare selection. `lines` maps statements to lines of the kernel's listing, for debug information.

        `messages` has the family's methods for barriers and memory operations.
        """
        self.handlers: Handlers = {**_STATEMENTS, **messages}
        self.kernel, self.lines = kernel, lines
        nodes = postorder(kernel)
        self.uses = use_counts(nodes)
        products = [n for n in nodes if isinstance(n, Mma)]
        self.multiplies = bool(products)
        self.first_product = {n.acc: n for n in reversed(products)}  #: accumulator -> first product that adds to it
        self.product_of = {s.var: s.value for s in nodes if isinstance(s, st.Let) and isinstance(s.value, Mma)}
        # loaded variable -> registers of a carried value or an operand that the load writes directly
        self.into: dict[Var, Reg] = {}
        self.operands = _operands(kernel, operand_sizes_of(products, kernel.body), self.uses)
        self.operand_of = {part: operand for operand, parts in self.operands.items() for part in parts}
        self.labels = 0
        self.exits: list[tuple[Sequence[Var], str]] = []  # carried variables and end label of the enclosing loops

    def run(self) -> Function:
        """Return the whole kernel as a machine function."""
        self.enter()
        self._stmt(self.kernel.body)
        self.leave()
        return self.out.finish()

    # ------------------------------------------------------------ to be implemented by a family

    @abstractmethod
    def enter(self) -> None:
        """Bind group ids, subgroup, lane and arguments to registers."""

    @abstractmethod
    def lane_number(self) -> Reg:
        """Return a register with the number of each lane, computed without any other register."""

    @abstractmethod
    def leave(self) -> None:
        """End the program."""

    @abstractmethod
    def branch_unless(self, condition: Expr, target: str) -> None:
        """Branch to `target` if a uniform bool is false."""

    @abstractmethod
    def branch_if_less(self, a: Operand, b: Operand, here: str, target: str) -> None:
        """Continue in a new block `here` if a < b, signed; else branch to `target`."""

    @abstractmethod
    def next_iteration(self, counter: Reg, end: Operand, label: str, comment: str) -> None:
        """Increment the counter, and branch back to `label` while it is less than `end`."""

    def count_down(self, counter: Reg, label: str, comment: str) -> None:
        """Decrement the counter, and branch back to `label` while iterations are left. Needs `counts_down`."""
        raise NotImplementedError

    @abstractmethod
    def jump(self, target: str) -> None:
        """Branch unconditionally."""

    # ------------------------------------------------------------ statements

    def _stmt(self, s: st.Stmt) -> None:
        self.out.line = self.lines.get(s, self.out.line)
        self.handlers[type(s)](self, s)

    def _block(self, s: st.Block) -> None:
        for x in s.stmts:
            self._stmt(x)

    def _let(self, s: st.Let) -> None:
        before = len(self.out.block.instructions)
        if isinstance(s.value, Surface):
            self.vectors.env[s.var] = (self._surface(s.value),)
        elif s.var in self.operands:
            self.vectors.env[s.var] = (self.vectors.tuple_of(self.vectors.value(s.value)),)
            self.vectors.owned[s.var] = True
        elif held_as_vector(s.var.type):
            self.vectors.env[s.var] = self.vectors.value(s.value)
            self.vectors.owned[s.var] = isinstance(s.value, (Mma, BlockMma)) or self.vectors.may_overwrite(s.value)
        else:
            self.scalars.env[s.var] = self.scalars.named(s.value)
            self.scalars.lets[s.var] = s.value
        emitted = self.out.block.instructions[before:]
        if emitted and not emitted[-1].comment and not s.var.is_temporary and not isinstance(s.value, Mma):
            emitted[-1].comment = s.var.name

    def _surface(self, e: Surface) -> Reg:
        raise VerifyError(f"selection: {e} on a target without surfaces")

    def load_registers(self, v: Var, residue: int | None = None) -> Reg:
        """Return the registers that a load writes: a carried value's or an operand's (`into`), or new ones."""
        operand = self.operand_of.get(v)
        if operand is not None and v not in self.into:
            self._distribute_loads(operand, self.out.new("v", operand.type.bits // 32, operand.name, residue=residue))
        return self.into.get(v) or self.out.new("v", -(-v.type.bits // 32), v.name, residue=residue)

    def _distribute_loads(self, operand: Var, whole: Reg) -> None:
        """Let each load write its part of an operand's registers directly."""
        at = 0
        for part in self.operands[operand]:
            words = part.type.bits // 32
            self.into[part] = whole.words(at, words)
            at += words

    def _loaded(self, v: Var, dst: Reg) -> None:
        """Bind a loaded value, also for 32-bit arithmetic if it is one element a lane."""
        self.vectors.env[v] = (dst,)
        self.vectors.owned[v] = True
        if isinstance(v.type, Type):
            self.scalars.env[v] = dst

    def _stored(self, e: Expr) -> Reg:
        """Return the value of a store in vector registers."""
        return self.vectors.tuple_of(self.vectors.vector_registers(e))

    # ------------------------------------------------------------ loops

    def _for(self, s: st.For) -> None:
        out = self.out
        for c, init, after in zip(s.carried, s.inits, s.yields):
            maker = self.product_of.get(after) if isinstance(after, Var) else None
            self._carry_in(c, init, self.first_product.get(c), maker)
        begin, end = self.scalars.value(s.begin), self.scalars.value(s.end)
        self.labels += 1
        label = f"{s.label}_{self.labels}" if self.labels > 1 else s.label
        if self.scalars.bounds(s.begin)[1] >= self.scalars.bounds(s.end)[0]:  # perhaps no iteration at all
            self.branch_if_less(begin, end, f"{label}_enter", f"{label}_end")
        counter = out.new("s", 1, s.var.name)
        counts_down = self.counts_down and s.var not in postorder(s.body, *s.yields)
        if counts_down:
            out.move(counter, self.scalars.value(simplify(s.end - s.begin)), comment=f"iterations of {s.var.name}")
        else:
            out.move(counter, begin, comment=f"{s.var.name} = {_in_line(s.begin)}")
        self.scalars.env[s.var] = counter
        self._write_into_carried(s)
        out.start_block(label, f"for {s.var.name} in [{_in_line(s.begin)}, {_in_line(s.end)})")
        self.exits.append((s.carried, f"{label}_end"))
        out.loops += 1
        self._stmt(s.body)
        self.exits.pop()
        self._carry(s.carried, s.yields)
        out.loops -= 1
        if counts_down:
            self.count_down(counter, label, f"next {s.var.name}")
        else:
            self.next_iteration(counter, end, label, f"next {s.var.name}")
        out.start_block(f"{label}_end")
        for c, r in zip(s.carried, s.results):
            if held_as_vector(c.type):
                self.vectors.env[r], self.vectors.owned[r] = self.vectors.env[c], True
            else:
                self.scalars.env[r] = self.scalars.env[c]

    def _exit_if(self, s: st.ExitIf) -> None:
        """Leave the innermost loop: its carried registers, which its results share, take the given values."""
        carried, end = self.exits[-1]
        self.labels += 1
        stay = f"stay_{self.labels}"
        self.branch_unless(s.cond, stay)
        self.out.start_block(f"leave_{self.labels}")
        self._carry(carried, s.values)
        self.jump(end)
        self.out.start_block(stay)

    def _if(self, s: st.If) -> None:
        self.labels += 1
        otherwise, end = f"else_{self.labels}", f"endif_{self.labels}"
        self.branch_unless(s.cond, otherwise)
        self.out.start_block(f"then_{self.labels}")
        self._stmt(s.then)
        self.jump(end)
        self.out.start_block(otherwise)
        lane = self.scalars.lane
        # a rare branch recomputes the lane number, so that no register is live for it elsewhere
        if isinstance(s.cond, AllLanes):
            self.scalars.lane = self.lane_number()
        self._stmt(s.other)
        self.scalars.lane = lane
        self.out.start_block(end)

    def _carry_in(self, c: Var, init: Expr, user: Mma | None, maker: Mma | None) -> None:
        """Allocate registers for a carried value and load its first value.

        `user` is the first product that adds to it, `maker` the one that makes its next value.
        """
        if not held_as_vector(c.type):
            value = self.scalars.value(init)
            bank = "s" if self.scalars.uniform(c) or c.type is bool_ else "v"
            dst = self.scalars.env[c] = self.out.new(bank, max(1, c.type.bits // 32), c.name)
            self.out.move(dst, value)
            return
        self.vectors.owned[c] = True
        self.vectors.env[c] = self.vectors.carried(c, init, user, maker)

    def _write_into_carried(self, s: st.For) -> None:
        """Let loads of a carried variable's next value overwrite its registers, if its last use comes before."""
        stmts = st.stmts_of(s.body)
        loads = {x.var: i for i, x in enumerate(stmts) if isinstance(x, st.Load)}
        # yields come last: the variable may be the next value of another one
        last_use = _last_uses((*stmts, *s.yields))
        for c, y in zip(s.carried, s.yields):
            if not isinstance(y, Var) or not held_as_vector(c.type):
                continue
            parts = self.vectors.env[c]
            brought = [loads[part] for part in self.operands.get(y, (y,)) if part in loads]
            if not brought or len(parts) != 1 or last_use.get(c, -1) >= min(brought):
                continue
            if y in self.operands:
                self._distribute_loads(y, parts[0])
            else:
                self.into[y] = parts[0]

    def _redirected(
        self, moves: list[tuple[Reg, Reg]], vectors: Iterable[tuple[Parts, Parts]], since: int
    ) -> list[tuple[Reg, Reg]]:
        """Return the remaining moves after writing new vectors directly into their carried registers, where possible.

        Moves and `vectors` are (to, from); instructions from index `since` on computed the vectors.
        """
        for targets, sources in vectors:
            if len(targets) == len(sources) == 1:
                (to,), (fresh,) = targets, sources
                others = [move for move in moves if move[0].vreg is not to.vreg]
                alone = all(source.vreg not in (to.vreg, fresh.vreg) for _, source in others)
                if alone and self.out.redirect(fresh, to, since):
                    moves = others
        return moves

    def _carry(self, carried: Sequence[Var], values: Sequence[Expr]) -> None:
        """Move values into carried registers, all at once: a source that is itself overwritten is saved first.

        A value that is computed here is written there directly if nothing needs the old contents.
        """
        moves: list[tuple[Reg, Reg]] = []
        vectors: list[tuple[Parts, Parts]] = []
        block, begun = self.out.block, len(self.out.block.instructions)
        for n, (c, value) in enumerate(zip(carried, values)):
            if held_as_vector(c.type):
                vectors.append((self.vectors.env[c], self.vectors.value(value)))
                moves += _unequal(*vectors[-1])
                continue
            to = self.scalars.env[c]
            assert isinstance(to, Reg)
            needed = any(c in free_vars(later) for later in values[n + 1 :]) or any(s.vreg is to.vreg for _, s in moves)
            if not needed and self.scalars.add_in_place(c, value):
                continue
            at = self.scalars.value(value)
            if not needed and self.out.retarget(at, to):
                continue
            if not isinstance(at, Reg):
                immediate, at = at, self.out.new(to.bank, to.count)
                self.out.move(at, immediate)
            moves += _unequal((to,), (at,))
        if self.out.block is block:
            moves = self._redirected(moves, vectors, begun)
        targets = {to.vreg for to, _ in moves}
        for n, (to, at) in enumerate(moves):
            if at.vreg in targets:
                saved = self.out.new("s" if at.bank == "s" else "v", at.count)
                self.out.copy(saved, at)
                moves[n] = (to, saved)
        for to, at in moves:
            self.out.copy(to, at)


_STATEMENTS: Handlers = {
    st.Block: Selector._block,
    st.Let: Selector._let,
    st.For: Selector._for,
    st.If: Selector._if,
    st.ExitIf: Selector._exit_if,
}


def _unequal(old: Parts, new: Parts) -> list[tuple[Reg, Reg]]:
    """Return (to, from) word by word, for words that differ."""
    return [(to, at) for to, at in zip(single_words(old), single_words(new)) if not to.same(at)]


def _last_uses(stmts: Sequence[st.Stmt | Expr]) -> dict[Var, int]:
    """Return the index of the last statement that needs each variable's registers.

    Packs and slices share the registers of their operands.
    """
    last: dict[Var, int] = {}
    sharers: dict[Var, list[Var]] = {}  # variable -> variables whose registers it aliases
    for i, s in enumerate(stmts):
        used = [n for n in postorder(s) if isinstance(n, Var)]
        for v in used:
            for shared in (v, *sharers.get(v, ())):
                last[shared] = i
        if isinstance(s, st.Let) and isinstance(s.value, (Pack, Shuffle, Slice, Var)):
            sharers[s.var] = [x for v in used if v is not s.var for x in (v, *sharers.get(v, ()))]
    return last


def _operands(kernel: Kernel, taken: Mapping[Var, int], uses: Mapping[Var, int]) -> dict[Var, tuple[Var, ...]]:
    """Return the operands of matrix instructions that several loads fill, with the loaded variables.

    Nothing else uses these variables.
    """
    loaded = {s.var for s in statements(kernel.body) if isinstance(s, st.Load)} if taken else set()
    operands: dict[Var, tuple[Var, ...]] = {}
    for s in statements(kernel.body):
        if isinstance(s, st.Let) and isinstance(s.value, Pack) and taken.get(s.var) == s.var.type.lanes:
            parts = tuple(p for p in s.value.parts if isinstance(p, Var) and p in loaded and uses[p] == 1)
            if len(parts) == len(s.value.parts) > 1 and all(p.type.bits % 32 == 0 for p in parts):
                operands[s.var] = parts
    return operands


def _in_line(e: Expr) -> str:
    """Return an expression as comments show it, on one line; shared subexpressions come first."""
    return "; ".join(str(e).splitlines())


def comment(s: Any) -> str:
    """Return the comment of a memory operation in the text."""
    return f"{s.site.comment} {s.site.stage}".strip()


def use_counts(nodes: Iterable[Node]) -> dict[Var, int]:
    """Return how often some nodes use each variable as an operand."""
    return Counter(e for node in nodes for e in node.of_kind("Expr") if isinstance(e, Var))


def kernel_arguments(kernel: Kernel) -> list[tuple[Global | Var, int, int]]:
    """Return (parameter, byte offset, byte size) of each kernel argument: in order, naturally aligned."""
    out: list[tuple[Global | Var, int, int]] = []
    at = 0
    for p in kernel.params:
        size = 8 if isinstance(p, Global) else p.type.bits // 8
        at = -(-at // size) * size
        out.append((p, at, size))
        at += size
    return out


def tensor_map_arguments(kernel: Kernel) -> list[tuple[TensorMap, int]]:
    """Return (tensor map, byte offset) of each tensor map that a kernel names: behind its other arguments, aligned."""
    end = max((offset + size for _, offset, size in kernel_arguments(kernel)), default=0)
    first = -(-end // MAP_ALIGN) * MAP_ALIGN
    return [(tensor, first + MAP_BYTES * number) for number, tensor in enumerate(kernel.tensor_maps)]
