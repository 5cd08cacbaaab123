"""The library of functions: each keeps its stated error, whatever errors hardware makes in what it is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.ir import evaluate_floats, functions
from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Cast, Var, const
from convgen.ir.floats import APPROXIMATE, Accuracy
from convgen.ir.functions import LIBRARY
from convgen.ir.mutate import postorder
from convgen.ir.types import Type, bf16, f16, f32, f64, s32, vector
from tests.arithmetic import TINY, error
from tests.functions import EXACT, TWO, operands, usual


@contextmanager
def wrong_by(share: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Approximate operations err by such a share of what they may, one way or the other."""
    rng = np.random.default_rng(5)
    with monkeypatch.context() as patch:
        for cls, f in list(evaluate_floats.APPROXIMATE.items()):

            def function(data: Any, cls: Any = cls, f: Any = f) -> Any:
                found, of = f(data), cls.accuracy[f32]
                ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(found), TINY[f32]))) - 23)
                room = (np.maximum(of.ulps * ulp, of.absolute) - ulp / 2) * share
                off = found + room * rng.choice([-1.0, 1.0], data.shape)
                return np.where(np.isfinite(found) & (found != 0), off, found)

            patch.setitem(evaluate_floats.APPROXIMATE, cls, function)
        yield


def computed(name: str, given: list[Any], elem: Type) -> Any:
    names = [Var(n, 1, elem) for n in "xy"[: len(given)]]
    ev = Evaluator(given[0].size)
    ev.env.update({v: Value(data) for v, data in zip(names, given)})
    return ev(LIBRARY[name](*names)).data


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("name", LIBRARY)
def test_errors_are_within_what_is_stated(name: str, elem: Type, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(name, elem)
    with np.errstate(all="ignore"):
        exact = EXACT[name](*(g.astype(np.float64) for g in given))
        with wrong_by(share, monkeypatch):
            found = computed(name, given, elem)
        of = LIBRARY[name].accuracy_of(elem)
        far = error(found, exact, elem, of)
    if name == "divide":
        far = np.where(usual(exact), far, 0)
    worst = far.argmax()
    assert far[worst] <= 1, (name, far[worst], [g[worst] for g in given], found[worst], exact[worst])


def test_a_smaller_bound_than_the_stated_one_would_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("exp", "tanh", "sigmoid", "softplus"):
        given = operands(name, f32)
        with np.errstate(all="ignore"), wrong_by(1.0, monkeypatch):
            exact = EXACT[name](given[0].astype(np.float64))
            far = error(computed(name, given, f32), exact, f32, LIBRARY[name].accuracy)
        assert far.max() > 0.25, (name, far.max())


def told(of: Accuracy) -> str:
    """An accuracy in the words of docs/ir.md."""
    power = math.log2(of.absolute) if of.absolute else 0.0
    absolute = f"2^{power:.0f}" if power.is_integer() else f"{of.absolute:g}"
    return f"{of.ulps:g} ulp" + (f", or {absolute} if that is more" if of.absolute else "")


def test_the_documentation_has_the_stated_errors() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ir.md").read_text()
    for f in LIBRARY.values():
        where = (f.where or "all").replace("|", "\\|")
        assert f"| `{f.name}` | {told(f.accuracy)} | {where} |" in text
    for cls in APPROXIMATE:
        row = re.search(rf"^\| [^|]*`{cls.symbol}`[^|]* \| ([^|]*ulp[^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
        assert row is not None
        assert row.groups() == (told(cls.accuracy[f32]), told(cls.accuracy[f16]))


@pytest.mark.parametrize("name", LIBRARY)
def test_narrow_types_are_computed_in_f32(name: str) -> None:
    for type in (bf16, vector(bf16, 4), vector(f16, 8)):
        operands_ = [Var(n, 1, type) for n in "xy"[: 2 if name in TWO else 1]]
        made = LIBRARY[name](*operands_)
        assert made.type is type
        inside = [n for n in postorder(made) if not isinstance(n, (Cast, Var))]
        assert {n.type.elem for n in inside if n.type.elem.is_float} <= {f32}  # type: ignore[attr-defined]


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match="given exp of f64, wanted elements of f32, f16 or bf16"):
        functions.exp(const(1.0, f64))
    with pytest.raises(UserError, match="given tanh of s32"):
        functions.tanh(const(1, s32))
