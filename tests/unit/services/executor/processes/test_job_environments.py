"""The fork servers of environments, without processes."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, cast

import pytest

from elasticflow.services.executor.processes import job_environments
from elasticflow.services.executor.processes.fork_server_client import ForkServerClient
from elasticflow.services.executor.processes.job_environments import EnvironmentServers

ENVIRONMENT = "/data/environments/lab/abc"
GUARD_S = 10.0


class HungServer:
    """A fork server that a package of users has stopped: it forks nothing."""

    def __init__(self) -> None:
        self.has_ended = False

    async def fork(self, channel: socket.socket, slots: Sequence[int]) -> Any:
        await asyncio.Event().wait()

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def end(self) -> None:
        self.has_ended = True


@pytest.mark.asyncio
async def test_a_worker_does_not_wait_forever_for_a_server_that_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_environments, "FORK_TIMEOUT_S", 0.01)
    server, forgotten = HungServer(), asyncio.Event()

    async def start(_folder: str) -> ForkServerClient:
        return cast(ForkServerClient, server)

    async def ended(_folder: str, has_died: bool) -> None:
        assert not has_died
        forgotten.set()

    servers = EnvironmentServers(start, ended, unused_s=0.0)
    forking = asyncio.create_task(servers.fork(ENVIRONMENT, [0]))
    await asyncio.wait({forking}, timeout=GUARD_S)
    assert forking.done()
    with pytest.raises(TimeoutError):
        await forking
    await asyncio.wait_for(forgotten.wait(), GUARD_S)
    assert server.has_ended, "it is unused, so a later worker gets another one"
    await servers.close()
