"""`eflow profile`."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, TenantOptions, run
from elasticflow.cli.decision_output import telling_what_goes_on
from elasticflow.cli.job_options import SubmissionOptions, seal_secrets
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, say, say_line
from elasticflow.client.client import Client
from elasticflow.client.replies import ProfileReply
from elasticflow.errors import NotThere, UnknownJob
from elasticflow.history.formatting import (
    gpus_by_type_in_words,
    measured_in_words,
    undecided_in_words,
    virtual_nodes_in_words,
)
from elasticflow.history.profile_views import ProfileView, SplitView, TypesView, profile_view, types_view
from elasticflow.history.tables import table
from elasticflow.sdk.submission import Submission, profilable
from elasticflow.shared.messages.event_summary import counted, gpus_counted
from elasticflow.shared.messages.events import JobCancelled, JobFailed, JobProfiled
from elasticflow.shared.messages.gpus import gpus_by_type
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.fold.profiles import with_own_curves
from elasticflow.shared.state.gpu_types import submitted_spec
from elasticflow.shared.state.pool import PoolState
from elasticflow.times import clock_time

# --- Throughput profiles as text -----------------------------------------------------------------------

_CURVE = ("GPUS", "ITERATIONS/S", "SAMPLES/S", "SPEEDUP", "EFFICIENCY", "PROFILED", "")
_STEPS = ("GPU TYPE", "GPUS", "VIRTUAL NODES", "SAMPLES", "STEP MS", "SAMPLES/S", "")


def show_profile(view: ProfileView) -> None:
    """A table for each GPU type on which it is measured."""
    for each in (view, *view.on_other_types):
        on_type = f", on {each.gpu_type}" if each.gpu_type else ""
        say_line(f"{each.profile_key}, {counted(each.global_batch_size, 'sample')} an iteration{on_type}")
        rows = (
            (
                str(point.num_gpus),
                f"{point.iterations_per_s:.4g}",
                f"{point.samples_per_s:.4g}",
                f"{point.speedup:.2f}",
                f"{point.efficiency:.0%}",
                clock_time(point.measured_at_s) if point.measured_at_s is not None else "-",
                "" if point.is_in_range else f"not in {each.gpu_range}",
            )
            for point in each.points
        )
        say(table(*_CURVE, rows=rows, right=_CURVE[:6]))
        if each.virtual_nodes is not None:
            say_line(virtual_nodes_in_words(each.virtual_nodes))
        if not each.complete:
            say_line("other numbers of GPUs are not yet measured", "yellow")


def show_types(view: TypesView) -> None:
    """Steps of one GPU of each type, and the recommended split."""
    divided = "" if view.num_virtual_nodes is None else f" in {counted(view.num_virtual_nodes, 'virtual node')}"
    say_line(f"{view.training_function}, {counted(view.global_batch_size, 'sample')} an iteration{divided}")
    rows = list[tuple[str, ...]]()
    for each in view.types:
        first = (each.gpu_type, str(each.num_gpus))
        points = [
            (
                str(point.num_virtual_nodes),
                str(point.num_samples),
                f"{1000 * point.step_s:.4g}",
                f"{point.samples_per_s:.4g}",
                "measured" if point.measured else "predicted",
            )
            for point in each.steps
        ]
        rows += [(*(first if not number else ("", "")), *point) for number, point in enumerate(points)]
        if not points:
            rows.append((*first, "-", "-", "-", "-", "its profiling run failed" if each.failure else "unknown"))
    say(table(*_STEPS, rows=rows, right=_STEPS[1:6]))
    for each in view.types:
        if each.failure:
            say_line(f"on {each.gpu_type}, which jobs of this profile do not use: {each.failure}", "yellow")
        if each.predicted_from:
            say_line(
                f"{each.gpu_type} is predicted from {each.predicted_from} by other profiles that are known on both; "
                "no promise and no split rests on it"
            )
        if each.communication_s:
            marked = "measured" if each.communication_measured else "predicted"
            by_number = (f"{1000 * s:.3g} ms on {gpus_counted(n)}" for n, s in each.communication_s.items())
            say_line(f"communication on {each.gpu_type}, {marked}: {', '.join(by_number)}")
    if view.split is None:
        say_line(f"no split: {view.obstacle}", "yellow")
    else:
        _show_split(view.split)


def _show_split(split: SplitView) -> None:
    parts = "; ".join(f"{gpu_type} {_in_words(counts)}" for gpu_type, counts in split.virtual_nodes.items())
    say_line(f"best split over {gpus_by_type_in_words(split.num_gpus)}, in virtual nodes of each GPU: {parts}")
    alone = [
        f"{gpu_type} {'does not fit' if alone_s is None else f'{1000 * alone_s:.4g} ms'}"
        for gpu_type, alone_s in split.alone_s.items()
    ]
    speedup = "" if split.speedup is None else f", {split.speedup:.2f} times as fast as the best type alone"
    measured = "-" if split.measured_step_s is None else f"{1000 * split.measured_step_s:.4g} ms"
    corrected = "" if split.correction == 1.0 else f", {split.correction:.2f} times that of the profile by other mixes"
    say_line(
        f"predicted step {1000 * split.step_s:.4g} ms{corrected}{speedup} ({', '.join(alone)}); "
        f"measured step {measured}"
    )


def _in_words(counts: Iterable[int]) -> str:
    """The counts in words, such as "7 + 3 x 6"."""
    groups = [(count, len(list(same))) for count, same in groupby(counts)]
    return " + ".join(f"{count}" if number == 1 else f"{number} x {count}" for count, number in groups)


# --- profile -------------------------------------------------------------------------------------------


@takes_tables
def profile(
    target: Annotated[
        str,
        typer.Argument(metavar="JOB|FILE[:CLASS]|MODULE:CLASS", help="A job, or a subclass of ElasticJob."),
    ],
    options: SubmissionOptions,
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
    where: TenantOptions = TenantOptions(),
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
      eflow profile old.py --torchrun --batch 256 --batch-per-worker 32
      eflow profile train.py --types --mix 2xV100,8xP100
    """
    if mix and not by_type:
        raise typer.BadParameter("it needs --types", param_hint="--mix")
    num_gpus = gpus_by_type(mix, "--mix") if mix else None
    if ":" not in target and not target.endswith(".py"):
        state, spec = run(lambda client: _known(client, target), where)
    else:
        options.checked(SystemClock().now_s())
        sent: list[str] = []  # the id of the profiling run, once the pool may have it
        with telling_what_goes_on(sent, "the measurement "):
            job, code = options.load()
            job = options.apply(job)
            seal_secrets(job, options.secrets, where)
            ready = profilable(job, code)
            state, spec = run(lambda client: _measured(client, ready, sent), where)
    state = with_own_curves(state, spec)
    if by_type:
        types = types_view(state, spec, num_gpus)
        print_json(types) if as_json else show_types(types)
        return
    view = profile_view(state, spec)
    if view is None:
        raise _not_measured(target, "no profiling run has ended, and no job has reported its speed")
    print_json(view) if as_json else show_profile(view)


async def _known(client: Client, job_id: str) -> tuple[PoolState, JobSpec]:
    """The pool, and the job's spec with the GPU type that its user named. Raises UnknownJob."""
    state = await client.state()
    job = state.job(job_id)
    if job is None or job.spec is None:
        raise UnknownJob(job_id, f"pool {client.endpoint.pool}", state.names)
    return state, replace(job.spec, gpu_type=submitted_spec(job).gpu_type)


async def _measured(client: Client, ready: Submission, sent: list[str]) -> tuple[PoolState, JobSpec]:
    """The pool after the profiling run. sent: gets its id as it is sent. Raises NotThere."""
    client.on_sent = sent.append
    client.on_warning = lambda warning: note(f"warning: {warning}")
    client.on_measured = lambda event: note(f"{event.job_id}: {measured_in_words(event)} ...")
    answer = await client.profile(
        ready.spec,
        code=ready.code,
        on_undecided=lambda event: note(f"{event.job_id}: {undecided_in_words(event)} ..."),
    )
    if not isinstance(answer, JobProfiled) or not answer.iterations_per_s:
        raise _not_measured(ready.spec.training_function, _why_not(answer))
    return await client.state(), replace(ready.spec, owner=client.tenant)


def _not_measured(target: str, reason: str) -> NotThere:
    return NotThere("not_measured", f"{target} is not measured: {reason}")


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
