"""What is run for a report: every policy on every trace and cluster, and the variants that some figures ask for."""

import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from shared.messages.job import JobClass
from simulator.interruption import interruptible
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.trial import Outcome, Trial, run
from simulator.workload.jobs import TraceJob, Workload

LOOSENING = 1.5  # the paper's; doubled until everybody is admitted
BEST_EFFORT_SEED = 0
MAX_DOUBLINGS = 8
MAX_LOOSENED_JOBS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """policies: the first one is ours, with which the others are compared."""

    workloads: tuple[Workload, ...]
    clusters: tuple[ClusterShape, ...]
    policies: tuple[str, ...]
    overhead: str = "reference"

    def trial(self, workload: Workload, cluster: ClusterShape, policy: str) -> Trial:
        return Trial(workload=workload, cluster=cluster, policy=policy, overhead=self.overhead)

    def trials(self) -> list[Trial]:
        """All combinations."""
        return [
            self.trial(workload, cluster, policy)
            for workload in self.workloads
            for cluster in self.clusters
            for policy in self.policies
        ]

    def first(self, num_trials: int) -> "Comparison | None":
        """All combinations of some of it that are among its first trials; None if there are none."""
        if num_trials >= (of_trace := len(self.clusters) * len(self.policies)):
            return replace(self, workloads=self.workloads[: num_trials // of_trace])
        if num_trials >= len(self.policies):
            clusters = self.clusters[: num_trials // len(self.policies)]
            return replace(self, workloads=self.workloads[:1], clusters=clusters)
        if not num_trials:
            return None
        policies = self.policies[:num_trials]
        return replace(self, workloads=self.workloads[:1], clusters=self.clusters[:1], policies=policies)


class NotRun(Exception):
    """A figure asks for a run after the last one."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs each trial once, whoever asks for it; what Ctrl-C interrupts is not kept.

    done: called after each run. over: nothing is run any more, NotRun is raised instead.
    """

    workers: int = 1
    done: Callable[[Outcome], None] = lambda outcome: None
    outcomes: dict[tuple[str, ClusterShape, str], Outcome] = field(default_factory=dict)
    over: bool = False

    def __call__(self, trials: Iterable[Trial]) -> list[Outcome]:
        """In the order of the trials, of one overhead model; two workloads must not have the same name."""
        trials = list(trials)
        missing = list({_key(trial): trial for trial in trials if _key(trial) not in self.outcomes}.values())
        if missing and self.over:
            raise NotRun
        if self.workers > 1 and len(missing) > 1:
            with ProcessPoolExecutor(self.workers, initializer=_ignore_interrupts) as pool:
                self._keep(pool.map(_run, missing))
        else:
            self._keep(map(_run, missing))
        return [self.outcomes[_key(trial)] for trial in trials]

    def num_done(self, trials: Iterable[Trial]) -> int:
        """How many were run before the first that was not."""
        return sum(1 for _ in takewhile(lambda trial: _key(trial) in self.outcomes, trials))

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.outcomes[_key(outcome.trial)] = outcome
            self.done(outcome)


def _key(trial: Trial) -> tuple[str, ClusterShape, str]:
    return trial.workload.name, trial.cluster, trial.policy


def _run(trial: Trial) -> Outcome:
    verification = trial.verification()
    with interruptible() as interrupted:
        outcome = run(trial, trial.simulation(verification), verification, interrupted)
    if interrupted():
        raise KeyboardInterrupt
    return outcome


def _ignore_interrupts() -> None:
    """Of a worker between two runs: Ctrl-C reaches all processes of a terminal, and the first of them decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def mixed(workload: Workload, share: float, seed: int = BEST_EFFORT_SEED) -> Workload:
    """So many of the jobs are best effort, the same ones and more of them as the share grows; all others are slo.

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


def loosened(workload: Workload, times: float) -> Workload:
    """The first jobs with a deadline, all of class slo, each with so many times the time that it had.

    Source: ElasticFlow, section 6.4: efficiency is compared where all schedulers run the same jobs.
    """
    dated = [job for job in workload.jobs if job.deadline_s is not None][:MAX_LOOSENED_JOBS]
    return Workload.of(f"{workload.name}, {times:g} times the time", (_given(job, times) for job in dated))


def _given(job: TraceJob, times: float) -> TraceJob:
    assert job.deadline_s is not None
    deadline_s = job.submitted_at_s + times * (job.deadline_s - job.submitted_at_s)
    return replace(job, job_class=JobClass.SLO, deadline_s=deadline_s)


def loose_enough(comparison: Comparison, runner: Runner) -> Workload:
    """Loosened until our policy rejects nobody, or until it no longer helps: some jobs run nowhere here."""
    for doublings in range(MAX_DOUBLINGS):
        workload = loosened(comparison.workloads[0], LOOSENING * 2**doublings)
        trial = comparison.trial(workload, comparison.clusters[0], comparison.policies[0])
        (outcome,) = runner([trial])
        if not outcome.result.num_rejected:
            return workload
    return loosened(comparison.workloads[0], LOOSENING * 2**MAX_DOUBLINGS)
