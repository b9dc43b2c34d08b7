"""What the environment of all workers of a node says."""

from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor.processes.fork_server_client import ForkServerClient, LaunchFailed
from elasticflow.services.executor.processes.launcher import Launcher


async def environment_of(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> dict[str, str]:
    started: list[dict[str, str]] = []

    async def start(marks: dict[str, str], log_file: Path, *_: object) -> ForkServerClient:
        started.append(marks)
        raise LaunchFailed("not in this test", str(log_file))

    monkeypatch.setattr(ForkServerClient, "start", start)
    launcher = Launcher(data_dir=folder, node_id="unknown-node", on_event=lambda *_: None, **settings)
    with pytest.raises(LaunchFailed):
        await launcher.start()
    return started[0]


@pytest.mark.asyncio
async def test_gloo_and_nccl_use_the_interface_for_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NCCL takes a name for a prefix, unless "=" precedes it."""
    environment = await environment_of(monkeypatch, tmp_path, data_interface="ib0")
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")
    assert not any("SOCKET" in name for name in await environment_of(monkeypatch, tmp_path))
