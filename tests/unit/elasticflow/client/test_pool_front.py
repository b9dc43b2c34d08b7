"""A front of several pools beside pools that answer, reject, do not reply, or may have the job."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from elasticflow.client import pool_front
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.pool_front import NamedPool, PoolFront
from elasticflow.errors import KeysUnusable, NoAdmission, PoolsUnusable, Undecided
from elasticflow.shared.errors import ElasticFlowError, Unavailable
from elasticflow.shared.messages.commands import DeadlineQuoted
from elasticflow.shared.messages.events import JobAdmitted, JobRejected
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.state.job import Job, Phase
from testbed.histories import NOW_S, spec
from tests.support.error_codes import coded
from tests.support.worker_events import admitted, rejected

SPEC = replace(spec(), deadline_s=None, deadline_in_s=100.0)


@dataclass
class FakePool:
    """ends_in_s: its quote. fails: its connections. answer: to a submission, or the error after the job was sent."""

    ends_in_s: float | None = 50.0
    fails: ElasticFlowError | None = None
    answer: Callable[[str], JobAdmitted | JobRejected] | ElasticFlowError = field(
        default=lambda job_id: admitted(job_id)
    )
    jobs: dict[str, Phase] = field(default_factory=dict[str, Phase])
    asked: list[str] = field(default_factory=list[str])
    hangs: bool = False
    fails_after_quote: ElasticFlowError | None = None
    gets_it_meanwhile: bool = False  # from another front, after this one has looked for the job
    quoted: list[JobSpec] = field(default_factory=list[JobSpec])
    identity: str = ""

    # what a front calls of a Client
    on_sent: Callable[[str], object] = lambda job_id: None
    on_warning: Callable[[str], object] = lambda warning: None

    async def quote(self, spec: JobSpec, **_: Any) -> DeadlineQuoted:
        if self.hangs:
            await asyncio.Event().wait()
        self.quoted.append(spec)
        self.fails = self.fails_after_quote
        if self.gets_it_meanwhile:
            self.jobs["j1"] = Phase.ADMITTED
        earliest_s = None if self.ends_in_s is None else NOW_S + self.ends_in_s
        return DeadlineQuoted(earliest_deadline_s=earliest_s, gpu_seconds=10.0, num_gpus=4, at_s=NOW_S)

    async def amend(self, job_id: str, **_: Any) -> None:
        self.asked.append(f"amend {job_id}")

    async def state(self) -> "FakePool":
        return self

    def job(self, job_id: str) -> Job | None:
        phase = self.jobs.get(job_id)
        return None if phase is None else _job(job_id, phase, self.identity)

    async def seal(self, secrets: Any) -> tuple[Any, ...]:
        raise KeysUnusable("no_secrets_key", "this pool takes no secrets")

    async def submit(self, spec: JobSpec, *, job_id: str, **_: Any) -> JobAdmitted | JobRejected:
        self.asked.append(f"submit {job_id}")
        self.on_sent(job_id)
        if isinstance(self.answer, ElasticFlowError):
            raise self.answer
        answer = self.answer(job_id)
        if isinstance(answer, JobAdmitted):
            self.jobs[job_id] = Phase.ADMITTED
        return answer

    async def cancel(self, job_id: str, *, reason: str) -> None:
        self.asked.append(f"cancel {job_id}")
        self.jobs[job_id] = Phase.CANCELLED


def _job(job_id: str, phase: Phase, identity: str) -> Job:
    job = Job(job_id=job_id, tenant="lab", spec=SPEC, phase=phase, decided_at_s=NOW_S, decided_sequence=1)
    return replace(job, identity=identity)


@pytest.fixture
def front_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PoolFront]:
    def made(**pools: FakePool) -> PoolFront:
        class FakeClient:
            @staticmethod
            @contextlib.asynccontextmanager
            async def connect(endpoint: Endpoint, **_: Any) -> AsyncIterator[FakePool]:
                pool = pools[endpoint.pool]
                if pool.fails is not None:
                    raise pool.fails
                yield pool

        monkeypatch.setattr(pool_front, "Client", FakeClient)
        named = tuple(
            NamedPool(name=name, endpoint=Endpoint(nats_url="nats://h:1", pool=name), words=("--pool", name))
            for name in pools
        )
        return PoolFront(pools=named, tenant="lab", timeout_s=0.05)

    return made


def too_late(in_s: float | None) -> Callable[[str], JobRejected]:
    offered_s = None if in_s is None else NOW_S + in_s
    return lambda job_id: rejected(job_id=job_id, earliest_deadline_s=offered_s)


async def test_the_next_pool_gets_what_the_best_rejects(front_of: Any) -> None:
    best, next_best = FakePool(10.0, answer=too_late(200.0)), FakePool(20.0)
    chosen = await front_of(a=next_best, b=best).submit(SPEC)
    assert chosen.pool.name == "a"
    assert best.asked == next_best.asked == [f"submit {chosen.decision.job_id}"]
    assert [type(answer.decision) for answer in chosen.answers] == [JobAdmitted, JobRejected]


async def test_of_all_rejections_the_earliest_offer_counts(front_of: Any) -> None:
    pools = {"a": too_late(300.0), "b": too_late(200.0), "c": too_late(None)}
    chosen = await front_of(**{name: FakePool(10.0, answer=answer) for name, answer in pools.items()}).submit(SPEC)
    assert chosen.pool.name == "b"


async def test_a_pool_that_is_lost_before_the_submission_is_passed_over(front_of: Any) -> None:
    lost = Unavailable("nats://h:1", "connection refused")
    chosen = await front_of(a=FakePool(10.0, fails_after_quote=lost), b=FakePool(20.0)).submit(SPEC)
    assert (chosen.pool.name, "connection refused" in chosen.answers[0].problem) == ("b", True)


async def test_after_a_submission_without_a_reply_no_other_pool_is_asked(front_of: Any) -> None:
    best, other = FakePool(10.0, answer=Undecided("j1", 30.0)), FakePool(20.0)
    with pytest.raises(PoolsUnusable, match=r"repeat the command with --name j1$", check=coded("may_have_the_job")):
        await front_of(a=best, b=other).submit(SPEC, job_id="j1")
    assert other.asked == ["amend j1"]


@pytest.mark.parametrize("phase", [Phase.PROFILING, Phase.ADMITTED, Phase.FINISHED, Phase.CANCELLED])
async def test_a_job_goes_again_to_the_pool_that_has_it(front_of: Any, phase: Phase) -> None:
    silent = FakePool(fails=Unavailable("nats://h:1", "connection refused"))
    holder, better = FakePool(90.0, jobs={"j1": phase}), FakePool(10.0)
    chosen = await front_of(a=better, b=holder, c=silent).submit(SPEC, job_id="j1")
    assert (chosen.pool.name, better.asked, holder.asked) == ("b", ["amend j1"], ["submit j1"])
    assert chosen.earlier is not None


async def test_a_pool_that_only_rejected_the_job_does_not_have_it(front_of: Any) -> None:
    chosen = await front_of(a=FakePool(90.0, jobs={"j1": Phase.REJECTED}), b=FakePool(10.0)).submit(SPEC, job_id="j1")
    assert (chosen.pool.name, chosen.earlier) == ("b", None)


async def test_what_was_sent_before_is_decided_before_the_front_looks(front_of: Any) -> None:
    """An earlier command was sent and not yet decided when the front asked: the answer to the amendment comes after."""

    class Behind(FakePool):
        async def amend(self, job_id: str, **_: Any) -> None:
            self.jobs[job_id] = Phase.ADMITTED

    behind, better = Behind(90.0), FakePool(10.0)
    chosen = await front_of(a=better, b=behind).submit(SPEC, job_id="j1")
    assert (chosen.pool.name, better.asked) == ("b", ["amend j1"])


async def test_a_job_in_two_pools_is_named_with_the_commands_that_stop_it(front_of: Any) -> None:
    both = {name: FakePool(jobs={"j1": Phase.ADMITTED}) for name in "ab"}
    with pytest.raises(PoolsUnusable, match="`eflow cancel j1 --pool a` or `eflow cancel j1 --pool b`"):
        await front_of(**both).submit(SPEC, job_id="j1")


@pytest.mark.parametrize(("best", "other"), [("a", "b"), ("b", "a")])
async def test_of_two_commands_at_once_one_job_is_left_in_the_first_pool_by_name(
    front_of: Any, best: str, other: str
) -> None:
    pools = {best: FakePool(10.0), other: FakePool(20.0, gets_it_meanwhile=True)}
    front = front_of(**pools)
    chosen = await front.submit(SPEC, job_id="j1")
    assert chosen.pool.name == "a"
    assert (pools["a"].jobs, pools["b"].jobs) == ({"j1": Phase.ADMITTED}, {"j1": Phase.CANCELLED})
    again = await front.submit(SPEC, job_id="j1")
    assert (again.pool.name, pools["b"].asked.count("submit j1")) == ("a", int(best == "b"))


async def test_a_pool_that_is_named_twice_keeps_its_job(front_of: Any) -> None:
    """Two addresses of one server: its job is in the pool of both names, and has one identity."""
    pool = FakePool(identity="1f")
    front = front_of(a=pool, b=pool)
    assert (await front.submit(SPEC, job_id="j1")).pool.name == "a"
    assert pool.jobs == {"j1": Phase.ADMITTED}
    assert (await front.submit(SPEC, job_id="j1")).pool.name == "a"


async def test_without_a_name_no_pool_is_asked_for_the_job(front_of: Any) -> None:
    pool, silent = FakePool(), FakePool(fails=NoAdmission("b"))
    chosen = await front_of(a=pool, b=silent).submit(SPEC)
    assert pool.asked == [f"submit {chosen.decision.job_id}"]
    assert "no admission service replies" in chosen.answers[1].problem


async def test_a_pool_that_hangs_is_left_out_in_time(front_of: Any) -> None:
    answers = await front_of(a=FakePool(hangs=True), b=FakePool()).quotes(SPEC)
    assert [answer.problem for answer in answers] == ["no answer within 0.05 s", ""]


async def test_a_pool_that_takes_no_secrets_is_passed_over(front_of: Any) -> None:
    with pytest.raises(PoolsUnusable, match="this pool takes no secrets", check=coded("no_pool_replies")):
        await front_of(a=FakePool()).submit(SPEC, secrets={"TOKEN": "x"})


async def test_a_job_without_a_promise_is_quoted_as_one_with(front_of: Any) -> None:
    pool = FakePool()
    free = replace(SPEC, job_class=JobClass.BEST_EFFORT, deadline_in_s=None)
    (answer,) = await front_of(a=pool).quotes(free)
    assert (pool.quoted[0].job_class, answer.keeps_deadline) == (JobClass.SLO, True)
