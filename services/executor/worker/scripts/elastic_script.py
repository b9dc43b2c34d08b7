"""Runs a training script as a training function: its loop receives one part of a global batch after another.

The script runs in a cooperative thread. It runs up to `elasticflow.elastic(...)`, where it passes its objects and
receives the state of the job. Then one pass through its loop is one call of train(), and the code behind its loop is
the evaluation at the job's end. It sees a world of one process, in which calls of torch.distributed have no effect.
"""

import ast
import linecache
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from elasticflow.services.executor.worker.data.dataset import DataSet, recognize
from elasticflow.services.executor.worker.data.loader_settings import LoaderSettings, settings_of
from elasticflow.services.executor.worker.data.random_seeds import keep_generators
from elasticflow.services.executor.worker.data.sample_order import Epochs
from elasticflow.services.executor.worker.engine.bitwise_steps import SYNC_POINTS, first_root
from elasticflow.services.executor.worker.engine.changed_attributes import ChangedAttributes
from elasticflow.services.executor.worker.engine.cooperative_thread import CooperativeThread, Returned
from elasticflow.services.executor.worker.engine.plain_state import (
    LoopState,
    ModelState,
    Namespace,
    Pass,
    PlainState,
    namespace_of,
    namespaces_of_frames,
)
from elasticflow.services.executor.worker.engine.plain_values import Attributes
from elasticflow.services.executor.worker.engine.undeclared_state import reachable_modules
from elasticflow.services.executor.worker.engine.unseen_changes import UnseenChanges
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import choose_repeatable_kernels, prepare_thread
from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS
from elasticflow.services.executor.worker.process.users_code import is_users_frame
from elasticflow.services.executor.worker.scripts.schedules import JobLength, ScheduleCheck, step_only_if
from elasticflow.services.executor.worker.scripts.script_environment import (
    SINGLE_PROCESS_ENVIRONMENT,
    module_of,
    run_script,
)
from elasticflow.shared.messages.job_environment import SCRIPT_PROCESS_VARIABLE
from elasticflow.shared.messages.job_spec import JobSpec, Scalar
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import OnStep, Stateful

# --- batches -------------------------------------------------------------------------------------------
# What a script iterates over: like its loader, but in the job's order, from the job's position on.


class _Job:
    """What scripts and libraries ask about their job; the rest is as of their loader."""

    def __init__(self, script: "ElasticScript", loader: Any) -> None:
        self._script = script
        self._loader = loader

    def report(self, **metrics: float) -> None:
        """Report metrics of the trained model, e.g. from an evaluation behind the loop."""
        self._script.report(metrics)

    @property
    def iteration(self) -> int:
        """Optimizer steps that the job has done."""
        return self._script.position

    @property
    def iteration_in_epoch(self) -> int:
        """Steps of the present epoch before the present step."""
        return self._script.position - self._script.first_iteration_of_epoch

    def __len__(self) -> int:
        """Iterations of an epoch at most: without drop_last, a batch may begin in one epoch and end in the next."""
        return self._script.epochs.iterations(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Batches(_Job):
    """Parts of global batches: one pass of the script's loop for each."""

    def __iter__(self) -> Iterator[Any]:
        """The rest of the present epoch; or all data, for an evaluation."""
        if self.are_evaluated:
            yield from self._script.evaluation_batches()
            return
        is_empty = True
        self._script.require_unchanged_data(whole=True)
        while self._script.wait_for_batch():
            is_empty = False
            yield self._script.take_batch()
            if self._script.epoch_is_over:
                self._script.require_unchanged_data(whole=True)
                return
        if is_empty:
            self._script.count_empty_loop()

    @property
    def are_evaluated(self) -> bool:
        """Whether a loop that begins now trains nothing. Behind the job's end, a script that counts its epochs by
        itself may still begin loops for which there is nothing to train."""
        return not torch.is_grad_enabled() or (self._script.has_ended and self._script.length.max_epochs is not None)

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of epochs, from the present one on. What follows runs once, in one process."""
        self._script.length.max_epochs = count
        while (epoch := self._script.epoch) < count:
            self._script.require_one_loop()
            if not self._script.wait_for_batch():
                return
            yield epoch
        self._script.end_loop()


def enumerate_steps(iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
    """Python's enumerate(), as a script finds it. Of the job's batches it counts steps of the epoch, not parts."""
    batches = getattr(iterable, "iterable", iterable)  # of a progress bar
    if not isinstance(batches, Batches) or batches.are_evaluated:
        yield from enumerate(iterable, start)
        return
    for batch in iterable:
        yield start + batches.iteration_in_epoch, batch


class Steps(_Job):
    """Steps of the job: one pass of a library's loop for each. A step iterates over its parts in this process."""

    def __iter__(self) -> Iterator["Parts"]:
        """The rest of the present epoch."""
        self._script.require_unchanged_data(whole=True)
        while self._script.wait_for_batch():
            yield Parts(self._script)
            if self._script.epoch_is_over:
                self._script.require_unchanged_data(whole=True)
                return

    @property
    def epoch(self) -> int:
        """The present one."""
        return self._script.epoch

    @property
    def epochs_done(self) -> float:
        """The epochs done, with a part of the present one unless its length is unknown."""
        try:
            return self._script.epochs.done(self._script.position)
        except TypeError:
            return float(self.epoch)

    def ends_after(self, *, max_steps: int | None = None, max_epochs: int | None = None) -> None:
        """The library's loop has this limit. Schedules are compared with it."""
        self._script.length.max_steps, self._script.length.max_epochs = max_steps, max_epochs

    @property
    def step_ends_epoch(self) -> bool:
        """Whether the present step has the last sample of its epoch."""
        return self._script.step_ends_epoch

    @property
    def has_ended(self) -> bool:
        """No step follows in the job."""
        return self._script.has_ended

    def end(self) -> None:
        """The library's loop is left. Returns in one process alone, when the job has ended."""
        self._script.end_loop()


class Parts:
    """The parts of one step. If a peer is lost between two of them, the parts of the repeated step follow."""

    def __init__(self, script: "ElasticScript") -> None:
        self._script = script

    @property
    def mean_loss(self) -> torch.Tensor:
        """The loss of the global batch, after the last part."""
        return self._script.mean_loss

    def __iter__(self) -> Iterator[Any]:
        yield self._script.take_batch()
        while not self._script.is_last_part and self._script.wait_for_batch():
            yield self._script.take_batch()


class HoldsState(Protocol):
    """A library's loop. Objects have names that are the same in every process."""

    def objects(self) -> Mapping[str, object]:
        """Objects of which user code may have written the class: what it gives them is state."""
        ...

    def counters(self) -> Mapping[str, tuple[object, Sequence[str]]]:
        """Objects of the library, and attributes that are state."""
        ...

    def records(self) -> Mapping[str, tuple[object, Sequence[str]]]:
        """The same for what it only notes, such as a history with durations."""
        ...


# --- elastic script ------------------------------------------------------------------------------------

_HOOK = "__elastic_worker__"  # where elasticflow.elastic looks for the worker, in the script's main module
_READY, _NEXT, _END = "elastic()", "the next batch", "the job's end"
_MOST_EMPTY_LOOPS = 1000  # in a row, after the end: such a script waits forever
_HOW_TO_END = (
    "Leave the loop at the end of an epoch, or by loader.iteration behind optimizer.step(), or let a metric condition "
    "or --iterations end the job"
)


class ElasticScript:
    """A `TrainingFunction`."""

    evaluate_every = 0
    evaluates_in_parts = False
    shuffle = True
    shuffle_window = 1024
    reproducible = "bitwise"
    find_unused_parameters = False

    def __init__(self, spec: JobSpec, code_path: str, device: torch.device) -> None:
        self.hyperparameters: Mapping[str, Scalar] = spec.hyperparameters
        self.iteration = 0
        self.is_over = False
        self._stateful: dict[str, Stateful] = {}
        self.virtual_nodes = 0
        self.on_step: OnStep | None = None
        self.global_batch_size = spec.global_batch_size
        self.length = JobLength(spec)
        self.loop_state = LoopState(self._namespaces)
        self.records = PlainState(self._record_namespaces)
        self._library: HoldsState | None = None
        self._of_model: ModelState | None = None
        self._changed: ChangedAttributes | None = None
        self._seed = spec.seed
        self._settings: LoaderSettings | None = None
        self._epochs: Epochs | None = None
        self._schedules: list[ScheduleCheck] = []
        self._unseen: UnseenChanges | None = None
        self._has_begun = False  # its loop
        self._module = module_of(spec)
        environment = {**SINGLE_PROCESS_ENVIRONMENT, SCRIPT_PROCESS_VARIABLE: str(os.getpid())}
        main_module = {_HOOK: self, "enumerate": enumerate_steps}
        self._run = partial(run_script, spec, code_path, environment, **main_module)
        self._thread = CooperativeThread("script")
        EXIT_HANDLERS.before(self._thread.abandon)  # its finally blocks run
        self._thread.resume(partial(prepare_thread, device))
        self._thread.resume(partial(choose_repeatable_kernels, device))
        self._made: tuple[Any, nn.Module, torch.optim.Optimizer] | None = None  # loader, model, optimizer
        self._dataset: DataSet | None = None
        self._due: list[Any] = []  # the next batch of the loop
        self._root: torch.Tensor | None = None  # of the backward pass of this part: its loss
        self._loss: torch.Tensor | None = None  # its value
        self._first_loss: torch.Tensor | None = None  # that of the first part of the step
        self._reported: dict[str, float] = {}
        self.has_ended = False  # the job: no batch will follow
        self._has_stepped = False  # the optimizer, in this pass through the loop
        self._has_failed = False  # e.g. for lack of memory: its loop cannot be resumed
        self._num_empty_loops = 0
        self._has_told_exits = False
        self._ended_by = ""  # as of `run_script`
        self._has_left_loop = self._has_returned = False
        self.mean_loss = torch.tensor(math.nan)  # of the global batch
        self.is_last_part = False  # of the present step, in this process
        self.watched: Callable[[], AbstractContextManager[None]] = nullcontext  # around each pass, in its thread
        self._pass = ExitStack()  # in the present pass
        self.on_pass_end: Callable[[], None] = lambda: None  # in the script's thread, before it waits for a batch
        self.on_pass_begin: Callable[[Pass], None] = lambda kind: None  # and when it gets one

    # --- as a training function ---

    def init_model(self) -> nn.Module:
        """Run the script up to elastic(...)."""
        if isinstance(outcome := self._thread.resume(self._run), Returned):
            raise TrainingFailed(
                f"{self._module} ended without training{outcome.value}: call elasticflow.elastic(loader, model, "
                "optimizer) in it, and loop over the result"
            )
        return self._objects[1]

    @property
    def is_looped_by_library(self) -> bool:
        """One pass through its loop is a step, not a part of one."""
        return self._library is not None

    def enter_loop(self, iteration: int, dataset: DataSet) -> None:
        """Run the script, with the job's state in its objects, up to its first batch, or to its end."""
        self.iteration, self._dataset = iteration, dataset
        self._resume_loop()

    def init_dataset(self) -> LoaderSettings:
        assert self._settings is not None, "the script has not called elastic() yet"
        return self._settings

    def sharded_blocks(self, model: nn.Module) -> tuple[nn.Module, ...]:
        del model
        return ()  # a script has no gangs

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        del model
        return self._objects[2]

    def collate(self, samples: list[Any]) -> Any:
        return self._objects[0].collate_fn(samples)

    def stateful(self) -> Mapping[str, Stateful]:
        return self._stateful

    @property
    def data_workers(self) -> int:
        return max(1, self._objects[0].num_workers)

    def begin_part(self, is_last: bool) -> Sequence[str]:
        """Return, before each call of `train`, the synchronization points that it must reach."""
        self.is_last_part = is_last
        return SYNC_POINTS if is_last or not self.is_looped_by_library else SYNC_POINTS[:1]

    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """One pass through the script's loop, or through a library's training step within it."""
        del model, optimizer
        if self.is_over:
            raise TrainingFailed(f"{self._left_loop}: not all parts of it were trained. {_HOW_TO_END}")
        if self._has_failed:
            raise PeerLost("the script ended with an error in the step that would be repeated")
        self._due, self._root, self._loss, self._has_stepped = [batch], None, None, False
        try:
            self._resume_loop()
        except BaseException:
            self._has_failed = True
            raise
        if self.is_over and not self._has_stepped:
            raise TrainingFailed(f"{self._left_loop}, before its optimizer.step(). {_HOW_TO_END}")
        if self._has_stepped:
            for schedule in self._schedules:
                schedule.iteration_ends(epoch_ends=self.epoch_is_over, epochs_done=self.epoch)
        return {} if self._loss is None else {"loss": self._loss}

    def _resume_loop(self) -> None:
        outcome = self._thread.resume(None)
        self._has_returned = isinstance(outcome, Returned)
        self._ended_by = outcome.value if isinstance(outcome, Returned) else ""
        self.is_over = self._has_returned or self._has_left_loop

    @property
    def _left_loop(self) -> str:
        return f"{self._module} left its loop within a global batch{self._ended_by}"

    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]:
        raise AssertionError("one process evaluates")

    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        raise AssertionError("one process evaluates")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Run the code behind the loop."""
        del model
        self.has_ended = True
        if not self._has_returned:
            self.loop_state.keep()
            self._resume_loop()
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
        on_step: OnStep | None = None,
        library: HoldsState | None = None,
    ) -> Batches | Steps:
        """elasticflow.elastic(...): return when these objects hold the job's state.

        library: whose loop it is, and which counts its passes as steps.
        """
        if self._made is not None:
            raise TrainingFailed("elasticflow.elastic() was called twice: call it once, since a job trains one model")
        # it has no peers here: the job sums gradients in another way
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = model.require_forward_param_sync = False
            model = model.module
        self._settings = settings_of(loader, self._seed)
        self.shuffle = self._settings.shuffle
        self.length.epochs = self._epochs = self._epochs_of(self._settings)
        self._made = (loader, model, optimizer)
        self.virtual_nodes, self.on_step = virtual_nodes or self.virtual_nodes, on_step
        self._library = library
        self._of_model = ModelState(model, keeps_modes=True)
        known = {id(each) for each in further}
        inner = {id(each) for one in further if isinstance(one, nn.Module) for each in one.modules()}
        self._changed = ChangedAttributes(model, reachable_modules(model, self, known), known | inner)
        for number, each in enumerate(further):
            self._stateful[f"{type(each).__name__}-{number}"] = each
            if hasattr(each, "step"):
                self._schedules.append(check := ScheduleCheck(each, self.length))
                step_only_if(partial(self._may_step, check), each)
        self._watch(optimizer)
        reading = (loader.collate_fn, loader.worker_init_fn, loader.sampler, getattr(loader.sampler, "set_epoch", None))
        self._unseen = UnseenChanges(loader.dataset, *reading, known=[*model.modules(), *self._made, *further])
        self._thread.pause(_READY)
        return Steps(self, loader) if self.is_looped_by_library else Batches(self, loader)

    def wait_for_batch(self) -> bool:
        """Whether another batch follows."""
        if not self._has_begun:
            self._has_begun = True
            self._check_schedules()
        self.require_unchanged_data(whole=self.position == self.length.max_iterations)
        self._pass.close()
        if not self._due and not self.has_ended:
            self.on_pass_end()
            self._thread.pause(_NEXT)
        return bool(self._due)

    def require_unchanged_data(self, *, whole: bool) -> None:
        """Raises TrainingFailed if the loop has changed what the processes that read have as it was before."""
        assert self._unseen is not None, "the script has called elastic()"
        self._unseen.require_none(whole=whole)

    def end_loop(self) -> None:
        """The loop ends by itself: what follows runs once, in one process, after the last step."""
        if not self.has_ended:
            self._has_left_loop = True
            self._pass.close()
            self.on_pass_end()
            self._thread.pause(_END)

    def require_one_loop(self) -> None:
        """Check that a script does not train on behind the loop that has ended its job. Raises TrainingFailed."""
        limit, has_ended = self.length.max_iterations, self.has_ended and self._has_left_loop
        if has_ended and not self.is_looped_by_library and (limit is None or self.position < limit):
            raise TrainingFailed(
                f"{self._module} trains on behind its first loop over loader.epochs(), which ended the job after "
                f"iteration {self.position}: train in one loop over loader.epochs(n), with the n of the last one, and "
                "change rates or frozen layers in it when the number of the epoch says so"
            )

    def note_loss(self, mean_loss: torch.Tensor) -> None:
        """The loop finds the mean loss of the global batch in the tensor of its own loss: what it adds up, prints or
        gives a schedule is what it would be without parts."""
        self.mean_loss = mean_loss
        if not self.is_looped_by_library:
            _overwrite(self._root, mean_loss)

    def take_batch(self) -> Any:
        kind = self.loop_state.begin_pass(self.iteration)
        if kind != "repeated":
            self._first_loss = None
        self.on_pass_begin(kind)
        self._pass.enter_context(self.watched())
        return self._due.pop()

    def evaluation_batches(self) -> Iterator[Any]:
        """The data of the loader once, in global batches and in this process alone: nothing is trained."""
        loader = self._objects[0]
        is_stream = isinstance(loader.dataset, IterableDataset)
        with keep_generators():
            yield from DataLoader(
                loader.dataset,
                batch_size=self.global_batch_size,
                sampler=None if is_stream else loader.sampler,
                collate_fn=loader.collate_fn,
                drop_last=loader.drop_last,
            )

    @property
    def position(self) -> int:
        """Iterations done, including the present one after its optimizer's step."""
        return self.iteration + self._has_stepped

    @property
    def epoch(self) -> int:
        return self._epoch_at(self.position)

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch is over with the present iteration."""
        return self._epoch_at(self.position) > self._epoch_at(self.iteration)

    @property
    def begins_epoch(self) -> bool:
        """Whether the present step is the first one that begins in its epoch."""
        assert self._dataset is not None, "the loop has begun"
        return self.iteration == self._dataset.first_iteration(self.iteration, self.global_batch_size)

    @property
    def step_ends_epoch(self) -> bool:
        return self._epoch_at(self.iteration + 1) > self._epoch_at(self.iteration)

    def _epoch_at(self, iteration: int) -> int:
        assert self._dataset is not None, "the loop has begun"
        return self._dataset.epoch_at(iteration, self.global_batch_size)

    @property
    def first_iteration_of_epoch(self) -> int:
        assert self._dataset is not None, "the loop has begun"
        return self._dataset.first_iteration(self.position, self.global_batch_size)

    @property
    def epochs(self) -> Epochs:
        """The epochs of the job's data. Raises TypeError, as torch does, for a data set without a length."""
        if self._epochs is None:
            len(self._objects[0].dataset)
        assert self._epochs is not None, "a data set with a length has epochs"
        return self._epochs

    def epochs_of(self, loader: Any) -> Epochs | None:
        """The epochs that the loader's data would have, for a library that plans before it trains."""
        return self._epochs_of(settings_of(loader, self._seed))

    def _epochs_of(self, settings: LoaderSettings) -> Epochs | None:
        return recognize(settings).epochs(self.global_batch_size)

    def report(self, metrics: Mapping[str, float]) -> None:
        self._reported |= {name: float(value) for name, value in metrics.items()}

    def count_empty_loop(self) -> None:
        """End a script that loops forever, e.g. until a counter of its own reaches a limit."""
        self._num_empty_loops += 1
        if self._num_empty_loops == 1:
            log.warning(
                "nothing_left_to_train",
                advice="a loop over the loader behind the job's last step gets no batch: evaluate in torch.no_grad()",
            )
        if self._num_empty_loops > _MOST_EMPTY_LOOPS:
            raise SystemExit(0)

    # --- how it is run ---

    @property
    def _objects(self) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
        assert self._made is not None, "the script has not called elastic() yet"
        return self._made

    def script_frames(self) -> Iterator[FrameType]:
        """The functions of the paused script, from the innermost one."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def loop_exits(self) -> Sequence[str]:
        """Where its code leaves its loop within an epoch; told once, while it waits there for a batch."""
        if self._has_told_exits or self.is_looped_by_library or self.is_over:
            return ()
        self._has_told_exits = True
        frames = filter(is_users_frame, self.script_frames())  # of its loop, or of loops over its own generators
        return [where for frame in frames for where in exits_of_loop(frame)]

    def _namespaces(self) -> Iterator[Namespace]:
        """Variables of the loop, and what user code keeps in the model and in the objects of a library."""
        if not self._has_returned:
            yield from namespaces_of_frames(filter(is_users_frame, self.script_frames()))
            yield from self.object_namespaces()
            if self._changed is not None:
                yield self._changed.namespace

    @property
    def changed_attributes(self) -> ChangedAttributes:
        assert self._changed is not None, "the script has not called elastic() yet"
        return self._changed

    def object_namespaces(self) -> Iterator[Namespace]:
        """Attributes that user code gives modules of the model, and what a library holds."""
        if self._of_model is not None:
            yield from self._of_model.namespaces
        if self._library is not None:
            held = (namespace_of(f"{name}.", each) for name, each in self._library.objects().items())
            yield from (each for each in held if each is not None)
            yield from (
                Namespace(f"{name}.", Attributes(each), only=frozenset(names))
                for name, (each, names) in self._library.counters().items()
            )

    def _record_namespaces(self) -> Iterator[Namespace]:
        """What a library notes, and training does not depend on: it may differ between workers."""
        if self._library is not None and not self.is_over:
            for name, (each, names) in self._library.records().items():
                yield Namespace(f"{name}.", Attributes(each), only=frozenset(names))

    def _may_step(self, schedule: ScheduleCheck, *arguments: Any) -> bool:
        """Whether a schedule acts: in the pass of the loop that steps, and between two steps."""
        # passes of a library's loop are whole steps: a second one of the same iteration repeats an interrupted one,
        # whose numbers came from gradients that were never summed
        if not self.has_ended and not self.is_looped_by_library:
            schedule.require_same_numbers(self.iteration, arguments)
        schedule.has_stepped |= self._has_stepped
        return self._has_stepped or self.has_ended or bool(self._due)

    def _check_schedules(self) -> None:
        """Check the schedules before the first batch. Raises TrainingFailed."""
        if not self._schedules and hasattr(self._objects[2].step, "_wrapped_by_lr_sched"):
            raise TrainingFailed(
                "the optimizer has a learning-rate schedule that elastic() does not know: each pass of the loop would "
                "step it, and a worker that joins would begin it anew. Call elastic(loader, model, optimizer, schedule)"
            )
        for schedule in self._schedules:
            schedule.loop_begins()

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        def stepped(*_: Any) -> None:
            self._has_stepped = True

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            root = first_root(tensors)
            if self._root is None and root.numel() == 1:
                self._root, self._loss = root, root.detach().clone()
            backward_of_torch(tensors, *args, **kwargs)
            if not self.is_last_part and not self.is_looped_by_library:  # so the passes differ by other values only
                self._first_loss = self._loss if self._first_loss is None else self._first_loss
                _overwrite(self._root, self._first_loss)

        optimizer.register_step_pre_hook(lambda *_: self.require_one_loop())
        optimizer.register_step_post_hook(stepped)
        backward_of_torch, torch.autograd.backward = torch.autograd.backward, backward


def _overwrite(loss: torch.Tensor | None, value: torch.Tensor | None) -> None:
    """loss: after its backward pass. A leaf of the graph is no loss, but perhaps a parameter."""
    if value is not None and loss is not None and loss.grad_fn is not None:
        loss.detach().copy_(value.reshape(loss.shape))


def exits_of_loop(frame: FrameType) -> list[str]:
    """Where the for-loop in whose head this function is may be left in its middle."""
    file = frame.f_code.co_filename
    with suppress(SyntaxError):
        tree = ast.parse("".join(linecache.getlines(file, frame.f_globals)))
        loops = [each for each in ast.walk(tree) if isinstance(each, ast.For) and _is_in_head(each, frame.f_lineno)]
        return [f"{os.path.basename(file)}:{line}" for line in sorted(_exits(loops[-1].body))] if loops else []
    return []


def _is_in_head(loop: ast.For, line: int) -> bool:
    return loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)


def _exits(nodes: Iterable[ast.AST], *, in_inner_loop: bool = False) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not in_inner_loop):
            yield node.lineno
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            inner = in_inner_loop or isinstance(node, ast.For | ast.AsyncFor | ast.While)
            yield from _exits(ast.iter_child_nodes(node), in_inner_loop=inner)


def is_looped_by_library(function: object) -> bool:
    return isinstance(function, ElasticScript) and function.is_looped_by_library
