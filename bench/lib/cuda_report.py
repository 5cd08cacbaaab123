"""Tables of docs/silicon.md, from the JSON that `bench/silicon.py` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
_TAGS = re.compile(r"--(?:dt=f16|stag=axb|wtag=axb|dtag=axb|wtag=ba|wtag=acb) ")
_SIZES = re.compile(r"(?<=--grouped=)([01]:[0-9]+):[0-9+]+")  #: of groups, of which a table shows the number


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def where(found: Json) -> str:
    """Return the sentence on card, driver, libraries and date."""
    at = found["where"]
    libraries = f"PyTorch {at['torch']}, CUDA {at['cuda']}, cuDNN {at['cudnn']}"
    return f"{at['card']}, driver {at['driver']}; {libraries}; {at['date']}."


def checks(found: Json) -> list[str]:
    """Return the table of what was compared, and what differed."""
    rows: list[Sequence[object]] = []
    if "instructions" in found:
        part = found["instructions"]
        rows.append(
            ("single instructions, random operands", f"{part['cases']} of {part['forms']} forms", len(part["differ"]))
        )
    if "sums" in found:
        part = found["sums"]
        rows.append(("products of random floats by `wgmma`, every bit", f"{part['cases']}", len(part["differ"])))
    if "uses" in found:
        outcomes = found["uses"].values()
        rows.append(("uses of a kernel, each once", f"{len(outcomes)}", sum(each != "right" for each in outcomes)))
    names = {"listed": "layers of tests/data/problems, 3 directions, f16", "drawn": "random problems and configs"}
    for name, what in names.items():
        if name in found:
            part = found[name]
            outcomes = dict(part["outcomes"])
            exact = f"{outcomes.pop('exact', 0)} of {part['problems']} exact, {part['outputs']:,} outputs compared"
            refused = outcomes.pop("refused", 0)
            rows.append((what, exact + (f", {refused} refused" if refused else ""), sum(outcomes.values())))
    for tool, part in found.get("sanitizer", {}).items():
        rows.append((f"compute-sanitizer, {tool}", f"{part['problems']} problems", part["errors"]))
    return _table(("what", "run", "wrong"), rows)


def times(measured: Iterable[Json], peer: str = "cuDNN or cuBLAS") -> list[str]:
    """Return the table of times, kernels beside the peer's."""
    rows = []
    for row in measured:
        problem = _SIZES.sub(r"\1", _TAGS.sub("", row["problem"]))
        figures = ("-", "-", row["refused"]) if "refused" in row else (row["ours_us"], row["peer_us"], row["ratio"])
        shown = [f"{x:.2f}" if isinstance(x, float) and number == 2 else f"{x:.1f}" for number, x in enumerate(figures)]
        rows.append((f"`{problem}`", *shown, f"`{row['config']}`"))
    return _table(("problem", "convgen, us", f"{peer}, us", "peer / convgen", "config"), rows)


def attention(measured: Iterable[Json]) -> list[str]:
    """Return the table of attention beside torch's, whose time is the lesser of two kernels'."""
    rows = []
    for row in measured:
        figures = ["-", "-", "-", row["refused"]] if "refused" in row else _figures(row)
        rows.append((row["case"], row["kernel"], *figures))
    return _table(("attention", "kernel", "convgen, us", "TFLOP/s", "torch, us", "torch / convgen"), rows)


def _figures(row: Json) -> list[str]:
    torch_us = min(row[name] for name in ("flash_us", "cudnn_us") if name in row)
    return [f"{row['ours_us']:.1f}", f"{row['tflops']:.0f}", f"{torch_us:.1f}", f"{row['ratio']:.2f}"]


def page_parts(found: Json) -> dict[str, list[str]]:
    """Return the generated lines of the page by the name of their marker."""
    tables = {
        name: times(found[name]) for name in ("times", "tuned", "models", "types", "decode", "groups") if name in found
    }
    tables |= {"attention": attention(found["attention"])} if "attention" in found else {}
    tables |= {"triton": times(found["triton"], "Triton")} if "triton" in found else {}
    return {"where": [where(found)], "checks": checks(found), **tables}


def filled(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Return a page with the lines between `<!-- NAME -->` and `<!-- end -->` replaced."""
    for name, lines in parts.items():
        inside = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        body = "\n".join(lines)
        text = inside.sub(lambda m, body=body: f"{m[1]}\n{body}\n\n{m[2]}", text)  # type: ignore[misc]
    return text
