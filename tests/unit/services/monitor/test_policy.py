"""Given a pool and its heartbeats, the monitor reports what follows, and nothing that it cannot know."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.monitor.model import Connected, FenceNode, HeartbeatStored, NodeIsFenced
from elasticflow.services.monitor.policy import POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import AmendJob
from elasticflow.shared.messages.events import NodeReported, PlacedJob, WorkerReport
from testbed import histories
from testbed.histories import NOW_S, History, gpus, spec
from tests.support.executor_node import TIMELINE
from tests.support.worker_events import admitted, crashed, joined, placed

TIMEOUT_S = 3.0
BEAT_S = 0.5


def pool(*num_gpus: int, **config: Any) -> History:
    return histories.pool(*num_gpus, heartbeat_timeout_s=TIMEOUT_S, **config)


def running(*job_ids: str, num_gpus: int = 4, deadline_s: float = NOW_S + 1_000.0, **config: Any) -> History:
    """Jobs of 100 iterations, promised, each training on one GPU of node-0."""
    history = pool(num_gpus, **config)
    for number, job_id in enumerate(job_ids):
        admitted = events.JobAdmitted(
            job_id=job_id,
            tenant="lab",
            spec=spec(deadline_s=deadline_s),
            deadline_s=deadline_s,
            minimum_satisfactory_share=(),
            gpu_seconds=100.0,
            at_s=NOW_S,
        )
        placed = PlacedJob(job_id=job_id, generation=1, gpus=gpus(f"node-0:{number}"))
        history.then(admitted, events.PlacementDecided(placements=(placed,), at_s=NOW_S)).started(job_id)
    return history


class Monitor:
    """The policy as its host runs it: notes, then a decision whose events are folded.

    fences_are_stored: at once; else no attempt has a result. revision: of the record of every node.
    """

    def __init__(self, history: History, *, fences_are_stored: bool = True) -> None:
        self.state = POLICY.start(history.state)
        self.fences: list[FenceNode] = []
        self.revision = 0
        self._fences_are_stored = fences_are_stored

    def then(self, *messages: Any) -> None:
        for message in messages:
            self.state = POLICY.evolve(self.state, message, self.state.pool.sequence + 1)

    def hears(self, now_s: float, *notes: Any, listening: bool = True) -> tuple[Any, ...]:
        for note in (*notes, *((Connected(),) if listening else ())):
            self._observe(self._stored(note) if isinstance(note, NodeReported) else note, now_s)
        facts = self._decide(now_s)
        return (*facts, *self._decide(now_s)) if self._fences_are_stored else facts

    def _decide(self, now_s: float) -> tuple[Any, ...]:
        outputs = POLICY.decide(self.state, (), now_s)
        facts = tuple(output for output in outputs if not isinstance(output, FenceNode))
        self.then(*facts)
        for fence in outputs:
            if isinstance(fence, FenceNode):
                self.fences.append(fence)
                self._observe(fence, now_s)
                if self._fences_are_stored:
                    self._observe(NodeIsFenced(node_id=fence.node_id, incarnation=fence.incarnation), now_s)
        return facts

    def _observe(self, note: Any, now_s: float) -> None:
        self.state = POLICY.observe(self.state, note, now_s)

    def _stored(self, heartbeat: NodeReported) -> HeartbeatStored:
        self.revision += 1
        return HeartbeatStored(heartbeat=heartbeat, revision=self.revision)

    def hears_for(self, start_s: float, end_s: float, *notes: Any) -> list[Any]:
        """The same notes at every heartbeat interval."""
        told, now_s = list[Any](), start_s
        while now_s <= end_s:
            told.extend(self.hears(now_s, *notes))
            now_s += BEAT_S
        return told

    def trains(self, start_s: float, end_s: float, rate: float, *job_ids: str, first: float = 0.0) -> list[Any]:
        """node-0 reports these jobs as they do `rate` iterations/s."""
        told, now_s = list[Any](), start_s
        while now_s <= end_s:
            done = int(first + rate * (now_s - start_s))
            told.extend(self.hears(now_s, beat(*(report(job, done, rate=rate) for job in job_ids))))
            now_s += BEAT_S
        return told


def beat(*workers: WorkerReport, node: str = "node-0", incarnation: str = "first-0") -> NodeReported:
    return NodeReported(node_id=node, incarnation=incarnation, workers=workers, at_s=NOW_S)


def report(job_id: str, iteration: int, *, rate: float | None = 1.0, **changes: Any) -> WorkerReport:
    values = {"generation": 1, "rank": 0} | changes
    return WorkerReport(job_id=job_id, iteration=iteration, iterations_per_s=rate, **values)


def told(facts: Any, kind: type[Any]) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


# --- nodes ----------------------------------------------------------------------------------------------


def test_a_node_that_falls_silent_is_lost_once_after_the_timeout() -> None:
    monitor = Monitor(pool(4, 4))
    other = beat(node="node-1", incarnation="first-1")
    assert monitor.hears_for(NOW_S, NOW_S + 5.0, beat(), other) == []
    assert monitor.hears_for(NOW_S + 5.5, NOW_S + 5.0 + TIMEOUT_S, other) == []
    facts = monitor.hears_for(NOW_S + 8.5, NOW_S + 20.0, other)
    assert [(fact.node_id, fact.incarnation, fact.reason) for fact in facts] == [("node-0", "first-0", "silent")]
    assert not monitor.state.pool.nodes["node-0"].alive


@pytest.mark.parametrize(
    ("named", "repeated"),
    [((("a", 1), ("gone", 3)), (("a", 1),)), ((), ()), (None, None)],
    ids=["a start", "none", "old"],
)
def test_the_loss_of_a_node_repeats_which_starts_it_had_begun(named: events.Starts, repeated: events.Starts) -> None:
    monitor = Monitor(pool(4).then(admitted(), placed(1, "node-0:0")))
    monitor.hears_for(NOW_S, NOW_S + 1.0, replace(beat(), starts=named))
    (lost,) = told(monitor.hears_for(NOW_S + 1.5, NOW_S + 2 * TIMEOUT_S), events.NodeLost)
    assert lost.starts == repeated


def test_a_silent_node_is_lost_once_it_is_fenced_and_not_before() -> None:
    monitor = Monitor(pool(4), fences_are_stored=False)
    monitor.hears_for(NOW_S, NOW_S + 5.0, beat())
    assert monitor.hears_for(NOW_S + 5.5, NOW_S + 60.0) == []
    fence = FenceNode(node_id="node-0", incarnation="first-0", revision=monitor.revision)
    assert set(monitor.fences) == {fence}
    assert len(monitor.fences) < 60, "an attempt has time for a reply"
    fenced = NodeIsFenced(node_id="node-0", incarnation="first-0")
    assert [fact.node_id for fact in monitor.hears(NOW_S + 60.5, fenced, listening=False)] == ["node-0"]


def test_a_heartbeat_that_was_stored_before_the_fence_keeps_the_node() -> None:
    monitor = Monitor(pool(4), fences_are_stored=False)
    monitor.hears_for(NOW_S, NOW_S + 5.0 + TIMEOUT_S + BEAT_S)
    assert len(monitor.fences) > 0
    found = HeartbeatStored(heartbeat=beat(), revision=77)
    tried = len(monitor.fences)
    assert monitor.hears_for(NOW_S + 9.0, NOW_S + 9.0 + TIMEOUT_S, found) == []
    assert len(monitor.fences) == tried
    monitor.hears_for(NOW_S + 12.5, NOW_S + 13.0)
    assert [fence.revision for fence in monitor.fences[tried:]] == [77]


@pytest.mark.parametrize("revision", [0, 3, 4])
def test_a_heartbeat_that_is_delivered_twice_or_late_keeps_no_node_alive(revision: int) -> None:
    monitor = Monitor(pool(4))
    monitor.hears(NOW_S, HeartbeatStored(heartbeat=beat(), revision=4))
    again = HeartbeatStored(heartbeat=beat(), revision=revision)
    assert told(monitor.hears_for(NOW_S + 0.5, NOW_S + 2 * TIMEOUT_S, again), events.NodeLost)


def test_a_node_that_does_not_know_the_shorter_timeout_yet_is_given_its_own() -> None:
    monitor = Monitor(pool(4))
    long = replace(beat(), lease_s=30.0)
    monitor.hears(NOW_S, long)
    assert monitor.hears_for(NOW_S + 0.5, NOW_S + 60.0) == []
    assert told(monitor.hears_for(NOW_S + 60.5, NOW_S + 61.0), events.NodeLost)


def test_a_node_without_any_heartbeat_is_lost() -> None:
    facts = Monitor(pool(4)).hears_for(NOW_S, NOW_S + 2 * TIMEOUT_S)
    assert [fact.node_id for fact in facts] == ["node-0"]


def test_heartbeats_of_an_earlier_incarnation_keep_no_node_alive() -> None:
    monitor = Monitor(pool(4))
    assert told(monitor.hears_for(NOW_S, NOW_S + 2 * TIMEOUT_S, beat(incarnation="zeroth")), events.NodeLost)


def test_a_monitor_that_starts_late_gives_every_node_a_full_timeout() -> None:
    monitor = Monitor(pool(4, 4))
    late_s = NOW_S + 3_600.0
    assert monitor.hears(late_s) == ()
    assert monitor.hears_for(late_s, late_s + TIMEOUT_S - BEAT_S) == []


def test_silence_during_an_outage_of_the_bus_does_not_count() -> None:
    monitor = Monitor(pool(4))
    monitor.hears_for(NOW_S, NOW_S + 5.0, beat())
    for away_s in (
        2.0,
        10.0,
        600.0,
    ):  # a decision without a sign of the bus, for instance after a message of the ledger
        assert monitor.hears(NOW_S + 5.0 + away_s, listening=False) == ()
    back_s = NOW_S + 700.0
    assert monitor.hears_for(back_s, back_s + TIMEOUT_S - BEAT_S) == []
    assert told(monitor.hears_for(back_s + TIMEOUT_S, back_s + 2 * TIMEOUT_S), events.NodeLost)


@pytest.mark.parametrize("skew_s", [-3_600.0, -10.0, 10.0, 3_600.0])
def test_a_node_with_a_wrong_clock_has_a_full_timeout(skew_s: float) -> None:
    monitor = Monitor(pool(4))
    monitor.hears_for(NOW_S, NOW_S + 5.0, beat())
    monitor.then(
        events.NodeJoined(node_id="late", incarnation="1", num_gpus=1, device="cpu", at_s=NOW_S + 5.0 + skew_s)
    )
    assert monitor.hears_for(NOW_S + 5.5, NOW_S + 7.0, beat()) == []
    assert told(monitor.hears_for(NOW_S + 7.5, NOW_S + 5.5 + 3 * TIMEOUT_S, beat()), events.NodeLost)


# --- progress -------------------------------------------------------------------------------------------


def test_progress_is_reported_at_first_and_then_every_two_seconds() -> None:
    facts = told(Monitor(running("a")).trains(NOW_S, NOW_S + 10.0, 2.0, "a"), events.JobProgressed)
    times_s = [fact.at_s - NOW_S for fact in facts]
    assert times_s[0] <= 1.0
    assert all(2.0 <= late - early <= 2.5 for early, late in pairwise(times_s))
    assert times_s[-1] >= 8.0
    assert [fact.iteration for fact in facts] == [2 * int(at_s * 2) // 2 for at_s in times_s]


def training_for_an_hour(**config: Any) -> Monitor:
    """Until NOW_S + 3,600 s, with one iteration."""
    monitor = Monitor(running("a", deadline_s=NOW_S + 1e6, **config))
    monitor.hears(NOW_S, beat(report("a", 1)))
    return monitor


def test_progress_of_an_old_generation_is_reported_every_half_minute() -> None:
    facts = training_for_an_hour().trains(NOW_S + 3_600.0, NOW_S + 3_720.0, 1.0, "a", first=1.0)
    times_s = [fact.at_s for fact in told(facts, events.JobProgressed)]
    assert [late - early for early, late in pairwise(times_s)] == pytest.approx([30.0] * 3, abs=1.0)


def test_a_pool_that_assumes_progress_for_a_shorter_time_has_more_reports() -> None:
    monitor = training_for_an_hour(progress_timeout_s=10.0)
    facts = told(monitor.trains(NOW_S + 3_600.0, NOW_S + 3_630.0, 1.0, "a", first=1.0), events.JobProgressed)
    assert all(5.0 <= late.at_s - early.at_s <= 6.0 for early, late in pairwise(facts))


def test_an_old_generation_that_becomes_slower_is_reported_once_it_is_two_seconds_behind() -> None:
    monitor = training_for_an_hour()
    monitor.trains(NOW_S + 3_600.0, NOW_S + 3_632.0, 10.0, "a", first=1.0)
    facts = told(monitor.trains(NOW_S + 3_632.5, NOW_S + 3_650.0, 1.0, "a", first=322.0), events.JobProgressed)
    assert facts[0].at_s == pytest.approx(NOW_S + 3_635.0, abs=1.0)


def test_a_new_checkpoint_is_reported_at_once() -> None:
    monitor = Monitor(running("a"))
    monitor.trains(NOW_S, NOW_S + 4.0, 2.0, "a")
    monitor.hears(NOW_S + 4.5, beat(report("a", 9)))
    (fact,) = monitor.hears(NOW_S + 5.0, beat(report("a", 10, checkpoint_iteration=10)))
    assert (fact.iteration, fact.checkpoint_iteration) == (10, 10)


@pytest.mark.parametrize("changes", [{"rank": 1}, {"generation": 0}, {"generation": 2}])
def test_only_rank_0_of_the_current_generation_reports_for_a_job(changes: dict[str, int]) -> None:
    monitor = Monitor(running("a"))
    assert told(monitor.hears_for(NOW_S, NOW_S + 5.0, beat(report("a", 5, **changes))), events.JobProgressed) == []


def test_a_broken_generation_makes_no_progress() -> None:
    monitor = Monitor(running("a"))
    monitor.then(crash("a", 1))
    assert monitor.hears_for(NOW_S, NOW_S + 5.0, beat(report("a", 5))) == []


def test_during_a_switch_the_generation_that_trains_reports_for_the_job() -> None:
    history = running("a", stop_free=True, stall_timeout_s=60.0, deadline_s=NOW_S + 10_000.0)
    monitor = Monitor(history)
    monitor.trains(NOW_S, NOW_S + 9.0, 1.0, "a")
    placed = PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:1"))
    monitor.then(events.PlacementDecided(placements=(placed,), at_s=NOW_S + 9.0))
    facts = monitor.trains(NOW_S + 10.0, NOW_S + 100.0, 1.5, "a", first=10)
    assert {(type(fact), fact.generation) for fact in facts} == {(events.JobProgressed, 1)}
    monitor.then(
        events.GenerationStarted(
            job_id="a", generation=2, num_gpus=2, iteration=150, resize=TIMELINE, at_s=NOW_S + 100.0
        )
    )
    now, before = report("a", 160, generation=2), report("a", 200, generation=1)
    facts = monitor.hears_for(NOW_S + 100.5, NOW_S + 102.0, beat(now), beat(before))
    assert {(fact.generation, fact.iteration) for fact in facts} == {(2, 160)}


# --- speed ----------------------------------------------------------------------------------------------


def test_a_speed_like_the_curve_corrects_nothing() -> None:
    monitor = Monitor(running("a"))
    assert told(monitor.trains(NOW_S, NOW_S + 30.0, 1.05, "a"), events.ThroughputMeasured) == []


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_another_speed_replaces_the_point_of_the_curve(rate: float) -> None:
    monitor = Monitor(running("a"))
    (fact,) = told(monitor.trains(NOW_S, NOW_S + 60.0, rate, "a"), events.ThroughputMeasured)
    assert (fact.source, fact.num_gpus, fact.iterations_per_s) == ("training", 1, pytest.approx(rate))
    assert fact.at_s >= NOW_S + 5.0


def test_a_speed_that_changes_again_corrects_the_point_after_ten_seconds() -> None:
    monitor = Monitor(running("a"))
    facts = monitor.trains(NOW_S, NOW_S + 9.0, 0.5, "a")
    facts += monitor.trains(NOW_S + 9.5, NOW_S + 60.0, 2.0, "a", first=5.0)
    measured = told(facts, events.ThroughputMeasured)
    assert all(late.at_s - early.at_s >= 10.0 for early, late in pairwise(measured))
    assert monitor.state.pool.curves["linear/b64"].iterations_per_s[1] == pytest.approx(2.0, rel=0.1)


def test_jobs_of_one_profile_with_unequal_speeds_agree_on_their_mean() -> None:
    monitor, facts = Monitor(running("a", "b")), list[Any]()
    for second in range(61):
        slow, fast = report("a", second // 2, rate=0.5), report("b", 3 * second, rate=3.0)
        facts += monitor.hears(NOW_S + second, beat(slow, fast))
    measured = told(facts, events.ThroughputMeasured)
    assert measured
    assert all(fact.iterations_per_s == pytest.approx(1.75) for fact in measured)
    assert len({fact.at_s for fact in measured}) == 1


def test_the_speed_of_an_uneven_division_corrects_nothing() -> None:
    history = running("a")
    placed = PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:1"), virtual_nodes_by_rank=(7, 1))
    gone = events.WorkersStopped(job_id="a", generation=1, node_id="node-0", iteration=0, at_s=NOW_S)
    history.then(events.PlacementDecided(placements=(placed,), at_s=NOW_S), gone).started("a", at_s=NOW_S + 1.0)
    monitor, facts = Monitor(history), list[Any]()
    for second in range(1, 31):
        facts += monitor.hears(NOW_S + second, beat(report("a", 2 * second, rate=0.5, generation=2)))
    assert told(facts, events.JobProgressed)
    assert told(facts, events.ThroughputMeasured) == []


@pytest.mark.parametrize(
    ("rate", "slow_gpu_s", "corrected_at_s"),
    [(0.5, 600.0, None), (0.5, 0.0, 31.0), (1.5, 0.0, 17.0), (3.0, 600.0, 11.0)],
    ids=["a slow GPU delays it", "15 steps", "15 s", "it is faster all the same"],
)
def test_a_slow_gpu_corrects_no_curve(rate: float, slow_gpu_s: float, corrected_at_s: float | None) -> None:
    """Workers report a straggler within 15 s and 15 steps. The curve has 2 iterations/s on two GPUs."""
    history = running("a", slow_gpu_s=slow_gpu_s)
    placed = PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:1"))
    gone = events.WorkersStopped(job_id="a", generation=1, node_id="node-0", iteration=0, at_s=NOW_S)
    history.then(events.PlacementDecided(placements=(placed,), at_s=NOW_S), gone).started("a", at_s=NOW_S + 1.0)
    lagged = events.WorkerLagged(job_id="a", generation=2, rank=1, slowdown=4.0, at_s=NOW_S + 12.0)
    monitor, facts = Monitor(history), list[Any]()
    for second in range(1, 41):
        if second == 12:
            monitor.then(lagged)
        facts += monitor.hears(NOW_S + second, beat(report("a", 3 * second, rate=rate, generation=2)))
    measured = told(facts, events.ThroughputMeasured)
    assert (measured[0].at_s - NOW_S if measured else None) == corrected_at_s


@pytest.mark.parametrize("confidence", [None, 0.99])
def test_the_speed_of_a_probe_is_reported_unchanged(confidence: float | None) -> None:
    history = running("a", curves={"linear/b64": {}}, confidence=confidence)
    completed = events.ProfileCompleted(profile_key="linear/b64", iterations_per_s={1: 1.0}, measured_to=1, at_s=NOW_S)
    tries = events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, probes="a", at_s=NOW_S)
    placed = PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:1"))
    gone = events.WorkersStopped(job_id="a", generation=1, node_id="node-0", iteration=0, at_s=NOW_S)
    history.then(completed, tries, events.PlacementDecided(placements=(placed,), at_s=NOW_S), gone)
    monitor = Monitor(history.started("a", at_s=NOW_S + 1.0))
    facts = list[Any]()
    for second in range(1, 9):
        facts += monitor.hears(NOW_S + second, beat(report("a", 2 * second, rate=1.7, generation=2)))
    found = [(fact.num_gpus, fact.iterations_per_s) for fact in told(facts, events.ThroughputMeasured)]
    assert found == [(2, 1.7)]
    assert dict(monitor.state.pool.curves["linear/b64"].iterations_per_s) == {1: 1.0, 2: 1.7}


# --- risk -----------------------------------------------------------------------------------------------


def test_a_job_too_slow_for_its_deadline_on_all_gpus_is_at_risk_once() -> None:
    monitor = Monitor(running("a", num_gpus=1, deadline_s=NOW_S + 120.0))
    risks = told(monitor.trains(NOW_S, NOW_S + 60.0, 0.1, "a"), events.JobAtRisk)
    assert [(risk.job_id, risk.generation, risk.deadline_s) for risk in risks] == [("a", 1, NOW_S + 120.0)]
    assert monitor.state.pool.live_jobs["a"].at_risk


@pytest.mark.parametrize(("deadline_s", "num_at_risk"), [(120.0, 1), (1_000.0, 0)])
def test_a_job_that_is_late_after_the_loss_of_a_node_is_at_risk_at_once(deadline_s: float, num_at_risk: int) -> None:
    """Two jobs of 100 s lose their node; on the GPU that is left they can only run one after the other."""
    history = running("a", "b", num_gpus=2, deadline_s=NOW_S + deadline_s)
    joined = events.NodeJoined(node_id="node-1", incarnation="first-1", num_gpus=1, device="cpu", at_s=NOW_S)
    monitor = Monitor(history.then(joined))
    facts = monitor.hears_for(NOW_S, NOW_S + 10.0, beat(node="node-1", incarnation="first-1"))
    assert [type(fact) for fact in facts] == [events.NodeLost] + num_at_risk * [events.JobAtRisk]
    for risk in facts[1:]:
        assert risk.projected_finish_s > NOW_S + 200.0
        assert risk.at_s <= facts[0].at_s + BEAT_S


def test_a_job_at_risk_gets_the_earliest_deadline_that_can_be_promised() -> None:
    """Of three jobs of 100 s that lose their node, two can only run after the first on the remaining GPU.

    Migrations are off: without room for them, a somewhat earlier deadline could be promised than is offered.
    """
    history = running("a", "b", "c", num_gpus=4, deadline_s=NOW_S + 125.0, deadline_slack_s=3.0, migration_budget=0.0)
    joined = events.NodeJoined(node_id="node-1", incarnation="first-1", num_gpus=1, device="cpu", at_s=NOW_S)
    monitor = Monitor(history.then(joined))
    facts = monitor.hears_for(NOW_S, NOW_S + 10.0, beat(node="node-1", incarnation="first-1"))
    _, *risks = facts
    assert len(risks) == 2
    for risk in risks:
        job = monitor.state.pool.live_jobs[risk.job_id]
        assert (job.at_risk, job.earliest_deadline_s) == (True, risk.earliest_deadline_s)
    for risk in risks:
        at_once = History(monitor.state.pool)
        sooner = AmendJob(job_id=risk.job_id, tenant="lab", deadline_s=risk.earliest_deadline_s - 2.0)
        (refused,) = at_once.decided(ADMISSION, sooner, now_s=risk.at_s)
        assert isinstance(refused, events.AmendRejected)
    for risk in risks:  # one after the other
        at_once = History(monitor.state.pool)
        command = AmendJob(job_id=risk.job_id, tenant="lab", deadline_s=risk.earliest_deadline_s)
        (amended,) = at_once.decided(ADMISSION, command, now_s=risk.at_s)
        assert isinstance(amended, events.JobAmended), amended
        monitor.then(amended)
        job = monitor.state.pool.live_jobs[risk.job_id]
        assert (job.at_risk, job.earliest_deadline_s) == (False, None)


def test_a_job_in_time_is_not_at_risk() -> None:
    monitor = Monitor(running("a", num_gpus=1, deadline_s=NOW_S + 120.0))
    assert told(monitor.trains(NOW_S, NOW_S + 60.0, 1.0, "a"), events.JobAtRisk) == []


@pytest.mark.parametrize(("reported", "deadline_s", "num_at_risk"), [(3.0, 45.0, 0), (3.0, 30.0, 1), (2.0, 45.0, 1)])
def test_a_job_between_two_levels_is_judged_by_its_speed(reported: float, deadline_s: float, num_at_risk: int) -> None:
    """100 iterations on three GPUs take 34 s; on four 25 s, and the resize to them 30 s."""
    history = running("a", num_gpus=4, deadline_s=NOW_S + deadline_s, resize_cost_s=30.0)
    survivors = PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:1", "node-0:2"))
    history.then(events.PlacementDecided(placements=(survivors,), at_s=NOW_S)).started("a")
    monitor, risks, now_s = Monitor(history), list[Any](), NOW_S
    while now_s < NOW_S + 10.0:
        done = int(reported * (now_s - NOW_S))
        heard = report("a", done, generation=2, rate=reported)
        risks += told(monitor.hears(now_s, beat(heard)), events.JobAtRisk)
        now_s += BEAT_S
    assert len(risks) == num_at_risk


def test_a_promised_job_without_progress_is_at_risk() -> None:
    monitor = Monitor(running("a"))
    monitor.trains(NOW_S, NOW_S + 10.0, 1.0, "a")
    still = beat(report("a", 10))
    assert told(monitor.hears_for(NOW_S + 10.5, NOW_S + 35.0, still), events.JobAtRisk) == []
    (risk,) = told(monitor.hears_for(NOW_S + 35.5, NOW_S + 60.0, still), events.JobAtRisk)
    assert risk.projected_finish_s is None


# --- the end --------------------------------------------------------------------------------------------


def crash(job_id: str, generation: int) -> events.WorkerCrashed:
    return events.WorkerCrashed(
        job_id=job_id, generation=generation, node_id="node-0", rank=0, explanation="signal 11", at_s=NOW_S
    )


def test_a_job_without_progress_fails_after_the_stall_timeout() -> None:
    monitor = Monitor(running("a", stall_timeout_s=60.0))
    assert told(monitor.hears_for(NOW_S, NOW_S + 60.0, beat(report("a", 0))), events.JobFailed) == []
    assert told(monitor.hears_for(NOW_S + 60.5, NOW_S + 70.0, beat(report("a", 0))), events.JobFailed)


def test_an_evaluation_that_moves_on_is_progress() -> None:
    monitor = Monitor(running("a", stall_timeout_s=60.0))
    evaluating = beat(report("a", 9, seconds_since_progress=1.0))
    assert told(monitor.hears_for(NOW_S, NOW_S + 300.0, evaluating), events.JobFailed) == []
    for silent_s in (beats * BEAT_S for beats in range(int(70 / BEAT_S))):
        hangs = beat(report("a", 9, seconds_since_progress=silent_s))
        failed = told(monitor.hears(NOW_S + 300.0 + silent_s, hangs), events.JobFailed)
        assert bool(failed) == (silent_s == 60.0 + BEAT_S)


def test_a_stalled_job_fails_with_its_number_of_iterations() -> None:
    monitor = Monitor(running("a", stall_timeout_s=60.0))
    (failed,) = told(monitor.hears_for(NOW_S, NOW_S + 61.0, beat(report("a", 9))), events.JobFailed)
    assert "after 9 were done; does train() return?" in failed.error
    assert failed.progressed_at_s == monitor.state.pool.ended_jobs["a"].progressed_at_s


def test_a_job_that_does_not_start_fails_with_this_explanation() -> None:
    history = pool(2, stall_timeout_s=60.0)
    asked = events.ProfileRequested(job_id="a", tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0"))
    history.then(asked, events.PlacementDecided(placements=(placed,), at_s=NOW_S))
    (failed,) = told(Monitor(history).hears_for(NOW_S, NOW_S + 61.0, beat()), events.JobFailed)
    assert "it did not start to train within" in failed.error


def placed_only(deadline_s: float = NOW_S + 10_000.0, **config: Any) -> Monitor:
    """Of the promised job a, of 100 iterations, whose worker has not started."""
    admitted = events.JobAdmitted(
        job_id="a",
        tenant="lab",
        spec=spec(deadline_s=deadline_s, requirements=("einops",)),
        deadline_s=deadline_s,
        minimum_satisfactory_share=(),
        gpu_seconds=100.0,
        at_s=NOW_S,
    )
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0"))
    history = pool(2, stall_timeout_s=60.0, **config).then(admitted)
    return Monitor(history.then(events.PlacementDecided(placements=(placed,), at_s=NOW_S)))


def starting(placed_at_s: float = NOW_S, *, phase: str = "", config: Any = None, **changes: Any) -> Monitor:
    """Of job a, whose worker has not started, in a pool where jobs may go on for 60 s without a step."""
    history = pool(2, stall_timeout_s=60.0, **(config or {}))
    history.then(admitted("a", spec=spec(**changes), deadline_s=NOW_S + 10_000.0))
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0"))
    history.then(events.PlacementDecided(placements=(placed,), at_s=placed_at_s))
    if phase:
        warned = events.JobWarned(job_id="a", generation=1, warning="slow", phase=phase, at_s=placed_at_s)
        history.then(warned)
    return Monitor(history)


def test_a_job_may_start_for_as_long_as_it_declares_and_fails_then_with_what_it_did() -> None:
    monitor = starting(start_timeout_s=300.0, phase="in init_model()")
    assert told(monitor.hears_for(NOW_S, NOW_S + 300.0, beat()), events.JobFailed) == []
    (failed,) = told(monitor.hears_for(NOW_S + 300.5, NOW_S + 302.0, beat()), events.JobFailed)
    assert failed.error.startswith("it did not start to train within 300 s: a worker was in init_model(). `eflow logs")
    assert failed.error.endswith("if it needs longer, submit it with --start-timeout, of up to 3600 s")


def test_a_declared_start_is_no_excuse_once_the_job_trains() -> None:
    monitor = starting(start_timeout_s=300.0)
    monitor.then(events.GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=0, at_s=NOW_S + 200.0))
    assert told(monitor.hears_for(NOW_S + 200.0, NOW_S + 260.0, beat(report("a", 0))), events.JobFailed) == []
    (failed,) = told(monitor.hears_for(NOW_S + 260.5, NOW_S + 262.0, beat(report("a", 0))), events.JobFailed)
    assert failed.error.endswith("if it needs longer, submit it with --stall-timeout, of up to 3600 s")


def test_a_job_may_go_on_without_a_step_for_as_long_as_it_declares() -> None:
    monitor = starting(stall_timeout_s=300.0)
    monitor.then(events.GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=0, at_s=NOW_S))
    assert told(monitor.hears_for(NOW_S, NOW_S + 300.0, beat(report("a", 0))), events.JobFailed) == []
    assert told(monitor.hears_for(NOW_S + 300.5, NOW_S + 302.0, beat(report("a", 0))), events.JobFailed)


def test_a_step_that_may_take_long_does_not_lengthen_a_start() -> None:
    assert told(starting(stall_timeout_s=300.0).hears_for(NOW_S, NOW_S + 62.0, beat()), events.JobFailed)


def test_an_operator_bounds_what_a_running_job_has_declared() -> None:
    monitor = starting(start_timeout_s=300.0, config={"max_job_timeout_s": 100.0})
    assert told(monitor.hears_for(NOW_S, NOW_S + 100.0, beat()), events.JobFailed) == []
    assert told(monitor.hears_for(NOW_S + 100.5, NOW_S + 102.0, beat()), events.JobFailed)


def test_survivors_may_wait_for_a_start_that_is_declared_to_be_long() -> None:
    history = pool(4, stall_timeout_s=60.0, stop_free=True)
    history.then(admitted("a", spec=spec(start_timeout_s=300.0), deadline_s=NOW_S + 10_000.0))
    history.then(placed(1, "node-0:0", "node-0:1")).started("a", at_s=NOW_S + 1.0)
    job = history.then(crashed(1, rank=1), placed(2, "node-0:0", "node-0:2")).state.live_jobs["a"]
    assert job.shrinks_to_survivors, "one survives, and waits for the other that starts"
    at_s = job.placed_at_s
    monitor = Monitor(history)
    assert told(monitor.hears_for(at_s, at_s + 290.0, beat()), events.JobFailed) == []
    assert told(monitor.hears_for(at_s + 290.5, at_s + 302.0, beat()), events.JobFailed)


def test_a_promised_job_is_not_at_risk_while_it_starts_as_planned() -> None:
    risky, planned = starting(), starting(start_timeout_s=50.0)
    assert told(risky.hears_for(NOW_S, NOW_S + 45.0, beat()), events.JobAtRisk)
    assert told(planned.hears_for(NOW_S, NOW_S + 45.0, beat()), events.JobAtRisk) == []
    assert told(planned.hears_for(NOW_S + 45.5, NOW_S + 52.0, beat()), events.JobAtRisk)


def test_a_job_whose_packages_are_being_installed_is_not_stalled() -> None:
    monitor, installing = placed_only(), replace(beat(), preparing=("a", "unknown"))
    assert monitor.hears_for(NOW_S, NOW_S + 1_500.0, installing) == []
    told_later = monitor.hears_for(NOW_S + 1_500.5, NOW_S + 1_560.0, beat())
    assert told(told_later, events.JobFailed) == [], "it has its whole time to start after the installation"
    (failed,) = told(monitor.hears_for(NOW_S + 1_560.5, NOW_S + 1_562.0, beat()), events.JobFailed)
    assert "it did not start to train within" in failed.error
    assert not monitor.state.prepared_at_s, "it has ended"


def test_a_node_that_installs_for_ever_does_not_keep_its_job_alive() -> None:
    monitor, installing = placed_only(prepare_timeout_s=100.0), replace(beat(), preparing=("a",))
    assert told(monitor.hears_for(NOW_S, NOW_S + 160.0, installing), events.JobFailed) == []
    assert told(monitor.hears_for(NOW_S + 160.5, NOW_S + 162.0, installing), events.JobFailed)


def test_an_installation_for_joining_workers_does_not_excuse_those_that_train() -> None:
    monitor = Monitor(running("a", stall_timeout_s=60.0))
    hangs = replace(beat(report("a", 0)), preparing=("a",))
    assert told(monitor.hears_for(NOW_S, NOW_S + 70.0, hangs), events.JobFailed)


def test_a_promise_that_an_installation_breaks_is_at_risk_before_its_deadline() -> None:
    monitor, installing = placed_only(deadline_s=NOW_S + 500.0), replace(beat(), preparing=("a",))
    risks = told(monitor.hears_for(NOW_S, NOW_S + 499.0, installing), events.JobAtRisk)
    assert len(risks) == 1


def test_a_profiling_run_that_stalls_on_one_of_two_types_fails_there_only_and_once() -> None:
    named = (joined("x", "node-1", gpu_type="V100"), joined("y", "node-2", gpu_type="P100"))
    history = pool(2, stall_timeout_s=60.0).then(*named)
    asked = events.ProfileRequested(job_id="a", tenant="lab", spec=spec(model_name="new"), deadline_s=None, at_s=NOW_S)
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0"))
    history.then(asked, events.PlacementDecided(placements=(placed,), at_s=NOW_S))
    beats = [beat(node=node.node_id, incarnation=node.incarnation) for node in history.state.nodes.values()]
    reported = Monitor(history).hears_for(NOW_S, NOW_S + 70.0, *beats)
    assert [(type(event), event.gpu_type) for event in reported] == [(events.ProfilingFailed, "")]


def test_a_long_profiling_run_with_progress_does_not_fail() -> None:
    history = pool(2, stall_timeout_s=60.0)
    asked = events.ProfileRequested(job_id="a", tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0"))
    history.then(asked, events.PlacementDecided(placements=(placed,), at_s=NOW_S)).started("a")
    monitor = Monitor(history)
    for iteration in range(5):
        start_s = NOW_S + 40.0 * iteration
        assert monitor.hears_for(start_s, start_s + 39.5, beat(report("a", iteration))) == []


def test_a_monitor_that_was_away_fails_no_job_that_trained_meanwhile() -> None:
    """Only the monitor reports progress: the ledger has none for the time without a monitor."""
    monitor = Monitor(running("a", deadline_s=NOW_S + 10_000.0))
    late_s = NOW_S + 3_600.0
    assert monitor.hears(late_s, listening=False) == ()
    assert monitor.hears(late_s) == ()
    facts = monitor.trains(late_s + 0.5, late_s + 10.0, 1.0, "a", first=50)
    assert {type(fact) for fact in facts} == {events.JobProgressed}


def test_an_outage_of_the_bus_fails_no_job() -> None:
    monitor = Monitor(running("a", deadline_s=NOW_S + 10_000.0))
    monitor.trains(NOW_S, NOW_S + 10.0, 1.0, "a")
    back_s = NOW_S + 700.0
    assert not told(monitor.hears(back_s - 1.0, listening=False), events.JobFailed)
    facts = monitor.trains(back_s, back_s + 5.0, 1.0, "a", first=11)
    assert {type(fact) for fact in facts} == {events.JobProgressed}
