"""A family that no file of the product knows: `tests/backends/sm80`, facts and text without assembler or simulator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.commands import cli
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.run.launch_record import LaunchRecord
from convgen.show.pass_checker import PassChecker
from tests.backends.sm80.facts import SM80, SM90
from tests.backends.sm80.family import FAMILY
from tests.backends.sm80.targets import Listing

ROOT = Path(__file__).parents[2]
CONV = "mb1ic16ih6oc16kh3ph1"


@pytest.fixture(autouse=True)
def _known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with families.adding(FAMILY):
        yield


def test_no_file_outside_the_tests_knows_it() -> None:
    """Files that a family touches: those of its folder."""
    rooms = [path for room in ("ir", "passes", "gen", "backends") for path in (ROOT / room).rglob("*.py")]
    naming = [path for path in rooms if re.search(r"\bsm80\b|\bsm90\b", path.read_text())]
    assert not naming


# ---------------------------------------------------------------- problems


PROBLEMS = [
    f"--dir=FWD_D --dt=f16 {CONV}",
    f"--dir=BWD_D --dt=f16 {CONV}",
    f"--dir=BWD_W --dt=f16 {CONV}",
    f"--dir=FWD_D --dt=s8:s8:s32 {CONV}",
    f"--dir=FWD_D --dt=bf16 --attr-post-ops=relu {CONV}",
    "--dir=FWD_D --dt=f16 mb1ic3ih9oc16kh3sh2ph1",
    "--dir=FWD_D --dt=f16 g16mb1ic16ih6oc16kh3ph1",
    "--dt=f16 32x32:32x32",
    "--dt=f16 --wtag=ab 48x40:40x24",
    "--dt=s8:s8:s32 17x33:33x9",
]


@pytest.mark.parametrize("line", PROBLEMS)
def test_problems_go_through_all_passes_and_each_keeps_their_meaning(line: str) -> None:
    """The interpreter executes the IR after each pass, and finds what it found before it."""
    checker = PassChecker()
    code = cg.compile(cg.build(parse_problem(line), "sm80", observe=checker.observe))
    assert code.object is None
    assert all(f"kernel {name}(" in code.asm for name in code.kernels)
    assert all(note.startswith("passes were checked on ") for note in checker.notes.values())


def test_a_chip_of_the_family_is_a_row_of_its_tables() -> None:
    """sm90 stands in `facts.py` and in the record's targets, and nowhere else."""
    assert targets.get("sm90").facts is SM90
    named = [path for path in (Path(__file__).parent / "sm80").glob("*.py") if "sm90" in path.read_text()]
    assert sorted(path.name for path in named) == ["facts.py", "family.py"]
    code = cg.compile(cg.build(parse_problem("--dt=f16 64x64:64x64"), "sm90", observe=PassChecker().observe))
    assert "two.mma.m16n8k16.f16" in cg.build(parse_problem("--dt=f16 64x64:64x64"), "sm90").ir.kernels[0].__str__()
    assert code.target == "sm90"


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "line",
    [
        "targets",
        "targets sm80 --json",
        "passes --target sm80",
        f"conv {CONV} --dir FWD_D --dt f16 --target sm80 -o k -v --check-passes",
        "gemm 32x32:32x32 --dt f16 --target sm80 -o k",
        "map 256x256:256x256 --dt f16 --target sm80",
        "layout --mma 8x16x16 --target sm80",
        "diff 32x32:32x32 64x64:64x64 --dt f16 --target sm80",
        "explain 32x32:32x32 --dt f16 --target sm80 -o k.html",
        "completion bash",
    ],
)
def test_commands_that_need_no_code_object_take_it(line: str) -> None:
    assert cli.main(line.split()) == 0


def test_the_page_of_a_kernel_without_a_listing_shows_its_text() -> None:
    assert cli.main("explain 32x32:32x32 --dt f16 --target sm80 -o k.html".split()) == 0
    page = Path("k.html").read_text()
    assert "No assembler was found" in page
    assert "mma.m16n8k16.f16" in page


def object_of(machine: int) -> bytes:
    return b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little") + bytes(44)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("analyze k.listing", "analysis of k.listing: Third's Ampere has no reader of code"),
        ("analyze k.listed", "analysis of k.listed: Third's Ampere has no reader of code"),
        ("profile k.listing", "profile of k.listing: Third's Ampere has no model of a compute unit"),
        ("profile k.launch.json", "timing launches of k.launch.json: Third's Ampere has no model of launches"),
        ("profile k.launch.json --att d", "given --att with k.launch.json, wanted it with code that this viewer shows"),
        ("profile k.listed --grid 1 --block 32", "running k.listed: Third's Ampere has no simulator for code objects"),
        ("run k.launch.json", "running code for sm80: Third's Ampere has no simulator"),
        ("run k.listed --grid 1 --block 32", "running k.listed: Third's Ampere has no simulator for code objects"),
        ("check k.listed", "running k.listed: Third's Ampere has no simulator for code objects"),
        ("export k.launch.json --c k", "C for sm80: Third's Ampere has no runtime"),
        ("tune 32x32:32x32 --dt f16 --target sm80 --registry r", "given the target sm80, whose launches have no model"),
        ("gemm 32x32:32x32 --dt f16 --target sm80 --run", "running without a code object: no assembler was found"),
        ("run k.launch.json --on listing", "given the device 'listing', wanted one of hip:0, level_zero:0, cuda:0"),
        ("explain k.listed -o k.html", "analysis of k.listed: Third's Ampere has no reader of code"),
    ],
)
def test_what_it_lacks_is_refused_in_one_line(line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("gemm 32x32:32x32 --dt f16 --target sm80 -o k".split()) == 0
    Path("k.listed").write_bytes(object_of(FAMILY.machine))
    record = evolve(LaunchRecord.read(Path("k.launch.json")), object="k.listed")
    Path("k.launch.json").write_text(record.to_json())
    before = sorted(Path().iterdir())
    capsys.readouterr()
    assert cli.main(line.split()) == 2
    out, told = capsys.readouterr()
    assert not out
    assert complaint in told
    assert told.count("\n") == 1
    assert sorted(Path().iterdir()) == before


@pytest.fixture
def _assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were an assembler: objects that nothing can read or run."""
    monkeypatch.setattr(Listing, "assemble", lambda target, text: object_of(FAMILY.machine))


@pytest.mark.usefixtures("_assembled")
def test_a_page_tells_that_nothing_reads_the_code() -> None:
    assert cli.main("explain 32x32:32x32 --dt f16 --target sm80 -o k.html".split()) == 0
    assert "Third&#39;s Ampere has no reader of code, so its analysis is missing." in Path("k.html").read_text()


@pytest.mark.usefixtures("_assembled")
def test_code_that_nothing_runs_is_written_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("gemm 32x32:32x32 --dt f16 --target sm80 -o k".split()) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["k.launch.json", "k.listed", "k.listing"]
    assert cli.main("gemm 32x32:32x32 --dt f16 --target sm80 --run".split()) == 2
    assert (
        "running code for sm80: Third's Ampere has no simulator, wanted code for AMD, Intel or NVIDIA\n"
        in capsys.readouterr().err
    )
    with pytest.raises(Unsupported, match=r"^code for sm80 on a device: Third's Ampere has no runtime$"):
        cg.load("k.launch.json")


# ---------------------------------------------------------------- instructions of several subgroups only


def test_an_instruction_without_a_twin_for_one_subgroup_is_refused_where_one_is_needed() -> None:
    atom = next(atom for atom in SM90.atoms if atom.spans == 2)
    with pytest.raises(DoesNotFit, match=r"^two\.mma\.m16n8k16\.f16 takes 2 subgroups, and no instruction of one has"):
        atom.of_one_subgroup(SM90.atoms)


def test_an_instruction_for_several_subgroups_finds_its_twin() -> None:
    twins: tuple[MmaAtom, ...] = (*SM90.atoms, *SM80.atoms)
    assert [atom.of_one_subgroup(twins) for atom in SM90.atoms] == list(SM80.atoms)


def test_padding_that_needs_products_of_one_subgroup_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Sums without padding are made again by one subgroup; integers have no infinities, and need none."""
    with pytest.raises(Unsupported, match=r"takes 2 subgroups, and no instruction of one has its sums$"):
        cg.build(parse_problem(f"--dir=FWD_D --dt=f16 {CONV}"), "sm90")
    assert cli.main(f"conv {CONV} --dir FWD_D --dt f16 --target sm90".split()) == 2
    assert cli.main(f"map {CONV} --dir FWD_D --dt f16 --target sm90".split()) == 2
    assert capsys.readouterr().err.count("no instruction of one has its sums\n") == 2
    assert cg.compile(cg.build(parse_problem(f"--dir=FWD_D --dt=s8:s8:s32 {CONV}"), "sm90")).target == "sm90"
