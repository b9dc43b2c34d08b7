"""The outcomes of a bundle as they arrive."""

import pytest

from elasticflow.services.executor.processes.fork_server_client import Exited
from elasticflow.services.executor.processes.task_runner import BundleOutcomes, RunnerEnded
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone

ENDED = RunnerEnded(cause="preempted", exited=Exited(code=None, signal=9))


def done(index: int) -> TaskDone:
    return TaskDone(bundle_id=1, index=index, result=b"", task_s=0.0)


async def test_they_end_with_the_last_task() -> None:
    outcomes = BundleOutcomes(2)
    outcomes.add(done(0))
    outcomes.add(done(1))
    outcomes.end_early(ENDED)
    assert [item async for item in outcomes] == [done(0), done(1)]
    with pytest.raises(StopAsyncIteration):
        await anext(outcomes)


async def test_they_end_early_with_their_runner() -> None:
    outcomes = BundleOutcomes(2)
    outcomes.add(done(0))
    outcomes.end_early(ENDED)
    outcomes.end_early(ENDED)
    assert [item async for item in outcomes] == [done(0), ENDED]


async def test_an_empty_bundle_has_none() -> None:
    assert [item async for item in BundleOutcomes(0)] == []
