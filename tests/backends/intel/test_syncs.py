"""Which waits arithmetic carries: those of what comes behind it, as far as it has room and stands near."""

from __future__ import annotations

import pytest

from convgen.backends.intel.isa import OPCODES, Literal, XeInstruction, dpas, message, region
from convgen.backends.intel.syncs import carry_waits
from convgen.backends.intel.tables import GENERATIONS
from convgen.backends.machine.instruction import BasicBlock, Function, Reg, VirtualRegister

BOTH = pytest.mark.parametrize("target", ["xehpc", "xehpg"])


def _register(number: int) -> Reg:
    return Reg(VirtualRegister(number, "v", 1, f"r{number}"), 0, 1)


def _made(word: str) -> XeInstruction:
    """`alu`, `float`, `load`, `dpas`, `sync` or `allwr:5`, annotated as braces say: `alu{I@1,$3.dst}`."""
    kind, _, rest = word.partition("{")
    annotations = tuple(a for a in rest.rstrip("}").split(",") if a)
    name, _, mask = kind.partition(":")
    a, b, c = map(_register, (1, 2, 3))
    match name:
        case "alu" | "float":
            type = "ud" if name == "alu" else "f"
            made = XeInstruction(OPCODES["add"], (region(a, type),), (region(b, type), region(c, type)))
        case "load":
            made = XeInstruction(message("load", "ugm", 4), (a,), (b,))
        case "dpas":
            made = XeInstruction(dpas("dpas.8x8", 2), (region(a, "f"),), tuple(region(r, "f") for r in (a, b, c)))
        case "sync":
            made = XeInstruction(OPCODES["sync.nop"])
        case _:
            return XeInstruction(OPCODES[f"sync.{name}"], src=(Literal(int(mask, 16), "ud"),))
    return made.annotated(*annotations)


def _shown(i: XeInstruction) -> str:
    names = {"add": "alu", "sync.nop": "sync", "dpas.8x8": "dpas"}
    name = names.get(i.op.name) or (i.op.name.removeprefix("sync.") if i.op.name.startswith("sync") else "load")
    mask = "".join(f":{o.value:x}" for o in i.src if isinstance(o, Literal))
    return name + mask + (f"{{{','.join(i.annotations)}}}" if i.annotations else "")


def carried(text: str, target: str) -> str:
    block = BasicBlock("entry", [_made(word) for word in text.split()])
    (done,) = carry_waits(Function("f", [block]), GENERATIONS[target]).blocks
    return " ".join(_shown(i) for i in done.instructions if isinstance(i, XeInstruction))


@BOTH
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("alu sync{$3.dst} load{I@1,$5}", "alu{$3.dst} load{I@1,$5}"),
        # A wait that moves up makes the later wait of the instruction behind it needless.
        ("alu alu{$3.src} sync{$3.dst} load{I@1,$5}", "alu{$3.dst} alu load{I@1,$5}"),
        ("alu{I@2} sync{$3.dst} load{$5}", "alu{@2,$3.dst} load{$5}"),
        ("alu sync{$3.dst} sync{$4.src} load{$5}", "alu{$3.dst} sync{$4.src} load{$5}"),
        ("alu alu sync{$3.dst} sync{$4.src} load{$5}", "alu{$4.src} alu{$3.dst} load{$5}"),
        ("alu alu allwr:a load{$5}", "alu{$3.dst} alu{$1.dst} load{$5}"),
        ("alu allwr:a load{$5}", "alu allwr:a load{$5}"),  # a sync waits for both as well as for one
        ("alu{$2.dst} sync{$3.dst} load{$5}", "alu{$2.dst} sync{$3.dst} load{$5}"),  # which has a wait already
        ("alu{$2.dst} alu sync{$3.dst} load{$5}", "alu{$2.dst} alu{$3.dst} load{$5}"),
        ("alu{F@1} sync{$3.dst} load{$5}", "alu{F@1} sync{$3.dst} load{$5}"),  # of another pipe
        ("float{F@1} sync{$3.dst} load{$5}", "alu{@1,$3.dst} load{$5}"),
        ("sync{$3.dst} alu{I@1}", "alu{@1,$3.dst}"),  # what waits itself has room, too
        ("load{$4} sync{$3.dst} dpas{$1}", "load{$4} sync{$3.dst} dpas{$1}"),
        ("alu load{$4} sync{$3.dst} dpas{$1}", "alu load{$4} sync{$3.dst} dpas{$1}"),  # nothing is held up in between
        ("alu alu{$6.dst} alu{$6.dst} alu{$6.dst} alu{$6.dst} sync{$3.dst} load", None),  # too far
        (
            "alu alu{$6.dst} alu{$6.dst} alu{$6.dst} sync{$3.dst} load",
            "alu{$3.dst} alu{$6.dst} alu{$6.dst} alu{$6.dst} load",
        ),
        ("alu alu{$3} sync{$3.dst} load{$5}", "alu alu{$3} sync{$3.dst} load{$5}"),  # which has a token itself
        ("alu alu{$3} alu sync{$3.dst} load{$5}", "alu alu{$3} alu{$3.dst} load{$5}"),
        ("sync{A@1} load{$5}", "sync{A@1} load{$5}"),  # no token
        ("alu sync{$3.dst}", "alu sync{$3.dst}"),  # nobody behind it
    ],
)
def test_what_is_carried(before: str, after: str | None, target: str) -> None:
    assert carried(before, target) == (before if after is None else after)


def test_xehpg_has_no_room_for_sources_beside_a_distance() -> None:
    text = "alu{I@1} sync{$3.src} load{$5}"
    assert carried(text, "xehpg") == text
    assert carried(text, "xehpc") == "alu{@1,$3.src} load{$5}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("alu sync{$5.src} alu{I@1} sync{$5.dst} load{$7}", "alu alu{@1,$5.dst} load{$7}"),
        ("alu sync{$5.src} alu{I@1} sync{$6.dst} load{$7}", "alu{$5.src} alu{@1,$6.dst} load{$7}"),
        ("alu sync{$5.src} alu{I@1} alu sync{$5.dst} load{$7}", "alu{$5.src} alu{I@1} alu{$5.dst} load{$7}"),
        ("alu sync{$5.src} alu sync{$5.dst} alu{I@1,$6.dst} load{$7}", "alu{$5.dst} alu alu{I@1,$6.dst} load{$7}"),
    ],
)
def test_what_has_its_result_has_read_its_sources(before: str, after: str) -> None:
    assert carried(before, "xehpg") == after


@BOTH
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("sync{$3.dst} dpas{$1} sync{$4.dst} dpas{$2}", "allwr:18 dpas{$1} dpas{$2}"),
        ("sync{$3.dst} dpas{$1} allwr:30 dpas{$2}", "allwr:38 dpas{$1} dpas{$2}"),
        ("sync{$3.src} dpas{$1} sync{$4.src} dpas{$2}", "allrd:18 dpas{$1} dpas{$2}"),
        ("sync{$3.dst} dpas{$1} sync{$4.src} dpas{$2}", None),  # not the same of both
        ("sync{$3.dst} dpas{$1} sync{$1.dst} dpas{$2}", None),  # what is not under way yet
        ("sync{$3.dst} dpas{$4} allwr:30 dpas{$2}", "allwr:28 dpas{$4} sync{$4.dst} dpas{$2}"),
        ("sync{$3.dst} " + 7 * "dpas{$1} " + "sync{$4.dst} dpas", "allwr:18 " + 7 * "dpas{$1} " + "dpas"),
        ("sync{$3.dst} " + 8 * "dpas{$1} " + "sync{$4.dst} dpas", None),  # too far
    ],
)
def test_what_is_joined(before: str, after: str | None, target: str) -> None:
    assert carried(before, target) == (before if after is None else after)
