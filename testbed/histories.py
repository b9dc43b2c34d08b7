"""Histories for tests: ledgers of a pool, in short form."""

from dataclasses import dataclass, field, replace
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState

NOW_S = 1_800_000_000.0
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}


def spec(**changes: Any) -> JobSpec:
    """An SLO job of 100 iterations with a known linear curve (1 iteration/s on one GPU), due in 100 s."""
    base = JobSpec(
        training_function="examples.digits:Digits",
        model_name="linear",
        global_batch_size=64,
        max_iterations=100,
        deadline_s=NOW_S + 100.0,
    )
    return replace(base, **changes)


def best_effort(**changes: Any) -> JobSpec:
    """The same job without a deadline."""
    return spec(job_class=JobClass.BEST_EFFORT, deadline_s=None, **changes)


def submit(job_id: str, tenant: str = "lab", **changes: Any) -> SubmitJob:
    return SubmitJob(job_id=job_id, tenant=tenant, spec=spec(**changes))


@dataclass
class History:
    """A ledger under construction; every method appends and folds."""

    state: PoolState = field(default_factory=PoolState)
    messages: list[Any] = field(default_factory=list)

    def then(self, *messages: Any) -> "History":
        for message in messages:
            self.state = ledger_fold.evolve(self.state, message, self.state.sequence + 1)
            self.messages.append(message)
        return self

    def configured(self, **changes: Any) -> "History":
        curves = {"linear/b64": LINEAR} | changes.pop("curves", {})
        config = PoolConfig(
            **{"resize_cost_s": 2.0, "throughput_margin": 0.0, "deadline_slack_s": 0.0, "curves": curves} | changes
        )
        return self.then(events.PoolConfigured(config=config, at_s=NOW_S))

    def nodes(self, *num_gpus: int, at_s: float = NOW_S) -> "History":
        for number, count in enumerate(num_gpus):
            self.then(
                events.NodeJoined(
                    node_id=f"node-{number}",
                    incarnation=f"first-{number}",
                    num_gpus=count,
                    device="cpu",
                    at_s=at_s,
                )
            )
        return self

    def decided(self, policy: Any, *commands: Any, now_s: float = NOW_S) -> tuple[Any, ...]:
        """Let a policy decide, record the decision as the host would, and return its events."""
        decision_events = policy.decide(self.state, commands, now_s)
        if decision_events:
            self.then(
                events.PlanDecided(
                    service=policy.service,
                    based_on=self.state.sequence,
                    now_s=now_s,
                    commands=commands,
                    events=decision_events,
                )
            )
        return decision_events

    def started(self, job_id: str, *, iteration: int = 0, at_s: float = NOW_S) -> "History":
        job = self.state.live_jobs[job_id]
        return self.then(
            events.GenerationStarted(
                job_id=job_id,
                generation=job.generation,
                num_gpus=len(job.gpus),
                iteration=iteration,
                at_s=at_s,
            )
        )

    def finished(self, job_id: str, *, at_s: float) -> "History":
        job = self.state.live_jobs[job_id]
        return self.then(
            events.JobFinished(
                job_id=job_id,
                generation=job.generation,
                iteration=100,
                condition="max_iterations",
                at_s=at_s,
            )
        )


def pool(*num_gpus: int, **config: Any) -> History:
    """A configured pool with nodes of these sizes."""
    return History().configured(**config).nodes(*num_gpus)


def gpus(*names: str) -> tuple[GpuId, ...]:
    """GpuIds from "node-0:1" and the like."""
    return tuple(GpuId(name.split(":")[0], int(name.split(":")[1])) for name in names)
