"""The simulated stream changes threads of its process. Tests of the same process run without it."""

from collections.abc import Iterator

import pytest

from benchmarks.engine.simulated_stream import forget_streams


@pytest.fixture(autouse=True)
def no_streams_afterwards() -> Iterator[None]:
    yield
    forget_streams()
