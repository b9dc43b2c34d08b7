"""Commands, in the imperative. Users publish them; admission replies with an event, or with a reply declared here.

Admission may reject a command. A command may arrive twice or late.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

from pydantic import Strict

from elasticflow.shared.messages.gpus import NamedGpus, ShareSchedule
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    DurationS,
    GpuType,
    MaybeIdentity,
    NodeNames,
    NumGpus,
    PositiveGpus,
    PositiveIterations,
    ReservationS,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.load_spec import LoadSpec, NumTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Train this job by its deadline. Resubmitting the same spec under the same job_id has no effect.

    sender_waits: for the decision. If not, no counteroffers are made with a rejection, because they take longer than
    the decision.
    replaces: the identity of the ended job of this tenant whose job_id the new job takes (docs/adr/0114). It takes it
    from no other job, so a repeated or late command starts nothing.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec
    sender_waits: bool = True
    replaces: MaybeIdentity = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Stop this job and free its GPUs; its last checkpoint is kept."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteDeadline:
    """Quote the earliest deadline that admission would promise now. A request with the reply `DeadlineQuoted`.

    It is never stored, and reserves no GPUs: `ReserveQuote` does.
    """

    VERSION: ClassVar[int] = 1
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveQuote:
    """Quote a deadline and reserve its GPUs for reserve_s seconds: `QuoteReserved`, or `QuoteRejected`.

    job_id: of the future job. A `SubmitJob` with this id takes the reservation if it requires no more.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec  # its deadline is ignored
    reserve_s: ReservationS


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendJob:
    """Change the deadline or the number of iterations of an admitted job: `JobAmended`, or `AmendRejected`.

    None keeps the value. After a rejection the existing promise is unchanged.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    deadline_s: TimeS | None = None
    max_iterations: PositiveIterations | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGpuLimits:
    """Limit the GPUs of an admitted job: `GpuLimitsSet`, `GpuLimitsCleared` or `GpuLimitsRejected`.

    New limits replace the previous ones; without numbers and GPUs the limits are cleared. until_s: when they expire.
    without_gpus, without_nodes: what the job gives up of the GPUs that it holds. Of the others it keeps at most a power
    of two. (Amoeba, Table 1: scale_out, scale_in, which names GPUs.)
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    min_gpus: PositiveGpus | None = None
    max_gpus: PositiveGpus | None = None
    until_s: TimeS | None = None
    without_gpus: NamedGpus = ()
    without_nodes: NodeNames = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """Profile this job on each number of GPUs in its range, without training it: `JobProfiled`.

    `ProfileRequested` precedes it if the throughput is not yet measured. (Amoeba, Table 1: profile.)
    """

    VERSION: ClassVar[int] = 1
    job_id: Token  # of the profiling run
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint:
    """Write a checkpoint of a job now: `CheckpointRequested`, then `CheckpointWritten` or `CheckpointFailed`.

    If the job does not train, admission replies at once: `CheckpointUpToDate` or `CheckpointRejected`.
    (Amoeba, Table 1: checkpoint.) store: `ArtifactsStored` follows `CheckpointWritten`.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """Execute the tasks of this padding load on idle GPUs: `LoadOpened`, or `LoadRejected`.

    The tasks follow on their own stream. Opening the same spec under the same load_id again has no effect.
    by_identity: as in `LoadOpened`.
    """

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: Token
    spec: LoadSpec
    by_identity: Annotated[bool, Strict()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SealLoad:
    """A load has so many tasks, and no more will follow: `LoadSealed`, or `SealRejected`."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: Token
    num_tasks: NumTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelLoad:
    """Execute no more tasks of a load, and delete its results: `LoadCancelled`, or `CancelLoadRejected`."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: Token
    reason: Text = ""


JobCommand = SubmitJob | CancelJob | ReserveQuote | AmendJob | SetGpuLimits | ProfileJob | RequestCheckpoint
JobDescription = SubmitJob | ReserveQuote | ProfileJob | QuoteDeadline
LoadCommand = OpenLoad | SealLoad | CancelLoad
Command = JobCommand | LoadCommand


Sent = TypeVar("Sent", bound=Command | QuoteDeadline)


def owned(command: Sent) -> Sent:
    """A command of a known sender: the job that it describes, if any, belongs to the tenant of the command."""
    if isinstance(command, JobDescription):
        return replace(command, spec=replace(command.spec, owner=command.tenant))
    return command


def id_of(message: object) -> str:
    """The id of the job or load that a command or its answer is about."""
    return getattr(message, "load_id", "") or getattr(message, "job_id", "")


# --- replies that are never stored -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineQuoted:
    """The reply to `QuoteDeadline`: the earliest deadline that admission would have promised at at_s, if any.

    schedule: the GPUs that it would have promised; empty from an older admission.
    num_gpus: that its pool has of this type, on which the job may run; 0 from an older admission.
    """

    VERSION: ClassVar[int] = 1
    earliest_deadline_s: TimeS | None
    gpu_seconds: DurationS | None = None
    explanation: Text = ""
    gpu_type: GpuType = ""  # on which, as its nodes name it; "": the pool has one type
    schedule: ShareSchedule = ()
    num_gpus: NumGpus = 0
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRejected:
    """The reply to an invalid message, which is kept on the dead-letter subject. From the host.

    ask_again: the request, for a quote, is valid; this replica cannot answer it now.
    """

    VERSION: ClassVar[int] = 1
    problems: tuple[Text, ...]
    ask_again: bool = False
