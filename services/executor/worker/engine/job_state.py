"""The state of a job: what a checkpoint or a state transfer carries into the next generation, of any size.

It is whole at a step boundary. `StepBoundary` says whether a failed step can be rolled back, or completed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.data.dataset import DataSet, StreamOrder, recognize, sample_order
from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.sample_order import Order
from elasticflow.services.executor.worker.data.sample_readers import SampleReader, UnsizedReader, reader_of
from elasticflow.services.executor.worker.engine import user_code_checks
from elasticflow.services.executor.worker.engine.additional_state import (
    AdditionalSnapshot,
    AdditionalState,
    further_optimizers,
)
from elasticflow.services.executor.worker.engine.changed_attributes import ChangedAttributes, KnowsChanges
from elasticflow.services.executor.worker.engine.gradient_scaling import refuse_gradient_scaling, with_scalers
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.plain_state import ModelState, plain_state_of, records_of
from elasticflow.services.executor.worker.engine.restored_state import checkpoint_store
from elasticflow.services.executor.worker.engine.sharded_optimizer import ShardedOptimizer
from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.engine.undeclared_state import reachable_modules
from elasticflow.services.executor.worker.engine.unseen_changes import UnseenChanges
from elasticflow.services.executor.worker.engine.user_code_checks import (
    refuse_later_groups,
    require_known_parameters,
    require_model,
    require_optimizer,
    require_stateful,
)
from elasticflow.services.executor.worker.interface import TrainingFunction
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.users_process import PROCESS
from elasticflow.shared.messages.job_spec import SCRIPT, JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.training_interface import Stateful

if TYPE_CHECKING:  # its import takes half a second, and few jobs need it
    from elasticflow.services.executor.worker.engine.gang import Gang


@dataclass(kw_only=True)
class JobState:
    """iteration, is_over and is_evaluated describe the last step boundary, and so do metrics once they are settled."""

    assignment: Assignment
    model: nn.Module  # as the user made it
    stateful: Mapping[str, Stateful]  # all that outlives a generation, by name; the model first
    dataset: DataSet
    carried: CarriedGradients
    additional: AdditionalState
    gang: "Gang | None" = None  # holds the model together; None: this worker has all of it
    sharded: ShardedOptimizer | None = None  # owns a part of the optimizer's state; None: each worker has all of it
    iteration: int = 0  # steps done
    metrics: dict[str, float] = field(default_factory=dict)
    metric_names: tuple[str, ...] | None = None  # that train() returned in the first step
    is_over: bool = False  # some training function ended the job
    is_evaluated: bool = False  # at this iteration: an evaluation may change the job's state, so it is not repeated
    generation: int = 0

    @property
    def spec(self) -> JobSpec:
        return self.assignment.spec

    def state(self) -> dict[str, Any]:
        """Everything that a generation of any size needs; of divided tensors the rows of this worker, marked. The order
        of data follows from the iteration, that of a stream also from where it is."""
        self.check_state()
        state = {
            **{name: each.state_dict() for name, each in self.stateful.items()},
            "buffers": volatile_buffers(self.model),
            "gradients": self.carried.state(),
            "attributes": self.additional.changed_plain(),
            "records": self.additional.records_to_send(),
            "iteration": self.iteration,
            "is_evaluated": self.is_evaluated,
            "epoch": self.dataset.epoch_at(self.iteration, self.spec.global_batch_size),
            "samples": self.dataset.samples_digest,
            **({} if self.dataset.stream is None else {"stream": self.dataset.stream.state(self.iteration)}),
            "metrics": self.metrics,
        }
        return state if self.gang is None else self.gang.marked(state)

    def shared_state(self) -> dict[str, Any]:
        """What all workers have: without a sharded optimizer's state."""
        state = self.state()
        if self.sharded is not None:
            del state["optimizer"]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint, or of a worker that is ahead: then without this worker's part of a sharded
        state."""
        if self.sharded is not None and "optimizer" not in state:
            self.sharded.drop()
        if self.gang is not None:
            state = self.gang.unmarked(state)
        for name, each in self.stateful.items():
            if name in state:
                each.load_state_dict(state[name])
        self.carried.load(state.get("gradients", {}))
        load_volatile_buffers(self.model, state.get("buffers", {}))
        self.additional.set_plain(state.get("attributes", {}))
        self.additional.records.write(state.get("records", {}))
        self.iteration, self.metrics = state["iteration"], dict(state["metrics"])
        self.is_evaluated = state.get("is_evaluated", False)
        if self.dataset.stream is not None:
            self.dataset.stream.resume(state["stream"])

    def check_state(self) -> None:
        user_code_checks.require_readable_state(self.stateful)

    def checkpoint_store(self) -> CheckpointStore:
        """The job's checkpoints, as the present generation sees them."""
        return checkpoint_store(self.assignment, self.generation)

    def condition_met(self) -> Literal["max_iterations", "metric"] | None:
        """The condition that ends the job, if one is met."""
        if any(condition.is_met(self.metrics) for condition in self.spec.metric_conditions):
            return "metric"
        if self.iteration >= self.spec.max_iterations:
            return "max_iterations"
        return "metric" if self.is_over else None  # by a metric of its own

    def finite_metrics(self) -> dict[str, float]:
        """Raises TrainingFailed if there are more than an executor takes."""
        user_code_checks.require_few_metrics(self.metrics)
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}


def volatile_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that the model leaves out of its state_dict, by name: training may depend on them all the same."""
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set
    }


def load_volatile_buffers(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    for name, buffer in volatile_buffers(model).items():
        if name in state:
            buffer.copy_(state[name])


class StepStage(Enum):
    """How much of the state the present step has changed."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()  # nothing permanent
    CHANGING = auto()  # a part: the optimizer's step has begun
    CHANGED = auto()  # everything


class StepBoundary:
    """before_optimizer: runs before each permanent change within a step, and may raise to prevent it."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, additional: AdditionalState, before_optimizer: Callable[[], None]
    ) -> None:
        self._additional = additional
        self._before_optimizer = before_optimizer
        self._at_boundary: AdditionalSnapshot | None = None  # the last one
        self.stage = StepStage.BETWEEN_STEPS
        for each in (optimizer, *further_optimizers(additional).values()):
            each.register_step_pre_hook(self._optimizer_begins)

    def begin_step(self) -> None:
        self._at_boundary = self._additional.snapshot()
        self.stage = StepStage.COMPUTING

    def all_changed(self) -> None:
        """Note that only the agreement between the workers is missing."""
        self.stage = StepStage.CHANGED

    def end_step(self) -> None:
        self.stage = StepStage.BETWEEN_STEPS

    def restore_additional_state(self, begun: AdditionalSnapshot | None) -> None:
        """Restore the additional state, with the optimizer's settings. begun: when a script's loop began the step."""
        assert self._at_boundary is not None, "a step has begun"
        self._additional.restore(begun or self._at_boundary)

    def _optimizer_begins(self, *_: Any) -> None:
        if self.stage is not StepStage.BETWEEN_STEPS:
            self._before_optimizer()
        self.stage = StepStage.CHANGING


# --- job objects ---------------------------------------------------------------------------------------
# The objects of a job that its user's class makes, the same in every process that computes for the job.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObjects:
    """The objects of a job, with the initial weights."""

    function: TrainingFunction
    model: nn.Module
    optimizer: torch.optim.Optimizer
    additional: AdditionalState
    carried: CarriedGradients
    sharded: ShardedOptimizer | None  # None: each worker has all of the optimizer's state
    source: Any  # of the data set: what init_dataset() has returned
    dataset: DataSet
    order: Order | StreamOrder

    def unseen_changes(self) -> UnseenChanges:
        """Of a class: what the processes that read, which begin now, will not see."""
        known = [*self.model.modules(), self.optimizer, *self.additional.objects.values()]
        job = None if self.source is self.function else self.function
        return UnseenChanges(self.source, self.function.collate, known=known, job=job)

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

    def _reader(self) -> SampleReader:
        if not isinstance(self.order, StreamOrder):
            return reader_of(self.dataset, self.order, self.function.collate)
        assert self.dataset.stream is not None, "it has such an order"
        return UnsizedReader(self.dataset.stream.iterable, self.order, self.function.collate)


def make_job_objects(
    function: TrainingFunction, spec: JobSpec, device: torch.device, gang: "Gang | None" = None
) -> JobObjects:
    """gang: over which the model is divided. Raises TrainingFailed, and what the user's code raises."""
    seed_generators(seed_of(spec.seed, SeedPhase.INITIALIZE))
    is_script = spec.entry == SCRIPT
    with in_users_code("while the model and the data set were made"):
        PROCESS.phase = "in the script, before elastic()" if is_script else "in init_model()"
        model = require_model(function.init_model(), may_be_divided=gang is not None).to(device)
        if gang is not None:
            PROCESS.phase = "in sharded_blocks()"
            gang.shard_model(model, function.sharded_blocks(model))
        PROCESS.phase = "in init_dataset()"
        dataset = recognize(source := function.init_dataset())
        PROCESS.phase = "in init_optimizer()"
        optimizer = require_optimizer(function.init_optimizer(model))
        refuse_later_groups(optimizer)
        PROCESS.phase = "in stateful()"
        stateful = require_stateful(function.stateful())
        if is_script:
            refuse_gradient_scaling()
        else:
            stateful = with_scalers(stateful, optimizer, device)
        changed = _changed_attributes(function, model, stateful)
        of_model = () if is_script else (*ModelState(model, keeps_modes=False).namespaces, changed.namespace)
        plain = plain_state_of(function, stateful.values(), of_model)
        additional = AdditionalState(stateful, optimizer, plain, records_of(function), changed)
        require_known_parameters(model, optimizer, additional.objects)
        sharded = ShardedOptimizer(optimizer) if spec.shard_optimizer else None
        if gang is not None:
            gang.require_no_scaler(additional.objects)
            gang.require_divisible((optimizer, *further_optimizers(additional).values()))
    order = sample_order(dataset, function, spec)
    return JobObjects(
        function=function,
        model=model,
        optimizer=optimizer,
        additional=additional,
        carried=CarriedGradients(model, optimizer, sees_backward=function.reproducible == "bitwise"),
        sharded=sharded,
        source=source,
        dataset=dataset,
        order=order,
    )


def _changed_attributes(
    function: TrainingFunction, model: nn.Module, stateful: Mapping[str, Stateful]
) -> ChangedAttributes:
    """That of a script, which its plain state has, or one for the job's class."""
    if isinstance(function, KnowsChanges):
        return function.changed_attributes
    known = {id(each) for each in stateful.values()}
    inner = {id(each) for one in stateful.values() if isinstance(one, nn.Module) for each in one.modules()}
    return ChangedAttributes(model, reachable_modules(model, function, known), known | inner)
