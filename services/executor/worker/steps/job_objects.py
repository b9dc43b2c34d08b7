"""The objects of a job that its user's class makes, the same in every process that computes for the job."""

from dataclasses import dataclass

import torch
from torch import nn

from elasticflow.services.executor.worker.data.dataset import DataSet, recognize, sample_order
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.sample_order import Order
from elasticflow.services.executor.worker.data.sample_readers import Reader, reader_of
from elasticflow.services.executor.worker.data.stream_reader import UnsizedReader
from elasticflow.services.executor.worker.data.streams import StreamOrder
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.steps.additional_state import AdditionalState
from elasticflow.services.executor.worker.steps.carried_gradients import CarriedGradients
from elasticflow.services.executor.worker.steps.gradient_scaling import refuse_gradient_scaling, with_scalers
from elasticflow.services.executor.worker.steps.plain_state import plain_state_of
from elasticflow.services.executor.worker.steps.random_seeds import Phase, seed_generators, seed_of
from elasticflow.services.executor.worker.steps.sharded_optimizer import ShardedOptimizer
from elasticflow.services.executor.worker.steps.training_function import TrainingFunction, in_users_code
from elasticflow.services.executor.worker.steps.user_code_checks import (
    refuse_later_groups,
    require_known_parameters,
    require_model,
    require_optimizer,
    require_stateful,
)
from elasticflow.shared.messages.job_spec import SCRIPT, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObjects:
    """With the initial weights."""

    function: TrainingFunction
    model: nn.Module
    optimizer: torch.optim.Optimizer
    additional: AdditionalState
    carried: CarriedGradients
    sharded: ShardedOptimizer | None  # None: each worker has all of the optimizer's state
    dataset: DataSet
    order: Order | StreamOrder

    def read_ahead(self, device: torch.device, cpu_throttle: CpuThrottle, *, num_processes: int) -> ReadAhead:
        if self.dataset.stream is not None:
            num_processes = min(num_processes, 1)  # each would read all of it
        return ReadAhead(
            self._reader(),
            self.order,
            stream=self.dataset.stream,
            num_processes=num_processes,
            device=device,
            cpu_throttle=cpu_throttle,
            begin_reading=self.dataset.begin_reading,
        )

    def _reader(self) -> Reader:
        if not isinstance(self.order, StreamOrder):
            return reader_of(self.dataset, self.order, self.function.collate)
        assert self.dataset.stream is not None, "it has such an order"
        return UnsizedReader(self.dataset.stream.iterable, self.order, self.function.collate)


def make_job_objects(function: TrainingFunction, spec: JobSpec, device: torch.device) -> JobObjects:
    """Raises TrainingFailed, and what the user's code raises."""
    seed_generators(seed_of(spec.seed, Phase.INITIALIZE))
    with in_users_code("while the model and the data set were made"):
        model = require_model(function.init_model()).to(device)
        dataset = recognize(function.init_dataset())
        optimizer = require_optimizer(function.init_optimizer(model))
        refuse_later_groups(optimizer)
        stateful, is_script = require_stateful(function.stateful()), spec.entry == SCRIPT
        if is_script:
            refuse_gradient_scaling()
        else:
            stateful = with_scalers(stateful, optimizer, device)
        additional = AdditionalState(stateful, optimizer, plain_state_of(function, stateful.values()))
        require_known_parameters(model, optimizer, additional.objects)
        sharded = ShardedOptimizer(optimizer) if spec.shard_optimizer else None
    order = sample_order(dataset, function, spec)
    return JobObjects(
        function=function,
        model=model,
        optimizer=optimizer,
        additional=additional,
        carried=CarriedGradients(model, optimizer, sees_backward=function.reproducible == "bitwise"),
        sharded=sharded,
        dataset=dataset,
        order=order,
    )
