"""Delete waits and barriers of a kernel one at a time, and find those whose deletion the simulator does not notice.

Two kinds are skipped because their deletion loses nothing: a wait that only executes when none of the operations that
it waits for is outstanding; and a barrier for which, up to the neighbouring barriers, the workgroup accesses local
memory on at most one side, and device memory on at most one side (a barrier orders accesses before and after it: CDNA3
ISA 4.3).
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from io import BytesIO

from elftools.elf.elffile import ELFFile

from convgen.backends.amdgpu.sim import CodeObject, Halt
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.waits import allowed
from convgen.backends.simulation import Scrutiny
from convgen.ir.error import UserError

S_NOP_0 = 0xBF800000
#: Runs a code object under scrutiny; gives whether anything was found or is wrong.
Noticed = Callable[[bytes, Scrutiny], bool]

_DEVICE = ("buffer_", "flat_", "global_", "s_atomic", "s_buffer", "s_load", "s_scratch", "s_store", "scratch_")
_LANES = ("ds_bpermute_b32", "ds_nop", "ds_permute_b32", "ds_swizzle_b32")  #: move data between lanes, without memory


def patched(code: bytes, address: int, word: int) -> bytes:
    """The code object with one instruction word replaced."""
    text = ELFFile(BytesIO(code)).get_section_by_name(".text")
    assert text is not None
    at = address - text["sh_addr"] + text["sh_offset"]
    return code[:at] + struct.pack("<I", word) + code[at + 4 :]


def accessed(instruction: Instruction) -> set[str]:
    """The memories that an instruction accesses, or may."""
    name = instruction.name
    local = name.startswith("ds_") and name not in _LANES
    direct = "lds" in instruction.modifiers or "_lds_" in name or name.startswith("flat_")
    return ({"local"} if local or direct else set()) | ({"device"} if name.startswith(_DEVICE) else set())


class _Barriers:
    """The barriers at which waves arrived together, and the memories that the workgroup accessed between them."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[int, int]] = Counter()  # by workgroup and wave: its meetings so far
        self.places: dict[int, dict[int, set[Instruction]]] = defaultdict(lambda: defaultdict(set))
        self.accesses: dict[tuple[int, int], set[str]] = defaultdict(set)  # by workgroup and the meeting that follows

    def note(self, halt: Halt, instruction: Instruction, accesses: set[str]) -> None:
        """Record that waves are about to execute an instruction that accesses these memories."""
        arrives = instruction.name == "s_barrier"
        if not accesses and not arrives:
            return
        for wave in zip(map(int, halt.workgroups), map(int, halt.waves), strict=True):
            workgroup, meeting = wave[0], self.passed[wave]
            self.accesses[workgroup, meeting] |= accesses
            if arrives:
                self.places[workgroup][meeting].add(instruction)
                self.passed[wave] += 1

    def ordering(self) -> set[Instruction]:
        """The barriers without which accesses of one memory would run together."""
        return {
            barrier
            for workgroup, places in self.places.items()
            for barrier in set[Instruction]().union(*places.values())
            if self._orders(barrier, workgroup)
        }

    def _orders(self, barrier: Instruction, workgroup: int) -> bool:
        together = [Counter(self.accesses[workgroup, 0])]
        for meeting, places in sorted(self.places[workgroup].items()):
            behind = self.accesses[workgroup, meeting + 1]
            if barrier in places:
                together[-1].update(behind)
            else:
                together.append(Counter(behind))
        return any(stretches > 1 for some in together for stretches in some.values())


def _awaited(halt: Halt, wait: Instruction) -> list[Instruction]:
    """Return the outstanding operations that a wait covers, and possibly more of those that lgkmcnt counts."""
    (vm, lgkm), (of_vm, of_lgkm) = allowed(wait), halt.outstanding
    done = halt.group.vm[: max(of_vm - vm, 0)] + (halt.group.lgkm if of_lgkm > lgkm else [])
    return [pending.step.instruction for pending in done]


def executed(code: bytes, kernel: str, noticed: Noticed) -> list[Instruction]:
    """The waits behind something outstanding and the barriers between accesses that a run executes, by address.

    Raises UserError where the whole kernel is noticed: so would be all of its deletions.
    """
    info = CodeObject.load(code).kernel(kernel)
    at = {i.address - info.descriptor.entry: i for i in info.instructions}
    waits: set[Instruction] = set()
    barriers = _Barriers()

    def watch(halt: Halt) -> None:
        instruction = at[halt.pc]
        accesses = accessed(instruction)
        if instruction.name == "s_waitcnt" and (awaited := _awaited(halt, instruction)):
            waits.add(instruction)
            accesses = set[str]().union(*map(accessed, awaited))  # which last until now
        barriers.note(halt, instruction, accesses)

    if noticed(code, Scrutiny(watch=watch)):
        raise UserError(f"given {kernel}, of which something is noticed as it is, wanted a kernel in order")
    return sorted(waits | barriers.ordering(), key=lambda i: i.address)


def deletions(code: bytes, kernel: str, noticed: Noticed) -> Iterator[tuple[Instruction, bool]]:
    """Each such instruction, and whether a run without it is noticed. Raises UserError."""
    for instruction in executed(code, kernel, noticed):
        yield instruction, noticed(patched(code, instruction.address, S_NOP_0), Scrutiny())
