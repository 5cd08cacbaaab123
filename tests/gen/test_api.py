"""What a program that embeds convgen sees: errors of exported classes that speak of arguments, arrays of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import convgen as cg
from convgen.problem import options
from convgen.problem.knobs import ConvKnobs, MatmulKnobs
from convgen.run.code import Code

DESC = "mb1ic2oc2ih2kh1"


@pytest.fixture(scope="module")
def code() -> Code:
    return cg.compile(cg.build(cg.Conv.parse(DESC, dir="FWD_D", dt="f16")))


ERRORS: list[tuple[Callable[[], object], type[cg.ConvgenError], str]] = [
    (lambda: cg.Conv.parse("ic4"), cg.UserError, "given no spatial axis"),
    (lambda: cg.Conv.parse(DESC, dt="f15"), cg.UserError, "given the type 'f15' (did you mean f16?)"),
    (lambda: cg.Matmul.parse("4x4:4x4", stag="abd"), cg.UserError, "given dimension 'd'"),
    (
        lambda: cg.Matmul.parse("4x4:4x4", mb=1),  # type: ignore[call-arg]  # which mypy is to see
        cg.UserError,
        "given the argument 'mb', wanted one of dt, stag, ",
    ),
    (
        lambda: cg.Conv.from_sizes(ic=4, oc=4, input=(8, 8), kernel=(3, 3, 3)),
        cg.UserError,
        "given 3 sizes, wanted one or 2, at kernel",
    ),
    (
        lambda: cg.Conv.from_sizes(ic=4, oc=4, input=(), kernel=3),
        cg.UserError,
        "given an input of 0 dimensions, wanted 1 to 3, at input",
    ),
    (
        lambda: cg.Conv.parse(DESC, stag="axb", strides="8x1x4x2::"),
        cg.UserError,
        "given axb and strides of src, wanted one of them in stag",
    ),
    (
        lambda: cg.build(cg.Conv.parse(DESC, attr_post_ops="soft_relu")),
        cg.Unsupported,
        "given attr-post-ops soft_relu, wanted",
    ),
    (
        lambda: cg.build(cg.Conv.parse(DESC), target="gfx9420"),
        cg.UserError,
        "given target 'gfx9420' (did you mean gfx942",
    ),
    (lambda: cg.build(cg.Conv.parse(DESC), config="tile"), cg.UserError, "given 'tile', wanted one of tile=, "),
    (lambda: cg.build(cast(Any, DESC)), cg.UserError, "given problem of type str, wanted Conv or Matmul"),
    (lambda: cg.compile(cast(Any, None)), cg.UserError, "given program of type NoneType, wanted Build or Kernel or"),
    (lambda: cg.simulate(cast(Any, 1)), cg.UserError, "given code of type int, wanted Code"),
    (
        lambda: cg.build(cg.Conv.parse(DESC), config="tile=3x3x3 waves=1x1 mma=16x16x16"),
        cg.UserError,
        "given the config tile=3x3x3 ",
    ),
    (lambda: cg.build(cg.Conv.parse(DESC), cast(Any, 942)), cg.UserError, "given target of type int, wanted str"),
    (lambda: cg.facts(cast(Any, None)), cg.UserError, "given target of type NoneType, wanted str"),
    (
        lambda: cg.build(cg.Conv.parse(DESC), disable=cast(Any, "simplify")),
        cg.UserError,
        "given disable='simplify', wanted a tuple of names",
    ),
    (
        lambda: cg.build(cg.Conv.parse(DESC), registry=cast(Any, 3)),
        cg.UserError,
        "given a registry of type int, wanted a path",
    ),
    (lambda: cg.load(cast(Any, 3)), cg.UserError, "given code of type int, wanted Code or the path of a launch record"),
    (
        lambda: cg.export(cast(Any, 3), "k"),
        cg.UserError,
        "given code of type int, wanted Code or the path of a launch record",
    ),
    (lambda: cg.load("k.json", cast(Any, 0)), cg.UserError, "given device of type int, wanted a name KIND:NUMBER"),
    (lambda: cg.export("k.json", cast(Any, 0)), cg.UserError, "given prefix of type int, wanted a path"),
]


@pytest.mark.parametrize(("work", "error", "message"), ERRORS, ids=[message for *_, message in ERRORS])
def test_errors(work: Callable[[], object], error: type[cg.ConvgenError], message: str) -> None:
    with pytest.raises(cg.ConvgenError) as caught:
        work()
    assert isinstance(caught.value, error)
    assert str(caught.value).startswith(message)
    assert "--" not in str(caught.value)


def test_a_registry_that_is_missing_is_named_by_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cg.Conv.parse(DESC)
    with pytest.raises(cg.UserError, match=r"^cannot read missing: No such file or directory, at --registry$"):
        cg.build(problem, registry="missing")
    monkeypatch.setenv("CONVGEN_REGISTRY", "missing")
    with pytest.raises(cg.UserError, match=r"^cannot read missing: No such file or directory, at CONVGEN_REGISTRY$"):
        cg.build(problem)


def test_what_is_exported_is_there() -> None:
    for name in cg.__all__:
        assert getattr(cg, name) is not None
    assert issubclass(cg.SimulationError, cg.ConvgenError)


class Wrapped:
    """An array of another library."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.array


def test_lists_and_other_arrays_are_taken(code: Code) -> None:
    src = [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]]
    wei = Wrapped(np.array([[[[1]], [[0]]], [[[1]], [[1]]]], np.float16))
    out = cg.simulate(code, src=src, wei=wei)
    assert out.dtype == np.float16
    assert out.tolist() == [[[[1, 2], [3, 4]], [[6, 8], [10, 12]]]]


def test_what_is_no_array(code: Code) -> None:
    with pytest.raises(cg.UserError, match=r"^given src that is no array \("):
        cg.simulate(code, src=[[1], [2, 3]], wei=[])
    with pytest.raises(cg.UserError, match=r"^given arrays src 2, wanted src 1x2x2x2, wei 2x2x1x1$"):
        cg.simulate(code, src=[1, 2])
    with pytest.raises(cg.UserError, match=r"^given no arrays, wanted src 1x2x2x2, wei 2x2x1x1$"):
        cg.simulate(code)
    with pytest.raises(cg.UserError, match=r"^given arrays src \(one number\), wanted src 1x2x2x2, wei 2x2x1x1$"):
        cg.simulate(code, src=1)


@pytest.mark.parametrize("target", ["gfx90a", "nonsense"])
def test_a_program_is_compiled_for_the_target_that_it_was_built_for(target: str) -> None:
    program = cg.build(cg.Matmul.parse("16x16:16x16", dt="f16"), target="gfx942")
    with pytest.raises(
        cg.UserError,
        match="given target=gfx90a for a program built for gfx942, wanted target=gfx942 or none"
        if target == "gfx90a"
        else target,
    ):
        cg.compile(program, target=target)
    assert cg.compile(program, target="gfx942").target == "gfx942"


def test_a_convolution_of_sizes_is_that_of_a_descriptor() -> None:
    made = cg.Conv.from_sizes(
        mb=2, ic=64, oc=128, input=(56, 28), kernel=3, stride=(2, 1), padding=1, dilation=(1, 2), dir="FWD_D", dt="f16"
    )
    line = "mb2ic64oc128ih56oh28kh3sh2ph1dh0iw28ow26kw3sw1pw1dw1"
    assert made == cg.Conv.parse(line, dir="FWD_D", dt="f16")
    assert cg.Conv.from_sizes(ic=4, oc=4, input=(8,), kernel=1).src_dims == (1, 4, 8)
    grouped = cg.Conv.from_sizes(ic=8, oc=8, input=(4, 4, 4), kernel=2, output=(4, 4, 4), groups=4)
    assert (grouped.groups, grouped.dst_dims) == (4, (1, 8, 4, 4, 4))


def test_type_checkers_know_every_knob() -> None:
    known: dict[str, type] = {options.CONV: ConvKnobs, options.MATMUL: MatmulKnobs}
    for driver, knobs in known.items():
        assert set(knobs.__annotations__) == {option.keyword for option in options.KNOBS_OF[driver]}
