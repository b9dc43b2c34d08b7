"""Tensors that user code makes while it trains, and keeps, are named once."""

from typing import Any

import torch

from elasticflow.services.executor.worker.engine.kept_tensors import EVERY, KeptTensors


class Job:
    def __init__(self) -> None:
        self.weights = torch.ones(2)  # its code makes them again
        self.best: dict[str, torch.Tensor] = {}
        self.losses: list[torch.Tensor] = []
        self.last: Any = None


def test_tensors_that_stay_from_step_to_step_are_named_once() -> None:
    job, declared = Job(), torch.ones(3)
    kept = KeptTensors(job, lambda: {declared.untyped_storage()._cdata})
    told = dict[int, list[str]]()
    for iteration in range(3 * EVERY):
        if names := kept.newly_kept(iteration):
            told[iteration] = names
        job.last = torch.ones(1)  # of this step alone
        job.declared = declared  # type: ignore[attr-defined]
        if iteration == 5:
            job.best = {"weight": torch.ones(2)}
        if iteration > EVERY:
            job.losses.append(torch.ones(1))
    assert told == {EVERY + 1: ["self.best"], 2 * EVERY + 1: ["self.losses"]}


def test_tensors_that_were_there_are_named_once_when_a_step_has_changed_them_in_place() -> None:
    job = Job()
    job.last_losses, job.unchanged = torch.zeros(4), torch.zeros(4)  # type: ignore[attr-defined]
    kept = KeptTensors(job, set)
    told = dict[int, list[str]]()
    for iteration in range(3 * EVERY):
        if names := kept.newly_kept(iteration):
            told[iteration] = names
        job.last_losses[iteration % 4] = iteration  # type: ignore[attr-defined]
        if iteration > EVERY:
            job.weights += 1.0
    assert told == {1: ["self.last_losses"], 2 * EVERY + 1: ["self.weights"]}
