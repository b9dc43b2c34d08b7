"""A training manager from its assignment to the end of the job: a worker that lets runners compute its gradients.

It needs no GPU. It holds the parameters and the optimizer's state, and evaluates and writes checkpoints as a worker
does. Its steps have the same bits as those of an ordinary run, whatever the number of runners and their interruptions.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.engine.cooperative_thread import THREADS
from elasticflow.services.executor.worker.engine.job_state import JobObjects
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.compatibility_digest import compatibility_digest
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop.training_loop import RunInNewThread, train
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch, prepare_thread
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_code import enter_code
from elasticflow.services.executor.worker.training_tasks.gradient_task import VirtualNodeTrainer
from elasticflow.services.executor.worker.training_tasks.task_server import TaskServer
from elasticflow.services.executor.worker.training_tasks.task_steps import ManagerSteps, tensors_of
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.messages.worker_protocol.training_tasks import ManagerReady, TasksDue

_BYTES_PER_S = 125e6  # of a usual network, for the estimate of a task's overhead


def run_manager(assignment: Assignment, channel: Channel, run_in_new_thread: RunInNewThread) -> None:
    """Raises TrainingFailed, Superseded or any error of the user's code.

    A generation of its own supersedes a manager that still writes to the same folder.
    """
    newest = CheckpointStore(Path(assignment.checkpoint_dir), generation=0).newest_generation()
    assignment = replace(enter_code(assignment), plan=replace(assignment.plan, generation=newest + 1))
    with Telemetry(channel) as telemetry:
        train(
            assignment,
            channel,
            telemetry,
            run_in_new_thread,
            make_engine=partial(_manager_steps, channel),
            is_profiled=False,
        )


def _manager_steps(
    channel: Channel,
    objects: JobObjects,
    device: torch.device,
    cpu_throttle: CpuThrottle,
    stopwatch: Stopwatch,
    assignment: Assignment,
    members: GenerationMembers,
) -> ManagerSteps:
    """The engine of a manager; announces itself to the client."""
    function, spec = objects.function, assignment.spec
    if function.reproducible != "bitwise":
        raise TrainingFailed('a job with reproducible = "fast" has no tasks that give the same bits: set "bitwise"')
    if objects.additional.objects:
        raise TrainingFailed(
            "a job with stateful() cannot train in tasks, since runners receive only its parameters and buffers: "
            "submit the job instead"
        )
    if objects.sharded is not None:
        raise TrainingFailed("a training manager holds all of the optimizer's state: leave shard_optimizer out")
    measured = _measure(assignment, device)

    def announce(step: int, virtual_nodes: Sequence[int]) -> None:
        channel.send(TasksDue(step=step, virtual_nodes=tuple(virtual_nodes)))

    server = TaskServer(
        {
            "spec": TypeAdapter(JobSpec).dump_json(spec).decode(),
            "micro_batch_size": assignment.plan.micro_batch_size,
        },
        compatibility_digest(function, spec, objects.model, objects.optimizer, {}, objects.dataset.samples_digest),
        members.virtual_nodes.count,
        host=assignment.advertise_host,
        announce=announce,
        stop_requested=lambda: channel.stop_requested,
    )
    num_bytes = sum(tensor.nbytes for tensor in tensors_of(objects.model, objects.optimizer))
    channel.send(
        ManagerReady(
            address=server.address,
            secret=server.secret,
            task_s=measured.task_s,
            overhead_s=2 * num_bytes / _BYTES_PER_S,  # parameters to the runner, gradients back
            start_stop_s=measured.start_s,
        )
    )
    return ManagerSteps(
        server,
        function,
        objects.model,
        objects.optimizer,
        carried=objects.carried,
        members=members,
        job_seed=spec.seed,
        cpu_throttle=cpu_throttle,
        stopwatch=stopwatch,
        make_scheduler=partial(LockstepScheduler, on_start=partial(prepare_thread, device), threads=THREADS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    start_s: float  # of a runner
    task_s: float


def _measure(assignment: Assignment, device: torch.device) -> _Measured:
    """One task in this process, as a runner computes it. Raises TrainingFailed if the job cannot be cut into tasks."""
    began_s = time.monotonic()
    trainer = VirtualNodeTrainer(assignment.spec, assignment.code_path, assignment.plan.micro_batch_size, device)
    trainer.contribution(0, 0)
    started_s = time.monotonic()
    trainer.contribution(0, 0)
    return _Measured(start_s=started_s - began_s, task_s=max(time.monotonic() - started_s, 1e-6))
