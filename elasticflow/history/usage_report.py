"""GPU-hours, decisions and promises of each tenant over a period, from the ledger. Pure.

A job uses the GPUs on which placement has put it, from that decision to its end or its next placement. Tasks of padding
loads are not in the ledger, and so not in the report.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elasticflow.history.event_text import names_changed
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import Promise, promise_of, settled_at_s

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

    num_promised: of the admitted jobs, those with a promise. num_earlier: promises from before the period that were
    live at its begin. Each of both is in one of num_kept, num_broken, num_failed, num_cancelled and num_live: what had
    become of it at the end of the period, as `promise_of` says.
    """

    tenant: str
    gpu_hours: float
    gpu_hours_by_type: Mapping[str, float]
    num_admitted: int
    num_rejected: int
    num_promised: int
    num_earlier: int
    num_kept: int
    num_broken: int
    num_failed: int
    num_cancelled: int
    num_live: int
    cost: float | None = None


@dataclass(slots=True, kw_only=True)
class _Account:
    """The account of one tenant, while the ledger is folded."""

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
        """The usage by tenant; the call changes nothing. now_s: within a period that has not ended. Raises NoPrice."""
        end_s = self._until_s if now_s is None else min(now_s, self._until_s)
        accounts = {
            name: _Account(gpu_seconds=dict(account.gpu_seconds), counts=account.counts.copy())
            for name, account in self._accounts.items()
        }
        for held in self._held.values():
            self._add(accounts.setdefault(held.tenant, _Account()), held, end_s)
        for job in self.state.live_jobs.values():
            if column := self._column(job, end_s):
                accounts.setdefault(job.tenant, _Account()).counts.update(self._counted(job, column))
        return tuple(_usage(name, account, prices) for name, account in sorted(accounts.items()))

    def _count(self, old: Job | None, new: Job, at_s: float) -> None:
        """A decision on a job, or its end."""
        account = self._account(new.tenant)
        is_again = old is not None and old.phase is Phase.REJECTED and old.decided_sequence != new.decided_sequence
        is_rejected = new.phase is Phase.REJECTED and (old is None or old.phase is not Phase.REJECTED or is_again)
        account.counts["rejected"] += is_rejected and self._since_s <= at_s
        is_admitted = new.admitted_at_s is not None and (old is None or old.admitted_at_s != new.admitted_at_s)
        if is_admitted and self._is_of_period(new):  # an amendment is no decision of this kind
            account.counts["admitted"] += 1
        has_ended = not new.live and (old is None or old.live or is_admitted)
        if has_ended and (column := self._column(new, at_s)):
            account.counts.update(self._counted(new, column))

    def _is_of_period(self, job: Job) -> bool:
        return job.admitted_at_s is not None and self._since_s <= job.admitted_at_s

    def _counted(self, job: Job, column: str) -> tuple[str, str]:
        """A promise: of the period or an earlier one, and what has become of it."""
        return "promised" if self._is_of_period(job) else "earlier", column

    def _column(self, job: Job, now_s: float) -> str:
        """What has become of its promise; "" without a promise, or if that was final before the period."""
        promise, settled_s = promise_of(job, now_s), settled_at_s(job, now_s)
        if promise is Promise.NONE:
            return ""
        if settled_s is None:
            return "live"
        return promise.value if self._since_s <= max(settled_s, job.admitted_at_s or 0.0) else ""

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
        num_promised=sum(row.num_promised for row in rows),
        num_earlier=sum(row.num_earlier for row in rows),
        num_kept=sum(row.num_kept for row in rows),
        num_broken=sum(row.num_broken for row in rows),
        num_failed=sum(row.num_failed for row in rows),
        num_cancelled=sum(row.num_cancelled for row in rows),
        num_live=sum(row.num_live for row in rows),
        cost=sum(costs) if costs else None,
    )


def _usage(tenant: str, account: _Account, prices: Prices | None) -> TenantUsage:
    hours = {gpu_type: seconds / _HOUR_S for gpu_type, seconds in sorted(account.gpu_seconds.items())}
    return TenantUsage(
        tenant=tenant,
        gpu_hours=sum(hours.values()),
        gpu_hours_by_type=hours,
        num_admitted=account.counts["admitted"],
        num_rejected=account.counts["rejected"],
        num_promised=account.counts["promised"],
        num_earlier=account.counts["earlier"],
        num_kept=account.counts[Promise.KEPT],
        num_broken=account.counts[Promise.BROKEN],
        num_failed=account.counts[Promise.FAILED],
        num_cancelled=account.counts[Promise.CANCELLED],
        num_live=account.counts["live"],
        cost=None if prices is None else cost_of(hours, prices),
    )


def price_of(prices: Prices, gpu_type: str) -> float | None:
    """The price of a GPU-hour; None if it has none."""
    return prices.get(gpu_type, prices.get(""))


def cost_of(hours: Mapping[str, float], prices: Prices) -> float:
    """The cost of GPU-hours by type. Raises NoPrice."""
    if without := {gpu_type for gpu_type in hours if price_of(prices, gpu_type) is None}:
        raise NoPrice(without)
    return sum(used * (price_of(prices, gpu_type) or 0.0) for gpu_type, used in hours.items())
