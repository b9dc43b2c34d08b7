"""How many messages a busy pool adds to its ledger in a day, by kind: the real services on virtual time."""

from collections import Counter
from typing import Any

from elasticflow.services.monitor.policy import POLICY as MONITOR
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import DAY_S, PoolConfig
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.virtual_workers import TimingModel

CURVES = {"linear/b256": {1: 2.0, 2: 3.8, 4: 7.0, 8: 12.0}}
GPUS_PER_NODE = 8
ARRIVE_S = 1.0  # between two jobs


def measure_growth(*, num_jobs: int, settled_s: float, counted_s: float) -> dict[str, Any]:
    """Messages a day of so many jobs that train for days.

    settled_s: since the last one began; reports of a generation become rarer with its age.
    """
    spec = JobSpec(
        training_function="benchmark:OnPaper",
        model_name="linear",
        global_batch_size=256,
        max_iterations=10_000_000,
        deadline_in_s=100 * DAY_S,
    )
    scenario = Scenario(
        num_gpus_by_node={f"node-{number:02}": GPUS_PER_NODE for number in range(-(-num_jobs // GPUS_PER_NODE))},
        config=PoolConfig(curves=CURVES),
        timing_model=TimingModel(true_curves=CURVES, checkpoint_every_s=30.0),
        arrivals=tuple(
            Arrival(at_s=ARRIVE_S * number, command=SubmitJob(job_id=f"job-{number:03}", tenant="lab", spec=spec))
            for number in range(num_jobs)
        ),
    )
    with VirtualCluster(scenario, lambda: (*planners().values(), MONITOR), seed=1) as cluster:
        cluster.run_for(ARRIVE_S * num_jobs + settled_s)
        first, size = len(cluster.entries), _num_bytes(cluster)
        cluster.run_for(counted_s)
        messages, days = cluster.entries[first:], counted_s / DAY_S
        by_kind = Counter(_kind(entry.message) for entry in messages)
        return {
            "jobs": num_jobs,
            "messages_a_day": round(len(messages) / days),
            "megabytes_a_day": (_num_bytes(cluster) - size) / 1e6 / days,
            "by_kind_a_day": {kind: round(count / days) for kind, count in by_kind.most_common()},
        }


def _num_bytes(cluster: VirtualCluster) -> int:
    return sum(len(record.data) for record in cluster.records)


def _kind(message: object) -> str:
    return f"decision of {message.service}" if isinstance(message, PlanDecided) else type(message).__name__
