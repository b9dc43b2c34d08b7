"""One worker's training, one step at a time.

The user's class sees one device and its part of the batch. The mean over the global batch, the other workers
and the state that outlives this generation are looked after here, between its calls.
"""

import math
import random  # noqa: TID251 - users' code may draw from it, so it is seeded like the others
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore, state_of, unreadable_types
from services.executor.worker.data_order import DataOrder, local_slice
from services.executor.worker.device import claim, finish_work, moved
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
from shared.messages.job import JobSpec
from shared.messages.worker_channel import Assignment

_LOOK_S = 0.2  # for a checkpoint that the shared storage does not show yet


@dataclass(kw_only=True)
class Trainer:
    spec: JobSpec
    function: TrainingFunction
    model: nn.Module  # as the user made it
    parallel_model: nn.Module  # as the user's train() gets it
    optimizer: torch.optim.Optimizer
    batches: Iterator[Any]
    dataset_size: int
    device: torch.device
    members: Membership
    pacer: Pacer
    telemetry: Telemetry
    checkpoints: CheckpointStore | None  # rank 0's, None for the others and for a pre-run
    iteration: int = 0  # steps done
    metrics: dict[str, float] = field(default_factory=dict)
    metric_names: tuple[str, ...] = ()  # what train() returned in the first step

    @property
    def is_rank_0(self) -> bool:
        return self.members.rank == 0

    def step(self, *, stop: bool) -> bool:
        """One iteration on the global batch. True if some worker was told to stop."""
        batch = moved(next(self.batches), self.device)
        _seed(self.spec.seed, self.iteration, self.members.rank)
        self.function.iteration = self.iteration
        self.model.train()
        with in_users_code(f"in iteration {self.iteration}"):
            returned = self.function.train(batch, self.parallel_model, self.optimizer)
            local_means = as_metrics(returned)
            finish_work(self.device)
        self.pacer.pace()
        self._check_names(tuple(local_means))
        agreement = self.members.agree(stop=stop, local_means=list(local_means.values()))
        self.metrics |= dict(zip(self.metric_names, agreement.means, strict=True))
        self._check_loss()
        self.iteration += 1
        self.telemetry.step_ended(self.iteration, self.metrics)
        return agreement.stop

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

    def _check_names(self, names: tuple[str, ...]) -> None:
        """Workers that sent vectors of different length to each other would end without a word."""
        if not self.metric_names:
            self.metric_names = self.members.from_rank_0(names)
        if names != self.metric_names:
            raise TrainingFailed(
                f"train() returned the metrics {', '.join(names)} in iteration {self.iteration}, "
                f"but {', '.join(self.metric_names)} in the first; return the same ones each time"
            )

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
    _seed(spec.seed)
    with in_users_code("while the model and the data set were made"):
        model = function.init_model().to(device)
        dataset = function.init_dataset()
        optimizer = function.init_optimizer(model)
    dataset_size = _checked_size(dataset, spec, assignment.world_size)

    members = join(assignment, channel, store, pacer)
    checkpoints = None
    if assignment.rank == 0 and assignment.purpose == "train":
        checkpoints = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)
    content = _newest(checkpoints, assignment) if checkpoints else None
    content = members.from_rank_0(content)
    state = state_of(content) if content else {"iteration": 0, "metrics": {}}
    if content:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    order = DataOrder(seed=spec.seed, dataset_size=dataset_size, global_batch_size=spec.global_batch_size)
    local = local_slice(spec.global_batch_size, rank=assignment.rank, world_size=assignment.world_size)
    loader = DataLoader(
        dataset,
        batch_sampler=order.local_batches(local, iteration=state["iteration"]),  # pyright: ignore[reportArgumentType]
        collate_fn=function.collate,
        num_workers=function.data_workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(spec.seed),  # or it would draw from the global one
    )
    return Trainer(
        spec=spec,
        function=function,
        model=model,
        parallel_model=members.wrap(model, device, find_unused_parameters=function.find_unused_parameters),
        optimizer=optimizer,
        batches=iter(loader),
        dataset_size=dataset_size,
        device=device,
        members=members,
        pacer=pacer,
        telemetry=telemetry,
        checkpoints=checkpoints,
        iteration=state["iteration"],
        metrics=state["metrics"],
    )


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


def _seed(*key: int) -> None:
    """All generators that users draw from, as a function of the key."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
