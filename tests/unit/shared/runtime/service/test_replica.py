"""The start of a replica while no server answers."""

from collections.abc import Iterator

import pytest

from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import RETRY_TIMEOUT_S
from elasticflow.shared.state.policy import planner
from elasticflow.simulator.virtual_time import VirtualClock
from testbed.histories import NOW_S
from tests.support.one_pool import FaultyBus, OnePool

OUTAGE_S = 4 * RETRY_TIMEOUT_S


class CutOffBus(FaultyBus):
    """Its server answers no read of a message before the outage is over."""

    append_faults, after_look = [], []

    async def last_record(self, subject: str) -> LedgerRecord | None:
        if self._clock.now_s() < NOW_S + OUTAGE_S:
            raise Unavailable("memory://", "no leader")
        return await super().last_record(subject)


@pytest.fixture
def pool() -> Iterator[OnePool]:
    pool = OnePool()
    yield pool
    pool.loop.finish()


def test_an_outage_at_the_start_postpones_it_and_does_not_end_it(pool: OnePool) -> None:
    bus = CutOffBus(pool.broker, clock=VirtualClock(pool.loop), delayed=True)
    replica = pool.start(bus, planner("allocator", lambda state, commands, now_s: ()))
    assert pool.loop.now_s >= NOW_S + OUTAGE_S
    assert "snapshot postponed" in " ".join(pool.log.lines)
    pool.run_for(60.0)
    assert replica.host.ready.is_set()
