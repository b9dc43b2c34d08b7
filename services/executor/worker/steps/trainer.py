"""The training of one worker: its steps, its evaluations, and its way from generation to generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticflow.services.executor.worker.checkpoint.sharded import ShardedCheckpoints
from elasticflow.services.executor.worker.checkpoint.store import Checkpoints
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.release import release_later
from elasticflow.services.executor.worker.elastic.rendezvous import RendezvousResult, RendezvousSpecification
from elasticflow.services.executor.worker.elastic.state_transfer import StateTransfer, transfer_state
from elasticflow.services.executor.worker.steps.evaluation import Evaluation
from elasticflow.services.executor.worker.steps.redistribution import PartLost, redistribute
from elasticflow.services.executor.worker.steps.step_agreement import (
    GenerationMembers,
)
from elasticflow.services.executor.worker.steps.step_metrics import StepMetrics
from elasticflow.services.executor.worker.steps.stragglers import StragglerDetector
from elasticflow.services.executor.worker.steps.training_step import TrainingSteps


@dataclass(kw_only=True)
class Trainer(TrainingSteps):
    """Trains step by step, evaluates, and switches generations."""

    checkpoints: Checkpoints | None = None  # of workers that write some; never in a profiling run
    _evaluation: Evaluation = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._evaluation = Evaluation(self.function, self.model, self.spec.seed, self.telemetry.progressed)

    # --- evaluation ---

    def evaluation_is_due(self) -> bool:
        every = self.function.evaluate_every
        return every > 0 and self.iteration > 0 and self.iteration % every == 0 and not self._is_evaluated

    def evaluate(self) -> None:
        """All workers get the same metrics, so that all meet a condition at the same step."""
        self.settle()
        self.metrics = self._evaluation.together(self.iteration, self.members, self.metrics)
        if not self.function.evaluates_in_parts:  # rank 0 alone has run the user's code
            self.additional.set_plain(self.members.from_rank_0(self.additional.changed_plain()))
        self.cpu_throttle.sleep_off_excess()
        self._is_evaluated = True

    def evaluate_finally(self) -> None:
        """After the last step. Rank 0 evaluates when its peers have left, unless it needs them."""
        self.settle()
        if self.function.evaluates_in_parts:
            self.evaluate()
        self.members.leave()
        if self.is_rank_0 and self.checkpoints and not self.function.evaluates_in_parts:
            self.metrics |= self._evaluation.here(self.iteration)

    # --- generations ---

    def begin_generation(self, generation: int, gpu_types_by_rank: Sequence[str]) -> None:
        """Train as its worker from the present iteration on."""
        self.generation = generation
        self.checkpoints = self._checkpoints() if self.assignment.purpose == "train" else None
        # A joining worker knows neither, nor does one whose agreement was interrupted: all workers repeat both.
        self._is_evaluated = False
        self._agree_on_metrics_anew()
        self._digests.forget()
        self._stragglers = StragglerDetector(gpu_types_by_rank)
        self.cpu_throttle.restart()
        self.telemetry.training_began(self.iteration)

    def switch(self, specification: RendezvousSpecification, result: RendezvousResult) -> StateTransfer:
        """Between two steps, on all workers: transfer the state, then join the new generation or leave.

        If it raises PeerLost, this worker keeps the state that it had.
        """
        try:
            self.settle()
            for group in result.groups:
                group.connect_device()
            transfer = transfer_state(
                result.transfer_group,
                iteration=self.iteration,
                num_staying=specification.world_size,
                state={**self.shared_state(), "metric_names": self.metric_names},
                device=self.device,
                training_group=result.training_group,
                may_differ=not self.members.have_same_arithmetic,
            )
            if transfer.state is not None:
                self.load_state(transfer.state)
            if self.sharded is not None:
                redistribute(self.sharded, result.transfer_group, specification.world_size)
        except PeerLost as error:
            self._has_lost_parts = isinstance(error, PartLost)
            result.close()  # so that peers that have switched, or wait for this worker, notice the loss
            raise
        release_later(self.members.group, result.transfer_group)  # closing may take a while
        if specification.stays:
            self._join(GenerationMembers(result.training_group, self._virtual_nodes_in(specification)))
            self.begin_generation(specification.generation, specification.gpu_types_by_rank)
        return transfer

    def begin_again(self, members: GenerationMembers) -> None:
        """From iteration 0 on with other members and the present weights, to measure."""
        self._join(members)
        self._agree_on_metrics_anew()
        self.iteration = 0
        self.telemetry.training_began(0)

    def _checkpoints(self) -> Checkpoints | None:
        """Rank 0 writes them, and each worker its part of a sharded optimizer's state."""
        store = self.checkpoint_store()
        if self.sharded is not None:
            within_s = self.assignment.timeouts.collective_timeout_s
            return ShardedCheckpoints(store, self.members.rank, self.members.world_size, within_s=within_s)
        return store if self.is_rank_0 else None

    def _agree_on_metrics_anew(self) -> None:
        self._step_metrics = StepMetrics(
            self.members,
            names=self.metric_names,
            are_needed_at_once=bool(self.spec.metric_conditions) or self.function.on_step is not None,
        )

    def _join(self, members: GenerationMembers) -> None:
        self.members = members
        if self.sharded is not None:
            self.sharded.join(members.group)
        self.engine.close()
        self.engine = self.make_engine(members)
