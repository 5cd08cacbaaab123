"""The scoreboard on small functions made by hand: which waits stand where, and which do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from convgen.backends.intel.isa import (
    OPCODES,
    Literal,
    Null,
    Special,
    XeInstruction,
    block_message,
    dpas,
    message,
    region,
)
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.scoreboard import Scoreboard
from convgen.backends.intel.tables import GENERATIONS
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Access, BasicBlock, Function, Operand, Reg, VirtualRegister

BOTH = pytest.mark.parametrize("target", ["xehpc", "xehpg"])
DPAS = dpas("dpas.8x8", 2)


class Registers:
    """r[3] is one register that stands at 3, r[8, 4] a tuple from 8 on; f[1] a flag."""

    def __init__(self) -> None:
        self.base: dict[VirtualRegister, int] = {}
        self.known: dict[tuple[str, int], Reg] = {}

    def __call__(self, at: int, count: int = 1, bank: str = "v") -> Reg:
        if (bank, at) not in self.known:
            v = VirtualRegister(len(self.base) + 1, bank, count, f"{bank}{at}")
            self.base[v], self.known[bank, at] = at, Reg(v, 0, count)
        return self.known[bank, at]


class Code:
    """Blocks of instructions on placed registers."""

    def __init__(self) -> None:
        self.r = Registers()
        self.blocks = [BasicBlock("entry")]

    def add(self, made: XeInstruction) -> None:
        self.blocks[-1].instructions.append(made)

    def block(self, label: str) -> None:
        self.blocks.append(BasicBlock(label))

    def alu(self, to: int, *sources: int, type: str = "ud", flag: int | None = None) -> None:
        src = tuple(region(self.r(s), type) for s in sources) or (Literal(1, type),)
        held = None if flag is None else self.r(flag, bank="f")
        dst: Operand = region(self.r(to), type) if flag is None else Null(type)
        condition = "" if flag is None else "lt"
        self.add(XeInstruction(OPCODES["add"], (dst,), src, condition=condition, flag=held))

    def math(self, to: int, source: int) -> None:
        self.add(XeInstruction(OPCODES["math.exp"], (region(self.r(to), "f"),), (region(self.r(source), "f"),)))

    def load(self, to: int, address: int) -> None:
        self.add(XeInstruction(message("load", "ugm", 4), (self.r(to),), (self.r(address),)))

    def store(self, address: int, value: int) -> None:
        self.add(XeInstruction(message("store", "ugm", 4), (), (self.r(address), self.r(value))))

    def local(self, kind: str, at: int, name: str = "tile") -> None:
        """A block of local memory; register 100 holds its address."""
        row = block_message(kind, 64)
        access = Access("shared", name, 0, row.stores)
        dst, src = ((), (self.r(100), self.r(at))) if row.stores else ((self.r(at),), (self.r(100),))
        self.add(XeInstruction(row, dst, src, access=access))

    def fence(self, response: int) -> None:
        self.add(XeInstruction(OPCODES["fence"], (self.r(response),), (self.r(101),)))

    def signal(self) -> None:
        self.add(XeInstruction(OPCODES["signal"], (), (self.r(101),)))

    def dpas(self, acc: int, a: int, b: int) -> None:
        c = region(self.r(acc, 8), "f")
        self.add(XeInstruction(DPAS, (c,), (c, region(self.r(a), "hf"), region(self.r(b), "hf"))))

    def mode(self) -> None:
        control = Special("cr0", "ud")
        self.add(XeInstruction(OPCODES["or"], (control,), (control, Literal(0x4C0, "uw"))))

    def branch(self, target: str, flag: int | None = None) -> None:
        predicate = None if flag is None else self.r(flag, bank="f")
        self.add(XeInstruction(OPCODES["jmpi"], predicate=predicate, target=target))

    def waits(self, target: str, tokens: int = 16) -> list[str]:
        """Each instruction's waits, behind those of the syncs before it."""
        g = GENERATIONS[target]
        function = Function("f", self.blocks)
        function = Scoreboard(function, Physical(Allocation(self.r.base, {}), g.lanes, 1), g, tokens).run()
        return [line for b in function.blocks for line in lines(b)]


def lines(block: BasicBlock) -> Sequence[str]:
    out, syncs = [], []
    for i in block.instructions:
        assert isinstance(i, XeInstruction)
        own = ",".join(i.annotations)
        if i.op.name.startswith("sync."):
            mask = [f"{i.op.name} {o.value:#x}" for o in i.src if isinstance(o, Literal)]
            syncs.append(own or mask[0])
        else:
            out.append("; ".join([*syncs, own] if own else syncs))
            syncs = []
    return out


# ---------------------------------------------------------------- pipes


@BOTH
def test_distances_count_the_pipes_own_instructions(target: str) -> None:
    c = Code()
    c.alu(1)
    c.alu(2, type="f")
    c.alu(3, type="f")
    c.alu(4, 1)  # the last of the integer pipe
    c.alu(5, 2)  # written by the float pipe, second last
    c.alu(6, 4)
    assert c.waits(target) == ["", "", "", "I@1", "F@2", "I@2"]


@BOTH
def test_what_has_been_waited_for_is_done(target: str) -> None:
    c = Code()
    c.alu(1)
    c.alu(2)
    c.alu(3, 2)
    c.alu(4, 1, 2)
    assert c.waits(target) == ["", "", "I@1", ""]


@BOTH
@pytest.mark.parametrize("seen", [("ud", 0, 2), ("ud", 1, 2), ("uw", 0, 2), ("uw", 1, 2), ("ud", 0, 1)], ids=str)
@pytest.mark.parametrize("written", [("ud", 0, 2), ("ud", 1, 2), ("uw", 0, 2), ("uw", 1, 2)], ids=str)
def test_what_has_other_halves_of_dwords_or_qwords_is_not_waited_for(
    target: str, written: tuple[str, int, int], seen: tuple[str, int, int]
) -> None:
    """Words of a dword, and dwords of a qword, meet in half of each: only words of both places, or dwords, do not."""
    c, lanes = Code(), GENERATIONS[target].lanes
    pair = c.r(10, 2)
    for dst, src in (region(pair, *written), region(c.r(5), "ud")), (region(c.r(6), seen[0]), region(pair, *seen)):
        c.add(XeInstruction(OPCODES["mov"], (dst,), (src,), lanes=lanes))
    apart = written[0] == seen[0] and written[2] == seen[2] and written[1] != seen[1]
    assert bool(c.waits(target)[1]) != apart


@BOTH
def test_distances_end_at_seven_and_old_results_are_done(target: str) -> None:
    for between, wanted in ((5, "I@6"), (6, "I@7"), (8, "I@7"), (10, "")):
        c = Code()
        c.alu(1)
        for n in range(between):
            c.alu(20 + n)
        c.alu(2, 1)
        assert c.waits(target)[-1] == wanted, between


@BOTH
def test_two_pipes_are_waited_for_at_once(target: str) -> None:
    c = Code()
    c.alu(1)
    c.alu(2, type="f")
    c.alu(9, type="f")
    c.alu(3, 1, 2)
    c.alu(4, 9)  # which is done too, since the one distance holds for each pipe
    assert c.waits(target)[-2:] == ["A@1", ""]


@BOTH
def test_64_bit_integers_have_a_pipe_where_the_others_do_not_take_them(target: str) -> None:
    c = Code()
    c.alu(1, type="q")
    c.alu(2)
    c.alu(3, 1)
    assert c.waits(target)[-1] == ("I@2" if target == "xehpc" else "L@1")


def test_math_functions_have_a_pipe_or_a_token() -> None:
    """Beside its token an instruction waits by distance for its own pipe only."""
    c = Code()
    c.alu(1, type="f")
    c.math(2, 1)
    c.math(3, 2)
    c.math(4, 10)
    c.alu(5, 3, 4, type="f")
    c.alu(6)
    c.math(7, 6)
    assert c.waits("xehpc") == ["", "F@1", "M@1", "", "M@1", "", "I@1"]
    assert c.waits("xehpg") == ["", "@1,$4", "$4.dst; $5", "$6", "sync.allwr 0x60", "", "I@1; $7"]


def test_overwriting_the_source_of_a_math_function_waits_for_it() -> None:
    c = Code()
    c.math(2, 1)
    c.alu(1)
    assert c.waits("xehpc") == ["", "M@1"]
    assert c.waits("xehpg") == ["$4", "$4.src"]


@BOTH
def test_overwriting_waits_for_another_pipe_only(target: str) -> None:
    c = Code()
    c.alu(1, 10)
    c.alu(10)  # read by the same pipe: in order
    c.alu(2, 11, type="f")
    c.alu(11)  # read by another
    c.alu(2)  # written by another
    assert c.waits(target) == ["", "", "", "F@1", ""]
    c = Code()
    c.alu(2, type="f")
    c.alu(2)
    assert c.waits(target) == ["", "F@1"]


@BOTH
def test_flags_within_a_pipe_and_for_branches_are_interlocked(target: str) -> None:
    c = Code()
    c.alu(0, 1, flag=0)
    c.branch("end", 0)
    c.block("end")
    assert c.waits(target) == ["", ""]
    c = Code()
    c.alu(0, 1, type="f", flag=0)
    c.branch("end", 0)
    c.block("end")
    assert c.waits(target) == ["", "F@1"]


@BOTH
def test_the_control_register_stops_everything(target: str) -> None:
    """Who writes it waits for all pipes, and so does the next; then all is as before."""
    c = Code()
    c.alu(1)
    c.mode()
    c.alu(2, type="f")
    c.alu(3, type="f")
    assert c.waits(target) == ["", "A@1", "A@1", ""]


# ---------------------------------------------------------------- tokens


@BOTH
def test_loads_are_waited_for_by_their_token(target: str) -> None:
    c = Code()
    c.load(1, 10)
    c.load(2, 10)
    c.alu(3, 2)
    c.alu(4, 1)
    c.alu(5, 1)
    assert c.waits(target) == ["$4", "$5", "$5.dst", "$4.dst", ""]


@BOTH
def test_what_does_not_fit_an_instruction_stands_before_it(target: str) -> None:
    c = Code()
    c.load(1, 10)
    c.load(2, 10)
    c.alu(3)
    c.alu(4, 1, 3)
    c.alu(5, 2, 4)
    assert c.waits(target)[-2:] == ["$4.dst; I@1", "$5.dst; I@1"]
    c = Code()
    for n in range(3):
        c.load(n, 10)
    c.alu(4, 0, 2)
    assert c.waits(target)[-1] == "sync.allwr 0x50"


@BOTH
def test_a_send_waits_for_its_operands(target: str) -> None:
    c = Code()
    c.alu(10)
    c.load(1, 10)
    c.store(10, 1)
    distance = "I@1" if target == "xehpc" else "A@1"
    assert c.waits(target) == ["", f"{distance},$4", "$4.dst; $5"]


@pytest.mark.parametrize(("target", "behind"), [("xehpc", "F@1"), ("xehpg", "")])
def test_a_send_that_cannot_name_a_pipe_has_waited_for_all(target: str, behind: str) -> None:
    c = Code()
    c.alu(1, type="f")
    c.alu(2)
    c.load(3, 2)
    c.alu(4, 1)  # the load waits for the integer pipe alone where it can
    assert c.waits(target)[2:] == ["I@1,$4" if behind else "A@1,$4", behind]


def test_sources_of_a_send_are_safe_when_read_or_when_all_is_done() -> None:
    """The latter on Ponte Vecchio, whose sends may read them again."""
    found = {}
    for target in ("xehpc", "xehpg"):
        c = Code()
        c.store(10, 1)
        c.alu(1)
        c.load(2, 11)
        c.alu(11)
        found[target] = [c.waits(target)[n] for n in (1, 3)]
    assert found == {"xehpc": ["$4.dst", "$5.dst"], "xehpg": ["$4.src", "$5.src"]}


@BOTH
def test_matrix_sources_are_safe_when_read(target: str) -> None:
    c = Code()
    c.dpas(40, 1, 2)
    c.alu(1)
    assert c.waits(target) == ["$0", "$0.src"]


@BOTH
def test_a_load_into_what_an_instruction_reads_waits_for_it(target: str) -> None:
    c = Code()
    c.alu(2, 1, type="f")
    c.load(1, 10)
    assert c.waits(target)[-1] == ("F@1,$4" if target == "xehpc" else "A@1,$4")


@pytest.mark.parametrize("tokens", [16, 32])
def test_a_token_that_is_set_again_is_done(tokens: int) -> None:
    sends = tokens - 4
    c = Code()
    for n in range(sends + 1):
        c.load(n, 100)
    c.alu(60, 0)  # of the first load, whose token the last one has taken
    c.alu(61, 1)
    c.alu(62, sends)
    waits = c.waits("xehpc", tokens)
    assert waits[:sends] == [f"${4 + n}" for n in range(sends)]
    assert waits[sends:] == ["$4", "", "$5.dst", "$4.dst"]


@BOTH
def test_a_unit_reads_in_turn_what_it_overwrites(target: str) -> None:
    c = Code()
    c.load(1, 10)
    c.load(10, 11)
    assert c.waits(target) == ["$4", "$5"]
    c = Code()
    c.load(1, 10)
    c.local("load", 10)
    assert c.waits(target)[1].startswith("$4.")


def test_units_share_tokens_by_what_they_do_in_loops() -> None:
    """Of three tokens for messages two are of those to local memory."""
    c = Code()
    for n in range(4):
        c.load(20 + n, 10)
    c.block("loop")
    for n in range(2):
        c.local("load", n)
    c.alu(0, 5, flag=0)
    c.branch("loop", 0)
    c.block("end")
    assert c.waits("xehpc", tokens=7)[:6] == ["$4", "$4", "$4", "$4", "$5", "$6"]


@BOTH
def test_products_added_to_one_accumulator_keep_to_one_token(target: str) -> None:
    c = Code()
    for acc in (40, 48, 40, 48):
        c.dpas(acc, acc + 64, acc + 80)
    c.alu(3, type="f")
    c.dpas(56, 3, 2)
    c.alu(70, 40, type="f")
    assert c.waits(target) == ["$0", "$1", "$0", "$1", "", "F@1; $2", "$0.dst"]


@BOTH
def test_a_chain_waits_ahead_of_its_first(target: str) -> None:
    c = Code()
    c.load(72, 10)
    c.load(104, 10)
    for acc in (40, 48, 56):
        c.dpas(acc, 104, acc + 32)
    for acc in (40, 48):
        c.dpas(acc, 112, acc + 32)
    c.alu(70, 48, type="f")
    assert c.waits(target)[2:] == ["$4.dst; Atomic,$5.dst", "Atomic", "$0", "Atomic,$0.dst", "$0", "$0.dst"]


# ---------------------------------------------------------------- control flow


@BOTH
def test_a_loop_waits_for_its_last_turn(target: str) -> None:
    c = Code()
    c.alu(1)
    c.block("loop")
    c.alu(2, 1)  # written before the loop by an addition, in it by a load
    c.load(1, 10)
    c.alu(0, 5, flag=0)
    c.branch("loop", 0)
    c.block("end")
    c.alu(3, 1)
    entry, first, load, *_, after = c.waits(target)
    assert (entry, first, after) == ("", "$4.dst; I@1", "$4.dst")
    assert load == ("I@1,$4" if target == "xehpc" else "A@1,$4")


@BOTH
def test_a_distance_over_a_loop_is_the_shortest(target: str) -> None:
    c = Code()
    c.alu(1)
    for n in range(3):
        c.alu(20 + n)
    c.block("loop")
    c.alu(2, 1)
    c.alu(1)
    c.alu(0, 5, flag=0)
    c.branch("loop", 0)
    c.block("end")
    assert c.waits(target)[4] == "I@2"


@BOTH
def test_a_branch_around_joins_both_ways(target: str) -> None:
    c = Code()
    c.alu(0, 5, flag=0)
    c.branch("end", 0)
    c.block("then")
    c.load(1, 10)
    c.block("end")
    c.alu(2, 1)
    assert c.waits(target)[-1] == "$4.dst"


# ---------------------------------------------------------------- barriers


def overwritten(c: Code) -> None:
    c.local("store", 2)


def elsewhere(c: Code) -> None:
    c.local("store", 2, "other")


def behind_the_next(c: Code) -> None:
    c.signal()
    c.local("store", 2)


@pytest.mark.parametrize(("behind", "waits"), [(overwritten, True), (elsewhere, False), (behind_the_next, False)])
def test_a_barrier_waits_for_loads_of_what_is_overwritten(behind: Callable[[Code], None], waits: bool) -> None:
    """A thread that has signalled is past its loads, where others may store there next."""
    for kind in ("load", "store"):  # a store is seen to by the fence
        c = Code()
        c.local(kind, 1)
        c.signal()
        behind(c)
        assert ("$4.dst" in c.waits("xehpc")[1]) == (waits and kind == "load")


@pytest.mark.parametrize(("target", "waits"), [("xehpg", True), ("xehpc", True), ("xe2", False)])
def test_a_fence_does_not_stand_for_loads_that_it_may_overtake(target: str, waits: bool) -> None:
    """Others may overwrite what was loaded: the signal waits for the results, the fence by itself does not."""
    c = Code()
    c.local("load", 1)
    c.fence(9)
    c.signal()
    c.local("store", 2)
    load, fence, signal, _ = c.waits(target)
    assert load == "$4"
    assert fence == "$5"
    assert signal.startswith("sync.allwr 0x30" if waits else "$5.dst")


@pytest.mark.parametrize(("target", "waits"), [("xehpg", True), ("xehpc", True), ("xe2", False)])
@pytest.mark.parametrize("name", ["tile", "other"])
def test_a_store_does_not_overtake_loads_of_the_same_bytes(target: str, waits: bool, name: str) -> None:
    c = Code()
    c.local("load", 1)
    c.local("store", 2, name)
    assert ("$4.dst" in c.waits(target)[1]) == (waits and name == "tile")


def test_loads_that_are_there_cost_a_barrier_nothing() -> None:
    c = Code()
    c.local("load", 1)
    c.alu(3, 1)
    c.signal()
    c.local("store", 2)
    assert "dst" not in c.waits("xehpc")[2]
