"""A stand-in for HIP's runtime, one a session: see `standin`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gen.device.standin import StandIn, serving


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory, hip_library: Path) -> Iterator[StandIn]:
    with serving(tmp_path_factory.mktemp("standin"), hip_library) as standin:
        yield standin


@pytest.fixture
def standin(_served: StandIn) -> StandIn:
    """The stand-in, of which nothing is known yet: what it was asked to launch, what was found."""
    _served.launches.clear()
    _served.findings.clear()
    return _served
