"""`eflow submit --sweep`: one job for each combination of hyperparameters, and one table of the answers."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from elasticflow.cli.command_options import run
from elasticflow.cli.progress import progress_bar
from elasticflow.cli.sweep_output import Answer, Member, all_good, answers_as_json, show_answers, show_posted
from elasticflow.cli.terminal_output import note, print_json
from elasticflow.client.client import Client
from elasticflow.client.command_requests import fresh_job_id
from elasticflow.errors import NotEnded, Undecided
from elasticflow.history.formatting import undecided_in_words
from elasticflow.sdk.job import ElasticJob, InvalidJob
from elasticflow.sdk.packaging import Package
from elasticflow.sdk.submission import with_code
from elasticflow.sdk.sweep import combinations, in_sweep, job_ids, job_of
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.job_spec import Scalar
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.job import Job

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
    where: dict[str, Any],
    *,
    detach: bool,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Submit each job, and print the answers. where: the pool, as `run` takes it. Returns the exit code."""
    if detach:
        run(lambda client: post_all(client, members), **where)
        show_posted(members, as_json=as_json)
        return 0

    sent: list[str] = []
    awaited: list[str] = []

    async def submit_and_wait(client: Client) -> tuple[tuple[Answer, ...], dict[str, Job]]:
        answers = await submit_all(client, members, sent)
        awaited.extend(answer.job_id for answer in answers if wait and isinstance(answer, JobAdmitted))
        return answers, await ended_within(client, awaited, timeout_s)

    try:
        answers, ended = run(submit_and_wait, **where)
    except (KeyboardInterrupt, ElasticFlowError):
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


async def post_all(client: Client, members: Sequence[Member]) -> None:
    for member in members:
        await client.post(member.spec, job_id=member.job_id, code=member.code)


async def submit_all(client: Client, members: Sequence[Member], sent: list[str]) -> tuple[Answer, ...]:
    """The answer on each. A job is sent once the one before is decided on, or waits for its profiling run.

    sent: gets the id of each job as it is sent.
    """
    slots = asyncio.Semaphore(MAX_UNDECIDED)

    async def submit(member: Member, goes_on: asyncio.Event) -> Answer:
        def undecided(event: Any) -> None:
            note(f"{event.job_id}: {undecided_in_words(event)} ...")
            goes_on.set()

        try:
            return await client.submit(member.spec, job_id=member.job_id, code=member.code, on_undecided=undecided)
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
