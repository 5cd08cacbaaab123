"""Choice of the cases of a parametrised test that run always, by the mark `in_turn(n)`; sweeps run all."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

FEW = 2  #: cases of one function that are few enough to run always
TARGET, FAMILY = "target of a case", "family"  #: names of the parameters that stand for a target and its family

Value = tuple[str, str]  #: a parameter, and its value as text


def in_turn(cases: Mapping[str, Mapping[str, object]], n: int) -> set[str]:
    """Return the names of one case in `n`, and of more until each family and each value of several cases is chosen.

    `cases` has the parameters of each case by its name; of the targets of a family one is enough. The next case is the
    one that brings most values of parameters that no chosen case has, then most pairs of values; among equals a hash of
    the name decides. So neither a family nor a direction that is a parameter is lost, and pairs recur late.
    """
    if len(cases) <= FEW:
        return set(cases)
    values = {name: frozenset((p, repr(v)) for p, v in parameters.items()) for name, parameters in cases.items()}
    counts = Counter(value for of_case in values.values() for value in of_case)
    pairs = {name: frozenset(combinations(sorted(of_case), 2)) for name, of_case in values.items()}
    wanted = {value for value, count in counts.items() if value[0] == FAMILY or (count > 1 and value[0] != TARGET)}
    left = sorted(cases, key=lambda name: (zlib.crc32(name.encode()), name))
    chosen: set[str] = set()
    seen_values: set[Value] = set()
    seen_pairs: set[tuple[Value, ...]] = set()
    while len(chosen) * n < len(cases) or not wanted <= seen_values:
        best = max(left, key=lambda name: (len(values[name] & wanted - seen_values), len(pairs[name] - seen_pairs)))
        left.remove(best)
        chosen.add(best)
        seen_values |= values[best]
        seen_pairs |= pairs[best]
    return chosen
