"""What `--policy` may name: the services' own policies under each setting of admission, and the baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import BadSettings
from shared.messages.policy import Policy
from simulator.baselines.adapter import baseline_policies
from simulator.baselines.catalogue import BASELINES
from simulator.policies import PLANNERS
from simulator.trace_driven.pool import AdmissionPolicy
from simulator.workload.jobs import Workload

OURS: tuple[AdmissionPolicy, ...] = ("selective", "first-come")
STRATEGIES = (*OURS, *BASELINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Who decides, by service, in the order in which they are asked. admission: the pool's setting."""

    name: str
    policies: Mapping[str, Policy[Any]]
    admission: AdmissionPolicy = "selective"


def strategy(name: str, workload: Workload) -> Strategy:
    """A baseline may look at the GPUs that the workload's users asked for. BadSettings for an unknown name."""
    for admission in OURS:
        if name == admission:
            return Strategy(name=name, policies=PLANNERS, admission=admission)
    baseline = BASELINES.get(name)
    if baseline is None:
        raise BadSettings((f"policy {name!r} must be one of {', '.join(STRATEGIES)}",))
    admission, allocator = baseline_policies(baseline, {job.job_id: job.num_gpus for job in workload.jobs})
    return Strategy(name=name, policies={**PLANNERS, "admission": admission, "allocator": allocator})
