"""What keeps a planner from deciding: a plan that it cannot read, a changed ledger, a wrong clock, a decision that no
message can hold.

The planner goes on folding, and decides again by itself once the cause is gone. Meanwhile it says why: in its log, on
its health page (`unwell`) and as a metric.
"""

from collections.abc import Callable
from typing import Any

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.clock_check import ClockCheck
from elasticflow.shared.runtime.service.decision_problems import (
    chain_problem,
    clock_problem,
    plan_problem,
    version_problem,
)
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import PoolState

FIRST_WAIT_S = 1.0  # between two attempts of a planner that must not decide
LONGEST_WAIT_S = 8.0

READER_VERSION_REASON, PLAN_REASON, CHAIN_REASON = "reader_version", "unreadable_plan", "changed_ledger"
CLOCK_REASON, SIZE_REASON = "clock", "decision_size"


class DecisionGuard:
    """The reasons for which one planner takes no decisions."""

    def __init__(self, clock_check: ClockCheck, log: Any, metrics: Metrics) -> None:
        self._clock_check = clock_check
        self._log, self._metrics = log, metrics
        self._problems: dict[str, str] = {}
        self._wait_s = FIRST_WAIT_S

    @property
    def problem(self) -> str | None:
        """Why the planner takes no decisions, in a sentence; None if it may."""
        return "takes no decisions: " + "; ".join(self._problems.values()) if self._problems else None

    @property
    def is_fit(self) -> bool:
        """Whether this replica may decide. A decision that is too large is so for every replica."""
        return not self._problems.keys() - {SIZE_REASON}

    def next_wait_s(self) -> float:
        """Until the next attempt; each is longer than the one before."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s

    async def may_decide(self, folded: Callable[[], PoolState], chain: LedgerChain) -> bool:
        """Whether this planner knows the time, and reads all of the plan that is folded by then, unchanged.

        Raises Retry.
        """
        await self._check_clock(folded().config.deadline_slack_s)
        self._check_plan(folded(), chain)  # without another wait before the decision: the state changes meanwhile
        return self.is_fit  # only an attempt shows whether a decision has become smaller

    async def _check_clock(self, slack_s: float) -> None:
        await self._clock_check.refresh(slack_s)
        self._metrics.clock_offset.set(self._clock_check.offset_s)
        self._note(CLOCK_REASON, clock_problem(self._clock_check, slack_s))

    def _check_plan(self, pool: PoolState, chain: LedgerChain) -> None:
        self._note(READER_VERSION_REASON, version_problem(pool))
        self._note(PLAN_REASON, plan_problem(pool))
        self._note(CHAIN_REASON, chain_problem(chain, pool))

    def too_large(self, error: TooLarge) -> None:
        """The decision was not stored."""
        advice = "check max_payload of NATS, or reduce the jobs of the pool"
        self._note(SIZE_REASON, f"its decision is too large: {error}; {advice}")

    def fits(self) -> None:
        """The decision is stored, or there was none."""
        self._note(SIZE_REASON, None)

    def _note(self, reason: str, problem: str | None) -> None:
        known = self._problems.get(reason)
        if problem is None:
            self._problems.pop(reason, None)
        else:
            self._problems[reason] = problem
        if (problem is None) != (known is None):
            self._metrics.blocked.set(reason, problem is not None)
            if problem is None:
                self._log.info("decides again", reason=reason)
            else:
                self._log.error("takes no decisions", reason=reason, problem=problem)
        if not self._problems:
            self._wait_s = FIRST_WAIT_S
