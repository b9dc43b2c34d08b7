"""One training step of one worker, and the state that it changes.

The user's class sees one device and parts of the batch. Between its calls the worker forms the mean over the global
batch, and agrees with the others. Its device may still compute when a step ends; `settle` waits for it. What lies
between steps is in trainer.py, and the loop over steps in training_loop.py.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from elasticflow.services.executor.worker.data.dataset import require_same_samples
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, VirtualNodes
from elasticflow.services.executor.worker.engine import user_code_checks
from elasticflow.services.executor.worker.engine.additional_state import AdditionalSnapshot
from elasticflow.services.executor.worker.engine.changed_bindings import ChangedBindings
from elasticflow.services.executor.worker.engine.check_points import is_check_point
from elasticflow.services.executor.worker.engine.gradient_digest import StepDigest, StepDigests, require_same_gradients
from elasticflow.services.executor.worker.engine.job_state import JobState, StepBoundary, StepStage
from elasticflow.services.executor.worker.engine.kept_tensors import KeptTensors
from elasticflow.services.executor.worker.engine.memory_growth import MemoryGrowth, memory_growth_on
from elasticflow.services.executor.worker.engine.model_structure import ModelStructure
from elasticflow.services.executor.worker.engine.plain_state import held_objects
from elasticflow.services.executor.worker.engine.plain_values import MOST_BYTES, MOST_ITEMS
from elasticflow.services.executor.worker.engine.step_agreement import (
    Agreement,
    Fingerprint,
    GenerationMembers,
    fingerprint,
    require_same_state,
)
from elasticflow.services.executor.worker.engine.step_metrics import StepMetrics
from elasticflow.services.executor.worker.engine.straggler_detection import StragglerDetector
from elasticflow.services.executor.worker.engine.training_function import (
    fixed_virtual_nodes,
    in_users_code,
    virtual_nodes_of,
)
from elasticflow.services.executor.worker.engine.undeclared_state import RunsScript, UndeclaredState
from elasticflow.services.executor.worker.engine.unseen_changes import UnseenChanges
from elasticflow.services.executor.worker.engine.values_of_parts import CountsOfParts, DependentValues, PartialLosses
from elasticflow.services.executor.worker.group.rendezvous import RendezvousSpecification
from elasticflow.services.executor.worker.interface import TrainingFunction
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    DeviceNumbers,
    Number,
    Stopwatch,
    finish_work,
    is_out_of_memory,
)
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.shared.errors import names_in_short

# --- step engine ---------------------------------------------------------------------------------------
# What a trainer needs of the two ways in which this worker's calls of train() become one step of the whole job.


class StepEngine(Protocol):
    """`BitwiseSteps` or `FastSteps`."""

    model: nn.Module  # as the user's train() receives it
    computed: tuple[MicroBatch, ...]  # one call for each
    step_digest: StepDigest  # of the gradients of the last step
    begun: AdditionalSnapshot | None  # when a script's loop began the present step

    def close(self) -> None: ...
    def roll_back(self) -> None: ...
    def note_loaded(self) -> None: ...
    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def changed_buffers(self) -> list[list[float]]: ...
    def combine_buffers(self, changed: Sequence[int]) -> None: ...


# --- training step -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TrainingSteps(JobState):
    """Trains step by step, in one generation after another."""

    function: TrainingFunction
    optimizer: torch.optim.Optimizer
    device: torch.device
    cpu_throttle: CpuThrottle
    telemetry: Telemetry
    stopwatch: Stopwatch
    members: GenerationMembers
    make_engine: Callable[[GenerationMembers], StepEngine]
    read_ahead: ReadAhead
    unseen: UnseenChanges | None  # None: a script compares them itself
    engine: StepEngine = field(init=False)
    _boundary: StepBoundary = field(init=False)
    _step_metrics: StepMetrics = field(init=False)
    _digests: StepDigests = field(init=False)
    _undeclared: UndeclaredState = field(init=False)
    _kept_tensors: KeptTensors = field(init=False)
    _counts_of_parts: CountsOfParts = field(init=False)
    _partial_losses: PartialLosses = field(init=False)
    _dependent_values: DependentValues = field(init=False)
    _structure: ModelStructure = field(init=False)
    _bindings: ChangedBindings = field(init=False)
    _is_script: bool = field(init=False)
    _memory: MemoryGrowth = field(init=False)
    _stragglers: StragglerDetector = field(default_factory=StragglerDetector)
    _has_lost_parts: bool = False  # of the optimizer's state

    def __post_init__(self) -> None:
        self._boundary = StepBoundary(self.optimizer, self.additional, lambda: self.members.check_received())
        self._step_metrics = StepMetrics(self.members)
        self._digests = StepDigests(self.device)
        held = held_objects(self.function, self.model)
        known = {id(each) for each in self.additional.objects.values()}
        self._undeclared = UndeclaredState(self.model, self.optimizer, self.additional, self.function, held)
        self._kept_tensors = KeptTensors(self.function, self._undeclared.declared_storages, known, held)
        self._structure = ModelStructure(self.model)
        self._bindings = ChangedBindings(self.function)
        self._is_script = isinstance(self.function, RunsScript)
        self._counts_of_parts = CountsOfParts(self.members.virtual_nodes, self.additional.plain)
        self._partial_losses = PartialLosses(self.members.virtual_nodes)
        self._dependent_values = DependentValues(self.additional.plain, self.additional.note_differing)
        if isinstance(self.function, RunsScript):
            self.function.watched = self._partial_losses.watched
        self._memory = memory_growth_on(self.device)
        self.engine = self.make_engine(self.members)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "virtual_nodes": fixed_virtual_nodes(self.function, self.members.virtual_nodes),
            "optimizer_type": type(self.optimizer).__qualname__,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.engine.note_loaded()

    @property
    def is_rank_0(self) -> bool:
        """It speaks for the job: no other worker does."""
        return self.members.leads

    def is_at_check_point(self) -> bool:
        """Whether the checks of the first steps run again in the next step; the same on all workers."""
        size = self.spec.global_batch_size
        epoch, first = self.dataset.epoch_at(self.iteration, size), self.dataset.first_iteration(self.iteration, size)
        return is_check_point(self.iteration, epoch=epoch, begins_epoch=first == self.iteration)

    def _watch_again(self) -> None:
        for each in (self._counts_of_parts, self._partial_losses, self._dependent_values):
            each.watch_again()

    def step(
        self,
        *,
        stop: bool,
        wants_checkpoint: Callable[[], bool] = lambda: False,
        next_generation: RendezvousSpecification | None = None,
    ) -> Agreement:
        """One iteration on the global batch. Returns what all workers agree on at its end, while the device may still
        compute it.

        wants_checkpoint: asked at its end. next_generation: the one to which this worker could switch.
        """
        self.stopwatch.start()
        self._require_unchanged_data()
        batches = self._batches(next_generation)
        self._boundary.begin_step()
        self.function.iteration = self.iteration
        if not self._is_script:  # which sets the modes of its modules, as outside of a job
            self.model.train()
        if self.assignment.purpose == "train" and self.is_at_check_point():
            self._watch_again()
        self._undeclared.begin_step(self.iteration)
        if self.additional.changed is not None:
            self.additional.changed.begin_step(self.iteration)
        self._bindings.begin_step(self.iteration)
        if (kept := self._kept_tensors.newly_kept(self.iteration)) and self.is_rank_0:
            self.telemetry.warn(
                f"{names_in_short(kept, most=3)}: the code keeps tensors there that it makes or changes while it "
                "trains. A worker that joins, or starts again, has none of it, unless the code makes it again; and "
                "sums in them count each part of a batch. Keep them in an object with state_dict() that stateful() "
                "returns (a script: pass it to elasticflow.elastic()), or keep numbers: loss.item()"
            )
        returned = self._compute([partial(self._train, batch) for batch in batches])
        self._structure.require_unchanged(self.iteration)
        self._undeclared.require_unchanged(self.iteration)
        if self.additional.changed is not None:
            self.additional.changed.require_carried()
        if (rebound := self._bindings.step_ended(self.iteration)) and self.is_rank_0:
            self.telemetry.warn(
                f"{names_in_short(rebound, most=3)}: the code has bound that to another module while it trains. A "
                "worker that joins, or starts again, has the one from before, unless the code makes it again. Make all "
                "modules before the loop, let stateful() return them (a script: pass them to elasticflow.elastic()), "
                "and choose by a number in a variable or an attribute"
            )
        compute_s = self.stopwatch.seconds() if self.members.are_several else 0.0  # it waits, and compares peers only
        self.cpu_throttle.sleep_off_excess()
        changed_here = self.engine.changed_buffers()
        if not any(map(any, changed_here)) and not self.spec.metric_conditions:
            self._boundary.all_changed()
        values = self._step_metrics.begin(returned, self.iteration)
        self.metric_names = self._step_metrics.names
        compared, digest = self._digests.next(self.engine.step_digest, self.iteration)
        agreement = self.members.agree(
            stop=stop,
            checkpoint=wants_checkpoint(),
            over=self.function.is_over,
            ready_generation=next_generation.plan.generation if next_generation else 0,
            fingerprint=fingerprint(self.optimizer, self.model.parameters(), self.additional, self.iteration)._replace(
                samples=self.dataset.read_checksum(self.iteration)
            )
            if self.members.are_several
            else Fingerprint(),
            gradient_digest=digest,
            compute_s=compute_s,
            rows=[(*mine, *changed) for mine, changed in zip(values, changed_here, strict=True)],
        )
        means, changed_somewhere = agreement.means[: len(values[0])], agreement.means[len(values[0]) :]
        self.engine.combine_buffers([index for index, part in enumerate(changed_somewhere) if part > 0])
        self._note(self._step_metrics.named(means), self.iteration - self._step_metrics.are_due)
        require_same_samples(agreement.same_samples)
        require_same_gradients(agreement.differing_digests, compared)
        require_same_state(agreement.same, self.iteration, self.engine.model, is_script=self._is_script)
        if not agreement.same_plain and self.function.reproducible == "bitwise":
            self._share_plain_state()
        if outgrown := self.additional.outgrown():
            self.telemetry.warn(
                f"{', '.join(outgrown)} has more than {MOST_ITEMS:,} items or {MOST_BYTES >> 10} KiB, and is no state "
                "of the job any more: workers that join and checkpoints do not have it, and it changes once for each "
                "part of a batch. Keep fewer"
            )
        if (differing := self.additional.newly_differing()) and self.is_rank_0:
            names = names_in_short([_as_written(name) for name in differing], most=3)
            subject, instead = (
                (
                    "the script",
                    "The loss has the mean of the whole batch after backward(), as on_step() gets it; count other "
                    "values in an evaluation, or in a class, whose train() returns metrics",
                )
                if self._is_script
                else (
                    "train()",
                    "Return it from train(), which gives the mean of the whole batch, or take elasticflow.mean() of it",
                )
            )
            self.telemetry.warn(
                f"{subject} gives {names} another value for each part of a batch, of which that of the last part "
                f"stays: a sum over the steps lacks the other parts. {instead}"
            )
        self._warn_of_parts()
        if isinstance(self.function, RunsScript):
            self._warn_of_exits(self.function.loop_exits())
        self.iteration += 1
        self.is_over = agreement.over
        self.is_evaluated = False
        self._boundary.end_step()
        self._memory.step_ended(self.iteration)
        self.telemetry.step_ended(self.iteration, self.finite_metrics())
        watches_peers = self.is_rank_0 and self.gang is None  # a gang is as fast as its slowest worker
        if watches_peers and (straggler := self._stragglers.detect(agreement.compute_s, now_s=time.monotonic())):
            is_fast = self.function.reproducible == "fast"
            count = self.members.virtual_nodes.placeable_count(is_fast=is_fast)
            self.telemetry.report_straggler(straggler.rank, straggler.slowdown, count)
        return agreement

    def _warn_of_parts(self) -> None:
        """Name what user code has taken from one part of the batch as if that were the whole."""
        counts, (losses, summed) = self._counts_of_parts.step_ended(), self._partial_losses.step_ended()
        if not (counts or losses or summed) or not self.is_rank_0:
            return
        num_parts = len(self.members.virtual_nodes.part_sizes)
        since = f", as seen in iteration {self.iteration}," if self.is_at_check_point() else ""
        if counts:
            names = names_in_short([_as_written(name) for name in counts], most=3)
            self.telemetry.warn(
                f"{names} grows in each step{since} by the samples of one part of the batch, of which a step has "
                f"{num_parts}: count steps instead, each of {self.spec.global_batch_size} samples "
                f"({'loader.iteration' if self._is_script else 'self.iteration'})"
            )
        if losses:
            instead = (
                f"divide by nothing else, or fix the parts: elastic(..., virtual_nodes={num_parts})"
                if self._is_script
                else "divide it by elasticflow.mean() of the mean weight, or fix virtual_nodes"
            )
            self.telemetry.warn(
                f"{' and '.join(losses)} divides{since} by the weights of one part of a batch, and not by those of the "
                f"whole batch, so the result depends on the number of parts, here {num_parts}: take the mean of "
                f"reduction='none' times the weight of each label, and {instead}"
            )
        if summed:
            self.telemetry.warn(
                f"{' and '.join(summed)} adds up{since} the samples of one part of the batch, of which a step has "
                f"{num_parts}, and the step takes the mean of the parts: divide the loss by the samples that "
                f"{'the loop' if self._is_script else 'train()'} has got, such as len(x). Divided by a fixed number, "
                "or by none, its gradient depends on the number of parts"
            )

    def _warn_of_exits(self, exits: Sequence[str]) -> None:
        if not exits or not self.is_rank_0:
            return
        if (num_parts := len(self.members.virtual_nodes.part_sizes)) > 1:
            self.telemetry.warn(
                f"the script may leave its loop within an epoch ({names_in_short(exits, most=3)}). A step has "
                f"{num_parts} parts, and a worker that leaves its loop before the last of its own fails the job: let "
                "--iterations end it, or leave the loop after an epoch, or by loader.iteration behind optimizer.step()"
            )

    def _share_plain_state(self) -> None:
        """It depends on the part of the batch: that of the last part stays, in all processes."""
        mine = self.additional.changed_plain()
        of_last_part = self.members.from_last_virtual_node(mine)
        self.additional.note_differing({name: mine[name] for name in mine if name in of_last_part}, of_last_part)
        self.additional.set_plain(of_last_part)

    def _require_unchanged_data(self) -> None:
        """Raises TrainingFailed if train() or evaluate() has changed what the processes that read have."""
        if self.unseen is None:
            return
        begins_epoch = self.iteration == self.dataset.first_iteration(self.iteration, self.spec.global_batch_size)
        self.unseen.require_none(whole=begins_epoch or self.iteration + 1 == self.spec.max_iterations)

    def _batches(self, next_generation: RendezvousSpecification | None) -> list[Any]:
        """One for each micro-batch computed here; reading the next step's continues in the background."""
        next_micro_batches: tuple[MicroBatch, ...] = ()
        if next_generation is not None and next_generation.stays:
            virtual_nodes = self._virtual_nodes_in(next_generation)
            next_micro_batches = virtual_nodes.computed_by(next_generation.rank, next_generation.num_staying)
            if self.gang is not None:
                next_micro_batches = self.gang.parts_of(next_micro_batches, virtual_nodes)
        with in_users_code(f"while the data of iteration {self.iteration} were read"):
            return self.read_ahead.take(self.engine.computed, self.iteration, next_micro_batches)

    def _compute(self, calls: Sequence[Callable[[], dict[str, Number]]]) -> DeviceNumbers:
        """Results of the calls of train(). Raises MemoryExceeded if one exceeds the memory."""
        try:
            with in_users_code(f"in iteration {self.iteration}"):
                returned = DeviceNumbers(self.engine.run(self.iteration, calls))
                self.members.check_received()  # again, if train() has received more after the optimizer's step
                return returned
        except Exception as error:
            self.members.check_open()  # what an aborted sum leaves may have led to any error
            user_code_checks.refuse_single_sample(error, self.members.virtual_nodes, self.iteration)
            if is_out_of_memory(error):
                user_code_checks.refuse_leak(error, self._memory.in_words(), self.iteration)
            if self._boundary.stage is not StepStage.COMPUTING or not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        if self.gang is not None:  # its other workers wait for this one within the pass
            raise user_code_checks.gang_memory_exceeded(self.gang.size, reason, self.iteration)
        # outside of `except`: the frames of the first error hold the memory
        size = self.members.virtual_nodes.largest_micro_batch
        raise user_code_checks.memory_exceeded(size, reason, self.iteration, self._memory.num_steps)

    def _train(self, batch: Any) -> dict[str, Number]:
        user_code_checks.begin_call()
        with nullcontext() if self._is_script else self._partial_losses.watched():  # a script has a thread of its own
            returned = user_code_checks.as_metrics(self.function.train(batch, self.engine.model, self.optimizer))
        if isinstance(self.function, RunsScript):
            self._dependent_values.pass_ended(is_last=self.function.is_last_part)
        return returned

    def settle(self) -> None:
        """A collective between two steps, before the state is kept, moved or judged: wait for the device, and agree on
        the metrics of the last step if they are still due."""
        with in_users_code(f"in iteration {self.iteration - 1}"):
            finish_work(self.device)
        self._note(self._step_metrics.settle(), self.iteration - 1)

    def _note(self, metrics: Mapping[str, float], iteration: int) -> None:
        """metrics: that were agreed on. iteration: theirs."""
        self.metrics |= metrics
        user_code_checks.require_finite_loss(metrics, self.function.hyperparameters, iteration)

    def roll_back(self) -> bool:
        """Return to a step boundary after a step in which a peer was lost, and close the group.

        Returns False if neither the last boundary nor the next one can be restored: the state is unusable.
        """
        if self._has_lost_parts or (self.gang is not None and self.gang.is_broken):
            return False
        match self._boundary.stage:
            case StepStage.COMPUTING:
                self.engine.roll_back()
                self._boundary.restore_additional_state(self.engine.begun)
            case StepStage.CHANGED:  # only the agreement failed: this step's metrics are missing
                self.iteration += 1
                self.metrics = {}
                self.is_over |= self.function.is_over
                self.is_evaluated = False
            case StepStage.CHANGING:
                return False
            case StepStage.BETWEEN_STEPS:
                pass
        self._digests.forget()
        if self._step_metrics.forget():
            self.metrics = {}
        self._boundary.end_step()
        if self.members.group is not None:
            self.members.group.close()
        return True

    def _virtual_nodes_in(self, specification: RendezvousSpecification) -> VirtualNodes:
        counts = specification.plan.virtual_nodes_by_rank
        return virtual_nodes_of(
            self.function, self.spec, specification.num_staying, specification.plan.micro_batch_size, counts
        )


def _as_written(name: str) -> str:
    """The name of plain state as user code has it: attributes of the job have no other mark."""
    return f"self.{name}" if name.isidentifier() else name
