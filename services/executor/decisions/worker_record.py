"""What the executor knows of one worker process of its node: which worker it is, how far it is, how it ended. Pure.

One process may be several workers, one after another: a switch makes it a worker of another generation. Its identity
is the `WorkerId` under which it last reported, and the switch that is in progress. All other names of it follow from
these two and its GPU. State diagram: docs/explanation/job-and-worker-states.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerEnded, WorkerId
from elasticflow.shared.messages.resize_timeline import ResizeTimeline
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import PrepareSwitch
from elasticflow.shared.state.job import Job


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
    warnings: tuple[str, ...] = ()  # of its job's code, the newest last
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    outcome: from_worker.Finished | from_worker.Failed | from_worker.Profiled | None = None
    stop_requested_at_s: float | None = None
    kill_requested: bool = False
    explanation: str = ""  # why the executor killed it
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
        return self.id.generation if self.switch is None else self.switch.order.generation

    @property
    def rendezvous_rank(self) -> int:
        """Its rank in the rendezvous of its newest generation, where leaving workers follow the new ranks."""
        return self.id.rank if self.switch is None else self.switch.order.rendezvous_rank

    @property
    def is_leaving(self) -> bool:
        """The switch in progress ends it."""
        return self.switch is not None and self.switch.order.rendezvous_rank >= self.switch.order.world_size

    @property
    def target(self) -> WorkerId | None:
        """The worker that the switch in progress makes it, or made it already. None without one, or if it leaves."""
        if self.switch is None or self.is_leaving:
            return None
        return WorkerId(self.id.job_id, self.switch.order.generation, self.switch.order.rendezvous_rank)

    @property
    def generations(self) -> tuple[int, ...]:
        """Those of which it may be a worker now."""
        target = self.target
        return (self.id.generation,) if target is None else (self.id.generation, target.generation)

    def is_switching_to(self, generation: int) -> bool:
        return self.switch is not None and self.switch.order.generation == generation

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
