"""A whole pool on virtual time: the real hosts of all services on an in-memory bus, simulated nodes, faults from a
seed.

Every message goes through the codec, as bytes. The same seed gives the same ledger, byte for byte.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

import numpy as np

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import Command, SubmitJob
from elasticflow.shared.messages.events import PlanDecided, PoolConfigured
from elasticflow.shared.messages.export import ExportWriter, LedgerRecord
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.streams import snapshot_bucket, submit_stream
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.decision_problems import LEAST_SLACK_S
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.invariants import Acknowledged, ClockSetting
from elasticflow.simulator.pipeline.memory_link import LinkFaults as BusFaults
from elasticflow.simulator.pipeline.nodes import Environment, Machine, MonitorTasks, VirtualNode
from elasticflow.simulator.pipeline.simulated_process import (
    PLANNERS,
    PoolSetting,
    ReplicaSpecification,
    SimulatedProcess,
    SteppedClock,
)
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.replay.recorded_ledger import OPERATOR, Entry, folded, read_entries
from elasticflow.simulator.virtual_time import VirtualTimeLoop

# --- faults --------------------------------------------------------------------------------------------
# What goes wrong in a simulated pool, and how often. Every draw is from one seeded generator.

REPEATED_WITHIN_S = 5.0  # a writer without an answer appends its event again


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean seconds between faults of a kind, over the whole pool; None: never."""

    max_delay_s: float = 0.005  # of any message, in one direction
    duplicate_probability: float = 0.0  # of an event, a heartbeat and a command
    lost_answer_probability: float = 0.0  # of an append: its writer sees "maybe stored"
    storage_full_probability: float = 0.0  # of an append: nothing is stored
    failed_read_probability: float = 0.0
    failed_snapshot_probability: float = 0.0  # of writing one: stored or not
    worker_crash_every_s: float | None = None
    node_crash_every_s: float | None = None  # with all its workers, at once
    power_loss_every_s: float | None = None  # all nodes are gone at once, with or without all services
    damaged_file_every_s: float | None = None  # one byte of a snapshot, or a job's newest checkpoint
    partition_every_s: float | None = None  # a node runs on and reaches no other process
    executor_restart_every_s: float | None = None  # it is back before the monitor counts it as lost
    service_restart_every_s: float | None = None
    service_partition_every_s: float | None = None
    one_way_partition_every_s: float | None = None  # a node or service only sends, or only receives
    node_pause_every_s: float | None = None  # an executor is stopped, and goes on with what it knew
    service_pause_every_s: float | None = None
    upgrade_within_s: float | None = None  # planners begin with the previous version; each is upgraded at some time
    clock_step_every_s: float | None = None  # the clock of a node or service is set wrong
    max_clock_step_s: float = 30.0  # forward or back; every second step is below what planners tolerate
    max_outage_s: float = 20.0  # of a crashed node, a partition, a pause and a wrong clock: longer than any lease
    until_s: float = float("inf")  # no new faults from here on

    @property
    def bus(self) -> BusFaults:
        """The faults that each client of the bus meets."""
        return BusFaults(
            maybe_stored=self.lost_answer_probability,
            duplicate=self.duplicate_probability,
            max_delay_s=self.max_delay_s,
            duplicate_within_s=REPEATED_WITHIN_S,
            storage_full=self.storage_full_probability,
            failed_read=self.failed_read_probability,
            failed_object=self.failed_snapshot_probability,
        )


NO_FAULTS = Faults()
MANY_FAULTS = Faults(
    max_delay_s=0.3,
    duplicate_probability=0.1,
    lost_answer_probability=0.02,
    storage_full_probability=0.02,
    failed_read_probability=0.02,
    failed_snapshot_probability=0.2,
    worker_crash_every_s=25.0,
    node_crash_every_s=60.0,
    partition_every_s=60.0,
    executor_restart_every_s=60.0,
    service_restart_every_s=5.0,
    service_partition_every_s=60.0,
    one_way_partition_every_s=60.0,
    node_pause_every_s=60.0,
    service_pause_every_s=60.0,
    clock_step_every_s=60.0,
)


# --- cluster -------------------------------------------------------------------------------------------

POOL = "virtual"
START_S = 1_700_000_000.0  # a virtual day in 2023: times look like times
LED_BY_LEASE = ("allocator", "placement", "monitor")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A command of a user, at_s seconds after the start."""

    at_s: float
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is there, and what users want of it."""

    num_gpus_by_node: Mapping[str, int]
    config: PoolConfig
    timing_model: TimingModel
    arrivals: tuple[Arrival, ...]
    num_replicas: Mapping[str, int] = field(default_factory=lambda: {"admission": 2})  # of a service; else 1
    gpu_type_by_node: Mapping[str, str] = field(default_factory=dict[str, str])  # of nodes that name their type
    is_one_machine: bool = False  # as `eflow up` starts them; else each node is a machine of its own


class VirtualCluster:
    """make_policies: those of the planners and the monitor, new for each process. make_host: `Host`, or a mutation.

    A context manager: on leaving it all processes end; the ledger can still be read.
    """

    def __init__(
        self,
        scenario: Scenario,
        make_policies: Callable[[], Iterable[Policy[Any]]],
        *,
        seed: int,
        faults: Faults = NO_FAULTS,
        make_host: Callable[..., Host[Any]] = Host,
    ) -> None:
        self.scenario, self.faults = scenario, faults
        self._rng = np.random.default_rng(seed)
        self.loop = VirtualTimeLoop(START_S)
        self._setting = PoolSetting(pool=POOL, loop=self.loop, rng=self._rng, faults=faults.bus, make_host=make_host)
        self._setting.broker.ensure_pool(POOL)
        self.acknowledged: list[Acknowledged] = []
        self.clock_settings: list[ClockSetting] = []
        self.num_struck = self._setting.num_struck  # faults, by kind; crashes and restarts are in the ledger
        self._setting.broker.stream(submit_stream(POOL)).on_settle = self._acknowledged
        self._gpu_type_by_node = dict(scenario.gpu_type_by_node)
        self.environment = Environment(self.loop, scenario.timing_model, self._gpu_type_by_node)
        self._entries: list[Entry] = []
        self._state = PoolState()
        self._configure()
        services = tuple(policy.service for policy in make_policies())
        self.metrics = {service: Metrics(service, POOL) for service in (*services, "executor")}
        self.replicas = [
            self._replica(service, lambda index=index: tuple(make_policies())[index], number)
            for index, service in enumerate(services)
            for number in range(scenario.num_replicas.get(service, 1))
        ]
        machine = Machine("all") if scenario.is_one_machine else None
        self.nodes = {
            node_id: VirtualNode(
                self._setting,
                self.environment,
                node_id,
                num_gpus,
                self.metrics["executor"],
                machine=machine,
            )
            for node_id, num_gpus in scenario.num_gpus_by_node.items()
        }
        commands = [arrival.command for arrival in scenario.arrivals]
        self._num_submitted = len({command.job_id for command in commands if isinstance(command, SubmitJob)})
        for number, arrival in enumerate(scenario.arrivals):
            self.loop.call_at(START_S + arrival.at_s, self._submit, arrival.command, f"command-{number}")
        self._schedule_faults()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect all processes first, so that no virtual time passes and no message arrives any more."""
        for process in self._processes:
            process.end()
        self.loop.finish()

    # -- the ledger --------------------------------------------------------------------------------------

    @property
    def records(self) -> list[LedgerRecord]:
        return list(self._setting.broker.ledger(POOL).messages.values())

    @property
    def entries(self) -> list[Entry]:
        """The ledger, decoded."""
        messages = self._setting.broker.ledger(POOL).messages
        new = range(len(self._entries) + 1, len(messages) + 1)
        self._entries += read_entries(messages[sequence] for sequence in new)
        return self._entries

    @property
    def state(self) -> PoolState:
        """The whole ledger, folded."""
        self._state = folded(self.entries[self._state.sequence :], self._state)
        return self._state

    def export(self, writer: ExportWriter) -> None:
        """Write the whole ledger, with its end."""
        for record in self.records:
            writer.add(record)
        writer.finish()

    def _acknowledged(self, submission: LedgerRecord) -> None:
        command = cast(Command, codec.decode(submission.data).message)
        end = self._setting.broker.ledger(POOL).last_sequence
        self.acknowledged.append(Acknowledged(command=command, ledger_end=end))

    def append(self, subject: str, data: bytes, *, message_id: str) -> int:
        """Store a message at the broker, now."""
        stream = self._setting.broker.route(subject)
        return stream.append(subject, data, message_id, {}, None, self.loop.now_s)

    # -- running -----------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        """Run until every submission has reached an end and all its workers are gone, or for until_s seconds."""
        self.loop.advance_to(START_S + until_s, self.at_rest)

    def run_for(self, duration_s: float, done: Callable[[], bool] | None = None) -> None:
        self.loop.advance_to(self.loop.now_s + duration_s, done)

    def at_rest(self) -> bool:
        """Every submission has reached its end, and no worker process is left."""
        num_ended = sum(not job.profile_only for job in self.state.ended_jobs.values())
        return num_ended >= self._num_submitted and not self.environment.num_processes

    def num_conflicts(self, service: str) -> float:
        """Decisions of all replicas of a service that lost the race for the plan."""
        labels = {"service": service, "pool": POOL}
        return self.metrics[service].registry.get_sample_value("ef_conflicts_total", labels) or 0.0

    # -- processes ---------------------------------------------------------------------------------------

    def _configure(self) -> None:
        now_s = self.loop.now_s
        decision = PlanDecided(
            service=OPERATOR,
            based_on=0,
            now_s=now_s,
            events=(PoolConfigured(config=self.scenario.config, at_s=now_s),),
        )
        data = codec.encode(decision, id="configured", recorded_at_s=now_s)
        self.append(subjects.plan(POOL), data, message_id="configured")

    def _replica(self, service: str, make_policy: Callable[[], Policy[Any]], number: int) -> SimulatedProcess:
        clock = SteppedClock(self.loop)
        tasks = MonitorTasks(POOL, clock, self.scenario.timing_model.snapshot_every) if service == "monitor" else None
        specification = ReplicaSpecification(
            name=f"{service}-{number}",
            make_policy=make_policy,
            metrics=self.metrics[service],
            leads_by_lease=service in LED_BY_LEASE,
            act=tasks.act if tasks is not None else None,
            beside=tasks.beside if tasks is not None else None,
        )
        replica = SimulatedProcess(self._setting, specification, clock)
        if self.faults.upgrade_within_s is not None and service in PLANNERS:
            replica.version = "previous"
            self.loop.after(float(self._rng.uniform(0.0, self.faults.upgrade_within_s)), replica.upgrade)
        replica.start()
        return replica

    def _submit(self, command: Command, message_id: str) -> None:
        """Into the work queue of all replicas of admission."""
        data = codec.encode(command, id=message_id, recorded_at_s=self.loop.now_s)
        self.append(subjects.submit(command.tenant, POOL), data, message_id=message_id)

    # -- faults ------------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        faults = self.faults
        self._repeat(faults.worker_crash_every_s, lambda: self._any_node().crash_worker())
        self._repeat(faults.node_crash_every_s, lambda: self._any_node().crash(self._outage_s(), silently=True))
        self._repeat(faults.power_loss_every_s, self._lose_power)
        self._repeat(faults.damaged_file_every_s, self._damage_file)
        self._repeat(faults.partition_every_s, lambda: self._any_node().partition(self._outage_s()))
        self._repeat(faults.executor_restart_every_s, lambda: self._any_node().crash(0.2))
        self._repeat(faults.service_restart_every_s, lambda: self._any(self.replicas).restart())
        self._repeat(faults.service_partition_every_s, lambda: self._any(self.replicas).partition(self._outage_s()))
        self._repeat(faults.one_way_partition_every_s, self._partition_one_way)
        self._repeat(faults.clock_step_every_s, self._step_clock)
        self._repeat(faults.node_pause_every_s, lambda: self._pause(self._any_node().executor, "node"))
        self._repeat(faults.service_pause_every_s, lambda: self._pause(self._any(self.replicas), "service"))

    def _partition_one_way(self) -> None:
        sends = bool(self._rng.integers(2))
        self._any(self._processes).partition(self._outage_s(), sends=sends, receives=not sends)
        self.num_struck["sends only" if sends else "receives only"] += 1

    def _pause(self, process: SimulatedProcess, kind: str) -> None:
        process.pause(self._outage_s())
        self.num_struck[f"pause of a {kind}"] += 1

    def _step_clock(self) -> None:
        """A clock is set wrong, and right again some time later."""
        process, is_small = self._any(self._processes), bool(self._rng.integers(2))
        tolerated_s = max(self.scenario.config.deadline_slack_s, LEAST_SLACK_S)
        largest_s = 0.9 * tolerated_s if is_small else self.faults.max_clock_step_s
        step_s = float(self._rng.uniform(-largest_s, largest_s))

        def set_off(offset_s: float) -> None:
            process.clock.set_off(offset_s)
            self.clock_settings.append(ClockSetting(process=process.name, at_s=self.loop.now_s, offset_s=offset_s))

        set_off(step_s)
        self.loop.after(self._outage_s(), lambda: set_off(0.0))
        self.num_struck[("small" if is_small else "large") + (" back" if step_s < 0 else " forward")] += 1

    @property
    def _processes(self) -> list[SimulatedProcess]:
        return [*self.replicas, *(node.executor for node in self.nodes.values())]

    def replace_gpus(self, node_id: str, gpu_type: str, outage_s: float) -> None:
        """The node goes down, and comes back with GPUs of another type."""
        self.nodes[node_id].crash(outage_s, silently=True)
        self._gpu_type_by_node[node_id] = gpu_type

    def lose_power(self, node_ids: Iterable[str], outage_s: float, *, with_services: bool) -> None:
        """These nodes are gone at once, and each is back within outage_s; with_services: so is everything else.

        The bus keeps what it has acknowledged: its server syncs each write.
        """
        if with_services:
            for replica in self.replicas:
                if replica.runs:
                    replica.kill(with_its_machine=True)
                    self.loop.after(float(self._rng.uniform(0.1, outage_s)), replica.start)
        for node_id in node_ids:
            self.nodes[node_id].crash(float(self._rng.uniform(0.1, outage_s)), silently=True)

    def _lose_power(self) -> None:
        with_services = bool(self._rng.integers(2))
        self.lose_power(self.nodes, self._outage_s(), with_services=with_services)
        self.num_struck["power loss with services" if with_services else "power loss of all nodes"] += 1

    def _damage_file(self) -> None:
        if self._rng.integers(2):
            if self.environment.damage_checkpoint(self._any):
                self.num_struck["damaged checkpoint"] += 1
            return
        objects = self._setting.broker.objects.get(snapshot_bucket(POOL), {})
        if objects:
            name = self._any(sorted(objects))
            data = bytearray(objects[name])
            data[int(self._rng.integers(len(data)))] ^= 1 << int(self._rng.integers(8))
            objects[name] = bytes(data)
            self.num_struck["damaged snapshot"] += 1

    def _repeat(self, every_s: float | None, strike: Callable[[], None]) -> None:
        if every_s is None:
            return

        def happens() -> None:
            if self.loop.now_s < START_S + self.faults.until_s:
                strike()
                self.loop.after(float(self._rng.exponential(every_s)), happens)

        self.loop.after(float(self._rng.exponential(every_s)), happens)

    def _outage_s(self) -> float:
        return float(self._rng.uniform(0.1, self.faults.max_outage_s))

    def _any_node(self) -> VirtualNode:
        return self._any(list(self.nodes.values()))

    def _any(self, items: list[T]) -> T:
        return items[int(self._rng.integers(len(items)))]
