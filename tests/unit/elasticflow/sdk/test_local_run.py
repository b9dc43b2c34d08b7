"""A job in this process: what it refuses, how it ends, and which files it leaves."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from elasticflow import ElasticJob, InvalidJob, Scalar, Script, TrainingRefused, run_locally
from elasticflow.cli.app import app
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.training_interface import running_job

RUN = ("run", f"{__name__}:Line", "--iterations", "3", "--device", "cpu")


class Line(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "learning_rate": 0.1}
    max_iterations = 4
    virtual_nodes = 2

    def init_model(self):
        return nn.Linear(1, 1)

    def init_dataset(self):
        x = torch.linspace(-1, 1, 32).unsqueeze(1)
        return TensorDataset(x, 3 * x + 1)

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.hyperparameters["learning_rate"])

    def train(self, batch, model, optimizer):
        x, y = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss


class WritesFile(Line):
    def evaluate(self, model):
        (self.artifacts_folder / "report.txt").write_text("done")
        return {"error": 0.5}


class Fails(Line):
    def train(self, batch, model, optimizer):
        raise ValueError("no such column")


class Open(Line):
    virtual_nodes = 0


class NoLoss(Line):
    def train(self, batch, model, optimizer):
        return {"accuracy": "high"}


def eflow(*arguments: str) -> tuple[int, str, str]:
    assert callable(configure_logs), "imported before the runner replaces stderr, to which it writes"
    ran = CliRunner().invoke(app, list(arguments), prog_name="eflow")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.stdout, ran.stderr


def test_the_model_and_the_files_of_a_job_are_kept_where_wanted(tmp_path: Path, capfd) -> None:
    ended = run_locally(WritesFile(), out=tmp_path, device="cpu")
    assert (ended.iteration, ended.metrics["error"]) == (4, 0.5)
    assert torch.load(tmp_path / "model.pt").keys() == {"weight", "bias"}
    assert (tmp_path / "artifacts" / "report.txt").read_text() == "done"
    assert run_locally(WritesFile(), device="cpu").folder is None
    assert "the job's artifact folder, with 1 file, is dropped" in capfd.readouterr().err


@pytest.mark.parametrize(("every", "num_times"), [(2, 2), (3, 2), (0, 1)])
def test_the_last_of_four_steps_is_evaluated_once(every: int, num_times: int, monkeypatch) -> None:
    evaluated: list[int] = []

    def evaluate(job: Line, model: nn.Module) -> dict[str, float]:
        evaluated.append(int(job.iteration))
        return {"error": 0.5}

    monkeypatch.setattr(Line, "evaluate_every", every, raising=False)
    monkeypatch.setattr(Line, "evaluate", evaluate, raising=False)
    assert run_locally(Line(), device="cpu").metrics["error"] == 0.5
    assert len(evaluated) == num_times


def test_ctrl_c_ends_a_run_after_its_step() -> None:
    seen: list[int] = []

    def interrupt(iteration: int, _: object) -> None:
        seen.append(iteration)
        if iteration == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_locally(Line(), device="cpu", on_progress=interrupt)
    assert seen == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before
    assert running_job() is None, "sinks that are made later belong to no job"


def test_what_needs_a_pool_is_refused() -> None:
    with pytest.raises(InvalidJob, match="a script runs by itself"):
        run_locally(Script("train.py"))
    with pytest.raises(InvalidJob, match="points is at s3://bucket/points, which only nodes fetch"):
        run_locally(Line().set_data({"points": "s3://bucket/points"}))
    with pytest.raises(InvalidJob, match="points is not at /gone: name what is on this machine, --data NAME=PATH"):
        run_locally(Line().set_data({"points": "/gone"}))
    with pytest.raises(InvalidJob, match="virtual_nodes: Line has 2; leave 4 out"):
        run_locally(Line(), virtual_nodes=4)
    with pytest.raises(InvalidJob, match="max_iterations"):
        run_locally(Line().term_condition(max_iterations=0))
    with pytest.raises(TrainingRefused, match="return the loss, or a mapping of names to numbers"):
        run_locally(NoLoss(), device="cpu")


def test_the_command_trains_and_its_exit_code_says_whether_the_job_failed() -> None:
    code, out, _ = eflow(*RUN, "--json")
    assert code == 0
    assert json.loads(out).items() >= {"iteration": 3, "condition": "max_iterations", "folder": None}.items()
    code, _, err = eflow("run", f"{__name__}:Fails", "--device", "cpu")
    assert code == 1
    assert err.endswith("ValueError: no such column\nin iteration 0\n")
    assert "elasticflow/services" not in err, "frames of the engine hide those of the user"
    assert eflow("run", f"{__name__}:NoLoss", "--device", "cpu")[0] == 1
    assert eflow("run", f"{__name__}:Absent", "--device", "cpu")[0] == 2


def test_a_run_whose_bits_may_differ_from_those_of_a_pool_says_so() -> None:
    ran = ("run", f"{__name__}:Open", "--iterations", "2", "--device", "cpu")
    assert "of 8 virtual nodes; a pool may measure another number" in " ".join(eflow(*ran)[1].split())
    assert "a pool may measure" not in eflow(*ran, "--virtual-nodes", "2")[1]
    code, out, _ = eflow(*ran, "--virtual-nodes", "2", "--json")
    assert (code, json.loads(out)["virtual_nodes"]) == (0, 2)
