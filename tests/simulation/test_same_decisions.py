"""The trace-driven simulator calls policies directly; hosts on the in-memory bus decide the same on the same workload.

The nodes, workers and users of the simulation are replayed to the hosts, each message at its instant and after the
decisions that preceded it. The hosts read, decide and append by themselves.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlacementDecided, PlanDecided
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.service import host
from elasticflow.shared.runtime.service.ledger_encoding import subject_of
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from elasticflow.simulator.replay.recorded_ledger import OPERATOR, read_entries
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.virtual_time import PolicyDriver, VirtualClock, VirtualTimeLoop
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload
from tests.support.service_contexts import service_context

POOL = "p"
START_S = 1_700_000_000.0
CLUSTER = ClusterShape(num_nodes=2, gpus_per_node=4)
COST = ResizeCost((1, 4), (5.0, 9.0))
CURVES = {
    "concave": ScalingCurve((1, 2, 4, 8), (10.0, 18.0, 30.0, 40.0)),
    "linear": ScalingCurve((1, 2, 4, 8), (5.0, 10.0, 20.0, 40.0)),
}
CLASSES = (JobClass.SLO, JobClass.SLO, JobClass.SLO, JobClass.SOFT, JobClass.BEST_EFFORT)


def random_workload(seed: int, num_jobs: int = 30) -> Workload:
    """More jobs than the cluster can finish in time; the first one is admitted in any case."""
    rng = np.random.default_rng(seed)
    submitted_at_s = START_S + np.cumsum(rng.exponential(60.0, num_jobs))

    def job(number: int) -> TraceJob:
        drawn, name = CLASSES[int(rng.integers(len(CLASSES)))], ("concave", "linear")[number % 2]
        job_class = drawn if number else JobClass.BEST_EFFORT
        num_iterations = int(rng.integers(500, 10_000))
        alone_s = num_iterations / CURVES[name].throughput(1)
        due_s = float(submitted_at_s[number] + alone_s * rng.uniform(0.1, 1.2))
        return TraceJob(
            job_id=f"job-{number:02}",
            submitted_at_s=float(submitted_at_s[number]),
            num_iterations=num_iterations,
            model_name=name,
            global_batch_size=64,
            deadline_s=due_s if job_class.has_deadline else None,
            job_class=job_class,
            curve=CURVES[name],
        )

    return Workload.of("random", map(job, range(num_jobs)))


@dataclass
class HostedPool:
    """The hosts of all planners on one bus and on virtual time. They decide alone: `replay` brings all else.

    Several services may be able to decide at one instant. The bus orders them by chance, the simulator in a fixed
    order: so here each host waits until the services before it have nothing to decide.
    """

    loop: VirtualTimeLoop = field(default_factory=lambda: VirtualTimeLoop(START_S))
    broker: MemoryBroker = field(default_factory=MemoryBroker)

    def __post_init__(self) -> None:
        self.broker.ensure_pool(POOL)
        services = tuple(planners().values())
        for number, policy in enumerate(services):
            self._start(policy, services[:number])

    def _start(self, policy: Policy[PoolState], earlier: tuple[Policy[PoolState], ...]) -> None:
        clock = VirtualClock(self.loop)

        def is_next() -> bool:
            return not any(each.decide(planner.folded, (), clock.now_s()) for each in earlier)

        planner = host.Host(
            service_context(MemoryBus(self.broker, clock=clock), POOL, clock, instance=policy.service, log=SilentLog()),
            policy,
            leads=is_next,
        )
        self.loop.spawn(planner.run(), policy.service)

    def replay(self, recorded: list[tuple[float, LedgerMessage]]) -> None:
        """Store each message of a user, an operator or a worker at its instant; the hosts decide in between."""
        for number, (at_s, message) in enumerate(recorded):
            self.loop.advance_to(at_s)
            if not isinstance(message, PlanDecided):
                self._store(subject_of(POOL, message), message, f"event-{number}")
            elif message.service == OPERATOR:
                self._store(subjects.plan(POOL), message, f"event-{number}")
            else:
                for command in message.commands:
                    self._store(subjects.submit(command.tenant, POOL), command, command.job_id)
                self.loop.settle()
        self.loop.finish()

    def _store(self, subject: str, message: Any, message_id: str) -> None:
        now_s = self.loop.now_s
        data = codec.encode(message, id=message_id, recorded_at_s=now_s)
        self.broker.route(subject).append(subject, data, message_id, {}, None, now_s)

    @property
    def messages(self) -> list[LedgerMessage]:
        return [entry.message for entry in read_entries(self.broker.ledger(POOL).messages.values())]


@pytest.mark.parametrize("seed", [0, 1, 100, 111, 137])
def test_the_simulator_and_the_hosts_take_the_same_decisions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[float, LedgerMessage]] = []
    fold = PolicyDriver.fold

    def record(driver: PolicyDriver, message: LedgerMessage) -> None:
        recorded.append((driver._engine.now_s, message))
        fold(driver, message)

    monkeypatch.setattr(PolicyDriver, "fold", record)
    monkeypatch.setattr(host, "SHORTEST_WAIT_S", 0.0)  # the simulator decides at two instants closer than that
    monkeypatch.setattr(simulated_events, "_exactly", math.floor)  # messages hold whole iterations
    Simulation(random_workload(seed), CLUSTER, TrainingModel(resize_cost=COST)).run()
    hosted = HostedPool()
    hosted.replay(recorded)

    simulated = [message for _, message in recorded]
    start = next(n for n, message in enumerate(hosted.messages) if _is_of(message, "allocator"))
    assert hosted.messages[start].events[0].num_gpus_by_job == {}, "the hosts also decide before the first job"
    for theirs, ours in zip_longest(hosted.messages[:start] + hosted.messages[start + 1 :], simulated):
        assert _without_basis(theirs) == _without_basis(ours)
    events = [e for message in simulated if isinstance(message, PlanDecided) for e in message.events]
    assert {JobAdmitted, JobRejected, PlacementDecided} <= {type(event) for event in events}


def _is_of(message: LedgerMessage, service: str) -> bool:
    return isinstance(message, PlanDecided) and message.service == service


def _without_basis(message: LedgerMessage) -> LedgerMessage:
    """The sequence numbers of the two ledgers differ by one, and the simulator has neither a work queue nor a chain."""
    return replace(message, based_on=0, queue_positions=(), chain="") if isinstance(message, PlanDecided) else message
