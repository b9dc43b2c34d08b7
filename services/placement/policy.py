"""Placement: from numbers of GPUs to GPUs.

Promises are planned by numbers of GPUs, with a stop wherever the number changes. So a promised job whose number stays
is never moved, and whoever has no promise only where that pays (docs/adr/0011).
Source: ElasticFlow, section 4.3 (shared/scheduling/buddy.py, topology.py).
"""

from collections.abc import Mapping
from math import inf

from immutables import Map

from services.placement.regrouping import regrouped, seat, waits_to_regroup
from services.placement.slow_gpus import replacement_due_s, replacements
from shared.messages.cluster import PoolConfig, segments
from shared.messages.commands import Command
from shared.messages.events import PlacedJob, PlacementDecided
from shared.messages.job_state import Job, Phase
from shared.messages.node_state import NodeState
from shared.messages.policy import planner
from shared.messages.pool_state import PoolState, slow_gpus_at, spec_of
from shared.messages.remembered import remembered
from shared.scheduling.buddy import Mobility, any_spread, place
from shared.scheduling.outlook import resize_cost
from shared.scheduling.placement_curves import PlacementCurves, Stake, placement_curves
from shared.scheduling.topology import CLUSTER, Node, Topology

HAND_OVER_PATIENCE_S = 2.0  # from a placement: so long its workers may go over before another wish stops them
LONGEST_STAY_S = 600.0  # nobody is expected to keep a place for longer: the pool changes


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlacementDecided, ...]:
    """New generations for the jobs whose workers wait after a loss; else for those whose share is not what they hold,
    whose workers broke, or whose move pays; else for one that a slow GPU holds up."""
    return _regrouped(state, now_s) or _placed(state, now_s) or _replaced(state, now_s)


def _regrouped(state: PoolState, now_s: float) -> tuple[PlacementDecided, ...]:
    """They hold what they get: so nobody else is asked, not even the allocator whether all that was lost is known."""
    placements = tuple(regrouped(state))
    return (PlacementDecided(placements=placements, at_s=now_s),) if placements else ()


def _placed(state: PoolState, now_s: float) -> tuple[PlacementDecided, ...]:
    jobs, topology = list(state.live_jobs.values()), pool_topology(state)
    wishes = _wishes(state)
    if sum(wishes.values()) > topology.num_gpus:
        return ()  # a node is gone that the allocator has not heard of
    due = _due(state, wishes, topology.num_gpus, now_s)
    unplanned = [job for job in jobs if not job.planned_share and job.job_id not in due]
    if not due and not unplanned:
        return ()
    if not due and not any_spread(topology, {job.job_id: job.gpus for job in unplanned}):
        return ()
    wanted = {job.job_id: wishes[job.job_id] if job.job_id in due else len(seat(state, job)) for job in jobs}
    current = {
        job.job_id: job.gpus if job.job_id in due and not job.seat else seat(state, job) for job in jobs
    }
    slow = slow_gpus_at(state, now_s)
    mobility = Mobility(
        movable={job.job_id for job in unplanned if _may_move(job)} if not slow else set(),
        stake=lambda job_id: _stake(state, state.live_jobs[job_id], now_s),
    )
    placement = place(topology, current, wanted, mobility, avoided=slow)
    placed: list[PlacedJob] = []
    for job_id in sorted(due.union(placement.migrated)):
        job, gpus = state.live_jobs[job_id], placement.gpus_by_job.get(job_id, ())
        if gpus != job.gpus or job.broken or job.outdated:
            placed.append(PlacedJob(job_id=job_id, generation=job.generation + 1, gpus=gpus))
    if not placed:
        return ()
    return (PlacementDecided(placements=tuple(placed), migrated=placement.migrated, at_s=now_s),)


def _replaced(state: PoolState, now_s: float) -> tuple[PlacementDecided, ...]:
    """A place beside a slow GPU's for one worker: the nearest free one, where workers need not stop for it."""
    replacement = next(replacements(state, now_s), None)
    return () if replacement is None else (PlacementDecided(placements=(replacement,), at_s=now_s),)


def wake_at_s(state: PoolState) -> float | None:
    """When something is due that only time brings."""
    due_s = (_patience_ends_s(state), replacement_due_s(state))
    return min((at_s for at_s in due_s if at_s is not None), default=None)


def _patience_ends_s(state: PoolState) -> float | None:
    """With a job that is handed over, if another wish can come true then."""
    handed_over = [job for job in state.live_jobs.values() if job.handed_over]
    if not handed_over:
        return None
    wishes, num_gpus = _wishes(state), pool_topology(state).num_gpus
    if sum(wishes.values()) > num_gpus:
        return None
    ends_s = sorted({job.placed_at_s + HAND_OVER_PATIENCE_S for job in handed_over})
    return next((end_s for end_s in ends_s if _due(state, wishes, num_gpus, end_s)), None)


def _wishes(state: PoolState) -> dict[str, int]:
    """GPUs that each job is to have."""
    return {
        job.job_id: job.num_gpus if job.gpus or _is_allocated(state, job) else 0
        for job in state.live_jobs.values()
    }


def _due(state: PoolState, wishes: Mapping[str, int], num_gpus: int, now_s: float) -> set[str]:
    """Jobs to be placed anew. Whoever is just being handed over is left alone for a while, with the GPUs that it has:
    later wishes wait, and become one. Others get what there is beside it, those first that give GPUs back."""
    jobs = state.live_jobs.values()
    due = [job for job in jobs if _is_due(job, wishes[job.job_id])]
    now = [job for job in due if not _is_left_alone(job, now_s)]
    if len(now) == len(due):
        return {job.job_id for job in due}
    placed, free = set[str](), num_gpus - sum(len(seat(state, job)) for job in jobs)
    for more, job_id in sorted((wishes[job.job_id] - len(seat(state, job)), job.job_id) for job in now):
        if more <= max(free, 0):
            placed.add(job_id)
            free -= more
    return placed


def _is_due(job: Job, num_gpus: int) -> bool:
    return len(job.gpus) != num_gpus or ((job.broken or job.outdated) and bool(job.gpus))


def _is_left_alone(job: Job, now_s: float) -> bool:
    if not job.handed_over or job.outdated:
        return False
    return now_s < job.placed_at_s + HAND_OVER_PATIENCE_S or waits_to_regroup(job)


def _is_allocated(state: PoolState, job: Job) -> bool:
    """The last allocation knew it. One that it did not know may hold the GPUs of its pre-run, until told otherwise."""
    return job.decided_sequence <= state.allocation_based_on


def _may_move(job: Job) -> bool:
    """It trains without a promise: soft deadlines and best effort. A start or a pre-run under way is not disturbed."""
    return job.training and job.phase is Phase.ADMITTED and not job.promised and not job.seat


def _stake(state: PoolState, job: Job, now_s: float) -> Stake:
    """What its place is worth to a job that is to have `job.num_gpus` GPUs."""
    curves = placement_curves(state.curves, spec_of(job).measured_key)
    stay_s = _stay_s(job, curves, now_s)
    stop_s = max(resize_cost(state).seconds(job.num_gpus), state.start_cost_s)
    if job.deadline_s is not None and now_s + stay_s <= job.deadline_s < now_s + stay_s + stop_s:
        stop_s = inf  # a soft deadline is tried too
    return Stake(curves=curves, num_gpus=job.num_gpus, stay_s=min(stay_s, LONGEST_STAY_S), stop_s=stop_s)


def _stay_s(job: Job, curves: PlacementCurves, now_s: float) -> float:
    """How long the job keeps its share: by its plan or, without one, until it is done. Nobody moves for a pre-run."""
    if job.promised:
        held = (segment for segment in segments(job.planned_share) if segment.num_gpus == job.num_gpus)
        return next((end_s - now_s for start_s, end_s, _ in held if start_s <= now_s < end_s), 0.0)
    rate = curves.throughput(job.num_gpus, CLUSTER)
    left = max(spec_of(job).max_iterations - job.iteration, 0)
    return left / rate if rate and job.phase is Phase.ADMITTED else 0.0


def pool_topology(state: PoolState) -> Topology:
    """Where the GPUs are: as the nodes say of themselves, unless the pool's settings know better."""
    return _topology(state.nodes, state.config)


@remembered
def _topology(nodes: Map[str, NodeState], config: PoolConfig) -> Topology:
    rack_by_node, sockets_per_node = config.racks, config.sockets_per_node
    return Topology(
        tuple(
            Node(
                node.node_id,
                node.num_gpus,
                sockets=sockets_per_node if sockets_per_node > 1 else node.sockets,
                rack=rack_by_node.get(node.node_id, node.rack),
            )
            for node in nodes.values()
            if node.alive
        )
    )


POLICY = planner("placement", decide, wake_at_s)
