"""In a pool with one tenant, profiles that belong to it change no decision."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages.events import PlanDecided, SnapshotSaved
from elasticflow.simulator.pipeline.cluster import Scenario, VirtualCluster
from testbed.simulated_runs import random_scenario, services
from tests.support.rings import few_daily

OWNED = "elasticflow.shared.runtime.service.command_queue.owned"


def decisions(scenario: Scenario, seed: int) -> list[Any]:
    """All messages of the ledger; keys of profiles without their owner, and no digests of the bytes."""
    with VirtualCluster(scenario, services, seed=seed) as cluster:
        cluster.run(3_600.0)
    return [_plain(entry.message) for entry in cluster.entries]


def _plain(message: Any) -> Any:
    if isinstance(message, PlanDecided):
        return replace(message, events=tuple(map(_plain, message.events)), chain="")
    if isinstance(message, SnapshotSaved):  # of a state that names owners
        return replace(message, snapshot="")
    key = getattr(message, "profile_key", None)
    return message if key is None else replace(message, profile_key=key.removeprefix("lab/"))


@pytest.mark.parametrize(
    ("seed", "curves_known"),
    few_daily([(0, True), (1, False), (0, False), (1, True), (2, True), (2, False)], 2),
)
def test_one_tenant_gets_the_decisions_of_a_pool_without_owners(
    seed: int, curves_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = random_scenario(seed, curves_known=curves_known)
    with_owner = decisions(scenario, seed)
    with monkeypatch.context() as without:
        without.setattr(OWNED, lambda command: command)
        assert decisions(scenario, seed) == with_owner
