"""A job class under pdb in a terminal: one step at a time, in the user's own process."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 120.0
JOB = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elasticflow


class Line(elasticflow.ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 5
    virtual_nodes = 1

    def init_model(self):
        return nn.Linear(1, 1)

    def init_dataset(self):
        points = torch.linspace(0, 1, 16).unsqueeze(1)
        return TensorDataset(points, 2 * points)

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch, model, optimizer):
        points, targets = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        return loss


if __name__ == "__main__":
    print("trained", elasticflow.run_locally(Line()).iteration)
"""
LOSS_LINE = 1 + JOB.splitlines().index("        loss.backward()")


class Terminal:
    """A command in a terminal: what it shows, and what its user types."""

    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._unread = ""

    def shows(self, text: str) -> str:
        """Wait for the text; what was shown until then."""
        while text not in self._unread:
            ready, _, _ = select.select([self._descriptor], [], [], WAIT_S)
            assert ready, f"no {text!r}: {self._unread}"
            try:
                read = os.read(self._descriptor, 65_536)
            except OSError:  # the command has ended
                read = b""
            assert read, f"ended without {text!r}: {self._unread}"
            self._unread += read.decode().replace("\r\n", "\n")
        before, _, self._unread = self._unread.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def asks(self, line: str) -> str:
        """Type a line at the prompt of the debugger; its answer."""
        self.type(line)
        return self.shows("(Pdb) ")


@contextmanager
def terminal(folder: Path, *command: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    here: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "dumb", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**here, **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "line.py").write_text(JOB)
    return tmp_path


def write(folder: Path, *, before: str, line: str) -> None:
    """The job with one more line."""
    (folder / "line.py").write_text(JOB.replace(before, f"{line}\n{before}"))


@pytest.mark.parametrize("command", [("line.py",), ("-m", "elasticflow", "run", "line.py")], ids=["python", "eflow"])
def test_pdb_steps_through_train_one_iteration_after_another(folder: Path, command: tuple[str, ...]) -> None:
    with terminal(folder, "-m", "pdb", *command) as user:
        user.shows("(Pdb) ")
        assert "Breakpoint 1 at" in user.asks(f"break {folder / 'line.py'}:{LOSS_LINE}")
        weights = []
        for iteration in range(3):
            assert f"line.py({LOSS_LINE})train()" in user.asks("continue")
            assert user.asks("p self.iteration").splitlines()[-1] == str(iteration)
            weights.append(user.asks("p model.weight.item()").splitlines()[-1])
            assert "optimizer.step()" in user.asks("next"), "one line further"
        assert len(set(weights)) == 3, "each step has changed the model"
        assert "line.py" in user.asks("where")
        user.asks("clear 1")
        user.type("continue")
        user.shows("trained 5" if command == ("line.py",) else "5 iterations")


def test_a_breakpoint_in_a_class_opens_the_debugger_and_the_run_goes_on(folder: Path) -> None:
    write(folder, before="        loss.backward()", line="        breakpoint()")
    with terminal(folder, "-m", "elasticflow", "run", "line.py", "--iterations", "2") as user:
        for iteration in range(2):
            assert f"line.py({LOSS_LINE + 1})train()" in user.shows("(Pdb) ")
            assert user.asks("p self.iteration").splitlines()[-1] == str(iteration)
            user.type("continue")
        user.shows("2 iterations")
        assert user.process.wait(WAIT_S) == 0


def test_a_class_may_ask_its_user_in_a_local_run(folder: Path) -> None:
    """In a pool, nobody would answer."""
    write(folder, before="        optimizer.zero_grad()", line="        input('go on? ')")
    with terminal(folder, "-m", "elasticflow", "run", "line.py", "--iterations", "2") as user:
        for _ in range(2):
            user.shows("go on? ")
            user.type("yes")
        user.shows("2 iterations")


def test_who_leaves_the_debugger_sees_no_traceback_of_the_engine(folder: Path) -> None:
    write(folder, before="        loss.backward()", line="        breakpoint()")
    with terminal(folder, "-m", "elasticflow", "run", "line.py") as user:
        user.shows("(Pdb) ")
        user.type("quit")
        rest = user.shows("eflow: left the debugger in iteration 0; nothing was kept")
        assert user.process.wait(WAIT_S) == 130
    assert "Traceback" not in rest
