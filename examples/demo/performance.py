"""Runs the demo: start a pool, measure each kind of job on it, submit a padding load and the jobs, and record the pool
until all have ended."""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.live import Live

from elasticflow.cli.watch import changes, load_changes, picture
from elasticflow.client.client import Client
from elasticflow.client.ledger import write_ledger
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.history.pool_views import job_views, load_views
from elasticflow.local.supervisor import Supervisor
from elasticflow.local.up_plan import UpPlan
from elasticflow.sdk.submission import profilable, quotable
from elasticflow.shared.errors import Stop
from elasticflow.shared.messages.events import JobProfiled, JobRejected
from elasticflow.shared.state.pool import PoolState
from examples.demo.cast import Entrance
from examples.demo.padding import PaddingLoad

_REDRAW_S = 0.5
_OFFER_TAKEN = 1.5  # of the time that a counteroffer has, since other programs may take cores meanwhile
_COUNTEROFFER = "text-counteroffer"


@dataclass(eq=False)
class NotPerformed(Stop):
    """The pool cannot measure or quote a job of the demo."""

    job_id: str
    reason: str

    MESSAGE: ClassVar[str] = "the demonstration cannot go on with {job_id}: {reason}"


@dataclass
class Performance:
    """What the report needs: the start, the pool after every change, and the results of the padding load. The start is
    after the measurements."""

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
            await _measure(client, entrances, console)
            performance.began_at_s = client.now_s()
            with contextlib.closing(PaddingLoad(endpoint)) as load:
                await _play(client, entrances, load, performance, console)
            await write_ledger(client, ledger)
    finally:
        up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await up
    return performance


async def _measure(client: Client, entrances: tuple[Entrance, ...], console: Console) -> None:
    """The speed of each kind of job, while the pool does nothing else: all deadlines follow from it."""
    kinds = {entrance.job.model_name: entrance for entrance in reversed(entrances)}
    for kind, entrance in reversed(kinds.items()):
        answer = await client.profile(profilable(entrance.job, None).spec)
        if not isinstance(answer, JobProfiled) or not answer.iterations_per_s:
            raise NotPerformed(entrance.job_id, f"it has no measurement ({type(answer).__name__})")
        speeds = (f"{rate:.1f} on {num_gpus}" for num_gpus, rate in sorted(answer.iterations_per_s.items()))
        console.print(f"measured {kind}: iterations/s {', '.join(speeds)} slots", highlight=False, soft_wrap=True)


async def _play(
    client: Client, entrances: tuple[Entrance, ...], load: PaddingLoad, performance: Performance, console: Console
) -> None:
    async def follow() -> None:
        async with contextlib.aclosing(client.states()) as states:
            async for state in states:
                performance.history.append((client.now_s(), state))

    async with asyncio.TaskGroup() as tasks:
        looking = [tasks.create_task(follow()), tasks.create_task(_show(client, performance, console))]
        stage = _Stage(client, first=entrances[0])
        entering = [tasks.create_task(stage.enter(entrance)) for entrance in entrances]
        job_ids = [job_id for done in await asyncio.gather(*entering) for job_id in done]
        for job_id in job_ids:
            await client.wait(job_id)
        performance.task_results = await load.results()
        await asyncio.sleep(2 * _REDRAW_S)  # the last events arrive, the last picture is drawn
        for task in looking:
            task.cancel()


async def _quoted_s(client: Client, entrance: Entrance) -> float:
    """Seconds to the earliest deadline that the job would be promised now. Raises NotPerformed."""
    quoted = await client.quote(quotable(entrance.job).spec())
    if quoted.earliest_deadline_s is None:
        raise NotPerformed(entrance.job_id, quoted.explanation)
    return quoted.earliest_deadline_s - quoted.at_s


class _Stage:
    """Submits jobs, one at a time, so that a quote holds until its job is submitted. first: `after` is its progress."""

    def __init__(self, client: Client, *, first: Entrance) -> None:
        self._client, self._first = client, first
        self._deciding = asyncio.Lock()

    async def enter(self, entrance: Entrance) -> list[str]:
        """Submit on time; a rejected job takes its counteroffer. The ids of the submitted jobs."""
        await self._progressed(entrance.after)
        async with self._deciding:
            if not entrance.within:
                await self._client.submit(entrance.job.spec(), job_id=entrance.job_id)
                return [entrance.job_id]
            within_s = entrance.within * await _quoted_s(self._client, entrance)
            spec = entrance.job.set_deadline(within=within_s).spec()
            decision = await self._client.submit(spec, job_id=entrance.job_id)
            if not isinstance(decision, JobRejected) or decision.earliest_deadline_s is None:
                return [entrance.job_id]
            offered_s = decision.earliest_deadline_s - decision.at_s
            taken = replace(spec, deadline_in_s=_OFFER_TAKEN * offered_s)
            await self._client.submit(taken, job_id=_COUNTEROFFER)
            return [entrance.job_id, _COUNTEROFFER]

    async def _progressed(self, part: float) -> None:
        """Wait until the first job has trained this part of its iterations, or has ended."""
        if not part:
            return
        async with contextlib.aclosing(self._client.states()) as states:
            async for state in states:
                job = state.job(self._first.job_id)
                if job is not None and (
                    job.ended_at_s or job.iteration >= part * (self._first.job.max_iterations or 0)
                ):
                    return


async def _show(client: Client, performance: Performance, console: Console) -> None:
    """Show a picture that is updated in place on a terminal, else a line for each change."""
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
