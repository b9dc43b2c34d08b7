"""Why no planner may decide here, each in a sentence with what to do; None if nothing is wrong.

Planners ask before each decision, `eflow doctor` whenever an operator does.
"""

from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import Bus, LedgerEnd
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import PoolState

# --- clock check ---------------------------------------------------------------------------------------
# How far this process's clock is from that of NATS, which stamps every message of the ledger.
#
# One comparison takes two readings of our clock, and what the server's clock showed at some moment between them. Only
# an offset that no moment between them explains is one: a slow answer is no wrong clock.

CHECK_EVERY_S = 10.0  # the age of a comparison on which a decision may rest
LEAST_SLACK_S = 0.1  # clocks of good machines differ by milliseconds


class ClockCheck:
    """Compares with each answer about the ledger's end that is asked here, and with each own message."""

    def __init__(self, bus: Bus, pool: str, clock: Clock) -> None:
        self._bus, self._pool, self._clock = bus, pool, clock
        self.offset_s = 0.0  # of our clock, at least; positive: it is ahead
        self._compared_s = float("-inf")
        self._own_id, self._sent_s = "", 0.0

    def is_wrong(self, slack_s: float) -> bool:
        return abs(self.offset_s) > max(slack_s, LEAST_SLACK_S)

    async def ask(self) -> LedgerEnd:
        """The end of the ledger, with a comparison. Raises what `ledger_end` raises."""
        asked_s = self._clock.now_s()
        end = await self._bus.ledger_end(self._pool)
        self._compare(asked_s, end.at_s)
        return end

    async def refresh(self, slack_s: float) -> None:
        """Ask again if the last comparison is old or found a wrong clock. A clock that was set back shows here too."""
        age_s = self._clock.now_s() - self._compared_s
        if self.is_wrong(slack_s) or not 0 <= age_s <= CHECK_EVERY_S:
            await self.ask()

    def sent(self, message_id: str) -> None:
        """This message is appended from now on."""
        self._own_id, self._sent_s = message_id, self._clock.now_s()

    def received(self, stored: LedgerRecord) -> None:
        """A message of the ledger has arrived; an own one allows a comparison."""
        if stored.message_id and stored.message_id == self._own_id:
            self._compare(self._sent_s, stored.stored_at_s)

    def _compare(self, before_s: float, server_s: float) -> None:
        after_s = self._clock.now_s()
        self._compared_s = after_s
        self.offset_s = max(before_s - server_s, 0.0) or min(after_s - server_s, 0.0)


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
