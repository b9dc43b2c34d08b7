"""Messages of an executor to one of its workers, each on a channel of its own. Pure.

The end of file on a channel means that the executor is gone: the worker ends at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from signal import SIGURG
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import Strict

from elasticflow.shared.messages.job_environment import local_path
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    Digest,
    DurationS,
    Generation,
    GpuType,
    Index,
    Iterations,
    Name,
    NumBytes,
    NumSamples,
    NumVirtualNodes,
    PositiveDurationS,
    Sequence,
    Text,
    TimeS,
    Token,
    VirtualNodesByRank,
)
from elasticflow.shared.messages.timeouts import CHECKPOINT_WAIT_S, FailureTimeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Prepare for an `Assignment` to this GPU, which may come much later or never. For workers of the warm pool."""

    device: Literal["cpu", "cuda"]
    gpu_index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLog:
    """Write all output to this file from now on. Sent before the `Assignment`, so that errors in it are logged."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """What a generation is made of, as each of its workers is told.

    rendezvous: host:port of rendezvous rank 0; "" for rank 0 itself, which listens, and if `JoinRendezvous` follows.
    rendezvous_size: staying, joining and leaving workers, if workers that train hand over the state of the job; 0: all
        workers are new, and the state is in the checkpoint.
    micro_batch_size: samples in one forward and backward pass; 0: a whole virtual node.
    num_virtual_nodes: of the job, if its code leaves them open; 0: the default of its batch.
    virtual_nodes_by_rank: virtual nodes of each worker; empty: as even as possible.
    gpu_types_by_rank: types of the workers' GPUs; empty if all have one type.
    secret: that its workers prove to each other; "": they prove nothing.
    """

    generation: Generation
    world_size: Annotated[int, Strict(), Gt(0)]
    rendezvous: str = ""
    rendezvous_size: Annotated[int, Strict(), Ge(0)] = 0
    micro_batch_size: NumSamples = 0
    num_virtual_nodes: NumVirtualNodes = 0
    virtual_nodes_by_rank: VirtualNodesByRank = ()
    gpu_types_by_rank: tuple[GpuType, ...] = ()
    secret: Digest = field(default="", repr=False)

    @property
    def transfers_state(self) -> bool:
        """Whether workers that train hand over the state of the job."""
        return self.rendezvous_size > 0

    @property
    def num_in_rendezvous(self) -> int:
        """All workers that meet, those that leave with the switch among them."""
        return self.rendezvous_size or self.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """All that a worker needs to train. A process serves one job only. Rank 0 listens on advertise_host.

    code_path: folder (or zip) with the training function; "" if it is importable without.
    secrets: values of variables, by name; they appear in no log.
    packages_path: folder with the packages that the job requires; "" if it requires none.
    environment_path: folder of the job's own environment, in whose Python the worker runs; "": the node's.
    data_paths: of the job's data on this node, by name.
    gpu_index: number of the GPU on this node.
    shown_gpus: those of its job on this node, which it sees where GPUs are separated.
    cpu_share: cores that a CPU slot may use, e.g. 0.2; 1 or more: no limit.
    checkpoint_iteration: a complete checkpoint of so many steps was written; a start from an older one is reported.
    job_identity: named in each checkpoint and folder; checkpoints of other jobs are not read. "": those of any job are.
    deadline_s: of the job now; None: it has none.
    measures_step_times: a profiling run also measures steps with fewer virtual nodes.
    most_virtual_nodes: a profiling run on one GPU measures into how many it cuts the batch; 0: it does not.
    memory_limit_bytes: what a CPU slot's worker may allocate beyond the preloaded libraries; 0: no limit.
    lease_until_s: the worker ends itself at this time of the boot clock, or of the last `LeaseExtended`; 0: no lease.
    """

    job_id: Token
    plan: GenerationPlan
    rank: Index
    spec: JobSpec
    checkpoint_dir: str
    purpose: Literal["train", "profile"] = "train"
    code_path: str = ""
    packages_path: str = ""
    environment_path: str = ""
    data_paths: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_index: Index = 0
    shown_gpus: tuple[Index, ...] = ()
    cpu_share: Annotated[float, Strict(), Gt(0)] = 1.0
    advertise_host: str = "127.0.0.1"
    checkpoint_iteration: Iterations = 0
    job_identity: Text = ""
    deadline_s: TimeS | None = None
    memory_limit_bytes: NumBytes = 0
    lease_until_s: DurationS = 0.0
    timeouts: FailureTimeouts = field(default_factory=FailureTimeouts)
    checkpoint_every_s: PositiveDurationS = 30.0
    profile_min_s: PositiveDurationS = 0.6
    profile_max_iterations: Annotated[int, Strict(), Ge(3)] = 30
    measures_step_times: bool = False
    most_virtual_nodes: NumVirtualNodes = 0
    checkpoint_wait_s: DurationS = CHECKPOINT_WAIT_S

    @property
    def read_folders(self) -> tuple[str, ...]:
        """What this node keeps for the job, which the worker reads: code, packages and fetched data."""
        fetched = (path for name, path in self.data_paths.items() if not local_path(self.spec.data[name]))
        return tuple(path for path in (self.code_path, self.packages_path, *fetched) if path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSwitch:
    """Train on, prepare another generation in the background, and switch at the step boundary where all are ready.

    rendezvous_rank: the rank in the new generation; its world_size or more for a worker that leaves with the switch.
    """

    plan: GenerationPlan
    rendezvous_rank: Index

    @property
    def leaves(self) -> bool:
        """Whether this worker ends with the switch."""
        return self.rendezvous_rank >= self.plan.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRendezvous:
    """Rendezvous rank 0 of this generation listens here. Sent if the assignment or the switch had no address."""

    generation: Generation
    address: Name  # host:port


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersLost:
    """Workers of this generation are lost: stop waiting for peers of it or of an older one.

    A worker of such a generation rolls back to its step boundary and reports `Interrupted`.
    """

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAtBoundary:
    """Write a checkpoint at the next step boundary on which all workers agree, then exit. As SIGTERM.

    keeps_state: False if the job has ended, so that no checkpoint is needed.
    """

    keeps_state: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint:
    """Write a checkpoint at the next step boundary, and train on. For rank 0, which reports `CheckpointWritten` or
    `CheckpointFailed` with this request. with_model: and a file with the model alone."""

    request: Sequence
    with_model: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExtended:
    """The executor has contact with the ledger: train until this time, or a later extension.

    Times are of the boot clock (shared/runtime/process/clock.py), which both processes share.
    """

    until_s: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStacks:
    """Write where each thread is into the file that comes with this message, and into the job's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Start a command as users' code would: in this worker's namespaces, limits, environment and folder.

    Four files come with this message: its standard input, output and error, and a socket. The worker writes a
    `CommandResult` there once the command has ended, and kills the command at the end of the file.
    terminal_kind: TERM, of a command whose three files are a terminal, which it then controls; "": pipes.
    """

    command: tuple[str, ...]
    terminal_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """status: as `subprocess` returns it: negative for a signal. error: why nothing was started."""

    status: int = 0
    error: str = ""


STACKS_SIGNAL = SIGURG  # as `ShowStacks`, into the log only; its default effect is none
NUM_FILES = {ShowStacks: 1, RunCommand: 4}  # that come with a message
MAX_FILES = 4
ToWorker = (
    WarmUp
    | WriteLog
    | Assignment
    | PrepareSwitch
    | JoinRendezvous
    | PeersLost
    | StopAtBoundary
    | WriteCheckpoint
    | LeaseExtended
    | ShowStacks
    | RunCommand
)
