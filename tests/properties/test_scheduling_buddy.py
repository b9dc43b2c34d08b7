"""Placement, for clusters of any shape: everything that fits by count fits by place."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.buddy import place
from shared.scheduling.topology import Node, Topology
from tests.properties.strategies import gpu_counts, topologies

JOB_IDS = tuple(f"job-{number}" for number in range(8))


def assert_legal(
    topology: Topology, wanted: dict[str, int], gpus_by_job: dict[str, tuple[object, ...]]
) -> None:
    assert {job_id: len(gpus) for job_id, gpus in gpus_by_job.items()} == {
        j: n for j, n in wanted.items() if n
    }
    used = [gpu for gpus in gpus_by_job.values() for gpu in gpus]
    assert len(set(used)) == len(used)
    assert set(used) <= set(topology.gpus)


@given(st.data(), topologies())
def test_powers_of_two_that_fit_by_count_are_always_placed(data: st.DataObject, topology: Topology) -> None:
    current: dict[str, tuple] = {}
    before: dict[str, int] = {}
    for _ in range(4):
        wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
        placement = place(topology, current, wanted)
        assert_legal(topology, wanted, dict(placement.gpus_by_job))
        moved = {
            job_id
            for job_id, gpus in placement.gpus_by_job.items()
            if before.get(job_id) == wanted[job_id] and gpus != current[job_id]
        }
        assert set(placement.migrated) == moved
        assert place(topology, placement.gpus_by_job, wanted) == place(
            topology, dict(reversed(placement.gpus_by_job.items())), wanted
        )
        settled = place(topology, placement.gpus_by_job, wanted)
        assert (settled.gpus_by_job, settled.migrated) == (placement.gpus_by_job, ())
        current, before = dict(placement.gpus_by_job), wanted


@given(st.data(), topologies())
def test_a_lost_node_only_moves_its_jobs_where_there_is_room(data: st.DataObject, topology: Topology) -> None:
    wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    current = place(topology, {}, wanted).gpus_by_job
    lost = data.draw(st.sampled_from(topology.nodes))
    left = Topology(tuple(node for node in topology.nodes if node != lost))
    surviving = {
        job_id: num_gpus
        for job_id, num_gpus in wanted.items()
        if num_gpus and all(gpu.node_id != lost.node_id for gpu in current[job_id])
    }
    placement = place(left, current, surviving)
    assert placement.gpus_by_job == {job_id: current[job_id] for job_id in surviving}
    assert placement.migrated == ()
    again = data.draw(gpu_counts(left.num_gpus, JOB_IDS))
    assert_legal(left, again, dict(place(left, current, again).gpus_by_job))


@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_blocks_are_aligned_on_regular_clusters(data: st.DataObject, log_nodes: int, log_gpus: int) -> None:
    topology = Topology(tuple(Node(f"node-{n}", 2**log_gpus) for n in range(2**log_nodes)))
    wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    number = {gpu: position for position, gpu in enumerate(topology.gpus)}
    for gpus in place(topology, {}, wanted).gpus_by_job.values():
        first = number[gpus[0]]
        assert first % len(gpus) == 0
        assert [number[gpu] for gpu in gpus] == list(range(first, first + len(gpus)))
