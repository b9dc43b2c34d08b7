"""Speeds by what connects the GPUs: a table for buddy blocks, and tables for other places."""

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.scheduling.jobs.promised_levels import promised_levels
from elasticflow.shared.scheduling.jobs.scheduler_view import known_curve, next_level, rates_to_promise
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import spec_of
from elasticflow.shared.state.topology import CLUSTER, RACK, SOCKET
from testbed.histories import LINEAR, NOW_S, History, best_effort, gpus, pool
from tests.support import worker_events

KEY = "linear/b64"


def trains_on(*names: str, history: History | None = None) -> History:
    history = history or pool(2, 2)
    admitted = events.JobAdmitted(
        job_id="a",
        tenant="lab",
        spec=best_effort(),
        deadline_s=None,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=NOW_S,
    )
    decided = events.PlanDecided(service="admission", based_on=history.state.sequence, now_s=NOW_S, events=(admitted,))
    history.then(decided).then(placed(1, *names))
    return history.started("a")


def placed(generation: int, *names: str) -> events.PlacementDecided:
    job = events.PlacedJob(job_id="a", generation=generation, gpus=gpus(*names))
    return events.PlacementDecided(placements=(job,), at_s=NOW_S)


def measured(history: History, iterations_per_s: float, num_gpus: int = 2) -> MeasuredCurve:
    """The curve after the newest generation has measured a speed, later than the one before."""
    generation = history.state.live_jobs["a"].generation
    at_s = NOW_S + 9.0 * generation
    history.then(
        worker_events.measured(KEY, num_gpus, iterations_per_s, generation=generation, source="training", at_s=at_s)
    )
    return history.state.curves[KEY]


def test_a_speed_within_a_block_corrects_the_curve() -> None:
    curve = measured(trains_on("node-0:0", "node-0:1"), 1.7)
    assert curve.iterations_per_s[2] == 1.7
    assert not curve.at_level


def test_a_speed_on_gpus_that_are_far_apart_is_of_that_place_alone() -> None:
    curve = measured(trains_on("node-0:0", "node-1:0"), 0.8)
    assert curve.iterations_per_s[2] == LINEAR[2]
    assert curve.at_level == {CLUSTER: {2: 0.8}}


def test_a_higher_speed_far_apart_shows_that_a_block_is_as_fast() -> None:
    curve = measured(trains_on("node-0:0", "node-1:0"), 2.4)
    assert curve.iterations_per_s[2] == 2.4


@pytest.mark.parametrize(
    ("known", "counted"),
    [
        pytest.param({1: 1.5, 4: 4.0}, 2.0, id="half of twice as many"),
        pytest.param({1: 1.2}, 1.2, id="no more than half as many"),
        pytest.param({8: 9.0}, 1.5, id="nothing that bounds it"),
    ],
)
def test_a_speed_of_better_connected_gpus_bounds_that_of_the_worst_block(
    known: dict[int, float], counted: float
) -> None:
    """Of two GPUs, the third ones of both nodes are the worst block, of unknown speed: a promise counts on a bound."""
    history = trains_on("node-0:0", "node-0:1", history=pool(3, 3, curves={KEY: known}))
    curve = measured(history, 3.0)
    assert (curve.at_level, curve.bounded) == ({SOCKET: {2: 3.0}}, (2,))
    assert curve.iterations_per_s[2] == pytest.approx(counted)


def test_a_bound_is_no_reason_to_end_a_profiling_run() -> None:
    history = trains_on("node-0:0", "node-0:1", history=pool(7, 7, curves={KEY: {1: 1.0}}))
    measured(history, 1.9)
    history.then(placed(2, "node-0:0", "node-0:1", "node-0:2", "node-0:3")).started("a")
    curve = measured(history, 3.6, num_gpus=4)
    assert dict(curve.iterations_per_s) == {1: 1.0, 2: 0.95, 4: 0.95}
    assert next_level(history.state, spec_of(history.state.live_jobs["a"])) == 8


def test_a_larger_block_raises_a_bound_and_training_there_replaces_it() -> None:
    history = trains_on("node-0:0", "node-0:1", history=pool(3, 3, curves={KEY: {1: 1.5}}))
    measured(history, 2.6)
    history.then(placed(2, "node-0:0", "node-0:1", "node-1:0", "node-1:1")).started("a")
    curve = measured(history, 4.0, num_gpus=4)
    assert (curve.iterations_per_s[2], curve.bounded) == (2.0, (2,))
    history.then(placed(3, "node-0:2", "node-1:2")).started("a")
    curve = measured(history, 2.2)
    assert (curve.iterations_per_s[2], curve.bounded) == (2.2, ())


def test_a_configured_table_of_the_level_of_blocks_is_corrected() -> None:
    history = trains_on("node-0:0", "node-0:1", history=pool(2, 2, curves={f"{KEY}@socket": {2: 1.0}}))
    assert measured(history, 1.7).at_level == {SOCKET: {2: 1.7}}


def test_a_configured_table_of_a_level_holds_where_blocks_have_it() -> None:
    apart = {f"{KEY}@cluster": {2: 0.5, 4: 1.0}}
    of_nodes = pool(2, 2, curves=apart, throughput_margin=0.0)
    assert of_nodes.state.curves[KEY].at_level == {CLUSTER: {2: 0.5, 4: 1.0}}
    for history, rate_of_two in ((of_nodes, 2.0), (pool(1, 1, 1, 1, curves=apart), 0.5)):
        trains_on("node-0:0", history=history)
        curve = known_curve(history.state, spec_of(history.state.live_jobs["a"]))
        assert curve is not None
        assert (curve.throughput(2), curve.throughput(4)) == (rate_of_two, 1.0)


def test_where_promised_jobs_never_migrate_the_slowest_known_place_counts() -> None:
    history = trains_on("node-0:0", history=pool(4, 4, curves={f"{KEY}@cluster": {2: 0.5}}, migration_budget=0.0))
    curve = known_curve(history.state, spec_of(history.state.live_jobs["a"]))
    assert curve is not None
    assert (curve.throughput(2), curve.throughput(4)) == (0.5, 4.0)


# --- pools that change -----------------------------------------------------------------------------------


FOUR = tuple(f"node-0:{index}" for index in range(4))
LEFT = events.NodeLost(node_id="node-0", incarnation="first-0", reason="left", at_s=NOW_S)


def small_nodes() -> list[events.NodeJoined]:
    return [worker_events.joined("one", node, num_gpus=2) for node in ("node-1", "node-2")]


def promised(history: History) -> dict[int, float]:
    """The speeds that a new promise counts on."""
    return dict(rates_to_promise(history.state, history.state.curves[KEY]))


def test_a_speed_of_blocks_that_the_pool_no_longer_has_is_only_a_bound() -> None:
    """Four GPUs of one node were measured; then the pool has nodes of two GPUs, and four of them are far apart."""
    history = trains_on(*FOUR, history=pool(4, curves={KEY: {1: 1.0, 2: 2.0}}))
    measured(history, 4.0, num_gpus=4)
    assert promised(history)[4] == 4.0
    history.then(LEFT, *small_nodes())
    assert promised(history) == {1: 1.0, 2: 2.0, 4: 2.0}


def test_training_on_the_blocks_of_today_replaces_the_bound_and_keeps_what_was_known() -> None:
    history = trains_on(*FOUR, history=pool(4, curves={KEY: {1: 1.0, 2: 2.0}}))
    measured(history, 4.0, num_gpus=4)
    history.then(LEFT, *small_nodes())
    history.then(placed(2, "node-1:0", "node-1:1", "node-2:0", "node-2:1")).started("a")
    curve = measured(history, 3.0, num_gpus=4)
    assert (curve.iterations_per_s[4], curve.at_level[SOCKET][4]) == (3.0, 4.0)
    assert promised(history)[4] == 3.0


def test_a_job_on_a_node_that_is_drained_is_where_it_was() -> None:
    history = trains_on("node-0:0", "node-0:1", history=pool(2, 2, 2, curves={KEY: {1: 1.0, 2: 1.0}}))
    history.then(events.NodeDrainStarted(node_id="node-0", incarnation="first-0", at_s=NOW_S))
    curve = measured(history, 1.9)
    assert (curve.iterations_per_s[2], curve.at_level) == (1.9, {})


# --- profiles that exaggerate ----------------------------------------------------------------------------


def test_a_measurement_on_no_gpu_bounds_nothing() -> None:
    """An executor may claim that, too: planners must not fail for it."""
    history = trains_on("node-0:0", history=pool(4, curves={KEY: {}}))
    one, none = (
        worker_events.measured(KEY, num_gpus, 1.0, source="profile", at_s=NOW_S + 9.0 - num_gpus) for num_gpus in (1, 0)
    )
    history.then(one, none)
    assert promised(history)[1] == 1.0


def test_a_lower_speed_of_one_gpu_bounds_the_claims_for_more_gpus() -> None:
    """Two GPUs are at most twice as fast for each GPU as one has shown to be; four of them are no news."""
    claimed = {1: 10.0, 2: 12.0, 4: 7.0}
    history = trains_on("node-0:0", history=pool(4, curves={KEY: claimed}))
    assert promised(history) == claimed
    measured(history, 1.0, num_gpus=1)
    assert promised(history) == {1: 1.0, 2: 4.0, 4: 7.0}


def test_a_speed_that_was_measured_after_that_of_fewer_gpus_is_believed() -> None:
    history = trains_on("node-0:0", history=pool(4, curves={KEY: {1: 10.0, 2: 12.0}}))
    measured(history, 1.0, num_gpus=1)
    history.then(placed(2, "node-0:0", "node-0:1")).started("a")
    measured(history, 5.0)
    assert promised(history) == {1: 1.0, 2: 5.0}


def test_a_small_correction_changes_no_other_speed() -> None:
    history = trains_on("node-0:0", history=pool(4, curves={KEY: {1: 1.0, 2: 3.0}}))
    measured(history, 0.8, num_gpus=1)
    assert promised(history) == {1: 0.8, 2: 3.0}


# --- places of several racks -----------------------------------------------------------------------------


RACKS = {"node-0": "left", "node-1": "left", "node-2": "right", "node-3": "right"}


@pytest.mark.parametrize(
    ("racks", "reserve_nodes", "level"),
    [
        pytest.param({}, 0, RACK, id="two pairs of nodes"),
        pytest.param({}, 1, RACK, id="one down leaves a pair and a single node"),
        pytest.param({}, 2, CLUSTER, id="two down may leave one node in each rack"),
        pytest.param({"node-4": "right"}, 1, CLUSTER, id="one down may leave a pair across the racks"),
    ],
)
def test_promises_count_on_the_worst_blocks_while_nodes_are_down(
    racks: dict[str, str], reserve_nodes: int, level: int
) -> None:
    history = pool(*[2] * (4 + len(racks)), racks=RACKS | racks, reserve_nodes=reserve_nodes)
    assert promised_levels(history.state)[2] == level


def ends(number: int, in_s: float) -> events.NodeEndAnnounced:
    return events.NodeEndAnnounced(
        node_id=f"node-{number}", incarnation=f"first-{number}", until_s=NOW_S + in_s, at_s=NOW_S
    )


def test_promises_count_on_the_worst_blocks_after_each_announced_end() -> None:
    history = pool(2, 2, 2, 2, racks=RACKS).then(ends(0, 100.0), ends(1, 300.0))
    assert promised_levels(history.state)[2] == RACK, "the right rack keeps its pair"
    history.then(ends(2, 200.0))
    assert promised_levels(history.state)[2] == CLUSTER, "from 200 s on, one node of each rack is left"
