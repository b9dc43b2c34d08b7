"""Runs a torchrun script unchanged, in the environment that torchrun gives its workers; each resize restarts it.

Its workers share a store on rank 0, which the script's `init_process_group` uses, too. A stop arrives as SIGTERM, soon
after a snapshot if the next one is near. A script that does not handle it ends as by an exception: its `finally` blocks
and exit handlers run. The job is done when the script ends by itself on all workers.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed documents its stores and groups, but does not export all of them)

import math
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import wraps
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world
from torch.optim.optimizer import register_optimizer_step_post_hook

from elasticflow.services.executor.worker.engine.restored_state import (
    checkpoint_store,
    lost_checkpoints,
    newest_checkpoint,
)
from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, raising_peer_lost
from elasticflow.services.executor.worker.group.rendezvous import connect, open_rendezvous, rendezvous_specification
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.group.tcp_connections import bind_to_host
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import claim
from elasticflow.services.executor.worker.process.exit_handlers import AT_END_S, EXIT_HANDLERS, ON_THE_WAY_S
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_process import PROCESS
from elasticflow.services.executor.worker.scripts.script_environment import (
    GpuSlot,
    run_script,
    torchrun_environment,
    use_own_rendezvous,
)
from elasticflow.services.executor.worker.scripts.snapshot_watch import SAVED_WITH, SnapshotWatch
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Finished,
    Profiled,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.logs import log

# --- torchrun progress ---------------------------------------------------------------------------------
# The progress of a torchrun script, which reports none itself: steps of its optimizer, and files that it saves.
#
# A step is one iteration of the job. If each worker has batch_per_worker samples of its own, a step is as large a
# part of an iteration as these samples are of a global batch: a fraction, because floats of many parts add up to a
# little less than the whole. The progress at rank 0's last snapshot is recorded when the next step ends, since
# until then the script may still rename the file. The next generation continues from there.

_WARM_UP_STEPS = 2
_MIN_MEASURED_STEPS = 3
_UNSAVED_S = 60.0  # of training, until a script counts as one that saves nothing


class ProfilingCompleted(BaseException):
    """Ends the script of a profiling run from within, once rank 0 knows the speed."""

    def __init__(self, speed: Profiled) -> None:
        super().__init__(speed)
        self.speed = speed


class Recorded(NamedTuple):
    """What earlier generations have recorded. lost_checkpoints: as in `Restored`."""

    iterations: Fraction = Fraction(0)
    lost_checkpoints: str = ""


class TorchrunProgress:
    """recorded: where this generation begins."""

    def __init__(
        self,
        assignment: Assignment,
        channel: Channel,
        telemetry: Telemetry,
        cpu_throttle: CpuThrottle,
        *,
        recorded: Recorded,
    ) -> None:
        self._assignment = assignment
        self._channel = channel
        self._telemetry = telemetry
        self._cpu_throttle = cpu_throttle
        self._done, self._lost_checkpoints = recorded
        self._iterations_per_step = iterations_per_step(assignment)
        self._num_steps = 0
        self._optimizer: Any = None  # the first that steps; a script may have others
        self._step_ends_s: list[float] = []
        # iterations at the last save; the file may not have its final name yet
        self._saved: Fraction | None = None
        self._may_warn = self.records_snapshots
        self._snapshot_times_s: list[float] = []
        self._snapshot_recorded = threading.Event()
        self._store = checkpoint_store(assignment)
        self.ended_by = ""  # the call that ended the script with status 0, as of `run_script`

    @property
    def records_snapshots(self) -> bool:
        return self._assignment.rank == 0 and self._assignment.purpose == "train"

    @property
    def has_begun(self) -> bool:
        """The script has taken a step."""
        return bool(self._step_ends_s)

    @property
    def iteration(self) -> int:
        """The present iteration: less than the job's last one until the script has ended, since its end is not known in
        advance."""
        return self._whole(self._done)

    def _whole(self, iterations: Fraction) -> int:
        return min(int(iterations), self._assignment.spec.max_iterations - 1)

    def watch(self) -> None:
        """Observe everything that the script does in this process from now on."""
        register_optimizer_step_post_hook(self._stepped)
        if self.records_snapshots:
            SnapshotWatch(lambda: self._done, self._note_saved).begin()

    def wait_for_snapshot(self, timeout_s: float) -> None:
        """Wait for the next snapshot if one is expected before the timeout."""
        self._snapshot_recorded.clear()
        if len(self._snapshot_times_s) < 2:
            return
        before_s, last_s = self._snapshot_times_s[-2:]
        if last_s + (last_s - before_s) <= time.monotonic() + timeout_s:
            self._snapshot_recorded.wait(timeout_s)

    def finish(self) -> None:
        """The script has ended on all workers. Raises ProfilingCompleted in a profiling run."""
        if self._assignment.purpose == "profile":
            if self._assignment.rank == 0:
                raise ProfilingCompleted(self._speed())
            return
        self._begin()
        if self._assignment.rank > 0:
            return
        self._keep()
        limit = self._assignment.spec.max_iterations
        iteration = min(int(self._done), limit)
        condition = "max_iterations" if iteration == limit else "metric"
        self._channel.send(Finished(iteration=iteration, condition=condition))
        log.info("script_ended", iteration=iteration, steps=self._num_steps)

    def _begin(self) -> None:
        """Once: at the first step, or at an end without steps."""
        if not self.has_begun:
            self._channel.send(Started(iteration=self.iteration, lost_checkpoints=self._lost_checkpoints))
            self._telemetry.training_began(self.iteration)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        PROCESS.end_if_forked()
        self._begin()
        self._cpu_throttle.sleep_off_excess()
        self._step_ends_s.append(time.monotonic())
        self._num_steps += 1
        self._keep()
        self._warn_if_alone()
        self._warn_if_unsaved()
        before = self.iteration
        self._done += self._iterations_per_step
        if self.iteration > before:
            self._telemetry.step_ended(self.iteration, {})
        else:
            self._telemetry.progressed()
        if self._assignment.purpose == "profile" and self._assignment.rank == 0 and self._is_measured():
            raise ProfilingCompleted(self._speed())

    # --- snapshots ---

    def _warn_if_alone(self) -> None:
        """A script that knows no other processes trains the same model in each of them."""
        world_size = self._assignment.plan.world_size
        if self._num_steps == 1 and world_size > 1 and self._assignment.rank == 0 and not dist.is_initialized():
            self._telemetry.warn(
                f"the script has taken a step without torch.distributed.init_process_group(): each of its {world_size} "
                "processes trains a model of its own. Call it and use DistributedDataParallel, or submit with --gpus 1"
            )

    def _warn_if_unsaved(self) -> None:
        if not self._may_warn or self._step_ends_s[-1] - self._step_ends_s[0] < _UNSAVED_S:
            return
        self._may_warn = False
        if not self._snapshot_times_s:
            self._telemetry.warn(
                f"the script has saved nothing in {_UNSAVED_S:.0f} s of training: after each change of its GPUs, and "
                "after each crash, it starts again from its last snapshot, or from the beginning. Files of "
                f"{SAVED_WITH} count"
            )

    def _note_saved(self, done: Fraction) -> None:
        self._saved = max(done, self._saved or done)  # a save in the background may end after a later one

    def _keep(self) -> None:
        """Record what was saved before the step that has just ended. Raises Superseded.

        If the record fails, the next generation only reports less progress than its script has made.
        """
        if self._saved is None:
            return
        done, self._saved = self._saved, None
        try:
            self._store.save(self._whole(done), {"iterations": str(done)})
        except OSError as error:
            log.warning("progress_not_recorded", iterations=float(done), reason=str(error))
        else:
            self._channel.send(CheckpointWritten(iteration=self._whole(done)))
        self._snapshot_times_s = [*self._snapshot_times_s[-1:], time.monotonic()]
        self._snapshot_recorded.set()

    # --- profiling runs ---

    def _step_times_s(self) -> list[float]:
        return [end_s - begin_s for begin_s, end_s in pairwise(self._step_ends_s[_WARM_UP_STEPS - 1 :])]

    def _is_measured(self) -> bool:
        times_s = self._step_times_s()
        long_enough = sum(times_s) >= self._assignment.profile_min_s
        enough = long_enough or len(times_s) >= self._assignment.profile_max_iterations
        return len(times_s) >= _MIN_MEASURED_STEPS and enough

    def _speed(self) -> Profiled:
        times_s = self._step_times_s()
        if len(times_s) < _MIN_MEASURED_STEPS:
            elsewhere = "" if self._num_steps else " in its own process; those of processes that it starts do not count"
            raise TrainingFailed(
                f"the script ended after {self._num_steps} optimizer steps{self.ended_by}, too few to measure its "
                f"speed: let it take at least {_WARM_UP_STEPS + _MIN_MEASURED_STEPS}{elsewhere}"
            )
        rate = float(self._iterations_per_step) / max(statistics.median(times_s), 1e-6)
        log.info("profiled", iterations_per_s=round(rate, 3), steps=len(times_s))
        return Profiled(iterations_per_s=rate, dataset_size=None)


def iterations_per_step(assignment: Assignment) -> Fraction:
    """Iterations of the job in one step of the script's optimizer. Raises TrainingFailed."""
    spec = assignment.spec
    batch_per_worker = spec.hyperparameters.get("batch_per_worker")
    if batch_per_worker is None:
        return Fraction(1)
    if isinstance(batch_per_worker, bool | str) or not 0 < batch_per_worker < math.inf:
        raise TrainingFailed(f"batch_per_worker: must be a positive number of samples, not {batch_per_worker!r}")
    return Fraction(batch_per_worker) * assignment.plan.world_size / spec.global_batch_size


# --- torchrun script -----------------------------------------------------------------------------------

_groups: list[object] = []  # those that existed when the script destroyed some
_SNAPSHOT_TIMEOUT_S = 5.0  # for the next snapshot: half of the executor's usual grace
_NOTICE_S = 2.0  # for the script's thread to notice SIGTERM; a collective without its peers never returns


class _ScriptStopped(BaseException):
    """Ends the script from within, since this worker must stop."""


def run(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> Profiled | None:
    """The speed of a profiling run, on rank 0. Raises the script's errors, PeerLost, Superseded, TrainingFailed."""
    stop = _StopSignal(channel)
    signal.signal(signal.SIGTERM, stop.handle)  # the script may handle it instead
    if assignment.device == "cpu":
        claim(assignment.device, assignment.gpu_index)
    world = _rendezvous(assignment, channel)
    cpu_throttle = CpuThrottle(assignment.cpu_share)
    progress = TorchrunProgress(assignment, channel, telemetry, cpu_throttle, recorded=world.recorded)
    progress.watch()
    _keep_groups()
    use_own_rendezvous(world.environment)
    _refuse_spawn()
    threading.Thread(target=_end_when_asked, args=(channel, progress, stop), name="end", daemon=True).start()
    try:
        channel.begin_training()  # from here on a stop arrives as SIGTERM
        with stop.ends_block():
            PROCESS.phase = "in the script, before its first step"
            with in_users_code("in the script", has_peers=True):
                progress.ended_by = run_script(assignment.spec, assignment.code_path, world.environment)
            if not channel.stop_requested:
                EXIT_HANDLERS.run(AT_END_S)
                world.wait_for_all(assignment.rank, assignment.timeouts.collective_timeout_s)
                progress.finish()
    except ProfilingCompleted as measured:
        return measured.speed
    except PeerLost:
        if not (channel.stop_requested or assignment.purpose == "profile"):  # rank 0 ends first then
            raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if not channel.stop_requested:
            raise
        log.warning("script_stopped", reason=f"{type(error).__name__}: {error}")  # how its handler of SIGTERM ends it
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """store: None for a worker that is alone."""

    environment: dict[str, str]
    recorded: Recorded
    store: dist.Store | None
    size: int

    def wait_for_all(self, rank: int, timeout_s: float) -> None:
        """The script has ended here; rank 0 returns when it has ended everywhere."""
        if self.store is None:
            return
        with raising_peer_lost():
            self.store.set(f"ended/{rank}", "")
            if rank == 0:
                self.store.wait([f"ended/{other}" for other in range(self.size)], timedelta(seconds=timeout_s))


def _rendezvous(assignment: Assignment, channel: Channel) -> _World:
    """Return when all workers have arrived, and know each other's GPU slots."""
    specification = rendezvous_specification(assignment, torch.device("cpu"))
    slot = GpuSlot(os.environ.get("EF_NODE_ID", ""), assignment.gpu_index)
    if assignment.plan.world_size == 1:
        recorded, address, slots, store = _recorded(assignment), "127.0.0.1:0", [slot], None
    else:
        try:
            store = open_rendezvous(specification, channel) or connect(specification, channel, threading.Event())
            address = f"{store.host}:{store.port}"
            abortable = RendezvousStore(
                store, threading.Event(), wait_s=specification.wait_s, secret=specification.plan.secret
            )
            recorded, slots = _exchange(assignment, abortable, slot)
        except (RuntimeError, queue.Empty) as error:
            raise PeerLost(f"the rendezvous of generation {assignment.plan.generation} failed: {error}") from error
        bind_to_host(assignment.advertise_host)
    return _World(
        environment=torchrun_environment(assignment, slots, address),
        recorded=recorded,
        store=store,
        size=len(slots),
    )


def _exchange(assignment: Assignment, store: dist.Store, slot: GpuSlot) -> tuple[Recorded, list[GpuSlot]]:
    recorded = Recorded()
    if assignment.rank == 0:
        recorded = _recorded(assignment)
        store.set("done", str(recorded.iterations))
    store.set(f"slot/{assignment.rank}", f"{slot.gpu_index} {slot.node_id}")
    received = [store.get(f"slot/{rank}").decode().partition(" ") for rank in range(assignment.plan.world_size)]
    slots = [GpuSlot(node_id, int(gpu_index)) for gpu_index, _, node_id in received]
    return recorded._replace(iterations=Fraction(store.get("done").decode())), slots


def _recorded(assignment: Assignment) -> Recorded:
    if assignment.purpose == "profile":
        return Recorded()
    checkpoints = checkpoint_store(assignment)
    state = newest_checkpoint(checkpoints, assignment)
    iterations = Fraction(state["iterations"]) if state else Fraction(0)
    return Recorded(iterations, lost_checkpoints(checkpoints, assignment, int(iterations)))


def _keep_groups() -> None:
    """Keep groups that a script destroys until the process ends: gloo's groups wait for each other when they close,
    sometimes forever."""
    destroy = dist.destroy_process_group

    @wraps(destroy)
    def destroy_and_keep(group: dist.ProcessGroup | None = None) -> None:
        _groups.extend(_world.pg_map)  # without a group, it destroys all
        destroy(group)

    dist.destroy_process_group = destroy_and_keep


def _refuse_spawn() -> None:
    """A script that starts a process for each GPU would do so in each of its workers."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise TrainingFailed(
            "the script starts its own processes with torch.multiprocessing.spawn, and the pool has started one for "
            'each GPU already: call the function itself, with int(os.environ["RANK"]) and '
            'int(os.environ["WORLD_SIZE"]), as under torchrun'
        )

    for module in ("torch.multiprocessing", "torch.multiprocessing.spawn"):
        sys.modules[module].start_processes = refuse  # pyright: ignore[reportAttributeAccessIssue]


class _StopSignal:
    """What SIGTERM does to a script that has no handler for it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ends_block = False
        self.noticed = threading.Event()

    @contextmanager
    def ends_block(self) -> Iterator[None]:
        """Leave the block at the signal, as by an exception."""
        with suppress(_ScriptStopped):
            self._ends_block = True
            yield
            self._ends_block = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.noticed.set()
        if not self._channel.stop_requested:  # the executor did not send it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._ends_block:
            self._ends_block = False
            raise _ScriptStopped

    @property
    def is_handled_by_script(self) -> bool:
        return signal.getsignal(signal.SIGTERM) != self.handle


def _end_when_asked(channel: Channel, progress: TorchrunProgress, stop: _StopSignal) -> None:
    """Wait for a stop in a thread, and end the script. Other ranks lose rank 0, or end shortly after it. No snapshot of
    a job that has ended is needed."""
    channel.wait_for_stop()
    if channel.keeps_state and progress.records_snapshots:
        progress.wait_for_snapshot(_SNAPSHOT_TIMEOUT_S)
    elif channel.keeps_state and progress.has_begun:
        time.sleep(_SNAPSHOT_TIMEOUT_S)
    log.info("stopped", iteration=progress.iteration)
    os.kill(os.getpid(), signal.SIGTERM)
    if not stop.is_handled_by_script and not stop.noticed.wait(_NOTICE_S):
        EXIT_HANDLERS.run(ON_THE_WAY_S)
        os._exit(ExitCode.DONE)
