"""Execute matrix instructions: gather operands into matrices, multiply in f64, round once, scatter.

Products are exact in f64 and one instruction's sum is one f64 sum, rounded once to the accumulator type; f64 is plain
f64 arithmetic. EXEC is ignored. Poison spreads along rows of A, columns of B and elements of C.

Hardware sums in groups and rounds between them (measured by MMA-Sim, arXiv 2511.10909). CDNA2, which flushes denormals
of f16 and bf16 operands and results (`archs`), also flushes each product and partial sum. Results equal those of
hardware only if every partial sum is exact and none is denormal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.alu.curves import flushed
from convgen.backends.amdgpu.sim.alu.operands import check_tuple, constant_bits
from convgen.backends.amdgpu.sim.decode import EXEC, Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.hazards import SGEMM_KIND, Consumes, Produces
from convgen.backends.amdgpu.sim.mfma_table import BITS, F8F6F4_FORMATS, MATRIX_ROWS, MatrixRow
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.numbers import HALF, NARROW
from convgen.backends.sim.wave_arrays import Array, Bools, any_along

MODIFIERS = frozenset("cbsz abid blgp neg op_sel op_sel_hi".split())
#: Lane permutations of B by blgp (CDNA2 ISA, "VOP3P-MAI"): broadcasts of a half or a quarter, rotation by 16.
_LANE = np.arange(64)
BLGP_LANES = {
    1: _LANE % 32,
    2: _LANE % 32 + 32,
    3: (_LANE + 16) % 64,
    **{4 + quarter: _LANE % 16 + 16 * quarter for quarter in range(4)},
}
with np.errstate(invalid="ignore"):  # signalling NaNs
    _HALF64 = HALF.astype(np.float64)
    _BF16_64 = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
#: Numbers of the 16-bit types by bits, with denormals kept and with denormals as 0.
_NARROW_64 = {"f16": _HALF64, "bf16": _BF16_64}
_FLUSHED_64 = {
    "f16": np.where(np.abs(_HALF64) < 2.0**-14, 0.0, _HALF64),
    "bf16": np.where(np.abs(_BF16_64) < 2.0**-126, 0.0, _BF16_64),
}


#: Numbers of E8M0 by bits: powers of two, and NaN (OCP Microscaling Formats 1.0, section 5.4.1).
_E8M0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)


def _decode_xf32(words: Array) -> Array:
    """xf32 keeps ten bits of mantissa and drops the others.

    The ISA manuals do not say how it rounds; MMA-Sim (arXiv 2511.10909) measured truncation on CDNA3.
    """
    nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, words, words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def decoded(words: Array, kind: str, fp8: str, *, flush: bool) -> Array:
    """Decode consecutive words of the last axis, low bits first, into f64 numbers."""
    if kind in _NARROW_64:
        return (_FLUSHED_64 if flush else _NARROW_64)[kind].take(words.view(np.uint16))
    if kind == "f32":
        return words.view(np.float32).astype(np.float64)
    if kind == "xf32":
        return _decode_xf32(words)
    if kind == "f64":
        return words.view(np.float64)
    if kind == "i8":
        return words.view(np.int8).astype(np.float64)
    name = kind if kind in NARROW else f"{kind}_{fp8}"
    bits = 6 if name in ("fp6", "bf6") else 4 if name == "fp4" else 8
    return NARROW[name].take(_bit_fields(words, bits)).astype(np.float64)


def _bit_fields(words: Array, bits: int) -> Array:
    """Split the words of the last axis into `bits`-wide fields, low bits first; 32 fields fill `bits` words."""
    as_bytes = words.view(np.uint8)
    if bits == 8:
        return as_bytes
    flags = np.unpackbits(as_bytes, axis=-1, bitorder="little")
    fields = flags.reshape(*words.shape[:-1], -1, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    result: Array = (fields * weights).sum(axis=-1).astype(np.uint8)
    return result


def operand_rows(words: Array, side: int, blocks: int, *, split: bool) -> Array:
    """[registers, waves, lanes] to [waves, blocks, side, words of a row of K]; B's columns are its rows here.

    `split` is the f8f6f4 layout of 8-bit operands, whose lane holds 16 elements of each half of K.
    """
    registers, waves, _ = words.shape
    groups = 64 // (side * blocks)
    if split:
        halves = words.reshape(2, registers // 2, waves, groups, side)
        return np.ascontiguousarray(halves.transpose(2, 4, 0, 3, 1)).reshape(waves, 1, side, -1)
    spread = words.reshape(registers, waves, groups, blocks, side)
    return np.ascontiguousarray(spread.transpose(1, 3, 4, 2, 0)).reshape(waves, blocks, side, -1)


def _result_layout(row: MatrixRow) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how D lies in registers: a shape of [blocks, M, N] with M split, and the order of its axes.

    Axis 0 of the order is the wave; the order lists register axes, the wave, and lane axes.
    """
    table = {
        (16, False): ((row.blocks, 4, 4, 16), (1, 3, 0, 2, 4)),
        (32, False): ((row.blocks, 4, 2, 4, 32), (1, 2, 4, 0, 3, 5)),
        (4, False): ((16, 4, 4), (2, 0, 1, 3)),
        (16, True): ((1, 4, 4, 16), (2, 1, 0, 3, 4)),
        (4, True): ((4, 4, 4), (0, 2, 1, 3)),
    }
    return table[row.m, row.result == "f64"]


class ResultLayout:
    """Layout of C and D: converts between matrices [waves, blocks, M, N] and [registers, waves, lanes]."""

    def __init__(self, row: MatrixRow) -> None:
        self.row = row
        self.shape, self.order = _result_layout(row)
        self.registers = row.m * row.n * row.blocks // 64

    def to_registers(self, matrix: Array) -> Array:
        waves = len(matrix)
        moved = self.ordered(matrix)
        if self.row.m == 4 and self.row.result == "f64":
            return moved.reshape(1, waves, 64)
        return moved.reshape(self.registers, waves, 64)

    def ordered(self, matrix: Array) -> Array:
        """View a matrix [waves, blocks, M, N] with its parts in the order of the registers."""
        return matrix.reshape(len(matrix), *self.shape).transpose(self.order)

    def parts(self, registers: Array) -> Array:
        """View registers [registers, waves, lanes] in the shape that `ordered` returns."""
        waves = registers.shape[1]
        return registers.reshape([waves if axis == 0 else self.shape[axis - 1] for axis in self.order])


def compile_mfma(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a dense matrix instruction; None for other mnemonics."""
    row = matrix_row(instruction, context, "v_mfma_", MATRIX_ROWS)
    return None if row is None else Matrix(instruction, context, row).step()


def matrix_row(
    instruction: Instruction, context: Context, prefix: str, rows: Mapping[str, Mapping[str, MatrixRow]]
) -> MatrixRow | None:
    """Return the table row of an instruction whose mnemonic begins with `prefix`; None for other mnemonics.

    Raises Unsupported for an instruction that the architecture lacks, and for modifiers of other instructions.
    """
    if not instruction.name.startswith(prefix):
        return None
    row = rows[context.arch.name].get(instruction.name)
    if row is None:
        raise unsupported(instruction, f"no such matrix instruction on {context.arch.name}")
    require_plain(instruction, MODIFIERS)
    return row


class Matrix:
    """One matrix instruction being compiled."""

    def __init__(self, instruction: Instruction, context: Context, row: MatrixRow) -> None:
        self.instruction, self.context, self.row = instruction, context, row
        self.d, self.a, self.b, self.c = instruction.operands[:4]
        self.scales = instruction.operands[4:6]
        self.steering: tuple[Operand, ...] = self.scales  #: further sources: scales of A and B, or sparse indices
        for operand in instruction.operands:
            if operand.is_register:
                check_tuple(operand, operand.count, context)
        self.layout = ResultLayout(row)
        self.cbsz, self.abid, self.blgp = (instruction.number(key) for key in ("cbsz", "abid", "blgp"))
        self.a_type, self.b_type = row.a_type, row.b_type
        self.passes = row.passes
        self.flush = row.a_type in context.arch.flushes_matrices
        self.fp8 = "fnuz" if context.arch.fp8_finite_nuz else "ocp"
        if row.a_type == "f8f6f4":
            self.a_type, a_bits = F8F6F4_FORMATS[self.cbsz]
            self.b_type, b_bits = F8F6F4_FORMATS[self.blgp]
            self.passes = row.passes if 8 in (a_bits, b_bits) else row.passes // 2
            self.cbsz = self.blgp = 0
        self.negate = instruction.bits("neg", 3)
        self._check_broadcast()
        self._check_shapes()

    def _check_broadcast(self) -> None:
        """Report modifiers that are not defined for this instruction, and ignore them.

        Blocks of A are broadcast among 2**cbsz of the instruction's blocks (CDNA3 ISA, "Broadcasting Values"); lanes
        of B are permuted in instructions of several blocks and on CDNA2; f64 has neither.
        """
        wide, faults = self.row.result == "f64", self.context.faults
        if 1 << self.cbsz > (1 if wide else self.row.blocks) or self.abid >= 1 << self.cbsz:
            faults.append(("encoding", f"cbsz:{self.cbsz} abid:{self.abid} with {self.row.blocks} blocks of A"))
            self.cbsz = self.abid = 0
        if self.blgp and (wide or (self.row.blocks == 1 and not self.context.arch.permutes_single_blocks)):
            faults.append(("encoding", f"blgp:{self.blgp} is not defined for this instruction"))
            self.blgp = 0

    def _check_shapes(self) -> None:
        if self.d.count != self.row.result_registers or not self.d.is_vector:
            raise unsupported(self.instruction, f"{self.row.result_registers} result registers are wanted")
        faults, bits = self.context.faults, self.context.bits
        if self.c.is_vector and self.c.kind != self.d.kind:
            faults.append(("encoding", "C and D must be in the same half of the register file"))
        # LLVM, VOP3PInstructions.td, NoDstOverlap: results of more than 128 bits are written while sources are read.
        # For C the assembler refuses it; for A and B, which are read first, LLVM's comment says that the constraint is
        # stricter than the hardware.
        if self.d.count > 4:
            if bits(self.d) & (bits(self.a) | bits(self.b)):
                faults.append(("matrix-overlap", "D overlaps A or B"))
            if bits(self.d) != bits(self.c) and bits(self.d) & bits(self.c):
                faults.append(("encoding", "D overlaps C without being C"))

    # -- gathering ----------------------------------------------------------------------------------------------------

    def _gather(self, operand: Operand, kind: str, side: int, lanes: Array | None) -> Callable[[WaveGroup], Array]:
        """Return a function that decodes an operand to numbers [waves, blocks, side, K].

        The group keeps the result until one of the operand's registers is written.
        """
        first, count, bits = self.context.vector(operand), operand.count, self.context.bits(operand)
        blocks, fp8, flush, transposed = self.row.blocks, self.fp8, self.flush, operand is self.b
        split = self.row.a_type == "f8f6f4" and BITS.get(kind.partition("_")[0]) == 8
        key = (first, count, kind, side, blocks, transposed, split, self.blgp if transposed else 0)

        def gather(g: WaveGroup) -> Array:
            kept = g.matrices.get(key)
            if kept is not None:
                return kept[1]
            words = g.v[first : first + count]
            rows = operand_rows(words if lanes is None else words[:, :, lanes], side, blocks, split=split)
            matrix = decoded(rows, kind, fp8, flush=flush)
            if transposed:
                matrix = np.ascontiguousarray(matrix.swapaxes(-1, -2))
            g.matrices[key] = (bits, matrix)
            g.matrix_bits |= bits
            return matrix

        return gather

    def _gather_a(self) -> Callable[[WaveGroup], Array]:
        gather = self._gather(self.a, self.a_type, self.row.m, None)
        if not self.cbsz:
            return gather
        source = [(block >> self.cbsz << self.cbsz) + self.abid for block in range(self.row.blocks)]
        return lambda g: gather(g)[:, source]

    def _gather_b(self) -> Callable[[WaveGroup], Array]:
        """Return a function that decodes B to [waves, blocks, K, N]."""
        return self._gather(self.b, self.b_type, self.row.n, BLGP_LANES[self.blgp] if self.blgp else None)

    def _accumulator(self) -> Callable[[WaveGroup], Array]:
        """Return a function that gives C as numbers [registers, waves, lanes], or as a constant."""
        row, c = self.row, self.c
        if not c.is_vector:
            kind = row.result
            bits = constant_bits(c, kind, self.instruction)
            raw = np.asarray(np.uint64(bits) if kind == "f64" else np.uint32(bits))
            number = raw.view({"f64": np.float64, "f32": np.float32, "i32": np.int32}[kind]).astype(np.float64)
            return lambda g: number
        first, count = self.context.vector(c), c.count
        if row.result == "f64":

            def pairs(g: WaveGroup) -> Array:
                words = np.stack((g.v[first : first + count : 2], g.v[first + 1 : first + count : 2]), axis=-1)
                return words.view(np.float64)[..., 0]

            return pairs
        view = np.float32 if row.result == "f32" else np.int32
        return lambda g: g.v[first : first + count].view(view)

    # -- executing ----------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        reads = self.context.bits(self.a, self.b, self.c, *self.steering)
        writes = self.context.bits(self.d)
        produces, consumes = self._hazards()
        run = self._with_poison(self._run(), reads | writes)
        return Step(self.instruction, "mfma", run, reads, writes, produces, consumes)

    def _run(self) -> Run:
        """Return the function that adds the product to C, rounds to the type of D, and writes D."""
        layout, product, accumulator = self.layout, self._product(), self._accumulator()
        first = self.context.vector(self.d)
        end = first + self.d.count
        signs = [-1.0 if negative else 1.0 for negative in self.negate]

        def add_f64(g: WaveGroup) -> None:
            total = signs[0] * signs[1] * layout.to_registers(product(g)) + signs[2] * accumulator(g)
            words = np.ascontiguousarray(total).view(np.uint32).reshape(*total.shape, 2)
            g.v[first:end:2] = words[..., 0]
            g.v[first + 1 : end : 2] = words[..., 1]

        def add_i32(g: WaveGroup) -> None:
            total = layout.to_registers(product(g)).astype(np.int64) + accumulator(g).astype(np.int64)
            g.v[first:end] = total.astype(np.uint32)

        def add_flushed(g: WaveGroup) -> None:
            total = layout.to_registers(product(g)) + flushed(np.asarray(accumulator(g), np.float32), signed=False)
            g.v[first:end] = flushed(total.astype(np.float32)).view(np.uint32)

        def add_f32(g: WaveGroup) -> None:
            c = accumulator(g)
            addend = layout.parts(c) if c.ndim else c
            d = layout.parts(g.v[first:end].view(np.float32))
            np.add(layout.ordered(product(g)), addend, out=d, casting="same_kind")

        return {"f64": add_f64, "i32": add_i32}.get(self.row.result, add_flushed if self.flush else add_f32)

    def _product(self) -> Callable[[WaveGroup], Array]:
        """Return a function that multiplies A and B [waves, blocks, M, N]."""
        gather_a, gather_b, scale = self._gather_a(), self._gather_b(), self._scaling()

        def product(g: WaveGroup) -> Array:
            a, b = gather_a(g), gather_b(g)
            result: Array = np.matmul(a, b) if scale is None else np.matmul(*scale(g, a, b))
            return result

        return product

    def _scaling(self) -> Callable[[WaveGroup, Array, Array], tuple[Array, Array]] | None:
        """Return the function that applies block scales: E8M0, one byte per lane, for row lane % M and 32 K.

        The 32 K are those of the matrix, wherever lanes hold them. op_sel and op_sel_hi have the low and the high bit
        of the byte's number (LLVM, tests of llvm.amdgcn.mfma.scale, which take it as one number a scale).
        """
        if not self.scales:
            return None
        low, high = self.instruction.bits("op_sel", 2), self.instruction.bits("op_sel_hi", 2)
        if any(not scale.is_vector for scale in self.scales):
            raise unsupported(self.instruction, "scales in vector registers are wanted")
        registers = [self.context.vector(scale) for scale in self.scales]
        shifts = [np.uint32(8 * (low[i] + 2 * high[i])) for i in range(2)]
        sides = (self.row.m, self.row.n)

        def scale(g: WaveGroup, a: Array, b: Array) -> tuple[Array, Array]:
            scaled = []
            for register, shift, side in zip(registers, shifts, sides, strict=True):
                factors = _E8M0.take((g.v[register] >> shift) & np.uint32(0xFF))
                by_rows = factors.reshape(g.count, 64 // side, side).swapaxes(1, 2)
                scaled.append(np.repeat(by_rows, 32, axis=2)[:, None])
            return a * scaled[0], b * scaled[1].swapaxes(-1, -2)

        return scale

    def _with_poison(self, run: Run, touched: int) -> Run:
        """Return `run` followed by marking undefined results, if any register that it touches may be undefined."""
        first = self.context.vector(self.d)
        words = 2 if self.row.result == "f64" else 1
        c_registers = self.context.registers(self.c) if self.c.is_vector else ()

        def poisoned(g: WaveGroup) -> None:
            if not g.poison & touched:
                run(g)
                return
            rows = self.layout.to_registers(self._spoiled(g)).repeat(words, axis=0)
            for row, register in zip(rows, c_registers, strict=False):
                bad = g.vector_poison(register)
                if bad is not None:
                    row |= bad
            run(g)
            for register, row in enumerate(rows, first):
                if row.any():
                    g.vp[register] = row
                    g.poison |= 1 << register
                else:
                    g.poison &= ~(1 << register)

        return poisoned

    def _spoiled(self, g: WaveGroup) -> Bools:
        """Return the elements of D whose row of A or column of B is undefined [waves, blocks, M, N]."""
        row = self.row
        spoiled: Bools = np.zeros((g.count, row.blocks, row.m, row.n), np.bool_)
        sources = ((self.a, row.m), (self.b, row.n), *zip(self.steering, (row.m, row.n), strict=False))
        for number, (operand, side) in enumerate(sources):
            bad = g.lanes_poison(self.context.registers(operand)) if operand.is_vector else None
            if bad is None:
                continue
            lines = any_along(operand_rows(bad[None], side, row.blocks, split=False), -1)
            if self.cbsz or self.blgp:  # lanes are permuted
                lines = np.broadcast_to(any_along(lines.reshape(g.count, -1), 1)[:, None, None], lines.shape)
            spoiled |= lines[..., None] if number % 2 == 0 else lines[:, :, None, :]
        return spoiled

    def _hazards(self) -> tuple[tuple[Produces, ...], tuple[Consumes, ...]]:
        bits = self.context.bits
        kind = self.row.hazard_class
        if kind == "sgemm":
            kind = SGEMM_KIND[self.context.arch.name]
        produces = [Produces(kind, bits(self.d), self.passes)]
        if kind == "xdl":
            produces.append(Produces("xdl_c", bits(self.c), self.passes))
        inputs = bits(self.a, self.b, *self.steering)
        c_role = "c64" if self.row.result == "f64" else "c"
        consumes = [Consumes("ab", inputs), Consumes("exec_mfma", scalar_bits(EXEC, 2))]
        if self.c.is_vector:
            consumes.append(Consumes(c_role, bits(self.c), self.passes))
        return tuple(produces), tuple(consumes)
