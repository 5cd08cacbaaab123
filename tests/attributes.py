"""Random scales, zero points and post-ops, as texts, for tensors of some number of dims."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from convgen.run.accuracy import REFERENCES

_FLOATS = ("f32", "f16", "bf16")
_OPERANDS = (*_FLOATS, "s32", "s8", "u8")
_BINARY = ("add", "sub", "mul", "div", "min", "max", "eq", "ne", "lt", "le", "gt", "ge")
_FUNCTIONS = ("relu", "relu:0.1", "clip:-2:3", "linear:0.5:1.5", "abs", "round", "hardswish:0.1:0.5", "pow:0.5:1")
_SIGNS = ("linear:-1", "clip:0:4", "clip:-3:0", "relu", "max:f32", "min:f32")  #: of zeros, too
_BOUNDED = ("tanh", "logistic", "gelu_erf", "swish:0.5", "elu:0.5")
_VALUES = ("0.25", "0.5", "2", "1.25", "0.025", "4294967295")

assert {text.partition(":")[0] for text in (*_FUNCTIONS, *_BOUNDED)} <= set(REFERENCES)


def masks(ndims: int, without: int = 0) -> tuple[str, ...]:
    """Those of a tensor, but for some bits."""
    return tuple(str(mask) for mask in range(1, 1 << ndims) if not mask & without)


@st.composite
def scales(draw: st.DrawFn, known: Mapping[str, Collection[str]]) -> str:
    """Those of some tensors: by role the masks that each may have."""
    entries = []
    for role, of_role in known.items():
        mask = draw(st.sampled_from(("", "", "common", "host_scalar", *of_role)))
        if mask:
            value = [draw(st.sampled_from(_VALUES))] if mask in ("common", "host_scalar") else []
            entries.append(":".join([role, mask, *value, draw(st.sampled_from(_FLOATS))]))
    return "+".join(entries)


_POINTS = (-128, -2, 1, 5, 127, 128, 135, 255)


@st.composite
def zero_points(draw: st.DrawFn) -> str:
    """Those of some arguments: one, or one for each channel of src, or for each channel or column of the others."""
    known = {name: f"{name}:common:{draw(st.sampled_from(_POINTS))}" for name in ("src", "wei", "dst")}
    found = (
        draw(st.sampled_from(("", "", known["src"], "src:common:s32", "src:per_dim_1"))),
        draw(st.sampled_from(("", "", known["wei"], "wei:common:s8", "wei:per_oc:s8", "wei:per_oc:u8"))),
        draw(st.sampled_from(("", "", known["dst"], "dst:common:s32", "dst:per_dim_1"))),
    )
    return "+".join(filter(None, found))


@st.composite
def post_ops(draw: st.DrawFn, ndims: int) -> str:
    """A few, one behind the other."""
    mask = st.sampled_from(("common", "per_dim_01", "per_oc", "per_tensor", *masks(ndims)))
    tag = st.just("any") | st.permutations("abcdef"[:ndims]).map("".join) | st.sampled_from(("axb", "abx"))
    dtype = st.sampled_from(_OPERANDS)
    op = st.one_of(
        st.sampled_from(_FUNCTIONS),
        st.sampled_from(_FUNCTIONS + _BOUNDED),
        st.sampled_from(("sum", "sum:0.5:3")),
        st.sampled_from(_SIGNS),
        st.builds("{}:{}:{}:{}".format, st.sampled_from(_BINARY), dtype, mask, tag),
        st.builds("{}:{}:{}:{}".format, st.sampled_from(_BINARY), dtype, mask, tag),
        st.builds("select:{}.{}.{}:{}.{}".format, dtype, mask, tag, mask, tag),
        st.builds("prelu:{}".format, mask),
    )
    return "+".join(draw(st.lists(op, max_size=3)))
