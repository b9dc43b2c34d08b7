"""A training manager from its assignment to the end of the job: a worker that lets runners compute its gradients.

It needs no GPU. It holds the parameters and the optimizer's state, and evaluates and writes checkpoints as a worker
does. Its steps have the same bits as those of an ordinary run, whatever the number of runners and their interruptions.
"""

# pyright: strict

import contextlib
import math
import secrets
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.engine.cooperative_thread import THREADS
from elasticflow.services.executor.worker.engine.job_state import JobObjects
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.compatibility_digest import (
    CompatibilityDigest,
    compatibility_digest,
    require_compatible,
)
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop.training_loop import RunInNewThread, train
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch, prepare_thread
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_code import enter_code
from elasticflow.services.executor.worker.training_tasks.gradient_task import VirtualNodeTrainer
from elasticflow.services.executor.worker.training_tasks.task_steps import Contribution, ManagerSteps, tensors_of
from elasticflow.services.executor.worker.training_tasks.tensor_connection import TensorConnection, contribution_in
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.messages.worker_protocol.training_tasks import ManagerReady, TasksDue
from elasticflow.shared.runtime.process.logs import log

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


# --- task server --------------------------------------------------------------------------------------
# The manager's end of its connections to runners: parameters out, gradients in, for one step after another.
#
# One thread serves each runner. A task is begun with a request on a connection, and is abandoned with the connection.

# --- step tasks ----------------------------------------------------------------------------------------
# Which tasks of one step are under way, which are done, and which to hand out a second time. Pure.
#
# A task is one virtual node. The load hands out each once, and again after a preemption. The task of a slow or stuck
# runner would delay the whole step, so an idle runner gets a duplicate of it. The first result of a virtual node
# counts.


class StepTasks:
    """The tasks of one step. count: its virtual nodes. now_s: when they become due."""

    def __init__(self, count: int, now_s: float) -> None:
        self._due_s = now_s
        self._open = set(range(count))  # without a result
        self._repeated = set[int]()
        self._began_s: dict[int, list[float]] = {}  # of the executions under way, by virtual node

    @property
    def is_done(self) -> bool:
        return not self._open

    def begin(self, virtual_node: int, now_s: float) -> bool:
        """A runner has the task. Returns whether its result is still wanted."""
        if virtual_node not in self._open:
            return False
        self._began_s.setdefault(virtual_node, []).append(now_s)
        return True

    def abandon(self, virtual_node: int) -> None:
        """A runner that had begun it is gone; the load hands the task out again."""
        executions = self._began_s[virtual_node]
        executions.pop()
        if not executions:
            del self._began_s[virtual_node]

    def finish(self, virtual_node: int) -> bool:
        """A runner that had begun it has a result. Returns whether it is the first one, which counts."""
        self.abandon(virtual_node)
        is_first = virtual_node in self._open
        self._open.discard(virtual_node)
        return is_first

    def duplicates(self, *, num_idle: int, least_s: float, now_s: float) -> tuple[int, ...]:
        """The tasks to hand out a second time now, the longest under way first; each at most once.

        num_idle: runners that wait although tasks are missing. A task that none has begun counts from the beginning of
        the step: it is with a runner that is stuck or gone. least_s: a task is duplicated only after so many seconds.
        """
        since_s = {v: self._began_s.get(v, [self._due_s])[0] for v in self._open - self._repeated}
        late = [v for v in since_s if since_s[v] <= now_s - least_s]
        chosen = sorted(late, key=lambda v: (since_s[v], v))[:num_idle]
        self._repeated.update(chosen)
        return tuple(chosen)


# --- task server ---------------------------------------------------------------------------------------

_GREETING_TIMEOUT_S = 10.0
_POLL_S = 0.1
_IDLE_S = 0.1
_LATE = 1.5  # times the median duration: a task that takes longer is duplicated
_LOOPBACK = "127.0.0.1"


class TaskServer:
    """job: fields that describe the job to a runner. announce: takes the number of a step and the tasks that are due.

    host: this machine's address on the network of the runners. stop_requested: asked while the server waits.
    """

    def __init__(
        self,
        job: dict[str, Any],
        digest: CompatibilityDigest,
        num_tasks: int,
        *,
        host: str,
        announce: Callable[[int, Sequence[int]], None],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._job, self._digest, self._num_tasks = job, digest, num_tasks
        self._announce, self._stop_requested = announce, stop_requested
        self._changed = threading.Condition()
        self._step, self._iteration = 0, 0
        self._tensors: Sequence[torch.Tensor] = ()
        self._tasks = StepTasks(0, 0.0)
        self._contributions: dict[int, Contribution] = {}
        self._idle_since_s: dict[TensorConnection, float] = {}
        self._durations_s: deque[float] = deque(maxlen=100)
        self.secret = secrets.token_hex(32)
        self._listener = socket.create_server((_LOOPBACK if host == _LOOPBACK else "", 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="runners", daemon=True).start()

    def begin(self, iteration: int, tensors: Sequence[torch.Tensor]) -> None:
        """All tasks of the next step are due. tensors: unchanged until the last contribution."""
        with self._changed:
            self._step += 1
            self._iteration, self._tensors = iteration, tensors
            self._tasks, self._contributions = StepTasks(self._num_tasks, time.monotonic()), {}
        self._announce(self._step, range(self._num_tasks))

    def contributions(self) -> Sequence[Contribution]:
        """Wait for one of each virtual node. Raises PeerLost if a stop is requested before."""
        while True:
            with self._changed:
                if self._tasks.is_done:
                    return [self._contributions[virtual_node] for virtual_node in range(self._num_tasks)]
                late = self._late_tasks(time.monotonic())
                if not late:
                    self._changed.wait(_POLL_S)
            if late:
                self._announce(self._step, late)
            if self._stop_requested():
                raise PeerLost("a stop is requested while tasks of this step are under way")

    def _late_tasks(self, now_s: float) -> Sequence[int]:
        """The tasks to hand out a second time. A runner is idle after a time in which the load would give it a task."""
        usual_s = statistics.median(self._durations_s) if self._durations_s else math.inf
        num_idle = sum(since_s <= now_s - _IDLE_S for since_s in self._idle_since_s.values())
        return self._tasks.duplicates(num_idle=num_idle, least_s=_LATE * usual_s, now_s=now_s)

    def _accept(self) -> None:
        while True:
            sock, peer = self._listener.accept()
            threading.Thread(target=self._serve, args=(sock, peer), name=f"runner {peer[0]}", daemon=True).start()

    def _serve(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        """One runner, until it is gone."""
        try:
            connection = TensorConnection(sock, self.secret, is_manager=True, timeout_s=_GREETING_TIMEOUT_S)
            with contextlib.closing(connection):
                connection.wait_without_timeout()
                self._serve_tasks(connection)
        except OSError as error:
            log.info("runner_left", peer=peer[0], reason=str(error))

    def _serve_tasks(self, connection: TensorConnection) -> None:
        connection.send(self._job)
        greeting, _ = connection.receive()
        refusal = self._refusal(greeting["digest"])
        connection.send({"refusal": refusal})
        if refusal:
            return
        try:
            while True:
                with self._changed:
                    self._idle_since_s[connection] = time.monotonic()
                request, _ = connection.receive()
                self._serve_task(connection, **request)
        finally:
            with self._changed:
                self._idle_since_s.pop(connection, None)

    def _refusal(self, digest: CompatibilityDigest) -> str:
        try:
            require_compatible(digest, self._digest)
        except TrainingFailed as error:
            return str(error)
        return ""

    def _serve_task(self, connection: TensorConnection, *, step: int, virtual_node: int, has_parameters: bool) -> None:
        began_s = time.monotonic()
        with self._changed:
            tasks, tensors, iteration = self._tasks, self._tensors, self._iteration
            is_wanted = step == self._step and tasks.begin(virtual_node, began_s)
            del self._idle_since_s[connection]
        if not is_wanted:
            return connection.send({"is_wanted": False})
        try:
            connection.send({"is_wanted": True, "iteration": iteration}, () if has_parameters else tensors)
            contribution = contribution_in(*connection.receive())
        except BaseException:
            with self._changed:
                tasks.abandon(virtual_node)
            raise
        with self._changed:
            counts = tasks.finish(virtual_node) and tasks is self._tasks
            if counts:
                self._contributions[virtual_node] = contribution
                self._durations_s.append(time.monotonic() - began_s)
                self._changed.notify()
        return connection.send({"counts": counts})
