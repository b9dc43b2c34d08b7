"""Padding loads. The ledger has loads and their progress, never single tasks."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Strict

from elasticflow.shared.messages.limits import (
    Fraction,
    MaybeToken,
    PositiveDurationS,
    Sequence,
    TaskRanges,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.load_spec import LoadSpec, NumTasks

LoadRejectionReason = Literal["useful_share", "needs", "duplicate", "limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOpened:
    """Executors may execute tasks of this load. From admission.

    useful_share: predicted from the idle windows of the pool; None: it has had none yet.
    by_identity: its tasks and results are on subjects of this opening alone, as `Load.bus_name` names them. False of
    older clients, and of those that know the load_id only.
    """

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: Token
    spec: LoadSpec
    useful_share: Fraction | None = None
    at_s: TimeS
    by_identity: Annotated[bool, Strict()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRejected:
    """The load does not pay here, or breaks a rule. From admission.

    best_task_s: the length of a task that would use the most of the idle windows; None: no length would pay.
    """

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: Token
    reason: LoadRejectionReason
    explanation: Text
    useful_share: Fraction | None = None
    best_task_s: PositiveDurationS | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSealed:
    """The number of tasks is known, and no more will follow. From admission."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    num_tasks: NumTasks
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRejected:
    """The load is unknown, has ended, or is sealed with another number of tasks. From admission."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCancelled:
    """No more tasks are executed, and the results are deleted. From admission."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    reason: Text = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelLoadRejected:
    """The load is unknown or has ended. From admission."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgressed:
    """So many tasks have a result, successful or not; reported at most every few seconds. From the monitor.

    counted: these tasks; () if their ranges are too many. counted_to: the last result that was counted, as a sequence
    of the result stream. Up to it, the client may delete results that it has read.
    """

    VERSION: ClassVar[int] = 1
    load_id: Token
    num_results: NumTasks
    counted: TaskRanges = ()
    counted_to: Sequence = 0
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFinished:
    """Each task of a sealed load has a result. From the monitor."""

    VERSION: ClassVar[int] = 1
    load_id: Token
    num_results: NumTasks
    at_s: TimeS


LoadDecision = LoadOpened | LoadRejected | LoadSealed | SealRejected | LoadCancelled | CancelLoadRejected
LoadReport = LoadProgressed | LoadFinished
LoadEvent = LoadDecision | LoadReport
