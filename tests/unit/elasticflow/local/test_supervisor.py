"""Reports and errors of `eflow up` before any process runs."""

from pathlib import Path
from typing import Any

import pytest

from elasticflow.errors import UnusableFolder
from elasticflow.local import supervisor
from elasticflow.local.supervisor import Supervisor
from elasticflow.local.up_plan import UpPlan
from elasticflow.shared.errors import StorageFull
from elasticflow.shared.messages.pool_config import PoolConfig


@pytest.mark.parametrize(
    ("num_nodes", "reserve", "is_said"),
    [(None, 2, True), (None, 1, False), (1, 1, True), (3, 2, False), (0, 2, False)],
)
async def test_a_reserve_that_leaves_no_node_is_reported(
    num_nodes: int | None, reserve: int, is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def configured(*_: Any, **__: Any) -> PoolConfig:
        return PoolConfig(reserve_nodes=reserve)

    async def run_nothing(*_: Any) -> None: ...

    monkeypatch.setattr(supervisor, "configure", configured)
    monkeypatch.setattr(supervisor.machine_code, "is_complete", lambda: True)
    monkeypatch.setattr(Supervisor, "_supervise", run_nothing)
    said: list[str] = []
    plan = UpPlan(data_dir=tmp_path, nats_url="nats://nowhere", device="cpu", num_nodes=num_nodes)
    await Supervisor(plan, said.append).run(lambda run: None)
    assert [f"the reserve of {reserve} holds back all" in line for line in said] == [True] * is_said


@pytest.mark.parametrize(("nats_url", "said"), [("", UnusableFolder), ("nats://elsewhere", StorageFull)])
async def test_a_full_disk_is_named_if_the_server_is_ours(
    nats_url: str, said: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **__: Any) -> PoolConfig:
        raise StorageFull("EF_SUBMIT_default", "insufficient storage resources available")

    class Server:
        url = "nats://here"

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def start(self) -> None: ...
        def stop(self) -> None: ...

    monkeypatch.setattr(supervisor, "configure", refused)
    monkeypatch.setattr(supervisor, "EmbeddedServer", Server)
    monkeypatch.setattr(supervisor.machine_code, "is_complete", lambda: True)
    plan = UpPlan(data_dir=tmp_path, nats_url=nats_url, device="cpu")
    with pytest.raises(said, match="insufficient storage"):
        await Supervisor(plan, lambda line: None).run(lambda run: None)
