"""The step that a joining worker runs before it counts as ready, so that its peers do not wait for its first one.

Each worker on a GPU also tries one before, to know whether the job has operations without a repeatable kernel.

On a GPU, a first step loads kernels, plans convolutions and reserves memory; a compiled model compiles. Nothing of the
dry step is kept: neither gradients nor buffers, additional state, random numbers or attributes of the user's object.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
import torch

from elasticflow.services.executor.worker.process.compiled_models import is_compiled
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    Stopwatch,
    allow_other_kernels,
    choose_repeatable_kernels,
    finish_work,
    has_no_repeatable_kernel,
    prepare_thread,
    release_memory,
)
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.services.executor.worker.steps.bitwise import BitwiseSteps
from elasticflow.services.executor.worker.steps.cooperative_thread import THREADS
from elasticflow.services.executor.worker.steps.job_objects import JobObjects
from elasticflow.services.executor.worker.steps.random_seeds import keep_generators
from elasticflow.services.executor.worker.steps.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.steps.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch, VirtualNodes

log = structlog.get_logger()

_ADVICE = "none is needed unless the job's next step fails too"


def dry_step_pays(objects: JobObjects, device: torch.device) -> bool:
    """Whether the first step takes much longer than others. The loop of a script cannot run twice."""
    if isinstance(objects.function, ElasticScript):
        return False
    return device.type == "cuda" or any(is_compiled(module) for module in objects.model.modules())


def needs_kernel_trial(objects: JobObjects, device: torch.device) -> bool:
    """On CPU slots all kernels are repeatable. A script tells in its first step what it needs."""
    is_bitwise = objects.function.reproducible == "bitwise"
    return device.type == "cuda" and is_bitwise and not isinstance(objects.function, ElasticScript)


def operation_without_repeatable_kernel(
    objects: JobObjects, virtual_nodes: VirtualNodes, device: torch.device, seed: int
) -> str:
    """torch's words about an operation that the job has, which it may use from now on; "" if there is none.

    All workers try the same samples, those that join too, and so choose the same kernels.
    """
    choose_repeatable_kernels(device)
    try:
        with _unchanged(objects):
            _run(objects, virtual_nodes, virtual_nodes.micro_batches(0), device, seed)
            finish_work(device)
    except Exception as error:  # any other is that of a later step
        if not has_no_repeatable_kernel(error):
            log.warning("dry_step_failed", error=repr(error), advice=_ADVICE)
            release_memory(device)
            return ""
        allow_other_kernels()
        return str(error).partition(",")[0]
    return ""


def run_dry_step(
    objects: JobObjects, virtual_nodes: VirtualNodes, computed: Iterable[MicroBatch], device: torch.device, seed: int
) -> None:
    """Call train() on parts of the first global batch: one virtual node for each size in `computed`.

    An error is logged only: the first step shows whether it is the job's.
    """
    if objects.function.reproducible == "bitwise":
        choose_repeatable_kernels(device)
    by_size = {part.samples.stop - part.samples.start: part.virtual_node for part in computed}
    try:
        with _unchanged(objects):
            for virtual_node in sorted(set(by_size.values())):
                _run(objects, virtual_nodes, virtual_nodes.micro_batches(virtual_node), device, seed)
            finish_work(device)
    except Exception as error:
        log.warning("dry_step_failed", error=repr(error), advice=_ADVICE)
        release_memory(device)


class _DrySteps(BitwiseSteps):
    keeps_changes = False

    def _finish_step(self, step: Callable[[], Any]) -> None:
        """Each optimizer keeps its state, and the model its parameters."""


def _run(
    objects: JobObjects,
    virtual_nodes: VirtualNodes,
    micro_batches: tuple[MicroBatch, ...],
    device: torch.device,
    seed: int,
) -> None:
    function, model, optimizer = objects.function, objects.model, objects.optimizer
    cpu_throttle = CpuThrottle(1.0)
    batches = objects.read_ahead(device, cpu_throttle, num_processes=0).take(micro_batches, 0)
    steps = _DrySteps(
        model,
        optimizer,
        carried=objects.carried,
        members=GenerationMembers(None, replace(virtual_nodes, counts_by_rank=())),
        computed=micro_batches,
        job_seed=seed,
        cpu_throttle=cpu_throttle,
        stopwatch=Stopwatch(device),
        make_scheduler=partial(LockstepScheduler, on_start=partial(prepare_thread, device), threads=THREADS),
        additional=objects.additional,
    )
    model.train()
    try:
        steps.run(0, [partial(function.train, batch, model, optimizer) for batch in batches])
    finally:
        steps.roll_back()
        steps.close()


@contextmanager
def _unchanged(objects: JobObjects) -> Iterator[None]:
    """Restores what train() changes."""
    function, parameters = objects.function, list(objects.model.parameters())
    attributes: dict[str, Any] = dict(vars(function))
    gradients, additional = [parameter.grad for parameter in parameters], objects.additional.snapshot()
    try:
        with keep_generators(), warnings.catch_warnings(action="ignore"):  # schedules miss the optimizer's step
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        objects.additional.restore(additional)
        vars(function).clear()
        vars(function).update(attributes)
