"""`eflow profile`."""

from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, SubmissionOptions, Tenant, run
from elasticflow.cli.job_options import Arguments, Batch, GpuMemory, Gpus, GpuType, Settings
from elasticflow.cli.terminal_output import note, print_json, say, say_line, table
from elasticflow.client.client import Client
from elasticflow.client.replies import ProfileReply
from elasticflow.errors import UnknownJob
from elasticflow.history.formatting import undecided_in_words
from elasticflow.history.pool_views import ProfileView, profile_view
from elasticflow.sdk.job import InvalidJob
from elasticflow.sdk.submission import Submission, load, profilable, quotable, with_code
from elasticflow.sdk.times import clock_time
from elasticflow.shared.messages.events import JobCancelled, JobFailed, JobProfiled


def profile(
    target: Annotated[
        str,
        typer.Argument(metavar="JOB|FILE[:CLASS]|MODULE:CLASS", help="A job, or a subclass of ElasticJob."),
    ],
    arguments: Arguments = None,
    batch: Batch = None,
    setting: Settings = None,
    gpus: Gpus = "",
    gpu_type: GpuType = "",
    gpu_memory: GpuMemory = "",
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the measured throughput of a job by number of GPUs.

    Without a measurement, the command measures the job now: in a profiling run
    on GPUs that no promise needs. It submits no job. --gpus limits the numbers
    to measure. Exit code 1 if the job cannot be measured.

    \b
    Examples:
      eflow profile digits-3f9a1c
      eflow profile train.py --gpus 1..4
      eflow profile train.py:Digits --batch 256 --json
    """
    where = {"nats_url": nats_url, "pool": pool, "data_dir": data_dir, "tenant": tenant}
    if ":" not in target and not target.endswith(".py"):
        view = run(lambda client: _known(client, target), **where)
    else:
        options = SubmissionOptions(
            target=target,
            arguments=tuple(arguments or ()),
            batch=batch,
            settings=tuple(setting or ()),
            gpus=gpus,
            gpu_type=gpu_type,
            gpu_memory=gpu_memory,
        )
        job, code = load(target, options.arguments)
        ready = profilable(with_code(quotable(options.apply(job)), code))
        view = run(lambda client: _measured(client, ready), **where)
    print_json(view) if as_json else _show(view)


async def _known(client: Client, job_id: str) -> ProfileView:
    """Raises UnknownJob."""
    state = await client.state()
    job = state.job(job_id)
    if job is None or job.spec is None:
        raise UnknownJob(job_id, f"pool {client.endpoint.pool}")
    view = profile_view(state, job.spec)
    if view is None:
        raise InvalidJob(f"{job_id} has no measurement yet")
    return view


async def _measured(client: Client, ready: Submission) -> ProfileView:
    answer = await client.profile(
        ready.spec,
        code=ready.code,
        on_undecided=lambda event: note(f"{event.job_id}: {undecided_in_words(event)} ..."),
    )
    view = profile_view(await client.state(), ready.spec)
    if not isinstance(answer, JobProfiled) or view is None:
        raise InvalidJob(_why_not(answer))
    return view


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


def _show(view: ProfileView) -> None:
    say_line(f"{view.profile_key}, {view.global_batch_size} samples an iteration")
    rows = (
        (
            str(point.num_gpus),
            f"{point.iterations_per_s:.4g}",
            f"{point.samples_per_s:.4g}",
            f"{point.speedup:.2f}",
            f"{point.efficiency:.0%}",
            clock_time(point.measured_at_s) if point.measured_at_s is not None else "-",
            "" if point.is_in_range else f"not in {view.gpu_range}",
        )
        for point in view.points
    )
    columns = ("GPUS", "ITERATIONS/S", "SAMPLES/S", "SPEEDUP", "EFFICIENCY", "PROFILED", "")
    say(table(*columns, rows=rows, right=columns[:6]))
    if not view.complete:
        say_line("other numbers of GPUs are not yet measured", "yellow")
