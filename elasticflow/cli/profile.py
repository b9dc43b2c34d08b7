"""`eflow profile`."""

from dataclasses import replace
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, SubmissionOptions, Tenant, run, seal_secrets
from elasticflow.cli.job_options import (
    Arguments,
    Batch,
    Data,
    Environment,
    GpuMemory,
    Gpus,
    GpuType,
    Requirement,
    Secret,
    Settings,
    Workdir,
)
from elasticflow.cli.profile_output import show_profile, show_types
from elasticflow.cli.terminal_output import note, print_json
from elasticflow.client.client import Client
from elasticflow.client.replies import ProfileReply
from elasticflow.errors import NotMeasured, UnknownJob
from elasticflow.history.formatting import undecided_in_words
from elasticflow.history.profile_views import profile_view
from elasticflow.history.type_views import types_view
from elasticflow.sdk.submission import Submission, load, profilable
from elasticflow.shared.messages.events import JobCancelled, JobFailed, JobProfiled
from elasticflow.shared.messages.gpus_by_type import gpus_by_type
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.fold.owned_profiles import with_own_curves
from elasticflow.shared.state.gpu_types import submitted_spec
from elasticflow.shared.state.pool import PoolState


def profile(
    target: Annotated[
        str,
        typer.Argument(metavar="JOB|FILE[:CLASS]|MODULE:CLASS", help="A job, or a subclass of ElasticJob."),
    ],
    arguments: Arguments = None,
    batch: Batch = None,
    setting: Settings = None,
    workdir: Workdir = None,
    env: Environment = None,
    requirement: Requirement = None,
    data: Data = None,
    secret: Secret = None,
    gpus: Gpus = "",
    gpu_type: GpuType = "",
    gpu_memory: GpuMemory = "",
    by_type: Annotated[
        bool,
        typer.Option("--types", help="Show the steps of one GPU of each type, and the best split over several types."),
    ] = False,
    mix: Annotated[
        str,
        typer.Option(
            "--mix",
            metavar="NxTYPE,...",
            help="With --types: split over these GPUs, as 2xV100,8xP100. Default: all live GPUs.",
            show_default=False,
        ),
    ] = "",
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the measured throughput of a job by number of GPUs, on each GPU type.

    Without a measurement, the command measures the job now: in a profiling run
    on GPUs that no promise needs. It submits no job. --gpus limits the numbers
    to measure. Exit code 1 if the job cannot be measured.

    \b
    Examples:
      eflow profile digits-3f9a1c
      eflow profile train.py --gpus 1..4
      eflow profile train.py:Digits --batch 256 --json
      eflow profile train.py --types --mix 2xV100,8xP100
    """
    if mix and not by_type:
        raise typer.BadParameter("it needs --types", param_hint="--mix")
    num_gpus = gpus_by_type(mix, "--mix") if mix else None
    where = {"nats_url": nats_url, "pool": pool, "data_dir": data_dir, "tenant": tenant}
    if ":" not in target and not target.endswith(".py"):
        state, spec = run(lambda client: _known(client, target), **where)
    else:
        options = SubmissionOptions(
            target=target,
            arguments=tuple(arguments or ()),
            batch=batch,
            settings=tuple(setting or ()),
            workdir=workdir,
            environment=tuple(env or ()),
            requirement=requirement,
            data=tuple(data or ()),
            secrets=tuple(secret or ()),
            gpus=gpus,
            gpu_type=gpu_type,
            gpu_memory=gpu_memory,
        ).checked(SystemClock().now_s())
        job, code = load(target, options.arguments, workdir)
        job = options.apply(job)
        seal_secrets(job, secret or (), **where)
        ready = profilable(job, code)
        state, spec = run(lambda client: _measured(client, ready), **where)
    state = with_own_curves(state, spec)
    if by_type:
        types = types_view(state, spec, num_gpus)
        print_json(types) if as_json else show_types(types)
        return
    view = profile_view(state, spec)
    if view is None:
        raise NotMeasured(target, "no profiling run has ended, and no job has reported its speed")
    print_json(view) if as_json else show_profile(view)


async def _known(client: Client, job_id: str) -> tuple[PoolState, JobSpec]:
    """The pool, and the job's spec with the GPU type that its user named. Raises UnknownJob."""
    state = await client.state()
    job = state.job(job_id)
    if job is None or job.spec is None:
        raise UnknownJob(job_id, f"pool {client.endpoint.pool}", state.names)
    return state, replace(job.spec, gpu_type=submitted_spec(job).gpu_type)


async def _measured(client: Client, ready: Submission) -> tuple[PoolState, JobSpec]:
    """The pool after the profiling run. Raises NotMeasured."""
    answer = await client.profile(
        ready.spec,
        code=ready.code,
        on_undecided=lambda event: note(f"{event.job_id}: {undecided_in_words(event)} ..."),
    )
    if not isinstance(answer, JobProfiled) or not answer.iterations_per_s:
        raise NotMeasured(ready.spec.training_function, _why_not(answer))
    return await client.state(), replace(ready.spec, owner=client.tenant)


def _why_not(answer: ProfileReply) -> str:
    match answer:
        case JobFailed():
            return f"{answer.error}; see `eflow logs {answer.job_id}`"
        case JobCancelled():
            return f"cancelled {answer.reason}".rstrip()
        case JobProfiled():
            return "the job runs on no number of GPUs of this pool"
        case _:
            return answer.explanation
