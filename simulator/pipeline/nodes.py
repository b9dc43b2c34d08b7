"""A node of the simulated pool: the real executor policy, with virtual worker processes behind its action handler."""

import asyncio
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import (
    ContactLost,
    ContactRestored,
    KillWorker,
    LocalEvent,
    SendToWorker,
    ShutDown,
    StartWorker,
)
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification, State
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.pipeline.environment import Environment
from elasticflow.simulator.pipeline.simulated_process import PoolSetting, SimulatedProcess
from elasticflow.simulator.pipeline.telemetry import send_heartbeats

REBOOT_S = 0.2
FOLD_POLL_S = 0.05


class VirtualNode:
    """An executor and its workers, which go down and come back together."""

    def __init__(
        self, setting: PoolSetting, environment: Environment, node_id: str, num_gpus: int, metrics: Metrics
    ) -> None:
        self._setting, self._loop, self._environment = setting, setting.loop, environment
        self.node_id, self._num_gpus, self._num_boots = node_id, num_gpus, 0
        self.executor = SimulatedProcess(
            setting,
            self._booted,
            node_id,
            metrics,
            act=self._act,
            beside=self._send_heartbeats,
        )
        self.executor.start()

    # -- faults ------------------------------------------------------------------------------------------

    def crash(self, outage_s: float, *, silently: bool = False) -> None:
        """Executor and workers are gone at once; back after outage_s. silently: as a machine without power."""
        if self.executor.runs:
            self.executor.kill(with_its_machine=True)
            self._environment.kill_all(self.node_id, reported=False, silently=silently)
            self._loop.after(outage_s, self.executor.start)

    def partition(self, outage_s: float) -> None:
        """The node runs on and reaches no other process for outage_s. Its workers end when their lease is over."""
        host = self.executor.host
        if host is None or not self.executor.link.up:
            return
        cut_at_s, lease_s = self._loop.now_s, host.folded.config.timeouts.lease_s
        link = self.executor.link
        link.cut()

        def fence() -> None:
            if host is self.executor.host and not link.up:
                host.note(ContactLost(silence_s=self._loop.now_s - cut_at_s))
                self._environment.kill_all(self.node_id, reported=True)

        def repair() -> None:
            link.repair()
            if host is self.executor.host:
                self._loop.spawn(self._regain_contact(host), f"{self.node_id} regains contact")

        if outage_s > lease_s:
            self._loop.after(lease_s, fence)
        self._loop.after(outage_s, repair)

    def crash_worker(self) -> None:
        """One worker process dies."""
        process = self._environment.any_process(self.node_id)
        if process is not None:
            self._environment.crash(process)

    # -- the executor ------------------------------------------------------------------------------------

    def _booted(self) -> Policy[State]:
        """The policy of the executor after one more start of the node."""
        self._num_boots += 1
        return executor_policy(
            NodeSpecification(
                node_id=self.node_id,
                run_id=f"boot{self._num_boots}",
                num_gpus=self._num_gpus,
                device="cpu",
                advertise_host=self.node_id,
            )
        )

    async def _send_heartbeats(self, bus: MemoryBus, host: Host[Any]) -> None:
        await send_heartbeats(bus, self._setting.pool, host, self._setting.clock)

    async def _regain_contact(self, host: Host[Any]) -> None:
        """The executor is in contact again once it has folded the ledger up to its end."""
        end = self._setting.broker.ledger(self._setting.pool).last_sequence
        while host is self.executor.host and host.folded.sequence < end:  # noqa: ASYNC110 - the host announces no fold
            await asyncio.sleep(FOLD_POLL_S)
        host.note(ContactRestored())

    def _act(self, action: Any) -> None:
        match action:
            case StartWorker():
                self._environment.launch(action, self.node_id, self._report)
            case SendToWorker():
                self._environment.send(action.worker, action.message)
            case KillWorker():
                self._environment.kill(action.worker)
            case ShutDown():
                self._loop.after(0.0, lambda: self.crash(REBOOT_S))
            case _:
                raise AssertionError(action)

    def _report(self, local_event: LocalEvent) -> None:
        """Pass a worker's message to the executor that started it, if that executor still runs."""
        host = self.executor.host
        if host is not None:
            self._loop.call_soon(lambda: host.note(local_event) if host is self.executor.host else None)
