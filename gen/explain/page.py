"""Render the page from a template, with its style and script included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import prod
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from convgen.backends import target as targets
from convgen.backends.analysis import KernelAnalysis
from convgen.explain import pictures, words
from convgen.explain.history import census
from convgen.explain.subject import Choice, Generated, Subject
from convgen.ir.error import visible
from convgen.ir.record import frozen
from convgen.ir.types import scalar
from convgen.show import analyzed, drawing, listing, profiled, report, timeline
from convgen.show.drawing import Drawing
from convgen.show.listing import Row, Waits
from convgen.version import __version__

_RANKED = 10  #: configs that the ranking shows
_LONGEST = 8  #: instructions that wait longest
_PARTS = ("matrix", "shared", "global", "issue")  #: columns of a ranking, of which the slowest sets the pace

Rows = Sequence[tuple[str, str]]
Rows3 = Sequence[tuple[str, str, str]]


@frozen(eq=False)
class KernelPart:
    """The part of the page on one kernel's machine code."""

    number: int
    name: str
    rows: Sequence[Row]
    waits: Waits
    ir: Sequence[tuple[int, str, Sequence[Row], float]]  #: number, text, instructions and their stalls of each line
    facts: Rows = ()  #: of `convgen analyze`, where there is machine code
    units: Sequence[tuple[str, ...]] = ()
    reference: str = ""  #: of the clocks: a subgroup, or its iteration; empty if nothing was timed
    times: Rows = ()  #: of `convgen profile`

    @property
    def has_sources(self) -> bool:
        """Return whether instructions refer to lines of a source file that the page does not show."""
        return not self.ir and any(row.source for row in self.rows)

    @property
    def has_hot_loop(self) -> bool:
        return any(row.is_hot for row in self.rows)


def page(subject: Subject) -> str:
    """Return the page as one HTML file without references."""
    loader = PackageLoader("convgen.explain", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    context: dict[str, Any] = {
        "subject": subject,
        "generated": subject.generated,
        "version": __version__,
        "style": Markup(_resource("style.css")),
        "script": Markup(_resource("script.js")),
        "svg": _Pictures().svg,
        "kernels": list(_kernels(subject)),
        "timelines": _timelines(subject),
        "total": profiled.total_rows(subject.times) if subject.times else [],
        "longest_launch": subject.times.longest if subject.times else None,
        "bound": words.bound,
        "findings": _findings(subject),
        "outcome": _outcome(subject),
        **(_of_generated(subject.generated) if subject.generated else {}),
    }
    return environment.get_template("page.html").render(context)


def _resource(name: str) -> str:
    return (files("convgen.explain") / "templates" / name).read_text()


class _Pictures:
    """Drawings as SVG; names of elements are unique on the page."""

    def __init__(self) -> None:
        self.count = 0

    def svg(self, shown: Drawing) -> Markup:
        self.count += 1
        return Markup(drawing.svg(shown, prefix=f"p{self.count}-"))


# ---------------------------------------------------------------- problem and config


def _of_generated(generated: Generated) -> dict[str, Any]:
    """Return the variables of the sections that only generated kernels have."""
    return {
        "tensors": _tensors(generated),
        "sizes": _sizes(generated),
        "outputs": sum(prod(spec.dims) for spec in generated.problem.outputs),
        "choices": list(_choices(generated)),
        "attempts": report.attempts_table(generated.attempts),
        "steps": [(name, history, *census(history)) for name, history in generated.histories.items()],
        "shown": _layouts(generated),
        "order_words": words.order_words,
    }


def _tensors(generated: Generated) -> list[tuple[str, ...]]:
    """Return name, role, size, layout, type and bytes of each tensor."""
    written = {spec.name for spec in generated.problem.outputs}
    return [
        (
            spec.name,
            "written" if spec.name in written else "read",
            " × ".join(map(str, spec.dims)),
            spec.layout.tag,
            spec.dtype,
            f"{scalar(spec.dtype).size(spec.layout.size_elems):,}",
        )
        for spec in generated.problem.tensors
    ]


def _sizes(generated: Generated) -> Rows:
    """Return the rows on the matrix products of the problem."""
    products = []
    for part in (part for member in generated.members for part in member.plan.parts):
        p = part.product
        batch = f", {p.batch} times" if p.batch > 1 else ""
        products.append(("as a product", f"M {p.m:,} × N {p.n:,}, each a sum of K {p.k:,}{batch}"))
    return [
        *dict.fromkeys(products),
        ("arithmetic", f"{2e-9 * generated.problem.macs:,.3f} GFLOP, products with padding included"),
    ]


def _choices(generated: Generated) -> Iterator[tuple[str, str, Rows3, dict[str, Any]]]:
    """Yield problem, config, its words and the ranking of each member of a call; the problem of a single one is ""."""
    for member in generated.members:
        title = "" if len(generated.members) == 1 else str(member.problem)
        config = member.plan.config
        yield title, str(config), list(words.config_words(config)), _ranking(member)


def _ranking(generated: Choice) -> dict[str, Any]:
    """Return the table of the best configs, with the slowest part of each row, and the rank of the chosen config."""
    header, rows = report.ranking_table(generated.ranking)
    config, columns = str(generated.unordered), [header.index(part) for part in _PARTS]
    taken = next((rank for rank, row in enumerate(rows, 1) if row[1] == config), None)
    shown = []
    for rank, row in enumerate(rows, 1):
        if rank <= _RANKED or rank == taken:
            clocks = {column: float(row[column]) for column in columns if row[column] != "-"}
            shown.append((row, max(clocks, key=lambda column: clocks[column], default=-1), rank == taken))
    return {"header": header, "rows": shown, "count": len(generated.ranking), "taken": taken}


# ---------------------------------------------------------------- layouts


def _layouts(generated: Generated) -> dict[str, Any]:
    facts = targets.get(generated.code.target).facts
    kernels = [
        (name, pictures.fragments(history.built, facts.subgroup_size), pictures.shared_tiles(history, facts))
        for name, history in generated.histories.items()
    ]
    return {
        "atoms": pictures.instruction_fragments(generated.longest.plan),
        "kernels": kernels,
        "has_swizzles": any(tile.is_swizzled for _, _, tiles in kernels for tile in tiles),
        "mapping": pictures.mapping(generated.longest.plan, generated.longest.together),
        "lanes": facts.subgroup_size,
    }


# ---------------------------------------------------------------- machine code


def _kernels(subject: Subject) -> Iterator[KernelPart]:
    """Yield each kernel of the code object; without one, of the assembly."""
    listings = {} if subject.generated is None else subject.generated.code.listings
    if subject.analysis is None:
        assert subject.generated is not None
        for number, name in enumerate(subject.generated.code.kernels):
            rows = listing.printed_rows(subject.text or "", name)
            yield KernelPart(number, name, rows, Waits(), list(_ir(listings.get(f"{name}.ir", ""), rows)))
        return
    for number, kernel in enumerate(subject.analysis.kernels):
        rows = listing.rows_of(subject.text, kernel, subject.timed(kernel.name))
        facts, units = _facts(subject, kernel)
        yield KernelPart(
            number,
            kernel.name,
            rows,
            listing.longest(rows, _LONGEST),
            list(_ir(listings.get(f"{kernel.name}.ir", ""), rows)),
            facts,
            units,
            _reference(subject, kernel),
            _times(subject, kernel.name),
        )


def _facts(subject: Subject, kernel: KernelAnalysis) -> tuple[Rows, Sequence[tuple[str, ...]]]:
    """Return the rows of `analyze` and its table of units; of a hot loop that a launch does not enter, its place."""
    assert subject.analysis is not None
    hot, terms = kernel.hot, subject.analysis.terms
    if hot.is_loop and not listing.enters_loop(kernel, subject.timed(kernel.name)):
        place = f"none: this launch does not enter the loop at {analyzed.where(hot)}"
        return [*analyzed.kernel_rows(kernel, subject.analysis), ("hot loop", place)], ()
    return analyzed.rows(kernel, subject.analysis), analyzed.units(hot, terms)


def _ir(text: str, rows: Sequence[Row]) -> Iterator[tuple[int, str, Sequence[Row], float]]:
    """Yield each line of the IR with its number, its instructions and their stalls."""
    instructions = listing.by_line(rows)
    for number, line in enumerate(text.splitlines(), 1):
        of_line = instructions.get(number, [])
        yield number, line, of_line, sum(row.stalled for row in of_line)


def _reference(subject: Subject, kernel: KernelAnalysis) -> str:
    """Return the reference of clocks: a subgroup, or its iteration of the hot loop."""
    assert subject.analysis is not None
    if not subject.timed(kernel.name):
        return ""
    whose = f"of a {subject.analysis.terms.subgroup}"
    if subject.times:
        return f"{whose}, from its first instruction to its last"
    return f"{whose}, in an iteration of the hot loop" if kernel.hot.is_loop else whose


def _times(subject: Subject, kernel: str) -> Rows:
    """Return the rows of `profile`: on a kernel's launch, else on its loops."""
    for time in subject.times.launches if subject.times else ():
        if time.profile.kernel == kernel:
            assert subject.times is not None
            return profiled.launch_rows(time, subject.times.chip)
    profiles = (profile for profile in subject.loops if profile.name == kernel)
    return [row for profile in profiles for loop in profile.loops for row in profiled.loop_rows(profile, loop)]


def _timelines(subject: Subject) -> list[Drawing]:
    """Return a picture of each kernel that was executed."""
    launches = subject.times.launches if subject.times else ()
    return [timeline.picture(profile) for profile in {t.profile.kernel: t.profile for t in launches}.values()]


def _findings(subject: Subject) -> list[tuple[str, str]]:
    """Return the simulator's findings, each with whether it fails a run."""
    launches = subject.times.launches if subject.times else ()
    findings = [finding for launch in launches for finding in launch.profile.findings]
    findings += subject.outcome.findings if subject.outcome else ()
    return [("required" if f.source.required else "advice", str(f)) for f in dict.fromkeys(findings)]


def _outcome(subject: Subject) -> Rows:
    """Return the verdict on the compared tiles, without wall time, so that equal runs give equal pages."""
    rows = report.outcome_rows(subject.outcome) if subject.outcome else []
    return [(label, text) for label, text in rows if label != "simulated"]
