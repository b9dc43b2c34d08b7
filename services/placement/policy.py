"""Placement: from numbers of GPUs to GPUs.

Source: ElasticFlow, section 4.3 (shared/scheduling/buddy.py, topology.py).
"""

from shared.messages.commands import Command
from shared.messages.events import PlacedJob, PlacementDecided
from shared.messages.policy import planner
from shared.messages.pool_state import Job, PoolState
from shared.scheduling.buddy import place
from shared.scheduling.topology import Node, Topology


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlacementDecided, ...]:
    """New generations for the jobs whose share is not what they hold, or whose workers broke."""
    jobs = [job for job in state.live_jobs.values() if job.gpus or _is_allocated(state, job)]
    if not any(_misplaced(job) for job in jobs) or sum(job.num_gpus for job in jobs) > state.num_gpus:
        return ()  # nothing to do, or a node is gone that the allocator has not heard of
    placement = place(
        _topology(state),
        {job.job_id: job.gpus for job in jobs if job.gpus},
        {job.job_id: job.num_gpus for job in jobs if job.num_gpus},
    )
    placed: list[PlacedJob] = []
    for job in sorted(jobs, key=lambda job: job.job_id):
        gpus = tuple(placement.gpus_by_job.get(job.job_id, ()))
        if gpus != job.gpus or job.broken:
            placed.append(PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=gpus))
    moved = {job.job_id for job in jobs if job.num_gpus == len(job.gpus) and not job.broken}
    migrated = tuple(p.job_id for p in placed if p.job_id in moved)
    return (PlacementDecided(placements=tuple(placed), migrated=migrated, at_s=now_s),) if placed else ()


def _is_allocated(state: PoolState, job: Job) -> bool:
    """The last allocation knew it. One that it did not know may hold the GPUs of its pre-run, until told otherwise."""
    return job.decided_sequence <= state.allocation_based_on


def _misplaced(job: Job) -> bool:
    return len(job.gpus) != job.num_gpus or (job.broken and bool(job.gpus))


def _topology(state: PoolState) -> Topology:
    """As the nodes say of themselves, unless the pool's settings know better."""
    config = state.config
    return Topology(
        tuple(
            Node(
                node.node_id,
                node.num_gpus,
                sockets=config.sockets_per_node if config.sockets_per_node > 1 else node.sockets,
                rack=config.racks.get(node.node_id, node.rack),
            )
            for node in state.nodes.values()
            if node.alive
        )
    )


POLICY = planner("placement", decide)
