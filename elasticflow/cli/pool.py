"""Commands of a pool's operator: `eflow configure`, `down`, `drain`, `scale-out` and `scale-in`."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import DataDir, Json, OwnerOptions, PoolOptions, naming_owner, owner_in_words, run
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import duration_of, future_end_of, gpus_named
from elasticflow.cli.terminal_output import note, plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.operator_decisions import NOW, announce_node_end, read_config
from elasticflow.client.operator_decisions import configure as configure_pool
from elasticflow.client.pool_endpoint import DATA_DIR, Endpoint, find_run_file, holder_of, read_run_file
from elasticflow.errors import InvalidJob, UnknownJob
from elasticflow.history.formatting import limits_in_words, schedule_in_words
from elasticflow.shared.errors import ElasticFlowError, names_in_short
from elasticflow.shared.extras import require_extra
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.events import GpuLimitsCleared, GpuLimitsRejected, GpuLimitsSet
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.process_termination import kill_process_group
from elasticflow.shared.runtime.process.secret_sealing import kept_key
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.state.job import Job
from elasticflow.times import moment_in_words

_STOP_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 5.0
_SHOWN_JOBS = 5
_POLL_S = 0.1
_AT_ONCE = ", or leave it out to drain the node now"


@takes_tables
def configure(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="PoolConfig as TOML or JSON."),
    ] = None,
    skip_plan_up_to: Annotated[
        int | None,
        typer.Option(
            "--skip-plan-up-to",
            min=1,
            metavar="SEQUENCE",
            help="Decide despite unreadable messages of the plan up to this sequence.",
        ),
    ] = None,
    secrets_key: Annotated[
        Path | None,
        typer.Option(
            "--secrets-key",
            metavar="FILE",
            help="Seal secrets of jobs for the key in this file, which is made if it is absent. Nodes need the file.",
        ),
    ] = None,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Configure what the policies of a pool assume, from now on.

    Without FILE a new pool gets the defaults, and a configured pool keeps its
    configuration. With --json the command prints the resulting configuration.

    \b
    Examples:
      eflow configure pool.toml
      eflow configure --nats-url nats://token@host:4222 --pool default
      eflow configure --json | jq .config
      eflow configure --secrets-key /shared/elasticflow/secrets.key
      eflow configure --skip-plan-up-to 1234   # a message stops all decisions
    """
    wanted = read_config(file) if file is not None else None
    endpoint = where.endpoint()
    replicas = Settings.from_environment().replicas
    changes: dict[str, Any] = {} if skip_plan_up_to is None else {"skip_plan_up_to": skip_plan_up_to}
    if secrets_key is not None:
        changes["secrets_key"] = kept_key(secrets_key)
    config = asyncio.run(
        configure_pool(
            endpoint.nats_url,
            endpoint.pool,
            wanted,
            SystemClock(),
            changes=changes,
            stream_replicas=replicas,
        )
    )
    if as_json:
        print_json({"pool": endpoint.pool, "config": config})
    else:
        say_line(f"pool {endpoint.pool} is configured")


def down(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Stop the pool that runs in this folder, in order. Its jobs continue with
    the next `eflow up`; their deadlines stay.

    \b
    Examples:
      eflow down
      eflow down --data-dir /var/lib/eflow
    """
    if data_dir is None:
        run = find_run_file(Path.cwd())
        data_dir = Path(run.data_dir) if run is not None else Path(DATA_DIR)
    pid, waiting = holder_of(data_dir), list[Job]()
    if pid is not None:
        waiting = _unfinished(data_dir)
        _stop(data_dir, pid)
    if as_json:
        print_json(
            {"stopped": pid is not None, "data_dir": str(data_dir), "live_jobs": [job.job_id for job in waiting]}
        )
        return
    say_line(f"stopped the pool in {data_dir}" if pid is not None else f"no pool runs in {data_dir}")
    if waiting:
        due_s = min((job.deadline_s for job in waiting if job.promised and job.deadline_s is not None), default=None)
        due = "" if due_s is None else f"; the first promise is due {moment_in_words(due_s, SystemClock().now_s())}"
        names = names_in_short([job.job_id for job in waiting], _SHOWN_JOBS)
        note(f"{counted(len(waiting), 'job')} of it did not end ({names}): `eflow up` goes on with them{due}")


def _unfinished(data_dir: Path) -> list[Job]:
    """The live jobs of the pool, by name; none if it does not answer soon."""

    if (run := read_run_file(data_dir)) is None:
        return []
    endpoint = Endpoint(nats_url=run.nats_url, pool=run.pool, data_dir=data_dir)  # whatever NATS_URL and EF_POOL name

    async def live_jobs() -> list[Job]:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S), Client.connect(endpoint) as client:
            state = await client.state()
        return [state.live_jobs[job_id] for job_id in sorted(state.live_jobs)]

    try:
        return asyncio.run(live_jobs())
    except (ElasticFlowError, OSError, TimeoutError):  # what cannot answer must be stopped all the same
        return []


def _stop(data_dir: Path, pid: int) -> None:
    """Ask the supervisor to stop. If it does not, kill it and every process group that it has started."""
    require_extra("server", "eflow down")
    run = read_run_file(data_dir)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if _gone_within(data_dir, pid, _STOP_TIMEOUT_S):
        return
    note(f"process {pid} does not stop; killing it and its processes")
    children = [process.pid for process in run.processes.values()] if run is not None else []
    for target in (pid, *children):
        kill_process_group(target)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, signal.SIGKILL)
    _gone_within(data_dir, pid, _STOP_TIMEOUT_S)


def _gone_within(data_dir: Path, pid: int, timeout_s: float) -> bool:
    """Whether the process ends and unlocks the folder in time."""
    give_up_at = time.monotonic() + timeout_s
    while holder_of(data_dir) is not None or _runs(pid):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _runs(pid: int) -> bool:
    import psutil  # here: only a machine that runs pools has it

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- `eflow drain` -------------------------------------------------------------------------------------

NEVER = "never"


@takes_tables
def drain(
    node_id: Annotated[str, typer.Argument(metavar="NODE", autocompletion=completion.nodes)],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Its end: a duration (2m), a time (2026-05-01T18:00) or never. Default: at once.",
        ),
    ] = "",
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Announce when a node will end, or move its end.

    No promise rests on the node beyond its end. Shortly before (leave_s of the
    pool, 30 s), its jobs move to other GPUs or shrink, and the node leaves.
    Promises that no longer hold are reported, as after the loss of a node.
    With `never` the node stays, also beyond an end that it named itself.

    \b
    Examples:
      eflow drain node-7
      eflow drain spot-3 --at 2m
      eflow drain node-7 --at 2026-05-01T18:00
      eflow drain node-7 --at never
    """
    clock = SystemClock()
    until_s = NOW if not at else None if at == NEVER else future_end_of(at, "--at", clock.now_s(), otherwise=_AT_ONCE)
    endpoint = where.endpoint()
    announced = asyncio.run(announce_node_end(endpoint.nats_url, endpoint.pool, node_id, until_s, clock))
    if as_json:
        print_json(plain(announced))
    elif announced.until_s is None:
        say_line(f"{node_id} stays: no end is known")
    else:
        say_line(f"{node_id} ends at {moment_in_words(announced.until_s, announced.at_s)}")


# --- `eflow scale-out` and `eflow scale-in` ------------------------------------------------------------

Answer = GpuLimitsSet | GpuLimitsCleared | GpuLimitsRejected

JobId = Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.live_jobs)]
NumGpus = Annotated[
    int | None,
    typer.Argument(metavar="[N]", min=1, help="GPUs. Default: the next power of two.", show_default=False),
]
For = Annotated[
    str, typer.Option("--for", metavar="TIME", help="When the limit expires: 90s, 10m, 2h. Default: never.")
]
Release = Annotated[bool, typer.Option("--release", help="Clear the limits: the scheduler chooses the number again.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpOptions:
    """What a job gives up by name."""

    gpus: Annotated[
        tuple[str, ...],
        typer.Option("--gpu", metavar="NODE:INDEX", help="A GPU that it gives up; node-1:0,3 are two. Repeatable."),
    ] = ()
    nodes: Annotated[
        tuple[str, ...],
        typer.Option(
            "--node",
            metavar="NODE",
            help="A node of which it gives up all GPUs. Repeatable.",
            autocompletion=completion.nodes,
        ),
    ] = ()


@takes_tables
def scale_out(
    job_id: JobId,
    num_gpus: NumGpus = None,
    lasting: For = "",
    release: Release = False,
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Give a job at least N GPUs whenever it trains, from now on.

    If that breaks a promise, admission rejects it and offers another number;
    the exit code is then 1. If a later promise needs the GPUs, the job waits.
    New limits replace the previous ones.

    \b
    Examples:
      eflow scale-out digits-3f9a1c
      eflow scale-out digits-3f9a1c 8 --for 10m
      eflow scale-out digits-3f9a1c --release
    """

    async def limit(client: Client) -> Answer:
        if release:
            return await client.release(job_id)
        least = num_gpus or 2 * max((await _job(client, job_id)).num_gpus, 1)
        return await client.scale(job_id, min_gpus=least, duration=duration_of(lasting, "--for"))

    _answer(run(_naming_owner(job_id, limit), where), "out", as_json)


@takes_tables
def scale_in(
    job_id: JobId,
    num_gpus: NumGpus = None,
    lasting: For = "",
    given_up: GivenUpOptions = GivenUpOptions(),
    release: Release = False,
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Give a job at most N GPUs, from now on.

    Instead of a number, --gpu and --node name what it gives up. A job holds a
    power of two of GPUs, so of three that remain it keeps two. It gets those
    that it has given up only if too few others are free.

    If its promise cannot be kept on so few, admission rejects it and offers
    another number; the exit code is then 1. New limits replace the previous
    ones.

    \b
    Examples:
      eflow scale-in digits-3f9a1c
      eflow scale-in digits-3f9a1c 1 --for 10m
      eflow scale-in digits-3f9a1c --gpu node-1:3
      eflow scale-in digits-3f9a1c --node node-1 --for 2h
      eflow scale-in digits-3f9a1c --release
    """
    without = " ".join((*gpus_named(given_up.gpus, "--gpu"), *given_up.nodes))
    if release and without:
        raise typer.BadParameter("it clears the limits, so it names no GPUs", param_hint="--release")

    async def limit(client: Client) -> Answer:
        if release:
            return await client.release(job_id)
        if without:
            lasts = duration_of(lasting, "--for")
            return await client.scale(job_id, max_gpus=num_gpus, without=without, duration=lasts)
        most = num_gpus or (await _job(client, job_id)).num_gpus // 2
        if not most:
            raise InvalidJob(f"{job_id} holds 1 GPU at most, the fewest possible; give a number to limit it")
        return await client.scale(job_id, max_gpus=most, duration=duration_of(lasting, "--for"))

    _answer(run(_naming_owner(job_id, limit), where), "in", as_json)


def _naming_owner(job_id: str, limit: Callable[[Client], Awaitable[Answer]]) -> Callable[[Client], Awaitable[Answer]]:
    async def ask(client: Client) -> Answer:
        return await naming_owner(client, job_id, await limit(client))

    return ask


async def _job(client: Client, job_id: str) -> Job:
    """Raises UnknownJob, and InvalidJob for a job of another tenant."""
    state = await client.state()
    job = state.job(job_id)
    if job is None:
        raise UnknownJob(job_id, f"pool {client.endpoint.pool}", state.names)
    if job.tenant != client.tenant:
        owner = owner_in_words("job", job.tenant)
        raise InvalidJob(f"{job_id}: tenant {client.tenant} has no such job; {owner}")
    return job


def _answer(answer: Answer, direction: Literal["in", "out"], as_json: bool) -> None:
    done = not isinstance(answer, GpuLimitsRejected)
    if as_json:
        print_json({"scaled": done, **plain(answer)})
    elif isinstance(answer, GpuLimitsSet):
        say_line(f"scaled  {answer.job_id}: {limits_in_words(answer, answer.at_s)}", "green")
        if answer.minimum_satisfactory_share:
            say_line(f"  promised  {schedule_in_words(answer.minimum_satisfactory_share)}")
        say_line(f"  clear it  eflow scale-{direction} {answer.job_id} --release")
    elif isinstance(answer, GpuLimitsCleared):
        say_line(f"released  {answer.job_id}: its GPU limits are cleared", "green")
    else:
        say_line(f"not scaled: {answer.job_id}: {answer.explanation}", "yellow")
        if answer.num_gpus is not None:
            say_line(f"  take it  eflow scale-{direction} {answer.job_id} {answer.num_gpus}")
    raise typer.Exit(0 if done else 1)
