"""Jobs with several GPUs for each replica, from the command to the GPUs: whole replicas, or a refusal that says why."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.admission.quote import quote
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.services.placement.policy import keeps_promises, wake_at_s
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import QuoteDeadline, SetGpuLimits
from elasticflow.shared.messages.gpus import are_whole_gangs, segments
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import spec_of
from testbed.histories import NOW_S, History, gpus, pool, spec, submit
from tests.support.worker_events import admitted, crashed, placed

GANG: dict[str, Any] = {"training_function": f"train:{TORCHRUN}", "gpus_per_replica": 2}
CLASS = {"training_function": "examples.gpt.job:TrainGpt"}
CURVES = {f"linear#gang{gang}/b64": {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0} for gang in (2, 4)}


def gang_pool(*num_gpus: int, **config: Any) -> History:
    return pool(*num_gpus, curves=CURVES, admission="first-come", **config)


def after(history: History, *commands: Any, now_s: float = NOW_S) -> list[Any]:
    """What all three decide, in turn."""
    return [
        event
        for policy in (ADMISSION, ALLOCATOR, PLACEMENT)
        for event in history.decided(policy, *(commands if policy is ADMISSION else ()), now_s=now_s)
    ]


def explained(history: History, **changes: Any) -> str:
    """Why a submission is rejected."""
    (event,) = history.decided(ADMISSION, submit("a", **changes), now_s=NOW_S)
    assert isinstance(event, events.JobRejected), event
    return event.explanation


def nodes_of(history: History, job_id: str) -> list[str]:
    return [gpu.node_id for gpu in history.state.live_jobs[job_id].gpus]


@pytest.mark.parametrize("entry", [{}, CLASS])
def test_a_class_gets_whole_replicas_as_a_script_does(entry: dict[str, Any]) -> None:
    history = gang_pool(1, 4)
    history = history.then(*after(history, submit("a", **GANG | entry)))
    assert nodes_of(history, "a") in (["node-1"] * 2, ["node-1"] * 4)


# --- lost workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_lost_worker_is_lost_with_its_gang_and_other_gangs_survive(rank: int) -> None:
    history = pool(4, 4, curves=CURVES, stop_free=True).then(
        admitted(spec=spec(**GANG | CLASS)), placed(1, "node-0:0", "node-0:1", "node-1:2", "node-1:3")
    )
    history = history.started("a", at_s=NOW_S + 2.0)
    broken = history.then(crashed(1, rank=rank))
    previous = broken.state.live_jobs["a"].previous_generation
    assert previous is not None
    surviving = gpus("node-1:2", "node-1:3") if rank < 2 else gpus("node-0:0", "node-0:1")
    assert previous.surviving == surviving
    again = broken.then(crashed(1, rank=rank ^ 1))
    assert again.state.live_jobs["a"].restarts == 1, "the end of the other worker of the gang is no further crash"


def test_a_single_gang_that_loses_a_worker_starts_from_its_checkpoint() -> None:
    history = pool(4, curves=CURVES, stop_free=True).then(
        admitted(spec=spec(**GANG | CLASS)), placed(1, "node-0:0", "node-0:1")
    )
    history = history.started("a", at_s=NOW_S + 2.0).then(crashed(1, rank=1))
    assert history.state.live_jobs["a"].previous_generation is None


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"gpus_per_replica": 4},
            "gpus_per_replica: the 4 GPUs of a replica are on one node, and the largest, node-2,",
        ),
        ({"gpus_per_replica": 4}, "has 2 GPUs: choose 2 GPUs for each replica, or add a node with 4"),
        ({"min_gpus": 3}, "min_gpus: 3 is no multiple of gpus_per_replica, 2: choose 2 or 4, or leave it out"),
        ({"max_gpus": 5}, "max_gpus: 5 is no multiple of gpus_per_replica, 2: choose 4 or 6, or leave it out"),
        ({"max_gpus": 1}, "max_gpus: 1 is no multiple of gpus_per_replica, 2: choose 2, or leave it out"),
        (
            {"training_function": "train.py:__main__"},
            "write it as a class, or submit a script that shards its model with",
        ),
        (
            CLASS | {"shard_optimizer": True},
            "shard_optimizer: the GPUs of a replica divide the optimizer's state already",
        ),
        (CLASS | {"job_class": JobClass.PADDING, "deadline_s": None}, "the tasks of a padding load have one GPU each"),
        (CLASS | {"global_batch_size": 1}, "min_gpus: 2 GPUs are more than the batch's 1 samples; lower it"),
        ({"mixed_gpu_types": True}, "mixed_gpu_types: the GPUs of a replica are of one type; leave it out"),
        ({"min_gpus": 8}, "min_gpus: it needs at least 8 GPUs in replicas of 2 on one node each, and the nodes hold 4"),
        ({"global_batch_size": 1, "min_gpus": 4}, "more than the batch's 1 samples of 2 GPUs for each; lower it"),
    ],
)
def test_what_no_job_may_be_is_refused_by_name_with_what_to_do(changes: dict[str, Any], why: str) -> None:
    history = gang_pool(1, 2, 2)
    assert why in explained(history, **GANG | changes)
    assert not history.state.live_jobs


def test_a_refusal_counts_the_nodes_of_the_types_that_the_job_accepts() -> None:
    history = History().configured(curves=CURVES, admission="first-come")
    for number, (num_gpus, gpu_type) in enumerate([(3, "small"), (3, "small"), (3, "small"), (8, "large")]):
        node = {"node_id": f"node-{number}", "incarnation": f"first-{number}", "device": "cuda", "at_s": NOW_S}
        history.then(events.NodeJoined(**node, num_gpus=num_gpus, gpu_type=gpu_type))
    why = explained(history, **GANG, gpu_type="small", min_gpus=8)
    assert "at least 8 GPUs in replicas of 2 on one node each, and the nodes hold 6" in why


def test_a_pool_that_migrates_no_job_says_so() -> None:
    assert "set migration_budget above 0" in explained(gang_pool(2, 2, migration_budget=0.0), **GANG)


def test_a_quote_says_it_too() -> None:
    history = gang_pool(2, 2)
    answer = quote(history.state, QuoteDeadline(tenant="lab", spec=spec(**GANG | {"gpus_per_replica": 4})), NOW_S)
    assert answer.earliest_deadline_s is None
    assert "the largest, node-1, has 2 GPUs" in answer.explanation


# --- promises --------------------------------------------------------------------------------------------


def test_a_job_has_whole_replicas_from_its_promise_to_its_gpus() -> None:
    history = gang_pool(2, 2)
    (admitted, *_) = after(history, submit("a", **GANG))
    assert {segment.num_gpus for segment in segments(admitted.minimum_satisfactory_share)} <= {2, 4}
    assert history.state.live_jobs["a"].num_gpus == 4, "as many as help"
    assert are_whole_gangs(nodes_of(history, "a"), 2)


def test_a_promise_is_made_only_where_a_node_has_a_whole_replica_for_it() -> None:
    """By number, two GPUs are free at once, on two nodes."""
    history = gang_pool(1, 1, 2)
    asked = submit("a", **GANG, deadline_s=NOW_S + 60.0)
    (admitted, *_) = after(history, asked)
    assert isinstance(admitted, events.JobAdmitted)
    assert nodes_of(history, "a") == ["node-2"] * 2
    (rejected,) = history.decided(ADMISSION, submit("b", **GANG, deadline_s=NOW_S + 70.0, max_gpus=2), now_s=NOW_S)
    assert NOW_S + 104.0 <= rejected.earliest_deadline_s <= NOW_S + 105.0, "after the first one: twice 50 s and a start"
    assert "would be met" in rejected.explanation
    offered = submit("c", **GANG, deadline_s=rejected.earliest_deadline_s, max_gpus=2)
    assert isinstance(history.decided(ADMISSION, offered, now_s=NOW_S)[0], events.JobAdmitted)


def test_a_quote_and_its_submission_agree_where_replicas_are_short() -> None:
    history = gang_pool(1, 1, 2)
    after(history, submit("a", **GANG, deadline_s=NOW_S + 60.0))
    answer = quote(history.state, QuoteDeadline(tenant="lab", spec=spec(**GANG, max_gpus=2)), NOW_S)
    assert answer.earliest_deadline_s is not None
    taken = submit("b", **GANG, max_gpus=2, deadline_s=answer.earliest_deadline_s)
    assert isinstance(history.decided(ADMISSION, taken, now_s=NOW_S)[0], events.JobAdmitted)


def test_a_promised_job_does_not_grow_into_the_replica_of_another_one() -> None:
    """Nodes of three hold one replica each, and two of their GPUs are in none. By number, a job could have them."""
    history = gang_pool(3, 3)
    after(history, *(submit(name, **GANG, deadline_s=NOW_S + 60.0) for name in "ab"))
    assert {job_id: job.num_gpus for job_id, job in history.state.live_jobs.items()} == {"a": 2, "b": 2}
    assert sorted(nodes_of(history, "a") + nodes_of(history, "b")) == ["node-0"] * 2 + ["node-1"] * 2


@pytest.mark.parametrize("saved", [0, 26])
def test_a_promised_script_restarts_for_a_replica_only_if_it_can_do_again_what_it_has_not_saved(saved: int) -> None:
    history, script = (
        gang_pool(2, 2),
        {"training_function": f"train:{TORCHRUN}", "max_gpus": 2, "max_iterations": 1_000},
    )
    after(history, submit("script", **script, deadline_s=NOW_S + 516.0))
    history.started("script", at_s=NOW_S + 2.0)
    job = history.state.live_jobs["script"]
    progressed = events.JobProgressed(
        job_id="script",
        generation=job.generation,
        iteration=26,
        iterations_per_s=2.0,
        checkpoint_iteration=saved,
        at_s=NOW_S + 15.0,
    )
    history.then(progressed)
    elsewhere = gpus("node-1:0", "node-1:1") if job.gpus[0].node_id == "node-0" else gpus("node-0:0", "node-0:1")
    placed = events.PlacedJob(job_id="script", generation=job.generation + 1, gpus=elsewhere)
    moved = events.PlacementDecided(placements=(placed,), migrated=("script",), at_s=NOW_S + 16.0)
    assert keeps_promises(history.state, [moved], NOW_S + 16.0, PlanningCache()) == (saved > 0)


# --- best effort, profiles, operators --------------------------------------------------------------------


def test_a_job_that_finds_no_whole_replica_waits_without_a_busy_loop_and_goes_on_once_there_is_one() -> None:
    history = gang_pool(2, 2)
    for number in range(4):
        after(history, submit(f"one-{number}", max_gpus=1, deadline_s=NOW_S + 103.0))
        history.started(f"one-{number}")
    for job_id in ("one-0", "one-2"):
        history.finished(job_id, at_s=NOW_S + 1.0)
    rest = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}
    after(history, submit("gang", **GANG, **rest), now_s=NOW_S + 2.0)
    assert history.state.live_jobs["gang"].num_gpus == 2
    assert not history.state.live_jobs["gang"].gpus, "both promised jobs are pinned"
    assert not history.decided(PLACEMENT, now_s=NOW_S + 3.0)
    assert wake_at_s(history.state) is None
    history.finished("one-1", at_s=NOW_S + 4.0)
    after(history, now_s=NOW_S + 4.0)
    assert len(set(nodes_of(history, "gang"))) == 1


@pytest.mark.parametrize(("min_gpus", "kept"), [(1, 2), (4, 0)])
def test_a_job_that_has_lost_a_replica_never_holds_fewer_gpus_than_it_runs_on(min_gpus: int, kept: int) -> None:
    history = gang_pool(2, 2, 2, 2)
    rest = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None, "min_gpus": min_gpus, "max_gpus": 4}
    after(history, submit("gang", **GANG, **rest))
    history.started("gang")
    for number in range(4):
        after(history, submit(f"one-{number}", max_gpus=1, deadline_s=NOW_S + 103.0))
        history.started(f"one-{number}")
    for job_id in ("one-1", "one-3"):
        history.finished(job_id, at_s=NOW_S + 1.0)
    assert {node_id for job_id in ("one-0", "one-2") for node_id in nodes_of(history, job_id)} == {"node-2", "node-3"}
    history.then(events.NodeLost(node_id="node-0", incarnation="first-0", reason="silent", at_s=NOW_S + 2.0))
    after(history, now_s=NOW_S + 2.0)
    assert nodes_of(history, "gang") == ["node-1"] * kept


def test_the_profiling_run_begins_with_one_replica() -> None:
    history = pool(4, 4, admission="first-come")
    after(history, submit("a", **GANG, model_name="new", deadline_s=NOW_S + 9_000.0))
    assert history.state.live_jobs["a"].num_gpus == 2
    assert spec_of(history.state.live_jobs["a"]).measured_key.startswith("new#gang2/")
    assert len(set(nodes_of(history, "a"))) == 1


def test_replicas_count_against_the_batch_and_not_their_gpus() -> None:
    history, of_four = gang_pool(4, 4), dict[str, Any](GANG | {"gpus_per_replica": 4})
    after(history, submit("a", **of_four, global_batch_size=2, model_name="tiny"))
    assert history.state.live_jobs["a"].num_gpus == 4
    job = history.state.live_jobs["a"]
    assert spec_of(job).most_gpus == 8


def test_an_operator_takes_whole_replicas_or_is_refused() -> None:
    history = gang_pool(2, 2)
    after(history, submit("a", **GANG, deadline_s=NOW_S + 300.0))
    history.started("a")

    def scaled(*names: str) -> Any:
        command = SetGpuLimits(job_id="a", tenant="lab", without_gpus=gpus(*names))
        return history.decided(ADMISSION, command, now_s=NOW_S + 1.0)[0]

    refused = scaled("node-0:0", "node-1:0")
    assert isinstance(refused, events.GpuLimitsRejected)
    assert "it would hold no whole replica of 2 GPUs on one node any more" in refused.explanation
    assert isinstance(scaled("node-0:0"), events.GpuLimitsSet)
    after(history, now_s=NOW_S + 5.0)
    assert nodes_of(history, "a") == ["node-1", "node-1"]


def test_a_job_that_gives_up_a_gpu_leaves_whole_blocks_for_the_replicas_of_others() -> None:
    """Of the three other GPUs of its node, two in the middle would leave no pair, and a promise counts on one."""
    history = gang_pool(4)
    after(history, submit("a", **GANG, max_iterations=10_000, deadline_s=NOW_S + 100_000.0))
    history.started("a")
    command = SetGpuLimits(job_id="a", tenant="lab", without_gpus=gpus("node-0:0"))
    after(history, command, now_s=NOW_S + 10.0)
    assert history.state.live_jobs["a"].gpus == gpus("node-0:2", "node-0:3")
    history.started("a", at_s=NOW_S + 12.0)
    after(history, submit("b", **GANG, max_gpus=2, deadline_s=NOW_S + 120.0), now_s=NOW_S + 20.0)
    assert history.state.live_jobs["b"].promised
    assert history.state.live_jobs["b"].gpus == gpus("node-0:0", "node-0:1")


def test_a_lost_node_takes_its_replicas_and_the_others_restart_whole() -> None:
    history = gang_pool(2, 2, 2, 2)
    after(history, submit("a", **GANG, max_iterations=200, deadline_s=NOW_S + 300.0))
    history.started("a")
    assert len(nodes_of(history, "a")) == 8
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S + 2.0))
    after(history, now_s=NOW_S + 2.0)
    assert len(nodes_of(history, "a")) == 4
    assert are_whole_gangs(nodes_of(history, "a"), 2)
    assert "node-1" not in nodes_of(history, "a")
