"""The user's evaluation of the model: by rank 0 for all workers, or each virtual node's part by the worker that has it.

Each pass of the model counts as progress, because an evaluation may take longer than a job may stand still.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from elasticflow.services.executor.worker.process.device import allowing_other_kernels
from elasticflow.services.executor.worker.steps.random_seeds import Phase, seed_generators, seed_of
from elasticflow.services.executor.worker.steps.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.steps.training_function import TrainingFunction, in_users_code


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Of one job's model. seed: of the job. progressed: tells that the job is not stalled."""

    function: TrainingFunction
    model: nn.Module
    seed: int
    progressed: Callable[[], None]

    def together(self, iteration: int, members: GenerationMembers, metrics: Mapping[str, float]) -> dict[str, float]:
        """A collective: rank 0's metrics and those of the evaluation, the same on all workers."""
        if self.function.evaluates_in_parts:
            return {**metrics, **self._in_parts(iteration, members)}
        mine = {**metrics, **(self.here(iteration) if members.rank == 0 else {})}
        members.await_all()
        return members.from_rank_0(mine)

    def here(self, iteration: int) -> dict[str, float]:
        """In this process, without its peers."""
        with self._in_evaluation_mode(iteration):
            return _numbers(self.function.evaluate(self.model))

    def _in_parts(self, iteration: int, members: GenerationMembers) -> dict[str, float]:
        num_parts = members.virtual_nodes.count
        with self._in_evaluation_mode(iteration):
            rows = [_numbers(self.function.evaluate_part(self.model, part, num_parts)) for part in members.block]
        members.await_all()
        sums = members.sums(rows)
        with in_users_code(f"in metrics_of_sums after iteration {iteration}"):
            return _numbers(self.function.metrics_of_sums(sums))

    @contextmanager
    def _in_evaluation_mode(self, iteration: int) -> Iterator[None]:
        self.model.eval()
        seed_generators(seed_of(self.seed, Phase.EVALUATE, iteration=iteration))
        passes = self.model.register_forward_hook(lambda *_: self.progressed())
        try:
            where = in_users_code(f"in evaluate after iteration {iteration}")
            with where, allowing_other_kernels(), torch.no_grad():
                yield
        finally:
            passes.remove()


def _numbers(measured: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(value) for name, value in measured.items()}
