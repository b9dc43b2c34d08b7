"""The joblib backend without a pool: its registration, the number of jobs, and calls that cannot be sent."""

import sys

import joblib
import pytest

import elasticflow
from elasticflow.sdk.joblib_backend import ElasticFlowBackend


def test_the_backend_is_known_once_it_is_registered():
    elasticflow.register_joblib()
    with joblib.parallel_config(backend="elasticflow", tenant="lab", task_s=0.5) as config:
        assert isinstance(config["backend"], ElasticFlowBackend)


def test_a_missing_joblib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(
        elasticflow.MissingExtra,
        match=r"needs the extra `joblib` \(joblib is not installed\): pip install --editable '\.\[joblib\]'",
    ):
        elasticflow.register_joblib()


@pytest.mark.parametrize(
    ("num_gpus", "n_jobs", "expected"), [(8, -1, 8), (8, None, 8), (8, -3, 6), (1, -1, 2), (8, 3, 3)]
)
def test_the_number_of_jobs_is_that_of_the_gpus(num_gpus, n_jobs, expected, monkeypatch):
    monkeypatch.setattr(ElasticFlowBackend, "_num_gpus", num_gpus)
    assert ElasticFlowBackend().effective_n_jobs(n_jobs) == expected


def test_no_jobs_are_refused():
    with pytest.raises(ValueError, match="has no meaning"):
        ElasticFlowBackend().effective_n_jobs(0)


def test_an_error_of_a_call_that_is_not_sent_is_in_its_future():
    elasticflow.register_joblib()
    with (
        joblib.parallel_config(backend="elasticflow", nats_url="nats://nowhere", n_jobs=2),
        pytest.raises(elasticflow.PackagingFailed, match="<lambda> cannot be imported"),
    ):
        joblib.Parallel()(joblib.delayed(lambda x: x)(x) for x in range(3))
