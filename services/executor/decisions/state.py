"""The state of an executor: the folded ledger, and the worker processes of its node. Pure: State, evolve.

`local_event_fold` folds what happens on the node itself. A worker's record is kept from the order to start it until the
ledger needs nothing more of its generations.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal, NamedTuple, cast

from elasticflow.services.executor.decisions.local_events_and_actions import (
    NO_PADDING_SLOTS,
    UNCLAIMED,
    ArtifactsUploaded,
    EndNoticed,
    GpusJudged,
    NodeClaimed,
    StoreArtifacts,
    UsePaddingSlots,
    WorkerEnded,
    WorkerId,
)
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.events.nodes import KnownStarts, Starts
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import PrepareSwitch
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.nodes import live_starts
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import NodeState, PoolState

# --- worker record -------------------------------------------------------------------------------------
# What the executor knows of one worker process of its node: which worker it is, how far it is, how it ended. Pure.
#
# One process may be several workers, one after another: a switch makes it a worker of another generation. Its
# identity is the `WorkerId` under which it last reported, and the switch that is in progress. All other names of it
# follow from these two and its GPU. State diagram: docs/explanation/job-and-worker-states.md.


class Switch(NamedTuple):
    """A switch to another generation, in progress: ordered by the executor, not yet reported by the worker."""

    order: PrepareSwitch
    ordered_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One worker process of this node, from the order to start it until the ledger needs nothing more of it.

    rendezvous, port: of the rendezvous of its newest generation.
    """

    id: WorkerId  # under which it last reported
    switch: Switch | None = None
    gpu: GpuId
    purpose: Literal["train", "profile"]
    start_ordered_at_s: float
    is_joining: bool = False  # started to join workers that train
    rendezvous: str = ""  # host:port, as sent to it
    port: int | None = None  # where it listens, if it has rendezvous rank 0
    trains: bool = False  # it has met its peers and holds the state of the job
    first_iteration: int = 0  # of its generation
    lost_checkpoints: str = ""  # that its generation could not start from; only rank 0 knows
    resize: ResizeTimeline | None = None  # how its generation began; None: from a checkpoint
    peers_lost_sent: int = 0  # newest generation of which it was sent `PeersLost`
    interrupted_at_s: float | None = None  # it has lost a peer, and holds the state of a step boundary
    exceeded_micro_batch_size: int = 0  # samples that exceeded its memory; 0: none did
    iteration: int = 0
    iterations_per_s: float | None = None
    progressed_at_s: float = 0.0
    checkpoint_iteration: int | None = None  # of the newest complete checkpoint; only rank 0 knows
    checkpoint_request: int = 0  # newest one sent to it
    checkpoint_result: from_worker.CheckpointWritten | from_worker.CheckpointFailed | None = None
    lagged: from_worker.Lagged | None = None  # newest report of a slow peer
    lagged_at_s: float = 0.0
    warnings: tuple[from_worker.Warned, ...] = ()  # the newest last
    phase: str = ""  # what its code does for some seconds, before it trains
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    outcome: from_worker.Finished | from_worker.Failed | from_worker.Profiled | None = None
    stop_requested_at_s: float | None = None
    kill_requested: bool = False
    explanation: str = ""  # why the executor killed it, or how the job's code ended it
    last_lines: str = ""  # of its log, if it has failed or crashed
    ended: WorkerEnded | None = None
    ended_at_s: float = 0.0

    @property
    def runs(self) -> bool:
        """Its process exists, or is being started."""
        return self.ended is None

    @property
    def is_ending(self) -> bool:
        """The executor has requested its end."""
        return self.kill_requested or self.stop_requested_at_s is not None

    # -- identity ----------------------------------------------------------------------------------------

    @property
    def newest_generation(self) -> int:
        """The generation that it was last sent to: by its assignment, or by the switch in progress."""
        return self.id.generation if self.switch is None else self.switch.order.plan.generation

    @property
    def rendezvous_rank(self) -> int:
        """Its rank in the rendezvous of its newest generation, where leaving workers follow the new ranks."""
        return self.id.rank if self.switch is None else self.switch.order.rendezvous_rank

    @property
    def is_leaving(self) -> bool:
        """The switch in progress ends it."""
        return self.switch is not None and self.switch.order.leaves

    @property
    def target(self) -> WorkerId | None:
        """The worker that the switch in progress makes it, or made it already. None without one, or if it leaves."""
        if self.switch is None or self.is_leaving:
            return None
        return WorkerId(self.id.job_id, self.switch.order.plan.generation, self.switch.order.rendezvous_rank)

    @property
    def generations(self) -> tuple[int, ...]:
        """The generations of which it may be a worker now."""
        target = self.target
        return (self.id.generation,) if target is None else (self.id.generation, target.generation)

    def is_switching_to(self, generation: int) -> bool:
        return self.switch is not None and self.switch.order.plan.generation == generation

    def previous_generation_id(self, job: Job) -> WorkerId | None:
        """The worker of the previous generation that holds the state of the job on its GPU; None if it is not one."""
        before = job.previous_generation
        if before is None or not self.trains or self.gpu not in before.surviving:
            return None
        return WorkerId(job.job_id, before.generation, before.gpus.index(self.gpu))

    def ledger_id(self, job: Job) -> WorkerId | None:
        """The worker that the ledger counts as lost if this process ends; None if the ledger does not need it.

        A switch to the newest generation may be complete although the process could not report it.
        """
        if (surviving := self.previous_generation_id(job)) is not None:
            return surviving
        current = (worker for worker in (self.id, self.target) if worker is not None)
        return next((worker for worker in current if worker.generation == job.generation), None)


# --- state ----------------------------------------------------------------------------------------------


class PoolMembership(Enum):
    """What the ledger says of this executor."""

    OUTSIDE = auto()  # not yet joined, or counted as lost
    MEMBER = auto()
    REPLACED = auto()  # another executor joined under the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpecification:
    """What this node contributes to the pool, and what its workers need to know of it.

    run_id: fresh for each executor process. advertise_host: where workers of other nodes reach its workers.
    """

    node_id: str
    run_id: str
    num_gpus: int
    device: Literal["cpu", "cuda"]
    advertise_host: str
    sockets: int = 1
    rack: str = ""
    until_s: float | None = None  # its announced end
    gpu_type: str = ""
    gpu_memory_bytes: int = 0  # of each GPU; 0: unknown
    isolation: Literal["", "none", "limits", "namespaces"] = ""  # of its workers
    workers_secret: str = ""  # its digest, as in `NodeJoined`
    unenforced: tuple[str, ...] = ()  # what the machine cannot enforce of the isolation
    started_by: str = ""  # as in `NodeJoined`
    separates_gpus: bool = False  # as in `NodeJoined`
    data_folder: str = ""  # its name, as in `NodeJoined`
    cpu_share: float = 1.0  # cores that one CPU slot may use
    data_dir: str = ""
    stores_artifacts: bool = False  # of jobs, in the object store; a simulated node has none
    copies_checkpoints: bool = False  # to a store from which other nodes get them
    stop_grace_s: float = 10.0  # from the request to stop at a step boundary to the kill
    memory_limit_bytes: int = 0  # of each worker on a CPU slot; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The folded ledger, and what only this node knows."""

    pool: PoolState
    node_specification: NodeSpecification
    membership: PoolMembership = PoolMembership.OUTSIDE
    num_losses: int = 0  # how often the ledger has counted this process as lost
    # jobs with workers here, by the ledger, running or yet to be reported gone
    job_ids: frozenset[str] = frozenset()
    workers: Map[WorkerId, WorkerRecord] = cast("Map[WorkerId, WorkerRecord]", Map())  # noqa: RUF009 - immutable
    # of the artifacts that are due, by job: ordered, or done
    uploads: Map[str, StoreArtifacts | ArtifactsUploaded] = cast("Map[str, StoreArtifacts | ArtifactsUploaded]", Map())  # noqa: RUF009 - immutable
    claim: NodeClaimed = UNCLAIMED  # under which it owns the record of its node
    padding_slots: UsePaddingSlots = NO_PADDING_SLOTS  # as last ordered
    cut_off: bool = False  # without contact: start no worker
    shutting_down: bool = False
    gpus_judged: GpusJudged | None = None  # the newest one; None: no GPU has failed so far
    end_noticed: EndNoticed | None = None  # the newest one; None: nothing on this machine announces its end

    @property
    def node_id(self) -> str:
        return self.node_specification.node_id

    @property
    def incarnation(self) -> str:
        """A node that was counted as lost joins under another incarnation: older events do not concern it."""
        return f"{self.node_specification.run_id}-{self.num_losses}"

    @property
    def claimed(self) -> str:
        return self.claim.incarnation

    @property
    def replaced_heard_s(self) -> float | None:
        """When the incarnation was last heard that the ledger has of this node; None if it is unknown or this one."""
        node = self.pool.nodes.get(self.node_id)
        is_known = node is not None and node.incarnation == self.claim.replaced
        return self.claim.replaced_heard_s if is_known else None

    @property
    def replaced_starts(self) -> Starts:
        """The starts that this incarnation had begun; None if they are unknown."""
        return live_starts(self.pool, self.claim.replaced_starts) if self.replaced_heard_s is not None else None

    @property
    def replaced_preparations(self) -> KnownStarts:
        """Those of the replaced starts of which no worker had run."""
        return live_starts(self.pool, self.claim.replaced_preparations) or () if self.replaced_starts else ()

    @property
    def is_in_ledger(self) -> bool:
        """The ledger counts this node as a member, or will: `NodeJoined` may be on its way once the name is claimed."""
        return self.membership is PoolMembership.MEMBER or self.claimed == self.incarnation

    @property
    def until_s(self) -> float | None:
        """When this node ends: as the operator announced last, else as it was started; or earlier, by a notice."""
        node = self._own_node
        return self.node_specification.until_s if node is None else node.until_s

    @property
    def until_without_notice_s(self) -> float | None:
        """The same, as if nothing on this machine announced its end."""
        node = self._own_node
        if node is None or node.notice is None:
            return self.until_s
        return node.notice.otherwise_until_s

    @property
    def _own_node(self) -> NodeState | None:
        """The node in the ledger, if it was this process that joined last under its name."""
        node = self.pool.nodes.get(self.node_id)
        joined = node is not None and node.incarnation.rpartition("-")[0] == self.node_specification.run_id
        return node if joined else None

    @property
    def leaves_at_s(self) -> float:
        """When this executor stops what still runs here, and leaves; inf if its node has no end."""
        return math.inf if self.until_s is None else self.until_s - self.node_specification.stop_grace_s

    @property
    def running(self) -> tuple[WorkerRecord, ...]:
        """The running workers, in the order of their ids."""
        return tuple(sorted((w for w in self.workers.values() if w.runs), key=lambda w: w.id))

    def workers_of(self, job_id: str) -> tuple[WorkerRecord, ...]:
        """The workers of a job, in the order of generations and ranks."""
        return tuple(sorted((w for w in self.workers.values() if w.id.job_id == job_id), key=lambda w: w.id))

    def with_worker(self, worker: WorkerRecord) -> "State":
        return replace(self, workers=self.workers.set(worker.id, worker))


def start(pool: PoolState, node_specification: NodeSpecification) -> State:
    """An executor that has just begun: no worker runs."""
    jobs = (*pool.live_jobs.values(), *pool.ended_jobs.values())
    job_ids = frozenset(job.job_id for job in jobs if _concerns(node_specification, job))
    return State(pool=pool, node_specification=node_specification, job_ids=job_ids)


# --- evolve: the ledger ---------------------------------------------------------------------------------


def evolve(state: State, message: LedgerMessage, sequence: int) -> State:
    """The state after one message of the ledger."""
    if sequence <= state.pool.sequence:
        return state
    state = replace(state, pool=ledger_fold.evolve(state.pool, message, sequence))
    for event in message.events if isinstance(message, PlanDecided) else (message,):
        if isinstance(event, events.LoadEvent | events.EpochBegan | events.SnapshotSaved):
            continue
        match event:
            case events.NodeJoined() | events.NodeLost():
                if event.node_id == state.node_id:
                    state = _refreshed(_with_membership(state), state.job_ids)
            case events.PlacementDecided():
                state = _refreshed(state, (placed.job_id for placed in event.placements))
            case events.NodeEndAnnounced() | events.NodeEndNoticed() | events.NodeDrainStarted() | events.GpuFailing():
                pass
            case events.AllocationDecided() | events.ProfileCompleted() | events.PoolConfigured() | Unreadable():
                pass
            case _:
                state = _refreshed(state, (event.job_id,))
    return state


def _with_membership(state: State) -> State:
    node = state.pool.nodes.get(state.node_id)
    if node is not None and node.incarnation == state.incarnation:
        if node.alive:
            return replace(state, membership=PoolMembership.MEMBER)
        return replace(state, membership=PoolMembership.OUTSIDE, num_losses=state.num_losses + 1)
    if state.membership is PoolMembership.MEMBER:
        return replace(state, membership=PoolMembership.REPLACED)
    return state


def _refreshed(state: State, job_ids: Iterable[str]) -> State:
    """Update which of these jobs concern this node, and drop the records that nothing needs any more."""
    for job_id in job_ids:
        job = state.pool.job(job_id)
        concerns = job is not None and _concerns(state.node_specification, job)
        if concerns != (job_id in state.job_ids):
            state = replace(state, job_ids=state.job_ids ^ {job_id})
        if job_id in state.uploads and (job is None or job.artifacts.due != state.uploads[job_id].due):
            state = replace(state, uploads=state.uploads.delete(job_id))
        if concerns or state.workers:
            for worker in state.workers_of(job_id):
                state = without_unneeded(state, worker)
    return state


def _concerns(node: NodeSpecification, job: Job) -> bool:
    has_workers = node.node_id in job.nodes or any(s.node_id == node.node_id for s in job.stopping)
    return has_workers or (node.stores_artifacts and job.artifacts.node_id == node.node_id)


def without_unneeded(state: State, worker: WorkerRecord) -> State:
    """Drop the record of a worker that has ended, unless the ledger still waits for its generation or its loss."""
    job = state.pool.job(worker.id.job_id)
    if worker.runs or any(is_awaited(state, job, generation) for generation in worker.generations):
        return state
    if job is not None and job.live and worker.previous_generation_id(job) is not None:
        return state
    return replace(state, workers=state.workers.delete(worker.id))


def is_awaited(state: State, job: Job | None, generation: int) -> bool:
    """The ledger waits for events of this node about the generation: the newest, the previous, or a stopping one."""
    if job is None:
        return False
    before = job.previous_generation
    newest = job.live and generation == job.generation and state.node_id in nodes_of(job.gpus)
    previous = before is not None and generation == before.generation and state.node_id in nodes_of(before.gpus)
    stopping = any((s.generation, s.node_id) == (generation, state.node_id) for s in job.stopping)
    return newest or previous or stopping


def can_train(job: Job) -> bool:
    """The newest generation of the job has lost no worker, and the job is live."""
    return job.live and not job.broken


def is_quarantined(state: State, job: Job) -> bool:
    """Its starts took so many nodes along that no further node starts it, or all executors too often."""
    config = state.pool.config
    if len(job.nodes_lost_at_start) >= config.max_nodes_lost_at_start:
        return True
    crashes = job.restarts + len(job.nodes_lost_in_preparation)
    return crashes > config.max_restarts and job.started_at_s is None and job.previous_generation is None


# --- heartbeat ------------------------------------------------------------------------------------------


def node_report(state: State, now_s: float, *, with_metrics: bool = True) -> events.NodeReported:
    """The heartbeat: the progress of all workers that train, in profiling runs too, and the metrics of ranks 0. A start
    is named until the ledger needs nothing more of it, also once its workers have ended."""
    return events.NodeReported(
        node_id=state.node_id,
        incarnation=state.incarnation,
        workers=tuple(
            events.WorkerReport(
                job_id=worker.id.job_id,
                generation=worker.id.generation,
                rank=worker.id.rank,
                iteration=worker.iteration,
                iterations_per_s=worker.iterations_per_s,
                checkpoint_iteration=worker.checkpoint_iteration or 0,
                seconds_since_progress=max(0.0, now_s - worker.progressed_at_s),
                metrics=worker.metrics if with_metrics and worker.id.rank == 0 else {},
            )
            for worker in state.running
            if worker.trains
        ),
        at_s=now_s,
        lease_s=state.pool.config.timeouts.lease_s,
        starts=tuple(sorted({worker.id[:2] for worker in state.workers.values() if not worker.trains})),
    )


def gpu_types_by_rank(state: State, job: Job) -> tuple[str, ...]:
    """The types of the GPUs of its current generation; empty if all have one type."""
    nodes = state.pool.nodes
    types = tuple(node.gpu_type if (node := nodes.get(gpu.node_id)) is not None else "" for gpu in job.gpus)
    return types if len(set(types)) > 1 else ()
