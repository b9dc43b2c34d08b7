"""A node of the simulated pool: the real executor policy, with virtual worker processes behind its action handler."""

from collections.abc import Mapping
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import (
    BeginShutDown,
    KillWorker,
    LocalEvent,
    SendToWorker,
    ShutDown,
    StartWorker,
    StoreArtifacts,
    UsePaddingSlots,
)
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification, State
from elasticflow.services.executor.heartbeat import Heartbeat
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.pipeline.environment import Environment
from elasticflow.simulator.pipeline.simulated_process import PoolSetting, SilentLog, SimulatedProcess
from elasticflow.simulator.pipeline.stepped_clock import SteppedClock

REBOOT_S = 0.2


class Machine:
    """A machine, and what starts the executors on it."""

    def __init__(self, name: str) -> None:
        self._name, self._num_starts = name, 1

    @property
    def started_by(self) -> str:
        return f"{self._name}-start-{self._num_starts}"

    def lose_power(self) -> None:
        self._num_starts += 1


class VirtualNode:
    """An executor and its workers, which go down and come back together.

    machine: on which it runs, alone unless given. gpu_type_by_node: read at each start, because a node may come back
    with other GPUs.
    """

    def __init__(
        self,
        setting: PoolSetting,
        environment: Environment,
        node_id: str,
        num_gpus: int,
        gpu_type_by_node: Mapping[str, str],
        metrics: Metrics,
        *,
        machine: Machine | None = None,
    ) -> None:
        self.machine = Machine(node_id) if machine is None else machine
        self._setting, self._loop, self._environment = setting, setting.loop, environment
        self.node_id, self._num_gpus, self._num_boots = node_id, num_gpus, 0
        self._gpu_type_by_node = gpu_type_by_node
        self._previous_run_id, self._leased_until_s = "", 0.0
        self.executor = SimulatedProcess(
            setting,
            self._booted,
            node_id,
            metrics,
            SteppedClock(setting.loop),
            act=self._act,
            beside=self._heartbeat,
        )
        self.executor.start()

    # -- faults ------------------------------------------------------------------------------------------

    def crash(self, outage_s: float, *, silently: bool = False) -> None:
        """Executor and workers are gone at once; back after outage_s. silently: as a machine without power."""
        if self.executor.runs:
            self._previous_run_id = "" if silently else self._run_id
            if silently:
                self.machine.lose_power()
            self.executor.kill(with_its_machine=True)
            self._environment.kill_all(self.node_id, reported=False, silently=silently)
            self._loop.after(outage_s, self.executor.start)

    def partition(self, outage_s: float) -> None:
        """The node runs on and reaches no other process for outage_s. Its workers end when their lease is over."""
        self.executor.partition(outage_s)

    def crash_worker(self) -> None:
        """One worker process dies."""
        process = self._environment.any_process(self.node_id)
        if process is not None:
            self._environment.crash(process)

    # -- the executor ------------------------------------------------------------------------------------

    @property
    def _run_id(self) -> str:
        return f"boot{self._num_boots}"

    def _booted(self) -> Policy[State]:
        """The policy of the executor after one more start of the node."""
        self._num_boots += 1
        return executor_policy(
            NodeSpecification(
                node_id=self.node_id,
                run_id=self._run_id,
                num_gpus=self._num_gpus,
                device="cpu",
                gpu_type=self._gpu_type_by_node.get(self.node_id, ""),
                advertise_host=self.node_id,
                started_by=self.machine.started_by,
            )
        )

    async def _heartbeat(self, bus: MemoryBus, host: Host[Any]) -> None:
        """The real heartbeat. After a crash of the machine the executor knows of no previous one."""
        setting, loop = self._setting, self._loop
        heartbeat = Heartbeat(
            host,
            bus,
            setting.pool,
            self.executor.clock,
            SilentLog(),
            self,
            boot_s=lambda: loop.now_s,
            previous_run_id=self._previous_run_id,
        )
        await heartbeat.run()

    @property
    def preparing(self) -> tuple[str, ...]:
        return self._environment.preparing(self.node_id)

    def kill_all(self) -> None:
        """The lease of the workers is over."""
        self._environment.kill_all(self.node_id, reported=True)

    def extend_leases(self, until_s: float) -> None:
        """The workers end themselves then, unless their leases are extended again: their executor may be paused."""
        self._leased_until_s = until_s
        self._loop.after(until_s - self._loop.now_s, self._end_without_lease)

    def _end_without_lease(self) -> None:
        if self._loop.now_s >= self._leased_until_s:
            self.kill_all()

    def _act(self, action: Any) -> None:
        match action:
            case StartWorker():
                self._environment.launch(action, self.node_id, self._report)
            case SendToWorker():
                self._environment.send(action.worker, action.message)
            case KillWorker():
                self._environment.kill(action.worker)
            case UsePaddingSlots() | StoreArtifacts() | BeginShutDown():
                pass  # simulated nodes execute no tasks and have no files
            case ShutDown():
                self._loop.after(0.0, lambda: self.crash(REBOOT_S))
            case _:
                raise AssertionError(action)

    def _report(self, local_event: LocalEvent) -> None:
        """Pass a worker's message to the executor that started it, if that executor still runs."""
        host = self.executor.host
        if host is not None:
            self._loop.call_soon(lambda: host.note(local_event) if host is self.executor.host else None)
