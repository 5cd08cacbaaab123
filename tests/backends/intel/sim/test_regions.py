"""Each restriction on regions, types and operands: an instruction that breaks it, and its neighbour that does not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from convgen.backends.intel.sim import CodeObject, platforms
from convgen.backends.intel.sim.compile import Program
from convgen.backends.intel.sim.decode import Instruction, disassemble
from convgen.backends.intel.sim.regions import RULES
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.restrictions import RESTRICTIONS
from convgen.backends.intel.sim.step import Context, Rules, Step
from convgen.backends.intel.sim.syntax_rules import check

COMPILED = Path(__file__).parents[3] / "data" / "intel"
ROWS = {"xehpg": platforms.XEHPG, "xehpc": platforms.XEHPC, "xe2": platforms.XE2}
ENCODING = {"xehpg": "xehpg", "xehpc": "xehpc", "xe2": "xehpc"}  #: whose machine code stands for a platform's


@attrs.frozen
class Case:
    """What breaks a rule, on which platforms, and what does not (on the same)."""

    rule: str  #: a part of the finding's text
    wrong: str
    right: str
    on: tuple[str, ...] = ("xehpg", "xehpc", "xe2")
    fine_on: tuple[str, ...] = ()  #: platforms where the wrong one is right


NARROW = ("xehpc", "xe2")
PACKED = "mov (8|M0) r3.0<1>:hf r21.0<1;1,0>:f"

CASES = [
    # Regions by themselves.
    Case(
        "wider than the execution size", "mov (4|M0) r3.0<1>:ud r5.0<8;8,1>:ud", "mov (4|M0) r3.0<1>:ud r5.0<4;4,1>:ud"
    ),
    Case("horizontal stride", "mov (8|M0) r3.0<1>:ud r5.0<2;1,2>:ud", "mov (8|M0) r3.0<1>:ud r5.0<2;1,0>:ud"),
    Case("vertical stride of the only", "mov (8|M0) r3.0<1>:ud r5.0<4;8,1>:ud", "mov (8|M0) r3.0<1>:ud r5.0<8;8,1>:ud"),
    Case("single lane has strides", "mov (1|M0) r3.0<1>:ud r5.0<1;1,0>:ud", "mov (1|M0) r3.0<1>:ud r5.0<0;1,0>:ud"),
    Case("without strides is wider", "mov (8|M0) r3.0<1>:ud r5.0<0;2,0>:ud", "mov (8|M0) r3.0<1>:ud r5.0<0;2,1>:ud"),
    Case("row crosses", "mov (8|M0) r3.0<1>:ud r5.4<8;8,1>:ud", "mov (8|M0) r3.0<1>:ud r5.4<1;1,0>:ud", ("xehpg",)),
    Case("src0: it touches more", "mov (16|M0) r3.0<1>:uw r5.0<4;1,0>:ud", "mov (8|M0) r3.0<1>:ud r5.0<2;1,0>:ud"),
    Case("the destination touches", "mov (32|M0) r3.0<2>:ud r5.0<0;1,0>:ud", "mov (8|M0) r3.0<2>:ud r5.0<0;1,0>:ud"),
    Case(
        "split its destination",
        "math.inv (8|M0) r3.6<1>:f r5.6<1;1,0>:f",
        "math.inv (8|M0) r3.4<1>:f r5.4<1;1,0>:f",
        ("xehpg",),
    ),
    Case("first channel", "mov (8|M4) r3.0<1>:ud r5.0<1;1,0>:ud", "mov (4|M4) r3.0<1>:ud r5.0<1;1,0>:ud", ("xehpg",)),
    # The destination against what is computed in.
    Case(
        "packed destination of bytes",
        "add (8|M0) r3.0<1>:ub r5.0<8;8,1>:ub r6.0<1;1,0>:uw",
        "mov (8|M0) r3.0<1>:ub r5.0<8;8,1>:ub",
    ),
    Case("its stride is below", "mov (8|M0) r3.0<1>:uw r5.0<1;1,0>:ud", "mov (8|M0) r3.0<2>:uw r5.0<1;1,0>:ud"),
    Case("its stride is below", "mov (8|M0) r3.0<2>:ub r5.0<1;1,0>:f", "mov (8|M0) r3.0<4>:ub r5.0<1;1,0>:f"),
    Case("is not aligned to that type", "mov (8|M0) r3.1<2>:uw r5.0<1;1,0>:ud", "mov (8|M0) r3.2<2>:uw r5.0<1;1,0>:ud"),
    Case(
        "is not aligned to that type",
        "mov (8|M0) r3.2<4>:ub r5.0<1;1,0>:ud",
        "mov (8|M0) r3.1<4>:ub r5.0<1;1,0>:ud",
        ("xehpg",),
        NARROW,
    ),
    Case(
        "conversion between integers and hf",
        "mov (8|M0) r3.0<1>:hf r5.0<1;1,0>:w",
        "mov (8|M0) r3.0<2>:hf r5.0<2;1,0>:w",
    ),
    Case(
        "conversion between integers and hf",
        "mov (8|M0) r3.0<1>:uw r5.0<1;1,0>:hf",
        "mov (8|M0) r3.0<2>:uw r5.0<2;1,0>:hf",
    ),
    Case(
        "src1: bytes cannot",
        "add (8|M0) r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:b",
        "add (8|M0) r3.0<1>:d r6.0<1;1,0>:b r5.0<1;1,0>:d",
    ),
    Case(
        "src2: bytes cannot",
        "mad (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:w r7.0<4>:b",
        "mad (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:w r7.0<2>:w",
    ),
    Case("bytes to 64 bits", "mov (4|M0) r3.0<1>:q r5.0<8;1,0>:b", "mov (4|M0) r3.0<1>:q r5.0<4;1,0>:w", NARROW),
    Case("hf to 64 bits", "mov (4|M0) r3.0<1>:df r5.0<4;1,0>:hf", "mov (4|M0) r3.0<1>:df r5.0<2;1,0>:f", NARROW),
    Case("one byte for all lanes", "mov (8|M0) r3.0<1>:f r5.0<0;1,0>:b", "mov (8|M0) r3.0<1>:f r5.0<0;1,0>:w"),
    Case(
        "hf does not become",
        "mov (8|M0) r3.0<1>:d r5.0<2;1,0>:hf",
        "mov (8|M0) r3.0<1>:d r5.0<1;1,0>:f",
        ("xehpc",),
        ("xehpg", "xe2"),
    ),
    Case(
        "math on hf",
        "math.inv (8|M0) r3.0<1>:hf r5.0<0;1,0>:hf",
        "math.inv (8|M0) r3.0<1>:hf r5.0<1;1,0>:hf",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "sel gives words",
        "(f0.0) sel (8|M0) r3.2<2>:uw r5.0<1;1,0>:ud r6.0<1;1,0>:ud",
        "(f0.0) sel (8|M0) r3.4<2>:uw r5.0<1;1,0>:ud r6.0<1;1,0>:ud",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "words from an odd one",
        "add (8|M0) r3.0<4>:ub r5.0<1;1,0>:uw r6.1<1;1,0>:uw",
        "add (8|M0) r3.0<4>:ub r5.0<1;1,0>:uw r6.2<1;1,0>:uw",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "addressed through a0 meets",
        "mov (16|M0) r3.0<2>:ud r[a0.0]<1;1,0>:ud",
        "mov (8|M0) r3.0<1>:ud r[a0.0]<1;1,0>:ud",
        ("xe2",),
        ("xehpc",),
    ),
    # Where channels lie.
    Case("src0: channels", "mov (8|M0) r3.1<2>:hf r21.0<1;1,0>:f", "mov (8|M0) r3.0<2>:hf r21.0<1;1,0>:f"),
    Case("src0: channels", "mov (8|M0) r3.0<2>:hf r21.4<1;1,0>:f", "mov (8|M0) r3.8<2>:hf r21.4<1;1,0>:f", ("xehpg",)),
    Case(
        "src1: channels",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.1<1;1,0>:f",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.1<0;1,0>:f",
    ),
    Case("src0: channels", "mov (8|M0) r3.0<1>:f r5.0<1;1,0>:uw", "mov (8|M0) r3.0<1>:f r5.0<2;1,0>:uw"),
    Case("src0: channels", "mov (8|M0) r3.0<1>:f r5.0<4;4,2>:f", "mov (8|M0) r3.0<1>:f r5.0<4;4,1>:f"),
    Case("src0: channels", "mov (8|M0) r3.0<1>:q r5.0<1;1,0>:d", "mov (8|M0) r3.0<1>:q r5.0<2;1,0>:d", NARROW),
    Case(
        "src0: channels",
        "mul (8|M0) r3.0<1>:d r5.1<1;1,0>:d r6.0<1;1,0>:d",
        "mul (8|M0) r3.0<1>:d r5.1<1;1,0>:d r6.0<2;1,0>:uw",
    ),
    Case(
        "src0: channels",
        "cmp (8|M0) (lt)f0.0 null<1>:f r5.1<1;1,0>:f 0x0:f",
        "cmp (8|M0) (lt)f0.0 null<1>:f r5.0<1;1,0>:f 0x0:f",
    ),
    Case(
        "channels of src2",
        "mad (8|M0) r3.0<1>:f r5.0<1;0>:f r6.0<1;0>:f r7.1<1>:f",
        "mad (8|M0) r3.0<1>:f r5.0<1;0>:f r6.0<1;0>:f r7.1<0>:f",
    ),
    Case("architecture register takes", "mov (1|M0) r3.0<1>:f sr0.0<0;1,0>:f", "mov (1|M0) r3.0<1>:ud sr0.0<0;1,0>:ud"),
    Case("architecture register takes", "mov (1|M0) a0.0<1>:f r3.0<0;1,0>:f", "mov (1|M0) a0.0<1>:ud r3.0<0;1,0>:ud"),
    Case("address by row", "mov (8|M0) r3.0<1>:f r[a0.0]<1,0>:f", "mov (8|M0) r3.0<1>:ud r[a0.0]<1,0>:ud"),
    Case("has an indirect source", "mov (8|M0) r3.0<2>:hf r[a0.0]<1;1,0>:f", "mov (8|M0) r3.0<2>:hf r5.0<1;1,0>:f"),
    Case(
        "other than mov mixes hf and f",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<2;1,0>:hf",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:f",
    ),
    Case("converted to packed hf", "mov (16|M0) r3.0<1>:hf r21.0<1;1,0>:f", PACKED, ("xehpg",), NARROW),
    Case("half register that belongs", "mov (8|M0) r3.4<1>:hf r21.0<1;1,0>:f", PACKED),
    Case(
        "half register that belongs",
        "mov (8|M0) r3.4<1>:hf r21.0<0;1,0>:f",
        "mov (8|M0) r3.8<1>:hf r21.0<0;1,0>:f",
        ("xehpg",),
    ),
    Case("half register that belongs", "mov (8|M0) r3.0<1>:f r21.1<1;1,0>:hf", "mov (16|M0) r3.0<1>:f r21.0<1;1,0>:hf"),
    # bf.
    Case("all operands are bf", "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:bf", "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:f"),
    Case("another type than f", "mov (8|M0) r3.0<2>:w r5.0<1;1,0>:bf", "mov (8|M0) r3.0<1>:f r5.0<1;1,0>:bf"),
    Case(
        "bf has more lanes",
        "mov (16|M0) r3.0<1>:bf r5.0<1;1,0>:f",
        "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:f",
        ("xehpg",),
        NARROW,
    ),
    Case("bf destination is neither", "mov (8|M0) r3.2<1>:bf r5.0<1;1,0>:f", "mov (8|M0) r3.1<2>:bf r5.0<1;1,0>:f"),
    Case("move to or from bf", "mov (8|M0) r3.0<1>:bf -r5.0<1;1,0>:f", "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:f"),
    Case(
        "bf element for all lanes",
        "add (8|M0) r3.0<1>:f r5.0<0;1,0>:bf r6.0<1;1,0>:f",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:bf r6.0<1;1,0>:f",
    ),
    Case(
        "last factor is bf",
        "mul (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:bf",
        "mul (8|M0) r3.0<1>:f r6.0<1;1,0>:bf r5.0<1;1,0>:f",
    ),
    Case(
        "bf source is not packed",
        "add (8|M0) r3.0<1>:f r5.0<2;1,0>:bf r6.0<1;1,0>:f",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:bf r6.0<1;1,0>:f",
    ),
    # Words and bytes: the manual's cases by (source, destination, destination's stride).
    Case(
        "cannot be reached",
        "mov (8|M0) r3.1<1>:uw r5.0<2;1,0>:uw",
        "mov (8|M0) r3.0<1>:uw r5.0<2;1,0>:uw",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (4|M0) r3.0<1>:uw r5.0<4;1,0>:uw",
        "mov (4|M0) r3.0<2>:uw r5.0<4;1,0>:uw",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (8|M0) r3.2<2>:ub r5.0<2;1,0>:uw",
        "mov (8|M0) r3.2<2>:ub r5.2<2;1,0>:uw",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (4|M0) r3.1<1>:uw r5.0<4;1,0>:ub",
        "mov (4|M0) r3.0<1>:uw r5.0<4;1,0>:ub",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (4|M0) r3.2<2>:ub r5.0<8;1,0>:ub",
        "mov (4|M0) r3.2<2>:ub r5.8<8;1,0>:ub",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (8|M0) r3.1<1>:ub r5.0<2;1,0>:ub",
        "mov (8|M0) r3.1<1>:ub r5.2<2;1,0>:ub",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (8|M0) r3.0<1>:ub r5.2<4;2,2>:ub",
        "mov (8|M0) r3.1<1>:ub r5.2<4;2,2>:ub",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "mov (8|M0) r3.1<1>:uw r5.0<2;4,1>:uw",
        "mov (8|M0) r3.2<1>:uw r5.0<2;4,1>:uw",
        NARROW,
        ("xehpg",),
    ),
    Case(
        "cannot be reached",
        "add (8|M0) r3.0<2>:ub r5.0<1;1,0>:uw r6.0<2;1,0>:uw",
        "add (8|M0) r3.0<2>:ub r5.0<1;1,0>:uw r6.0<1;1,0>:uw",
        ("xe2",),
        ("xehpg", "xehpc"),
    ),
    # Vectors of numbers.
    Case("vector of numbers meets", "mov (8|M0) r3.1<1>:w 0x76543210:v", "mov (8|M0) r3.8<1>:w 0x76543210:v"),
    Case("vector of numbers meets", "mov (8|M0) r3.0<1>:d 0x76543210:v", "mov (4|M0) r3.0<1>:d 0x76543210:v"),
    Case(
        "no vectors of floating",
        "mov (4|M0) r3.0<1>:f 0x20304050:vf",
        "mov (4|M0) r3.0<1>:d 0x76543210:v",
        ("xe2",),
        ("xehpg", "xehpc"),
    ),
    Case(
        "meets a floating-point",
        "mov (4|M0) r3.0<1>:f 0x76543210:v",
        "mov (4|M0) r3.0<1>:d 0x76543210:v",
        ("xe2",),
        ("xehpg", "xehpc"),
    ),
    # Single instructions.
    Case(
        "needs a condition",
        "cmp (8|M0) null<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
        "cmp (8|M0) (lt)f0.0 null<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "an immediate of add3",
        "add3 (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d 0x12:d",
        "add3 (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d 0x12:w",
    ),
    Case("no 64-bit integers", "mov (1|M0) r3.0<1>:q r5.0<0;1,0>:q", "mov (1|M0) r3.0<1>:d r5.0<0;1,0>:d", ("xehpg",)),
    Case("no df", "mov (1|M0) r3.0<1>:df r5.0<0;1,0>:df", "mov (1|M0) r3.0<1>:f r5.0<0;1,0>:f", ("xehpg",)),
    Case("hf and bf cannot mix", "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:hf", "mov (8|M0) r3.0<1>:bf r5.0<1;1,0>:f"),
    Case(
        "whose sign changes",
        "mul (8|M0) r3.0<1>:d r5.0<1;1,0>:d -r6.0<2;1,0>:w",
        "mul (8|M0) r3.0<1>:d r5.0<1;1,0>:d r6.0<2;1,0>:w",
    ),
    Case(
        "multiplied by an integer",
        "mul (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:d",
        "mul (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:f",
    ),
    Case(
        "product becomes floating",
        "mul (8|M0) r3.0<1>:f r5.0<1;1,0>:d r6.0<2;1,0>:w",
        "mul (8|M0) r3.0<1>:d r5.0<1;1,0>:d r6.0<2;1,0>:w",
    ),
    Case(
        "integer factor is",
        "mul (8|M0) r3.0<1>:d acc0.0<1;1,0>:d r6.0<2;1,0>:w",
        "mul (8|M0) r3.0<1>:f acc0.0<1;1,0>:f r6.0<1;1,0>:f",
    ),
    Case(
        "src0 is narrower than",
        "mul (8|M0) r3.0<1>:d r5.0<2;1,0>:w r6.0<1;1,0>:d",
        "mul (8|M0) r3.0<1>:d r6.0<1;1,0>:d r5.0<2;1,0>:w",
    ),
    Case(
        "low half of a product",
        "mul (8|M0) (sat)r3.0<1>:d r5.0<1;1,0>:d r6.0<2;1,0>:w",
        "mul (8|M0) (sat)r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:f",
    ),
    Case(
        "both accumulators",
        "dp4a (8|M0) r3.0<1>:d acc0.0<1;0>:d acc1.0<1;0>:d r6.0<1>:d",
        "dp4a (8|M0) r3.0<1>:d acc0.0<1;0>:d r5.0<1;0>:d r6.0<1>:d",
    ),
    Case(
        "sel has either",
        "(f0.0) sel (8|M0) (lt)f0.0 r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
        "(f0.0) sel (8|M0) r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "csel takes",
        "csel (8|M0) (lt)f0.0 r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d r7.0<2>:w",
        "csel (8|M0) (lt)f0.0 r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d r7.0<1>:d",
    ),
    Case(
        "mad multiplies",
        "mad (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d r7.0<1>:d",
        "mad (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d r7.0<2>:w",
    ),
    Case(
        "add3 takes",
        "add3 (8|M0) r3.0<1>:f r5.0<1;0>:f r6.0<1;0>:f r7.0<1>:f",
        "add3 (8|M0) r3.0<1>:d r5.0<1;0>:d r6.0<1;0>:d r7.0<1>:d",
    ),
    Case(
        "takes an absolute value",
        "and (8|M0) r3.0<1>:d (abs)r5.0<1;1,0>:d r6.0<1;1,0>:d",
        "and (8|M0) r3.0<1>:d ~r5.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "complements an accumulator",
        "and (8|M0) r3.0<1>:d ~acc0.0<1;1,0>:d r6.0<1;1,0>:d",
        "and (8|M0) r3.0<1>:d acc0.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "sets flags by overflow",
        "and (8|M0) (ov)f0.0 r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
        "and (8|M0) (ne)f0.0 r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "avg takes",
        "avg (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:f",
        "avg (8|M0) r3.0<1>:d r5.0<1;1,0>:d r6.0<1;1,0>:d",
    ),
    Case(
        "point are added",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:d",
        "add (8|M0) r3.0<1>:f r5.0<1;1,0>:f r6.0<1;1,0>:f",
    ),
    Case(
        "rotation has",
        "rol (8|M0) r3.0<1>:ud r5.0<2;1,0>:uw r6.0<1;1,0>:ud",
        "rol (8|M0) r3.0<1>:ud r5.0<1;1,0>:ud r6.0<2;1,0>:uw",
    ),
]


@cache
def decoded(sim: Any, encoding: str) -> dict[str, Instruction]:
    """Every instruction of the table in a platform's machine code, by its text."""
    cases = [case for case in CASES if encoding in {ENCODING[name] for name in (*case.on, *case.fine_on)}]
    texts = sorted({text for case in cases for text in (case.wrong, case.right)})
    code = sim.machine_code(encoding, "".join(f"{text}\n" for text in texts))
    return dict(zip(texts, disassemble(code, ROWS[encoding]), strict=False))


def broken(sim: Any, text: str, platform: str) -> list[str]:
    """What an instruction breaks on a platform."""
    row = ROWS[platform]
    instruction = decoded(sim, ENCODING[platform])[text]
    context = Context(row, Layout.of(row, 128), row.dpas_width, {})
    check(instruction, Step(instruction, "alu", lambda g: None), context)
    return [message for _, message in context.faults]


def each() -> Iterator[Any]:
    for case in CASES:
        for platform in (*case.on, *case.fine_on):
            yield pytest.param(case, platform, id=f"{case.wrong} {platform}")


@pytest.mark.parametrize(("case", "platform"), list(each()))
def test_restriction(sim: Any, case: Case, platform: str) -> None:
    found = broken(sim, case.wrong, platform)
    if platform in case.on:
        assert any(case.rule in message for message in found), found
        assert all(message.endswith("]") for message in found), "a finding without its source"
    else:
        assert not any(case.rule in message for message in found), found
    assert not broken(sim, case.right, platform)


def test_every_rule_is_tried() -> None:
    for rule in (*RULES, *RESTRICTIONS):
        assert any(case.rule.rpartition(": ")[2] in rule.says for case in CASES), rule.says


@pytest.mark.parametrize("name", sorted(path.name for path in COMPILED.glob("*.bin")))
def test_compilers_kernels_break_nothing(sim: Any, name: str) -> None:
    """Every instruction of Intel's compiler, executed or not, keeps all rules that an encoding alone shows."""
    code = CodeObject.load((sim.compiled / name).read_bytes())
    for kernel in code.kernels.values():
        instructions = code.instructions(kernel.name)
        program = Program(kernel, instructions, code.platform, Rules(errata=False, trust_igc=True))
        for index, instruction in enumerate(instructions):
            if instruction.op != "illegal":
                assert not program.compile(index).faults, instruction.text
