"""Decisions, quotes and ends of jobs, as text and as JSON."""

import contextlib
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.terminal_output import note, plain, say_line
from elasticflow.client.replies import Decision
from elasticflow.history.formatting import ended_in_words, offer_in_words, other_offers, schedule_in_words
from elasticflow.history.pool_views import job_view
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.events import (
    DeadlineQuoted,
    JobAdmitted,
    JobCancelled,
    JobFailed,
    JobRejected,
    QuoteRejected,
    QuoteReserved,
)
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.limits import MAX_LAST_LINES, next_name
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.promise import Promise, promise_of
from elasticflow.times import clock_time, duration_in_words, moment_in_words


class SentJobs(list[str]):
    """Ids of jobs, once the pool may have them. decision: on a single job, so far."""

    decision: Decision | None = None


@contextlib.contextmanager
def telling_what_goes_on(sent: Sequence[str], what: str = "") -> Iterator[None]:
    """Tell who presses Ctrl-C what the pool goes on with. sent: ids of what it has got, maybe `SentJobs`. what: they
    are, if not jobs."""
    try:
        yield
    except KeyboardInterrupt:
        ids = tuple(dict.fromkeys(sent))
        if not ids:
            note(f"eflow: nothing was {'measured' if what else 'submitted'}")
        elif what:
            note(f"eflow: {what}{ids[0]} goes on; `eflow cancel {ids[0]}` stops it")
        elif len(ids) == 1:
            decision = sent.decision if isinstance(sent, SentJobs) else None
            goes_on = decision is None or isinstance(decision, JobAdmitted)
            stops = f", `eflow cancel {ids[0]}` stops it" if goes_on else ""
            note(f"eflow: {ids[0]} {_so_far(decision)}; `eflow explain {ids[0]}` shows it{stops}")
        else:
            note(
                f"eflow: these jobs were sent and go on; `eflow jobs` shows them, `eflow cancel ID` stops one: "
                f"{', '.join(ids)}"
            )
        raise


def _so_far(decision: Decision | None) -> str:
    match decision:
        case None:
            return "was sent and goes on, undecided so far"
        case JobAdmitted():
            return "was admitted and goes on"
        case JobRejected():
            return "was rejected"
        case _:
            return "has ended"


def show_decision(
    decision: Decision,
    options: SubmissionOptions,
    *,
    now_s: float,
    earlier: Job | None = None,
    where: Sequence[str] = (),
) -> None:
    """now_s: later than the decision if an earlier submission was the same. earlier: the job of this name before.

    where: options that name the pool, for the commands about the job.
    """
    is_rejected = isinstance(decision, JobRejected)
    if earlier is not None and not is_rejected and earlier.phase is not Phase.REJECTED:
        if earlier.live or decision.at_s in (earlier.decided_at_s, earlier.ended_at_s):
            _show_earlier(earlier, now_s)
        if earlier.ended_at_s is not None and decision.at_s == earlier.decided_at_s:
            return  # its promise is history
    elif earlier is not None and is_rejected and decision.at_s == earlier.decided_at_s:
        _show_earlier_rejection(earlier, now_s)
        return  # its offers count from then
    match decision:
        case JobAdmitted():
            _show_admitted(decision, now_s, where)
        case JobRejected():
            had_ended = earlier is not None and earlier.tenant == decision.tenant and earlier.ended_at_s is not None
            _show_rejected(decision, options if had_ended or decision.replaces else _with_next_name(options))
        case JobCancelled():
            say_line(f"cancelled {decision.job_id} {decision.reason}".rstrip(), "yellow")
        case JobFailed():
            say_line(f"failed    {decision.job_id}: {decision.error}", "red")
            show_last_lines(decision.last_lines or decision.traceback)
            say_line(f"  log     {shlex.join(['eflow', 'logs', decision.job_id, *where])}")


def note_replaced(job: Job, is_replaced: bool) -> None:
    """Say that a submission asks for the name of this ended job, if it does."""
    if is_replaced:
        note(f"{job.job_id} {ended_in_words(job)}; this job asks for its name")


def _show_earlier(job: Job, now_s: float) -> None:
    """Nothing new was decided: this is the answer to the first submission."""
    decided = moment_in_words(job.decided_at_s, now_s)
    what = "admitted" if job.phase not in (Phase.PROFILING, Phase.PROFILED) else "submitted"
    end = "" if job.ended_at_s is None else f", and {job.phase.value} at {moment_in_words(job.ended_at_s, now_s)}"
    again = "" if job.ended_at_s is None else "; to run it again: --again"
    say_line(f"{job.job_id} was {what} already at {decided}{end}; nothing was submitted now{again}", "yellow")


def _show_earlier_rejection(job: Job, now_s: float) -> None:
    decided = moment_in_words(job.decided_at_s, now_s)
    say_line(
        f"{job.job_id} was rejected already at {decided}; nothing was submitted now; to ask again: --again", "yellow"
    )
    say_line(f"rejected  {job.job_id}: {job.explanation}", "red")


def _show_admitted(event: JobAdmitted, now_s: float, where: Sequence[str]) -> None:
    say_line(f"admitted  {event.job_id}", "green")
    if event.gpu_type:
        say_line(f"  GPU type         {event.gpu_type}")
    if event.deadline_s is not None:
        say_line(f"  deadline         {moment_in_words(event.deadline_s, now_s)}")
    finish_s = max((s.end_s for s in segments(event.minimum_satisfactory_share) if s.num_gpus), default=None)
    if finish_s is not None:
        say_line(f"  expected finish  {moment_in_words(finish_s, now_s)} at the latest")
        say_line(f"  promised         {schedule_in_words(event.minimum_satisfactory_share)}")
    commands = (("watch",), ("logs", "-f", event.job_id), ("explain", event.job_id))
    say_line(f"  follow it        {'    '.join(shlex.join(['eflow', *command, *where]) for command in commands)}")


def _with_next_name(options: SubmissionOptions) -> SubmissionOptions:
    """The options of another submission: the name of this one may have its answer."""
    return replace(options, name=next_name(options.name) if options.name else "")


def _show_rejected(event: JobRejected, options: SubmissionOptions) -> None:
    say_line(f"rejected  {event.job_id}: {event.explanation}", "red")
    if event.earliest_deadline_s is not None:
        left_s = math.ceil(event.earliest_deadline_s - event.at_s)
        when = clock_time(event.earliest_deadline_s, now_s=event.at_s)
        say_line(f"  earliest deadline  {when} (in {duration_in_words(left_s)})")
        say_line(f"  take it            {replace(options, deadline=f'{left_s}s').command()}")
    for offer in other_offers(event):
        _show_offer(offer, event, options)
    if event.reason == "duplicate":
        say_line("  choose another --name, or leave it out; resubmitting the same job has no effect")
        say_line("  --again takes the name of an ended job of yours")
    elif event.replaces:
        say_line(f"  the name {event.job_id} stays that of the job that had it")


def _show_offer(offer: Offer, event: JobRejected, options: SubmissionOptions) -> None:
    """The same command with other numbers. The deadline counts from its submission: whole seconds, rounded up."""
    say_line(f"  or                 {offer_in_words(offer, event.spec, event.at_s)}")
    other_batch = event.spec is None or offer.global_batch_size != event.spec.global_batch_size
    again = replace(
        options,
        deadline=f"{math.ceil(offer.deadline_s - event.at_s)}s",
        iterations=offer.max_iterations,
        batch=offer.global_batch_size if other_batch else options.batch,
    )
    say_line(f"  take it            {again.command()}")


def show_quote(
    quoted: DeadlineQuoted, earliest_s: float, options: SubmissionOptions, wanted_s: float | None = None
) -> None:
    """wanted_s: the deadline that the user asks about."""
    if wanted_s is not None and earliest_s <= wanted_s:
        say_line(f"would be promised  {moment_in_words(wanted_s, quoted.at_s)}", "green")
        say_line(f"  take it          {options.command()}")
        return
    if wanted_s is not None:
        too_early = duration_in_words(earliest_s - wanted_s)
        say_line(f"not promised: {moment_in_words(wanted_s, quoted.at_s)} is {too_early} too early", "red")
    left_s = math.ceil(earliest_s - quoted.at_s)
    when = clock_time(earliest_s, now_s=quoted.at_s)
    say_line(f"earliest deadline  {when} (in {duration_in_words(left_s)})", "green")
    if quoted.gpu_seconds is not None:
        on_type = f" of type {quoted.gpu_type}" if quoted.gpu_type else ""
        say_line(f"  needs            {quoted.gpu_seconds:.0f} GPU-seconds{on_type}")
    say_line(f"  take it          {replace(options, deadline=f'{left_s}s').command()}")


def show_reserved(answer: QuoteReserved | QuoteRejected, options: SubmissionOptions) -> None:
    if isinstance(answer, QuoteRejected):
        say_line(f"no quote: {answer.explanation}", "yellow")
        return
    say_line(f"reserved  {answer.job_id} for {duration_in_words(answer.until_s - answer.at_s)}", "green")
    say_line(f"  deadline  {moment_in_words(answer.deadline_s, answer.at_s)}")
    on_type = f" of type {answer.gpu_type}" if answer.gpu_type else ""
    say_line(f"  needs     {answer.gpu_seconds:.0f} GPU-seconds{on_type}")
    say_line(f"  take it   {replace(options, quote=answer.job_id).command()}")


def in_time(job: Job) -> bool:
    """Whether it finished, and before its deadline if that was promised."""
    if job.phase is not Phase.FINISHED:
        return False
    return promise_of(job, job.ended_at_s or 0.0) is not Promise.BROKEN


def show_end(job: Job) -> None:
    view = job_view(job, job.ended_at_s or 0.0)
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in view.metrics.items())
    margin = ""
    if view.margin_s is not None:
        word = "before" if view.margin_s >= 0 else "after"
        margin = f"  {duration_in_words(abs(view.margin_s))} {word} its deadline"
    style = "green" if in_time(job) else "red"
    end = f"{view.activity}  {job.job_id}: {counted(view.iteration, 'iteration')}{margin}  {metrics}"
    say_line(end.rstrip(), style)
    if job.explanation:
        say_line(f"  {job.explanation}")
    show_last_lines(job.last_lines or job.traceback)


def show_last_lines(text: str) -> None:
    """Show the last lines of a failed worker's log, or of its traceback; nothing if there is neither."""
    for line in text.rstrip().splitlines()[-MAX_LAST_LINES:]:
        say_line(f"  | {line}")


# --- JSON --------------------------------------------------------------------------------------------

_WORDS = {
    JobAdmitted: "admitted",
    JobRejected: "rejected",
    JobCancelled: "cancelled",
    JobFailed: "failed",
}


def decision_as_json(decision: Decision) -> dict[str, Any]:
    """The fields of the event, and the decision as one word."""
    return {"decision": _WORDS[type(decision)], **plain(decision)}


def end_as_json(job: Job) -> dict[str, Any]:
    return plain(job_view(job, job.ended_at_s or 0.0))
