"""The end of a fork server that still loads its libraries, and one that cannot load them all."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from elasticflow.services.executor.processes import fork_server_client
from elasticflow.services.executor.processes.fork_server_client import ForkServerClient
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED

LOADING = "import time; print('loading', flush=True); time.sleep(1e6)"


@pytest.mark.asyncio
async def test_a_fork_server_that_is_cancelled_while_it_loads_is_killed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server_client, "module_command", lambda *_, **__: (sys.executable, "-c", LOADING))
    monkeypatch.setattr(fork_server_client, "_END_TIMEOUT_S", 1e6)  # for a server that reads its socket
    log_file, others = tmp_path / "fork-server.log", psutil.Process().children()  # those that other tests share
    starting = asyncio.create_task(ForkServerClient.start({}, log_file, (), NOT_ISOLATED))
    async with asyncio.timeout(60):
        while not log_file.exists() or not log_file.read_text():  # noqa: ASYNC110 - a file can only be polled
            await asyncio.sleep(0.01)
        (process,) = (each for each in psutil.Process().children() if each not in others)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.asyncio
async def test_a_library_that_cannot_be_loaded_ends_no_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment of a job, numpy may be another one than that for which a library was compiled."""
    (tmp_path / "broken_library.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    log_file = tmp_path / "fork-server.log"
    server = await ForkServerClient.start({}, log_file, ("broken_library", "absent_library"), NOT_ISOLATED)
    await server.end()
    assert "ValueError: numpy.dtype size changed" in log_file.read_text()
    assert "absent_library" not in log_file.read_text()
