"""What `analyze` finds in kernels of other compilers and ours: every number, and a digest of the loop's lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from convgen.backends import target as targets
from convgen.backends.analysis import KernelAnalysis
from convgen.ir.record import as_dict
from tests import samples
from tests.conftest import with_debian_12

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"

OURS = {"gfx950": "halo", "gfx90a": "gemm_doubles", "xehpc": "planes_stored", "xehpg": "three_slots", "xe2": "planes"}


def described(kernel: KernelAnalysis) -> str:
    hot = kernel.hot
    whole = as_dict(kernel, recurse=False)
    del whole["hot"]
    whole["counts"] = {name: n for name, n in kernel.counts.items() if "iga64" not in name}  # its releases differ
    rows = [f"  {name}: {value}" for name, value in whole.items()]
    rows += [f"  hot: {samples.digest(chr(10).join(map(str, hot.lines)))}"]
    rows += [f"  {name}: {getattr(hot, name)}" for name in ("is_loop", "mix", "flop", "bytes", "slots", "bound")]
    return "\n".join(rows)


def analysed(path: Path) -> str:
    return "\n".join(described(k) for k in targets.analyze(path).kernels) + "\n"


@with_debian_12
@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.hsaco")), ids=lambda p: p.stem)
def test_other_compilers(path: Path, golden: Callable[[str, str], None]) -> None:
    golden(f"analysis/{path.stem}.txt", analysed(path))


@pytest.mark.parametrize("target", OURS)
def test_ours(target: str, golden: Callable[[str, str], None], tmp_path: Path) -> None:
    to = samples.program(target, OURS[target]).target
    text = to.module([to.emit(kernel) for kernel in samples.lowered(target, OURS[target])])
    if to.assemble(text) is None:
        pytest.skip(f"no assembler: {to.assembler}")
    path = tmp_path / f"k{to.family.text_suffix}"
    path.write_text(text)
    golden(f"analysis/{target}_{OURS[target]}.txt", analysed(path))
