"""Wishes, in the imperative. Users publish them; admission answers.

A command may be refused, may come twice and may come late. Facts (`events`) may not be refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    PositiveGpus,
    PositiveIterations,
    ReservationS,
    Text,
    TimeS,
    Token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Please train this by its deadline. The same job_id with the same spec is the same wish."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Stop this job and free its GPUs; its last checkpoint stays."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteDeadline:
    """Which deadline would be promised now? Asked by request, answered by `DeadlineQuoted`, never stored.

    Nothing is reserved: that is a decision, and asked for by `ReserveQuote`.
    """

    VERSION: ClassVar[int] = 1
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveQuote:
    """Quote a deadline and reserve what keeps it, for reserve_s seconds: `QuoteReserved`, or `QuoteRejected`.

    job_id: the name that the job is to have; it is taken by a `SubmitJob` of that name that asks for no more.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec  # its deadline does not count
    reserve_s: ReservationS


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendJob:
    """Another deadline or another number of iterations for an admitted job: `JobAmended`, or `AmendRejected`.

    None leaves it as it is. Where it is refused the old promise stays.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    deadline_s: TimeS | None = None
    max_iterations: PositiveIterations | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGpuLimits:
    """Let an admitted job hold at least min_gpus GPUs, or at most max_gpus, whatever else it could have:
    `GpuLimitsSet`, or `GpuLimitsRejected`. (Amoeba, Table 1: scale_out, scale_in.)

    This bound takes the place of the one before; neither number: the bound ends (`GpuLimitsCleared`).
    until_s: when it ends by itself.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    min_gpus: PositiveGpus | None = None
    max_gpus: PositiveGpus | None = None
    until_s: TimeS | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """Find out how fast this trains on each number of GPUs in its range, and train nothing: `ProfileRequested` where
    that has to be measured, then `JobProfiled`. (Amoeba, Table 1: profile.)
    """

    VERSION: ClassVar[int] = 1
    job_id: Token  # of the pre-run
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint:
    """Write a checkpoint of a job now, before the next periodic one: `CheckpointRequested`, then `CheckpointWritten` or
    `CheckpointFailed`; or at once `CheckpointUpToDate`, `CheckpointRejected`. (Amoeba, Table 1: checkpoint.)
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token


Command = SubmitJob | CancelJob | ReserveQuote | AmendJob | SetGpuLimits | ProfileJob | RequestCheckpoint
