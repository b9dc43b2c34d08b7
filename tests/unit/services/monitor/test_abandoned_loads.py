"""The monitor cancels an open load whose client renews its lease no more."""

from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.monitor.load_results import ABANDONED_S, AbandonedLoads
from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import CancelLoad
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus.load_lease import renew_load_lease
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.simulator.pipeline.memory_bus import MemoryBus

POOL = "p"
LOAD = Load(
    load_id="a",
    identity="1f",
    tenant="lab",
    spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0),
    phase=LoadPhase.OPEN,
    useful_share=None,
    opened_at_s=0.0,
)
SEALED = Load(
    load_id="b",
    identity="1f",
    tenant="lab",
    spec=LOAD.spec,
    phase=LoadPhase.SEALED,
    useful_share=None,
    opened_at_s=0.0,
)


class Watched:
    def __init__(self) -> None:
        self.bus, self.now_s = MemoryBus(), 1_000.0
        process: Any = SimpleNamespace(
            bus=self.bus,
            settings=SimpleNamespace(pool=POOL),
            clock=SimpleNamespace(now_s=lambda: self.now_s),
            log=SimpleNamespace(info=lambda *args, **kwargs: None),
        )
        host: Any = SimpleNamespace(folded=SimpleNamespace(loads={"a": LOAD, "b": SEALED}))
        self.loads = AbandonedLoads(process, host)

    async def after(self, seconds: float) -> list[CancelLoad]:
        """The commands that are new after a check at that time."""
        self.now_s += seconds
        await self.loads.check()
        queue = await self.bus.work(POOL, "admission")
        items = await queue.pull(9, 0.0)
        for item in items:
            await item.ack()
        return [codec.decode(item.data).message for item in items]  # pyright: ignore[reportReturnType]


@pytest.fixture
async def watched() -> Watched:
    watched = Watched()
    await watched.bus.ensure_pool(POOL)
    return watched


async def test_a_load_without_a_lease_is_cancelled_once(watched: Watched) -> None:
    assert await watched.after(0.0) == []
    assert await watched.after(ABANDONED_S - 1.0) == []
    (command,) = await watched.after(1.0)
    assert (command.load_id, command.tenant, command.reason) == ("a", "lab", "its client is gone")
    assert await watched.after(1.0) == [], "admission has time to cancel it"


async def test_a_load_with_a_lease_stays(watched: Watched) -> None:
    assert await watched.after(0.0) == []
    await renew_load_lease(watched.bus, POOL, "a", "client")
    assert await watched.after(ABANDONED_S + 1.0) == []


async def test_a_monitor_without_a_server_waits_anew(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await watched.after(0.0) == []
    with monkeypatch.context() as broken:

        async def fail(*args: Any) -> None:
            raise Unavailable("memory://", "no answer")

        broken.setattr(watched.bus, "get_value", fail)
        with pytest.raises(Unavailable):
            await watched.after(ABANDONED_S)
    assert await watched.after(1.0) == []
    assert len(await watched.after(ABANDONED_S)) == 1
