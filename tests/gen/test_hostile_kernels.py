"""Kernels from outside, by dump or by the API: names stay names, comments stay comments, sizes have limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import convgen as cg
from convgen.commands import cli
from convgen.ir import types as t
from convgen.ir.build import KernelBuilder
from convgen.ir.dump import parse
from convgen.ir.error import UserError, visible
from convgen.ir.expr import Lane, var
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.stmt import Site
from convgen.run import launch_record
from convgen.run.code import Code
from convgen.show import dumps
from tests.gen.test_damaged import bounded

EXPLOIT = 'at\n.section .rodata\n.incbin "SECRET"\n.text'
HEAD = "# convgen dump\n# target: {}\n"
KERNEL = """\
gx_1 = Var('gx', 1, s32)
gy_2 = Var('gy', 2, s32)
gz_3 = Var('gz', 3, s32)
s_4 = Var('s', 4, s32)
x = Global('x', s32, 256)
at_5 = Var({var}, 5, s32)
v_6 = Var('v', 6, s32)
stmt1 = Let(at_5, Mul(Lane(), Const(s32, 4)))
x_7 = Surface(x, Const(s32, 0), Const(s32, 256))
stmt2 = GlobalLoad(v_6, x, x_7, at_5, Const(s32, 0), {imm}, Site(0, {stage}, {comment}))
stmt3 = GlobalStore(x, x_7, at_5, Const(s32, 0), 0, v_6, Site(1))
Kernel({name}, (x,), (1, 1, 1), 1, 64, (gx_1, gy_2, gz_3), s_4, (), Block((stmt1, stmt2, stmt3)), ())
"""
PLAIN = {"var": "at", "stage": "load", "comment": "what is loaded", "name": "k", "imm": 0}


def replay(folder: Path, text: str, *options: str) -> int:
    (folder / "k.dump").write_text(text)
    with bounded():
        return cli.main(["replay", str(folder / "k.dump"), "-o", str(folder / "out" / "k"), *options])


def kernel(**changes: object) -> str:
    return HEAD.format("gfx942") + KERNEL.format(**{name: repr(v) for name, v in {**PLAIN, **changes}.items()})


def test_the_kernel_is_sound(tmp_path: Path) -> None:
    assert replay(tmp_path, kernel()) == 0
    assert "what is loaded" in (tmp_path / "out" / "k.s").read_text()


@pytest.mark.parametrize("field", ["var", "stage", "comment", "name", "imm"])
def test_a_dump_injects_no_assembly(tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str) -> None:
    secret = tmp_path / "SECRET"
    secret.write_text("s3cr3t")
    assert replay(tmp_path, kernel(**{field: EXPLOIT.replace("SECRET", str(secret))})) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "in line " in line
    assert not (tmp_path / "out").exists()


def by_hand(**names: str) -> KernelBuilder:
    given = {"kernel": "k", "buffer": "x", "let": "at", "load": "v", **names}
    k = KernelBuilder(given["kernel"], grid=(1, 1, 1))
    x = k.surface(k.buffer(given["buffer"], t.s32, 64))
    at = k.let(given["let"], Lane() * 4)
    k.global_store(x, k.global_load(given["load"], t.s32, x, at) + 1, at)
    return k


@pytest.mark.parametrize("what", ["kernel", "buffer", "let", "load"])
@pytest.mark.parametrize("name", [EXPLOIT, "../../pwned", "", "\x1b[31m", "a b", "ü", "x" * 300, "0x"])
def test_the_api_takes_no_such_names(what: str, name: str) -> None:
    with pytest.raises(UserError, match="wanted a letter or _ and up to 199 letters, digits, _ and") as caught:
        by_hand(**{what: name}).done()
    assert "\n" not in str(caught.value)


def test_names_are_text() -> None:
    with pytest.raises(UserError, match="given buffer 3, wanted"):
        Global(3, t.s32, 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="given variable None, wanted"):
        var(None)  # type: ignore[arg-type]


def test_comments_are_one_line() -> None:
    with pytest.raises(UserError, match="wanted one line that can be printed"):
        Site(1, "load", EXPLOIT)


def test_a_kernel_leads_nowhere(tmp_path: Path) -> None:
    """The crash keeper and --dump-dir name files by kernel."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    text = kernel(name="../../pwned")
    assert replay(inner, text, "--dump-dir", str(inner / "dumps")) == 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["k.dump"]


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_the_name_of_a_problem_is_escaped_wherever_it_stands(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that the grammar does not take from a line, as the API or another front end may give it."""
    problem = cg.Conv.parse("mb1ic16ih4oc16kh3ph1", dir="FWD_D", dt="f16")
    object.__setattr__(problem, "name", "a\x1b[31m\n.incbin\udcff")
    program = cg.build(problem, target)
    code: Code = cg.compile(program)
    comments = [line for line in code.asm.splitlines() if "incbin" in line]
    assert comments
    assert all(line.lstrip().startswith(("//", ";")) and line.isprintable() for line in comments)
    header = dumps.to_text(program, program.ir.kernels[0], None).splitlines()[:4]
    assert all(line.startswith("# ") and line.isprintable() for line in header)
    assert launch_record.LaunchRecord.from_json(code.record.to_json()) == code.record


def test_what_is_shown_is_visible() -> None:
    assert visible("plain ü 漢") == "plain ü 漢"
    assert visible("a\x1b[31m\nb\t\u202e\udcff") == "a\\x1b[31m\\nb\\t\\u202e\\udcff"


# Sizes


_PLACES = "Digits(('row', 'col'), (Digit('col', {}, MEMORY, 1), Digit('row', {}, MEMORY, 4)))"

WITHOUT_END = {
    "a stride that is text": "Digit('k', 4, REGISTER, 'a')",
    "a stride that is nothing": "Fragment(('k',), (Digit('k', 4, REGISTER, None),))",
    "a stride that is a truth": "Digit('k', 4, REGISTER, True)",
    "a digit of 10^30": f"Digit('k', {10**30}, REGISTER, 1)",
    "a digit of 2^40": f"Fragment(('k',), (Digit('k', {1 << 40}, REGISTER, 1),))",
    "a vector of 10^12": "vector(f16, 1000000000000)",
    "tuples of tuples": "a0 = (1, 1)\n"
    + "\n".join(f"a{n} = (a{n - 1}, a{n - 1})" for n in range(1, 40))
    + "\nBlock(a39)",
    "parentheses": "(" * 5000 + ")" * 5000,
    "an atom of 2^63 passes": f"MmaAtom('m', 4, 4, 4, f16, f16, f32, {', '.join(['Fragment((), ())'] * 3)}, {1 << 63})",
    "a tile of 2^62": f"Shared('s', f16, {1 << 31}, {1 << 31}, {_PLACES.format(1 << 31, 1)}, 1, Swizzle(), 16)",
    "chunks of nothing": f"Shared('s', f16, 4, 4, {_PLACES.format(4, 4)}, 1, Swizzle(), 0)",
    "a shift of 2^62": f"Swizzle({1 << 62}, 1)",
}


@pytest.mark.parametrize("text", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_has_no_end_is_refused(text: str) -> None:
    with bounded(), pytest.raises(UserError):
        parse(text)


#: nodes made each of the one before, how many, and whether they can be compiled
CHAINS = {
    "statements that share": ("Block(({0}, {0}))", 40, 2),
    "branches that share": ("If(Eq(gx_1, gy_2), {0}, {0})", 40, 2),
    "blocks that are deep": ("Block(({0},))", 3000, 2),
    "branches that are deep": ("If(Eq(gx_1, gy_2), {0}, Block(()))", 3000, 2),
    "blocks": ("Block(({0},))", 100, 0),
    "expressions that share": ("Add({0}, {0})", 60, 2),
    "an expression that is deep": ("Not({0})", 3000, 2),
    "an expression": ("Not({0})", 100, 0),
    "squares": ("Mul({0}, {0})", 12, 0),
}


@pytest.mark.parametrize(("made", "count", "code"), CHAINS.values(), ids=CHAINS)
def test_what_passes_cannot_walk_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: str, count: int, code: int
) -> None:
    lines = kernel().splitlines()
    is_statement = made.startswith(("Block", "If"))
    at = len(lines) - 1 if is_statement else next(n for n, line in enumerate(lines) if line.startswith("stmt1"))
    first = "c0 = Block((stmt1, stmt2, stmt3))" if is_statement else "c0 = Lane()"
    chain = [first, *(f"c{n} = {made.format(f'c{n - 1}')}" for n in range(1, count + 1))]
    lines[at] = lines[at].replace("Block((stmt1, stmt2, stmt3))", f"c{count}").replace("Lane()", f"c{count}")
    assert replay(tmp_path, "\n".join([*lines[:at], *chain, *lines[at:]]) + "\n") == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) == (code == 2)
    assert ("nodes inside one another" in err) == (code == 2)


def test_the_order_of_digits_is_no_longer_searched_for() -> None:
    with pytest.raises((UserError, TypeError)):
        Fragment(("k",), (Digit("k", 4, Space.REGISTER, "a"),))  # type: ignore[arg-type]


def test_a_grid_has_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(tmp_path, kernel().replace("(1, 1, 1), 1, 64", f"({1 << 40}, 1, 1), 1, 64")) == 2
    assert replay(tmp_path, kernel().replace("(1, 1, 1), 1, 64", "(1, 1, 1), 4096, 64")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_kernels_with_sound_names_run() -> None:
    code = cg.compile(by_hand(kernel="my_kernel.v2", buffer="x_1"))
    out = cg.simulate(code, x_1=np.arange(64, dtype=np.int32))
    assert np.array_equal(out, np.arange(64) + 1)
