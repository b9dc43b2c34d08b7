"""Sets a worker up for training: the user's objects, the rendezvous with its peers, the state of the job."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from elasticflow.services.executor.worker.data.dataset import DataSet, Stream, StreamPlace
from elasticflow.services.executor.worker.data.random_seeds import keep_generators
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.cooperative_thread import THREADS
from elasticflow.services.executor.worker.engine.fast_steps import FastSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import buffers_of
from elasticflow.services.executor.worker.engine.job_state import JobObjects, load_volatile_buffers, make_job_objects
from elasticflow.services.executor.worker.engine.local_shards import all_local
from elasticflow.services.executor.worker.engine.restored_state import Restored, require_fitting, restored_state
from elasticflow.services.executor.worker.engine.sharded_optimizer import redistribute
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.engine.training_function import (
    in_users_code,
    load_training_function,
    require_same_virtual_nodes,
    virtual_nodes_of,
)
from elasticflow.services.executor.worker.engine.training_step import StepEngine
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler, SequentialScheduler
from elasticflow.services.executor.worker.group.compatibility_digest import compatibility_digest
from elasticflow.services.executor.worker.group.groups import release_later
from elasticflow.services.executor.worker.group.rendezvous import (
    join_rendezvous,
    open_rendezvous,
    rendezvous_specification,
)
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.group.state_transfer import (
    NO_STATE,
    StateTransfer,
    model_tensors,
    transfer_state,
)
from elasticflow.services.executor.worker.interface import TrainingFailed, TrainingFunction
from elasticflow.services.executor.worker.process.channel import ExecutorLink
from elasticflow.services.executor.worker.process.compiled_models import is_compiled
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    Stopwatch,
    allow_other_kernels,
    choose_repeatable_kernels,
    claim,
    finish_work,
    has_no_repeatable_kernel,
    prepare_thread,
    release_memory,
    warn_if_occupied,
)
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_process import PROCESS
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.shared.messages.job_spec import SCRIPT, JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import Stateful

# --- dry step ------------------------------------------------------------------------------------------
# The step that a joining worker runs before it counts as ready, so that its peers do not wait for its first one.
#
# Each worker on a GPU also tries one before, to know whether the job has operations without a repeatable kernel.
#
# On a GPU, a first step loads kernels, plans convolutions and reserves memory; a compiled model compiles. Nothing of
# the dry step is kept: neither gradients nor buffers, additional state, random numbers or attributes of the user's
# object.

_ADVICE = "none is needed unless the job's next step fails too"


def dry_step_pays(objects: JobObjects, device: torch.device) -> bool:
    """Whether the first step takes much longer than others. The loop of a script cannot run twice."""
    if isinstance(objects.function, ElasticScript):
        return False
    return device.type == "cuda" or any(is_compiled(module) for module in objects.model.modules())


def needs_kernel_trial(objects: JobObjects, device: torch.device) -> bool:
    """Whether a step is tried, to find operations without a repeatable kernel. All kernels are repeatable on CPU slots.
    A script tells in its first step what it needs."""
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


# --- worker setup --------------------------------------------------------------------------------------


class MakeEngine(Protocol):
    def __call__(
        self,
        objects: JobObjects,
        device: torch.device,
        cpu_throttle: CpuThrottle,
        stopwatch: Stopwatch,
        assignment: Assignment,
        members: GenerationMembers,
    ) -> StepEngine: ...


def set_up(
    assignment: Assignment,
    channel: ExecutorLink,
    telemetry: Telemetry,
    make_engine: MakeEngine,
    function: TrainingFunction | None = None,
) -> tuple[Trainer, StateTransfer | None, str]:
    """Build model, data and optimizer, join the rendezvous, and load the state of the job.

    The state comes from training workers if this worker joins some, else from the checkpoint. function: None: imported
    by its name.
    """
    spec = assignment.spec
    device = claim(assignment.device, assignment.gpu_index)
    gang = None
    if spec.gang_size > 1:
        from elasticflow.services.executor.worker.engine.gang import begin_gang  # loads DTensor, which takes a while

        gang = begin_gang(assignment.rank % spec.gang_size, spec.gang_size, device)
    if device.type == "cuda":
        warn_if_occupied(device, os.environ)
    cpu_throttle, stopwatch = CpuThrottle(assignment.cpu_share), Stopwatch(device)
    specification = rendezvous_specification(assignment, device)
    store = open_rendezvous(specification, channel)
    if function is None:
        code_path = assignment.code_path
        function = (
            ElasticScript(spec, code_path, device) if spec.entry == SCRIPT else load_training_function(spec, code_path)
        )
    if assignment.plan.num_virtual_nodes and not function.virtual_nodes:  # those of its code come first
        function.virtual_nodes = assignment.plan.num_virtual_nodes
    objects = make_job_objects(function, spec, device, gang)
    PROCESS.phase = "in a step on trial"
    model, optimizer, dataset = objects.model, objects.optimizer, objects.dataset
    stateful: Mapping[str, Stateful] = {
        "model": model,
        "optimizer": objects.sharded or optimizer,
        **objects.additional.objects,
    }
    _check_world_size(assignment.plan.world_size, spec)
    virtual_nodes = virtual_nodes_of(
        function,
        spec,
        specification.num_staying,
        assignment.plan.micro_batch_size,
        assignment.plan.virtual_nodes_by_rank,
    )
    unseen = None if isinstance(function, ElasticScript) else objects.unseen_changes()
    read_ahead = objects.read_ahead(device, cpu_throttle, num_processes=function.data_workers)
    if gang is None and needs_kernel_trial(objects, device):
        operation = operation_without_repeatable_kernel(objects, virtual_nodes, device, spec.seed)
        if operation:
            telemetry.warn(f"{operation}: two runs of this job on GPUs may end with other bits")
    digest = compatibility_digest(function, spec, model, optimizer, objects.additional.objects, dataset.samples_digest)
    if gang is None and assignment.plan.transfers_state and dry_step_pays(objects, device):
        computed = virtual_nodes.computed_by(assignment.rank, assignment.plan.world_size)
        run_dry_step(objects, virtual_nodes, computed, device, spec.seed)
    PROCESS.phase = ""
    joins = assignment.plan.transfers_state
    result = join_rendezvous(
        specification,
        digest,
        channel,
        store,
        transfer_state=joins,
        before_arrival=partial(_approach_stream, dataset.stream, read_ahead, telemetry)
        if joins and dataset.stream is not None
        else None,
        meets_gang=True,
    )
    if gang is not None and result.gang_group is not None:
        gang.connect(result.gang_group)
    members = GenerationMembers(result.training_group, virtual_nodes, gang)
    if objects.sharded is not None:
        objects.sharded.own(members.group)
    transfer = None
    if result.transfer_group is not None:
        read_ahead.prepare(members.computed, result.switch_iteration)
        with nullcontext() if gang is None else gang.together():
            for group in result.groups:
                group.connect_device()
            transfer = transfer_state(
                result.transfer_group,
                iteration=NO_STATE,
                num_staying=specification.num_staying,
                destinations=all_local(model_tensors(model)),
                device=device,
                training_group=result.training_group,
            )
        if objects.sharded is not None:
            objects.sharded.drop()
            redistribute(objects.sharded, result.transfer_group, assignment.plan.world_size)
        release_later(result.transfer_group)
    state, lost_checkpoints = (
        Restored(transfer.state)
        if transfer
        else restored_state(assignment, members, all_local(model_tensors(model)), objects.sharded)
    )
    _check_data(dataset, state)
    require_same_virtual_nodes(function, virtual_nodes, state)
    if gang is not None:
        state = gang.unmarked(state)
    if spec.continues is not None and transfer is None and assignment.purpose == "train":
        require_fitting(state, spec.continues, stateful, optimizer)
    objects.carried.load(state.get("gradients", {}))
    if "model" in state:
        for name, each in stateful.items():
            if name in state:  # a part of a sharded state has arrived by itself
                each.load_state_dict(state[name])
        load_volatile_buffers(model, state.get("buffers", {}))
    if dataset.stream is not None and "stream" in state:
        _come_to(dataset.stream.resume(state["stream"]), read_ahead, telemetry)
    if isinstance(function, ElasticScript):
        kept = _kept_behind_the_loops_beginning(objects) if "model" in state else nullcontext()
        PROCESS.phase = "in the script, before its first batch"
        with kept, in_users_code("before its first batch"):
            function.enter_loop(state["iteration"], dataset)
        objects.additional.note_first_plain()
        objects.additional.records.write(state.get("records", {}))
    plain = state.get("attributes", {})
    if isinstance(function, ElasticScript) and not function.is_looped_by_library and not function.begins_epoch:
        function.loop_state.join(plain)
    else:
        objects.additional.set_plain(plain)
    if function.reproducible == "bitwise":  # whatever the user's code has set
        choose_repeatable_kernels(device)
    trainer = Trainer(
        assignment=assignment,
        function=function,
        model=model,
        optimizer=optimizer,
        additional=objects.additional,
        carried=objects.carried,
        gang=gang,
        sharded=objects.sharded,
        stateful=stateful,
        dataset=dataset,
        read_ahead=read_ahead,
        unseen=unseen,
        device=device,
        cpu_throttle=cpu_throttle,
        telemetry=telemetry,
        stopwatch=stopwatch,
        members=members,
        make_engine=partial(make_engine, objects, device, cpu_throttle, stopwatch, assignment),
        iteration=state["iteration"],
        metrics=dict(state["metrics"]),
        metric_names=state.get("metric_names"),
        is_over=function.is_over,
        is_evaluated=state.get("is_evaluated", False),
    )
    trainer.begin_generation(assignment.plan.generation, assignment.plan.gpu_types_by_rank)
    return trainer, transfer, lost_checkpoints


@contextmanager
def _kept_behind_the_loops_beginning(objects: JobObjects) -> Iterator[None]:
    """A library's loop begins anew in this process, and its callbacks with it: they must not undo the job's state."""
    additional, buffers = objects.additional, buffers_of(objects.model)
    before = additional.snapshot(), [each.detach().clone() for each in buffers]
    yield
    snapshot, values = before
    additional.restore(snapshot)
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


def worker_engine(
    objects: JobObjects,
    device: torch.device,
    cpu_throttle: CpuThrottle,
    stopwatch: Stopwatch,
    assignment: Assignment,
    members: GenerationMembers,
) -> StepEngine:
    """The engine of a worker, which computes its block of virtual nodes by itself."""
    function, model = objects.function, objects.model
    if function.reproducible == "fast" and not members.virtual_nodes.are_cut:
        return FastSteps(
            model,
            carried=objects.carried,
            members=members,
            device=device,
            job_seed=assignment.spec.seed,
            find_unused_parameters=function.find_unused_parameters,
            cpu_throttle=cpu_throttle,
            stopwatch=stopwatch,
        )
    steps = BitwiseSteps(
        model,
        objects.optimizer,
        members=members,
        job_seed=assignment.spec.seed,
        cpu_throttle=cpu_throttle,
        stopwatch=stopwatch,
        make_scheduler=partial(SequentialScheduler, begin_call=function.begin_part)
        if isinstance(function, ElasticScript)
        else partial(LockstepScheduler, on_start=partial(prepare_thread, device), threads=THREADS),
        additional=objects.additional,
        carried=objects.carried,
    )
    if isinstance(function, ElasticScript):
        function.on_pass_end, function.on_pass_begin = steps.end_watching, steps.begin_pass
        if function.is_looped_by_library or len(members.virtual_nodes.part_sizes) > 1:
            steps.note_loss = function.note_loss
    return steps


def _check_world_size(world_size: int, spec: JobSpec) -> None:
    if world_size > spec.global_batch_size:
        raise TrainingFailed(
            f"{world_size} workers cannot share a global batch of {spec.global_batch_size} samples: "
            "increase global_batch_size or request fewer GPUs"
        )


def _approach_stream(stream: Stream, read_ahead: ReadAhead, telemetry: Telemetry, store: RendezvousStore) -> None:
    """Come to a place in the stream before this worker joins others, which train meanwhile."""
    _come_to(stream.told(store), read_ahead, telemetry)


def _come_to(place: StreamPlace, read_ahead: ReadAhead, telemetry: Telemetry) -> None:
    PROCESS.phase = "on the way to its place in the data"
    with in_users_code(PROCESS.phase):
        read_ahead.begin_at(place, telemetry.progressed)


def _check_data(dataset: DataSet, state: Mapping[str, Any]) -> None:
    """The position of a job in its data is one number, which is meaningless in other data."""
    found = dataset.samples_digest
    known = state.get("samples", found)
    if found != known:
        raise TrainingFailed(
            f"the data set has {found} samples, but it had {known} when the job began: let the job read the same "
            "data in the same order at every start"
        )
