"""The training of one worker: its steps, its evaluations, and its way from generation to generation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.store import Checkpoints, CheckpointStore, Written
from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.engine.additional_state import AdditionalSnapshot, optimizer_settings
from elasticflow.services.executor.worker.engine.sharded_optimizer import PartLost, redistribute
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.step_metrics import StepMetrics
from elasticflow.services.executor.worker.engine.straggler_detection import StragglerDetector
from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.engine.training_step import TrainingSteps
from elasticflow.services.executor.worker.engine.undeclared_state import RunsScript
from elasticflow.services.executor.worker.group.groups import release_later
from elasticflow.services.executor.worker.group.nested_tensors import flatten
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous import RendezvousResult, RendezvousSpecification
from elasticflow.services.executor.worker.group.state_transfer import StateTransfer, broadcast_state, transfer_state
from elasticflow.services.executor.worker.interface import TrainingFunction
from elasticflow.services.executor.worker.process.device import allowing_other_kernels
from elasticflow.shared.training_interface import running_job

# --- sharded -------------------------------------------------------------------------------------------
# A checkpoint of a job whose workers hold parts of the optimizer's state: all write at once, rank 0 completes it.


class ShardedCheckpoints:
    """The sharded checkpoints of one worker. within_s: for the parts of its peers, on rank 0."""

    def __init__(self, store: CheckpointStore, rank: int, num_workers: int, *, within_s: float) -> None:
        self._store = store
        self._rank, self._num_workers = rank, num_workers
        self._within_s = within_s

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written | None:
        """Raises Superseded, or OSError if the disk is full or the part of a peer is missing."""
        self._store.parts.write(iteration, self._rank, state["optimizer"])
        if self._rank > 0:
            return None
        parts = self._store.parts.await_all(iteration, self._num_workers, within_s=self._within_s)
        shared = {**state, "optimizer": {"parts": [path.name for path in parts]}}
        file, num_bytes = self._store.save(iteration, shared)
        return Written(file, num_bytes + sum(path.stat().st_size for path in parts))


# --- evaluation ----------------------------------------------------------------------------------------
# The user's evaluation of the model: by rank 0 for all workers, or each virtual node's part by the worker that has
# it.
#
# Each pass of the model counts as progress, because an evaluation may take longer than a job may stand still.


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of one job's model. seed: of the job. progressed: tells that the job is not stalled."""

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
        """Evaluate in this process, without its peers."""
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
        if not isinstance(self.function, RunsScript):  # whose loop counts by itself
            self.function.iteration = iteration
        seed_generators(seed_of(self.seed, SeedPhase.EVALUATE, iteration=iteration))
        passes = self.model.register_forward_hook(lambda *_: self.progressed())
        try:
            where = in_users_code(f"in evaluate after iteration {iteration}")
            with where, allowing_other_kernels(), torch.no_grad():
                yield
        finally:
            passes.remove()


class _Marks(NamedTuple):
    """What is equal as long as nobody changes the model and the optimizer's state, or an object of stateful()."""

    of_weights: tuple[Any, ...]
    of_objects: tuple[Any, ...]


def _versions(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    return [(each.data_ptr(), each._version) for each in tensors]


def _numbers(measured: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(value) for name, value in measured.items()}


# --- trainer -------------------------------------------------------------------------------------------


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
        return every > 0 and self.iteration > 0 and self.iteration % every == 0 and not self.is_evaluated

    def evaluate(self) -> None:
        """All workers get the same metrics, so that all meet a condition at the same step."""
        self.settle()
        # rank 0 alone runs the user's code, unless all evaluate parts; a worker that is alone shares nothing
        is_shared = self.is_rank_0 and self.members.group is not None and not self.function.evaluates_in_parts
        before = self._marks() if is_shared else None
        metrics, begun = self.metrics, None if self.members.group is None else self.additional.snapshot()
        try:
            self.metrics = self._evaluation.together(self.iteration, self.members, self.metrics)
            if not self.function.evaluates_in_parts:
                self._share_what_it_changed(has_changed=is_shared and self._marks() != before)
        except PeerLost:
            self._undo_evaluation(metrics, begun, before)
            raise
        self.cpu_throttle.sleep_off_excess()
        self.is_evaluated = True

    def _undo_evaluation(
        self, metrics: dict[str, float], begun: AdditionalSnapshot | None, before: "_Marks | None"
    ) -> None:
        """A peer was lost before all had what it changed, and the survivors evaluate again."""
        # the weights are not kept; rank 0 alone may have changed them
        self._has_lost_parts |= before is not None and self._marks().of_weights != before.of_weights
        self.metrics, self.function.is_over = metrics, False
        if begun is not None:
            self.additional.restore(begun)

    def _marks(self) -> "_Marks":
        structure, tensors = self.additional.state()
        of_optimizer = flatten([*self.optimizer.state.values()], of_state := list[torch.Tensor]())
        weights = (*self.model.parameters(), *self.model.buffers(), *of_state)
        return _Marks(
            of_weights=(of_optimizer, _versions(weights)),
            of_objects=(structure, repr(optimizer_settings(self.optimizer)), _versions(tensors)),
        )

    def _share_what_it_changed(self, *, has_changed: bool) -> None:
        """A collective: rank 0's evaluation may restore the best weights, or step a schedule; then all have them.

        has_changed: more than plain state, on rank 0.
        """
        group = self.members.group
        plain, has_changed, is_over = self.members.from_rank_0(
            (self.additional.changed_plain(), has_changed, self.function.is_over)
        )
        self.additional.set_plain(plain)
        self.is_over |= is_over
        if group is None or not has_changed:
            return
        try:
            state = broadcast_state(group, self.shared_state() if self.is_rank_0 else None)
        except PeerLost:
            self._has_lost_parts = self.is_rank_0  # which alone has changed
            raise
        if not self.is_rank_0:
            self.load_state(state)

    def evaluate_finally(self) -> None:
        """Evaluate after the last step, unless that is done. Rank 0 evaluates when its peers have left, unless it needs
        them."""
        self.settle()
        in_parts, is_due = self.function.evaluates_in_parts, not self.is_evaluated
        if in_parts and is_due:
            self.evaluate()
        self.members.leave()
        if self.is_rank_0 and self.checkpoints and not in_parts and is_due:
            self.metrics |= self._evaluation.here(self.iteration)

    # --- generations ---

    def begin_generation(self, generation: int, gpu_types_by_rank: Sequence[str]) -> None:
        """Train as its worker from the present iteration on."""
        self.generation = generation
        if (job := running_job()) is not None:
            job.num_gpus, job.leads = self.members.world_size, self.is_rank_0
        self.checkpoints = self._checkpoints() if self.assignment.purpose == "train" else None
        # a joining worker does not know them, nor does one whose agreement was interrupted
        self._agree_on_metrics_anew()
        self._digests.forget()
        self._stragglers = StragglerDetector(gpu_types_by_rank)
        self.cpu_throttle.restart()
        self.telemetry.training_began(self.iteration)

    def switch(self, specification: RendezvousSpecification, result: RendezvousResult) -> StateTransfer:
        """Transfer the state between two steps, on all workers, then join the new generation or leave.

        If it raises PeerLost, this worker keeps the state that it had.
        """
        try:
            self.settle()
            for group in result.groups:
                group.connect_device()
            transfer = transfer_state(
                result.transfer_group,
                # behind an evaluation, a survivor is ahead of those that have not seen its end
                iteration=2 * self.iteration + self.is_evaluated,
                num_staying=specification.plan.world_size,
                state={**self.shared_state(), "metric_names": self.metric_names},
                device=self.device,
                training_group=result.training_group,
                may_differ=not self.members.have_same_arithmetic,
            )
            if transfer.state is not None:
                self.load_state(transfer.state)
            if self.sharded is not None:
                redistribute(self.sharded, result.transfer_group, specification.plan.world_size)
        except PeerLost as error:
            self._has_lost_parts = isinstance(error, PartLost)
            result.close()  # so that peers that have switched, or wait for this worker, notice the loss
            raise
        release_later(self.members.group, result.transfer_group)  # closing may take a while
        if specification.stays:
            self._join(GenerationMembers(result.training_group, self._virtual_nodes_in(specification)))
            self.begin_generation(specification.plan.generation, specification.plan.gpu_types_by_rank)
        return transfer

    def begin_again(self, members: GenerationMembers) -> None:
        """Begin again from iteration 0 with other members and the present weights, to measure."""
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
