"""The libraries of tracking services take what the adapters give them: MLflow in a folder, W&B without its service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticflow.adapters import tracking
from elasticflow.adapters.mlflow import MLflow, MLflowRuns
from elasticflow.adapters.wandb import WeightsAndBiases
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.training_interface import RunningJob, show_job

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningJob]:
    """The job in its first process, and in the next one."""
    monkeypatch.setattr(tracking, "INTERVAL_S", 0.01)
    monkeypatch.setattr("elasticflow.shared.training_interface._running", [])
    spec = JobSpec(
        training_function="digits:Digits",
        global_batch_size=32,
        max_iterations=4,
        hyperparameters={"learning_rate": 0.1},
        sweep="rates",
        owner="ann",
    )
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
    return (
        RunningJob(
            job_id="digits",
            identity="a" * 16,
            spec=spec,
            deadline_s=0.0,
            folder=tmp_path / str(number),
            num_gpus=number,
            leads=True,
        )
        for number in (1, 2)
    )


def feed(tracker: tracking.Tracker, job: RunningJob, first: int) -> None:
    """Two iterations, the last ones if the job has two GPUs."""
    show_job(job)
    for iteration in (first, first + 1):
        tracker(iteration, {"loss": 1 / iteration})
    sender = tracker._sender
    assert sender is not None
    job.has_finished = job.num_gpus == 2
    job.leads = False
    sender._thread.join(120)
    assert not sender._thread.is_alive()
    assert not sender._is_failing


def test_mlflow_has_one_run_of_two_processes(
    jobs: Iterator[RunningJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # and puts it back
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    uri = f"file://{tmp_path}/runs"
    for job, first in zip(jobs, (1, 3), strict=True):
        feed(MLflow(uri, experiment="digits"), job, first)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("digits").experiment_id], "tags.`elasticflow.job` = 'digits'"
    )
    points = {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in ("loss", "num_gpus")
    }
    assert points["loss"] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert points["num_gpus"] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert (run.info.status, run.data.params["learning_rate"]) == ("FINISHED", "0.1")
    assert client.get_run(run.data.tags["mlflow.parentRunId"]).info.run_name == "rates"
    capfd.readouterr()
    assert MLflowRuns(uri).write("a" * 16, {"promise": "kept"}, "failed")
    assert capfd.readouterr().out == "", "the command prints JSON"
    assert client.get_run(run.info.run_id).data.tags["elasticflow.promise"] == "kept"


def test_wandb_takes_two_processes_one_after_another(
    jobs: Iterator[RunningJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline there is one folder for each process; `wandb sync` joins them by the id of the run."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for job, first in zip(jobs, (1, 3), strict=True):
        feed(WeightsAndBiases("digits"), job, first)
    wandb.teardown()  # writes its files to the end
    files = sorted(tmp_path.glob("*/wandb/offline-run-*/run-*.wandb"))
    assert [file.name for file in files] == [f"run-{'a' * 16}.wandb"] * 2
    assert [b"0.25" in file.read_bytes() for file in files] == [False, True]
