"""Fixtures for all tests: a nats-server each, that is gone afterwards."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.folder_tree import delete_folder

# A process started in the background may ignore Ctrl-C, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure. The suite tries the same few examples each time, so that a failure is of the change that
# was made; `make search` and `make nightly` look for new ones.
settings.register_profile("same", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=700, print_blob=True)
settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Look for no garbage among what is loaded by now: libraries, and thousands of tests."""
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """What leaves the daily tests says why."""
    for marker in item.iter_markers("nightly"):
        if not (marker.args and isinstance(marker.args[0], str) and marker.args[0]):
            raise pytest.UsageError(f"{item.nodeid}: nightly(reason) lacks the reason")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where torch counts fewer GPUs than it needs."""
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    import torch  # here: it takes seconds to load, and most tests need none

    num_needed = marker.kwargs.get("num_gpus", 1)
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus < num_needed:
        pytest.skip(f"needs {num_needed} CUDA device(s), torch finds {num_gpus}")


@pytest.fixture
def deleted_however_deep(tmp_path: Path) -> Iterator[None]:
    """What a failed test leaves of deep folders ends pytest itself with a RecursionError."""
    yield
    delete_folder(tmp_path)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A real server on a free port with a store of its own (30 ms to start)."""
    server = EmbeddedServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()
