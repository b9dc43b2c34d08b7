"""Runs the demo: start a pool, submit a padding load and the jobs, record the pool until all have ended."""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.live import Live

from elasticflow.cli.watch import changes, load_changes, picture
from elasticflow.client.client import Client
from elasticflow.client.ledger import write_ledger
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.history.load_views import load_views
from elasticflow.history.pool_views import job_views
from elasticflow.local.supervisor import Supervisor
from elasticflow.local.up_plan import UpPlan
from elasticflow.shared.messages.events import JobRejected
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.pool import PoolState
from examples.demo.cast import Entrance
from examples.demo.padding import PaddingLoad

_REDRAW_S = 0.5
_TAKING_S = 3.0
_OFFERS = ("counter-offer", "second-offer", "third-offer")  # counter-offers, until one is promised


@dataclass
class Performance:
    """What the report needs: the start, the pool after every change, and the results of the padding load."""

    began_at_s: float = 0.0
    history: list[tuple[float, PoolState]] = field(default_factory=list)
    task_results: list[int | BaseException] = field(default_factory=list)

    @property
    def last(self) -> PoolState:
        return self.history[-1][1]


async def perform(entrances: tuple[Entrance, ...], plan: UpPlan, console: Console, ledger: Path) -> Performance:
    """Run the demo; the pool is gone afterwards, its ledger is in the file."""
    performance = Performance()
    supervisor = Supervisor(plan, report=lambda line: console.print(line, style="yellow", highlight=False))
    healthy: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    up = asyncio.create_task(supervisor.run(lambda run: healthy.set_result(run.nats_url)))
    try:
        await asyncio.wait([up, healthy], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up  # it failed: report why
        endpoint = Endpoint(nats_url=healthy.result(), pool=plan.pool)
        async with Client.connect(endpoint) as client:
            performance.began_at_s = client.now_s()
            with contextlib.closing(PaddingLoad(endpoint)) as load:
                await _play(client, entrances, load, performance, console)
            await write_ledger(client, ledger)
    finally:
        up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await up
    return performance


async def _play(
    client: Client, entrances: tuple[Entrance, ...], load: PaddingLoad, performance: Performance, console: Console
) -> None:
    async def follow() -> None:
        async with contextlib.aclosing(client.states()) as states:
            async for state in states:
                performance.history.append((client.now_s(), state))

    async with asyncio.TaskGroup() as tasks:
        looking = [tasks.create_task(follow()), tasks.create_task(_show(client, performance, console))]
        entering = [tasks.create_task(_enter(client, entrance)) for entrance in entrances]
        job_ids = [job_id for done in await asyncio.gather(*entering) for job_id in done]
        for job_id in job_ids:
            await client.wait(job_id)
        performance.task_results = await load.results()
        await asyncio.sleep(2 * _REDRAW_S)  # the last events arrive, the last picture is drawn
        for task in looking:
            task.cancel()


async def _enter(client: Client, entrance: Entrance) -> list[str]:
    """Submit on time; a rejected job may take its counter-offer. The ids of the submitted jobs.

    The offer is the earliest deadline at that moment; accepting it takes time, so a little is added. If speeds were
    profiled meanwhile, it may be rejected again, with another offer.
    """
    await asyncio.sleep(entrance.at_s)
    spec, job_ids = entrance.job.spec(), [entrance.job_id]
    decision = await client.submit(spec, job_id=entrance.job_id)
    for offer in _OFFERS if entrance.counter_offer else ():
        if not (isinstance(decision, JobRejected) and decision.earliest_deadline_s):
            break
        job_ids.append(f"{entrance.job_id.removesuffix('-at-once')}-{offer}")
        taken = _with_deadline(spec, decision.earliest_deadline_s + _TAKING_S)
        decision = await client.submit(taken, job_id=job_ids[-1])
    return job_ids


def _with_deadline(spec: JobSpec, deadline_s: float) -> JobSpec:
    return replace(spec, deadline_s=deadline_s, deadline_in_s=None)


async def _show(client: Client, performance: Performance, console: Console) -> None:
    """On a terminal a picture that is updated in place, else a line for each change."""
    seen: dict[str, tuple[object, ...]] = {}
    seen_loads: dict[str, tuple[object, ...]] = {}
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            if performance.history:
                now_s = client.now_s()
                if live is not None:
                    live.update(picture(performance.last, now_s), refresh=True)
                else:
                    state = performance.last
                    jobs = changes(seen, job_views(state, now_s, ended=True), now_s)
                    loads = load_changes(seen_loads, load_views(state, now_s, ended=True), now_s)
                    for line in (*jobs, *loads):
                        console.print(line, highlight=False, soft_wrap=True)
            await asyncio.sleep(_REDRAW_S)
