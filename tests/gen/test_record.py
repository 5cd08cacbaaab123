"""Launch records: a round trip, and one line for each way a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from convgen.backends.simulation import KernelArg
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import evolve
from convgen.run.launch_record import Buffer, Launch, LaunchRecord, MapArgument, Scalar, StoredTensor

SRC = StoredTensor.of(Layout.from_tag("acdb", (1, 64, 7, 7)), "f16")
DST = StoredTensor.of(Layout.from_tag("acdb", (1, 32, 7, 7)), "f32")

ZERO = Launch("zero", (4, 1, 1), (64, 1, 1), (Buffer("dst", 0, "write", DST),), 8)
MAIN = Launch(
    kernel="main",
    grid=(7, 2, 1),
    workgroup=(256, 1, 1),
    args=(
        Buffer("src", 0, "read", SRC),
        Buffer("dst", 8, "readwrite", DST),
        Scalar("magic", 16, "u32", 0xFFFFFFFE, expr="magic(oh)"),
        Scalar("alpha", 20, "f32", 0.5),
    ),
    kernarg_size=24,
    shared_bytes=512,
    grid_expr=("cdiv(m, 64)", None, None),
)
RECORD = LaunchRecord("gfx942", "k.hsaco", (ZERO, MAIN), problem="--dir=FWD_D mb1_ic64oc32_ih7oh7kh1ph0")


def test_round_trip() -> None:
    text = RECORD.to_json()
    assert LaunchRecord.from_json(text) == RECORD
    assert LaunchRecord.from_json(text).to_json() == text
    bare = LaunchRecord("gfx942", None, ())
    assert LaunchRecord.from_json(bare.to_json()) == bare


def test_the_promised_shape() -> None:
    data = json.loads(RECORD.to_json())
    assert (data["target"], data["object"]) == ("gfx942", "k.hsaco")
    launch = data["launches"][1]
    assert set(launch) == {"kernel", "grid", "workgroup", "lds_bytes", "kernarg_size", "args"}
    assert launch["grid"] == [{"value": 7, "expr": "cdiv(m, 64)"}, 2, 1]
    assert launch["args"][0] == {
        "name": "src",
        "kind": "buffer",
        "offset": 0,
        "size": 8,
        "access": "read",
        "tensor": {"dims": [1, 64, 7, 7], "tag": "acdb", "dtype": "f16", "bytes": 64 * 49 * 2},
    }
    assert launch["args"][3] == {
        "name": "alpha", "kind": "scalar", "offset": 20, "size": 4, "dtype": "f32", "value": 0.5,
    }  # fmt: skip


def test_requests() -> None:
    zero, main = RECORD.requests([(0,), (3, 4)])
    assert zero.groups == (0,)
    assert main.groups == (3, 4)
    assert (main.kernel, main.grid, main.workgroup) == ("main", (7, 2, 1), (256, 1, 1))
    assert (main.shared_bytes, main.kernarg_size) == (512, 24)
    assert main.args == (
        KernelArg(0, 8, "src"),
        KernelArg(8, 8, "dst"),
        KernelArg(16, 4, b"\xfe\xff\xff\xff"),
        KernelArg(20, 4, b"\x00\x00\x00\x3f"),
    )
    assert [request.groups for request in RECORD.requests()] == [None, None]


def test_buffers_merge_access() -> None:
    assert {name: buffer.access for name, buffer in RECORD.buffers.items()} == {"dst": "readwrite", "src": "read"}


def put(*path: Any) -> Callable[[Any], None]:
    """A change that sets the entry at `path[:-1]` to `path[-1]`."""

    def change(data: Any) -> None:
        *keys, last, value = path
        for key in keys:
            data = data[key]
        data[last] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


MAIN_ARGS = ("launches", 1, "args")
MALFORMED = [
    (drop("target"), "no 'target'"),
    (drop("launches"), "no 'launches'"),
    (put("launches", {}), "a list, at launches of k.json"),
    (put("object", 3), "text, at object of k.json"),
    (put("launches", 1, "kernel", ""), "text, at launches[1].kernel"),
    (put("launches", 1, "grid", [1, 1]), "x, y and z"),
    (put("launches", 1, "grid", 0, 0), "an integer from 1 to 2147483647, at launches[1].grid[0]"),
    (put("launches", 1, "grid", 0, {"expr": "m"}), "launches[1].grid[0]"),
    (put("launches", 1, "workgroup", 2, True), "launches[1].workgroup[2]"),
    (put("launches", 1, "lds_bytes", -1), "an integer from 0 to 16777216, at launches[1].lds_bytes"),
    (put("launches", 1, "kernarg_size", 16), "inside the 16 bytes"),
    (put(*MAIN_ARGS, 0, "kind", "texture"), "buffer or scalar or tensor_map"),
    (put(*MAIN_ARGS, 0, "size", 4), "the 8 bytes of the buffer"),
    (put(*MAIN_ARGS, 1, "offset", 4), "at least 8"),
    (put(*MAIN_ARGS, 1, "name", "src"), "one name"),
    (put(*MAIN_ARGS, 0, "access", "peek"), "read or write or readwrite"),
    (put(*MAIN_ARGS, 0, "tensor", "tag", "acdd"), "'d' twice"),
    (put(*MAIN_ARGS, 0, "tensor", "dtype", "f17"), '"f17"'),
    (put(*MAIN_ARGS, 0, "tensor", "bytes", 8), "at least the 6272 bytes"),
    (put(*MAIN_ARGS, 0, "tensor", "dims", 1, -64), "an integer from 0"),
    (put(*MAIN_ARGS, 1, "tensor", "bytes", 10**6), "two tensors for buffer dst"),
    (put(*MAIN_ARGS, 2, "value", 2**32), "a number of type u32"),
    (put(*MAIN_ARGS, 2, "value", 1.5), "a number of type u32"),
    (put(*MAIN_ARGS, 3, "value", float("nan")), "a number of type f32"),
    (put(*MAIN_ARGS, 3, "value", 10**400), "a number of type f32"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED, ids=[message for _, message in MALFORMED])
def test_malformed_records(change: Callable[[Any], None], message: str) -> None:
    data = json.loads(RECORD.to_json())
    change(data)
    with pytest.raises(UserError) as caught:
        LaunchRecord.from_json(json.dumps(data), "k.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


# ---------------------------------------------------------------- tensor maps

TILED = TensorMap("tiled", "f16", "src", (64, 48), (128,), box=(64, 7), swizzle=128, shift=128)
IM2COL = TensorMap(
    *("im2col", "f16", "src", (64, 7, 7, 1), (128, 896, 6272)),
    lower=(-1, -1),
    upper=(-1, 0),
    channels=16,
    pixels=64,
    element_strides=(1, 2, 2, 1),
)
MAPS = LaunchRecord(
    "sm_90a",
    "k.ptx",
    (
        Launch(
            *("main", (7, 1, 1), (128, 1, 1)),
            args=(
                Buffer("src", 0, "read", SRC),
                Buffer("dst", 8, "write", DST),
                MapArgument(64, TILED),
                MapArgument(192, IM2COL),
            ),
            kernarg_size=320,
        ),
    ),
)


def test_tensor_maps_round_trip() -> None:
    text = MAPS.to_json()
    assert LaunchRecord.from_json(text) == MAPS
    assert LaunchRecord.from_json(text).to_json() == text
    tiled, im2col = json.loads(text)["launches"][0]["args"][2:]
    assert tiled == {
        "kind": "tensor_map",
        "offset": 64,
        "size": 128,
        "map": {
            "kind": "tiled",
            "element": "f16",
            "buffer": "src",
            "dims": [64, 48],
            "strides": [128],
            "box": [64, 7],
            "swizzle": 128,
            "shift": 128,
        },
    }
    assert im2col["map"] == {
        "kind": "im2col",
        "element": "f16",
        "buffer": "src",
        "dims": [64, 7, 7, 1],
        "strides": [128, 896, 6272],
        "lower": [-1, -1],
        "upper": [-1, 0],
        "channels": 16,
        "pixels": 64,
        "element_strides": [1, 2, 2, 1],
    }
    row = TensorMap("tiled", "f16", "src", (3136,), (), box=(64,))
    (launch,) = MAPS.launches
    one = evolve(MAPS, launches=(evolve(launch, args=(*launch.args[:2], MapArgument(64, row))),))
    assert LaunchRecord.from_json(one.to_json()) == one


def test_tensor_maps_are_requested_as_they_are() -> None:
    (request,) = MAPS.requests()
    assert request.args[2:] == (KernelArg(64, 128, TILED), KernelArg(192, 128, IM2COL))
    assert request.kernarg_size == 320
    assert [*MAPS.buffers] == ["src", "dst"]
    assert MAPS.with_scalars({}) == MAPS


MAP_ARGS = ("launches", 0, "args")
MALFORMED_MAPS: Mapping[str, tuple[Callable[[Any], None], str]] = {
    "kind of argument": (
        put(*MAP_ARGS, 2, "kind", "texture"),
        "buffer or scalar or tensor_map, at launches[0].args[2]",
    ),
    "size": (put(*MAP_ARGS, 2, "size", 64), "wanted the 128 bytes of the tensor_map, at launches[0].args[2].size"),
    "alignment": (put(*MAP_ARGS, 3, "offset", 200), "wanted a multiple of 64, at launches[0].args[3].offset"),
    "overlap": (put(*MAP_ARGS, 3, "offset", 128), "at least 192"),
    "block": (put("launches", 0, "kernarg_size", 256), "an argument inside the 256 bytes of kernarg_size"),
    "no map": (drop(*MAP_ARGS, 2, "map"), "given no 'map', wanted one, at launches[0].args[2] of k.json"),
    "kind": (put(*MAP_ARGS, 2, "map", "kind", "tile"), "wanted tiled or im2col, at launches[0].args[2].map.kind"),
    "element": (put(*MAP_ARGS, 2, "map", "element", "s16"), 'given "s16", wanted u8 or s8 or '),
    "list": (put(*MAP_ARGS, 2, "map", "dims", 64), "wanted a list, at launches[0].args[2].map.dims of k.json"),
    "no strides": (drop(*MAP_ARGS, 2, "map", "strides"), "given no 'strides'"),
    "rank": (put(*MAP_ARGS, 2, "map", "dims", [1] * 6), "at most 5 items, at launches[0].args[2].map.dims"),
    "number": (put(*MAP_ARGS, 2, "map", "box", 1, True), "at launches[0].args[2].map.box[1] of k.json"),
    "swizzle": (put(*MAP_ARGS, 2, "map", "swizzle", -1), "at launches[0].args[2].map.swizzle of k.json"),
    "rule": (
        put(*MAP_ARGS, 2, "map", "box", [64, 257]),
        "given a tensor map with the box (64, 257), wanted 1 to 256 elements for each of 2 dimensions,"
        " at launches[0].args[2].map of k.json",
    ),
    "corners": (put(*MAP_ARGS, 3, "map", "lower", [-200, 0]), "the lower corner (-200, 0), wanted -128 to 127"),
    "name": (put(*MAP_ARGS, 2, "map", "buffer", "a b"), "given buffer 'a b'"),
    "buffer": (
        put(*MAP_ARGS, 2, "map", "buffer", "wei"),
        'given "wei", wanted a buffer of the launch, at launches[0].args[2].map.buffer of k.json',
    ),
    "end": (
        put(*MAP_ARGS, 2, "map", "dims", [64, 49]),
        "given [64, 49], wanted a tensor map within the 6272 bytes of src, not to 6400, at launches[0].args[2].map.dims"
        " of k.json",
    ),
}


@pytest.mark.parametrize("name", MALFORMED_MAPS)
def test_malformed_tensor_maps(name: str) -> None:
    change, message = MALFORMED_MAPS[name]
    data = json.loads(MAPS.to_json())
    change(data)
    with pytest.raises(UserError) as caught:
        LaunchRecord.from_json(json.dumps(data), "k.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_tensor_map_ends_with_its_buffer() -> None:
    assert MapArgument(0, TILED).end == SRC.bytes
    assert MapArgument(0, evolve(IM2COL, shift=16)).end == SRC.bytes + 16


def test_a_buffer_with_a_tensor_map_keeps_its_size_at_launch() -> None:
    src = Buffer("src", 0, "read", StoredTensor.of(Layout.dense((3136,), (0,)), "f16"), shape=("n",))
    args = (src, Scalar("n", 8, "s32", 3136), MapArgument(64, TILED))
    record = LaunchRecord("sm_90a", None, (Launch("main", (1, 1, 1), (32, 1, 1), args, 192),))
    assert record.with_scalars({"n": 4000}).launches[0].args[2] == args[2]
    text = "given the sizes of kernel main, wanted a tensor map within the 6270 bytes of src, not to 6272"
    with pytest.raises(UserError, match=text):
        record.with_scalars({"n": 3135})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000])
def test_not_a_record(text: str) -> None:
    with pytest.raises(UserError):
        LaunchRecord.from_json(text, "k.json")


def test_records_are_values() -> None:
    assert evolve(RECORD, object=None) != RECORD
    assert hash(LaunchRecord.from_json(RECORD.to_json())) == hash(RECORD)
