"""Jobs and scripts that do something to their process in one iteration. Imported, and started, by workers only."""

import getpass
import multiprocessing
import os
import pdb
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_functions import Points

import elasticflow


def _returns_in_child() -> None:
    if (pid := os.fork()) > 0:
        os.waitpid(pid, 0)


def _exits_in_child() -> None:
    if (pid := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def _raises_in_child() -> None:
    if (pid := os.fork()) == 0:
        raise RuntimeError("only the child")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _starts_processes() -> None:
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
    DEEDS["starts_processes"] = lambda: None  # once is enough: a part of a batch takes its time


def _waits_for_timer() -> None:
    signal.alarm(1)
    time.sleep(60.0)


def _reads_empty_input() -> None:
    assert sys.stdin.read() == ""
    assert not list(sys.stdin)
    assert sys.stdin.readline() == ""


def _raises() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


DEEDS = {
    "sys.exit()": lambda: sys.exit(),
    "sys.exit(0)": lambda: sys.exit(0),
    "sys.exit(3)": lambda: sys.exit(3),
    "sys.exit('no data')": lambda: sys.exit("no data"),
    "exit()": lambda: exit(),
    "quit(2)": lambda: quit(2),
    "input": lambda: input("go on? "),
    "getpass": getpass.getpass,
    "breakpoint": lambda: [breakpoint(), None],  # a debugger stops at the next line, or at the end of the function
    "pdb": lambda: [pdb.set_trace(), None],
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(7)": lambda: os._exit(7),
    "returns_in_child": _returns_in_child,
    "exits_in_child": _exits_in_child,
    "raises_in_child": _raises_in_child,
    "starts_processes": _starts_processes,
    "alarm": _waits_for_timer,
    "reads": _reads_empty_input,
    "raises": _raises,
    "interrupts": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
}
ITERATION = 4


class Ends(Points):
    """hyperparameters: deed: what it does in iteration 4; mode: "bitwise" or "fast"."""

    reproducible = property(lambda self: self.hyperparameters.get("mode", "bitwise"))  # pyright: ignore

    def train(self, batch, model, optimizer):
        if self.iteration == ITERATION:
            DEEDS[self.hyperparameters["deed"]]()
        return super().train(batch, model, optimizer)


def _samples() -> TensorDataset:
    points = torch.linspace(0, 1, 64).unsqueeze(1)
    return TensorDataset(points, 2 * points)


def elastic() -> None:
    """Does DEED in iteration 4; behind the loop with the word `behind`."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if sys.argv[3:] == ["before"]:
        DEEDS[sys.argv[2]]()
    loader = elasticflow.elastic(DataLoader(_samples(), batch_size=8), model, optimizer)
    for _ in loader.epochs(1000):
        for points, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), targets).backward()
            if loader.iteration == ITERATION and not sys.argv[3:]:
                DEEDS[sys.argv[2]]()
            optimizer.step()
    if sys.argv[3:] == ["behind"]:
        DEEDS[sys.argv[2]]()


def torchrun() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    points, targets = _samples().tensors
    for iteration in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), targets).backward()
        if iteration == ITERATION:
            DEEDS[sys.argv[2]]()
        optimizer.step()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
