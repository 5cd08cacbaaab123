"""benchdnn's options: every one is taken at its default; at another value it is kept, or refused by a rule."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import convgen as cg
from convgen.backends import target as targets
from convgen.choose.supported import check_supported
from convgen.ir.error import UserError
from convgen.problem import attributes, options, requests
from convgen.problem.matmul import Problem
from convgen.problem.options import CONV, DECONV, IP, KNOBS, KNOBS_OF, MATMUL, RUN_OPTIONS

DESCRIPTORS = {
    CONV: "mb1_ic16oc16_ih6oh6kh3ph1",
    DECONV: "mb1_ic16oc16_ih6oh6kh3ph1",
    MATMUL: "32x16:16x32",
    IP: "mb8_ic16oc16",
}
FACTS = targets.get("gfx942").facts


def parse(driver: str, line: str) -> Problem:
    (problem,) = requests.problems(driver, line, {})
    return problem


def rule(driver: str, *words: str) -> str | None:
    """By which rule a line is refused."""
    try:
        check_supported(parse(driver, " ".join([*words, DESCRIPTORS[driver]])), FACTS)
    except cg.Unsupported as error:
        return error.rule
    return None


@pytest.mark.parametrize("option", [*KNOBS, *RUN_OPTIONS], ids=lambda option: f"{option.name}-{option.drivers[0]}")
def test_defaults_change_nothing(option: options.Option) -> None:
    for driver in option.drivers:
        plain = parse(driver, DESCRIPTORS[driver])
        for name in (option.name, *option.aliases):
            for text in {"", option.default}:
                assert parse(driver, f"--{name}={text} {DESCRIPTORS[driver]}") == plain
        assert rule(driver, f"--{option.name}={option.default}") is None


def test_names_are_those_of_benchdnn() -> None:
    """Those of its documentation (knobs_common.md, knobs_attr.md, driver_conv.md, driver_matmul.md)."""
    documented = (
        "allow-enum-tags-only buffer-prefix canonical cpu-isa-hints engine impl mem-check memory-kind mode "
        "mode-modifier stream-kind repeats-per-prb skip-impl summary verbose execution-mode attr-same-pd-check "
        "check-ref-impl fast-ref cold-cache fix-times-per-prb max-ms-per-prb num-streams perf-template ctx-init "
        "ctx-exe attr-scratchpad attr-fpmath "
        "attr-acc-mode attr-rounding-mode attr-deterministic attr-dropout attr-scales attr-zero-points "
        "attr-precomputed-reductions attr-post-ops dt stag wtag dtag strides bia-dt"
    ).split()
    for driver, own in ((CONV, ["dir", "cfg", "alg", "mb"]), (MATMUL, ["bia_mask", "runtime_dims_masks", "encoding"])):
        assert {*documented, *own} <= options.SPELLED[driver].keys()


REFUSED = [
    (CONV, ["--attr-scales=src:per_oc"], "scales-k"),
    (MATMUL, ["--attr-scales=src:per_ocic:f32:1x4+wei:per_ocic:f32:6x1"], "scales-groups"),
    (CONV, ["--attr-scales=dst:per_tensor:f32:2x2"], "scales-groups"),
    (CONV, ["--attr-scales=wei:per_oc:s32"], "scales-type"),
    (CONV, ["--attr-scales=wei:per_oc", "--dt=f64"], "scales-type"),
    (CONV, ["--attr-scales=wei:common:2", "--dir=BWD_D"], "scales-backward"),
    (MATMUL, ["--attr-scales=dst:mx:e8m0"], "scales-dynamic"),
    (CONV, ["--attr-scales=src1:common:2"], "scales-argument"),
    (CONV, ["--attr-scales=wei:per_oc+attr_post_op_dw_wei:per_oc"], "post-op-dw"),
    (CONV, ["--attr-zero-points=src:common:1"], "zero-points"),  # of floats
    (MATMUL, ["--attr-zero-points=src:per_ocic:s8:1x4"], "zero-points"),  # of floats
    (CONV, ["--attr-post-ops=soft_relu"], "post-op-eltwise"),
    (CONV, ["--attr-post-ops=relu", "--dir=BWD_D"], "post-op-backward"),
    (CONV, ["--attr-post-ops=relu", "--dt=f64"], "post-op-type"),
    (CONV, ["--attr-post-ops=sum:0.5:2:s8"], "post-op-sum"),
    (CONV, ["--attr-post-ops=sum+add:f4_e2m1"], "post-op-binary"),
    (CONV, ["--attr-post-ops=dw:k3s1p1:f32"], "post-op-dw"),
    (CONV, ["--attr-dropout=0.5:7:axb"], "dropout"),
    (CONV, ["--attr-acc-mode=f16"], "acc-mode"),
    (CONV, ["--attr-rounding-mode=dst:stochastic"], "rounding-mode"),
    (CONV, ["--dir=FWD_D", "--bia-dt=f64"], "bias-type"),
    (CONV, ["--dir=FWD_D", "--dt=f64", "--bia-dt=f32"], "bias-type"),
    (CONV, ["--cfg=u8s8f32"], "cfg"),
    (CONV, ["--dt=s32"], "types"),
    (CONV, ["--dtag=abCd64c"], "blocked-layout"),
    (MATMUL, ["--bia_dt=f4_e2m1"], "bias-type"),
    (MATMUL, ["--encoding=csr+0.99::"], "sparse"),
    (MATMUL, ["--attr-precomputed-reductions=wei:per_tensor:s32:16x1"], "precomputed-reductions"),
]


@pytest.mark.parametrize(("driver", "words", "wanted"), REFUSED, ids=[f"{words[-1]}" for _, words, _ in REFUSED])
def test_other_values_are_refused_by_a_rule(driver: str, words: list[str], wanted: str) -> None:
    """Such a problem is one all the same: it prints, and prints what it is."""
    assert rule(driver, *words) == wanted
    problem = parse(driver, " ".join([*words, DESCRIPTORS[driver]]))
    again = parse(driver, str(problem))
    assert again == problem
    assert str(again) == str(problem)
    if problem.others:
        assert words[-1].replace("bia_dt", "bia-dt") in str(problem)
        with pytest.raises(cg.Unsupported):
            cg.build(problem)


GENERATED = [
    (CONV, ["--attr-acc-mode=relaxed"]),
    (CONV, ["--attr-acc-mode=any", "--attr-scratchpad=user"]),
    (CONV, ["--alg=WINO"]),
    (CONV, ["--alg=convolution_auto"]),
    (CONV, ["--attr-rounding-mode=dst:environment"]),
    (CONV, ["--ctx-init=4:0:1", "--ctx-exe=auto:1"]),
    (CONV, ["--engine=gpu:1", "--mode=p", "--impl=a,b"]),
    (CONV, ["--attr-deterministic=1"]),
    (CONV, ["--dir=FWD_D", "--bia-dt=f16"]),
    (CONV, ["--dir=FWD_D", "--bia-dt=f32", "--dt=s8:s8:s32"]),
    (CONV, ["--attr-post-ops=relu:0.5+tanh+ELTWISE_linear:2:1e+10:0.5"]),
    (CONV, ["--attr-post-ops=sum+ADD:f32+binary_select:u8.per_oc.abx:8+PReLU:per_oc"]),
    (CONV, ["--attr-scales=src0:HOST_SCALAR:0.25:bf16+wei:per_oc:f16+dst:common:1e+10"]),
    (MATMUL, ["--attr-scales=src:per_tensor:f32:1x16+wei:2+dst:per_oc"]),
    (MATMUL, ["--bia_mask=3"]),
    (MATMUL, ["--attr-precomputed-reductions=src:per_tensor:s32:1x16"]),
    (MATMUL, ["--bia_dt=f32", "--bia_mask=3"]),
    (MATMUL, ["--runtime_dims_masks=0:0"]),
    (MATMUL, ["--encoding=::"]),
]


@pytest.mark.parametrize(("driver", "words"), GENERATED, ids=[" ".join(words) for _, words in GENERATED])
def test_values_that_permit_what_is_done_are_taken(driver: str, words: list[str]) -> None:
    assert rule(driver, *words) is None


def test_sums_are_relaxed_where_products_may_have_sums_of_fewer_bits() -> None:
    """Sums of other factors than 8-bit floats are whole, so that mode and strict name one problem."""
    bytes_and_half = cg.Matmul.parse("--dt=f8_e4m3:f8_e5m2:f16 --attr-acc-mode=any 32x16:16x32")
    assert bytes_and_half.acc_mode == "relaxed"
    assert "--attr-acc-mode=relaxed" in str(bytes_and_half)
    assert cg.Matmul.parse("--dt=f16 --attr-acc-mode=any 32x16:16x32") == cg.Matmul.parse("--dt=f16 32x16:16x32")


@pytest.mark.parametrize(("given", "wanted"), [("FWD_D", "FWD_B"), ("FWD_I", "FWD_B"), ("BWD_W", "BWD_WB")])
def test_a_bias_type_makes_a_bias(given: str, wanted: str) -> None:
    """Of the type of the sums it is the bias that there is; where the direction has one, benchdnn ignores the type."""
    descriptor = DESCRIPTORS[CONV]
    assert cg.Conv.parse(descriptor, dir=given, bia_dt="f32", dt="f16") == cg.Conv.parse(
        descriptor, dir=wanted, dt="f16"
    )
    assert cg.Conv.parse(descriptor, dir=wanted, bia_dt="f16") == cg.Conv.parse(descriptor, dir=wanted)
    assert cg.Conv.parse(descriptor, dir="BWD_D", bia_dt="f16") == cg.Conv.parse(descriptor, dir="BWD_D")
    other = cg.Conv.parse(descriptor, dir=given, bia_dt="f16")
    assert cg.Conv.parse(str(other)) == other
    assert (other.bias_type, other.direction.value) == ("f16", wanted)


def test_post_ops_print_as_what_they_are() -> None:
    given = "ELTWISE_Relu:0.5+srelu:1+tanh_dst:0:0+linear:2:1e+10:0.5+logistic:0:0:1+sum:1:0+sum:1:3+sum:1:0:dnnl_f32"
    problem = cg.Matmul.parse("8x8:8x8", attr_post_ops=given)
    wanted = "relu:0.5+soft_relu:1+tanh+linear:2:10000000000:0.5+logistic+sum+sum:1:3+sum:1:0:f32"
    assert f"--attr-post-ops={wanted} " in str(problem)
    assert cg.Matmul.parse(str(problem)) == problem


def test_the_mask_of_a_bias_is_one_of_the_results_dims() -> None:
    problem = cg.Matmul.parse("--bia-dt=bf16 --bia_mask=5 3x4x8:3x8x16")
    assert problem.tensor("bia").dims == (3, 1, 16)
    assert cg.Matmul.parse(str(problem)) == problem


@pytest.mark.parametrize(("mask", "dims"), [(8, (1, 1, 1)), (12, (1, 1, 16)), (15, (3, 4, 16))])
def test_bits_of_a_bias_beyond_the_rank_mean_no_dimension(mask: int, dims: tuple[int, ...]) -> None:
    """As benchdnn takes them."""
    problem = cg.Matmul.parse(f"--bia-dt=bf16 --bia_mask={mask} 3x4x8:3x8x16")
    assert problem.tensor("bia").dims == dims
    assert f"--bia_mask={mask & 7} " in str(problem)


GRAMMAR: list[tuple[Any, str]] = [
    (attributes.post_ops, "sum"),
    (attributes.post_ops, "sum:-1.5:3:u8+eltwise_clip:0:6+mul:f32:2:axb+prelu:15"),
    (attributes.post_ops, "gelu_tanh+eltwise_relu_use_dst_for_bwd:1e-3+soft_relu:1:0:0.5+SRELU"),
    (attributes.post_ops, "binary_add:f32:per_tensor:axb:64x8x1x1"),
    (attributes.post_ops, "select:f32.per_oc.axb:common+add:s32"),
    (attributes.post_ops, "relu+dw:k3s2p1:s8+relu"),
    (attributes.scales, "src:common:0.25+wei:per_oc:f16+dst:common:2:bf16"),
    (attributes.scales, "src:common:1e+10+msrc3:0:0.5"),
    (attributes.scales, "wei:per_ocic:bf16:2x1+dst:mx:e8m0:1x32+attr_post_op_dw_wei:per_oc"),
    (attributes.zero_points, "src:common:-1+wei:2:s8+dst:host_scalar:3:s32"),
    (attributes.zero_points, "src:per_dim_1"),
    (attributes.precomputed_reductions, "src:per_tensor:s32:1x256"),
    (attributes.rounding_mode, "dst:stochastic:42+src:environment"),
    (attributes.dropout, "0.75:959570:undef:0:false"),
    (attributes.encoding, "csr+0.9:packed:"),
    (attributes.grouped, "1:3:8+0+16:16"),
]


@pytest.mark.parametrize(("read", "text"), GRAMMAR, ids=[text for _, text in GRAMMAR])
def test_the_grammar_of_attributes(read: Any, text: str) -> None:
    assert read(text) == text
    assert read("") == ""


WRONG = [
    ("--attr-post-ops=relu+", 5, "nothing after '+'"),
    ("--attr-post-ops=relu:", 5, "nothing after ':'"),
    ("--attr-post-ops=relu:0:0:1:2", 11, "the end"),
    ("--attr-post-ops=sum:1:x", 6, "an integer"),
    ("--attr-post-ops=add", 0, "add:TYPE"),
    ("--attr-post-ops=add:f17", 4, "did you mean f16?"),
    ("--attr-post-ops=add:f32:per_ox", 8, "did you mean per_oc?"),
    ("--attr-post-ops=add:f32:2:zz", 10, "letters of dimensions"),
    ("--attr-post-ops=dw:3s1p1", 3, "k3s1p1"),
    ("--attr-post-ops=dw", 0, "dw:kKsSpP"),
    ("--attr-scales=src", 0, "without a mask or a policy"),
    ("--attr-scales=scr:common:1", 0, "did you mean src?"),
    ("--attr-scales=src:common:big", 11, "a number"),
    ("--attr-scales=wei:per_oc:f32:32", 15, "groups such as 1x32"),
    ("--attr-zero-points=src:common:0.5", 11, "an integer"),
    ("--attr-dropout=1.5", 0, "0 to 1"),
    ("--attr-rounding-mode=dst:up", 4, "environment stochastic"),
    ("--alg=fast", 0, "direct wino auto"),
    ("--ctx-init=many", 0, "auto or numbers"),
    ("--attr-scratchpad=mine", 0, "library user"),
    ("--cfg=int8", 0, "u8s8f32"),
    ("--mode=X", 0, "L, I, R, C"),
    ("--engine=tpu", 0, "cpu or gpu"),
]


@pytest.mark.parametrize(("word", "column", "message"), WRONG, ids=[word for word, *_ in WRONG])
def test_errors_point(word: str, column: int, message: str) -> None:
    with pytest.raises(options.OptionError) as caught:
        cg.Conv.parse(f"{word} {DESCRIPTORS[CONV]}")
    assert caught.value.column == column
    assert message in caught.value.one_line
    assert f"in {word.partition('=')[0]}, at column" in caught.value.one_line
    assert not isinstance(caught.value, cg.Unsupported)


@given(st.sampled_from(KNOBS), st.text("0123456789:+x.esrcwidtfumaplyo_n-", max_size=16))
def test_any_value_is_read_or_refused(option: options.Option, text: str) -> None:
    with suppress(UserError):
        option.value(text)


def test_the_name_of_an_option_that_is_none() -> None:
    with pytest.raises(UserError, match=r"^given the option '--attr-postops=relu' \(did you mean --attr-post-ops\?\)"):
        cg.Conv.parse(f"--attr-postops=relu {DESCRIPTORS[CONV]}")


def test_a_whole_line_of_benchdnn_is_a_problem() -> None:
    """As its verbose converter writes it."""
    line = (
        "--conv --reset --allow-enum-tags-only=0 --engine=gpu --dir=FWD_I --alg=direct --dt=f16:f16:f16 --bia-dt=f32 "
        "--stag=any --wtag=any --dtag=any --attr-scratchpad=user --attr-fpmath=strict:false "
        "mb1_ic16oc16_ih6oh6kh3sh1dh0ph1_iw6ow6kw3sw1dw0pw1"
    )
    assert str(cg.Conv.parse(line)) == f"--dt=f16 {DESCRIPTORS[CONV]}"
    product = "--matmul --reset --engine=gpu --runtime_dims_masks= --dt=f16:f16:f16 --strides=:: 32x16:16x32"
    assert str(cg.Matmul.parse(product)) == f"--dt=f16 {DESCRIPTORS[MATMUL]}"


def test_knobs_are_in_the_order_of_benchdnn() -> None:
    assert [option.name for option in KNOBS_OF[CONV]][:7] == ["dir", "dt", "bia-dt", "stag", "wtag", "dtag", "strides"]
    assert [option.name for option in KNOBS_OF[MATMUL]][-2:] == ["bia-dt", "bia_mask"]


@pytest.mark.parametrize(("text", "wanted"), [("bf16:true:1", "given '1', wanted the end"), ("bf16:maybe", "wanted")])
def test_a_mode_of_arithmetic_takes_one_word_more(text: str, wanted: str) -> None:
    assert attributes.fpmath("bf16") == ("bf16", False)
    assert attributes.fpmath("bf16:true") == ("bf16", True)
    with pytest.raises(UserError, match=wanted):
        attributes.fpmath(text)
