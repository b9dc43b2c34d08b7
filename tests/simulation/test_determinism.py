"""The same trace gives the same events in every process: nothing depends on the order of hashes."""

import hashlib
import os
import subprocess
import sys

from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace

PROGRAM = "from tests.simulation.test_determinism import digest; print(digest())"
HASH_SEEDS = ("1", "2", "3", "4")


class Digest:
    """A digest of all decisions, to the last digit."""

    def __init__(self) -> None:
        self.of_events = hashlib.sha256()

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.of_events.update(repr((now_s, events)).encode())


def digest() -> str:
    workload = read_trace(bundled_trace("bursty"), read_throughputs(bundled_throughputs()))
    cluster, seen = ClusterShape(num_nodes=2, gpus_per_node=8), Digest()
    policies: tuple[AdmissionPolicy, ...] = ("first-come", "selective")
    for admission in policies:
        cost = reference_cost(cluster.num_gpus)
        Simulation(
            workload, cluster, TrainingModel(resize_cost=cost), SimulatedPool(admission=admission), observers=[seen]
        ).run()
    return seen.of_events.hexdigest()


def test_every_process_decides_the_same_to_the_byte() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    digests = [process.communicate()[0].strip() for process in processes]
    assert all(digests)
    assert len(set(digests)) == 1
