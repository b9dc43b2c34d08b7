"""The settings of a pool: what its policies assume, and the quotas of its tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import Strict

from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    Fraction,
    Name,
    NumGpus,
    NumSockets,
    PositiveDurationS,
    Rate,
    Token,
)
from elasticflow.shared.messages.timeouts import FailureTimeouts

DAY_S = 86_400.0
MAX_WINDOW_S = 31 * DAY_S

GpuHours = Annotated[float, Strict(), Gt(0), Le(1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHourBudget:
    """What may be promised in any window of so many seconds."""

    max_gpu_hours: GpuHours
    window_s: Annotated[float, Strict(), Ge(60), Le(MAX_WINDOW_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """What one tenant may be promised in any 24 hours, and in any window of its budgets. None = no limit."""

    max_jobs_per_day: Annotated[int, Strict(), Gt(0), Le(10**9)] | None = None
    max_gpu_hours_per_day: GpuHours | None = None
    budgets: Annotated[tuple[GpuHourBudget, ...], Len(max_length=8)] = ()

    @property
    def longest_window_s(self) -> float:
        """For so long it matters what was promised."""
        return max((DAY_S, *(budget.window_s for budget in self.budgets)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """What the policies of a pool assume. It is a fact of the ledger, so that a replay needs nothing else."""

    resize_cost_s: DurationS = 4.0  # seconds without progress at each change of a job's share
    # the same where it depends on the new number of GPUs: from each number on; takes the place of the one above
    resize_cost_s_by_num_gpus: Mapping[NumGpus, DurationS] = field(default_factory=dict[int, float])
    progress_timeout_s: DurationS = 10.0  # progress is assumed for so long after a report, then none
    # refuse what cannot be kept; or also what crowds out
    admission: Literal["first-come", "selective"] = "selective"
    reserve_nodes: Annotated[int, Strict(), Ge(0), Le(2)] = 0  # promises hold with so many nodes down at once
    throughput_margin: Fraction = 0.1  # promises count on this much less than the measured curve
    # takes the place of the margin: promises count on the speed that a job reaches with this probability
    confidence: Annotated[float, Strict(), Ge(0.5), Lt(1)] | None = None
    speed_spread: Annotated[float, Strict(), Gt(0), Le(1)] = (
        0.1  # of ln(measured / curve), before any was seen
    )
    deadline_slack_s: DurationS = 1.0  # promises are planned to end this much before their deadline
    heartbeat_timeout_s: PositiveDurationS = (
        6.0  # silence after which a node is lost; all of `detection` follows
    )
    stall_timeout_s: PositiveDurationS = 120.0  # without one iteration for so long a job has failed
    max_restarts: Annotated[int, Strict(), Le(1000)] = 5  # crashes of one job before it fails
    slow_gpu_s: DurationS = 600.0  # so long a GPU counts as slow on which a worker was slower than its peers
    stop_free: bool = False  # workers go over to a job's next generation where they can, and train until then
    default_quota: TenantQuota = TenantQuota()
    quotas: Mapping[Token, TenantQuota] = field(default_factory=dict[str, TenantQuota])
    curves: Mapping[Name, Mapping[int, Rate]] = field(default_factory=dict[str, Mapping[int, float]])
    # more than one socket, or a node's rack, counts whatever the nodes say of themselves
    sockets_per_node: NumSockets = 1
    racks: Annotated[Mapping[Token, Name], FewItems] = field(default_factory=dict[str, str])  # node -> rack

    @property
    def timeouts(self) -> FailureTimeouts:
        """How soon a loss is known."""
        return FailureTimeouts(
            heartbeat_timeout_s=self.heartbeat_timeout_s, stall_timeout_s=self.stall_timeout_s
        )

    def quota(self, tenant: str) -> TenantQuota:
        return self.quotas.get(tenant, self.default_quota)
