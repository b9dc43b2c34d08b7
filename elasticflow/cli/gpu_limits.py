"""`eflow scale-out` and `eflow scale-in`."""

from typing import Annotated, Literal

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, Tenant, run
from elasticflow.cli.option_values import duration_of
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.errors import UnknownJob
from elasticflow.history.formatting import limits_in_words, schedule_in_words
from elasticflow.sdk.job import InvalidJob
from elasticflow.shared.messages.events import GpuLimitsCleared, GpuLimitsRejected, GpuLimitsSet
from elasticflow.shared.state.job import Job

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


def scale_out(
    job_id: JobId,
    num_gpus: NumGpus = None,
    lasting: For = "",
    release: Release = False,
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
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

    async def ask(client: Client) -> Answer:
        if release:
            return await client.release(job_id)
        least = num_gpus or 2 * max((await _job(client, job_id)).num_gpus, 1)
        return await client.scale(job_id, min_gpus=least, duration=duration_of(lasting, "--for"))

    _answer(run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant), "out", as_json)


def scale_in(
    job_id: JobId,
    num_gpus: NumGpus = None,
    lasting: For = "",
    release: Release = False,
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a job at most N GPUs, from now on.

    If its promise cannot be kept on so few, admission rejects it and offers
    another number; the exit code is then 1. New limits replace the previous
    ones.

    \b
    Examples:
      eflow scale-in digits-3f9a1c
      eflow scale-in digits-3f9a1c 1 --for 10m
      eflow scale-in digits-3f9a1c --release
    """

    async def ask(client: Client) -> Answer:
        if release:
            return await client.release(job_id)
        most = num_gpus or (await _job(client, job_id)).num_gpus // 2
        if not most:
            raise InvalidJob(f"{job_id} holds 1 GPU at most, the fewest possible; give a number to limit it")
        return await client.scale(job_id, max_gpus=most, duration=duration_of(lasting, "--for"))

    _answer(run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant), "in", as_json)


async def _job(client: Client, job_id: str) -> Job:
    """Raises UnknownJob."""
    state = await client.state()
    job = state.job(job_id)
    if job is None:
        raise UnknownJob(job_id, f"pool {client.endpoint.pool}", state.names)
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
        say_line(f"released  {answer.job_id}: {answer.reason}", "green")
    else:
        say_line(f"not scaled: {answer.job_id}: {answer.explanation}", "yellow")
        if answer.num_gpus is not None:
            say_line(f"  take it  eflow scale-{direction} {answer.job_id} {answer.num_gpus}")
    raise typer.Exit(0 if done else 1)
