"""From an assignment to a worker that can train: the user's objects, the others, the state of the job."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from services.executor.worker.bitwise import POINTS, BitwiseSteps
from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore
from services.executor.worker.data_set import DataSet, recognize, sample_order
from services.executor.worker.device import choose_repeatable_kernels, claim, prepare_thread
from services.executor.worker.fast import FastSteps
from services.executor.worker.groups import retire
from services.executor.worker.handover import NOTHING_YET, HandOver, hand_over, own_tensors, spread
from services.executor.worker.in_turn import InTurn
from services.executor.worker.loading import seed_generators
from services.executor.worker.lockstep import Lockstep
from services.executor.worker.meeting import invitation, meet, open_rendezvous
from services.executor.worker.membership import Membership
from services.executor.worker.pacing import Pacer
from services.executor.worker.plan import plan_of
from services.executor.worker.read_ahead import ReadAhead
from services.executor.worker.script import Script
from services.executor.worker.steps import Steps
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.streams import reader_of
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.trainer import Trainer
from services.executor.worker.training_function import (
    Stateful,
    TrainingFailed,
    checked_model,
    checked_optimizer,
    in_users_code,
    load_training_function,
    virtual_nodes_of,
)
from services.executor.worker.virtual_nodes import Phase, seed_of
from shared.messages.job import SCRIPT, JobSpec
from shared.messages.to_worker import Assignment

_LOOK_S = 0.2  # for a checkpoint that the shared storage does not show yet


def set_up(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> tuple[Trainer, HandOver | None]:
    """Build model, data and optimizer, meet the others, take over the state of the job: from those who train, if the
    worker joins some, else from the checkpoint."""
    spec = assignment.spec
    device = claim(assignment.device, assignment.gpu_index)
    pacer, stopwatch = Pacer(assignment.cpu_share), Stopwatch(device)
    invited = invitation(assignment, device)
    store = open_rendezvous(invited, channel)
    function = (
        Script(spec, device, assignment.gpu_index)
        if spec.entry == SCRIPT
        else load_training_function(spec, assignment.code_path)
    )
    seed_generators(seed_of(spec.seed, Phase.INITIALIZE))
    with in_users_code("while the model and the data set were made"):
        model = checked_model(function.init_model()).to(device)
        dataset = recognize(function.init_dataset())
        optimizer = checked_optimizer(function.init_optimizer(model))
    order = sample_order(dataset, function, spec)
    _check_world_size(assignment.world_size, spec)
    virtual_nodes = virtual_nodes_of(function, spec, assignment.world_size, assignment.micro_batch_size)
    reading = ReadAhead(
        reader_of(dataset, order, function.collate),
        order,
        num_processes=function.data_workers,
        device=device,
        pacer=pacer,
    )

    plan = plan_of(function, spec, model, optimizer, dataset.samples_told)
    met = meet(invited, plan, channel, store, hand_over=assignment.meeting_size > 0)
    members = Membership(met.workers, pacer, virtual_nodes)
    stateful: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    if isinstance(function, Script):
        stateful |= function.further_state
    handed = None
    if met.everyone is not None:
        reading.prepare(members.computed, met.goes_over_at)
        handed = hand_over(
            met.everyone,
            iteration=NOTHING_YET,
            num_staying=assignment.world_size,
            own=own_tensors(model),
        )
        retire(met.everyone)
    state = handed.state if handed else _from_checkpoint(assignment, members, own_tensors(model))
    _check_data(dataset, state)
    if "model" in state:
        for name, each in stateful.items():
            each.load_state_dict(state[name])
    if isinstance(function, Script):
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
        reading=reading,
        device=device,
        pacer=pacer,
        telemetry=telemetry,
        stopwatch=stopwatch,
        members=members,
        make_steps=partial(_steps, function, model, optimizer, device, pacer, stopwatch, spec),
        iteration=state["iteration"],
        metrics=dict(state["metrics"]),
        metric_names=state.get("metric_names"),
        is_over=function.is_over,
    )
    trainer.begin(assignment.generation)
    return trainer, handed


def _steps(
    function: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    pacer: Pacer,
    stopwatch: Stopwatch,
    spec: JobSpec,
    members: Membership,
) -> Steps:
    if function.reproducible == "fast" and not members.virtual_nodes.are_cut:
        return FastSteps(
            model,
            members=members,
            device=device,
            job_seed=spec.seed,
            find_unused_parameters=function.find_unused_parameters,
            stopwatch=stopwatch,
        )
    return BitwiseSteps(
        model,
        optimizer,
        members=members,
        job_seed=spec.seed,
        pacer=pacer,
        stopwatch=stopwatch,
        take_turns=partial(InTurn, points=POINTS)
        if isinstance(function, Script)
        else partial(Lockstep, on_start=partial(prepare_thread, device)),
    )


def _from_checkpoint(
    assignment: Assignment, members: Membership, own: Sequence[torch.Tensor]
) -> Mapping[str, Any]:
    """Rank 0 reads it, and all get it. own: of the model."""
    if members.rank > 0:
        assert members.group is not None
        return spread(members.group, own=own)
    state: dict[str, Any] = {"iteration": 0, "metrics": {}}
    if assignment.purpose == "train":
        checkpoints = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)
        state = newest_checkpoint(checkpoints, assignment) or state
    return state if members.group is None else spread(members.group, state)


def newest_checkpoint(checkpoints: CheckpointStore, assignment: Assignment) -> dict[str, Any] | None:
    """None if the job has none yet. Work that the ledger counts as done must not be done again in silence."""
    give_up_s = time.monotonic() + assignment.checkpoint_wait_s
    while (state := checkpoints.newest(at_least=assignment.checkpoint_iteration)) is None:
        if assignment.checkpoint_iteration == 0:
            return None
        if time.monotonic() >= give_up_s:
            raise TrainingFailed(
                f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in "
                f"{assignment.checkpoint_dir}: EF_DATA_DIR must be the same storage on all nodes of the pool"
            )
        time.sleep(_LOOK_S)
    return state


def _check_world_size(world_size: int, spec: JobSpec) -> None:
    if world_size > spec.global_batch_size:
        raise TrainingFailed(
            f"{world_size} workers cannot share a global batch of {spec.global_batch_size} samples"
        )


def _check_data(dataset: DataSet, state: Mapping[str, Any]) -> None:
    """Where a job stands in its data is one number, which means something else in other data."""
    found = dataset.samples_told
    known = state.get("samples", found)
    if found != known:
        raise TrainingFailed(
            f"the data set has {found} samples, but it had {known} when the job began: init_dataset() must return the "
            "same data at every start"
        )
