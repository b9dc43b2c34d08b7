"""GPU-hours, decisions and promises of each tenant over a period, from the ledger. Pure.

A job uses the GPUs on which placement has put it, from that decision to its end or its next placement. Tasks of padding
loads are not in the ledger, and so not in the report.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from elasticflow.history.names_concerned import names_changed
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState

_HOUR_S = 3_600.0
Prices = Mapping[str, float]  # dollars an hour, by GPU type; "": of any other type


class NoPrice(ValueError):
    """gpu_types: used in the period, without a price."""

    def __init__(self, gpu_types: Iterable[str]) -> None:
        self.gpu_types = tuple(sorted(gpu_types))
        super().__init__(f"no price for {', '.join(name or 'GPUs without a type' for name in self.gpu_types)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What one tenant used and was promised. cost: in dollars; None without prices.

    num_kept: promised jobs that finished by their deadlines. num_missed: promised jobs whose deadlines passed before
    their ends. A job that failed or was cancelled earlier is neither.
    """

    tenant: str
    gpu_hours: float
    gpu_hours_by_type: Mapping[str, float]
    num_admitted: int
    num_rejected: int
    num_kept: int
    num_missed: int
    cost: float | None = None


@dataclass(slots=True, kw_only=True)
class _Account:
    """Of one tenant, while the ledger is folded."""

    gpu_seconds: dict[str, float] = field(default_factory=dict[str, float])  # by type
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The GPUs of a job, by type, from one time on."""

    tenant: str
    num_gpus: Mapping[str, int]
    since_s: float


class UsageFold:
    """Folds a ledger from its start, message by message. Only times from since_s to until_s count."""

    def __init__(self, *, since_s: float, until_s: float) -> None:
        self.state = PoolState()
        self._since_s, self._until_s = since_s, until_s
        self._accounts: dict[str, _Account] = {}
        self._held: dict[str, _Held] = {}

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> None:
        """Messages after the end of the period change nothing."""
        if at_s > self._until_s:
            return
        before, after = self.state, ledger_fold.evolve(self.state, message, sequence)
        self.follow(() if isinstance(message, Unreadable) else names_changed(message, before, after), after, at_s)

    def follow(self, names: Iterable[str], after: PoolState, at_s: float) -> None:
        """A message that the caller has folded. names: the jobs that it concerns; after: the state after it."""
        before, self.state = self.state, after
        for name in names:
            old, new = before.job(name), after.job(name)
            if new is not None and new is not old:
                self._count(old, new, at_s)
                if old is None or old.gpus is not new.gpus or old.live != new.live:
                    self._hold(new, at_s)

    def usage(self, prices: Prices | None = None, *, now_s: float | None = None) -> tuple[TenantUsage, ...]:
        """By tenant, which changes nothing. now_s: within a period that has not ended. Raises NoPrice."""
        end_s = self._until_s if now_s is None else min(now_s, self._until_s)
        accounts = {
            name: replace(account, gpu_seconds=dict(account.gpu_seconds)) for name, account in self._accounts.items()
        }
        for held in self._held.values():
            self._add(accounts.setdefault(held.tenant, _Account()), held, end_s)
        live = self.state.live_jobs.values()
        late = Counter(job.tenant for job in live if job.promised and self._is_missed(job, end_s))
        tenants = sorted({*accounts, *late})
        return tuple(_usage(name, accounts.get(name, _Account()), late[name], prices) for name in tenants)

    def _count(self, old: Job | None, new: Job, at_s: float) -> None:
        """A decision on a job, or its end."""
        counts = self._account(new.tenant).counts
        is_again = new.phase is Phase.REJECTED and old is not None and old.decided_sequence != new.decided_sequence
        is_decided = old is None or old.phase is not new.phase or is_again  # an amendment is no decision of this kind
        in_period = self._since_s <= at_s
        if is_decided and in_period and not new.profile_only and new.phase in (Phase.ADMITTED, Phase.REJECTED):
            counts[new.phase.value] += 1
        if old is None or not old.promised or new.live:
            return
        if self._is_missed(new, self._until_s):
            counts["missed"] += 1
        elif in_period and new.phase is Phase.FINISHED and _in_time(new):
            counts["kept"] += 1

    def _is_missed(self, job: Job, until_s: float) -> bool:
        """Whether its deadline passed, in the period, before its end, or before until_s if it has not ended."""
        if job.deadline_s is None or _in_time(job):
            return False
        ended_at_s = until_s if job.ended_at_s is None else job.ended_at_s
        return job.deadline_s < ended_at_s and self._since_s <= job.deadline_s <= until_s

    def _hold(self, job: Job, at_s: float) -> None:
        gpus = job.gpus if job.live else ()
        nodes = self.state.nodes
        num_gpus = Counter(nodes[gpu.node_id].gpu_type if gpu.node_id in nodes else "" for gpu in gpus)
        held = self._held.get(job.job_id)
        if held is not None:
            if held.num_gpus == num_gpus:
                return
            self._add(self._account(held.tenant), self._held.pop(job.job_id), at_s)
        if num_gpus:
            self._held[job.job_id] = _Held(tenant=job.tenant, num_gpus=num_gpus, since_s=at_s)

    def _add(self, account: _Account, held: _Held, until_s: float) -> None:
        seconds = until_s - max(held.since_s, self._since_s)
        if seconds > 0.0:
            used = account.gpu_seconds
            for gpu_type, num_gpus in held.num_gpus.items():
                used[gpu_type] = used.get(gpu_type, 0.0) + num_gpus * seconds

    def _account(self, tenant: str) -> _Account:
        return self._accounts.setdefault(tenant, _Account())


def total_of(rows: Iterable[TenantUsage]) -> TenantUsage:
    """The sum over all tenants."""
    rows = tuple(rows)
    types = sorted({gpu_type for row in rows for gpu_type in row.gpu_hours_by_type})
    costs = [row.cost for row in rows if row.cost is not None]
    return TenantUsage(
        tenant="total",
        gpu_hours=sum(row.gpu_hours for row in rows),
        gpu_hours_by_type={name: sum(row.gpu_hours_by_type.get(name, 0.0) for row in rows) for name in types},
        num_admitted=sum(row.num_admitted for row in rows),
        num_rejected=sum(row.num_rejected for row in rows),
        num_kept=sum(row.num_kept for row in rows),
        num_missed=sum(row.num_missed for row in rows),
        cost=sum(costs) if costs else None,
    )


def _usage(tenant: str, account: _Account, num_late: int, prices: Prices | None) -> TenantUsage:
    hours = {gpu_type: seconds / _HOUR_S for gpu_type, seconds in sorted(account.gpu_seconds.items())}
    return TenantUsage(
        tenant=tenant,
        gpu_hours=sum(hours.values()),
        gpu_hours_by_type=hours,
        num_admitted=account.counts["admitted"],
        num_rejected=account.counts["rejected"],
        num_kept=account.counts["kept"],
        num_missed=account.counts["missed"] + num_late,
        cost=None if prices is None else cost_of(hours, prices),
    )


def price_of(prices: Prices, gpu_type: str) -> float | None:
    """Of a GPU-hour; None if it has none."""
    return prices.get(gpu_type, prices.get(""))


def cost_of(hours: Mapping[str, float], prices: Prices) -> float:
    """Of GPU-hours by type. Raises NoPrice."""
    if without := {gpu_type for gpu_type in hours if price_of(prices, gpu_type) is None}:
        raise NoPrice(without)
    return sum(used * (price_of(prices, gpu_type) or 0.0) for gpu_type, used in hours.items())


def _in_time(job: Job) -> bool:
    return job.phase is Phase.FINISHED and (job.deadline_s is None or (job.ended_at_s or 0.0) <= job.deadline_s)
