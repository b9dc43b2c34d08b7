"""Every policy that `--policy` can name: the services' own, under each admission setting, and the baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from elasticflow.services.admission import policy as admission_policy
from elasticflow.services.allocator import policy as allocator_policy
from elasticflow.services.placement import policy as placement_policy
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.baseline import Baseline, UserRequest
from elasticflow.simulator.baselines.edf import (
    EarliestDeadlineFirst,
    EarliestDeadlineFirstElastic,
    EarliestDeadlineFirstWithAdmission,
)
from elasticflow.simulator.baselines.elasticflow_algorithms import ElasticFlowAlgorithms
from elasticflow.simulator.baselines.lease_schedulers import Chronus, Gandiva, Themis, ThemisInSlots
from elasticflow.simulator.baselines.policy_adapter import NO_REQUESTS, baseline_policies
from elasticflow.simulator.baselines.schedulers_without_deadlines import (
    ElasticTiresias,
    Pollux,
    StaticPriority,
    Tiresias,
    WeightedFairSharing,
)

AdmissionPolicy = Literal["first-come", "selective"]
OURS: tuple[AdmissionPolicy, ...] = ("selective", "first-come")

_BASELINES: tuple[Baseline, ...] = (
    ElasticFlowAlgorithms(),
    EarliestDeadlineFirst(),
    EarliestDeadlineFirst("edf-64", most_gpus=64),
    EarliestDeadlineFirstWithAdmission(),
    EarliestDeadlineFirstWithAdmission("edf-admission-64", most_gpus=64),
    EarliestDeadlineFirstElastic(),
    ElasticFlowAlgorithms("edf-elastic-reserving", admission=False),
    Gandiva(),
    Tiresias(),
    Tiresias("tiresias-3250-7200", quanta_gpu_s=(3_250.0, 7_200.0)),
    ElasticTiresias(),
    Themis(),
    ThemisInSlots("themis-slots-60", slot_s=60.0),
    ThemisInSlots("themis-slots-240", slot_s=240.0),
    Chronus(),
    Chronus("chronus-ticks", slack=0.1, waits_for_ticks=True),
    Pollux(),
    WeightedFairSharing(),
    StaticPriority(),
)
BASELINES: Mapping[str, Baseline] = {baseline.name: baseline for baseline in _BASELINES}
POLICY_NAMES = (*OURS, *BASELINES)


def planners() -> Mapping[str, Policy[PoolState]]:
    """The services' own policies, in the order in which they are asked. They share one cache."""
    cache = PlanningCache()
    services = (admission_policy, allocator_policy, placement_policy)
    policies = (service.with_cache(cache) for service in services)
    return {policy.service: policy for policy in policies}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicies:
    """Policies by service, in the order in which they are asked. admission: the pool's setting."""

    name: str
    policies: Mapping[str, Policy[Any]]
    admission: AdmissionPolicy = "selective"


def policies_named(name: str, requests: Mapping[str, UserRequest] = NO_REQUESTS) -> NamedPolicies:
    """The policies of this name. BadSettings for an unknown name.

    requests: by job id; baselines may read them.
    """
    for admission in OURS:
        if name == admission:
            return NamedPolicies(name=name, policies=planners(), admission=admission)
    baseline = BASELINES.get(name)
    if baseline is None:
        raise BadSettings((f"policy {name!r} must be one of {', '.join(POLICY_NAMES)}",))
    admission, allocator = baseline_policies(baseline, requests)
    return NamedPolicies(name=name, policies={**planners(), "admission": admission, "allocator": allocator})
