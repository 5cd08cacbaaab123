"""Defects of DG2 and Ponte Vecchio are gone round, read from the text of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.intel.chains import chains
from convgen.backends.intel.isa import OPCODES, Literal, Null, Region, XeInstruction, dpas, region
from convgen.backends.intel.leads import lead_chains
from convgen.backends.intel.neighbours import separate_factors
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.sim import CodeObject
from convgen.backends.intel.sim.defects import defects_of
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.tables import GENERATIONS
from convgen.backends.intel.workarounds import settle_pipes
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Operand, Reg, VirtualRegister
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane, maximum
from convgen.ir.record import evolve
from convgen.ir.types import f16, s32, vector
from convgen.passes import pipeline
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests.backends.intel import kept

_MASKED_LOAD = re.compile(r"\((?:W&)?~?f\d\.\d\)\s+(?:load|atomic_\w+)\.\S+ \(\d+\|M0\)\s+r\d+")
_MATRIX = re.compile(r"dpasw?\.8x8 \(8\|M0\)\s+r\d+:\S+\s+(?:r\d+|null):\S+\s+r(\d+):")
_REFRESHED = re.compile(r"\s+mov \(8\|M0\)\s+r(\d+)\.0<1>:ud\s+r(\d+)\.0<1;1,0>:ud")


def stale(lines: Sequence[str]) -> Iterator[str]:
    """Matrix instructions of a block that may read a source 1 of before: nothing has written it since."""
    refreshed: set[str] | None = set()  # None once a matrix instruction has been seen to
    for line in lines:
        if (found := _REFRESHED.match(line)) and found[1] == found[2] and refreshed is not None:
            refreshed.add(found[1])
        elif (found := _MATRIX.search(line)) and refreshed is not None:
            if found[1] not in refreshed:
                yield line
            refreshed = None
        elif _MASKED_LOAD.match(line):
            refreshed = set()


@pytest.mark.parametrize(("target", "problem", "config"), kept.cases("xehpg"))
def test_no_matrix_instruction_reads_an_old_source_1(target: str, problem: str, config: str) -> None:
    for made, printed in kept.emitted(target, problem, config):
        blocks = [[line for line, _ in lines] for _, lines in kept.blocks(made, printed)]
        if any(_MASKED_LOAD.match(line) for lines in blocks for line in lines):
            assert not [line for lines in blocks for line in stale(lines)]
        else:
            assert "read anew" not in made.text


@pytest.mark.parametrize(("target", "follows"), [("xehpg", True), ("xehpc", True), ("xe2", False)])
def test_an_instruction_lies_behind_the_end(target: str, follows: bool) -> None:
    (problem, config), *_ = kept.rows(target)
    for made, _ in kept.emitted(target, problem, config):
        *_, last = made.text.splitlines()
        assert last.strip() == "nop" if follows else "EOT" in last


def ends(target: str, problem: str, config: str) -> Iterator[list[str]]:
    """Of each kernel the instructions ahead of the last message, without their comments."""
    made = driver.build(Conv.parse(problem, dir="BWD_W", dt="f16"), target, config)
    to = targets.get(target)
    for kernel in made.ir.kernels:
        lines = to.emit(pipeline.run(kernel, to.facts)).text.splitlines()
        (end,) = (n for n, line in enumerate(lines) if "EOT" in line)
        yield [line.partition("//")[0] for line in lines[end - 6 : end]]


_ADDED = "mb2ic32ih8oc32oh8kh3ph1"


@pytest.mark.parametrize(
    ("target", "mma", "fenced"), [("xehpg", "8x8x16", True), ("xehpc", "16x8x16", False), ("xe2", "16x8x16", False)]
)
def test_what_is_added_is_on_its_way_when_a_thread_ends(target: str, mma: str, fenced: bool) -> None:
    config = f"tile=32x32x16 waves=2x2 mma={mma} slots=2 slices=2 sum=last"
    for lines in ends(target, _ADDED, config):
        fences = [n for n, line in enumerate(lines) if "0x0210651F" in line]
        assert bool(fences) == fenced
        if fences:
            assert "mov (8|M0)" in "".join(lines[fences[0] + 1 :])  # reads the response


def test_pipes_settle_ahead_of_the_end_of_a_large_file() -> None:
    for size, registers, settles in ((8, 128, False), (80, 256, True)):
        k = KernelBuilder("k", width=8)
        x, y = (k.surface(k.buffer(name, s32, 8 * size)) for name in "xy")
        held = [k.global_load(f"v{n}", s32, x, Lane() * 4 + 32 * n) for n in range(size)]
        for n, value in enumerate(held):
            k.global_store(y, value, Lane() * 4 + 32 * n)
        to = targets.get("xehpg")
        text = to.emit(pipeline.run(k.done(), to.facts)).text
        assert f"//.grf_count {registers}" in text
        assert len(re.findall(r"csel \(4\|M0\) \(eq\)f0\.0", text)) == 2 * settles


def test_pipes_settle_where_instructions_stand_between_the_copy_of_r0_and_the_end() -> None:
    """The copy that the last message sends is found by its register; each `csel` reads r0, which the copy read."""
    r0, copy, other, last = (region(Reg(VirtualRegister(n, "v", 8, name), 0, 8), "ud") for n, name in enumerate("abcd"))

    def move(to: Region, source: Operand) -> XeInstruction:
        return XeInstruction(OPCODES["mov"], (to,), (source,), lanes=8)

    end = XeInstruction(OPCODES["eot"], (), (copy,), lanes=8)
    code: list[Instruction] = [move(last, other), move(copy, r0), move(other, Literal(0, "ud")), move(last, other), end]
    (block,) = settle_pipes(Function("f", [BasicBlock("b", code)])).blocks
    *before, first, second, sent = block.instructions
    assert (before, sent) == (code[:-1], end)
    assert [i.op.name for i in (first, second)] == ["csel", "csel"]
    assert {r.vreg.name for i in (first, second) for r in i.uses()} == {"a"}


@pytest.mark.parametrize(("target", "problem", "config"), kept.cases("xehpg"))
def test_the_simulator_misses_no_workaround(target: str, problem: str, config: str) -> None:
    """By the text of each kernel alone, in blocks that no data may reach, too."""
    to = targets.get(target)
    object_ = to.assemble(to.module([made for made, _ in kept.emitted(target, problem, config)]))
    if object_ is None:
        pytest.skip(f"no assembler ({to.assembler})")
    code = CodeObject.load(object_)
    for name, kernel in code.kernels.items():
        layout = Layout.of(code.platform, kernel.registers)
        assert not defects_of(code.instructions(name), layout, code.platform.defects)


_NAMES = "abcdefghpqrstuvw"
_TUPLES = {name: VirtualRegister(n, "v", 8, name) for n, name in enumerate(_NAMES)}


def _machine(words: str) -> list[Instruction]:
    """Instructions by word: a product of sums and factors (`apq`), with `0` of new sums; a move (`=p`) or a message
    (`<p`) that writes the first register of a tuple, maybe from one of another (`=pa`).
    """
    found: list[Instruction] = []
    for word in words.split():
        tuples = [Reg(_TUPLES[name], 0, 8) for name in word if name in _TUPLES]
        if word[0] in "=<":
            op = OPCODES["mov"] if word[0] == "=" else OPCODES["fence"]
            written, *read = (region(r.words(0, 1), "ud") for r in tuples)
            source: Operand = read[0] if read else Literal(0, "ud")
            found.append(XeInstruction(op, (written,), (source,), lanes=8))
            continue
        sums, a, b = tuples
        start = Null("f") if "0" in word else region(sums, "f")
        operands = (start, region(a, "hf"), region(b, "hf"))
        found.append(XeInstruction(dpas("dpas.8x8", 8), (region(sums, "f"),), operands, lanes=8))
    return found


def led(*blocks: str, loop: bool = False, registers: int = 256) -> str:
    """The chains of blocks that follow one another, as `lead_chains` leaves them: letters of sums and source 1.

    `0` stands for new sums, `-*` for an instruction of no use. The last block may jump to the first.
    """
    code = [BasicBlock(f"b{n}", _machine(words)) for n, words in enumerate(blocks)]
    if loop:
        code[-1].instructions.append(XeInstruction(OPCODES["jmpi"], target="b0"))
    allocation = Allocation({v: 8 * v.number for v in _TUPLES.values()}, {})
    physical, shared = Physical(allocation, 8, 1), GENERATIONS["xehpg"].dpas_chains
    function, places = lead_chains(Function("f", code), physical, shared, registers, lambda function: function)
    now = Physical(evolve(allocation, base={**allocation.base, **places}), 8, 1)

    def shown(i: Instruction) -> str:
        (sums,), factor = i.defs(), i.src[1]
        assert isinstance(factor, Reg)
        begins = isinstance(i.src[0], Null)
        return "-*" if sums.vreg.name == "unused" else sums.vreg.name + factor.vreg.name + "0" * begins

    found = [[" ".join(map(shown, c)) for c in chains(b.instructions, now, shared)] for b in function.blocks]
    return " / ".join(" | ".join(chain) for chain in found)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("apq bpr cps", "ap bp cp"),  # no arithmetic writes it
        ("=p apq bpr cqs dqt", "cq ap | bp dq"),  # what leads changes places
        ("=p apq cqs dqt bpr", "ap | cq dq | bp"),  # alone, chains have other sources in between
        ("=q apr bps cqr dqs", "ap | bp cq dq"),  # the last of the chain before
        ("=p apq bpr", "-* ap bp"),
        ("=p apq bpr ars", "-* ap bp | ar"),  # whoever could lead needs the sums
        ("=p apq bpr ars brt", "br ap | bp ar"),  # additions to the same sums change places
        ("=p apq0 bpr0 ars brt", "br0 ap0 | bp ar"),  # and beginnings
        ("=p =r =t apq bpr ars brt btq atq", "br ap | bp | ar bt | at"),  # less what depends on its leader
        ("=p apq <t bpr", "ap | -* bp"),  # alone, and nobody waits for it
        ("=p apq =ta bpr", "ap | bp"),
        ("=p apq0 bpr0 <t cqs0 dqt0", "-* ap0 bp0 | cq0 dq0"),  # nothing moves past messages
    ],
)
def test_chains_begin_with_two_sources(words: str, wanted: str) -> None:
    assert led(words) == wanted


def test_without_room_for_a_leader_each_waits_for_the_one_before() -> None:
    """Sums and factors take r0 to r127."""
    words = "=p apq bpr cps dpt epu fpv gpw hpw"
    assert led(words, registers=136) == "-* ap bp cp dp ep fp gp hp"
    assert led(words, registers=128) == "ap | bp | cp | dp | ep | fp | gp | hp"


def test_a_kernel_without_a_register_left_is_right() -> None:
    problem = Conv.parse("mb1ic32ih12oc17oh13kh2ph1", dir="BWD_D", dt="f16")
    code = driver.compile(driver.build(problem, "xehpg", "tile=128x8x16 waves=2x1 mma=8x8x16 slots=1 taps=chunk"))
    assert "waits for the accumulator" in code.asm
    outcome = verdict.run(code, groups=1)
    assert (outcome.mismatches, outcome.findings) == (0, ())


def test_the_block_before_ends_with_another_source() -> None:
    assert led("=p apq", "bpr") == "ap / -* bp"
    assert led("=p apq", "=t", "bpr") == "ap /  / -* bp"
    assert led("=p apq =ta", "bpr") == led("=p apq", "=ta bpr") == "ap / bp"
    assert led("=p apq", "=ta", "bpr") == "ap /  / bp"
    assert led("=p apq", "apr") == "ap / ap"  # waits for the accumulator
    assert led("=p apq bqr", "bps") == "ap | bq / bp"
    assert led("=p bps", "cqs", "dpr", loop=True) == "-* bp / cq / dp"


@pytest.mark.parametrize("target", ["xehpc", "xe2", "xehpg"])
def test_halves_are_read_anew_where_their_bus_changes(target: str) -> None:
    """A maximum chooses halves as they are, then compares the same registers."""
    k = KernelBuilder("k", width=targets.get(target).facts.subgroup_size)
    x, y = (k.surface(k.buffer(name, f16, 1024)) for name in "xy")
    a, b = (k.global_load(name, vector(f16, 2), x, Lane() * 4 + 256 * n) for n, name in enumerate("ab"))
    k.global_store(y, maximum(a, b), Lane() * 4)
    to = targets.get(target)
    emitted = to.emit(pipeline.run(k.done(), to.facts))
    assert ("separates two reads of f16" in emitted.text) == (target == "xehpc")
    if (object_ := to.assemble(to.module([emitted]))) is not None:
        code = CodeObject.load(object_)
        assert not defects_of(code.instructions("k"), Layout.of(code.platform, 128), code.platform.defects)


_R = {n: VirtualRegister(n, "v", 1, f"r{n}") for n in range(40, 60)}
_IN_PLACE = Physical(Allocation({v: n for n, v in _R.items()}, {}), 16, 1)


def _two(name: str, to: int, factor: Operand, type: str = "d") -> XeInstruction:
    return XeInstruction(OPCODES[name], (Region(_R[to], 0, 1, type),), (Region(_R[40], 0, 1, type), factor), lanes=16)


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        (_two("mul", 50, Region(_R[41], 0, 1, "uw", 0, 0)), _two("mul", 51, Region(_R[41], 0, 1, "uw", 0, 2)), True),
        (_two("mul", 50, Region(_R[41], 0, 1, "uw", 0, 0)), _two("mul", 51, Region(_R[42], 0, 1, "uw", 0, 2)), False),
        (_two("mul", 50, Region(_R[41], 0, 1, "uw", 0, 2)), _two("mul", 51, Region(_R[41], 0, 1, "uw", 0, 2)), False),
        (_two("mul", 50, Region(_R[41], 0, 1, "uw", 0, 0)), _two("macl", 51, Region(_R[41], 0, 1, "d")), False),
        (_two("add", 50, Region(_R[41], 0, 1, "d")), _two("macl", 51, Region(_R[41], 0, 1, "d")), True),
        (_two("add", 50, Region(_R[41], 0, 1, "d")), _two("mul", 51, Region(_R[41], 0, 1, "uw", 0, 2)), False),
        (_two("add", 50, Literal(1, "d")), _two("macl", 51, Region(_R[41], 0, 1, "d")), False),
    ],
)
def test_factors_are_read_anew_behind_what_reads_them_otherwise(
    first: XeInstruction, second: XeInstruction, parts: bool
) -> None:
    function = Function("f", [BasicBlock("a", [first]), BasicBlock("b", [second])])
    code = [i for block in separate_factors(function, _IN_PLACE)[0].blocks for i in block.instructions]
    assert (len(code) == 3 and code[1].op.name == "add") == parts
    assert code[0] is first
    assert code[-1] is second
