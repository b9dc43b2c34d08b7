"""What the ledger says of one job, folded: its phase, its promise, and the generation of workers that trains it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from elasticflow.shared.messages.events import RejectionReason
from elasticflow.shared.messages.gpus import GpuId, ShareSchedule
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass, JobSpec
from elasticflow.shared.messages.rejection import Offer


class Phase(StrEnum):
    """The phase of a job. The last five are final."""

    PROFILING = "profiling"  # the decision waits for its scaling curve
    ADMITTED = "admitted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    PROFILED = "profiled"  # as the user requested, without training


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingWorkers:
    """Workers of an older generation on one node; the executor has not yet reported their end."""

    generation: int
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousGeneration:
    """The generation whose workers hold the job's state and switch to the current generation, or to the next one if
    the current one breaks. They train until that has started; after a loss the survivors wait.

    gpus: in rank order; the last num_added_gpus are of other types than the job's.
    lost: the GPUs whose workers are lost. waiting: no worker is lost, but they wait as well.
    """

    generation: int
    gpus: tuple[GpuId, ...]
    num_added_gpus: int = 0
    lost: tuple[GpuId, ...] = ()
    waiting: bool = False

    @property
    def trains(self) -> bool:
        """Its workers take steps."""
        return not self.lost and not self.waiting

    @property
    def surviving(self) -> tuple[GpuId, ...]:
        """The GPUs of the survivors, in rank order."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedStatistics:
    """Logarithms of measured / expected speed: of a job, its reports; of a profile, the means of its ended jobs.

    scatter: sum of squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    scatter: float = 0.0

    def with_ratio(self, ratio: float) -> "SpeedStatistics":
        """The statistics with one more ratio of measured to expected speed."""
        return self.with_log_ratio(math.log(ratio))

    def with_log_ratio(self, log_ratio: float) -> "SpeedStatistics":
        """The statistics with one more logarithm of such a ratio."""
        count = self.count + 1
        distance = log_ratio - self.mean
        mean = self.mean + distance / count
        return SpeedStatistics(count=count, mean=mean, scatter=self.scatter + distance * (log_ratio - mean))


NO_SPEEDS = SpeedStatistics()
SETTLED_S = 5.0  # of training; first steps wait for compilers, caches and other workers


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArtifacts:
    """What is stored of a job's model and files, and what is due.

    due: sequence of the message after which node_id must store them; 0: nothing is due.
    sequence: of the newest `ArtifactsStored`, which names the files; 0: there is none. model_iteration: of the stored
    model; None without one.
    """

    due: int = 0
    node_id: str = ""
    sequence: int = 0
    model_iteration: int | None = None
    num_bytes: int = 0


NO_ARTIFACTS = JobArtifacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashedStart:
    """A generation that ended by a worker's crash before it trained: a node that is lost may be the cause.

    reporter: the node of the crashed worker. nodes: all of the generation.
    """

    generation: int
    reporter: str
    nodes: tuple[str, ...]
    placed_at_s: float
    crashed_at_s: float


def identity_of(tenant: str, name: str, sequence: int, at_s: float) -> str:
    """The identity of the job or load whose first decision has this sequence and time, in 16 hexadecimal digits. A
    later one of the same id has another identity, also in a ledger that was restored from an older copy."""
    return sha256(f"{tenant} {name} {sequence} {at_s!r}".encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)  # not slotted: see `fast_replace`
class Job:
    """One job, from its first decision to its end."""

    job_id: str
    tenant: str
    spec: JobSpec | None
    phase: Phase
    decided_at_s: float
    decided_sequence: int
    identity: str = ""  # see `identity_of`
    replaces: str = ""  # the identity of the ended job whose id its command has named (docs/adr/0114)
    earlier_identities: tuple[str, ...] = ()  # of the newest jobs that had its id before; folders may still be theirs
    admitted_at_s: float | None = None  # None: its decision is due, or it was never admitted
    deadline_s: float | None = None
    submitted_spec: JobSpec | None = None  # the user's, if an amendment, GPU limits or the GPU type changed it
    profile_only: bool = False
    has_outdated_spec: bool = False  # workers of the current generation train with an older spec
    minimum_satisfactory_share: ShareSchedule = ()  # as last promised: at admission or by an amendment
    planned_share: ShareSchedule = ()  # the newest schedule that keeps the promise
    pinned: bool = False  # the schedules of its promise have no room for a migration
    explanation: str = ""  # of a rejection, failure or cancellation
    traceback: str = ""
    last_lines: str = ""  # of the failed worker's log
    warnings: tuple[str, ...] = ()  # of its code, each once
    rejection: RejectionReason | None = None
    earliest_deadline_s: float | None = None  # offered with a rejection, or while the job is at risk
    offers: tuple[Offer, ...] = ()
    least_gpu_seconds: float = 0.0  # that its deadline requires at least

    num_virtual_nodes: int = 0  # fixed at its admission, if its code leaves them open; 0: the default of its batch
    num_gpus: int = 0  # its share in the current allocation
    generation: int = 0
    # generations up to this one report nothing: they ran a rejected job of the same id, or a profiling run that failed
    void_generation: int = 0
    gpus: tuple[GpuId, ...] = ()  # of the current generation, in rank order
    virtual_nodes_by_rank: tuple[int, ...] = ()  # of the current generation; empty: as even as possible
    num_added_gpus: int = 0  # the last of its GPUs: of other types (record 0049); all after its type has changed
    slower_when_mixed: bool = False  # GPUs of other types slowed it down: none join it again
    reserved_gpus: tuple[GpuId, ...] = ()  # the whole share, while it trains on a part of it
    shown_gpus: tuple[GpuId, ...] = ()  # sorted; its workers see those of their node, if the node separates GPUs
    predicted_speedup: float = 0.0  # of the current generation, which relieves slow GPUs: as in `PlacedJob`
    placed_at_s: float = 0.0
    migrated_at_s: float = -math.inf  # when it last migrated although its number of GPUs stayed
    started_at_s: float | None = None  # when the current generation began to train; None before
    start_phases: tuple[str, ...] = ()  # what its workers were seen to do since, until it trains; the newest last
    broken: bool = False  # the current generation lost a worker or node and cannot continue
    stopping: tuple[StoppingWorkers, ...] = ()  # fence: the current generation starts when this is empty
    previous_generation: PreviousGeneration | None = None  # while the job switches or is broken (record 0018)
    rendezvous: str = ""  # host:port of the current generation
    micro_batch_size: int | None = None  # samples of one pass; 0: a whole virtual node; None: not yet placed

    iteration: int = 0
    checkpoint_iteration: int = 0
    checkpoint_request: int = 0  # sequence of the newest unanswered request; 0: none
    stores_checkpoint: bool = False  # once the requested one is written
    artifacts: JobArtifacts = NO_ARTIFACTS
    iterations_per_s: float | None = None
    progressed_at_s: float = 0.0
    speed: SpeedStatistics = NO_SPEEDS  # kept only in pools that promise with a confidence
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    restarts: int = 0  # crashes since the last durable progress: a checkpoint, or a later recovered_iteration
    nodes_lost_at_start: tuple[str, ...] = ()  # the first of each generation in a row that did not train
    nodes_lost_in_preparation: tuple[str, ...] = ()  # the same, of starts of which no worker ran on the node
    settled_generation: int = 0  # starts up to this generation have trained, or count as lost
    unwitnessed_starts: tuple[str, ...] = ()  # nodes whose loss no other one outlived, and that have not come back
    ended_starts: tuple[tuple[int, str], ...] = ()  # generations, and the nodes that ended in them, since it trained
    crashed_start: CrashedStart | None = None  # the newest that counts as a crash
    trained_on: tuple[str, ...] = ()  # nodes, in the order of its first generation there
    recovered_iteration: int = 0  # the newest from which survivors of a crash continued
    at_risk: bool = False
    at_risk_since_s: float | None = None  # when the monitor last found it at risk, even if it no longer is
    gpu_type_kept_at_s: float | None = None  # when admission last found no other GPU type for it
    gpu_type_kept_sequence: int = 0  # sequence of that decision
    ended_at_s: float | None = None

    @property
    def own_gpus(self) -> tuple[GpuId, ...]:
        """The GPUs of its own type, in rank order: its share."""
        return self.gpus[: len(self.gpus) - self.num_added_gpus] if self.num_added_gpus else self.gpus

    @property
    def added_gpus(self) -> tuple[GpuId, ...]:
        """The GPUs of other types, in rank order."""
        return self.gpus[len(self.gpus) - self.num_added_gpus :]

    @property
    def share_gpus(self) -> tuple[GpuId, ...]:
        """The GPUs that count as its share: its own, and slow ones that it leaves out for a while (docs/adr/0109)."""
        return self.reserved_gpus if self.predicted_speedup and self.reserved_gpus else self.own_gpus

    @property
    def live(self) -> bool:
        return self.phase in (Phase.PROFILING, Phase.ADMITTED)

    @property
    def training(self) -> bool:
        """All workers of the current generation take steps."""
        return self.started_at_s is not None and not self.broken and bool(self.gpus)

    def has_settled(self, at_s: float) -> bool:
        """Whether the speed of its generation counts: no longer that of the first steps."""
        return self.started_at_s is not None and at_s - self.started_at_s >= SETTLED_S

    @property
    def trains_as_profiled(self) -> bool:
        """It trains on GPUs of its own type with even parts, for which its scaling curve holds."""
        return self.training and not self.virtual_nodes_by_rank and not self.num_added_gpus

    @property
    def is_switching(self) -> bool:
        """Workers of the previous generation train or wait while the current generation prepares."""
        return self.previous_generation is not None and not self.broken

    @property
    def shrinks_to_survivors(self) -> bool:
        """The previous generation lost workers; its survivors switch before they take another step."""
        return self.is_switching and self.previous_generation is not None and not self.previous_generation.trains

    @property
    def training_generation(self) -> int | None:
        """The generation whose workers take steps; None if none does."""
        if self.previous_generation is not None and not self.broken:
            return self.previous_generation.generation if self.previous_generation.trains else None
        return self.generation if self.training else None

    @property
    def promised(self) -> bool:
        """Its deadline is guaranteed."""
        return self.phase is Phase.ADMITTED and self.spec is not None and self.spec.job_class is JobClass.SLO

    @property
    def restarts_to_resize(self) -> bool:
        """Its workers cannot switch: each change of its GPUs loses what its script has not saved."""
        return self.spec is not None and self.spec.entry == TORCHRUN

    @property
    def keeps_its_blocks(self) -> bool:
        """No plan counts on a move of it: a script would restart, and a gang needs all GPUs of a block at once."""
        return self.restarts_to_resize or (self.spec is not None and self.spec.gpus_per_replica > 1)

    @property
    def starts_over(self) -> bool:
        """Each change of its GPUs loses all iterations: its script has saved none so far."""
        return self.restarts_to_resize and not self.checkpoint_iteration

    @property
    def unsaved_iterations(self) -> int:
        """The reported iterations that a change of its GPUs loses."""
        return max(self.iteration - self.checkpoint_iteration, 0) if self.restarts_to_resize else 0

    @property
    def saved_iteration(self) -> int:
        """The iteration of its newest checkpoint; 0 without one. A job that has finished has written its last state."""
        has_finished = self.phase is Phase.FINISHED and not self.restarts_to_resize
        return max(self.checkpoint_iteration, self.iteration if has_finished else 0)

    @property
    def why_not_continued(self) -> str:
        """Why no job can begin from its checkpoint now; "" if one can."""
        if self.live:
            return f"{self.job_id} has not ended; cancel it, or amend its deadline and iterations"
        return "" if self.saved_iteration else f"{self.job_id} has no checkpoint; submit the job without it"

    @property
    def earlier_writers(self) -> tuple[str, ...]:
        """The identities of the jobs that it continued, whose checkpoints it may still have."""
        return self.spec.continues.writers if self.spec is not None and self.spec.continues is not None else ()

    @property
    def rank_0_node(self) -> str:
        """The node of rank 0 in the generation that trains, or trained last; "" if none is placed."""
        gpus = self.gpus if self.previous_generation is None else self.previous_generation.gpus
        return gpus[0].node_id if gpus else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of the current generation, in rank order; then those that only the previous generation uses."""
        gpus = self.gpus if self.previous_generation is None else (*self.gpus, *self.previous_generation.gpus)
        return nodes_of(gpus)


def nodes_of(gpus: Iterable[GpuId]) -> tuple[str, ...]:
    """The nodes of these GPUs, each once, in the order of their first GPU."""
    return tuple(dict.fromkeys(gpu.node_id for gpu in gpus))


def has_workers_on(job: Job, node_id: str) -> bool:
    """Whether workers of this job run on the node, or must still end there."""
    if any(stopping.node_id == node_id for stopping in job.stopping):
        return True
    previous_gpus = job.previous_generation.gpus if job.previous_generation is not None else ()
    return any(gpu.node_id == node_id for gpu in (*job.gpus, *previous_gpus))
