"""What users' code is to a worker: the interface of a training function (ElasticFlow, Table 1), and its failure.

The users' base class, `elasticflow.ElasticJob`, implements this protocol; the worker does not import it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from elasticflow.shared.errors import Stop
from elasticflow.shared.messages.job_spec import Scalar
from elasticflow.shared.training_interface import OnStep, Stateful


@dataclass(eq=False)
class TrainingFailed(Stop):
    """The job cannot continue; the reason tells the user what to change."""

    reason: str

    MESSAGE: ClassVar[str] = "{reason}"


class TrainingFunction(Protocol):
    hyperparameters: Mapping[str, Scalar]
    iteration: int  # completed steps; set before each call of train
    is_over: bool  # set by train: the job ends after this step
    evaluate_every: int  # iterations; 0: only at the end
    evaluates_in_parts: bool  # on all workers, by evaluate_part

    @property
    def data_workers(
        self,
    ) -> int: ...  # processes that read ahead for one worker; 0: the worker reads

    shuffle: bool
    shuffle_window: int  # samples of partitioned data that are shuffled among each other
    reproducible: str  # "bitwise" or "fast"
    virtual_nodes: int  # 0: as the plan of a generation says, else by the batch
    find_unused_parameters: bool  # as in DistributedDataParallel
    on_step: OnStep | None  # gets each iteration and its metrics, on rank 0

    def init_model(self) -> nn.Module: ...
    def sharded_blocks(self, model: nn.Module) -> Iterable[nn.Module]: ...
    def init_dataset(self) -> Any: ...
    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...
    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any: ...
    def evaluate(self, model: nn.Module) -> Mapping[str, float]: ...
    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]: ...
    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]: ...
    def collate(self, samples: list[Any]) -> Any: ...
    def stateful(self) -> Mapping[str, Stateful]: ...
