"""The id of an ended job is used again: by a command that names just that job, once (docs/adr/0114)."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY, replies, replies_again
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.commands import CancelJob, ReserveQuote, SubmitJob
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.replay.recorded_ledger import Entry
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.histories import LINEAR, NOW_S, History, pool, spec, submit

DUE_S = NOW_S + 400.0
POLICIES = {policy.service: policy for policy in (POLICY, ALLOCATOR, PLACEMENT)}


def only(said: tuple[Any, ...]) -> Any:
    (event,) = said
    return event


def trained(history: History, job_id: str = "han") -> Job:
    """The job trains, on GPUs."""
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    history.started(job_id)
    return history.state.live_jobs[job_id]


def failed(job: Job, *, iteration: int = 40, error: str = "boom") -> events.JobFailed:
    return events.JobFailed(
        job_id=job.job_id, generation=job.generation, error=error, iteration=iteration, at_s=NOW_S + 50.0
    )


def with_failed_job() -> History:
    """A pool in which han has failed, and its worker has ended."""
    history = pool(4)
    history.decided(POLICY, submit("han", deadline_s=DUE_S))
    job = trained(history)
    return history.then(
        events.JobWarned(job_id="han", generation=job.generation, warning="old", at_s=NOW_S), failed(job), stopped(job)
    )


def stopped(job: Job, iteration: int | None = None) -> events.WorkersStopped:
    return events.WorkersStopped(
        job_id=job.job_id, generation=job.generation, node_id="node-0", iteration=iteration, at_s=NOW_S + 51.0
    )


def mended(history: History, **changes: Any) -> SubmitJob:
    """Another job under the name, which names the one that has it now."""
    known = history.state.job("han")
    assert known is not None
    return replace(submit("han", **{"deadline_s": DUE_S, "max_iterations": 90} | changes), replaces=known.identity)


def ended_by(history: History, phase: Phase) -> History:
    if phase is Phase.FAILED:
        return history.then(failed(history.state.live_jobs["han"]))
    if phase is Phase.CANCELLED:
        history.decided(POLICY, CancelJob(job_id="han", tenant="lab"))
        return history
    return history.finished("han", at_s=NOW_S + 60.0)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED, Phase.FINISHED])
def test_a_job_takes_the_id_of_an_ended_one_and_nothing_else_of_it(phase: Phase) -> None:
    history = pool(4)
    history.decided(POLICY, submit("han", deadline_s=DUE_S))
    first = trained(history)
    ended_by(history, phase).then(stopped(first, iteration=30))
    earlier = history.state.ended_jobs["han"]
    assert earlier.phase is phase
    admitted = only(history.decided(POLICY, mended(history), now_s=NOW_S + 70.0))
    assert isinstance(admitted, events.JobAdmitted)
    job = history.state.live_jobs["han"]
    assert "han" not in history.state.ended_jobs
    assert job.identity not in ("", earlier.identity)
    assert (job.replaces, job.earlier_identities) == (earlier.identity, (earlier.identity,))
    fresh = only(pool(4).decided(POLICY, submit("han", deadline_s=DUE_S, max_iterations=90), now_s=NOW_S + 70.0))
    alone = pool(4).then(fresh).state.live_jobs["han"]
    own = ("identity", "replaces", "earlier_identities", "decided_sequence", "generation", "void_generation")
    assert {name for name in vars(alone) if getattr(alone, name) != getattr(job, name)} <= set(own)
    assert job.generation == job.void_generation == first.generation + 1


@pytest.mark.parametrize("late", ["before", "once placed"])
def test_late_reports_of_the_earlier_job_change_nothing_of_the_new_one(late: str) -> None:
    history = with_failed_job()
    earlier = history.state.ended_jobs["han"]
    history.decided(POLICY, mended(history), now_s=NOW_S + 70.0)
    if late == "once placed":
        trained(history)
    before = history.state.live_jobs["han"]
    report = {"job_id": "han", "generation": earlier.generation, "at_s": NOW_S + 80.0}
    history.then(
        failed(earlier, error="again"),
        events.JobFinished(**report, iteration=100, condition="max_iterations"),
        events.JobWarned(**report, warning="late"),
        events.JobProgressed(**report, iteration=41, iterations_per_s=1.0, checkpoint_iteration=40),
        events.JobAtRisk(**report, projected_finish_s=None, deadline_s=DUE_S),
        events.GenerationStarted(**report, num_gpus=1, iteration=40),
        events.RendezvousOpened(job_id="han", generation=earlier.generation, address="node-0:1"),
        events.WorkerCrashed(**report, node_id="node-0", rank=0, explanation="late"),
        events.WorkerLagged(**report, rank=0, slowdown=2.0),
        events.CheckpointWritten(job_id="han", request=7, iteration=40, num_bytes=1, file="f", at_s=NOW_S + 80.0),
        events.ArtifactsStored(job_id="han", due=earlier.artifacts.due, node_id="node-0", iteration=40, at_s=NOW_S),
        stopped(earlier, iteration=40),
    )
    assert history.state.live_jobs["han"] == before
    assert before.warnings == ()


def test_the_same_command_starts_one_job_however_often_and_late_it_comes() -> None:
    history = with_failed_job()
    command = mended(history)
    assert isinstance(only(history.decided(POLICY, command)), events.JobAdmitted)
    assert history.decided(POLICY, command) == ()
    (reply,) = replies(history.state, (command,), ())
    assert isinstance(reply, events.JobAdmitted)
    assert reply.spec == command.spec
    history.then(failed(trained(history), iteration=7))
    assert history.decided(POLICY, command) == ()
    (reply,) = replies(history.state, (command,), ())
    assert isinstance(reply, events.JobFailed)
    assert reply.iteration == 7
    assert history.state.job("han") is history.state.ended_jobs["han"]


def test_commands_that_name_another_job_start_nothing() -> None:
    history = with_failed_job()
    second = mended(history)
    history.decided(POLICY, second)
    history.then(failed(trained(history)))
    third = mended(history, max_iterations=80)
    assert isinstance(only(history.decided(POLICY, third)), events.JobAdmitted)
    history.then(failed(trained(history)))
    for late in (second, submit("han", deadline_s=DUE_S), replace(third, spec=second.spec)):
        refused = only(history.decided(POLICY, late))
        assert isinstance(refused, events.JobRejected)
        assert refused.reason == "duplicate"
        assert "failed; han-2 is free" in refused.explanation
        assert history.state.ended_jobs["han"].identity in refused.explanation


def test_neither_a_live_job_nor_one_of_another_tenant_loses_its_id() -> None:
    history = pool(4)
    history.decided(POLICY, submit("han", deadline_s=DUE_S))
    refused = only(history.decided(POLICY, mended(history)))
    assert refused.reason == "duplicate"
    assert history.state.live_jobs["han"].replaces == ""
    history.then(failed(trained(history)))
    stolen = replace(mended(history), tenant="thief")
    refused = only(history.decided(POLICY, stolen))
    assert refused.reason == "duplicate"
    assert history.state.ended_jobs["han"].identity not in refused.explanation


def test_a_rejection_leaves_the_id_to_the_ended_job_and_counts_as_demand() -> None:
    history = with_failed_job()
    history.decided(POLICY, submit("other", deadline_s=DUE_S, max_iterations=1_000))
    earlier, demand = history.state.ended_jobs["han"], history.state.demand
    command = mended(history, max_iterations=1_200)
    rejected = only(history.decided(POLICY, command))
    assert (rejected.reason, rejected.replaces) == ("deadline", earlier.identity)
    assert rejected.offers
    assert history.state.ended_jobs["han"] is earlier
    assert history.state.demand != demand
    assert replies_again(history.state, command, (rejected,)) == (rejected,)
    unchanged = replace(command, spec=earlier.spec)
    assert replies_again(history.state, unchanged, (rejected,)) == (rejected,), "and not the end of the earlier one"
    again = only(history.decided(POLICY, mended(history)))
    assert isinstance(again, events.JobAdmitted)


def test_a_job_of_unknown_speed_takes_the_id_when_it_is_measured() -> None:
    history = with_failed_job()
    earlier = history.state.ended_jobs["han"]
    command = mended(history, model_name="unknown")
    requested = only(history.decided(POLICY, command))
    assert isinstance(requested, events.ProfileRequested)
    assert requested.replaces == earlier.identity
    measured = history.state.live_jobs["han"]
    assert history.decided(POLICY, command) == ()
    key = measured.spec.profile_key if measured.spec is not None else ""
    history.then(events.ProfileCompleted(profile_key=key, iterations_per_s=LINEAR, at_s=NOW_S + 60.0))
    admitted = only(history.decided(POLICY, now_s=NOW_S + 61.0))
    assert isinstance(admitted, events.JobAdmitted)
    job = history.state.live_jobs["han"]
    assert (job.identity, job.replaces) == (measured.identity, earlier.identity)


def test_a_late_command_does_not_start_its_job_again_after_the_later_one_was_measured_and_rejected() -> None:
    history = pool(4)
    first = submit("han", deadline_s=DUE_S)
    history.decided(POLICY, first)
    history.then(failed(trained(history)))
    history.decided(POLICY, mended(history, model_name="unknown", max_iterations=100_000))
    measured = history.state.live_jobs["han"]
    key = measured.spec.profile_key if measured.spec is not None else ""
    history.then(events.ProfileCompleted(profile_key=key, iterations_per_s=LINEAR, at_s=NOW_S + 60.0))
    assert isinstance(only(history.decided(POLICY, now_s=NOW_S + 61.0)), events.JobRejected)
    refused = only(history.decided(POLICY, first, now_s=NOW_S + 62.0))
    assert (refused.reason, refused.replaces) == ("duplicate", "")
    assert isinstance(only(history.decided(POLICY, mended(history), now_s=NOW_S + 63.0)), events.JobAdmitted)


def test_an_unchanged_job_may_be_submitted_again_also_after_its_rejection() -> None:
    history = pool(1, admission="first-come")
    command = submit("han", max_iterations=150)
    assert isinstance(only(history.decided(POLICY, command)), events.JobRejected)
    assert history.decided(POLICY, command) == ()
    history.nodes(1, 8)
    identity = history.state.ended_jobs["han"].identity
    again = only(history.decided(POLICY, replace(command, replaces=identity)))
    assert isinstance(again, events.JobAdmitted)


def test_a_free_id_needs_no_earlier_job() -> None:
    history = pool(4)
    admitted = only(history.decided(POLICY, replace(submit("han", deadline_s=DUE_S), replaces="0123456789abcdef")))
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.replaces == ""


def test_what_was_promised_to_the_earlier_job_still_counts_for_the_quota() -> None:
    history = with_failed_job()
    (before,) = history.state.usage["lab"]
    history.decided(POLICY, mended(history))
    (used,) = history.state.usage["lab"]
    assert (before.num_jobs, used.num_jobs) == (1, 2)
    assert used.gpu_seconds > before.gpu_seconds


def test_a_reserved_quote_may_take_the_id_of_an_ended_job() -> None:
    history = with_failed_job()
    history.decided(POLICY, ReserveQuote(job_id="han", tenant="lab", spec=spec(), reserve_s=60.0))
    quote = history.state.quote_reservations["han"]
    admitted = only(history.decided(POLICY, mended(history, deadline_s=quote.deadline_s)))
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.minimum_satisfactory_share == quote.schedule
    assert "han" in history.state.live_jobs
    assert "han" not in history.state.quote_reservations


def test_the_jobs_of_a_name_replay_to_the_same_decisions() -> None:
    history = with_failed_job()
    history.decided(POLICY, mended(history))
    history.then(failed(trained(history)))
    history.decided(POLICY, mended(history, max_iterations=100_000))
    history.decided(POLICY, mended(history, max_iterations=80))
    trained(history)
    entries = [
        Entry(sequence=number, stored_at_s=NOW_S, message=message)
        for number, message in enumerate(history.messages, start=1)
    ]
    found = verify(entries, POLICIES)
    assert found.difference is None
    assert found.num_verified >= 8


def test_messages_without_the_field_are_read_as_before() -> None:
    command = submit("han", deadline_s=DUE_S)
    admitted = only(pool(4).decided(POLICY, command))
    for message in (command, admitted):
        envelope = codec.unpack(codec.encode(message, id="x", recorded_at_s=0.0))
        del envelope["payload"]["replaces"]
        assert codec.decode(codec._pack(envelope)).message == message
    assert codec.validate(replace(command, replaces="han")) == (
        "replaces: must be the 16 hexadecimal digits of a job's identity, not 'han'",
    )


def test_the_fold_in_parts_is_the_fold_at_once() -> None:
    history = with_failed_job()
    history.decided(POLICY, mended(history))
    state = ledger_fold.PoolState()
    for number, message in enumerate(history.messages, start=1):
        state = ledger_fold.evolve(ledger_fold.evolve(state, message, number), message, number)
    assert state == history.state
