"""A front of several pools: it asks all of them for a quote, and submits the job to the best (docs/adr/0111).

It is a client like others: pools know nothing of it, nor of each other. Which pool is the best is in `pool_choice.py`.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package, check, fresh_job_id
from elasticflow.client.pool_choice import as_promised, keeps_deadline, pools_in_order
from elasticflow.client.pool_endpoint import DEFAULT_TENANT, Endpoint, find_endpoint
from elasticflow.client.replies import Decision
from elasticflow.errors import InputUnusable, InvalidJob, PoolsUnusable
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.commands import DeadlineQuoted, SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, ProfileRequested, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.bus.nats.client import masked
from elasticflow.shared.state.job import Job, Phase

ANSWER_TIMEOUT_S = 10.0  # of one pool, from the connection to its answer
MAX_POOLS = 64
T = TypeVar("T")

# --- named pools ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPool:
    """One of several pools. name: as answers show it. words: the options that name it to other commands, beside those
    that name the server of all."""

    name: str
    endpoint: Endpoint
    words: tuple[str, ...]


def named_pools(
    pools: str | Sequence[str], *, nats_url: str = "", data_dir: Path | None = None
) -> tuple[NamedPool, ...]:
    """The pools of a list, or of a text with commas. nats_url, data_dir: of those that name no server.

    NAME: of a pool on that server. NAME=nats://...: on another server. A folder, with a slash: a pool that `eflow up`
    runs on this machine. Raises InputUnusable, NoPoolHere.
    """
    texts = [text.strip() for text in (pools.split(",") if isinstance(pools, str) else pools)]
    named = tuple(_named_pool(text, nats_url, data_dir) for text in texts if text)
    names, places = [pool.name for pool in named], [(pool.endpoint.nats_url, pool.endpoint.pool) for pool in named]
    twice = [name for name, place in zip(names, places, strict=True) if names.count(name) + places.count(place) > 2]
    if not named or len(named) > MAX_POOLS:
        raise _bad_pools(f"name 1 to {MAX_POOLS} pools, like a,b,c")
    if twice:
        raise _bad_pools(f"{', '.join(dict.fromkeys(twice))}: name each pool once")
    return named


def _named_pool(text: str, nats_url: str, data_dir: Path | None) -> NamedPool:
    name, is_elsewhere, url = text.partition("=")
    if is_elsewhere and not (name and "://" in url):
        raise _bad_pools(f"{text!r}: a pool on another server is NAME=nats://host:4222")
    if is_elsewhere:
        shown = f"{name}@{masked(url).partition('://')[2].rpartition('@')[2]}"  # other servers have pools of this name
        words = ("--nats-url", url, "--pool", name)
        return NamedPool(name=shown, endpoint=find_endpoint(nats_url=url, pool=name), words=words)
    if "/" in text:
        endpoint = find_endpoint(data_dir=Path(text), environment={})
        return NamedPool(name=text, endpoint=endpoint, words=("--data-dir", text))
    endpoint = find_endpoint(nats_url=nats_url, pool=text, data_dir=data_dir)
    return NamedPool(name=text, endpoint=endpoint, words=("--pool", text))


def _bad_pools(problem: str) -> InputUnusable:
    return InputUnusable("bad_pools", f"pools: {problem}")


# --- answers of pools ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """What one pool has answered. problem: why it has not. decision: on the submission, if it was sent to this pool."""

    pool: NamedPool
    quoted: DeadlineQuoted | None = None
    problem: str = ""
    keeps_deadline: bool = False
    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsDecision:
    """The decision on a job that was submitted to several pools, and the pool that took it.

    A rejection: every pool that might have kept the deadline has rejected it; this one offers the earliest deadline.
    earlier: the job, if an earlier submission under its name is in that pool.
    """

    pool: NamedPool
    decision: Decision
    answers: tuple[PoolAnswer, ...]
    earlier: Job | None = None

    def __str__(self) -> str:
        return f"pool {self.pool.name}: {self.decision}"


# --- front ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PoolFront:
    """Submits jobs of one tenant to one of several pools. on_sent gets pool and job; the others are of `Client`."""

    pools: tuple[NamedPool, ...]
    tenant: str = ""
    timeout_s: float = ANSWER_TIMEOUT_S
    on_sent: Callable[[NamedPool, str], object] = field(default=lambda pool, job_id: None)
    on_warning: Callable[[str], object] = field(default=lambda warning: None)
    on_undecided: Callable[[ProfileRequested], None] | None = None
    on_measured: Callable[[ThroughputMeasured], object] = field(default=lambda measured: None)

    async def quotes(self, spec: JobSpec) -> tuple[PoolAnswer, ...]:
        """The answers of all pools, which are asked at once. Raises InvalidJob, and PoolsUnusable if none replies."""
        check(SubmitJob(job_id="job", tenant=self.tenant or DEFAULT_TENANT, spec=spec))
        question = as_promised(spec)
        found = await self._of_all(lambda client: client.quote(question, timeout=self.timeout_s))
        answers = tuple(
            PoolAnswer(pool=pool, quoted=quoted, keeps_deadline=keeps_deadline(quoted, spec))
            if isinstance(quoted, DeadlineQuoted)
            else PoolAnswer(pool=pool, problem=quoted)
            for pool, quoted in zip(self.pools, found, strict=True)
        )
        if not any(answer.quoted for answer in answers):
            why = "; ".join(f"{answer.pool.name}: {answer.problem}" for answer in answers)
            raise PoolsUnusable("no_pool_replies", f"none of the pools replies, and the job is in none: {why}")
        return answers

    async def submit(
        self,
        spec: JobSpec,
        *,
        job_id: str = "",
        code: Package | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> PoolsDecision:
        """Submit to the best pool; if it rejects the job meanwhile, to the next.

        job_id: with it, a pool that has the job already gets it again, which has no effect; a job without it is new.
        secrets: sealed for each pool anew. Raises InvalidJob, PoolsUnusable.
        """
        job = _ToSubmit(spec=spec, job_id=job_id or fresh_job_id(spec), code=code, secrets=secrets or {})
        check(SubmitJob(job_id=job.job_id, tenant=self.tenant or DEFAULT_TENANT, spec=spec))
        if job_id and (holder := await self._holder(job_id)) is not None:
            pool, earlier = holder
            decision = await self._submit_to(pool, job)
            return PoolsDecision(pool=pool, decision=decision, answers=(), earlier=earlier)
        chosen = await self._submit_in_order(job, await self.quotes(spec))
        is_alone = not job_id or not isinstance(chosen.decision, JobAdmitted)
        return chosen if is_alone else await self._only_one(chosen, job)

    async def _submit_in_order(self, job: "_ToSubmit", answers: tuple[PoolAnswer, ...]) -> PoolsDecision:
        by_name = {answer.pool.name: answer for answer in answers}
        quotes = {name: answer.quoted for name, answer in by_name.items() if answer.quoted is not None}
        decided: PoolAnswer | None = None
        for name in pools_in_order(quotes, job.spec):
            answer = by_name[name]
            try:
                decision = await self._submit_to(answer.pool, job)
            except _NotSent as error:
                by_name[name] = replace(answer, problem=str(error))
                continue
            answer = by_name[name] = replace(answer, decision=decision)
            is_final = not isinstance(decision, JobRejected) or decision.reason == "duplicate"
            decided = answer if decided is None or is_final else min(decided, answer, key=_offered_in_s)
            if is_final:
                break
        if decided is None or decided.decision is None:
            why = "; ".join(f"{answer.pool.name}: {answer.problem}" for answer in by_name.values() if answer.problem)
            raise PoolsUnusable("no_pool_replies", f"no pool takes the job now, and it is in none: {why}")
        return PoolsDecision(pool=decided.pool, decision=decided.decision, answers=tuple(by_name.values()))

    async def _submit_to(self, pool: NamedPool, job: "_ToSubmit") -> Decision:
        """Raises _NotSent, InvalidJob, and PoolsUnusable if the pool may have the job without a reply."""
        sent: list[str] = []

        def note_sent(job_id: str) -> None:
            sent.append(job_id)
            self.on_sent(pool, job_id)

        try:
            async with Client.connect(pool.endpoint, tenant=self.tenant) as client:
                client.on_sent, client.on_warning, client.on_measured = note_sent, self.on_warning, self.on_measured
                spec = job.spec
                if job.secrets:
                    spec = replace(spec, secrets=await client.seal(job.secrets))
                return await client.submit(
                    spec, job_id=job.job_id, code=job.code, again=False, on_undecided=self.on_undecided
                )
        except (ElasticFlowError, Undecodable) as error:
            if not sent:
                raise _NotSent(str(error)) from None
            raise PoolsUnusable(
                "may_have_the_job",
                f"pool {pool.name}: {error}; no other pool was asked, because this one may start the job: "
                f"repeat the command with --name {job.job_id}",
            ) from None

    async def _holder(self, job_id: str) -> tuple[NamedPool, Job] | None:
        """The pool that has the job; None if none of them has, or has only rejected it.

        Raises PoolsUnusable if a pool that may have it does not reply, or if several have it.
        """
        found = await self._of_all(lambda client: self._job_for_certain(client, job_id))
        silent = {pool.name: why for pool, why in zip(self.pools, found, strict=True) if isinstance(why, str)}
        ended = [(pool, job) for pool, job in zip(self.pools, found, strict=True) if isinstance(job, Job)]
        live = [(pool, job) for pool, job in ended if job.live]
        holders = _each_once(live or [(pool, job) for pool, job in ended if job.phase is not Phase.CANCELLED] or ended)
        if len(holders) > 1:
            commands = " or ".join(f"`{shlex.join(['eflow', 'cancel', job_id, *pool.words])}`" for pool, _ in holders)
            names = ", ".join(pool.name for pool, _ in holders)
            raise PoolsUnusable("in_several_pools", f"several pools have a job {job_id}: {names}; {commands} stops one")
        if silent and not holders:
            why = "; ".join(f"{name}: {problem}" for name, problem in silent.items())
            raise PoolsUnusable(
                "may_have_the_job",
                f"{job_id} is not submitted, because it may be in a pool that does not reply: {why}; repeat the "
                f"command when it replies, or leave {', '.join(silent)} out of the pools if the job is not there",
            )
        return next(iter(holders), None)

    async def _only_one(self, chosen: PoolsDecision, job: "_ToSubmit") -> PoolsDecision:
        """Stop the job in all pools but one, if another command with its name ran at the same time.

        No pool had it before. The last command to look finds all of them, and each that does keeps the same one.
        """
        found = await self._of_all(lambda client: self._job_for_certain(client, job.job_id))
        holders = [(pool, each) for pool, each in zip(self.pools, found, strict=True) if isinstance(each, Job)]
        live = dict(_each_once([(pool, each) for pool, each in holders if each.live], first=chosen.pool))
        if len(live) < 2:
            return chosen
        kept = min(live, key=lambda pool: (live[pool].phase is Phase.PROFILING, *_name_and_server(pool)))
        for pool in live:
            if pool != kept:
                await self._stop(pool, job.job_id, f"another command submitted it to pool {kept.name} meanwhile")
        if kept == chosen.pool:
            return chosen
        decision = await self._submit_to(kept, job)
        return replace(chosen, pool=kept, decision=decision, earlier=live[kept])

    async def _stop(self, pool: NamedPool, job_id: str, reason: str) -> None:
        try:
            async with Client.connect(pool.endpoint, tenant=self.tenant) as client:
                await client.cancel(job_id, reason=reason)
        except ElasticFlowError as error:
            command = shlex.join(["eflow", "cancel", job_id, *pool.words])
            raise PoolsUnusable(
                "in_several_pools", f"{reason}, and pool {pool.name} does not stop it: {error}; `{command}` does"
            ) from None

    async def _job_for_certain(self, client: Client, job_id: str) -> Job | None:
        """As `_job_in`, after all that was sent to the pool before: without the job, it answers an empty amendment."""
        if (job := await _job_in(client, job_id)) is None:
            await client.amend(job_id, timeout=self.timeout_s)
            job = await _job_in(client, job_id)
        return job

    async def _of_all(self, call: Callable[[Client], Awaitable[T]]) -> list[T | str]:
        """What each pool answers, all at once; of a pool that does not, why."""

        async def of_one(pool: NamedPool) -> T | str:
            try:
                async with asyncio.timeout(self.timeout_s), Client.connect(pool.endpoint, tenant=self.tenant) as client:
                    return await call(client)
            except TimeoutError:
                return f"no answer within {self.timeout_s:g} s"
            except InvalidJob as error:
                return f"it does not take the job: {error}"
            except (ElasticFlowError, Undecodable) as error:
                return str(error)

        return list(await asyncio.gather(*map(of_one, self.pools)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToSubmit:
    spec: JobSpec
    job_id: str
    code: Package | None
    secrets: Mapping[str, str]


@dataclass(eq=False)
class _NotSent(ElasticFlowError):
    """The submission has not left this process."""

    reason: str

    MESSAGE = "{reason}"


def _each_once(holders: Sequence[tuple[NamedPool, Job]], first: NamedPool | None = None) -> list[tuple[NamedPool, Job]]:
    """Each job once, of a pool that was named twice under other names. first: the name that counts then."""
    in_order = sorted(holders, key=lambda each: each[0] != first)
    by_identity = {job.identity or _name_and_server(pool): (pool, job) for pool, job in reversed(in_order)}
    return [holder for holder in holders if holder in by_identity.values()]


def _name_and_server(pool: NamedPool) -> tuple[str, str]:
    return pool.endpoint.pool, pool.endpoint.nats_url.rpartition("@")[2]


async def _job_in(client: Client, job_id: str) -> Job | None:
    """The job in one pool, unless that has rejected it."""
    job = (await client.state()).job(job_id)
    return None if job is None or job.phase is Phase.REJECTED else job


def _offered_in_s(answer: PoolAnswer) -> float:
    """Seconds to the earliest deadline that a rejection offers."""
    rejected = answer.decision
    if not isinstance(rejected, JobRejected) or rejected.earliest_deadline_s is None:
        return float("inf")
    return rejected.earliest_deadline_s - rejected.at_s
