"""A large ledger for the page: jobs that follow each other on 1,000 places, and report until they end."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from testbed.histories import LINEAR, History
from testbed.page_ledger import POOL, subject

_GPUS_OF_A_NODE = 8
_REPORTS = 30  # of a job that ends
_TICK_S = 36.0  # between two messages of one job
_APPENDED_AT_ONCE = 250


def large_history(num_messages: int, num_live_jobs: int, now_s: float) -> History:
    """Ends now with about so many messages and exactly so many live jobs, each on one or two GPUs."""
    num_gpus = num_live_jobs + num_live_jobs // 2
    num_nodes = -(-num_gpus // _GPUS_OF_A_NODE)
    num_ticks = max(4, (num_messages - num_nodes - 1) // num_live_jobs)
    began_s = now_s - (num_ticks + 1) * _TICK_S
    history = History().then(events.PoolConfigured(config=PoolConfig(curves={"linear/b64": LINEAR}), at_s=began_s))
    history.nodes(*[_GPUS_OF_A_NODE] * num_nodes, at_s=began_s)
    spacing_s = _TICK_S / num_live_jobs
    lives = [_life(history, place, num_ticks, began_s + place * spacing_s) for place in range(num_live_jobs)]
    for _ in range(num_ticks):
        for life in lives:
            history.then(next(life))
    return history


def _life(history: History, place: int, num_ticks: int, began_s: float) -> Iterator[Any]:
    """One message in each tick, of one job after another. The first one is shorter, so that not all end at once."""
    num_reports = 1 + place % _REPORTS
    tick = number = 0
    while True:
        at_s = began_s + tick * _TICK_S
        is_last = tick + num_reports + 4 >= num_ticks
        job = f"job-{place:04d}-{number}"
        lasts_s = (_REPORTS + 8) * _TICK_S
        yield _decided(history, "admission", _admitted(job, place, at_s, lasts_s))
        placed = events.PlacedJob(job_id=job, generation=1, gpus=_gpus(place))
        yield _decided(history, "placement", events.PlacementDecided(placements=(placed,), at_s=at_s + _TICK_S))
        yield events.GenerationStarted(
            job_id=job, generation=1, num_gpus=len(_gpus(place)), iteration=0, at_s=at_s + 2 * _TICK_S
        )
        report = 0
        while is_last or report < num_reports:
            report += 1
            yield _report(job, report, at_s + (2 + report) * _TICK_S)
        tick += num_reports + 4
        yield events.JobFinished(
            job_id=job, generation=1, iteration=100, condition="max_iterations", at_s=began_s + (tick - 1) * _TICK_S
        )
        num_reports, number = _REPORTS, number + 1


def _gpus(place: int) -> tuple[GpuId, ...]:
    """Even places have one GPU, odd ones have two."""
    first = 3 * (place // 2) + place % 2
    numbers = range(first, first + 1 + place % 2)
    return tuple(GpuId(f"node-{number // _GPUS_OF_A_NODE}", number % _GPUS_OF_A_NODE) for number in numbers)


def _admitted(job: str, place: int, at_s: float, lasts_s: float) -> events.JobAdmitted:
    deadline_s = at_s + lasts_s + _TICK_S * (1 + place % 7)
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name="linear",
        global_batch_size=64,
        max_iterations=100 * (_REPORTS + 8),
        deadline_s=deadline_s,
    )
    return events.JobAdmitted(
        job_id=job,
        tenant=f"lab-{place % 5}",
        spec=spec,
        deadline_s=deadline_s,
        minimum_satisfactory_share=(at_s, at_s + lasts_s, float(len(_gpus(place)))),
        gpu_seconds=lasts_s * len(_gpus(place)),
        at_s=at_s,
    )


def _report(job: str, number: int, at_s: float) -> events.JobProgressed:
    return events.JobProgressed(
        job_id=job,
        generation=1,
        iteration=100 * number,
        iterations_per_s=100 / _TICK_S,
        metrics={"loss": 1.0 / number},
        at_s=at_s,
    )


def _decided(history: History, service: str, event: Any) -> events.PlanDecided:
    return events.PlanDecided(service=service, based_on=history.state.sequence, now_s=event.at_s, events=(event,))


async def append_all(url: str, messages: Sequence[Any], *, first: int = 1) -> None:
    """Append the messages to the pool, which is made if need be. first: the number of the first message, for its id."""
    bus = await connect_nats(url, name="benchmark")
    await bus.ensure_pool(POOL)

    async def append(number: int, message: Any) -> None:
        at_s = message.now_s if isinstance(message, events.PlanDecided) else message.at_s
        if isinstance(message, events.PoolConfigured):  # on the plan, readers accept decisions only
            message = events.PlanDecided(service="operator", based_on=number - 1, now_s=at_s, events=(message,))
        data = codec.encode(message, id=f"message-{number}", recorded_at_s=at_s)
        await bus.append(subject(message), data, message_id=f"message-{number}", timeout_s=60.0)

    for start in range(0, len(messages), _APPENDED_AT_ONCE):  # published in this order, on one connection
        part = messages[start : start + _APPENDED_AT_ONCE]
        await asyncio.gather(*(append(first + start + index, message) for index, message in enumerate(part)))
    await bus.close()
