"""Why no planner may decide here, each in a sentence with what to do; None if nothing is wrong.

Planners ask before each decision, `eflow doctor` whenever an operator does.
"""

from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.runtime.service.clock_check import ClockCheck
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import PoolState


def clock_problem(clock_check: ClockCheck, slack_s: float) -> str | None:
    """slack_s: by how much plans finish before their deadlines."""
    if not clock_check.is_wrong(slack_s):
        return None
    offset_s = clock_check.offset_s
    return (
        f"its clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} that of NATS, more than "
        f"deadline_slack_s = {slack_s:g} s: correct the clock of this machine, or of the NATS server"
    )


def version_problem(pool: PoolState) -> str | None:
    minimum = pool.config.minimum_reader_version
    if minimum <= READER_VERSION:
        return None
    return f"it reads messages up to version {READER_VERSION}, the pool asks for {minimum}: upgrade this service"


def plan_problem(pool: PoolState) -> str | None:
    unreadable = pool.unreadable_plan_sequence
    if not unreadable:
        return None
    return (
        f"it cannot read message {unreadable} of the plan: upgrade this service if a newer version wrote it; "
        f"to decide without it, run `eflow configure --skip-plan-up-to {unreadable}`"
    )


def chain_problem(chain: LedgerChain, pool: PoolState) -> str | None:
    found = chain.last_break
    if found is None or found.decision <= pool.config.skip_plan_up_to:
        return None
    return (
        f"the ledger was changed: {found.in_words()}; compare it with a backup. To decide on what is there, "
        f"run `eflow configure --skip-plan-up-to {found.decision}`"
    )
