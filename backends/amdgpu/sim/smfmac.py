"""Sparse matrix instructions: A stores two of each four elements along K (CDNA3 ISA 7.4, "Sparse Matrix")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.mfma import Matrix, decoded, matrix_row, operand_rows
from convgen.backends.amdgpu.sim.mfma_table import SPARSE_ROWS, MatrixRow
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array


def compile_smfmac(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a sparse matrix instruction; None for other mnemonics."""
    row = matrix_row(instruction, context, "v_smfmac_", SPARSE_ROWS)
    return None if row is None else _Sparse(instruction, context, row).step()


class _Sparse(Matrix):
    """One sparse instruction being compiled. SrcC holds the positions of A's elements; D is both C and result.

    With CBSZ 0, ABID selects one of the sets of positions in the register.
    """

    def __init__(self, instruction: Instruction, context: Context, row: MatrixRow) -> None:
        super().__init__(instruction, context, row)
        self.index, self.c = self.c, self.d
        if not self.index.is_vector or self.index.count != 1:
            raise unsupported(instruction, "indices in a vector register are wanted")
        self.steering = (self.index,)
        self._check_overlap()

    def _check_broadcast(self) -> None:
        """Report modifiers that are not defined for this instruction, and ignore them."""
        self.set, self.cbsz, self.abid = (0 if self.cbsz else self.abid), 0, 0
        quads = self.row.m * self.row.k // 64 // 4
        if self.set >= 32 // (4 * quads) or self.blgp:
            self.context.faults.append(
                ("encoding", f"abid:{self.set} blgp:{self.blgp} is not defined for this instruction")
            )
            self.set = self.blgp = 0

    def _check_shapes(self) -> None:
        if self.d.count != self.row.result_registers or not self.d.is_vector:
            raise unsupported(self.instruction, f"{self.row.result_registers} result registers are wanted")

    def _check_overlap(self) -> None:
        """Report a result that overlaps sources still being read (LLVM, VOP3PInstructions.td, earlyclobber)."""
        bits = self.context.bits
        if self.d.count > 4 and bits(self.d) & (bits(self.a) | bits(self.b) | bits(self.index)):
            self.context.faults.append(("matrix-overlap", "D overlaps A, B or the indices"))

    def _gather_a(self) -> Callable[[WaveGroup], Array]:
        row, context = self.row, self.context
        first, count, index = context.vector(self.a), self.a.count, context.vector(self.index)
        groups = 64 // row.m
        quads = row.k // groups // 4  #: groups of four elements per lane
        shifts = np.arange(quads, dtype=np.uint32) * np.uint32(4) + np.uint32(self.set * 4 * quads)

        def gather(g: WaveGroup) -> Array:
            rows = operand_rows(g.v[first : first + count], row.m, 1, split=False)
            present = decoded(rows, self.a_type, self.fp8, flush=self.flush).reshape(g.count, row.m, groups, quads, 2)
            words = g.v[index].reshape(g.count, groups, row.m).swapaxes(1, 2)
            places = words[..., None] >> shifts & np.uint32(15)
            dense = np.zeros((*present.shape[:-1], 4))
            for number in (0, 1):
                place = places >> np.uint32(2 * number) & np.uint32(3)
                for at in range(4):
                    dense[..., at] += np.where(place == at, present[..., number], 0.0)
            return dense.reshape(g.count, 1, row.m, row.k)

        return gather
