"""One worker's training, one step at a time.

The user's class sees one device and parts of the batch. The mean over the global batch, the other workers
and the state that outlives this generation are looked after here, between its calls.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from services.executor.worker import requirements
from services.executor.worker.checkpoint import CheckpointStore
from services.executor.worker.data_set import DataSet
from services.executor.worker.device import MemoryExceeded, finish_work, is_out_of_memory
from services.executor.worker.fingerprint import fingerprint
from services.executor.worker.groups import PeerLost, retire
from services.executor.worker.handover import HandOver, hand_over
from services.executor.worker.loading import seed_generators
from services.executor.worker.meeting import Invitation, Met
from services.executor.worker.membership import Agreement, Membership
from services.executor.worker.optimizer_settings import Settings, restore, settings_of
from services.executor.worker.pacing import Pacer
from services.executor.worker.read_ahead import ReadAhead
from services.executor.worker.steps import Steps
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.stragglers import Stragglers
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.training_function import (
    Stateful,
    TrainingFunction,
    as_metrics,
    in_users_code,
    virtual_nodes_of,
)
from services.executor.worker.virtual_nodes import MicroBatch, Phase, VirtualNodes, seed_of
from shared.messages.job import JobSpec
from shared.messages.to_worker import Assignment


class _Stage(Enum):
    """Of a step, as far as what it has changed can be told from what it has not."""

    BETWEEN = auto()
    COMPUTING = auto()  # nothing that stays has changed
    CHANGING = auto()  # the optimizer or later: some of it has
    CHANGED = auto()  # all of it has


@dataclass(kw_only=True)
class Trainer:
    assignment: Assignment
    function: TrainingFunction
    model: nn.Module  # as the user made it
    optimizer: torch.optim.Optimizer
    stateful: Mapping[str, Stateful]  # all that outlives a generation, by name; the model first
    dataset: DataSet
    device: torch.device
    pacer: Pacer
    telemetry: Telemetry
    stopwatch: Stopwatch
    members: Membership
    make_steps: Callable[[Membership], Steps]
    reading: ReadAhead
    checkpoints: CheckpointStore | None = None  # rank 0's, None for the others and for a pre-run
    iteration: int = 0  # steps done
    metrics: dict[str, float] = field(default_factory=dict)
    metric_names: tuple[str, ...] | None = None  # what train() returned in the first step
    is_over: bool = False  # some training function wants no more steps
    generation: int = 0  # as whose worker it trains
    steps: Steps = field(init=False)
    _stragglers: Stragglers = field(default_factory=Stragglers)
    _is_evaluated: bool = False  # at this iteration
    _has_agreed_on_names: bool = False  # in this generation
    _settings_before: Settings = ()  # of the optimizer, at the beginning of the step
    _stage: "_Stage" = field(default_factory=lambda: _Stage.BETWEEN)

    def __post_init__(self) -> None:
        def optimizer_begins(*_: Any) -> None:
            if self._stage is _Stage.COMPUTING:
                self.members.check()
            self._stage = _Stage.CHANGING

        self.optimizer.register_step_pre_hook(optimizer_begins)
        self.steps = self.make_steps(self.members)

    @property
    def spec(self) -> JobSpec:
        return self.assignment.spec

    @property
    def is_rank_0(self) -> bool:
        return self.members.rank == 0

    def step(self, *, stop: bool, coming: Invitation | None = None) -> Agreement:
        """One iteration on the global batch, and what all workers agree on at its end.

        coming: the generation to which this worker could go over then.
        """
        self.stopwatch.start()
        batches = self._batches(coming)
        self._settings_before = settings_of(self.optimizer)
        self._stage = _Stage.COMPUTING
        self.function.iteration = self.iteration
        self.model.train()
        returned = self._compute([partial(self._train, batch) for batch in batches])
        own_s = self.stopwatch.seconds()
        self.pacer.pace()
        changed_here = self.steps.changed_buffers()
        if not any(map(any, changed_here)) and not self.spec.metric_conditions:
            self._stage = _Stage.CHANGED
        names = self._agreed_names([tuple(metrics) for metrics in returned])
        agreement = self.members.agree(
            stop=stop,
            over=self.function.is_over,
            ready_for=coming.generation if coming else 0,
            fingerprint=self._fingerprint(),
            own_s=own_s,
            rows=[
                (*metrics.values(), *changed) for metrics, changed in zip(returned, changed_here, strict=True)
            ],
        )
        means, changed_somewhere = agreement.means[: len(names)], agreement.means[len(names) :]
        self.steps.combine_buffers([index for index, part in enumerate(changed_somewhere) if part > 0])
        self.metrics |= dict(zip(names, means, strict=True))
        requirements.finite_loss(self.metrics, self.function.hyperparameters, self.iteration)
        requirements.same_everywhere(agreement.same, self.iteration, self.steps.model)
        self.iteration += 1
        self.is_over = agreement.over
        self._is_evaluated = False
        self._stage = _Stage.BETWEEN
        self.telemetry.step_ended(self.iteration, self.metrics)
        if self.is_rank_0 and (straggler := self._stragglers.found(agreement.own_s, time.monotonic())):
            self.telemetry.lags(straggler.rank, straggler.slowdown)
        return agreement

    def _batches(self, coming: Invitation | None) -> list[Any]:
        """This step's, one for each micro-batch computed here; the next one's are read meanwhile."""
        next_share: tuple[MicroBatch, ...] = ()
        if coming is not None and coming.stays:
            next_share = self._virtual_nodes_in(coming).computed_by(coming.place, coming.world_size)
        with in_users_code(f"while the data of iteration {self.iteration} were read"):
            return self.reading.take(self.steps.computed, self.iteration, next_share)

    def _compute(self, calls: Sequence[Callable[[], dict[str, float]]]) -> list[dict[str, float]]:
        """What the calls of train() return. Raises MemoryExceeded if too little memory is there for one of them."""
        try:
            with in_users_code(f"in iteration {self.iteration}"):
                returned = self.steps.run(self.iteration, calls)
                finish_work(self.device)
                return returned
        except Exception as error:
            if self._stage is not _Stage.COMPUTING or not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        raise self._memory_exceeded(reason)  # out here: the first error holds the memory, by its frames

    def _memory_exceeded(self, reason: str) -> Exception:
        size = self.members.virtual_nodes.largest_micro_batch
        if size > 1:
            return MemoryExceeded(size, reason)
        return requirements.one_sample_that_fits(reason, self.iteration)

    def _fingerprint(self) -> int:
        """What a worker that is alone holds needs no comparison."""
        if self.members.group is None:
            return 0
        return fingerprint(self.optimizer, self.model.parameters(), self.iteration)

    def _train(self, batch: Any) -> dict[str, float]:
        return as_metrics(self.function.train(batch, self.steps.model, self.optimizer))

    def evaluation_is_due(self) -> bool:
        every = self.function.evaluate_every
        return every > 0 and self.iteration > 0 and self.iteration % every == 0 and not self._is_evaluated

    def evaluate(self) -> None:
        """Rank 0 evaluates, all workers know the result: conditions on it are met everywhere at once."""
        if self.is_rank_0:
            self.evaluate_here()
        self.metrics = self.members.from_rank_0(self.metrics)
        self._is_evaluated = True

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
        if self.iteration >= self.spec.max_iterations:
            return "max_iterations"
        return "metric" if self.is_over else None  # some metric of its own

    def mend(self) -> bool:
        """After a step in which a peer was lost: back to a step boundary, the last or the next, and away from the
        others. False if neither boundary has all that makes it up: the state is none to go on from."""
        match self._stage:
            case _Stage.COMPUTING:
                self.steps.take_back()
                restore(self.optimizer, self._settings_before)
            case _Stage.CHANGED:
                # what failed is the agreement: metrics of this step are missing, nothing else
                self.iteration += 1
                self.is_over |= self.function.is_over
                self._is_evaluated = False
            case _Stage.CHANGING:
                return False
            case _Stage.BETWEEN:
                pass
        self._stage = _Stage.BETWEEN
        if self.members.group is not None:
            self.members.group.close()
        return True

    # --- with whom ---

    def begin(self, generation: int) -> None:
        """As its worker, from the present iteration on; keep the checkpoints if that is its part."""
        self.generation = generation
        keeps = self.is_rank_0 and self.assignment.purpose == "train"
        self.checkpoints = self.checkpoint_store() if keeps else None
        # Whoever comes does not know, nor who was on its way to an agreement when it broke: all do these again.
        self._is_evaluated = self._has_agreed_on_names = False
        self._stragglers = Stragglers()
        self.telemetry.began(self.iteration)

    def checkpoint_store(self) -> CheckpointStore:
        return CheckpointStore(Path(self.assignment.checkpoint_dir), generation=self.generation)

    def go_over(self, invited: Invitation, met: Met) -> HandOver:
        """Between two steps, all at once: give the newcomers the state, and go on with them; or leave. After a PeerLost
        this worker holds what it held."""
        try:
            handed = hand_over(
                met.everyone,
                iteration=self.iteration,
                num_staying=invited.world_size,
                state={**self.state(), "metric_names": self.metric_names},
            )
        except PeerLost:
            met.close()  # who has gone over already, or waits for this worker, learns of the loss by this
            raise
        if handed.state is not None:
            self.take_over(handed.state)
        retire(self.members.group, met.everyone)  # elsewhere: closing may take a while, also for who leaves
        if invited.stays:
            self.members = Membership(met.workers, self.pacer, self._virtual_nodes_in(invited))
            self.steps.close()
            self.steps = self.make_steps(self.members)
            self.begin(invited.generation)
        return handed

    def _virtual_nodes_in(self, invited: Invitation) -> VirtualNodes:
        return virtual_nodes_of(self.function, self.spec, invited.world_size, invited.micro_batch_size)

    # --- the state ---

    def finite_metrics(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}

    def state(self) -> dict[str, Any]:
        """Everything that a generation of any size needs; the data order follows from the iteration."""
        self.check_state()
        return {
            **{name: each.state_dict() for name, each in self.stateful.items()},
            "iteration": self.iteration,
            "epoch": self.iteration * self.spec.global_batch_size // self.dataset.partitions.num_samples,
            "samples": self.dataset.samples_told,
            "metrics": self.metrics,
        }

    def take_over(self, state: Mapping[str, Any]) -> None:
        """From one who is a step ahead."""
        for name, each in self.stateful.items():
            each.load_state_dict(state[name])
        self.iteration, self.metrics = state["iteration"], dict(state["metrics"])

    def check_state(self) -> None:
        requirements.readable_state(self.stateful)

    def _agreed_names(self, returned: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Of the metrics that train() returns: rank 0's in the first step."""
        names = returned[0] if self.metric_names is None else self.metric_names
        if not self._has_agreed_on_names:
            self.metric_names = names = self.members.from_rank_0(names)
            self._has_agreed_on_names = True
        requirements.same_metrics(names, returned, self.iteration)
        return names
