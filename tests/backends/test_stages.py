"""Stages: the verifier objects to what breaks a rule, attempts are in order. `test_samples` verifies every stage."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from convgen.backends import target as targets
from convgen.backends.machine.allocate import Allocation, Bank
from convgen.backends.machine.assembly import show
from convgen.backends.machine.instruction import (
    BasicBlock,
    Function,
    Imm,
    Instruction,
    Opcode,
    Reg,
    Role,
    Unit,
    VirtualRegister,
)
from convgen.backends.machine.verifier import verify
from convgen.backends.stages import Emitted, MachineKernel, Rung, Stage, begin, run
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, VerifyError
from convgen.ir.record import evolve
from tests import samples
from tests.backends.machines import BRANCH, END, MATRIX, VALU

BANKS = {"v": Bank(8, {1: 1, 2: 2}), "s": Bank(8, {1: 1})}
NOWHERE = Allocation({}, {})


@pytest.mark.parametrize("target", samples.TARGETS)
def test_stages_say_what_they_ensure(target: str) -> None:
    assert all(stage.contract.endswith(".") for stage in targets.get(target).stages)


# ---------------------------------------------------------------- the verifier


def reg(number: int, size: int = 1, bank: str = "v", fixed: int | None = None) -> Reg:
    return Reg(VirtualRegister(number, bank, size, f"r{number}", fixed), 0, size)


def op(dst: Reg, *sources: Reg) -> Instruction:
    return Instruction(VALU, (dst,), (*sources, Imm(0)))


def straight(*body: Instruction) -> Function:
    return Function("f", [BasicBlock("entry", [*body, Instruction(END)])])


A, B, PAIR, ITEM = reg(1), reg(2), reg(3, 2), reg(4, fixed=0)
SCALAR = Opcode("s_op", Unit.SALU, banks="s")
LOAD = Opcode("load", Unit.GLOBAL, results=(Role("data", "v", 2),), sources=(Role("address", "v", 1),))


def test_what_keeps_the_rules_passes() -> None:
    body = (op(A, ITEM), Instruction(LOAD, (PAIR,), (A,)), op(B, PAIR.words(1, 1)))
    verify(straight(*body), BANKS, NOWHERE)
    verify(straight(*body), BANKS, Allocation({ITEM.vreg: 0, A.vreg: 1, PAIR.vreg: 2, B.vreg: 1}, {"v": 4}))


def branch(target: str) -> Instruction:
    return Instruction(BRANCH, target=target)


BROKEN: dict[str, Function] = {
    "word 0 of %v1 is not there, in entry: %v2.r2 = v_op %v1.r1, 0": straight(op(B, A)),
    "word 1 of %v3 is not there": straight(op(PAIR.words(0, 1)), op(B, PAIR)),
    "no block away, where entry goes": straight(branch("away")),
    "s_cbranch leaves entry before its end": straight(branch("entry"), op(A)),
    "the last block does not end the program": Function("f", [BasicBlock("entry", [op(A)])]),
    "label entry stands twice": Function("f", [BasicBlock("entry"), *straight().blocks]),
    "words 1 to 2 of %v3:2": straight(op(A), op(PAIR.words(1, 2))),
    "in no bank of v, s": straight(op(reg(1, bank="a"))),
    "%v1:1 is an operand, wanted one in bank s": straight(op(A), Instruction(SCALAR, (reg(5, bank="s"),), (A,))),
    "two registers with the number of %v1:1": straight(op(A), op(reg(1))),
    "2 sources, wanted address": straight(op(A), Instruction(LOAD, (PAIR,), (A, A))),
    "data in bank s, wanted v": straight(op(A), Instruction(LOAD, (reg(5, 2, "s"),), (A,))),
    "data of 1 words, wanted 2": straight(op(A), Instruction(LOAD, (B,), (A,))),
    "a source is overwritten before it is read": straight(
        op(A), op(PAIR), Instruction(MATRIX, (reg(6, 2),), (A, A, PAIR))
    ),
}
#: Where the registers of a case stand, if they stand anywhere.
PLACES = {"a source is overwritten before it is read": {1: 0, 3: 2, 6: 2}}


@pytest.mark.parametrize("problem", BROKEN)
def test_the_verifier_objects(problem: str) -> None:
    function = BROKEN[problem]
    registers = {r.vreg for i in function.instructions() for r in (*i.defs(), *i.uses())}
    base = {v: at for v in registers if (at := PLACES.get(problem, {}).get(v.number)) is not None}
    with pytest.raises(VerifyError) as caught:
        verify(function, BANKS, Allocation(base, {}))
    assert problem in str(caught.value)


def test_a_value_must_be_there_on_every_path() -> None:
    blocks = [
        BasicBlock("entry", [branch("end")]),
        BasicBlock("then", [op(A)]),
        BasicBlock("end", [op(B, A), Instruction(END)]),
    ]
    with pytest.raises(VerifyError, match="word 0 of %v1 is not there, in end"):
        verify(Function("f", blocks), BANKS, NOWHERE)


MISPLACED = {
    "%v3:2 at 1, wanted a multiple of 2": {A.vreg: 0, PAIR.vreg: 1},
    "%v3:2 at 7, wanted a place within 8 words": {A.vreg: 0, PAIR.vreg: 7},
    "%v3:2 has no place": {A.vreg: 0},
    "word 0 of %v1 is not there": {A.vreg: 2, PAIR.vreg: 2},
}


@pytest.mark.parametrize("problem", MISPLACED)
def test_the_verifier_objects_to_places(problem: str) -> None:
    base = {**MISPLACED[problem], B.vreg: 4}
    with pytest.raises(VerifyError) as caught:
        verify(straight(op(A), op(PAIR), op(B, A, PAIR)), BANKS, Allocation(base, {"v": 8}))
    assert problem in str(caught.value)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_a_stage_that_breaks_a_kernel_is_seen(target: str) -> None:
    """Whatever two neighbours change places in a sample, one that needs the other is missed behind it."""
    to = targets.get(target)
    made: list[MachineKernel] = []
    to.emit(samples.lowered(target, "gemm")[0], observe=lambda stage, before, after, seconds: made.append(after))
    placed = made[[stage.name for stage in to.stages].index("allocate")]
    entry = placed.code.blocks[0].instructions
    at = next(n for n, (a, b) in enumerate(pairwise(entry)) if {r.vreg for r in a.defs()} & {*_read(b)})
    swapped = [*entry[:at], entry[at + 1], entry[at], *entry[at + 2 :]]
    broken = placed.code.rewritten(lambda index, block: block.instructions if index else swapped)
    with pytest.raises(VerifyError, match="is not there, in entry"):
        evolve(placed, function=broken).verify()


def _read(i: Instruction) -> list[VirtualRegister]:
    return [r.vreg for r in i.uses()]


# ---------------------------------------------------------------- text


def test_text_on_virtual_and_on_physical_registers() -> None:
    body = [op(A, ITEM), Instruction(LOAD, (PAIR,), (A,), ("offen",), comment="wei load"), op(B, PAIR.words(1, 1))]
    blocks = [BasicBlock("entry", body), BasicBlock("loop", [branch("loop")], "for k"), BasicBlock("end", [])]
    function = Function("f", blocks)
    virtual = show(function, NOWHERE).splitlines()
    assert virtual == [
        "function f",
        "entry:",
        "    %v1.r1 = v_op %v4.r4, 0",
        "    %v3.r3[0:1] = load %v1.r1 offen  // wei load",
        "    %v2.r2 = v_op %v3.r3[1], 0",
        "loop:  // for k",
        "    s_cbranch -> loop",
        "end:",
    ]
    physical = show(function, Allocation({ITEM.vreg: 0, A.vreg: 1, PAIR.vreg: 2, B.vreg: 1}, {"v": 4})).splitlines()
    assert physical[2:5] == ["    v1 = v_op v0, 0", "    v[2:3] = load v1 offen  // wei load", "    v1 = v_op v3, 0"]


# ---------------------------------------------------------------- the runner

KERNEL = KernelBuilder("k").done()
Log = list[str]


def _begun() -> MachineKernel:
    return begin(KERNEL, targets.get("gfx942").facts, BANKS, ["title"])


def _stage(name: str, log: Log, most: int = 99) -> Callable[..., MachineKernel]:
    """A stage that writes down its runs, and has no room for `size` above `most`."""

    def work(made: MachineKernel, *, size: int = 0) -> MachineKernel:
        log.append(f"{name} {size}" if size else name)
        if size > most:
            raise DoesNotFit(f"{name} {size}")
        return evolve(made, header=(*made.header, f"{name} {size}"))

    return work


def _tried(most: int) -> tuple[Log, MachineKernel]:
    log: Log = []
    ladders = (tuple(Rung({"size": n}) for n in (4, 5, 6)), (Rung({"size": 2}),))
    stage = Stage("place", _stage("place", log, most), ladders=ladders)
    return log, run([stage], _begun())


def test_the_last_of_a_ladder_that_fits_is_taken() -> None:
    assert _tried(9)[1].header == ("title", "place 6")
    log, made = _tried(5)
    assert (log, made.header) == (["place 4", "place 5", "place 6"], ("title", "place 5"))


def test_the_next_ladder_is_for_when_nothing_of_one_fits() -> None:
    log, made = _tried(3)
    assert (log, made.header) == (["place 4", "place 2"], ("title", "place 2"))
    with pytest.raises(DoesNotFit, match="place 2"):
        _tried(1)


def test_an_attempt_may_undo_an_optional_stage() -> None:
    log: Log = []
    retry = Rung({"size": 1}, undoes="b", remark="without b")
    stages = [Stage(name, _stage(name, log), optional=name == "b") for name in "abc"]
    stages.append(Stage("place", _stage("place", log, 1), ladders=((Rung({"size": 2}),), (retry,))))
    assert run(stages, _begun()).header == ("title", "a 0", "c 0", "without b", "place 1")
    assert log == ["a", "b", "c", "place 2", "c", "place 1"]
    with pytest.raises(DoesNotFit):  # what was not done cannot be undone
        run(stages, _begun(), disable=("b",))


def test_a_stage_that_is_off_does_not_run_and_errors_name_theirs() -> None:
    log: Log = []
    seen: Log = []
    stages = [Stage(name, _stage(name, log, 0), name == "b") for name in "ab"]
    run(stages, _begun(), ("b",), lambda stage, before, after, seconds: seen.append(stage.name))
    assert (log, seen) == (["a"], ["a"])
    with pytest.raises(DoesNotFit) as caught:
        run([*stages, evolve(stages[0], name="c", ladders=((Rung({"size": 1}),),))], _begun())
    assert caught.value.__notes__ == ["stage: c"]


@pytest.mark.parametrize("target", samples.TARGETS)
def test_a_target_remembers_nothing_of_what_it_emitted(target: str) -> None:
    """Another object of the same target makes the module."""
    one, other = targets.get(target), targets.get(target)
    emitted: list[Emitted] = [one.emit(kernel) for kernel in samples.lowered(target, "gemm")]
    assert other.module(emitted) == one.module(emitted)
