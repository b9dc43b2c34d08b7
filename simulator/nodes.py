"""A node on the virtual clock: the executor's own policy, with virtual worker processes for hands."""

from collections.abc import Callable
from typing import Any

from services.executor.model import Offer, State
from services.executor.notes import (
    AskForCheckpoint,
    ChangeMembers,
    ContactLost,
    ContactRestored,
    Depart,
    KillWorker,
    KillWorkers,
    Note,
    StartWorker,
    StopWorkers,
    TellPeersLost,
    TellRendezvous,
)
from services.executor.observing import report
from services.executor.policy import executor_policy
from shared.messages import codec
from simulator.engine import Engine
from simulator.faults import Link, Network
from simulator.ledger import VirtualLedger
from simulator.replica import Replica
from simulator.world import World

REBOOT_S = 0.2


class VirtualNode:
    """heard(report): where heartbeats go."""

    def __init__(
        self,
        engine: Engine,
        ledger: VirtualLedger,
        network: Network,
        world: World,
        pool: str,
        node_id: str,
        num_gpus: int,
        heard: Callable[[Any], None],
    ) -> None:
        self._engine, self._ledger, self._network, self._world = engine, ledger, network, world
        self._pool, self.node_id, self._num_gpus, self._heard = pool, node_id, num_gpus, heard
        self._num_boots = 0
        self._executor: Replica[State] | None = None
        self._link = Link(engine, network)
        engine.after(0.0, self._boot)

    # -- faults ------------------------------------------------------------------------------------------

    def crash(self, outage_s: float, *, silently: bool = False) -> None:
        """Executor and workers are gone at once; back after outage_s. silently: as a machine without power."""
        if self._executor is not None:
            self._executor.end()
            self._executor = None
            self._link.cut()
            self._world.kill_all(self.node_id, told=False, silently=silently)
            self._engine.after(outage_s, self._boot)

    def part(self, outage_s: float) -> None:
        """The node lives, and reaches nobody for outage_s."""
        if self._executor is None or not self._link.up:
            return
        executor, parted_at_s = self._executor, self._engine.now_s
        lease_s = executor.folded.config.detection.lease_s  # cut off for longer, it ends its own workers
        self._link.up = False

        def fence() -> None:
            if executor is self._executor and not self._link.up:
                executor.note(ContactLost(silence_s=self._engine.now_s - parted_at_s))
                self._world.kill_all(self.node_id, told=True)

        def mend() -> None:
            if executor is self._executor:
                self._link.mend()
                executor.catch_up()
                executor.note(ContactRestored())

        if outage_s > lease_s:
            self._engine.after(lease_s, fence)
        self._engine.after(outage_s, mend)

    def crash_worker(self) -> None:
        """One worker process dies."""
        process = self._world.any_process(self.node_id)
        if process is not None:
            self._world.crash(process)

    # -- the executor's shell ----------------------------------------------------------------------------

    def _boot(self) -> None:
        self._num_boots += 1
        offer = Offer(
            node_id=self.node_id,
            run_id=f"boot{self._num_boots}",
            num_gpus=self._num_gpus,
            device="cpu",
            advertise_host=self.node_id,
        )
        self._link = Link(self._engine, self._network)
        executor = Replica(
            self._engine,
            self._ledger,
            self._link,
            self._pool,
            executor_policy(offer),
            f"{self.node_id}-{offer.run_id}",
            act=self._act,
        )
        self._executor = executor
        self._beat(executor)

    def _act(self, action: Any) -> None:
        match action:
            case StartWorker():
                self._world.launch(action, self.node_id, self._say)
            case ChangeMembers():
                self._world.change(action)
            case TellRendezvous():
                self._world.introduce((action.job_id, action.generation), self.node_id)
            case TellPeersLost():
                self._world.tell_lost(action.worker)
            case AskForCheckpoint():
                self._world.save(action)
            case StopWorkers():
                self._world.stop((action.job_id, action.generation), self.node_id)
            case KillWorker():
                self._world.kill_one(action.worker)
            case KillWorkers():
                self._world.kill((action.job_id, action.generation), self.node_id)
            case Depart():
                self._engine.after(0.0, lambda: self.crash(REBOOT_S))
            case _:
                raise AssertionError(action)

    def _say(self, note: Note) -> None:
        """What a worker says comes to the executor that started it, or to nobody."""
        executor = self._executor
        if executor is not None:
            self._engine.after(0.0, lambda: executor.note(note) if executor is self._executor else None)

    def _beat(self, executor: Replica[State]) -> None:
        if executor is not self._executor:
            return
        now_s = self._engine.now_s
        if self._link.up:
            data = codec.encode(report(executor.state, now_s), id="heartbeat", recorded_at_s=now_s)
            self._engine.after(self._network.delay_s(), lambda: self._heard(codec.decode(data).message))
        self._engine.after(executor.folded.config.detection.beat_s, lambda: self._beat(executor))
