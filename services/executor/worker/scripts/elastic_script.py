"""Runs a training script as a training function: its loop receives one part of a global batch after another.

The script runs in a cooperative thread. It runs up to `elasticflow.elastic(...)`, where it passes its objects and
receives the state of the job. Then one pass through its loop is one call of train(), and the code behind its loop is
the evaluation at the job's end. It sees a world of one process, in which calls of torch.distributed have no effect.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.process.device import prepare_thread
from elasticflow.services.executor.worker.scripts.script_environment import (
    SINGLE_PROCESS_ENVIRONMENT,
    module_of,
    run_script,
)
from elasticflow.services.executor.worker.steps.cooperative_thread import CooperativeThread, Returned
from elasticflow.services.executor.worker.steps.training_function import Stateful, TrainingFailed
from elasticflow.shared.messages.job_spec import JobSpec, Scalar

_HOOK = "__elastic_worker__"  # where elasticflow.elastic looks for the worker, in the script's main module
_READY, _NEXT = "elastic()", "the next batch"
_MOST_EMPTY_LOOPS = 1000  # in a row, after the end: such a script waits forever


class ElasticScript:
    """A `TrainingFunction`. additional_state: further objects that outlive a resize, by name."""

    evaluate_every = 0
    evaluates_in_parts = False
    shuffle = True
    shuffle_window = 1024
    reproducible = "bitwise"
    find_unused_parameters = False

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        self.hyperparameters: Mapping[str, Scalar] = spec.hyperparameters
        self.iteration = 0
        self.is_over = False
        self.additional_state: dict[str, Stateful] = {}
        self.virtual_nodes = 0
        self._spec = spec
        self._module = module_of(spec)
        self._run = partial(run_script, spec, SINGLE_PROCESS_ENVIRONMENT, **{_HOOK: self})
        self._thread = CooperativeThread("script")
        self._thread.resume(partial(prepare_thread, device))
        self._made: tuple[Any, nn.Module, torch.optim.Optimizer] | None = None  # loader, model, optimizer
        self._due: list[Any] = []  # the next batch of the loop
        self._loss: torch.Tensor | None = None  # the root of the backward pass
        self._reported: dict[str, float] = {}
        self._ends = False  # no batch will follow
        self._has_stepped = False  # the optimizer, in this pass through the loop
        self._has_failed = False  # e.g. for lack of memory: its loop cannot be resumed
        self._num_empty_loops = 0

    # --- as a training function ---

    def init_model(self) -> nn.Module:
        """Run the script up to elastic(...)."""
        if isinstance(self._thread.resume(self._run), Returned):
            raise TrainingFailed(
                f"{self._module} ended without training: call elasticflow.elastic(loader, model, optimizer) in it, "
                "and loop over the result"
            )
        return self._objects[1]

    def enter_loop(self, iteration: int) -> None:
        """With the job's state in the script's objects: run up to its first batch, or to its end."""
        self.iteration = iteration
        self.is_over = isinstance(self._thread.resume(None), Returned)

    def init_dataset(self) -> Any:
        return self._objects[0].dataset

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        del model
        return self._objects[2]

    def collate(self, samples: list[Any]) -> Any:
        return self._objects[0].collate_fn(samples)

    @property
    def data_workers(self) -> int:
        return max(1, self._objects[0].num_workers)

    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """One pass through the script's loop."""
        del model, optimizer
        if self.is_over:
            raise TrainingFailed(
                f"{self._module} left its loop within a global batch: not all parts of it were trained. Leave the loop "
                "at the end of an epoch, or let a metric condition or --iterations end the job"
            )
        if self._has_failed:
            raise PeerLost("the script ended with an error in the step that would be repeated")
        self._due, self._loss, self._has_stepped = [batch], None, False
        try:
            self.is_over = isinstance(self._thread.resume(None), Returned)
        except BaseException:
            self._has_failed = True
            raise
        return {} if self._loss is None else {"loss": self._loss}

    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]:
        raise AssertionError("one process evaluates")

    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        raise AssertionError("one process evaluates")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Run the code behind the loop."""
        del model
        self._ends = True
        if not self.is_over:
            self._thread.resume(None)
            self.is_over = True
        return self._reported

    # --- what the script calls ---

    def attach(
        self,
        loader: Any,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *further: Stateful,
        virtual_nodes: int = 0,
    ) -> "Batches":
        """elasticflow.elastic(...): return when these objects hold the job's state."""
        if self._made is not None:
            raise TrainingFailed("elasticflow.elastic() was called twice: call it once, since a job trains one model")
        # it has no peers here: the job sums gradients in another way
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = model.require_forward_param_sync = False
            model = model.module
        self._made = (loader, model, optimizer)
        self.virtual_nodes = virtual_nodes
        for number, each in enumerate(further):
            self.additional_state[f"{type(each).__name__}-{number}"] = each
            self._let_step_after_the_optimizer(each)
        self._watch(optimizer)
        self._thread.pause(_READY)
        return Batches(self, loader)

    def wait_for_batch(self) -> bool:
        """Whether another batch follows."""
        if not self._due and not self._ends:
            self._thread.pause(_NEXT)
        return bool(self._due)

    def take_batch(self) -> Any:
        return self._due.pop()

    @property
    def position(self) -> int:
        """Iterations done, including the present one after its optimizer's step."""
        return self.iteration + self._has_stepped

    @property
    def epoch(self) -> int:
        return self._epoch_at(self.position)

    @property
    def epoch_is_over(self) -> bool:
        """With the present iteration."""
        return self._epoch_at(self.position) > self._epoch_at(self.iteration)

    def _epoch_at(self, iteration: int) -> int:
        return iteration * self._spec.global_batch_size // len(self._objects[0].dataset)

    @property
    def iterations_an_epoch(self) -> int:
        """The maximum: a batch may begin in one epoch and end in the next."""
        return -(-len(self._objects[0].dataset) // self._spec.global_batch_size)

    def report(self, metrics: Mapping[str, float]) -> None:
        self._reported |= {name: float(value) for name, value in metrics.items()}

    def count_empty_loop(self) -> None:
        """End a script that loops forever, e.g. until a counter of its own reaches a limit."""
        self._num_empty_loops += 1
        if self._num_empty_loops > _MOST_EMPTY_LOOPS:
            raise SystemExit(0)

    # --- how it is run ---

    @property
    def _objects(self) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
        assert self._made is not None, "the script has not called elastic() yet"
        return self._made

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        def stepped(*_: Any) -> None:
            self._has_stepped = True

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
            if self._loss is None and root.numel() == 1:
                self._loss = root.detach()
            backward_of_torch(tensors, *args, **kwargs)

        optimizer.register_step_post_hook(stepped)
        backward_of_torch, torch.autograd.backward = torch.autograd.backward, backward

    def _let_step_after_the_optimizer(self, each: Any) -> None:
        """Make a schedule step once for each optimizer step, although the loop calls it in every pass.

        A subclass does this, because torch's schedules save all their attributes as state.
        """
        kind = type(each)
        if not hasattr(kind, "step"):
            return

        def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
            if self._has_stepped or self._ends:
                kind.step(schedule, *args, **kwargs)

        each.__class__ = type(kind.__name__, (kind,), {"step": step})


class Batches:
    """The script's iterable: like its loader, but in the job's order, from the job's position on."""

    def __init__(self, script: ElasticScript, loader: Any) -> None:
        self._script = script
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        """The rest of the present epoch."""
        is_empty = True
        while self._script.wait_for_batch():
            is_empty = False
            yield self._script.take_batch()
            if self._script.epoch_is_over:
                return
        if is_empty:
            self._script.count_empty_loop()

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of epochs, from the present one on."""
        while (epoch := self._script.epoch) < count and self._script.wait_for_batch():
            yield epoch

    def report(self, **metrics: float) -> None:
        """Report metrics of the trained model, e.g. from an evaluation behind the loop."""
        self._script.report(metrics)

    @property
    def iteration(self) -> int:
        """Optimizer steps that the job has done."""
        return self._script.position

    def __len__(self) -> int:
        return self._script.iterations_an_epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
