"""What an executor knows: the ledger, and the processes of its own node. Pure: State, evolve.

What is observed on the node itself, beside the ledger, is in `observing`.

A worker is remembered from the wish to start it until the ledger no longer speaks of its generation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal, cast

from immutables import Map

from services.executor.notes import ChangeMembers, Ended, Purpose, WorkerId
from shared.messages import events, from_worker, lifecycle
from shared.messages.cluster import GpuId
from shared.messages.events import PlanDecided
from shared.messages.job_state import Job, nodes_of
from shared.messages.policy import LedgerMessage
from shared.messages.pool_state import PoolState
from shared.messages.resize_timeline import ResizeTimeline

# --- state ----------------------------------------------------------------------------------------------


class Membership(Enum):
    """What the ledger says of this executor."""

    OUTSIDE = auto()  # not yet joined, or counted as lost
    MEMBER = auto()
    REPLACED = auto()  # another executor joined under the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this node brings. run_id: fresh for each process; advertise_host: where peers reach rank 0."""

    node_id: str
    run_id: str
    num_gpus: int
    device: Literal["cpu", "cuda"]
    advertise_host: str
    sockets: int = 1
    rack: str = ""
    stop_grace_s: float = 10.0  # from the wish to stop at a step boundary to the kill


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of this node, as far as it is known here.

    rendezvous, port: of the newest meeting it was told of, that of `change` or else of its own generation.
    """

    id: WorkerId
    gpu_index: int
    purpose: Purpose
    asked_for_at_s: float
    joins: bool = False  # it was started beside workers that train
    change: ChangeMembers | None = None  # the newest that it was told
    change_told_at_s: float | None = None
    rendezvous: str = ""  # as it was told
    port: int | None = None  # whoever is in place 0 listens here
    trains: bool = False  # it has met its peers
    first_iteration: int = 0  # of its generation
    resize: ResizeTimeline | None = None  # how its generation began, if nobody stopped for it
    loss_told: int = 0  # the newest generation of which it knows that some of its workers are gone
    interrupted_at_s: float | None = None  # it has lost a peer, and holds the state of a step boundary
    exceeded: int = 0  # samples that its memory does not hold at once
    iteration: int = 0
    iterations_per_s: float | None = None
    progressed_at_s: float = 0.0
    checkpoint_iteration: int | None = None  # newest whole checkpoint; only rank 0 knows
    checkpoint_request: int = 0  # the newest that it was told
    checkpoint_answer: from_worker.Checkpointed | from_worker.NotCheckpointed | None = (
        None  # to such a request
    )
    lagged: from_worker.Lagged | None = None  # the newest that it has said
    lagged_at_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    outcome: from_worker.Finished | from_worker.Failed | from_worker.Profiled | None = None
    stop_asked_at_s: float | None = None
    kill_asked: bool = False
    explanation: str = ""  # why it was ended from outside
    ended: Ended | None = None
    ended_at_s: float = 0.0

    @property
    def runs(self) -> bool:
        """Its process exists, or will in a moment."""
        return self.ended is None

    @property
    def place(self) -> WorkerId:
        """Where it meets others next, or did: its place in the newest generation that it was told of."""
        if self.change is None or self.change.generation <= self.id.generation:
            return self.id
        return WorkerId(self.id.job_id, self.change.generation, self.change.place)

    @property
    def becomes(self) -> WorkerId | None:
        """Who it is once it has gone over; it may have, and not yet said so. None if it does not, or leaves."""
        return None if self.place == self.id or self.change is None else self.change.member

    @property
    def generations(self) -> tuple[int, ...]:
        """Those of which it may be a worker right now."""
        return (
            (self.id.generation,) if self.becomes is None else (self.id.generation, self.becomes.generation)
        )

    @property
    def end_was_asked(self) -> bool:
        return self.kill_asked or self.stop_asked_at_s is not None


_NO_WORKERS = cast("Map[WorkerId, Worker]", Map())


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The folded ledger, and beside it what only this node knows."""

    pool: PoolState
    offer: Offer
    membership: Membership = Membership.OUTSIDE
    num_losses: int = 0  # how often this process was counted as lost
    job_ids: frozenset[str] = frozenset()  # jobs that the ledger places here, or wants to hear of from here
    workers: Map[WorkerId, Worker] = _NO_WORKERS
    cut_off: bool = False
    leaving: bool = False

    @property
    def node_id(self) -> str:
        return self.offer.node_id

    @property
    def incarnation(self) -> str:
        """A node that was counted as lost comes back as another: what was said of the old one is over."""
        return f"{self.offer.run_id}-{self.num_losses}"

    @property
    def running(self) -> tuple[Worker, ...]:
        """In the order of their ids."""
        return tuple(sorted((w for w in self.workers.values() if w.runs), key=lambda w: w.id))

    def workers_of(self, job_id: str) -> tuple[Worker, ...]:
        """In the order of generations and ranks."""
        return tuple(sorted((w for w in self.workers.values() if w.id.job_id == job_id), key=lambda w: w.id))


def start(pool: PoolState, offer: Offer) -> State:
    """An executor that has just begun: no worker runs."""
    jobs = (*pool.live_jobs.values(), *pool.ended_jobs.values())
    job_ids = frozenset(job.job_id for job in jobs if _concerns(offer.node_id, job))
    return State(pool=pool, offer=offer, job_ids=job_ids)


# --- evolve: the ledger ---------------------------------------------------------------------------------


def evolve(state: State, message: LedgerMessage, sequence: int) -> State:
    """One message of the ledger, and what it means for this node."""
    if sequence <= state.pool.sequence:
        return state
    state = replace(state, pool=lifecycle.evolve(state.pool, message, sequence))
    for event in message.events if isinstance(message, PlanDecided) else (message,):
        match event:
            case events.NodeJoined() | events.NodeLost():
                if event.node_id == state.node_id:
                    state = _refreshed(_with_membership(state), state.job_ids)
            case events.PlacementDecided():
                state = _refreshed(state, (placed.job_id for placed in event.placements))
            case events.AllocationDecided() | events.ProfileCompleted() | events.PoolConfigured() | None:
                pass
            case _:
                state = _refreshed(state, (event.job_id,))
    return state


def _with_membership(state: State) -> State:
    node = state.pool.nodes.get(state.node_id)
    if node is not None and node.incarnation == state.incarnation:
        if node.alive:
            return replace(state, membership=Membership.MEMBER)
        return replace(state, membership=Membership.OUTSIDE, num_losses=state.num_losses + 1)
    if state.membership is Membership.MEMBER:
        return replace(state, membership=Membership.REPLACED)
    return state


def _refreshed(state: State, job_ids: Iterable[str]) -> State:
    """Look again at which of these jobs concern this node, and forget workers nobody asks for any more."""
    for job_id in job_ids:
        job = state.pool.job(job_id)
        concerns = job is not None and _concerns(state.node_id, job)
        if concerns != (job_id in state.job_ids):
            state = replace(state, job_ids=state.job_ids ^ {job_id})
        if concerns or state.workers:
            for worker in state.workers_of(job_id):
                state = forgotten_if_over(state, worker)
    return state


def _concerns(node_id: str, job: Job) -> bool:
    return node_id in job.nodes or any(s.node_id == node_id for s in job.stopping)


def is_awaited(state: State, job: Job | None, generation: int) -> bool:
    """The ledger still waits for this node's word on the generation: it is the newest, or its predecessor, or being
    stopped."""
    if job is None:
        return False
    before = job.predecessor
    newest = job.live and generation == job.generation and state.node_id in nodes_of(job.gpus)
    precedes = (
        before is not None and generation == before.generation and state.node_id in nodes_of(before.gpus)
    )
    stopping = any((s.generation, s.node_id) == (generation, state.node_id) for s in job.stopping)
    return newest or precedes or stopping


def holder_on(state: State, job_id: str, gpu: GpuId) -> Worker | None:
    """The worker on one of the predecessor's GPUs that has the state of the job, in whatever generation by now."""
    if gpu.node_id != state.node_id:
        return None
    here = (w for w in state.workers_of(job_id) if w.gpu_index == gpu.gpu_index)
    return next((worker for worker in here if worker.runs and worker.trains), None)


def counted_on(state: State, job: Job, worker: Worker) -> WorkerId | None:
    """Who it is for those who wait for it in the predecessor, to bring the state of the job; None if nobody does."""
    gpu = GpuId(state.node_id, worker.gpu_index)
    if job.predecessor is None or not worker.trains or gpu not in job.predecessor.surviving:
        return None
    return WorkerId(job.job_id, job.predecessor.generation, job.predecessor.gpus.index(gpu))


def is_lost(state: State, job: Job | None, worker: Worker) -> bool:
    """The ledger counts it as gone already."""
    if job is None or job.predecessor is None or not (job.broken or worker.id.generation < job.generation):
        return False
    return GpuId(state.node_id, worker.gpu_index) in job.predecessor.lost


def is_current(job: Job) -> bool:
    """The newest generation of the job is one that can train."""
    return job.live and not job.broken


def forgotten_if_over(state: State, worker: Worker) -> State:
    job = state.pool.job(worker.id.job_id)
    if worker.runs or any(is_awaited(state, job, generation) for generation in worker.generations):
        return state
    if job is not None and job.live and counted_on(state, job, worker) is not None:
        return state
    return replace(state, workers=state.workers.delete(worker.id))
