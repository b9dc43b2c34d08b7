"""A process of a service in the simulated pool: the real replica on the in-memory bus, killed and started again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.runtime.service.replica import open_replica
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.memory_link import DelayedLink, FaultSource
from elasticflow.simulator.pipeline.memory_link import LinkFaults as BusFaults
from elasticflow.simulator.virtual_time import VirtualClock, VirtualTimeLoop

# --- previous version ----------------------------------------------------------------------------------
# Services of the previous version in a simulated pool whose services are upgraded one after the other.
#
# A newer planner writes what an older one cannot read. The older one then takes no decisions (docs/adr/0036).
# Executors and the monitor are upgraded before: they may not pass over a decision.

UPGRADED = "upgraded"  # the end of the name of each process that has replaced one of the previous version
PLANNERS = ("admission", "allocator", "placement")


def is_of_planner(stored: LedgerRecord) -> bool:
    """Whether this is a decision of admission, the allocator or placement."""
    on_plan = stored.subject == subjects.plan(stored.subject.split(".")[2])
    return on_plan and stored.message_id.partition("-")[0] in PLANNERS


def is_of_upgraded(stored: LedgerRecord) -> bool:
    """Whether a planner of the new version has decided this: the name of its process is in the message's id."""
    return is_of_planner(stored) and stored.message_id.rpartition("-")[0].endswith(UPGRADED)


def read_as_before(stored: LedgerRecord) -> LedgerMessage:
    """What the previous version knows of a message."""
    if is_of_upgraded(stored):
        return Unreadable(on_plan=True, problems=("version: PlanDecided 2 is newer than 1, upgrade this reader",))
    return read_message(stored)


def host_before(make_host: Callable[..., Host[Any]]) -> Callable[..., Host[Any]]:
    """Make hosts of the previous version. They use no snapshot, which newer services make."""

    def make(context: ServiceContext, policy: Policy[Any], **options: Any) -> Host[Any]:
        return make_host(replace(context, read=read_as_before), policy, **options | {"snapshot": None})

    return make


# --- The clock of one simulated machine: virtual time, from which it may be set off --------------------


class SteppedClock:
    """See `Clock`. Sleepers follow it when it is set while they sleep. Messages are stamped by the server's clock."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._offset_s = 0.0
        self._sleepers: dict[asyncio.Future[bool], None] = {}  # in their order

    def now_s(self) -> float:
        return self._loop.now_s + self._offset_s

    def set_off(self, offset_s: float) -> None:
        """The clock is ahead by so much from now on; 0 sets it right."""
        self._offset_s = offset_s
        for sleeper in list(self._sleepers):
            _wake(sleeper, False)

    async def sleep_until(self, at_s: float) -> None:
        is_due = at_s <= self.now_s()
        while not is_due:
            woken: asyncio.Future[bool] = self._loop.create_future()
            timer = self._loop.call_at(at_s - self._offset_s, _wake, woken, True)
            self._sleepers[woken] = None
            try:
                is_due = await woken or at_s <= self.now_s()
            finally:
                timer.cancel()
                del self._sleepers[woken]


def _wake(sleeper: "asyncio.Future[bool]", is_due: bool) -> None:
    """is_due: False if the clock was set."""
    if not sleeper.done():
        sleeper.set_result(is_due)


# --- simulated process ---------------------------------------------------------------------------------

MAX_OVERDUE_WAKES = 200  # in a row, without an output: live, such a policy would burn a core


class Spinning(AssertionError):
    """A policy asks to be woken at an instant that has passed, and then decides nothing."""


class SilentLog:
    """A logger for simulations: it drops every line."""

    def _drop(self, event: str, **keys: Any) -> None:
        """Nothing is written."""

    debug = info = warning = error = exception = _drop


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetting:
    """What all processes of one simulated pool share. make_host: `Host`, or a mutation of it.

    num_struck: how often faults have struck, by kind.
    """

    pool: str
    loop: VirtualTimeLoop
    rng: np.random.Generator
    faults: BusFaults
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    make_host: Callable[..., Host[Any]] = Host
    num_struck: Counter[str] = field(default_factory=Counter[str])

    def bus(self) -> MemoryBus:
        """The connection of a new process. The clock is the server's."""
        return MemoryBus(
            self.broker,
            clock=VirtualClock(self.loop),
            faults=FaultSource(self.faults, self.rng, self.num_struck),
            delayed=True,
        )


Beside = Callable[[MemoryBus, Host[Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpecification:
    """What each new process of a replica runs. act: the action handler; beside: what the service does next to its
    host."""

    name: str
    make_policy: Callable[[], Policy[Any]]
    metrics: Metrics
    leads_by_lease: bool = False
    act: Callable[[Any], None] | None = None
    beside: Beside | None = None


class SimulatedProcess:
    """One replica of a service, through all its restarts. A restart keeps nothing but its place in the pool.

    clock: of its machine.
    """

    def __init__(self, setting: PoolSetting, replica: ReplicaSpecification, clock: SteppedClock) -> None:
        self._setting, self._replica, self.name = setting, replica, replica.name
        self.clock = clock
        self.version: Literal["only", "previous", "upgraded"] = "only"  # of the next start
        self._instance, self._num_starts = "", 0
        self._bus: MemoryBus | None = None
        self._end: Callable[[], object] = lambda: None
        self.host: Host[Any] | None = None  # None until the snapshot is loaded, and after a kill

    @property
    def runs(self) -> bool:
        return self._bus is not None

    @property
    def folded(self) -> PoolState:
        return self.host.folded if self.host is not None else PoolState()

    @property
    def link(self) -> DelayedLink:
        assert self._bus is not None
        assert isinstance(self._bus.link, DelayedLink)
        return self._bus.link

    def start(self) -> None:
        """A new process, with a new name on the bus."""
        assert not self.runs, f"{self.name} runs already"
        self._num_starts += 1
        bus = self._bus = self._setting.bus()
        self._instance = f"{self.name}.{self._num_starts}{UPGRADED if self.version == 'upgraded' else ''}"
        running = self._setting.loop.spawn(self._run(bus, self._instance), self._instance, process=self._instance)
        self._end = running.cancel

    def kill(self, *, with_its_machine: bool = False) -> None:
        """kill -9: what the process sent still arrives, unless its machine went down with it."""
        if self._bus is None:
            return
        if with_its_machine:
            self.link.cut()
        self._bus.kill()
        self._end()
        self._setting.loop.resume(self._instance)
        self._bus, self.host = None, None

    def end(self) -> None:
        """End the process; the state of its host can still be read."""
        host = self.host
        self.kill()
        self.host = host

    def restart(self) -> None:
        """Unless it is down: then it starts when its machine does."""
        if self.runs:
            self.kill()
            self.start()

    def partition(self, outage_s: float, *, sends: bool = False, receives: bool = False) -> None:
        """The process runs on and reaches no other process for outage_s. sends, receives: the way that still works."""
        if self.runs and self.link.up:
            self.link.cut(sends=sends, receives=receives)
            self._setting.loop.after(outage_s, self.link.repair)

    def pause(self, outage_s: float) -> None:
        """SIGSTOP, and SIGCONT after outage_s: then it goes on with what it knew. Messages to it wait."""
        if self.runs:
            instance = self._instance
            self._setting.loop.pause(instance)
            self._setting.loop.after(outage_s, lambda: self._setting.loop.resume(instance))

    def upgrade(self) -> None:
        """End the process, and start one of the new version."""
        self.version = "upgraded"
        self.restart()

    async def _run(self, bus: MemoryBus, instance: str) -> None:
        try:
            await self._serve(bus, instance)
        except Exception:
            if bus is self._bus:  # a failure of a killed process has no consequence
                raise

    async def _serve(self, bus: MemoryBus, instance: str) -> None:
        specification = self._replica

        def act(action: Any) -> None:
            assert specification.act is not None
            if bus is self._bus:  # a killed process acts no more
                specification.act(action)

        make_host = self._setting.make_host
        context = ServiceContext(
            bus=bus,
            pool=self._setting.pool,
            clock=self.clock,
            instance=instance,
            log=SilentLog(),
            metrics=specification.metrics,
        )
        replica = await open_replica(
            context,
            _never_spinning(specification.make_policy(), self.clock),
            leads_by_lease=specification.leads_by_lease,
            act=act if specification.act is not None else None,
            make_host=host_before(make_host) if self.version == "previous" else make_host,
        )
        self.host = replica.host
        beside = specification.beside
        await replica.run(None if beside is None else lambda host: beside(bus, host))


def _never_spinning(policy: Policy[Any], clock: SteppedClock) -> Policy[Any]:
    """The policy, which raises Spinning where live it would wake again and again and decide nothing."""
    num_overdue = 0

    def decide(state: Any, commands: Any, now_s: float) -> tuple[Any, ...]:
        nonlocal num_overdue
        outputs = policy.decide(state, commands, now_s)
        if outputs:
            num_overdue = 0
        return outputs

    def decide_in_steps(state: Any, commands: Any, now_s: float) -> Generator[None, None, tuple[Any, ...]]:
        nonlocal num_overdue
        assert policy.decide_in_steps is not None
        outputs = yield from policy.decide_in_steps(state, commands, now_s)
        if outputs:
            num_overdue = 0
        return outputs

    def wake_at_s(state: Any) -> float | None:
        nonlocal num_overdue
        at_s = policy.wake_at_s(state)
        num_overdue = num_overdue + 1 if at_s is not None and at_s <= clock.now_s() else 0
        if num_overdue > MAX_OVERDUE_WAKES:
            raise Spinning(f"{policy.service} asks to be woken at {at_s} and decides nothing at {clock.now_s()}")
        return at_s

    in_steps = None if policy.decide_in_steps is None else decide_in_steps
    return replace(policy, decide=decide, decide_in_steps=in_steps, wake_at_s=wake_at_s)
