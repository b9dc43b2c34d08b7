"""A whole pool on a virtual clock: the services' own policies, a ledger in memory, nodes, and faults from a seed.

Everything said goes through the codec, as bytes. The same seed gives the same ledger, byte for byte.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shared.messages import codec, subjects
from shared.messages.cluster import PoolConfig
from shared.messages.commands import Command, SubmitJob
from shared.messages.events import PlanDecided, PoolConfigured
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState
from simulator.engine import Engine
from simulator.faults import NO_FAULTS, Faults, Link, Network
from simulator.ledger import VirtualLedger
from simulator.nodes import VirtualNode
from simulator.physics import Physics
from simulator.replay import OPERATOR, folded
from simulator.replica import Replica
from simulator.world import World

POOL = "virtual"
START_S = 1_700_000_000.0  # a virtual day in 2023: times look like times


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A wish of a user, at_s seconds after the start."""

    at_s: float
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is there, and what users want of it."""

    num_gpus_by_node: Mapping[str, int]
    config: PoolConfig
    physics: Physics
    arrivals: tuple[Arrival, ...]
    num_replicas: Mapping[str, int] = field(default_factory=lambda: {"admission": 2})  # of a service; else 1


class VirtualCluster:
    """policies: of the planners and the monitor, each hosted in one replica or more."""

    def __init__(
        self,
        scenario: Scenario,
        policies: tuple[Policy[Any], ...],
        *,
        seed: int,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.scenario, self._faults = scenario, faults
        self._chance = np.random.default_rng(seed)
        self.engine = Engine(START_S)
        self.network = Network(self._chance, faults)
        self.ledger = VirtualLedger(self.engine)
        self.world = World(self.engine, scenario.physics)
        self._configure()
        self.replicas = [
            self._replica(policy, number)
            for policy in policies
            for number in range(scenario.num_replicas.get(policy.service, 1))
        ]
        self.nodes = {
            node_id: self._node(node_id, num_gpus) for node_id, num_gpus in scenario.num_gpus_by_node.items()
        }
        self._state = PoolState()
        wishes = [arrival.command for arrival in scenario.arrivals]
        self._num_submitted = len({wish.job_id for wish in wishes if isinstance(wish, SubmitJob)})
        for arrival in scenario.arrivals:
            self.engine.at(START_S + arrival.at_s, lambda arrival=arrival: self._submit(arrival.command))
        self._schedule_faults()

    @property
    def state(self) -> PoolState:
        """The whole ledger, folded."""
        self._state = folded(self.ledger.entries[self._state.sequence :], self._state)
        return self._state

    def run(self, until_s: float) -> None:
        """Until every submission has reached an end and all its workers are gone, or for until_s seconds."""
        self.engine.run(START_S + until_s, self.at_rest)

    def at_rest(self) -> bool:
        """Every submission has reached its end, and no worker process is left."""
        num_ended = sum(not job.only_measured for job in self.state.ended_jobs.values())
        return num_ended >= self._num_submitted and not self.world.num_processes

    # -- the parties -------------------------------------------------------------------------------------

    def _configure(self) -> None:
        now_s = self.engine.now_s
        decision = PlanDecided(
            service=OPERATOR,
            based_on=0,
            now_s=now_s,
            events=(PoolConfigured(config=self.scenario.config, at_s=now_s),),
        )
        data = codec.encode(decision, id="configured", recorded_at_s=now_s)
        self.ledger.append(subjects.plan(POOL), data, message_id="configured", expected=0)

    def _replica(self, policy: Policy[Any], number: int) -> Replica[Any]:
        link = Link(self.engine, self.network)
        return Replica(
            self.engine,
            self.ledger,
            link,
            POOL,
            policy,
            f"{policy.service}-{number}",
            act=lambda action: None,
        )

    def _node(self, node_id: str, num_gpus: int) -> VirtualNode:
        return VirtualNode(
            self.engine, self.ledger, self.network, self.world, POOL, node_id, num_gpus, self._heard
        )

    def _of(self, service: str) -> list[Replica[Any]]:
        return [replica for replica in self.replicas if replica.policy.service == service]

    def _heard(self, report: Any) -> None:
        for monitor in self._of("monitor"):
            monitor.note(report)

    def _submit(self, command: Command) -> None:
        """To one replica of admission; with bad luck to all of them."""
        data = codec.encode(command, id=f"wish-{command.job_id}", recorded_at_s=self.engine.now_s)
        desks = self._of("admission")
        first = int(self._chance.integers(len(desks)))
        for number, desk in enumerate(desks):
            if number == first or self.network.repeated_after_s() is not None:
                desk.submit(codec.decode(data).message)  # pyright: ignore[reportArgumentType]

    # -- faults ------------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        faults = self._faults
        self._again_and_again(faults.worker_crash_every_s, lambda: self._any_node().crash_worker())
        self._again_and_again(
            faults.node_crash_every_s,
            lambda: self._any_node().crash(self._outage_s(faults.max_outage_s), silently=True),
        )
        self._again_and_again(
            faults.partition_every_s, lambda: self._any_node().part(self._outage_s(faults.max_outage_s))
        )
        self._again_and_again(faults.executor_restart_every_s, lambda: self._any_node().crash(0.2))
        self._again_and_again(faults.service_restart_every_s, lambda: self._any(self.replicas).restart())

    def _again_and_again(self, every_s: float | None, strike: Callable[[], None]) -> None:
        if every_s is None:
            return

        def happens() -> None:
            if self.engine.now_s < START_S + self._faults.until_s:
                strike()
                self.engine.after(float(self._chance.exponential(every_s)), happens)

        self.engine.after(float(self._chance.exponential(every_s)), happens)

    def _outage_s(self, longest_s: float) -> float:
        return float(self._chance.uniform(0.1, longest_s))

    def _any_node(self) -> VirtualNode:
        return self._any(list(self.nodes.values()))

    def _any(self, items: list[Any]) -> Any:
        return items[int(self._chance.integers(len(items)))]
