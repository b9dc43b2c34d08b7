"""`eflow submit --sweep`: one job for each combination of hyperparameters, and one table of the answers."""

import asyncio
import contextlib
import copy
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from elasticflow.cli.command_options import PoolOptions, run
from elasticflow.cli.decision_output import decision_as_json, end_as_json, in_time, note_replaced
from elasticflow.cli.terminal_output import note, print_json, progress_bar, say, say_line
from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package, fresh_job_id
from elasticflow.client.replies import Decision
from elasticflow.errors import InvalidJob, NotEnded, Undecided, did_you_mean
from elasticflow.history.formatting import undecided_in_words, value_in_words
from elasticflow.history.tables import state_word, table
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.job_fields import undeclared
from elasticflow.sdk.script import Script
from elasticflow.sdk.submission import with_code
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.events import JobAdmitted, JobCancelled, JobFailed, JobRejected
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import JobSpec, Scalar
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.job import Job
from elasticflow.times import clock_time, duration_in_words

# --- Sweeps: one job for each combination of hyperparameter values -------------------------------------

MAX_COMBINATIONS = 1_000
MAX_NAME_LENGTH = 64  # of a job's id

Combination = Mapping[str, Scalar]


def combinations(sweep: Mapping[str, Sequence[Scalar]]) -> tuple[Combination, ...]:
    """Each choice of one value for each name; the last name varies fastest. Raises InvalidJob if they are too many."""
    count = math.prod(map(len, sweep.values()))
    if count > MAX_COMBINATIONS:
        sizes = " x ".join(str(len(values)) for values in sweep.values())
        raise InvalidJob(f"sweep: {sizes} = {count} combinations are more than {MAX_COMBINATIONS}; sweep fewer values")
    return tuple(dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values()))


def job_of(job: ElasticJob, combination: Combination) -> ElasticJob:
    """The job with these hyperparameters. A script gets its settings as arguments: "{lr}" in one stands for the value.

    Raises InvalidJob, naming each unknown hyperparameter and the close known ones.
    """
    in_arguments = _placeholders(job)
    if problems := _unknown(job, in_arguments, combination):
        raise InvalidJob(*problems)
    made = copy.copy(job)
    others = {name: value for name, value in combination.items() if name not in in_arguments}
    made.hyperparameters = {**job.hyperparameters, **others}
    if isinstance(made, Script):
        made.arguments = tuple(_filled(argument, combination) for argument in made.arguments)
    return made


def job_ids(base: str, swept: Sequence[Combination]) -> tuple[str, ...]:
    """Their names, each different: "digits-lr-0_1", because an id has letters, digits, _ and - only.

    A name that is too long, or that another combination has, ends in the number of its combination.
    """
    named: dict[str, None] = {}
    for number, combination in enumerate(swept, start=1):
        words = "-".join(f"{name}-{value_in_words(value)}" for name, value in combination.items())
        job_id = re.sub(r"[^A-Za-z0-9_-]", "_", f"{base}-{words}")
        if len(job_id) > MAX_NAME_LENGTH or job_id in named:
            job_id = f"{job_id[: MAX_NAME_LENGTH - 6]}--{number}"
        named[job_id] = None
    return tuple(named)


def in_sweep(spec: JobSpec, sweep: str, combination: Combination, now_s: float) -> JobSpec:
    """One job of a sweep: it names its values, and has the deadline of all others, whenever each is decided on."""
    spec = replace(spec, sweep=sweep, swept=combination)
    if spec.deadline_in_s is None:
        return spec
    return replace(spec, deadline_s=now_s + spec.deadline_in_s, deadline_in_s=None)


def _placeholders(job: ElasticJob) -> set[str]:
    """The names in braces among the arguments of a script."""
    arguments = job.arguments if isinstance(job, Script) else ()
    return {name for argument in arguments for name in re.findall(r"\{([A-Za-z_]\w*)\}", argument)}


def _filled(argument: str, combination: Combination) -> str:
    for name, value in combination.items():
        argument = argument.replace(f"{{{name}}}", value_in_words(value))
    return argument


def _unknown(job: ElasticJob, in_arguments: set[str], combination: Combination) -> tuple[str, ...]:
    """A problem for each name that neither the job nor an argument of the script has."""
    if not isinstance(job, Script):
        return undeclared(type(job).__name__, job.hyperparameters, combination, "--sweep")
    known = {*job.hyperparameters, "global_batch_size", *in_arguments}
    return tuple(
        f"--sweep {name}: no argument of the script contains {{{name}}}; write it where the value belongs, as in "
        f"-- --{name} {{{name}}}{did_you_mean(name, known)}"
        for name in combination
        if name not in known
    )


# --- The answers on the jobs of a sweep, as a table and as JSON ----------------------------------------

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
    """The answers as those of single submissions, each with its hyperparameters."""
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


# --- sweep ---------------------------------------------------------------------------------------------

MAX_UNDECIDED = 32  # jobs that wait for a decision at once, each with a subscription


def members_of(
    job: ElasticJob, code: Package | None, sweep: Mapping[str, Sequence[Scalar]], *, name: str, now_s: float
) -> tuple[Member, ...]:
    """name: of the sweep; "" for a fresh one. Raises InvalidJob for the first combination that is wrong."""
    swept = combinations(sweep)
    specs = [with_code(job_of(job, combination), code).spec for combination in swept]
    name = name or fresh_job_id(specs[0])
    fixed = (in_sweep(spec, name, combination, now_s) for spec, combination in zip(specs, swept, strict=True))
    return tuple(
        Member(job_id=job_id, combination=combination, spec=spec, code=code)
        for job_id, combination, spec in zip(job_ids(name, swept), swept, fixed, strict=True)
    )


def submit_sweep(
    members: tuple[Member, ...],
    where: PoolOptions,
    sent: list[str],
    *,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Submit each job, and print the answers. Returns the exit code. sent: gets the id of each job as it is sent."""
    awaited: list[str] = []

    async def submit_and_wait(client: Client) -> tuple[tuple[Answer, ...], dict[str, Job]]:
        answers = await submit_all(client, members, sent)
        awaited.extend(answer.job_id for answer in answers if wait and isinstance(answer, JobAdmitted))
        return answers, await ended_within(client, awaited, timeout_s)

    try:
        answers, ended = run(submit_and_wait, where)
    except ElasticFlowError:
        if sent:
            note(f"eflow: these jobs were sent and go on; `eflow cancel ID` stops one: {', '.join(sent)}")
        raise
    if as_json:
        print_json(answers_as_json(members, answers, ended))
    else:
        show_answers(members, answers, ended, SystemClock().now_s())
    for job_id in awaited:
        if job_id not in ended:
            raise NotEnded(job_id, timeout_s or 0.0)
    return 0 if all_good(answers, ended) else 1


async def post_all(client: Client, members: Sequence[Member], sent: list[str]) -> None:
    """sent: gets the id of each job as it is sent."""
    client.on_earlier, state = note_replaced, await client.state()
    for member in members:
        sent.append(member.job_id)
        again = None if state.job(member.job_id) is not None else False
        await client.post(member.spec, job_id=member.job_id, code=member.code, again=again)


async def submit_all(client: Client, members: Sequence[Member], sent: list[str]) -> tuple[Answer, ...]:
    """The answer on each. A job is sent once the one before is decided on, or waits for its profiling run.

    sent: gets the id of each job as it is sent.
    """
    slots, state = asyncio.Semaphore(MAX_UNDECIDED), await client.state()
    client.on_earlier = note_replaced

    async def submit(member: Member, goes_on: asyncio.Event) -> Answer:
        def undecided(event: Any) -> None:
            note(f"{event.job_id}: {undecided_in_words(event)} ...")
            goes_on.set()

        again = None if state.job(member.job_id) is not None else False
        try:
            return await client.submit(
                member.spec, job_id=member.job_id, code=member.code, again=again, on_undecided=undecided
            )
        except (Undecided, InvalidJob) as error:  # the others have an answer
            return error
        finally:
            goes_on.set()
            slots.release()

    running: list[asyncio.Task[Answer]] = []
    with progress_bar("jobs") as advance:
        try:
            for member in members:
                await slots.acquire()
                goes_on = asyncio.Event()
                sent.append(member.job_id)
                running.append(asyncio.create_task(submit(member, goes_on)))
                await goes_on.wait()
                advance(sum(task.done() for task in running), len(members))
            return tuple(await asyncio.gather(*running))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def ended_within(client: Client, job_ids: Sequence[str], timeout_s: float | None) -> dict[str, Job]:
    """The jobs that have ended: all of them, unless the time is over before."""
    ended: dict[str, Job] = {}
    with contextlib.suppress(TimeoutError), progress_bar("ended") as advance:
        async with asyncio.timeout(timeout_s), contextlib.aclosing(client.states()) as states:
            while len(ended) < len(job_ids):
                state = await anext(states)
                found = [state.job(job_id) for job_id in job_ids if job_id not in ended]
                ended |= {job.job_id: job for job in found if job is not None and not job.live}
                advance(len(ended), len(job_ids))
    return ended
