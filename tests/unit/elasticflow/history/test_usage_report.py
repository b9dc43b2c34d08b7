"""GPU-hours, decisions, promises and cost of tenants, from constructed ledgers."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.history.usage_report import NoPrice, TenantUsage, UsageFold, total_of
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import AmendJob, CancelJob
from testbed.histories import NOW_S, History, pool, submit
from testbed.page_ledger import page_history, recorded


def usage(
    history: History, *, since_s: float = NOW_S, until_s: float = NOW_S + 1_000.0, prices: Any = None
) -> dict[str, TenantUsage]:
    fold = UsageFold(since_s=since_s, until_s=until_s)
    for stored, message in recorded(history):
        fold.fold(stored.sequence, stored.stored_at_s, message)
    assert fold.usage(prices) == fold.usage(prices), "a report changes nothing"
    return {row.tenant: row for row in fold.usage(prices)}


def columns(row: TenantUsage) -> dict[str, int]:
    """What has become of the promises."""
    return {name: getattr(row, f"num_{name}") for name in ("kept", "broken", "failed", "cancelled", "live")}


def trained(history: History, job_id: str, *, tenant: str = "lab", at_s: float, **changes: Any) -> None:
    """Admitted and placed at at_s."""
    history.decided(ADMISSION, submit(job_id, tenant, **changes), now_s=at_s)
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    assert history.state.live_jobs[job_id].gpus


def test_each_tenant_has_the_time_of_the_gpus_that_its_jobs_hold() -> None:
    history = pool(4)
    trained(history, "a", at_s=NOW_S + 10.0, min_gpus=2, max_gpus=2)
    trained(history, "b", tenant="shop", at_s=NOW_S + 20.0, min_gpus=1, max_gpus=1, deadline_s=NOW_S + 500.0)
    history.finished("a", at_s=NOW_S + 60.0)
    rows = usage(history, until_s=NOW_S + 110.0)
    assert rows["lab"].gpu_hours == pytest.approx(2 * 50.0 / 3_600.0)
    assert rows["shop"].gpu_hours == pytest.approx(90.0 / 3_600.0), "it still runs at the end of the period"
    total = total_of(rows.values())
    assert total.gpu_hours == pytest.approx(190.0 / 3_600.0)
    assert total.num_admitted == 2


def test_only_the_period_counts() -> None:
    history = pool(4)
    trained(history, "a", at_s=NOW_S + 10.0, min_gpus=2, max_gpus=2)
    history.finished("a", at_s=NOW_S + 60.0)
    row = usage(history, since_s=NOW_S + 30.0, until_s=NOW_S + 50.0)["lab"]
    assert row.gpu_hours == pytest.approx(2 * 20.0 / 3_600.0)
    assert (row.num_admitted, row.num_kept) == (0, 0)
    row = usage(history, since_s=NOW_S + 30.0)["lab"]
    assert (row.num_admitted, row.num_kept) == (0, 1)
    assert usage(history, since_s=NOW_S + 70.0)["lab"].gpu_hours == 0.0


def test_hours_and_cost_are_by_the_type_of_the_node() -> None:
    history = History().configured()
    for number, gpu_type in enumerate(("V100", "P100")):
        joined = events.NodeJoined(
            node_id=f"node-{number}",
            incarnation=f"first-{number}",
            num_gpus=2,
            device="cuda",
            gpu_type=gpu_type,
            at_s=NOW_S,
        )
        history.then(joined)
    for gpu_type in ("V100", "P100"):
        trained(history, f"on-{gpu_type}", at_s=NOW_S + 10.0, min_gpus=2, max_gpus=2, gpu_type=gpu_type)
    rows = usage(history, until_s=NOW_S + 1_810.0, prices={"V100": 3.0, "": 1.0})
    assert rows["lab"].gpu_hours_by_type == pytest.approx({"P100": 1.0, "V100": 1.0})
    assert rows["lab"].cost == pytest.approx(4.0)
    assert total_of(rows.values()).cost == pytest.approx(4.0)
    with pytest.raises(NoPrice, match="no price for P100"):
        usage(history, prices={"V100": 3.0})
    assert usage(history)["lab"].cost is None


def test_decisions_and_promises_are_counted() -> None:
    row = usage(page_history(), until_s=NOW_S + 60.0)["lab"]
    assert (row.num_admitted, row.num_rejected) == (4, 1)
    assert columns(row) == {"kept": 1, "broken": 0, "failed": 1, "cancelled": 0, "live": 2}
    row = usage(page_history(), until_s=NOW_S + 180.0)["lab"]
    assert columns(row) == {"kept": 1, "broken": 1, "failed": 1, "cancelled": 0, "live": 1}, "one deadline has passed"


@pytest.mark.parametrize(("since_s", "broken"), [(0.0, 1), (100.0, 1), (110.0, 0)])
def test_a_promise_is_broken_when_its_deadline_passes(since_s: float, broken: int) -> None:
    history = pool(4)
    trained(history, "a", at_s=NOW_S)
    history.finished("a", at_s=NOW_S + 120.0)
    row = usage(history, since_s=NOW_S + since_s, until_s=NOW_S + 500.0)["lab"]
    assert (row.num_kept, row.num_broken, row.num_earlier) == (0, broken, int(since_s == 100.0))


def test_what_ended_before_its_deadline_is_failed_or_cancelled_and_after_it_broken() -> None:
    history = pool(8)
    for job_id in ("failed", "cancelled", "late", "given-up"):
        trained(history, job_id, at_s=NOW_S, min_gpus=1, max_gpus=2)
    for job_id, at_s in (("failed", 50.0), ("late", 150.0)):
        generation = history.state.live_jobs[job_id].generation
        history.then(events.JobFailed(job_id=job_id, generation=generation, error="", at_s=NOW_S + at_s))
    for job_id, at_s in (("cancelled", 60.0), ("given-up", 160.0)):
        history.decided(ADMISSION, CancelJob(job_id=job_id, tenant="lab", reason=""), now_s=NOW_S + at_s)
    row = usage(history)["lab"]
    assert columns(row) == {"kept": 0, "broken": 2, "failed": 1, "cancelled": 1, "live": 0}
    assert (row.num_admitted, row.num_promised) == (4, 4)


def test_an_amended_job_is_admitted_once() -> None:
    history = pool(4)
    trained(history, "a", at_s=NOW_S)
    amend = AmendJob(job_id="a", tenant="lab", deadline_s=NOW_S + 900.0, max_iterations=None)
    (answer,) = history.decided(ADMISSION, amend, now_s=NOW_S + 5.0)
    assert isinstance(answer, events.JobAmended)
    history.finished("a", at_s=NOW_S + 120.0)
    row = usage(history)["lab"]
    assert (row.num_admitted, row.num_kept, row.num_broken) == (1, 1, 0)


def test_a_job_that_was_rejected_twice_counts_twice() -> None:
    history = pool(4)
    for at_s, max_iterations in ((NOW_S, 100_000), (NOW_S + 1.0, 200_000)):
        (answer,) = history.decided(ADMISSION, submit("a", max_iterations=max_iterations), now_s=at_s)
        assert isinstance(answer, events.JobRejected)
    assert usage(history)["lab"].num_rejected == 2


def test_a_ledger_without_jobs_has_no_tenant() -> None:
    assert usage(pool(4)) == {}
    empty = total_of(())
    assert replace(empty, tenant="") == TenantUsage(
        tenant="",
        gpu_hours=0,
        gpu_hours_by_type={},
        num_admitted=0,
        num_rejected=0,
        num_promised=0,
        num_earlier=0,
        num_kept=0,
        num_broken=0,
        num_failed=0,
        num_cancelled=0,
        num_live=0,
    )


def test_a_job_whose_name_is_used_again_still_counts_and_the_later_one_for_itself() -> None:
    history = pool(4)
    trained(history, "han", at_s=NOW_S + 10.0, min_gpus=2, max_gpus=2)
    job = history.state.live_jobs["han"]
    history.then(events.JobFailed(job_id="han", generation=job.generation, error="boom", at_s=NOW_S + 20.0))
    identity = history.state.ended_jobs["han"].identity
    too_long = replace(submit("han", max_iterations=100_000, deadline_s=NOW_S + 200.0), replaces=identity)
    history.decided(ADMISSION, too_long, now_s=NOW_S + 21.0)
    assert columns(usage(history)["lab"])["failed"] == 1, "a rejection leaves the failed job as it is"
    later = replace(submit("han", max_iterations=50, deadline_s=NOW_S + 200.0), replaces=identity)
    history.decided(ADMISSION, later, now_s=NOW_S + 22.0)
    row = usage(history, until_s=NOW_S + 25.0)["lab"]
    assert (row.num_admitted, row.num_promised) == (2, 2)
    assert columns(row) == {"kept": 0, "broken": 0, "failed": 1, "cancelled": 0, "live": 1}
    history.decided(ADMISSION, CancelJob(job_id="han", tenant="lab"), now_s=NOW_S + 30.0)
    row = usage(history)["lab"]
    assert columns(row) == {"kept": 0, "broken": 0, "failed": 1, "cancelled": 1, "live": 0}
    assert row.gpu_hours == pytest.approx(2 * 10.0 / 3_600.0)
    later_only = usage(history, since_s=NOW_S + 25.0)["lab"]
    assert (later_only.num_admitted, later_only.num_earlier, later_only.num_cancelled) == (0, 1, 1)
