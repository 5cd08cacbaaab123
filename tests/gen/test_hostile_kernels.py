"""Kernels from outside, by dump or by the API: names stay names, comments stay comments, sizes have limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import convgen as cg
from convgen.commands import cli
from convgen.ir import types as t
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError, visible
from convgen.ir.expr import Lane, var
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.stmt import Site
from convgen.ir.text import parse
from convgen.run import launch_record
from convgen.run.code import Code
from convgen.show import dumps
from tests.gen.test_damaged import bounded

EXPLOIT = 'at\n.section .rodata\n.incbin "SECRET"\n.text'
HEAD = "# convgen dump\n# target: {}\n"
KERNEL = """\
kernel {name}(x: s32[64]):
  grid 1 x 1 x 1 as gx.1, gy.2, gz.3
  1 subgroups of 64 lanes as s.4
  {var}.5: s32 = lane * 4
  v.6: s32 = global x[{var}, 0, {imm}] in surface(x, 0, 256)  # 0 {stage}: {comment}
  global x[{var}, 0, 0] in surface(x, 0, 256) = v  # 1
"""
PLAIN = {"var": "at", "stage": "load", "comment": "what is loaded", "name": "k", "imm": 0}


def replay(folder: Path, text: str, *options: str) -> int:
    (folder / "k.dump").write_text(text)
    with bounded():
        return cli.main(["replay", str(folder / "k.dump"), "-o", str(folder / "out" / "k"), *options])


def kernel(**changes: object) -> str:
    return HEAD.format("gfx942") + KERNEL.format(**{**PLAIN, **changes})


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


def loaded(layout: str) -> str:
    """A statement that loads a tile in that layout."""
    return f"shared s: 1 of f16 4 x 4, pitch 8\nv: f16x4 = load s[0] as {layout}"


WITHOUT_END = {
    "a stride that is text": loaded("k4ra"),
    "a stride that is nothing": loaded("k4r"),
    "a digit of 10^30": loaded(f"k{10**30}r1"),
    "a digit of 2^40": loaded(f"k{1 << 40}r1"),
    "a vector of 10^12": "given v: f16x1000000000000",
    "a number of a million digits": "1" * 1_000_000,
    "parentheses": "(" * 5000 + ")" * 5000,
    "signs": "~" * 5000 + "1",
    "calls": "abs(" * 5000 + "1.0" + ")" * 5000,
    "branches": "".join(f"{' ' * n}if true:\n" for n in range(5000)),
    "an atom of 2^63 clocks": f"instruction m: 4 x 4 x 4, f16 x f16 to f32, {1 << 63} clocks, a k1r1, b k1r1, d k1r1",
    "a tile of 2^62": f"shared s: 1 of f16 {1 << 31} x {1 << 31}, order col4@1 row4@4",
    "chunks of nothing": "shared s: 1 of f16 4 x 4, pitch 8, 0-byte chunks",
    "a shift of 2^62": f"shared s: 1 of f16 4 x 4, pitch 8, 8-byte chunks ^ (row >> {1 << 62} & 1)",
    "an extent of sums": f"given n: s32\nbuffer x: f32[{' + '.join(['n'] * 5000)}, at most 4 bytes]",
    "a line of 2 MiB": "~" * (2 << 20),
    "lines without end": "barrier\n" * ((1 << 19) + 1),
    "a digit that is none": "given v: s32 in [², 3]",
    "an extent that shares": "given n: s32\nt = n + n\nprefetch plane x(t x 1 bytes, pitch 1)[0, 0] as 1 x 1 rows",
}


@pytest.mark.parametrize("text", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_has_no_end_is_refused(text: str) -> None:
    with bounded(), pytest.raises(UserError):
        parse(text)


def shared(name: str, count: int) -> list[str]:
    """Lines that each name a sum of twice the one before."""
    return [f"  {name}0 = lane", *(f"  {name}{n} = {name}{n - 1} {{0}} {name}{n - 1}" for n in range(1, count + 1))]


def deep(head: str, count: int, rest: str = "") -> list[str]:
    """A store in suites inside one another."""
    inner = "  " * count + "  global x[0, 0, 0] in surface(x, 0, 256) = v  # 2"
    heads = ["  " * n + f"  {head}" for n in range(count)]
    return [*heads, inner, *("  " * n + rest for n in range(count, 0, -1) if rest)]


def signs(count: int) -> list[str]:
    """Lines that each name the complement of the one before."""
    return ["  c0 = lane", *(f"  c{n} = ~c{n - 1}" for n in range(1, count)), f"  w: s32 = c{count - 1}"]


#: lines that stand before the last of the kernel, and whether they can be compiled
CHAINS = {
    "blocks that are deep": (deep("do:", 3000), 2),
    "branches that are deep": (deep("if gx == gy:", 3000), 2),
    "blocks": (deep("do:", 100), 0),
    "expressions that share": ([line.format("+") for line in shared("c", 60)] + ["  w: s32 = c60"], 2),
    "an expression that is deep": (
        ["  c0 = lane", *(f"  c{n} = ~c{n - 1}" for n in range(1, 3000)), "  w: s32 = c2999"],
        2,
    ),
    "an expression": (["  c0 = lane", *(f"  c{n} = ~c{n - 1}" for n in range(1, 100)), "  w: s32 = c99"], 0),
    "squares": ([line.format("*") for line in shared("c", 12)] + ["  w: s32 = c12"], 0),
    "a long sum": (["  w: s32 = " + " + ".join(["lane"] * 3000)], 2),
}


@pytest.mark.parametrize(("lines", "code"), CHAINS.values(), ids=CHAINS)
def test_what_passes_cannot_walk_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], code: int
) -> None:
    *head, last = kernel().splitlines()
    assert replay(tmp_path, "\n".join([*head, *lines, last]) + "\n") == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) == (code == 2)
    assert ("inside one another" in err) == (code == 2)


def test_the_order_of_digits_is_no_longer_searched_for() -> None:
    with pytest.raises((UserError, TypeError)):
        Fragment(("k",), (Digit("k", 4, Space.REGISTER, "a"),))  # type: ignore[arg-type]


def test_a_grid_has_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(tmp_path, kernel().replace("grid 1 x", f"grid {1 << 40} x")) == 2
    assert replay(tmp_path, kernel().replace("1 subgroups", "4096 subgroups")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_kernels_with_sound_names_run() -> None:
    code = cg.compile(by_hand(kernel="my_kernel.v2", buffer="x_1"))
    out = cg.simulate(code, x_1=np.arange(64, dtype=np.int32))
    assert np.array_equal(out, np.arange(64) + 1)
