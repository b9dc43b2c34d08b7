"""One training step of one worker, and the state that it changes.

The user's class sees one device and parts of the batch. Between its calls the trainer forms the mean over the global
batch, agrees with the other workers, and keeps the state that outlives a generation. The loop over steps is in
training_loop.py.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.elastic.groups import release_later
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.rendezvous import RendezvousResult, RendezvousSpecification
from elasticflow.services.executor.worker.elastic.state_transfer import StateTransfer, transfer_state
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    MemoryExceeded,
    Stopwatch,
    finish_work,
    is_out_of_memory,
)
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.steps import user_code_checks
from elasticflow.services.executor.worker.steps.evaluation import Evaluation
from elasticflow.services.executor.worker.steps.job_state import JobState, StepBoundary, StepStage
from elasticflow.services.executor.worker.steps.step_agreement import (
    Agreement,
    GenerationMembers,
    fingerprint,
    require_same_state,
)
from elasticflow.services.executor.worker.steps.step_engine import StepEngine
from elasticflow.services.executor.worker.steps.stragglers import StragglerDetector
from elasticflow.services.executor.worker.steps.training_function import (
    TrainingFunction,
    in_users_code,
    virtual_nodes_of,
)
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch, VirtualNodes


@dataclass(kw_only=True)
class Trainer(JobState):
    """Trains step by step, evaluates, and switches generations."""

    function: TrainingFunction
    optimizer: torch.optim.Optimizer
    device: torch.device
    cpu_throttle: CpuThrottle
    telemetry: Telemetry
    stopwatch: Stopwatch
    members: GenerationMembers
    make_engine: Callable[[GenerationMembers], StepEngine]
    read_ahead: ReadAhead
    checkpoints: CheckpointStore | None = None  # rank 0's; None on other ranks and in a profiling run
    engine: StepEngine = field(init=False)
    _boundary: StepBoundary = field(init=False)
    _evaluation: Evaluation = field(init=False)
    _stragglers: StragglerDetector = field(default_factory=StragglerDetector)
    _is_evaluated: bool = False  # at this iteration
    _has_agreed_on_names: bool = False  # in this generation

    def __post_init__(self) -> None:
        self._boundary = StepBoundary(self.optimizer, lambda: self.members.check_received())
        self._evaluation = Evaluation(self.function, self.model, self.spec.seed, self.telemetry.progressed)
        self.engine = self.make_engine(self.members)

    @property
    def is_rank_0(self) -> bool:
        return self.members.rank == 0

    # --- one step ---

    def step(self, *, stop: bool, next_generation: RendezvousSpecification | None = None) -> Agreement:
        """One iteration on the global batch. Returns what all workers agree on at its end.

        next_generation: the one to which this worker could switch afterwards.
        """
        self.stopwatch.start()
        batches = self._batches(next_generation)
        self._boundary.begin_step()
        self.function.iteration = self.iteration
        self.model.train()
        returned = self._compute([partial(self._train, batch) for batch in batches])
        compute_s = self.stopwatch.seconds()
        self.cpu_throttle.sleep_off_excess()
        changed_here = self.engine.changed_buffers()
        if not any(map(any, changed_here)) and not self.spec.metric_conditions:
            self._boundary.all_changed()
        names = self._agreed_names([tuple(metrics) for metrics in returned])
        agreement = self.members.agree(
            stop=stop,
            over=self.function.is_over,
            ready_generation=next_generation.generation if next_generation else 0,
            fingerprint=self._fingerprint(),
            compute_s=compute_s,
            rows=[(*metrics.values(), *changed) for metrics, changed in zip(returned, changed_here, strict=True)],
        )
        means, changed_somewhere = agreement.means[: len(names)], agreement.means[len(names) :]
        self.engine.combine_buffers([index for index, part in enumerate(changed_somewhere) if part > 0])
        self.metrics |= dict(zip(names, means, strict=True))
        user_code_checks.require_finite_loss(self.metrics, self.function.hyperparameters, self.iteration)
        require_same_state(agreement.same, self.iteration, self.engine.model)
        self.iteration += 1
        self.is_over = agreement.over
        self._is_evaluated = False
        self._boundary.end_step()
        self.telemetry.step_ended(self.iteration, self.metrics)
        if self.is_rank_0 and (straggler := self._stragglers.detect(agreement.compute_s, now_s=time.monotonic())):
            self.telemetry.report_straggler(straggler.rank, straggler.slowdown)
        return agreement

    def _batches(self, next_generation: RendezvousSpecification | None) -> list[Any]:
        """One for each micro-batch computed here; reading the next step's continues in the background."""
        next_micro_batches: tuple[MicroBatch, ...] = ()
        if next_generation is not None and next_generation.stays:
            next_micro_batches = self._virtual_nodes_in(next_generation).computed_by(
                next_generation.rendezvous_rank, next_generation.world_size
            )
        with in_users_code(f"while the data of iteration {self.iteration} were read"):
            return self.read_ahead.take(self.engine.computed, self.iteration, next_micro_batches)

    def _compute(self, calls: Sequence[Callable[[], dict[str, float]]]) -> list[dict[str, float]]:
        """Results of the calls of train(). Raises MemoryExceeded if one exceeds the memory."""
        try:
            with in_users_code(f"in iteration {self.iteration}"):
                returned = self.engine.run(self.iteration, calls)
                finish_work(self.device)
                return returned
        except Exception as error:
            if self._boundary.stage is not StepStage.COMPUTING or not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        # outside of `except`: the frames of the first error hold the memory
        raise self._memory_exceeded(reason)

    def _memory_exceeded(self, reason: str) -> Exception:
        size = self.members.virtual_nodes.largest_micro_batch
        if size > 1:
            return MemoryExceeded(size, reason)
        return user_code_checks.sample_too_large(reason, self.iteration)

    def _fingerprint(self) -> int:
        """0 for a worker that is alone."""
        if self.members.group is None:
            return 0
        return fingerprint(self.optimizer, self.model.parameters(), self.iteration)

    def _train(self, batch: Any) -> dict[str, float]:
        return user_code_checks.as_metrics(self.function.train(batch, self.engine.model, self.optimizer))

    def _agreed_names(self, returned: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Names of the metrics that train() returns: rank 0's in the first step."""
        names = returned[0] if self.metric_names is None else self.metric_names
        if not self._has_agreed_on_names:
            self.metric_names = names = self.members.from_rank_0(names)
            self._has_agreed_on_names = True
        user_code_checks.require_same_metrics(names, returned, self.iteration)
        return names

    def roll_back(self) -> bool:
        """After a step in which a peer was lost: return to a step boundary, and close the group.

        Returns False if neither the last boundary nor the next one can be restored: the state is unusable.
        """
        match self._boundary.stage:
            case StepStage.COMPUTING:
                self.engine.roll_back()
                self._boundary.restore_settings()
            case StepStage.CHANGED:  # only the agreement failed: this step's metrics are missing
                self.iteration += 1
                self.is_over |= self.function.is_over
                self._is_evaluated = False
            case StepStage.CHANGING:
                return False
            case StepStage.BETWEEN_STEPS:
                pass
        self._boundary.end_step()
        if self.members.group is not None:
            self.members.group.close()
        return True

    # --- evaluation ---

    def evaluation_is_due(self) -> bool:
        every = self.function.evaluate_every
        return every > 0 and self.iteration > 0 and self.iteration % every == 0 and not self._is_evaluated

    def evaluate(self) -> None:
        """All workers get the same metrics, so that all meet a condition at the same step."""
        self.metrics = self._evaluation.together(self.iteration, self.members, self.metrics)
        self.cpu_throttle.sleep_off_excess()
        self._is_evaluated = True

    def evaluate_finally(self) -> None:
        """After the last step. Rank 0 evaluates when its peers have left, unless it needs them."""
        if self.function.evaluates_in_parts:
            self.evaluate()
        self.members.leave()
        if self.checkpoints and not self.function.evaluates_in_parts:
            self.metrics |= self._evaluation.here(self.iteration)

    # --- generations ---

    def begin_generation(self, generation: int, gpu_types_by_rank: Sequence[str]) -> None:
        """Train as its worker from the present iteration on; rank 0 writes its checkpoints."""
        self.generation = generation
        writes = self.is_rank_0 and self.assignment.purpose == "train"
        self.checkpoints = self.checkpoint_store() if writes else None
        # A joining worker knows neither, nor does one whose agreement was interrupted: all workers repeat both.
        self._is_evaluated = self._has_agreed_on_names = False
        self._stragglers = StragglerDetector(gpu_types_by_rank)
        self.cpu_throttle.restart()
        self.telemetry.training_began(self.iteration)

    def switch(self, specification: RendezvousSpecification, result: RendezvousResult) -> StateTransfer:
        """Between two steps, on all workers: transfer the state, then join the new generation or leave.

        If it raises PeerLost, this worker keeps the state that it had.
        """
        try:
            transfer = transfer_state(
                result.transfer_group,
                iteration=self.iteration,
                num_staying=specification.world_size,
                state={**self.state(), "metric_names": self.metric_names},
            )
        except PeerLost:
            result.close()  # so that peers that have switched, or wait for this worker, notice the loss
            raise
        if transfer.state is not None:
            self.load_state(transfer.state)
        release_later(self.members.group, result.transfer_group)  # closing may take a while
        if specification.stays:
            self._join(GenerationMembers(result.training_group, self._virtual_nodes_in(specification)))
            self.begin_generation(specification.generation, specification.gpu_types_by_rank)
        return transfer

    def begin_again(self, members: GenerationMembers) -> None:
        """From iteration 0 on with other members and the present weights, to measure."""
        self._join(members)
        self.iteration = 0
        self.telemetry.training_began(0)

    def _join(self, members: GenerationMembers) -> None:
        self.members = members
        self.engine.close()
        self.engine = self.make_engine(members)

    def _virtual_nodes_in(self, specification: RendezvousSpecification) -> VirtualNodes:
        return virtual_nodes_of(
            self.function,
            self.spec,
            specification.world_size,
            specification.micro_batch_size,
            specification.virtual_nodes_by_rank,
        )
