"""Selection of PTX: a message-level kernel becomes instructions on virtual registers.

A value is a list of registers. 32-bit words hold elements of up to 32 bits, lowest first, several to a word. Each
64-bit element has a register of 64 bits, each bool a predicate; a scalar narrower than a word has the low bits of one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

from convgen.backends.machine.selection import atomic
from convgen.backends.nvidia import element_ops, packed
from convgen.backends.nvidia.async_copies import waits_of
from convgen.backends.nvidia.lane_order import warp_barriers
from convgen.backends.nvidia.ptx import Writer, at, braces
from convgen.backends.nvidia.tables import BF16_SUMS, LANES, ROWS, MmaRow
from convgen.backends.nvidia.uses import OWN, shared_addresses, use_counts
from convgen.ir import expr as x
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Var
from convgen.ir.floats import Fma
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.types import AnyType, Type, bool_, f32, f64, s32, u32, vector
from convgen.ir.votes import AllLanes

Words = list[str]

#: bytes of a lane -> (type of a load or store, registers)
_WIDTHS: Mapping[int, str] = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}
_WIDE_WIDTHS: Mapping[int, str] = {8: "b64", 16: "v2.b64"}  #: of 64-bit elements
#: Reads of matrices -> instructions (PTX ISA, "ldmatrix")
_MATRIX_READS: Mapping[type[st.Stmt], str] = {
    st.MatrixRead: "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    st.TransposedMatrixRead: "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
}
#: Atomic operations without a result (PTX ISA, "red"); it has no `min` and `max` of floats.
_ATOMICS: Mapping[tuple[str, Type], str] = {
    ("add", f32): "add.f32",
    ("add", f64): "add.f64",
    ("add", s32): "add.u32",
    ("add", u32): "add.u32",
    **{(op, t): f"{op}.{t.name}" for op in ("min", "max") for t in (s32, u32)},
    **{(op, t): f"{op}.b32" for op in ("and", "or", "xor") for t in (s32, u32)},
}


def kind_of(elem: Type) -> str:
    """Return the kind of register that holds an element, or a word of elements."""
    if elem is bool_:
        return "p"
    return "rd" if elem.bits == 64 else "r"


def count_of(type: AnyType) -> int:
    """Return the registers of a value."""
    if type.elem is bool_ or type.elem.bits == 64:
        return type.lanes
    return max(1, -(-type.bits // 32))


class Selector:
    """One kernel."""

    def __init__(self, kernel: Kernel, target: str, out: Writer) -> None:
        self.kernel, self.target, self.out = kernel, target, out
        self.env: dict[Expr, Words] = {}  #: registers of variables; those in `pending`, `packs`, `offsets` are absent
        self.pending: dict[Var, st.SharedRead] = {}  #: reads that no instruction has needed yet
        self.packs: dict[Var, x.Pack] = {}  #: variables of packs that no instruction has needed whole yet
        self.pointers: dict[str, str] = {}
        self.exits: list[tuple[list[Words], str]] = []  #: registers of results, and end label, of the loops around
        self.offsets: dict[Var, tuple[Expr, int]] = {}  #: 64-bit variables that are another value and a constant
        self.uses, self.steps = use_counts(kernel), shared_addresses(kernel)
        self.places: dict[tuple[Var, int], str] = {}  #: addresses of shared memory that accesses share, by their step
        self.owned: dict[Var, int] = {}  #: variables whose registers a product may take for its sums -> loops around
        self.comment = ""
        self.waits, self.behind_warp_barriers = waits_of(kernel), warp_barriers(kernel)
        written = (s.buffer for s in statements(kernel.body) if isinstance(s, (st.FlatStore, st.Ticket)))
        self.written = {buffer.name for buffer in written}

    def run(self) -> Writer:
        """Select the whole kernel."""
        self._enter()
        self._statement(self.kernel.body)
        self.out.emit("ret")
        return self.out

    def _enter(self) -> None:
        out, kernel = self.out, self.kernel
        thread = out.op("mov.u32", "%tid.x")
        self.lane = out.op("and.b32", thread, str(LANES - 1), comment="lane")
        warp = out.op("shr.u32", thread, "5")
        self.env[kernel.subgroup] = [out.op("shfl.sync.idx.b32", warp, "0", "31", "-1", comment="warp, uniform")]
        for var, axis in zip(kernel.group_ids, "xyz"):
            self.env[var] = [out.op("mov.u32", f"%ctaid.{axis}", comment=var.name)]
        for parameter in kernel.params:
            if isinstance(parameter, Global):
                raw = out.op("ld.param.u64", f"[{parameter.name}]", kind="rd")
                pointer = out.op("cvta.to.global.u64", raw, kind="rd", comment=parameter.name)
                self.pointers[parameter.name] = pointer
            else:
                wide = parameter.type.bits == 64
                text = "ld.param.b64" if wide else "ld.param.b32"
                loaded = out.op(text, f"[{parameter.name}]", kind="rd" if wide else "r", comment=parameter.name)
                self.env[parameter] = [loaded]
        self.shared = out.op("mov.u32", "shared_memory") if kernel.shared else ""
        widths = sorted({s.width for s in statements(kernel.body) if isinstance(s, st.FlatDirectLoad)})
        self.lane_place = {w: out.op("mad.lo.u32", self.lane, str(w), self.shared) for w in widths}

    # ------------------------------------------------------------ values

    def scalar(self, e: Expr) -> str:
        """Return the register, or the immediate, of a scalar."""
        if isinstance(e, x.Const) and e.dtype.is_int and e.dtype.bits == 32:
            return str(e.bits)
        (register,) = self.words(e)
        return register

    def words(self, e: Expr) -> Words:
        """Return the registers of a value."""
        if (known := self.env.get(e)) is not None:
            return known
        if isinstance(e, Var):
            if e in self.offsets:
                return [self._sum_of(e)]
            self._read(e)
            if (pack := self.packs.pop(e, None)) is not None:
                self.env[e] = self.words(pack)
            return self.env[e]
        handler = _VALUES.get(type(e))
        if handler is None:
            raise Unsupported(f"selection of {type(e).__name__} for {self.kernel.name}")
        return handler(self, e)

    def elements(self, e: Expr) -> Words:
        """Return a register for each element: integers are extended to 32 bits, others have the low bits."""
        words, elem = self.words(e), e.type.elem
        if elem is bool_ or elem.bits >= 32:
            return words
        return [self._element(words, elem, n) for n in range(e.type.lanes)]

    def _element(self, words: Words, elem: Type, number: int) -> str:
        each = 32 // elem.bits
        signed = "s32" if elem.is_int and elem.min < 0 else "u32"
        at = number % each * elem.bits
        return self.out.op(f"bfe.{signed}", words[number // each], str(at), str(elem.bits))

    def joined(self, elements: Words, elem: Type) -> Words:
        """Words of elements that are each in the low bits of a register."""
        if elem is bool_ or elem.bits >= 32:
            return elements
        each, out = 32 // elem.bits, self.out
        if elem.bits not in (8, 16):
            raise Unsupported(f"selection of elements of {elem}")
        words = []
        for first in range(0, len(elements), each):
            part = elements[first : first + each]
            if elem.bits == 8:
                part = [
                    out.op("prmt.b32", a, b, "0x0040") if b else a
                    for a, b in zip(part[::2], [*part[1::2], *[""] * (len(part) % 2)])
                ]
            words.append(out.op("prmt.b32", part[0], part[1], "0x5410") if len(part) > 1 else part[0])
        return words

    def _const(self, e: x.Const) -> Words:
        out, bits = self.out, e.bits & ((1 << max(1, e.dtype.bits)) - 1)
        if e.dtype is bool_:
            return [out.op("setp.eq.u32" if bits else "setp.ne.u32", self.lane, self.lane, kind="p")]
        wide = e.dtype.bits == 64
        return [out.op("mov.b64" if wide else "mov.b32", f"0x{bits:x}", kind="rd" if wide else "r")]

    def _splat(self, e: x.Splat) -> Words:
        (word,), elem = self.words(e.a), e.dtype.elem
        if elem.bits == 16:
            word = self.out.op("prmt.b32", word, word, "0x1010")
        elif elem.bits == 8:
            word = self.out.op("prmt.b32", word, word, "0x0000")
        return [word] * count_of(e.dtype)

    def _pack(self, e: x.Pack) -> Words:
        """Parts of whole words stand as they are; others are taken to the narrowest elements and joined."""
        to = e.dtype.elem
        if to.bits == 64:
            return self._pack_wide(e)
        if all(part.type.bits % 32 == 0 for part in e.parts):
            return [word for part in e.parts for word in self._as_words(part)]
        narrow = min((part.type.elem for part in e.parts), key=lambda elem: elem.bits)
        pieces = [piece for part in e.parts for piece in self._pieces(part, narrow.bits)]
        return self._joined_bits(pieces, narrow.bits)

    def _pack_wide(self, e: x.Pack) -> Words:
        halves = [word for part in e.parts for word in self._as_words(part)]
        pairs = zip(halves[::2], halves[1::2])
        result = []
        for low, high in pairs:
            register = self.out.new("rd")
            self.out.emit(f"mov.b64 {register}, {{{low}, {high}}}")
            result.append(register)
        return result

    def _as_words(self, e: Expr) -> Words:
        """Return the 32-bit words of a value, of 64-bit elements their halves."""
        if e.type.elem.bits != 64:
            return self.words(e)
        result = []
        for register in self.words(e):
            low, high = self.out.new(), self.out.new()
            self.out.emit(f"mov.b64 {{{low}, {high}}}, {register}")
            result += [low, high]
        return result

    def _pieces(self, e: Expr, bits: int) -> Words:
        words = self._as_words(e)
        if bits == 32:
            return words
        each = 32 // bits
        return [
            self.out.op("bfe.u32", words[n // each], str(n % each * bits), str(bits))
            for n in range(e.type.bits // bits)
        ]

    def _joined_bits(self, pieces: Words, bits: int) -> Words:
        each, words = 32 // bits, []
        for first in range(0, len(pieces), each):
            word = pieces[first]
            for n, piece in enumerate(pieces[first + 1 : first + each], 1):
                word = self.out.op("bfi.b32", piece, word, str(n * bits), str(bits))
            words.append(word)
        return words

    def _slice(self, e: x.Slice) -> Words:
        return self._picked(e.a, range(e.start, e.start + e.count))

    def _shuffle(self, e: x.Shuffle) -> Words:
        return self._picked(e.a, e.order)

    def _picked(self, of: Expr, order: Sequence[int]) -> Words:
        """Return elements by number; whole words that stay together are taken as they are."""
        words, elem = self.words(of), of.type.elem
        if elem is bool_ or elem.bits >= 32:
            return [words[n] for n in order]
        each, result = 32 // elem.bits, []
        for first in range(0, len(order), each):
            part = list(order[first : first + each])
            begin = part[0]
            if begin % each == 0 and part == list(range(begin, begin + len(part))):
                result.append(words[begin // each])
            else:
                pieces = [self._element(words, elem, n) for n in part]
                result += self._joined_bits(pieces, elem.bits)
        return result

    def _select(self, e: x.Select) -> Words:
        conditions = self.words(e.cond)
        if e.type.elem is bool_:
            pairs = zip(conditions * (e.type.lanes // len(conditions)), self.words(e.a), self.words(e.b))
            return [self._chosen(*each) for each in pairs]
        if len(conditions) == 1:
            condition, width = conditions[0], "b64" if e.type.elem.bits == 64 else "b32"
            kind = kind_of(e.type.elem)
            return [
                self.out.op(f"selp.{width}", a, b, condition, kind=kind)
                for a, b in zip(self._constant(e.a) or self.words(e.a), self._constant(e.b) or self.words(e.b))
            ]
        kind, width = kind_of(e.type.elem), "b64" if e.type.elem.bits == 64 else "b32"
        chosen = [
            self.out.op(f"selp.{width}", a, b, p, kind=kind)
            for a, b, p in zip(self.elements(e.a), self.elements(e.b), conditions)
        ]
        return self.joined(chosen, e.type.elem)

    def _chosen(self, condition: str, a: str, b: str) -> str:
        """Return one of two predicates."""
        out = self.out
        where = out.op("and.pred", condition, a, kind="p")
        other = out.op("and.pred", out.op("not.pred", condition, kind="p"), b, kind="p")
        return out.op("or.pred", where, other, kind="p")

    def _bitwise(self, e: x.Binary) -> Words:
        name = {x.And: "and", x.Or: "or", x.Xor: "xor"}[type(e)]
        elem = e.type.elem
        suffix = "pred" if elem is bool_ else "b64" if elem.bits == 64 else "b32"
        return [
            self.out.op(f"{name}.{suffix}", a, b, kind=kind_of(elem)) for a, b in zip(self.words(e.a), self.words(e.b))
        ]

    def _not(self, e: x.Not) -> Words:
        elem = e.type.elem
        suffix = "pred" if elem is bool_ else "b64" if elem.bits == 64 else "b32"
        return [self.out.op(f"not.{suffix}", a, kind=kind_of(elem)) for a in self.words(e.a)]

    def _elementwise(self, e: Any) -> Words:
        """Return an operation on each word of halves, or on each element by the row of `element_ops`."""
        operands = [getattr(e, name) for name in e.child_fields]
        if name := packed.operation(type(e), e.type.elem, bf16_sums=self.target in BF16_SUMS):
            return [self.out.op(name, *words) for words in zip(*(self.words(operand) for operand in operands))]
        columns = [self._constant(operand) or self.elements(operand) for operand in operands]
        of = operands[0].type.elem
        results = [element_ops.apply(self.out, type(e), of, operands) for operands in zip(*columns)]
        return self.joined(results, e.type.elem)

    @staticmethod
    def _constant(e: Expr) -> Words:
        """Return an integer as an immediate operand; empty for other values."""
        return [str(e.bits)] if isinstance(e, x.Const) and e.dtype.is_int and e.dtype.bits >= 32 else []

    def _convert(self, e: x.Conversion) -> Words:
        of, to = e.a.type.elem, e.type.elem
        saturates = isinstance(e, x.Saturate)
        if of.is_int and to.is_int and of.bits == to.bits and not saturates:
            return self.words(e.a)
        if packed.convertible(of, to, saturate=saturates):
            return packed.convert(self.out, of, to, self.words(e.a), e.type.lanes)
        made = [element_ops.convert(self.out, of, to, each, saturate=saturates) for each in self.elements(e.a)]
        return self.joined(made, to)

    def _from_lane(self, e: x.FromLane) -> Words:
        lane, out = self.scalar(e.lane), self.out
        moved = [out.op("shfl.sync.idx.b32", word, lane, "31", "-1") for word in self._as_words(e.a)]
        if e.type.elem.bits != 64:
            return moved
        result = []
        for low, high in zip(moved[::2], moved[1::2]):
            register = out.new("rd")
            out.emit(f"mov.b64 {register}, {{{low}, {high}}}")
            result.append(register)
        return result

    def parts(self, e: Expr) -> list[Expr]:
        """Return expressions, one after the other, of which a value consists; its words are theirs."""
        e = self.packs.get(e, e) if isinstance(e, Var) else e
        return [inner for part in e.parts for inner in self.parts(part)] if _is_of_words(e) else [e]

    def _mma(self, e: x.Mma) -> Words:
        """Multiply step by step along K; a step's fragments are read during the step before."""
        op, row = e.op, ROWS[e.op.atom.name]
        sums, a, b = list(self.words(e.acc)), _Factor(self, e.a), _Factor(self, e.b)
        owned = set(sums) if isinstance(e.acc, Var) and self.owned.pop(e.acc, -1) == len(self.exits) else set()
        per = max(1, 32 // op.atom.a_elem.bits)
        of_a, of_b, of_d = op.atom.a.registers // per, op.atom.b.registers // per, op.atom.d.registers
        multiply = self._by_matrix if isinstance(row, MmaRow) else self._by_lanes

        def read(step: int) -> None:
            for n in range(op.tiles_n):
                a.words(op.a_start(n, step) // per, of_a)
            for m in range(op.tiles_m):
                b.words(op.b_start(m, step) // per, of_b)

        read(0)
        for step in range(op.steps):
            if step + 1 < op.steps:
                read(step + 1)
            for m in range(op.tiles_m):
                for n in range(op.tiles_n):
                    at_a, at_b, at_d = op.a_start(n, step) // per, op.b_start(m, step) // per, op.d_start(n, m)
                    factors = a.words(at_a, of_a), b.words(at_b, of_b)
                    before = sums[at_d : at_d + of_d]
                    after = before if owned.issuperset(before) else self._fresh(vector(op.atom.acc, of_d))
                    multiply(row.mnemonic, *factors, before, after)
                    sums[at_d : at_d + of_d] = after
                    owned.update(after)
        return sums

    def _by_matrix(self, mnemonic: str, a: Words, b: Words, before: Words, after: Words) -> None:
        """Multiply by `mma.sync`, whose A in the manual is `b` here."""
        self.out.emit(f"{mnemonic} {', '.join(map(braces, (after, b, a, before)))}")

    def _by_lanes(self, mnemonic: str, a: Words, b: Words, before: Words, after: Words) -> None:
        """Multiply and add a lane's elements of one row of either factor, in the order of K."""
        (total,), (result,) = before, after
        for left, right in zip(a, b, strict=True):
            self.out.emit(f"{mnemonic} {result}, {left}, {right}, {total}")
            total = result

    def _vote(self, e: AllLanes) -> Words:
        return [self.out.op("vote.sync.all.pred", self.scalar(e.a), "-1", kind="p")]

    def _lane(self, _e: x.Lane) -> Words:
        return [self.lane]

    def _address_of(self, e: x.AddressOf) -> Words:
        return [self.pointers[e.buffer.name]]

    def _uniform(self, e: x.Uniform) -> Words:
        return self.words(e.a)

    # ------------------------------------------------------------ statements

    def _statement(self, s: st.Stmt) -> None:
        """Select a statement; all but those without effect on shared memory come after reads that were put off."""
        handler = _STATEMENTS.get(type(s))
        if handler is None:
            raise Unsupported(f"selection of {type(s).__name__} for {self.kernel.name}")
        if not isinstance(s, _APART) or s in self.behind_warp_barriers:
            self._flush()
        before = self.out.begin(s)
        if self.waits is not None and s in self.waits.at_once:
            self.out.emit("cp.async.wait_all")
        if s in self.behind_warp_barriers:
            self.out.emit("bar.warp.sync -1", "lanes see each other's accesses")
        handler(self, s)
        self.out.line = before

    def _block(self, s: st.Block) -> None:
        for inner in s.stmts:
            self._statement(inner)

    def _let(self, s: st.Let) -> None:
        self.env.pop(s.var, None)
        if _is_of_words(s.value):
            self.packs[s.var] = s.value
        elif (offset := _constant_offset(s.value)) is not None:
            self.offsets[s.var] = offset
        else:
            begin = len(self.out.lines)
            self.env[s.var] = self.words(s.value)
            self.out.remark(begin, s.var.name)
            if isinstance(s.value, x.Mma):
                self._own(s.var)
        self._place(s.var)

    def _own(self, v: Var) -> None:
        """Note that nothing but its only use reads a variable's registers."""
        if self.uses[v] == 1:
            self.owned[v] = len(self.exits)

    def _place(self, v: Var) -> None:
        """Add what accesses with this address add to it once, where it is bound."""
        for step in self.steps.get(v, ()):
            base = self.lane_place[step] if step else self.shared
            self.places[v, step] = self.out.op("add.u32", base, self.scalar(v), comment=v.name)

    def _copies(self, to: list[Words], values: Sequence[Expr]) -> None:
        """Move values to registers: all are computed before any move, and saved where a move would overwrite them."""
        sources = [self.words(value) for value in values]
        written = {target for targets in to for target in targets}
        suffixes = ["pred" if v.type.elem is bool_ else "b64" if v.type.elem.bits == 64 else "b32" for v in values]
        saved = [
            [
                self.out.op(f"mov.{suffix}", source, kind=kind_of(value.type.elem))
                if source in written and source != target
                else source
                for target, source in zip(targets, registers)
            ]
            for targets, registers, suffix, value in zip(to, sources, suffixes, values)
        ]
        for targets, registers, suffix in zip(to, saved, suffixes):
            for target, source in zip(targets, registers):
                if target != source:
                    self.out.emit(f"mov.{suffix} {target}, {source}")

    def _fresh(self, type: AnyType) -> Words:
        return [self.out.new(kind_of(type.elem)) for _ in range(count_of(type))]

    def _for(self, s: st.For) -> None:
        out = self.out
        carried = [self._fresh(var.type) for var in s.carried]
        self._copies(carried, s.inits)
        begin, end = self.scalar(s.begin), self.scalar(s.end)
        counter = out.op("mov.u32", begin, comment=s.label)
        head, tail = out.label("LOOP"), out.label("END")
        skip = out.op("setp.ge.s32", counter, end, kind="p")
        out.emit(f"@{skip} bra.uni {tail}")
        out.place(head)
        self.env[s.var] = [counter]
        self.env |= dict(zip(s.carried, carried))
        self.exits.append((carried, tail))
        for var in (s.var, *s.carried):
            self._place(var)
            self._own(var)
        self._statement(s.body)
        self.exits.pop()
        self._copies(carried, s.yields)
        out.emit(f"add.s32 {counter}, {counter}, 1")
        more = out.op("setp.lt.s32", counter, end, kind="p")
        out.emit(f"@{more} bra.uni {head}")
        out.place(tail)
        self.env |= dict(zip(s.results, carried))
        for var in s.results:
            self._place(var)

    def _if(self, s: st.If) -> None:
        out, condition = self.out, self.scalar(s.cond)
        end = out.label("JOIN")
        other = end if s.other is st.empty else out.label("ELSE")
        out.emit(f"@!{condition} bra.uni {other}")
        self._arm(s.then)
        if s.other is not st.empty:
            out.emit(f"bra.uni {end}")
            out.place(other)
            self._arm(s.other)
        out.place(end)

    def _arm(self, s: st.Stmt) -> None:
        """Select a branch, with the reads that it put off: behind it their addresses may be undefined."""
        self._statement(s)
        self._flush()

    def _exit_if(self, s: st.ExitIf) -> None:
        out, condition = self.out, self.scalar(s.cond)
        stay, (results, end) = out.label("STAY"), self.exits[-1]
        out.emit(f"@!{condition} bra.uni {stay}")
        self._copies(results, s.values)
        out.emit(f"bra.uni {end}")
        out.place(stay)

    def _barrier(self, s: st.Barrier) -> None:
        """End a group of asynchronous copies, wait for those that others read next, and meet."""
        self._end_group(s)
        if self.waits is not None and s in self.waits.at_barriers:
            self.out.emit(f"cp.async.wait_group {self.waits.at_barriers[s]}")
        self.out.emit("bar.sync 0", s.site.stage)

    def _end_group(self, s: st.Stmt) -> None:
        if self.waits is not None and s in self.waits.ends:
            self.out.emit("cp.async.commit_group")

    # ------------------------------------------------------------ memory

    def _guard(self, mask: Expr) -> str:
        """Return the predicate in front of a message; empty where all lanes take part."""
        return "" if isinstance(mask, x.Const) and mask.bits else f"@{self.scalar(mask)} "

    @staticmethod
    def _width(type: AnyType) -> str:
        return (_WIDE_WIDTHS if type.elem.bits == 64 else _WIDTHS)[type.bits // 8]

    def _flat_load(self, s: st.FlatLoad) -> None:
        out, address, guard = self.out, self._global_address(s.address), self._guard(s.mask)
        registers = self._fresh(s.var.type)
        if guard and type(s) is st.FlatLoad:
            for register in registers:
                out.emit(f"mov.{'b64' if register.startswith('%rd') else 'b32'} {register}, 0")
        path = "ld.global" if s.buffer.name in self.written else "ld.global.nc"
        out.emit(f"{guard}{path}.{self._width(s.var.type)} {braces(registers)}, [{address}]", _remark(s))
        self.env[s.var] = registers

    def _global_address(self, e: Expr) -> str:
        """Return a register and an immediate offset."""
        base, offset = self._origin(e)
        return at(self.scalar(base), offset)

    def _origin(self, e: Expr) -> tuple[Expr, int]:
        """Return a 64-bit value and the constant that is to be added to it."""
        offset = 0
        while (step := self.offsets.get(e) if isinstance(e, Var) else _constant_offset(e)) is not None:
            if not _fits(offset + step[1]):
                break
            e, offset = step[0], offset + step[1]
        return e, offset

    def _sum_of(self, v: Var) -> str:
        """Return the register of a variable in `offsets`, for this use alone: it may not dominate later uses."""
        base, offset = self.offsets[v]
        return self.out.op("add.s64", self.scalar(base), str(offset), kind="rd", comment=v.name)

    def _flat_store(self, s: st.FlatStore) -> None:
        address, guard, value = self._global_address(s.address), self._guard(s.mask), self.words(s.value)
        self.out.emit(f"{guard}st.global.{self._width(s.value.type)} [{address}], {braces(value)}", _remark(s))

    def _flat_atomic(self, s: st.FlatAtomic) -> None:
        name = atomic(s, _ATOMICS, self.target)
        address, guard, value = self._global_address(s.address), self._guard(s.mask), self.words(s.value)
        self.out.emit(f"{guard}red.global.{name} [{address}], {value[0]}", _remark(s))

    def _ticket(self, s: st.Ticket) -> None:
        """Take a ticket: lane 0 counts for the subgroup, and the count wraps to 0 after the last ticket.

        PTX ISA, "Memory Consistency Model": `bar.warp.sync` orders the stores of all lanes before the release of lane
        0, and its acquire before later loads of all lanes; causality order is transitive.
        """
        out, pointer = self.out, self.pointers[s.buffer.name]
        place, turns = out.op("cvt.s64.s32", self.scalar(s.index), kind="rd"), self.scalar(s.turns)
        address = out.op("mad.lo.s64", place, str(s.buffer.elem.bytes), pointer, kind="rd")
        most = out.op("sub.s32", turns, "1")
        first = out.op("setp.eq.u32", self.lane, "0", kind="p")
        taken = out.op("mov.u32", "0")
        out.emit("bar.warp.sync -1", "release: order the stores of all lanes before lane 0's ticket")
        out.emit(f"@{first} atom.acq_rel.gpu.global.inc.u32 {taken}, [{address}], {most}", _remark(s))
        out.emit("bar.warp.sync -1", "acquire: order lane 0's ticket before the loads of all lanes")
        self.env[s.var] = [out.op("shfl.sync.idx.b32", taken, "0", "31", "-1", comment=s.var.name)]

    def _acquire(self, _s: st.Acquire) -> None:
        self.out.emit("fence.acq_rel.gpu", "acquire: see the stores of other workgroups")

    def _direct_load(self, s: st.FlatDirectLoad) -> None:
        """Copy by `cp.async`, which fills the bytes behind those that it reads with zeros: all of them without mask."""
        self._end_group(s)
        out, address = self.out, self._global_address(s.address)
        to = self._shared_base(s.place, s.width)
        whole = isinstance(s.mask, x.Const) and s.mask.bits
        size = "" if whole else f", {out.op('selp.b32', str(s.width), '0', self.scalar(s.mask))}"
        cache = "cg" if s.width == 16 else "ca"  # .cg takes 16 bytes only
        place = f"[{at(to, self.kernel.shared_base(s.tile) + s.imm)}], [{address}], {s.width}{size}"
        out.emit(f"cp.async.{cache}.shared.global.L2::128B {place}", _remark(s))

    def _shared_address(self, s: st.SharedRead | st.SharedWrite) -> str:
        return at(self._shared_base(s.address, OWN), self.kernel.shared_base(s.tile) + s.imm)

    def _shared_base(self, address: Expr, step: int) -> str:
        """Return the address of shared memory of a lane's access."""
        if isinstance(address, Var) and (address, step) in self.places:
            return self.places[address, step]
        base = self.lane_place[step] if step else self.shared
        if isinstance(address, x.Const) and not address.bits:
            return base
        return self.out.op("add.u32", base, self.scalar(address))

    def _shared_read(self, s: st.SharedRead) -> None:
        """Put a read off until its value is needed, at the latest to what may change the bytes."""
        self.env.pop(s.var, None)
        self.pending[s.var] = s

    def _flush(self) -> None:
        """Emit the reads that were put off."""
        for v in list(self.pending):
            self._read(v)

    def _read(self, v: Var) -> None:
        if (s := self.pending.pop(v, None)) is not None:
            before = self.out.begin(s)
            self._emit_read(s)
            self.out.line = before

    def _emit_read(self, s: st.SharedRead) -> None:
        registers, address = self._fresh(s.var.type), self._shared_address(s)
        name = _MATRIX_READS.get(type(s)) or f"ld.shared.{self._width(s.var.type)}"
        self.out.emit(f"{name} {braces(registers)}, [{address}]", _remark(s))
        self.env[s.var] = registers

    def _shared_write(self, s: st.SharedWrite) -> None:
        self._write(s, self.words(s.value))

    def _filled_write(self, s: st.FilledWrite) -> None:
        value, guard = self.words(s.value), self._guard(s.mask)
        if guard:
            width = "b64" if s.value.type.elem.bits == 64 else "b32"
            kind = kind_of(s.value.type.elem)
            value = [self.out.op(f"selp.{width}", each, "0", guard[1:-1], kind=kind) for each in value]
        self._write(s, value)

    def _write(self, s: st.SharedWrite, value: Words) -> None:
        address = self._shared_address(s)
        self.out.emit(f"st.shared.{self._width(s.value.type)} [{address}], {braces(value)}", _remark(s))


def _fits(offset: int) -> bool:
    """Return whether an address may have this immediate offset (PTX ISA, "Addresses as Operands": signed, 32 bits)."""
    return -(1 << 31) <= offset < 1 << 31


def _constant_offset(e: Expr) -> tuple[Expr, int] | None:
    """Return a 64-bit value as another one and a constant offset of an address; None if it is no such sum."""
    match e:
        case x.Add(a, x.Const(dtype, bits)) if dtype.bits == 64:
            offset = bits - (1 << 64) if bits >> 63 else bits
            return (a, offset) if _fits(offset) else None
    return None


def _is_of_words(e: Expr) -> TypeGuard[x.Pack]:
    """Return whether a value is a pack of variables of whole words, which takes no instruction."""
    return (
        isinstance(e, x.Pack)
        and e.type.elem.bits < 64
        and all(isinstance(p, Var) and p.type.elem.bits < 64 and p.type.bits % 32 == 0 for p in e.parts)
    )


class _Factor:
    """A factor of a product, of which parts are selected when they are needed."""

    def __init__(self, selector: Selector, e: Expr) -> None:
        self.selector = selector
        self.parts = selector.parts(e)
        self.starts = list(accumulate((count_of(part.type) for part in self.parts), initial=0))
        self.found: dict[int, Words] = {}  #: by their first word, words that consist of variables

    def words(self, first: int, count: int) -> Words:
        """Return the words from `first` on; `count` is that of all calls."""
        if (known := self.found.get(first)) is not None:
            return known
        words: Words = []
        part = begin = bisect_right(self.starts, first) - 1
        while self.starts[part] < first + count:
            words += self.selector.words(self.parts[part])
            part += 1
        words = words[first - self.starts[begin] :][:count]
        if all(isinstance(e, Var) for e in self.parts[begin:part]):
            self.found[first] = words
        return words


def _remark(s: Any) -> str:
    """Return the purpose of a message: its stage, and what it moves."""
    return f"{s.site.comment} {s.site.stage}".strip()


#: Statements that change no bytes that a read of the same epoch may read: copies go to slots of later epochs.
_APART = (st.Block, st.Let, st.SharedRead, *_MATRIX_READS, st.FlatLoad, st.FlatDirectLoad)

_VALUES: Mapping[type[Expr], Callable[[Selector, Any], Words]] = {
    x.Const: Selector._const,
    x.Lane: Selector._lane,
    x.Splat: Selector._splat,
    x.Pack: Selector._pack,
    x.Slice: Selector._slice,
    x.Shuffle: Selector._shuffle,
    x.Select: Selector._select,
    x.Uniform: Selector._uniform,
    x.FromLane: Selector._from_lane,
    x.Mma: Selector._mma,
    x.AddressOf: Selector._address_of,
    AllLanes: Selector._vote,
    x.Not: Selector._not,
    **dict.fromkeys((x.And, x.Or, x.Xor), Selector._bitwise),
    **dict.fromkeys((x.Cast, x.Saturate), Selector._convert),
    **dict.fromkeys(element_ops.OPERATIONS, Selector._elementwise),
    Fma: Selector._elementwise,
}

MESSAGES: Mapping[type[st.Stmt], Callable[[Selector, Any], None]] = {
    st.Barrier: Selector._barrier,
    **dict.fromkeys((st.FlatLoad, st.PartialLoad), Selector._flat_load),
    st.FlatStore: Selector._flat_store,
    st.FlatAtomic: Selector._flat_atomic,
    st.Ticket: Selector._ticket,
    st.Acquire: Selector._acquire,
    st.FlatDirectLoad: Selector._direct_load,
    **dict.fromkeys((st.SharedRead, *_MATRIX_READS), Selector._shared_read),
    st.SharedWrite: Selector._shared_write,
    st.FilledWrite: Selector._filled_write,
}

_STATEMENTS: Mapping[type[st.Stmt], Callable[[Selector, Any], None]] = {
    st.Block: Selector._block,
    st.Let: Selector._let,
    st.For: Selector._for,
    st.If: Selector._if,
    st.ExitIf: Selector._exit_if,
    **MESSAGES,
}
