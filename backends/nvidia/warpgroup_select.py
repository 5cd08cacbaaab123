"""Selection of the products of warpgroups (`wgmma`): descriptors, fences, commits and waits."""

from __future__ import annotations

from collections.abc import Callable

from convgen.backends.nvidia.ptx import KINDS, Writer, braces, kind_of
from convgen.backends.nvidia.statement_flow import KernelAccesses
from convgen.backends.nvidia.tables import WgmmaRow
from convgen.backends.nvidia.values import Values, Words
from convgen.backends.nvidia.warpgroups import FactorPlace, is_of_warpgroup, products_of
from convgen.ir import expr as x
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Var
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel


class WarpgroupProducts(Values):
    """Selects products of warpgroups, and says where a kernel waits for them."""

    def __init__(self, kernel: Kernel, target: str, out: Writer, accesses: KernelAccesses) -> None:
        super().__init__(kernel, target, out)
        self.products = products_of(kernel, accesses)
        #: Register, slot and units of a slot -> register with their sum, in the block that is being selected.
        self.slot_starts: dict[tuple[str, Expr, int], str] = {}
        #: Address and place of a factor -> register with its descriptor in slot 0, at the warpgroup's first row.
        self.descriptors: dict[tuple[Expr, FactorPlace], str] = {}
        self.shared = ""  #: register with the address of shared memory

    def _await_behind_loop(self, loop: st.For, *, may_skip_sums: bool) -> None:
        """Wait behind a loop for its products, unless only other products add to their sums.

        `may_skip_sums` says that sums in flight ahead of the loop may come around it.
        """
        if self.products and any(v in self.in_flight and v not in self.products.added_to for v in loop.results):
            if may_skip_sums:  # ptxas 13.0 asks for a fence where sums come around the loop as well (C7519)
                self.out.emit("wgmma.fence.sync.aligned", "see the sums of products before the loop")
            self.await_sums()  # ptxas 13.0 serialises products (C7514) if it comes later

    def _sums_in_place(self, init: Expr) -> Words:
        """Return the registers of sums in flight that only a loop uses, so that it may add to them; [] for others."""
        is_free = init in self.in_flight and isinstance(init, Var) and self.owned.pop(init, -1) == self.loops
        return self.env[init] if is_free else []

    @staticmethod
    def _sums_added_to_later(s: st.For) -> set[Expr]:
        """Return the variables of a loop's body with sums to which products may still add in the next iteration."""
        lets = (n for n in statements(s.body) if isinstance(n, st.Let))
        return {n.var for n in lets if is_of_warpgroup(n.value) and not n.value.op.atom.b_in_registers}

    def _await_readers(self, v: Var) -> None:
        """Wait for all products ahead of instructions that write registers which a product reads.

        The last iteration's product may still read them; ptxas 13.5 serialises products (C7513) also if none does.
        """
        if self.in_flight and self.products and v in self.products.inputs:
            self.await_sums()

    def _await_around_loop(self, loop: st.For) -> None:
        """Wait, where an iteration of a loop with products begins or ends, for products that read registers.

        Registers that the loop carries may be theirs. ptxas 13.5 serialises such products (C7515) if they are in flight
        where a loop begins in which other instructions write their sums.
        """
        if self.in_flight.sums.keys().isdisjoint(self.reading):
            return
        if any(isinstance(s, st.Let) and is_of_warpgroup(s.value) for s in statements(loop.body)):
            self.await_sums()

    def _add_descriptors(self, address: Expr) -> None:
        """Compute the descriptors of factors at an address where its variable is bound, or at the kernel's start."""
        for tile in self.products.at(address) if self.products else ():
            place = FactorPlace.of(tile, self.kernel.shared_base(tile))
            self.descriptors[address, place] = self._descriptor(address, place)

    def _descriptor(self, address: Expr, place: FactorPlace) -> str:
        """Return a register with the descriptor of a factor whose first row is at byte `address` of slot 0."""
        out, base = self.out, self.kernel.shared_base(place.tile)
        start = out.op("add.u32", out.op("add.u32", self.shared, self.scalar(address)), str(base))
        wide = out.op("cvt.u64.u32", out.op("shr.u32", start, "4"), kind="rd")
        return out.op("or.b64", wide, f"0x{place.constant:x}", kind="rd", comment=f"descriptor of {place.tile.name}")

    def _by_warpgroup(self, e: x.Mma, row: WgmmaRow) -> Words:
        """Issue the `wgmma` of a product and return the registers of its sums; the first step replaces sums of zero."""
        out, op, begins = self.out, e.op, _is_zero(e.acc)
        sums = self._fresh(e.acc.type) if begins else self._sums_to_add_to(e.acc)
        a, b = self._factor_at(e.a, op.atom.n, op.atom.k), self._instruction_a(e, row)
        transposed = self._are_transposed(e, row) if row.takes_transposed else ""
        # PTX asks for a fence if other instructions have accessed the sums; ptxas 13.0 also behind some waits (C7519).
        out.emit("wgmma.fence.sync.aligned", "see the sums as other instructions left them")
        adds = out.op("setp.eq.u32", self.lane, self.lane, kind="p")
        first = out.op("setp.ne.u32", self.lane, self.lane, kind="p") if begins else adds
        for m in range(op.tiles_m):
            for n in range(op.tiles_n):
                start = op.d_start(n, m)
                total = braces(sums[start : start + op.atom.d.registers])
                for step in range(op.steps):
                    factors = b(m, step), a(n, step)
                    scales = ", 1, 1" if op.atom.acc.is_float else ""
                    scale_d = adds if step else first
                    out.emit(f"{row.mnemonic} {total}, {', '.join(factors)}, {scale_d}{scales}{transposed}")
        self.in_flight.is_open = True
        return sums

    def _instruction_a(self, e: x.Mma, row: WgmmaRow) -> Callable[[int, int], str]:
        """Return a function that emits the operand of the manual's A, `b` here, from (tile along M, step) on."""
        op = e.op
        if not row.a_in_registers:
            return self._factor_at(e.b, op.atom.m, op.atom.k)
        words, per = self._factor_words(e.b), 32 // op.atom.b_elem.bits
        count = op.atom.b.registers // per

        def at(m: int, step: int) -> str:
            first = op.b_start(m, step) // per
            return braces(words[first : first + count])

        return at

    def _factor_words(self, e: Expr) -> Words:
        """Return the registers of a factor, which other products in flight may read as well."""
        return self.words(e) if e in self.in_flight else self.env.get(e) or self.words(e)

    def _sums_to_add_to(self, acc: Expr) -> Words:
        """Return registers that hold the sums before a product: their own if it is the only use, else copies."""
        if isinstance(acc, Var) and self.owned.pop(acc, -1) == self.loops:
            return self.env[acc]
        before, kind = self.words(acc), kind_of(acc.type.elem)
        return [self.out.op(f"mov.{KINDS[kind]}", word, kind=kind) for word in before]

    def _factor_at(self, side: Expr, rows: int, depth: int) -> Callable[[int, int], str]:
        """Return a function that emits the descriptor of a factor from (tile of `rows`, step of `depth`) on."""
        s = self._factor_of(side)
        place = FactorPlace.of(s.tile, self.kernel.shared_base(s.tile))
        start, slot = self.descriptors.get((s.address, place)) or self._descriptor(s.address, place), s.slot
        of_slot = s.tile.slot_bytes // 16
        first = slot.bits * of_slot if isinstance(slot, x.Const) else 0
        if not isinstance(slot, x.Const):
            start = self.in_slot(start, slot, of_slot, kind="rd")

        def at(tile: int, step: int) -> str:
            offset = first + place.offset(tile * rows, step * depth)
            return self.out.op("add.s64", start, str(offset), kind="rd") if offset else start

        return at

    def in_slot(self, start: str, slot: Expr, slot_units: int, *, kind: str = "r") -> str:
        """Return a register with `start` plus `slot_units` times the number of a slot; a block computes each once."""
        key = start, slot, slot_units
        if key not in self.slot_starts:
            number, step = self.scalar(slot), str(slot_units)
            if kind == "r":
                self.slot_starts[key] = self.out.op("mad.lo.u32", number, step, start)
            else:
                before = self.out.op("mul.wide.u32", number, step, kind=kind)
                self.slot_starts[key] = self.out.op("add.s64", start, before, kind=kind)
        return self.slot_starts[key]

    def _factor_of(self, side: Expr) -> st.LoadFactor:
        found = self.products.factors.get(side) if self.products and isinstance(side, Var) else None
        if found is None:
            raise Unsupported(f"selection of a warpgroup's product from registers for {self.kernel.name}")
        return found

    def _are_transposed(self, e: x.Mma, row: WgmmaRow) -> str:
        """Return the operands that say whether factors in shared memory are contiguous along M and N."""
        sides = (e.a,) if row.a_in_registers else (e.b, e.a)
        return "".join(f", {int(self._factor_of(side).tile.is_transposed)}" for side in sides)

    def _commit(self) -> None:
        """End the group of products that have been issued since the last one, if there are any."""
        if self.in_flight.is_open:
            self.out.emit("wgmma.commit_group.sync.aligned")
            self.in_flight.end_group()

    def await_sums(self, of: Expr | None = None) -> None:
        self._commit()
        running = 0 if of is None else self.in_flight.groups_behind(of)
        self.out.emit(f"wgmma.wait_group.sync.aligned {running}", "sums are complete")
        self.in_flight.landed(running)


def added_to_in_place(s: st.For) -> set[Expr]:
    """Return the variables that a loop carries to which nothing but products add, directly or in inner loops."""
    sums: dict[Expr, Expr] = {}  #: variable -> the one to which a product, or an inner loop, adds
    for n in statements(s.body):
        if isinstance(n, st.Let) and is_of_warpgroup(n.value):
            sums[n.var] = n.value.acc
        elif isinstance(n, st.For):
            sums |= dict(zip(n.results, n.inits))
    added_to: set[Expr] = set()
    for carried, value in zip(s.carried, s.yields):
        before = value
        while before is not carried and before in sums:
            before = sums[before]
        if before is carried:
            added_to.add(carried)
    return added_to


def _is_zero(e: Expr) -> bool:
    """Return whether a value is a vector of zeros."""
    return isinstance(e, x.Splat) and isinstance(e.a, x.Const) and not e.a.bits
