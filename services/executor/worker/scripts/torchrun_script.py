"""Runs a torchrun script unchanged, in the environment that torchrun gives its workers; each resize restarts it.

Its workers share a store on rank 0, which the script's `init_process_group` uses, too. A stop arrives as SIGTERM, soon
after a snapshot if the next one is near. A script that does not handle it ends as by an exception: its `finally` blocks
and exit handlers run. The job is done when the script ends by itself on all workers.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed documents its stores and groups, but does not export all of them)

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import wraps
from types import FrameType
from typing import Any, NoReturn

import structlog
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from elasticflow.services.executor.worker.elastic.data_interface import bind_to_host
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost, raising_peer_lost
from elasticflow.services.executor.worker.elastic.rendezvous import (
    connect,
    open_rendezvous,
    rendezvous_specification,
)
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import claim
from elasticflow.services.executor.worker.process.exit_handlers import AT_END_S, EXIT_HANDLERS, ON_THE_WAY_S
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.scripts.own_rendezvous import use_own_rendezvous
from elasticflow.services.executor.worker.scripts.script_environment import (
    GpuSlot,
    run_script,
    torchrun_environment,
)
from elasticflow.services.executor.worker.scripts.torchrun_progress import (
    ProfilingCompleted,
    Recorded,
    TorchrunProgress,
)
from elasticflow.services.executor.worker.steps.restored_state import (
    checkpoint_store,
    lost_checkpoints,
    newest_checkpoint,
)
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed, in_users_code
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Profiled
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

_groups: list[object] = []  # those that existed when the script destroyed some
_SNAPSHOT_TIMEOUT_S = 5.0  # for the next snapshot: half of the executor's usual grace
_NOTICE_S = 2.0  # for the script's thread to notice SIGTERM; a collective without its peers never returns

log = structlog.get_logger()


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
            with in_users_code("in the script", has_peers=True):
                run_script(assignment.spec, assignment.code_path, world.environment)
            if not channel.stop_requested:
                EXIT_HANDLERS.run(AT_END_S)
                world.wait_for_all(assignment.rank, assignment.timeouts.collective_timeout_s)
                progress.finish()
    except ProfilingCompleted as measured:
        return measured.speed
    except PeerLost:
        if not (channel.stop_requested or assignment.purpose == "profile"):  # rank 0 ends first then
            raise
    except (Exception, SystemExit) as error:
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
    if assignment.world_size == 1:
        recorded, address, slots, store = _recorded(assignment), "127.0.0.1:0", [slot], None
    else:
        try:
            store = open_rendezvous(specification, channel) or connect(specification, channel, threading.Event())
            address = f"{store.host}:{store.port}"
            abortable = RendezvousStore(
                store, threading.Event(), wait_s=specification.wait_s, secret=specification.secret
            )
            recorded, slots = _exchange(assignment, abortable, slot)
        except (RuntimeError, queue.Empty) as error:
            raise PeerLost(f"the rendezvous of generation {assignment.generation} failed: {error}") from error
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
    received = [store.get(f"slot/{rank}").decode().partition(" ") for rank in range(assignment.world_size)]
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
    """In a thread. Other ranks lose rank 0, or end shortly after it. No snapshot of a job that has ended is needed."""
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
