"""Who gets an answer about running workers: their tenant only, and not too often."""

import asyncio
from types import SimpleNamespace
from typing import Any, get_args

from elasticflow.services.executor.processes.rate_limit import TokenBucket
from elasticflow.services.executor.processes.reached_workers import (
    MOST_AT_ONCE,
    MOST_COMMANDS,
    REQUESTS_PER_S,
    TenantAnswers,
)
from elasticflow.shared.messages import codec, reach, subjects
from elasticflow.shared.messages.events import WorkerEntered
from elasticflow.shared.messages.reach import AllFound, BeginCommand, CommandRefused, FindWorkers, FromExecutor
from elasticflow.shared.runtime.bus.contract import Subscription
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog

POOL, NODE = "pool", "node-1"


class NoWorkers:
    """A node on which workers of this tenant's job only start."""

    tenants = frozenset({"lab"})

    def workers_of(self, tenant: str, job_id: str) -> tuple[Any, ...]:
        return ()

    def starts_worker_of(self, tenant: str, job_id: str) -> bool:
        return (tenant, job_id) == ("lab", "digits")


def session(number: int) -> str:
    return f"{number:032x}"


async def answer_to(bus: MemoryBus, message: FindWorkers | BeginCommand, tenant: str = "lab") -> FromExecutor:
    answers: Subscription = await bus.subscribe(subjects.reached(tenant, POOL, NODE, message.session))
    await bus.publish(subjects.reach(tenant, POOL, NODE), reach.encode(message))
    async with asyncio.timeout(60):
        answer = reach.decode((await anext(answers)).data, *get_args(FromExecutor))
    await answers.close()
    return answer


def test_a_tenant_may_ask_often_at_once_and_then_now_and_then() -> None:
    now_s = 0.0
    rate = TokenBucket(MOST_AT_ONCE, REQUESTS_PER_S, lambda: now_s)
    assert [rate.takes_one() for _ in range(31)] == [True] * 30 + [False]
    now_s = 29.0
    assert not rate.takes_one()
    now_s = 61.0
    assert rate.takes_one()
    assert rate.takes_one()
    assert not rate.takes_one()


async def test_each_tenant_hears_of_its_own_workers_and_no_command_runs_without_one() -> None:
    bus = MemoryBus()
    answers = [TenantAnswers(bus, POOL, NODE, tenant, NoWorkers(), SystemClock()) for tenant in ("lab", "other")]
    serving = [asyncio.create_task(each.run(SilentLog())) for each in answers]
    await asyncio.sleep(0)
    asked = FindWorkers(session=session(1), job_id="digits")
    assert await answer_to(bus, asked) == AllFound(node_id=NODE, num_workers=0, preparing=True)
    assert await answer_to(bus, asked, "other") == AllFound(node_id=NODE, num_workers=0)
    order = BeginCommand(session=session(2), job_id="digits", generation=1, rank=0, command=("true",))
    refused = await answer_to(bus, order)
    assert isinstance(refused, CommandRefused)
    assert "no worker of rank 0" in refused.problem
    stacks = [
        await answer_to(bus, FindWorkers(session=session(n), job_id="digits", with_stacks=True)) for n in range(9, 40)
    ]
    assert isinstance(stacks[29], AllFound)
    assert isinstance(stacks[30], CommandRefused)
    assert "asked node-1 too often" in stacks[30].problem
    assert MOST_COMMANDS < 30, "many at once are refused before they are too many in a row"
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    await bus.close()


class OneWorker(NoWorkers):
    """It does not read its channel."""

    def __init__(self) -> None:
        channel = SimpleNamespace(send_with_files=lambda *_: False)
        exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        plan = SimpleNamespace(generation=1)
        assignment = SimpleNamespace(plan=plan, rank=0, secrets={"TOKEN": "hunter2-hunter2"})
        self.handle: Any = SimpleNamespace(
            assignment=assignment, pid=1, process=SimpleNamespace(channel=channel, exited=exited)
        )

    def workers_of(self, tenant: str, job_id: str) -> tuple[Any, ...]:
        return (self.handle,) if self.starts_worker_of(tenant, job_id) else ()


async def test_a_command_is_in_the_ledger_before_it_begins_without_the_secrets_of_the_job() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    answers = TenantAnswers(bus, POOL, NODE, "lab", OneWorker(), SystemClock())
    serving = asyncio.create_task(answers.run(SilentLog()))
    await asyncio.sleep(0)
    command = ("curl", "-H", "Authorization: hunter2-hunter2")
    order = BeginCommand(session=session(1), job_id="digits", generation=1, rank=0, command=command, user="ann@desk")
    refused = await answer_to(bus, order)
    assert isinstance(refused, CommandRefused)
    assert "does not read its messages" in refused.problem
    record = await bus.last_record(subjects.job(POOL, "digits", NODE))
    assert record is not None
    entered = codec.decode(record.data).message
    assert isinstance(entered, WorkerEntered)
    assert (entered.tenant, entered.user, entered.rank) == ("lab", "ann@desk", 0)
    assert entered.command.startswith("curl -H")
    assert "hunter2" not in entered.command
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await bus.close()
