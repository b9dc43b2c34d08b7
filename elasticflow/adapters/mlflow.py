"""Jobs in MLflow: the extra `mlflow`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from elasticflow.adapters.tracking import Point, Refused, Tracker, description_of, parameters_of
from elasticflow.shared.extras import require_extra
from elasticflow.shared.training_interface import RunningJob

_TAG = "elasticflow."  # begins the names of our tags
_IDENTITY, _SWEEP = f"{_TAG}identity", f"{_TAG}sweep_of"
_MAX_METRICS = 1000  # in one request, by MLflow's rule
_SETTINGS = {  # of MLflow: else one attempt takes minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_PERMANENT = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "REQUEST_LIMIT_EXCEEDED")


class MLflow(Tracker):
    """A sink: `on_step = MLflow("http://mlflow:5000", experiment="digits")`.

    uri, experiment: "": those of the variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME in the workers. The job
    has one run, whichever workers lead; the jobs of a sweep are children of one.
    """

    def __init__(self, uri: str = "", *, experiment: str = "") -> None:
        super().__init__("mlflow", partial(_MLflowRun, uri, experiment))


class _MLflowRun:
    def __init__(self, uri: str, experiment: str, job: RunningJob) -> None:
        self._client = client = _client(uri)
        experiment_id = _experiment_id(client, experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "") or "Default")
        tags = {f"{_TAG}{name}": value for name, value in description_of(job).items()}
        tags["mlflow.source.name"] = job.spec.training_function
        if job.spec.owner:
            tags["mlflow.user"] = job.spec.owner
        if job.spec.sweep:
            sweep = f"{job.spec.owner}/{job.spec.sweep}"
            parent = tags["mlflow.parentRunId"] = _run_id(client, experiment_id, {_SWEEP: sweep}, job.spec.sweep)
            client.update_run(parent, status="FINISHED")  # it has children, and never runs
        if job.identity:
            self._run_id = _run_id(client, experiment_id, {_IDENTITY: job.identity}, job.job_id)
        else:
            self._run_id = client.create_run(experiment_id, run_name=job.job_id).info.run_id
        from mlflow.entities import Param, RunTag  # pyright: ignore[reportMissingImports]

        client.update_run(self._run_id, status="RUNNING")
        parameters = [Param(_name(name), value) for name, value in parameters_of(job.spec).items()]
        for first in range(0, len(parameters), 100):
            client.log_batch(self._run_id, params=parameters[first : first + 100])
        client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def write(self, points: Sequence[Point]) -> None:
        """A repeated metric has the same time and value, so MLflow keeps one."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

        metrics = (
            Metric(_name(name), value, int(point.at_s * 1000), point.iteration)
            for point in points
            for name, value in point.metrics.items()
        )
        try:
            while some := list(islice(metrics, _MAX_METRICS)):
                self._client.log_batch(self._run_id, metrics=some)
        except MlflowException as error:
            if error.error_code in _PERMANENT:
                raise Refused(str(error)) from error
            raise

    def close(self, *, has_finished: bool) -> None:
        if has_finished:
            self._client.set_terminated(self._run_id, "FINISHED")


class MLflowRuns:
    """The runs of jobs, for who knows more of a job than its workers do. experiment: "": all."""

    def __init__(self, uri: str = "", experiment: str = "") -> None:
        require_extra("mlflow", "eflow track mlflow")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a command's JSON is there
        self._client = _client(uri)
        self._experiment = experiment

    def write(self, identity: str, words: Mapping[str, str], ending: str) -> bool:
        """ending: "finished", "failed", "cancelled", or "" of a live job. Returns whether the job has a run."""
        found = list(_found(self._client, self._experiment_ids(), {_IDENTITY: identity}))
        for run in found[:1]:
            for name, value in words.items():
                if run.data.tags.get(f"{_TAG}{name}") != value:
                    self._client.set_tag(run.info.run_id, f"{_TAG}{name}", value)
            status = {"finished": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}.get(ending)
            if status is not None and run.info.status != status:
                self._client.set_terminated(run.info.run_id, status)
        return bool(found)

    def _experiment_ids(self) -> list[str]:
        if self._experiment:
            found = self._client.get_experiment_by_name(self._experiment)
            return [] if found is None else [found.experiment_id]
        return [each.experiment_id for each in _pages(self._client.search_experiments)]


def _client(uri: str) -> Any:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    return MlflowClient(tracking_uri=uri or None)


def _experiment_id(client: Any, name: str) -> str:
    """Made if there is none; the worker of another job may make it at the same time."""
    if (found := client.get_experiment_by_name(name)) is None:
        try:
            return client.create_experiment(name)
        except Exception:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def _run_id(client: Any, experiment_id: str, tags: Mapping[str, str], name: str) -> str:
    """Of the oldest run with these tags, made if there is none.

    An answer may be lost, and workers of two jobs may make the parent at once: the oldest stays.
    """
    if (first := next(_found(client, [experiment_id], tags), None)) is not None:
        return first.info.run_id
    made = client.create_run(experiment_id, tags=dict(tags), run_name=name).info.run_id
    first = next(_found(client, [experiment_id], tags), None)
    if first is None or first.info.run_id == made:
        return made
    client.delete_run(made)
    return first.info.run_id


def _found(client: Any, experiment_ids: list[str], tags: Mapping[str, str]) -> Iterator[Any]:
    """The oldest first."""
    if experiment_ids:
        matching = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        runs = client.search_runs(experiment_ids, matching, order_by=["attributes.start_time ASC"], max_results=100)
        yield from sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def _pages(search: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        if not (token := page.token):
            return


def _name(name: str) -> str:
    """With the characters that MLflow allows in names of metrics and parameters."""
    return re.sub(r"[^\w\-. /:]", "_", name)[:250] or "_"
