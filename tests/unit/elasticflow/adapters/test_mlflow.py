"""One run a job in MLflow, on a client that behaves as MLflow's."""

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elasticflow.adapters import mlflow as adapter
from elasticflow.adapters.tracking import Point, Refused
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.training_interface import RunningJob


class MlflowException(Exception):
    def __init__(self, message: str, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class FakeClient:
    """Experiments, and runs with tags, parameters and the rows of their metrics."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, Any] = {}
        self.before_create: Callable[[], object] = lambda: None
        self._numbers = itertools.count(1)

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name: str) -> str:
        self.before_create()
        if name in self.experiments:
            raise MlflowException("it is there", "RESOURCE_ALREADY_EXISTS")
        self.experiments[name] = f"experiment-{name}"
        return self.experiments[name]

    def search_experiments(self, page_token: str | None) -> Any:
        """A page for each."""
        names = sorted(self.experiments)
        number = int(page_token or 0)

        class Page(list[Any]):
            token = str(number + 1) if number + 1 < len(names) else None

        return Page(SimpleNamespace(experiment_id=self.experiments[name]) for name in names[number : number + 1])

    def create_run(self, experiment_id: str, run_name: str, tags: Mapping[str, str] | None = None) -> Any:
        self.before_create()
        number = next(self._numbers)
        info = SimpleNamespace(
            run_id=f"run-{number}", start_time=number, run_name=run_name, status="RUNNING", experiment_id=experiment_id
        )
        data = SimpleNamespace(tags=dict(tags or {}), params={}, metrics=set())
        self.runs[info.run_id] = SimpleNamespace(info=info, data=data)
        return self.runs[info.run_id]

    def search_runs(self, experiment_ids: list[str], filter_string: str, order_by: list[str], max_results: int) -> Any:
        assert order_by == ["attributes.start_time ASC"]
        wanted = dict(part.removeprefix("tags.").split(" = ") for part in filter_string.split(" and "))
        found = [
            run
            for run in self.runs.values()
            if run.info.experiment_id in experiment_ids
            and all(run.data.tags.get(name.strip("`")) == value.strip("'") for name, value in wanted.items())
        ]
        return found[:max_results]

    def delete_run(self, run_id: str) -> None:
        del self.runs[run_id]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].info.status = status

    set_terminated = update_run

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.runs[run_id].data.tags[name] = value

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        if any(value != value for _, value, *_ in metrics):
            raise MlflowException("not a number", "INVALID_PARAMETER_VALUE")
        data = self.runs[run_id].data
        data.metrics |= set(metrics)
        data.params |= dict(params)
        data.tags |= dict(tags)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    entities, exceptions = ModuleType("mlflow.entities"), ModuleType("mlflow.exceptions")
    vars(entities).update(Metric=lambda *of: of, Param=lambda *of: of, RunTag=lambda *of: of)
    vars(exceptions)["MlflowException"] = MlflowException
    module = ModuleType("mlflow")
    vars(module)["MlflowClient"] = lambda tracking_uri: client
    for each in (module, entities, exceptions):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    for name in (*adapter._SETTINGS, "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"):  # which it sets
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    monkeypatch.setattr(adapter, "require_extra", lambda *_: None)
    return client


def job(tmp_path: Path, **more: Any) -> RunningJob:
    described = {"sweep": "rates", "swept": {"lr": 0.1}, "owner": "ann"}
    spec = JobSpec(training_function="digits:Digits", global_batch_size=32, max_iterations=10, **described)
    given = {"job_id": "digits", "identity": "a" * 16, "deadline_s": 0.0, **more}
    return RunningJob(spec=spec, folder=tmp_path, **given)


def points(*iterations: int) -> list[Point]:
    return [Point(at_s=float(n), iteration=n, metrics={"loss": 1 / n, "top(5)": 0.5}) for n in iterations]


def test_leaders_one_after_another_write_to_one_run(client: FakeClient, tmp_path: Path) -> None:
    first = adapter._MLflowRun("", "digits", job(tmp_path))
    first.write(points(1, 2))
    first.close(has_finished=False)
    second = adapter._MLflowRun("", "digits", job(tmp_path))
    second.write(points(2, 3))  # 2 is repeated: its answer was lost
    parent, run = client.runs.values()
    assert run.data.metrics == {
        (name, value, 1000 * n, n) for n in (1, 2, 3) for name, value in (("loss", 1 / n), ("top_5_", 0.5))
    }
    assert (run.info.run_name, run.info.status) == ("digits", "RUNNING")
    second.close(has_finished=True)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"global_batch_size": "32", "max_iterations": "10", "seed": "0", "lr": "0.1"}
    assert run.data.tags["elasticflow.deadline"] == "1970-01-01T00:00:00+00:00"
    assert run.data.tags["mlflow.user"] == "ann"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.run_name, parent.info.status) == ("rates", "FINISHED")


def test_a_job_of_the_same_name_has_its_own_run_and_the_sweep_one_parent(client: FakeClient, tmp_path: Path) -> None:
    adapter._MLflowRun("", "digits", job(tmp_path))
    adapter._MLflowRun("", "digits", job(tmp_path, identity="b" * 16))
    names = [run.info.run_name for run in client.runs.values()]
    assert sorted(names) == ["digits", "digits", "rates"]


def test_a_local_run_has_a_run_each_time(client: FakeClient, tmp_path: Path) -> None:
    for _ in range(2):
        adapter._MLflowRun("", "digits", job(tmp_path, job_id="local", identity=""))
    assert [run.info.run_name for run in client.runs.values()].count("local") == 2


def test_workers_of_two_jobs_make_one_experiment_and_one_parent_at_once(client: FakeClient, tmp_path: Path) -> None:
    def at_the_same_time() -> None:
        client.before_create = lambda: None
        adapter._MLflowRun("", "digits", job(tmp_path, job_id="other", identity="b" * 16))

    client.before_create = at_the_same_time
    adapter._MLflowRun("", "digits", job(tmp_path))
    client.experiments.clear()
    client.runs.clear()
    client.create_experiment("digits")
    client.before_create = at_the_same_time  # now both have looked for the parent
    adapter._MLflowRun("", "digits", job(tmp_path))
    assert sorted(run.info.run_name for run in client.runs.values()) == ["digits", "other", "rates"]
    parents = {run.data.tags.get("mlflow.parentRunId") for run in client.runs.values()} - {None}
    assert len(parents) == 1


def test_many_metrics_go_in_several_requests_and_a_wrong_one_is_refused(client: FakeClient, tmp_path: Path) -> None:
    run = adapter._MLflowRun("", "digits", job(tmp_path))
    run.write(points(*range(1, 1002)))
    assert len(client.runs[run._run_id].data.metrics) == 2002
    with pytest.raises(Refused, match="not a number"):
        run.write([Point(at_s=1.0, iteration=1, metrics={"loss": float("nan")})])


def test_what_the_pool_knows_is_written_into_the_run_that_is_there(client: FakeClient, tmp_path: Path) -> None:
    adapter._MLflowRun("", "digits", job(tmp_path))
    client.create_experiment("another")
    runs = adapter.MLflowRuns()
    assert runs.write("a" * 16, {"promise": "kept", "margin_s": "12.0"}, "cancelled")
    assert not runs.write("b" * 16, {"promise": "kept"}, "")
    assert not adapter.MLflowRuns("", "another").write("a" * 16, {}, "")
    assert not adapter.MLflowRuns("", "unknown").write("a" * 16, {}, "")
    run = client.runs["run-2"]
    assert (run.info.status, run.data.tags["elasticflow.promise"]) == ("KILLED", "kept")
