"""Sets a worker up for training: the user's objects, the rendezvous with its peers, the state of the job."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.data.dataset import DataSet
from elasticflow.services.executor.worker.elastic.compatibility_digest import compatibility_digest
from elasticflow.services.executor.worker.elastic.groups import release_later
from elasticflow.services.executor.worker.elastic.rendezvous import (
    join_rendezvous,
    open_rendezvous,
    rendezvous_specification,
)
from elasticflow.services.executor.worker.elastic.state_transfer import (
    NO_STATE,
    StateTransfer,
    broadcast_state,
    model_tensors,
    transfer_state,
)
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    Stopwatch,
    choose_repeatable_kernels,
    claim,
    prepare_thread,
)
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.services.executor.worker.steps.bitwise import SYNC_POINTS, BitwiseSteps
from elasticflow.services.executor.worker.steps.fast import FastSteps
from elasticflow.services.executor.worker.steps.job_objects import JobObjects, make_job_objects
from elasticflow.services.executor.worker.steps.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.steps.step_engine import StepEngine
from elasticflow.services.executor.worker.steps.training_function import (
    Stateful,
    TrainingFailed,
    in_users_code,
    load_training_function,
    virtual_nodes_of,
)
from elasticflow.services.executor.worker.steps.training_step import Trainer
from elasticflow.services.executor.worker.steps.virtual_node_scheduler import (
    LockstepScheduler,
    SequentialScheduler,
)
from elasticflow.shared.messages.job_spec import SCRIPT, JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

_POLL_S = 0.2  # for a checkpoint that the shared storage may not show yet


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
    assignment: Assignment, channel: Channel, telemetry: Telemetry, make_engine: MakeEngine
) -> tuple[Trainer, StateTransfer | None]:
    """Build model, data and optimizer, join the rendezvous, and load the state of the job.

    The state comes from training workers if this worker joins some, else from the checkpoint.
    """
    spec = assignment.spec
    device = claim(assignment.device, assignment.gpu_index)
    cpu_throttle, stopwatch = CpuThrottle(assignment.cpu_share), Stopwatch(device)
    specification = rendezvous_specification(assignment, device)
    store = open_rendezvous(specification, channel)
    function = (
        ElasticScript(spec, device) if spec.entry == SCRIPT else load_training_function(spec, assignment.code_path)
    )
    objects = make_job_objects(function, spec, device)
    model, optimizer, dataset = objects.model, objects.optimizer, objects.dataset
    _check_world_size(assignment.world_size, spec)
    virtual_nodes = virtual_nodes_of(
        function, spec, assignment.world_size, assignment.micro_batch_size, assignment.virtual_nodes_by_rank
    )
    read_ahead = objects.read_ahead(device, cpu_throttle, num_processes=function.data_workers)
    digest = compatibility_digest(function, spec, model, optimizer, dataset.samples_digest)
    result = join_rendezvous(specification, digest, channel, store, transfer_state=assignment.rendezvous_size > 0)
    members = GenerationMembers(result.training_group, virtual_nodes)
    stateful: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    if isinstance(function, ElasticScript):
        stateful |= function.additional_state
    transfer = None
    if result.transfer_group is not None:
        read_ahead.prepare(members.computed, result.switch_iteration)
        transfer = transfer_state(
            result.transfer_group,
            iteration=NO_STATE,
            num_staying=assignment.world_size,
            destinations=model_tensors(model),
        )
        release_later(result.transfer_group)
    state = transfer.state if transfer else _from_checkpoint(assignment, members, model_tensors(model))
    _check_data(dataset, state)
    if "model" in state:
        for name, each in stateful.items():
            each.load_state_dict(state[name])
    if isinstance(function, ElasticScript):
        with in_users_code("before its first batch"):
            function.enter_loop(state["iteration"])
    if function.reproducible == "bitwise":  # whatever the user's code has set
        choose_repeatable_kernels(device)
    trainer = Trainer(
        assignment=assignment,
        function=function,
        model=model,
        optimizer=optimizer,
        stateful=stateful,
        dataset=dataset,
        read_ahead=read_ahead,
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
    )
    trainer.begin_generation(assignment.generation, assignment.gpu_types_by_rank)
    return trainer, transfer


def worker_engine(
    objects: JobObjects,
    device: torch.device,
    cpu_throttle: CpuThrottle,
    stopwatch: Stopwatch,
    assignment: Assignment,
    members: GenerationMembers,
) -> StepEngine:
    """That of a worker, which computes its block of virtual nodes by itself."""
    function, model = objects.function, objects.model
    if function.reproducible == "fast" and not members.virtual_nodes.are_cut:
        return FastSteps(
            model,
            members=members,
            device=device,
            job_seed=assignment.spec.seed,
            find_unused_parameters=function.find_unused_parameters,
            cpu_throttle=cpu_throttle,
            stopwatch=stopwatch,
        )
    return BitwiseSteps(
        model,
        objects.optimizer,
        members=members,
        job_seed=assignment.spec.seed,
        cpu_throttle=cpu_throttle,
        stopwatch=stopwatch,
        make_scheduler=partial(SequentialScheduler, points=SYNC_POINTS)
        if isinstance(function, ElasticScript)
        else partial(LockstepScheduler, on_start=partial(prepare_thread, device)),
    )


def _from_checkpoint(
    assignment: Assignment, members: GenerationMembers, destinations: Sequence[torch.Tensor]
) -> Mapping[str, Any]:
    """Rank 0 reads the state and broadcasts it. destinations: tensors of the model."""
    if members.rank > 0:
        assert members.group is not None
        return broadcast_state(members.group, destinations=destinations)
    state: dict[str, Any] = {"iteration": 0, "metrics": {}}
    if assignment.purpose == "train":
        checkpoints = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)
        state = newest_checkpoint(checkpoints, assignment) or state
    return state if members.group is None else broadcast_state(members.group, state)


def newest_checkpoint(checkpoints: CheckpointStore, assignment: Assignment) -> dict[str, Any] | None:
    """None if the job has none yet. Raises TrainingFailed if the one that the ledger knows is missing: work that it
    counts as done must not be repeated silently."""
    deadline_s = time.monotonic() + assignment.checkpoint_wait_s
    while (state := checkpoints.newest(at_least=assignment.checkpoint_iteration)) is None:
        if assignment.checkpoint_iteration == 0:
            return None
        if time.monotonic() >= deadline_s:
            raise TrainingFailed(
                f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in "
                f"{assignment.checkpoint_dir}: set EF_DATA_DIR to the same shared storage on all nodes of the pool"
            )
        time.sleep(_POLL_S)
    return state


def _check_world_size(world_size: int, spec: JobSpec) -> None:
    if world_size > spec.global_batch_size:
        raise TrainingFailed(
            f"{world_size} workers cannot share a global batch of {spec.global_batch_size} samples: "
            "increase global_batch_size or request fewer GPUs"
        )


def _check_data(dataset: DataSet, state: Mapping[str, Any]) -> None:
    """The position of a job in its data is one number, which is meaningless in other data."""
    found = dataset.samples_digest
    known = state.get("samples", found)
    if found != known:
        raise TrainingFailed(
            f"the data set has {found} samples, but it had {known} when the job began: let init_dataset() return the "
            "same data at every start"
        )
