"""`eflow track`: what became of each job and its promise, in its run of a tracking service (docs/adr/0117)."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Protocol

import typer

from elasticflow.adapters.mlflow import MLflowRuns
from elasticflow.adapters.tracking import moment
from elasticflow.adapters.wandb import WandbRuns
from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, PoolOptions, run
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.errors import NotTracked, UnknownJob
from elasticflow.history.pool_views import activity
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.state.finish_time import margin_s
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import promise_of

_EVERY_S = 10.0


class Service(StrEnum):
    MLFLOW = "mlflow"
    WANDB = "wandb"


class Runs(Protocol):
    """The runs of jobs in a tracking service."""

    def write(self, identity: str, words: Mapping[str, str], ending: str) -> bool: ...


@takes_tables
def track(
    service: Annotated[Service, typer.Argument(help="Where the jobs' own sinks write: mlflow or wandb.")],
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Default: all.", autocompletion=completion.jobs, show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Write each change, until Ctrl-C.")] = False,
    uri: Annotated[str, typer.Option("--uri", metavar="URI", help="MLflow. Default: MLFLOW_TRACKING_URI.")] = "",
    project: Annotated[
        str,
        typer.Option("--project", metavar="NAME", help="MLflow's experiment (default: all), or W&B's project."),
    ] = "",
    entity: Annotated[str, typer.Option("--entity", metavar="NAME", help="W&B's team or user.")] = "",
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Write into each job's run what only the pool knows: its deadline, whether
    the promise was kept and by what margin, its restarts, and how it ended.

    The jobs' own sinks, elasticflow.adapters.mlflow and .wandb, write all else.
    A job without a run is left out.

    \b
    Examples:
      eflow track mlflow --uri http://mlflow:5000
      eflow track mlflow digits-3f9a1c
      eflow track wandb --project digits --follow
    """
    runs: Runs = MLflowRuns(uri, project) if service is Service.MLFLOW else WandbRuns(project, entity)
    following = _Following(runs, service, frozenset(jobs or ()))

    async def write(client: Client) -> None:
        if follow:
            await _follow(client, following)
            return
        state = await client.state()
        for job_id in jobs or ():
            if state.job(job_id) is None:
                raise UnknownJob(job_id, f"pool {where.endpoint().pool}", state.names)
        await following.write(state, client.now_s())

    run(write, where)
    if as_json:
        print_json(sorted(following.written))
    else:
        say_line(f"{counted(len(following.written), 'run')} in {service.value}")


async def _follow(client: Client, following: "_Following") -> None:
    """A service that is away gets the newest state when it answers again."""
    newest = [await client.state()]

    async def read() -> None:
        async with contextlib.aclosing(client.states()) as states:
            async for state in states:
                newest[0] = state

    reading, is_away = asyncio.create_task(read()), False
    try:
        while not reading.done():
            try:
                await following.write(newest[0], client.now_s())
                is_away = False
            except NotTracked as error:
                if not is_away:
                    note(f"eflow: {error}; it is tried again every {_EVERY_S:.0f} s")
                is_away = True
            await asyncio.wait([reading], timeout=_EVERY_S)
        await reading
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, ElasticFlowError):
            await reading


class _Following:
    """Writes what has changed. jobs: of these; none: of all. written: ids of jobs with a run."""

    def __init__(self, runs: Runs, service: Service, jobs: frozenset[str]) -> None:
        self._runs, self._service, self._jobs = runs, service, jobs
        self._known: dict[str, Mapping[str, str]] = {}  # words by identity, of jobs that need no other look
        self.written: set[str] = set()

    async def write(self, state: PoolState, now_s: float) -> None:
        """Raises NotTracked."""
        for job in tracked_jobs(state, self._jobs):
            words = words_of(job, now_s)
            if self._known.get(job.identity) == words:
                continue
            try:
                has_run = await asyncio.to_thread(self._runs.write, job.identity, words, ending_of(job))
            except Exception as error:
                raise NotTracked(self._service.value, f"{type(error).__name__}: {error}") from error
            if has_run:
                self.written.add(job.job_id)
            if has_run or not job.live:  # the run of a live job may come
                self._known[job.identity] = words


def tracked_jobs(state: PoolState, job_ids: frozenset[str]) -> Iterator[Job]:
    """Those that may have a run, in the order of their decisions. job_ids: of these; none: of all."""
    jobs: Sequence[Job] = [*state.live_jobs.values(), *state.ended_jobs.values()]
    for job in sorted(jobs, key=lambda job: (job.decided_at_s, job.job_id)):
        has_trained = job.phase not in (Phase.PROFILING, Phase.PROFILED, Phase.REJECTED)
        if has_trained and job.identity and job.job_id in (job_ids or (job.job_id,)):
            yield job


def words_of(job: Job, now_s: float) -> dict[str, str]:
    """What the run says of the job, by name. The margin is that of the end: an expected one changes all the time."""
    margin = margin_s(job, now_s) if not job.live else None
    words = {
        "promise": promise_of(job, now_s).value,
        "deadline": moment(job.deadline_s),
        "activity": "" if job.live else activity(job),
        "margin_s": "" if margin is None else f"{margin:.1f}",
        "restarts": str(job.restarts),
        "explanation": job.explanation,
    }
    return {name: value for name, value in words.items() if value}


def ending_of(job: Job) -> str:
    """ "" of a live job."""
    return "" if job.live else job.phase.value
