"""`eflow explain`: the history names each decision about a job once, with its numbers and its cause."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from elasticflow.history.job_history import EventsInWords, HistoryEntry, first_of_newest, job_history
from elasticflow.shared.messages import events
from elasticflow.shared.messages.measurements import ResizeTimeline, VirtualNodeCount
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.times import moment_in_words
from testbed.histories import LINEAR, NOW_S, gpus, spec


@dataclass
class Ledger:
    """A ledger, and the history of each job in it."""

    entries: list[tuple[int, float, Any]] = field(default_factory=list)

    def appended(self, *messages: Any) -> "Ledger":
        for message in messages:
            self.entries.append((len(self.entries) + 1, getattr(message, "at_s", NOW_S), message))
        return self

    def decided(self, service: str, *decided: Any, at_s: float = NOW_S, based_on: int | None = None) -> "Ledger":
        seen = len(self.entries) if based_on is None else based_on
        return self.appended(events.PlanDecided(service=service, based_on=seen, now_s=at_s, events=decided))

    def admitted(self, job_id: str, *, pinned: bool = False) -> "Ledger":
        return self.decided(
            "admission",
            events.JobAdmitted(
                job_id=job_id,
                tenant="lab",
                spec=spec(),
                deadline_s=NOW_S + 100.0,
                minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
                gpu_seconds=120.0,
                pinned=pinned,
                at_s=NOW_S,
            ),
        )

    def allocated(self, based_on: int | None = None, **num_gpus: int) -> "Ledger":
        decision = events.AllocationDecided(num_gpus_by_job=num_gpus, valid_until_s=None, at_s=NOW_S)
        return self.decided("allocator", decision, based_on=based_on)

    def placed(self, job_id: str, generation: int, *names: str) -> "Ledger":
        placed = events.PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
        return self.decided("placement", events.PlacementDecided(placements=(placed,), at_s=NOW_S))

    def of(self, job_id: str) -> list[str]:
        return [entry.text for entry in job_history(self.entries, job_id)]


def pool(*, stop_free: bool = False) -> Ledger:
    config = PoolConfig(throughput_margin=0.1, curves={"linear/b64": LINEAR}, stop_free=stop_free)
    return (
        Ledger()
        .decided("operator", events.PoolConfigured(config=config, at_s=NOW_S))
        .appended(
            events.NodeJoined(node_id="node-0", incarnation="a", num_gpus=4, device="cpu", at_s=NOW_S),
        )
        .allocated()
    )


def progressed(iteration: int) -> events.JobProgressed:
    return events.JobProgressed(
        job_id="j1", generation=1, iteration=iteration, iterations_per_s=2.0, at_s=NOW_S + iteration
    )


def measured(iterations_per_s: float, virtual_nodes: VirtualNodeCount | None = None) -> events.ThroughputMeasured:
    return events.ThroughputMeasured(
        profile_key="linear/b64",
        num_gpus=2,
        iterations_per_s=iterations_per_s,
        virtual_nodes=virtual_nodes,
        job_id="j1",
        generation=1,
        source="training",
        at_s=NOW_S,
    )


def test_a_promise_is_explained_by_its_numbers() -> None:
    (text,) = pool().admitted("j1").of("j1")
    assert "submitted by lab: examples.digits:Digits, 100 iterations of 64 samples, class slo" in text
    assert "(in 1m 40s)" in text
    assert "2 GPUs for 1m 00s finish it by" in text
    assert "40.0s before the deadline" in text
    assert "1/s on 1 GPU, 2/s on 2 GPUs" in text
    assert text.endswith("less a margin of 10%")
    (pinned,) = pool().admitted("j1", pinned=True).of("j1")
    assert pinned.endswith(
        "less a margin of 10%; there is no time for a migration, so its GPUs stay while their number stays"
    )


@pytest.mark.parametrize(
    ("virtual_nodes", "said"),
    [
        (
            VirtualNodeCount(count=4, source="measured", step_s_by_count={1: 0.1, 4: 0.102}),
            "4 virtual nodes, the most that hardly slow one GPU down (a step in 1: 100 ms, 4: 102 ms)",
        ),
        (
            VirtualNodeCount(count=1, source="code"),
            "1 virtual node, as its code says, or as the job has that it continues",
        ),
        (
            VirtualNodeCount(count=8, source="default"),
            "8 virtual nodes, the default: a profiling run could not measure another number",
        ),
    ],
)
def test_the_number_of_virtual_nodes_and_where_it_comes_from_are_told(
    virtual_nodes: VirtualNodeCount, said: str
) -> None:
    ledger = Ledger().decided("operator", events.PoolConfigured(config=PoolConfig(), at_s=NOW_S))
    ledger.appended(measured(2.0, virtual_nodes)).admitted("j1")
    admitted = ledger.of("j1")[-1]
    count = said.partition(",")[0]
    assert f", in {count}, less a margin" in admitted
    later = replace(measured(2.5, virtual_nodes), at_s=NOW_S + 1.0)
    ledger.appended(later)
    assert ledger.of("j1")[-1].endswith(f"; its batch is cut into {said}")


def test_a_change_of_share_names_its_cause() -> None:
    ledger = pool().admitted("j1").allocated(j1=4).admitted("j2").allocated(j1=2, j2=2)
    assert ledger.of("j1")[1:] == [
        "its share starts with 4 GPUs: it was admitted",
        "its share shrinks to 2 GPUs from 4: j2 was admitted",
    ]
    assert ledger.of("j2")[1:] == ["its share starts with 2 GPUs: it was admitted"]


def test_a_cause_after_the_folded_sequence_belongs_to_the_next_allocation() -> None:
    ledger = pool().admitted("j1")
    seen = len(ledger.entries)
    ledger.admitted("j2").allocated(seen, j1=4).allocated(j1=2, j2=2)
    assert ledger.of("j1")[1:] == [
        "its share starts with 4 GPUs: it was admitted",
        "its share shrinks to 2 GPUs from 4: j2 was admitted",
    ]


def test_a_planned_change_of_share_is_named_as_such() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).allocated(j1=4)
    assert ledger.of("j1")[-1] == "its share grows to 4 GPUs from 2: the planned shares change at this time"


def test_a_profiling_run_starts_when_enough_gpus_are_free() -> None:
    requests = [
        events.ProfileRequested(job_id=name, tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
        for name in ("j1", "j2")
    ]
    ledger = pool().decided("admission", *requests).allocated(j1=4).allocated(j1=2, j2=2)
    assert ledger.of("j2")[-1] == "its share starts with 2 GPUs: enough GPUs are free for its profiling run"
    assert ledger.of("j1")[-1] == "its share shrinks to 2 GPUs from 4: the planned shares change at this time"


def test_unequal_numbers_of_virtual_nodes_are_named() -> None:
    placed = events.PlacedJob(
        job_id="j1", generation=1, gpus=gpus("node-0:0", "node-0:1"), virtual_nodes_by_rank=(6, 2)
    )
    ledger = pool().admitted("j1").allocated(j1=2)
    ledger.decided("placement", events.PlacementDecided(placements=(placed,), at_s=NOW_S))
    assert ledger.of("j1")[-1] == "generation 1 is placed on node-0:0,1 with virtual nodes 6:2"


def test_an_unchanged_share_adds_no_entry() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).allocated(j1=2)
    assert len(ledger.of("j1")) == 2


def test_only_the_last_of_several_progress_reports_is_kept() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    ledger.appended(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S + 3.0),
        progressed(10),
        measured(1.9),
        progressed(20),
        measured(2.1),
    )
    assert ledger.of("j1")[2:] == [
        "generation 1 is placed on node-0:0,1",
        "generation 1 trains on 2 GPUs from iteration 0, 3.0s after its placement",
        "reached iteration 20 of 100 at 2 iterations/s",
        "measured 2.1 iterations/s on 2 GPUs, by j1 while it trained",
    ]


def test_a_crash_names_the_iteration_to_which_the_job_falls_back() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    ledger.appended(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
        events.WorkerCrashed(job_id="j1", generation=1, node_id="node-0", rank=1, explanation="signal 9", at_s=NOW_S),
        events.WorkerCrashed(
            job_id="j1", generation=1, node_id="node-0", rank=0, explanation="its peer is gone", at_s=NOW_S
        ),
        events.NodeLost(node_id="node-0", incarnation="a", reason="silent", at_s=NOW_S),
    )
    crash, lost = ledger.of("j1")[-2:]
    assert crash == (
        "the worker of rank 1 on node-0 crashed in generation 1: signal 9 (crash 1 in a row, at most 5); "
        "the job falls back to iteration 0"
    )
    assert lost == "node-0 was lost (silent) with workers of this job"


def test_a_restart_and_a_crash_name_the_iterations_that_are_lost() -> None:
    def texts(event: Any, saved: int) -> list[str]:
        ledger = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
        ledger.appended(
            events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
            events.JobProgressed(
                job_id="j1",
                generation=1,
                iteration=57,
                iterations_per_s=2.0,
                checkpoint_iteration=saved,
                at_s=NOW_S,
            ),
        )
        if isinstance(event, events.WorkersStopped):
            ledger.placed("j1", 2, "node-0:0")
        return ledger.appended(event).of("j1")

    stopped = events.WorkersStopped(job_id="j1", generation=1, node_id="node-0", iteration=0, at_s=NOW_S)
    assert texts(stopped, 0)[-1].endswith("; 57 iterations are lost: nothing was saved")
    assert texts(stopped, 56)[-1].endswith("; 1 iteration is lost: nothing newer was saved")
    assert "lost" not in texts(stopped, 57)[-1]
    crashed = events.WorkerCrashed(
        job_id="j1", generation=1, node_id="node-0", rank=1, explanation="signal 9", at_s=NOW_S
    )
    assert texts(crashed, 50)[-1].endswith("falls back to iteration 50; 7 iterations are lost: nothing newer was saved")


def test_a_start_from_an_older_checkpoint_names_the_file_and_what_is_repeated() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    ledger.appended(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
        events.JobProgressed(
            job_id="j1", generation=1, iteration=57, iterations_per_s=2.0, checkpoint_iteration=50, at_s=NOW_S
        ),
        events.WorkerCrashed(job_id="j1", generation=1, node_id="node-0", rank=1, explanation="x", at_s=NOW_S),
    )
    lost = "g0000000001-i00000000000050-ab.ckpt: its content does not match its name"
    ledger.placed("j1", 2, "node-0:0").appended(
        events.GenerationStarted(
            job_id="j1", generation=2, num_gpus=1, iteration=20, lost_checkpoints=lost, at_s=NOW_S + 3.0
        )
    )
    assert ledger.of("j1")[-1] == (
        "generation 2 trains on 1 GPU from iteration 20, 3.0s after its placement; it repeats 30 saved iterations: "
        f"checkpoints could not be used ({lost})"
    )


def test_a_crash_with_survivors_costs_no_progress() -> None:
    ledger = pool(stop_free=True).admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    ledger.appended(
        events.GenerationStarted(job_id="j1", generation=1, num_gpus=2, iteration=0, at_s=NOW_S),
        events.WorkerCrashed(job_id="j1", generation=1, node_id="node-0", rank=1, explanation="signal 9", at_s=NOW_S),
    )
    assert ledger.of("j1")[-1] == (
        "the worker of rank 1 on node-0 crashed in generation 1: signal 9 (crash 1 in a row, at most 5); "
        "the other workers keep the progress"
    )


def test_a_risk_names_the_deadline_that_admission_would_promise() -> None:
    def text(projected_finish_s: float | None, earliest_deadline_s: float | None) -> str:
        risk = events.JobAtRisk(
            job_id="j1",
            generation=1,
            projected_finish_s=projected_finish_s,
            deadline_s=NOW_S + 100.0,
            earliest_deadline_s=earliest_deadline_s,
            at_s=NOW_S + 10.0,
        )
        return pool().admitted("j1").placed("j1", 1, "node-0:0").appended(risk).of("j1")[-1]

    late = text(NOW_S + 129.5, NOW_S + 130.0)
    assert late.startswith("at risk: planned at its measured speed less a margin of 10% it would end 29.5s after its ")
    assert "deadline; admission would promise an amendment to " in late
    assert late.endswith("(in 2m 00s)")
    assert text(None, None) == "at risk: its workers have not started yet"
    assert risk_of_a_job_that_trains(10, 0.0, None) == "at risk: it reports no progress"


def risk_of_a_job_that_trains(iteration: int, iterations_per_s: float, projected_finish_s: float | None) -> str:
    """What is said of the risk of a job that has reported its speed a second before."""
    risk = events.JobAtRisk(
        job_id="j1",
        generation=1,
        projected_finish_s=projected_finish_s,
        deadline_s=NOW_S + 100.0,
        at_s=NOW_S + 10.0,
    )
    progress = events.JobProgressed(
        job_id="j1", generation=1, iteration=iteration, iterations_per_s=iterations_per_s, at_s=NOW_S + 9.0
    )
    started = events.GenerationStarted(job_id="j1", generation=1, num_gpus=1, iteration=0, at_s=NOW_S)
    return pool().admitted("j1").placed("j1", 1, "node-0:0").appended(started, progress, risk).of("j1")[-1]


def test_a_risk_says_that_the_speed_of_now_would_do() -> None:
    """A promise counts on the curve less a margin."""
    said = risk_of_a_job_that_trains(spec().max_iterations - 20, 2.0, NOW_S + 130.0)
    assert said.endswith("30.0s after its deadline, at its 2/s of now 1m 20s before it")


def test_a_job_that_trains_is_not_said_to_make_no_progress() -> None:
    said = risk_of_a_job_that_trains(9, 1.0, None)
    assert said == "at risk: the pool has no GPUs on which it would end in time"


@pytest.mark.parametrize("event", ["placement", "amendment", "limits"])
def test_the_end_of_a_risk_is_a_line_with_its_cause(event: str) -> None:
    ledger = pool().admitted("j1").admitted("j2").placed("j1", 1, "node-0:0").placed("j2", 1, "node-0:1")
    limited = events.GpuLimitsSet(
        job_id="j1",
        min_gpus=None,
        max_gpus=4,
        until_s=None,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=NOW_S + 5.0,
    )
    risk = events.JobAtRisk(
        job_id="j1", generation=1, projected_finish_s=None, deadline_s=NOW_S + 100.0, at_s=NOW_S + 10.0
    )
    ledger.appended(limited, risk)
    if event == "placement":
        ledger.placed("j1", 2, "node-0:0", "node-0:1")
        why = "the monitor judges its new generation anew"
    elif event == "amendment":
        amended = events.JobAmended(
            job_id="j1",
            deadline_s=NOW_S + 300.0,
            max_iterations=100,
            minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 1.0),
            gpu_seconds=60.0,
            at_s=NOW_S + 20.0,
        )
        ledger.decided("admission", amended)
        why = "the amended promise has a plan"
    else:
        ledger.decided("admission", events.GpuLimitsCleared(job_id="j1", reason="expired", at_s=NOW_S + 20.0))
        why = "the monitor judges it anew without its GPU limits"
    assert ledger.of("j1")[-1] == f"no longer at risk: {why}"
    assert not [text for text in ledger.of("j2") if "no longer" in text]


def test_the_end_names_its_margin() -> None:
    ledger = pool().admitted("j1").allocated(j1=2).placed("j1", 1, "node-0:0", "node-0:1")
    ledger.appended(
        events.JobFinished(
            job_id="j1",
            generation=1,
            iteration=100,
            condition="max_iterations",
            metrics={"loss": 0.5},
            at_s=NOW_S + 50.0,
        )
    )
    assert ledger.of("j1")[-1] == (
        "finished at iteration 100, all iterations are done, 50.0s before its deadline "
        "(10.0s earlier than planned), loss 0.5"
    )


@pytest.mark.parametrize("data_folder", ["", "a", "b"])
def test_what_is_stored_names_the_other_nodes_on_which_the_job_has_trained(data_folder: str) -> None:
    ledger = pool().appended(
        *(
            events.NodeJoined(node_id=node_id, incarnation="b", num_gpus=4, device="cpu", data_folder=name, at_s=NOW_S)
            for node_id, name in (("node-0", "a"), ("node-1", data_folder), ("node-2", "b"))
        )
    )
    ledger = ledger.admitted("j1").allocated(j1=1)
    for generation, node_id in enumerate(("node-1", "node-0"), start=1):
        ledger.placed("j1", generation, f"{node_id}:0").appended(
            events.GenerationStarted(job_id="j1", generation=generation, num_gpus=1, iteration=0, at_s=NOW_S),
        )
    ledger.appended(
        events.JobFinished(
            job_id="j1", generation=2, iteration=100, condition="max_iterations", node_id="node-0", at_s=NOW_S
        ),
    )
    ledger.appended(
        events.ArtifactsStored(job_id="j1", due=len(ledger.entries), node_id="node-0", at_s=NOW_S),
    )
    assert ledger.of("j1")[-1] == "it left no files to store; no model: it has saved no checkpoint" + (
        ""
        if data_folder != "b"
        else "; files that it wrote on node-1 stay there: only those in the data folder of node-0 are stored, "
        "which is another one"
    )


def test_a_warning_of_each_profiling_generation_is_said_once() -> None:
    requested = events.ProfileRequested(job_id="j1", tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
    ledger = pool().decided("admission", requested)
    ledger.allocated(j1=1)
    for generation in (1, 2):
        ledger.placed("j1", generation, "node-0:0")
        ledger.appended(events.JobWarned(job_id="j1", generation=generation, warning="seen grows", at_s=NOW_S))
    ledger.admitted("j1").placed("j1", 3, "node-0:0")
    ledger.appended(events.JobWarned(job_id="j1", generation=3, warning="seen grows", at_s=NOW_S))
    assert ledger.of("j1").count("warning: seen grows") == 1


def test_a_long_error_is_cut_in_the_middle() -> None:
    error = "ValueError: \n" + "broken " * 100 + "(in iteration 60)"
    ledger = pool().admitted("j1").allocated(j1=1).placed("j1", 1, "node-0:0")
    text = ledger.appended(events.JobFailed(job_id="j1", generation=1, error=error, at_s=NOW_S)).of("j1")[-1]
    assert text.startswith("failed: ValueError: broken")
    assert "…" in text
    assert text.endswith("(in iteration 60)")
    assert len(text) < 320


def test_a_rejection_names_its_earliest_deadline() -> None:
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
    (text,) = pool().decided("admission", rejected).of("j1")
    assert "rejected (deadline): does not fit; the earliest deadline was" in text
    assert text.endswith("(in 30.0s)")


def test_a_rejection_names_its_other_offers() -> None:
    submitted = spec()
    rejected = events.JobRejected(
        job_id="j1",
        tenant="lab",
        spec=submitted,
        reason="price",
        explanation="overpriced",
        deadline_s=NOW_S + 5.0,
        earliest_deadline_s=NOW_S + 30.0,
        offers=(
            Offer(deadline_s=NOW_S + 30.0, max_iterations=100, global_batch_size=submitted.global_batch_size),
            Offer(deadline_s=NOW_S + 5.0, max_iterations=40, global_batch_size=submitted.global_batch_size),
            Offer(deadline_s=NOW_S + 9.0, max_iterations=25, global_batch_size=4 * submitted.global_batch_size),
        ),
        at_s=NOW_S,
    )
    (text,) = pool().decided("admission", rejected).of("j1")
    fewer, larger = text.split("admission would have promised ")[1].split(" or ")
    assert fewer.startswith("40 iterations by ")
    assert fewer.endswith("(in 5.0s)")
    assert larger.startswith(f"25 iterations, in batches of {4 * submitted.global_batch_size}, by ")


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ((NOW_S, NOW_S + 90.0, 1), "replanned so that j2 is admitted, still in time: 1 GPU for 1m 30s"),
        ((NOW_S, NOW_S + 100.0, 1), "replanned so that j2 is admitted, still in time: 1 GPU for 1m 40s"),
        (
            (NOW_S, NOW_S + 130.0, 2),
            "replanned when j2 was admitted, to end 30.0s after its deadline: 2 GPUs for 2m 10s",
        ),
        ((), "replanned when j2 was admitted: the pool has no GPUs on which it would end"),
    ],
)
def test_a_replanned_job_names_the_admitted_one_and_whether_it_ends_in_time(
    schedule: tuple[float, ...], told: str
) -> None:
    ledger = pool().admitted("j1")
    admitted = events.JobAdmitted(
        job_id="j2",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 30.0,
        minimum_satisfactory_share=(),
        gpu_seconds=10.0,
        replanned={"j1": schedule},
        at_s=NOW_S,
    )
    ledger.decided("admission", admitted)
    assert ledger.of("j1")[-1] == told


def test_an_unknown_job_has_no_history() -> None:
    assert job_history(pool().admitted("j1").entries, "j2") == ()


def test_a_restart_of_the_pool_is_explained() -> None:
    def joined(node: str, incarnation: str, at_s: float, **changes: Any) -> events.NodeJoined:
        return events.NodeJoined(
            node_id=node, incarnation=incarnation, num_gpus=2, device="cpu", at_s=NOW_S + at_s, **changes
        )

    ledger = Ledger().appended(*(joined(node, "a", 0.0, started_by="first") for node in ("node-0", "node-1")))
    ledger.admitted("j1").placed("j1", 1, "node-0:0", "node-1:0")
    ledger.appended(joined("node-0", "b", 5.0, started_by="second", replaced_heard_s=NOW_S + 1.0))
    assert ledger.of("j1")[-1] == (
        "node-0 was started again, so its workers of this job are gone; "
        "no job is placed on node-1 before they join again or are reported lost"
    )
    num_before = len(ledger.of("j1"))
    ledger.appended(joined("node-1", "a", 5.1, started_by="first"))
    assert len(ledger.of("j1")) == num_before
    words = EventsInWords()
    *_, said = [each for entry in ledger.entries for each in words.fold(*entry)]
    assert said.entry.text == "node-1 is still there"


def test_an_unreadable_message_does_not_end_the_history() -> None:
    ledger = pool().appended(Unreadable(on_plan=True)).admitted("j1")
    (entry,) = job_history(ledger.entries, "j1")
    assert isinstance(entry, HistoryEntry)
    assert entry.sequence == 5


@pytest.mark.parametrize(("bytes_moved", "moved"), [(101_000_000, ", 101.0 MB sent to each joining worker"), (0, "")])
def test_a_switch_without_a_stop_is_explained_by_its_times(bytes_moved: int, moved: str) -> None:
    ledger, config = Ledger(), PoolConfig(curves={"linear/b64": LINEAR}, stop_free=True)
    ledger.decided("operator", events.PoolConfigured(config=config, at_s=NOW_S))
    ledger.appended(events.NodeJoined(node_id="node-0", incarnation="a", num_gpus=4, device="cpu", at_s=NOW_S))
    ledger.admitted("j1").placed("j1", 1, "node-0:0")
    ledger.appended(events.GenerationStarted(job_id="j1", generation=1, num_gpus=1, iteration=0, at_s=NOW_S + 1.0))
    ledger.placed("j1", 2, "node-0:0", "node-0:1")
    resize = ResizeTimeline(prepare_s=1.25, stop_s=0.0042, first_step_s=0.05, bytes_moved=bytes_moved)
    ledger.appended(
        events.GenerationStarted(job_id="j1", generation=2, num_gpus=2, iteration=40, resize=resize, at_s=NOW_S + 3.0)
    )
    assert ledger.of("j1")[-2:] == [
        "generation 2 is placed on node-0:0,1; generation 1 trains until all workers are ready",
        "generation 2 trains on 2 GPUs from iteration 40, 3.0s after its placement: prepared in 1.2s without a "
        f"stop, switched in 4.2 ms, first step in 50.0 ms{moved}",
    ]


def told_to_tenants(ledger: Ledger, job_id: str) -> list[str]:
    words = EventsInWords(for_tenants=True)
    said = [each for entry in ledger.entries for each in words.fold(*entry)]
    return [each.entry.text for each in said if each.name == job_id]


def test_a_tenant_reads_the_same_history_without_the_names_of_other_tenants_jobs() -> None:
    def admitted(job_id: str, tenant: str, **changes: Any) -> events.JobAdmitted:
        return events.JobAdmitted(
            job_id=job_id,
            tenant=tenant,
            spec=spec(),
            deadline_s=None,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=NOW_S,
            **changes,
        )

    ledger = pool().admitted("mine").admitted("sister").allocated(mine=2)
    ledger.decided("admission", admitted("secret", "globex", replanned={"mine": (NOW_S, NOW_S + 90.0, 1)}))
    ledger.allocated(mine=1, secret=1)
    ledger.appended(events.JobCancelled(job_id="secret", reason="", at_s=NOW_S))
    ledger.decided("admission", events.JobCancelled(job_id="secret", reason="", at_s=NOW_S)).allocated(mine=2)
    ledger.decided("admission", events.JobCancelled(job_id="sister", reason="", at_s=NOW_S)).allocated(mine=4)
    ledger.appended(
        events.ThroughputMeasured(
            job_id="secret",
            generation=1,
            profile_key="linear/b64",
            num_gpus=1,
            iterations_per_s=3.0,
            source="training",
            at_s=NOW_S,
        )
    )
    told = told_to_tenants(ledger, "mine")
    assert not any("secret" in text for text in told)
    assert told == [text.replace("secret", "a job of another tenant") for text in ledger.of("mine")]
    assert any("secret was cancelled" in text for text in ledger.of("mine"))
    assert any("sister was cancelled" in text for text in told)


def test_a_tenant_does_not_read_what_another_one_tried_with_its_job() -> None:
    rejected = events.JobRejected(
        job_id="mine", tenant="globex", spec=spec(), reason="duplicate", explanation="in use", at_s=NOW_S
    )
    cancelled = events.CancelRejected(job_id="mine", tenant="globex", explanation="not yours", at_s=NOW_S)
    ledger = pool().admitted("mine").decided("admission", rejected, cancelled)
    assert any("not yours" in text for text in ledger.of("mine"))
    assert len(told_to_tenants(ledger, "mine")) == 1


def test_a_history_says_which_job_lends_gpus_to_which_profiling_run_and_for_how_long() -> None:
    asked = events.ProfileRequested(job_id="u", tenant="lab", spec=spec(model_name="u"), deadline_s=None, at_s=NOW_S)
    lent = {"u": NOW_S + 5.0}
    ledger = pool().admitted("a").admitted("b").allocated(a=2, b=2).decided("admission", asked)
    for shares, lent_until_s in (
        ({"a": 2, "b": 1, "u": 1}, lent),
        ({"a": 2, "b": 1, "u": 1}, lent),
        ({"a": 2}, lent),
    ):
        at_s = NOW_S + 5.0 if "u" not in shares else NOW_S
        decision = events.AllocationDecided(
            num_gpus_by_job=shares, valid_until_s=None, lent_until_s=lent_until_s, at_s=at_s
        )
        ledger.decided("allocator", decision, at_s=at_s)
    until = moment_in_words(NOW_S + 5.0, NOW_S)
    assert ledger.of("b")[-2:] == [
        "its share shrinks to 1 GPU from 2: u waits for a decision; its promise has slack, so GPUs are lent to the "
        f"profiling run of u until {until} at most",
        "it loses its share of 1 GPU: the planned shares change at this time",
    ]
    assert ledger.of("u")[-2:] == [
        "its share starts with 1 GPU: it waits for a decision; lent by b for its profiling run, because all promises "
        f"hold meanwhile, until {until} at most",
        "it loses its share of 1 GPU: the planned shares change at this time; its profiling run takes longer than "
        "promised jobs can do without GPUs, so it waits for free ones",
    ]
    assert "lent" not in " ".join(ledger.of("a"))


def test_a_reserved_quote_is_told_before_its_job_is_submitted() -> None:
    quoted = events.QuoteReserved(
        job_id="j1",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 50.0,
        schedule=(NOW_S + 20.0, NOW_S + 40.0, 2),
        gpu_seconds=40.0,
        until_s=NOW_S + 20.0,
        at_s=NOW_S,
    )
    ledger = pool().decided("admission", quoted)
    (said,) = ledger.of("j1")
    assert said.startswith("a quote was reserved until ")
    assert said.endswith("`eflow submit ... --quote j1` takes it")
    assert "deadline " in said
    words = EventsInWords(for_tenants=True)
    tenants = [each.tenant for entry in ledger.entries for each in words.fold(*entry) if each.name == "j1"]
    assert tenants == ["lab"]
    assert ledger.admitted("j1").of("j1")[0] == said


def test_a_name_that_is_used_again_begins_a_new_history_and_says_how_the_earlier_job_ended() -> None:
    ledger = pool().admitted("han").allocated(han=2).placed("han", 1, "node-0:0", "node-0:1")
    failed = events.JobFailed(job_id="han", generation=1, error="boom", iteration=40, at_s=NOW_S + 10.0)
    ledger.appended(failed)
    submitted = events.JobAdmitted(
        job_id="han",
        tenant="lab",
        spec=spec(max_iterations=90),
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
        gpu_seconds=120.0,
        replaces=identity_of_newest(ledger, "han"),
        at_s=NOW_S + 20.0,
    )
    refused = events.JobRejected(
        job_id="han",
        tenant="lab",
        spec=spec(max_iterations=900),
        reason="deadline",
        explanation="too many",
        deadline_s=NOW_S + 100.0,
        replaces=submitted.replaces,
        at_s=NOW_S + 15.0,
    )
    ledger.decided("admission", refused).decided("admission", submitted).allocated(han=1)
    history = job_history(ledger.entries, "han")
    first = first_of_newest(history)
    said = "the name is used again: its job failed at iteration 40; submitted by lab: examples.digits:Digits, 90 iter"
    assert history[first].text.startswith(said)
    assert [entry.begins_anew for entry in history].count(True) == 1
    assert history[first - 1].text.startswith("a new job of this name: examples.digits:Digits, 900 iterations")
    assert history[first - 1].text.endswith("rejected (deadline): too many")
    assert [entry.type for entry in history[first:]] == ["JobAdmitted", "AllocationDecided"]
    assert first_of_newest(history[:first]) == 0


def identity_of_newest(ledger: Ledger, job_id: str) -> str:
    words = EventsInWords()
    for entry in ledger.entries:
        words.fold(*entry)
    job = words.state.job(job_id)
    assert job is not None
    return job.identity
