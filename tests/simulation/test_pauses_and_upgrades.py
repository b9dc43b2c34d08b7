"""Processes that stop and go on with what they knew, and pools whose planners are upgraded one after the other.

Each of the two faults finds a defect that the others do not find.
"""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.pipeline.cluster import Faults
from elasticflow.simulator.pipeline.nodes import VirtualNode
from elasticflow.simulator.pipeline.simulated_process import is_of_planner, is_of_upgraded
from testbed.simulated_runs import SHORT_STORM, UPGRADE, problems, random_scenario, run_to_rest, short_storm

UPGRADE_SEEDS = range(505, 509)
LONG_JOB_SEEDS = range(500, 504)
PAUSES = Faults(node_pause_every_s=15.0, max_outage_s=25.0, until_s=60.0)
PARTITIONS = replace(PAUSES, node_pause_every_s=None, partition_every_s=15.0)
WITHOUT_UPGRADE = replace(SHORT_STORM, upgrade_within_s=None)


class PlansOverUnreadable(Host[Any]):
    """A planner of the previous version passes over the decisions of a newer one."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], **options: Any) -> None:
        super().__init__(context, policy, **options)
        self._guard._check_plan = lambda pool, chain: None  # pyright: ignore[reportPrivateUsage]


def found(make_host: type[Host[Any]], faults: Faults) -> list[str]:
    """What short storms find."""
    return [problem for seed in UPGRADE_SEEDS for problem in problems(short_storm(seed, make_host, faults))]


def found_in_long_jobs(faults: Faults) -> list[str]:
    """What faults find while jobs train; the first run in which two generations of a job train ends there."""
    problems_found: list[str] = []
    for seed in LONG_JOB_SEEDS:
        scenario = random_scenario(seed, num_jobs=3, num_nodes=3, max_iterations=1_500, mean_gap_s=3.0)
        try:
            problems_found += problems(run_to_rest(scenario, seed, faults, longest_s=900.0))
        except AssertionError as error:
            problems_found.append(str(error))
    return problems_found


def test_an_upgrade_finds_a_planner_that_decides_over_what_it_cannot_read() -> None:
    problems_found = found(PlansOverUnreadable, UPGRADE)
    assert any(each.startswith("no planner decides over a decision that it cannot read") for each in problems_found)
    assert found(PlansOverUnreadable, WITHOUT_UPGRADE) == []


def test_both_versions_decide_during_an_upgrade() -> None:
    """The test above would say little about planners that never decided."""
    clusters = [short_storm(seed, faults=UPGRADE) for seed in UPGRADE_SEEDS]
    assert [problem for cluster in clusters for problem in problems(cluster)] == []
    decisions = [record for cluster in clusters for record in cluster.records if is_of_planner(record)]
    assert {is_of_upgraded(record) for record in decisions} == {False, True}


def test_a_pause_finds_workers_that_do_not_end_with_their_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partitioned executor kills its workers in time; a stopped one cannot."""
    assert found_in_long_jobs(PAUSES) == []
    monkeypatch.setattr(VirtualNode, "extend_leases", lambda node, until_s: None)
    assert any("begins to train while" in problem for problem in found_in_long_jobs(PAUSES))
    assert found_in_long_jobs(PARTITIONS) == []
