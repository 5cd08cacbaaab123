"""Launch records: a round trip, and one line for each way a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from convgen.backends.simulation import KernelArg
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve
from convgen.run.launch_record import Buffer, Launch, LaunchRecord, Scalar, StoredTensor

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
    (put(*MAIN_ARGS, 0, "kind", "texture"), "buffer or scalar"),
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


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000])
def test_not_a_record(text: str) -> None:
    with pytest.raises(UserError):
        LaunchRecord.from_json(text, "k.json")


def test_records_are_values() -> None:
    assert evolve(RECORD, object=None) != RECORD
    assert hash(LaunchRecord.from_json(RECORD.to_json())) == hash(RECORD)
