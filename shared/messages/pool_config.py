"""The configuration of a pool: the assumptions of its policies, and the quotas of its tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import Strict

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    Fraction,
    Name,
    NumBytes,
    NumGpus,
    NumSockets,
    NumVirtualNodes,
    PositiveDurationS,
    ProfileKey,
    Rate,
    SealingKey,
    Sequence,
    Token,
    Weight,
)
from elasticflow.shared.messages.timeouts import CHECKPOINT_WAIT_S, LONGEST_S, FailureTimeouts

DAY_S = 86_400.0
MAX_WINDOW_S = 31 * DAY_S

BestEffortRule = Literal["shortest-first", "fair", "elastic-tiresias"]
KeptS = Annotated[float, Strict(), Ge(DAY_S), Le(3650 * DAY_S)]
GpuHours = Annotated[float, Strict(), Gt(0), Le(1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHourBudget:
    """The most GPU-hours that admission promises in any window of so many seconds."""

    max_gpu_hours: GpuHours
    window_s: Annotated[float, Strict(), Ge(60), Le(MAX_WINDOW_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """The most that admission promises one tenant in any 24 hours, and in any window of its budgets. None: no limit.

    max_command_bytes_per_day: of its commands, rejected ones included, that one replica of admission takes; half of
    them at once. What ends its live jobs and padding loads, in a kilobyte, is always taken.
    weight: of its jobs without a promise beside those of other tenants, if `PoolConfig.best_effort` is fair.
    """

    max_jobs_per_day: Annotated[int, Strict(), Gt(0), Le(10**9)] | None = None
    max_gpu_hours_per_day: GpuHours | None = None
    budgets: Annotated[tuple[GpuHourBudget, ...], Len(max_length=8)] = ()
    max_command_bytes_per_day: Annotated[int, Strict(), Ge(1 << 20), Le(1 << 40)] = 8 << 20
    weight: Weight = 1.0

    @property
    def longest_window_s(self) -> float:
        """Older promises do not count for any limit."""
        return max((DAY_S, *(budget.window_s for budget in self.budgets)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """What the policies of a pool assume. The ledger contains it, so a replay needs no other input."""

    resize_cost_s: DurationS = 4.0  # seconds without progress at each change of a job's share
    # the same, by the new number of GPUs: each entry holds from its number on; replaces resize_cost_s
    resize_cost_s_by_num_gpus: Mapping[NumGpus, DurationS] = field(default_factory=dict[int, float])
    progress_timeout_s: DurationS = 60.0  # planning assumes progress for so long after a report, then none
    # first-come rejects deadlines that cannot be kept; selective also jobs that displace more valuable ones
    admission: Literal["first-come", "selective"] = "selective"
    # jobs without a promise: the shortest first; weighted fair shares of tenants and priorities; the least served first
    best_effort: BestEffortRule = "shortest-first"
    # a job without a promise waits at most so many times its own length while shorter ones pass; not elastic-tiresias
    best_effort_wait_factor: Annotated[float, Strict(), Gt(0), Le(1e6)] = 3.0
    # a job keeps its GPUs for so many times its resize cost before a shorter one may stop it; not fair
    best_effort_run_factor: Annotated[float, Strict(), Ge(0), Le(1e6)] = 20.0
    reserve_nodes: Annotated[int, Strict(), Ge(0), Le(2)] = 0  # promises hold with up to so many nodes down
    throughput_margin: Fraction = 0.1  # promises assume speeds so much below the measured curve
    # replaces the margin: promises assume the speed that a job reaches with this probability
    confidence: Annotated[float, Strict(), Ge(0.5), Lt(1)] | None = None
    # standard deviation of ln(measured / curve) before the first measurement
    speed_spread: Annotated[float, Strict(), Gt(0), Le(1)] = 0.1
    # promised jobs may stop for migrations for this part of their time, and once more; 0: they never migrate, and
    # promises count on the slowest place
    migration_budget: Fraction = 0.01
    # the most virtual nodes, and thus GPUs, of a job whose code leaves them open and whose profiling run measures them;
    # 0: all such jobs have the default of up to 8
    most_virtual_nodes: NumVirtualNodes = 64
    deadline_slack_s: DurationS = 1.0  # plans finish promised jobs so long before their deadline
    leave_s: DurationS = 30.0  # a node is drained so long before its announced end
    # a node is lost after so long without a heartbeat; see `timeouts`
    heartbeat_timeout_s: PositiveDurationS = 6.0
    stall_timeout_s: PositiveDurationS = 120.0  # a job has failed after so long without an iteration
    # the most that a job's own start_timeout_s and stall_timeout_s may be: so long a hanging one holds its GPUs
    max_job_timeout_s: Annotated[float, Strict(), Gt(0), Le(LONGEST_S)] = 3_600.0
    # a node may take so long to get packages and data of a job before its workers start; meanwhile it is not stalled
    prepare_timeout_s: Annotated[float, Strict(), Gt(0), Le(LONGEST_S)] = 1_800.0
    max_restarts: Annotated[int, Strict(), Le(1000)] = 5  # crashes of one job before it fails
    # a job fails after so many starts in a row of which each lost a node
    max_nodes_lost_at_start: Annotated[int, Strict(), Ge(1), Le(1000)] = 2
    # a GPU counts as slow for so long after its worker was slower than its peers
    slow_gpu_s: DurationS = 600.0
    # of a job that trains while its GPUs compute nothing: off, a warning in its history, or its end
    idle_gpu_policy: Literal["off", "warn", "end"] = "warn"
    idle_gpu_s: PositiveDurationS = 1_800.0  # for so long
    # the price of padding GPU time over that of ordinary GPU time; loads with a lower useful share are rejected
    padding_price_ratio: Fraction = 0.1
    # tenants share idle GPUs in proportion to these weights; 1 unless given
    padding_weights: Mapping[Token, Weight] = field(default_factory=dict[str, float])
    # how long what ended jobs left is kept, since its last use (docs/adr/0062); None: forever
    code_kept_s: KeptS | None = 30 * DAY_S
    logs_kept_s: KeptS | None = 30 * DAY_S
    checkpoints_kept_s: KeptS | None = None  # the last one of a finished job is its trained model
    artifacts_kept_s: KeptS | None = 30 * DAY_S
    # of a job's model and artifact folder, that are stored for `eflow fetch`; larger ones stay on their node
    max_artifact_bytes: NumBytes = 1 << 30
    stop_free: bool = False  # running workers switch to the next generation without a stop if they can
    default_quota: TenantQuota = TenantQuota()
    quotas: Mapping[Token, TenantQuota] = field(default_factory=dict[str, TenantQuota])
    curves: Mapping[ProfileKey, Mapping[int, Rate]] = field(default_factory=dict[str, Mapping[int, float]])
    # values above 1, and racks, override what the nodes report
    sockets_per_node: NumSockets = 1
    racks: Annotated[Mapping[Token, Name], FewItems] = field(default_factory=dict[str, str])  # node -> rack
    # public key for which clients seal the secrets of jobs (docs/adr/0069); "": the pool takes none
    secrets_key: SealingKey = ""
    # services that know only an older version of the messages refuse to start
    minimum_reader_version: Annotated[int, Strict(), Gt(0), Le(10**6)] = 1
    # planners decide despite unreadable messages of the plan, and on a changed ledger, up to this sequence
    skip_plan_up_to: Sequence = 0

    @property
    def timeouts(self) -> FailureTimeouts:
        """The timeouts that detect losses."""
        return FailureTimeouts(heartbeat_timeout_s=self.heartbeat_timeout_s, stall_timeout_s=self.stall_timeout_s)

    def timeouts_of(self, spec: JobSpec) -> FailureTimeouts:
        """The timeouts for the workers of a job: its own ones, else those of the pool."""
        preparation_s = self.prepare_timeout_s if spec.needs_preparation else 0.0
        if spec.continues is not None:
            preparation_s += CHECKPOINT_WAIT_S
        most_s = self.longest_job_timeout_s
        return replace(
            self.timeouts,
            stall_timeout_s=min(spec.stall_timeout_s, most_s) or self.stall_timeout_s,
            start_timeout_s=min(spec.start_timeout_s, most_s) or self.stall_timeout_s,
            preparation_s=preparation_s,
        )

    @property
    def longest_job_timeout_s(self) -> float:
        """The most that a job may declare; what it gets without a declaration is never too long."""
        return max(self.max_job_timeout_s, self.stall_timeout_s)

    def quota(self, tenant: str) -> TenantQuota:
        return self.quotas.get(tenant, self.default_quota)
