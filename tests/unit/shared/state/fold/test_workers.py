"""Given this history of generations and their workers, then this state."""

from elasticflow.shared.messages import events
from testbed.histories import NOW_S, pool
from tests.support.worker_events import admitted, crashed, job, placed, progressed, running, stopped

# --- placement and the fence ----------------------------------------------------------------------------


def test_a_new_generation_waits_until_the_old_one_is_gone_from_every_node() -> None:
    history = running().then(placed(2, "node-1:1"))
    a = job(history)
    assert (a.generation, a.training, a.nodes) == (2, False, ("node-1",))
    assert {s.node_id for s in a.stopping} == {"node-0", "node-1"}
    history.then(stopped(1, "node-0", iteration=30))
    assert [s.node_id for s in job(history).stopping] == ["node-1"]
    a = job(history.then(stopped(1, "node-1")))
    assert (a.stopping, a.iteration, a.checkpoint_iteration) == ((), 30, 30)


def test_an_older_placement_is_ignored() -> None:
    history = running().then(placed(2, "node-1:1"))
    before = job(history)
    assert job(history.then(placed(1, "node-0:3"), placed(2, "node-0:3"))) == before


def test_no_gpus_means_suspended() -> None:
    history = running().then(placed(2))
    a = job(history)
    assert (a.generation, a.gpus, a.training, len(a.stopping)) == (2, (), False, 2)


def test_only_the_current_generation_starts_and_only_its_first_rendezvous_counts() -> None:
    history = pool(4).then(admitted(), placed(2, "node-0:0"))
    for generation, address in ((1, "old:1"), (2, "here:2"), (2, "there:3")):
        history.then(events.RendezvousOpened(job_id="a", generation=generation, address=address))
    old = events.GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=7, at_s=NOW_S)
    a = job(history.then(old))
    assert (a.rendezvous, a.training, a.iteration) == ("here:2", False, 0)
    assert job(history.started("a", iteration=40)).training
    assert job(history).checkpoint_iteration == 40


# --- progress and crashes -------------------------------------------------------------------------------


def test_progress_of_the_current_generation_counts_in_its_order() -> None:
    history = running().then(progressed(1, 20, checkpoint=10, at_s=6.0), progressed(1, 10, at_s=4.0))
    history.then(progressed(0, 90, at_s=9.0), progressed(2, 90, at_s=9.0))
    a = job(history)
    assert (a.iteration, a.checkpoint_iteration, a.metrics) == (20, 10, {"loss": 0.05})


def test_progress_counts_although_the_clock_of_the_node_is_ahead() -> None:
    history = pool(4).then(admitted(), placed(1, "node-0:0")).started("a", at_s=NOW_S + 3_600.0)
    assert job(history.then(progressed(1, 20))).iteration == 20


def test_a_crash_falls_back_to_the_checkpoint_and_counts_once() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), crashed(1), crashed(1, node="node-1"))
    a = job(history)
    assert (a.broken, a.training, a.iteration, a.restarts) == (True, False, 10, 1)


def test_a_broken_generation_has_nothing_more_to_say() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), crashed(1))
    before = job(history)
    late = events.GenerationStarted(job_id="a", generation=1, num_gpus=2, iteration=0, at_s=NOW_S)
    rendezvous = events.RendezvousOpened(job_id="a", generation=1, address="here:1")
    assert job(history.then(late, rendezvous, progressed(1, 30, checkpoint=30, at_s=9.0))) == before


def test_steps_that_the_next_crash_takes_back_are_no_progress() -> None:
    history = running()
    for generation in (1, 2, 3):
        history.then(progressed(generation, 9, at_s=10.0 * generation), crashed(generation))
        history.then(placed(generation + 1, "node-0:0")).started("a", at_s=NOW_S + 10.0 * generation)
    assert job(history).restarts == 3
    assert job(history.then(progressed(4, 12, checkpoint=12, at_s=90.0))).restarts == 0


def test_a_crash_of_a_generation_that_is_being_replaced_is_no_crash() -> None:
    a = job(running().then(placed(2, "node-1:1"), crashed(1)))
    assert (a.broken, a.restarts) == (False, 0)


def test_a_job_is_at_risk_until_its_next_generation() -> None:
    risk = events.JobAtRisk(job_id="a", generation=1, projected_finish_s=None, deadline_s=NOW_S + 100.0, at_s=NOW_S)
    history = running().then(risk)
    assert job(history).at_risk
    assert not job(history.then(placed(2, "node-0:0"), risk)).at_risk


# --- checkpoints that cannot be read --------------------------------------------------------------------


def repeats_from(iteration: int, *, lost: str = "g1: damaged") -> events.GenerationStarted:
    return events.GenerationStarted(
        job_id="a", generation=2, num_gpus=1, iteration=iteration, lost_checkpoints=lost, at_s=NOW_S + 60.0
    )


def test_a_start_from_an_older_checkpoint_takes_back_what_the_lost_one_held() -> None:
    history = running().then(progressed(1, 40, checkpoint=40), crashed(1), placed(2, "node-0:0"))
    before = history.state.scheduling_event_sequence
    started = job(history.then(repeats_from(10)))
    assert (started.iteration, started.checkpoint_iteration, started.training) == (10, 10, True)
    assert history.state.scheduling_event_sequence > before  # its plan has too little time
    assert started.restarts == 1
    assert job(history.then(progressed(2, 12, checkpoint=12, at_s=70.0))).checkpoint_iteration == 12


def test_a_damaged_file_without_a_loss_takes_nothing_back() -> None:
    history = running().then(progressed(1, 40, checkpoint=10), crashed(1), placed(2, "node-0:0"))
    assert job(history.then(repeats_from(40))).checkpoint_iteration == 40


def test_a_start_without_lost_checkpoints_takes_nothing_back() -> None:
    history = running().then(progressed(1, 40, checkpoint=40), crashed(1), placed(2, "node-0:0"))
    before = history.state.scheduling_event_sequence
    assert job(history.then(repeats_from(10, lost=""))).checkpoint_iteration == 40
    assert history.state.scheduling_event_sequence == before
