"""The Prometheus series of a pool: each names its service and pool, and ends with its job."""

from prometheus_client import generate_latest

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.monitor.service import PoolGauges
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.state.finish_time import promised_finish_s
from testbed.histories import NOW_S, pool, submit
from tests.support.two_types import two_types
from tests.support.worker_events import admitted, placed

WHERE = 'pool="lab",service="monitor"'


def series(metrics: Metrics, name: str) -> dict[str, float]:
    """Labels and values of the samples of one metric."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    samples = (line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith(name + "{"))
    return {labels: float(value) for labels, value in samples}


def test_the_series_of_a_job_end_with_it() -> None:
    metrics, history = Metrics("monitor", "lab"), pool(4)
    gauges = PoolGauges(metrics)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 300.0))
    gauges.update(history.state, NOW_S)
    assert series(metrics, "ef_gpus") == {f"{{{WHERE}}}": 4.0}
    assert series(metrics, "ef_job_gpus") == {f'{{job_id="a",{WHERE}}}': 0.0}
    assert series(metrics, "ef_jobs") == {f'{{phase="admitted",{WHERE}}}': 1.0}

    history.decided(POLICY, CancelJob(job_id="a", tenant="lab", reason=""))
    gauges.update(history.state, NOW_S)
    assert series(metrics, "ef_job_gpus") == {}
    assert series(metrics, "ef_jobs") == {f'{{phase="cancelled",{WHERE}}}': 1.0}


def test_the_margin_of_a_waiting_job_is_that_of_its_promise_and_falls_once_that_is_over() -> None:
    metrics, history = Metrics("monitor", "lab"), pool(4)
    history.decided(POLICY, submit("a", deadline_s=NOW_S + 300.0))
    job = history.state.live_jobs["a"]
    finish_s = promised_finish_s(job)
    assert finish_s is not None
    for now_s, expected_s in ((NOW_S, finish_s), (NOW_S + 400.0, NOW_S + 400.0)):
        PoolGauges(metrics).update(history.state, now_s)
        assert series(metrics, "ef_job_margin_seconds") == {f'{{job_id="a",{WHERE}}}': NOW_S + 300.0 - expected_s}
        metrics = Metrics("monitor", "lab")


def test_a_waiting_job_at_risk_has_no_margin_but_is_named() -> None:
    risk = events.JobAtRisk(
        job_id="a", generation=0, projected_finish_s=NOW_S + 130.0, deadline_s=NOW_S + 100.0, at_s=NOW_S + 20.0
    )
    metrics, history = Metrics("monitor", "lab"), pool(4).then(admitted(), risk)
    PoolGauges(metrics).update(history.state, NOW_S + 30.0)
    assert series(metrics, "ef_job_margin_seconds") == {}
    assert series(metrics, "ef_job_at_risk") == {f'{{job_id="a",{WHERE}}}': 1.0}


def test_idle_time_counts_by_cause_from_update_to_update_and_windows_when_they_end() -> None:
    metrics, history = Metrics("monitor", "lab"), pool(4)
    gauges = PoolGauges(metrics)
    gauges.update(history.state, NOW_S)
    gauges.update(history.state, NOW_S + 5.0)
    assert series(metrics, "ef_gpus_idle")[f'{{cause="no_demand",{WHERE}}}'] == 4.0
    assert series(metrics, "ef_idle_gpu_seconds_total")[f'{{cause="no_demand",{WHERE}}}'] == 20.0

    history.then(admitted(), placed(7, "node-0:0", "node-0:1"))
    gauges.update(history.state, NOW_S + 8.0)
    assert series(metrics, "ef_idle_window_seconds_sum") == {f"{{{WHERE}}}": 14.0}
    assert series(metrics, "ef_idle_window_seconds_count") == {f"{{{WHERE}}}": 2.0}
    assert series(metrics, "ef_gpus_idle")[f'{{cause="no_demand",{WHERE}}}'] == 0.0


def test_gpus_are_counted_by_type_where_a_pool_has_several() -> None:
    metrics, history = Metrics("monitor", "lab"), two_types(slow=2).then(admitted(), placed(1, "node-1:0"))
    PoolGauges(metrics).update(history.state, NOW_S)
    labels = [f'{{gpu_type="{name}",{WHERE}}}' for name in ("P100", "V100")]
    assert series(metrics, "ef_gpus_by_type") == dict(zip(labels, (2.0, 4.0), strict=True))
    assert series(metrics, "ef_gpus_used_by_type") == dict(zip(labels, (1.0, 0.0), strict=True))
    alone = Metrics("monitor", "lab")
    PoolGauges(alone).update(pool(4).state, NOW_S)
    assert series(alone, "ef_gpus_by_type") == {}
