"""Given jobs without a promise, when the allocator decides, then they get what promises leave, by the pool's rule."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from testbed.histories import NOW_S, History, best_effort, pool, submit

ONE = {"max_gpus": 1}


def submitted(
    history: History, job_id: str, at_s: float = NOW_S, tenant: str = "lab", **changes: Any
) -> dict[str, int]:
    """The shares after a submission without a deadline."""
    command = SubmitJob(job_id=job_id, tenant=tenant, spec=best_effort(**changes))
    history.decided(ADMISSION, command, now_s=at_s)
    return shares(history, at_s)


def shares(history: History, at_s: float) -> dict[str, int]:
    """Those after the next decision of allocator and placement; what is placed trains."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    for job in list(history.state.live_jobs.values()):
        if job.gpus and job.started_at_s is None and not job.stopping:
            history.started(job.job_id, at_s=at_s)
    return {id_: job.num_gpus for id_, job in sorted(history.state.live_jobs.items()) if job.num_gpus}


def test_a_shorter_job_waits_until_the_running_one_has_paid_for_its_start() -> None:
    history = pool(1, resize_cost_s=1.0, best_effort_run_factor=9.0)
    assert submitted(history, "long", max_iterations=1000) == {"long": 1}
    assert submitted(history, "short", NOW_S + 2.0) == {"long": 1}
    assert history.state.allocation_valid_until_s == NOW_S + 10.0
    assert shares(history, NOW_S + 10.0) == {"short": 1}


def test_a_long_job_that_waited_three_times_its_length_is_next() -> None:
    history = pool(1, resize_cost_s=0.0)
    assert submitted(history, "long", max_iterations=200) == {"long": 1}
    assert submitted(history, "short") == {"short": 1}
    history.finished("short", at_s=NOW_S + 599.0)
    assert submitted(history, "fresh", NOW_S + 599.0) == {"fresh": 1}
    assert history.state.allocation_valid_until_s == NOW_S + 600.0
    assert shares(history, NOW_S + 600.0) == {"long": 1}
    assert submitted(history, "later", NOW_S + 601.0, max_iterations=10) == {"long": 1}


def test_a_tenant_gets_its_share_of_the_gpus() -> None:
    history = pool(4, best_effort="fair", quotas={"small": TenantQuota(weight=1.0), "lab": TenantQuota(weight=3.0)})
    for number in range(4):
        submitted(history, f"small-{number}", tenant="small", **ONE)
    assert len(shares(history, NOW_S)) == 4
    assert submitted(history, "lab-0", NOW_S + 1.0) == {"lab-0": 2, "small-0": 1, "small-1": 1}
    assert submitted(history, "lab-1", NOW_S + 2.0) == {"lab-0": 2, "lab-1": 1, "small-0": 1}


def test_jobs_of_a_tenant_share_by_priority() -> None:
    history = pool(6, best_effort="fair")
    submitted(history, "low")
    assert submitted(history, "high", priority=3.0) == {"high": 4, "low": 2}


def test_promises_come_before_fair_shares() -> None:
    history = pool(4, best_effort="fair")
    submitted(history, "spare")
    history.decided(ADMISSION, submit("promised", max_iterations=380, deadline_s=NOW_S + 100.0))
    assert shares(history, NOW_S) == {"promised": 4}


@pytest.mark.parametrize("rule", ["shortest-first", "fair", "elastic-tiresias"])
def test_promised_jobs_are_allocated_alike_under_each_rule(rule: str) -> None:
    history, usual = pool(8, best_effort=rule), pool(8)
    for each in (history, usual):
        for number in range(3):
            command = submit(f"job-{number}", max_iterations=150, deadline_s=NOW_S + 200.0 + 50 * number)
            each.decided(ADMISSION, command)
    (decided,), (expected,) = (each.decided(ALLOCATOR, now_s=NOW_S) for each in (history, usual))
    assert decided == expected


def test_padding_has_what_no_other_job_takes() -> None:
    history = pool(1)
    history.decided(ADMISSION, submit("padding", job_class=JobClass.PADDING, deadline_s=None, max_iterations=10))
    assert shares(history, NOW_S) == {"padding": 1}
    assert submitted(history, "long", max_iterations=1000) == {"long": 1}
