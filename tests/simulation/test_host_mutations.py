"""Defects of the service host, seeded on purpose: the simulated faults find each of them within some seeds."""

from typing import Any

import pytest

from elasticflow.shared.errors import StorageFull
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.host import DecideResult, Host
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.policy import Policy
from testbed.simulated_runs import problems, short_storm
from tests.support.rings import few_daily

SEEDS = range(540, 580)  # the rarest defect shows in one of twelve


class AcknowledgesEarly(Host[Any]):
    """A crash between the acknowledgement and the append loses the command."""

    async def _append(self, result: DecideResult) -> bool:
        for pending in result.taken:
            await pending.item.ack()
        return await super()._append(result)


class IgnoresRefusedAppends(Host[Any]):
    """The storage is full: the decision is not stored, and its command is lost."""

    async def _append(self, result: DecideResult) -> bool:
        try:
            return await super()._append(result)
        except StorageFull:
            return True


class IgnoresItsClock(Host[Any]):
    """A service decides on, although its clock is wrong."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], **options: Any) -> None:
        super().__init__(context, policy, **options)
        self._guard._note = lambda reason, problem: None  # pyright: ignore[reportPrivateUsage]


class AppendsUnconditionally(Host[Any]):
    """Two services that decide on the same state both succeed."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], **options: Any) -> None:
        super().__init__(context, policy, **options)
        append = context.bus.append

        async def unconditional(subject: str, data: bytes, **conditions: Any) -> int:
            return await append(subject, data, **conditions | {"expected_last_subject_sequence": None})

        context.bus.append = unconditional


class DecidesBeforeFolding(Host[Any]):
    """The host knows that its decision ended the plan, and decides the next one on the state without it."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], **options: Any) -> None:
        super().__init__(context, policy, **options)
        own_end, plan_end = 0, self._appender.plan_end

        async def skip_fold(decision: PlanDecided, own: LedgerRecord) -> None:
            nonlocal own_end
            own_end = own.sequence

        self._projection.fold_own = skip_fold
        self._appender.plan_end = lambda: max(own_end, plan_end())


class DecidesRepeats(Host[Any]):
    """A command that is delivered again is decided again."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], **options: Any) -> None:
        super().__init__(context, policy, **options)
        if self._command_queue is not None:
            self._command_queue._decision_on = lambda pending: None


MUTATIONS: tuple[type[Host[Any]], ...] = (
    AppendsUnconditionally,
    DecidesBeforeFolding,
    DecidesRepeats,
    IgnoresItsClock,
    AcknowledgesEarly,
    IgnoresRefusedAppends,
)
NUM_DAILY = 4  # those that change how a host is made: they follow its constructor


@pytest.mark.parametrize("mutation", few_daily(MUTATIONS, NUM_DAILY))
def test_simulated_faults_find_a_defect_of_the_host(mutation: type[Host[Any]]) -> None:
    found: list[str] = []
    for seed in SEEDS:
        found = list(problems(short_storm(seed, mutation)))
        if found:
            break
    assert found, f"{mutation.__name__} survives seeds {SEEDS}"


@pytest.mark.nightly("`python -m benchmarks.mutations` has mutations of the host; this finds what storms see of them")
def test_the_same_seeds_find_nothing_in_the_host() -> None:
    assert [problem for seed in SEEDS for problem in problems(short_storm(seed))] == []
