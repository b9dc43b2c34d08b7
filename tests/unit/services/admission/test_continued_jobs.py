"""A job that begins from the checkpoint of an ended one (docs/adr/0114)."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.job_spec import TORCHRUN, ContinuedJob, JobClass
from elasticflow.shared.messages.measurements import VirtualNodeCount
from elasticflow.shared.state.code_in_use import continued_folders
from elasticflow.shared.state.job import Job
from testbed.histories import LINEAR, NOW_S, History, pool, submit

LATE_S = NOW_S + 1_000.0


def only(said: tuple[Any, ...]) -> Any:
    (event,) = said
    return event


def with_ended_job(*num_gpus: int, saved: int = 60) -> History:
    """A pool in which han has failed after a checkpoint, in its third generation."""
    history = pool(*num_gpus)
    history.decided(POLICY, submit("han", deadline_s=LATE_S))
    for _ in range(3):
        history.decided(ALLOCATOR)
        history.decided(PLACEMENT)
        history.started("han")
        job = history.state.live_jobs["han"]
        crashed = events.WorkerCrashed(
            job_id="han", generation=job.generation, node_id="node-0", rank=0, explanation="", at_s=NOW_S
        )
        history.then(crashed, stopped(job))
    job = history.state.live_jobs["han"]
    history.then(
        events.JobFailed(job_id="han", generation=job.generation, error="boom", iteration=70, at_s=NOW_S),
        stopped(job, iteration=saved or None),
    )
    return history


def stopped(job: Job, iteration: int | None = None) -> events.WorkersStopped:
    return events.WorkersStopped(
        job_id=job.job_id, generation=job.generation, node_id="node-0", iteration=iteration, at_s=NOW_S
    )


def continuing(
    history: History, name: str = "leia", *, iteration: int = 60, earlier: tuple[str, ...] = (), **changes: Any
) -> SubmitJob:
    source = history.state.ended_jobs["han"]
    continued = ContinuedJob(job_id="han", identity=source.identity, iteration=iteration, earlier=earlier)
    described: dict[str, Any] = {"deadline_s": NOW_S + 60.0, "continues": continued}
    return submit(name, **described | changes)


def test_only_the_remaining_iterations_are_promised() -> None:
    history = with_ended_job(1)
    source = history.state.ended_jobs["han"]
    assert source.checkpoint_iteration == 60
    whole = replace(continuing(history), spec=replace(continuing(history).spec, continues=None))
    assert isinstance(only(history.decided(POLICY, whole)), events.JobRejected), "100 iterations do not fit into 60 s"
    history = with_ended_job(1)
    admitted = only(history.decided(POLICY, continuing(history)))
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.gpu_seconds == pytest.approx(40.0, abs=5.0)
    job = history.state.live_jobs["leia"]
    assert (job.iteration, job.checkpoint_iteration) == (60, 60)
    assert job.generation == job.void_generation == source.generation, "its files are the newer ones"
    assert job.num_virtual_nodes == source.num_virtual_nodes
    assert (job.replaces, job.earlier_identities) == ("", ())


def test_a_job_without_a_promise_is_charged_for_the_remaining_iterations() -> None:
    history = with_ended_job(4)
    command = continuing(history, job_class=JobClass.BEST_EFFORT, deadline_s=None)
    admitted = only(history.decided(POLICY, command))
    assert admitted.gpu_seconds == pytest.approx(40.0)


def test_it_may_take_the_name_of_the_job_that_it_continues() -> None:
    history = with_ended_job(1)
    source = history.state.ended_jobs["han"]
    command = replace(continuing(history, "han"), replaces=source.identity)
    assert isinstance(only(history.decided(POLICY, command)), events.JobAdmitted)
    job = history.state.live_jobs["han"]
    assert (job.iteration, job.replaces) == (60, source.identity)
    assert job.generation == job.void_generation == source.generation + 1
    assert history.decided(POLICY, command) == ()


def test_what_it_continues_counts_after_its_speed_is_measured() -> None:
    history = with_ended_job(1)
    source = replace(history.state.ended_jobs["han"], num_virtual_nodes=4)
    history.state = replace(history.state, ended_jobs=history.state.ended_jobs.set("han", source))
    command = replace(continuing(history, "han", model_name="unknown"), replaces=source.identity)
    assert isinstance(only(history.decided(POLICY, command)), events.ProfileRequested)
    measured = history.state.live_jobs["han"]
    assert measured.num_virtual_nodes == 4, "which its profiling run measures"
    assert (measured.iteration, measured.checkpoint_iteration) == (0, 0), "its profiling run has no checkpoint"
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    measured = history.state.live_jobs["han"]
    assert (len(measured.gpus), measured.num_virtual_nodes) == (1, 4), "its bits depend on them"
    key = measured.spec.profile_key if measured.spec is not None else ""
    history.then(events.ProfileCompleted(profile_key=key, iterations_per_s=LINEAR, at_s=NOW_S))
    assert isinstance(only(history.decided(POLICY, now_s=NOW_S + 1.0)), events.JobAdmitted)
    job = history.state.live_jobs["han"]
    assert (job.iteration, job.checkpoint_iteration) == (60, 60)
    assert job.num_virtual_nodes == 4


def test_offers_count_the_iterations_before() -> None:
    history = with_ended_job(1)
    rejected = only(history.decided(POLICY, continuing(history, deadline_s=NOW_S + 30.0)))
    assert isinstance(rejected, events.JobRejected)
    fewer = [offer.max_iterations for offer in rejected.offers if offer.max_iterations < 100]
    assert fewer
    assert all(60 < iterations < 100 for iterations in fewer)
    taken = continuing(history, deadline_s=NOW_S + 30.0, max_iterations=max(fewer))
    offer = next(offer for offer in rejected.offers if offer.max_iterations == max(fewer))
    taken = replace(taken, job_id="luke", spec=replace(taken.spec, deadline_s=offer.deadline_s))
    assert isinstance(only(history.decided(POLICY, taken)), events.JobAdmitted)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"earlier": ("3" * 16,)}, "continues: the checkpoints of han are of other jobs than it says"),
        ({"iteration": 61}, "continues: the newest checkpoint of han is of iteration 60"),
        (
            {"max_iterations": 60},
            "max_iterations: 60 are done already in the checkpoint of iteration 60 of han; choose more",
        ),
        ({"seed": 3}, "seed: han has 0, and a job that continues it must have the same"),
        ({"global_batch_size": 32}, "global_batch_size: han has 64, and a job that continues it must have the same"),
        ({"shard_optimizer": True}, "shard_optimizer: han has False, and a job that continues it must have the same"),
        (
            {"training_function": f"train:{TORCHRUN}"},
            "continues: a torchrun script keeps its own snapshots; name them in its arguments",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    history = with_ended_job(4)
    rejected = only(history.decided(POLICY, continuing(history, **changes)))
    assert (rejected.reason, rejected.explanation) == ("invalid", said)


def test_a_job_without_a_checkpoint_a_live_one_and_that_of_another_tenant_are_refused() -> None:
    history = with_ended_job(4, saved=0)
    rejected = only(history.decided(POLICY, continuing(history)))
    assert rejected.explanation == "continues: han has no checkpoint; submit the job without it"
    history = with_ended_job(4)
    stolen = replace(continuing(history), tenant="thief")
    rejected = only(history.decided(POLICY, stolen))
    assert rejected.explanation == "continues: han: tenant thief has no such job; `eflow jobs --all` lists them"
    again = replace(submit("han", deadline_s=LATE_S), replaces=history.state.ended_jobs["han"].identity)
    command = continuing(history)
    history.decided(POLICY, again)
    rejected = only(history.decided(POLICY, command))
    assert "has no such job" in rejected.explanation, "a later job has the name"
    live = ContinuedJob(job_id="han", identity=history.state.live_jobs["han"].identity, iteration=1)
    rejected = only(history.decided(POLICY, submit("leia", deadline_s=LATE_S, continues=live)))
    assert rejected.explanation == "continues: han has not ended; cancel it, or amend its deadline and iterations"


def test_the_number_of_virtual_nodes_is_that_of_the_job_that_it_continues() -> None:
    history = with_ended_job(4)
    source = replace(history.state.ended_jobs["han"], num_virtual_nodes=4)
    history.state = replace(history.state, ended_jobs=history.state.ended_jobs.set("han", source))
    history.decided(POLICY, continuing(history))
    assert history.state.live_jobs["leia"].num_virtual_nodes == 4
    measured = events.ThroughputMeasured(
        profile_key="other/b64",
        num_gpus=1,
        iterations_per_s=1.0,
        virtual_nodes=VirtualNodeCount(count=16, source="measured"),
        job_id="other",
        generation=1,
        source="profile",
        at_s=NOW_S,
    )
    history.then(measured)
    rejected = only(history.decided(POLICY, continuing(history, "luke", model_name="other")))
    assert rejected.explanation == (
        "virtual_nodes: han has 4, and this job is measured with 16: let its code say virtual_nodes = 4"
    )


def test_the_last_state_of_a_finished_job_is_its_newest_checkpoint() -> None:
    history = pool(4)
    history.decided(POLICY, submit("han", deadline_s=LATE_S))
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    history.started("han").finished("han", at_s=NOW_S)
    assert history.state.ended_jobs["han"].saved_iteration == 100
    command = continuing(history, iteration=100, max_iterations=150, deadline_s=LATE_S)
    assert isinstance(only(history.decided(POLICY, command)), events.JobAdmitted)


def test_the_folders_of_what_live_jobs_continue_are_needed() -> None:
    history = with_ended_job(1)
    identity = history.state.ended_jobs["han"].identity
    assert continued_folders(history.state) == set()
    history.decided(POLICY, continuing(history))
    assert continued_folders(history.state) == {"han", f"han.of-{identity}"}
    history.decided(POLICY, CancelJob(job_id="leia", tenant="lab"))
    assert continued_folders(history.state) == set()


def test_messages_without_the_field_are_read_as_before() -> None:
    command = submit("han", deadline_s=LATE_S)
    envelope = codec.unpack(codec.encode(command, id="x", recorded_at_s=0.0))
    del envelope["payload"]["spec"]["continues"]
    assert codec.decode(codec._pack(envelope)).message == command
