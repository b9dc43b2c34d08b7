"""Nodes that come back or join make no block worse than a promise counts on."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.promised_levels import claimed_levels, most_in_blocks, promised_levels
from elasticflow.shared.scheduling.jobs.scaling_curve import PlacementCurves
from elasticflow.shared.scheduling.jobs.scheduler_view import promisable_gpus
from elasticflow.shared.scheduling.placement.buddy_blocks import LastPositions
from elasticflow.shared.scheduling.placement.placement import MigrationBenefit, MigrationRules, place
from elasticflow.shared.state.topology import CLUSTER, SOCKET, pool_topology
from testbed.histories import NOW_S, History, pool, spec

NO_BENEFIT = MigrationBenefit(curves=PlacementCurves(None, {}), num_gpus=1, stay_s=0.0, stop_s=1.0)
EIGHT = 3  # the exponent


def promised(history: History, at_s: float) -> History:
    admitted = events.JobAdmitted(
        job_id="a",
        tenant="lab",
        spec=spec(deadline_s=NOW_S + 1e4),
        deadline_s=NOW_S + 1e4,
        minimum_satisfactory_share=(NOW_S, NOW_S + 100.0, 1.0),
        gpu_seconds=100.0,
        at_s=at_s,
    )
    return history.then(
        events.PlanDecided(service="admission", based_on=history.state.sequence, now_s=at_s, events=(admitted,))
    )


def joins(history: History, *num_gpus: int, at_s: float, first: int = 0) -> History:
    for number, count in enumerate(num_gpus, first):
        node_id = f"node-{number}"
        history.then(
            events.NodeJoined(node_id=node_id, incarnation=f"{node_id}-{at_s}", num_gpus=count, device="cpu", at_s=at_s)
        )
    return history


def lost(history: History, *numbers: int) -> History:
    for number in numbers:
        node = history.state.nodes[f"node-{number}"]
        history.then(
            events.NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason="silent", at_s=NOW_S + 1.0)
        )
    return history


def test_a_promise_counts_on_the_blocks_that_lost_nodes_will_make_once_they_are_back() -> None:
    history = pool(8, 4, 4)
    assert promised_levels(history.state)[EIGHT] == CLUSTER, "two halves make a block on two nodes"
    assert promised_levels(lost(history, 1).state)[EIGHT] == CLUSTER
    assert promised_levels(pool(8, 4).state)[EIGHT] == SOCKET


def test_nodes_that_join_make_no_block_worse_that_an_earlier_promise_counts_on() -> None:
    history = joins(promised(pool(8), NOW_S + 1.0), 4, 4, at_s=NOW_S + 2.0, first=1)
    assert promised_levels(history.state)[EIGHT] == CLUSTER
    assert claimed_levels(history.state)[EIGHT] == SOCKET
    assert promisable_gpus(history.state) == (15,), "there is no second block of 8 GPUs on one node"


def test_only_the_promises_of_before_make_a_pool_promise_less() -> None:
    for history in (joins(pool(8), 4, 4, at_s=NOW_S + 2.0, first=1), pool(8, 4, 4)):
        assert claimed_levels(promised(history, NOW_S + 3.0).state)[EIGHT] == CLUSTER
        assert most_in_blocks(history.state) == inf


def test_equal_nodes_that_join_cost_no_promise() -> None:
    history = joins(promised(pool(4), NOW_S + 1.0), 4, 4, at_s=NOW_S + 2.0, first=1)
    assert most_in_blocks(history.state) == inf


@st.composite
def pools_that_have_grown(draw: st.DrawFn) -> tuple[History, dict[str, tuple[GpuId, ...]], dict[str, int]]:
    """Nodes of any size, of which some join after a promise; jobs anywhere, as many as may be promised."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    racks = {f"node-{number}": draw(st.sampled_from(["", "left", "right"])) for number in range(len(sizes))}
    history = History().configured(racks=racks, reserve_nodes=draw(st.integers(0, 1)))
    num_known = draw(st.integers(1, len(sizes)))
    promised(joins(history, *sizes[:num_known], at_s=NOW_S), NOW_S + 1.0)
    joins(history, *sizes[num_known:], at_s=NOW_S + 2.0, first=num_known)
    topology = pool_topology(history.state)
    num_left = int(min(most_in_blocks(history.state), topology.num_gpus))
    assert history.state.config.reserve_nodes or num_left >= sum(sizes[:num_known]), "promises of before have room"
    free, current, wanted = list(draw(st.permutations(topology.gpus))), dict[str, tuple[GpuId, ...]](), dict[str, int]()
    for number in range(draw(st.integers(1, 10))):
        size = 1 << draw(st.integers(0, 4))
        if size > num_left:
            continue
        num_left -= size
        wanted[f"job-{number}"] = size
        held = draw(st.sampled_from([0, size, 1]))
        if held and held <= len(free):
            current[f"job-{number}"], free = tuple(free[:held]), free[held:]
    return history, current, wanted


@given(pools_that_have_grown())
def test_all_that_may_be_promised_has_blocks_that_the_oldest_promise_counts_on(
    drawn: tuple[History, dict[str, tuple[GpuId, ...]], dict[str, int]],
) -> None:
    history, current, wanted = drawn
    topology, levels = pool_topology(history.state), claimed_levels(history.state)
    rules = MigrationRules(
        movable=frozenset(),
        migration_benefit=lambda job_id: NO_BENEFIT,
        claims=wanted.keys(),
        displacement_cost=lambda job_id: 1.0,
    )
    placement = place(topology, current, wanted, rules, last=LastPositions(topology, levels))
    assert placement.meets_claims
    for job_id, num_gpus in wanted.items():
        assert topology.level_of(placement.gpus_by_job[job_id]) <= levels[num_gpus.bit_length() - 1]
