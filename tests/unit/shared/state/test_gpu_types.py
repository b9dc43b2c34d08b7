"""The parts of a pool with GPUs of several types."""

from dataclasses import replace

from elasticflow.shared.messages.events import AllocationDecided, JobRejected
from elasticflow.shared.state.fold.plan import with_profiling_on
from elasticflow.shared.state.gpu_types import parts, possible_types, spec_on
from elasticflow.shared.state.pool import Demand, PoolState, spec_of
from testbed.histories import NOW_S, History, pool, spec
from tests.support.worker_events import admitted, job, joined, lost, placed


def two_types() -> History:
    """Two nodes of the first type, one of which names it, and one of another."""
    named = (joined("one", "node-0", gpu_type="V100"), joined("two", "node-1", gpu_type="P100"))
    return History().configured().then(*named, joined("three", "node-2"))


def test_a_pool_of_one_type_is_its_only_part() -> None:
    for state in (PoolState(), pool(4, 2).state, pool(4).then(joined("more", "node-9", gpu_type="V100")).state):
        (part,) = parts(state).values()
        assert part is state


def test_nodes_without_a_type_have_the_first_one() -> None:
    first, other = parts(two_types().state).items()
    assert (first[0], sorted(first[1].nodes), first[1].num_gpus) == ("", ["node-0", "node-2"], 8)
    assert (other[0], sorted(other[1].nodes), other[1].num_gpus) == ("P100", ["node-1"], 4)


def test_a_job_belongs_to_the_type_on_which_it_was_admitted() -> None:
    state = two_types().then(admitted("a"), admitted("b", gpu_type="P100")).state
    assert {name: sorted(part.live_jobs) for name, part in parts(state).items()} == {"": ["a"], "P100": ["b"]}
    b = state.live_jobs["b"]
    assert (spec_of(b).gpu_type, b.submitted_spec) == ("P100", spec())
    assert spec_of(b).profile_key == f"{spec().profile_key}@P100"


def test_demand_counts_on_each_type_that_could_have_served_it() -> None:
    rejected = JobRejected(
        job_id="a",
        tenant="lab",
        spec=spec(),
        reason="deadline",
        explanation="",
        deadline_s=NOW_S + 100.0,
        least_gpu_seconds=30.0,
        least_elsewhere={"P100": 60.0},
        at_s=NOW_S,
    )
    first, other = parts(two_types().then(rejected).state).values()
    assert (first.demand.newest[1], other.demand.newest[1]) == (30.0, 60.0)
    first, other = parts(two_types().then(admitted("a", least_gpu_seconds=30.0)).state).values()
    assert (first.demand.newest[1], other.demand) == (30.0, Demand()), "a promised job counts on its own type"
    assert parts(two_types().state)["P100"].demand == Demand()


def test_a_job_may_run_where_there_are_gpus_of_its_type() -> None:
    history = two_types()
    assert possible_types(history.state, spec()) == ["", "P100"]
    assert possible_types(history.state, spec(gpu_type="V100")) == [""]
    assert possible_types(history.state, spec(gpu_type="P100")) == ["P100"]
    assert possible_types(history.state, spec(gpu_type="H100")) == []
    history.then(lost("node-1", "two"))
    assert possible_types(history.state, spec()) == [""]


def test_the_first_type_has_one_name_in_specs() -> None:
    state = two_types().state
    assert spec_on(state, spec(gpu_type="V100"), "V100") == spec()
    assert spec_on(state, spec(), "P100").gpu_type == "P100"


def test_another_type_takes_the_place_of_the_first_when_all_its_nodes_have_left() -> None:
    left = replace(lost(), reason="left")
    history = pool(4).then(admitted("a"), left, joined("new", gpu_type="H100"))
    assert history.state.gpu_types == ("H100",)
    assert sorted(parts(history.state)[""].live_jobs) == ["a"]


def test_a_profiling_run_moves_to_another_type() -> None:
    history = two_types().then(admitted("a"), placed(1, "node-0:0"))
    moved = with_profiling_on(history.state, {"a": "P100", "gone": "P100"})
    a = moved.live_jobs["a"]
    assert (spec_of(a).gpu_type, a.submitted_spec, a.broken) == ("P100", spec(), True)
    event = AllocationDecided(num_gpus_by_job={"a": 1}, valid_until_s=None, profiled_on={"a": "P100"}, at_s=NOW_S)
    assert spec_of(job(history.then(event))).gpu_type == "P100"
