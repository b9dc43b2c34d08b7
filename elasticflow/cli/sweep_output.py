"""The answers on the jobs of a sweep, as a table and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from elasticflow.cli.decision_output import decision_as_json, end_as_json, in_time
from elasticflow.cli.terminal_output import print_json, say, say_line
from elasticflow.client.replies import Decision
from elasticflow.errors import Undecided
from elasticflow.history.tables import state_word, table
from elasticflow.sdk.job import InvalidJob
from elasticflow.sdk.job_fields import value_in_words
from elasticflow.sdk.packaging import Package
from elasticflow.sdk.sweep import Combination
from elasticflow.sdk.times import clock_time, duration_in_words
from elasticflow.shared.messages.events import JobAdmitted, JobCancelled, JobFailed, JobRejected
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.share_schedule import segments
from elasticflow.shared.state.job import Job

Answer = Decision | Undecided | InvalidJob  # an error says why there is no decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job of a sweep."""

    job_id: str
    combination: Combination
    spec: JobSpec
    code: Package | None


def show_answers(members: Sequence[Member], answers: Sequence[Answer], ended: dict[str, Job], now_s: float) -> None:
    """A row for each job, a line for each reason, and how many got which answer."""
    names = list(members[0].combination)
    answered = [(member, answer, ended.get(member.job_id)) for member, answer in zip(members, answers, strict=True)]
    rows = (
        (
            member.job_id,
            *(Text(value_in_words(member.combination[name])) for name in names),
            state_word(_word(answer, end)),
            _finish(answer, end, now_s),
        )
        for member, answer, end in answered
    )
    say(table("JOB", *(name.upper() for name in names), "ANSWER", "FINISH", rows=rows))
    for member, answer, end in answered:
        if reason := _reason(answer, end):
            say_line(f"{member.job_id}: {reason}")
    counts = Counter(_word(answer, end) for _, answer, end in answered)
    say_line(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))


def answers_as_json(
    members: Sequence[Member], answers: Sequence[Answer], ended: dict[str, Job]
) -> list[dict[str, Any]]:
    """As of a single submission, each with its hyperparameters."""
    return [_as_json(member, answer, ended) for member, answer in zip(members, answers, strict=True)]


def _as_json(member: Member, answer: Answer, ended: dict[str, Job]) -> dict[str, Any]:
    shown: dict[str, Any] = {"hyperparameters": dict(member.combination)}
    if isinstance(answer, Exception):
        shown |= {"decision": "none", "job_id": member.job_id, "error": str(answer)}
    else:
        shown |= decision_as_json(answer)
    if member.job_id in ended:
        shown["end"] = end_as_json(ended[member.job_id])
    return shown


def all_good(answers: Sequence[Answer], ended: dict[str, Job]) -> bool:
    """Whether each was admitted and, once it has ended, in time."""
    return all(isinstance(answer, JobAdmitted) for answer in answers) and all(map(in_time, ended.values()))


def show_posted(members: Sequence[Member], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"decision": "none yet", "job_id": member.job_id, "hyperparameters": dict(member.combination)}
                for member in members
            ]
        )
        return
    for member in members:
        say_line(f"submitted {member.job_id}")


def _word(answer: Answer, ended: Job | None) -> str:
    if ended is not None:
        return ended.phase.value
    return "undecided" if isinstance(answer, Exception) else str(decision_as_json(answer)["decision"])


def _finish(answer: Answer, ended: Job | None, now_s: float) -> str:
    """When it ended; else the latest finish that the promise expects."""
    if ended is not None:
        return "-" if ended.ended_at_s is None else clock_time(ended.ended_at_s, now_s=now_s)
    if not isinstance(answer, JobAdmitted):
        return "-"
    finish_s = max((s.end_s for s in segments(answer.minimum_satisfactory_share) if s.num_gpus), default=None)
    return "-" if finish_s is None else clock_time(finish_s, now_s=now_s)


def _reason(answer: Answer, ended: Job | None) -> str:
    if ended is not None and ended.explanation:
        return ended.explanation
    match answer:
        case JobAdmitted():
            return ""
        case JobRejected():
            later = answer.earliest_deadline_s
            offer = "" if later is None else f"; earliest deadline in {duration_in_words(later - answer.at_s)}"
            return f"{answer.explanation}{offer}"
        case JobCancelled():
            return answer.reason
        case JobFailed():
            return answer.error
        case _:
            return str(answer)
