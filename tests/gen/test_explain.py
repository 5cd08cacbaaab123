"""Pages: complete in themselves, the same each time, of sound structure, and with the answers people look for."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends.analysis import Stretch
from convgen.backends.timing import TimedLine
from convgen.commands import cli
from convgen.explain import history, pictures, words
from convgen.explain.page import _ranking, page
from convgen.explain.subject import Subject, generate, of_code, of_problem, of_record
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Shared, Swizzle, row_major
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.record import evolve
from convgen.ir.types import f16
from convgen.show import listing
from convgen.show.drawing import _shade
from convgen.show.listing import Row, Waits

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
DEMO = "mb1ic64ih56oc64oh56kh3ph1"  #: the layer of `./dev demo`
SMALL = "mb1ic16oc16ih6kh3ph1"
VOID = {"meta", "link", "br", "input", "path", "rect", "img", "hr"}


class Page(HTMLParser):
    """What a page consists of; raises where elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.seen: Counter[str] = Counter()
        self.headings: list[int] = []
        self.outside: list[str] = []  #: what would be fetched
        self.tables: list[Counter[str]] = []
        self.unnamed: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.seen[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        if (name := given.get("id")) is not None:
            self.ids[name] += 1
        for wanted in ("aria-labelledby", "href"):
            told = given.get(wanted) or ""
            self.links += told.split() if wanted != "href" else [told[1:]] if told.startswith("#") else []
        self.outside += [v for k in ("src", "href") if (v := given.get(k)) and not v.startswith(("#", "data:"))]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "table":
            self.tables.append(Counter())
        if self.tables and "table" in self.open:
            self.tables[-1][f"{tag} {given.get('scope', '')}".strip()] += 1
        if given.get("role") == "region" and not (given.get("aria-label") and given.get("tabindex") == "0"):
            self.unnamed.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def demo(target: str) -> Subject:
    return of_problem(cg.Conv.parse(DEMO, dir="FWD_D", dt="f16"), target, groups=1)


@pytest.fixture(scope="module", params=["gfx942", "xehpc"])
def shown(request: pytest.FixtureRequest) -> tuple[Subject, str]:
    subject = demo(request.param)
    return subject, page(subject)


def check(text: str) -> Page:
    """A page that a screen reader finds its way in, and that needs nothing else."""
    found = Page(text)
    assert not found.outside
    assert not found.unnamed
    assert max(found.ids.values()) == 1
    assert set(found.links) <= set(found.ids)
    assert [found.seen[tag] for tag in ("header", "main", "footer", "nav", "h1")] == [1] * 5
    assert found.headings[0] == 1
    assert all(next_ <= before + 1 for before, next_ in zip(found.headings, found.headings[1:]))
    for table in found.tables:
        assert table["caption"] == 1
        assert table["th col"] >= 2
    assert found.seen["svg"] == found.seen["desc"]
    assert "url(" not in text
    assert "@import" not in text
    return found


def test_the_page_is_sound_and_complete_in_itself(shown: tuple[Subject, str]) -> None:
    found = check(shown[1])
    assert len(shown[1].encode()) < 3_000_000
    for heading in (
        "Why this config",
        "After every pass",
        "Layouts",
        "Who computes which tile",
        "Assembly",
        "Findings",
    ):
        assert heading in found.text


def test_the_page_is_the_same_each_time() -> None:
    problem = cg.Conv.parse(SMALL, dir="FWD_D", dt="f16")
    first, second = (page(of_problem(problem, "gfx942", groups=1)) for _ in range(2))
    assert first == second


def test_it_tells_which_pass_introduced_the_swizzle(shown: tuple[Subject, str]) -> None:
    text = Page(shown[1]).text
    if shown[0].target == "gfx942":
        told = "no pass: it was decided with the config, so that the IR has it as built; the pass lower_tiles put it"
        assert f"wei_tile : {told}" in text
        assert "extra clocks; without the swizzle it would be" in text
    else:
        assert "Which pass introduced the swizzle" not in text
        assert "No swizzle: elements stand in the order in which the matrix instruction takes them." in text
        assert "Which workgroup computes which tile" in text
        assert not re.search(r"\b(one )?die\b", text)


def test_it_tells_which_instruction_waits_longest(shown: tuple[Subject, str]) -> None:
    subject, text = shown
    (kernel,) = subject.analysis.kernels if subject.analysis else ()
    longest = max(subject.timed(kernel.name), key=lambda timed: timed.stalled)
    told = Page(text).text
    at = told.index("Which instruction waits longest")
    assert f"+{longest.line.offset:#06x}" in told[at : at + 60]
    assert f"{longest.stalled:.0f} clocks" in told[at : at + 300]


def _row(number: int, stalled: float, times: float = 1.0) -> Row:
    return Row("s_barrier", number=number, offset=4 * number, times=times, stalled=stalled, is_timed=True)


def test_waits_of_all_times_and_of_one() -> None:
    rows = [_row(0, 0.4), _row(1, 280.2, 10), _row(2, 116), _row(3, 279.8, 10), _row(4, 1)]
    found = listing.longest(rows, 2)
    assert [row.number for row in found.rows] == [1, 3]
    assert (found.alike, found.count) == (1, 4)
    assert found.longest_each == rows[2]
    assert listing.longest([rows[2], _row(5, 100, 2)], 8) == Waits([rows[2], _row(5, 100, 2)], 0, 2, None)
    assert listing.longest(rows[:1], 8) == Waits()


def test_a_loop_that_no_launch_enters_is_not_told_as_hot() -> None:
    """With one image the loop over K is unrolled; what is left makes sums anew that padding spoilt, and is skipped."""
    subject = demo("gfx942")
    assert subject.analysis
    (kernel,) = subject.analysis.kernels
    assert not kernel.hot.is_loop
    assert "hot loop none: what every wave runs through once, +0x0 to" in Page(page(subject)).text

    executed = {t.line.offset for t in subject.timed(kernel.name) if t.times}
    skipped = Stretch(tuple(line for line in kernel.lines if line.offset not in executed), True)
    other = evolve(kernel, hot=skipped)
    assert not listing.enters_loop(other, subject.timed(kernel.name))
    analysis = evolve(subject.analysis, kernels=(other,))
    text = Page(page(evolve(subject, analysis=analysis))).text
    assert f"hot loop none: this launch does not enter the loop at +{skipped.lines[0].offset:#x} to" in text
    assert "What the hot code occupies" not in text
    assert "A bar on the left marks the hot loop" not in text
    assert listing.enters_loop(other, ())
    assert listing.enters_loop(other, [TimedLine(skipped.lines[0], 0.0)])


def test_every_step_of_an_order_is_in_words() -> None:
    (first, told), (second, _) = words.order_words("xcc:8+even:5m")
    assert (first, second) == ("xcc:8", "even:5m")
    assert "each die gets one run" in told
    assert words.order_words(str(IN_ROWS)) == [("rows", words.STEPS_OF_ORDERS["rows"])]


def test_every_instruction_leads_to_the_ir_and_back(shown: tuple[Subject, str]) -> None:
    links = re.findall(r'<tr id="(k0-\d+)" data-l="0\.(\d+)".*?href="#(k0-ir\d+)"', shown[1])
    assert len(links) > 500
    assert all(there == f"k0-ir{line}" for _, line, there in links)
    back = dict(re.findall(r'<tr id="(k0-ir\d+)" data-l[^>]*><td class="at"><a href="#(k0-\d+)"', shown[1]))
    first = {there: here for here, _, there in reversed(links)}
    assert back == first


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "xe2"])
def test_printed_and_decoded_instructions_are_put_together(target: str) -> None:
    made = generate(cg.Matmul.parse("64x64:64x64", dt="f16"), target)
    name = made.code.name
    rows = listing.printed_rows(made.code.asm, name)
    labels = [row.label for row in rows if row.label]
    assert labels == list(dict.fromkeys(labels))
    assert sum(not row.label and row.line > 0 for row in rows) > 0.8 * len(rows)
    if made.code.object is None:  # Debian's iga64 does not know xe2
        return
    from convgen.backends import target as targets

    (kernel,) = targets.analyze_code(made.code.object, f"k{targets.get(target).family.object_suffix}").kernels
    merged = listing.rows_of(made.code.asm, kernel, ())
    assert [row.offset for row in merged if row.offset >= 0] == [line.offset for line in kernel.lines]
    assert [row.text for row in merged] == [row.text for row in rows]
    ending = [row.text for row in rows if not row.label][len(kernel.lines) - 1]  # padding follows on Xe
    operation = next(word for word in ending.split() if not word.startswith("("))
    for text in (made.code.asm.replace(name, "another"), made.code.asm.replace(operation, "something")):
        other = listing.rows_of(text, kernel, ())  # which is of something else
        assert [row.text for row in other] == [line.text for line in kernel.lines]


def test_the_steps_are_those_of_the_driver() -> None:
    made = generate(cg.Conv.parse(SMALL, dir="FWD_D", dt="f16"), "gfx942")
    (way,) = made.histories.values()
    from convgen.compile_steps import steps as every

    assert [step.name for step in way.steps] == [step.name for step in every("gfx942")]
    text = str(way.built).splitlines()
    for step in way.steps:  # a difference, applied to what was there, gives what the step left
        if step.kernel is None:
            break
        now = str(step.kernel).splitlines()
        assert len(now) - len(text) == step.added - step.removed
        assert [line for sign, line in step.rows if sign == "+" and line not in now] == []
        text = now
    names, kinds = history.census(way)
    assert names[0] == "as built"
    assert dict(kinds)["Copy"][0] == 2
    assert dict(kinds)["Copy"][-1] == 0


def test_a_config_that_failed_leaves_no_steps() -> None:
    recorder = history.Recorder()
    problem = cg.Conv.parse(SMALL, dir="FWD_D", dt="f16")
    for _ in range(2):
        cg.compile(cg.build(problem, observe=recorder.observe))
    (way,) = recorder.histories.values()
    assert len({step.name for step in way.steps}) == len(way.steps)


def test_tiles_and_dies() -> None:
    made = generate(
        cg.Matmul.parse("1024x1024:1024x1024", dt="f16"),
        "gfx942",
        "tile=128x128x32 waves=2x2 mma=32x32x8 map=xcc:8+group:4m",
    )
    found = pictures.mapping(made.longest.plan, made.longest.together)
    assert found is not None
    assert (found.m, found.n, found.dies) == (8, 8, 8)
    tiles = WorkgroupMapping.of(8, 8, order=made.longest.plan.config.map).tiles()
    group = next(n for n, row in enumerate(tiles.tolist()) if row[1:3] == [3, 5])
    assert found.tiles[3][5] == f"die {group % 8}, workgroup {group}, round 0"
    text = page(of_problem(made.problem, "gfx942", made.config))
    assert f'<td id="tile-3-5" title="die {group % 8}, workgroup {group}, round 0">' in text
    assert f"tile (3, 5), say, has die {group % 8}, workgroup {group}, round 0; " in text


def test_workgroups_that_persist_have_several_tiles() -> None:
    config = "tile=128x128x32 waves=2x2 mma=32x32x8 map="
    problem = cg.Matmul.parse("1024x1024:1024x1024", dt="f16")
    whole, shared = (
        pictures.mapping(generate(problem, "gfx942", f"{config}{order}").longest.plan, 1)
        for order in ("persist:20", "stream:20")
    )
    assert whole is not None
    assert whole.tiles[7][7] == "die 3, workgroup 3"  # number 63, in the fourth round of 20
    assert whole.drawing is not None
    last = max((box for box in whole.drawing.boxes if box.round is not None), key=lambda box: (box.y, box.x))
    assert (last.colour, last.round) == (_shade(3, 3, 4), 3)
    assert shared is not None
    several = [told for row in shared.tiles for told in row if ";" in told]
    assert 0 < len(several) < 64
    assert all(re.fullmatch(r"die (\d+), workgroup \d+(; .*)?", told) for told in several)


def test_results_of_many_tiles_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate(cg.Matmul.parse("1024x1024:1024x1024", dt="f16"), "gfx942", "tile=128x128x32 waves=2x2 mma=32x32x8")
    for most, is_drawn in ((64, True), (63, False)):
        monkeypatch.setattr(pictures, "_MOST_TILES", most)
        found = pictures.mapping(made.longest.plan, 1)
        assert found is not None
        assert (bool(found.tiles), found.drawing is not None) == (is_drawn, is_drawn)


def test_fragments_are_drawn_where_they_can_be() -> None:
    """Of two dimensions, whole, of no more elements than somebody can look at; with tables if they are few."""
    made = generate(
        cg.Matmul.parse("512x512:512x512", dt="f16"), "gfx942", "tile=256x256x32 waves=2x2 mma=32x32x8 acc=a"
    )
    (way,) = made.histories.values()
    found = [*pictures.fragments(way.built, 64), *pictures.instruction_fragments(made.longest.plan)]
    sizes = {f.name: math.prod(int(n) for n in re.findall(r"(\d+) [a-z]", f.shape)) for f in found}
    assert min(sizes.values()) <= 1024 < 8192 < max(sizes.values())
    for each in found:
        assert (each.drawing is not None) == (sizes[each.name] <= 8192)
        assert bool(each.table) == (sizes[each.name] <= 1024)
    part = Fragment(("i", "j"), (Digit("i", 8, Space.FIXED, 1), Digit("j", 64, Space.LANE, 1)))
    assert pictures._fragment("part", part, (), 64, 1).drawing is None


def test_colours_of_banks_are_named() -> None:
    """Of a swizzled tile the parts of its rows, which are exchanged; else the rows."""
    for swizzle, word in ((Swizzle(0, 7), "part"), (Swizzle(), "row")):
        drawn = pictures._banks(Shared("t", f16, 8, 64, row_major(8, 64), 1, swizzle, 16), cg.facts("gfx942"))
        assert f"{word} 0" in [line.text for line in drawn.lines]


def test_which_chunks_a_swizzle_counts_is_told() -> None:
    """Those of a row, or of all rows where these change places."""
    for mask, what in ((3, "of a row,"), (7, "counted row after row,")):
        tile = Shared("t", f16, 8, 32, row_major(8, 32), 1, Swizzle(0, mask), 16)
        told = f"Swizzled: chunk c of 16 bytes, {what} stands at place c ^ (row >> 0 & {mask})."
        assert pictures._arrangement(tile) == told


def test_the_ranking_has_ten_rows_and_how_many_run_together() -> None:
    made = generate(cg.Matmul.parse("512x512:512x512", dt="f16"), "gfx942").longest
    assert [row[0][0] for row in _ranking(made)["rows"]] == [str(n) for n in range(1, 11)]
    assert made.together == made.ranking[0].together
    assert evolve(made, ranking=()).together == 1


@pytest.mark.parametrize(
    ("word", "value", "missing"), [("object", None, "a code object"), ("launches", [], "launches")]
)
def test_a_record_of_nothing(tmp_path: Path, word: str, value: object, missing: str) -> None:
    assert cli.main(["gemm", "64x64:64x64", "--dt=f16", "-o", str(tmp_path / "k")]) == 0
    record = tmp_path / "k.launch.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), word: value}))
    with pytest.raises(cg.UserError, match=f"given k.launch.json without {missing}, wanted a record that has both"):
        of_record(record, {})


def test_a_shared_tile_is_drawn_as_it_lies() -> None:
    tile = Shared("t", f16, 8, 64, row_major(8, 64), 1, Swizzle(0, 7), 16)
    drawn = pictures._banks(tile, cg.facts("gfx942"))
    texts = [(line.x, line.y, line.text) for line in drawn.lines if line.text.startswith(("r", "·"))]
    rows = sorted({y for _, y, text in texts if text.startswith("·")})
    third = [text for _, y, text in sorted(texts) if y == rows[3]]
    assert third == [f"·{place ^ 3}" for place in range(8)]


def test_a_record_is_made_again(tmp_path: Path) -> None:
    assert cli.main(["conv", SMALL, "--dir=FWD_D", "--dt=f16", "-o", f"{tmp_path}/k"]) == 0
    again = of_record(tmp_path / "k.launch.json", {})
    assert again.generated is not None
    (remark,) = again.remarks  # and nothing of scalars that nobody chose
    assert "the code equals that of k.hsaco, instruction by instruction" in remark
    check(page(again))
    text = (tmp_path / "k.s").read_text()
    another = "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 taps=split acc=v"
    (tmp_path / "k.s").write_text(re.sub(r"tile=\S+ waves=.* acc=v", another, text))
    other = of_record(tmp_path / "k.launch.json", {})
    assert other.generated is None
    assert "other code" in other.remarks[0]
    assert other.times is not None
    check(page(other))


def test_a_record_of_another_convgen_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    line = ["gemm", "64x64:64x64", "--dt=f16", "--target=xehpc", "-o", f"{tmp_path}/k"]
    assert cli.main(line) == 0
    record = (tmp_path / "k.launch.json").read_text()
    (tmp_path / "k.launch.json").write_text(record.replace("64x64:64x64", "64x128:128x64"))
    other = of_record(tmp_path / "k.launch.json", {})
    assert other.generated is None
    assert other.loops
    check(page(other))


def test_scalars_that_a_host_chooses(tmp_path: Path) -> None:
    config = "tile=64x64x32 waves=2x2 mma=32x32x8 map=wgm:8m"
    assert cli.main(["gemm", "512x64:64x512", "--dt=f16", "--config", config, "-o", f"{tmp_path}/k"]) == 0
    file = tmp_path / "k.html"
    assert cli.main(["explain", f"{tmp_path}/k.launch.json", "--set", "wgm=3", "-o", str(file)]) == 0
    assert "Why this config" in check(file.read_text()).text
    assert cli.main(["explain", f"{tmp_path}/k.launch.json", "--set", "speed=3", "-o", str(file)]) == 2


def test_kernels_of_others(tmp_path: Path) -> None:
    path = FOREIGN / "triton_gfx942_small_gemm_NT.hsaco"
    bare = of_code(path, None)
    assert bare.loops
    found = check(page(bare))
    assert "Why this config" not in found.text
    assert "Nothing was executed" in found.text
    given = ("f16:128x128", "f16:128x128", "f32:128x128", *["128"] * 6)
    arguments = ["--grid=4", "--block=256", "--lds=8192", *(f"--arg={n}={value}" for n, value in enumerate(given))]
    file = tmp_path / "t.html"
    assert cli.main(["explain", str(path), *arguments, "-o", str(file)]) == 0
    found = check(file.read_text())
    assert "How long it takes" in found.text
    assert "Timeline" in found.text


def test_lines_of_a_source_stand_beside_the_code_of_others(tmp_path: Path) -> None:
    line = ["gemm", "64x64:64x64", "--dt=f16", "-g", "-o", f"{tmp_path}/k"]
    assert cli.main(line) == 0
    text = page(of_code(tmp_path / "k.hsaco", None))
    (listed,) = tmp_path.glob("*.ir")
    assert '<th scope="col">source</th>' in text
    found = {int(number) for number in re.findall(rf'<td class="at">{listed.name}:(\d+)</td>', text)}
    assert len(found) > 20
    assert max(found) <= len(listed.read_text().splitlines())
    check(text)


def test_text_without_an_assembler_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVGEN_IGA64", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("convgen.backends.toolchain.Tool.find", lambda tool: None)
    found = check(page(of_problem(cg.Matmul.parse("64x64:64x64", dt="f16"), "xehpc")))
    assert "No assembler was found" in found.text
    assert "dpas" in found.text


def test_several_kernels_have_names_of_their_own() -> None:
    strided = cg.Conv.parse("mb1ic32ih8oc32oh4kh3sh2ph1", dir="BWD_D", dt="f16")
    config = "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2"
    subject = of_problem(strided, "gfx942", config)
    assert len(subject.launches) == 4
    text = page(subject)
    check(text)
    assert "wei_tile of " in Page(text).text.replace(" :", ":")


def test_names_are_escaped() -> None:
    subject = evolve(of_code(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco", None), name="<b>&\x1b[31m")
    text = page(subject)
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;" in text
    assert "\x1b" not in text
