"""What the executor's policy observes on its own node (local events), and what it orders there (actions). Pure values.

Each action concerns one worker process, the runners of padding loads, the files of a job, or the executor itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from elasticflow.shared.messages.events import StoredFile, UnstoredFile
from elasticflow.shared.messages.events.nodes import KnownStarts, Starts
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
    WriteCheckpoint,
)
from elasticflow.shared.state.load import Load


class WorkerId(NamedTuple):
    """One worker of the whole pool. On one incarnation of a node no two processes ever have the same id."""

    job_id: str
    generation: int
    rank: int


# --- local events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    """A worker sent this message. last_lines: of its log, if it reports a failure."""

    worker: WorkerId
    message: FromWorker
    last_lines: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnded:
    """A worker's process is gone; or it could not be started, as explanation says.

    last_lines: of its log, after a crash.
    """

    worker: WorkerId
    exit_code: int | None = None
    signal: int | None = None
    explanation: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaimed:
    """No other executor of this node id has workers, and none can claim the node before this incarnation is over.

    replaced: the incarnation whose record it replaces, last heard at replaced_heard_s, when it had begun
    replaced_starts; of those that are replaced_preparations, no worker had run.
    """

    incarnation: str
    replaced: str = ""
    replaced_heard_s: float | None = None
    replaced_starts: Starts = None
    replaced_preparations: KnownStarts = ()


UNCLAIMED = NodeClaimed(incarnation="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactsUploaded:
    """What the job has produced is stored, as in `ArtifactsStored`."""

    job_id: str
    due: int
    iteration: int = 0
    model: StoredFile | None = None
    files: tuple[StoredFile, ...] = ()
    outputs: tuple[StoredFile, ...] = ()
    unstored: tuple[UnstoredFile, ...] = ()
    num_unstored: int = 0
    uri: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost:
    """The executor had no contact (see `heartbeat`) for longer than a lease, and has killed all workers."""

    silence_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactRestored:
    """The ledger is folded up to its end again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusJudged:
    """These GPUs of this node should compute nothing, each with the reason, as was read at at_s."""

    failing: tuple[tuple[int, str], ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNoticed:
    """What announces the end of this machine says so now. until_s: None: it announces none. at_s: when it was read."""

    until_s: float | None
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDownRequested:
    """The operator asks this executor to end."""


# --- actions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a process with this assignment, once the code of its job is on this node. tenant: of the job."""

    assignment: Assignment
    tenant: str

    @property
    def worker(self) -> WorkerId:
        return WorkerId(self.assignment.job_id, self.assignment.plan.generation, self.assignment.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToWorker:
    worker: WorkerId
    message: PrepareSwitch | JoinRendezvous | PeersLost | WriteCheckpoint | StopAtBoundary


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorker:
    """End this worker now, with all processes that it has started."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreArtifacts:
    """Upload the job's model and the files of its artifact folder, of so many bytes at most.

    identity: of the job. generation: the newest; the log of its rank 0 names the files that are not stored. due: as in
    `ArtifactsStored`.
    """

    job_id: str
    tenant: str
    identity: str
    generation: int
    due: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePaddingSlots:
    """Execute tasks of these padding loads on these GPUs of the node, and on no other one: end runners there now.

    weights: of tenants, where not 1.
    """

    gpus: tuple[int, ...] = ()
    loads: tuple[Load, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])


NO_PADDING_SLOTS = UsePaddingSlots()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginShutDown:
    """The node ends: from now on its executor stops what runs here, as if its operator had asked for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDown:
    """No worker runs here and none will: end the executor. replaced: another executor joined under the node's name."""

    replaced: bool


LocalEvent = (
    WorkerReported
    | WorkerEnded
    | NodeClaimed
    | ArtifactsUploaded
    | ContactLost
    | ContactRestored
    | EndNoticed
    | GpusJudged
    | ShutDownRequested
)
WorkerAction = StartWorker | SendToWorker | KillWorker | ShutDown
Action = WorkerAction | UsePaddingSlots | StoreArtifacts | BeginShutDown
