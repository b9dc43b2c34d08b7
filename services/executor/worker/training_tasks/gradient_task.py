"""The task function of a training load, as runners call it: the gradient of one virtual node at one step's parameters.

A runner keeps the objects of the job, its connection to the manager and the parameters of the last step from task to
task. The gradient goes to the manager on that connection; the result of the task says only whether it counts.
"""

import socket
import sys
from functools import partial
from typing import Any

import torch
from pydantic import TypeAdapter

from elasticflow.services.executor.worker.engine import user_code_checks
from elasticflow.services.executor.worker.engine.cooperative_thread import THREADS
from elasticflow.services.executor.worker.engine.gradient_scaling import refuse_gradient_scaling
from elasticflow.services.executor.worker.engine.job_state import make_job_objects
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.training_function import (
    in_users_code,
    load_training_function,
    virtual_nodes_of,
)
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.compatibility_digest import compatibility_digest
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    Stopwatch,
    choose_repeatable_kernels,
    finish_work,
    prepare_thread,
)
from elasticflow.services.executor.worker.training_tasks.task_steps import Contribution, VirtualNodeSteps, tensors_of
from elasticflow.services.executor.worker.training_tasks.tensor_connection import TensorConnection, contribution_message
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.training_tasks import GradientTask

_TIMEOUT_S = 60.0  # for a reply of the manager
_sessions: dict[str, "_Session"] = {}  # of this process, by the secret of the manager: at most one


def compute(task: GradientTask) -> bool | str:
    """Returns whether the gradient counts, or why no runner can compute it.

    Raises ConnectionError if the manager is gone, and what the user's code raises.
    """
    session = None
    try:
        session = _sessions.pop(task.secret, None) or _Session(task.address, task.secret)
        counts = session.compute(task.step, task.virtual_node)
    except BaseException as error:  # the connection may be within a message
        if session is not None:
            session.close()
        if isinstance(error, TrainingFailed):
            return str(error)
        raise
    _sessions[task.secret] = session
    return counts


class VirtualNodeTrainer:
    """Computes what a virtual node adds to a step. device: that this process has claimed."""

    def __init__(self, spec: JobSpec, code_path: str, micro_batch_size: int, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self._function = function = load_training_function(spec, code_path)
        self._virtual_nodes = virtual_nodes_of(function, spec, 1, micro_batch_size)
        self._objects = make_job_objects(function, spec, device)
        if self._objects.dataset.stream is not None:
            raise TrainingFailed(
                "a data set without a length cannot be read in tasks, each of which reads any part of it: give it a "
                "length, or submit the job instead"
            )
        refuse_gradient_scaling()
        self._cpu_throttle, self._stopwatch = CpuThrottle(1.0), Stopwatch(device)
        self._read_ahead = self._objects.read_ahead(device, self._cpu_throttle, num_processes=0)
        choose_repeatable_kernels(device)
        self.digest = compatibility_digest(
            function, spec, self._objects.model, self._objects.optimizer, {}, self._objects.dataset.samples_digest
        )

    def load(self, tensors: list[torch.Tensor]) -> None:
        """Load the tensors, as `tensors_of` returns them."""
        with torch.no_grad():
            for mine, received in zip(tensors_of(self._objects.model, self._objects.optimizer), tensors, strict=True):
                mine.copy_(received)

    def contribution(self, iteration: int, virtual_node: int) -> Contribution:
        """Raises TrainingFailed, and what the user's code raises."""
        micro_batches = self._virtual_nodes.micro_batches(virtual_node)
        with in_users_code(f"while the data of iteration {iteration} were read"):
            batches = self._read_ahead.take(micro_batches, iteration)
        self._function.iteration = iteration
        self._objects.model.train()
        steps = VirtualNodeSteps(
            self._objects.model,
            self._objects.optimizer,
            carried=self._objects.carried,
            members=GenerationMembers(None, self._virtual_nodes),
            computed=micro_batches,
            job_seed=self._spec.seed,
            cpu_throttle=self._cpu_throttle,
            stopwatch=self._stopwatch,
            make_scheduler=partial(LockstepScheduler, on_start=partial(prepare_thread, self._device), threads=THREADS),
        )
        try:
            with in_users_code(f"in iteration {iteration}"):
                calls = [partial(self._train, batch) for batch in batches]
                contribution = steps.contribution(iteration, calls, self._function)
                finish_work(self._device)
        finally:
            steps.roll_back()
            steps.close()
        if changed := sorted(self._objects.additional.changed_plain()):
            raise TrainingFailed(
                f"train() changes {', '.join(changed[:3])} in iteration {iteration}, which a task of a padding load "
                "does not have from the task before: derive it from self.iteration, or submit the job instead"
            )
        return contribution

    def _train(self, batch: Any) -> dict[str, float]:
        returned = self._function.train(batch, self._objects.model, self._objects.optimizer)
        return {name: float(value) for name, value in user_code_checks.as_metrics(returned).items()}


class _Session:
    """The session of this runner with one manager."""

    def __init__(self, address: str, secret: str) -> None:
        self._connection = TensorConnection(_connected(address), secret, is_manager=False, timeout_s=_TIMEOUT_S)
        try:
            self._trainer = self._compatible_trainer()
        except BaseException:
            self.close()
            raise
        self._step = 0  # whose parameters the model has; steps count from 1

    def _compatible_trainer(self) -> VirtualNodeTrainer:
        """Raises TrainingFailed if it differs from the manager's."""
        job, _ = self._connection.receive()
        spec = TypeAdapter(JobSpec).validate_json(job["spec"])
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        # sys.path[0]: the folder of the load's code, from which the runner has imported this module or tried to
        trainer = VirtualNodeTrainer(spec, sys.path[0], job["micro_batch_size"], device)
        self._connection.send({"digest": trainer.digest})
        reply, _ = self._connection.receive()
        if reply["refusal"]:
            raise TrainingFailed(reply["refusal"])
        return trainer

    def compute(self, step: int, virtual_node: int) -> bool:
        self._connection.send({"step": step, "virtual_node": virtual_node, "has_parameters": step == self._step})
        reply, tensors = self._connection.receive()
        if not reply["is_wanted"]:
            return False
        if tensors:
            self._trainer.load(tensors)
            self._step = step
        contribution = self._trainer.contribution(reply["iteration"], virtual_node)
        self._connection.send(*contribution_message(contribution))
        reply, _ = self._connection.receive()
        return bool(reply["counts"])

    def close(self) -> None:
        self._connection.close()


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    except OSError as error:
        raise ConnectionError(
            f"this node cannot reach the training manager at {address} ({error}): open its machine to connections from "
            "the nodes, or name another address of it with --address"
        ) from None
