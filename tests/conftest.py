"""Fixtures for all tests: a nats-server each, that is gone afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from shared.runtime.nats_server import EmbeddedServer

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A real server on a free port with a store of its own (30 ms to start)."""
    server = EmbeddedServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()
