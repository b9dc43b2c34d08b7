"""Commands on padding loads: what admission answers, with the numbers of the pool's idle windows."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.loads import MAX_LIVE_LOADS
from elasticflow.services.admission.policy import POLICY, replies
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelLoad, Command, OpenLoad, SealLoad
from elasticflow.shared.messages.load_spec import LoadSpec
from testbed.histories import NOW_S, History, pool, submit
from tests.support.worker_events import admitted, finished, joined, placed

PROTEINS = LoadSpec(task_function="jobs.fold:fold", task_s=10.9, overhead_s=2.8, start_stop_s=7.0)
IMAGES = replace(PROTEINS, task_s=0.025, overhead_s=0.9)
AFTER_S = NOW_S + 60.0


def opening(spec: LoadSpec = PROTEINS, load_id: str = "a", tenant: str = "lab") -> OpenLoad:
    return OpenLoad(load_id=load_id, tenant=tenant, spec=spec)


def sealing(num_tasks: int = 10, load_id: str = "a", tenant: str = "lab") -> SealLoad:
    return SealLoad(load_id=load_id, tenant=tenant, num_tasks=num_tasks)


def cancelling(load_id: str = "a", tenant: str = "lab") -> CancelLoad:
    return CancelLoad(load_id=load_id, tenant=tenant)


def said(history: History, command: Command, now_s: float = AFTER_S) -> Any:
    """The only event of the decision, recorded; None if there is none."""
    decided = history.decided(POLICY, command, now_s=now_s)
    assert len(decided) <= 1
    return decided[0] if decided else None


def test_a_load_that_pays_is_opened_with_the_share_that_the_idle_windows_predict() -> None:
    history = pool(2)
    assert history.state.idle_windows_at(AFTER_S, least_open_s=1.0) == [60.0, 60.0]
    opened = said(history, opening())
    assert isinstance(opened, events.LoadOpened)
    assert opened.useful_share == pytest.approx(3 * 10.9 / 60.0)


def test_the_ledger_says_how_the_client_of_a_load_names_it_on_the_bus() -> None:
    for by_identity in (True, False):
        history = pool(2)
        assert said(history, replace(opening(), by_identity=by_identity)).by_identity == by_identity
        load = history.state.loads["a"]
        assert load.bus_name == (f"a={load.identity}" if by_identity else "a")


def test_ended_windows_and_open_ones_count() -> None:
    history = pool(2).then(admitted(), placed(10, "node-0:0"), finished(10))
    assert sorted(history.state.idle_windows_at(AFTER_S, least_open_s=1.0)) == [10.0, 10.0, 60.0]


def test_an_open_window_that_is_shorter_than_a_task_says_nothing() -> None:
    assert said(pool(2), opening(replace(PROTEINS, task_s=61.0))).useful_share is None


def test_without_idle_windows_a_load_is_opened() -> None:
    assert said(pool(), opening(PROTEINS)).useful_share is None


def test_a_load_that_does_not_pay_is_rejected_with_the_task_that_would() -> None:
    history = pool(2)
    rejected = said(history, opening(IMAGES))
    assert isinstance(rejected, events.LoadRejected)
    assert rejected.reason == "useful_share"
    assert rejected.useful_share == pytest.approx(0.024, abs=0.001)
    assert rejected.best_task_s is not None
    would = replace(IMAGES, task_s=rejected.best_task_s)
    assert isinstance(said(history, opening(would)), events.LoadOpened)
    assert "tasks of 0.025 s would use 2.4% of the idle GPU time" in rejected.explanation
    assert set(history.state.loads) == {"a"}


def test_a_load_that_no_gpu_can_serve_is_rejected() -> None:
    history = pool().then(replace(joined("new", gpu_type="H100"), gpu_memory_bytes=80 << 30))
    needs = replace(PROTEINS, gpu_type="V100", memory_bytes=16 << 30)
    rejected = said(history, opening(needs))
    assert (rejected.reason, rejected.explanation) == (
        "needs",
        "its tasks need a GPU of type V100 with 16 GiB of memory, and the pool has H100 (80 GiB)",
    )
    too_large = said(history, opening(replace(PROTEINS, memory_bytes=81 << 30)))
    assert too_large.explanation.startswith("its tasks need a GPU with 81 GiB of memory, and the pool has")
    assert isinstance(said(history, opening(replace(needs, gpu_type="H100"))), events.LoadOpened)
    assert isinstance(said(pool(), opening(needs)), events.LoadOpened), "a node may join"


def test_a_load_that_fits_no_window_is_rejected_without_advice() -> None:
    history = pool(2).then(admitted(), placed(10, "node-0:0"), finished(10))
    rejected = said(history, opening(replace(PROTEINS, overhead_s=90.0)))
    assert (rejected.useful_share, rejected.best_task_s) == (0.0, None)
    assert "no length of a task would" in rejected.explanation


def test_a_load_that_would_pay_in_no_window_is_rejected_before_there_is_one() -> None:
    rejected = said(pool(), opening(IMAGES))
    assert (rejected.useful_share, rejected.best_task_s) == (None, None)
    assert "less than 10% of any idle GPU time" in rejected.explanation
    assert "its overhead of 0.9 s is too long for it" in rejected.explanation


def test_the_price_ratio_is_the_pools() -> None:
    assert isinstance(said(pool(2, padding_price_ratio=0.6), opening()), events.LoadRejected)
    assert isinstance(said(pool(2, padding_price_ratio=0.01), opening(IMAGES)), events.LoadOpened)


def test_an_equal_load_gets_the_same_reply_and_another_one_none_of_its_name() -> None:
    history = pool(2)
    first = said(history, opening())
    assert said(history, opening(), AFTER_S + 9.0) is None
    assert replies(history.state, (opening(),), ()) == (first,)
    for other in (opening(IMAGES), opening(tenant="other")):
        assert said(history, other).reason == "duplicate"


def test_a_tenant_has_a_limited_number_of_live_loads() -> None:
    history = pool(2)
    for number in range(MAX_LIVE_LOADS):
        assert isinstance(said(history, opening(load_id=f"load-{number}")), events.LoadOpened)
    assert said(history, opening()).reason == "limit"
    assert isinstance(said(history, opening(tenant="other")), events.LoadOpened)
    said(history, cancelling("load-3"))
    assert isinstance(said(history, opening(load_id="b")), events.LoadOpened)


def test_a_load_is_sealed_once() -> None:
    history = pool(2)
    said(history, opening())
    sealed = said(history, sealing())
    assert sealed == events.LoadSealed(load_id="a", num_tasks=10, at_s=AFTER_S)
    assert said(history, sealing(), AFTER_S + 9.0) is None
    assert replies(history.state, (sealing(),), ()) == (sealed,)
    assert said(history, sealing(11)).explanation == "it is sealed with 10 tasks"


def test_a_cancelled_load_stays_so() -> None:
    history = pool(2)
    said(history, opening())
    cancelled = said(history, cancelling())
    assert isinstance(cancelled, events.LoadCancelled)
    assert said(history, cancelling(), AFTER_S + 9.0) is None
    assert replies(history.state, (cancelling(),), ()) == (cancelled,)
    assert said(history, opening()) is None
    assert replies(history.state, (opening(),), ()) == (cancelled,), "it is not open again"
    assert said(history, sealing()).explanation == "it is cancelled"
    assert said(history, opening(IMAGES)).reason == "duplicate"


@pytest.mark.parametrize("command", [sealing(tenant="other"), cancelling(tenant="other"), sealing(load_id="b")])
def test_a_load_of_another_tenant_is_no_load(command: Command) -> None:
    history = pool(2)
    said(history, opening())
    rejected = said(history, command)
    assert isinstance(rejected, events.SealRejected | events.CancelLoadRejected)
    assert "has no such load" in rejected.explanation


def test_decisions_on_jobs_are_the_same_with_and_without_loads() -> None:
    without, beside = pool(4), pool(4)
    said(beside, opening())
    jobs = submit("job", deadline_s=AFTER_S + 100.0)
    assert said(without, jobs) == said(beside, jobs)
