"""Select lines of a benchdnn batch file in which every feature of the file occurs about equally often.

A feature is an option that a line gives, by its value without numbers (`attr-scales=src:per_oc`, one for each part of
a list), or a property of its descriptor (groups, dilation, three axes). The next line taken is always one that has the
feature taken least until then. Each line starts with `--reset`, so that it means alone what it meant in the file:

    python bench/spread.py benchdnn_conv.txt --lines 50 --part 1/5 > lines.txt
    convgen batch lines.txt --target xehpc --run --run-groups 24 --mb 1 --resume lines.journal
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_PROPERTIES = {
    "groups": re.compile(r"g(?!1(?!\d))\d+.*ic"),
    "dilation": re.compile(r"d[dhw][1-9]"),
    "stride": re.compile(r"s[dhw](?!1(?!\d))\d"),
    "three axes": re.compile(r"id\d.*kd\d|kd\d.*id\d"),
    "batched": re.compile(r"^\d+x\d+x\d+(x\d+)*:"),
}


def features(line: str) -> frozenset[str]:
    """Return the features of a line of a batch file."""
    found = set()
    for word in line.split():
        if not word.startswith("--"):
            found |= {name for name, pattern in _PROPERTIES.items() if pattern.search(word)}
            continue
        name, _, value = word[2:].partition("=")
        parts = value.split("+") if name.startswith("attr") else [value]
        found |= {f"{name}={part if name == 'dt' else _shape(name, part)}" for part in parts}
    return frozenset(found)


def _shape(name: str, value: str) -> str:
    """A value without its numbers; layouts and masks are numbers or letters that matter."""
    return value if name.endswith(("tag", "mask", "masks")) else _NUMBER.sub("", value)


def spread(lines: list[str], count: int) -> list[str]:
    """Some of the lines, in an order in which rare features come early."""
    asked = {line: features(line) for line in dict.fromkeys(lines)}
    taken: Counter[str] = Counter(dict.fromkeys(frozenset().union(*asked.values()), 0))
    chosen: list[str] = []
    while asked and len(chosen) < count:
        line = min(asked, key=lambda line: min((taken[feature] for feature in asked[line]), default=0))
        taken.update(asked.pop(line))
        chosen.append(line)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=50)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th line of the file, from the I-th on")
    options = parser.parse_args()
    first, step = map(int, options.part.split("/"))
    lines = [line for line in options.file.read_text().splitlines() if line and not line.startswith("#")]
    for line in spread(lines[first - 1 :: step], options.lines):
        print("--reset", line)


if __name__ == "__main__":
    main()
