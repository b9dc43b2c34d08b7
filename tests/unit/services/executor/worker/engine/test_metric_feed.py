"""The sink gets each iteration once, in any sequence of leaders and repeated steps."""

from structlog.testing import capture_logs

from elasticflow.services.executor.worker.engine.step_metrics import MetricFeed


def test_each_iteration_is_fed_once_by_changing_leaders(tmp_path):
    fed = []
    first, second = (MetricFeed(lambda *step: fed.append(step), tmp_path / "job") for _ in range(2))
    for leader, iteration in ((first, 1), (first, 2), (second, 2), (second, 3), (first, 2), (first, 3), (first, 4)):
        leader.feed(iteration, {"loss": iteration / 2})
    assert fed == [(iteration, {"loss": iteration / 2}) for iteration in (1, 2, 3, 4)]


def test_the_state_before_the_first_step_and_lost_metrics_are_not_fed(tmp_path):
    fed = []
    feed = MetricFeed(lambda *step: fed.append(step), tmp_path)
    feed.feed(0, {})
    feed.feed(1, {})
    assert fed == []
    feed.feed(1, {"loss": 1.0})
    assert fed == [(1, {"loss": 1.0})]


def test_a_job_without_a_sink_writes_nothing(tmp_path):
    MetricFeed(None, tmp_path / "job").feed(1, {"loss": 1.0})
    assert not (tmp_path / "job").exists()


def test_a_sink_that_fails_is_named_in_the_log_and_stops_nothing(tmp_path):
    def fail(iteration, metrics):
        raise ConnectionError("the tracking server is away")

    with capture_logs() as logs:
        MetricFeed(fail, tmp_path).feed(7, {"loss": 1.0})
    assert logs[0]["event"] == "metrics_not_delivered"
    assert logs[0]["iteration"] == 7
    assert "the tracking server is away" in logs[0]["error"]
