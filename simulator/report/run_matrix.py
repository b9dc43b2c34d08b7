"""The runs of a report: every policy on every trace and cluster, and the variants that some figures need."""

import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.command_inputs import interruptible
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

BEST_EFFORT_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMatrix:
    """All combinations of workloads, clusters and policies. The others are compared with the first policy, ours."""

    workloads: tuple[Workload, ...]
    clusters: tuple[ClusterShape, ...]
    policies: tuple[str, ...]
    overhead: str = "reference"

    def run_of(self, workload: Workload, cluster: ClusterShape, policy: str) -> SimulatedRun:
        return SimulatedRun(workload=workload, cluster=cluster, policy=policy, overhead=self.overhead)

    def runs(self) -> list[SimulatedRun]:
        """All combinations, by workload, then cluster, then policy."""
        return [
            self.run_of(workload, cluster, policy)
            for workload in self.workloads
            for cluster in self.clusters
            for policy in self.policies
        ]

    def first(self, num_runs: int) -> "RunMatrix | None":
        """The largest complete part within the first `num_runs` runs; None if there is none."""
        if num_runs >= (per_trace := len(self.clusters) * len(self.policies)):
            return replace(self, workloads=self.workloads[: num_runs // per_trace])
        if num_runs >= len(self.policies):
            clusters = self.clusters[: num_runs // len(self.policies)]
            return replace(self, workloads=self.workloads[:1], clusters=clusters)
        if not num_runs:
            return None
        policies = self.policies[:num_runs]
        return replace(self, workloads=self.workloads[:1], clusters=self.clusters[:1], policies=policies)


class NotRun(Exception):
    """A figure needs a run that was not made before the interruption."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Makes each run once and keeps its outcome; a run that Ctrl-C interrupts is not kept.

    done: called after each run. over: raise NotRun instead of making another run.
    """

    workers: int = 1
    done: Callable[[Outcome], None] = lambda outcome: None
    outcomes: dict[tuple[str, ClusterShape, str], Outcome] = field(default_factory=dict)
    over: bool = False

    def __call__(self, runs: Iterable[SimulatedRun]) -> list[Outcome]:
        """Outcomes in the order of the runs, all of one overhead model; each workload has a name of its own."""
        runs = list(runs)
        missing = list({_key(run): run for run in runs if _key(run) not in self.outcomes}.values())
        if missing and self.over:
            raise NotRun
        if self.workers > 1 and len(missing) > 1:
            with ProcessPoolExecutor(self.workers, initializer=_ignore_interrupts) as pool:
                self._keep(pool.map(_run, missing))
        else:
            self._keep(map(_run, missing))
        return [self.outcomes[_key(run)] for run in runs]

    def num_done(self, runs: Iterable[SimulatedRun]) -> int:
        """Runs made before the first one that was not."""
        return sum(1 for _ in takewhile(lambda run: _key(run) in self.outcomes, runs))

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.outcomes[_key(outcome.run)] = outcome
            self.done(outcome)


def _key(run: SimulatedRun) -> tuple[str, ClusterShape, str]:
    return run.workload.name, run.cluster, run.policy


def _run(run: SimulatedRun) -> Outcome:
    verification = run.verification()
    with interruptible() as interrupted:
        outcome = execute(run, run.simulation(verification), verification, interrupted)
    if interrupted():
        raise KeyboardInterrupt
    return outcome


def _ignore_interrupts() -> None:
    """Ignore interrupts in a worker process between two runs.

    Ctrl-C reaches all processes of a terminal, and the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def mixed(workload: Workload, share: float, seed: int = BEST_EFFORT_SEED) -> Workload:
    """This share of the jobs with a deadline becomes best effort; a larger share includes the jobs of a smaller one.

    Source: ElasticFlow, section 6.5.
    """
    dated = [job for job in workload.jobs if job.deadline_s is not None]
    order = np.random.default_rng(seed).permutation(len(dated))
    chosen = {dated[position].job_id for position in order[: round(share * len(dated))]}
    return Workload.of(f"{workload.name}, {share:.0%} best effort", (_in_class(job, chosen) for job in dated))


def _in_class(job: TraceJob, best_effort: set[str]) -> TraceJob:
    if job.job_id in best_effort:
        return replace(job, job_class=JobClass.BEST_EFFORT, deadline_s=None)
    return replace(job, job_class=JobClass.SLO)


def due_after(workload: Workload, durations: float) -> Workload:
    """All jobs are of class slo, with so many durations until their deadlines.

    Source: ElasticFlow, section 6.4: efficiency is compared on schedulers that run the same jobs.
    """
    due = (
        replace(job, job_class=JobClass.SLO, deadline_s=job.submitted_at_s + durations * job.duration_s)
        for job in workload.jobs
    )
    return Workload.of(f"{workload.name}, due after {durations:g} durations", due)
