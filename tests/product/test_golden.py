"""Small kernels whose text a person has read, byte for byte. `./dev bless` rewrites the files."""

from __future__ import annotations

from collections.abc import Callable

from convgen import driver
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem

Golden = Callable[[str, str], None]


def assembly(descriptor: str, dt: str, config: str, target: str = "gfx942") -> str:
    return driver.compile(driver.build(Conv.parse(descriptor, dir="FWD_D", dt=dt), target, config)).asm


def up_to_the_loops_end(asm: str) -> str:
    """All but the stores of the result."""
    return asm[: asm.index("k_loop_end:")]


def body(asm: str) -> str:
    """From the kernel's label to the end of the program."""
    lines = asm.splitlines()
    start = next(n for n, line in enumerate(lines) if line.endswith("_main:"))
    end = next(n for n, line in enumerate(lines) if "s_endpgm" in line)
    return "\n".join(lines[start : end + 1]) + "\n"


def test_a_whole_file(golden: Golden) -> None:
    config = "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1"
    golden("one_wave_1x1.s", assembly("mb1ic32ih4oc16kh1", "f16", config))


def test_a_pipelined_loop_with_halos(golden: Golden) -> None:
    config = "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 acc=a padding=zeros"
    golden("one_wave_3x3.body.s", body(assembly("mb1ic32ih4oc16kh3ph1", "bf16:bf16:f32", config)))


def test_xehpc_with_halos(golden: Golden) -> None:
    config = "tile=16x16x16 waves=1x1 mma=16x8x16 slots=1 padding=zeros"
    text = assembly("mb1ic32iw16oc16kw3pw1", "f16:f16:f32", config, "xehpc")
    golden("one_thread_3x3_xehpc.loop.asm", up_to_the_loops_end(text))


def test_xehpg(golden: Golden) -> None:
    config = "tile=8x8x16 waves=1x1 mma=8x8x16 slots=1"
    text = assembly("mb1ic64ih4oc16kh1", "bf16:bf16:f32", config, "xehpg")
    golden("one_thread_1x1_xehpg.loop.asm", up_to_the_loops_end(text))


def test_direct_copies(golden: Golden) -> None:
    """M0 is set before each, and a barrier waits for those that it publishes, not for the younger ones."""
    config = "tile=16x32x32 waves=1x1 mma=16x16x32 slots=2 copy=direct"
    golden("one_wave_direct.body.s", body(assembly("mb1ic256ih4oc32kh1", "f16", config, "gfx950")))


def test_six_bits_by_eight_with_scales(golden: Golden) -> None:
    """A factor of 6 registers beside one of 8; cbsz and blgp name the types."""
    scales = "--attr-scales=src:per_ocic:e8m0:1x32+wei:per_ocic:e8m0:32x1"
    problem = parse_problem(f"--dt=f8_e5m2:f6_e2m3:f32 {scales} 16x256:256x16")
    config = "tile=16x16x128 waves=1x1 mma=16x16x128 slots=1 taps=fused"
    golden("one_wave_mx.body.s", body(driver.compile(driver.build(problem, "gfx950", config)).asm))
