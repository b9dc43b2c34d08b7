"""Commands that the work queue delivers again after their decision: they change nothing, and get their reply."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    Command,
    RequestCheckpoint,
    ReserveQuote,
    SetGpuLimits,
    id_of,
)
from elasticflow.shared.messages.events import NodeJoined, PoolConfigured
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.state import pool as pool_module
from elasticflow.shared.state.fold import plan as plan_module
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.memory_bus import MemoryWorkItem
from elasticflow.simulator.replay.recorded_ledger import folded, read_entries
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.histories import LINEAR, NOW_S, spec, submit
from tests.support.one_pool import POOL, OnePool

SHORT_S = 1.0  # less than the wait for an acknowledgement
LONG_S = 30.0  # more than it
DUE_S = NOW_S + 4_000.0

SUBMIT = submit("a", deadline_s=DUE_S)
IMPOSSIBLE = submit("a", deadline_s=NOW_S + 2.0)


class Acknowledgements:
    """Those of the work queue: the first `lost` of each sequence do not arrive."""

    def __init__(self) -> None:
        self.lost: dict[int, int] = {}
        self._ack = MemoryWorkItem.ack

    async def ack(self, item: MemoryWorkItem) -> None:
        if self.lost.get(item.sequence, 0) > 0:
            self.lost[item.sequence] -= 1
        else:
            await self._ack(item)


@pytest.fixture
def acknowledgements(monkeypatch: pytest.MonkeyPatch) -> Acknowledgements:
    acknowledgements = Acknowledgements()
    monkeypatch.setattr(MemoryWorkItem, "ack", lambda item: acknowledgements.ack(item))
    return acknowledgements


@pytest.fixture
def pool() -> Iterator[OnePool]:
    """A pool with eight GPUs and a known curve."""
    pool = OnePool()
    config = PoolConfig(resize_cost_s=2.0, throughput_margin=0.0, deadline_slack_s=0.0, curves={"linear/b64": LINEAR})
    pool.decide(PoolConfigured(config=config, at_s=NOW_S))
    joined = NodeJoined(node_id="n", incarnation="1", num_gpus=8, device="cpu", at_s=NOW_S)
    pool.store(subjects.node(POOL, "n"), codec.encode(joined, id="n", recorded_at_s=NOW_S))
    yield pool
    pool.loop.finish()


def amend(deadline_s: float) -> AmendJob:
    return AmendJob(job_id="a", tenant="lab", deadline_s=deadline_s)


def limits(max_gpus: int) -> SetGpuLimits:
    return SetGpuLimits(job_id="a", tenant="lab", max_gpus=max_gpus)


CANCEL = CancelJob(job_id="a", tenant="lab")
RESERVE = ReserveQuote(job_id="a", tenant="lab", spec=spec(), reserve_s=2.0)
CHECKPOINT = RequestCheckpoint(job_id="a", tenant="lab")


@pytest.mark.parametrize(
    ("before", "repeated", "after"),
    [
        pytest.param([SUBMIT], amend(DUE_S + 10.0), [amend(DUE_S + 20.0)], id="amendment"),
        pytest.param([SUBMIT], limits(4), [limits(2)], id="gpu-limits"),
        pytest.param([SUBMIT, limits(4)], limits(4), [limits(2)], id="gpu-limits-without-an-effect"),
        pytest.param([], CANCEL, [SUBMIT], id="cancellation-before-the-submission"),
        pytest.param([], amend(DUE_S + 10.0), [SUBMIT], id="amendment-before-the-submission"),
        pytest.param([], RESERVE, [], id="expired-reservation"),
        pytest.param([SUBMIT], CHECKPOINT, [], id="checkpoint"),
        pytest.param([], IMPOSSIBLE, [submit("a", deadline_s=NOW_S + 3.0)], id="rejected-submission"),
        pytest.param([], SUBMIT, [CANCEL], id="submission-of-an-ended-job"),
        pytest.param([SUBMIT, CANCEL], CANCEL, [], id="second-cancellation"),
    ],
)
def test_a_command_that_is_delivered_again_changes_nothing(
    before: list[Command],
    repeated: Command,
    after: list[Command],
    pool: OnePool,
    acknowledgements: Acknowledgements,
) -> None:
    pool.start(pool.bus(), POLICY)
    for command in before:
        pool.send(command)
        pool.run_for(SHORT_S)
    acknowledgements.lost[pool.next_command] = 1
    pool.send(repeated)
    pool.run_for(SHORT_S)
    for command in after:
        pool.send(command)
        pool.run_for(SHORT_S)
    assert pool.num_unacknowledged == 1
    events, state = pool.decided, state_of(pool)
    pool.run_for(LONG_S)
    assert pool.num_unacknowledged == 0
    assert pool.decided == events
    assert state_of(pool) == state
    assert_verified(pool)


def test_the_reply_to_a_repeated_command_is_that_of_its_first_decision(
    pool: OnePool, acknowledgements: Acknowledgements
) -> None:
    pool.start(pool.bus(), POLICY)
    pool.send(SUBMIT)
    pool.run_for(SHORT_S)
    acknowledgements.lost[pool.next_command] = 1
    pool.send(amend(DUE_S + 10.0))
    pool.run_for(SHORT_S)
    pool.send(amend(NOW_S + 3.0))  # rejected
    pool.send(amend(DUE_S + 20.0))
    pool.run_for(SHORT_S)
    answers = pool.loop.run_until_complete(pool.bus().subscribe(subjects.answer("lab", POOL, "a")))
    pool.run_for(LONG_S)
    (reply,) = received(pool, answers)
    assert reply.deadline_s == DUE_S + 10.0


def test_a_repeated_submission_is_answered_with_the_newest_decision_on_its_job(
    pool: OnePool, acknowledgements: Acknowledgements
) -> None:
    """Its first reply was that its speed is measured; since then it was cancelled."""
    pool.start(pool.bus(), POLICY)
    acknowledgements.lost[pool.next_command] = 1
    pool.send(submit("a", deadline_s=DUE_S, model_name="unknown"))
    pool.run_for(SHORT_S)
    pool.send(CANCEL)
    pool.run_for(SHORT_S)
    assert [name for name, _ in pool.decided[1:]] == ["ProfileRequested", "JobCancelled"]
    answers = pool.loop.run_until_complete(pool.bus().subscribe(subjects.answer("lab", POOL, "a")))
    pool.run_for(LONG_S)
    assert [type(reply).__name__ for reply in received(pool, answers)] == ["JobCancelled"]


@pytest.mark.parametrize(
    ("num_later", "deadline_s"),
    [pytest.param(3, DUE_S + 22.0, id="the-oldest-kept"), pytest.param(4, DUE_S + 10.0, id="the-newest-forgotten")],
)
def test_a_repeat_that_is_older_than_all_kept_positions_is_decided_again(
    num_later: int,
    deadline_s: float,
    pool: OnePool,
    acknowledgements: Acknowledgements,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit of decision record 0035, with four positions: the repeated amendment replaces the newer terms."""
    for module in (pool_module, plan_module):
        monkeypatch.setattr(module, "MAX_DECIDED_COMMANDS", 4)
    pool.start(pool.bus(), POLICY)
    pool.send(SUBMIT)
    pool.run_for(SHORT_S)
    acknowledgements.lost[pool.next_command] = 1
    pool.send(amend(DUE_S + 10.0))
    pool.run_for(SHORT_S)
    for number in range(num_later):
        pool.send(amend(DUE_S + 20.0 + number))
    pool.run_for(SHORT_S)
    assert pool.num_unacknowledged == 1
    assert state_of(pool).live_jobs["a"].deadline_s == DUE_S + 20.0 + num_later - 1
    pool.run_for(LONG_S)
    assert pool.num_unacknowledged == 0
    assert state_of(pool).live_jobs["a"].deadline_s == deadline_s
    assert_verified(pool)


def test_many_repeats_are_settled_at_once(pool: OnePool, acknowledgements: Acknowledgements) -> None:
    """A replica died after its decision on them; no time is lost with decisions on each alone."""
    names = [f"job-{number:03}" for number in range(300)]
    commands = [submit(name, deadline_s=NOW_S + 1e6) for name in names]
    acknowledgements.lost = {pool.next_command + number: 1 for number in range(len(commands))}
    for command in commands:
        pool.send(command)
    pool.start(pool.bus(), POLICY)
    pool.run_for(4.0)
    decisions = pool.decisions
    assert pool.num_unacknowledged == len(names)
    assert sorted(job_id for kind, job_id in pool.decided if kind == "JobAdmitted") == names
    answers = pool.loop.run_until_complete(pool.bus().subscribe("ef.answer.>"))
    pool.run_for(LONG_S)
    assert {reply.job_id for reply in received(pool, answers)} == set(names)
    assert pool.decisions == decisions
    assert pool.num_unacknowledged == 0


def test_a_command_of_a_new_stream_is_no_repeat(pool: OnePool) -> None:
    """An operator deletes the work queue, and a new one counts from 1 again."""
    pool.start(pool.bus(), POLICY)
    pool.send(SUBMIT)
    pool.run_for(LONG_S)
    stream = pool.broker.stream(streams.submit_stream(POOL))
    stream.last_sequence = 0
    for consumer in pool.broker._consumers.values():
        consumer.next_sequence = 1
    assert pool.send(amend(DUE_S + 10.0)) == 1
    pool.run_for(LONG_S)
    assert pool.decided[-2:] == [("JobAdmitted", "a"), ("JobAmended", "a")]


def test_each_reply_names_its_command_also_of_several_about_a_job(pool: OnePool) -> None:
    """A user may have the decision from the ledger, and wait for the reply to another command by now."""
    answers = pool.loop.run_until_complete(pool.bus().subscribe("ef.answer.>"))
    for job_id, id in (("a", "one"), ("b", "two"), ("b", "three")):
        pool.store(subjects.submit("lab", POOL), codec.encode(submit(job_id), id=id, recorded_at_s=NOW_S))
    pool.start(pool.bus(), POLICY)
    pool.run_for(SHORT_S)
    replies = [codec.decode(message.data) for message in answers._listener.messages]
    assert {(id_of(reply.message), reply.cause_id) for reply in replies} == {
        ("a", "one"),
        ("b", "two"),
        ("b", "three"),
    }


def test_each_tenant_receives_the_reply_to_its_own_command_only(pool: OnePool) -> None:
    """Two tenants use one name at the same time: the cause of each reply is the tenant's own command."""
    answers = pool.loop.run_until_complete(pool.bus().subscribe("ef.answer.>"))
    rival = [submit("a", tenant="rival"), CancelJob(job_id="a", tenant="rival"), replace(CHECKPOINT, tenant="rival")]
    for command in (SUBMIT, *rival):
        id = f"{type(command).__name__}-{command.tenant}"
        pool.store(subjects.submit(command.tenant, POOL), codec.encode(command, id=id, recorded_at_s=NOW_S))
    pool.start(pool.bus(), POLICY)
    pool.run_for(SHORT_S)
    found = [(message.subject, codec.decode(message.data)) for message in answers._listener.messages]
    to_lab, to_rival = subjects.answer("lab", POOL, "a"), subjects.answer("rival", POOL, "a")
    assert {(subject, type(reply.message).__name__, reply.cause_id) for subject, reply in found} == {
        (to_lab, "JobAdmitted", "SubmitJob-lab"),
        (to_rival, "JobRejected", "SubmitJob-rival"),
        (to_rival, "CancelRejected", "CancelJob-rival"),
        (to_rival, "CheckpointRejected", "RequestCheckpoint-rival"),
    }


def test_a_repeated_command_of_another_tenant_does_not_answer_the_owner_of_the_job(
    pool: OnePool, acknowledgements: Acknowledgements
) -> None:
    pool.start(pool.bus(), POLICY)
    pool.send(SUBMIT)
    pool.run_for(SHORT_S)
    acknowledgements.lost[pool.next_command] = 1
    pool.send(replace(CANCEL, tenant="rival"))
    pool.run_for(SHORT_S)
    answers = pool.loop.run_until_complete(pool.bus().subscribe("ef.answer.>"))
    pool.run_for(LONG_S)
    assert [message.subject for message in answers._listener.messages] == [subjects.answer("rival", POOL, "a")]
    assert [type(reply).__name__ for reply in received(pool, answers)] == ["CancelRejected"]


def test_two_replicas_decide_a_command_once(pool: OnePool, acknowledgements: Acknowledgements) -> None:
    """The second one has the command too, and learns from the ledger that it is decided."""
    for instance in ("one", "two"):
        pool.start(pool.bus(), POLICY, instance)
    pool.send(SUBMIT)
    pool.run_for(SHORT_S)
    for number in range(10):
        acknowledgements.lost[pool.next_command] = 2
        pool.send(amend(DUE_S + number))
        pool.run_for(SHORT_S)
    pool.run_for(LONG_S)
    assert [name for name, _ in pool.decided].count("JobAmended") == 10
    assert state_of(pool).live_jobs["a"].deadline_s == DUE_S + 9.0
    assert pool.num_unacknowledged == 0


def state_of(pool: OnePool) -> Any:
    return folded(read_entries(pool.broker.ledger(POOL).messages.values()))


def assert_verified(pool: OnePool) -> None:
    verification = verify(read_entries(pool.broker.ledger(POOL).messages.values()), planners())
    assert verification.difference is None
    assert verification.num_verified + verification.num_given == len(pool.decisions)


def received(pool: OnePool, answers: Any) -> list[Any]:
    return [codec.decode(message.data).message for message in answers._listener.messages]
