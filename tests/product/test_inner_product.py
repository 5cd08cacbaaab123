"""benchdnn's inner products against their definition: dst[mb, oc] sums src[mb, ic, ...] * wei[oc, ic, ...]."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.problem import inner_product
from convgen.problem.matmul import Matmul
from convgen.run import reference, verdict

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx942", "gfx950", "xehpc", "sm_80", "sm_90a")
TAGS = ("", "--stag=ba --wtag=ba --dtag=ab", "--stag=axb --wtag=xba --dtag=ba", "--strides=24x1:20x1:17x1")


def drawn(*shape: int, seed: int) -> Any:
    """Return small integers, of which every sum is exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tags", TAGS)
def test_of_vectors(tags: str, target: str) -> None:
    mb, ic, oc = 5, 18, 12
    src, wei, dst = drawn(mb, ic, seed=1), drawn(oc, ic, seed=2), drawn(mb, oc, seed=3)
    right = {"FWD_D": src @ wei.T, "BWD_D": dst @ wei, "BWD_W": dst.T @ src}
    factors = {"FWD_D": (src, wei.T), "BWD_D": (dst, wei), "BWD_W": (dst.T, src)}
    for direction, (left, other) in factors.items():
        problem = inner_product.of(f"--dir={direction} --dt=f32 {tags} mb{mb}ic{ic}oc{oc}", {})
        code = cg.compile(cg.build(problem, target))
        assert np.array_equal(cg.simulate(code, src=left, wei=other), right[direction])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_of_images(direction: str, target: str) -> None:
    line = f"--dir={direction} --dt=f32 --stag=axb --dtag=ba mb3ic5ih4iw3oc6"
    problem = inner_product.of(line, {})
    assert problem.dst_dims == (3, 6, 1, 1)
    src, wei, dst = drawn(3, 5, 4, 3, seed=1), drawn(6, 5, 4, 3, seed=2), drawn(3, 6, seed=3)
    arrays, right = {
        "FWD_D": ({"src": src, "wei": wei}, np.einsum("nchw,kchw->nk", src, wei)),
        "BWD_D": ({"wei": wei, "diff_dst": dst[:, :, None, None]}, np.einsum("nk,kchw->nchw", dst, wei)),
        "BWD_W": ({"src": src, "diff_dst": dst[:, :, None, None]}, np.einsum("nk,nchw->kchw", dst, src)),
    }[direction]
    code = cg.compile(cg.build(problem, target))
    assert np.array_equal(cg.simulate(code, **arrays).reshape(right.shape), right)


@pytest.mark.parametrize(("line", "wanted"), [
    ("--dir=FWD_D --dt=f16 ic16oc8", "--dt=f16 2x16:16x8"),
    ("--dt=u8:s8:s8 --bia-dt=f32 mb4ic16oc8", "--dt=u8:s8:s8 --bia-dt=f32 4x16:16x8"),
    ("--dt=f16 --mb=7 mb4ic16oc8n\"fc\"", '--dt=f16 --bia-dt=f32 7x16:16x8_n"fc"'),
    (
        "--dir=FWD_I --dt=s8 --wtag=BA16b32a --attr-scales=wei:1+dst:common:2 --attr-post-ops=relu mb4ic64oc32",
        "--dt=s8 --wtag=AB16a32b --attr-scales=wei:2+dst:common:2 --attr-post-ops=relu 4x64:64x32",
    ),
    (
        "--dir=FWD_D --dt=f16:s4:f16 --attr-fpmath=f16:true --attr-scales=wei:3:f16:1x32 mb4ic64oc32",
        "--dt=f16:s4:f16 --attr-fpmath=f16:true --attr-scales=wei:3:f16:32x1 4x64:64x32",
    ),
    ("--dir=BWD_D --dt=f32:f16:f16 mb4ic16oc8", "--dt=f16:f16:f32 4x8:8x16"),
    ("--dir=BWD_W --dt=f16:f32:f16 mb4ic16oc8", "--dt=f16:f16:f32 8x4:4x16"),
    ("--dir=FWD_D --dt=f16 mb4ic16ih3oc8", "--dir=FWD_D --dt=f16 mb4_ic16oc8_ih3oh1kh3ph0"),
    ("--dir=FWD_B --dt=f16 --bia-dt=f16 mb4ic16iw9oc8", "--bia-dt=f16 --dir=FWD_D --dt=f16 mb4_ic16oc8_iw9ow1kw9pw0"),
])  # fmt: skip
def test_lines_as_products(line: str, wanted: str) -> None:
    assert sorted(str(inner_product.of(line, {})).split()) == sorted(wanted.split())


def test_a_bias_and_steps() -> None:
    line = "--dt=f16:f16:f32 --attr-post-ops=relu+add:f32:per_tensor mb5ic24oc12"
    problem = inner_product.of(line, {})
    assert isinstance(problem, Matmul)
    for target in ("gfx942", "xehpc", "sm_90a"):
        code = cg.compile(cg.build(problem, target))
        assert verdict.run(code, seed=1).passed
    arrays: dict[str, Any] = dict(reference.fill(problem))
    sums = arrays["src"].astype(np.float32) @ arrays["wei"].astype(np.float32) + arrays["bia"]
    assert np.array_equal(cg.simulate(code, **arrays), np.maximum(sums, 0) + arrays["post_op_1"])


@pytest.mark.parametrize(("line", "message"), [
    ("--dir=BWD_WB mb4ic16oc8", "the gradient of the bias of an inner product"),
    ("mb4oc8", "given no ic, wanted at least 1"),
    ("--alg=direct mb4ic4oc8", "given the option '--alg=direct'"),
])  # fmt: skip
def test_refusals(line: str, message: str) -> None:
    with pytest.raises(cg.ConvgenError, match=message):
        inner_product.of(line, {})
