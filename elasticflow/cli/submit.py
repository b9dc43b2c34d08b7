"""`eflow submit` and `eflow quote`."""

import json
import math
import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from elasticflow.cli.options import DataDir, Json, NatsUrl, Pool, Tenant, run, where_words
from elasticflow.cli.output import note, plain, print_json, say_line
from elasticflow.client import Client, Decision
from elasticflow.job import ElasticJob
from elasticflow.submission import load, quotable, with_code
from elasticflow.times import clock_time, duration_in_words, parse_deadline
from elasticflow.views import job_view
from shared.messages.cluster import ShareSegment
from shared.messages.events import DeadlineQuoted, JobAdmitted, JobCancelled, JobFailed, JobRejected
from shared.messages.job import Scalar
from shared.messages.pool_state import Job, Phase

Target = Annotated[
    str, typer.Argument(metavar="FILE[:CLASS]|MODULE:CLASS", help="Your subclass of ElasticJob.")
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="Global batch size: samples an iteration.")
]
NumIterations = Annotated[
    int | None, typer.Option("--iterations", metavar="N", help="Stop after so many iterations.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter; may be given several times."),
]


class ClassName(StrEnum):
    """Job classes as a command line spells them."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best-effort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for, beside what the class says."""

    target: str
    deadline: str = ""
    batch: int | None = None
    iterations: int | None = None
    settings: tuple[str, ...] = ()
    job_class: ClassName | None = None
    name: str = ""
    tenant: str = ""
    where: tuple[str, ...] = ()  # options that name the pool

    def command(self) -> str:
        """The command line that asks for this, ready to be pasted into a shell."""
        words = ["eflow", "submit", self.target]
        options = {
            "--deadline": self.deadline,
            "--batch": self.batch,
            "--iterations": self.iterations,
            "--class": self.job_class,
            "--name": self.name,
            "--tenant": self.tenant,
        }
        for option, value in options.items():
            words += [option, str(value)] if value not in ("", None) else []
        for setting in self.settings:
            words += ["--set", setting]
        return shlex.join([*words, *self.where])

    def apply(self, job: ElasticJob) -> ElasticJob:
        """The job with what was asked for on top of what its class says."""
        if self.deadline:
            try:
                deadline = parse_deadline(self.deadline)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--deadline") from None
            job.set_deadline(at=deadline.at_s, within=deadline.in_s)
        if self.job_class is not None:
            job.set_job_class(self.job_class.value.replace("-", "_"))  # pyright: ignore[reportArgumentType]
        settings: dict[str, Any] = dict(map(parse_setting, self.settings))
        job.set_hyperparameter(global_batch_size=self.batch, **settings)
        return job.term_condition(max_iterations=self.iterations)


def parse_setting(text: str) -> tuple[str, Scalar]:
    """NAME=VALUE; the value as a number or truth value where it reads as one, else as text."""
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, parsed if isinstance(parsed, bool | int | float) else value


# --- commands -------------------------------------------------------------------------------------------


def submit(
    context: typer.Context,
    target: Target,
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="WHEN", help="90s, 15m, 2h30m, 1d, or 2026-05-01T18:00.")
    ] = "",
    batch: Batch = None,
    iterations: NumIterations = None,
    setting: Settings = None,
    job_class: Annotated[
        ClassName | None,
        typer.Option("--class", help="slo: kept or rejected. soft: tried. best-effort: no deadline."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="ID", help="Id of the job; twice the same is the same job.")
    ] = "",
    tenant: Tenant = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "--no-wait", help="Do not even wait for the decision.")
    ] = False,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Hand a job in; answer with the promise, or with why not and what could be promised.

    A file is packed and sent along; a module must be importable on the nodes. Exit code 1 if the job is
    rejected; with --wait also if it fails, is cancelled, or ends after its deadline.

    \b
    Examples:
      eflow submit train.py --deadline 10m
      eflow submit train.py:Digits --deadline 2026-05-01T18:00 --batch 256 --iterations 3000
      eflow submit examples.digits:Digits --class best-effort --set learning_rate=0.1
      eflow submit train.py --deadline 2h --name nightly-42 --wait --json
    """
    wish = Wish(
        target=target,
        deadline=deadline,
        batch=batch,
        iterations=iterations,
        settings=tuple(setting or ()),
        job_class=job_class,
        name=name,
        tenant=tenant,
        where=where_words(context),
    )
    job, code = load(target)
    ready = with_code(wish.apply(job), code)

    async def post(client: Client) -> str:
        return await client.post(ready.spec, job_id=name, code=ready.code)

    async def submit_and_wait(client: Client) -> tuple[Decision, Job | None]:
        decision = await client.submit(
            ready.spec,
            job_id=name,
            code=ready.code,
            on_profiling=lambda event: note(
                f"{event.job_id}: speed not known yet, measuring it on free GPUs before the decision ..."
            ),
        )
        if not (wait and isinstance(decision, JobAdmitted)):
            return decision, None
        if not as_json:
            show_decision(decision, wish)
        return decision, await client.wait(decision.job_id)

    where = {"nats_url": nats_url, "pool": pool, "data_dir": data_dir, "tenant": tenant}
    if detach:
        job_id = run(post, **where)
        print_json({"decision": "none yet", "job_id": job_id}) if as_json else say_line(f"submitted {job_id}")
        return
    decision, ended = run(submit_and_wait, **where)
    if as_json:
        print_json(decision_as_json(decision) | ({"end": end_as_json(ended)} if ended else {}))
    elif ended is None:
        show_decision(decision, wish)
    else:
        show_end(ended)
    good = isinstance(decision, JobAdmitted) and (ended is None or in_time(ended))
    raise typer.Exit(0 if good else 1)


def quote(
    context: typer.Context,
    target: Target,
    batch: Batch = None,
    iterations: NumIterations = None,
    setting: Settings = None,
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The earliest deadline that a job would be promised now. Nothing is submitted or reserved.

    Exit code 1 if no deadline can be quoted, for instance because the job's speed was never measured.

    \b
    Examples:
      eflow quote train.py
      eflow quote train.py:Digits --batch 256 --iterations 3000 --json
    """
    wish = Wish(
        target=target,
        batch=batch,
        iterations=iterations,
        settings=tuple(setting or ()),
        tenant=tenant,
        where=where_words(context),
    )
    job, code = load(target)
    ready = with_code(quotable(wish.apply(job)), code)

    async def ask(client: Client) -> DeadlineQuoted:
        return await client.quote(ready.spec)

    quoted = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    if as_json:
        print_json(quoted)
    elif quoted.earliest_deadline_s is None:
        say_line(f"no quote: {quoted.explanation}", "yellow")
    else:
        _show_quote(quoted, quoted.earliest_deadline_s, wish)
    raise typer.Exit(0 if quoted.earliest_deadline_s is not None else 1)


# --- in words -------------------------------------------------------------------------------------------


def show_decision(decision: Decision, wish: Wish) -> None:
    match decision:
        case JobAdmitted():
            _show_admitted(decision)
        case JobRejected():
            _show_rejected(decision, wish)
        case JobCancelled():
            say_line(f"cancelled {decision.job_id} {decision.reason}".rstrip(), "yellow")
        case JobFailed():
            say_line(f"failed    {decision.job_id}: {decision.error}", "red")
            say_line(f"  log     eflow logs {decision.job_id}")


def _show_admitted(event: JobAdmitted) -> None:
    say_line(f"admitted  {event.job_id}", "green")
    if event.deadline_s is not None:
        left = duration_in_words(event.deadline_s - event.at_s)
        say_line(f"  deadline         {clock_time(event.deadline_s, now_s=event.at_s)} (in {left})")
    finish_s = max((s.end_s for s in event.minimum_satisfactory_share if s.num_gpus), default=None)
    if finish_s is not None:
        left = duration_in_words(finish_s - event.at_s)
        say_line(f"  expected finish  {clock_time(finish_s, now_s=event.at_s)} (in {left}) at the latest")
        say_line(f"  promised         {schedule_in_words(event.minimum_satisfactory_share)}")
    say_line(f"  follow it        eflow watch    eflow logs -f {event.job_id}    eflow why {event.job_id}")


def _show_rejected(event: JobRejected, wish: Wish) -> None:
    say_line(f"rejected  {event.job_id}: {event.explanation}", "red")
    if event.earliest_deadline_s is not None:
        left_s = math.ceil(event.earliest_deadline_s - event.at_s)
        when = clock_time(event.earliest_deadline_s, now_s=event.at_s)
        say_line(f"  earliest deadline  {when} (in {duration_in_words(left_s)})")
        again = replace(wish, deadline=f"{left_s}s", name=f"{wish.name}-2" if wish.name else "")
        say_line(f"  take it            {again.command()}")
    if event.reason == "duplicate":
        say_line("  choose another --name, or leave it out")


def _show_quote(quoted: DeadlineQuoted, earliest_s: float, wish: Wish) -> None:
    left_s = math.ceil(earliest_s - quoted.at_s)
    when = clock_time(earliest_s, now_s=quoted.at_s)
    say_line(f"earliest deadline  {when} (in {duration_in_words(left_s)})", "green")
    if quoted.gpu_seconds is not None:
        say_line(f"  needs            {quoted.gpu_seconds:.0f} GPU-seconds")
    say_line(f"  take it          {replace(wish, deadline=f'{left_s}s').command()}")


def schedule_in_words(schedule: tuple[ShareSegment, ...]) -> str:
    """ "2 GPUs for 40.0s, then 4 GPUs for 1m 20s"."""
    steps = [
        f"{s.num_gpus} GPU{'' if s.num_gpus == 1 else 's'} for {duration_in_words(s.end_s - s.start_s)}"
        for s in schedule
    ]
    return ", then ".join(steps) or "nothing"


def in_time(job: Job) -> bool:
    """It finished, and before its deadline if it was promised one."""
    if job.phase is not Phase.FINISHED:
        return False
    late = job.deadline_s is not None and job.ended_at_s is not None and job.ended_at_s > job.deadline_s
    return not (late and job.spec is not None and job.spec.job_class.value == ClassName.SLO.value)


def show_end(job: Job) -> None:
    view = job_view(job, job.ended_at_s or 0.0)
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in view.metrics.items())
    margin = ""
    if view.margin_s is not None:
        word = "before" if view.margin_s >= 0 else "after"
        margin = f"  {duration_in_words(abs(view.margin_s))} {word} its deadline"
    style = "green" if in_time(job) else "red"
    end = f"{view.activity}  {job.job_id}: {view.iteration} iterations{margin}  {metrics}"
    say_line(end.rstrip(), style)
    if job.explanation:
        say_line(f"  {job.explanation}")


# --- as JSON --------------------------------------------------------------------------------------------

_WORDS = {
    JobAdmitted: "admitted",
    JobRejected: "rejected",
    JobCancelled: "cancelled",
    JobFailed: "failed",
}


def decision_as_json(decision: Decision) -> dict[str, Any]:
    """The event's own fields, and the decision in a word."""
    return {"decision": _WORDS[type(decision)], **plain(decision)}


def end_as_json(job: Job) -> dict[str, Any]:
    return plain(job_view(job, job.ended_at_s or 0.0))
