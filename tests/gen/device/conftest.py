"""Stand-ins for HIP's runtime and CUDA's driver, one a session: see `standin` and `standin_cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gen.device import standin_cuda
from tests.gen.device.standin import StandIn, serving
from tests.gen.device.standin_cuda import CudaStandIn


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory, hip_library: Path) -> Iterator[StandIn]:
    with serving(StandIn(tmp_path_factory.mktemp("standin"), hip_library)) as standin:
        yield standin


@pytest.fixture
def standin(_served: StandIn) -> StandIn:
    """The stand-in, of which nothing is known yet: what it was asked to launch, what was found."""
    _served.launches.clear()
    _served.findings.clear()
    return _served


@pytest.fixture(scope="session")
def _served_cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaStandIn]:
    library = standin_cuda.build(tmp_path_factory.mktemp("cuda"))
    with serving(CudaStandIn(tmp_path_factory.mktemp("standin-cuda"), library)) as standin:
        yield standin


@pytest.fixture
def cuda(_served_cuda: CudaStandIn) -> CudaStandIn:
    """The stand-in for CUDA, of which nothing is known yet."""
    _served_cuda.launches.clear()
    _served_cuda.findings.clear()
    return _served_cuda
