"""`eflow explain`: each decision about a job is told once, with its numbers and its cause."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from elasticflow.history.job_history import HistoryEntry, story
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.messages.resize_timeline import ResizeTimeline
from tests.support.histories import LINEAR, NOW_S, gpus, spec


@dataclass
class Told:
    """A ledger as the story is told from it."""

    entries: list[tuple[int, float, Any]] = field(default_factory=list)

    def fact(self, *messages: Any) -> "Told":
        for message in messages:
            self.entries.append((len(self.entries) + 1, getattr(message, "at_s", NOW_S), message))
        return self

    def decided(
        self, service: str, *decided: Any, at_s: float = NOW_S, based_on: int | None = None
    ) -> "Told":
        seen = len(self.entries) if based_on is None else based_on
        return self.fact(events.PlanDecided(service=service, based_on=seen, now_s=at_s, events=decided))

    def admitted(self, job_id: str) -> "Told":
        return self.decided(
            "admission",
            events.JobAdmitted(
                job_id=job_id,
                tenant="lab",
                spec=spec(),
                deadline_s=NOW_S + 100.0,
                minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
                gpu_seconds=120.0,
                at_s=NOW_S,
            ),
        )

    def allocated(self, based_on: int | None = None, **num_gpus: int) -> "Told":
        decision = events.AllocationDecided(num_gpus_by_job=num_gpus, valid_until_s=None, at_s=NOW_S)
        return self.decided("allocator", decision, based_on=based_on)

    def placed(self, job_id: str, generation: int, *names: str) -> "Told":
        placed = events.PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
        return self.decided("placement", events.PlacementDecided(placements=(placed,), at_s=NOW_S))

    def of(self, job_id: str) -> list[str]:
        return [sentence.text for sentence in story(self.entries, job_id)]


def pool(*, stop_free: bool = False) -> Told:
    config = PoolConfig(throughput_margin=0.1, curves={"linear/b64": LINEAR}, stop_free=stop_free)
    return (
        Told()
        .decided("operator", events.PoolConfigured(config=config, at_s=NOW_S))
        .fact(
            events.NodeJoined(node_id="node-0", incarnation="a", num_gpus=4, device="cpu", at_s=NOW_S),
        )
        .allocated()
    )


def progressed(iteration: int) -> events.JobProgressed:
    return events.JobProgressed(
        job_id="j1", generation=1, iteration=iteration, iterations_per_s=2.0, at_s=NOW_S + iteration
    )


def measured(iterations_per_s: float) -> events.ThroughputMeasured:
    return events.ThroughputMeasured(
        profile_key="linear/b64",
        num_gpus=2,
        iterations_per_s=iterations_per_s,
        job_id="j1",
        generation=1,
        source="training",
        at_s=NOW_S,
    )


def test_a_promise_is_told_with_what_it_rests_on() -> None:
    (told,) = pool().admitted("j1").of("j1")
    assert "submitted by lab: examples.digits:Digits, 100 iterations of 64 samples, class slo" in told
    assert "(in 1m 40s)" in told
    assert "2 GPUs for 1m 00s finish it by" in told
    assert "40.0s before the deadline" in told
    assert "1/s on 1 GPU, 2/s on 2 GPUs" in told
    assert "less a margin of 10%" in told


def test_a_share_is_told_with_its_cause() -> None:
    told = pool().admitted("j1").allocated(j1=4).admitted("j2").allocated(j1=2, j2=2)
    assert told.of("j1")[1:] == [
        "its share starts with 4 GPUs: it was admitted",
        "its share shrinks to 2 GPUs from 4: j2 was admitted",
    ]
    assert told.of("j2")[1:] == ["its share starts with 2 GPUs: it was admitted"]


def test_a_cause_that_the_allocation_had_not_seen_is_kept_for_the_next() -> None:
    told = pool().admitted("j1")
    seen = len(told.entries)
    told.admitted("j2").allocated(seen, j1=4).allocated(j1=2, j2=2)
    assert told.of("j1")[1:] == [
        "its share starts with 4 GPUs: it was admitted",
        "its share shrinks to 2 GPUs from 4: j2 was admitted",
    ]


def test_a_share_that_changes_by_plan_says_so() -> None:
    told = pool().admitted("j1").allocated(j1=2).allocated(j1=4)
    assert told.of("j1")[-1] == "its share grows to 4 GPUs from 2: the planned shares change at this time"


def test_a_pre_run_that_had_to_wait_for_room_begins_as_one() -> None:
    asked = [
        events.ProfileRequested(job_id=name, tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
        for name in ("j1", "j2")
    ]
    told = pool().decided("admission", *asked).allocated(j1=4).allocated(j1=2, j2=2)
    assert told.of("j2")[-1] == "its share starts with 2 GPUs: there is room for its pre-run"
    assert told.of("j1")[-1] == "its share shrinks to 2 GPUs from 4: the planned shares change at this time"


def test_an_unchanged_share_is_no_news() -> None:
    told = pool().admitted("j1").allocated(j1=2).allocated(j1=2)
    assert len(told.of("j1")) == 2


def test_only_the_newest_progress_in_a_row_is_told() -> None:
    told = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    told.fact(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S + 3.0),
        progressed(10),
        measured(1.9),
        progressed(20),
        measured(2.1),
    )
    assert told.of("j1")[2:] == [
        "generation 1 is placed on node-0:0,1",
        "generation 1 trains on 2 GPUs from iteration 0, 3.0s after its placement",
        "reached iteration 20 of 100 at 2 iterations/s",
        "measured 2.1 iterations/s on 2 GPUs, by j1 while it trained",
    ]


def test_a_crash_and_a_lost_node_are_told_with_where_the_job_falls_back_to() -> None:
    told = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    told.fact(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
        events.WorkerCrashed(
            job_id="j1", generation=1, node_id="node-0", rank=1, explanation="signal 9", at_s=NOW_S
        ),
        events.WorkerCrashed(
            job_id="j1", generation=1, node_id="node-0", rank=0, explanation="its peer is gone", at_s=NOW_S
        ),
        events.NodeLost(node_id="node-0", incarnation="a", reason="silent", at_s=NOW_S),
    )
    crash, lost = told.of("j1")[-2:]
    assert crash == (
        "the worker of rank 1 on node-0 crashed in generation 1: signal 9 (crash 1 in a row, at most 5); "
        "the job falls back to iteration 0"
    )
    assert lost == "node-0 was lost (silent) with workers of this job"


def test_a_crash_that_others_survive_is_told_as_one_that_costs_no_work() -> None:
    told = pool(stop_free=True).admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    told.fact(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
        events.WorkerCrashed(
            job_id="j1", generation=1, node_id="node-0", rank=1, explanation="signal 9", at_s=NOW_S
        ),
    )
    assert told.of("j1")[-1] == (
        "the worker of rank 1 on node-0 crashed in generation 1: signal 9 (crash 1 in a row, at most 5); "
        "the others keep what was done"
    )


def test_a_risk_is_told_with_what_would_be_promised_anew() -> None:
    def told(projected_finish_s: float | None, earliest_deadline_s: float | None) -> str:
        risk = events.JobAtRisk(
            job_id="j1",
            generation=1,
            projected_finish_s=projected_finish_s,
            deadline_s=NOW_S + 100.0,
            earliest_deadline_s=earliest_deadline_s,
            at_s=NOW_S + 10.0,
        )
        return pool().admitted("j1").placed("j1", 1, "node-0:0").fact(risk).of("j1")[-1]

    late = told(NOW_S + 129.5, NOW_S + 130.0)
    assert "it would end 29.5s after its deadline; amended to " in late
    assert late.endswith("(in 2m 00s), it would be promised anew")
    assert told(None, None) == "at risk: it makes no progress"


def test_the_end_is_told_with_its_margin() -> None:
    told = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    told.fact(
        events.JobFinished(
            job_id="j1",
            generation=1,
            iteration=100,
            condition="max_iterations",
            metrics={"loss": 0.5},
            at_s=NOW_S + 50.0,
        )
    )
    assert told.of("j1")[-1] == (
        "finished at iteration 100, all iterations are done, 50.0s before its deadline "
        "(10.0s earlier than planned), loss 0.5"
    )


def test_a_rejection_is_told_with_its_offer() -> None:
    rejected = events.JobRejected(
        job_id="j1",
        tenant="lab",
        spec=spec(),
        reason="deadline",
        explanation="does not fit",
        deadline_s=NOW_S + 5.0,
        earliest_deadline_s=NOW_S + 30.0,
        at_s=NOW_S,
    )
    (told,) = pool().decided("admission", rejected).of("j1")
    assert "rejected (deadline): does not fit; the earliest deadline was" in told
    assert told.endswith("(in 30.0s)")


def test_a_rejection_is_told_with_what_else_would_have_been_promised() -> None:
    asked = spec()
    rejected = events.JobRejected(
        job_id="j1",
        tenant="lab",
        spec=asked,
        reason="price",
        explanation="too dear",
        deadline_s=NOW_S + 5.0,
        earliest_deadline_s=NOW_S + 30.0,
        offers=(
            Offer(deadline_s=NOW_S + 30.0, max_iterations=100, global_batch_size=asked.global_batch_size),
            Offer(deadline_s=NOW_S + 5.0, max_iterations=40, global_batch_size=asked.global_batch_size),
            Offer(deadline_s=NOW_S + 9.0, max_iterations=25, global_batch_size=4 * asked.global_batch_size),
        ),
        at_s=NOW_S,
    )
    (told,) = pool().decided("admission", rejected).of("j1")
    fewer, larger = told.split("promised would have been ")[1].split(" or ")
    assert fewer.startswith("40 iterations by ")
    assert fewer.endswith("(in 5.0s)")
    assert larger.startswith(f"25 iterations, in batches of {4 * asked.global_batch_size}, by ")


def test_making_room_is_part_of_the_story_of_who_made_it() -> None:
    told = pool().admitted("j1")
    newcomer = events.JobAdmitted(
        job_id="j2",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 30.0,
        minimum_satisfactory_share=(),
        gpu_seconds=10.0,
        replanned={"j1": (NOW_S, NOW_S + 90.0, 1)},
        at_s=NOW_S,
    )
    told.decided("admission", newcomer)
    assert told.of("j1")[-1] == "made room for j2, still in time: 1 GPU for 1m 30s"


def test_an_unknown_job_has_no_story() -> None:
    assert story(pool().admitted("j1").entries, "j2") == ()


def test_a_message_that_nobody_can_read_stops_no_story() -> None:
    told = pool().fact(None).admitted("j1")
    (sentence,) = story(told.entries, "j1")
    assert isinstance(sentence, HistoryEntry)
    assert sentence.sequence == 5


@pytest.mark.parametrize(
    ("bytes_moved", "moved"), [(101_000_000, ", 101.0 MB moved to each newcomer"), (0, "")]
)
def test_how_workers_went_over_without_a_stop_is_told_with_its_times(bytes_moved: int, moved: str) -> None:
    told, config = Told(), PoolConfig(curves={"linear/b64": LINEAR}, stop_free=True)
    told.decided("operator", events.PoolConfigured(config=config, at_s=NOW_S))
    told.fact(events.NodeJoined(node_id="node-0", incarnation="a", num_gpus=4, device="cpu", at_s=NOW_S))
    told.admitted("j1").placed("j1", 1, "node-0:0")
    told.fact(events.GenerationStarted(job_id="j1", generation=1, num_gpus=1, iteration=0, at_s=NOW_S + 1.0))
    told.placed("j1", 2, "node-0:0", "node-0:1")
    resize = ResizeTimeline(prepare_s=1.25, stop_s=0.0042, first_step_s=0.05, bytes_moved=bytes_moved)
    told.fact(
        events.GenerationStarted(
            job_id="j1", generation=2, num_gpus=2, iteration=40, resize=resize, at_s=NOW_S + 3.0
        )
    )
    assert told.of("j1")[-2:] == [
        "generation 2 is placed on node-0:0,1; generation 1 trains on until all are ready",
        "generation 2 trains on 2 GPUs from iteration 40, 3.0s after its placement: prepared in 1.2s without a "
        f"stop, switched in 4.2 ms, first step in 50.0 ms{moved}",
    ]
