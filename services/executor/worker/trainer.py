"""One worker's training, one step at a time.

The user's class sees one device and parts of the batch. The mean over the global batch, the other workers
and the state that outlives this generation are looked after here, between its calls.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from services.executor.worker.bitwise import BitwiseSteps
from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore, state_of, unreadable_types
from services.executor.worker.data_order import DataOrder
from services.executor.worker.device import claim, finish_work, moved, prepare_thread
from services.executor.worker.fast import FastSteps
from services.executor.worker.loading import Parts, load, seed_generators
from services.executor.worker.membership import Membership, join, open_rendezvous
from services.executor.worker.pacing import Pacer
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.training_function import (
    TrainingFailed,
    TrainingFunction,
    as_metrics,
    in_users_code,
    load_training_function,
)
from services.executor.worker.virtual_nodes import Phase, VirtualNodes, default_count, seed_of
from shared.messages.job import JobSpec
from shared.messages.worker_channel import Assignment

_LOOK_S = 0.2  # for a checkpoint that the shared storage does not show yet


class Steps(Protocol):
    """How the calls of train() in one step become one step of the whole job."""

    model: nn.Module  # as the user's train() gets it
    computed: range  # virtual nodes, one call for each

    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def changed_buffers(self) -> list[list[float]]: ...
    def combine_buffers(self, changed: Sequence[int]) -> None: ...


@dataclass(kw_only=True)
class Trainer:
    spec: JobSpec
    function: TrainingFunction
    model: nn.Module  # as the user made it
    optimizer: torch.optim.Optimizer
    steps: Steps
    batches: Iterator[Any]  # one for each virtual node computed here, step by step
    dataset_size: int
    device: torch.device
    members: Membership
    pacer: Pacer
    telemetry: Telemetry
    checkpoints: CheckpointStore | None  # rank 0's, None for the others and for a pre-run
    iteration: int = 0  # steps done
    metrics: dict[str, float] = field(default_factory=dict)
    metric_names: tuple[str, ...] | None = None  # what train() returned in the first step

    @property
    def is_rank_0(self) -> bool:
        return self.members.rank == 0

    def step(self, *, stop: bool) -> bool:
        """One iteration on the global batch. True if some worker was told to stop."""
        batches = [moved(next(self.batches), self.device) for _ in self.steps.computed]
        self.function.iteration = self.iteration
        self.model.train()
        with in_users_code(f"in iteration {self.iteration}"):
            returned = self.steps.run(self.iteration, [partial(self._train, batch) for batch in batches])
            finish_work(self.device)
        self.pacer.pace()
        names = self._checked_names([tuple(metrics) for metrics in returned])
        agreement = self.members.agree(
            stop=stop,
            rows=[
                (*metrics.values(), *changed)
                for metrics, changed in zip(returned, self.steps.changed_buffers(), strict=True)
            ],
        )
        means, changed_somewhere = agreement.means[: len(names)], agreement.means[len(names) :]
        self.steps.combine_buffers([index for index, part in enumerate(changed_somewhere) if part > 0])
        self.metrics |= dict(zip(names, means, strict=True))
        self._check_loss()
        self.iteration += 1
        self.telemetry.step_ended(self.iteration, self.metrics)
        return agreement.stop

    def _train(self, batch: Any) -> dict[str, float]:
        return as_metrics(self.function.train(batch, self.steps.model, self.optimizer))

    def evaluation_is_due(self) -> bool:
        every = self.function.evaluate_every
        return every > 0 and self.iteration % every == 0

    def evaluate(self) -> None:
        """Rank 0 evaluates, all workers know the result: conditions on it are met everywhere at once."""
        if self.is_rank_0:
            self.evaluate_here()
        self.metrics = self.members.from_rank_0(self.metrics)

    def evaluate_here(self) -> None:
        self.model.eval()
        seed_generators(seed_of(self.spec.seed, Phase.EVALUATE, iteration=self.iteration))
        with in_users_code(f"in evaluate after iteration {self.iteration}"), torch.no_grad():
            measured = self.function.evaluate(self.model)
            self.metrics |= {str(name): float(value) for name, value in measured.items()}
        self.pacer.pace()

    def condition_met(self) -> Literal["max_iterations", "metric"] | None:
        if any(condition.is_met(self.metrics) for condition in self.spec.metric_conditions):
            return "metric"
        return "max_iterations" if self.iteration >= self.spec.max_iterations else None

    def finite_metrics(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}

    def state(self) -> dict[str, Any]:
        """Everything that a generation of any size needs; the data order follows from the iteration."""
        self.check_state()
        return {
            "iteration": self.iteration,
            "epoch": self.iteration * self.spec.global_batch_size // self.dataset_size,
            "metrics": self.metrics,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def check_state(self) -> None:
        """A state that cannot be read back must fail the job now, not at its first resize."""
        for part, state in (("model", self.model), ("optimizer", self.optimizer)):
            if names := unreadable_types(state.state_dict()):
                raise TrainingFailed(
                    f"the {part}'s state holds {', '.join(sorted(names))}: checkpoints carry tensors and "
                    "plain numbers only; use float(...) or int(...)"
                )

    def _checked_names(self, returned: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Workers that sent vectors of different length to each other would end without a word."""
        expected = self.metric_names
        if expected is None:
            self.metric_names = expected = self.members.from_rank_0(returned[0])
        for names in returned:
            if names != expected:
                raise TrainingFailed(
                    f"train() returned the metrics {', '.join(names)} in iteration {self.iteration}, "
                    f"but {', '.join(expected)} in the first; return the same ones each time"
                )
        return expected

    def _check_loss(self) -> None:
        loss = self.metrics.get("loss", 0.0)
        if not math.isfinite(loss):
            rate = self.function.hyperparameters.get("learning_rate", "not set")
            raise TrainingFailed(
                f"the loss is {loss} in iteration {self.iteration}: lower the learning rate (it is {rate}), "
                "clip the gradients, or look for bad samples"
            )


def set_up(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> Trainer:
    """Build model, data and optimizer, meet the other workers, take over the state of the job."""
    spec = assignment.spec
    device = claim(assignment)
    pacer = Pacer(assignment.cpu_share)
    store = open_rendezvous(assignment, channel)
    function = load_training_function(spec, assignment.code_path)
    seed_generators(seed_of(spec.seed, Phase.INITIALIZE))
    with in_users_code("while the model and the data set were made"):
        model = function.init_model().to(device)
        dataset = function.init_dataset()
        optimizer = function.init_optimizer(model)
    dataset_size = _checked_size(dataset, spec, assignment.world_size)
    virtual_nodes = _virtual_nodes(function, spec, assignment.world_size)

    members = join(assignment, channel, store, pacer, virtual_nodes)
    checkpoints = None
    if assignment.rank == 0 and assignment.purpose == "train":
        checkpoints = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)
    content = _newest(checkpoints, assignment) if checkpoints else None
    content = members.from_rank_0(content)
    state = state_of(content) if content else {"iteration": 0, "metrics": {}}
    if content:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    if function.reproducible == "bitwise":
        members.share_state(model)
        steps = BitwiseSteps(
            model,
            optimizer,
            virtual_nodes=virtual_nodes,
            rank=assignment.rank,
            world_size=assignment.world_size,
            job_seed=spec.seed,
            pacer=pacer,
            on_thread_start=partial(prepare_thread, device),
        )
    else:
        steps = FastSteps(
            model,
            members=members,
            device=device,
            job_seed=spec.seed,
            find_unused_parameters=function.find_unused_parameters,
        )
    order = DataOrder(seed=spec.seed, dataset_size=dataset_size, virtual_nodes=virtual_nodes)
    return Trainer(
        spec=spec,
        function=function,
        model=model,
        optimizer=optimizer,
        steps=steps,
        batches=load(
            Parts(dataset, function.collate, spec.seed),
            order.parts(steps.computed, iteration=state["iteration"]),
            num_processes=function.data_workers,
            pin_memory=device.type == "cuda",
        ),
        dataset_size=dataset_size,
        device=device,
        members=members,
        pacer=pacer,
        telemetry=telemetry,
        checkpoints=checkpoints,
        iteration=state["iteration"],
        metrics=state["metrics"],
    )


def _virtual_nodes(function: TrainingFunction, spec: JobSpec, world_size: int) -> VirtualNodes:
    """How the job's batch is cut: for life, unless the fast mode cuts it anew for each number of workers."""
    if function.reproducible == "fast":
        return VirtualNodes(count=world_size, global_batch_size=spec.global_batch_size)
    if function.reproducible != "bitwise":
        raise TrainingFailed(f'reproducible: must be "bitwise" or "fast", not {function.reproducible!r:.80}')
    count = function.virtual_nodes or default_count(spec.global_batch_size)
    if not 1 <= count <= spec.global_batch_size:
        raise TrainingFailed(
            f"virtual_nodes: must be from 1 to global_batch_size ({spec.global_batch_size}), not {count}"
        )
    return VirtualNodes(count=count, global_batch_size=spec.global_batch_size)


def _newest(checkpoints: CheckpointStore, assignment: Assignment) -> bytes | None:
    """None if the job has none yet. Work that the ledger counts as done must not be done again in silence."""
    give_up_s = time.monotonic() + assignment.checkpoint_wait_s
    while (content := checkpoints.newest(at_least=assignment.checkpoint_iteration)) is None:
        if assignment.checkpoint_iteration == 0:
            return None
        if time.monotonic() >= give_up_s:
            raise TrainingFailed(
                f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in "
                f"{assignment.checkpoint_dir}: EF_DATA_DIR must be the same storage on all nodes of the pool"
            )
        time.sleep(_LOOK_S)
    return content


def _checked_size(dataset: Any, spec: JobSpec, world_size: int) -> int:
    try:
        size = len(dataset)
    except TypeError as error:
        raise TrainingFailed("init_dataset() must return a map-style data set with a length") from error
    if spec.global_batch_size > size:
        raise TrainingFailed(
            f"global_batch_size: {spec.global_batch_size} is more than the data set's {size} samples; lower it"
        )
    if world_size > spec.global_batch_size:
        raise TrainingFailed(
            f"{world_size} workers cannot share a global batch of {spec.global_batch_size} samples"
        )
    return size
