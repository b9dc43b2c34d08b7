"""A script as it is, in a world as torchrun makes it. It knows nothing of its job: others join by starting it anew.

Its workers meet in a store of rank 0, which the script's `init_process_group` uses, too. A stop comes as SIGTERM, soon
after a snapshot if the next one is near. Where it ends by itself on all workers, the job is done.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter; nor which groups there are)

import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path

import structlog
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore
from services.executor.worker.device import claim
from services.executor.worker.groups import PeerLost, noticing_lost_peers
from services.executor.worker.meeting import bind_to_host, connect, invitation, open_rendezvous
from services.executor.worker.meeting_store import MeetingStore
from services.executor.worker.pacing import Pacer
from services.executor.worker.script_progress import Measured, ScriptProgress
from services.executor.worker.setting_up import newest_checkpoint
from services.executor.worker.surroundings import run_script
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.torchrun_environment import Seat, environment
from services.executor.worker.training_function import in_users_code
from shared.messages.from_worker import Profiled
from shared.messages.to_worker import Assignment

_groups: list[object] = []  # that were there when the script destroyed some
_PATIENCE_S = 5.0  # with the next snapshot, half of the executor's usual grace

log = structlog.get_logger()


def run(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> Profiled | None:
    """The speed of a pre-run, on rank 0. Raises what the script raises, PeerLost, Superseded, TrainingFailed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the script's to handle
    if assignment.device == "cpu":
        claim(assignment.device, assignment.gpu_index)
    world = _meet(assignment, channel)
    progress = ScriptProgress(assignment, channel, telemetry, Pacer(assignment.cpu_share), done=world.done)
    progress.watch()
    _keep_groups()
    threading.Thread(target=_end_when_asked, args=(channel, progress), name="end", daemon=True).start()
    try:
        with in_users_code("in the script"):
            run_script(assignment.spec, world.environment)
        if not channel.stop_requested:
            world.wait_for_all(assignment.rank, assignment.detection.collective_s)
            progress.finish()
    except Measured as measured:
        return measured.speed
    except PeerLost:
        if not (channel.stop_requested or assignment.purpose == "profile"):  # where rank 0 goes first
            raise
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """done: iterations that were kept, by an earlier generation. store: None for a worker that is alone."""

    environment: dict[str, str]
    done: float
    store: dist.Store | None
    size: int

    def wait_for_all(self, rank: int, timeout_s: float) -> None:
        """The script has ended here; rank 0 returns when it has everywhere."""
        if self.store is None:
            return
        with noticing_lost_peers():
            self.store.set(f"ended/{rank}", "")
            if rank == 0:
                self.store.wait(
                    [f"ended/{other}" for other in range(self.size)], timedelta(seconds=timeout_s)
                )


def _meet(assignment: Assignment, channel: Channel) -> _World:
    """Return when all workers are there, and know of each other what torchrun tells."""
    invited = invitation(assignment, torch.device("cpu"))
    seat = Seat(os.environ.get("EF_NODE_ID", ""), assignment.gpu_index)
    if assignment.world_size == 1:
        done, address, seats, store = _iterations_done(assignment), "127.0.0.1:0", [seat], None
    else:
        try:
            store = open_rendezvous(invited, channel) or connect(invited, channel, threading.Event())
            address = f"{store.host}:{store.port}"
            place = MeetingStore(store, threading.Event(), wait_s=invited.wait_s)
            done, seats = _exchange(assignment, place, seat)
        except (RuntimeError, queue.Empty) as error:
            raise PeerLost(f"the workers of this generation did not meet: {error}") from error
        bind_to_host(assignment.advertise_host)
    return _World(
        environment=environment(assignment, seats, address, sees_all_gpus=torch.cuda.is_initialized()),
        done=done,
        store=store,
        size=len(seats),
    )


def _exchange(assignment: Assignment, store: dist.Store, seat: Seat) -> tuple[float, list[Seat]]:
    if assignment.rank == 0:
        store.set("done", repr(_iterations_done(assignment)))
    store.set(f"seat/{assignment.rank}", f"{seat.gpu_index} {seat.node_id}")
    told = [store.get(f"seat/{rank}").decode().partition(" ") for rank in range(assignment.world_size)]
    return float(store.get("done")), [Seat(node_id, int(gpu_index)) for gpu_index, _, node_id in told]


def _iterations_done(assignment: Assignment) -> float:
    if assignment.purpose == "profile":
        return 0.0
    checkpoints = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)
    state = newest_checkpoint(checkpoints, assignment)
    return float(state["iterations"]) if state else 0.0


def _keep_groups() -> None:
    """Groups that a script destroys are let go by the end of the process: those of gloo wait for each other when they
    are closed, now and then for ever."""
    destroy = dist.destroy_process_group

    @wraps(destroy)
    def destroy_and_keep(group: dist.ProcessGroup | None = None) -> None:
        _groups.extend(_world.pg_map)  # with the world all others go
        destroy(group)

    dist.destroy_process_group = destroy_and_keep


def _end_when_asked(channel: Channel, progress: ScriptProgress) -> None:
    """In a thread. Other ranks lose rank 0, or go a little later than that may."""
    channel.wait_for_stop()
    if progress.keeps_snapshots:
        progress.wait_for_snapshot(_PATIENCE_S)
    else:
        time.sleep(_PATIENCE_S)
    log.info("stopped", iteration=progress.iteration)
    os.kill(os.getpid(), signal.SIGTERM)
